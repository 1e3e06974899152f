//! What the hub offers to other jobs of the process: its database, and the actors that only one job runs.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Broker, Changes, Claims, Keyring, SchemaState, WriterHandle};
use crate::db::Database;

/// The documents of this process. Whoever uses them is wired after the hub, and drains before it.
#[derive(Clone)]
pub struct Shared {
    pub database: Database,
    pub writer: WriterHandle,
    /// What the clients of each namespace have changed.
    pub changes: Changes,
    /// Renews what this process holds.
    pub claims: Claims,
    /// The keys that open sealed fields now.
    pub keyring: watch::Receiver<Arc<Keyring>>,
    /// The message broker, with the bus `amqp`.
    pub broker: Option<Broker>,
    pub schema: watch::Receiver<SchemaState>,
}

impl Shared {
    /// Waits until the schema is there.
    ///
    /// Cancel safe.
    pub async fn has_schema(&self) {
        let mut schema = self.schema.clone();
        if schema.wait_for(|state| *state == SchemaState::Current).await.is_err() {
            // The hub has ended, and the process with it.
            std::future::pending::<()>().await;
        }
    }
}

//! What a poller works with in each of its runs. None of it belongs to a run.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::hub_view::HubView;
use super::reporter::Reporter;
use crate::cluster::Fence;
use crate::db::Database;
use crate::status_sync::config::StatusFamily;
use crate::status_sync::database::Statements;
use crate::status_sync::rules::FamilySpec;
use crate::status_sync::standing::HubStanding;
use crate::telemetry::NotReady;

/// What the pollers of a section share.
pub struct Shared {
    /// The database.
    pub database: Database,
    /// Limits the writes of all families. A waiting family gets the next permit.
    pub permits: Arc<Semaphore>,
    /// Time between the beginnings of two passes.
    pub interval: Duration,
    /// The only namespace that is synced; empty for all.
    pub namespace: String,
    /// Whether any family has seen a row of `status`. If none has, the database may be one that is being filled.
    pub any_rows: watch::Sender<bool>,
    /// Counts the approvals.
    pub approvals: watch::Sender<u64>,
    /// Where the section is elected: nothing is written or listed while this fence is closed.
    pub fence: Option<Fence>,
    /// Whether the section may write to this hub.
    pub standing: Arc<HubStanding>,
}

/// What one poller works with.
pub(super) struct Context {
    pub(super) family: StatusFamily,
    pub(super) spec: FamilySpec,
    pub(super) statements: Statements,
    pub(super) shared: Arc<Shared>,
    pub(super) hub: HubView,
    pub(super) reporter: Reporter,
}

impl Context {
    /// Why no pass can begin.
    pub(super) fn not_ready_because(&self) -> Option<NotReady> {
        let unread = || self.shared.standing.unread_because();
        let lists = || NotReady { reason: "a list is in progress".to_owned(), unreachable: false };
        self.hub.not_ready_because().or_else(unread).or_else(|| (!self.hub.is_ready()).then(lists))
    }
}

//! The parts that a poller works with in every run: those of the section, and those of its family. The state of a run is
//! in `poller_state`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::family_guard::FamilyGuard;
use super::hub_watches::HubWatches;
use super::reporter::Reporter;
use crate::cluster::Fence;
use crate::db::Database;
use crate::status::NotReady;
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::FamilySpec;
use crate::status_sync::run::database::Statements;
use crate::status_sync::run::identity::HubIdentification;

/// The parts that all pollers of a section share.
pub struct SectionContext {
    pub database: Database,
    /// Limits the concurrent writes of all families. Permits are granted in the order of the requests, so no family
    /// starves another.
    pub permits: Arc<Semaphore>,
    /// Time between the beginnings of two passes.
    pub interval: Duration,
    /// The only namespace that is synced; empty for all namespaces.
    pub namespace: String,
    /// Whether any family has seen a row of `status`. If none has, the database may be about to be filled.
    pub any_rows: watch::Sender<bool>,
    /// Counts the operator's approvals of held clearings, which wake the pollers.
    pub approvals: watch::Sender<u64>,
    /// The fence of the section's Lease, with leader election. Nothing is written or listed while it is closed.
    pub fence: Option<Fence>,
    /// Whether the section may write to this hub.
    pub identification: Arc<HubIdentification>,
}

/// The parts of one family's poller.
pub(super) struct FamilyContext {
    pub(super) family: StatusFamily,
    pub(super) spec: FamilySpec,
    pub(super) statements: Statements,
    pub(super) shared: Arc<SectionContext>,
    pub(super) hub: HubWatches,
    pub(super) reporter: Reporter,
    pub(super) guard: FamilyGuard,
}

impl FamilyContext {
    /// Why no pass can begin.
    pub(super) fn not_ready_because(&self) -> Option<NotReady> {
        let unread = || self.shared.identification.unread_because();
        let lists = || NotReady { reason: "a list is in progress".to_owned(), unreachable: false };
        self.hub.not_ready_because().or_else(unread).or_else(|| (!self.hub.is_ready()).then(lists))
    }
}

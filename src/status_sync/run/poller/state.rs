//! What a poller works with: the parts of the section and of its family, which outlive its runs, and the state of one run.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::family_guard::FamilyGuard;
use super::hub_watches::HubWatches;
use super::report::Reporter;
use super::table::Table;
use crate::actor::KeyInbox;
use crate::cluster::events::EventMailbox;
use crate::cluster::{Demand, Fence, Identification, ObjectKey};
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
    pub slots: Arc<Semaphore>,
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
    /// What is told of objects in Events.
    pub events: EventMailbox,
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
    /// What a run knows of each row. The actor changes it; a row is explained to whoever asks, so it is behind a lock, which is held for one
    /// call, and taken before that of the guard.
    pub(super) table: Mutex<Table>,
}

impl FamilyContext {
    /// Why no pass can begin.
    pub(super) fn not_ready_because(&self) -> Option<NotReady> {
        let unread = || self.shared.identification.unread_because();
        let lists = || NotReady { reason: "a list is in progress".to_owned(), unreachable: false };
        self.hub.not_ready_because().or_else(unread).or_else(|| (!self.hub.is_ready()).then(lists))
    }

    /// Records in the table that a watch has shown an object, or its deletion.
    pub(super) fn record_change(&self, shown: &ObjectKey) {
        let (hub, owner) = (&self.hub, self.hub.owner_of(shown));
        self.table.lock().record_change(shown, owner.as_ref(), hub.hub_objects(), hub.targets());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassOutcome {
    /// It read everything, and tried to write every difference.
    Complete,
    /// Change detection completed, but the section may not write to this hub.
    Held,
    /// The database did not return everything. Also the value before the first pass has ended.
    Failed,
}

/// The state of one run of a poller, beside the table. A restart begins with a new one, and compares everything again.
pub(super) struct PollerState {
    pub(super) inbox: KeyInbox<ObjectKey>,
    /// Keys that watches have shown during a pass, or while none could begin. They are recorded in the table afterwards.
    pub(super) changed_keys: HashSet<ObjectKey>,
    pub(super) is_first_pass: bool,
    pub(super) last_pass: PassOutcome,
    /// How long the last change detection took.
    pub(super) detection: Duration,
    /// Keep the watches running, and make sure that their lists began after this run.
    demands: Vec<Demand>,
}

impl PollerState {
    /// The state at the beginning of a run.
    pub(super) fn new(inbox: KeyInbox<ObjectKey>, demands: Vec<Demand>) -> Self {
        Self {
            inbox,
            changed_keys: HashSet::new(),
            is_first_pass: true,
            last_pass: PassOutcome::Failed,
            detection: Duration::ZERO,
            demands,
        }
    }

    /// Whether the caches are complete, show the cluster that answers now, and were listed for this run.
    pub(super) fn can_decide(&self, hub: &HubWatches) -> bool {
        hub.is_ready() && self.demands.iter().all(Demand::is_met)
    }

    /// Whether a pass would now end differently from the last one, because the hub's identification has changed. A pass that
    /// failed waits for its back-off instead.
    pub(super) fn needs_pass(&self, identification: &Identification) -> bool {
        match (identification, self.last_pass) {
            (Identification::Unread, _) | (_, PassOutcome::Failed) => false,
            (Identification::Undecided, _) => true,
            (Identification::Clear, last_pass) => last_pass == PassOutcome::Held,
            (Identification::Held(_) | Identification::Refused(_), last_pass) => last_pass == PassOutcome::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::key_mailbox;
    use crate::cluster::Objection;

    #[test]
    fn a_change_of_the_identification_causes_a_pass_only_if_it_would_end_differently() {
        let (_mailbox, inbox) = key_mailbox(1);
        let mut state = PollerState::new(inbox, Vec::new());
        let cluster = "hub".parse().expect("a name");
        let held = Identification::Held(Objection::OtherObjects { cluster, others: 2, objects: 2 });
        for (last_pass, needing) in [
            (PassOutcome::Failed, [false, false, false, false]),
            (PassOutcome::Complete, [false, true, false, true]),
            (PassOutcome::Held, [false, true, true, false]),
        ] {
            state.last_pass = last_pass;
            let needs = [&Identification::Unread, &Identification::Undecided, &Identification::Clear, &held]
                .map(|of| state.needs_pass(of));
            assert_eq!(needs, needing, "{last_pass:?}");
        }
    }
}

//! The state of one run of a poller.

use std::collections::HashSet;
use std::time::Duration;

use super::hub_watches::HubWatches;
use super::table::Table;
use crate::actor::KeyInbox;
use crate::cluster::{Demand, Identification, ObjectKey};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassOutcome {
    /// It read everything, and tried to write every difference.
    Complete,
    /// Change detection completed, but the section may not write to this hub.
    Held,
    /// The database did not return everything. Also the value before the first pass has ended.
    Failed,
}

/// The state of one run of a poller. A restart begins with a new one, and compares everything again.
pub(super) struct PollerState {
    pub(super) table: Table,
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
            table: Table::default(),
            inbox,
            changed_keys: HashSet::new(),
            is_first_pass: true,
            last_pass: PassOutcome::Failed,
            detection: Duration::ZERO,
            demands,
        }
    }

    /// Records in the table that a watch has shown an object, or its deletion.
    pub(super) fn record_change(&mut self, shown: &ObjectKey, hub: &HubWatches) {
        self.table.record_change(shown, hub.owner_of(shown).as_ref(), hub.hub_objects(), hub.targets());
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

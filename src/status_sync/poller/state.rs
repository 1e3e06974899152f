//! The state of one run of a poller.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::hub_view::HubView;
use super::table::Table;
use crate::actor::KeyInbox;
use crate::cluster::{Demand, ObjectKey};
use crate::status_sync::rules::{Guard, RowId};
use crate::status_sync::standing::Standing;

/// How a pass has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It has written everything that there was to write.
    Complete,
    /// It has compared everything, and may not write.
    Held,
    /// The database has not returned everything. This is also the state before the first pass has ended.
    Failed,
}

/// What one run of a poller knows.
pub(super) struct PollerState {
    pub(super) table: Table,
    pub(super) guard: Guard<RowId>,
    pub(super) inbox: KeyInbox<ObjectKey>,
    /// Keys that arrived during a pass, or while none could begin.
    pub(super) noted: HashSet<ObjectKey>,
    pub(super) is_first_pass: bool,
    /// How the last pass has ended.
    pub(super) ended: Ended,
    /// How long the last change detection took.
    pub(super) detection: Duration,
    /// When the last pass began that counted for a clearing that is held.
    counted: Option<Instant>,
    /// Keeps the watches running, with lists that began after the run did.
    demands: Vec<Demand>,
}

impl PollerState {
    /// The state at the beginning of a run.
    pub(super) fn new(inbox: KeyInbox<ObjectKey>, demands: Vec<Demand>) -> Self {
        Self {
            table: Table::default(),
            guard: Guard::default(),
            inbox,
            noted: HashSet::new(),
            is_first_pass: true,
            ended: Ended::Failed,
            detection: Duration::ZERO,
            counted: None,
            demands,
        }
    }

    /// Updates the table after a watch has shown an object, or its absence.
    pub(super) fn note(&mut self, shown: &ObjectKey, hub: &HubView) {
        self.table.note(shown, hub.owner_of(shown).as_ref(), hub.hub_objects(), hub.targets());
    }

    /// Whether a pass that begins now counts for a clearing that is held. Passes that count are at least an interval
    /// apart.
    pub(super) fn counts(&mut self, now: Instant, interval: Duration) -> bool {
        let counts = self.counted.is_none_or(|before| now.saturating_duration_since(before) >= interval);
        if counts {
            self.counted = Some(now);
        }
        counts
    }

    /// Whether the caches are complete, show the cluster that answers now, and were listed in this run.
    pub(super) fn can_decide(&self, hub: &HubView) -> bool {
        hub.is_ready() && self.demands.iter().all(Demand::is_met)
    }

    /// Whether a pass would end differently from the last one, because of what is known of the hub now. A pass that
    /// failed waits for its back-off.
    pub(super) fn needs_pass(&self, standing: &Standing) -> bool {
        match (standing, self.ended) {
            (Standing::Unread, _) | (_, Ended::Failed) => false,
            (Standing::Undecided, _) => true,
            (Standing::Clear, ended) => ended == Ended::Held,
            (Standing::Held(_), ended) => ended == Ended::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::key_mailbox;
    use crate::status_sync::rules::same_hub::Compared;
    use crate::status_sync::standing::Objection;

    #[test]
    fn a_change_of_the_standing_asks_for_a_pass_only_where_it_would_end_differently() {
        let (_mailbox, inbox) = key_mailbox(1);
        let mut state = PollerState::new(inbox, Vec::new());
        let cluster = "hub".parse().expect("a name");
        let held = Standing::Held(Objection::OtherObjects { cluster, compared: Compared { objects: 2, others: 2 } });
        for (ended, needing) in [
            (Ended::Failed, [false, false, false, false]),
            (Ended::Complete, [false, true, false, true]),
            (Ended::Held, [false, true, true, false]),
        ] {
            state.ended = ended;
            let needs =
                [&Standing::Unread, &Standing::Undecided, &Standing::Clear, &held].map(|of| state.needs_pass(of));
            assert_eq!(needs, needing, "{ended:?}");
        }
    }
}

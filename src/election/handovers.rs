//! The sections that this replica has handed over to others, and what became of them.
//!
//! A replica hands over one section at a time. The Lease that releases the section names the preferred holder, so that all
//! replicas agree on it, whatever else they have seen: a replica that has just started still counts dead ones as alive. A
//! preferred holder that did not acquire its section is skipped for a while, and for longer each time: a replica that is
//! alive and acquires nothing must neither keep a section moving nor make other replicas wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::record::SectionRecord;

/// For how many lease durations a preferred holder is skipped at most, and a handover is waited for at most. A preferred
/// holder is skipped for at least one: by then a dead replica is known to be dead.
const LONGEST: u32 = 16;

/// A section that is handed over to another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handover {
    pub(super) section: String,
    pub(super) preferred_holder: Arc<str>,
}

/// A handover whose section no replica has acquired yet.
#[derive(Clone, Debug)]
struct Pending {
    handover: Handover,
    /// The record of the term that ends with it.
    before: SectionRecord,
    /// The section has been seen without a holder since.
    was_free: bool,
    /// When this replica stops waiting for it.
    until: Instant,
}

/// A preferred holder that did not acquire its section.
#[derive(Clone, Debug)]
struct Declined {
    /// How often in a row.
    times: u32,
    /// Until when the replica is skipped.
    until: Instant,
}

/// What became of this replica's handovers.
#[derive(Clone, Debug, Default)]
pub(super) struct Handovers {
    pending: Option<Pending>,
    declined: BTreeMap<Arc<str>, Declined>,
}

impl Handovers {
    /// This replica starts to hand over the section with this record.
    pub(super) fn start(&mut self, handover: Handover, before: SectionRecord, now: Instant) {
        let until = now + before.duration * LONGEST;
        self.pending = Some(Pending { handover, before, was_free: false, until });
    }

    /// Whether the next handover has to wait for this one.
    pub(super) fn is_pending(&self, now: Instant) -> bool {
        self.pending.as_ref().is_some_and(|pending| now < pending.until)
    }

    /// Whether no section should be handed over to this replica now.
    pub(super) fn skips(&self, identity: &Arc<str>, now: Instant) -> bool {
        self.declined.get(identity).is_some_and(|declined| now < declined.until)
    }

    /// When the passing of time alone changes something.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        let declined = self.declined.values().map(|declined| declined.until);
        self.pending.iter().map(|pending| pending.until).chain(declined)
    }

    /// A section's record is this now.
    pub(super) fn section_changed(&mut self, section: &str, record: &SectionRecord, now: Instant) {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.handover.section == section) else {
            return;
        };
        if record.holder.is_none() {
            pending.was_free = true;
            return;
        }
        let before = &pending.before;
        // The counter of transitions stops at its largest number.
        let was_released = pending.was_free || record.transitions != before.transitions;
        if !was_released && record.acquired == before.acquired {
            return;
        }
        let preferred = Arc::clone(&pending.handover.preferred_holder);
        self.pending = None;
        if record.holder.as_ref() == Some(&preferred) {
            self.declined.remove(&preferred);
        } else if was_released {
            // Otherwise the previous holder began a new term without having released the section.
            let times = self.declined.get(&preferred).map_or(0, |declined| declined.times) + 1;
            let until = now + skipped_for(record.duration, times);
            self.declined.insert(preferred, Declined { times, until });
        }
    }

    /// A section's record was deleted.
    pub(super) fn section_deleted(&mut self, section: &str) {
        self.pending.take_if(|pending| pending.handover.section == section);
    }

    /// A replica's record was deleted.
    pub(super) fn replica_deleted(&mut self, identity: &str) {
        self.pending.take_if(|pending| *pending.handover.preferred_holder == *identity);
        self.forget_declined(identity);
    }

    /// The replica may receive sections again, for instance because it was dead and is back.
    pub(super) fn forget_declined(&mut self, identity: &str) {
        self.declined.remove(identity);
    }
}

fn skipped_for(duration: Duration, times: u32) -> Duration {
    duration * 2_u32.saturating_pow(times - 1).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: Option<&str>, acquired: Option<&str>) -> SectionRecord {
        SectionRecord {
            holder: holder.map(Arc::from),
            preferred_holder: None,
            duration: Duration::from_secs(15),
            // Where the counter stops.
            transitions: i32::MAX,
            acquired: acquired.map(Arc::from),
            uid: "uid".into(),
            version: "1".into(),
        }
    }

    /// What became of a handover to `preferred`, by the records that followed: whether it is over, and the replica skipped.
    fn after(records: &[SectionRecord]) -> (bool, bool) {
        let (now, mut handovers) = (Instant::now(), Handovers::default());
        let preferred: Arc<str> = "preferred".into();
        let handover = Handover { section: "a".to_owned(), preferred_holder: Arc::clone(&preferred) };
        handovers.start(handover, record(Some("giver"), Some("1")), now);
        for record in records {
            handovers.section_changed("a", record, now);
        }
        (!handovers.is_pending(now), handovers.skips(&preferred, now))
    }

    #[test]
    fn a_preferred_holder_has_declined_where_another_replica_acquired_a_free_section_also_at_the_end_of_the_counter() {
        let free = || record(None, Some("1"));
        assert_eq!(after(&[free()]), (false, false));
        assert_eq!(after(&[free(), record(Some("preferred"), Some("2"))]), (true, false));
        assert_eq!(after(&[free(), record(Some("giver"), Some("2"))]), (true, true));
        assert_eq!(after(&[free(), record(Some("third"), Some("2"))]), (true, true));
    }

    #[test]
    fn a_holder_that_continues_without_having_released_says_nothing_about_the_preferred_holder() {
        assert_eq!(after(&[record(Some("giver"), Some("1"))]), (false, false), "a renewal");
        assert_eq!(after(&[record(Some("giver"), Some("2"))]), (true, false), "a new term");
    }
}

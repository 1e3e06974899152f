//! What this replica has offered to others, and who has left it to somebody else.
//!
//! One section at a time is on its way. The heir is named in the record that gives the section up, so that all replicas
//! agree on it, whatever else they have seen: for one that has just come, a dead replica still counts as living. An heir
//! that did not take what it was offered is passed over for a while, and for longer each time: a replica that lives and
//! takes nothing must not keep a section going round, and nobody else is to wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::record::SeatRecord;

/// The longest that an heir is passed over, and that an offer is waited for, in durations of a lease. The shortest is one:
/// by then an heir that is dead is known to be.
const LONGEST: u32 = 16;

/// A section that is given up for somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) section: String,
    pub(super) heir: Arc<str>,
}

/// An offer that nobody has taken yet.
#[derive(Clone, Debug)]
struct UnderWay {
    offer: Offer,
    /// The term that ends with it.
    before: SeatRecord,
    /// Nobody had it since.
    is_free: bool,
    /// It is not waited for any longer.
    until: Instant,
}

/// An heir that did not take what it was offered.
#[derive(Clone, Debug)]
struct Declined {
    /// How often, one after the other.
    times: u32,
    /// It is passed over.
    until: Instant,
}

/// What became of the offers of this replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    under_way: Option<UnderWay>,
    declined: BTreeMap<Arc<str>, Declined>,
}

impl Offers {
    /// The section of this record is given up.
    pub(super) fn make(&mut self, offer: Offer, before: SeatRecord, now: Instant) {
        let until = now + before.duration * LONGEST;
        self.under_way = Some(UnderWay { offer, before, is_free: false, until });
    }

    /// Whether another one has to wait.
    pub(super) fn is_under_way(&self, now: Instant) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| now < under_way.until)
    }

    /// Whether this replica is not to be offered anything.
    pub(super) fn passes_over(&self, heir: &Arc<str>, now: Instant) -> bool {
        self.declined.get(heir).is_some_and(|declined| now < declined.until)
    }

    /// When time alone makes a difference.
    pub(super) fn differences(&self) -> impl Iterator<Item = Instant> {
        let declined = self.declined.values().map(|declined| declined.until);
        self.under_way.iter().map(|under_way| under_way.until).chain(declined)
    }

    /// A section's record, as it is now.
    pub(super) fn see_seat(&mut self, section: &str, record: &SeatRecord, now: Instant) {
        let Some(under_way) = self.under_way.as_mut().filter(|under_way| under_way.offer.section == section) else {
            return;
        };
        if record.holder.is_none() {
            under_way.is_free = true;
            return;
        }
        let before = &under_way.before;
        // Terms are counted up to a number at which they stay.
        let was_given_up = under_way.is_free || record.transitions != before.transitions;
        if !was_given_up && record.acquired == before.acquired {
            return;
        }
        let heir = Arc::clone(&under_way.offer.heir);
        self.under_way = None;
        if record.holder.as_ref() == Some(&heir) {
            self.declined.remove(&heir);
        } else if was_given_up {
            // Else the holder itself goes on with what it never gave up.
            let times = self.declined.get(&heir).map_or(0, |declined| declined.times) + 1;
            let until = now + passed_over(record.duration, times);
            self.declined.insert(heir, Declined { times, until });
        }
    }

    /// A section's record is gone.
    pub(super) fn lose_seat(&mut self, section: &str) {
        self.under_way.take_if(|under_way| under_way.offer.section == section);
    }

    /// A replica is gone.
    pub(super) fn lose_replica(&mut self, identity: &str) {
        self.under_way.take_if(|under_way| *under_way.offer.heir == *identity);
        self.forgive(identity);
    }

    /// A replica has come back from the dead.
    pub(super) fn forgive(&mut self, identity: &str) {
        self.declined.remove(identity);
    }
}

fn passed_over(duration: Duration, times: u32) -> Duration {
    duration * 2_u32.saturating_pow(times - 1).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: Option<&str>, acquired: Option<&str>) -> SeatRecord {
        SeatRecord {
            holder: holder.map(Arc::from),
            heir: None,
            duration: Duration::from_secs(15),
            // Where the counter stays.
            transitions: i32::MAX,
            acquired: acquired.map(Arc::from),
            uid: "uid".into(),
            version: "1".into(),
        }
    }

    /// What became of an offer to `heir`, by the records that followed: whether it is over, and the heir passed over.
    fn after(records: &[SeatRecord]) -> (bool, bool) {
        let (now, mut offers) = (Instant::now(), Offers::default());
        let heir: Arc<str> = "heir".into();
        offers.make(Offer { section: "a".to_owned(), heir: Arc::clone(&heir) }, record(Some("giver"), Some("1")), now);
        for record in records {
            offers.see_seat("a", record, now);
        }
        (!offers.is_under_way(now), offers.passes_over(&heir, now))
    }

    #[test]
    fn an_heir_has_declined_where_somebody_else_took_what_was_free_also_at_the_end_of_the_counter() {
        let free = || record(None, Some("1"));
        assert_eq!(after(&[free()]), (false, false));
        assert_eq!(after(&[free(), record(Some("heir"), Some("2"))]), (true, false));
        assert_eq!(after(&[free(), record(Some("giver"), Some("2"))]), (true, true));
        assert_eq!(after(&[free(), record(Some("third"), Some("2"))]), (true, true));
    }

    #[test]
    fn a_holder_that_goes_on_with_what_it_never_gave_up_tells_nothing_of_the_heir() {
        assert_eq!(after(&[record(Some("giver"), Some("1"))]), (false, false), "a renewal");
        assert_eq!(after(&[record(Some("giver"), Some("2"))]), (true, false), "a term anew");
    }
}

//! What the relay does next. Pure.

use std::collections::BTreeSet;

use crate::documents::kind::Kind;

/// Most messages that the broker has not confirmed.
const MOST_UNCONFIRMED: usize = 256;
/// Most bytes of them: they wait in memory until they are sent. A larger message goes alone.
const MOST_UNCONFIRMED_BYTES: usize = 8 << 20;
/// How often a row may close the channel before it is left out, for a reason that may pass.
const MOST_CLOSURES: u32 = 5;

/// The state of the log, as one statement reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Whether the database can be read: it is not being restored, and its versions are its own.
    pub(super) is_whole: bool,
    /// The log has all rows above it.
    pub(super) base: i64,
    /// The newest version.
    pub(super) newest: i64,
    /// Up to where events were published; 0 before the first start.
    pub(super) cursor: i64,
    /// Whether a queue has refused events, and nobody has confirmed yet that consumers were told to list.
    pub(super) is_relist_pending: bool,
    /// Whether events up to the cursor were published to another broker, or nobody knows to which.
    pub(super) is_elsewhere: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayStep {
    /// The rows are the next ones.
    Follow,
    /// Rows are missing, were refused, were published to another broker or never: consumers have to list.
    Relist,
    /// The versions have another origin, and have to be renumbered first.
    Renumber,
}

impl Head {
    pub(super) fn step(self) -> RelayStep {
        let Self { is_whole, base, newest, cursor, is_relist_pending, is_elsewhere } = self;
        let was_elsewhere = cursor > 0 && is_elsewhere;
        if !is_whole {
            RelayStep::Renumber
        } else if is_relist_pending || was_elsewhere || (cursor == 0 && newest > 0) || base > cursor || cursor > newest
        {
            RelayStep::Relist
        } else {
            RelayStep::Follow
        }
    }
}

/// Whether another message may be published while so many of so many bytes are unconfirmed.
pub(super) fn has_room(unconfirmed: usize, bytes: usize, next: usize, is_careful: bool) -> bool {
    let most = if is_careful { 1 } else { MOST_UNCONFIRMED };
    unconfirmed == 0 || (unconfirmed < most && bytes.saturating_add(next) <= MOST_UNCONFIRMED_BYTES)
}

/// Which rows close the channel. After a closure nobody knows which of the unconfirmed ones did, so rows are sent one by one up to the
/// last of them.
#[derive(Debug, Default)]
pub(super) struct Closures {
    careful_until: i64,
    closed_alone: Option<(i64, u32)>,
    skipped: BTreeSet<i64>,
}

impl Closures {
    /// Whether the row has to be confirmed before the next one is sent.
    pub(super) fn is_careful(&self, version: i64) -> bool {
        version <= self.careful_until
    }

    /// Whether the row is left out.
    pub(super) fn skips(&self, version: i64) -> bool {
        self.skipped.contains(&version)
    }

    /// The channel was closed while the rows from `first` to `last` were unconfirmed. `is_refusal` says that one of them was refused for
    /// good: if there is only one, it is left out at once.
    pub(super) fn closed(&mut self, first: i64, last: i64, is_refusal: bool) {
        if first != last {
            self.careful_until = self.careful_until.max(last);
            return;
        }
        let before = self.closed_alone.filter(|(version, _)| *version == first).map_or(0, |(_, closures)| closures);
        self.closed_alone = Some((first, before + 1));
        if is_refusal || before + 1 >= MOST_CLOSURES {
            self.skipped.insert(first);
        }
    }

    /// The cursor is here now.
    pub(super) fn passed(&mut self, cursor: i64) {
        self.skipped.retain(|version| *version > cursor);
    }
}

/// The kinds that have to be listed again, each once.
pub(super) fn kinds(of: impl IntoIterator<Item = Kind>) -> Vec<Kind> {
    let found: Vec<Kind> = of.into_iter().collect();
    Kind::ALL.into_iter().filter(|kind| found.contains(kind)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head =
        Head { is_whole: true, base: 10, newest: 20, cursor: 15, is_relist_pending: false, is_elsewhere: false };

    fn step(base: i64, newest: i64, cursor: i64) -> RelayStep {
        Head { base, newest, cursor, ..HEAD }.step()
    }

    #[test]
    fn a_cursor_between_base_and_newest_is_followed() {
        for cursor in [10, 15, 20] {
            assert_eq!(step(10, 20, cursor), RelayStep::Follow);
        }
        assert_eq!(step(0, 0, 0), RelayStep::Follow, "an empty log");
    }

    #[test]
    fn consumers_list_after_a_gap_at_the_first_start_and_after_a_renumbering() {
        assert_eq!(step(0, 20, 0), RelayStep::Relist);
        assert_eq!(step(10, 20, 9), RelayStep::Relist);
        assert_eq!(step(10, 20, 21), RelayStep::Relist);
    }

    /// Whoever has published last may have ended before it could say so.
    #[test]
    fn consumers_list_after_a_refusal_that_was_not_told() {
        assert_eq!(Head { is_relist_pending: true, ..HEAD }.step(), RelayStep::Relist);
    }

    /// Who consumes from this broker has not got them. Before the first event there is nothing to miss.
    #[test]
    fn consumers_list_where_another_broker_has_the_events_up_to_the_cursor() {
        let elsewhere = Head { is_elsewhere: true, ..HEAD };
        assert_eq!(elsewhere.step(), RelayStep::Relist);
        assert_eq!(Head { base: 0, newest: 0, cursor: 0, ..elsewhere }.step(), RelayStep::Follow, "an empty log");
    }

    #[test]
    fn nothing_is_published_while_the_database_is_being_restored() {
        let all = Head { is_whole: false, is_relist_pending: true, is_elsewhere: true, ..HEAD };
        assert_eq!(all.step(), RelayStep::Renumber);
    }

    #[test]
    fn unconfirmed_messages_are_bounded_in_number_and_bytes_but_a_large_one_goes_alone() {
        assert!(has_room(255, 0, 1, false) && !has_room(256, 0, 1, false));
        assert!(!has_room(1, 8 << 20, 1, false) && has_room(0, 0, 64 << 20, false));
        assert!(has_room(0, 0, 1, true) && !has_room(1, 1, 1, true));
    }

    #[test]
    fn a_row_that_closes_the_channel_five_times_is_left_out_and_the_others_are_not() {
        let mut closures = Closures::default();
        closures.closed(10, 20, false);
        assert!(closures.is_careful(20) && !closures.is_careful(21));
        for closure in 1..=5 {
            assert!(!closures.skips(12), "closure {closure}");
            closures.closed(12, 12, false);
        }
        assert!(closures.skips(12) && !closures.skips(11));
        closures.closed(13, 13, false);
        assert!(!closures.skips(13), "it has a count of its own");
        closures.passed(12);
        assert!(!closures.skips(12));
    }

    #[test]
    fn a_message_that_is_refused_for_good_is_left_out_once_it_was_alone() {
        let mut closures = Closures::default();
        closures.closed(10, 20, true);
        assert!((10..=20).all(|version| closures.is_careful(version) && !closures.skips(version)));
        closures.closed(12, 12, true);
        assert!(closures.skips(12) && !closures.skips(11) && !closures.skips(13));
    }

    #[test]
    fn a_kind_is_listed_once() {
        assert_eq!(kinds([Kind::SyncSet, Kind::Cluster, Kind::SyncSet]), [Kind::Cluster, Kind::SyncSet]);
    }
}

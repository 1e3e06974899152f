//! What a read of the log finds out about the dispatcher's place in it. Pure.

/// Versions are lifted by this much when the database was restored or failed over.
const LIFT: i64 = 1 << 40;

/// The state of the log, as one statement reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Whether the database can be read: it is not being restored, and its versions are its own.
    pub(super) is_whole: bool,
    /// The log has all rows above it.
    pub(super) base: i64,
    /// The newest version.
    pub(super) newest: i64,
    /// Up to where changes were dispatched; 0 before the first start.
    pub(super) cursor: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnStep {
    /// The rows are the next ones.
    Follow,
    /// Rows are missing, or nothing was dispatched yet: all clusters are asked for.
    All {
        /// Whether the passes are full ones, since clusters may hold objects of transactions that the database has lost.
        in_full: bool,
    },
    /// The versions have another origin, and have to be renumbered first.
    Renumber,
}

impl Head {
    pub(super) fn step(self) -> TurnStep {
        let Self { is_whole, base, newest, cursor } = self;
        if !is_whole {
            TurnStep::Renumber
        } else if cursor == 0 && newest > 0 {
            // After a first start nothing was sent by anybody; in a renumbered database something may have been.
            TurnStep::All { in_full: base >= LIFT }
        } else if cursor > newest || base / LIFT > cursor / LIFT {
            // The versions were renumbered since.
            TurnStep::All { in_full: true }
        } else if base > cursor {
            TurnStep::All { in_full: false }
        } else {
            TurnStep::Follow
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(base: i64, newest: i64, cursor: i64) -> TurnStep {
        Head { is_whole: true, base, newest, cursor }.step()
    }

    #[test]
    fn a_cursor_between_base_and_newest_is_followed() {
        for cursor in [10, 15, 20] {
            assert_eq!(step(10, 20, cursor), TurnStep::Follow);
        }
        assert_eq!(step(0, 0, 0), TurnStep::Follow, "an empty log");
    }

    #[test]
    fn the_first_start_and_a_gap_ask_for_all_clusters() {
        assert_eq!(step(0, 20, 0), TurnStep::All { in_full: false });
        assert_eq!(step(10, 20, 9), TurnStep::All { in_full: false });
    }

    #[test]
    fn lost_versions_ask_for_full_passes_of_all_clusters() {
        assert_eq!(step(10, 20, 21), TurnStep::All { in_full: true });
        assert_eq!(step(LIFT + 20, LIFT + 20, 20), TurnStep::All { in_full: true });
        assert_eq!(step(LIFT + 130, LIFT + 130, 600), TurnStep::All { in_full: true }, "lost versions were dispatched");
        assert_eq!(step(LIFT + 20, LIFT + 30, LIFT + 19), TurnStep::All { in_full: false }, "a later gap");
        assert_eq!(step(LIFT + 20, LIFT + 30, 0), TurnStep::All { in_full: true }, "the first start after a restore");
    }

    #[test]
    fn nothing_is_dispatched_while_the_database_is_being_restored() {
        for cursor in [0, 5, 15, 25] {
            let head = Head { is_whole: false, base: 10, newest: 20, cursor };
            assert_eq!(head.step(), TurnStep::Renumber);
        }
    }
}

//! What a read of the tail finds out about the log, and what follows from it. Pure.

/// The first columns of every row of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The origin of the versions.
    pub(super) origin: String,
    /// Whether it is the database's own, and the next version is above the base. If not, writes and reads are refused.
    pub(super) is_own_origin: bool,
    /// The log has all rows above it.
    pub(super) base: i64,
    /// The newest version.
    pub(super) newest: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailStep {
    /// The rows are the next ones.
    Follow,
    /// The versions must be lifted above all that clients may have seen. `force` says that the database can't know it: it has
    /// gone back in time without a new origin.
    Renumber {
        /// Even if the origin has not changed.
        force: bool,
    },
    /// The versions that watches know are worth nothing: all watches end, and the ring is filled again.
    Restart,
}

impl Head {
    /// What to do with a read behind `position`, of a tail that has followed the origin `known` so far.
    pub(super) fn step(&self, known: Option<&str>, position: i64) -> TailStep {
        if !self.is_own_origin {
            TailStep::Renumber { force: false }
        } else if position > self.newest {
            TailStep::Renumber { force: true }
        } else if known.is_some_and(|known| known != self.origin) || self.base > position {
            TailStep::Restart
        } else {
            TailStep::Follow
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head { origin: "a".to_owned(), is_own_origin: true, base: 10, newest: 20 }
    }

    #[test]
    fn a_tail_follows_while_the_origin_stays_and_it_is_between_base_and_newest() {
        for position in [10, 15, 20] {
            assert_eq!(head().step(Some("a"), position), TailStep::Follow);
            assert_eq!(head().step(None, position), TailStep::Follow);
        }
    }

    #[test]
    fn another_origin_is_renumbered_before_anything_else() {
        let moved = Head { is_own_origin: false, ..head() };
        for position in [5, 15, 25] {
            assert_eq!(moved.step(Some("b"), position), TailStep::Renumber { force: false });
        }
    }

    #[test]
    fn a_tail_ahead_of_the_newest_version_renumbers_by_force() {
        assert_eq!(head().step(Some("a"), 21), TailStep::Renumber { force: true });
        assert_eq!(head().step(Some("b"), 21), TailStep::Renumber { force: true });
    }

    #[test]
    fn watches_end_after_a_change_of_origin_by_whichever_replica_and_where_rows_were_missed() {
        assert_eq!(head().step(Some("b"), 15), TailStep::Restart);
        assert_eq!(head().step(Some("a"), 9), TailStep::Restart);
    }
}

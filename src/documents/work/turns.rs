//! Which rows free slots take: urgent ones first, but not always, or others would starve.

/// Of so many slots, one takes the oldest row of any kind.
const ROUND: u32 = 4;

/// What a number of slots take together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// How many take the oldest urgent row if there is one, else the oldest of any kind.
    pub urgent_first: u32,
    /// How many take the oldest row of any kind, of those that the others leave.
    pub oldest: u32,
}

/// Counts the rows that were taken: the fourth of four is the oldest of any kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Rows since the last one of any kind; less than [`ROUND`].
    since: u32,
}

impl Shares {
    pub fn slots(self) -> u32 {
        self.urgent_first.saturating_add(self.oldest)
    }
}

impl Turns {
    /// What the next slots take.
    pub fn shares(self, free: u32) -> Shares {
        let oldest = self.since.saturating_add(free) / ROUND;
        Shares { urgent_first: free.saturating_sub(oldest), oldest }
    }

    /// Whether the next slot takes an urgent row if there is one.
    pub fn prefers_urgent(self) -> bool {
        self.shares(1).urgent_first == 1
    }

    /// So many rows were taken. Where they are fewer than the slots, all rows that were ready are among them.
    pub fn taken(&mut self, rows: u32) {
        self.since = (self.since + rows % ROUND) % ROUND;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes rows with one slot after the other, and returns whether each had to be urgent if possible.
    fn one_by_one(turns: &mut Turns, rows: u32) -> Vec<bool> {
        let each = (0..rows).map(|_| {
            let shares = turns.shares(1);
            turns.taken(1);
            shares == Shares { urgent_first: 1, oldest: 0 }
        });
        each.collect()
    }

    #[test]
    fn of_four_slots_three_prefer_urgent_rows_and_the_fourth_takes_the_oldest() {
        assert_eq!(Turns::default().shares(4), Shares { urgent_first: 3, oldest: 1 });
        assert_eq!(Turns::default().shares(64), Shares { urgent_first: 48, oldest: 16 });
        let mut turns = Turns::default();
        assert_eq!(one_by_one(&mut turns, 8), [true, true, true, false, true, true, true, false]);
    }

    #[test]
    fn a_single_slot_starves_nobody() {
        let mut turns = Turns::default();
        for _ in 0..100 {
            // Each of the four waits for at most three others.
            assert!(one_by_one(&mut turns, 4).contains(&false));
        }
    }

    #[test]
    fn looking_in_vain_takes_no_turn() {
        let mut turns = Turns::default();
        turns.taken(3);
        for _ in 0..10 {
            assert_eq!(turns.shares(1), Shares { urgent_first: 0, oldest: 1 });
            turns.taken(0);
        }
    }

    proptest! {
        #[test]
        fn slots_share_alike_together_and_one_by_one(before in 0..9_u32, free in 0..300_u32) {
            let mut turns = Turns::default();
            turns.taken(before);
            let together = turns.shares(free);
            prop_assert_eq!(together.slots(), free);
            let mut other = turns;
            let urgent_first = one_by_one(&mut other, free).into_iter().filter(|is| *is).count();
            prop_assert_eq!(usize::try_from(together.urgent_first).unwrap(), urgent_first);
            turns.taken(free);
            prop_assert_eq!(turns, other);
        }
    }
}

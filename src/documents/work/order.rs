//! Which rows free slots take: urgent ones first, but not always, or others would starve.

/// Of so many slots, one takes the oldest row of any kind.
const ROUND: u32 = 4;

/// What a number of slots are filled with together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimMix {
    /// How many take the oldest urgent row if there is one, else the oldest of any kind.
    pub urgent_first: u32,
    /// How many take the oldest row of any kind, of those that the others leave.
    pub oldest: u32,
}

/// Counts the rows that were taken: the fourth of four is the oldest of any kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimOrder {
    /// Rows since the last one of any kind; less than [`ROUND`].
    since: u32,
}

impl ClaimMix {
    pub fn slots(self) -> u32 {
        self.urgent_first.saturating_add(self.oldest)
    }
}

impl ClaimOrder {
    /// What the next slots take.
    pub fn mix(self, free: u32) -> ClaimMix {
        let oldest = self.since.saturating_add(free) / ROUND;
        ClaimMix { urgent_first: free.saturating_sub(oldest), oldest }
    }

    /// Whether the next slot takes an urgent row if there is one.
    pub fn prefers_urgent(self) -> bool {
        self.mix(1).urgent_first == 1
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
    fn one_by_one(order: &mut ClaimOrder, rows: u32) -> Vec<bool> {
        let each = (0..rows).map(|_| {
            let mix = order.mix(1);
            order.taken(1);
            mix == ClaimMix { urgent_first: 1, oldest: 0 }
        });
        each.collect()
    }

    #[test]
    fn of_four_slots_three_prefer_urgent_rows_and_the_fourth_takes_the_oldest() {
        assert_eq!(ClaimOrder::default().mix(4), ClaimMix { urgent_first: 3, oldest: 1 });
        assert_eq!(ClaimOrder::default().mix(64), ClaimMix { urgent_first: 48, oldest: 16 });
        let mut order = ClaimOrder::default();
        assert_eq!(one_by_one(&mut order, 8), [true, true, true, false, true, true, true, false]);
    }

    #[test]
    fn a_single_slot_starves_nobody() {
        let mut order = ClaimOrder::default();
        for _ in 0..100 {
            // Each of the four waits for at most three others.
            assert!(one_by_one(&mut order, 4).contains(&false));
        }
    }

    #[test]
    fn looking_in_vain_changes_nothing() {
        let mut order = ClaimOrder::default();
        order.taken(3);
        for _ in 0..10 {
            assert_eq!(order.mix(1), ClaimMix { urgent_first: 0, oldest: 1 });
            order.taken(0);
        }
    }

    proptest! {
        #[test]
        fn slots_are_filled_alike_together_and_one_by_one(before in 0..9_u32, free in 0..300_u32) {
            let mut order = ClaimOrder::default();
            order.taken(before);
            let together = order.mix(free);
            prop_assert_eq!(together.slots(), free);
            let mut other = order;
            let urgent_first = one_by_one(&mut other, free).into_iter().filter(|is| *is).count();
            prop_assert_eq!(usize::try_from(together.urgent_first).unwrap(), urgent_first);
            order.taken(free);
            prop_assert_eq!(order, other);
        }
    }
}

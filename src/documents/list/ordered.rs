//! The rows of a page in their order.
//!
//! PostgreSQL promises no order of what a recursive query returns, and to sort the items themselves is expensive: a page of 8 MiB does
//! not fit into `work_mem`, so that the server would write it to disk, and a quarter of the statement's time would be spent on that.
//! But the statement numbers the items, and so they are put in order here. In practice they arrive in order, and nothing is kept.

use std::collections::BTreeMap;

/// Puts numbered rows in order, from 1.
pub(super) struct Ordered<R> {
    taken: i64,
    /// Those that arrived before one with a lower number.
    early: BTreeMap<i64, R>,
}

impl<R> Ordered<R> {
    pub(super) fn new() -> Self {
        Self { taken: 0, early: BTreeMap::new() }
    }

    pub(super) fn put(&mut self, number: i64, row: R) {
        self.early.insert(number, row);
    }

    /// The next row in order, if it has arrived.
    pub(super) fn take(&mut self) -> Option<R> {
        let next = self.early.remove(&(self.taken + 1))?;
        self.taken += 1;
        Some(next)
    }

    /// How many rows have been taken.
    pub(super) fn taken(&self) -> i64 {
        self.taken
    }

    /// Whether a row has arrived behind one that has not.
    pub(super) fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_in_order_are_taken_as_they_arrive() {
        let mut rows = Ordered::new();
        for number in 1..=3 {
            rows.put(number, number);
            assert_eq!((rows.take(), rows.take(), rows.taken(), rows.has_gap()), (Some(number), None, number, false));
        }
    }

    #[test]
    fn a_row_behind_one_that_is_missing_is_a_gap() {
        let mut rows = Ordered::new();
        rows.put(1, "a");
        rows.put(3, "c");
        assert_eq!((rows.take(), rows.take(), rows.taken(), rows.has_gap()), (Some("a"), None, 1, true));
    }

    proptest! {
        #[test]
        fn rows_are_taken_in_order_however_they_arrive(numbers in Just((1..=40).collect::<Vec<i64>>()).prop_shuffle()) {
            let (mut rows, mut taken) = (Ordered::new(), Vec::new());
            for number in numbers {
                rows.put(number, number);
                taken.extend(std::iter::from_fn(|| rows.take()));
            }
            prop_assert_eq!(taken, (1..=40).collect::<Vec<_>>());
            prop_assert!(!rows.has_gap());
        }
    }
}

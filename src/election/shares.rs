//! How many sections each replica should have, and so which replica should acquire which of the sections without a holder.
//!
//! Every section has a position in the order of all sections, every replica one in the order of all replicas, and a section
//! is assigned to the replica of its position, or to the next one that has room. So the assignment does not depend on which
//! other sections are free, or were just acquired by the replicas that they are assigned to: replicas that look at different
//! moments come to the same result.

use std::collections::BTreeMap;
use std::sync::Arc;

/// How many more sections each replica should have.
pub(super) struct Shares {
    room: Vec<(Arc<str>, usize)>,
}

impl Shares {
    /// `loads` is how many sections each replica has, and `open` how many none of them has, those that are not free yet
    /// included.
    pub(super) fn new(loads: &BTreeMap<Arc<str>, usize>, open: usize) -> Self {
        let all = loads.values().sum::<usize>() + open;
        let (even, mut rest) = (all.checked_div(loads.len()).unwrap_or(0), all.checked_rem(loads.len()).unwrap_or(0));
        // Those that already have more than an even share keep what can't be shared evenly.
        let mut by_load: Vec<(&Arc<str>, usize)> = loads.iter().map(|(identity, load)| (identity, *load)).collect();
        by_load.sort_by_key(|(identity, load)| (*load <= even, *identity));
        let mut room = Vec::with_capacity(loads.len());
        for (identity, load) in by_load {
            let share = if rest > 0 { even + 1 } else { even };
            rest = rest.saturating_sub(1);
            room.push((Arc::clone(identity), share.saturating_sub(load)));
        }
        room.sort();
        Self { room }
    }

    /// Which of the replicas that can acquire it should have the section of this position; `None`: none of them has room.
    pub(super) fn assign(&mut self, position: usize, can_acquire: impl Fn(&Arc<str>) -> bool) -> Option<Arc<str>> {
        let count = self.room.len();
        let (before, from) = self.room.split_at_mut(position.checked_rem(count)?);
        let (identity, room) =
            from.iter_mut().chain(before).find(|(identity, room)| *room > 0 && can_acquire(identity))?;
        *room -= 1;
        Some(Arc::clone(identity))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loads(loads: &[usize]) -> BTreeMap<Arc<str>, usize> {
        loads.iter().enumerate().map(|(number, load)| (format!("r{number}").into(), *load)).collect()
    }

    fn room(of: &[usize], open: usize) -> Vec<usize> {
        Shares::new(&loads(of), open).room.into_iter().map(|(_, room)| room).collect()
    }

    #[test]
    fn all_replicas_should_have_as_many_and_the_remainder_stays_where_it_is_or_goes_to_the_first() {
        assert_eq!(room(&[0, 0, 0], 6), [2, 2, 2]);
        assert_eq!(room(&[0, 0, 0], 7), [3, 2, 2]);
        assert_eq!(room(&[2, 3, 2], 1), [1, 0, 0]);
        assert_eq!(room(&[1, 3, 1], 2), [1, 0, 1]);
        assert_eq!(room(&[6, 0], 0), [0, 3]);
        assert_eq!(room(&[], 3), [] as [usize; 0]);
        assert_eq!(Shares::new(&loads(&[]), 3).assign(1, |_| true), None);
    }

    #[test]
    fn a_replica_that_can_not_acquire_a_section_is_skipped() {
        let mut shares = Shares::new(&loads(&[0, 0]), 4);
        assert_eq!(shares.assign(0, |identity| **identity != *"r0").as_deref(), Some("r1"));
        assert_eq!(shares.assign(1, |_| true).as_deref(), Some("r1"));
        assert_eq!(shares.assign(3, |_| true).as_deref(), Some("r0"), "the other one has its share");
        assert_eq!(shares.assign(3, |identity| **identity == *"r1"), None);
    }

    proptest! {
        #[test]
        fn the_assignment_of_a_section_does_not_depend_on_which_others_were_acquired(
            held in prop::collection::vec(0..5_usize, 1..5),
            acquired in prop::collection::vec(any::<bool>(), 0..30),
        ) {
            let open = acquired.len();
            let mut shares = Shares::new(&loads(&held), open);
            let assigned: Vec<_> = (0..open).map(|position| shares.assign(position, |_| true)).collect();
            let mut later = loads(&held);
            for (identity, acquired) in assigned.iter().zip(&acquired) {
                if let (Some(identity), true) = (identity, acquired) {
                    *later.get_mut(identity).unwrap() += 1;
                }
            }
            let left = (0..open).filter(|position| !acquired[*position] || assigned[*position].is_none());
            let mut shares = Shares::new(&later, left.clone().count());
            for position in left {
                prop_assert_eq!(&shares.assign(position, |_| true), &assigned[position], "position {}", position);
            }
        }
    }
}

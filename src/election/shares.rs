//! How many sections each replica is to have, and so who is to take which of those that nobody has.
//!
//! Each section has a place in the order of all, each replica one in the order of those that take part, and a section goes
//! to the replica of its place, or to the next one that has room. So whose a section is does not depend on which others
//! are free, or were taken a moment ago by those whose they are: replicas that look at different moments come to the same.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Who takes part, and how many more each is to have.
pub(super) struct Shares {
    room: Vec<(Arc<str>, usize)>,
}

impl Shares {
    /// Of those who have so many each, and so many sections that none of them has, also those that are not free yet.
    pub(super) fn new(loads: &BTreeMap<Arc<str>, usize>, open: usize) -> Self {
        let all = loads.values().sum::<usize>() + open;
        let (even, mut rest) = (all.checked_div(loads.len()).unwrap_or(0), all.checked_rem(loads.len()).unwrap_or(0));
        // What can't be shared out evenly is left to those who have it.
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

    /// Who is to take the section of this place, of those who can; `None`: none of them has room.
    pub(super) fn take(&mut self, place: usize, can_take: impl Fn(&Arc<str>) -> bool) -> Option<Arc<str>> {
        let count = self.room.len();
        let (before, from) = self.room.split_at_mut(place.checked_rem(count)?);
        let (heir, room) = from.iter_mut().chain(before).find(|(identity, room)| *room > 0 && can_take(identity))?;
        *room -= 1;
        Some(Arc::clone(heir))
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
    fn everybody_is_to_have_as_many_and_what_is_left_over_who_has_it_or_else_the_first() {
        assert_eq!(room(&[0, 0, 0], 6), [2, 2, 2]);
        assert_eq!(room(&[0, 0, 0], 7), [3, 2, 2]);
        assert_eq!(room(&[2, 3, 2], 1), [1, 0, 0]);
        assert_eq!(room(&[1, 3, 1], 2), [1, 0, 1]);
        assert_eq!(room(&[6, 0], 0), [0, 3]);
        assert_eq!(room(&[], 3), [] as [usize; 0]);
        assert_eq!(Shares::new(&loads(&[]), 3).take(1, |_| true), None);
    }

    #[test]
    fn who_can_not_take_a_section_is_passed_over() {
        let mut shares = Shares::new(&loads(&[0, 0]), 4);
        assert_eq!(shares.take(0, |identity| **identity != *"r0").as_deref(), Some("r1"));
        assert_eq!(shares.take(1, |_| true).as_deref(), Some("r1"));
        assert_eq!(shares.take(3, |_| true).as_deref(), Some("r0"), "the other has what it is to have");
        assert_eq!(shares.take(3, |identity| **identity == *"r1"), None);
    }

    proptest! {
        #[test]
        fn whose_a_section_is_does_not_depend_on_which_others_were_taken(
            held in prop::collection::vec(0..5_usize, 1..5),
            taken in prop::collection::vec(any::<bool>(), 0..30),
        ) {
            let open = taken.len();
            let mut shares = Shares::new(&loads(&held), open);
            let heirs: Vec<_> = (0..open).map(|place| shares.take(place, |_| true)).collect();
            let mut later = loads(&held);
            for (heir, taken) in heirs.iter().zip(&taken) {
                if let (Some(heir), true) = (heir, taken) {
                    *later.get_mut(heir).unwrap() += 1;
                }
            }
            let left = (0..open).filter(|place| !taken[*place] || heirs[*place].is_none());
            let mut shares = Shares::new(&later, left.clone().count());
            for place in left {
                prop_assert_eq!(&shares.take(place, |_| true), &heirs[place], "place {}", place);
            }
        }
    }
}

//! The guard against clearing most of a family at once. A database that was emptied, restored or filled anew looks the
//! same as one whose rows are really gone.

use std::collections::HashMap;
use std::hash::Hash;

use crate::job::mass_change;

/// So many further passes have to agree on a clearing that is held.
const AGREEING_PASSES: u32 = 3;

/// Decides what a pass may clear.
#[derive(Debug)]
pub struct Guard<I> {
    /// The objects whose clearing is held, with the number of passes that have agreed since.
    held: HashMap<I, u32>,
    approved: bool,
}

impl<I> Default for Guard<I> {
    fn default() -> Self {
        Self { held: HashMap::new(), approved: false }
    }
}

impl<I: Eq + Hash + Clone> Guard<I> {
    /// Takes what a pass would clear of a family with so many objects, and returns what it may clear. `counts` says
    /// whether the pass can be one of those that agree. Passes that notifications asked for do not count: they follow
    /// each other within moments, and would all see the state between two transactions of a client that fills the
    /// tables anew.
    pub fn admit(&mut self, candidates: Vec<I>, objects: usize, counts: bool) -> Vec<I> {
        // An approval covers what was held when it was given. It is used up even if it turns out not to be needed.
        let approved = std::mem::take(&mut self.approved);
        if approved || candidates.len() <= mass_change::limit(objects) {
            self.held.clear();
            return candidates;
        }
        let before = std::mem::take(&mut self.held);
        let mut admitted = Vec::new();
        for candidate in candidates {
            let agreed = before.get(&candidate).map_or(0, |agreed| agreed + u32::from(counts));
            if agreed >= AGREEING_PASSES {
                admitted.push(candidate.clone());
            }
            self.held.insert(candidate, agreed);
        }
        for candidate in &admitted {
            self.held.remove(candidate);
        }
        admitted
    }

    /// How many objects are held; `None` if there are none.
    pub fn held(&self) -> Option<usize> {
        (!self.held.is_empty()).then_some(self.held.len())
    }

    pub fn all_held(&self) -> impl Iterator<Item = &I> {
        self.held.keys()
    }

    /// Lets the next pass clear whatever it finds.
    pub fn approve(&mut self) {
        self.approved = !self.held.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(count: u32) -> Vec<u32> {
        (0..count).collect()
    }

    #[test]
    fn up_to_ten_or_a_tenth_are_cleared_at_once() {
        assert_eq!(Guard::default().admit(many(10), 20, true).len(), 10);
        assert_eq!(Guard::default().admit(many(50), 500, true).len(), 50);
        assert_eq!(Guard::default().admit(many(51), 500, true).len(), 0);
        assert_eq!(Guard::default().admit(many(11), 20, true).len(), 0);
    }

    #[test]
    fn what_three_further_passes_agree_on_is_cleared() {
        let mut guard = Guard::default();
        for pass in 0..3 {
            assert_eq!(guard.admit(many(20), 20, true).len(), 0, "pass {pass}");
            assert_eq!(guard.held(), Some(20));
        }
        // One object has come back in the meantime; the others have been missing in all passes.
        assert_eq!(guard.admit((1..20).collect(), 20, true).len(), 19);
        assert_eq!(guard.held(), None);
    }

    #[test]
    fn passes_within_moments_of_each_other_agree_on_nothing() {
        let mut guard = Guard::default();
        for _ in 0..50 {
            assert_eq!(guard.admit(many(20), 20, false).len(), 0);
        }
        for _ in 0..2 {
            assert_eq!(guard.admit(many(20), 20, true).len(), 0);
        }
        assert_eq!(guard.admit(many(20), 20, true).len(), 20);
    }

    #[test]
    fn an_object_that_came_back_begins_anew() {
        let mut guard = Guard::default();
        guard.admit(many(20), 20, true);
        guard.admit((1..20).collect(), 20, true);
        guard.admit(many(20), 20, true);
        assert_eq!(guard.admit(many(20), 20, true).len(), 19);
        assert_eq!(guard.held(), Some(1));
    }

    #[test]
    fn a_hold_ends_when_most_are_back_or_somebody_approves() {
        let mut guard = Guard::default();
        guard.admit(many(20), 20, true);
        assert_eq!(guard.admit(many(5), 20, true).len(), 5);
        guard.approve();
        assert_eq!(guard.admit(many(20), 20, true).len(), 0, "nothing was held when it was approved");
        guard.approve();
        assert_eq!(guard.admit(many(20), 20, true).len(), 20);
    }

    #[test]
    fn an_approval_that_was_not_needed_opens_nothing_later() {
        let mut guard = Guard::default();
        guard.admit(many(20), 20, true);
        guard.approve();
        assert_eq!(guard.admit(many(5), 20, true).len(), 5, "most are back");
        assert_eq!(guard.admit(many(20), 20, true).len(), 0);
    }
}

//! The guard against clearing a family at one blow: a database that was emptied, restored or filled anew looks the same
//! as one in which everything ended.

use std::collections::HashMap;
use std::hash::Hash;

/// After a hold, as many further passes have to agree.
const AGREEING_PASSES: u32 = 3;
/// As many may always be cleared in one pass.
const ALWAYS: usize = 10;

/// Counts what passes would clear.
#[derive(Debug)]
pub struct Guard<I> {
    /// Objects that are held, with the number of passes that agreed since.
    held: HashMap<I, u32>,
    approved: bool,
}

impl<I> Default for Guard<I> {
    fn default() -> Self {
        Self { held: HashMap::new(), approved: false }
    }
}

impl<I: Eq + Hash + Clone> Guard<I> {
    /// Takes what a pass would clear, of a family of so many objects, and returns what it may clear. `counts` where the
    /// pass can be one of those that agree: passes that notifications asked for come within moments, and agree on
    /// whatever is between two transactions of one who fills the tables anew.
    pub fn admit(&mut self, candidates: Vec<I>, objects: usize, counts: bool) -> Vec<I> {
        let limit = ALWAYS.max(objects / 10);
        // An approval is for what was held when it was given, whether it turns out to be needed or not.
        let approved = std::mem::take(&mut self.approved);
        if approved || candidates.len() <= limit {
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

    /// How many are held; `None` where nothing is.
    pub fn held(&self) -> Option<usize> {
        (!self.held.is_empty()).then_some(self.held.len())
    }

    /// Those that are held.
    pub fn all_held(&self) -> impl Iterator<Item = &I> {
        self.held.keys()
    }

    /// Lets the next pass clear what it finds.
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
        // One is back in between: the others have been missing all along.
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

//! How many objects one mistake may affect before an operator has to approve it.
//!
//! A restored etcd, an emptied database and a wrong kubeconfig affect many objects at once; what people delete on purpose
//! are few. The limit is the same for all jobs. What they compare with it differs on purpose:
//!
//! - The guard of resource sync counts what it has sent within ten minutes and what is about to be sent, and also holds a
//!   change that affects *all* of two or more pairs.
//! - The guard of status sync counts what one pass would clear. That all objects of a family lose their rows is usual for a
//!   small family, so that only the limit counts. The hold ends by itself when the next passes agree.
//! - The comparisons that tell another cluster behind a known name count the objects that do not fit, as [`is_mass`] says.

/// So many objects may change, however few there are, unless they are all.
const ALWAYS: usize = 10;

/// How many of `all` objects may change without an approval: a tenth, but at least ten.
pub fn limit(all: usize) -> usize {
    ALWAYS.max(all / 10)
}

/// Whether a change affects too many of `all` objects: more than the limit, or all of two or more.
pub fn is_mass(affected: usize, all: usize) -> bool {
    affected > limit(all) || (all >= 2 && affected >= all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_or_ten_may_change_and_all_of_two_or_more_may_not() {
        for (affected, all, is_too_many) in [
            (0, 0, false),
            (1, 1, false),
            (1, 2, false),
            (2, 2, true),
            (10, 11, false),
            (10, 10, true),
            (11, 50, true),
            (11, 109, true),
            (11, 119, false),
            (12, 119, true),
            (100, 1000, false),
            (101, 1000, true),
        ] {
            assert_eq!(is_mass(affected, all), is_too_many, "{affected} of {all}");
        }
        assert_eq!([0, 109, 110, 119].map(limit), [10, 10, 11, 11], "rounded down");
    }
}

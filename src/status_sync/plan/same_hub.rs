//! Decides whether the hub is the cluster that the section wrote to before.
//!
//! The identity of a cluster is the UID of its namespace `kube-system`. Where no identity is remembered, or the hub's
//! cannot be read, the rows of the database decide: the id of a row of `spec` is the UID of its object on the hub. On
//! another cluster, or on one whose objects were restored from a backup, the objects with the same names have other
//! UIDs.

use std::collections::BTreeMap;

use crate::guard;

/// The result of comparing rows of `spec` with the objects on the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// How many objects on the hub have the name of a row.
    pub objects: usize,
    /// How many of them have a UID that no row of their name has.
    pub others: usize,
}

impl Compared {
    /// Whether the objects belong to another cluster.
    fn is_another(self) -> bool {
        guard::is_mass(self.others, self.objects)
    }

    fn with(self, more: Self) -> Self {
        Self { objects: self.objects + more.objects, others: self.others + more.others }
    }
}

/// A family's progress in comparing its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It has yet to compare them.
    #[default]
    Pending,
    /// It cannot compare them, for an unknown time: its kind is not served, a permission is missing, or its tables
    /// cannot be read.
    Impossible,
    Done(Compared),
}

/// A family's part in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The table of `spec` that it reads. Two families may read the same table.
    pub table: &'static str,
    pub progress: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubMatch {
    /// The hub has the identity that is remembered.
    Same,
    /// The hub has another identity.
    Another,
    /// The hub's objects have other UIDs than their rows.
    OtherObjects(Compared),
    /// Not all families have compared their rows.
    Undecided,
    /// The rows fit the hub, as far as they could be compared.
    Fits {
        /// Whether at least one object has its row's id as its UID. No other cluster has that UID.
        is_proved: bool,
    },
}

/// Compares the hub by the remembered identity, the identity found (`None` where it cannot be read), and the rows.
pub fn match_hub(remembered: Option<&str>, found: Option<&str>, parts: &[Part]) -> HubMatch {
    if let (Some(remembered), Some(found)) = (remembered, found) {
        return if remembered == found { HubMatch::Same } else { HubMatch::Another };
    }
    let mut tables: BTreeMap<&str, Compared> = BTreeMap::new();
    for part in parts {
        if let Progress::Done(compared) = part.progress {
            // Two families may have read the same table at different times.
            let table = tables.entry(part.table).or_default();
            *table = (*table).max_by_others(compared);
        }
    }
    let compared = tables.into_values().fold(Compared::default(), Compared::with);
    if compared.is_another() {
        return HubMatch::OtherObjects(compared);
    }
    if parts.iter().any(|part| part.progress == Progress::Pending) {
        return HubMatch::Undecided;
    }
    // An empty comparison proves nothing: the objects may be about to be restored.
    HubMatch::Fits { is_proved: compared.others < compared.objects }
}

impl Compared {
    fn max_by_others(self, other: Self) -> Self {
        if (other.others, other.objects) > (self.others, self.objects) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOT_COMPARED: [Part; 1] = [Part { table: "policies", progress: Progress::Pending }];

    fn part(table: &'static str, objects: usize, others: usize) -> Part {
        Part { table, progress: Progress::Done(Compared { objects, others }) }
    }

    fn by_rows(parts: &[Part]) -> HubMatch {
        match_hub(None, Some("found"), parts)
    }

    #[test]
    fn a_remembered_identity_decides_whatever_the_rows_say() {
        assert_eq!(match_hub(Some("a"), Some("a"), &[part("policies", 50, 50)]), HubMatch::Same);
        assert_eq!(match_hub(Some("a"), Some("a"), &NOT_COMPARED), HubMatch::Same);
        assert_eq!(match_hub(Some("a"), Some("b"), &[part("policies", 50, 0)]), HubMatch::Another);
        assert_eq!(match_hub(Some("a"), Some("b"), &NOT_COMPARED), HubMatch::Another);
    }

    #[test]
    fn an_unknown_identity_is_decided_by_the_rows_whatever_is_remembered() {
        for remembered in [None, Some("a")] {
            let others = Compared { objects: 2, others: 2 };
            assert_eq!(match_hub(remembered, None, &[part("policies", 2, 2)]), HubMatch::OtherObjects(others));
            assert_eq!(match_hub(remembered, None, &[part("policies", 2, 1)]), HubMatch::Fits { is_proved: true });
        }
    }

    #[test]
    fn more_than_ten_and_a_tenth_or_all_of_two_are_another_cluster() {
        for (objects, others) in [(2, 2), (11, 11), (12, 11), (100, 11), (1_000, 101)] {
            let expected = HubMatch::OtherObjects(Compared { objects, others });
            assert_eq!(by_rows(&[part("policies", objects, others)]), expected, "{others} of {objects}");
        }
        for (objects, others) in [(0, 0), (1, 0), (1, 1), (3, 2), (11, 10), (100, 10), (1_000, 100)] {
            let found = by_rows(&[part("policies", objects, others)]);
            assert!(matches!(found, HubMatch::Fits { .. }), "{others} of {objects}: {found:?}");
        }
    }

    #[test]
    fn families_count_together_and_a_table_that_two_of_them_read_counts_once() {
        let others = Compared { objects: 2, others: 2 };
        assert_eq!(by_rows(&[part("policies", 1, 1), part("placements", 1, 1)]), HubMatch::OtherObjects(others));
        assert_eq!(
            by_rows(&[part("placements", 1, 1), part("placements", 1, 1)]),
            HubMatch::Fits { is_proved: false },
            "one object"
        );
    }

    #[test]
    fn families_wait_for_all_that_can_compare_unless_enough_objects_differ_already() {
        let pending = Part { table: "placements", progress: Progress::Pending };
        let impossible = Part { table: "placements", progress: Progress::Impossible };
        assert_eq!(by_rows(&[part("policies", 5, 0), pending]), HubMatch::Undecided);
        assert!(matches!(by_rows(&[part("policies", 5, 5), pending]), HubMatch::OtherObjects(_)));
        assert_eq!(by_rows(&[part("policies", 5, 0), impossible]), HubMatch::Fits { is_proved: true });
        assert_eq!(by_rows(&[part("policies", 1, 1), impossible]), HubMatch::Fits { is_proved: false });
        assert_eq!(by_rows(&[part("policies", 0, 0), impossible]), HubMatch::Fits { is_proved: false });
    }

    proptest! {
        #[test]
        fn one_more_object_with_another_uid_never_clears_the_hub(objects in 0_usize..300, others in 0_usize..300) {
            let others = others.min(objects);
            let is_another = |others| Compared { objects, others }.is_another();
            prop_assert!(!is_another(others) || others == objects || is_another(others + 1));
        }
    }
}

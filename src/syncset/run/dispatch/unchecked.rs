//! Which syncsets and clusters the guard has to check because of changes. Pure.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::change::{Change, DocumentState};
use crate::documents::Kind;

/// What the guard has yet to check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unchecked {
    /// Syncsets: every version of one is checked, also if only its status has changed.
    pub(super) syncsets: BTreeSet<Uuid>,
    /// Clusters that syncsets may match no more, or again, or whose labels may give objects other names.
    pub(super) relabelled: BTreeSet<Uuid>,
}

impl Unchecked {
    /// What the guard has to check because of these changes.
    pub(super) fn of(changes: &[Change]) -> Self {
        let mut unchecked = Self::default();
        for change in changes {
            match change.kind {
                Some(Kind::SyncSet | Kind::SelectorSyncSet) => drop(unchecked.syncsets.insert(change.id)),
                Some(Kind::Cluster) if is_relabelled(change) => drop(unchecked.relabelled.insert(change.id)),
                _ => {}
            }
        }
        unchecked
    }

    pub(super) fn is_empty(&self) -> bool {
        self.syncsets.is_empty() && self.relabelled.is_empty()
    }
}

/// Nothing was sent to a cluster that is new, and nothing is deleted from one that is removed.
fn is_relabelled(change: &Change) -> bool {
    match (&change.before, &change.after) {
        (DocumentState::Absent, _) | (_, DocumentState::Absent) => false,
        (DocumentState::Present(before), DocumentState::Present(after)) => before.labels != after.labels,
        (DocumentState::Unknown, _) | (_, DocumentState::Unknown) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::Facts;
    use super::*;

    fn labelled(labels: &str) -> DocumentState {
        DocumentState::Present(Facts {
            generation: 1,
            metadata: labels.to_owned(),
            labels: labels.to_owned(),
            refs: None,
            selector: None,
            namespaces: None,
        })
    }

    fn unchecked(kind: Kind, before: DocumentState, after: DocumentState) -> Unchecked {
        let (namespace, name) = ("foo".to_owned(), "a".to_owned());
        Unchecked::of(&[Change { kind: Some(kind), id: Uuid::from_u128(7), namespace, name, before, after }])
    }

    #[test]
    fn every_change_of_a_syncset_is_checked() {
        let itself = Unchecked { syncsets: [Uuid::from_u128(7)].into(), ..Unchecked::default() };
        for kind in [Kind::SyncSet, Kind::SelectorSyncSet] {
            assert_eq!(unchecked(kind, labelled("a"), labelled("a")), itself);
            assert_eq!(unchecked(kind, DocumentState::Absent, labelled("a")), itself);
            assert_eq!(unchecked(kind, labelled("a"), DocumentState::Absent), itself);
        }
        for kind in [Kind::Secret, Kind::ClusterSync] {
            assert!(unchecked(kind, labelled("a"), DocumentState::Absent).is_empty());
        }
    }

    #[test]
    fn a_cluster_is_checked_if_its_labels_change_or_may_have_changed() {
        let itself = Unchecked { relabelled: [Uuid::from_u128(7)].into(), ..Unchecked::default() };
        for (before, after, expected) in [
            (labelled("a"), labelled("b"), itself.clone()),
            (DocumentState::Unknown, labelled("b"), itself.clone()),
            (labelled("a"), DocumentState::Unknown, itself),
            (labelled("a"), labelled("a"), Unchecked::default()),
            (DocumentState::Absent, labelled("a"), Unchecked::default()),
            (labelled("a"), DocumentState::Absent, Unchecked::default()),
            (DocumentState::Unknown, DocumentState::Absent, Unchecked::default()),
        ] {
            assert_eq!(unchecked(Kind::Cluster, before.clone(), after.clone()), expected, "{before:?} {after:?}");
        }
    }
}

//! What changes ask to be judged. Pure.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::change::{Change, State};
use crate::documents::Kind;

/// What is to be judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Docket {
    /// Syncsets: every version of one is judged, also if only its status has changed.
    pub(super) syncsets: BTreeSet<Uuid>,
    /// Clusters that syncsets may match no more, or again, or whose labels may give objects other names.
    pub(super) relabelled: BTreeSet<Uuid>,
}

impl Docket {
    /// What these changes ask to be judged.
    pub(super) fn of(changes: &[Change]) -> Self {
        let mut docket = Self::default();
        for change in changes {
            match change.kind {
                Some(Kind::SyncSet | Kind::SelectorSyncSet) => drop(docket.syncsets.insert(change.id)),
                Some(Kind::Cluster) if is_relabelled(change) => drop(docket.relabelled.insert(change.id)),
                _ => {}
            }
        }
        docket
    }

    pub(super) fn is_empty(&self) -> bool {
        self.syncsets.is_empty() && self.relabelled.is_empty()
    }
}

/// Nothing was sent to a cluster that is new, and nothing is deleted from one that is removed.
fn is_relabelled(change: &Change) -> bool {
    match (&change.before, &change.after) {
        (State::Absent, _) | (_, State::Absent) => false,
        (State::Present(before), State::Present(after)) => before.labels != after.labels,
        (State::Unknown, _) | (_, State::Unknown) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::Facts;
    use super::*;

    fn labelled(labels: &str) -> State {
        State::Present(Facts {
            generation: 1,
            metadata: labels.to_owned(),
            labels: labels.to_owned(),
            refs: None,
            selector: None,
            namespaces: None,
        })
    }

    fn docket(kind: Kind, before: State, after: State) -> Docket {
        let (namespace, name) = ("foo".to_owned(), "a".to_owned());
        Docket::of(&[Change { kind: Some(kind), id: Uuid::from_u128(7), namespace, name, before, after }])
    }

    #[test]
    fn every_change_of_a_syncset_is_judged() {
        let itself = Docket { syncsets: [Uuid::from_u128(7)].into(), ..Docket::default() };
        for kind in [Kind::SyncSet, Kind::SelectorSyncSet] {
            assert_eq!(docket(kind, labelled("a"), labelled("a")), itself);
            assert_eq!(docket(kind, State::Absent, labelled("a")), itself);
            assert_eq!(docket(kind, labelled("a"), State::Absent), itself);
        }
        for kind in [Kind::Secret, Kind::ClusterSync] {
            assert!(docket(kind, labelled("a"), State::Absent).is_empty());
        }
    }

    #[test]
    fn a_cluster_is_judged_if_its_labels_change_or_may_have_changed() {
        let itself = Docket { relabelled: [Uuid::from_u128(7)].into(), ..Docket::default() };
        for (before, after, expected) in [
            (labelled("a"), labelled("b"), itself.clone()),
            (State::Unknown, labelled("b"), itself.clone()),
            (labelled("a"), State::Unknown, itself),
            (labelled("a"), labelled("a"), Docket::default()),
            (State::Absent, labelled("a"), Docket::default()),
            (labelled("a"), State::Absent, Docket::default()),
            (State::Unknown, State::Absent, Docket::default()),
        ] {
            assert_eq!(docket(Kind::Cluster, before.clone(), after.clone()), expected, "{before:?} {after:?}");
        }
    }
}

//! Whom changes concern. Pure.

use std::collections::BTreeSet;

use serde_json::Value;
use uuid::Uuid;

use super::log::{Change, DocumentState, Facts};
use super::selection::{selected, weight};
use crate::documents::Kind;
use crate::syncset::plan::matching::Audience;

/// Most selections of one statement, and most values that all of them compare, which may be done for each cluster. Beyond it, the
/// changes concern all clusters: asking for all costs less.
const MOST_SELECTIONS: usize = 200;
const MOST_VALUES: usize = 1_000;
/// Most clusters that are asked for by name. Beyond it, all of the namespaces concerned are asked for: whoever writes in one does not
/// have the clusters of others asked for.
const MOST_NAMES: usize = 100_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Concern {
    pub(super) all: bool,
    pub(super) clusters: BTreeSet<Uuid>,
    pub(super) gone: BTreeSet<Uuid>,
    /// Clusters by namespace and name.
    pub(super) named: BTreeSet<(String, String)>,
    /// All clusters of namespaces.
    pub(super) namespaces: BTreeSet<String>,
    pub(super) selections: BTreeSet<Audience>,
    /// The clusters of the syncsets that map these secrets, by namespace and name.
    pub(super) secrets: BTreeSet<(String, String)>,
}

impl Concern {
    pub(super) fn of(changes: &[Change]) -> Self {
        let mut concern = Self::default();
        for change in changes {
            concern.add(change);
        }
        concern.limited()
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { all, clusters, gone: _, named, namespaces, selections, secrets } = self;
        let is_nobody = clusters.is_empty() && named.is_empty() && namespaces.is_empty();
        !all && is_nobody && selections.is_empty() && secrets.is_empty()
    }

    fn add(&mut self, change: &Change) {
        if change.is_of_status_alone() || change.is_for_a_rollout() {
            return;
        }
        match change.kind {
            Some(Kind::Cluster) if change.after == DocumentState::Absent => {
                self.clusters.remove(&change.id);
                self.gone.insert(change.id);
            }
            Some(Kind::Cluster) => drop(self.clusters.insert(change.id)),
            Some(Kind::SyncSet) => {
                for state in [&change.before, &change.after] {
                    match state {
                        DocumentState::Absent => {}
                        DocumentState::Unknown => drop(self.namespaces.insert(change.namespace.clone())),
                        DocumentState::Present(Facts { refs, .. }) => self.add_refs(&change.namespace, refs.as_ref()),
                    }
                }
            }
            Some(Kind::SelectorSyncSet) => {
                for state in [&change.before, &change.after] {
                    match state {
                        DocumentState::Absent => {}
                        DocumentState::Unknown => self.all = true,
                        DocumentState::Present(Facts { selector, namespaces, .. }) => {
                            self.add_selection(selector.as_ref(), namespaces.as_ref());
                        }
                    }
                }
            }
            Some(Kind::Secret) => drop(self.secrets.insert((change.namespace.clone(), change.name.clone()))),
            // A `ClusterSync` is written by passes, and passes of this release read nothing of an unknown kind.
            Some(Kind::ClusterSync) | None => {}
        }
    }

    /// The clusters that a `SyncSet` names.
    pub(super) fn add_refs(&mut self, namespace: &str, refs: Option<&Value>) {
        let Some(refs) = refs.filter(|refs| !refs.is_null()) else { return };
        let Some(refs) = refs.as_array() else {
            self.namespaces.insert(namespace.to_owned());
            return;
        };
        for reference in refs {
            match reference.get("name").and_then(Value::as_str) {
                Some(name) => drop(self.named.insert((namespace.to_owned(), name.to_owned()))),
                None => drop(self.namespaces.insert(namespace.to_owned())),
            }
        }
    }

    /// The clusters that a `SelectorSyncSet` selects.
    pub(super) fn add_selection(&mut self, selector: Option<&Value>, namespaces: Option<&Value>) {
        match selected(selector, namespaces) {
            Some(selection) => drop(self.selections.insert(selection)),
            None => self.all = true,
        }
    }

    /// The same within the limits of a statement.
    pub(super) fn limited(mut self) -> Self {
        let requirements: usize = self.selections.iter().map(weight).sum();
        self.all |= self.selections.len() > MOST_SELECTIONS || requirements > MOST_VALUES;
        if self.named.len() > MOST_NAMES {
            let named = std::mem::take(&mut self.named);
            self.namespaces.extend(named.into_iter().map(|(namespace, _)| namespace));
        }
        if self.all { Self { all: true, gone: self.gone, ..Self::default() } } else { self }
    }
}

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
    use serde_json::json;

    use super::*;

    fn facts(generation: i64) -> Facts {
        Facts {
            generation,
            metadata: "x".to_owned(),
            labels: "l".to_owned(),
            refs: None,
            selector: None,
            namespaces: None,
            rolls: false,
        }
    }

    fn present(generation: i64) -> DocumentState {
        DocumentState::Present(facts(generation))
    }

    fn change(kind: Kind, before: DocumentState, after: DocumentState) -> Change {
        let (namespace, name) = ("foo".to_owned(), "a".to_owned());
        Change { kind: Some(kind), id: Uuid::from_u128(7), namespace, name, before, after }
    }

    fn refs(names: &[&str]) -> DocumentState {
        let refs = names.iter().map(|name| json!({"name": name})).collect();
        DocumentState::Present(Facts {
            refs: Some(Value::Array(refs)),
            generation: names.len().try_into().expect("few"),
            ..facts(1)
        })
    }

    fn selects(generation: i64, selector: &Value) -> DocumentState {
        DocumentState::Present(Facts { selector: Some(selector.clone()), ..facts(generation) })
    }

    fn names(names: &[&str]) -> BTreeSet<(String, String)> {
        names.iter().map(|name| ("foo".to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn a_change_of_status_alone_concerns_nobody() {
        for kind in Kind::ALL {
            assert_eq!(Concern::of(&[change(kind, present(1), present(1))]), Concern::default(), "{kind}");
        }
        let labelled = DocumentState::Present(Facts { metadata: "y".to_owned(), ..facts(1) });
        let concern = Concern::of(&[change(Kind::Cluster, present(1), labelled)]);
        assert_eq!(concern.clusters, BTreeSet::from([Uuid::from_u128(7)]));
    }

    #[test]
    fn a_cluster_concerns_itself_and_one_that_was_removed_is_not_asked_for() {
        let (created, changed, removed) = (
            change(Kind::Cluster, DocumentState::Absent, present(1)),
            change(Kind::Cluster, present(1), present(2)),
            change(Kind::Cluster, present(2), DocumentState::Absent),
        );
        let itself = BTreeSet::from([Uuid::from_u128(7)]);
        for asked in [&created, &changed] {
            assert_eq!(
                Concern::of(std::slice::from_ref(asked)),
                Concern { clusters: itself.clone(), ..Concern::default() }
            );
        }
        let concern = Concern::of(&[created, changed, removed]);
        assert!(concern.is_empty());
        assert_eq!(concern.gone, itself);
    }

    #[test]
    fn references_count_as_they_were_and_as_they_are() {
        for (before, after, expected) in [
            (DocumentState::Absent, refs(&["a"]), vec!["a"]),
            (refs(&["a", "b"]), refs(&["c"]), vec!["a", "b", "c"]),
            (refs(&["a"]), DocumentState::Absent, vec!["a"]),
        ] {
            let concern = Concern::of(&[change(Kind::SyncSet, before, after)]);
            assert_eq!(concern, Concern { named: names(&expected), ..Concern::default() });
        }
    }

    #[test]
    fn a_selector_counts_as_it_was_and_as_it_is() {
        let (one, other) = (json!({"matchLabels": {"a": "b"}}), json!({"matchLabels": {"a": "c"}}));
        let both = Concern::of(&[change(Kind::SelectorSyncSet, selects(1, &one), selects(2, &other))]);
        assert_eq!((both.selections.len(), both.all), (2, false));
        let same = Concern::of(&[change(Kind::SelectorSyncSet, selects(1, &one), selects(2, &one))]);
        assert_eq!(same.selections.len(), 1);
        let removed = Concern::of(&[change(Kind::SelectorSyncSet, selects(1, &one), DocumentState::Absent)]);
        assert_eq!(removed.selections, same.selections);
    }

    #[test]
    fn a_content_to_which_a_rollout_moves_clusters_concerns_nobody_yet() {
        let selects = |generation: i64, env: &str, rolls: bool| {
            let selector = json!({"matchLabels": {"env": env}});
            DocumentState::Present(Facts { selector: Some(selector), rolls, ..facts(generation) })
        };
        for (what, before, after, is_concerned) in [
            ("its content or its rollout", selects(1, "a", true), selects(2, "a", true), false),
            ("whom it is for", selects(1, "a", true), selects(2, "b", true), true),
            ("it gets a rollout", selects(1, "a", false), selects(2, "a", true), true),
            ("it has none any more", selects(1, "a", true), selects(2, "a", false), true),
            ("it is new", DocumentState::Absent, selects(1, "a", true), true),
            ("it is gone", selects(1, "a", true), DocumentState::Absent, true),
        ] {
            let changes = [change(Kind::SelectorSyncSet, before, after)];
            assert_eq!(!Concern::of(&changes).is_empty(), is_concerned, "{what}");
            assert!(!Unchecked::of(&changes).is_empty(), "{what}: the guard checks it");
        }
    }

    #[test]
    fn a_secret_concerns_those_that_map_it_and_a_cluster_sync_nobody() {
        let secret = Concern::of(&[change(Kind::Secret, present(1), present(2))]);
        assert_eq!(secret, Concern { secrets: names(&["a"]), ..Concern::default() });
        assert_eq!(Concern::of(&[change(Kind::ClusterSync, DocumentState::Absent, present(1))]), Concern::default());
        let unknown = Change { kind: None, ..change(Kind::Secret, DocumentState::Absent, present(1)) };
        assert_eq!(Concern::of(&[unknown]), Concern::default());
    }

    #[test]
    fn what_a_namespace_writes_concerns_no_cluster_of_another_one_however_much_it_is() {
        let namespace = Concern { namespaces: BTreeSet::from(["foo".to_owned()]), ..Concern::default() };
        let wrong = DocumentState::Present(Facts { refs: Some(json!([{}])), ..facts(1) });
        let names: Vec<String> = (0..=MOST_NAMES).map(|n| n.to_string()).collect();
        let many = refs(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for (before, after) in [
            (DocumentState::Unknown, DocumentState::Absent),
            (present(1), DocumentState::Unknown),
            (DocumentState::Absent, wrong),
            (DocumentState::Absent, many),
        ] {
            let concern = Concern::of(&[change(Kind::SyncSet, before, after)]);
            assert_eq!(concern, namespace);
            assert!(!concern.is_empty());
        }
    }

    #[test]
    fn what_of_all_namespaces_can_not_be_read_and_what_is_too_much_concerns_all() {
        let (unknown, absent) = (DocumentState::Unknown, DocumentState::Absent);
        assert!(Concern::of(&[change(Kind::SelectorSyncSet, unknown.clone(), absent)]).all);
        assert!(Concern::of(&[change(Kind::SelectorSyncSet, present(1), unknown)]).all);
        assert!(Concern::of(&[change(Kind::SelectorSyncSet, DocumentState::Absent, selects(1, &json!([])))]).all);
        let many = |count: usize| -> Vec<Change> {
            let selector = |n: usize| json!({"matchLabels": {"n": n.to_string()}});
            (0..count).map(|n| change(Kind::SelectorSyncSet, DocumentState::Absent, selects(1, &selector(n)))).collect()
        };
        assert!(!Concern::of(&many(MOST_SELECTIONS)).all);
        assert_eq!(Concern::of(&many(MOST_SELECTIONS + 1)), Concern { all: true, ..Concern::default() });
        for operator in ["In", "NotIn"] {
            let of_values = |count: usize| {
                let values: Vec<String> = (0..count).map(|value| value.to_string()).collect();
                let expression = |values: &[String]| json!({"key": "n", "operator": operator, "values": values});
                let expressions: Vec<Value> = values.chunks(250).map(expression).collect();
                let selector = json!({"matchExpressions": expressions});
                Concern::of(&[change(Kind::SelectorSyncSet, DocumentState::Absent, selects(1, &selector))])
            };
            assert!(!of_values(MOST_VALUES - 2).all && of_values(MOST_VALUES).all, "{operator}: values count");
        }
    }

    fn labelled(labels: &str) -> DocumentState {
        DocumentState::Present(Facts {
            generation: 1,
            metadata: labels.to_owned(),
            labels: labels.to_owned(),
            refs: None,
            selector: None,
            namespaces: None,
            rolls: false,
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

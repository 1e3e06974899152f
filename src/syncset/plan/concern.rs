//! What the log says, and whom its changes concern: where the dispatcher goes on ([`Head::step`]), which clusters are asked for because of a
//! change ([`Concern`]), and what the guard checks before ([`Unchecked`]). A request for a cluster that has nothing to do is harmless, so wherever it is not
//! certain whom a change concerns, it concerns more clusters.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::matching::Audience;
use crate::documents::Kind;

/// Versions are lifted by this much when the database was restored or failed over.
const LIFT: i64 = 1 << 40;
/// Most selections of one statement, and most values that all of them compare, which may be done for each cluster. Beyond it, the
/// changes concern all clusters: asking for all costs less.
const MOST_SELECTIONS: usize = 200;
const MOST_VALUES: usize = 1_000;
/// Most clusters that are asked for by name. Beyond it, all of the namespaces concerned are asked for: whoever writes in one does not
/// have the clusters of others asked for.
const MOST_NAMES: usize = 100_000;

/// The state of the log, as one statement reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whether the database can be read: it is not being restored, and its versions are its own.
    pub is_whole: bool,
    /// The log has all rows above it.
    pub base: i64,
    /// The newest version.
    pub newest: i64,
    /// Up to where changes were dispatched; 0 before the first start.
    pub cursor: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStep {
    /// The rows are the next ones.
    Follow,
    /// Rows are missing, or nothing was dispatched yet: all clusters are asked for.
    All {
        /// Whether the passes are full ones, since clusters may hold objects of transactions that the database has lost.
        in_full: bool,
    },
    /// The versions have another origin, and have to be renumbered first.
    Renumber,
}

impl Head {
    pub fn step(self) -> BatchStep {
        let Self { is_whole, base, newest, cursor } = self;
        if !is_whole {
            BatchStep::Renumber
        } else if cursor == 0 && newest > 0 {
            // After a first start nothing was sent by anybody; in a renumbered database something may have been.
            BatchStep::All { in_full: base >= LIFT }
        } else if cursor > newest || base / LIFT > cursor / LIFT {
            // The versions were renumbered since.
            BatchStep::All { in_full: true }
        } else if base > cursor {
            BatchStep::All { in_full: false }
        } else {
            BatchStep::Follow
        }
    }
}

/// A row of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// None for a kind that only a newer release knows.
    pub kind: Option<Kind>,
    pub id: Uuid,
    pub namespace: String,
    pub name: String,
    pub before: DocumentState,
    pub after: DocumentState,
}

/// A document before or after a change.
#[derive(Clone, Debug, PartialEq)]
pub enum DocumentState {
    Absent,
    Present(Facts),
    /// It can't be read, or the log no longer has it.
    Unknown,
}

/// What decides whom a change concerns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Facts {
    pub generation: i64,
    /// A hash of labels, annotations, finalizers and the time of deletion: the metadata that clients change.
    pub metadata: String,
    /// A hash of labels.
    pub labels: String,
    /// A hash of what approves deletions of a syncset, and of the time of its own deletion.
    #[serde(default)]
    pub guarded: String,
    /// Of a `SyncSet`.
    pub refs: Option<Value>,
    /// Of a `SelectorSyncSet`.
    pub selector: Option<Value>,
    /// Of a `SelectorSyncSet`.
    pub namespaces: Option<Value>,
    /// Whether it has a rollout, which moves clusters to another content.
    #[serde(default)]
    pub rolls: bool,
}

impl Change {
    /// Whether only the status has changed.
    pub fn is_of_status_alone(&self) -> bool {
        match (&self.before, &self.after) {
            (DocumentState::Present(before), DocumentState::Present(after)) => {
                before.generation == after.generation && before.metadata == after.metadata
            }
            _ => false,
        }
    }

    /// Whether the guard would decide as before: nothing that it reads of a syncset has changed.
    fn is_decided(&self) -> bool {
        match (&self.before, &self.after) {
            (DocumentState::Present(before), DocumentState::Present(after)) => {
                (before.generation, &before.guarded) == (after.generation, &after.guarded)
            }
            _ => false,
        }
    }

    /// Whether it may be of a syncset with a rollout, which may have to begin.
    pub fn may_begin_a_rollout(&self) -> bool {
        let is_syncset = matches!(self.kind, Some(Kind::SyncSet | Kind::SelectorSyncSet));
        is_syncset
            && match &self.after {
                DocumentState::Present(after) => after.rolls,
                DocumentState::Unknown => true,
                DocumentState::Absent => false,
            }
    }

    /// Whether a syncset has only got another content, to which its rollout moves clusters.
    pub fn is_for_a_rollout(&self) -> bool {
        match (&self.before, &self.after) {
            (DocumentState::Present(before), DocumentState::Present(after)) => {
                let Facts { generation: _, metadata, labels: _, guarded: _, refs, selector, namespaces, rolls } = after;
                let same = (&before.metadata, &before.refs, &before.selector, &before.namespaces);
                before.rolls && *rolls && same == (metadata, refs, selector, namespaces)
            }
            _ => false,
        }
    }
}

impl DocumentState {
    /// As the read's statement prints it; `exists` says whether there has to be one.
    pub fn read(text: Option<&str>, exists: bool) -> Self {
        match text {
            Some(text) => serde_json::from_str(text).map_or(Self::Unknown, Self::Present),
            None if exists => Self::Unknown,
            None => Self::Absent,
        }
    }
}

/// Whom changes concern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concern {
    pub all: bool,
    pub clusters: BTreeSet<Uuid>,
    pub gone: BTreeSet<Uuid>,
    /// Clusters by namespace and name.
    pub named: BTreeSet<(String, String)>,
    /// All clusters of namespaces.
    pub namespaces: BTreeSet<String>,
    pub selections: BTreeSet<Audience>,
    /// The clusters of the syncsets that map these secrets, by namespace and name.
    pub secrets: BTreeSet<(String, String)>,
}

impl Concern {
    pub fn of(changes: &[Change]) -> Self {
        let mut concern = Self::default();
        for change in changes {
            concern.add(change);
        }
        concern.limited()
    }

    pub fn is_empty(&self) -> bool {
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
    pub fn add_refs(&mut self, namespace: &str, refs: Option<&Value>) {
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
    pub fn add_selection(&mut self, selector: Option<&Value>, namespaces: Option<&Value>) {
        match Audience::selected(selector, namespaces) {
            Some(selection) => drop(self.selections.insert(selection)),
            None => self.all = true,
        }
    }

    /// The same within the limits of a statement.
    pub fn limited(mut self) -> Self {
        let requirements: usize = self.selections.iter().map(Audience::weight).sum();
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
pub struct Unchecked {
    /// Syncsets.
    pub syncsets: BTreeSet<Uuid>,
    /// Further syncsets with a new version of which the guard reads nothing else than before: what it has decided holds for that, too.
    pub decided: BTreeSet<Uuid>,
    /// Clusters that syncsets may match no more, or again, or whose labels may give objects other names.
    pub relabelled: BTreeSet<Uuid>,
}

impl Unchecked {
    /// What the guard has to check because of these changes.
    pub fn of(changes: &[Change]) -> Self {
        let mut unchecked = Self::default();
        for change in changes {
            match change.kind {
                Some(Kind::SyncSet | Kind::SelectorSyncSet) if change.is_decided() => {
                    unchecked.decided.insert(change.id);
                }
                Some(Kind::SyncSet | Kind::SelectorSyncSet) => drop(unchecked.syncsets.insert(change.id)),
                Some(Kind::Cluster) if is_relabelled(change) => drop(unchecked.relabelled.insert(change.id)),
                _ => {}
            }
        }
        unchecked.decided.retain(|syncset| !unchecked.syncsets.contains(syncset));
        unchecked
    }

    pub fn is_empty(&self) -> bool {
        self.syncsets.is_empty() && self.decided.is_empty() && self.relabelled.is_empty()
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
            guarded: "g".to_owned(),
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
            guarded: "g".to_owned(),
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
    fn a_change_of_a_syncset_is_checked_unless_the_guard_reads_nothing_of_it() {
        let id = Uuid::from_u128(7);
        let itself = Unchecked { syncsets: [id].into(), ..Unchecked::default() };
        let decided = Unchecked { decided: [id].into(), ..Unchecked::default() };
        let with = |facts: Facts| DocumentState::Present(facts);
        for kind in [Kind::SyncSet, Kind::SelectorSyncSet] {
            for after in [labelled("a"), labelled("b")] {
                assert_eq!(
                    unchecked(kind, labelled("a"), after),
                    decided,
                    "its status, or a label or an annotation of its own"
                );
            }
            assert_eq!(unchecked(kind, with(facts(1)), with(facts(2))), itself, "its spec");
            let approved = Facts { guarded: "approved".to_owned(), ..facts(1) };
            assert_eq!(unchecked(kind, with(facts(1)), with(approved)), itself, "an approval");
            assert_eq!(unchecked(kind, DocumentState::Absent, labelled("a")), itself);
            assert_eq!(unchecked(kind, labelled("a"), DocumentState::Absent), itself);
            assert_eq!(unchecked(kind, DocumentState::Unknown, labelled("a")), itself);
            let (edited, noted) = (change(kind, present(1), present(2)), change(kind, present(2), present(2)));
            assert_eq!(Unchecked::of(&[edited.clone(), noted.clone()]), itself, "one of several changes");
            assert_eq!(Unchecked::of(&[noted, edited]), itself);
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

    #[test]
    fn a_document_that_has_to_be_there_and_is_not_readable_is_unknown() {
        assert_eq!(DocumentState::read(None, false), DocumentState::Absent);
        assert_eq!(DocumentState::read(None, true), DocumentState::Unknown);
        assert_eq!(DocumentState::read(Some("{}"), true), DocumentState::Unknown);
        let text = r#"{"generation": 3, "metadata": "x", "labels": "y", "guarded": "z", "refs": null, "selector": {"a": 1}, "namespaces": ["*"]}"#;
        let facts = Facts {
            generation: 3,
            metadata: "x".to_owned(),
            labels: "y".to_owned(),
            guarded: "z".to_owned(),
            refs: None,
            selector: Some(serde_json::json!({"a": 1})),
            namespaces: Some(serde_json::json!(["*"])),
            rolls: false,
        };
        assert_eq!(DocumentState::read(Some(text), true), DocumentState::Present(facts));
    }

    fn step(base: i64, newest: i64, cursor: i64) -> BatchStep {
        Head { is_whole: true, base, newest, cursor }.step()
    }

    #[test]
    fn a_cursor_between_base_and_newest_is_followed() {
        for cursor in [10, 15, 20] {
            assert_eq!(step(10, 20, cursor), BatchStep::Follow);
        }
        assert_eq!(step(0, 0, 0), BatchStep::Follow, "an empty log");
    }

    #[test]
    fn the_first_start_and_a_gap_ask_for_all_clusters() {
        assert_eq!(step(0, 20, 0), BatchStep::All { in_full: false });
        assert_eq!(step(10, 20, 9), BatchStep::All { in_full: false });
    }

    #[test]
    fn lost_versions_ask_for_full_passes_of_all_clusters() {
        assert_eq!(step(10, 20, 21), BatchStep::All { in_full: true });
        assert_eq!(step(LIFT + 20, LIFT + 20, 20), BatchStep::All { in_full: true });
        assert_eq!(
            step(LIFT + 130, LIFT + 130, 600),
            BatchStep::All { in_full: true },
            "lost versions were dispatched"
        );
        assert_eq!(step(LIFT + 20, LIFT + 30, LIFT + 19), BatchStep::All { in_full: false }, "a later gap");
        assert_eq!(step(LIFT + 20, LIFT + 30, 0), BatchStep::All { in_full: true }, "the first start after a restore");
    }

    #[test]
    fn nothing_is_dispatched_while_the_database_is_being_restored() {
        for cursor in [0, 5, 15, 25] {
            let head = Head { is_whole: false, base: 10, newest: 20, cursor };
            assert_eq!(head.step(), BatchStep::Renumber);
        }
    }
}

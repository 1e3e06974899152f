//! The guard against mass deletions.
//!
//! A mistake in one place, such as a typo in a selector, labels that are wiped or a syncset that is deleted, would delete objects on
//! many clusters at once. So the dispatcher counts what a change would delete before passes may delete because of it. Whatever the
//! change is, it compares the objects that a syncset has on clusters with those that it wants there now.
//!
//! A cluster *counts* if the syncset would delete as many objects there as it names there, or more than it keeps there, together with
//! those that it has deleted there within ten minutes. If too many clusters count, or a Namespace, a CRD or a PVC would be deleted on any, the syncset is
//! *suspended*: it deletes nothing until nothing of that is left to delete, or it is approved.

use std::collections::BTreeMap;

use serde_json::Value;

use super::matching::{Audience, EffectiveNamespaces};
use super::name::SyncSetName;
use super::naming::{Naming, Objects, Resource};
use super::rows::GuardRow;
use super::wanted::Deletions;
use crate::guard;

/// Approves deletions: the generation that is to be approved, or `always`.
pub const APPROVE: &str = "towline.dev/approve-deletions";
/// What is lost with these is more than the object itself: group and kind.
const PRECIOUS: [(&str, &str); 3] =
    [("", "Namespace"), ("", "PersistentVolumeClaim"), ("apiextensions.k8s.io", "CustomResourceDefinition")];

/// Why the deletions of a syncset are suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was deleted.
    Gone,
    /// A Namespace, a CRD or a PVC is among what it would delete.
    Precious,
    /// It would delete much on too many clusters.
    Many,
    /// It is not known which clusters it is for. Nobody can approve that.
    Unreadable,
}

/// What a document says of a syncset when the guard checks it.
#[derive(Clone, Debug, PartialEq)]
pub enum SyncsetState {
    /// There is none, or its deletion was requested.
    Gone,
    /// Which clusters it is for can't be read.
    Unreadable,
    Living {
        audience: Audience,
        /// On clusters of other namespaces the revision that it leads to sends and deletes nothing.
        acts_in: EffectiveNamespaces,
        /// The objects that it names; none if it deletes nothing on the clusters that it is for.
        naming: Option<Naming>,
    },
}

/// What approves the deletions of a syncset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    None,
    /// The annotation approves what would be deleted now.
    Once,
    /// The annotation approves everything as long as it is there.
    Always,
}

/// Objects that a syncset has on a cluster and may delete, or some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub objects: usize,
    /// How many of them are Namespaces, CRDs or PVCs.
    pub precious: usize,
}

/// What is stored of a syncset on a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackedObjects {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// What it has there: objects that were adopted are never deleted.
    pub has: Amount,
    /// Those of them that it may not name any more: it names the others whatever the labels are.
    pub others: Objects,
    /// How much of what it would delete was approved.
    pub approved: Amount,
    /// Whether the guard has checked what it would delete there before, and has allowed it.
    pub was_allowed: bool,
    /// Whether the cluster counted when the syncset was suspended.
    pub was_counted: bool,
    /// How many objects it has deleted there within ten minutes, but for what was approved.
    pub deleted: usize,
}

/// What a syncset would delete on all clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// On how many clusters it has objects, or has deleted some.
    pub tracks: usize,
    /// On how many of these it would delete any, or has deleted much.
    pub loses: usize,
    /// On how many of them it would lose so much that the guard counts them.
    pub counted: usize,
    /// On how many of those something is still to be deleted.
    pending: usize,
    /// The same without those where the guard has allowed that before.
    pending_since: usize,
    is_precious: bool,
}

/// What is known of a syncset on one cluster, when a pass begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked<'g> {
    /// How far the dispatcher has read the log.
    pub cursor: i64,
    /// What it has decided about the syncset.
    pub guard: Option<&'g GuardRow>,
    /// The version of the cluster's document.
    pub cluster: i64,
    /// The version of the syncset's document; none if there is none.
    pub syncset: Option<i64>,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Gone, Self::Precious, Self::Many, Self::Unreadable];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Precious => "precious",
            Self::Many => "many",
            Self::Unreadable => "unreadable",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }

    pub fn reason(self) -> &'static str {
        match self {
            Self::Gone => "it was deleted",
            Self::Precious => "a Namespace, a CRD or a PVC would be deleted",
            Self::Many => "most of its objects there would be deleted",
            Self::Unreadable => "this release can't read which clusters it is for",
        }
    }
}

impl SyncsetState {
    /// What a document's `spec` says, which may be without resources and patches. `resources` is none if they are no list.
    pub fn read(name: &SyncSetName, spec: &Value, resources: Option<&[Resource]>) -> Self {
        match Audience::of(name, spec) {
            Err(_) => Self::Unreadable,
            Ok(audience) => {
                let (acts_in, naming) = (EffectiveNamespaces::of(spec), Naming::read(name, spec, resources));
                Self::Living { audience, acts_in, naming }
            }
        }
    }

    /// The objects that it names on each cluster that it is for, whatever its labels are. None if it does not matter what they are called.
    pub fn plain(&self) -> Option<Objects> {
        match self {
            Self::Living { naming: Some(naming), .. } => Some(naming.plain()),
            _ => None,
        }
    }

    /// What it would delete on a cluster, and how many objects are much there.
    pub fn loses(&self, place: &TrackedObjects) -> (Amount, usize) {
        let none = (Amount::default(), place.has.objects + 1);
        match self {
            Self::Gone => (place.has, 0),
            Self::Living { audience, .. } if !audience.includes(&place.namespace, &place.name, &place.labels) => {
                (place.has, 0)
            }
            Self::Living { acts_in, .. } if !acts_in.include(&place.namespace) => none,
            Self::Living { naming: Some(naming), .. } if !place.others.is_empty() => {
                let names = naming.names(&place.labels);
                let lost: Vec<_> = place.others.iter().filter(|object| !names.may_have(object)).collect();
                let precious = lost.iter().filter(|object| is_precious(object)).count();
                let kept = place.has.objects.saturating_sub(lost.len());
                (Amount { objects: lost.len(), precious }, naming.count().min(kept + 1))
            }
            Self::Living { naming: Some(naming), .. } => (Amount::default(), naming.count().min(place.has.objects + 1)),
            Self::Living { naming: None, .. } | Self::Unreadable => none,
        }
    }
}

/// Whether an object takes more along than itself: a Namespace, a CRD or a PVC.
fn is_precious([group, kind, ..]: &[String; 4]) -> bool {
    PRECIOUS.iter().any(|(of, is)| of == group && is == kind)
}

/// The same for a row of applied objects, as an SQL expression.
pub fn precious_row(row: &str) -> String {
    let kinds: Vec<String> = PRECIOUS.iter().map(|(group, kind)| format!("('{group}', '{kind}')")).collect();
    format!("({row}.api_group, {row}.kind) in ({})", kinds.join(", "))
}

impl Approval {
    /// What an annotation approves at a generation; `approved` is the one that it has approved before. What happens later at the same
    /// generation was not known when it was written, such as labels that are wiped.
    pub fn read(annotation: Option<&str>, generation: i64, approved: i64) -> Self {
        match annotation {
            Some("always") => Self::Always,
            Some(text) if generation != approved && text.parse() == Ok(generation) => Self::Once,
            _ => Self::None,
        }
    }
}

impl Tally {
    /// Counts a cluster, on which it would delete so much. Returns whether that is much.
    pub fn add(&mut self, place: &TrackedObjects, loses: Amount, much: usize) -> bool {
        let objects = loses.objects.saturating_sub(place.approved.objects);
        let all = objects + place.deleted;
        let is_left = objects > 0;
        // A cluster that has counted goes on counting until nothing is left to delete, even if the syncset wants objects again.
        let counts = all > 0 && (all >= much || (is_left && place.was_counted));
        self.tracks += usize::from(place.has.objects > 0 || place.deleted > 0);
        self.loses += usize::from(is_left || counts);
        self.counted += usize::from(counts);
        self.pending += usize::from(is_left && counts);
        self.pending_since += usize::from(is_left && counts && !place.was_allowed);
        self.is_precious |= loses.precious > place.approved.precious;
        is_left && counts
    }

    /// Why the deletions are suspended from now on; none if they may be carried out.
    ///
    /// A repair brings clusters back one by one. Those that are still to come must not lose their objects meanwhile: what was suspended stays
    /// suspended until nothing is left of it.
    pub fn check(&self, state: &SyncsetState, was_suspended: bool, approval: Approval) -> Option<Cause> {
        let is_too_many = self.pending > 0 && guard::is_mass(self.counted, self.tracks);
        let is_left = was_suspended && self.pending_since > 0;
        match state {
            SyncsetState::Unreadable => Some(Cause::Unreadable),
            _ if approval != Approval::None || !(self.is_precious || is_too_many || is_left) => None,
            SyncsetState::Gone => Some(Cause::Gone),
            SyncsetState::Living { .. } => Some(if self.is_precious { Cause::Precious } else { Cause::Many }),
        }
    }
}

/// Whether a syncset may delete what it no longer wants on a cluster.
///
/// What the dispatcher has not read yet is unchecked: the cluster may have lost its labels together with many others. A syncset has a
/// row from its first check on, which comes before it is applied anywhere. So one without a row, living or gone, is unchecked; a
/// cursor alone is no permission. That a document is missing does not say that its
/// deletion was checked: the row does.
pub fn deletions(checked: &Checked<'_>) -> Deletions {
    let Checked { cursor, guard, cluster, syncset } = *checked;
    let Some(guard) = guard else { return Deletions::Unchecked };
    let has_passed = |version| version <= cursor;
    let is_checked = match syncset {
        Some(version) => has_passed(version) && version <= guard.checked,
        None => guard.gone,
    };
    if guard.is_suspended() {
        Deletions::Suspended
    } else if is_checked && has_passed(cluster) {
        Deletions::Allowed
    } else {
        Deletions::Unchecked
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::syncset::plan::name::SyncSetKind;

    fn map(name: &str) -> Resource {
        ["v1", "ConfigMap", "default", name].map(|text| Some(text.to_owned()))
    }

    fn objects(names: &[&str]) -> Objects {
        names.iter().map(|name| ["", "ConfigMap", "default", name].map(str::to_owned)).collect()
    }

    fn selecting(env: &str, names: &[&str]) -> SyncsetState {
        let name = SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "a".to_owned() };
        let resources: Vec<Resource> = names.iter().map(|name| map(name)).collect();
        let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "resourceApplyMode": "Sync",
            "enableResourceTemplates": true, "secretMappings": []});
        SyncsetState::read(&name, &spec, Some(&resources))
    }

    fn place(env: &str, names: &[&str]) -> TrackedObjects {
        TrackedObjects {
            labels: BTreeMap::from([("env".to_owned(), env.to_owned())]),
            has: Amount { objects: names.len(), precious: 0 },
            others: objects(names),
            ..TrackedObjects::default()
        }
    }

    fn check(state: &SyncsetState, places: &[TrackedObjects], was_suspended: bool) -> Option<Cause> {
        let mut tally = Tally::default();
        for place in places {
            let (loses, wanted) = state.loses(place);
            tally.add(place, loses, wanted);
        }
        tally.check(state, was_suspended, Approval::None)
    }

    #[test]
    fn whatever_the_change_is_the_same_clusters_are_too_many() {
        let had = place("prod", &["a", "b", "c"]);
        let renamed = selecting("prod", &["x", "y", "z-{{ fromCDLabel \"env\" }}"]);
        for (state, cause) in [
            (SyncsetState::Gone, Cause::Gone),
            (selecting("prodd", &["a", "b", "c"]), Cause::Many),
            (selecting("prod", &["a"]), Cause::Many),
            (renamed, Cause::Many),
        ] {
            assert_eq!(check(&state, &vec![had.clone(); 11], false), Some(cause), "all of eleven");
            assert_eq!(check(&state, &vec![had.clone(); 2], false), Some(cause), "all of two");
            assert_eq!(check(&state, &vec![had.clone(); 1], false), None, "the only one");
        }
        // Labels of some clusters.
        let state = selecting("prod", &["a", "b", "c"]);
        for (lost, kept, expected) in [(10, 90, None), (11, 90, Some(Cause::Many)), (11, 99, None), (1, 1, None)] {
            let mut places = vec![place("test", &["a", "b", "c"]); lost];
            places.extend(vec![had.clone(); kept]);
            assert_eq!(check(&state, &places, false), expected, "{lost} of {}", lost + kept);
        }
    }

    #[test]
    fn a_revision_that_is_not_for_a_namespace_loses_nothing_there_unless_the_cluster_leaves() {
        let name = SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "a".to_owned() };
        let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "resourceApplyMode": "Sync",
            "secretMappings": [], "secretNamespaces": ["team-a"]});
        let state = SyncsetState::read(&name, &spec, Some(&[map("a")]));
        let of = |namespace: &str, env: &str| {
            let place = TrackedObjects { namespace: namespace.to_owned(), ..place(env, &["x", "y"]) };
            state.loses(&place).0.objects
        };
        assert_eq!([of("team-a", "prod"), of("team-b", "prod"), of("team-b", "test")], [2, 0, 2]);
    }

    #[test]
    fn an_edit_that_keeps_more_than_it_drops_counts_nowhere() {
        let places = vec![place("prod", &["a", "b", "c"]); 1_000];
        assert_eq!(check(&selecting("prod", &["a", "b"]), &places, false), None);
        assert_eq!(check(&selecting("prod", &["a"]), &places, false), Some(Cause::Many));
        // Together with what was deleted within ten minutes.
        let places = vec![TrackedObjects { deleted: 1, ..place("prod", &["a", "b"]) }; 1_000];
        assert_eq!(check(&selecting("prod", &["a"]), &places, false), Some(Cause::Many));
        let places = vec![TrackedObjects { deleted: 1, ..place("prod", &["a", "b", "c"]) }; 1_000];
        assert_eq!(check(&selecting("prod", &["a", "b", "d"]), &places, false), None);
    }

    #[test]
    fn what_was_deleted_or_approved_counts_once() {
        let state = selecting("prod", &["a"]);
        let (lost, kept) = (place("test", &["a"]), place("prod", &["a"]));
        let deleted = TrackedObjects { deleted: 1, ..kept.clone() };
        let mut places = vec![deleted; 10];
        places.extend(vec![kept; 20]);
        assert_eq!(check(&state, &places, false), None, "nothing is left to delete");
        places.push(lost.clone());
        assert_eq!(check(&state, &places, false), Some(Cause::Many), "the eleventh within ten minutes");
        let approved = TrackedObjects { approved: Amount { objects: 1, precious: 0 }, ..lost };
        assert_eq!(check(&state, &vec![approved; 20], true), None);
    }

    #[test]
    fn what_is_held_stays_so_until_nothing_of_it_is_left() {
        let state = selecting("prod", &["a"]);
        let mut places = vec![place("prod", &["a"]); 20];
        places.push(place("test", &["a"]));
        assert_eq!(check(&state, &places, false), None);
        assert_eq!(check(&state, &places, true), Some(Cause::Many), "the others were repaired");
        let before: Vec<TrackedObjects> =
            places.iter().cloned().map(|place| TrackedObjects { was_allowed: true, ..place }).collect();
        assert_eq!(check(&state, &before, true), None, "it was let through before");
        assert_eq!(check(&state, &places[..20], true), None);
        // Nor is it taken back by other objects.
        let place = TrackedObjects { was_counted: true, ..place("prod", &["a", "b"]) };
        let state = selecting("prod", &["b", "c", "d", "e"]);
        assert_eq!(check(&state, &vec![place.clone(); 20], true), Some(Cause::Many));
        assert_eq!(
            check(&state, &vec![TrackedObjects { was_counted: false, ..place }; 20], true),
            None,
            "it never counted"
        );
    }

    #[test]
    fn one_namespace_definition_or_claim_is_too_many_on_any_cluster() {
        for (group, kind) in PRECIOUS {
            let object = [group, kind, "", "x"].map(str::to_owned);
            let has = TrackedObjects {
                has: Amount { objects: 5, precious: 1 },
                others: [object].into(),
                ..place("prod", &[])
            };
            let state = selecting("prod", &["a", "b", "c", "d"]);
            assert_eq!(check(&state, std::slice::from_ref(&has), false), Some(Cause::Precious), "{kind}");
            let approved = TrackedObjects { approved: Amount { objects: 1, precious: 1 }, ..has };
            assert_eq!(check(&state, &[approved], false), None, "{kind}");
        }
        assert!(!is_precious(&["apps", "Namespace", "", "x"].map(str::to_owned)));
    }

    #[test]
    fn what_can_not_be_read_is_held_and_loses_nothing() {
        let name = SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "a".to_owned() };
        let state = SyncsetState::read(&name, &json!({"clusterDeploymentSelector": 1}), Some(&[]));
        let mut tally = Tally::default();
        let has = place("prod", &["a"]);
        tally.add(&has, state.loses(&has).0, state.loses(&has).1);
        assert_eq!((tally.tracks, tally.loses), (1, 0));
        for approval in [Approval::None, Approval::Once, Approval::Always] {
            assert_eq!(tally.check(&state, false, approval), Some(Cause::Unreadable));
        }
    }

    #[test]
    fn an_annotation_approves_its_generation_once_or_always() {
        for (annotation, generation, approved, expected) in [
            (None, 3, 0, Approval::None),
            (Some("3"), 3, 0, Approval::Once),
            (Some("3"), 3, 3, Approval::None),
            (Some("3"), 4, 3, Approval::None),
            (Some("always"), 3, 3, Approval::Always),
            (Some("Always"), 3, 0, Approval::None),
            (Some(""), 0, 0, Approval::None),
        ] {
            assert_eq!(Approval::read(annotation, generation, approved), expected, "{annotation:?} {generation}");
        }
    }

    #[test]
    fn a_pass_deletes_only_what_was_checked_and_is_not_held() {
        let syncset = uuid::Uuid::from_u128(9);
        let guard = |checked, gone, held| GuardRow { syncset, checked, gone, held };
        let deletions = |cursor, guard: Option<&GuardRow>, cluster, syncset| {
            deletions(&Checked { cursor, guard, cluster, syncset })
        };
        let (living, held, gone) = (guard(8, false, false), guard(8, false, true), guard(8, true, false));
        for (cursor, guard, cluster, version, expected) in [
            (8, Some(&living), 8, Some(8), Deletions::Allowed),
            (8, Some(&living), 9, Some(8), Deletions::Unchecked),
            (9, Some(&living), 9, Some(9), Deletions::Unchecked),
            (7, Some(&living), 7, Some(8), Deletions::Unchecked),
            (8, None, 8, Some(8), Deletions::Unchecked),
            (8, None, 8, None, Deletions::Unchecked),
            (8, Some(&living), 8, None, Deletions::Unchecked),
            (8, Some(&gone), 8, None, Deletions::Allowed),
            (7, Some(&held), 9, Some(9), Deletions::Suspended),
        ] {
            assert_eq!(
                deletions(cursor, guard, cluster, version),
                expected,
                "{cursor} {guard:?} {cluster} {version:?}"
            );
        }
    }
}

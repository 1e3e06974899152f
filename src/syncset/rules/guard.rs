//! The guard against mass deletions.
//!
//! A mistake in one place, such as a typo in a selector, labels that are wiped or a syncset that is deleted, would delete objects on
//! many clusters at once. So the dispatcher judges every change before passes may delete because of it: it counts on how many clusters
//! the syncset loses objects, and *holds* its deletions if these are too many. A pass deletes only what was judged.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::matching::Audience;
use super::name::SyncSetName;
use super::parse::list;
use super::rows::GuardRow;
use super::spec::Mode;
use super::wanted::Deletions;
use crate::documents::group_of;
use crate::job::mass_change;

#[cfg(test)]
mod tests;

/// Approves deletions: the generation that is to be approved, or `always`.
pub const APPROVE: &str = "towline.dev/approve-deletions";
/// What is lost with these is more than the object itself: group, kind, and whether it has a namespace.
const PRECIOUS: [(&str, &str, bool); 3] = [
    ("", "Namespace", false),
    ("", "PersistentVolumeClaim", true),
    ("apiextensions.k8s.io", "CustomResourceDefinition", false),
];

/// The objects that a document names, before templates are rendered: group, kind, namespace and name.
pub type Objects = BTreeSet<[String; 4]>;

/// What one edit has dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// When it was judged, as the database prints it.
    pub at: String,
    /// The objects that it named no more.
    pub objects: Objects,
}

/// Why the deletions of a syncset are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was deleted.
    Gone,
    /// Its edit drops a Namespace, a CRD, a PVC, or more than half of its objects.
    Dropped,
    /// It matches too many clusters no more, or one on which it has a Namespace, a CRD or a PVC.
    Unmatched,
    /// Labels of too many clusters give its objects other names, or those of one cluster to a Namespace, a CRD or a PVC.
    Renamed,
    /// It is not known which clusters it is for. Nobody can approve that.
    Unreadable,
}

/// What a document says of a syncset, when it is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none, or its deletion was requested.
    Gone,
    /// Which clusters it is for can't be read.
    Unreadable,
    /// It is for these clusters.
    Living {
        /// The clusters.
        audience: Audience,
        /// Whether it deletes what it no longer wants on them.
        deletes: bool,
        /// The objects that it names; none if they can't be read, so that nothing is deleted that it may want.
        objects: Option<Objects>,
    },
}

/// What approves the deletions of a syncset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Nothing.
    None,
    /// The annotation approves what is held or would be, once.
    Once,
    /// The annotation approves everything as long as it is there.
    Always,
}

/// What is known when a syncset is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Why it was held before.
    pub held: Option<Cause>,
    /// What has become of it.
    pub change: Change,
    /// What approves its deletions.
    pub approval: Approval,
    /// On how many clusters it has deleted objects within the time that counts, or would, since it matches them no more or their
    /// labels give its objects other names.
    pub lost: usize,
    /// On how many of these nothing is left to delete, or was applied again.
    pub executed: usize,
    /// How many of them it still matches, and lost objects there since labels give these other names.
    pub renamed: usize,
    /// On how many clusters it tracks objects, with those on which it has deleted them within that time.
    pub tracks: usize,
    /// Whether a Namespace, a CRD or a PVC is among what it would delete on one of them.
    pub precious: bool,
}

/// What has become of a syncset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Gone,
    /// It can't be read.
    Unreadable,
    /// It is there.
    Living {
        /// Whether it would drop a Namespace, a CRD, a PVC, or more than half of its objects.
        drops: bool,
    },
}

/// What is known of a syncset on one cluster, when a pass begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged<'g> {
    /// How far the dispatcher has read the log.
    pub cursor: i64,
    /// What it has judged of the syncset.
    pub guard: Option<&'g GuardRow>,
    /// The version of the cluster's document.
    pub cluster: i64,
    /// The version of the syncset's document; none if there is none.
    pub syncset: Option<i64>,
}

impl Cause {
    const ALL: [Self; 5] = [Self::Gone, Self::Dropped, Self::Unmatched, Self::Renamed, Self::Unreadable];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Dropped => "dropped",
            Self::Unmatched => "unmatched",
            Self::Renamed => "renamed",
            Self::Unreadable => "unreadable",
        }
    }

    /// The cause of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }

    /// In words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Gone => "it was deleted",
            Self::Dropped => "its edit drops a Namespace, a CRD, a PVC, or more than half of its objects",
            Self::Unmatched => "it matches them no more",
            Self::Renamed => "their labels give its objects other names",
            Self::Unreadable => "this release can't read which clusters it is for",
        }
    }
}

impl State {
    /// What a document's `spec` says, which may be without resources and patches. `resources` has version, kind, namespace and name of
    /// each resource, and is none if they are no list.
    pub fn read(name: &SyncSetName, spec: &Value, resources: Option<&[[Option<String>; 4]]>) -> Self {
        match Audience::of(name, spec) {
            Err(_) => Self::Unreadable,
            Ok(audience) => Self::Living {
                audience,
                // A mode that can't be read deletes nothing on the clusters that it matches.
                deletes: super::parse::mode(spec).is_ok_and(|mode| mode == Mode::Sync),
                objects: resources.and_then(|resources| objects(spec, resources)),
            },
        }
    }

    /// Whether it may delete objects on a cluster that it was applied to because it is not for it any more.
    pub fn loses(&self, namespace: &str, name: &str, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Gone => true,
            Self::Unreadable => false,
            Self::Living { audience, .. } => !audience.includes(namespace, name, labels),
        }
    }

    /// What has become of it since it named those objects, each as one document had them: some clusters may have what any of them
    /// named, and some what several named. A syncset of which nothing is known drops nothing.
    pub fn change_since<'o>(&self, before: impl IntoIterator<Item = &'o Objects>) -> Change {
        self.change_within(before, &[])
    }

    /// The same with what edits have dropped before, within the time that counts: several edits are one that drops as much.
    pub fn change_within<'o>(&self, before: impl IntoIterator<Item = &'o Objects>, dropped: &[Dropped]) -> Change {
        match self {
            Self::Gone => Change::Gone,
            Self::Unreadable => Change::Unreadable,
            Self::Living { deletes, objects, .. } => {
                let before: Vec<&Objects> = before.into_iter().collect();
                let all: Objects = before.iter().copied().flatten().cloned().collect();
                let lately: Objects = dropped.iter().flat_map(|edit| &edit.objects).chain(&all).cloned().collect();
                let drops = |after| before.iter().chain([&&all, &&lately]).any(|before| drops_much(before, after));
                Change::Living { drops: *deletes && objects.as_ref().is_some_and(drops) }
            }
        }
    }

    /// Whether it has dropped something precious of these objects, or everything.
    pub fn drops_precious<'o>(&self, before: impl IntoIterator<Item = &'o Objects>, dropped: &'o [Dropped]) -> bool {
        let lately = dropped.iter().flat_map(|edit| &edit.objects);
        let mut named = before.into_iter().flatten().chain(lately);
        match self {
            Self::Living { objects: Some(after), .. } => {
                named.any(|object| is_precious(object) && !after.contains(object))
            }
            Self::Living { .. } | Self::Unreadable => false,
            Self::Gone => true,
        }
    }

    /// The objects that it names, if it deletes what it no longer wants.
    pub fn into_tracked(self) -> Option<Objects> {
        match self {
            Self::Living { deletes: true, objects, .. } => objects,
            Self::Living { deletes: false, .. } | Self::Gone | Self::Unreadable => None,
        }
    }

    /// Objects that clusters have, as it would name them: which of a kind one with a template in its name stands for is not known, and
    /// a kind without namespaces has none on clusters.
    pub fn as_named(&self, tracked: Objects) -> Objects {
        let Self::Living { objects: Some(named), .. } = self else { return tracked };
        let is_template =
            |[_, _, namespace, name]: &&[String; 4]| namespace.starts_with("{{}}") || name.starts_with("{{}}");
        let of_template: BTreeSet<_> =
            named.iter().filter(is_template).map(|[group, kind, ..]| (group, kind)).collect();
        let bare: BTreeMap<_, _> =
            named.iter().map(|object @ [group, kind, _, name]| ((group, kind, name), object)).collect();
        let as_named = |object: &[String; 4]| {
            let [group, kind, namespace, name] = object;
            let given = bare.get(&(group, kind, name)).filter(|_| namespace.is_empty());
            given.map_or_else(|| object.clone(), |given| (*given).clone())
        };
        tracked.iter().filter(|[group, kind, ..]| !of_template.contains(&(group, kind))).map(as_named).collect()
    }
}

/// The objects that a syncset names, with the targets of its secrets.
fn objects(spec: &Value, resources: &[[Option<String>; 4]]) -> Option<Objects> {
    let mut objects = Objects::new();
    let has_templates = spec.get("enableResourceTemplates").and_then(Value::as_bool).unwrap_or_default();
    // With the switch, a name with a template is another one.
    let as_meant = |text: String| if has_templates && text.contains("{{") { format!("{{{{}}}}{text}") } else { text };
    for [version, kind, namespace, name] in resources {
        let version = version.as_deref()?;
        let group = group_of(version).unwrap_or(version);
        let kind = kind.clone()?;
        let is_scoped = PRECIOUS.iter().any(|(of, precious, has)| !has && *of == group && *precious == kind);
        let namespace = namespace.clone().filter(|_| !is_scoped).unwrap_or_default();
        objects.insert([group.to_owned(), kind, as_meant(namespace), as_meant(name.clone()?)]);
    }
    for mapping in list(spec, "secretMappings").ok()? {
        let target = mapping.get("targetRef")?;
        let text = |field: &str| target.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        objects.insert([String::new(), "Secret".to_owned(), text("namespace"), text("name")]);
    }
    Some(objects)
}

/// What counts as dropped after an edit that did not drop much with that, the last edits first. It is at most as much as is left. What is
/// named again is not dropped.
pub fn dropped_since(mut dropped: Vec<Dropped>, before: &Objects, after: &Objects, now: &str) -> Vec<Dropped> {
    let objects: Objects = before.difference(after).cloned().collect();
    for older in &mut dropped {
        older.objects.retain(|object| !after.contains(object) && !objects.contains(object));
    }
    dropped.insert(0, Dropped { at: now.to_owned(), objects });
    dropped.retain(|edit| !edit.objects.is_empty());
    dropped
}

/// Whether an object takes more along than itself: a Namespace, a CRD or a PVC.
fn is_precious([group, kind, ..]: &[String; 4]) -> bool {
    PRECIOUS.iter().any(|(of, is, _)| of == group && is == kind)
}

/// Whether one of these objects does.
pub fn has_precious<'o>(objects: impl IntoIterator<Item = &'o Objects>) -> bool {
    objects.into_iter().flatten().any(is_precious)
}

/// The same of a row of applied objects, as an expression.
pub fn precious_row(row: &str) -> String {
    let kinds: Vec<String> = PRECIOUS.iter().map(|(group, kind, _)| format!("('{group}', '{kind}')")).collect();
    format!("({row}.api_group, {row}.kind) in ({})", kinds.join(", "))
}

/// Whether an edit drops so much that it may be a mistake.
pub fn drops_much(before: &Objects, after: &Objects) -> bool {
    let dropped: Vec<_> = before.difference(after).collect();
    2 * dropped.len() > before.len() || dropped.into_iter().any(is_precious)
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

impl Case {
    /// Why the syncset's deletions are held from now on; none if they may be carried out.
    pub fn judge(self) -> Option<Cause> {
        if self.change == Change::Unreadable {
            return Some(Cause::Unreadable);
        }
        if self.approval != Approval::None {
            return None;
        }
        // What is lost with a namespace is more than the object, so that one is too many.
        let is_too_many = |clusters| {
            mass_change::is_mass(clusters, self.tracks) || (self.precious && clusters > 0 && self.tracks > 0)
        };
        let was_held = |cause| self.held == Some(cause);
        match self.change {
            // That some of its clusters go takes nothing back, so what was held stays held until nothing is left.
            Change::Gone => {
                (is_too_many(self.tracks) || (self.held.is_some() && self.tracks > 0)).then_some(Cause::Gone)
            }
            Change::Living { drops: true } if is_too_many(self.tracks) || was_held(Cause::Dropped) => {
                Some(Cause::Dropped)
            }
            // A repair brings clusters back one by one. Those that are still to come must not lose their objects meanwhile.
            _ => {
                let was_held_for_labels = was_held(Cause::Unmatched) || was_held(Cause::Renamed);
                let is_left = was_held_for_labels && self.lost > self.executed;
                let are_most_renamed = 2 * self.renamed > self.lost;
                let cause = if are_most_renamed { Cause::Renamed } else { Cause::Unmatched };
                (is_left || is_too_many(self.lost)).then_some(cause)
            }
        }
    }

    /// On how many clusters it would delete objects.
    pub fn clusters(&self) -> usize {
        match self.change {
            Change::Gone | Change::Living { drops: true } => self.tracks,
            Change::Unreadable | Change::Living { drops: false } => self.lost,
        }
    }
}

/// Whether a syncset may delete what it no longer wants on a cluster.
///
/// What the dispatcher has not read yet was not judged: the cluster may have lost its labels together with many others. A syncset has a
/// row from its first judgement on, which comes before it is applied anywhere. So one without a row, living or gone, was not judged; a
/// cursor alone, which a release without the guard may have moved, is no permission. That a document is missing does not say that its
/// deletion was judged: the row does.
pub fn deletions(judged: &Judged<'_>) -> Deletions {
    let Judged { cursor, guard, cluster, syncset } = *judged;
    let Some(guard) = guard else { return Deletions::NotJudged };
    let has_passed = |version| version <= cursor;
    let is_judged = match syncset {
        Some(version) => has_passed(version) && version <= guard.judged,
        None => guard.gone,
    };
    if guard.held {
        Deletions::Held
    } else if is_judged && has_passed(cluster) {
        Deletions::Allowed
    } else {
        Deletions::NotJudged
    }
}

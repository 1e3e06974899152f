//! Which objects the live syncsets of a cluster want, and which of them sends an object.
//!
//! A syncset that is due says what it wants by its rendering, another one by its stored rows. All of it is known before the first
//! request, so that an object which moves from one syncset to another is never deleted in between. What does not render may be
//! an object that exists: as long as its name is unknown, nothing that it could be is deleted.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::name::{Digest, ObjectRef};
use super::rows::{AppliedRow, Failure};
use super::spec::{Desired, Header, Known, Rendered, Rendering};

#[cfg(test)]
mod tests;

/// Whether a syncset may delete what it no longer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletions {
    /// The guard has checked and allowed its deletions.
    Allowed,
    /// They are suspended until somebody approves them.
    Suspended,
    /// The dispatcher has not checked the newest change yet.
    Unchecked,
}

/// A syncset that names or selects the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// What is known of it without its payload.
    pub header: Header,
    /// What it would be applied with now.
    pub inputs: Digest,
    /// What it wants, if it is due; none if its stored rows say what it wants.
    pub rendered: Option<Rendered>,
    pub deletions: Deletions,
}

/// Whether objects of a kind are in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    /// They are not; a namespace that is given all the same does not count.
    Cluster,
    /// Not known, since the cluster does not serve the kind or did not answer.
    Unknown,
}

/// What the live syncsets of a cluster want. Syncsets are positions in the list in which they are applied.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    objects: BTreeMap<ObjectRef, BTreeSet<usize>>,
    /// Group, kind and name of objects which may or may not be in the namespace that is given.
    unplaced: BTreeSet<(String, String, String)>,
    kinds: BTreeSet<(String, String)>,
    anything: bool,
}

impl Live {
    /// Why nothing of the syncset may be sent or deleted: a resource does not render.
    pub fn obstacle(&self) -> Option<&Failure> {
        self.rendered.as_ref()?.resources.iter().find_map(|resource| match resource {
            Rendering::Ready(_) => None,
            Rendering::Failed { failure, .. } => Some(failure),
        })
    }

    fn desired(&self) -> impl Iterator<Item = &Rendering<Desired>> {
        self.rendered.iter().flat_map(|rendered| rendered.resources.iter().chain(&rendered.secrets))
    }

    /// Whether its stored rows say what it wants: they do if it was not rendered, or not completely.
    fn counts_by_rows(&self) -> bool {
        self.rendered.is_none() || self.obstacle().is_some()
    }
}

impl Wanted {
    /// What the syncsets, in the order in which they are applied, want together. `scope` says whether an object's kind has namespaces.
    pub fn new<'a>(
        live: &[Live],
        rows: impl IntoIterator<Item = &'a AppliedRow>,
        scope: impl Fn(&ObjectRef) -> Scope,
    ) -> Self {
        let mut wanted = Self::default();
        for (position, syncset) in live.iter().enumerate() {
            for rendering in syncset.desired() {
                match rendering {
                    Rendering::Ready(desired) => wanted.claim(position, &desired.object, &scope),
                    Rendering::Failed { known, .. } => wanted.claim_known(position, known, &scope),
                }
            }
        }
        let by_rows: BTreeMap<Uuid, usize> = live
            .iter()
            .enumerate()
            .filter(|(_, syncset)| syncset.counts_by_rows())
            .map(|(position, syncset)| (syncset.header.id, position))
            .collect();
        for row in rows.into_iter().filter(|row| row.wanted) {
            if let Some(position) = by_rows.get(&row.syncset) {
                wanted.objects.entry(row.object.clone()).or_default().insert(*position);
            }
        }
        wanted
    }

    fn claim_known(&mut self, position: usize, known: &Known, scope: &impl Fn(&ObjectRef) -> Scope) {
        match known {
            Known::Object(object) => self.claim(position, object, scope),
            Known::Kind { group, kind } => {
                self.kinds.insert((group.clone(), kind.clone()));
            }
            Known::Nothing => self.anything = true,
        }
    }

    fn claim(&mut self, position: usize, object: &ObjectRef, scope: &impl Fn(&ObjectRef) -> Scope) {
        let scope = scope(object);
        if scope == Scope::Unknown && !object.namespace.is_empty() {
            self.unplaced.insert((object.group.clone(), object.kind.clone(), object.name.clone()));
        }
        self.objects.entry(placed(object, scope)).or_default().insert(position);
    }

    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        self.objects.keys()
    }

    /// Who wants an object, in order: the last one is the winner.
    pub fn claimants(&self, object: &ObjectRef) -> impl DoubleEndedIterator<Item = usize> {
        self.objects.get(object).into_iter().flatten().copied()
    }

    /// The position of the syncset that sends an object: the last of those that want it.
    pub fn winner(&self, object: &ObjectRef) -> Option<usize> {
        self.claimants(object).next_back()
    }

    /// Whether something that does not render could be this object, or be in it: a namespace has objects of other kinds, and a
    /// definition of a kind has all objects of its group.
    pub fn may_want(&self, object: &ObjectRef) -> bool {
        let key = (object.group.clone(), object.kind.clone(), object.name.clone());
        let is_blocked = |(group, kind): &(String, String)| may_be_in(group, kind, object);
        self.anything || self.unplaced.contains(&key) || self.kinds.iter().any(is_blocked)
    }

    /// The wanted objects that would be deleted with this one: they are in this namespace, or this defines a kind of their group.
    pub fn within(&self, object: &ObjectRef) -> impl Iterator<Item = &ObjectRef> {
        self.objects.keys().filter(move |wanted| is_within(wanted, object))
    }
}

/// The syncsets that are not due for themselves, but have to send an object, since whoever sent it no longer wants it.
/// They have to be rendered as well, before the pass begins.
pub fn also_due<'a>(live: &[Live], rows: impl IntoIterator<Item = &'a AppliedRow> + Clone) -> BTreeSet<Uuid> {
    // A namespace that does not count hides an object here at most, so rather too many are due.
    let wanted = Wanted::new(live, rows.clone(), |_| Scope::Namespaced);
    let mut due = BTreeSet::new();
    for row in rows.into_iter().filter(|row| row.wanted && row.content.is_none()) {
        let winner = wanted.winner(&row.object).and_then(|position| live.get(position));
        if winner.is_some_and(|winner| winner.header.id == row.syncset && winner.rendered.is_none()) {
            due.insert(row.syncset);
        }
    }
    due
}

/// The object as it is identified: without namespace if its kind has none.
pub fn placed(object: &ObjectRef, scope: Scope) -> ObjectRef {
    let mut placed = object.clone();
    if scope == Scope::Cluster {
        placed.namespace.clear();
    }
    placed
}

/// Whether an object would be deleted with the outer one, which is its namespace or the definition of a kind of its group.
pub fn is_within(object: &ObjectRef, outer: &ObjectRef) -> bool {
    (is_namespace(outer) && object.namespace == outer.name)
        || group_defined_by(outer).is_some_and(|group| object.group == group)
}

/// Whether an object of this kind whose name is not known could be this one, or be in it.
pub fn may_be_in(group: &str, kind: &str, object: &ObjectRef) -> bool {
    (group == object.group && kind == object.kind)
        || is_namespace(object)
        || group_defined_by(object).is_some_and(|defined| defined == group)
}

pub fn is_namespace(object: &ObjectRef) -> bool {
    object.group.is_empty() && object.kind == "Namespace"
}

/// Whether it is the definition of a kind of this name, such as `widgets`.
pub fn is_definition_of(object: &ObjectRef, plural: &str, group: &str) -> bool {
    group_defined_by(object) == Some(group) && object.name.split_once('.').is_some_and(|(name, _)| name == plural)
}

/// The group of the kind that it defines, if it is a definition: its name is `<plural>.<group>`.
pub fn group_defined_by(object: &ObjectRef) -> Option<&str> {
    let is_definition = object.kind == "CustomResourceDefinition" && object.group == "apiextensions.k8s.io";
    object.name.split_once('.').map(|(_, group)| group).filter(|_| is_definition)
}

//! Ownership: which objects are proved to be ours, and why an object with our marks may not be. Pure.
//!
//! A mark alone proves nothing: `kubectl get -o yaml`, another name and `kubectl apply` copy it, and a backup restores it.
//! It counts if this section's field manager owns it *and* it contains the object's own name. With `mirror` there is no room for
//! marks, and an object is ours if this section's manager has written it. An object without proof is kept and reported.

use std::fmt;

use super::marks::{is_adopted_mark, is_released_mark};
use super::policy::Policy;
use crate::cluster::Object;
use crate::resource_sync::config::{Metadata, Unclaimed};
use crate::state::is_state_object;

/// Why an object is not proved to be ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    /// It has no mark of ours.
    Unmarked,
    /// The mark does not name the object.
    Unnamed,
    /// The mark names another object: this one is a copy.
    NamesAnother,
    /// Another field manager wrote the mark: a copy or a restored backup. Or the record of field managers was lost.
    WrittenByOthers,
}

impl fmt::Display for Unproven {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unmarked => "it has no mark of this section",
            Self::Unnamed => "its mark does not contain its name",
            Self::NamesAnother => "its marks were copied from another object",
            Self::WrittenByOthers => "its marks were not written by this section's field manager",
        })
    }
}

/// Whether a local object is the stored state of a section, and not a copy of one.
pub fn is_state(local: &Object, policy: &Policy) -> bool {
    policy.has_states && is_state_object(local) && local.annotation(&policy.marks.remote_uid).is_none()
}

/// Whether an object is a token that a cluster made for one of its service accounts.
pub fn is_token(object: &Object, policy: &Policy) -> bool {
    policy.has_tokens && object.is_account_token
}

/// Whether the object itself proves that this section created or adopted it.
pub fn proof(local: &Object, policy: &Policy) -> Result<(), Unproven> {
    if is_state(local, policy) || is_token(local, policy) {
        return Err(Unproven::Unmarked);
    }
    match policy.metadata {
        Metadata::Merge => marks_prove(local, policy),
        Metadata::Mirror => {
            let is_ours = local.owned_by(&policy.manager).is_some();
            let was_released = local.annotations.keys().any(|key| is_released_mark(key));
            if is_ours && !was_released { Ok(()) } else { Err(Unproven::Unmarked) }
        }
    }
}

/// Whether [`proof`] succeeds.
pub fn is_ours(local: &Object, policy: &Policy) -> bool {
    proof(local, policy).is_ok()
}

/// Whether the marks of a namespace prove that this section created it.
pub fn namespace_proof(namespace: &Object, policy: &Policy) -> Result<(), Unproven> {
    marks_prove(namespace, policy)
}

/// Whether the marks of an object or a namespace prove that this section wrote them.
pub(crate) fn marks_prove(object: &Object, policy: &Policy) -> Result<(), Unproven> {
    let marks = &policy.marks;
    if object.annotation(&marks.local_name).is_none() {
        let is_marked = [&marks.remote_uid, &marks.owner].iter().any(|mark| object.annotation(mark).is_some());
        return Err(if is_marked { Unproven::Unnamed } else { Unproven::Unmarked });
    }
    if !marks.names_itself(object) {
        return Err(Unproven::NamesAnother);
    }
    let is_ours = object.owned_by(&policy.manager).is_some_and(|owned| owned.annotations.contains(&marks.local_name));
    if is_ours { Ok(()) } else { Err(Unproven::WrittenByOthers) }
}

/// Whether a local object belongs to one of the section's own pairs: it is proved to be ours, or it was in step with
/// its remote object before.
pub fn is_own(local: &Object, remote: Option<&Object>, policy: &Policy) -> bool {
    is_ours(local, policy) || remote.is_some_and(|remote| was_in_step(remote, policy))
}

/// Whether a local object existed before this section took up its remote object: the section has not marked it, and the pair
/// never was in step.
pub fn existed_before(local: &Object, remote: &Object, policy: &Policy) -> bool {
    let came_from_it = local.annotation(&policy.marks.remote_uid) == Some(&*remote.uid);
    !is_ours(local, policy) && !came_from_it && !was_in_step(remote, policy)
}

/// Whether the remote object shows that its pair was in step before. The noted generations show it; in a section that writes
/// nothing back they belong to another section, and our finalizer shows it. The finalizer proves less, since it is added
/// before the local object is created.
pub fn was_in_step(remote: &Object, policy: &Policy) -> bool {
    if policy.write_back { has_notes(remote, policy) } else { policy.marks.holds(remote) }
}

/// Whether the generations of a pair that was in step are noted on the remote object.
pub fn has_notes(remote: &Object, policy: &Policy) -> bool {
    let marks = &policy.marks;
    [&marks.remote_generation, &marks.local_generation].iter().all(|note| remote.annotation(note).is_some())
}

/// Whether the object existed before its remote object and was adopted: by its mark, or, if this section's manager has written to it, by
/// one from before `annotation_domain` changed.
pub fn is_adopted(local: &Object, policy: &Policy) -> bool {
    local.annotation(&policy.marks.adopted).is_some()
        || (local.owned_by(&policy.manager).is_some() && local.annotations.keys().any(|key| is_adopted_mark(key)))
}

/// Whether an object that is not ours is deleted if it has no remote object (`unclaimed`). Objects that were ours once, by
/// their marks, and were let go are kept.
pub fn may_go_unclaimed(local: &Object, policy: &Policy) -> bool {
    let was_ours = !local.owned.is_empty()
        || local.annotations.keys().any(|key| is_adopted_mark(key) || is_released_mark(key))
        || local.annotation(&policy.marks.remote_uid).is_some();
    policy.unclaimed == Unclaimed::Delete && !was_ours && !is_state(local, policy) && !is_token(local, policy)
}

/// Whether this section has set a label or annotation of a local object, so that it is removed when the remote object drops it.
pub fn owns_key(local: &Object, policy: &Policy, is_among: impl Fn(&crate::cluster::OwnedKeys) -> bool) -> bool {
    local.owned_by(&policy.manager).is_some_and(is_among)
}

//! Rule 3: who goes when a remote object is missing or being deleted, and what ends without a deletion: an object that left
//! the selector, a pair that is detached. Pure.
//!
//! Who may be deleted is stated here alone, in [`fate`]. The plan acts by it; the guard's suspects are those whom it would
//! take ([`would_go`]), noted before any of them is acted upon; and a namespace of ours stays while something in it has to be
//! kept ([`lives`], [`must_be_kept`]).

use std::sync::Arc;

use super::marks::NamespaceOwner;
use super::observed::{Absence, Namespace, Observed, Remote};
use super::ownership::{self, Unproven};
use super::patch;
use super::plan::{self, Harm, Next, Policy, Rest, Step, clears_status};
use crate::cluster::Object;

/// What becomes of a local object whose remote one is gone or going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was there before its remote object and outlives it: our marks come off.
    LetGo,
    /// It is ours, and is deleted.
    Ours,
    /// It never was ours, and is deleted as `unclaimed` says.
    Unclaimed(Unproven),
    /// It is not proved to be ours, and is kept.
    Kept(Unproven),
}

impl Fate {
    /// Whether its marks may be a copy's.
    fn is_of_copy(self) -> bool {
        matches!(self, Self::Unclaimed(unproven) | Self::Kept(unproven)
            if matches!(unproven, Unproven::Unmarked | Unproven::NamesAnother))
    }
}

/// What becomes of a local object whose remote one is gone or going. `is_proved`: something else than the object itself
/// proves that it is ours.
pub fn fate(local: &Object, is_proved: bool, policy: &Policy) -> Fate {
    if ownership::is_adopted(local, policy) && !policy.delete_adopted && !local.deleting {
        return Fate::LetGo;
    }
    match ownership::proof(local, policy) {
        Ok(()) => Fate::Ours,
        Err(_) if is_proved => Fate::Ours,
        Err(unproven) if ownership::may_go_unclaimed(local, policy) => Fate::Unclaimed(unproven),
        Err(unproven) => Fate::Kept(unproven),
    }
}

/// Whether a missing remote object would take something with it: its local object, or the namespace that was made for one.
/// What is going already has been counted. `owns_namespace`: the local namespace is there to stay, and ours.
pub fn would_go(local: Option<&Object>, owns_namespace: bool, policy: &Policy) -> bool {
    local.map_or(owns_namespace, |local| {
        !local.deleting
            && !policy.marks.is_paused(local)
            && !matches!(fate(local, owns_namespace, policy), Fate::Kept(_))
    })
}

/// Whether a remote object keeps the local namespace that it maps to: it lives, or is paused, and then nothing is done for it,
/// its deletion included.
pub fn lives(remote: &Object, policy: &Policy) -> bool {
    !remote.deleting || policy.marks.is_paused(remote)
}

/// Whether a local object must not go with its namespace: it is paused, on either side, or is ours and its remote object is not
/// known to be going, or outlives its remote object. What was never ours is deleted with a namespace of ours.
pub fn must_be_kept(local: &Object, remote: Option<&Object>, seen_terminating: bool, policy: &Policy) -> bool {
    let is_going = remote.map_or(seen_terminating, |remote| remote.deleting);
    remote.is_some_and(|remote| policy.marks.is_paused(remote))
        || policy.marks.is_paused(local)
        || (!is_going && ownership::is_ours(local, policy))
        || (ownership::is_adopted(local, policy) && !policy.delete_adopted)
}

/// What a step would do that the guard counts, and to how many objects; `objects_in`: how many local ones a namespace has.
pub fn harm_of(
    step: &Step,
    observed: &Observed,
    policy: &Policy,
    objects_in: impl FnOnce(&str) -> usize,
) -> Option<(Harm, usize)> {
    let is_missing = matches!(&observed.remote, Remote::Absent(Absence::Confirmed));
    match step {
        Step::DeleteLocal if is_missing => Some((Harm::Delete, 1)),
        Step::DeleteNamespace if is_missing => {
            let Namespace::Present { object, .. } = &observed.namespace else { return None };
            Some((Harm::Delete, objects_in(&object.key.name).max(1)))
        }
        Step::ReleaseLocal(_) if is_missing || observed.permitted == Some(Harm::LetGo) => Some((Harm::LetGo, 1)),
        Step::AdoptLocal(_) if observed.permitted == Some(Harm::Overwrite) => Some((Harm::Overwrite, 1)),
        Step::WriteRemoteStatus => {
            let (remote, local) = (observed.remote_object()?, observed.local.as_deref()?);
            clears_status(remote, local, policy).then_some((Harm::ClearStatus, 1))
        }
        _ => None,
    }
}

/// Rule 3: the remote object is missing or being deleted. `explained`: it may be acted upon.
pub(crate) fn next(observed: &Observed, policy: &Policy, remote: Option<&Object>, explained: bool) -> Next {
    let our_finalizer = remote.is_some() && observed.is_held_here(policy);
    let fate = observed.local.as_deref().map(|local| {
        // Without the generations that are noted in the end, the finalizer says only that something was to be made.
        let was_in_step = remote.is_some_and(|remote| our_finalizer && ownership::was_in_step(remote, policy));
        let is_proved = (was_in_step && !observed.local_was_there) || namespace_names(observed, policy);
        (local, fate(local, is_proved, policy))
    });
    if let Some((_, Fate::LetGo)) = fate {
        return if explained { giving_up(observed, policy, remote) } else { Next::ConfirmAbsence };
    }
    let namespace = match &observed.namespace {
        Namespace::Present { object, ours: true } if !observed.namespace_in_use => Some(object),
        _ => None,
    };
    // One pair waits for the end of the namespace; the others need not, once their local objects are gone.
    let need_not_wait = our_finalizer && observed.namespace_end_is_awaited;
    if let Some(namespace) = namespace.filter(|namespace| !(namespace.deleting && need_not_wait)) {
        if namespace.deleting {
            // A pair without objects has nothing to wait for, and nobody would ask for it when the namespace is gone.
            let is_gone = remote.is_none() && observed.local.is_none();
            return Next::Rest(if is_gone { Rest::Gone } else { Rest::NamespaceTerminating });
        }
        if observed.source_lives_at.is_some() {
            return Next::Rest(Rest::MappingChanged);
        }
        if !explained {
            return Next::ConfirmAbsence;
        }
        return Next::Do(Step::DeleteNamespace);
    }
    if let Some((local, fate)) = fate {
        let kept = match fate {
            // A copy has the source of what it was copied from.
            fate if observed.source_lives_at.is_some() && !fate.is_of_copy() => Some(Rest::MappingChanged),
            Fate::Kept(unproven) => Some(Rest::Unclaimed(unproven)),
            Fate::LetGo | Fate::Ours | Fate::Unclaimed(_) => None,
        };
        if let Some(rest) = kept {
            // The remote object has nothing to wait for here.
            return if our_finalizer { Next::Do(Step::RemoveFinalizer) } else { Next::Rest(rest) };
        }
        if local.deleting {
            return Next::Rest(Rest::LocalTerminating);
        }
        if !explained {
            return Next::ConfirmAbsence;
        }
        return Next::Do(Step::DeleteLocal);
    }
    if our_finalizer {
        return Next::Do(Step::RemoveFinalizer);
    }
    Next::Rest(match &observed.namespace {
        Namespace::Present { object, ours: false } if claims(object, observed, policy) => {
            match ownership::namespace_proof(object, policy) {
                Err(unproven) => Rest::Unclaimed(unproven),
                Ok(()) => Rest::Gone,
            }
        }
        _ => Rest::Gone,
    })
}

/// Whether a namespace's marks say that this section made it for this pair's local object, proved or not.
fn claims(namespace: &Object, observed: &Observed, policy: &Policy) -> bool {
    policy.marks.namespace_owner(namespace) == NamespaceOwner::Us
        && policy.marks.value_of(namespace, &policy.marks.owner) == Some(&*observed.pair.local.name)
}

/// Whether the local namespace was made for this very object: what else lives there, others may have made.
pub(crate) fn namespace_names(observed: &Observed, policy: &Policy) -> bool {
    matches!(&observed.namespace, Namespace::Present { ours: true, object }
        if policy.marks.value_of(object, &policy.marks.owner) == Some(&*observed.pair.local.name))
}

/// The remote object lives but is no longer selected: the pair is let go, the local object kept.
pub(crate) fn letting_go(observed: &Observed, policy: &Policy, remote: &Object) -> Next {
    // Without a local object of ours nothing is lost.
    let releases = observed.local.as_deref().is_some_and(|local| patch::let_go(local, policy).is_some());
    if releases && observed.permitted != Some(Harm::LetGo) {
        return Next::AskGuard(Harm::LetGo);
    }
    giving_up(observed, policy, Some(remote))
}

/// Our marks come off, and nothing is deleted. The finalizer first: while it is there it says that the local object is ours.
fn giving_up(observed: &Observed, policy: &Policy, remote: Option<&Object>) -> Next {
    if remote.is_some() && observed.is_held_here(policy) {
        return Next::Do(Step::RemoveFinalizer);
    }
    // With the marks the namespace would be deleted with the last selected object, and the kept one with it. Without a
    // kept one, nobody would be left to delete it.
    if (observed.local.is_some() || !observed.namespace_in_use) && owner_mark_is_ours(observed, policy) {
        return Next::Do(Step::ReleaseNamespace);
    }
    if let Some(change) = observed.local.as_deref().and_then(|local| patch::let_go(local, policy)) {
        return Next::Do(Step::ReleaseLocal(change));
    }
    Next::Rest(Rest::Gone)
}

fn owner_mark_is_ours(observed: &Observed, policy: &Policy) -> bool {
    matches!(&observed.namespace, Namespace::Present { ours: true, object } if policy.marks.value_of(object, &policy.marks.owner).is_some())
}

/// Ends the pair for good: nothing of ours stays, on either side, and nothing is deleted. `local_gone`: the local
/// cluster is gone for ever.
pub fn detach(observed: &Observed, policy: &Policy, local_gone: bool) -> Next {
    if let Some(next) = plan::left_out(observed, policy) {
        return next;
    }
    if observed.is_held_here(policy) {
        return Next::Do(Step::RemoveFinalizer);
    }
    let notes_error = |remote: &Arc<Object>| remote.annotation(&policy.marks.sync_error).is_some();
    if policy.write_back && observed.other_holder(policy).is_none() && observed.remote_object().is_some_and(notes_error)
    {
        return Next::Do(Step::NoteError(None));
    }
    if !local_gone {
        let local = observed.local.as_deref().filter(|_| observed.other_source(policy).is_none());
        if let Some(change) = local.and_then(|local| patch::release(local, policy)) {
            return Next::Do(Step::ReleaseLocal(change));
        }
        if owner_mark_is_ours(observed, policy) {
            return Next::Do(Step::ReleaseNamespace);
        }
    }
    Next::Rest(Rest::Gone)
}

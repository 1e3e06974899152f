//! What is deleted when a remote object is missing or being deleted, and how a pair ends without a deletion: its
//! object has left the selector, or the section is detached. Pure.
//!
//! [`fate`] alone decides which objects may be deleted. The plan follows it. The guard knows the objects that it would delete
//! ([`would_go`]) before the section acts on any of them. A namespace of ours stays while something in it has to be
//! kept ([`lives`], [`must_be_kept`]).

use super::marks::NamespaceOwner;
use super::observed::{Namespace, Observed};
use super::ownership::{self, Unproven};
use super::patch;
use super::policy::Policy;
use super::step::{Next, Rest, Step};
use crate::cluster::Object;
use crate::guard::GuardedChange;

/// What happens to a local object whose remote object is gone or being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It existed before its remote object and stays: only our marks are removed.
    LetGo,
    /// It is ours and is deleted.
    Ours,
    /// It never was ours, and is deleted because the configuration says so (`unclaimed`).
    Unclaimed(Unproven),
    /// It is not proved to be ours and is kept.
    Kept(Unproven),
}

impl Fate {
    /// Whether its marks may have been copied from another object.
    fn is_of_copy(self) -> bool {
        matches!(self, Self::Unclaimed(unproven) | Self::Kept(unproven)
            if matches!(unproven, Unproven::Unmarked | Unproven::NamesAnother))
    }
}

/// What happens to a local object whose remote object is gone or being deleted. `is_proved`: something other than the object
/// itself proves that it is ours.
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

/// Whether something is deleted because a remote object is missing: its local object, or the namespace that was created for
/// it. An object that is already being deleted has been counted. `owns_namespace`: the local namespace is ours and not being
/// deleted; without a local object, it was also created for this very pair.
pub fn would_go(local: Option<&Object>, owns_namespace: bool, policy: &Policy) -> bool {
    local.map_or(owns_namespace, |local| {
        !local.deleting
            && !policy.marks.is_paused(local)
            && !matches!(fate(local, owns_namespace, policy), Fate::Kept(_))
    })
}

/// Whether a remote object keeps the local namespace that it maps to: it is not being deleted, or it is paused, and a pause
/// also suspends its deletion.
pub fn lives(remote: &Object, policy: &Policy) -> bool {
    !remote.deleting || policy.marks.is_paused(remote)
}

/// Whether a local object must not be deleted with its namespace: either side is paused, or it is ours and its remote object
/// is not known to be going, or it was adopted and stays. Objects that never were ours are deleted with a namespace of ours.
pub fn must_be_kept(local: &Object, remote: Option<&Object>, seen_terminating: bool, policy: &Policy) -> bool {
    let is_going = remote.map_or(seen_terminating, |remote| remote.deleting);
    remote.is_some_and(|remote| policy.marks.is_paused(remote))
        || policy.marks.is_paused(local)
        || (!is_going && ownership::is_ours(local, policy))
        || (ownership::is_adopted(local, policy) && !policy.delete_adopted)
}

/// The remote object is missing or being deleted. `explained`: it is certain that this was a deletion.
pub(crate) fn next(observed: &Observed, policy: &Policy, remote: Option<&Object>, explained: bool) -> Next {
    let our_finalizer = remote.is_some() && observed.is_held_here(policy);
    let fate = observed.local.as_deref().map(|local| {
        // Without the generations, which are noted last, the finalizer only proves that the section was about to create an object.
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
    // Only one pair waits until the namespace is gone; the others end when their local objects are gone.
    let need_not_wait = our_finalizer && observed.namespace_end_is_awaited;
    if let Some(namespace) = namespace.filter(|namespace| !(namespace.deleting && need_not_wait)) {
        if namespace.deleting {
            // A pair without objects has nothing to wait for, and nothing would request it when the namespace is gone.
            let is_gone = remote.is_none() && observed.local.is_none();
            return Next::Rest(if is_gone { Rest::Gone } else { Rest::NamespaceTerminating });
        }
        if observed.source_lives_at.is_some() {
            return Next::Rest(Rest::MappingChanged);
        }
        if !explained {
            // Of all pairs that have ended in the namespace only one asks for its end: it is one namespace, and counts once.
            let leaves_it = observed.local.is_none() && observed.namespace_is_of_another;
            return if leaves_it { Next::Rest(Rest::Gone) } else { Next::ConfirmAbsence };
        }
        return Next::Do(Step::DeleteNamespace);
    }
    if let Some((local, fate)) = fate {
        let kept = match fate {
            // The source that a copy names is that of the object it was copied from.
            fate if observed.source_lives_at.is_some() && !fate.is_of_copy() => Some(Rest::MappingChanged),
            Fate::Kept(unproven) => Some(Rest::Unclaimed(unproven)),
            Fate::LetGo | Fate::Ours | Fate::Unclaimed(_) => None,
        };
        if let Some(rest) = kept {
            // Nothing on this side has to keep the remote object.
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

/// Whether a namespace's marks say that this section created it for this pair's local object, whether proved or not.
fn claims(namespace: &Object, observed: &Observed, policy: &Policy) -> bool {
    policy.marks.namespace_owner(namespace) == NamespaceOwner::Us
        && namespace.annotation(&policy.marks.owner) == Some(&*observed.pair.local.name)
}

/// Whether the local namespace was created for this very object. Other objects in it may be somebody else's.
pub(crate) fn namespace_names(observed: &Observed, policy: &Policy) -> bool {
    matches!(&observed.namespace, Namespace::Present { ours: true, object }
        if object.annotation(&policy.marks.owner) == Some(&*observed.pair.local.name))
}

/// The remote object exists but has left the selector: the pair is let go, and the local object stays.
pub(crate) fn letting_go(observed: &Observed, policy: &Policy, remote: &Object) -> Next {
    // Without a local object of ours nothing is lost.
    let releases = observed.local.as_deref().is_some_and(|local| patch::let_go(local, policy).is_some());
    if releases && observed.permitted != Some(GuardedChange::LetGo) {
        return Next::AskGuard(GuardedChange::LetGo);
    }
    giving_up(observed, policy, Some(remote))
}

/// Removes our marks and deletes nothing. The finalizer goes first: while it is there, it says that the local object is ours.
fn giving_up(observed: &Observed, policy: &Policy, remote: Option<&Object>) -> Next {
    if remote.is_some() && observed.is_held_here(policy) {
        return Next::Do(Step::RemoveFinalizer);
    }
    // A namespace with our marks would be deleted with the last selected object, and the object that stays with it. If no
    // object stays, another pair has to delete the namespace, and the marks are kept for it.
    if (observed.local.is_some() || !observed.namespace_in_use) && owner_mark_is_ours(observed, policy) {
        return Next::Do(Step::ReleaseNamespace);
    }
    if let Some(change) = observed.local.as_deref().and_then(|local| patch::let_go(local, policy)) {
        return Next::Do(Step::ReleaseLocal(change));
    }
    Next::Rest(Rest::Gone)
}

pub(crate) fn owner_mark_is_ours(observed: &Observed, policy: &Policy) -> bool {
    matches!(&observed.namespace, Namespace::Present { ours: true, object } if object.annotation(&policy.marks.owner).is_some())
}

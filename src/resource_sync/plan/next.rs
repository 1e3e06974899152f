//! The rules of resource sync, as a pure function of what was observed.
//!
//! [`next`] decides the *next* step for one pair. The caller carries it out, folds the result into the observation
//! ([`Observed::apply`]) and asks again, until nothing is left to do. A step that needs the result of an earlier one (the
//! generation of an object that was just created) finds it in the observation, and every rule is stated once.

use std::sync::Arc;

use super::ending;
use super::guard::clears_status;
use super::observed::{Absence, Namespace, Observed, Remote};
use super::ownership::{self, Unproven};
use super::patch;
use super::policy::Policy;
use super::renewal::{Renewal, RenewedObject};
use super::server_result::fingerprint;
use super::step::{Contended, LeftOut, Next, Rest, Step};
use crate::cluster::Object;
use crate::config::text::cut;
use crate::guard::GuardedChange;
use crate::resource_sync::config::Adopt;
use crate::state::is_state_object;

/// Decides the next thing to do for a pair.
pub fn next(observed: &Observed, policy: &Policy) -> Next {
    // An object in a namespace without the prefix has no pair.
    if let Some(next) = left_out(observed, policy) {
        return next;
    }
    if observed.remote_object().is_some_and(|remote| policy.marks.is_paused(remote))
        || observed.local.as_ref().is_some_and(|local| policy.marks.is_paused(local))
    {
        return Next::Rest(Rest::Paused);
    }
    // An object outside the selector is only checked for our finalizer.
    if matches!(observed.remote, Remote::Present(_)) && observed.other_holder(policy).is_some() {
        return Next::Rest(Rest::OtherCluster);
    }
    if observed.other_source(policy).is_some() {
        // The finalizer was added before the section saw that. An object that is going does not wait for the local object of
        // another cluster.
        let is_ending = match &observed.remote {
            Remote::Present(remote) => remote.deleting,
            Remote::Absent(absence) => matches!(absence, Absence::LeftSelector(_)),
        };
        let is_to_let_go = is_ending && observed.is_held_here(policy);
        return if is_to_let_go { Next::Do(Step::RemoveFinalizer) } else { Next::Rest(Rest::OtherCluster) };
    }
    match &observed.remote {
        Remote::Present(remote) if remote.deleting => ending::next(observed, policy, Some(remote), true),
        Remote::Present(remote) => living(observed, policy, remote),
        Remote::Absent(Absence::LeftSelector(remote)) if remote.deleting => {
            ending::next(observed, policy, Some(remote), true)
        }
        Remote::Absent(Absence::LeftSelector(remote)) => ending::letting_go(observed, policy, remote),
        Remote::Absent(absence) => ending::next(observed, policy, None, *absence != Absence::Unexplained),
    }
}

/// The stored state of a section, of any daemon and on either side, is never synced, and neither are tokens.
fn left_out(observed: &Observed, policy: &Policy) -> Option<Next> {
    let mut sides = observed.remote_object().into_iter().chain(&observed.local);
    if sides.any(|object| ownership::is_token(object, policy)) {
        // Another program with the same finalizer has put it there.
        if observed.is_held_here(policy) {
            return Some(Next::Do(Step::RemoveFinalizer));
        }
        // Only what would be copied otherwise is left out, and the local cluster has tokens of its own.
        let is_wanted = matches!(observed.remote, Remote::Present(_));
        let rest =
            if is_wanted { Rest::LeftOut(LeftOut::ServiceAccountToken) } else { Rest::Unclaimed(Unproven::Unmarked) };
        return Some(Next::Rest(rest));
    }
    if !policy.has_states {
        return None;
    }
    let remote = observed.remote_object();
    let holds = remote.is_some_and(|remote| policy.marks.holds(remote));
    let local_is_state = observed.local.as_deref().is_some_and(|local| ownership::is_state(local, policy));
    let remote_is_state = remote.is_some_and(|remote| is_state_object(remote));
    if local_is_state && holds {
        return Some(Next::Do(Step::RemoveFinalizer));
    }
    (local_is_state || (remote_is_state && !holds)).then_some(Next::Rest(Rest::Unclaimed(Unproven::Unmarked)))
}

/// What has to be done first about a local object that may not be ours; `None` if it is ours or adopted.
fn adopting(observed: &Observed, policy: &Policy, remote: &Object) -> Option<Next> {
    let local = observed.local.as_deref()?;
    if remote.annotation(&policy.marks.remote_uid) == Some(&*local.uid) {
        return Some(Next::Rest(Rest::Circle));
    }
    let existed_before = ownership::existed_before(local, remote, policy)
        || (observed.local_was_there && ownership::proof(local, policy).is_err());
    if !existed_before {
        return None;
    }
    let differs = patch::content_change(remote, local, policy, &observed.server_result).is_some();
    match policy.adopt {
        // The finalizer was added before the section saw the existing object.
        Adopt::Never | Adopt::Equal if policy.marks.holds(remote) && (differs || policy.adopt == Adopt::Never) => {
            Some(Next::Do(Step::RemoveFinalizer))
        }
        Adopt::Never => Some(Next::Rest(Rest::Existing)),
        Adopt::Equal if differs => Some(Next::Rest(Rest::Existing)),
        // It is already being deleted.
        Adopt::Always | Adopt::Equal if local.deleting => Some(Next::Rest(Rest::LocalTerminating)),
        Adopt::Always if differs && observed.permitted != Some(GuardedChange::Overwrite) => {
            Some(Next::AskGuard(GuardedChange::Overwrite))
        }
        // The mark comes before the finalizer. If the process ended in between, the existing object would otherwise look like
        // one that the section has created.
        Adopt::Always | Adopt::Equal => {
            Some(Next::Do(Step::AdoptLocal(patch::adoption(remote, local, policy, &observed.clusters))))
        }
    }
}

/// The remote object exists and is not being deleted.
fn living(observed: &Observed, policy: &Policy, remote: &Object) -> Next {
    if let Some(next) = adopting(observed, policy, remote) {
        return next;
    }
    let may_renew = |place| !observed.is_contended(&Contended::Marks(place));
    if let Some(renewal) =
        Renewal::of_remote(remote, policy, &observed.clusters).filter(|_| may_renew(RenewedObject::Remote))
    {
        return Next::Do(Step::RenewMarks(renewal));
    }
    if !policy.marks.holds(remote) {
        if !observed.is_contended(&Contended::Finalizer) {
            return Next::Do(Step::AddFinalizer);
        }
        // An existing local object is kept in step without the finalizer, and none is created.
        if observed.local.is_none() {
            return Next::Rest(Rest::Contended);
        }
    }
    if let Some(local) = observed.local.as_deref().filter(|_| policy.write_back) {
        let status = observed.status_to_write(policy);
        if !observed.local_status_unknown
            && !observed.is_contended(&Contended::Status)
            && status != remote.status
            && !observed
                .server_result
                .status_is_result(fingerprint(remote.status.as_ref()), fingerprint(status.as_ref()))
        {
            if clears_status(remote, local, policy) && observed.permitted != Some(GuardedChange::ClearStatus) {
                return Next::AskGuard(GuardedChange::ClearStatus);
            }
            return Next::Do(Step::WriteRemoteStatus);
        }
        for secret in observed.secrets.iter().filter(|secret| secret.is_controlled_by(local)) {
            if secret.needs_upload() && !observed.is_contended(&Contended::Secret(Arc::clone(&secret.name))) {
                return Next::Do(Step::UploadSecret(Arc::clone(&secret.name)));
            }
            if secret.needs_note() && !observed.is_contended(&Contended::SecretHash(Arc::clone(&secret.name))) {
                return Next::Do(Step::NoteSecretHash(Arc::clone(&secret.name)));
            }
        }
    }
    if observed.local.as_ref().is_some_and(|local| local.deleting) {
        return Next::Rest(Rest::LocalTerminating);
    }
    match &observed.namespace {
        Namespace::Missing => return Next::Do(Step::CreateNamespace),
        Namespace::Present { object, .. } if object.deleting => return Next::Rest(Rest::NamespaceTerminating),
        Namespace::None | Namespace::Present { .. } => {}
    }
    let Some(local) = &observed.local else { return Next::Do(Step::CreateLocal) };
    let change = patch::local_change(remote, local, policy, &observed.clusters, &observed.server_result);
    if let Some(change) = change.and_then(|change| {
        change.without(observed.is_contended(&Contended::Content), observed.is_contended(&Contended::Metadata))
    }) {
        return Next::Do(Step::PatchLocal(change));
    }
    // While the content is contended, the local object's generation does not result from the remote content.
    let is_contended = [Contended::Content, Contended::Generations].iter().any(|what| observed.is_contended(what));
    if policy.write_back && !observed.remote_generation_unknown && !is_contended {
        let noted = |mark: &str| remote.annotation(mark).and_then(|text| text.parse::<i64>().ok());
        if noted(&policy.marks.remote_generation) != Some(remote.generation)
            || noted(&policy.marks.local_generation) != Some(local.generation)
            || observed.clusters.takes_place(remote, policy)
        {
            // The note changes annotations. Where that raises the generation, it is about the generation after the write.
            let raised = i64::from(policy.annotations_raise_generation);
            // The same write removes the note of an error that is over.
            return Next::Do(Step::NoteGenerations { remote: remote.generation + raised, local: local.generation });
        }
        if remote.annotation(&policy.marks.sync_error).is_some() && !observed.is_contended(&Contended::SyncError) {
            return Next::Do(Step::NoteError(None));
        }
    }
    // This is the last step, and only for the pair that the namespace was created for: without the permission to patch
    // namespaces, all other steps are still carried out.
    if ending::namespace_names(observed, policy)
        && let Namespace::Present { object, .. } = &observed.namespace
        && let Some(renewal) = may_renew(RenewedObject::Namespace)
            .then(|| Renewal::of_namespace(object, policy, &observed.clusters))
            .flatten()
    {
        return Next::Do(Step::RenewMarks(renewal));
    }
    Next::Rest(Rest::InStep)
}

/// Ends the pair for good: removes our marks from both sides and deletes nothing. `local_gone`: the local cluster will never
/// answer again.
pub fn detach(observed: &Observed, policy: &Policy, local_gone: bool) -> Next {
    if let Some(next) = left_out(observed, policy) {
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
        if ending::owner_mark_is_ours(observed, policy) {
            return Next::Do(Step::ReleaseNamespace);
        }
    }
    Next::Rest(Rest::Gone)
}

/// The longest error that is noted, in characters.
const LONGEST_ERROR: usize = 1024;

/// The step that notes a rejection by the local cluster on the remote object; `None` if it is noted already, or must not be.
pub fn rejected(observed: &Observed, policy: &Policy, step: &Step, reason: &str) -> Option<Step> {
    let Remote::Present(remote) = &observed.remote else { return None };
    if !step.is_order() || !policy.write_back {
        return None;
    }
    let text = cut(&format!("{}: {reason}", step.name()), LONGEST_ERROR);
    (remote.annotation(&policy.marks.sync_error) != Some(&text)).then(|| Step::NoteError(Some(text.into())))
}

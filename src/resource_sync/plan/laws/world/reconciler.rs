//! The reconciler of the simulated world: the protocol of the real one, in single steps.

use std::sync::Arc;

use super::{NAMESPACE, World};
use crate::cluster::{Object, Written};
use crate::resource_sync::plan::elsewhere::{Clusters, KnownCluster};
use crate::resource_sync::plan::laws::object;
use crate::resource_sync::plan::laws::server::{Refused, Sort};
use crate::resource_sync::plan::marks::NamespaceOwner;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::{Absence, Namespace, Observed, Remote};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::policy::Policy;
use crate::resource_sync::plan::server_result::ServerResult;
use crate::resource_sync::plan::step::{Next, Rest, Step};

impl World {
    pub(super) fn has_caught_up(&mut self, name: &str) -> bool {
        let pair = self.pairs.get_mut(name).expect("a pair");
        let remote = pair.remote.is_shown(&self.watches[0], name);
        let local = pair.local.is_shown(&self.watches[1], name);
        pair.namespace.is_shown(&self.watches[2], NAMESPACE) && remote && local
    }

    fn observe(&self, name: &str) -> Observed {
        let [remotes, locals, namespaces] = &self.watches;
        let namespace = namespaces.cache.get(NAMESPACE);
        let is_paused = |held: &Object| self.policy.marks.is_paused(held);
        let keeps = |other: &String, held: &Object| {
            let (paused, is_going) = match remotes.cache.get(other) {
                Some(remote) => (is_paused(remote), remote.deleting),
                None => (false, remotes.terminated.contains(other)),
            };
            other != name
                && !held.deleting
                && (paused
                    || is_paused(held)
                    || (!is_going && ownership::is_ours(held, &self.policy))
                    || (ownership::is_adopted(held, &self.policy) && !self.policy.delete_adopted))
        };
        let in_use = remotes.cache.iter().any(|(other, held)| other != name && (!held.deleting || is_paused(held)))
            || locals.cache.iter().any(|(other, held)| keeps(other, held));
        Observed {
            pair: PairKey::alike(NAMESPACE, name),
            remote: match remotes.cache.get(name) {
                Some(held) => Remote::Present(Arc::clone(held)),
                None if remotes.terminated.contains(name) => Remote::Absent(Absence::SeenTerminating),
                None => Remote::Absent(Absence::Unexplained),
            },
            local: locals.cache.get(name).cloned(),
            local_status_unknown: false,
            remote_generation_unknown: false,
            namespace: namespace.map_or(Namespace::Missing, |held| Namespace::Present {
                ours: owner(held, &self.policy).is_some(),
                object: Arc::clone(held),
            }),
            namespace_in_use: in_use,
            namespace_end_is_awaited: namespace.is_some_and(|held| {
                held.deleting
                    && self.pairs.iter().any(|(other, pair)| *other != name && pair.ends.as_ref() == Some(&held.uid))
            }),
            namespace_is_of_another: namespace
                .and_then(|held| owner(held, &self.policy))
                .is_some_and(|owner| owner != name && self.pairs.contains_key(&*owner)),
            local_was_there: self.pairs[name].local_was_there && locals.cache.contains_key(name),
            source_lives_at: None,
            clusters: Clusters {
                remote: KnownCluster { uid: Some("hub".into()), in_place_of: Vec::new() },
                ..Clusters::default()
            },
            permitted: None,
            secrets: Vec::new(),
            server_result: self.pairs[name].server_result.clone(),
            contended: Vec::new(),
        }
    }

    /// A live GET of the remote object.
    fn look(&mut self, name: &str, held: &Remote) -> Remote {
        self.reads += 1;
        match self.remote.get(Sort::Synced, name).map(|live| Arc::new(object(&live))) {
            Some(live) if self.watches[0].shows(&live) => Remote::Present(live),
            Some(live) => Remote::Absent(Absence::LeftSelector(live)),
            None => Remote::Absent(match held {
                Remote::Present(held) if held.deleting => Absence::SeenTerminating,
                Remote::Present(_) => Absence::Unexplained,
                Remote::Absent(absence) => absence.clone(),
            }),
        }
    }

    pub(super) fn begin(&mut self, name: &'static str) {
        let is_there = self.watches[1].cache.contains_key(name);
        self.pairs.get_mut(name).expect("a pair").local_was_there &= is_there;
        self.record_results(name);
        let mut observed = self.observe(name);
        let pair = self.pairs.get_mut(name).expect("a pair");
        (pair.asked, pair.known) = (false, true);
        pair.holds_remote |= matches!(&observed.remote, Remote::Present(remote)
            if remote.has_finalizer(&self.policy.marks.finalizer));
        let unknown = [&mut pair.remote, &mut pair.local].map(|awaited| std::mem::take(&mut awaited.unknown));
        if unknown[0] {
            let held = observed.remote_object().cloned();
            observed.remote = self.look(name, &observed.remote);
            let live = observed.remote_object().filter(|_| !matches!(observed.remote, Remote::Absent(_)));
            let gone = self.remote.get(Sort::Synced, name).is_none();
            let pair = self.pairs.get_mut(name).expect("a pair");
            pair.remote.read(live.map(|live| &**live), held.as_deref().filter(|_| gone));
        }
        if unknown[1] {
            self.reads += 1;
            let live = self.local.get(Sort::Synced, name).map(|live| Arc::new(object(&live)));
            let pair = self.pairs.get_mut(name).expect("a pair");
            pair.local.read(live.as_deref(), observed.local.as_deref());
            observed.local = live;
        }
        self.pairs.get_mut(name).expect("a pair").run = Some(observed);
    }

    /// The pair rests.
    pub(super) fn end(&mut self, name: &'static str, rest: Rest, observed: &Observed) {
        let pair = self.pairs.get_mut(name).expect("a pair");
        match rest {
            Rest::InStep => pair.server_result.in_step(),
            Rest::Gone | Rest::Unclaimed(_) => {
                (pair.server_result, pair.holds_remote, pair.known) = (ServerResult::default(), false, false);
                let shown = self.watches[2].cache.get(NAMESPACE).filter(|held| !held.deleting);
                let owner = shown.and_then(|held| owner(held, &self.policy));
                if let Some(owner) = owner.filter(|owner| owner != name)
                    && let Some(pair) = self.pairs.get_mut(&*owner)
                {
                    pair.asked = true;
                }
                let is_owner = matches!(&observed.namespace, Namespace::Present { object, ours: true }
                    if object.annotation(&self.policy.marks.owner) == Some(name));
                if !is_owner && matches!(observed.remote, Remote::Absent(_)) {
                    self.watches[0].terminated.remove(name);
                }
            }
            Rest::Paused
            | Rest::LocalTerminating
            | Rest::NamespaceTerminating
            | Rest::Existing
            | Rest::MappingChanged
            | Rest::Circle
            | Rest::OtherCluster
            | Rest::Contended
            | Rest::LeftOut(_) => {}
        }
    }

    pub(super) fn step(&mut self, name: &'static str) {
        let Some(mut observed) = self.pairs.get_mut(name).expect("a pair").run.take() else {
            self.begin(name);
            return;
        };
        match next::next(&observed, &self.policy) {
            Next::Rest(Rest::Gone | Rest::Unclaimed(_)) if self.may_have_left_the_selector(name, &observed) => {
                self.reads += 1;
                let live = self.remote.get(Sort::Synced, name).map(|live| Arc::new(object(&live)));
                let finalizer = &self.policy.marks.finalizer;
                self.pairs.get_mut(name).expect("a pair").holds_remote =
                    live.as_ref().is_some_and(|live| live.has_finalizer(finalizer));
                if let Some(live) = live {
                    observed.remote = Remote::Absent(Absence::LeftSelector(live));
                }
            }
            Next::Rest(rest) => {
                self.diary.push(format!("{name}: {rest:?}"));
                self.end(name, rest, &observed);
                return;
            }
            Next::ConfirmAbsence => match self.look(name, &observed.remote) {
                // The watch will show the change.
                Remote::Present(_) => {
                    self.pairs.get_mut(name).expect("a pair").asked = true;
                    return;
                }
                Remote::Absent(Absence::LeftSelector(live)) => {
                    observed.remote = Remote::Absent(Absence::LeftSelector(live));
                }
                Remote::Absent(_) => observed.remote = Remote::Absent(Absence::Confirmed),
            },
            // The guard has tests of its own.
            Next::AskGuard(change) => observed.permitted = Some(change),
            Next::Do(step) => match self.carry_out(&step, &observed) {
                Ok(written) => {
                    self.note(name, &step, &written, &observed);
                    observed = observed.after(&step, &written, &self.policy);
                }
                Err(refused) => {
                    let pair = self.pairs.get_mut(name).expect("a pair");
                    pair.asked = true;
                    pair.local_was_there |= step == Step::CreateLocal && refused == Refused::Conflict;
                    if refused == Refused::Unknown {
                        match on_remote(&step) {
                            Some(true) => pair.remote.unknown = true,
                            Some(false) => pair.local.unknown = true,
                            None => {}
                        }
                    }
                    return;
                }
            },
        }
        self.pairs.get_mut(name).expect("a pair").run = Some(observed);
    }

    fn may_have_left_the_selector(&self, name: &str, observed: &Observed) -> bool {
        let unseen = matches!(observed.remote, Remote::Absent(Absence::SeenTerminating | Absence::Unexplained));
        unseen && self.has_selector && self.pairs[name].holds_remote
    }

    fn note(&mut self, name: &'static str, step: &Step, written: &Written, observed: &Observed) {
        let pair = self.pairs.get_mut(name).expect("a pair");
        match step {
            Step::AddFinalizer | Step::NoteGenerations { .. } | Step::NoteError(_) => pair.remote.wrote(written),
            Step::RemoveFinalizer => {
                // The watch does not show objects outside the selector.
                if matches!(observed.remote, Remote::Present(_)) {
                    pair.remote.wrote(written);
                }
                pair.holds_remote = false;
            }
            Step::WriteRemoteStatus => {
                pair.remote.wrote(written);
                let status = observed.status_to_write(&self.policy);
                pair.server_result.wrote_status(status, observed.remote_object().expect("a remote object"), written);
                pair.server_result.observe(self.watches[0].cache.get(name).map(|held| &**held), None, &self.policy);
                pair.server_result.confirm_status();
            }
            Step::CreateLocal | Step::PatchLocal(_) => {
                pair.local.wrote(written);
                if !matches!(step, Step::PatchLocal(change) if change.content.is_none()) {
                    pair.server_result.wrote_content(observed.remote_object().expect("a remote object"), written);
                    pair.server_result.observe(None, self.watches[1].cache.get(name).map(|held| &**held), &self.policy);
                }
            }
            Step::AdoptLocal(_) | Step::ReleaseLocal(_) => pair.local.wrote(written),
            Step::DeleteLocal => {
                pair.local.wrote(written);
                pair.local.deleted = observed.local.as_ref().map(|local| Arc::clone(&local.uid));
            }
            Step::CreateNamespace | Step::ReleaseNamespace => pair.namespace.wrote(written),
            Step::DeleteNamespace => {
                pair.namespace.wrote(written);
                if let Namespace::Present { object, .. } = &observed.namespace {
                    pair.namespace.deleted = Some(Arc::clone(&object.uid));
                    let holds = |remote: &Arc<Object>| remote.has_finalizer(&self.policy.marks.finalizer);
                    if observed.remote_object().is_some_and(holds)
                        && !self.pairs.values().any(|pair| pair.ends.as_ref() == Some(&object.uid))
                    {
                        self.pairs.get_mut(name).expect("a pair").ends = Some(Arc::clone(&object.uid));
                    }
                }
            }
            Step::UploadSecret(_) | Step::NoteSecretHash(_) | Step::RenewMarks(_) => {}
        }
    }

    fn carry_out(&mut self, step: &Step, observed: &Observed) -> Result<Written, Refused> {
        if *step == Step::AddFinalizer {
            self.pairs.get_mut(&*observed.pair.local.name).expect("a pair").holds_remote = true;
        }
        let outcome = match self.unknown.take() {
            Some(false) => Err(Refused::Unknown),
            Some(true) => self.execute(step, observed).and(Err(Refused::Unknown)),
            None => self.execute(step, observed),
        };
        self.diary.push(format!("{} {}: {outcome:?}", observed.pair.local.name, step.name()));
        outcome
    }
}

/// The side of the object that a step writes; `None` if it writes neither.
fn on_remote(step: &Step) -> Option<bool> {
    match step {
        Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::WriteRemoteStatus
        | Step::NoteGenerations { .. }
        | Step::NoteError(_) => Some(true),
        Step::AdoptLocal(_) | Step::CreateLocal | Step::PatchLocal(_) | Step::ReleaseLocal(_) | Step::DeleteLocal => {
            Some(false)
        }
        _ => None,
    }
}

/// The object that the namespace was created for, if its marks are ours.
pub(super) fn owner(namespace: &Object, policy: &Policy) -> Option<String> {
    let ours = policy.marks.namespace_owner(namespace) == NamespaceOwner::Us;
    namespace.annotation(&policy.marks.owner).filter(|_| ours).map(str::to_owned)
}

//! Two clusters, the watches that follow them, and a reconciler that keeps the protocol of the real one: it plans from
//! what the watches have shown, waits until they have shown its own writes, looks where an outcome is unknown, and tries
//! again after a conflict. One move at a time, so that a test can put anything between any two of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::object;
use super::server::{Refused, Server, Sort, Traits};
use super::watch::{Awaited, Watch};
use crate::cluster::{Object, Written};
use crate::resource_sync::rules::elsewhere::{Clusters, KnownCluster};
use crate::resource_sync::rules::marks::NamespaceOwner;
use crate::resource_sync::rules::names::PairKey;
use crate::resource_sync::rules::ownership;
use crate::resource_sync::rules::plan::{self, Absence, Namespace, Next, Observed, Policy, Remote, Rest, Step};
use crate::resource_sync::rules::server_result::ServerResult;

pub(super) const NAMESPACE: &str = "team";
/// The pairs of the world.
pub(super) const NAMES: [&str; 2] = ["a", "b"];
/// A remote object with this label is not selected.
pub(super) const UNSELECTED: &str = "unselected";

/// What the reconciler knows of one pair.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
struct Pair {
    server_result: ServerResult,
    remote: Awaited,
    local: Awaited,
    namespace: Awaited,
    /// A reconcile that goes on.
    run: Option<Observed>,
    /// Our finalizer may be on the remote object.
    holds_remote: bool,
    /// A local object was there when one was to be made.
    local_was_there: bool,
    /// The namespace that it deleted, and whose end it waits for.
    ends: Option<Arc<str>>,
    /// There is a record of it.
    known: bool,
    /// A reconcile is asked for.
    asked: bool,
}

/// Something that can happen next by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Move {
    /// The watch of this index shows its next event.
    Deliver(usize),
    /// The reconcile of a pair goes on by one step.
    Step(&'static str),
    /// A controller of the remote, or else the local cluster finishes a deletion.
    Control { remote: bool },
}

/// The whole world.
pub(super) struct World {
    pub(super) policy: Policy,
    /// The kind has a spec, and no other field.
    pub(super) has_spec: bool,
    /// The section has a selector, so that what is gone from the watch may live.
    pub(super) has_selector: bool,
    pub(super) remote: Server,
    pub(super) local: Server,
    /// Of the remote objects, the local objects, the local namespaces.
    watches: [Watch; 3],
    pairs: BTreeMap<&'static str, Pair>,
    /// The outcome of the next write is not told; whether it is done all the same.
    pub(super) unknown: Option<bool>,
    /// Live reads.
    pub(super) reads: usize,
    /// A list took the place of events, so that something may have gone unseen.
    pub(super) has_gaps: bool,
    /// How many remote objects went while the selector left them out: no watch tells, the next look does.
    pub(super) unseen_ends: usize,
    /// What happened, for who reads of a failure.
    pub(super) diary: Vec<String>,
}

impl World {
    pub(super) fn new(policy: Policy, traits: Traits) -> Self {
        Self {
            policy,
            has_spec: true,
            has_selector: false,
            remote: Server::new("remote", Traits { defaults_spec: false, ..traits }),
            local: Server::new("local", Traits { prunes_status: false, ..traits }),
            watches: [
                Watch::new(true, Sort::Synced),
                Watch::new(false, Sort::Synced),
                Watch::new(false, Sort::Namespace),
            ],
            pairs: NAMES.into_iter().map(|name| (name, Pair::default())).collect(),
            unknown: None,
            reads: 0,
            has_gaps: false,
            unseen_ends: 0,
            diary: Vec::new(),
        }
    }

    pub(super) fn writes(&self) -> usize {
        self.remote.writes + self.local.writes
    }

    /// The process ends and starts anew: it knows what a list tells.
    pub(super) fn crash(&mut self) {
        self.pairs = NAMES.into_iter().map(|name| (name, Pair::default())).collect();
        for index in [1, 2, 0] {
            self.watches[index] = Watch::new(self.watches[index].remote, self.watches[index].sort);
            self.relist(index);
        }
        self.ask_all();
        for name in NAMES {
            self.settle(name);
        }
    }

    /// A watch has a gap.
    pub(super) fn relist(&mut self, index: usize) {
        let server = if self.watches[index].remote { &self.remote } else { &self.local };
        self.watches[index].relist(server);
        self.has_gaps = true;
        for name in NAMES {
            if self.watches[index].sort == Sort::Synced {
                self.settle(name);
            }
        }
        self.ask_all();
    }

    /// Asks for every pair that either side knows, and the one that the namespace was made for.
    pub(super) fn ask_all(&mut self) {
        let owner = self.watches[2].cache.get(NAMESPACE).and_then(|held| owner(held, &self.policy));
        for (name, pair) in &mut self.pairs {
            let known = self.watches[..2].iter().any(|watch| watch.cache.contains_key(*name));
            pair.asked |= known || pair.known || owner.as_deref() == Some(*name);
        }
    }

    /// What can happen next.
    pub(super) fn moves(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (index, watch) in self.watches.iter().enumerate() {
            if watch.is_pending(if watch.remote { &self.remote } else { &self.local }) {
                moves.push(Move::Deliver(index));
            }
        }
        for name in NAMES {
            let pair = &self.pairs[name];
            if pair.run.is_some() || (pair.asked && self.has_caught_up(name)) {
                moves.push(Move::Step(name));
            }
        }
        for (server, remote) in [(&self.remote, true), (&self.local, false)] {
            let mut trial = server.fork();
            if trial.control() {
                moves.push(Move::Control { remote });
            }
        }
        if moves.is_empty() {
            // Nothing comes any more: the wait for the watch ends with a look.
            for name in NAMES.into_iter().filter(|name| self.pairs[name].asked).collect::<Vec<_>>() {
                let pair = self.pairs.get_mut(name).expect("a pair");
                pair.remote.unknown |= pair.remote.written.is_some();
                pair.local.unknown |= pair.local.written.is_some() || pair.local.deleted.is_some();
                for awaited in [&mut pair.remote, &mut pair.local, &mut pair.namespace] {
                    (awaited.written, awaited.deleted) = (None, None);
                }
                moves.push(Move::Step(name));
            }
        }
        moves
    }

    pub(super) fn make(&mut self, next: &Move) {
        if !matches!(next, Move::Step(_)) {
            self.diary.push(format!("{next:?}"));
        }
        match next {
            Move::Deliver(index) => self.deliver(*index),
            Move::Step(name) => self.step(name),
            Move::Control { remote: true } => assert!(self.remote.control()),
            Move::Control { remote: false } => assert!(self.local.control()),
        }
    }

    fn deliver(&mut self, index: usize) {
        let watch = &mut self.watches[index];
        let Some(name) = watch.deliver(if watch.remote { &self.remote } else { &self.local }) else { return };
        if watch.sort == Sort::Synced {
            self.settle(&name);
            let pair = self.pairs.get_mut(&*name).expect("a pair");
            (pair.asked, pair.known) = (true, true);
            return;
        }
        if !watch.cache.contains_key(NAMESPACE) {
            self.watches[0].terminated.clear();
        }
        self.ask_all();
    }

    fn settle(&mut self, name: &str) {
        let [remote, local] = [0, 1].map(|index| self.watches[index].cache.get(name).cloned());
        let pair = self.pairs.get_mut(name).expect("a pair");
        pair.server_result.observe(remote.as_deref(), local.as_deref(), &self.policy);
        // Kinds stay as they are here.
        pair.server_result.confirm_status();
    }

    fn has_caught_up(&mut self, name: &str) -> bool {
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

    fn begin(&mut self, name: &'static str) {
        let is_there = self.watches[1].cache.contains_key(name);
        self.pairs.get_mut(name).expect("a pair").local_was_there &= is_there;
        self.settle(name);
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
    fn end(&mut self, name: &'static str, rest: Rest, observed: &Observed) {
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
            | Rest::Stranger
            | Rest::MappingChanged
            | Rest::Circle
            | Rest::OtherCluster
            | Rest::Contended => {}
        }
    }

    fn step(&mut self, name: &'static str) {
        let Some(mut observed) = self.pairs.get_mut(name).expect("a pair").run.take() else {
            self.begin(name);
            return;
        };
        match plan::next(&observed, &self.policy) {
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
                // The watch will show it.
                Remote::Present(_) => {
                    self.pairs.get_mut(name).expect("a pair").asked = true;
                    return;
                }
                Remote::Absent(Absence::LeftSelector(live)) => {
                    observed.remote = Remote::Absent(Absence::LeftSelector(live));
                }
                Remote::Absent(_) => observed.remote = Remote::Absent(Absence::Confirmed),
            },
            // The guard is another's business.
            Next::AskGuard(harm) => observed.permitted = Some(harm),
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
                // What is not selected the watch does not show.
                if matches!(observed.remote, Remote::Present(_)) {
                    pair.remote.wrote(written);
                }
                pair.holds_remote = false;
            }
            Step::WriteRemoteStatus => {
                pair.remote.wrote(written);
                let local = observed.local.as_ref().expect("a local object");
                pair.server_result.wrote_status(local, observed.remote_object().expect("a remote object"), written);
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

/// Which side a step writes to; `None`: neither object.
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

/// The object that the namespace was made for, where its marks are ours.
fn owner(namespace: &Object, policy: &Policy) -> Option<String> {
    let ours = policy.marks.namespace_owner(namespace) == NamespaceOwner::Us;
    namespace.annotation(&policy.marks.owner).filter(|_| ours).map(str::to_owned)
}

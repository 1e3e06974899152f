//! Two clusters, their watches, and a reconciler with the protocol of the real one: it plans from the caches, waits until they show
//! its own writes, sends a live read where an outcome is unknown, and retries after a conflict. The world makes one move at a time,
//! so that a test can insert any action between two moves.

mod reconciler;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::server::{Server, Sort, Traits};
use super::watch::{Expected, Watch};
use crate::resource_sync::plan::observed::Observed;
use crate::resource_sync::plan::policy::Policy;
use crate::resource_sync::plan::server_result::ServerResult;
use reconciler::owner;

pub(super) const NAMESPACE: &str = "team";
pub(super) const NAMES: [&str; 2] = ["a", "b"];
/// The label of a remote object that is outside the selector.
pub(super) const UNSELECTED: &str = "unselected";

/// The reconciler's state of one pair.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
struct Pair {
    server_result: ServerResult,
    remote: Expected,
    local: Expected,
    namespace: Expected,
    /// A reconcile in progress.
    run: Option<Observed>,
    /// Our finalizer may be on the remote object.
    holds_remote: bool,
    /// The local object existed already when the reconciler was about to create it.
    local_was_there: bool,
    /// The namespace that it has deleted, and waits for.
    ends: Option<Arc<str>>,
    /// There is a record of it.
    known: bool,
    /// A reconcile is requested.
    asked: bool,
}

/// A possible next move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Move {
    /// The watch of this index shows its next event.
    Deliver(usize),
    /// The reconcile of a pair makes one step.
    Step(&'static str),
    /// A controller of the remote cluster, or else of the local one, finishes a deletion.
    Control { remote: bool },
}

pub(super) struct World {
    pub(super) policy: Policy,
    /// The kind has a spec, and no other field.
    pub(super) has_spec: bool,
    /// The section has a selector, so that an object that is missing in the watch may exist.
    pub(super) has_selector: bool,
    pub(super) remote: Server,
    pub(super) local: Server,
    /// Of the remote objects, the local objects, the local namespaces.
    watches: [Watch; 3],
    pairs: BTreeMap<&'static str, Pair>,
    /// The next write gets no answer; whether it is carried out all the same.
    pub(super) unknown: Option<bool>,
    /// Live reads.
    pub(super) reads: usize,
    /// A list has replaced events, so that changes may have been missed.
    pub(super) has_gaps: bool,
    /// How many remote objects were deleted while they were outside the selector. No watch shows that; the next list does.
    pub(super) unseen_ends: usize,
    /// The log of a failed test.
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

    /// Restarts the process, which then knows only what a list returns.
    pub(super) fn crash(&mut self) {
        self.pairs = NAMES.into_iter().map(|name| (name, Pair::default())).collect();
        for index in [1, 2, 0] {
            self.watches[index] = Watch::new(self.watches[index].remote, self.watches[index].sort);
            self.relist(index);
        }
        self.ask_all();
        for name in NAMES {
            self.record_results(name);
        }
    }

    /// A watch has a gap.
    pub(super) fn relist(&mut self, index: usize) {
        let server = if self.watches[index].remote { &self.remote } else { &self.local };
        self.watches[index].relist(server);
        self.has_gaps = true;
        for name in NAMES {
            if self.watches[index].sort == Sort::Synced {
                self.record_results(name);
            }
        }
        self.ask_all();
    }

    /// Requests every pair with an object on either side, and the one that the namespace was created for.
    pub(super) fn ask_all(&mut self) {
        let owner = self.watches[2].cache.get(NAMESPACE).and_then(|held| owner(held, &self.policy));
        for (name, pair) in &mut self.pairs {
            let known = self.watches[..2].iter().any(|watch| watch.cache.contains_key(*name));
            pair.asked |= known || pair.known || owner.as_deref() == Some(*name);
        }
    }

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
            // No event is left, so the wait for the watch ends with a live read.
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
            self.record_results(&name);
            let pair = self.pairs.get_mut(&*name).expect("a pair");
            (pair.asked, pair.known) = (true, true);
            return;
        }
        if !watch.cache.contains_key(NAMESPACE) {
            self.watches[0].terminated.clear();
        }
        self.ask_all();
    }

    fn record_results(&mut self, name: &str) {
        let [remote, local] = [0, 1].map(|index| self.watches[index].cache.get(name).cloned());
        let pair = self.pairs.get_mut(name).expect("a pair");
        pair.server_result.observe(remote.as_deref(), local.as_deref(), &self.policy);
        // Kinds do not change in this world.
        pair.server_result.confirm_status();
    }
}

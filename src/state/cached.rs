//! The store's copy of a section's state: the state as it is now, how much of it the object holds, and what the next write
//! says. Pure: no requests, no waiting.

use std::sync::Arc;

use serde::Serialize;

use super::content::{Daemon, Document, StoredState, Unreadable, is_zero};

/// How far the state is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// It has not been read yet.
    Loading,
    /// It was read, or there is no object yet.
    Loaded,
    /// It can't be read or written until somebody changes something, so the section does not wait for it.
    Unavailable(Arc<str>),
}

/// Why changes of an earlier term are not stored.
const TERM_ENDED: &str = "the section's term ended here before it was written";

/// A failed attempt to read or write the state.
#[derive(Debug, Clone)]
struct Failure {
    reason: Arc<str>,
    /// It concerned all changes up to this one.
    changes: u64,
}

/// The state in memory. See the module.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(super) struct CachedState {
    ours: Daemon,
    /// Changes count as stored although they are not written.
    memory_only: bool,
    phase: Phase,
    /// The object as it was last read or written.
    base: Document,
    current: StoredState,
    /// The object's version; `None` if there is no object.
    version: Option<Arc<str>>,
    /// The set of credentials that it was read with. Another one may lead to another cluster.
    epoch: Option<u64>,
    changes: u64,
    /// All changes up to this one are stored.
    stored: u64,
    /// Changes behind the first and up to the second were forgotten with their term before they were stored: those of the last term
    /// in which there were any.
    lost: (u64, u64),
    /// The last attempt, if it failed.
    failure: Option<Arc<str>>,
    /// The last attempt that failed, also after a later one has succeeded: who waits for a change may learn of both at once.
    last_failed: Option<Failure>,
    failures: u64,
    /// The last attempt got no answer, so that a write may have arrived.
    is_unsure: bool,
    /// How often somebody who is no daemon had undone in this term what the object said.
    undone: u64,
    /// Nothing is written: the cluster may be another one than the state is about.
    is_held: bool,
    /// Another daemon that seems to run the section as well.
    other: Option<Daemon>,
    /// It wrote the object while this one ran the section.
    is_other_alive: bool,
}

/// A write of the state that is due.
pub(super) struct Write {
    pub(super) text: String,
    /// The version of the object that it replaces; `None` if there is no object.
    pub(super) version: Option<Arc<str>>,
    /// It contains all changes up to this one.
    changes: u64,
}

/// Changes whose storing is waited for.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    changes: u64,
    failures: u64,
}

/// A section's state, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateReport {
    /// `cluster: namespace/name`; the namespace is not known before the cluster answers.
    object: String,
    /// `loading`, `stored`, `changed` or `unavailable`.
    pub(super) state: &'static str,
    /// Why it is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Another daemon that seems to run this section as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) other_daemon: Option<String>,
    /// How often somebody else had changed or deleted the object before this daemon wrote it again.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) undone: u64,
}

/// What a read of the object has found.
pub(super) struct Loaded {
    /// Another daemon that has written it and was not known before.
    pub(super) other: Option<Daemon>,
    /// How often in this term somebody who is no daemon had undone what it said, if that is once more.
    pub(super) undone: Option<u64>,
}

impl CachedState {
    pub(super) fn new(ours: Daemon, memory_only: bool) -> Self {
        Self {
            ours,
            memory_only,
            phase: Phase::Loading,
            base: Document::default(),
            current: StoredState::default(),
            version: None,
            epoch: None,
            changes: 0,
            stored: 0,
            lost: (0, 0),
            failure: None,
            last_failed: None,
            failures: 0,
            is_unsure: false,
            undone: 0,
            is_held: false,
            other: None,
            is_other_alive: false,
        }
    }

    pub(super) fn current(&self) -> &StoredState {
        &self.current
    }

    /// The section starts, and its state is to be read. What is here belongs to an earlier run; with `keep_changes` the
    /// changes that are not stored yet are kept.
    pub(super) fn forget(&mut self, keep_changes: bool) {
        self.phase = Phase::Loading;
        self.failure = None;
        (self.other, self.is_other_alive) = (None, false);
        self.undone = 0;
        if !keep_changes {
            self.base = Document::default();
            self.current = StoredState::default();
            self.version = None;
            if self.has_unstored() {
                self.lost = (self.stored, self.changes);
            }
            self.stored = self.changes;
        }
    }

    #[cfg(test)]
    pub(super) fn assume_loaded(&mut self) {
        self.phase = Phase::Loaded;
    }

    /// Whether the state is loaded or known to be unavailable.
    pub(super) fn is_known(&self) -> bool {
        self.phase != Phase::Loading
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.phase == Phase::Loaded
    }

    /// Changes the state. Returns the closure's result, and whether anything has changed.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut StoredState) -> T) -> (T, bool) {
        let before = self.current.clone();
        let result = change(&mut self.current);
        let is_changed = self.current != before;
        if is_changed {
            self.request_write();
        }
        (result, is_changed)
    }

    pub(super) fn request_write(&mut self) {
        self.changes += 1;
        if self.memory_only {
            self.stored = self.changes;
        }
    }

    /// Sets whether nothing is to be written. Returns whether that has changed.
    pub(super) fn hold(&mut self, is_held: bool) -> bool {
        std::mem::replace(&mut self.is_held, is_held) != is_held
    }

    pub(super) fn has_unstored(&self) -> bool {
        self.stored < self.changes
    }

    /// All that has been changed so far.
    pub(super) fn mark(&self) -> Mark {
        Mark { changes: self.changes, failures: self.failures }
    }

    pub(super) fn is_stored(&self, mark: Mark) -> bool {
        self.stored >= mark.changes && !self.is_lost(mark)
    }

    fn is_lost(&self, mark: Mark) -> bool {
        let (stored, forgotten) = self.lost;
        stored < mark.changes && mark.changes <= forgotten
    }

    /// Why nobody can say when the state will be stored.
    pub(super) fn unavailable(&self) -> Option<Arc<str>> {
        match &self.phase {
            Phase::Unavailable(reason) => Some(Arc::clone(reason)),
            Phase::Loading | Phase::Loaded => None,
        }
    }

    /// Why an attempt to store these changes failed since the mark was made, whatever has happened after that.
    pub(super) fn failed_since(&self, mark: Mark) -> Option<Arc<str>> {
        if self.is_lost(mark) {
            return Some(TERM_ENDED.into());
        }
        let failure = self.last_failed.as_ref().filter(|failure| failure.changes >= mark.changes)?;
        (self.failures > mark.failures).then(|| Arc::clone(&failure.reason))
    }

    /// Why the last attempt failed, if it did.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.failure.clone()
    }

    /// Whether the object has to be read before a write, because the credentials have changed since it was read.
    pub(super) fn is_outdated(&self, epoch: Option<u64>) -> bool {
        self.has_unstored() && self.epoch != epoch
    }

    /// What is to be written now.
    pub(super) fn next_write(&self) -> Option<Write> {
        if self.is_held || !self.has_unstored() {
            return None;
        }
        let signed = StoredState { daemon: Some(self.ours.clone()), ..self.current.clone() };
        let text = self.base.with_changes(&self.base.known, &signed).to_string();
        Some(Write { text, version: self.version.clone(), changes: self.changes })
    }

    /// The object holds this now.
    pub(super) fn written(&mut self, write: &Write, version: Arc<str>) -> Result<(), Unreadable> {
        // Parsed again, so that the base is what another process would read.
        self.base = Document::parse(&write.text)?;
        self.version = Some(version);
        self.current.daemon = Some(self.ours.clone());
        self.stored = write.changes;
        self.failure = None;
        self.is_unsure = false;
        Ok(())
    }

    /// The object was read. Changes that are not stored go over it.
    pub(super) fn loaded(
        &mut self,
        document: Document,
        version: Option<Arc<str>>,
        epoch: Option<u64>,
    ) -> Result<Loaded, Unreadable> {
        let merged = Document::parse(&document.with_changes(&self.base.known, &self.current).to_string())?;
        let is_undone = self.is_undone(&document, epoch);
        self.undone += u64::from(is_undone);
        self.is_unsure = false;
        let other = self.detect_other(&document);
        self.current = merged.known;
        self.base = document;
        self.version = version;
        self.epoch = epoch;
        self.phase = Phase::Loaded;
        Ok(Loaded { other, undone: is_undone.then_some(self.undone) })
    }

    /// Whether the object no longer says what it said when this process last read or wrote it in this term, and no daemon has
    /// changed it since: somebody has put an earlier state in its place, has edited it, or has deleted it.
    fn is_undone(&self, document: &Document, epoch: Option<u64>) -> bool {
        let was_there = self.phase == Phase::Loaded && self.version.is_some() && self.epoch == epoch;
        let signature = document.known.daemon.as_ref();
        let is_by_daemon = signature.is_some_and(|daemon| daemon.instance != self.ours.instance)
            && signature != self.base.known.daemon.as_ref();
        was_there && !self.is_unsure && !is_by_daemon && document.known != self.base.known
    }

    /// A daemon that wrote the object since this process last read or wrote it runs the section as well.
    fn detect_other(&mut self, document: &Document) -> Option<Daemon> {
        let theirs = document.known.daemon.as_ref()?;
        // Between two terms of one election other replicas may write, and a process that starts finds what its predecessor
        // wrote. Within a term no other process writes.
        let is_new = self.base.known.daemon.as_ref() != Some(theirs);
        let wrote_since = self.phase == Phase::Loaded && theirs.instance != self.ours.instance && is_new;
        let is_same_election = theirs.election == self.ours.election;
        if !wrote_since && is_same_election {
            return None;
        }
        if !is_same_election {
            // The object should say which daemon runs the section now, so that the other one learns it with its next write.
            self.request_write();
        }
        self.is_other_alive |= wrote_since;
        let known = self.other.replace(theirs.clone());
        (known.as_ref() != Some(theirs)).then(|| theirs.clone())
    }

    /// All requests have succeeded.
    pub(super) fn succeeded(&mut self) {
        self.failure = None;
    }

    /// A request has failed; `is_final` until somebody changes something, `is_unsure` if it may have arrived. Returns whether that is
    /// worth a warning.
    pub(super) fn failed(&mut self, reason: &str, is_final: bool, is_unsure: bool) -> bool {
        self.is_unsure |= is_unsure;
        let is_new = if is_final { self.unavailable().as_deref() != Some(reason) } else { self.failure.is_none() };
        let reason: Arc<str> = reason.into();
        if is_final {
            self.phase = Phase::Unavailable(Arc::clone(&reason));
        }
        self.failures += 1;
        self.failure = Some(Arc::clone(&reason));
        self.last_failed = Some(Failure { reason, changes: self.changes });
        is_new
    }

    /// Another daemon that has written the state while this one ran the section.
    pub(super) fn live_other(&self) -> Option<String> {
        self.other.as_ref().filter(|_| self.is_other_alive).map(ToString::to_string)
    }

    /// What `/status` shows of it.
    pub(super) fn report(&self, object: String) -> StateReport {
        let failure = || self.failure().map(|reason| reason.to_string());
        let (state, reason) = match &self.phase {
            Phase::Loading => ("loading", failure()),
            Phase::Unavailable(reason) => ("unavailable", Some(reason.to_string())),
            Phase::Loaded if !self.has_unstored() => ("stored", None),
            Phase::Loaded => ("changed", failure()),
        };
        let other_daemon = self.other.as_ref().map(ToString::to_string);
        StateReport { object, state, reason, other_daemon, undone: self.undone }
    }
}

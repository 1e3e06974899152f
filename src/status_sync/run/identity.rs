//! Whether the section may write to its hub.
//!
//! The identity of the hub is remembered in this process and in the section's state, a `ConfigMap` on the hub itself. If a
//! cluster with another identity answers under the same name, the whole section is held until an operator approves that
//! cluster or the earlier one is back: passes continue, and nothing is written.
//!
//! If no identity is remembered, or the hub's cannot be read, the rows of the database decide
//! ([`same_hub`](super::super::plan::same_hub)): all families compare their rows before any of them writes. A decision is valid
//! until the identity has to be read again (new credentials, a lost connection), and costs no request beside that read.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::config::StatusFamily;
use super::super::plan::family_spec;
use super::super::plan::same_hub::{Compared, HubMatch, Part, Progress, match_hub};
use crate::cluster::{Cluster, Error, Identification, Identity, Objection, Replaced, Seen};
use crate::config::SectionName;
use crate::db::Database;
use crate::state::{Identities, StateStore};
use crate::status::NotReady;

/// What this process knows of the hub.
#[derive(Default)]
struct HubKnowledge {
    /// The identity that this process remembers, independently of the section's state.
    identity: Option<String>,
    /// Whether another replica may have run the section since then.
    is_shared: bool,
    /// The epoch of the credentials with which an operator approved a hub whose identity cannot be read.
    approved: Option<u64>,
    /// The hub that the section may write to.
    cleared: Option<Seen>,
    /// The hub that families compare their rows with.
    compared_with: Option<Seen>,
    progress: BTreeMap<StatusFamily, Progress>,
    /// Whether the objection has been logged.
    is_logged: bool,
}

impl HubKnowledge {
    /// Forgets comparisons with another hub.
    fn compare_with(&mut self, seen: &Seen) {
        if self.compared_with.as_ref() != Some(seen) {
            self.progress.clear();
            self.compared_with = Some(seen.clone());
        }
    }
}

/// Identifies the hub of one section. Shared by its pollers.
pub struct HubIdentification {
    section: SectionName,
    /// Under the section's fence.
    cluster: Cluster,
    store: Arc<StateStore>,
    /// The database whose rows are written to the hub.
    database: Database,
    families: Vec<StatusFamily>,
    /// A lock and not an actor's state: several tasks ask for the identification and change it, and a poller needs an answer
    /// for the identity that the cluster has right before a request. An answer by message could be older than that.
    /// Nothing waits while holding the lock.
    known: Mutex<HubKnowledge>,
    /// Counts events that may have changed the identification.
    changes: watch::Sender<u64>,
}

impl HubIdentification {
    /// The identification of the hub of a section whose state is in `store`. From now on the hub's identity is read, and the state
    /// is written only while the section may write.
    pub fn new(
        section: SectionName,
        cluster: Cluster,
        store: Arc<StateStore>,
        database: Database,
        families: Vec<StatusFamily>,
    ) -> Self {
        cluster.want_identity();
        store.hold(true);
        Self { section, cluster, store, database, families, known: Mutex::default(), changes: watch::Sender::new(0) }
    }

    /// Begins a run of the section: its state has to be read again. Only the remembered identity and the approval of
    /// earlier runs remain. `alone` says that no other replica can have run the section in between.
    pub fn begin(&self, alone: bool) {
        self.store.forget(alone);
        self.store.hold(true);
        let mut known = self.known.lock();
        let (identity, approved) = (known.identity.take(), known.approved);
        *known = HubKnowledge { identity, is_shared: !alone, approved, ..HubKnowledge::default() };
        drop(known);
        self.changed();
    }

    pub fn section(&self) -> &SectionName {
        &self.section
    }

    pub fn store(&self) -> &Arc<StateStore> {
        &self.store
    }

    pub fn identity(&self) -> Identity {
        self.cluster.identity()
    }

    /// Announces that the identification may have changed.
    pub fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Follows everything that may change the identification, except for the hub's identity.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn identities(&self) -> watch::Receiver<Identity> {
        self.cluster.identities()
    }

    pub fn current(&self) -> Identification {
        self.evaluate().0
    }

    /// The same for one family. Where rows have to be compared, it may write only after it has compared its own.
    pub fn of(&self, family: StatusFamily) -> Identification {
        let (identification, is_cleared) = self.evaluate();
        if identification == Identification::Clear && !is_cleared && !self.has_compared(family) {
            return Identification::Undecided;
        }
        identification
    }

    /// Whether families have to compare their rows.
    pub fn asks_for_rows(&self) -> bool {
        let (identification, is_cleared) = self.evaluate();
        !is_cleared && identification != Identification::Unread
    }

    /// Records a family's comparison of its rows with the hub.
    pub fn compared(&self, family: StatusFamily, compared: Compared) {
        self.record(family, Progress::Done(compared));
    }

    /// Records that a family cannot compare its rows for now. The other families do not wait for it.
    pub fn cannot_compare(&self, family: StatusFamily) {
        if !self.has_compared(family) {
            self.record(family, Progress::Impossible);
        }
    }

    /// Waits while the hub's identity is being read, and fails if the family may not write. Must be called right before
    /// each request. A hub that does not answer is no error here, since the request itself fails without being sent.
    pub async fn before_write(&self, family: StatusFamily) -> Result<(), Error> {
        let mut identities = self.cluster.identities();
        let mut availability = self.cluster.availability();
        loop {
            let reason = match self.of(family) {
                Identification::Clear => return Ok(()),
                _ if !self.cluster.is_available() => return Ok(()),
                Identification::Held(objection) | Identification::Refused(objection) => objection.to_string(),
                Identification::Undecided => "it may be another cluster than before".to_owned(),
                Identification::Unread => {
                    // The receivers cannot fail: the senders live as long as the cluster.
                    tokio::select! {
                        _ = identities.changed() => {}
                        _ = availability.changed() => {}
                    }
                    continue;
                }
            };
            return Err(Error::Unavailable { cluster: self.cluster.name().clone(), reason });
        }
    }

    /// Why the identification is unread; `None` if it has been read.
    pub fn unread_because(&self) -> Option<NotReady> {
        if self.current() != Identification::Unread {
            return None;
        }
        if !self.store.is_known() {
            return Some(self.store.waits_because());
        }
        let reason = format!("the identity of cluster {} has not been read", self.cluster.name());
        Some(NotReady { reason, unreachable: !self.cluster.is_available() })
    }

    /// Approves the hub as it is, for an operator. Returns the objection that this overrules, if there was one.
    pub fn approve(&self) -> Option<Objection> {
        let objection = self.current().held()?;
        let seen = self.seen()?;
        let mut known = self.known.lock();
        if seen.identity.uid().is_none() {
            known.approved = seen.epoch;
        }
        self.clear(&mut known, seen);
        drop(known);
        self.changed();
        Some(objection)
    }

    fn record(&self, family: StatusFamily, progress: Progress) {
        // Without an identity, nobody knows which hub the rows were compared with.
        let Some(seen) = self.seen() else { return };
        let mut known = self.known.lock();
        known.compare_with(&seen);
        let before = known.progress.insert(family, progress);
        drop(known);
        if before != Some(progress) {
            self.changed();
        }
    }

    /// Whether a family has compared its rows with the present hub.
    pub fn has_compared(&self, family: StatusFamily) -> bool {
        matches!(self.known.lock().progress.get(&family), Some(Progress::Done(_)))
    }

    /// Which cluster the hub is now; `None` if its identity has to be read again.
    fn seen(&self) -> Option<Seen> {
        Some(Seen::by_reading(&self.cluster)).filter(Seen::is_read)
    }

    /// Whether the section may write, and whether that holds until the identity has to be read again.
    fn evaluate(&self) -> (Identification, bool) {
        if !self.store.is_known() {
            return (Identification::Unread, false);
        }
        let Some(seen) = self.seen() else { return (Identification::Unread, false) };
        let mut known = self.known.lock();
        if known.cleared.as_ref() == Some(&seen) {
            known.is_logged = false;
            self.store.hold(false);
            return (Identification::Clear, true);
        }
        known.compare_with(&seen);
        if seen.epoch.is_some() && known.approved == seen.epoch {
            self.clear(&mut known, seen);
            return (Identification::Clear, true);
        }
        // The state found on another cluster does not override what this process knows, unless another replica may have
        // written it since. It counts only for the database that it was written for: each of two hubs that run the
        // section has its own state.
        let place = self.database.place();
        let stored = || self.store.look(|state| state.identities.clone());
        let of_database = |identities: Identities| identities.local.filter(|_| identities.remote == Some(place));
        let own = known.identity.clone();
        let remembered =
            if known.is_shared { of_database(stored()).or(own) } else { own.or_else(|| of_database(stored())) };
        let part = |family: &StatusFamily| Part {
            table: family_spec(*family).spec_table,
            progress: known.progress.get(family).copied().unwrap_or_default(),
        };
        let parts: Vec<Part> = self.families.iter().map(part).collect();
        let cluster = self.cluster.name().clone();
        let objection = match match_hub(remembered.as_deref(), seen.identity.uid().map(AsRef::as_ref), &parts) {
            HubMatch::Undecided => return (Identification::Undecided, false),
            HubMatch::Same | HubMatch::Fits { is_proved: true } => {
                self.clear(&mut known, seen);
                return (Identification::Clear, true);
            }
            HubMatch::Fits { is_proved: false } => {
                known.is_logged = false;
                return (Identification::Clear, false);
            }
            HubMatch::Another => {
                let before = remembered.unwrap_or_default().into();
                let now = seen.identity.uid().cloned().unwrap_or_default();
                Objection::AnotherCluster(Replaced { cluster, before, now })
            }
            HubMatch::OtherObjects(Compared { objects, others }) => {
                Objection::OtherObjects { cluster, others, objects }
            }
        };
        self.store.hold(true);
        if !std::mem::replace(&mut known.is_logged, true) {
            tracing::warn!(section = %self.section, reason = %objection, "the section is held");
        }
        (Identification::Held(objection), false)
    }

    /// Lets the section write to this hub, and remembers its identity.
    fn clear(&self, known: &mut HubKnowledge, seen: Seen) {
        if let Some(uid) = seen.identity.uid() {
            let uid = uid.to_string();
            known.identity = Some(uid.clone());
            let place = self.database.place();
            self.store.change(|state| {
                (state.identities.local, state.identities.remote) = (Some(uid), Some(place));
            });
        }
        self.store.hold(false);
        known.cleared = Some(seen);
        known.is_logged = false;
    }
}

#[cfg(test)]
mod tests;

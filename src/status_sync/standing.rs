//! Whether the section may write to its hub.
//!
//! The hub's identity is remembered: in this process, and in the section's state, a `ConfigMap` on the hub itself. Another
//! identity behind the same name holds the whole section until an operator approves it, or until the first one is back:
//! passes go on, and nothing is written. Where none is remembered, or it can't be read, the rows of the database decide
//! ([`same_hub`](super::same_hub)): all families compare theirs before any of them writes. Once decided, that is asked again
//! only after a doubt (new credentials, a lost connection), and costs no request beside the read of the identity.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::config::StatusFamily;
use super::family::facts;
use super::same_hub::{Compared, Part, Progress, Verdict, judge};
use crate::cluster::{Cluster, Error, Identity, Replaced};
use crate::config::{ClusterName, SectionName};
use crate::db::Database;
use crate::state::{Identities, Keeper};

/// Whether the section may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Clear,
    /// The hub's identity, or what the section remembers, has not been read.
    Unread,
    /// Families have yet to compare their rows with the hub.
    Undecided,
    /// It may not, until an operator approves or the hub is the one of before.
    Held(Objection),
}

/// Why the section may not write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Objection {
    /// The hub has another identity than before.
    AnotherCluster(Replaced),
    /// The objects on the hub are not those that the rows are about.
    OtherObjects {
        /// The hub's name.
        cluster: ClusterName,
        /// How many are not.
        compared: Compared,
    },
}

impl fmt::Display for Objection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnotherCluster(replaced) => replaced.fmt(formatter),
            Self::OtherObjects { cluster, compared: Compared { objects, others } } => write!(
                formatter,
                "{others} of {objects} objects in cluster {cluster} have another UID than their rows in the database: it is \
                 another cluster than the one that the rows are about, or its objects were restored"
            ),
        }
    }
}

/// What is known of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// Its identity.
    Known(Arc<str>),
    /// It can't be read: then each reading that found so, with the credentials of that time, counts as a cluster of its own.
    Unknown { epoch: Option<u64>, reading: u64 },
}

impl Seen {
    /// `None` where it has not been read since there was a doubt.
    fn of(cluster: &Cluster) -> Option<Self> {
        match cluster.identity() {
            Identity::Unread => None,
            Identity::Known(uid) => Some(Self::Known(uid)),
            Identity::Unknown { .. } => {
                Some(Self::Unknown { epoch: cluster.epoch(), reading: cluster.identity_readings() })
            }
        }
    }

    fn uid(&self) -> Option<&Arc<str>> {
        match self {
            Self::Known(uid) => Some(uid),
            Self::Unknown { .. } => None,
        }
    }
}

#[derive(Default)]
struct Known {
    /// The identity that this process remembers, whatever becomes of the section's state.
    identity: Option<String>,
    /// Other replicas may have had the section since then.
    is_shared: bool,
    /// The credentials for which an operator approved a hub without an identity.
    approved: Option<u64>,
    /// The hub that the section may write to.
    accepted: Option<Seen>,
    /// The hub that families compare their rows with.
    compared_with: Option<Seen>,
    progress: BTreeMap<StatusFamily, Progress>,
    /// An objection was told.
    is_told: bool,
}

impl Known {
    /// What was compared with another hub says nothing of this one.
    fn compare_with(&mut self, seen: &Seen) {
        if self.compared_with.as_ref() != Some(seen) {
            self.progress.clear();
            self.compared_with = Some(seen.clone());
        }
    }
}

/// The standing of one section, shared by its pollers.
pub struct HubStanding {
    section: SectionName,
    /// Under the section's fence.
    cluster: Cluster,
    keeper: Arc<Keeper>,
    /// Whose rows are written to the hub.
    database: Database,
    families: Vec<StatusFamily>,
    known: Mutex<Known>,
    /// Counts what may have changed the standing.
    changes: watch::Sender<u64>,
}

impl HubStanding {
    /// The standing of a section whose state `keeper` has. Has the hub's identity read from now on.
    /// Writes its state only where the section may write.
    pub fn new(
        section: SectionName,
        cluster: Cluster,
        keeper: Arc<Keeper>,
        database: Database,
        families: Vec<StatusFamily>,
    ) -> Self {
        cluster.want_identity();
        keeper.hold(true);
        Self { section, cluster, keeper, database, families, known: Mutex::default(), changes: watch::Sender::new(0) }
    }

    /// The section begins: its state is to be read (again), and nothing of an earlier time at work counts but the identity
    /// that the process remembers and what was approved. `alone`: nobody else can have had the section meanwhile.
    pub fn begin(&self, alone: bool) {
        self.keeper.forget(alone);
        self.keeper.hold(true);
        let mut known = self.known.lock();
        let (identity, approved) = (known.identity.take(), known.approved);
        *known = Known { identity, is_shared: !alone, approved, ..Known::default() };
        drop(known);
        self.changed();
    }

    /// The section's state.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// What is known of the hub's identity.
    pub fn identity(&self) -> Identity {
        self.cluster.identity()
    }

    /// Something may have changed it.
    pub fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Follows what may have changed it, the hub's identity aside.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Follows the hub's identity.
    pub fn identities(&self) -> watch::Receiver<Identity> {
        self.cluster.identities()
    }

    /// Whether the section may write now.
    pub fn standing(&self) -> Standing {
        self.look().0
    }

    /// The same for one family, which may write only after it has compared its rows, where that is to be done.
    pub fn of(&self, family: StatusFamily) -> Standing {
        let (standing, is_accepted) = self.look();
        if standing == Standing::Clear && !is_accepted && !self.has_compared(family) {
            return Standing::Undecided;
        }
        standing
    }

    /// Whether comparing its rows would make a difference.
    pub fn asks_for_rows(&self) -> bool {
        let (standing, is_accepted) = self.look();
        !is_accepted && standing != Standing::Unread
    }

    /// A family has compared its rows with the hub.
    pub fn compared(&self, family: StatusFamily, compared: Compared) {
        self.note(family, Progress::Done(compared));
    }

    /// A family can't compare its rows, and nobody knows when it will: the others need not wait for it.
    pub fn cannot_compare(&self, family: StatusFamily) {
        if !self.has_compared(family) {
            self.note(family, Progress::Impossible);
        }
    }

    /// Waits while the hub's identity is being read. An error where the family may not write; not where the hub does not
    /// answer, since the request finds that out, and nothing is sent. To be asked right before each request.
    pub async fn before_write(&self, family: StatusFamily) -> Result<(), Error> {
        let mut identities = self.cluster.identities();
        let mut availability = self.cluster.availability();
        loop {
            let reason = match self.of(family) {
                Standing::Clear => return Ok(()),
                _ if !self.cluster.is_available() => return Ok(()),
                Standing::Held(objection) => objection.to_string(),
                Standing::Undecided => "it may be another cluster than before".to_owned(),
                Standing::Unread => {
                    // The senders live as long as the cluster.
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

    /// Why it is not known, and whether that is a cluster that does not answer; `None` where it is.
    pub fn unread_because(&self) -> Option<(String, bool)> {
        if self.standing() != Standing::Unread {
            return None;
        }
        let unreachable = !self.cluster.is_available();
        if !self.keeper.is_known() {
            return Some(self.keeper.waits_because());
        }
        Some((format!("the identity of cluster {} has not been read", self.cluster.name()), unreachable))
    }

    /// An operator accepts the hub as it is; the objection that this overrules, if there was one.
    pub fn approve(&self) -> Option<Objection> {
        let Standing::Held(objection) = self.standing() else { return None };
        let seen = Seen::of(&self.cluster)?;
        let mut known = self.known.lock();
        if let Seen::Unknown { epoch, .. } = seen {
            known.approved = epoch;
        }
        self.accept(&mut known, seen);
        drop(known);
        self.changed();
        Some(objection)
    }

    fn note(&self, family: StatusFamily, progress: Progress) {
        // With which hub it was compared is not known then.
        let Some(seen) = Seen::of(&self.cluster) else { return };
        let mut known = self.known.lock();
        known.compare_with(&seen);
        let before = known.progress.insert(family, progress);
        drop(known);
        if before != Some(progress) {
            self.changed();
        }
    }

    /// Whether a family has compared its rows with the hub as it is seen now.
    pub fn has_compared(&self, family: StatusFamily) -> bool {
        matches!(self.known.lock().progress.get(&family), Some(Progress::Done(_)))
    }

    /// Whether the section may write, and whether that is settled until the next doubt.
    fn look(&self) -> (Standing, bool) {
        if !self.keeper.is_known() {
            return (Standing::Unread, false);
        }
        let Some(seen) = Seen::of(&self.cluster) else { return (Standing::Unread, false) };
        let mut known = self.known.lock();
        if known.accepted.as_ref() == Some(&seen) {
            known.is_told = false;
            self.keeper.hold(false);
            return (Standing::Clear, true);
        }
        known.compare_with(&seen);
        if let Seen::Unknown { epoch: Some(epoch), .. } = seen
            && known.approved == Some(epoch)
        {
            self.accept(&mut known, seen);
            return (Standing::Clear, true);
        }
        // What this process knows is not undone by what it finds on another cluster, unless another replica may have known
        // better. What is found there counts for the database that it was noted for: each of two hubs that run the section
        // has a state of its own.
        let place = self.database.place();
        let stored = || self.keeper.look(|state| state.identities.clone());
        let of_database = |identities: Identities| identities.local.filter(|_| identities.remote == Some(place));
        let own = known.identity.clone();
        let remembered =
            if known.is_shared { of_database(stored()).or(own) } else { own.or_else(|| of_database(stored())) };
        let part = |family: &StatusFamily| Part {
            table: facts(*family).spec_table(),
            progress: known.progress.get(family).copied().unwrap_or_default(),
        };
        let parts: Vec<Part> = self.families.iter().map(part).collect();
        let cluster = self.cluster.name().clone();
        let objection = match judge(remembered.as_deref(), seen.uid().map(AsRef::as_ref), &parts) {
            Verdict::Undecided => return (Standing::Undecided, false),
            Verdict::Same | Verdict::Fits { is_proved: true } => {
                self.accept(&mut known, seen);
                return (Standing::Clear, true);
            }
            Verdict::Fits { is_proved: false } => {
                known.is_told = false;
                return (Standing::Clear, false);
            }
            Verdict::Another => {
                let before = remembered.unwrap_or_default().into();
                let now = seen.uid().cloned().unwrap_or_default();
                Objection::AnotherCluster(Replaced { cluster, before, now })
            }
            Verdict::OtherObjects(compared) => Objection::OtherObjects { cluster, compared },
        };
        self.keeper.hold(true);
        if !std::mem::replace(&mut known.is_told, true) {
            tracing::warn!(section = %self.section, reason = %objection, "the section is held");
        }
        (Standing::Held(objection), false)
    }

    /// The section may write to this hub, whose identity is remembered from now on.
    fn accept(&self, known: &mut Known, seen: Seen) {
        if let Some(uid) = seen.uid() {
            let uid = uid.to_string();
            known.identity = Some(uid.clone());
            let place = self.database.place();
            self.keeper.change(|state| {
                (state.identities.local, state.identities.remote) = (Some(uid), Some(place));
            });
        }
        self.keeper.hold(false);
        known.accepted = Some(seen);
        known.is_told = false;
    }
}

#[cfg(test)]
mod tests;

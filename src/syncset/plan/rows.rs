//! What is stored of the passes over a cluster, as the tables of the hub's database hold it.

use jiff::Timestamp;
use uuid::Uuid;

use super::name::{Digest, ObjectRef, SyncSetName};
use super::reason::Reason;
use crate::cluster::harmless;

/// The outcome of a syncset's last try on a cluster (`towline_result`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRow {
    pub syncset: Uuid,
    /// Its name, also when it is gone.
    pub name: SyncSetName,
    /// What it was applied with.
    pub inputs: Digest,
    /// Its generation when it was applied.
    pub generation: i64,
    /// None for success.
    pub failure: Option<Failure>,
    /// Since when the outcome is this one.
    pub since: Timestamp,
    /// When it first succeeded.
    pub first_success: Option<Timestamp>,
    /// Whether objects that it no longer wants have not been deleted yet.
    pub has_pending_deletions: bool,
}

impl ResultRow {
    /// The inputs of a syncset whose pass has begun to write and has not ended: no syncset has them, so it is due whatever it is
    /// changed to meanwhile. The outcome is that of the pass before; generation 0 says that there was none.
    pub const UNFINISHED: Digest = Digest([0; 32]);

    /// Whether a pass has ended with it, so that there is something to show.
    pub fn has_outcome(&self) -> bool {
        self.inputs != Self::UNFINISHED || self.generation > 0 || self.failure.is_some()
    }
}

/// Why a syncset was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: Reason,
    /// In a sentence. It never repeats a value of a secret.
    pub message: String,
}

impl Failure {
    /// As it is stored and shown: in one line of at most 1,024 bytes. A cluster may choose any part of the message.
    #[must_use]
    pub fn harmless(self) -> Self {
        Self { message: harmless(&self.message), ..self }
    }
}

/// An object that a syncset has sent or is about to send (`towline_applied`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRow {
    pub object: ObjectRef,
    pub syncset: Uuid,
    /// The version under which it was sent: `apps/v1`.
    pub api_version: String,
    /// What was sent last, and by which behavior; none while it has to be sent.
    pub content: Option<Digest>,
    /// Whether the syncset wanted it at its last try.
    pub wanted: bool,
    /// Whether it is deleted when nobody wants it any more.
    pub tracked: bool,
    /// Whether it existed before, so that it is never deleted.
    pub adopted: bool,
    /// Its UID after our last write.
    pub uid: Option<String>,
    /// Its `resourceVersion` after our last write.
    pub version: Option<String>,
    /// Of our entry in `managedFields` after our last write.
    pub owned: Option<Digest>,
    /// In how many full passes in a row it had to be sent, although nothing of it was new.
    pub resent: u8,
    /// In how many of the last ones in a row it was gone.
    pub gone: u8,
}

/// What `gone` is of an object that nobody wants and that is not provably ours any more: its deletion was allowed, so the guard does not count it
/// again.
pub const TAKEN: u8 = u8::MAX;

/// A patch that was sent (`towline_patched`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchedRow {
    pub syncset: Uuid,
    /// Its position in the syncset, from 0.
    pub position: usize,
    /// What was sent; none if the last try failed.
    pub content: Option<Digest>,
    /// The object's UID after that.
    pub uid: Option<String>,
    /// The object's `resourceVersion` after that.
    pub version: Option<String>,
}

/// What is stored of a cluster between passes (`towline_cluster`): its identity, whether it answers, and when it is due. The default is what
/// is known of a new cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterRow {
    /// UID of its namespace `kube-system`; none before it was read.
    pub identity: Option<String>,
    /// The first one that was read for this document.
    pub home: Option<String>,
    /// The generation of the kubeconfig by which that was read.
    pub kubeconfig_generation: i64,
    /// The generation of the kubeconfig by which the cluster was last asked for anything, whether it answered or not.
    pub asked_generation: i64,
    /// None before the first contact.
    pub reachable: Option<bool>,
    pub last_contact: Option<Timestamp>,
    /// When the last full pass ended.
    pub last_full: Option<Timestamp>,
    /// When the next full pass is due; none if it is due now.
    pub next_full: Option<Timestamp>,
    /// Failed tries in a row: in vain, or if it answers, [throttled](Self::throttled).
    pub attempts: u32,
    /// A cluster that does not answer is not asked before this time, whatever changes; none if its kubeconfig is refused, which each reconcile
    /// reads again.
    pub retry_at: Option<Timestamp>,
    /// When what fails, or is being deleted, is tried again if nobody asks for it before; none if nothing is left by the last pass, or only what
    /// waits for a change.
    pub left_at: Option<Timestamp>,
}

impl ClusterRow {
    #[must_use]
    pub fn identified(self, identity: Option<String>) -> Self {
        let home = self.home.or_else(|| identity.clone());
        Self { identity, home, ..self }
    }

    /// How many passes in a row have met a 429. None since then has ended without one.
    pub fn throttled(&self) -> u32 {
        if self.reachable != Some(false) && self.retry_at.is_some() { self.attempts } else { 0 }
    }

    /// Whether this identity is another one than that of the cluster to which the document led first.
    pub fn is_elsewhere(&self, identity: Option<&str>) -> bool {
        self.home.is_some() && identity != self.home.as_deref()
    }
}

/// What the guard has decided about a syncset's deletions (`towline_guard`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRow {
    pub syncset: Uuid,
    /// The version of the log up to which it was checked. Negative if it was set aside at that version: the check takes too long for a batch, and
    /// is made later.
    pub checked: i64,
    pub gone: bool,
    /// Whether its deletions are held.
    pub held: bool,
}

impl GuardRow {
    /// Whether nothing is deleted until the dispatcher says so: its deletions are held, or not checked yet and set aside.
    pub fn is_suspended(&self) -> bool {
        self.held || self.checked < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_elsewhere_on_every_cluster_but_the_first_one() {
        let some = |uid: &str| Some(uid.to_owned());
        let mut cluster_row = ClusterRow::default();
        assert!(!cluster_row.is_elsewhere(Some("first")));
        for (uid, is_elsewhere) in [("first", false), ("second", true), ("third", true), ("first", false)] {
            cluster_row = cluster_row.identified(some(uid));
            assert_eq!((cluster_row.identity.as_deref(), cluster_row.home.as_deref()), (Some(uid), Some("first")));
            assert_eq!(cluster_row.is_elsewhere(Some(uid)), is_elsewhere, "{uid}");
        }
    }
}

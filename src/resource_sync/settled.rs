//! What our own writes settled on.
//!
//! An API server may keep something else than what was written: it defaults fields, prunes unknown ones, normalizes
//! values. What the watch shows *at our own write* is as close as the two sides get; writing again would change nothing,
//! for ever. So that pair of contents is remembered as settled until either side changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::ownership::is_ours;
use super::patch;
use super::plan::Policy;
use crate::cluster::{CanonicalJson, Object, Written};

/// A hash of a piece of content; 64 bits are enough to tell one object's few versions apart.
pub fn fingerprint(content: Option<&CanonicalJson>) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// Two contents that differ and yet are in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    remote: u64,
    local: u64,
}

/// The last write of one half of an object, until the watch has shown what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    /// Fingerprint of the other side's content that was written.
    source: u64,
    written: Written,
}

/// What is known of one pair of objects. Lost at a restart: then the two generation annotations tell (see
/// [`Settled::content_is_settled`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    content: Option<Pair>,
    status: Option<Pair>,
    content_write: Option<Write>,
    status_write: Option<Write>,
    /// The pair was looked at since the start of this process: the generation annotations prove nothing any more.
    known: bool,
}

impl Settled {
    /// The remote content was written to the local object.
    pub fn wrote_content(&mut self, remote: &Object, written: &Written) {
        self.known = true;
        self.content_write = Some(Write { source: fingerprint(Some(&remote.content)), written: written.clone() });
    }

    /// The local status was written to the remote object.
    pub fn wrote_status(&mut self, local: &Object, written: &Written) {
        self.status_write = Some(Write { source: fingerprint(local.status.as_ref()), written: written.clone() });
    }

    /// The pair was found in step.
    pub fn in_step(&mut self) {
        self.known = true;
    }

    /// Compares what the watches show now with the last writes.
    pub fn observe(&mut self, remote: Option<&Object>, local: Option<&Object>, policy: &Policy) {
        if let (Some(write), Some(local)) = (&self.content_write, local)
            && let Some(settled) = settle(write, local, patch::local_fingerprint(&local.content, policy))
        {
            self.content = Some(Pair { remote: write.source, local: settled });
            self.content_write = None;
        }
        if let (Some(write), Some(remote)) = (&self.status_write, remote)
            && let Some(settled) = settle_exactly(write, remote, fingerprint(remote.status.as_ref()))
        {
            self.status = Some(Pair { remote: settled, local: write.source });
            self.status_write = None;
        }
        // After a restart: the annotations say that the local object as it is now resulted from the remote one as it
        // is now. Only for an object that bears our mark, and only the first time.
        if let (false, Some(remote), Some(local)) = (self.known, remote, local)
            && generations_agree(remote, local, policy)
        {
            self.known = true;
            self.content = Some(Pair {
                remote: fingerprint(Some(&remote.content)),
                local: patch::local_fingerprint(&local.content, policy),
            });
        }
    }

    /// Whether these two contents are known to be as close as they get.
    pub fn content_is_settled(&self, remote: u64, local: u64) -> bool {
        self.content == Some(Pair { remote, local })
    }

    /// Whether these two statuses are known to be as close as they get.
    pub fn status_is_settled(&self, remote: u64, local: u64) -> bool {
        self.status == Some(Pair { remote, local })
    }

    /// Whether the remote content is the one that was last written or settled: a difference then is somebody else's.
    pub fn is_rewrite(&self, remote: &Object) -> bool {
        let source = fingerprint(Some(&remote.content));
        self.content.is_some_and(|pair| pair.remote == source)
            || self.content_write.as_ref().is_some_and(|write| write.source == source)
    }
}

/// The content that resulted from a write, where the object shown is still that of the write.
fn settle(write: &Write, shown: &Object, fingerprint: u64) -> Option<u64> {
    // The same generation means that the spec has not changed since, whatever else did.
    let same_generation = write.written.generation > 0 && shown.generation == write.written.generation;
    (shown.uid == write.written.uid && (same_generation || shown.resource_version == write.written.resource_version))
        .then_some(fingerprint)
}

/// A status has no generation: only the very version will do.
fn settle_exactly(write: &Write, shown: &Object, fingerprint: u64) -> Option<u64> {
    (shown.uid == write.written.uid && shown.resource_version == write.written.resource_version).then_some(fingerprint)
}

fn generations_agree(remote: &Object, local: &Object, policy: &Policy) -> bool {
    let noted = |mark: &Arc<str>| remote.annotation(mark).and_then(|text| text.parse::<i64>().ok());
    // The annotations may be those of an earlier remote object of this name (restored from a backup, or noted by a
    // write that came too late); the mark tells which one the local object came from.
    let mark = local.annotation(&policy.marks.remote_uid);
    // Without write-back the annotations are those of another follower, about another local object.
    policy.write_back
        && remote.generation > 0
        && local.generation > 0
        && is_ours(local, policy)
        && mark.is_none_or(|mark| *mark == *remote.uid)
        && noted(&policy.marks.remote_generation) == Some(remote.generation)
        && noted(&policy.marks.local_generation) == Some(local.generation)
}

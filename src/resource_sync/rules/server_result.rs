//! What an API server makes of our own writes.
//!
//! An API server may keep something else than what was written: it defaults fields, prunes unknown ones, normalizes
//! values. What the watch shows *at our own write* is as close as the two sides get; writing again would change nothing
//! until the definition of the kind changes. So that pair of contents is remembered as the server's result until either side changes.
//! What the server did not keep ([`Unkept`]) is remembered with it: that is named to people, and written again when the
//! definition may have changed, hourly, and once after each start.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::ownership::is_ours;
use super::patch;
use super::plan::Policy;
use super::unkept::{self, Unkept};
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
    /// What was written, and its fingerprint.
    content: Option<CanonicalJson>,
    source: u64,
    /// Fingerprint of what the target held before.
    before: Option<u64>,
    written: Written,
}

/// One half of an object: its content, or its status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Half {
    server_result: Option<Pair>,
    /// The write changed nothing, though the two sides differ: its result only when the kind was found to be served as it was
    /// written to.
    unconfirmed: Option<Pair>,
    write: Option<Write>,
    /// Of what is the server's result.
    unkept: Option<Box<Unkept>>,
    /// It is written once more whatever the result was, and that is nobody's edit.
    again: bool,
}

impl Half {
    fn wrote(&mut self, write: Write) {
        (self.write, self.unconfirmed, self.again) = (Some(write), None, false);
    }

    /// What the server did not keep is to be written again.
    fn write_again(&mut self) -> bool {
        let was_lossy = self.unkept.take().is_some();
        if was_lossy {
            *self = Self { again: true, ..Self::default() };
        }
        was_lossy
    }

    fn is_result(&self, remote: u64, local: u64) -> bool {
        self.server_result == Some(Pair { remote, local })
    }
}

/// What is known of one pair of objects. Lost at a restart: then the two generation annotations tell (see
/// [`ServerResult::content_is_result`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerResult {
    content: Half,
    status: Half,
    /// The pair was looked at since the start of this process: the generation annotations prove nothing any more.
    known: bool,
}

impl ServerResult {
    /// The remote content was written to the local object.
    pub fn wrote_content(&mut self, remote: &Object, written: &Written) {
        self.known = true;
        self.content.wrote(Write {
            content: Some(remote.content.clone()),
            source: fingerprint(Some(&remote.content)),
            before: None,
            written: written.clone(),
        });
    }

    /// The local status was written to the remote object, which was so before.
    pub fn wrote_status(&mut self, local: &Object, remote: &Object, written: &Written) {
        self.status.wrote(Write {
            content: local.status.clone(),
            source: fingerprint(local.status.as_ref()),
            before: Some(fingerprint(remote.status.as_ref())),
            written: written.clone(),
        });
    }

    /// The pair was found in step.
    pub fn in_step(&mut self) {
        self.known = true;
    }

    /// Compares what the watches show now with the last writes.
    pub fn observe(&mut self, remote: Option<&Object>, local: Option<&Object>, policy: &Policy) {
        if let (Some(write), Some(local)) = (&self.content.write, local)
            && is_of_write(write, local)
        {
            self.content.unkept = write
                .content
                .as_ref()
                .and_then(|written| unkept::of_content(written, &local.content, &policy.local_fields));
            let local = patch::local_fingerprint(&local.content, policy);
            self.content.server_result = Some(Pair { remote: write.source, local });
            self.content.write = None;
        }
        if let (Some(write), Some(remote)) = (&self.status.write, remote)
            && is_of_exact_write(write, remote)
        {
            let shown = fingerprint(remote.status.as_ref());
            let pair = Pair { remote: shown, local: write.source };
            self.status.unkept = unkept::of_status(write.content.as_ref(), remote.status.as_ref());
            // A write to a status that is not served that way is taken and changes nothing, like one that is pruned whole.
            if shown != write.source && write.before == Some(shown) {
                (self.status.server_result, self.status.unconfirmed) = (None, Some(pair));
            } else {
                self.status.server_result = Some(pair);
            }
            self.status.write = None;
        }
        if let (Some(remote), Some(local)) = (remote, local) {
            // What is equal was kept, whatever came in between.
            if remote.content == local.content {
                self.content.unkept = None;
            }
            if remote.status == local.status {
                self.status.unkept = None;
            }
        }
        // After a restart: the annotations say that the local object as it is now resulted from the remote one as it
        // is now. Only for an object that bears our mark, and only the first time; and only for what the server may have
        // added. What it did not keep is written once more: it may keep it by now, or belong to the remote by now.
        if let (false, Some(remote), Some(local)) = (self.known, remote, local)
            && remote.content != local.content
            && generations_agree(remote, local, policy)
            && unkept::of_content(&remote.content, &local.content, &policy.local_fields).is_none()
        {
            self.known = true;
            self.content.server_result = Some(Pair {
                remote: fingerprint(Some(&remote.content)),
                local: patch::local_fingerprint(&local.content, policy),
            });
        }
    }

    /// Whether these two contents are known to be as close as they get.
    pub fn content_is_result(&self, remote: u64, local: u64) -> bool {
        self.content.is_result(remote, local)
    }

    /// Whether these two statuses are known to be as close as they get.
    pub fn status_is_result(&self, remote: u64, local: u64) -> bool {
        self.status.is_result(remote, local)
    }

    /// Whether the last write of the status changed nothing, so that it is not known whether it was sent the right way.
    pub fn status_is_unconfirmed(&self) -> bool {
        self.status.unconfirmed.is_some()
    }

    /// The kind is served as it was when the status was written: the server does not keep it.
    pub fn confirm_status(&mut self) {
        if let Some(pair) = self.status.unconfirmed.take() {
            self.status.server_result = Some(pair);
        }
    }

    /// The kind is served in another way than the status was written.
    pub fn forget_status(&mut self) {
        self.status = Half { again: true, ..Half::default() };
    }

    /// What the local server did not keep of the content, and the remote one of the status.
    pub fn unkept(&self) -> [Option<&Unkept>; 2] {
        [self.content.unkept.as_deref(), self.status.unkept.as_deref()]
    }

    /// What a server did not keep is written once more; whether there is anything.
    pub fn write_again(&mut self) -> bool {
        // Both, whatever the first says.
        let (content, status) = (self.content.write_again(), self.status.write_again());
        content || status
    }

    /// The content is written once more, whatever the result was and whatever the generation annotations say.
    pub fn write_content_again(&mut self) {
        self.known = true;
        self.content = Half { again: true, ..Half::default() };
    }

    /// Whether the status is written once more for our own reasons.
    pub fn status_is_written_again(&self) -> bool {
        self.status.again
    }

    /// Whether the content is written once more for our own reasons.
    pub fn content_is_written_again(&self) -> bool {
        self.content.again
    }

    /// Whether the remote content is the one that was last written, or has a result: a difference then is somebody else's.
    pub fn is_rewrite(&self, remote: &Object) -> bool {
        let source = fingerprint(Some(&remote.content));
        self.content.server_result.is_some_and(|pair| pair.remote == source)
            || self.content.write.as_ref().is_some_and(|write| write.source == source)
    }
}

/// Whether the object shown is still that of the write, as far as its content goes.
fn is_of_write(write: &Write, shown: &Object) -> bool {
    // The same generation means that the spec has not changed since, whatever else did.
    let same_generation = write.written.generation > 0 && shown.generation == write.written.generation;
    shown.uid == write.written.uid && (same_generation || shown.resource_version == write.written.resource_version)
}

/// A status has no generation: only the very version will do.
fn is_of_exact_write(write: &Write, shown: &Object) -> bool {
    shown.uid == write.written.uid && shown.resource_version == write.written.resource_version
}

fn generations_agree(remote: &Object, local: &Object, policy: &Policy) -> bool {
    let noted = |mark: &Arc<str>| policy.marks.value_of(remote, mark).and_then(|text| text.parse::<i64>().ok());
    // The annotations may be those of an earlier remote object of this name (restored from a backup, or noted by a
    // write that came too late); the mark tells which one the local object came from.
    let mark = policy.marks.value_of(local, &policy.marks.remote_uid);
    // Without write-back the annotations are those of another follower, about another local object.
    policy.write_back
        && remote.generation > 0
        && local.generation > 0
        && is_ours(local, policy)
        && mark.is_none_or(|mark| *mark == *remote.uid)
        && noted(&policy.marks.remote_generation) == Some(remote.generation)
        && noted(&policy.marks.local_generation) == Some(local.generation)
}

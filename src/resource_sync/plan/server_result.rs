//! The API server's result of our own writes.
//!
//! An API server may store something else than what was written: it sets defaults, prunes unknown fields, normalizes values.
//! The object that the watch shows *at the version of our own write* is as close as the two sides get, and writing again would
//! change nothing until the definition of the kind changes. That pair of contents is therefore remembered as the server's result
//! until either side changes. Fields that the server did not keep ([`Unkept`]) are remembered with it. They are reported, and
//! written again when the definition may have changed, hourly, and once after each start.
//!
//! Fields that a server *adds* (defaults) are not among them. The difference matters after a restart, when only the generations on
//! the remote object show that two contents belong together: the server may have added a field, but a missing field may be kept by
//! now, since the definition of the kind may have changed meanwhile.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;

use super::ownership::is_ours;
use super::policy::Policy;
use crate::cluster::{CanonicalJson, Object, Written};
use crate::resource_sync::config::SpecPointer;

/// A hash of a content; 64 bits are enough to distinguish the few versions of one object.
pub fn fingerprint(content: Option<&CanonicalJson>) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// Fingerprint of a local object's content without the local fields, which may change while the pair is in step.
pub(crate) fn local_fingerprint(content: &CanonicalJson, policy: &Policy) -> u64 {
    if policy.local_fields.is_empty() {
        return fingerprint(Some(content));
    }
    fingerprint(Some(&CanonicalJson::of(&without_local_fields(content, &policy.local_fields))))
}

fn without_local_fields(content: &CanonicalJson, local_fields: &[SpecPointer]) -> Value {
    let mut value = content.value();
    for pointer in local_fields {
        remove(&mut value, pointer.segments());
    }
    value
}

/// Removes a field.
pub(crate) fn remove(target: &mut Value, segments: &[String]) {
    let Some((last, parents)) = segments.split_last() else { return };
    let mut current = target;
    for segment in parents {
        let child = match current {
            Value::Object(map) => map.get_mut(segment),
            Value::Array(items) => segment.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
            _ => None,
        };
        let Some(child) = child else { return };
        current = child;
    }
    if let Value::Object(map) = current {
        map.remove(last);
    }
}

/// Two contents that differ and are in step all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    remote: u64,
    local: u64,
}

/// The last write of one half of an object, until the watch has shown its result.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    /// The written content, and its fingerprint.
    content: Option<CanonicalJson>,
    source: u64,
    /// Fingerprint of the target before the write.
    before: Option<u64>,
    written: Written,
}

/// One half of an object: its content, or its status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Half {
    server_result: Option<Pair>,
    /// The write changed nothing although the two sides differ. It becomes the server's result once discovery has shown that the
    /// write went to the right resource.
    unconfirmed: Option<Pair>,
    write: Option<Write>,
    /// The fields of the server's result that were not kept.
    unkept: Option<Box<Unkept>>,
    /// It is written once more, whatever the result was, and that write is no conflict.
    again: bool,
}

impl Half {
    fn wrote(&mut self, write: Write) {
        (self.write, self.unconfirmed, self.again) = (Some(write), None, false);
    }

    /// Requests another write of the fields that the server did not keep.
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

/// The results for one pair of objects. A restart loses them; the two generation annotations replace them then (see
/// [`ServerResult::observe`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerResult {
    content: Half,
    status: Half,
    /// The pair was evaluated since the start of this process: the generation annotations prove nothing any more.
    known: bool,
}

impl ServerResult {
    /// Records that the remote content was written to the local object.
    pub fn wrote_content(&mut self, remote: &Object, written: &Written) {
        self.known = true;
        self.content.wrote(Write {
            content: Some(remote.content.clone()),
            source: fingerprint(Some(&remote.content)),
            before: None,
            written: written.clone(),
        });
    }

    /// Records that this status was written to the remote object; `remote` is that object before the write.
    pub fn wrote_status(&mut self, status: Option<CanonicalJson>, remote: &Object, written: &Written) {
        self.status.wrote(Write {
            source: fingerprint(status.as_ref()),
            content: status,
            before: Some(fingerprint(remote.status.as_ref())),
            written: written.clone(),
        });
    }

    /// Records that the pair is in step.
    pub fn in_step(&mut self) {
        self.known = true;
    }

    /// Compares the objects that the watches show with the last writes.
    pub fn observe(&mut self, remote: Option<&Object>, local: Option<&Object>, policy: &Policy) {
        if let (Some(write), Some(local)) = (&self.content.write, local)
            && is_of_write(write, local)
        {
            self.content.unkept =
                write.content.as_ref().and_then(|written| of_content(written, &local.content, &policy.local_fields));
            let local = local_fingerprint(&local.content, policy);
            self.content.server_result = Some(Pair { remote: write.source, local });
            self.content.write = None;
        }
        if let (Some(write), Some(remote)) = (&self.status.write, remote)
            && is_of_exact_write(write, remote)
        {
            let shown = fingerprint(remote.status.as_ref());
            let pair = Pair { remote: shown, local: write.source };
            self.status.unkept = of_status(write.content.as_ref(), remote.status.as_ref());
            // A status that is written to the wrong resource is accepted and changes nothing, like one that is pruned as a whole.
            if shown != write.source && write.before == Some(shown) {
                (self.status.server_result, self.status.unconfirmed) = (None, Some(pair));
            } else {
                self.status.server_result = Some(pair);
            }
            self.status.write = None;
        }
        if let (Some(remote), Some(local)) = (remote, local) {
            // Equal contents mean that the server kept everything.
            if remote.content == local.content {
                self.content.unkept = None;
            }
            if remote.status == local.status {
                self.status.unkept = None;
            }
        }
        // After a restart the annotations say that the present local object resulted from the present remote one. This counts
        // only for an object with our mark, only the first time, and only for fields that the server may have added. Fields
        // that it did not keep are written once more: the server may keep them by now.
        if let (false, Some(remote), Some(local)) = (self.known, remote, local)
            && remote.content != local.content
            && generations_agree(remote, local, policy)
            && of_content(&remote.content, &local.content, &policy.local_fields).is_none()
        {
            self.known = true;
            self.content.server_result = Some(Pair {
                remote: fingerprint(Some(&remote.content)),
                local: local_fingerprint(&local.content, policy),
            });
        }
    }

    /// Whether the second content is the server's result of the first.
    pub fn content_is_result(&self, remote: u64, local: u64) -> bool {
        self.content.is_result(remote, local)
    }

    /// Whether the first status is the server's result of the second.
    pub fn status_is_result(&self, remote: u64, local: u64) -> bool {
        self.status.is_result(remote, local)
    }

    /// Whether the last write of the status changed nothing, so that it may have gone to the wrong resource.
    pub fn status_is_unconfirmed(&self) -> bool {
        self.status.unconfirmed.is_some()
    }

    /// Records that the kind is served as it was when the status was written, so that the server does not keep the status.
    pub fn confirm_status(&mut self) {
        if let Some(pair) = self.status.unconfirmed.take() {
            self.status.server_result = Some(pair);
        }
    }

    /// Records that the kind is served in another way than when the status was written.
    pub fn forget_status(&mut self) {
        self.status = Half { again: true, ..Half::default() };
    }

    /// The fields of the content that the local API server did not keep, and those of the status that the remote one did not.
    pub fn unkept(&self) -> [Option<&Unkept>; 2] {
        [self.content.unkept.as_deref(), self.status.unkept.as_deref()]
    }

    /// Requests another write of all fields that a server did not keep. Returns whether there are any.
    pub fn write_again(&mut self) -> bool {
        // Both are called, whatever the first returns.
        let (content, status) = (self.content.write_again(), self.status.write_again());
        content || status
    }

    /// Requests another write of the content, whatever the result was and whatever the generation annotations say.
    pub fn write_content_again(&mut self) {
        self.known = true;
        self.content = Half { again: true, ..Half::default() };
    }

    /// Whether the status is written once more for a reason of our own.
    pub fn status_is_written_again(&self) -> bool {
        self.status.again
    }

    /// Whether the content is written once more for a reason of our own.
    pub fn content_is_written_again(&self) -> bool {
        self.content.again
    }

    /// Whether the remote content was written before: a difference is then the work of another client.
    pub fn is_rewrite(&self, remote: &Object) -> bool {
        let source = fingerprint(Some(&remote.content));
        self.content.server_result.is_some_and(|pair| pair.remote == source)
            || self.content.write.as_ref().is_some_and(|write| write.source == source)
    }
}

/// Whether the shown object still has the content of the write.
fn is_of_write(write: &Write, shown: &Object) -> bool {
    // With the same generation the spec has not changed since.
    let same_generation = write.written.generation > 0 && shown.generation == write.written.generation;
    shown.uid == write.written.uid && (same_generation || shown.resource_version == write.written.resource_version)
}

/// Whether the shown object is the version of the write: a status has no generation.
fn is_of_exact_write(write: &Write, shown: &Object) -> bool {
    shown.uid == write.written.uid && shown.resource_version == write.written.resource_version
}

fn generations_agree(remote: &Object, local: &Object, policy: &Policy) -> bool {
    let noted = |mark: &Arc<str>| remote.annotation(mark).and_then(|text| text.parse::<i64>().ok());
    // The annotations may belong to an earlier remote object of this name: restored from a backup, or noted by a late write.
    // The mark names the remote object that the local one came from.
    let mark = local.annotation(&policy.marks.remote_uid);
    // Without write-back the annotations belong to another section, and are about another local object.
    policy.write_back
        && remote.generation > 0
        && local.generation > 0
        && is_ours(local, policy)
        && mark.is_none_or(|mark| *mark == *remote.uid)
        && noted(&policy.marks.remote_generation) == Some(remote.generation)
        && noted(&policy.marks.local_generation) == Some(local.generation)
}

/// How many fields of one object are named.
const NAMED: usize = 5;

/// The fields of one object that were not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Unkept {
    /// The first of them, as paths: `spec.rules[0].port`.
    pub named: Vec<String>,
    pub count: usize,
}

impl Unkept {
    fn add(&mut self, path: &str) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(path.to_owned());
        }
    }

    /// The fields in words: `spec.shape, spec.size and 3 more`.
    pub fn list(&self) -> String {
        let named = self.named.join(", ");
        match self.count.saturating_sub(self.named.len()) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }
}

/// The written fields that are missing in the object that the server shows, or have another value there; `None` if it kept
/// everything. Local fields are ignored.
pub(crate) fn of_content(
    written: &CanonicalJson,
    shown: &CanonicalJson,
    local_fields: &[SpecPointer],
) -> Option<Box<Unkept>> {
    if written == shown {
        return None;
    }
    of_value("", &without_local_fields(written, local_fields), &without_local_fields(shown, local_fields))
}

/// The written fields of a status that the server did not keep.
pub(crate) fn of_status(written: Option<&CanonicalJson>, shown: Option<&CanonicalJson>) -> Option<Box<Unkept>> {
    if written == shown {
        return None;
    }
    let written = written?.value();
    of_value("status", &written, &shown.map_or(Value::Null, CanonicalJson::value))
}

fn of_value(path: &str, written: &Value, shown: &Value) -> Option<Box<Unkept>> {
    let mut unkept = Unkept::default();
    compare(path, written, shown, &mut unkept);
    (unkept.count > 0).then(|| Box::new(unkept))
}

fn compare(path: &str, written: &Value, shown: &Value, unkept: &mut Unkept) {
    match (written, shown) {
        (Value::Object(written), Value::Object(shown)) => {
            for (field, value) in written {
                let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                match shown.get(field) {
                    Some(shown) => compare(&path, value, shown, unkept),
                    None => unkept.add(&path),
                }
            }
        }
        (Value::Array(written), Value::Array(shown)) if written.len() == shown.len() => {
            for (index, (value, shown)) in written.iter().zip(shown).enumerate() {
                compare(&format!("{path}[{index}]"), value, shown, unkept);
            }
        }
        _ if written == shown => {}
        _ => unkept.add(path),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn unkept(written: &Value, shown: &Value) -> Vec<String> {
        let [written, shown] = [written, shown].map(CanonicalJson::of);
        of_content(&written, &shown, &[]).map(|unkept| unkept.named).unwrap_or_default()
    }

    #[test]
    fn what_is_added_is_kept_and_what_is_missing_or_changed_is_not() {
        let written = json!({"spec": {"size": 1, "rules": [{"port": 1}, {"port": 2}], "tags": [], "note": null}});
        for (shown, expected) in [
            (
                json!({"spec": {"size": 1, "rules": [{"port": 1, "kind": "x"}, {"port": 2}], "tags": [], "note": null, "colour": "grey"}, "more": 1}),
                vec![],
            ),
            (
                json!({"spec": {"size": 2, "rules": [{"port": 1}, {}], "tags": []}}),
                vec!["spec.note", "spec.rules[1].port", "spec.size"],
            ),
            (
                json!({"spec": {"size": 1, "rules": [{"port": 1}], "tags": null, "note": null}}),
                vec!["spec.rules", "spec.tags"],
            ),
            (json!({}), vec!["spec"]),
        ] {
            assert_eq!(unkept(&written, &shown), expected, "{shown}");
        }
    }

    #[test]
    fn only_the_first_fields_are_named_and_all_are_counted() {
        let written = json!({"spec": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}});
        let found = of_content(&CanonicalJson::of(&written), &CanonicalJson::of(&json!({"spec": {}})), &[]).unwrap();
        assert_eq!((found.count, found.named.len()), (7, NAMED));
        assert_eq!(found.list(), "spec.a, spec.b, spec.c, spec.d, spec.e and 2 more");
    }

    #[test]
    fn a_status_that_is_dropped_whole_is_one_field() {
        let status = CanonicalJson::of(&json!({"phase": "Ready"}));
        assert_eq!(of_status(Some(&status), None).unwrap().list(), "status");
        assert_eq!(of_status(None, Some(&status)), None, "the server's own");
        assert_eq!(of_status(Some(&status), Some(&status)), None);
    }
}

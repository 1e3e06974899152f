//! Secrets that are written to the remote: when, and with which content.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::policy::Policy;
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::cluster::{Kind, Object, ObjectKey};

/// The state of the secret on the remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteSecret {
    /// The remote's secrets can't be watched; `due`: an unchanged secret has to be refreshed.
    Unwatched {
        /// The refresh interval has passed.
        due: bool,
    },
    /// They are watched: the hash of the secret there and its controlling owner, where it exists.
    Watched(Option<(Arc<str>, Option<Arc<str>>)>),
}

/// One named local secret.
#[derive(Debug, Clone)]
pub struct SecretView {
    pub name: Arc<str>,
    pub object: Arc<Object>,
    /// Hash of its content.
    pub hash: Arc<str>,
    /// Hash of the last upload, by its mark.
    noted: Option<Arc<str>>,
    remote: RemoteSecret,
    /// UID of the remote object, which controls the remote secret.
    remote_owner: Option<Arc<str>>,
    /// It was uploaded in this reconcile.
    uploaded: bool,
    /// An upload or a note failed in this reconcile. The other secrets are still written.
    failed: bool,
}

impl SecretView {
    pub fn new(object: Arc<Object>, policy: &Policy, remote: RemoteSecret, remote_owner: Option<Arc<str>>) -> Self {
        Self {
            name: Arc::clone(&object.key.name),
            hash: hash(&object, policy),
            noted: object.annotations.get(&policy.marks.uploaded_hash).cloned(),
            object,
            remote,
            remote_owner,
            uploaded: false,
            failed: false,
        }
    }

    /// Whether the local object is its *controlling* owner, by UID.
    pub fn is_controlled_by(&self, local: &Object) -> bool {
        self.object.controller.as_ref().is_some_and(|owner| owner.uid == local.uid)
    }

    /// Whether it has to be written to the remote.
    pub fn needs_upload(&self) -> bool {
        if self.uploaded || self.failed {
            return false;
        }
        match &self.remote {
            RemoteSecret::Unwatched { due } => *due || self.needs_note(),
            RemoteSecret::Watched(None) => true,
            RemoteSecret::Watched(Some((hash, owner))) => *hash != self.hash || *owner != self.remote_owner,
        }
    }

    /// Whether the hash has to be noted on the local secret.
    pub fn needs_note(&self) -> bool {
        !self.failed && self.noted.as_ref() != Some(&self.hash)
    }

    /// Whether it is only refreshed, although no change is known.
    pub fn is_refresh(&self) -> bool {
        self.remote == RemoteSecret::Unwatched { due: true } && self.noted.as_ref() == Some(&self.hash)
    }

    /// Records that it was written to the remote.
    pub fn uploaded(&mut self) {
        self.uploaded = true;
    }

    /// Records that the hash was noted.
    pub fn noted(&mut self) {
        self.noted = Some(Arc::clone(&self.hash));
    }

    /// Records that a step for it failed: it is left out until the next reconcile.
    pub fn fail(&mut self) {
        self.failed = true;
    }
}

/// The hash that Teleport's sync-controller uses: SHA-256, in hex, of the compact JSON array of data (base64, sorted
/// keys), type, annotations without the hash itself (`{}` when empty), labels (`null` when empty), written as Go's
/// `encoding/json` writes it. Only labels and annotations that are copied count.
pub fn hash(secret: &Object, policy: &Policy) -> Arc<str> {
    let content = secret.content.value();
    let (labels, annotations) = copied_metadata(secret, policy);
    let labels = if labels.is_empty() { Value::Null } else { Value::Object(labels) };
    let array = json!([
        content.get("data").unwrap_or(&Value::Null),
        content.get("type").unwrap_or(&Value::Null),
        annotations,
        labels
    ]);
    hash_text(&array.to_string())
}

/// The labels and annotations that are copied with a secret: those that the section lists. An edge could else give orders to the tools
/// of the remote that obey labels of Secrets. kubectl's copy of the applied object never is: the data are in it.
fn copied_metadata(secret: &Object, policy: &Policy) -> (Map<String, Value>, Map<String, Value>) {
    let copied = |keys: &BTreeMap<Arc<str>, Arc<str>>| -> Map<String, Value> {
        keys.iter()
            .filter(|(key, value)| policy.secret_metadata.iter().any(|pattern| pattern.matches(key, value)))
            .filter(|(key, _)| **key != policy.marks.uploaded_hash && ***key != *LAST_APPLIED)
            .map(|(key, value)| (key.to_string(), json!(&**value)))
            .collect()
    };
    (copied(&secret.labels), copied(&secret.annotations))
}

fn hash_text(json: &str) -> Arc<str> {
    use std::fmt::Write;
    let mut digest = Sha256::new();
    // Go escapes these in every JSON string; outside of strings they do not occur.
    let mut rest = json;
    while let Some(position) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        let (before, special) = rest.split_at(position);
        digest.update(before.as_bytes());
        let mut characters = special.chars();
        if let Some(character) = characters.next() {
            digest.update(format!("\\u{:04x}", u32::from(character)).as_bytes());
        }
        rest = characters.as_str();
    }
    digest.update(rest.as_bytes());
    let mut hex = String::with_capacity(64);
    for byte in digest.finalize() {
        // Writing to a string can't fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex.into()
}

/// The secret for the remote, with the remote object as its controller.
pub fn remote_body(secret: &SecretView, key: &ObjectKey, remote: &Object, kind: &Kind, policy: &Policy) -> Value {
    let content = secret.object.content.value();
    let (labels, mut annotations) = copied_metadata(&secret.object, policy);
    annotations.insert(policy.marks.uploaded_hash.to_string(), json!(&*secret.hash));
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": &*key.name,
            "namespace": &*key.namespace,
            "labels": labels,
            "annotations": annotations,
            // Without blockOwnerDeletion: setting it would need a permission on the owner's finalizers.
            "ownerReferences": [{
                "apiVersion": kind.resource.api_version,
                "kind": kind.resource.kind,
                "name": &*remote.key.name,
                "uid": &*remote.uid,
                "controller": true,
            }],
        },
        "data": content.get("data").unwrap_or(&Value::Null),
        "type": content.get("type").unwrap_or(&Value::Null),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Decoded;
    use crate::resource_sync::config::KeyPattern;

    fn policy() -> Policy {
        Policy::new(&crate::resource_sync::tests::config("databases", "databases", ""))
    }

    fn listing(keys: &[&'static str]) -> Policy {
        Policy { secret_metadata: keys.iter().map(|key| KeyPattern::known(key)).collect(), ..policy() }
    }

    fn secret(text: &str) -> Object {
        serde_json::from_str::<Decoded>(text).unwrap().into_object()
    }

    #[test]
    fn the_hash_is_that_of_the_specification() {
        let hash = hash(
            &secret(
                r#"{"metadata":{"name":"a","annotations":{"cloud.teleport.dev/last-uploaded-hash":"old"}},"type":"Opaque","data":{"data":"ZGF0YTE="}}"#,
            ),
            &policy(),
        );
        assert!(hash.starts_with("4bc3db4c") && hash.ends_with("e1c5"), "{hash}");
    }

    #[test]
    fn what_the_remote_is_seen_to_hold_is_not_written_again() {
        let object = Arc::new(secret(r#"{"metadata":{"name":"a"},"type":"T","data":{"a":"MQ=="}}"#));
        let policy = policy();
        let owner: Option<Arc<str>> = Some("owner".into());
        let view = |remote| SecretView::new(Arc::clone(&object), &policy, remote, owner.clone());
        let held = Some((hash(&object, &policy), owner.clone()));
        // Killed between the upload and the note.
        let seen = view(RemoteSecret::Watched(held));
        assert!(!seen.needs_upload() && seen.needs_note());
        assert!(view(RemoteSecret::Watched(None)).needs_upload());
        let unseen = view(RemoteSecret::Unwatched { due: false });
        assert!(unseen.needs_upload() && unseen.needs_note());
    }

    #[test]
    fn labels_and_annotations_that_are_not_listed_are_neither_copied_nor_counted() {
        let bare = secret(r#"{"metadata":{"name":"a","labels":{"x":"1"}},"type":"T","data":{"a":"MQ=="}}"#);
        let mut marked = bare.clone();
        marked.annotations.insert(LAST_APPLIED.into(), "MQ==".into());
        marked.annotations.insert("reflector.v1.k8s.emberstack.com/reflection-allowed".into(), "true".into());
        marked.labels.insert("argocd.argoproj.io/secret-type".into(), "cluster".into());
        assert_eq!(hash(&marked, &listing(&["x"])), hash(&bare, &listing(&["x"])));
        assert_eq!(copied_metadata(&marked, &listing(&[])), (Map::new(), Map::new()));
        // Whatever the section lists.
        let (labels, annotations) = copied_metadata(&marked, &listing(&["*"]));
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["reflector.v1.k8s.emberstack.com/reflection-allowed"]);
        assert_eq!(labels.len(), 2);
    }

    #[test]
    fn text_is_escaped_as_go_does() {
        let plain = |text: &str| {
            let mut digest = Sha256::new();
            digest.update(text.as_bytes());
            format!("{:x}", digest.finalize())
        };
        assert_eq!(*hash_text("[\"a<b>&c\u{2028}\"]"), plain("[\"a\\u003cb\\u003e\\u0026c\\u2028\"]"));
    }

    #[test]
    fn keys_are_sorted_and_labels_count() {
        let one = secret(r#"{"metadata":{"name":"a","labels":{"x":"1"}},"type":"T","data":{"b":"Mg==","a":"MQ=="}}"#);
        let two = secret(r#"{"metadata":{"name":"a"},"type":"T","data":{"a":"MQ==","b":"Mg=="}}"#);
        assert_eq!(hash(&one, &listing(&["x"])), hash_text(r#"[{"a":"MQ==","b":"Mg=="},"T",{},{"x":"1"}]"#));
        assert_eq!(hash(&two, &policy()), hash_text(r#"[{"a":"MQ==","b":"Mg=="},"T",{},null]"#));
    }
}

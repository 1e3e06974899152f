//! Objects of any kind, reduced to what the jobs read.
//!
//! An [`Object`] is what a watch cache holds: identity, the metadata on which decisions depend, and the two halves of the
//! object as canonical JSON text (sorted keys, no white space), so that equality is a comparison of bytes and 10,000
//! small objects take a few megabytes.

mod decode;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

pub use decode::{Decoded, Managed};

/// The field manager of every write, or the first part of it (`towline-<section>`).
pub const FIELD_MANAGER: &str = "towline";

/// One `managedFields` entry.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct Manager<F> {
    pub(in crate::cluster) name: String,
    pub(in crate::cluster) subresource: String,
    pub(in crate::cluster) fields: Option<F>,
}

/// Namespace and name of an object; the namespace is empty for a cluster-scoped one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace, or `""`.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            formatter.write_str(&self.name)
        } else {
            write!(formatter, "{}/{}", self.namespace, self.name)
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for ObjectKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// JSON text with sorted keys and no white space: equal values have equal text.
///
/// Numbers keep their value: integers of 64 bits exactly, floats by their shortest round-trip form.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CanonicalJson(Arc<str>);

impl CanonicalJson {
    /// The canonical text of a value (`serde_json` maps are sorted).
    pub fn of(value: &Value) -> Self {
        Self(Arc::from(value.to_string()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or(Value::Null)
    }
}

/// Prints the length only: it may be a secret's data.
impl fmt::Debug for CanonicalJson {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes of JSON", self.0.len())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerRef {
    pub uid: Arc<str>,
    pub name: Arc<str>,
    pub kind: Arc<str>,
}

/// One object, as a cache holds it.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the object")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub key: ObjectKey,
    pub uid: Arc<str>,
    /// Opaque version; compare with [`is_at_least`].
    pub resource_version: Arc<str>,
    /// Generation; 0 for kinds that have none.
    pub generation: i64,
    /// When it was created, to the second; `None` if the server does not say.
    pub created: Option<jiff::Timestamp>,
    pub deleting: bool,
    pub finalizers: Vec<Arc<str>>,
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// There are annotations that the cache does not hold (kubectl's copy of the applied object, the control plane's own).
    pub hidden_annotations: bool,
    /// There are labels that the cache does not hold (the control plane's own).
    pub hidden_labels: bool,
    /// The owner with `controller: true`.
    pub controller: Option<ControllerRef>,
    /// What each `towline` field manager owns of the object itself (not of its status); empty if none wrote it.
    pub owned: Vec<OwnedKeys>,
    /// Every top-level field but `apiVersion`, `kind`, `metadata` and `status`, as one JSON object. Where the cache is of portable
    /// parts, without what the control plane has put there ([`BuiltIn`](crate::cluster::BuiltIn)).
    pub content: CanonicalJson,
    /// The content with what of the control plane's has to be sent back with an update, where there is any.
    pub whole: Option<CanonicalJson>,
    pub status: Option<CanonicalJson>,
    /// Of the [built-in kinds](crate::cluster::BuiltIn): a controller of its own cluster writes the status.
    pub has_own_status: bool,
    /// Of Secrets: it is the token of a service account.
    pub is_account_token: bool,
}

impl Object {
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(AsRef::as_ref)
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|held| &**held == finalizer)
    }

    /// What this field manager owns; `None` if it did not write the object itself.
    pub fn owned_by(&self, manager: &str) -> Option<&OwnedKeys> {
        self.owned.iter().find(|owned| &*owned.manager == manager)
    }

    /// What this field manager owns, to be changed; inserted if it is missing.
    pub fn owned_by_mut(&mut self, manager: &Arc<str>) -> Option<&mut OwnedKeys> {
        if self.owned_by(manager).is_none() {
            self.owned.push(OwnedKeys { manager: Arc::clone(manager), ..OwnedKeys::default() });
        }
        self.owned.iter_mut().find(|owned| owned.manager == *manager)
    }
}

/// What one `towline` field manager owns of an object, by the object's managed fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedKeys {
    pub manager: Arc<str>,
    pub labels: BTreeSet<Arc<str>>,
    pub annotations: BTreeSet<Arc<str>>,
}

/// Whether `seen` is the version `written` or a later one. Versions of one API server are increasing decimal numbers;
/// anything else is only equal to itself.
pub fn is_at_least(seen: &str, written: &str) -> bool {
    match (seen.parse::<u64>(), written.parse::<u64>()) {
        (Ok(seen), Ok(written)) => seen >= written,
        _ => seen == written,
    }
}

/// Whether a field manager is `towline` or `towline-<section>`.
pub fn is_of_towline(manager: &str) -> bool {
    manager.strip_prefix(FIELD_MANAGER).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use kube::core::PartialObjectMeta;

    use super::*;
    use crate::cluster::BuiltIn;

    fn decode(text: &str) -> Object {
        serde_json::from_str::<Decoded>(text).unwrap().into_object()
    }

    #[test]
    fn every_field_but_the_four_is_content() {
        let object = decode(
            r#"{"apiVersion":"v1","kind":"Secret","type":"Opaque","metadata":{"name":"a","namespace":"n","uid":"u",
               "resourceVersion":"7","generation":3,"creationTimestamp":"2025-12-31T23:59:59Z","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["f"],
               "labels":{"l":"1"},"annotations":null,"ownerReferences":[{"uid":"x"},{"uid":"y","controller":true}]},
               "data":{"b":"Zg==","a":null},"status":{"z":1,"a":[]}}"#,
        );
        assert_eq!(object.content.as_str(), r#"{"data":{"a":null,"b":"Zg=="},"type":"Opaque"}"#);
        assert_eq!(object.status.unwrap().as_str(), r#"{"a":[],"z":1}"#);
        assert_eq!((object.generation, object.deleting), (3, true));
        assert_eq!(object.created.map(|created| created.to_string()).as_deref(), Some("2025-12-31T23:59:59Z"));
        assert_eq!(object.controller.unwrap().uid.as_ref(), "y");
        assert_eq!(object.key.to_string(), "n/a");
    }

    #[test]
    fn numbers_keep_their_exact_value() {
        for number in [
            "9007199254740993",
            "18446744073709551615",
            "-9223372036854775808",
            "0.1",
            "1.7976931348623157e308",
            "5e-324",
        ] {
            let object = decode(&format!(r#"{{"metadata":{{"name":"a"}},"spec":{{"n":{number}}}}}"#));
            let again: Value = object.content.value();
            assert_eq!(CanonicalJson::of(&again), object.content, "{number}");
            assert_eq!(again["spec"]["n"], serde_json::from_str::<Value>(number).unwrap(), "{number}");
        }
    }

    #[test]
    fn only_our_managers_keys_are_kept_and_each_managers_apart() {
        let text = r#"{"metadata":{"name":"a","managedFields":[
              {"manager":"kubectl","operation":"Update","fieldsV1":{"f:metadata":{"f:labels":{"f:theirs":{}}}}},
              {"manager":"towline","operation":"Update","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:l/x":{}},"f:annotations":{"f:a":{}}},"f:spec":{}}},
              {"manager":"towline-b","operation":"Update","fieldsV1":{"f:metadata":{"f:annotations":{"f:b":{}}}}},
              {"manager":"towline-b","operation":"Apply","fieldsV1":{"f:metadata":{"f:annotations":{"f:c":{}}}}},
              {"manager":"towline-status","operation":"Update","subresource":"status","fieldsV1":{"f:status":{}}},
              {"manager":"towlines","operation":"Update","fieldsV1":{"f:metadata":{"f:labels":{"f:not":{}}}}}]}}"#;
        let of_metadata = serde_json::from_str::<PartialObjectMeta<Decoded>>(text).unwrap();
        let of_built_in = serde_json::from_str::<Managed>(text).unwrap();
        let of_built_in = BuiltIn::of("policy", "poddisruptionbudgets").unwrap().portable(of_built_in);
        for object in [decode(text), Decoded::from(of_metadata).into_object(), of_built_in.into_object()] {
            let keys = |keys: &BTreeSet<Arc<str>>| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(object.owned.len(), 2, "{:?}", object.owned);
            let first = object.owned_by("towline").unwrap();
            assert_eq!((keys(&first.labels), keys(&first.annotations)), (vec!["l/x".to_owned()], vec!["a".to_owned()]));
            assert_eq!(keys(&object.owned_by("towline-b").unwrap().annotations), ["b", "c"]);
        }
        assert!(decode(r#"{"metadata":{"name":"a","managedFields":[{"manager":"kubectl"}]}}"#).owned.is_empty());
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(is_at_least("10", "9") && is_at_least("9", "9") && !is_at_least("9", "10"));
        assert!(is_at_least("x", "x") && !is_at_least("x", "9"));
    }
}

//! Objects of any kind, cut down to what the jobs read.
//!
//! An [`Object`] is what a watch cache holds: identity, the metadata that decides something, and the two halves of the
//! object as canonical JSON text (sorted keys, no white space), so that "equal" is a comparison of bytes and 10,000
//! small objects take a few megabytes. `managedFields` are read once, while the object is decoded, for the one thing
//! they tell: which `towline` field managers wrote the object, and which label and annotation keys each of them owns.
//! They are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The field manager of every write, or the first part of it (`towline-<section>`).
pub const FIELD_MANAGER: &str = "towline";

/// Namespace and name of an object; the namespace is empty for a cluster-scoped one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace, or `""`.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// A key from its two parts.
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

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value again.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or(Value::Null)
    }
}

/// Tells the length only: it may be a secret's data.
impl fmt::Debug for CanonicalJson {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes of JSON", self.0.len())
    }
}

/// The controlling owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerRef {
    /// UID of the owner.
    pub uid: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// One object, as a cache holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Arc<str>,
    /// Opaque version; compare with [`is_at_least`].
    pub resource_version: Arc<str>,
    /// Generation; 0 for kinds that have none.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Finalizers.
    pub finalizers: Vec<Arc<str>>,
    /// Labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Annotations.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// There are annotations that the cache does not hold (kubectl's copy of what was applied).
    pub hidden_annotations: bool,
    /// The owner with `controller: true`.
    pub controller: Option<ControllerRef>,
    /// What each `towline` field manager owns of the object itself (not of its status); empty where none wrote it.
    pub owned: Vec<OwnedKeys>,
    /// Every top-level field but `apiVersion`, `kind`, `metadata` and `status`, as one JSON object.
    pub content: CanonicalJson,
    /// `status`, where there is one.
    pub status: Option<CanonicalJson>,
}

impl Object {
    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(AsRef::as_ref)
    }

    /// Whether the finalizer is on it.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|held| &**held == finalizer)
    }

    /// What this field manager owns; `None` where it did not write the object itself.
    pub fn owned_by(&self, manager: &str) -> Option<&OwnedKeys> {
        self.owned.iter().find(|owned| &*owned.manager == manager)
    }

    /// The same, to be changed; made where it is missing.
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
    /// The field manager.
    pub manager: Arc<str>,
    /// Label keys.
    pub labels: BTreeSet<Arc<str>>,
    /// Annotation keys.
    pub annotations: BTreeSet<Arc<str>>,
}

/// Whether `seen` is the version `written` or a later one. Versions of one API server are decimal numbers that grow;
/// what is not a number is only ever equal to itself.
pub fn is_at_least(seen: &str, written: &str) -> bool {
    match (seen.parse::<u64>(), written.parse::<u64>()) {
        (Ok(seen), Ok(written)) => seen >= written,
        _ => seen == written,
    }
}

/// An [`Object`] on its way from the wire, with the metadata that kube's watcher asks for. Boxed, since it is handed on from
/// one stage of the stream to the next a dozen times.
#[derive(Clone, Debug)]
pub struct Decoded {
    meta: Box<ObjectMeta>,
    object: Box<Object>,
}

impl Decoded {
    /// The object itself.
    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// The object itself.
    pub fn into_object(self) -> Object {
        *self.object
    }
}

impl From<PartialObjectMeta<Decoded>> for Decoded {
    fn from(partial: PartialObjectMeta<Decoded>) -> Self {
        let metadata = partial.metadata;
        let text = |value: Option<String>| Arc::<str>::from(value.unwrap_or_default());
        let map = |values: Option<BTreeMap<String, String>>| {
            values.unwrap_or_default().into_iter().map(|(key, value)| (key.into(), value.into())).collect()
        };
        let raw = RawMeta {
            name: text(metadata.name),
            namespace: text(metadata.namespace),
            uid: text(metadata.uid),
            resource_version: text(metadata.resource_version),
            generation: metadata.generation.unwrap_or_default(),
            deletion_timestamp: metadata.deletion_timestamp.map(|_| IgnoredAny),
            finalizers: metadata.finalizers.unwrap_or_default().into_iter().map(Into::into).collect(),
            labels: map(metadata.labels),
            annotations: map(metadata.annotations),
            owner_references: metadata
                .owner_references
                .unwrap_or_default()
                .into_iter()
                .map(|owner| RawOwner { uid: owner.uid.into(), name: owner.name.into(), controller: owner.controller })
                .collect(),
            managed_fields: metadata.managed_fields.unwrap_or_default().into_iter().map(RawManager::from).collect(),
        };
        assemble(raw, CanonicalJson::of(&Value::Object(serde_json::Map::new())), None)
    }
}

impl kube::Resource for Decoded {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.kind.as_str().into()
    }
    fn group(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.group.as_str().into()
    }
    fn version(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.version.as_str().into()
    }
    fn plural(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.plural.as_str().into()
    }
    fn api_version(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        resource.api_version.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl<'de> Deserialize<'de> for Decoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Decoded;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a Kubernetes object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Decoded, A::Error> {
                let mut metadata = RawMeta::default();
                let mut status = None;
                let mut content = serde_json::Map::new();
                while let Some(field) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    match &*field {
                        "apiVersion" | "kind" => {
                            map.next_value::<IgnoredAny>()?;
                        }
                        "metadata" => metadata = map.next_value()?,
                        "status" => {
                            status = map.next_value::<Option<Value>>()?.as_ref().map(CanonicalJson::of);
                        }
                        _ => {
                            content.insert(field.into_owned(), map.next_value()?);
                        }
                    }
                }
                Ok(assemble(metadata, CanonicalJson::of(&Value::Object(content)), status))
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

fn assemble(metadata: RawMeta, content: CanonicalJson, status: Option<CanonicalJson>) -> Decoded {
    let mut owned: Vec<OwnedKeys> = Vec::new();
    for entry in metadata.managed_fields.into_iter().filter(RawManager::is_of_towline) {
        // One manager has an entry for each operation and version.
        let index = owned.iter().position(|held| *held.manager == *entry.manager).unwrap_or_else(|| {
            owned.push(OwnedKeys { manager: entry.manager.as_str().into(), ..OwnedKeys::default() });
            owned.len() - 1
        });
        if let (Some(keys), Some(FieldsV1 { metadata: Some(fields) })) = (owned.get_mut(index), entry.fields_v1) {
            keys.labels.extend(fields.labels.0);
            keys.annotations.extend(fields.annotations.0);
        }
    }
    let meta = Box::new(ObjectMeta {
        name: Some(metadata.name.to_string()),
        namespace: (!metadata.namespace.is_empty()).then(|| metadata.namespace.to_string()),
        resource_version: Some(metadata.resource_version.to_string()),
        ..ObjectMeta::default()
    });
    let controller = metadata
        .owner_references
        .into_iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| ControllerRef { uid: owner.uid, name: owner.name });
    let object = Box::new(Object {
        key: ObjectKey { namespace: metadata.namespace, name: metadata.name },
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers,
        labels: metadata.labels,
        annotations: metadata.annotations,
        hidden_annotations: false,
        controller,
        owned,
        content,
        status,
    });
    Decoded { meta, object }
}

/// `f:name` → `name`.
fn field_name(key: &str) -> Option<Arc<str>> {
    key.strip_prefix("f:").map(Arc::from)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMeta {
    name: Arc<str>,
    namespace: Arc<str>,
    uid: Arc<str>,
    resource_version: Arc<str>,
    generation: i64,
    deletion_timestamp: Option<IgnoredAny>,
    finalizers: Vec<Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    labels: BTreeMap<Arc<str>, Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    annotations: BTreeMap<Arc<str>, Arc<str>>,
    owner_references: Vec<RawOwner>,
    managed_fields: Vec<RawManager>,
}

#[derive(Deserialize)]
struct RawOwner {
    uid: Arc<str>,
    #[serde(default)]
    name: Arc<str>,
    #[serde(default)]
    controller: Option<bool>,
}

/// One `managedFields` entry; the fields of other managers are skipped, not built.
struct RawManager {
    manager: String,
    subresource: String,
    fields_v1: Option<FieldsV1>,
}

impl RawManager {
    /// Whether one of our managers wrote the object itself: a status is written to objects that are not ours.
    fn is_of_towline(&self) -> bool {
        is_of_towline(&self.manager) && self.subresource.is_empty()
    }
}

impl From<ManagedFieldsEntry> for RawManager {
    fn from(entry: ManagedFieldsEntry) -> Self {
        let manager = entry.manager.unwrap_or_default();
        let fields_v1 = entry.fields_v1.filter(|_| is_of_towline(&manager)).and_then(|fields| {
            // What is not a set of fields proves nothing.
            FieldsV1::deserialize(fields.0).ok()
        });
        Self { fields_v1, subresource: entry.subresource.unwrap_or_default(), manager }
    }
}

/// Whether a field manager is `towline` or `towline-<section>`.
pub fn is_of_towline(manager: &str) -> bool {
    manager.strip_prefix(FIELD_MANAGER).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[derive(Default, Deserialize)]
struct FieldsV1 {
    #[serde(rename = "f:metadata")]
    metadata: Option<MetadataFields>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetadataFields {
    #[serde(rename = "f:labels")]
    labels: FieldNames,
    #[serde(rename = "f:annotations")]
    annotations: FieldNames,
}

/// The names of a set of fields.
#[derive(Default)]
struct FieldNames(Vec<Arc<str>>);

impl<'de> Deserialize<'de> for FieldNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;

        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = FieldNames;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a set of fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldNames, A::Error> {
                let mut names = Vec::new();
                while let Some(field) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    map.next_value::<IgnoredAny>()?;
                    names.extend(field_name(&field));
                }
                Ok(FieldNames(names))
            }
        }

        deserializer.deserialize_map(NamesVisitor)
    }
}

impl<'de> Deserialize<'de> for RawManager {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ManagerVisitor;

        impl<'de> Visitor<'de> for ManagerVisitor {
            type Value = RawManager;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a managedFields entry")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawManager, A::Error> {
                let mut entry = RawManager { manager: String::new(), subresource: String::new(), fields_v1: None };
                while let Some(field) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    match &*field {
                        "manager" => entry.manager = map.next_value()?,
                        "subresource" => entry.subresource = map.next_value()?,
                        // The manager comes before its fields on the wire; where it does not, it is read all the same.
                        "fieldsV1" if entry.manager.is_empty() || entry.manager.starts_with(FIELD_MANAGER) => {
                            entry.fields_v1 = map.next_value()?;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(entry)
            }
        }

        deserializer.deserialize_map(ManagerVisitor)
    }
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Object {
        serde_json::from_str::<Decoded>(text).unwrap().into_object()
    }

    #[test]
    fn every_field_but_the_four_is_content() {
        let object = decode(
            r#"{"apiVersion":"v1","kind":"Secret","type":"Opaque","metadata":{"name":"a","namespace":"n","uid":"u",
               "resourceVersion":"7","generation":3,"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["f"],
               "labels":{"l":"1"},"annotations":null,"ownerReferences":[{"uid":"x"},{"uid":"y","controller":true}]},
               "data":{"b":"Zg==","a":null},"status":{"z":1,"a":[]}}"#,
        );
        assert_eq!(object.content.as_str(), r#"{"data":{"a":null,"b":"Zg=="},"type":"Opaque"}"#);
        assert_eq!(object.status.unwrap().as_str(), r#"{"a":[],"z":1}"#);
        assert_eq!((object.generation, object.deleting), (3, true));
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
        for object in [decode(text), Decoded::from(of_metadata).into_object()] {
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

//! Decoding of objects from the API server's JSON.
//!
//! `managedFields` are read here once, while the object is decoded, for which `towline` field managers wrote the object and
//! which label and annotation keys each of them owns. They are not kept. Of built-in kinds with values of the control plane, all
//! entries are read ([`Managed`]), since they tell which values somebody ordered.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::cluster::built_in::BuiltIn;

use super::{CanonicalJson, ControllerRef, FIELD_MANAGER, Object, ObjectKey, OwnedKeys, is_of_towline};

/// A decoded [`Object`], with the metadata that kube's watcher asks for. Boxed, because it passes a dozen stages of the
/// stream.
#[derive(Clone, Debug)]
pub struct Decoded {
    meta: Box<ObjectMeta>,
    object: Box<Object>,
}

impl Decoded {
    pub(in crate::cluster) fn object(&self) -> &Object {
        &self.object
    }

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
            creation_timestamp: metadata.creation_timestamp.map(|time| Created(time.0)),
            deletion_timestamp: metadata.deletion_timestamp.map(|_| IgnoredAny),
            finalizers: metadata.finalizers.unwrap_or_default().into_iter().map(Into::into).collect(),
            labels: map(metadata.labels),
            annotations: map(metadata.annotations),
            owner_references: metadata
                .owner_references
                .unwrap_or_default()
                .into_iter()
                .map(|owner| RawOwner {
                    uid: owner.uid.into(),
                    name: owner.name.into(),
                    kind: owner.kind.into(),
                    controller: owner.controller,
                })
                .collect(),
            managed_fields: metadata.managed_fields.unwrap_or_default().into_iter().map(RawManager::from).collect(),
        };
        assemble(raw, CanonicalJson::of(&Value::Object(serde_json::Map::new())), None)
    }
}

/// A decoded object with the record of all its field managers, for built-in kinds only: it costs a second pass.
#[derive(Clone, Debug)]
pub struct Managed {
    decoded: Decoded,
    managers: Vec<ManagedFieldsEntry>,
}

impl Managed {
    pub fn portable(mut self, kind: &BuiltIn) -> Decoded {
        kind.reduce(&mut self.decoded.object, &self.managers);
        self.decoded
    }
}

impl<'de> Deserialize<'de> for Managed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let record = object.pointer("/metadata/managedFields").cloned();
        let decoded = Decoded::deserialize(object).map_err(serde::de::Error::custom)?;
        // A record that can't be read proves nothing.
        let managers = record.and_then(|record| serde_json::from_value(record).ok()).unwrap_or_default();
        Ok(Self { decoded, managers })
    }
}

impl kube::Resource for Managed {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        Decoded::kind(resource)
    }
    fn group(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        Decoded::group(resource)
    }
    fn version(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        Decoded::version(resource)
    }
    fn plural(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        Decoded::plural(resource)
    }
    fn api_version(resource: &ApiResource) -> std::borrow::Cow<'_, str> {
        Decoded::api_version(resource)
    }
    fn meta(&self) -> &ObjectMeta {
        self.decoded.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.decoded.meta_mut()
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
                let is_account_token =
                    content.get("type").is_some_and(|kind| kind == "kubernetes.io/service-account-token");
                let mut decoded = assemble(metadata, CanonicalJson::of(&Value::Object(content)), status);
                decoded.object.is_account_token = is_account_token;
                Ok(decoded)
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
        .map(|owner| ControllerRef { uid: owner.uid, name: owner.name, kind: owner.kind });
    let object = Box::new(Object {
        key: ObjectKey { namespace: metadata.namespace, name: metadata.name },
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        created: metadata.creation_timestamp.map(|created| created.0),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers,
        labels: metadata.labels,
        annotations: metadata.annotations,
        hidden_annotations: false,
        hidden_labels: false,
        controller,
        owned,
        content,
        whole: None,
        status,
        is_account_token: false,
        has_own_status: false,
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
    creation_timestamp: Option<Created>,
    deletion_timestamp: Option<IgnoredAny>,
    finalizers: Vec<Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    labels: BTreeMap<Arc<str>, Arc<str>>,
    #[serde(deserialize_with = "null_as_default")]
    annotations: BTreeMap<Arc<str>, Arc<str>>,
    owner_references: Vec<RawOwner>,
    managed_fields: Vec<RawManager>,
}

/// When an object was created.
struct Created(jiff::Timestamp);

impl<'de> Deserialize<'de> for Created {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

#[derive(Deserialize)]
struct RawOwner {
    uid: Arc<str>,
    #[serde(default)]
    name: Arc<str>,
    #[serde(default)]
    kind: Arc<str>,
    #[serde(default)]
    controller: Option<bool>,
}

/// One `managedFields` entry; the fields of other managers are skipped, not decoded.
struct RawManager {
    manager: String,
    subresource: String,
    fields_v1: Option<FieldsV1>,
}

impl RawManager {
    /// Whether one of our managers wrote the object itself. We also write the status of objects that are not ours.
    fn is_of_towline(&self) -> bool {
        is_of_towline(&self.manager) && self.subresource.is_empty()
    }
}

impl From<ManagedFieldsEntry> for RawManager {
    fn from(entry: ManagedFieldsEntry) -> Self {
        let manager = entry.manager.unwrap_or_default();
        let fields_v1 = entry.fields_v1.filter(|_| is_of_towline(&manager)).and_then(|fields| {
            // Anything but a set of fields proves nothing.
            FieldsV1::deserialize(fields.0).ok()
        });
        Self { fields_v1, subresource: entry.subresource.unwrap_or_default(), manager }
    }
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
                        // The manager usually comes before its fields. If it does not, the fields are decoded in any case.
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

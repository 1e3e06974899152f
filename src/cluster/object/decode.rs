//! Decoding of objects from the API server's JSON.
//!
//! `managedFields` are read here once, while the object is decoded, for which `towline` field managers wrote the object and
//! which label and annotation keys each of them owns. They are not kept. Of built-in kinds with values of the control plane, the
//! fields of all managers are read ([`Managed`]), since they tell which values somebody ordered.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::{CanonicalJson, ControllerRef, FIELD_MANAGER, Manager, Object, ObjectKey, OwnedKeys, is_of_towline};

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
            managed_fields: metadata.managed_fields.unwrap_or_default().into_iter().map(Manager::from).collect(),
        };
        Raw { metadata: raw, content: Map::new(), status: None }.decoded()
    }
}

/// A decoded object with its content as a value and the record of all its field managers, for built-in kinds only.
#[derive(Clone, Debug)]
pub struct Managed {
    decoded: Decoded,
    content: Value,
    managers: Vec<Manager<Value>>,
}

impl Managed {
    /// The object as `reduce` leaves it, which gets its content and the record of its managers.
    pub(in crate::cluster) fn reduced(
        mut self,
        reduce: impl FnOnce(&mut Object, &Value, &[Manager<Value>]),
    ) -> Decoded {
        reduce(&mut self.decoded.object, &self.content, &self.managers);
        self.decoded
    }
}

impl<'de> Deserialize<'de> for Managed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Raw { mut metadata, content, status } = Raw::<Value>::deserialize(deserializer)?;
        let managers = std::mem::take(&mut metadata.managed_fields);
        let content = Value::Object(content);
        let owned = owned(managers.iter().map(Manager::with_names));
        Ok(Self { decoded: assemble(metadata, &content, status, owned), content, managers })
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
        Raw::deserialize(deserializer).map(Raw::decoded)
    }
}

/// The parts of an object. `F` is what is read of the fields that a manager owns.
struct Raw<F> {
    metadata: RawMeta<F>,
    content: Map<String, Value>,
    status: Option<CanonicalJson>,
}

impl Raw<FieldsV1> {
    fn decoded(mut self) -> Decoded {
        let owned = owned(std::mem::take(&mut self.metadata.managed_fields));
        assemble(self.metadata, &Value::Object(self.content), self.status, owned)
    }
}

impl<'de, F: ManagedFields> Deserialize<'de> for Raw<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<F>(PhantomData<F>);

        impl<'de, F: ManagedFields> Visitor<'de> for ObjectVisitor<F> {
            type Value = Raw<F>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a Kubernetes object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<F>, A::Error> {
                let mut raw = Raw { metadata: RawMeta::default(), content: Map::new(), status: None };
                while let Some(field) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    match &*field {
                        "apiVersion" | "kind" => {
                            map.next_value::<IgnoredAny>()?;
                        }
                        "metadata" => raw.metadata = map.next_value()?,
                        "status" => {
                            raw.status = map.next_value::<Option<Value>>()?.as_ref().map(CanonicalJson::of);
                        }
                        _ => {
                            raw.content.insert(field.into_owned(), map.next_value()?);
                        }
                    }
                }
                Ok(raw)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// What each of our managers owns.
fn owned(managers: impl IntoIterator<Item = Manager<FieldsV1>>) -> Vec<OwnedKeys> {
    let mut owned: Vec<OwnedKeys> = Vec::new();
    for entry in managers.into_iter().filter(Manager::is_of_towline) {
        // One manager has an entry for each operation and version.
        let index = owned.iter().position(|held| *held.manager == *entry.name).unwrap_or_else(|| {
            owned.push(OwnedKeys { manager: entry.name.as_str().into(), ..OwnedKeys::default() });
            owned.len() - 1
        });
        if let (Some(keys), Some(FieldsV1 { metadata: Some(fields) })) = (owned.get_mut(index), entry.fields) {
            keys.labels.extend(fields.labels.0);
            keys.annotations.extend(fields.annotations.0);
        }
    }
    owned
}

fn assemble<F>(metadata: RawMeta<F>, content: &Value, status: Option<CanonicalJson>, owned: Vec<OwnedKeys>) -> Decoded {
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
        content: CanonicalJson::of(content),
        whole: None,
        status,
        is_account_token: content.get("type").is_some_and(|kind| kind == "kubernetes.io/service-account-token"),
        has_own_status: false,
    });
    Decoded { meta, object }
}

/// `f:name` → `name`.
fn field_name(key: &str) -> Option<Arc<str>> {
    key.strip_prefix("f:").map(Arc::from)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "F: ManagedFields"))]
struct RawMeta<F> {
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
    managed_fields: Vec<Manager<F>>,
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

impl<F> Manager<F> {
    /// Whether one of our managers wrote the object itself. We also write the status of objects that are not ours.
    fn is_of_towline(&self) -> bool {
        is_of_towline(&self.name) && self.subresource.is_empty()
    }
}

impl Manager<Value> {
    /// The same entry with what is read of our own fields.
    fn with_names(&self) -> Manager<FieldsV1> {
        // Anything but a set of fields proves nothing.
        let fields =
            self.fields.as_ref().filter(|_| self.is_of_towline()).and_then(|set| FieldsV1::deserialize(set).ok());
        Manager { name: self.name.clone(), subresource: self.subresource.clone(), fields }
    }
}

impl From<ManagedFieldsEntry> for Manager<FieldsV1> {
    fn from(entry: ManagedFieldsEntry) -> Self {
        let fields = entry.fields_v1.map(|fields| fields.0);
        let (name, subresource) = (entry.manager.unwrap_or_default(), entry.subresource.unwrap_or_default());
        Manager { name, subresource, fields }.with_names()
    }
}

/// What is read of the fields that a manager owns.
trait ManagedFields: DeserializeOwned + Default {
    /// Whether those of this manager are read; all others are skipped, not decoded.
    fn are_read(manager: &str) -> bool;
}

impl ManagedFields for Value {
    fn are_read(_: &str) -> bool {
        true
    }
}

impl ManagedFields for FieldsV1 {
    fn are_read(manager: &str) -> bool {
        // The manager usually comes before its fields. If it does not, the fields are decoded in any case.
        manager.is_empty() || manager.starts_with(FIELD_MANAGER)
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

impl<'de, F: ManagedFields> Deserialize<'de> for Manager<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ManagerVisitor<F>(PhantomData<F>);

        impl<'de, F: ManagedFields> Visitor<'de> for ManagerVisitor<F> {
            type Value = Manager<F>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a managedFields entry")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Manager<F>, A::Error> {
                let mut entry = Manager { name: String::new(), subresource: String::new(), fields: None };
                while let Some(field) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    match &*field {
                        "manager" => entry.name = map.next_value()?,
                        "subresource" => entry.subresource = map.next_value()?,
                        "fieldsV1" if F::are_read(&entry.name) => entry.fields = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(entry)
            }
        }

        deserializer.deserialize_map(ManagerVisitor(PhantomData))
    }
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

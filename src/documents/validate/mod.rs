//! Checks of documents: the form of a request's body, all faults at once, each with its JSON pointer.
//!
//! [`draft`] takes a body and returns its fields with defaults filled in and aliases resolved, so that two documents that mean the
//! same are equal. Faults show what was found only where that is no secret: of an unknown field the name alone, because a mistyped
//! `kubeconfg` holds one.

mod cluster;
mod faults;
mod fields;
mod metadata;
mod objects;
mod patches;
mod pointers;
mod rollout;
mod secret;
mod selector;
mod syncset;

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde_json::{Map, Value};
use uuid::Uuid;

pub(super) use faults::Faults;
pub(super) use metadata::check_totals;
pub use objects::{
    PATH_SEGMENT, group_of, is_directive, is_forbidden_kind, is_kind, is_path_segment, without_secret_values,
};
pub use pointers::{FIELD_POINTERS, FieldPointer, IGNORE_FIELDS, field_pointers};
pub use rollout::MOST_WAVE_VALUES;
pub(super) use secret::{data as secret_data, entry as secret_entry};
pub use selector::requirements_of;
pub use syncset::{HEALTH_WITHIN, health_within};
pub(super) use syncset::{alias, check_changed, resolve};

use super::body::{Body, Path};
use super::document::Key;
use super::kind::{Kind, Sealed};
use super::problem::{Fault, Problem};
use crate::config::names::{is_label, is_subdomain};
use crate::config::text::{described, kind_of, quoted};

/// Fields of every document that a body may set.
const COMMON: [&str; 8] = ["kind", "namespace", "name", "id", "resourceVersion", "labels", "annotations", "finalizers"];
/// Fields that answers have and bodies may repeat.
const READ_ONLY: [&str; 5] = ["generation", "createdAt", "updatedAt", "deletedAt", "status"];

/// What a body says about a document, checked.
#[derive(Clone)]
pub(super) struct Draft {
    /// Labels; `None` if the body has none.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Annotations; `None` if the body has none.
    pub(super) annotations: Option<BTreeMap<String, String>>,
    /// Finalizers; `None` if the body has none.
    pub(super) finalizers: Option<Vec<String>>,
    /// Own fields that are not sealed, all of them, without what only answers have.
    pub(super) data: Map<String, Value>,
    /// The sealed field; `None` if the body does not have it.
    pub(super) sealed: Option<SealedValue>,
    /// Terms of its selector; `None` for kinds without one.
    pub(super) terms: Option<Vec<(String, String)>>,
}

/// The value of a sealed field. It has no `Debug`.
#[derive(Clone)]
pub(super) enum SealedValue {
    Kubeconfig(SecretString),
    /// Values in base64, by name.
    Data(BTreeMap<String, SecretString>),
}

/// What identifies the document that a body is about, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// The id that the body names.
    pub(super) id: Option<Uuid>,
    /// The version that the body was made from.
    pub(super) version: Option<i64>,
}

/// The key of a new document, from the body of a POST or of an apply. If it has none, the problem has all faults of the body.
pub fn key_of_body(kind: Kind, body: &Body) -> Result<Key, Problem> {
    let (key, faults) = key_with_faults(kind, body);
    if faults.is_empty() { Ok(key) } else { check_without_key(&key, body, faults).map(|()| key) }
}

/// The same without the faults of other fields, which take long to find where there are patches.
pub(super) fn key_with_faults(kind: Kind, body: &Body) -> (Key, Faults) {
    let mut faults = Faults::default();
    let fields = body.fields();
    let mut text = |field: &'static str, check: fn(&str) -> bool, allowed: &str| match fields.get(field) {
        Some(Value::String(text)) if check(text) => text.clone(),
        other => {
            let found = other.filter(|value| !value.is_null()).map_or_else(|| "missing".to_owned(), described);
            faults.push(Fault::new(format!("/{field}"), found).allowed(allowed));
            String::new()
        }
    };
    let name = text("name", is_subdomain, "a DNS subdomain: at most 253 of a-z, 0-9, - and .");
    let namespace = if kind.is_namespaced() {
        text("namespace", is_label, "a DNS label: at most 63 of a-z, 0-9 and -")
    } else {
        String::new()
    };
    (Key { kind, namespace, name }, faults)
}

/// The problem with all faults of a body, of which these are those of its key.
pub(super) fn check_without_key(key: &Key, body: &Body, mut faults: Faults) -> Result<(), Problem> {
    let mut others = Faults::default();
    draft(key, body.fields().clone(), true, &mut others);
    faults.extend(others);
    faults.into_result()
}

/// Checks what a body says about which document it is. For a document that does not exist yet, `id` and version are ignored.
pub(super) fn identity(key: &Key, fields: &Map<String, Value>, is_new: bool, faults: &mut Faults) -> Identity {
    let mut equal = |field: &'static str, allowed: &str| {
        if let Some(value) = fields.get(field)
            && !value.is_null()
            && value != allowed
        {
            faults.push(Fault::new(format!("/{field}"), described(value)).allowed(format!("{allowed:?}")));
        }
    };
    equal("kind", key.kind.name());
    equal("name", &key.name);
    if key.kind.is_namespaced() {
        equal("namespace", &key.namespace);
    } else if let Some(value) = fields.get("namespace")
        && !value.is_null()
    {
        let fault = Fault::new("/namespace", described(value));
        faults.push(fault.allowed(format!("none: a {} has no namespace", key.kind)));
    }
    if is_new {
        return Identity::default();
    }
    let mut text = |field: &'static str, allowed: &str| -> Option<&str> {
        match fields.get(field)? {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => {
                faults.push(Fault::new(format!("/{field}"), described(other)).allowed(allowed));
                None
            }
        }
    };
    let (uuid, decimal) = ("a UUID", "a version as a string of digits");
    let (id, version) = (text("id", uuid), text("resourceVersion", decimal));
    let id = id.and_then(|text| {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            faults.push(Fault::new("/id", quoted(text)).allowed(uuid));
        }
        parsed
    });
    let version = version.and_then(|text| {
        let parsed = version_of(text);
        if parsed.is_none() {
            faults.push(Fault::new("/resourceVersion", quoted(text)).allowed(decimal));
        }
        parsed
    });
    Identity { id, version }
}

/// A version in its one form.
pub(super) fn version_of(text: &str) -> Option<i64> {
    let version: i64 = text.parse().ok()?;
    (version >= 0 && version.to_string() == text).then_some(version)
}

/// Checks the fields of a document. What it returns can be used only if there are no faults.
pub(super) fn draft(key: &Key, mut fields: Map<String, Value>, is_new: bool, faults: &mut Faults) -> Draft {
    fields.retain(|_, value| !value.is_null());
    let own = own_fields(key.kind);
    let sealed = key.kind.sealed();
    let shown_for_sealed: &[&str] = match sealed {
        Some(Sealed::Kubeconfig) => &["kubeconfigGeneration"],
        Some(Sealed::Data) => &["dataGeneration", "keys"],
        None => &[],
    };
    let writable: Vec<&str> = COMMON.iter().chain(own).copied().collect();
    for name in fields.keys() {
        if !writable.contains(&name.as_str())
            && !READ_ONLY.contains(&name.as_str())
            && !shown_for_sealed.contains(&name.as_str())
        {
            faults.unknown_field(&Path::Root, name, &writable);
        }
    }
    let labels = fields.remove("labels").map(|value| metadata::labels(&value, faults));
    let annotations = fields.remove("annotations").map(|value| metadata::annotations(&value, faults));
    let finalizers = fields.remove("finalizers").map(|value| metadata::finalizers(&value, faults));
    let sealed = sealed.and_then(|sealed| match (sealed, fields.remove(sealed.field())) {
        (Sealed::Kubeconfig, value) => cluster::kubeconfig(value.as_ref(), is_new, faults),
        (Sealed::Data, Some(value)) => Some(SealedValue::Data(secret::data(&value, faults))),
        (Sealed::Data, None) => None,
    });
    let (data, terms) = match key.kind {
        Kind::Cluster => (cluster::fields(&fields, faults), None),
        Kind::Secret => (secret::fields(&fields, faults), None),
        Kind::SyncSet | Kind::SelectorSyncSet => syncset::fields(key, fields, is_new, faults),
        Kind::ClusterSync => (Map::new(), None),
    };
    Draft { labels, annotations, finalizers, data, sealed, terms }
}

/// Own fields of a kind that bodies may have.
fn own_fields(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Cluster => &["kubeconfig", "paused"],
        Kind::SyncSet | Kind::SelectorSyncSet => &["spec"],
        Kind::Secret => &["type", "immutable", "data"],
        Kind::ClusterSync => &[],
    }
}

/// Checks the observed state: an object.
pub(super) fn status(value: Option<Value>, faults: &mut Faults) -> Map<String, Value> {
    match value {
        Some(Value::Object(status)) => status,
        other => {
            let found = other.as_ref().filter(|value| !value.is_null()).map_or("missing", kind_of);
            faults.push(Fault::new("/status", found).allowed("an object"));
            Map::new()
        }
    }
}

#[cfg(test)]
mod tests;

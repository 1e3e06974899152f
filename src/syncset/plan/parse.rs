//! Reading syncsets from their documents.
//!
//! A document was checked when it was written, but perhaps by another release. What can't be read is a failure of the syncset
//! ([`Reason::ResourceInvalid`]) and never the wish for nothing: a syncset whose list of resources is missing must not delete what
//! it applied. Fields that are not known are ignored, as Kubernetes does; lists that every release writes have to be there.

use serde_json::Value;
use uuid::Uuid;

use super::health::{Rule, Settings};
use super::name::{SyncSetKind, SyncSetName};
use super::reason::Reason;
use super::rows::Failure;
use super::spec::{Behavior, Header, Mode, Patch, PatchType, Payload, SecretMapping};
use crate::config::text::{described, quoted};
use crate::documents::{
    HEALTH_WITHIN, PATH_SEGMENT, group_of, health_within, is_forbidden_kind, is_kind, is_path_segment,
};

/// What a row of the documents says of a syncset beside its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Assigned by the hub.
    pub id: Uuid,
    pub name: SyncSetName,
    /// Version of its last change.
    pub version: i64,
    pub generation: i64,
}

/// Reads the header from `spec`, which may be without resources and patches.
pub fn header(identity: Identity, spec: &Value) -> Result<Header, Failure> {
    let behaviors = [
        ("Apply", Behavior::Apply),
        ("CreateOnly", Behavior::CreateOnly),
        ("CreateOrUpdate", Behavior::CreateOrUpdate),
    ];
    let mappings = list(spec, "secretMappings")?.iter().enumerate();
    let secrets = mappings.map(|(index, mapping)| secret_mapping(&identity.name, mapping, index));
    Ok(Header {
        behavior: word(spec, "applyBehavior", &behaviors)?,
        mode: mode(spec)?,
        resource_templates: boolean(spec, "enableResourceTemplates")?,
        patch_templates: boolean(spec, "enablePatchTemplates")?,
        secrets: secrets.collect::<Result<_, _>>()?,
        health: health(spec),
        id: identity.id,
        name: identity.name,
        version: identity.version,
        generation: identity.generation,
    })
}

/// Nothing that is sent depends on it, so what another release has written there is no failure.
fn health(spec: &Value) -> Option<Settings> {
    let health = spec.get("health").filter(|health| health.is_object())?;
    let within = health.get("within").and_then(health_within).unwrap_or(HEALTH_WITHIN.0);
    let rules = health.get("rules").and_then(Value::as_array).into_iter().flatten();
    let rule = |rule: &Value| {
        let text = |field: &str| rule.get(field).and_then(Value::as_str).map(str::to_owned);
        Some(Rule {
            group: text("group").unwrap_or_default(),
            kind: text("kind")?,
            current: text("current")?,
            failed: text("failed"),
        })
    };
    Some(Settings { within, rules: rules.filter_map(rule).collect() })
}

/// Reads resources and patches from `spec`. Resources are looked at only when they are rendered.
pub fn payload(spec: &Value) -> Result<Payload, Failure> {
    let patches = list(spec, "patches")?.iter().enumerate();
    Ok(Payload {
        resources: list(spec, "resources")?.to_vec(),
        patches: patches.map(|(index, value)| patch(value, index)).collect::<Result<_, _>>()?,
    })
}

/// Reads what becomes of objects that the syncset no longer wants.
pub(super) fn mode(spec: &Value) -> Result<Mode, Failure> {
    word(spec, "resourceApplyMode", &[("Upsert", Mode::Upsert), ("Sync", Mode::Sync)])
}

fn secret_mapping(syncset: &SyncSetName, mapping: &Value, index: usize) -> Result<SecretMapping, Failure> {
    let reference = |field: &str| {
        let place = format!("secret {index}");
        let reference = mapping.get(field).filter(|value| value.is_object());
        let reference =
            reference.ok_or_else(|| invalid(&format!("{place}: {field}"), mapping.get(field), "an object"))?;
        let place = format!("{place}: {field}.");
        let name = required(reference, "name", &place)?;
        let namespace = text(reference, "namespace", &place)?.unwrap_or_default();
        check_segment(&name, &place, "name")?;
        check_segment(&namespace, &place, "namespace")?;
        Ok((namespace, name))
    };
    let (source_namespace, source_name) = reference("sourceRef")?;
    let (target_namespace, target_name) = reference("targetRef")?;
    let is_own = source_namespace.is_empty() && syncset.kind == SyncSetKind::SyncSet;
    let source_namespace = if is_own { syncset.namespace.clone() } else { source_namespace };
    let metadata = match mapping.get("secretMetadata") {
        None | Some(Value::Null) => Vec::new(),
        Some(listed) => serde_json::from_value(listed.clone())
            .map_err(|_| invalid(&format!("secret {index}: secretMetadata"), Some(listed), "a list of texts"))?,
    };
    Ok(SecretMapping { source_namespace, source_name, target_namespace, target_name, metadata })
}

fn patch(value: &Value, index: usize) -> Result<Patch, Failure> {
    let place = format!("patch {index}: ");
    if !value.is_object() {
        return Err(invalid(&format!("patch {index}"), Some(value), "an object"));
    }
    let types = [("strategic", PatchType::Strategic), ("merge", PatchType::Merge), ("json", PatchType::Json)];
    let patch = Patch {
        api_version: required(value, "apiVersion", &place)?,
        kind: required(value, "kind", &place)?,
        namespace: text(value, "namespace", &place)?.unwrap_or_default(),
        name: required(value, "name", &place)?,
        patch_type: word_at(value, "patchType", &types, &place)?,
        text: required(value, "patch", &place)?,
    };
    let group = group_of(&patch.api_version);
    let wrong = |field: &str, found: &str, allowed: &str| Err(invalid_text(&format!("{place}{field}"), found, allowed));
    match group {
        None => return wrong("apiVersion", &quoted(&patch.api_version), "a version such as \"v1\" or \"apps/v1\""),
        Some(_) if !is_kind(&patch.kind) => {
            return wrong("kind", &quoted(&patch.kind), "a kind of at most 63 characters");
        }
        Some(group) if is_forbidden_kind(group, &patch.kind) => {
            return wrong("kind", &quoted(&patch.kind), "the kind of rbac.authorization.k8s.io");
        }
        Some(_) => {}
    }
    check_segment(&patch.name, &place, "name")?;
    check_segment(&patch.namespace, &place, "namespace")?;
    Ok(patch)
}

/// Refuses what can't be part of a request's path. A namespace may be absent.
fn check_segment(text: &str, parent: &str, field: &str) -> Result<(), Failure> {
    let is_absent = text.is_empty() && field == "namespace";
    if is_absent || is_path_segment(text) {
        return Ok(());
    }
    Err(invalid_text(&format!("{parent}{field}"), &quoted(text), PATH_SEGMENT))
}

/// A field of `spec` that is there.
pub(super) fn field<'v>(spec: &'v Value, name: &str) -> Result<Option<&'v Value>, Failure> {
    let spec = spec.as_object().ok_or_else(|| invalid("spec", Some(spec), "an object"))?;
    Ok(spec.get(name).filter(|value| !value.is_null()))
}

/// A list of `spec`, which has to be there.
pub(super) fn list<'v>(spec: &'v Value, name: &str) -> Result<&'v [Value], Failure> {
    match field(spec, name)? {
        Some(Value::Array(elements)) => Ok(elements),
        other => Err(invalid(&format!("spec.{name}"), other, "a list")),
    }
}

fn word<T: Copy>(spec: &Value, name: &str, words: &[(&str, T)]) -> Result<T, Failure> {
    field(spec, name)?;
    word_at(spec, name, words, "spec.")
}

/// The meaning of one of these words: of the first if there is none.
fn word_at<T: Copy>(fields: &Value, name: &str, words: &[(&str, T)], parent: &str) -> Result<T, Failure> {
    let value = fields.get(name).filter(|value| !value.is_null());
    let found = words.iter().find(|(word, _)| value.is_none_or(|value| value == word));
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        invalid(&format!("{parent}{name}"), value, &known.join(", "))
    })
}

fn boolean(spec: &Value, name: &str) -> Result<bool, Failure> {
    match field(spec, name)? {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        other => Err(invalid(&format!("spec.{name}"), other, "true, false")),
    }
}

fn text(fields: &Value, name: &str, parent: &str) -> Result<Option<String>, Failure> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        other => Err(invalid(&format!("{parent}{name}"), other, "a string")),
    }
}

fn required(fields: &Value, name: &str, parent: &str) -> Result<String, Failure> {
    let text = text(fields, name, parent)?.filter(|text| !text.is_empty());
    text.ok_or_else(|| invalid(&format!("{parent}{name}"), fields.get(name), "a string that is not empty"))
}

/// The failure of a syncset that can't be read.
pub fn invalid(place: &str, found: Option<&Value>, allowed: &str) -> Failure {
    invalid_text(place, &found.map_or_else(|| "missing".to_owned(), described), allowed)
}

/// The same, with what was found as text.
pub(super) fn invalid_text(place: &str, found: &str, allowed: &str) -> Failure {
    Failure {
        reason: Reason::ResourceInvalid,
        message: format!("failed to decode {place}: {found}; allowed: {allowed}"),
    }
}

#[cfg(test)]
mod tests;

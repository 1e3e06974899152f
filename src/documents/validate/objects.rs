//! The objects that syncsets send to clusters: their identity, and what must not be in them.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::faults::Faults;
use super::fields::{object, required, text};
use super::pointers;
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::config::names::{LONGEST_LABEL, LONGEST_SUBDOMAIN};
use crate::config::text::{described, quoted};
use crate::documents::body::Path;
use crate::documents::patch_text::{OWNERLESS, has_owners};
use crate::documents::template::Template;
use crate::yaml::unescape;

/// The group whose role kinds `OpenShift` keeps for compatibility; its API server creates them from those of `rbac.authorization.k8s.io`.
const FORBIDDEN_GROUP: &str = "authorization.openshift.io";
const FORBIDDEN_KINDS: [&str; 5] = ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "SubjectAccessReview"];

/// Kinds of every cluster that have namespaces, by group. Of others only the cluster knows.
const NAMESPACED: [(&str, &[&str]); 11] = [
    (
        "",
        &[
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ],
    ),
    ("apps", &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    ("autoscaling", &["HorizontalPodAutoscaler"]),
    ("batch", &["CronJob", "Job"]),
    ("coordination.k8s.io", &["Lease"]),
    ("discovery.k8s.io", &["EndpointSlice"]),
    ("events.k8s.io", &["Event"]),
    ("networking.k8s.io", &["Ingress", "NetworkPolicy"]),
    ("policy", &["PodDisruptionBudget"]),
    ("rbac.authorization.k8s.io", &["Role", "RoleBinding"]),
    ("storage.k8s.io", &["CSIStorageCapacity"]),
];

/// What names and namespaces in paths of requests have to be.
pub const PATH_SEGMENT: &str = "a name of at most 253 characters that is not \".\" or \"..\" and has no / and no %";

/// The fields of a core Secret with its values.
const VALUES: [&str; 2] = ["data", "stringData"];
/// Stands for them where a syncset is shown.
const NOT_SHOWN: &str = "(not shown)";
/// What a syncset has instead of them.
pub(super) const NO_VALUES: &str =
    "secretMappings, which copy a Secret of this hub: its values are stored encrypted, and a syncset is not";

/// The objects of a syncset that have been read, with the place of each.
#[derive(Default)]
pub(super) struct Seen(HashMap<(String, String, String, String), String>);

impl Seen {
    /// Notes an object by group, kind, namespace and name, and adds a fault if it occurs twice.
    pub(super) fn note(
        &mut self,
        (group, kind, namespace, name): (&str, &str, &str, &str),
        path: &Path<'_>,
        faults: &mut Faults,
    ) {
        let identity = (group.to_owned(), kind.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(first) = self.0.get(&identity) {
            let place = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
            let found = format!("{kind} {} again", quoted(&place));
            faults.add(path, found, format!("each object once; the first is at {first}"));
        } else {
            self.0.insert(identity, path.to_string());
        }
    }
}

/// Whether a text can be part of a request's path. With `.` and `..` the path would lead elsewhere, and without a name a deletion
/// would take the whole collection. It is part of an index's key, and Kubernetes has no longer names of nearly all kinds.
pub fn is_path_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text.len() <= LONGEST_SUBDOMAIN
        && !text.contains(|letter: char| matches!(letter, '/' | '%') || letter.is_control())
}

/// Whether a text can be the name of a kind, as long as Kubernetes allows.
pub fn is_kind(text: &str) -> bool {
    (1..=LONGEST_LABEL).contains(&text.len()) && !text.contains(char::is_control)
}

/// The API group of an `apiVersion`: `apps` of `apps/v1`, empty for `v1`. `None` if it has another form.
pub fn group_of(api_version: &str) -> Option<&str> {
    match api_version.split_once('/') {
        None => is_path_segment(api_version).then_some(""),
        Some((group, version)) => (is_path_segment(group) && is_path_segment(version)).then_some(group),
    }
}

/// Whether syncsets may not have objects of a kind.
pub fn is_forbidden_kind(group: &str, kind: &str) -> bool {
    group == FORBIDDEN_GROUP && FORBIDDEN_KINDS.contains(&kind)
}

pub(super) fn resources(
    resources: &[Value],
    parent: &Path<'_>,
    are_templates: bool,
    seen: &mut Seen,
    faults: &mut Faults,
) {
    let resources_path = parent.field("resources");
    for (index, resource) in resources.iter().enumerate() {
        let path = resources_path.element(index);
        let Some(fields) = object(resource, &path, faults) else {
            continue;
        };
        directives(resource, &path, faults);
        if are_templates {
            for (field, value) in fields.iter().filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "kind")) {
                templates(value, &path.field(field), faults);
            }
        }
        if fields.get("items").is_some_and(Value::is_array) || fields.get("kind").is_some_and(|kind| kind == "List") {
            faults.add(&path, "a list of objects", "one object an element");
            continue;
        }
        let group_and_kind = group_and_kind(fields, &path, faults);
        if group_and_kind == Some(SECRET) {
            values_of_a_secret(fields, &path, faults);
        }
        let metadata_path = path.field("metadata");
        let Some(metadata) = fields.get("metadata") else {
            faults.add(&metadata_path, "missing", "an object with a name");
            continue;
        };
        let Some(metadata) = object(metadata, &metadata_path, faults) else {
            continue;
        };
        for field in ["labels", "annotations"] {
            texts(metadata, field, &metadata_path, faults);
        }
        if metadata.get("ownerReferences").is_some_and(has_owners) {
            faults.add(&metadata_path.field("ownerReferences"), "owners of the object", OWNERLESS);
        }
        pointers::check(metadata, &metadata_path, are_templates, faults);
        let name = name(metadata, &metadata_path, are_templates, faults);
        let namespace = namespace(metadata, &metadata_path, are_templates, faults);
        if let (Some((group, kind)), Some(name)) = (group_and_kind, name) {
            seen.note((group, kind, namespace.unwrap_or_default(), name), &path, faults);
        }
    }
}

/// Adds a fault for each object without a namespace whose kind has one on each cluster: its syncset would fail on all of them.
pub(super) fn namespaces(resources: &[Value], parent: &Path<'_>, faults: &mut Faults) {
    let resources_path = parent.field("resources");
    for (index, resource) in resources.iter().enumerate() {
        let text = |field: &str| resource.get(field).and_then(Value::as_str);
        let (Some(group), Some(kind)) = (text("apiVersion").and_then(group_of), text("kind")) else { continue };
        let Some(metadata) = resource.get("metadata").and_then(Value::as_object) else { continue };
        let is_left_out = metadata.get("namespace").is_none_or(|found| found.is_null() || found == "");
        if is_left_out && NAMESPACED.iter().any(|(of, kinds)| *of == group && kinds.contains(&kind)) {
            let allowed = format!("a namespace of the clusters: a {kind} has one, and none is assumed");
            let path = resources_path.element(index);
            faults.add(&path.field("metadata").field("namespace"), "missing", allowed);
        }
    }
}

/// The group and the kind of Secrets.
pub(super) const SECRET: (&str, &str) = ("", "Secret");

/// Adds a fault for each field of a Secret that has values, the copy of the object among them that `kubectl apply` makes.
fn values_of_a_secret(fields: &Map<String, Value>, path: &Path<'_>, faults: &mut Faults) {
    for field in VALUES.into_iter().filter(|field| fields.get(*field).is_some_and(has_values)) {
        faults.add(&path.field(field), "values of a Secret", NO_VALUES);
    }
    if fields.get("metadata").is_some_and(has_copy) {
        let path = path.field("metadata");
        let path = path.field("annotations");
        faults.add(&path.field(LAST_APPLIED), "a copy of a Secret", NO_VALUES);
    }
}

/// Whether `data` or `stringData` have something. Members that are null are none.
fn has_values(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => fields.values().any(|value| !value.is_null()),
        _ => true,
    }
}

/// Whether an object's `metadata` has the copy of the object that `kubectl apply` makes.
fn has_copy(metadata: &Value) -> bool {
    metadata
        .get("annotations")
        .and_then(|annotations| annotations.get(LAST_APPLIED))
        .is_some_and(|copy| !copy.is_null())
}

/// Whether an object is a core Secret, or a patch of one.
fn is_secret(fields: &Map<String, Value>) -> bool {
    let text = |field: &str| fields.get(field).and_then(Value::as_str).unwrap_or_default();
    text("kind") == SECRET.1 && !text("apiVersion").contains('/')
}

/// A part of a syncset as it may be shown: what core Secrets in it have as values is replaced. New syncsets have none.
pub fn without_secret_values(part: &Value) -> Cow<'_, Value> {
    if !has_secret(part) {
        return Cow::Borrowed(part);
    }
    let mut part = part.clone();
    hide_values(&mut part);
    Cow::Owned(part)
}

fn has_secret(part: &Value) -> bool {
    match part {
        Value::Object(fields) => is_secret(fields) || fields.values().any(has_secret),
        Value::Array(elements) => elements.iter().any(has_secret),
        _ => false,
    }
}

fn hide_values(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            if is_secret(fields) {
                for field in VALUES.into_iter().chain(["patch"]) {
                    fields.get_mut(field).map(|value| std::mem::replace(value, NOT_SHOWN.into()));
                }
                let metadata = fields.get_mut("metadata");
                let annotations = metadata.and_then(|metadata| metadata.get_mut("annotations"));
                let copy = annotations.and_then(|annotations| annotations.get_mut(LAST_APPLIED));
                copy.map(|copy| std::mem::replace(copy, NOT_SHOWN.into()));
            }
            fields.values_mut().for_each(hide_values);
        }
        Value::Array(elements) => elements.iter_mut().for_each(hide_values),
        _ => {}
    }
}

/// Whether a patch of a Secret has values of it, or brings them to their place.
pub(super) fn patches_values(patch: &Value) -> bool {
    let are_in = |part: &Value| {
        VALUES.iter().any(|field| part.get(*field).is_some_and(has_values))
            || part.get("metadata").is_some_and(has_copy)
    };
    let Some(operations) = patch.as_array() else { return are_in(patch) };
    operations.iter().any(|operation| {
        let text = |field: &str| operation.get(field).and_then(Value::as_str).unwrap_or_default();
        let value = operation.get("value").unwrap_or(&Value::Null);
        let place: Vec<&str> = text("path").split('/').skip(1).collect();
        match place.as_slice() {
            _ if text("op") == "remove" => false,
            [] => are_in(value),
            [field, ..] if VALUES.contains(field) => true,
            ["metadata"] => has_copy(value),
            ["metadata", "annotations"] => value.get(LAST_APPLIED).is_some(),
            ["metadata", "annotations", key] => unescape(key).is_some_and(|key| key == LAST_APPLIED),
            _ => false,
        }
    })
}

/// Checks that the values of labels or annotations are texts. Those that are null are left out when the object is sent.
fn texts(metadata: &Map<String, Value>, field: &str, parent: &Path<'_>, faults: &mut Faults) {
    let path = parent.field(field);
    let Some(values) = metadata.get(field).filter(|values| !values.is_null()) else { return };
    for (key, value) in object(values, &path, faults).into_iter().flatten() {
        if !(value.is_string() || value.is_null()) {
            faults.add(&path.field(key), described(value), "a string: write the value in quotes");
        }
    }
}

/// API group and kind of an object, or of the object that a patch is for.
pub(super) fn group_and_kind<'v>(
    fields: &'v Map<String, Value>,
    path: &Path<'_>,
    faults: &mut Faults,
) -> Option<(&'v str, &'v str)> {
    let version = required(fields, "apiVersion", path, faults);
    let kind = required(fields, "kind", path, faults);
    let (version, kind) = (version?, kind?);
    let Some(group) = group_of(version) else {
        faults.add(&path.field("apiVersion"), quoted(version), "a version such as \"v1\" or \"apps/v1\"");
        return None;
    };
    if !is_kind(kind) {
        faults.add(&path.field("kind"), quoted(kind), "a kind of at most 63 characters");
        return None;
    }
    if is_forbidden_kind(group, kind) {
        let allowed = "the kind of rbac.authorization.k8s.io, or for reviews no syncset";
        faults.add(&path.field("kind"), format!("{kind} of {group}"), allowed);
        return None;
    }
    Some((group, kind))
}

/// The name of an object. One that a template makes is checked again when it is rendered.
pub(super) fn name<'v>(
    fields: &'v Map<String, Value>,
    parent: &Path<'_>,
    is_template: bool,
    faults: &mut Faults,
) -> Option<&'v str> {
    let name = required(fields, "name", parent, faults)?;
    if is_path_segment(name) || is_template && name.contains("{{") {
        return Some(name);
    }
    faults.add(&parent.field("name"), quoted(name), PATH_SEGMENT);
    None
}

/// The namespace of an object, if it has one.
pub(super) fn namespace<'v>(
    fields: &'v Map<String, Value>,
    parent: &Path<'_>,
    is_template: bool,
    faults: &mut Faults,
) -> Option<&'v str> {
    let namespace = text(fields, "namespace", parent, faults).filter(|namespace| !namespace.is_empty())?;
    if !(is_path_segment(namespace) || is_template && namespace.contains("{{")) {
        faults.add(&parent.field("namespace"), quoted(namespace), PATH_SEGMENT);
    }
    Some(namespace)
}

/// Checks the texts of a value as templates; keys are none.
fn templates(value: &Value, path: &Path<'_>, faults: &mut Faults) {
    match value {
        Value::String(text) => template(text, path, faults),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| templates(value, &path.field(key), faults)),
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                templates(element, &path.element(index), faults);
            }
        }
        _ => {}
    }
}

/// Checks a text as a template.
pub(super) fn template(text: &str, path: &Path<'_>, faults: &mut Faults) {
    if let Err(error) = Template::parse(text) {
        faults.add(
            path,
            format!("a text that is no template: {error}"),
            "literals, variables and known functions in {{ }}",
        );
    }
}

/// Finds keys that strategic merge patches obey instead of setting them, anywhere in an object.
fn directives(value: &Value, path: &Path<'_>, faults: &mut Faults) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = path.field(key);
                if is_directive(key) {
                    faults.add(&path, "a directive of strategic merge patches", "fields of the object");
                }
                directives(value, &path, faults);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                directives(element, &path.element(index), faults);
            }
        }
        _ => {}
    }
}

/// Whether a strategic merge patch obeys a key instead of setting it.
pub fn is_directive(key: &str) -> bool {
    matches!(key, "$patch" | "$retainKeys")
        || key.starts_with("$setElementOrder/")
        || key.starts_with("$deleteFromPrimitiveList/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_a_path_and_short_enough_for_an_index() {
        let (long, longer) = ("a".repeat(LONGEST_SUBDOMAIN), "a".repeat(LONGEST_SUBDOMAIN + 1));
        assert!(["a", "a.b", "system:node", long.as_str()].into_iter().all(is_path_segment));
        assert!(!["", ".", "..", "a/b", "a%b", "a\nb", "a\u{0}", longer.as_str()].into_iter().any(is_path_segment));
        assert!(is_kind("ConfigMap") && is_kind(&"K".repeat(LONGEST_LABEL)));
        assert!(!is_kind("") && !is_kind("A\n") && !is_kind(&"K".repeat(LONGEST_LABEL + 1)));
    }
}

//! Own fields of syncsets: `spec`, which says what goes to which clusters.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::faults::Faults;
use super::fields::{boolean, list, object, required, text, word};
use super::objects::{PATH_SEGMENT, Seen, is_kind, is_path_segment};
use super::rollout::{ROLLOUT, rollout};
use super::{Draft, objects, patches, selector};
use crate::cluster::tool_marks::{KEY_PATTERN, is_key_pattern};
use crate::config::names::is_subdomain;
use crate::config::text::{described, kind_of, quoted};
use crate::documents::body::Path;
use crate::documents::document::{Document, Key};
use crate::documents::kind::Kind;
use crate::documents::namespace_pattern::NamespacePattern;
use crate::expression::Expression;

/// Most clusters that a syncset names, and most patterns of namespaces.
const MOST: usize = 10_000;
/// Most resources of a syncset.
const RESOURCES: usize = 1_000;
/// Most patches, and most secret mappings.
const FEW: usize = 200;

/// The labels and annotations of a mapped secret that its copy gets.
const SECRET_METADATA: &str = "secretMetadata";
/// Most patterns for them.
const METADATA_PATTERNS: usize = 64;

/// Whether the health of what a syncset sends is read: `{"within": "10m", "rules": […]}`.
const HEALTH: &str = "health";
/// Most rules for kinds.
const HEALTH_RULES: usize = 20;
/// How long its objects may take to become current: the default, the least and the most.
pub const HEALTH_WITHIN: (Duration, RangeInclusive<Duration>) =
    (Duration::from_mins(10), Duration::from_mins(1)..=Duration::from_hours(24));

const COMMON: [&str; 9] = [
    "applyBehavior",
    "resourceApplyMode",
    "enableResourceTemplates",
    "enablePatchTemplates",
    "resources",
    "patches",
    "secretMappings",
    HEALTH,
    ROLLOUT,
];

/// A field and its other name.
pub(in crate::documents) type Alias = (&'static str, &'static str);
const REFS: Alias = ("clusterDeploymentRefs", "clusterRefs");
const SELECTOR: Alias = ("clusterDeploymentSelector", "clusterSelector");
const NAMESPACES: &str = "clusterNamespaces";

/// The field of a kind's `spec` that has another name, and that name.
pub(in crate::documents) fn alias(kind: Kind) -> Option<Alias> {
    match kind {
        Kind::SyncSet => Some(REFS),
        Kind::SelectorSyncSet => Some(SELECTOR),
        Kind::Cluster | Kind::Secret | Kind::ClusterSync => None,
    }
}

type Terms = Option<Vec<(String, String)>>;

/// Checks `spec`, fills in defaults, and returns the fields with the terms of the selector.
pub(super) fn fields(
    key: &Key,
    mut fields: Map<String, Value>,
    is_new: bool,
    faults: &mut Faults,
) -> (Map<String, Value>, Terms) {
    let path = Path::Root.field("spec");
    let mut spec = match fields.remove("spec") {
        None => Map::new(),
        Some(Value::Object(spec)) => spec,
        Some(other) => {
            faults.add(&path, kind_of(&other), "an object");
            Map::new()
        }
    };
    spec.retain(|_, value| !value.is_null());
    let is_selecting = key.kind == Kind::SelectorSyncSet;
    let alias = if is_selecting { SELECTOR } else { REFS };
    let mut known = [&COMMON[..], &[alias.0, alias.1]].concat();
    if is_selecting {
        known.push(NAMESPACES);
    }
    faults.unknown_fields(&spec, &path, &known);
    resolve(alias, &mut spec, &path, faults);

    let words = |name, words: &[&'static str], faults: &mut Faults| json!(word(&spec, name, words, &path, faults));
    let behavior = words("applyBehavior", &["Apply", "CreateOnly", "CreateOrUpdate"], faults);
    let mode = words("resourceApplyMode", &["Upsert", "Sync"], faults);
    let are_resources_templates = boolean(&spec, "enableResourceTemplates", &path, faults);
    let are_patches_templates = boolean(&spec, "enablePatchTemplates", &path, faults);
    let mut seen = Seen::default();
    let resources = list(&spec, "resources", RESOURCES, &path, faults);
    objects::resources(resources, &path, are_resources_templates, &mut seen, faults);
    if is_new {
        objects::namespaces(resources, &path, faults);
    }
    let secrets = list(&spec, "secretMappings", FEW, &path, faults);
    let mappings = secret_mappings(secrets, &path, key, &mut seen, faults);
    let patches = list(&spec, "patches", FEW, &path, faults);
    let patches = patches::patches(patches, &path, are_patches_templates, faults);
    let terms = if is_selecting {
        cluster_namespaces(&spec, &path, faults);
        // The default is not filled in, so that mappings that are added later don't go by it either.
        if mappings.as_array().is_some_and(|mappings| !mappings.is_empty()) && !spec.contains_key(NAMESPACES) {
            let allowed = "the namespaces whose clusters may receive the secrets: whoever may write clusters and their labels there can \
                           obtain them; [\"*\"] for all";
            faults.add(&path.field(NAMESPACES), "missing beside secretMappings", allowed);
        }
        let selector = spec.entry(SELECTOR.0).or_insert_with(|| json!({}));
        let path = path.field(SELECTOR.0);
        let selector = object(selector, &path, faults);
        selector.map(|selector| selector::terms(&selector::requirements(selector, &path, faults)))
    } else {
        spec.entry(REFS.0).or_insert_with(|| json!([]));
        cluster_refs(&spec, &path, faults);
        None
    };
    health(&mut spec, &path, faults);
    rollout(&mut spec, &path, faults);
    spec.insert("applyBehavior".to_owned(), behavior);
    spec.insert("resourceApplyMode".to_owned(), mode);
    spec.insert("enableResourceTemplates".to_owned(), json!(are_resources_templates));
    spec.insert("enablePatchTemplates".to_owned(), json!(are_patches_templates));
    spec.entry("resources").or_insert_with(|| json!([]));
    spec.insert("secretMappings".to_owned(), mappings);
    spec.insert("patches".to_owned(), patches);
    (Map::from_iter([("spec".to_owned(), Value::Object(spec))]), terms)
}

/// Checks what a stored syncset may have from before it was refused, where a change is about it. One that is being deleted may go as it is.
pub(in crate::documents) fn check_changed(present: &Document, draft: &Draft, faults: &mut Faults) {
    let [before, after] =
        [&present.data, &draft.data].map(|data| data.get("spec").and_then(|spec| spec.get("resources")));
    if let Some(Value::Array(after)) = after.filter(|_| present.deleted_at.is_none() && before != after) {
        objects::namespaces(after, &Path::Root.field("spec"), faults);
    }
}

fn health(spec: &mut Map<String, Value>, parent: &Path<'_>, faults: &mut Faults) {
    let path = parent.field(HEALTH);
    let Some(fields) = spec.get(HEALTH).and_then(|health| object(health, &path, faults)) else { return };
    faults.unknown_fields(fields, &path, &["within", "rules"]);
    let within = fields.get("within").filter(|within| !within.is_null());
    if let Some(within) = within.filter(|within| health_within(within).is_none()) {
        faults.add(&path.field("within"), described(within), "a duration from \"1m\" to \"24h\"");
    }
    let default = || json!(humantime::format_duration(HEALTH_WITHIN.0).to_string());
    let mut filled = Map::from_iter([("within".to_owned(), within.cloned().unwrap_or_else(default))]);
    let rules = list(fields, "rules", HEALTH_RULES, &path, faults);
    health_rules(rules, &path.field("rules"), faults);
    if !rules.is_empty() {
        filled.insert("rules".to_owned(), json!(rules));
    }
    spec.insert(HEALTH.to_owned(), Value::Object(filled));
}

/// `{"group": "db.example.com", "kind": "Postgres", "current": "status.phase == 'ready'", "failed": "status.phase == 'dead'"}`.
fn health_rules(rules: &[Value], rules_path: &Path<'_>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let path = rules_path.element(index);
        let Some(fields) = object(rule, &path, faults) else { continue };
        faults.unknown_fields(fields, &path, &["group", "kind", "current", "failed"]);
        let group = text(fields, "group", &path, faults).unwrap_or_default();
        if !group.is_empty() && !is_path_segment(group) {
            faults.add(&path.field("group"), quoted(group), PATH_SEGMENT);
        }
        if let Some(kind) = required(fields, "kind", &path, faults) {
            if !is_kind(kind) {
                faults.add(&path.field("kind"), quoted(kind), "the name of a kind");
            } else if (group, kind) == ("", "Secret") {
                faults.add(&path.field("kind"), "\"Secret\"", "another kind: Secrets are never read");
            } else if !seen.insert((group, kind)) {
                faults.add(&path.field("kind"), format!("a second rule for {}", quoted(kind)), "one rule for a kind");
            }
        }
        let current = required(fields, "current", &path, faults).map(|text| ("current", text));
        let failed = text(fields, "failed", &path, faults).map(|text| ("failed", text));
        for (field, text) in current.into_iter().chain(failed) {
            if let Err(error) = Expression::parse(text) {
                faults.add(&path.field(field), error, Expression::ALLOWED);
            }
        }
    }
}

/// Reads `spec.health.within`.
pub fn health_within(value: &Value) -> Option<Duration> {
    let within = humantime::parse_duration(value.as_str()?).ok()?;
    HEALTH_WITHIN.1.contains(&within).then_some(within)
}

/// Gives a field its first name, in a document or in a patch.
pub(in crate::documents) fn resolve(
    (name, alias): Alias,
    spec: &mut Map<String, Value>,
    path: &Path<'_>,
    faults: &mut Faults,
) {
    let Some(value) = spec.remove(alias) else {
        return;
    };
    if spec.contains_key(name) {
        faults.add(&path.field(alias), format!("{alias} beside {name}"), "one of the two: they mean the same");
    } else {
        spec.insert(name.to_owned(), value);
    }
}

fn cluster_refs(spec: &Map<String, Value>, parent: &Path<'_>, faults: &mut Faults) {
    let refs = parent.field(REFS.0);
    for (index, reference) in list(spec, REFS.0, MOST, parent, faults).iter().enumerate() {
        let path = refs.element(index);
        let Some(reference) = object(reference, &path, faults) else {
            continue;
        };
        faults.unknown_fields(reference, &path, &["name"]);
        if let Some(name) = required(reference, "name", &path, faults)
            && !is_subdomain(name)
        {
            faults.add(&path.field("name"), quoted(name), "the name of a cluster of the syncset's namespace");
        }
    }
}

/// Names, prefixes with `*`, and `*`.
fn cluster_namespaces(spec: &Map<String, Value>, parent: &Path<'_>, faults: &mut Faults) {
    let path = parent.field(NAMESPACES);
    for (index, pattern) in list(spec, NAMESPACES, MOST, parent, faults).iter().enumerate() {
        if pattern.as_str().and_then(NamespacePattern::parse).is_none() {
            faults.add(&path.element(index), described(pattern), NamespacePattern::ALLOWED);
        }
    }
}

/// Checks the mappings of secrets, and fills in the namespace of a syncset's sources, which is always its own.
fn secret_mappings(mappings: &[Value], parent: &Path<'_>, key: &Key, seen: &mut Seen, faults: &mut Faults) -> Value {
    let mappings_path = parent.field("secretMappings");
    let mut checked = Vec::with_capacity(mappings.len());
    for (index, mapping) in mappings.iter().enumerate() {
        let path = mappings_path.element(index);
        let Some(fields) = object(mapping, &path, faults) else {
            continue;
        };
        faults.unknown_fields(fields, &path, &["sourceRef", "targetRef", SECRET_METADATA]);
        let patterns = list(fields, SECRET_METADATA, METADATA_PATTERNS, &path, faults);
        let patterns_path = path.field(SECRET_METADATA);
        for (index, pattern) in patterns.iter().enumerate() {
            if !pattern.as_str().is_some_and(is_key_pattern) {
                faults.add(&patterns_path.element(index), described(pattern), KEY_PATTERN);
            }
        }
        let source = secret_ref(fields, "sourceRef", &path, faults);
        let namespace_path = path.field("sourceRef");
        let namespace_path = namespace_path.field("namespace");
        let namespace = source.and_then(|(_, namespace)| namespace);
        match (key.kind.is_namespaced(), namespace) {
            (true, Some(namespace)) if namespace != key.namespace => {
                let allowed = format!("{:?}, the namespace of the syncset, or none", key.namespace);
                faults.add(&namespace_path, quoted(namespace), allowed);
            }
            (false, None) if source.is_some() => {
                faults.add(&namespace_path, "missing", "a namespace: a SelectorSyncSet has none of its own");
            }
            _ => {}
        }
        if let Some((name, namespace)) = secret_ref(fields, "targetRef", &path, faults) {
            let target = path.field("targetRef");
            seen.note(("", "Secret", namespace.unwrap_or_default(), name), &target, faults);
        }
        let mut filled = mapping.clone();
        if key.kind.is_namespaced()
            && let Some(source) = filled.get_mut("sourceRef").and_then(Value::as_object_mut)
        {
            source.insert("namespace".to_owned(), json!(key.namespace));
        }
        checked.push(filled);
    }
    Value::Array(checked)
}

/// Name and namespace of a secret.
fn secret_ref<'v>(
    mapping: &'v Map<String, Value>,
    field: &str,
    parent: &Path<'_>,
    faults: &mut Faults,
) -> Option<(&'v str, Option<&'v str>)> {
    let path = parent.field(field);
    let Some(reference) = mapping.get(field).filter(|value| !value.is_null()) else {
        faults.add(&path, "missing", "an object with the name of a secret");
        return None;
    };
    let reference = object(reference, &path, faults)?;
    faults.unknown_fields(reference, &path, &["name", "namespace"]);
    let namespace = objects::namespace(reference, &path, false, faults);
    let name = required(reference, "name", &path, faults)?;
    if !is_path_segment(name) {
        faults.add(&path.field("name"), quoted(name), objects::PATH_SEGMENT);
        return None;
    }
    Some((name, namespace))
}

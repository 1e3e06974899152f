//! What a manifest lists of objects that do not name their release: charts that are older than the label with its name, or set it
//! otherwise. Only names are kept.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::Value;

use crate::inventory::plan::contents::{INSTANCE, entry, entry_of_claims};
use crate::yaml;

/// The kinds that are reported, and those that make pods.
const KINDS: [&str; 11] = [
    "Pod",
    "Service",
    "PersistentVolumeClaim",
    "Ingress",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "ReplicationController",
];
/// The most bytes that are built of one object.
const LARGEST: usize = 1 << 20;
/// The most entries of a release: whoever may write Secrets can forge a manifest.
const MOST: usize = 200;
/// The longest entry: a kind, and the name of an object.
const LONGEST: usize = 300;

/// An object of these kinds.
#[derive(Debug)]
struct Listed {
    /// How a release is found by it.
    entries: Vec<String>,
    namespace: Option<String>,
    /// The release that it, or what it makes, names in a label.
    instance: Option<String>,
}

/// The objects of these kinds in a manifest, in its order.
#[derive(Debug, Default)]
pub(super) struct Manifest(Vec<Listed>);

impl Manifest {
    fn of(text: &str) -> Self {
        let documents = text.split("\n---").filter(|document| KINDS.iter().any(|kind| document.contains(kind)));
        // What a chart writes in a way that can't be read is left out.
        let read = documents.flat_map(|document| yaml::all::<Value>(document, LARGEST).unwrap_or_default());
        Self(read.filter_map(|object| Listed::of(&object)).collect())
    }

    /// What belongs to a release and does not name it. Objects in other namespaces than its own are not reported.
    pub(super) fn unlabelled(self, release: &str, namespace: Option<&str>) -> BTreeSet<Arc<str>> {
        let is_here = |listed: &Listed| listed.namespace.as_deref().is_none_or(|other| Some(other) == namespace);
        let is_unnamed = |listed: &Listed| listed.instance.as_deref() != Some(release);
        let unlabelled = self.0.into_iter().filter(|listed| is_here(listed) && is_unnamed(listed));
        unlabelled.flat_map(|listed| listed.entries).take(MOST).map(Arc::from).collect()
    }
}

impl Listed {
    fn of(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let (kind, name) = (text("/kind").filter(|kind| KINDS.contains(kind))?, text("/metadata/name")?);
        let labels = match kind {
            "Pod" | "Service" | "PersistentVolumeClaim" | "Ingress" => "/metadata/labels",
            "CronJob" => "/spec/jobTemplate/spec/template/metadata/labels",
            _ => "/spec/template/metadata/labels",
        };
        let instance = object.pointer(labels).and_then(|labels| labels.get(INSTANCE)).and_then(Value::as_str);
        let templates = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).into_iter().flatten();
        let claims = templates.filter_map(|template| template.pointer("/metadata/name")?.as_str());
        let claims = claims.map(|claim| entry_of_claims(&format!("{claim}-{name}")));
        let entries = [entry(kind, name)].into_iter().chain(claims).filter(|entry| entry.len() <= LONGEST);
        Some(Self {
            entries: entries.collect(),
            namespace: text("/metadata/namespace").map(str::to_owned),
            instance: instance.map(str::to_owned),
        })
    }
}

/// Reads it while the record is read, so that its text is not held a second time.
impl<'de> Deserialize<'de> for Manifest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfText;
        impl Visitor<'_> for OfText {
            type Value = Manifest;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a manifest")
            }

            fn visit_str<E>(self, text: &str) -> Result<Manifest, E> {
                Ok(Manifest::of(text))
            }

            fn visit_unit<E>(self) -> Result<Manifest, E> {
                Ok(Manifest::default())
            }
        }
        deserializer.deserialize_any(OfText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlabelled(text: &str) -> Vec<String> {
        Manifest::of(text).unlabelled("web", Some("apps")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_names_another_release_or_none_is_listed_with_what_it_makes() {
        let manifest = "---\n# Source: a.yaml\nkind: Deployment\nmetadata: {name: old}\nspec:\n  template:\n    metadata: {labels: {release: web}}\n\
            ---\nkind: Deployment\nmetadata: {name: new}\nspec: {template: {metadata: {labels: {app.kubernetes.io/instance: web}}}}\n\
            --- # a comment\nkind: \"StatefulSet\"\nmetadata: {name: db, namespace: apps}\nspec:\n  volumeClaimTemplates: [{metadata: {name: data}}]\n  \
            template: {metadata: {labels: {app.kubernetes.io/instance: web-db}}}\n\
            ---\n{\"kind\": \"CronJob\", \"metadata\": {\"name\": \"nightly\"}, \"spec\": {\"jobTemplate\": {\"spec\": {\"template\": {}}}}}\n\
            ---\nkind: Service\nmetadata: {name: http}\n\
            ---\nkind: Service\nmetadata: {name: far, namespace: other}\n\
            ---\nkind: Secret\nmetadata: {name: Deployment}\n\
            ---\nkind: Job\nmetadata: {name: [\n\
            ---\nkind: Pod\nmetadata: {name: one, labels: {app.kubernetes.io/instance: web}}\n";
        let expected =
            ["CronJob/nightly", "Deployment/old", "Service/http", "StatefulSet/db", "volumeClaimTemplates/data-db"];
        assert_eq!(unlabelled(manifest), expected);
    }

    #[test]
    fn a_forged_manifest_has_a_bounded_number_of_entries() {
        let pod = |number| format!("\n---\nkind: Pod\nmetadata: {{name: p-{number}}}");
        let manifest = (0..MOST + 100).map(pod).collect::<Vec<_>>().concat();
        assert_eq!(unlabelled(&manifest).len(), MOST);
        assert!(unlabelled(&format!("kind: Pod\nmetadata: {{name: {}}}", "a".repeat(LONGEST))).is_empty());
        assert!(unlabelled("kind: Pod\nmetadata: &a [*a, *a, *a]").is_empty());
    }
}

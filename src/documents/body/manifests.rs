//! The documents of an apply: JSON or YAML, in the form of the hub or of Kubernetes objects.

use std::fmt;

use serde_json::{Map, Value};

use super::reader::{Limits, json_sequence, yaml};
use super::{Body, extent_of_map};
use crate::config::text::{kind_of, quoted};
use crate::documents::kind::Kind;
use crate::documents::problem::{Fault, Problem, ProblemKind};

/// Most documents of one apply.
const MOST: usize = 1_000;
/// The group and version of Hive's manifests.
const HIVE: &str = "hive.openshift.io/v1";

#[derive(Clone, PartialEq)]
pub struct Manifest {
    pub kind: Kind,
    /// Its fields, as in the body of a POST.
    pub body: Body,
    /// The bytes of its text, of all that an apply has.
    pub bytes: usize,
}

impl fmt::Debug for Manifest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Manifest").field(&self.kind).field(&self.body).finish()
    }
}

/// Reads the documents of an apply from JSON: one object, a list of them, or several one after the other.
pub fn manifests_of_json(text: &[u8]) -> Result<Vec<Result<Manifest, Problem>>, Problem> {
    manifests(json_sequence(text, &Limits::document())?)
}

/// Reads the documents of an apply from YAML.
pub fn manifests_of_yaml(text: &[u8]) -> Result<Vec<Result<Manifest, Problem>>, Problem> {
    let text = std::str::from_utf8(text);
    let text = text.map_err(|_| Problem::new(ProblemKind::Malformed, "the YAML is not UTF-8"))?;
    manifests(yaml(text, &Limits::document())?)
}

fn manifests(values: Vec<Value>) -> Result<Vec<Result<Manifest, Problem>>, Problem> {
    let mut documents = Vec::new();
    for value in values {
        match value {
            Value::Array(elements) => documents.extend(elements),
            Value::Object(mut fields) => match items(&mut fields) {
                Some(items) => documents.extend(items),
                None => documents.push(Value::Object(fields)),
            },
            other => documents.push(other),
        }
    }
    if documents.len() > MOST {
        let title = format!("{} documents at once, at most {MOST} are allowed", documents.len());
        return Err(Problem::new(ProblemKind::TooLarge, title));
    }
    Ok(documents.into_iter().map(manifest).collect())
}

/// The items of a list: of `kind: List`, which `kubectl get -o yaml` prints, and of a `SyncSetList`, as the API server answers it. Items
/// of the latter need not say their kind.
fn items(fields: &mut Map<String, Value>) -> Option<Vec<Value>> {
    let of = fields.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"))?;
    let is_list = of.is_empty() || matches!(Kind::of_name(of), Some(Kind::SyncSet | Kind::SelectorSyncSet));
    let item_kind = Some(of.to_owned()).filter(|of| !of.is_empty());
    let mut items = match fields.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => items,
        // As Go writes and reads a list that is empty.
        None | Some(Value::Null) if is_list => Vec::new(),
        _ => return None,
    };
    if let Some(kind) = item_kind {
        for item in items.iter_mut().filter_map(Value::as_object_mut).filter(|item| !item.contains_key("kind")) {
            item.insert("kind".to_owned(), kind.as_str().into());
            if let Some(version) = fields.get("apiVersion") {
                item.insert("apiVersion".to_owned(), version.clone());
            }
        }
    }
    Some(items)
}

fn manifest(value: Value) -> Result<Manifest, Problem> {
    let Value::Object(mut fields) = value else {
        return Err(Problem::invalid(vec![Fault::new("", kind_of(&value)).allowed("an object")]));
    };
    let kinds = || {
        let written = Kind::ALL.into_iter().filter(|kind| kind.is_written_by_clients());
        written.map(Kind::name).collect::<Vec<_>>()
    };
    let kind = match fields.get("kind") {
        Some(Value::String(name)) if name == "Template" => {
            let allowed = "what `oc process --local -f FILE` makes of the template";
            Err(Fault::new("/kind", "a Template of OpenShift").allowed(allowed))
        }
        Some(Value::String(name)) => Kind::of_name(name).ok_or_else(|| {
            let suggestion = crate::config::fault::nearest(name, kinds());
            Fault::new("/kind", quoted(name)).allowed(kinds().join(", ")).suggestion(suggestion)
        }),
        Some(other) => Err(Fault::new("/kind", kind_of(other)).allowed(kinds().join(", "))),
        None => Err(Fault::new("/kind", "missing").allowed(kinds().join(", "))),
    };
    let kind = kind.map_err(|fault| Problem::invalid(vec![fault]))?;
    if let Some(version) = fields.remove("apiVersion") {
        if version != HIVE || !matches!(kind, Kind::SyncSet | Kind::SelectorSyncSet) {
            let found = version.as_str().map_or_else(|| kind_of(&version).to_owned(), quoted);
            let allowed = format!("{HIVE} for SyncSet and SelectorSyncSet, else none");
            return Err(Problem::invalid(vec![Fault::new("/apiVersion", found).allowed(allowed)]));
        }
        flatten(&mut fields)?;
    }
    let bytes = extent_of_map(&fields).bytes;
    Ok(Manifest { kind, body: Body::from(fields), bytes })
}

/// Brings the metadata of a Kubernetes object to where a document of the hub has it. What another API server assigned is left
/// out, and so is the status, which the hub computes.
fn flatten(fields: &mut Map<String, Value>) -> Result<(), Problem> {
    let metadata = match fields.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        other => {
            let found = other.as_ref().map_or("missing", kind_of);
            return Err(Problem::invalid(vec![Fault::new("/metadata", found).allowed("an object with a name")]));
        }
    };
    fields.remove("status");
    for (name, value) in metadata {
        if matches!(name.as_str(), "name" | "namespace" | "labels" | "annotations") && !value.is_null() {
            fields.insert(name, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_yaml(text: &str) -> Vec<Result<Manifest, Problem>> {
        manifests_of_yaml(text.as_bytes()).expect("YAML")
    }

    #[test]
    fn manifests_of_hive_become_documents() {
        let text = "apiVersion: hive.openshift.io/v1\nkind: SyncSet\nmetadata:\n  name: base\n  namespace: team-a\n  \
                    labels: {a: b}\n  uid: 1-2\n  resourceVersion: '7'\n  annotations: {c: d}\nspec:\n  clusterDeploymentRefs: [{name: west}]\n\
                    status: {}\n---\nkind: Cluster\nname: west\nnamespace: team-a\nkubeconfig: text\n";
        let read: Vec<_> = of_yaml(text).into_iter().map(|manifest| manifest.expect("a document")).collect();
        assert_eq!(read.iter().map(|manifest| manifest.kind).collect::<Vec<_>>(), [Kind::SyncSet, Kind::Cluster]);
        let expected = json!({"kind": "SyncSet", "name": "base", "namespace": "team-a", "labels": {"a": "b"},
            "annotations": {"c": "d"}, "spec": {"clusterDeploymentRefs": [{"name": "west"}]}});
        assert_eq!(Value::Object(read[0].body.fields().clone()), expected);
    }

    #[test]
    fn lists_of_hive_are_their_items_and_a_template_has_a_hint() {
        let item = "metadata: {name: a}\n  spec: {}\n";
        let text = format!(
            "apiVersion: hive.openshift.io/v1\nkind: SelectorSyncSetList\nmetadata: {{resourceVersion: '7'}}\nitems:\n- {item}\
             ---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: hive.openshift.io/v1\n  kind: SyncSet\n  {item}\
             ---\napiVersion: hive.openshift.io/v1\nkind: SyncSetList\nitems: []\n\
             ---\napiVersion: hive.openshift.io/v1\nkind: SyncSetList\nitems: null\n\
             ---\napiVersion: hive.openshift.io/v1\nkind: SelectorSyncSetList\n---\napiVersion: v1\nkind: List\nitems: null\n"
        );
        let kinds: Vec<_> = of_yaml(&text).into_iter().map(|manifest| manifest.expect("a document").kind).collect();
        assert_eq!(kinds, [Kind::SelectorSyncSet, Kind::SyncSet]);
        let template = of_yaml("apiVersion: template.openshift.io/v1\nkind: Template\nobjects: []\n");
        let problem = template[0].as_ref().expect_err("a template");
        assert!(
            problem.faults[0].allowed.as_ref().is_some_and(|allowed| allowed.contains("oc process")),
            "{problem:?}"
        );
    }

    #[test]
    fn json_may_be_one_document_several_or_a_list() {
        let one = r#"{"kind": "Secret", "name": "a", "namespace": "b"}"#;
        let list = format!(r#"{{"kind": "List", "apiVersion": "v1", "items": [{one}]}}"#);
        for (text, count) in [(one.to_owned(), 1), (format!("[{one}, {one}]"), 2), (format!("{one}\n{list}"), 2)] {
            let read = manifests_of_json(text.as_bytes()).expect("JSON");
            assert_eq!(read.len(), count);
            assert!(read.iter().all(|manifest| manifest.as_ref().is_ok_and(|manifest| manifest.kind == Kind::Secret)));
        }
    }

    #[test]
    fn each_document_has_its_own_size() {
        let large = format!(r#"{{"kind":"Secret","name":"{}"}}"#, "x".repeat(100_000));
        let read = manifests_of_json(format!(r#"{large}{{"kind":"Secret","name":"a"}}"#).as_bytes()).expect("JSON");
        let text = |length| format!(r#"{{"kind": "Secret", "name": "{}"}}"#, "x".repeat(length));
        for (manifest, length) in read.into_iter().zip([100_000, 1]) {
            assert_eq!(manifest.expect("a document").bytes, text(length).len());
        }
    }

    #[test]
    fn a_wrong_document_does_not_spoil_the_others() {
        let read =
            of_yaml("kind: Syncset\n---\nkind: Cluster\n---\n- 1\n---\nkind: Secret\napiVersion: v1\n---\nname: a\n");
        let faults: Vec<_> =
            read.iter().map(|manifest| manifest.as_ref().err().map(|problem| &problem.faults[0])).collect();
        assert_eq!(faults[0].map(|fault| fault.suggestion.as_deref()), Some(Some("SyncSet")));
        assert_eq!(faults[1], None);
        let pointers: Vec<_> = faults.iter().map(|fault| fault.map(|fault| fault.pointer.as_str())).collect();
        assert_eq!(pointers, [Some("/kind"), None, Some(""), Some("/apiVersion"), Some("/kind")]);
    }

    #[test]
    fn a_thousand_documents_are_applied_at_once_and_no_more() {
        let document = r#"{"kind": "Cluster"}"#;
        assert!(manifests_of_json(document.repeat(MOST).as_bytes()).is_ok());
        let problem = manifests_of_json(document.repeat(MOST + 1).as_bytes()).expect_err("too many");
        assert_eq!(problem.kind, ProblemKind::TooLarge);
    }
}

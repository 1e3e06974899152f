//! What syncsets and objects are compared by: hashes of all that they depend on.
//!
//! Each part goes into the hash with its length, so that no two inputs are written alike, and what is a set goes in sorted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::name::{Digest, SyncSetName};
use super::spec::{Behavior, Header, Patch, PatchType, SecretMapping, SecretSource};

/// What a syncset on a cluster depends on: if it differs from what is stored, the syncset is due.
///
/// The cluster's labels count only if there are templates. A mapped secret that is not among the sources is one that does not
/// exist; sources that no mapping names do not count, nor do labels and annotations that none copies.
pub fn inputs<'s>(
    header: &Header,
    labels: &BTreeMap<String, String>,
    sources: impl IntoIterator<Item = &'s SecretSource>,
) -> Digest {
    let mut input = Input::of("inputs");
    input.bytes(header.id.as_bytes());
    input.number(header.generation);
    let has_templates = header.resource_templates || header.patch_templates;
    input.option(has_templates.then_some(labels), Input::map);
    let place = |mapping: &'_ SecretMapping| (mapping.source_namespace.clone(), mapping.source_name.clone());
    let mapped: BTreeSet<(String, String)> = header.secrets.iter().map(place).collect();
    let sources: BTreeMap<(&str, &str), &SecretSource> =
        sources.into_iter().map(|source| ((source.namespace.as_str(), source.name.as_str()), source)).collect();
    input.count(mapped.len());
    for (namespace, name) in &mapped {
        input.text(namespace);
        input.text(name);
        let place = (namespace.as_str(), name.as_str());
        let mappings = header.secrets.iter().filter(|mapping| mapping.source() == place);
        input.option(sources.get(&place), |input, source| input.source(&source.copied_by(&mappings)));
    }
    input.finish()
}

/// The content of an object that is sent with a behavior.
///
/// The namespace does not count: rows of objects are found by it, and it is dropped for kinds without namespaces. The behavior does,
/// since an object that was left as it was found (`CreateOnly`) has to be sent if it is applied from now on.
pub(super) fn of_object(behavior: Behavior, body: &Value) -> Digest {
    let mut input = Input::of("object");
    input.behavior(behavior);
    match body {
        Value::Object(fields) => {
            input.text("object");
            input.count(fields.len());
            for (name, value) in sorted(fields) {
                input.text(name);
                match (name.as_str(), value) {
                    ("metadata", Value::Object(metadata)) => {
                        let counts = |(name, _): &(&String, &Value)| name.as_str() != "namespace";
                        let metadata: Vec<_> = sorted(metadata).into_iter().filter(counts).collect();
                        input.fields(&metadata);
                    }
                    (_, value) => input.value(value),
                }
            }
        }
        other => input.value(other),
    }
    input.finish()
}

/// The content of a secret that is copied: that of its inputs. No hash of its data is stored, by which it could be guessed.
pub(super) fn of_secret(behavior: Behavior, owner: (&SyncSetName, uuid::Uuid), source: &SecretSource) -> Digest {
    let (name, id) = owner;
    let mut input = Input::of("secret");
    input.behavior(behavior);
    input.bytes(id.as_bytes());
    input.text(&name.to_string());
    input.source(source);
    input.finish()
}

pub(super) fn of_patch(patch: &Patch, namespace: &str, body: &Value) -> Digest {
    let mut input = Input::of("patch");
    for text in [&patch.api_version, &patch.kind, namespace, &patch.name] {
        input.text(text);
    }
    input.text(match patch.patch_type {
        PatchType::Strategic => "strategic",
        PatchType::Merge => "merge",
        PatchType::Json => "json",
    });
    input.value(body);
    input.finish()
}

/// The fields of an object in the order of their names, whatever order the map has.
fn sorted(fields: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut sorted: Vec<_> = fields.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    sorted
}

struct Input(Sha256);

impl Input {
    /// What is hashed is of this sort: an input of one is none of another.
    fn of(sort: &str) -> Self {
        let mut input = Self(Sha256::new());
        input.text(sort);
        input
    }

    fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn count(&mut self, count: usize) {
        self.0.update((count as u64).to_be_bytes());
    }

    fn number(&mut self, number: i64) {
        self.0.update(number.to_be_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, add: impl FnOnce(&mut Self, T)) {
        self.count(usize::from(value.is_some()));
        if let Some(value) = value {
            add(self, value);
        }
    }

    fn map(&mut self, map: &BTreeMap<String, String>) {
        self.count(map.len());
        for (key, value) in map {
            self.text(key);
            self.text(value);
        }
    }

    fn behavior(&mut self, behavior: Behavior) {
        self.text(match behavior {
            Behavior::Apply => "Apply",
            Behavior::CreateOrUpdate => "CreateOrUpdate",
            Behavior::CreateOnly => "CreateOnly",
        });
    }

    fn source(&mut self, source: &SecretSource) {
        self.bytes(source.id.as_bytes());
        self.number(source.data_generation);
        self.text(&source.secret_type);
        // Nothing else begins a map: it begins with its length.
        if source.is_immutable {
            self.text("immutable");
        }
        self.map(&source.labels);
        self.map(&source.annotations);
    }

    /// JSON: each type with a letter of its own, numbers as they are printed.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.text("null"),
            Value::Bool(value) => self.text(if *value { "true" } else { "false" }),
            Value::Number(number) => {
                self.text("number");
                self.text(&number.to_string());
            }
            Value::String(text) => {
                self.text("string");
                self.text(text);
            }
            Value::Array(elements) => {
                self.text("list");
                self.count(elements.len());
                for element in elements {
                    self.value(element);
                }
            }
            Value::Object(fields) => self.fields(&sorted(fields)),
        }
    }

    fn fields(&mut self, fields: &[(&String, &Value)]) {
        self.text("object");
        self.count(fields.len());
        for (name, value) in fields {
            self.text(name);
            self.value(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::syncset::plan::name::SyncSetKind;
    use crate::syncset::plan::spec::Mode;

    fn header() -> Header {
        let mapping = |name: &str| SecretMapping {
            source_namespace: "team-a".to_owned(),
            source_name: name.to_owned(),
            target_namespace: "default".to_owned(),
            target_name: format!("{name}-copy"),
            metadata: ["a", "c"].map(str::to_owned).to_vec(),
        };
        Header {
            id: Uuid::from_u128(1),
            name: SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team-a".to_owned(), name: "base".to_owned() },
            version: 7,
            generation: 3,
            behavior: Behavior::Apply,
            mode: Mode::Sync,
            resource_templates: true,
            patch_templates: false,
            health: None,
            secrets: vec![mapping("pull"), mapping("push")],
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn source(name: &str) -> SecretSource {
        SecretSource {
            namespace: "team-a".to_owned(),
            name: name.to_owned(),
            id: Uuid::from_u128(2),
            data_generation: 5,
            secret_type: "Opaque".to_owned(),
            is_immutable: false,
            labels: labels(&[("a", "b")]),
            annotations: labels(&[("c", "d")]),
        }
    }

    #[test]
    fn each_input_of_a_syncset_changes_its_digest() {
        let cluster = labels(&[("env", "prod"), ("region", "eu")]);
        let sources = || vec![source("pull"), source("push")];
        let mut digests = vec![inputs(&header(), &cluster, &sources())];
        let mut with_header = |change: fn(&mut Header)| {
            let mut header = header();
            change(&mut header);
            digests.push(inputs(&header, &cluster, &sources()));
        };
        with_header(|header| header.id = Uuid::from_u128(9));
        with_header(|header| header.generation = 4);
        with_header(|header| header.resource_templates = false);
        with_header(|header| drop(header.secrets.pop()));
        for changed in
            [&[("env", "prod")][..], &[("env", "test"), ("region", "eu")], &[("env", "prodregion"), ("", "eu")]]
        {
            digests.push(inputs(&header(), &labels(changed), &sources()));
        }
        let changes: [fn(&mut SecretSource); 8] = [
            |source| source.name = "other".to_owned(),
            |source| source.id = Uuid::from_u128(9),
            |source| source.data_generation = 6,
            |source| source.secret_type = "kubernetes.io/tls".to_owned(),
            |source| source.is_immutable = true,
            |source| source.labels = labels(&[("a", "c")]),
            |source| source.labels = labels(&[("a", "b"), ("c", "d")]),
            |source| source.annotations = labels(&[]),
        ];
        for change in changes {
            let mut sources = sources();
            change(&mut sources[1]);
            digests.push(inputs(&header(), &cluster, &sources));
        }
        let different: BTreeSet<_> = digests.iter().collect();
        assert_eq!(different.len(), digests.len());
    }

    #[test]
    fn what_does_not_count_changes_no_digest() {
        let cluster = labels(&[("env", "prod")]);
        let digest = inputs(&header(), &cluster, &[source("pull"), source("push")]);
        assert_eq!(inputs(&header(), &cluster, &[source("push"), source("other"), source("pull")]), digest);
        let unlisted = |labels| SecretSource { labels, ..source("push") };
        let labelled = unlisted(labels(&[("a", "b"), ("unlisted", "x")]));
        assert_eq!(inputs(&header(), &cluster, &[source("pull"), labelled]), digest, "it is not copied");
        let mut header = Header { version: 8, ..header() };
        header.secrets.reverse();
        let twice = header.secrets[0].clone();
        header.secrets.push(SecretMapping { target_name: "another".to_owned(), ..twice });
        assert_eq!(inputs(&header, &cluster, &[source("pull"), source("push")]), digest);
        header.resource_templates = false;
        let plain = inputs(&header, &cluster, &[]);
        assert_eq!(inputs(&header, &labels(&[]), &[]), plain);
        header.patch_templates = true;
        assert_ne!(inputs(&header, &cluster, &[]), inputs(&header, &labels(&[]), &[]));
    }

    #[test]
    fn each_part_of_a_patch_changes_its_digest() {
        let patch = |text: &str, patch_type| Patch {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            namespace: String::new(),
            name: text.to_owned(),
            patch_type,
            text: String::new(),
        };
        let (one, other) = (patch("a", PatchType::Merge), patch("b", PatchType::Merge));
        let digests = [
            of_patch(&one, "default", &json!({"a": 1})),
            of_patch(&one, "default", &json!({"a": 2})),
            of_patch(&one, "other", &json!({"a": 1})),
            of_patch(&other, "default", &json!({"a": 1})),
            of_patch(&patch("a", PatchType::Strategic), "default", &json!({"a": 1})),
        ];
        assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), digests.len());
    }

    #[test]
    fn the_content_of_a_secret_is_that_of_its_inputs() {
        let Header { name, id, .. } = header();
        let digest = of_secret(Behavior::Apply, (&name, id), &source("pull"));
        assert_eq!(of_secret(Behavior::Apply, (&name, id), &source("pull")), digest);
        let renewed = SecretSource { data_generation: 6, ..source("pull") };
        assert_ne!(of_secret(Behavior::Apply, (&name, id), &renewed), digest);
        assert_ne!(of_secret(Behavior::Apply, (&name, Uuid::nil()), &source("pull")), digest);
        assert_ne!(of_secret(Behavior::CreateOnly, (&name, id), &source("pull")), digest);
    }

    #[test]
    fn the_namespace_of_an_object_does_not_count_and_its_behavior_does() {
        let object = json!({"kind": "A", "metadata": {"name": "a"}});
        let placed = json!({"kind": "A", "metadata": {"name": "a", "namespace": "b"}});
        let digest = of_object(Behavior::Apply, &object);
        assert_eq!(of_object(Behavior::Apply, &placed), digest);
        assert_ne!(of_object(Behavior::CreateOnly, &object), digest);
        let below = json!({"kind": "A", "metadata": {"name": "a"}, "spec": {"namespace": "b"}});
        assert_ne!(of_object(Behavior::Apply, &below), digest);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2..3_i64).prop_map(Value::from),
            "[a-c\"{:,]{0,3}".prop_map(Value::from),
        ];
        scalar.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]{0,2}", inner, 0..3)
                    .prop_map(|map| map.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        #[test]
        fn objects_have_the_same_digest_exactly_if_they_are_equal(left in any_value(), right in any_value()) {
            let (of_left, of_right) = (of_object(Behavior::Apply, &left), of_object(Behavior::Apply, &right));
            prop_assert_eq!(of_left == of_right, left == right);
        }
    }
}

//! Each rule of decisions, one by one.

use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::documents::kind::Sealed;

mod sealed;

/// A fixed time of the database.
pub(super) fn time(second: i64) -> Timestamp {
    jiff::Timestamp::from_second(1_700_000_000 + second).expect("a time").into()
}

pub(super) fn keyring() -> Keyring {
    let key = "a1 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    Keyring::parse(&SecretString::from(key)).expect("a key")
}

pub(super) fn body(value: Value) -> Body {
    Body::of(value).expect("an object")
}

/// A place of one document in a database.
pub(super) struct Place {
    pub(super) key: Key,
    pub(super) keyring: Keyring,
    pub(super) stored: Option<Stored>,
    version: i64,
}

impl Place {
    pub(super) fn new(kind: Kind) -> Self {
        let namespace = if kind.is_namespaced() { "foo" } else { "" };
        Self { key: Key::new(kind, namespace, "one"), keyring: keyring(), stored: None, version: 40 }
    }

    /// A place with a document of this body.
    pub(super) fn with(kind: Kind, fields: Value) -> Self {
        let mut place = Self::new(kind);
        assert_eq!(place.ask(Action::Create(body(fields))).expect("created").effect, Effect::Created);
        place
    }

    pub(super) fn decide(&self, request: &Request) -> Result<Decision, Problem> {
        let fresh = Fresh {
            request: Uuid::from_u128(1),
            id: Uuid::from_u128(2),
            sync: Uuid::from_u128(3),
            nonce: [7; NONCE],
            now: time(0),
        };
        let context = Context { keyring: &self.keyring, fresh };
        decide(self.stored.as_ref(), request, &context)
    }

    pub(super) fn request(&self, action: Action) -> Request {
        Request { key: self.key.clone(), action, condition: None, dry_run: false }
    }

    /// Decides and writes; the answer has the version and the times of the write.
    pub(super) fn ask(&mut self, action: Action) -> Result<Answer, Problem> {
        self.send(&self.request(action))
    }

    pub(super) fn send(&mut self, request: &Request) -> Result<Answer, Problem> {
        let decision = self.decide(request)?;
        let effect = decision.effect;
        let Some(item) = decision.item.clone().filter(|_| !request.dry_run) else {
            return Ok(Answer { effect, document: decision.document, item: decision.item });
        };
        self.version += 1;
        let at = time(self.version);
        self.write(&item, &at);
        let document = decision.written(self.version, &at);
        Ok(Answer { effect, document, item: Some(item) })
    }

    /// What the procedure of the database does.
    fn write(&mut self, item: &Item, at: &Timestamp) {
        let change = &item.changes[0];
        assert_eq!(Key::new(change.kind, &change.namespace, &change.name), self.key);
        let present = self.stored.take();
        let expected = present.as_ref().map_or(Expected::Absent, |present| Expected::Version(present.document.version));
        assert_eq!(change.expected, expected);
        self.stored = change.row.clone().map(|row| {
            let document = Document {
                kind: self.key.kind,
                id: present.as_ref().map_or(row.id, |present| present.document.id),
                namespace: self.key.namespace.clone(),
                name: self.key.name.clone(),
                labels: row.labels,
                annotations: row.annotations,
                finalizers: row.finalizers,
                generation: row.generation,
                version: self.version,
                created_at: present.as_ref().map_or(at, |present| &present.document.created_at).clone(),
                updated_at: at.clone(),
                deleted_at: row.deleted_at.map(|_| {
                    let before = present.as_ref().and_then(|present| present.document.deleted_at.clone());
                    before.unwrap_or_else(|| at.clone())
                }),
                data: row.data,
                status: row.status,
            };
            Stored { document, sealed: row.sealed.or(present.and_then(|present| present.sealed)) }
        });
    }

    pub(super) fn document(&self) -> &Document {
        &self.stored.as_ref().expect("a document").document
    }

    /// The opened sealed field.
    pub(super) fn opened(&self) -> String {
        let Stored { document, sealed } = self.stored.as_ref().expect("a document");
        let opened =
            self.keyring.open(&document.key(), document.id, sealed.as_deref().expect("sealed")).expect("opened");
        String::from_utf8(opened.expose_secret().to_vec()).expect("text")
    }

    pub(super) fn merge(&mut self, patch: Value) -> Result<Answer, Problem> {
        self.ask(Action::Merge(Part::Document, body(patch)))
    }

    pub(super) fn patch(&mut self, patch: &Value) -> Result<Answer, Problem> {
        self.ask(Action::Patch(Part::Document, Operations::of(patch).expect("operations")))
    }

    /// A PUT at the present version.
    pub(super) fn replace(&mut self, mut fields: Value) -> Result<Answer, Problem> {
        fields["resourceVersion"] = json!(self.document().version.to_string());
        self.ask(Action::Replace(Part::Document, body(fields)))
    }
}

/// What a client is told, and what was written.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) effect: Effect,
    pub(super) document: Document,
    pub(super) item: Option<Item>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?} {:?}", self.effect, self.document)
    }
}

fn cluster() -> Value {
    json!({"name": "one", "namespace": "foo", "labels": {"env": "prod"}, "annotations": {"a": "b"}, "kubeconfig": "canary"})
}

fn secret() -> Value {
    json!({"type": "t", "data": {"a": "YQ==", "b": "Yg=="}})
}

fn refused(result: Result<Answer, Problem>) -> (ProblemKind, Vec<String>) {
    let problem = result.expect_err("refused");
    (problem.kind, problem.faults.into_iter().map(|fault| fault.pointer).collect())
}

#[test]
fn a_new_cluster_comes_with_its_clustersync_in_one_item() {
    let mut place = Place::new(Kind::Cluster);
    let answer = place.ask(Action::Create(body(cluster()))).expect("created");
    let seen = serde_json::to_value(&answer.document).expect("JSON");
    let expected = json!({"kind": "Cluster", "id": Uuid::from_u128(2), "namespace": "foo", "name": "one", "resourceVersion": "41",
        "generation": 1, "labels": {"env": "prod"}, "annotations": {"a": "b"}, "finalizers": [], "createdAt": time(41), "updatedAt": time(41),
        "paused": false, "kubeconfigGeneration": 1, "status": {}});
    assert_eq!(seen, expected);
    assert_eq!(&answer.document, place.document());
    assert_eq!(place.opened(), "canary");
    let item = answer.item.expect("an item");
    let sync = &item.changes[1];
    assert_eq!((sync.kind, sync.namespace.as_str(), sync.name.as_str()), (Kind::ClusterSync, "foo", "one"));
    assert_eq!((sync.expected, item.changes.len()), (Expected::Any, 2));
    let row = sync.row.as_ref().expect("a row");
    assert_eq!((row.id, row.generation, &row.sealed), (Uuid::from_u128(3), 1, &None));
    assert!(row.labels.is_empty() && row.annotations.is_empty() && row.data.is_empty() && row.status.is_empty());

    let deleted = place.ask(Action::Delete(None)).expect("deleted").item.expect("an item");
    let kinds: Vec<_> =
        deleted.changes.iter().map(|change| (change.kind, change.expected, change.row.is_none())).collect();
    assert_eq!(kinds, [(Kind::Cluster, Expected::Version(41), true), (Kind::ClusterSync, Expected::Any, true)]);
    assert!(place.stored.is_none());
}

#[test]
fn what_exists_is_not_created_and_what_does_not_exist_is_not_changed() {
    let mut place = Place::with(Kind::Cluster, cluster());
    assert_eq!(refused(place.ask(Action::Create(body(cluster())))).0, ProblemKind::Exists);
    let mut none = Place::new(Kind::Cluster);
    let versioned = || body(json!({"resourceVersion": "1"}));
    let test = || Operations::of(&json!([])).expect("operations");
    for part in [Part::Document, Part::Status] {
        for action in
            [Action::Replace(part, versioned()), Action::Merge(part, versioned()), Action::Patch(part, test())]
        {
            assert_eq!(refused(none.ask(action)).0, ProblemKind::NotFound);
        }
    }
    assert_eq!(refused(none.ask(Action::Delete(None))).0, ProblemKind::NotFound);
}

#[test]
fn put_replaces_and_keeps_what_the_rules_keep() {
    let mut place = Place::with(Kind::Cluster, cluster());
    place.merge(json!({"finalizers": ["a.io/b"], "paused": true})).expect("changed");
    place.ask(Action::Merge(Part::Status, body(json!({"status": {"seen": 1}})))).expect("changed");
    let answer = place.replace(json!({"status": {"seen": 2}, "generation": 77, "createdAt": "x"})).expect("replaced");
    let seen = serde_json::to_value(&answer.document).expect("JSON");
    assert_eq!((&seen["labels"], &seen["annotations"]), (&json!({}), &json!({})), "absent means empty");
    assert_eq!(seen["finalizers"], json!(["a.io/b"]), "absent means unchanged");
    assert_eq!((&seen["paused"], &seen["generation"]), (&json!(false), &json!(3)), "absent means default");
    assert_eq!(
        (&seen["kubeconfigGeneration"], place.opened().as_str()),
        (&json!(1), "canary"),
        "absent means unchanged"
    );
    assert_eq!((&seen["status"], &seen["createdAt"]), (&json!({"seen": 1}), &json!(time(41))));
    let answer = place.replace(json!({"finalizers": []})).expect("replaced");
    assert_eq!((answer.document.finalizers.len(), answer.document.generation), (0, 3));
}

#[test]
fn generation_counts_changes_of_own_fields_alone() {
    let mut place = Place::with(Kind::Cluster, cluster());
    for (patch, generation) in [
        (json!({"labels": {"x": "y"}}), 1),
        (json!({"annotations": {"x": "y"}}), 1),
        (json!({"paused": true}), 2),
        (json!({"kubeconfig": "other"}), 3),
    ] {
        assert_eq!(place.merge(patch).expect("changed").document.generation, generation);
    }
    assert_eq!(place.document().data["kubeconfigGeneration"], 3);
}

#[test]
fn a_put_names_its_version() {
    let mut place = Place::with(Kind::Cluster, cluster());
    let put = |version: Option<&str>, condition: Option<&str>, place: &Place| {
        let mut fields = cluster();
        if let Some(version) = version {
            fields["resourceVersion"] = json!(version);
        }
        let condition = condition.map(|header| IfMatch::parse(header).expect("a header"));
        Request { condition, ..place.request(Action::Replace(Part::Document, body(fields))) }
    };
    for (version, condition, expected) in [
        (None, None, Err(ProblemKind::PreconditionRequired)),
        (Some("40"), None, Err(ProblemKind::Conflict)),
        (None, Some("\"40\""), Err(ProblemKind::Precondition)),
        (Some("41"), Some("\"40\""), Err(ProblemKind::Precondition)),
        (Some("40"), Some("\"41\""), Err(ProblemKind::Conflict)),
        (Some("x"), None, Err(ProblemKind::Invalid)),
        (Some("41"), None, Ok(Effect::Unchanged)),
        (None, Some("\"41\""), Ok(Effect::Unchanged)),
        (None, Some("*"), Ok(Effect::Unchanged)),
        (Some("41"), Some("\"7\", \"41\""), Ok(Effect::Unchanged)),
    ] {
        let request = put(version, condition, &place);
        let result = place.send(&request).map(|answer| answer.effect).map_err(|problem| problem.kind);
        assert_eq!(result, expected, "{version:?} {condition:?}");
    }
}

#[test]
fn patches_and_deletions_may_have_conditions() {
    let mut place = Place::with(Kind::Cluster, cluster());
    assert_eq!(refused(place.merge(json!({"resourceVersion": "40", "paused": true}))).0, ProblemKind::Conflict);
    assert!(place.merge(json!({"resourceVersion": "41", "paused": true})).is_ok());
    let replace = |version: &str| json!([{"op": "replace", "path": "/resourceVersion", "value": version}]);
    assert_eq!(refused(place.patch(&replace("41"))).0, ProblemKind::Conflict);
    assert_eq!(place.patch(&replace("42")).expect("the same").effect, Effect::Unchanged);
    let condition = IfMatch::parse("\"41\"").ok();
    let conditional = Request { condition, ..place.request(Action::Delete(None)) };
    assert_eq!(place.send(&conditional).expect_err("another version").kind, ProblemKind::Precondition);
    let test = json!([{"op": "test", "path": "/paused", "value": false}]);
    let operations = Operations::of(&test).expect("operations");
    let conditional = Request { action: Action::Patch(Part::Document, operations), ..conditional };
    assert_eq!(place.send(&conditional).expect_err("another version").kind, ProblemKind::Precondition);
    assert_eq!(refused(place.patch(&test)).0, ProblemKind::TestFailed);
}

#[test]
fn another_id_is_another_document() {
    let mut place = Place::with(Kind::Cluster, cluster());
    assert_eq!(refused(place.replace(json!({"id": Uuid::from_u128(9)}))).0, ProblemKind::Identity);
    assert_eq!(refused(place.merge(json!({"id": Uuid::from_u128(9)}))).0, ProblemKind::Identity);
    assert!(place.merge(json!({"id": Uuid::from_u128(2), "paused": true})).is_ok());
    let renamed = json!({"name": "two", "namespace": "bar", "kind": "Secret"});
    let names = ["/kind", "/name", "/namespace"].map(str::to_owned).to_vec();
    assert_eq!(refused(place.replace(renamed.clone())), (ProblemKind::Invalid, names.clone()));
    assert_eq!(refused(place.merge(renamed)), (ProblemKind::Invalid, names));
    let operations = json!([{"op": "replace", "path": "/name", "value": "two"}]);
    assert_eq!(refused(place.patch(&operations)), (ProblemKind::Invalid, vec!["/name".to_owned()]));
}

#[test]
fn deletion_waits_for_finalizers() {
    let mut place = Place::with(Kind::Cluster, cluster());
    place.merge(json!({"finalizers": ["a.io/b", "c.io/d"]})).expect("changed");
    let deleting = place.ask(Action::Delete(None)).expect("deleting");
    assert_eq!((deleting.effect, &deleting.document.deleted_at), (Effect::Deleting, &Some(time(43))));
    assert_eq!(&deleting.document, place.document());
    assert_eq!(deleting.document.generation, 1);
    let again = place.ask(Action::Delete(None)).expect("deleting");
    assert_eq!((again.effect, again.item.is_none(), again.document.version), (Effect::Deleting, true, 43));

    let new = place.merge(json!({"finalizers": ["a.io/b", "e.io/f"]}));
    assert_eq!(refused(new), (ProblemKind::Invalid, vec!["/finalizers/1".to_owned()]));
    let fewer = place.merge(json!({"finalizers": ["c.io/d"], "labels": {"x": "y"}})).expect("changed");
    assert_eq!((fewer.effect, &fewer.document.deleted_at), (Effect::Changed, &Some(time(43))));
    let before = place.document().clone();
    let last = place.merge(json!({"finalizers": null, "labels": {"z": "z"}, "paused": true})).expect("removed");
    assert_eq!(last.effect, Effect::Deleted);
    // As watches show it: the state that was stored last, with the version of its removal.
    assert_eq!(last.document, Document { version: last.document.version, ..before.clone() });
    assert!(last.document.version > before.version);
    assert_eq!(last.item.expect("an item").changes.len(), 2);
    assert!(place.stored.is_none());
}

#[test]
fn status_and_document_do_not_touch_each_other() {
    let mut place = Place::with(Kind::Cluster, cluster());
    let replaced = json!({"resourceVersion": "41", "status": {"a": {"b": 1}}, "paused": true, "name": "two", "unknown": 1, "id": "x"});
    let answer = place.ask(Action::Replace(Part::Status, body(replaced))).expect("changed");
    assert_eq!(Value::Object(answer.document.status), json!({"a": {"b": 1}}));
    assert_eq!((&answer.document.data["paused"], answer.document.generation), (&json!(false), 1));
    let answer = place
        .ask(Action::Merge(Part::Status, body(json!({"status": {"a": {"c": 2}}, "paused": true}))))
        .expect("changed");
    assert_eq!(Value::Object(answer.document.status), json!({"a": {"b": 1, "c": 2}}));
    let operations = json!([{"op": "test", "path": "/paused", "value": false}, {"op": "replace", "path": "/paused", "value": true},
        {"op": "remove", "path": "/status/a/b"}]);
    let operations = Operations::of(&operations).expect("operations");
    let answer = place.ask(Action::Patch(Part::Status, operations)).expect("changed");
    assert_eq!(Value::Object(answer.document.status.clone()), json!({"a": {"c": 2}}));
    assert_eq!(answer.document.data["paused"], false);

    // The other way round.
    assert_eq!(place.merge(json!({"status": {"a": null}})).expect("the same").effect, Effect::Unchanged);
    assert_eq!(place.patch(&json!([{"op": "remove", "path": "/status"}])).expect("the same").effect, Effect::Unchanged);

    let none = place.ask(Action::Merge(Part::Status, body(json!({"status": null})))).expect("changed");
    assert!(none.document.status.is_empty());
    for wrong in [json!([]), json!("x"), json!(7)] {
        let wrong = place.ask(Action::Merge(Part::Status, body(json!({"status": wrong}))));
        assert_eq!(refused(wrong), (ProblemKind::Invalid, vec!["/status".to_owned()]));
    }
    let version = place.document().version.to_string();
    let missing = place.ask(Action::Replace(Part::Status, body(json!({"resourceVersion": version}))));
    assert_eq!(refused(missing), (ProblemKind::Invalid, vec!["/status".to_owned()]));
    let unconditional = place.ask(Action::Replace(Part::Status, body(json!({"status": {}}))));
    assert_eq!(refused(unconditional).0, ProblemKind::PreconditionRequired);
}

#[test]
fn of_a_clustersync_clients_change_the_status_alone() {
    let mut place = Place::new(Kind::ClusterSync);
    let document = Document {
        kind: Kind::ClusterSync,
        data: Map::new(),
        ..Place::with(Kind::Cluster, cluster()).document().clone()
    };
    place.stored = Some(Stored { document, sealed: None });
    let versioned = || body(json!({"resourceVersion": "41"}));
    let operations = Operations::of(&json!([])).expect("operations");
    for action in [
        Action::Create(versioned()),
        Action::Apply(versioned()),
        Action::Replace(Part::Document, versioned()),
        Action::Merge(Part::Document, versioned()),
        Action::Patch(Part::Document, operations),
        Action::Delete(None),
    ] {
        assert_eq!(refused(place.ask(action)).0, ProblemKind::Method);
    }
    let status = body(json!({"status": {"a": 1}}));
    assert_eq!(place.ask(Action::Merge(Part::Status, status)).expect("changed").effect, Effect::Changed);
}

#[test]
fn numbers_that_are_equal_are_no_change() {
    let resource = |number: &str| {
        let text = format!(
            r#"{{"resources": [{{"apiVersion": "v1", "kind": "X", "metadata": {{"name": "a"}}, "n": {number}}}]}}"#
        );
        json!({"spec": serde_json::from_str::<Value>(&text).expect("JSON")})
    };
    let mut place = Place::with(Kind::SyncSet, resource("1e16"));
    assert_eq!(place.replace(resource("10000000000000000")).expect("the same").effect, Effect::Unchanged);
    assert_eq!(place.replace(resource("10000000000000001")).expect("changed").effect, Effect::Changed);
}

#[test]
fn terms_are_written_when_the_selector_may_have_changed() {
    let spec = |value: &str| json!({"spec": {"clusterSelector": {"matchLabels": {"env": value}}}});
    let mut place = Place::new(Kind::SelectorSyncSet);
    let terms = |answer: Answer| answer.item.expect("an item").changes[0].terms.clone();
    let created = place.ask(Action::Create(body(spec("prod")))).expect("created");
    assert_eq!(terms(created), Some(vec![("env".to_owned(), "prod".to_owned())]));
    assert_eq!(terms(place.merge(json!({"labels": {"a": "b"}})).expect("changed")), None);
    let changed = place.replace(spec("test")).expect("changed");
    assert_eq!(terms(changed), Some(vec![("env".to_owned(), "test".to_owned())]));
    let status = place.ask(Action::Merge(Part::Status, body(json!({"status": {"a": 1}})))).expect("changed");
    assert_eq!(terms(status), None);
}

/// It may be from before that was refused.
#[test]
fn a_stored_resource_without_a_namespace_keeps_no_change_out_that_is_about_something_else() {
    let resource = |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    let lacking = |names: &[&str]| names.iter().map(|name| resource(json!({"name": name}))).collect::<Vec<_>>();
    let given = json!({"resources": [resource(json!({"name": "a", "namespace": "default"}))]});
    let mut place = Place::with(Kind::SyncSet, json!({"finalizers": ["a.io/b"], "spec": given}));
    let stored = place.stored.as_mut().expect("a document");
    stored.document.data["spec"]["resources"] = json!(lacking(&["a"]));
    place.merge(json!({"labels": {"a": "b"}, "spec": {"resourceApplyMode": "Sync"}})).expect("changed");
    place.patch(&json!([{"op": "remove", "path": "/labels/a"}])).expect("changed");
    place.replace(json!({"finalizers": ["a.io/b"], "spec": {"resources": lacking(&["a"])}})).expect("changed");
    let more = place.merge(json!({"spec": {"resources": lacking(&["a", "b"])}}));
    let pointers = [0, 1].map(|index| format!("/spec/resources/{index}/metadata/namespace"));
    assert_eq!(refused(more), (ProblemKind::Invalid, pointers.to_vec()));
    assert_eq!(place.ask(Action::Delete(None)).expect("deleted").effect, Effect::Deleting);
    assert_eq!(place.merge(json!({"finalizers": []})).expect("gone").effect, Effect::Deleted);
}

#[test]
fn patches_may_use_the_other_name_of_a_field() {
    let mut place = Place::with(Kind::SyncSet, json!({"spec": {"clusterRefs": [{"name": "a"}]}}));
    place.merge(json!({"spec": {"clusterRefs": [{"name": "b"}]}})).expect("changed");
    place.patch(&json!([{"op": "add", "path": "/spec/clusterRefs/-", "value": {"name": "c"}}])).expect("changed");
    assert_eq!(place.document().data["spec"]["clusterDeploymentRefs"], json!([{"name": "b"}, {"name": "c"}]));
    let both = place.merge(json!({"spec": {"clusterRefs": [], "clusterDeploymentRefs": []}}));
    assert_eq!(refused(both), (ProblemKind::Invalid, vec!["/spec/clusterRefs".to_owned()]));
    place.merge(json!({"spec": {"clusterRefs": null}})).expect("changed");
    assert_eq!(place.document().data["spec"]["clusterDeploymentRefs"], json!([]));
}

#[test]
fn an_apply_removes_what_the_last_one_set_and_keeps_the_rest() {
    let mut place = Place::new(Kind::Cluster);
    let applied = |labels: Value, annotations: Value| {
        Action::Apply(body(json!({"labels": labels, "annotations": annotations, "kubeconfig": "k"})))
    };
    let created = place.ask(applied(json!({"a": "1", "b": "1"}), json!({"c": "1"}))).expect("created");
    assert_eq!(created.effect, Effect::Created);
    assert_eq!(created.document.annotations[wanted::APPLIED_KEYS], r#"{"annotations":["c"],"labels":["a","b"]}"#);
    place.merge(json!({"labels": {"mine": "x", "a": "changed"}, "annotations": {"also": "mine"}, "paused": true, "finalizers": ["f.io/x"]}))
        .expect("changed");
    let again = place.ask(applied(json!({"a": "2"}), json!({}))).expect("configured");
    assert_eq!(again.effect, Effect::Changed);
    let labels: Vec<_> = again.document.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("a", "2"), ("mine", "x")]);
    let keys: Vec<_> = again.document.annotations.keys().map(String::as_str).collect();
    assert_eq!(keys, ["also", wanted::APPLIED_KEYS]);
    assert_eq!(again.document.data["paused"], false, "own fields are replaced");
    assert_eq!(again.document.finalizers, ["f.io/x"]);
    assert_eq!(place.ask(applied(json!({"a": "2"}), json!({}))).expect("the same").effect, Effect::Unchanged);
    let kept = place.ask(Action::Apply(body(json!({})))).expect("configured");
    assert_eq!(kept.document.labels.len(), 1);
    assert!(!kept.document.annotations.contains_key(wanted::APPLIED_KEYS));
    assert_eq!(place.opened(), "k", "an absent kubeconfig stays");
    let conflict = place.ask(Action::Apply(body(json!({"resourceVersion": "41"}))));
    assert_eq!(refused(conflict).0, ProblemKind::Conflict);
}

#[test]
fn labels_and_annotations_of_an_apply_count_with_those_that_stay() {
    let labels = |prefix: &str| (0..200).map(|index| (format!("{prefix}{index}"), json!("x"))).collect::<Map<_, _>>();
    let mut place = Place::with(Kind::SyncSet, json!({"labels": labels("a")}));
    let too_many = place.ask(Action::Apply(body(json!({"labels": labels("b")}))));
    assert_eq!(refused(too_many), (ProblemKind::Invalid, vec!["/labels".to_owned()]));
}

#[test]
fn a_document_is_as_large_as_the_database_prints_it() {
    let mut place = Place::with(Kind::Cluster, json!({"kubeconfig": "x".repeat(1 << 20)}));
    let status = |bytes: usize| Action::Merge(Part::Status, body(json!({"status": {"a": "x".repeat(bytes)}})));
    assert!(place.ask(status(3 << 20)).is_err(), "the sealed field counts");
    assert!(place.ask(status((3 << 20) - 2_000)).is_ok());
    let numbers = vec![1e300; 14_000];
    let large = place.ask(Action::Merge(Part::Status, body(json!({"status": {"a": null, "n": numbers}}))));
    assert_eq!(refused(large).0, ProblemKind::TooLarge);
    let mut levels = json!({});
    for _ in 0..97 {
        levels = json!({"a": levels});
    }
    assert!(place.ask(Action::Merge(Part::Status, body(json!({"status": levels})))).is_ok());
    let deeper = json!({"status": {"a": {"a": levels}}});
    assert_eq!(
        refused(place.ask(Action::Merge(Part::Status, body(deeper)))),
        (ProblemKind::Invalid, vec!["/status".to_owned()])
    );
}

#[test]
fn a_dry_run_decides_the_same() {
    let mut place = Place::new(Kind::Cluster);
    let request = Request { dry_run: true, ..place.request(Action::Create(body(cluster()))) };
    let dry = place.send(&request).expect("decided");
    assert_eq!((dry.effect, dry.document.version), (Effect::Created, 0));
    assert_eq!(Sealed::Kubeconfig.generation_field(), "kubeconfigGeneration");
    assert_eq!(dry.document.data["kubeconfigGeneration"], 1);
    assert!(place.stored.is_none());
}

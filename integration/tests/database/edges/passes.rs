//! Whole passes on the API server: what they cost, and what becomes of the objects.

use integration::users::{REPLICA, UNPRIVILEGED};
use integration::{Filter, eventually};
use serde_json::{Value, json};
use towline::test_api::cluster::{Kind, ObjectKey, Payload, Request};
use towline::test_api::syncset::plan::pass::{End, Outcome, Release};
use towline::test_api::syncset::plan::reason::Reason;
use towline::test_api::syncset::plan::rows::Failure;
use towline::test_api::syncset::work::Stop;

use crate::edges::cluster_state::{Set, State};
use crate::edges::world::{Edge, LIMIT, config_maps, connect, kubeconfig, run};

fn of_group(group: &str, kind: &str, plural: &str, namespaced: bool) -> Kind {
    let mut found = Kind::core(kind, plural, namespaced);
    group.clone_into(&mut found.resource.group);
    found.resource.api_version = format!("{group}/v1");
    found
}

/// A user who may do everything, and whom no other test uses.
async fn passes(user: &'static str, namespace: &'static str) -> (Edge, State) {
    let edge = Edge::new(namespace).await;
    let (kind, key) = (
        of_group("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", false),
        ObjectKey::new("", user),
    );
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": user}, "roleRef": role, "subjects": [subject]});
    edge.cluster.change(Request::apply(&kind, &key, &body).by("test")).await.unwrap();
    let cluster = connect(&kubeconfig(edge.plane, user));
    eventually("the user to be granted everything", LIMIT, async || {
        cluster.read_metadata(&kind, &key).await.map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    (edge, State::new(cluster))
}

/// A pass, and its requests: `patch configmaps/a`, or the path of discovery.
async fn pass(edge: &Edge, state: &mut State, sets: &[&Set], full: bool, user: &str) -> (Outcome, Vec<String>) {
    let audit = edge.plane.audit().unwrap();
    let mark = audit.mark().await.unwrap();
    let outcome = state.pass(sets, full).await.unwrap();
    assert_eq!(outcome.end, End::Finished);
    let records = audit.records(&Filter::since(mark).user(user)).await.unwrap();
    let lines = records.into_iter().map(|record| match (record.resource.as_str(), record.name.as_str()) {
        ("", _) => record.uri,
        (resource, "") => format!("{} {resource}", record.verb),
        (resource, name) => format!("{} {resource}/{name}", record.verb),
    });
    (outcome, lines.collect())
}

/// The failures in the order of the syncsets' names.
fn failures(outcome: &Outcome) -> Vec<&Failure> {
    let mut failing: Vec<_> = outcome.results.iter().filter(|row| row.failure.is_some()).collect();
    failing.sort_by(|one, other| one.name.cmp(&other.name));
    failing.into_iter().filter_map(|row| row.failure.as_ref()).collect()
}

fn deployment(namespace: &str, name: &str) -> Value {
    let labels = json!({"app": name});
    let container = json!({"name": "agent", "image": "agent:1"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}})
}

fn map(namespace: &str, name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"a": value}})
}

fn patch(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": namespace, "patchType": "merge",
        "patch": "{\"data\": {\"patched\": \"yes\"}}"})
}

#[test]
fn a_pass_costs_as_many_requests_as_rule_43_says() {
    run(async {
        const NAME: &str = "costs";
        let user = REPLICA[0];
        let (edge, mut state) = passes(user, NAME).await;
        for name in ["one", "other"] {
            edge.apply(name, &json!({})).await.unwrap();
        }
        let maps = |values: [&str; 3]| {
            let maps = ["a", "b", "c"].iter().zip(values).map(|(name, value)| map(NAME, name, value));
            maps.collect::<Vec<_>>()
        };
        let deployments: Vec<Value> = ["x", "y", "z"].iter().map(|name| deployment(NAME, name)).collect();
        let mut set = Set::new("base", "Sync", "Apply");
        set.resources([maps(["1", "1", "1"]), deployments.clone()].concat());
        set.patches(vec![patch(NAME, "one"), patch(NAME, "other")]);

        // 2n + p, and one for each version of a group.
        let (outcome, asked) = pass(&edge, &mut state, &[&set], false, user).await;
        assert!(failures(&outcome).is_empty(), "{outcome:?}");
        assert_eq!(asked.iter().filter(|line| line.starts_with('/')).collect::<Vec<_>>(), ["/apis/apps/v1", "/api/v1"]);
        let (reads, writes): (Vec<_>, Vec<_>) = asked[2..].iter().partition(|line| line.starts_with("get "));
        assert_eq!((reads.len(), writes.len()), (6, 8), "{asked:?}");
        assert_eq!(outcome.requests, 14);

        // A full pass in step: j kinds + p.
        let (outcome, mut asked) = pass(&edge, &mut state, &[&set], true, user).await;
        asked.sort();
        assert_eq!(asked, ["get configmaps/one", "get configmaps/other", "list configmaps", "list deployments"]);
        assert!(outcome.releases.is_empty());

        // k changes.
        set.resources([maps(["2", "1", "2"]), deployments.clone()].concat());
        let (_, asked) = pass(&edge, &mut state, &[&set], false, user).await;
        assert_eq!(asked, ["patch configmaps/a", "patch configmaps/c"]);

        // One dropped.
        set.resources([maps(["2", "1", "2"])[..2].to_vec(), deployments].concat());
        let (_, asked) = pass(&edge, &mut state, &[&set], false, user).await;
        assert_eq!(asked, ["get configmaps/c", "delete configmaps/c"]);
        assert_eq!(edge.metadata(&config_maps(), "c").await, None);
        let changed = edge.metadata(&config_maps(), "a").await.unwrap();
        assert_eq!(changed.labels["hive.openshift.io/managed"], "true");

        // The syncset is gone: GET and DELETE of each, and nothing of the patches.
        let (outcome, asked) = pass(&edge, &mut state, &[], false, user).await;
        assert_eq!(asked.len(), 10, "{asked:?}");
        assert!(outcome.results.is_empty() && state.is_empty());

        // CreateOnly: n + p.
        let mut set = Set::new("first", "Sync", "CreateOnly");
        set.resources(maps(["1", "1", "1"]));
        set.patches(vec![patch(NAME, "a")]);
        let (outcome, asked) = pass(&edge, &mut state, &[&set], false, user).await;
        assert!(failures(&outcome).is_empty(), "{outcome:?}");
        assert_eq!(asked, ["create configmaps/a", "create configmaps/b", "create configmaps/c", "patch configmaps/a"]);
    });
}

#[test]
fn a_full_pass_sends_what_others_have_changed_and_nothing_else() {
    run(async {
        const NAME: &str = "drift";
        let user = REPLICA[1];
        let (edge, mut state) = passes(user, NAME).await;
        let mut set = Set::new("base", "Sync", "Apply");
        set.resources(["a", "b", "c", "d"].map(|name| map(NAME, name, "1")).to_vec());
        pass(&edge, &mut state, &[&set], false, user).await;
        let foreign = async |name: &str, patch: Value| {
            let (kind, key) = (config_maps(), edge.key(name));
            let request = Request::patch(&kind, &key, Payload::merge_patch(&patch)).by("kubectl-edit");
            edge.cluster.change(request).await.unwrap().body
        };
        foreign("a", json!({"data": {"a": "foreign"}})).await;
        foreign("b", json!({"data": {"theirs": "kept"}})).await;
        foreign("c", json!({"metadata": {"labels": {"hive.openshift.io/managed": null}}})).await;
        let gone = edge.metadata(&config_maps(), "d").await.unwrap();
        edge.cluster.remove(&config_maps(), &edge.key("d"), &gone.uid, None).await.unwrap();

        let (outcome, mut asked) = pass(&edge, &mut state, &[&set], true, user).await;
        assert!(failures(&outcome).is_empty(), "{outcome:?}");
        asked.sort();
        let requests = ["patch configmaps/a", "patch configmaps/c", "patch configmaps/d"];
        assert_eq!(asked, [&["get configmaps/c", "get configmaps/d", "list configmaps"], &requests[..]].concat());
        let (_, asked) = pass(&edge, &mut state, &[&set], true, user).await;
        assert_eq!(asked, ["list configmaps"]);
        let kept = edge.metadata(&config_maps(), "b").await.unwrap();
        assert!(kept.managers.iter().any(|entry| entry.manager == "kubectl-edit"), "{kept:?}");
    });
}

#[test]
fn a_definition_and_an_object_of_it_come_and_go_in_one_pass_each() {
    run(async {
        const NAME: &str = "gadgets";
        let user = REPLICA[2];
        let (edge, mut state) = passes(user, NAME).await;
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "gadgets.passes.towline.dev"},
            "spec": {"group": "passes.towline.dev", "scope": "Namespaced", "names": {"kind": "Gadget", "plural": "gadgets"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        let gadget = |name: &str, size: u64| {
            json!({"apiVersion": "passes.towline.dev/v1", "kind": "Gadget",
                "metadata": {"name": name, "namespace": NAME}, "spec": {"size": size}})
        };
        let mut set = Set::new("gadgets", "Sync", "Apply");
        set.resources(vec![definition, gadget("one", 3)]);
        let (outcome, _) = pass(&edge, &mut state, &[&set], false, user).await;
        assert!(failures(&outcome).is_empty(), "{outcome:?}");
        let gadgets = of_group("passes.towline.dev", "Gadget", "gadgets", true);
        assert_eq!(edge.metadata(&gadgets, "one").await.unwrap().labels["hive.openshift.io/managed"], "true");

        // A custom kind has no strategic patch.
        let mut other = Set::new("other", "Sync", "CreateOrUpdate");
        other.resources(vec![gadget("two", 3)]);
        let (_, asked) = pass(&edge, &mut state, &[&set, &other], false, user).await;
        assert_eq!(asked, ["get gadgets/two", "create gadgets/two"]);
        other.resources(vec![gadget("two", 4)]);
        let (outcome, asked) = pass(&edge, &mut state, &[&set, &other], false, user).await;
        assert!(failures(&outcome).is_empty(), "{outcome:?}");
        assert_eq!(asked, ["patch gadgets/two", "patch gadgets/two"]);

        // All are dropped at once: objects go before what defines their kind.
        set.resources(Vec::new());
        let (outcome, asked) = pass(&edge, &mut state, &[&set], false, user).await;
        assert!(failures(&outcome).is_empty(), "{outcome:?}");
        let deletions: Vec<_> = asked.iter().filter(|line| line.starts_with("delete ")).collect();
        let definition = "delete customresourcedefinitions/gadgets.passes.towline.dev";
        assert_eq!(deletions, ["delete gadgets/two", "delete gadgets/one", definition]);
        // It has a finalizer, and is looked at until it is gone.
        eventually("the definition to be forgotten", LIMIT, async || {
            let (outcome, asked) = pass(&edge, &mut state, &[&set], true, user).await;
            let is_deleted_again = asked.iter().any(|line| line.starts_with("delete "));
            if state.is_empty() && !is_deleted_again { Ok(()) } else { Err(format!("{asked:?} {outcome:?}")) }
        })
        .await
        .unwrap();
    });
}

#[test]
fn what_existed_before_is_applied_and_never_deleted() {
    run(async {
        const NAME: &str = "adopted";
        let user = REPLICA[3];
        let (edge, mut state) = passes(user, NAME).await;
        edge.apply("site", &json!({"a": "theirs"})).await.unwrap();
        let mut set = Set::new("base", "Sync", "Apply");
        set.resources(vec![map(NAME, "site", "1"), map(NAME, "own", "1")]);
        pass(&edge, &mut state, &[&set], false, user).await;
        let adopted = edge.metadata(&config_maps(), "site").await.unwrap();
        assert_eq!(adopted.annotations["towline.dev/adopted"], "true");
        let (outcome, asked) = pass(&edge, &mut state, &[], false, user).await;
        assert_eq!(asked, ["get configmaps/own", "delete configmaps/own"]);
        assert_eq!(outcome.releases.get(&Release::Adopted), Some(&1));
        assert!(edge.metadata(&config_maps(), "site").await.is_some() && state.is_empty());
    });
}

#[test]
fn refusals_fail_their_syncsets_alone_and_in_words_that_name_the_cause() {
    run(async {
        const NAME: &str = "refusals";
        let edge = Edge::new(NAME).await;
        let mut state = State::new(connect(&kubeconfig(edge.plane, integration::users::ADMIN)));
        let fails = |name: &str, resource: Value| {
            let mut set = Set::new(name, "Sync", "Apply");
            set.resources(vec![resource]);
            set
        };
        let mut unknown = map(NAME, "unknown", "1");
        unknown["unknown"] = json!(1);
        let mut unfit = map(NAME, "unfit", "1");
        unfit["data"]["a/b"] = json!("1");
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull", "namespace": NAME},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "canary"}});
        let unserved = json!({"apiVersion": "none.towline.dev/v1", "kind": "None", "metadata": {"name": "none"}});
        let sets = [
            fails("a-namespace", map("nowhere", "site", "1")),
            fails("b-field", unknown),
            fails("c-key", unfit),
            fails("d-secret", secret),
            fails("e-kind", unserved),
            fails("f-works", map(NAME, "works", "1")),
        ];
        let sets: Vec<&Set> = sets.iter().collect();
        let outcome = state.pass(&sets, false).await.unwrap();
        let told: Vec<_> =
            failures(&outcome).iter().map(|failure| (failure.reason, failure.message.as_str())).collect();
        let [missing, field, key, secret, kind] = told.as_slice() else { panic!("{told:?}") };
        let expected = "failed to apply resource 0 (ConfigMap nowhere/site): namespaces \"nowhere\" not found";
        assert_eq!(*missing, (Reason::NamespaceMissing, expected));
        assert!(field.0 == Reason::SchemaMismatch && field.1.contains(".unknown: field not declared"), "{field:?}");
        assert!(field.1.ends_with("; remove it, or use CreateOrUpdate"), "{field:?}");
        assert!(key.0 == Reason::Rejected && key.1.contains("a valid config key"), "{key:?}");
        let expected = "failed to apply resource 0 (Secret refusals/pull): HTTP 422 Invalid: data[.dockerconfigjson]";
        assert_eq!(*secret, (Reason::Rejected, expected));
        assert_eq!(kind.0, Reason::KindNotServed, "{kind:?}");
        assert!(edge.metadata(&config_maps(), "works").await.is_some());
        assert!(!format!("{outcome:?}").contains("canary"));
    });
}

#[test]
fn who_may_do_nothing_fails_and_who_is_unknown_ends_the_pass() {
    run(async {
        const NAME: &str = "rights";
        let edge = Edge::new(NAME).await;
        let mut set = Set::new("base", "Sync", "Apply");
        set.resources(vec![map(NAME, "site", "1")]);
        let config = kubeconfig(edge.plane, UNPRIVILEGED);
        let outcome = State::new(connect(&config)).pass(&[&set], false).await.unwrap();
        let told = failures(&outcome);
        let expected = "failed to apply resource 0 (ConfigMap rights/site): configmaps \"site\" is forbidden: User \"unprivileged\" cannot get resource";
        assert!(told[0].reason == Reason::Forbidden && told[0].message.starts_with(expected), "{told:?}");
        let mut unknown = State::new(connect(&config.replace("unprivileged-on", "nobody-on")));
        let stop = unknown.pass(&[&set], false).await.unwrap_err();
        assert!(matches!(stop, Stop::Silent { .. }), "{stop:?}");
        assert!(unknown.is_empty());
    });
}

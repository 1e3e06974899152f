//! What makes a cluster be worked on, and what does not.

use integration::hub::Request;
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{Stage, run};

/// A cluster is claimed once for each change that concerns it, and never for its own status.
#[test]
fn each_change_that_concerns_a_cluster_wakes_it_once() {
    run(async {
        let stage = Stage::new("waking").await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        stage.create("secrets", &json!({"namespace": stage.namespace, "name": "source", "data": {"a": "MQ=="}})).await;
        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        let mut before = stage.reconciles().await;
        let mut wakes = async |what: &str, reconciles: i64, expected: &[&str]| {
            stage.at_rest().await;
            let now = stage.reconciles().await;
            assert_eq!(now - before, reconciles, "{what}");
            assert_eq!(requests.seen().await, expected, "{what}");
            before = now;
        };
        let none: &[&str] = &[];
        let map = |value: &str| stage.config_map("site", &json!({"a": value}));
        let spec = |env: &str, value: &str| json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "resources": [map(value)]});
        let path = "selectorsyncsets/waking";
        stage.create("selectorsyncsets", &json!({"name": "waking", "spec": spec("test", "1")})).await;
        wakes("a selector that does not select it", 0, none).await;
        stage.replace_spec("selectorsyncsets", "waking", &spec("prod", "1")).await;
        wakes("one that selects it now", 1, &["get configmaps/site 404", "patch configmaps/site 201"]).await;
        stage.replace_spec("selectorsyncsets", "waking", &spec("prod", "2")).await;
        wakes("another content", 1, &["patch configmaps/site 200"]).await;
        stage.change(path, &json!({"labels": {"a": "b"}})).await;
        wakes("labels of a syncset", 1, none).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"region": "west"}})).await;
        wakes("a label that no template has", 1, none).await;
        stage.replace_spec("selectorsyncsets", "waking", &spec("test", "2")).await;
        wakes("one that selected it before", 1, none).await;
        stage.create("secrets", &json!({"namespace": stage.namespace, "name": "unused", "data": {"a": "MQ=="}})).await;
        stage.change(&stage.path("secrets", "source"), &json!({"data": {"a": "Mg=="}})).await;
        wakes("secrets that nobody maps", 0, none).await;
        let mapping =
            json!({"sourceRef": {"name": "source"}, "targetRef": {"name": "pull", "namespace": stage.namespace}});
        let mapped = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "secretMappings": [mapping]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": mapped})).await;
        wakes("a syncset that names it", 1, &["get secrets/pull 404", "patch secrets/pull 201"]).await;
        stage.change(&stage.path("secrets", "source"), &json!({"data": {"a": "Mw=="}})).await;
        wakes("a mapped secret", 1, &["patch secrets/pull 200"]).await;
        let elsewhere =
            json!({"clusterDeploymentRefs": [{"name": "west-2"}], "secretMappings": mapped["secretMappings"]});
        stage.replace_spec("syncsets", "base", &elsewhere).await;
        wakes("a syncset that named it before", 1, none).await;
        stage.change(&stage.path("secrets", "source"), &json!({"data": {"a": "NA=="}})).await;
        wakes("a secret that is mapped no more", 0, none).await;
    });
}

#[test]
fn templates_follow_labels_at_once_and_only_where_they_are_enabled() {
    run(async {
        let stage = Stage::new("labels").await;
        let plane = stage.register("west-1", &json!({"region": "west"}), 0).await;
        let client_map = json!({"metadata": {"name": "target"}});
        let maps = stage.maps(plane).await;
        maps.create(&kube::api::PostParams::default(), &serde_json::from_value(client_map).unwrap()).await.unwrap();
        let text = "{{ fromCDLabel \"region\" }}/{{ if eq (fromClusterLabel \"tier\") \"\" }}none{{ else }}{{ fromCDLabel \"tier\" }}{{ end }}";
        let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "target", "namespace": stage.namespace,
            "patchType": "merge", "patch": "{\"data\": {\"region\": {{ printf \"%q\" (fromCDLabel \"region\") }}}}"});
        let spec = |resources: bool, patches: bool, name: &str| {
            let mut spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "enableResourceTemplates": resources,
                "resources": [stage.config_map(name, &json!({"at": text}))]});
            if patches {
                (spec["enablePatchTemplates"], spec["patches"]) = (json!(true), json!([patch]));
            }
            json!({"namespace": stage.namespace, "name": name, "spec": spec})
        };
        stage.create("syncsets", &spec(true, true, "templates")).await;
        stage.create("syncsets", &spec(false, false, "verbatim")).await;
        let has = async |at: &str, region: &str| {
            let expected = [
                ("target", json!({"region": region})),
                ("templates", json!({"at": at})),
                ("verbatim", json!({"at": text})),
            ];
            stage.has(plane, &expected).await;
        };
        has("west/none", "west").await;
        stage.at_rest().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"region": "east", "tier": "gold"}})).await;
        has("east/gold", "east").await;
        stage.at_rest().await;
        assert_eq!(requests.seen().await, ["patch configmaps/templates 200", "patch configmaps/target 200"]);
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"region": null}})).await;
        has("/gold", "").await;
        stage.at_rest().await;
        // A patch whose text is no patch any more is left out, and everything else is sent.
        let broken = json!({"spec": {"patches": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "target",
            "namespace": stage.namespace, "patchType": "merge",
            "patch": "{\"data\": {{ if eq (fromCDLabel \"broken\") \"\" }}{\"region\": \"ok\"}{{ else }}[{{ end }}}"}, patch]}});
        stage.change(&stage.path("syncsets", "templates"), &broken).await;
        stage.succeeds("west-1", "templates", 2).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"broken": "yes", "region": "south"}})).await;
        has("south/gold", "south").await;
        let failed = |status: &Value| status["syncSets"][0]["result"] == "Failure";
        let status = stage.status("west-1", "the failure", failed).await;
        assert_eq!(status["syncSets"][0]["reason"], "TemplateInvalid", "{status}");
        let message = status["syncSets"][0]["failureMessage"].as_str().unwrap();
        assert!(message.starts_with("failed to parameterize patch 0: "), "{message}");
    });
}

#[test]
fn what_is_refused_on_write_is_refused_with_all_faults() {
    run(async {
        let stage = Stage::new("refused").await;
        let resources = json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-", "namespace": "n"}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "..", "namespace": "n"}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "a/b"}},
            {"apiVersion": "v1", "kind": "ConfigMapList", "items": []},
            {"apiVersion": "authorization.openshift.io/v1", "kind": "Role", "metadata": {"name": "c", "namespace": "n"}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d", "namespace": "n"}, "data": {"$patch": "delete"}},
        ]);
        let mapping =
            json!({"sourceRef": {"name": "s", "namespace": "elsewhere"}, "targetRef": {"name": "t", "namespace": "n"}});
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resources": resources, "secretMappings": [mapping],
            "applyBehavior": "Sometimes", "resourceApplyMode": "Never"});
        let document = json!({"namespace": stage.namespace, "name": "faulty", "spec": spec});
        let reply = stage.send(&Request::post("/v1/syncsets", &document)).await;
        assert_eq!(reply.status, 422);
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        for pointer in [
            "/spec/resources/0/metadata/name",
            "/spec/resources/1/metadata/name",
            "/spec/resources/2/metadata/namespace",
            "/spec/resources/3",
            "/spec/resources/4",
            "/spec/resources/5",
            "/spec/secretMappings/0",
            "/spec/applyBehavior",
            "/spec/resourceApplyMode",
        ] {
            assert!(text.contains(&format!("\"{pointer}")), "no {pointer} in {text}");
        }
    });
}

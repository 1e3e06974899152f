//! What is on the cluster is what was asked for: lists that a server would merge by the wrong key, fields that a change forbids, and nulls.

use integration::eventually;
use integration::users::ADMIN;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::unions::volumes;
use crate::syncsets::world::{LIMIT, Stage, edge, run};

/// Objects of one kind in the namespace of a test.
fn objects(client: &Client, stage: &Stage, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(client.clone(), stage.namespace, &kind)
}

async fn found(api: &Api<DynamicObject>, name: &str, pointer: &str) -> Value {
    json!(api.get(name).await.unwrap()).pointer(pointer).cloned().unwrap_or_default()
}

/// A syncset of one resource, in one behavior.
async fn syncset(stage: &Stage, name: &str, behavior: &str, resource: &Value) {
    let spec =
        json!({"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": behavior, "resources": [resource]});
    stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
    stage.succeeds("west-1", name, 1).await;
}

async fn change(stage: &Stage, name: &str, generation: u64, resource: &Value) {
    stage.wants(name, std::slice::from_ref(resource)).await;
    stage.succeeds("west-1", name, generation).await;
}

fn service(stage: &Stage, name: &str, ports: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {"selector": {"app": name}, "ports": ports}})
}

fn port(protocol: &str, target: u16) -> Value {
    json!({"name": protocol.to_lowercase(), "port": 53, "protocol": protocol, "targetPort": target})
}

pub(crate) fn workload(stage: &Stage, kind: &str, name: &str, spec: &Value, pod: &Value) -> Value {
    let labels = json!({"app": name});
    let mut template = json!({"containers": [{"name": "agent", "image": "agent:1"}]});
    merge(&mut template, pod);
    let mut object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}}});
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!(name);
    }
    merge(&mut object["spec"], spec);
    object
}

pub(crate) fn merge(fields: &mut Value, more: &Value) {
    for (name, value) in more.as_object().unwrap() {
        fields[name] = value.clone();
    }
}

pub(crate) fn container(fields: &Value) -> Value {
    let mut container = json!({"name": "agent", "image": "agent:1"});
    merge(&mut container, fields);
    json!({"containers": [container]})
}

#[test]
fn a_port_is_told_from_another_of_its_number_in_each_behavior() {
    run(async {
        let stage = Stage::new("ports").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let services = objects(&plane.client(ADMIN).await.unwrap(), &stage, "v1", "Service", "services");
        for (name, behavior) in [("applied", "Apply"), ("updated", "CreateOrUpdate")] {
            syncset(&stage, name, behavior, &service(&stage, name, &json!([port("TCP", 1)]))).await;
            let mut requests = Requests::from_now(&stage, plane).await;
            change(&stage, name, 2, &service(&stage, name, &json!([port("TCP", 1), port("UDP", 2)]))).await;
            assert_eq!(found(&services, name, "/spec/ports").await, json!([port("TCP", 1), port("UDP", 2)]));
            let (get, patch) = (format!("get services/{name} 200"), format!("patch services/{name} 200"));
            let expected = if behavior == "Apply" { vec![patch] } else { vec![get, patch] };
            assert_eq!(requests.seen().await, expected);
            change(&stage, name, 3, &service(&stage, name, &json!([port("UDP", 3)]))).await;
            // Only an apply removes.
            let both = json!([port("TCP", 1), port("UDP", 3)]);
            let expected = if behavior == "Apply" { json!([port("UDP", 3)]) } else { both };
            assert_eq!(found(&services, name, "/spec/ports").await, expected);
            requests.seen().await;
            stage.full_pass().await;
            let seen = requests.seen().await;
            assert!(seen.iter().all(|request| !request.starts_with("patch")), "{seen:?}");
        }
        let both = json!([port("TCP", 1), port("UDP", 2)]);
        syncset(&stage, "created", "CreateOnly", &service(&stage, "created", &both)).await;
        assert_eq!(found(&services, "created", "/spec/ports").await, both);
    });
}

#[test]
fn a_strategic_patch_of_a_syncset_adds_a_port_and_takes_none() {
    run(async {
        let stage = Stage::new("ports-patched").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let services = objects(&plane.client(ADMIN).await.unwrap(), &stage, "v1", "Service", "services");
        let theirs = serde_json::from_value(service(&stage, "dns", &json!([port("TCP", 1)]))).unwrap();
        services.create(&PostParams::default(), &theirs).await.unwrap();
        let patch = json!({"spec": {"ports": [port("UDP", 2)]}}).to_string();
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "patches": [{"apiVersion": "v1", "kind": "Service",
            "name": "dns", "namespace": stage.namespace, "patchType": "strategic", "patch": patch}]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(found(&services, "dns", "/spec/ports").await, json!([port("TCP", 1), port("UDP", 2)]));
    });
}

/// A server may accept a change and keep a part of it, as with somebody's admission policy. That is no success until all of it is there.
#[test]
fn what_a_cluster_drops_from_a_list_that_it_has_accepted_is_no_success() {
    run(async {
        let stage = Stage::new("lacking").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let services = objects(&client, &stage, "v1", "Service", "services");
        syncset(&stage, "own", "CreateOrUpdate", &service(&stage, "own", &json!([port("TCP", 1)]))).await;
        let both = json!([port("TCP", 1), port("UDP", 2)]);
        let typed = |name: &str, ports: &Value| serde_json::from_value(service(&stage, name, ports)).unwrap();
        services.create(&PostParams::default(), &typed("theirs", &json!([port("TCP", 1)]))).await.unwrap();

        let group = "admissionregistration.k8s.io";
        let of = |kind: &str, plural: &str| -> Api<DynamicObject> {
            let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
            Api::all_with(client.clone(), &kind)
        };
        let policies = of("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
        let bindings = of("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings");
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["services"]});
        let here = json!({"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}});
        let policy = json!({"metadata": {"name": "lacking"}, "spec": {"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
            "matchConditions": [{"name": "two", "expression": "size(object.spec.ports) == 2"}],
            "mutations": [{"patchType": "JSONPatch",
                "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/spec/ports/1'}]"}}]}});
        let binding = json!({"metadata": {"name": "lacking"}, "spec": {"policyName": "lacking"}});
        policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        let keeps = async |count: usize| {
            let tried = PostParams { dry_run: true, ..PostParams::default() };
            eventually(format!("the cluster to keep {count} of two ports"), LIMIT, async || {
                let kept = services.create(&tried, &typed("probe", &both)).await.map_err(|error| error.to_string())?;
                if kept.data["spec"]["ports"].as_array().map(Vec::len) == Some(count) {
                    Ok(())
                } else {
                    Err(json!(kept).to_string())
                }
            })
            .await
            .unwrap();
        };
        keeps(1).await;

        stage.wants("own", &[service(&stage, "own", &both)]).await;
        let patch = json!({"spec": {"ports": [port("UDP", 2)]}}).to_string();
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "patches": [{"apiVersion": "v1", "kind": "Service",
            "name": "theirs", "namespace": stage.namespace, "patchType": "strategic", "patch": patch}]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "patched", "spec": spec})).await;
        let lacks = "it was accepted, but /spec/ports lacks port 53, protocol UDP";
        let told = |status: &Value| -> Vec<Value> {
            let entries = status["syncSets"].as_array().into_iter().flatten();
            entries
                .map(|entry| json!([entry["name"], entry["result"], entry["reason"], entry["failureMessage"]]))
                .collect()
        };
        let expected = [("own", "resource", "own"), ("patched", "patch", "theirs")].map(|(name, noun, object)| {
            let object = format!("Service {}/{object}", stage.namespace);
            json!([name, "Failure", "Rejected", format!("failed to apply {noun} 0 ({object}): {lacks}")])
        });
        stage.status("west-1", "what the services lack", |status| told(status) == expected).await;
        stage.full_pass().await;
        assert_eq!(told(&stage.get(&stage.path("clustersyncs", "west-1")).await["status"]), expected);

        bindings.delete("lacking", &DeleteParams::default()).await.unwrap();
        policies.delete("lacking", &DeleteParams::default()).await.unwrap();
        keeps(2).await;
        stage.full_pass().await;
        stage.succeeds("west-1", "own", 2).await;
        stage.succeeds("west-1", "patched", 1).await;
        for name in ["own", "theirs"] {
            assert_eq!(found(&services, name, "/spec/ports").await, both, "{name}");
        }
    });
}

#[test]
fn lists_of_pods_with_two_keys_or_with_one_name_twice_are_what_was_asked_for() {
    run(async {
        let stage = Stage::new("pod-lists").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let deployments = objects(&client, &stage, "apps/v1", "Deployment", "deployments");
        let of = |env: &[&str], protocols: &[&str], when: &[&str]| {
            let env: Vec<Value> = env.iter().map(|value| json!({"name": "A", "value": value})).collect();
            let ports: Vec<Value> =
                protocols.iter().map(|protocol| json!({"containerPort": 53, "protocol": protocol})).collect();
            let labels = json!({"matchLabels": {"app": "lists"}});
            let spread: Vec<Value> = when
                .iter()
                .map(|when| json!({"topologyKey": "zone", "whenUnsatisfiable": when, "maxSkew": 1, "labelSelector": labels}))
                .collect();
            let mut pod = container(&json!({"env": env, "ports": ports}));
            pod["topologySpreadConstraints"] = json!(spread);
            pod
        };
        let (one, other) = ("DoNotSchedule", "ScheduleAnyway");
        let lists = |pod: &Value| {
            [pod.pointer("/containers/0/env"), pod.pointer("/containers/0/ports"), pod.get("topologySpreadConstraints")]
                .map(Option::<&Value>::cloned)
        };
        let sent = |pod: &Value| workload(&stage, "Deployment", "lists", &json!({"replicas": 1}), pod);
        syncset(&stage, "lists", "CreateOrUpdate", &sent(&of(&["1"], &["TCP"], &[one]))).await;
        let both = of(&["2", "3"], &["TCP", "UDP"], &[one, other]);
        change(&stage, "lists", 2, &sent(&both)).await;
        let live = found(&deployments, "lists", "/spec/template/spec").await;
        assert_eq!(lists(&live), lists(&both));
    });
}

/// The table of such lists is complete, and so are the sources of volumes that tests try: by what the server says of its kinds.
#[test]
fn the_lists_that_a_server_merges_by_another_key_and_its_sources_of_volumes_are_those_that_are_known() {
    run(async {
        let client = edge(0).await.client(ADMIN).await.unwrap();
        let text = client.request_text(http::Request::get("/openapi/v2").body(Vec::new()).unwrap()).await.unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let mut found = Vec::new();
        for (name, definition) in document["definitions"].as_object().unwrap() {
            // Nobody sends a status.
            for (field, list) in definition["properties"].as_object().into_iter().flatten() {
                let (merge_key, keys) = (&list["x-kubernetes-patch-merge-key"], &list["x-kubernetes-list-map-keys"]);
                if merge_key.is_string() && *keys != json!([merge_key]) && !name.ends_with("Status") {
                    found.push(format!("{}.{field} {merge_key} {keys}", name.rsplit('.').next().unwrap()));
                }
            }
        }
        let known = [
            r#"Container.ports "containerPort" ["containerPort","protocol"]"#,
            r#"EphemeralContainer.ports "containerPort" ["containerPort","protocol"]"#,
            r#"PodSpec.topologySpreadConstraints "topologyKey" ["topologyKey","whenUnsatisfiable"]"#,
            r#"ServiceSpec.ports "port" ["port","protocol"]"#,
        ];
        found.sort();
        assert_eq!(found, known);
        let volume = document["definitions"]["io.k8s.api.core.v1.Volume"]["properties"].as_object().unwrap();
        let served: Vec<&String> = volume.keys().filter(|name| *name != "name").collect();
        let tried = volumes();
        assert_eq!(served, tried.as_object().unwrap().keys().collect::<Vec<_>>());
    });
}

#[test]
fn a_strategy_that_forbids_a_default_is_taken_in_each_behavior_with_and_without_a_null() {
    run(async {
        let stage = Stage::new("strategies").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let client = plane.client(ADMIN).await.unwrap();
        let idle = json!({"replicas": 0, "paused": true});
        for (kind, plural, field, strategy, rest, nulls) in [
            ("Deployment", "deployments", "strategy", "Recreate", &idle, &[false, true][..]),
            ("StatefulSet", "statefulsets", "updateStrategy", "OnDelete", &json!({"replicas": 0}), &[false]),
            ("DaemonSet", "daemonsets", "updateStrategy", "OnDelete", &json!({}), &[false]),
        ] {
            let all = objects(&client, &stage, "apps/v1", kind, plural);
            for (behavior, null) in
                ["Apply", "CreateOrUpdate"].into_iter().flat_map(|one| nulls.iter().map(move |null| (one, *null)))
            {
                let name = format!("{plural}-{}-{null}", behavior.to_lowercase());
                let mut wanted = json!({"type": strategy});
                if null {
                    wanted["rollingUpdate"] = Value::Null;
                }
                let of = |strategy: &Value| {
                    let mut spec = rest.clone();
                    spec[field] = strategy.clone();
                    workload(&stage, kind, &name, &spec, &json!({}))
                };
                syncset(&stage, &name, behavior, &of(&json!({"type": "RollingUpdate"}))).await;
                change(&stage, &name, 2, &of(&wanted)).await;
                let live = found(&all, &name, &format!("/spec/{field}")).await;
                assert_eq!(live["type"], strategy, "{name}");
                // The server takes it for a DaemonSet.
                assert!(live["rollingUpdate"].is_null() || kind == "DaemonSet", "{name}: {live}");
                // And back.
                change(&stage, &name, 3, &of(&json!({"type": "RollingUpdate"}))).await;
                let live = found(&all, &name, &format!("/spec/{field}")).await;
                assert_eq!(live["type"], "RollingUpdate", "{name}: {live}");
            }
        }
        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        let seen = requests.seen().await;
        assert!(seen.iter().all(|request| !request.starts_with("patch")), "{seen:?}");
        // A patch of a syncset, too.
        let deployment = objects(&client, &stage, "apps/v1", "Deployment", "deployments");
        let theirs = workload(&stage, "Deployment", "theirs", &idle, &json!({}));
        deployment.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
        let patch = json!({"spec": {"strategy": {"type": "Recreate"}}}).to_string();
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "patches": [{"apiVersion": "apps/v1",
            "kind": "Deployment", "name": "theirs", "namespace": stage.namespace, "patch": patch}]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "patch", "spec": spec})).await;
        stage.succeeds("west-1", "patch", 1).await;
        assert_eq!(found(&deployment, "theirs", "/spec/strategy").await, json!({"type": "Recreate"}));
    });
}

/// What can't be cleared away is refused as it was, and nothing is changed on the way.
#[test]
fn a_change_that_is_refused_for_another_reason_changes_nothing() {
    run(async {
        let stage = Stage::new("refused-anyway").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let all = objects(&plane.client(ADMIN).await.unwrap(), &stage, "apps/v1", "Deployment", "deployments");
        let mut wanted =
            workload(&stage, "Deployment", "agent", &json!({"strategy": {"type": "Recreate"}}), &json!({}));
        syncset(&stage, "base", "Apply", &wanted).await;
        // The controller of Deployments writes the status and an annotation.
        let ours = async || json!([found(&all, "agent", "/metadata/uid").await, found(&all, "agent", "/spec").await]);
        let before = ours().await;
        let mut requests = Requests::from_now(&stage, plane).await;
        wanted["spec"]["selector"]["matchLabels"]["more"] = json!("b");
        wanted["spec"]["template"]["metadata"]["labels"]["more"] = json!("b");
        stage.wants("base", &[wanted]).await;
        let is_refused = |status: &Value| status["syncSets"][0]["reason"] == "Rejected";
        let status = stage.status("west-1", "the other selector to be refused", is_refused).await;
        assert!(status["syncSets"][0]["failureMessage"].as_str().unwrap().contains("selector"), "{status}");
        assert_eq!(ours().await, before);
        let seen = requests.seen().await;
        assert_eq!(
            seen[..3],
            ["patch deployments/agent 422", "patch deployments/agent 422", "get deployments/agent 200"]
        );
    });
}

#[test]
fn a_null_is_the_value_of_a_nullable_field_and_removes_any_other() {
    run(async {
        let stage = Stage::new("nulls").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let properties = json!({"nullable": {"type": "string", "nullable": true, "default": "x"},
            "defaulted": {"type": "string", "default": "y"}, "plain": {"type": "string"}, "size": {"type": "integer"}});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "gadgets.nulls.example.com"}, "spec": {"group": "nulls.example.com", "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
        syncset(&stage, "definition", "Apply", &definition).await;
        let all = objects(&client, &stage, "nulls.example.com/v1", "Gadget", "gadgets");
        let gadget = |spec: &Value| {
            json!({"apiVersion": "nulls.example.com/v1", "kind": "Gadget",
                "metadata": {"name": "a", "namespace": stage.namespace}, "spec": spec})
        };
        syncset(&stage, "base", "Apply", &gadget(&json!({"size": 1}))).await;
        assert_eq!(found(&all, "a", "/spec").await, json!({"nullable": "x", "defaulted": "y", "size": 1}));
        change(&stage, "base", 2, &gadget(&json!({"nullable": null, "defaulted": null, "size": 1}))).await;
        assert_eq!(found(&all, "a", "/spec").await, json!({"nullable": null, "defaulted": "y", "size": 1}));
        // Somebody else has given it, and an apply of null is refused there.
        let theirs = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        all.patch("a", &theirs, &Patch::Merge(json!({"spec": {"plain": "theirs"}}))).await.unwrap();
        change(&stage, "base", 3, &gadget(&json!({"plain": null, "size": 2}))).await;
        assert_eq!(found(&all, "a", "/spec").await, json!({"nullable": "x", "defaulted": "y", "size": 2}));
        // It may be new, too.
        let mut other = gadget(&json!({"plain": null, "size": 3}));
        other["metadata"]["name"] = json!("b");
        syncset(&stage, "other", "Apply", &other).await;
        assert_eq!(found(&all, "b", "/spec").await, json!({"nullable": "x", "defaulted": "y", "size": 3}));
    });
}

#[test]
fn an_update_removes_what_is_null_whatever_the_field_is() {
    run(async {
        let stage = Stage::new("nulls-updated").await;
        let plane = stage.register("west-1", &json!({}), 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let properties = json!({"nullable": {"type": "string", "nullable": true, "default": "x"},
            "kept": {"type": "string", "nullable": true}, "defaulted": {"type": "string", "default": "y"},
            "plain": {"type": "string"}, "inner": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "gauges.nulls.example.com"}, "spec": {"group": "nulls.example.com", "scope": "Namespaced",
            "names": {"kind": "Gauge", "plural": "gauges"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
        syncset(&stage, "definition", "Apply", &definition).await;
        let namespace = stage.namespace;
        let gauge = |spec: &Value| json!({"apiVersion": "nulls.example.com/v1", "kind": "Gauge", "metadata": {"name": "gauge", "namespace": namespace}, "spec": spec});
        let map = |data: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map", "namespace": namespace}, "data": data});
        let named_service = |fields: &Value| {
            let mut service = service(&stage, "service", &json!([port("TCP", 1)]));
            merge(&mut service["spec"], fields);
            service
        };
        let pod =
            |fields: &Value| workload(&stage, "Deployment", "workload", &json!({"replicas": 0}), &container(fields));
        let all = |version: &str, kind: &str, plural: &str| objects(&client, &stage, version, kind, plural);
        // What is there first, what is wanted then, and what is there afterwards.
        for (name, objects, first, wanted, pointer, expected) in [
            (
                "gauge",
                all("nulls.example.com/v1", "Gauge", "gauges"),
                gauge(
                    &json!({"nullable": "1", "kept": "2", "defaulted": "3", "plain": "4", "inner": {"a": "5", "b": "6"}}),
                ),
                gauge(
                    &json!({"nullable": null, "kept": null, "defaulted": null, "plain": null, "inner": {"a": null, "b": "7"}}),
                ),
                "/spec",
                json!({"nullable": "x", "defaulted": "y", "inner": {"b": "7"}}),
            ),
            (
                "map",
                all("v1", "ConfigMap", "configmaps"),
                map(&json!({"a": "1", "b": "2"})),
                map(&json!({"a": null, "b": "3"})),
                "/data",
                json!({"b": "3"}),
            ),
            (
                "service",
                all("v1", "Service", "services"),
                named_service(&json!({"sessionAffinity": "ClientIP", "externalIPs": ["192.0.2.1"]})),
                named_service(&json!({"sessionAffinity": null, "externalIPs": null})),
                "/spec/sessionAffinity",
                json!("None"),
            ),
            (
                "workload",
                all("apps/v1", "Deployment", "deployments"),
                pod(&json!({"args": ["-v"], "workingDir": "/tmp", "imagePullPolicy": "Always"})),
                pod(&json!({"args": null, "workingDir": null, "imagePullPolicy": null})),
                "/spec/template/spec/containers",
                json!([{"name": "agent", "image": "agent:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}]),
            ),
        ] {
            syncset(&stage, name, "CreateOrUpdate", &first).await;
            change(&stage, name, 2, &wanted).await;
            assert_eq!(found(&objects, name, pointer).await, expected, "{name}");
        }
        // The same as when it is created with the nulls at once.
        let mut new = map(&json!({"a": null, "b": "3"}));
        new["metadata"]["name"] = json!("new-map");
        syncset(&stage, "new-map", "CreateOrUpdate", &new).await;
        let maps = all("v1", "ConfigMap", "configmaps");
        assert_eq!(found(&maps, "new-map", "/data").await, json!({"b": "3"}));
        let mut new = gauge(&json!({"nullable": null, "kept": null, "plain": null, "inner": {"b": "7"}}));
        new["metadata"]["name"] = json!("new-gauge");
        syncset(&stage, "new-gauge", "CreateOrUpdate", &new).await;
        let gauges = all("nulls.example.com/v1", "Gauge", "gauges");
        let spec = json!({"nullable": "x", "defaulted": "y", "inner": {"b": "7"}});
        assert_eq!(found(&gauges, "new-gauge", "/spec").await, spec);

        let mut requests = Requests::from_now(&stage, plane).await;
        stage.full_pass().await;
        let seen = requests.seen().await;
        assert!(!seen.is_empty() && seen.iter().all(|request| !request.starts_with("patch")), "{seen:?}");
    });
}

//! A release from its installation to its end: each change is told once.

use integration::rbac::grant_inventory_of_config_maps;
use integration::{Chart, Reply, Sink, eventually};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::inventory::world::{LIMIT, World, brief, chart, run, small_chart};

/// What the API is told of `keycloak` in the namespace `default`, by the specification.
fn expected(world_status: &Value, updated: &str, revision: u64, image: &str) -> Value {
    let pod = format!("keycloak-{}", image.replace(':', "-"));
    json!({
        "app_api_info": {
            "cluster_uuid": world_status["clusterUUID"], "app_uuid": world_status["helmStatus"][0]["appUUID"],
            "app_name": "keycloak", "email_id": "a@b.example", "org_id": "o1", "type": "k8s", "hossted_helm": false,
        },
        "app_info": {
            "helm_info": {"name": "keycloak", "namespace": "default", "revision": revision, "updated": updated,
                "status": "deployed", "chart": "keycloak-chart", "appVersion": "23.0.5"},
            "pod_info": [{"name": pod, "namespace": "default", "image": image, "images": [image, "proxy:1"], "status": "Pending"}],
            "service_info": [{"name": "keycloak-http", "namespace": "default", "port": 80, "ports": [80, 8443]}],
            "volume_info": [{"name": "keycloak-data", "namespace": "default", "size": 8_589_934_592_i64}],
            "ingress_info": [{"name": "keycloak-public", "namespace": "default", "domain": "id.example", "domains": ["id.example"]}],
        },
    })
}

#[test]
fn every_change_of_a_release_is_told_once_and_field_by_field() {
    run(async {
        let world = World::new().await;
        let daemon = world.start("").await;
        let chart = world.helm.chart(&chart()).unwrap();
        world.helm.run(&["install", "keycloak", &chart]).await.unwrap();
        let told = world.told("keycloak", 1).await;
        world.wait_until_acknowledged("keycloak").await;
        let helm = world.helm.status("default", "keycloak").await.unwrap();
        let updated = helm["info"]["last_deployed"].as_str().unwrap();
        assert_eq!(told, [expected(&world.status().await, updated, 1, "keycloak:23")]);

        world.helm.run(&["upgrade", "keycloak", &chart, "--set", "image=keycloak:24"]).await.unwrap();
        let told = world.told("keycloak", 2).await;
        let helm = world.helm.status("default", "keycloak").await.unwrap();
        let updated = helm["info"]["last_deployed"].as_str().unwrap();
        assert_eq!(told[1], expected(&world.status().await, updated, 2, "keycloak:24"));

        world.helm.run(&["rollback", "keycloak", "1"]).await.unwrap();
        assert_eq!(brief(&world.told("keycloak", 3).await[2]), (3, "deployed".to_owned()));
        let (succeeded, _) =
            world.helm.attempt(&["upgrade", "keycloak", &chart, "--set", "broken=true"]).await.unwrap();
        assert!(!succeeded, "the API server takes a port that there is not");
        assert_eq!(brief(&world.told("keycloak", 4).await[3]), (4, "failed".to_owned()));

        world.helm.run(&["uninstall", "keycloak"]).await.unwrap();
        let told = world.told("keycloak", 5).await;
        assert_eq!(brief(&told[4]), (4, "uninstalled".to_owned()));
        for list in ["pod_info", "service_info", "volume_info", "ingress_info"] {
            assert_eq!(told[4]["app_info"][list], json!([]), "{list}");
        }
        world.wait_until_forgotten().await;
        // Whatever follows would have come before the end of another release's report.
        world.helm.run(&["install", "other", &chart]).await.unwrap();
        world.told("other", 1).await;
        assert_eq!(world.accepted("keycloak").len(), 5);
        assert_eq!(world.sink.told().len(), 7, "the registration, and each post once");
        drop(daemon);
    });
}

#[test]
fn a_history_that_is_kept_is_told_once_and_a_release_that_follows_anew() {
    run(async {
        let world = World::new().await;
        let mut daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        world.told("web", 1).await;
        world.helm.run(&["uninstall", "web", "--keep-history"]).await.unwrap();
        assert_eq!(brief(&world.told("web", 2).await[1]), (1, "uninstalled".to_owned()));
        world.wait_until_forgotten().await;
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        world.helm.run(&["install", "web", &chart, "--replace"]).await.unwrap();
        let told = world.told("web", 3).await;
        assert_eq!(brief(&told[2]), (2, "deployed".to_owned()));
        assert_ne!(told[2]["app_api_info"]["app_uuid"], told[0]["app_api_info"]["app_uuid"]);
        assert_eq!(world.accepted("web").len(), 3);
    });
}

#[test]
fn a_release_that_comes_and_goes_within_the_delay_is_not_told() {
    run(async {
        let world = World::new().await;
        let daemon = world.start("delay = \"15s\"\n").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        eventually("the release to be seen", LIMIT, async || {
            let report = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
            if report["pending"] == 1 { Ok(()) } else { Err(report.to_string()) }
        })
        .await
        .unwrap();
        world.helm.run(&["uninstall", "web"]).await.unwrap();
        world.helm.run(&["install", "other", &chart]).await.unwrap();
        world.told("other", 1).await;
        assert_eq!(world.accepted("web").len(), 0);
        assert_eq!(world.sink.told().len(), 2, "the registration and the other release");
    });
}

#[test]
fn a_release_that_is_stored_in_another_namespace_is_told_with_its_own_and_stays_one_release() {
    run(async {
        let world = World::new().await;
        let mut daemon = world.start("delay = \"5s\"\n").await;
        for name in ["apps", "flux-system"] {
            world.namespace(name).await;
        }
        let chart = world.helm.chart(&chart()).unwrap();
        world.helm.run(&["install", "web", &chart, "--namespace", "apps"]).await.unwrap();
        let first = world.told("web", 1).await.remove(0);
        world.wait_until_acknowledged("web").await;
        // As a controller stores it that keeps its records to itself.
        let secrets = |namespace: &str| Api::<Secret>::namespaced(world.admin.clone(), namespace);
        let name = "sh.helm.release.v1.web.v1";
        let mut record = secrets("apps").get(name).await.unwrap();
        secrets("apps").delete(name, &DeleteParams::default()).await.unwrap();
        record.metadata =
            ObjectMeta { name: record.metadata.name, labels: record.metadata.labels, ..ObjectMeta::default() };
        secrets("flux-system").create(&PostParams::default(), &record).await.unwrap();
        eventually("the status to say where it is stored", LIMIT, async || {
            let status = world.status().await;
            let entry = &status["helmStatus"][0];
            let is_so = entry["namespace"] == "apps" && entry["storageNamespace"] == "flux-system";
            if is_so && entry["appUUID"] == first["app_api_info"]["app_uuid"] {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await
        .unwrap();
        // A restart knows it again, and a change of a pod in the release's namespace is one of the release.
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        let pods = Api::<Pod>::namespaced(world.admin.clone(), "apps");
        pods.delete("web-keycloak-23", &DeleteParams::default().grace_period(0)).await.unwrap();
        let told = world.told("web", 2).await;
        assert_eq!(told[1]["app_info"]["helm_info"], first["app_info"]["helm_info"]);
        assert_eq!(told[1]["app_info"]["service_info"], first["app_info"]["service_info"]);
        assert_eq!((&told[1]["app_info"]["pod_info"], &told[1]["app_api_info"]), (&json!([]), &first["app_api_info"]));
        world.change_project("main", &json!({"denyNamespaces": ["apps"]})).await;
        world.wait_until_forgotten().await;
        assert_eq!(world.accepted("web").len(), 2);
    });
}

#[test]
fn releases_of_one_name_and_names_with_dots_are_told_apart_and_a_pod_needs_only_the_labels_of_its_selector() {
    run(async {
        let world = World::new().await;
        let daemon = world.start("").await;
        let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"{{ .Release.Name }}-0\"\n  labels: {app.kubernetes.io/name: bare, \
                   app.kubernetes.io/instance: \"{{ .Release.Name }}\"}\nspec:\n  containers: [{name: main, image: \"bare:1\"}]\n";
        let chart = world.helm.chart(&Chart::new("bare", "1").with("templates/pod.yaml", pod)).unwrap();
        for (namespace, name) in [("a", "web"), ("b", "web"), ("a", "web.v1.site")] {
            world.helm.run(&["install", name, &chart, "--namespace", namespace, "--create-namespace"]).await.unwrap();
        }
        let told = world.told("web", 2).await;
        assert_ne!(told[0]["app_api_info"]["app_uuid"], told[1]["app_api_info"]["app_uuid"]);
        for told in told {
            let pods = &told["app_info"]["pod_info"];
            let namespace = &told["app_info"]["helm_info"]["namespace"];
            let expected = json!([{"name": "web-0", "namespace": namespace, "image": "bare:1", "images": ["bare:1"], "status": "Pending"}]);
            assert_eq!(*pods, expected);
        }
        world.told("web.v1.site", 1).await;
        world.wait_until_acknowledged("web.v1.site").await;
        eventually("the status to have all three", LIMIT, async || {
            let reconciled = world.status().await["reconcileHelmReleases"].clone();
            let expected = json!({"a/web": "a/web 1", "b/web": "b/web 1", "web.v1.site": "a/web.v1.site 1"});
            if reconciled == expected { Ok(()) } else { Err(reconciled.to_string()) }
        })
        .await
        .unwrap();
        drop(daemon);
    });
}

#[test]
fn config_maps_store_releases_too() {
    run(async {
        let mut world = World::new().await;
        world.helm = world.helm.storing_in("configmap");
        grant_inventory_of_config_maps(&world.admin).await.unwrap();
        let id = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "uuid", "namespace": "default"},
            "stringData": {"uuid": "given-1"}});
        world.create(&id).await;
        let daemon = world.start("helm_driver = \"configmap\"").await;
        let chart = world.helm.chart(&chart()).unwrap();
        world.helm.run(&["install", "keycloak", &chart]).await.unwrap();
        let told = world.told("keycloak", 1).await;
        assert_eq!(told[0]["app_info"]["helm_info"]["chart"], "keycloak-chart");
        assert_eq!(told[0]["app_api_info"]["app_uuid"], "A-given-1", "the only Secrets that it may read");
        drop(daemon);
    });
}

#[test]
fn the_single_wire_posts_to_the_url_itself_over_tls() {
    run(async {
        let sink = Sink::start_with_tls().await.unwrap();
        let world = World::with_sink(sink).await;
        world.project("main", &json!({})).await;
        world.sink.script([Reply::Status(500)]);
        let authority = world.sink.authority().unwrap().display().to_string();
        let config = world.config("wire = \"single\"");
        let daemon = integration::Towline::start(&config, &[("SSL_CERT_FILE", &authority)]).await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        world.told("web", 1).await;
        let told = world.sink.told();
        assert_eq!(told.len(), 2, "one that failed, and its repetition");
        for told in &told {
            assert_eq!((told.line.as_str(), told.authorization.as_str()), ("POST /v1", "Basic token-1"));
        }
        assert_eq!((&told[0].key, &told[0].body), (&told[1].key, &told[1].body));
    });
}

//! Which project counts and what it asks for; permissions and fields that are missing.

use integration::{Towline, crds, eventually, users};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::inventory::world::{LIMIT, World, brief, run, small_chart};

#[test]
fn without_a_project_nothing_is_collected_and_of_several_the_first_counts() {
    run(async {
        let world = World::without_project().await;
        let mark = world.plane.audit().unwrap().mark().await.unwrap();
        let daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        let collected = world.requests(mark).await.into_iter().filter(|record| record.resource != "hosstedprojects");
        let collected: Vec<_> = collected.filter(|record| !record.resource.is_empty()).collect();
        assert!(collected.is_empty() && world.sink.told().is_empty(), "{collected:?}");
        world.project("installs", &json!({"helm": [{"chartName": "x"}]})).await;
        let condition = world.wait_for_condition("installs", "Ignored", "True").await;
        assert_eq!(condition["reason"], "InstallsCharts");
        world.project("main", &json!({"monitoring": {"enable": true}})).await;
        world.told("web", 1).await;
        world.project("other", &json!({})).await;
        let condition = world.wait_for_condition("other", "Ignored", "True").await;
        assert_eq!(condition["reason"], "NotTheFirst");
        // Another reason is another condition.
        for (charts, reason) in [(json!([{"chartName": "x"}]), "InstallsCharts"), (json!([]), "NotTheFirst")] {
            world.change_project("other", &json!({ "helm": charts })).await;
            eventually(format!("the reason {reason}"), LIMIT, async || {
                let project = world.projects().get("other").await.map_err(|error| error.to_string())?;
                let conditions = &project.data["status"]["conditions"];
                if conditions[0]["reason"] == reason { Ok(()) } else { Err(conditions.to_string()) }
            })
            .await
            .unwrap();
        }
        let registration = &world.sink.told()[0];
        let cluster = world.status().await["clusterUUID"].as_str().unwrap().to_owned();
        assert_eq!(registration.line, format!("POST /v1/clusters/{cluster}/register"));
        assert_eq!((registration.authorization.as_str(), registration.key.len()), ("Bearer token-1", 64));
        let options = json!({"monitoring": true, "logging": false, "cve_scan": false, "ingress": false});
        assert_eq!(registration.body, json!({"type": "k8s", "org_id": "o1", "options_state": options}));
        // Another option is another registration.
        world.change_project("main", &json!({"cve": {"enable": true}})).await;
        world
            .sink
            .wait_for("a registration with scans", 1, LIMIT, |told| told.body["options_state"]["cve_scan"] == true)
            .await
            .unwrap();
        // A project that is gone means the same as one that was never there.
        world.projects().delete("main", &DeleteParams::default()).await.unwrap();
        let status = eventually("the other project to count", LIMIT, async || {
            let project = world.projects().get("other").await.map_err(|error| error.to_string())?;
            let status = project.data["status"].clone();
            if status["helmStatus"][0]["sent"] == 1 { Ok(status) } else { Err(status.to_string()) }
        });
        assert_ne!(status.await.unwrap()["clusterUUID"], cluster.as_str());
        drop(daemon);
    });
}

#[test]
fn a_permission_that_is_missing_is_named_and_reports_begin_when_it_is_granted() {
    run(async {
        let world = World::new().await;
        let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
        bindings.delete("towline-inventory", &DeleteParams::default()).await.unwrap();
        let rules = json!([{"apiGroups": ["hossted.com"], "resources": ["hosstedprojects", "hosstedprojects/status"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["secrets", "services", "persistentvolumeclaims"], "verbs": ["*"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": ["*"]}]);
        world.create(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "few"}, "rules": rules})).await;
        world
            .create(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "few"},
                "subjects": [{"kind": "User", "name": users::TOWLINE}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "few"}}))
            .await;
        let check = world.plane.directory().join("check.toml");
        std::fs::write(&check, world.config("")).unwrap();
        let checked = async || {
            let output = Towline::command(["check", "--connect", check.to_str().unwrap()]).await.unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let found = eventually("the check to miss pods alone", LIMIT, async || {
            let (succeeded, text) = checked().await;
            if !succeeded && !text.contains("secrets") { Ok(text) } else { Err(text) }
        })
        .await
        .unwrap();
        assert!(found.contains(" watch pods"), "{found}");
        let daemon = Towline::start(&world.config(""), &[]).await.unwrap();
        let condition = world.wait_for_condition("main", "Ready", "False").await;
        assert!(condition["message"].as_str().unwrap().contains("not allowed to watch pods"), "{condition}");
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        integration::rbac::grant_inventory(&world.admin, None).await.unwrap();
        assert_eq!(brief(&world.told("web", 1).await[0]), (1, "deployed".to_owned()));
        world.wait_for_condition("main", "Ready", "True").await;
        let (succeeded, text) = checked().await;
        assert!(succeeded && !text.contains("drops"), "{text}");
        drop(daemon);
        bindings.delete("few", &DeleteParams::default()).await.unwrap();
        Api::<ClusterRole>::all(world.admin.clone()).delete("few", &DeleteParams::default()).await.unwrap();
    });
}

#[test]
fn a_crd_that_drops_the_hashes_is_named_and_nothing_is_told_twice_until_a_restart() {
    run(async {
        let crd = crds::HOSSTED_PROJECTS;
        // The operator's CRD knows nothing of the fields that Towline has added.
        let without: String = ["sentHash", "sendingHash", "registeredHash", "registeringHash", "resourceVersion"]
            .iter()
            .fold(crd.to_owned(), |crd, field| crd.replace(&format!("{field}:"), &format!("other{field}:")));
        let world = World::without_crd("pruned").await;
        crds::install(&world.admin, &without).await.unwrap();
        world.project("main", &json!({})).await;
        let mut daemon = world.start("").await;
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        world.told("web", 1).await;
        let pruned = async |daemon: &Towline| {
            eventually("the CRD to be named", LIMIT, async || {
                let section = daemon.admin().section("inventory").await.map_err(|error| error.to_string())?;
                section["pruned"].as_str().map(str::to_owned).ok_or_else(|| section.to_string())
            })
            .await
            .unwrap()
        };
        assert!(pruned(&daemon).await.contains("a restart sends all releases again"));
        let config = world.plane.directory().join("check.toml");
        std::fs::write(&config, world.config("")).unwrap();
        eventually("the check to name it", LIMIT, async || {
            let output = Towline::command(["check", "--connect", config.to_str().unwrap()]).await.unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let is_named = text.contains("the CRD of hosstedprojects.v1.hossted.com drops status.registeredHash")
                && text.contains("status.helmStatus[].sentHash");
            // It works all the same.
            if is_named && output.status.success() { Ok(()) } else { Err(text) }
        })
        .await
        .unwrap();
        world.helm.run(&["install", "other", &chart]).await.unwrap();
        world.told("other", 1).await;
        assert_eq!(world.sink.told().len(), 3, "the registration and each release once");
        daemon.kill9().await.unwrap();
        daemon.start_again().await.unwrap();
        world.sink.wait_for("of all again", 6, LIMIT, |_| true).await.unwrap();
    });
}

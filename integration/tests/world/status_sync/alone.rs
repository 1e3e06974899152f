//! `towline status-sync`: the job alone, configured by the environment of the hub-of-hubs component.

use integration::Towline;
use integration::postgres::READER;
use integration::rbac::grant_election;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;

use crate::status_sync::world::{LIMIT, Stage, run};

#[test]
fn the_environment_is_enough_and_a_signal_ends_it_in_order() {
    run(async {
        let stage = Stage::new("byvariables").await;
        let other = Stage::new("notwatched").await;
        grant_election(&stage.world.client, &stage.name, None).await.expect("the election is granted");
        let uid = stage.wanted("policies", "p").await;
        let foreign = other.make("policies", "p", &json!({})).await.metadata.uid.unwrap_or_default();
        let payload = json!({"metadata": {"name": "p", "namespace": "notwatched"}}).to_string();
        let insert = "INSERT INTO spec.policies (id, payload) VALUES ($1::text::uuid, $2::text::jsonb)";
        stage.execute(insert, &[&foreign, &payload]).await;
        for id in [&uid, &foreign] {
            stage.comply(id, "hub", "c", "compliant").await;
        }
        let kubeconfig = stage.world.kubeconfig.display().to_string();
        let url = format!("{}?sslmode=disable&pool_max_conns=3", stage.database.url(READER));
        let towline = Towline::start_status_sync(&[
            ("KUBECONFIG", &kubeconfig),
            ("DATABASE_URL", &url),
            ("HOH_STATUS_SYNC_INTERVAL", "0.2s"),
            ("WATCH_NAMESPACE", &stage.name),
            ("POD_NAMESPACE", &stage.name),
        ])
        .await
        .expect("it starts");
        towline.wait_ready(LIMIT).await.expect("it is ready");
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        stage.comply(&uid, "hub", "d", "non_compliant").await;
        stage.shows("policies", "p", "/status/compliant", &json!("NonCompliant")).await;
        stage.passes(&towline, "policies", 2).await;
        assert!(other.has("policies", "p", |_| true).await.data.get("status").is_none(), "another namespace");
        let report = towline.admin().section("status-sync").await.expect("a report");
        assert_eq!(report["pool"]["max"], 3);
        let leases: Api<Lease> = Api::namespaced(stage.world.client.clone(), &stage.name);
        let held = leases.list(&kube::api::ListParams::default()).await.expect("leases").items;
        let holds = |lease: &&Lease| lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.is_some());
        assert!(held.iter().filter(holds).count() >= 1, "{held:?}");
        assert!(!towline.log().expect("a log").contains("reader%20p"), "the password is in the log");
        let status = towline.terminate(LIMIT).await.expect("it ends");
        assert_eq!(status.code(), Some(0));
    });
}

/// Runs it with an environment that it refuses.
async fn refused(variables: &[(&str, &str)]) -> String {
    // This process has none of the variables to hand on.
    let output = Towline::command_with(["status-sync"], variables).await.expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{variables:?}: {told}");
    told
}

#[test]
fn a_wrong_environment_ends_with_code_2_and_names_the_variable() {
    run(async {
        let url = ("DATABASE_URL", "postgres://u:hunter2@db.example/hoh");
        let cases: [(&[(&str, &str)], &str); 8] = [
            (&[], "DATABASE_URL: missing; allowed: a URL such as"),
            (&[("DATABASE_URL", "")], "DATABASE_URL: missing"),
            (&[("DATABASE_URL", "mysql://u:hunter2@db/hoh")], "it is neither a postgres://"),
            (&[("DATABASE_URL", "postgres://u:hunter2@db/hoh?sslmode=maybe")], "its parameter sslmode must be disable"),
            (&[url, ("HOH_STATUS_SYNC_INTERVAL", "0s")], "HOH_STATUS_SYNC_INTERVAL: found \"0s\""),
            (&[url, ("HOH_STATUS_SYNC_INTERVAL", "-5s")], "HOH_STATUS_SYNC_INTERVAL: found \"-5s\""),
            (&[url, ("WATCH_NAMESPACE", "Not_A_Name")], "WATCH_NAMESPACE: found \"Not_A_Name\""),
            (&[url, ("POD_NAMESPACE", "-")], "POD_NAMESPACE: found \"-\""),
        ];
        for (variables, expected) in cases {
            let told = refused(variables).await;
            assert!(told.contains(expected), "{expected} in {told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        let all = refused(&[("HOH_STATUS_SYNC_INTERVAL", "soon"), ("WATCH_NAMESPACE", "_")]).await;
        assert!(all.contains("3 faults"), "all faults at once: {all}");
        let output = Towline::command(["status-sync", "--remove-trigger"]).await.expect("it runs");
        assert_eq!(output.status.code(), Some(2));
    });
}

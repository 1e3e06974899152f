//! What is wrong is named, nothing is cleared or half-written, and the rest goes on.

use std::ops::RangeInclusive;
use std::time::Duration;

use integration::postgres;
use integration::rbac::grant_status_sync;
use integration::{ControlPlane, Options, Towline, crds, eventually, users};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::status_sync::check::{check, tells};
use crate::status_sync::world::{LIMIT, Stage, run};

/// Policies with a row for each cluster.
pub(crate) async fn policies(stage: &Stage, count: usize, clusters: usize) {
    for index in 0..count {
        stage.wanted("policies", &format!("p{index:03}")).await;
    }
    comply_in(stage, 1..=clusters).await;
}

/// Rows of these clusters for each policy that there is.
pub(crate) async fn comply_in(stage: &Stage, clusters: RangeInclusive<usize>) {
    let rows = format!(
        "INSERT INTO status.compliance SELECT id, 'c' || c || repeat('-long', 10), repeat('hub-', 15), 'none', 'compliant' \
         FROM spec.policies, generate_series({}, {}) c",
        clusters.start(),
        clusters.end()
    );
    stage.execute(&rows, &[]).await;
}

fn length(policy: &DynamicObject) -> usize {
    policy.data.pointer("/status/status").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Numbers of entries of all policies.
pub(crate) async fn entries(stage: &Stage) -> Vec<usize> {
    let policies = stage.api("policies").list(&ListParams::default()).await.expect("a list").items;
    policies.iter().map(length).collect()
}

/// Waits until each policy has so many entries: one after the other, since all together may be many megabytes.
pub(crate) async fn all_have(stage: &Stage, clusters: usize) {
    let policies = stage.api("policies");
    for name in policies.list_metadata(&ListParams::default()).await.expect("a list").iter().map(ResourceExt::name_any)
    {
        eventually(format!("{clusters} entries in {name}"), LIMIT * 3, async || {
            let found = length(&policies.get(&name).await.map_err(|error| error.to_string())?);
            if found == clusters { Ok(()) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();
    }
    let found = entries(stage).await;
    assert!(found.iter().all(|count| *count == clusters), "not {clusters} in each any more: {found:?}");
}

#[test]
fn a_statement_that_times_out_clears_nothing() {
    run(async {
        let stage = Stage::new("timingout").await;
        policies(&stage, 3, 4).await;
        let towline = stage.start().await;
        all_have(&stage, 4).await;
        // A slow function in the place of the table, and connections that give up on it.
        let slow = "ALTER TABLE status.compliance RENAME TO slow; \
             CREATE VIEW status.compliance AS SELECT slow.* FROM status.slow, LATERAL (SELECT pg_sleep(0.1) WHERE slow.id IS NOT NULL) s; \
             GRANT SELECT ON status.compliance TO towline_reader; DELETE FROM status.slow WHERE cluster_name LIKE 'c1%'; \
             ALTER ROLE towline_reader IN DATABASE timingout SET statement_timeout = '300ms'";
        stage.sql.batch_execute(slow).await.expect("it is made slow");
        // In a transaction of its own: a connection that is made before the commit has the settings of before for good.
        let give_up = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'towline'";
        stage.execute(give_up, &[]).await;
        stage
            .family(&towline, "policies", "a cancelled statement", |report| report["failure"]["kind"] == "cancelled")
            .await;
        assert_eq!(entries(&stage).await, [4, 4, 4]);
        let quick = "ALTER ROLE towline_reader IN DATABASE timingout RESET statement_timeout; DROP VIEW status.compliance; \
             ALTER TABLE status.slow RENAME TO compliance";
        stage.sql.batch_execute(quick).await.expect("it is made quick again");
        stage.execute(give_up, &[]).await;
        all_have(&stage, 3).await;
    });
}

#[test]
fn bad_rows_are_named_and_the_others_go_through() {
    run(async {
        let stage = Stage::new("badrows").await;
        stage.wanted("placementrules", "rule").await;
        let good = json!({"status": {"decisions": [{"clusterName": "c", "clusterNamespace": "n"}]}});
        stage.report("placementrules", "good", "rule", &good).await;
        stage.report("placementrules", "undecodable", "rule", &json!({"status": {"decisions": "none"}})).await;
        for payload in [r#"{"metadata": {"namespace": "badrows"}}"#, r#""text""#, "[]", "null"] {
            let insert = "INSERT INTO status.placementrules VALUES (gen_random_uuid(), 'nameless', $1::text::jsonb)";
            stage.execute(insert, &[payload]).await;
        }
        stage.execute("INSERT INTO spec.placementrules (id, payload) VALUES (gen_random_uuid(), '{\"metadata\": {\"namespace\": \"badrows\"}}')", &[]).await;
        let towline = Towline::start(&stage.config("interval = \"1h\""), &[]).await.expect("the daemon starts");
        stage.shows("placementrules", "rule", "/status/decisions/0/clusterName", &json!("c")).await;
        let report = stage.family(&towline, "placementrules", "six bad rows", |report| report["bad_rows"] == 6).await;
        let examples = report["bad_row_examples"].to_string();
        for named in ["nameless/", "spec row ", "undecodable/rule: status.decisions is not a list"] {
            assert!(examples.contains(named), "{examples}");
        }
    });
}

#[test]
fn a_missing_table_and_an_older_enum_are_no_reason_to_stop() {
    run(async {
        let stage = Stage::new("older").await;
        let uid = stage.wanted("policies", "p").await;
        let older = "DROP TABLE status.placements, status.compliance; DROP TYPE status.compliance_type; \
             CREATE TYPE status.compliance_type AS ENUM ('compliant', 'non_compliant', 'unknown'); \
             CREATE TABLE status.compliance (id uuid NOT NULL, cluster_name varchar(63) NOT NULL, leaf_hub_name varchar(63) NOT NULL, \
             error status.error_type NOT NULL, compliance status.compliance_type NOT NULL); \
             CREATE UNIQUE INDEX ON status.compliance (leaf_hub_name, id, cluster_name); \
             GRANT SELECT ON status.compliance TO towline_reader";
        stage.sql.batch_execute(older).await.expect("an older schema");
        stage.comply(&uid, "hub", "c", "non_compliant").await;
        stage.wanted("placements", "kept").await;
        stage.edit_status("placements", "kept", &json!({"numberOfSelectedClusters": 5})).await;
        let config = stage.config("interval = \"200ms\"");
        let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
        stage.shows("policies", "p", "/status/compliant", &json!("NonCompliant")).await;
        let report = stage
            .family(&towline, "placements", "a missing table", |report| report["failure"]["kind"] == "missing")
            .await;
        assert!(report["failure"]["error"].as_str().unwrap_or_default().contains("status.placements"), "{report}");
        stage.passes(&towline, "policies", 3).await;
        stage.shows("placements", "kept", "/status/numberOfSelectedClusters", &json!(5)).await;
    });
}

/// Waits until so many objects are held.
async fn held(towline: &Towline, count: u64) {
    eventually(format!("{count} held objects"), LIMIT, async || {
        let report = towline.admin().section("status-sync").await.map_err(|error| error.chain())?;
        if report["objects"]["held"] == count { Ok(()) } else { Err(report.to_string()) }
    })
    .await
    .unwrap();
}

#[test]
fn clearing_most_of_a_family_waits_for_an_approval() {
    run(async {
        let stage = Stage::new("massclear").await;
        policies(&stage, 12, 2).await;
        let towline = stage.start_with("interval = \"1h\"").await;
        all_have(&stage, 2).await;
        drop(towline);
        stage.execute("DELETE FROM status.compliance WHERE cluster_name LIKE '%' AND id NOT IN (SELECT id FROM spec.policies LIMIT 1)", &[]).await;
        let towline = stage.start_with("interval = \"1h\"").await;
        held(&towline, 11).await;
        all_have(&stage, 2).await;
        let answer = towline.admin().approve("status-sync").await.expect("an answer");
        assert_eq!(answer["approved"], 11);
        eventually("the approved clearing", LIMIT, async || {
            let found = entries(&stage).await;
            if found.iter().filter(|count| **count == 0).count() == 11 { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .unwrap();
        // Where nobody approves, no number of passes does, and rows that are back lift the hold.
        drop(towline);
        policies_again(&stage).await;
        let towline = stage.start().await;
        all_have(&stage, 2).await;
        stage.execute("DELETE FROM status.compliance WHERE leaf_hub_name = 'again'", &[]).await;
        held(&towline, 11).await;
        stage.passes(&towline, "policies", 6).await;
        all_have(&stage, 2).await;
        policies_again(&stage).await;
        held(&towline, 0).await;
        all_have(&stage, 2).await;
        drop(towline);
    });
}

/// Rows for those that have none.
async fn policies_again(stage: &Stage) {
    let rows = "INSERT INTO status.compliance SELECT id, 'c' || c, 'again', 'none', 'compliant' FROM spec.policies p, \
                generate_series(1, 2) c WHERE NOT EXISTS (SELECT 1 FROM status.compliance s WHERE s.id = p.id)";
    stage.execute(rows, &[]).await;
}

#[test]
fn what_has_nothing_to_clear_is_not_counted_as_clearing() {
    run(async {
        let stage = Stage::new("unserved").await;
        for index in 0..15 {
            stage.wanted("policies", &format!("bare{index:02}")).await;
        }
        let uid = stage.wanted("policies", "served").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let since = stage.mark().await;
        let settings = "interval = \"1h\"\nfamilies = [\"policies\"]";
        let towline = stage.start_with(settings).await;
        let report = stage.family(&towline, "policies", "a write", |report| report["written"] == 1).await;
        assert_eq!(report["objects"], json!(16));
        held(&towline, 0).await;
        assert_eq!(stage.requests(since).await.get("patch policies/status"), Some(&1));
        drop(towline);
        // The same objects with something to clear are as many as are held.
        let status = json!({"compliant": "NonCompliant"});
        for index in 0..15 {
            stage.edit_status("policies", &format!("bare{index:02}"), &status).await;
        }
        let towline = stage.start_with(settings).await;
        held(&towline, 15).await;
        let kept = stage.api("policies").list(&ListParams::default()).await.expect("a list").items;
        assert_eq!(kept.iter().filter(|policy| policy.data["status"] == status).count(), 15);
    });
}

#[test]
fn an_empty_database_clears_nothing_in_its_first_pass() {
    run(async {
        let stage = Stage::new("emptied").await;
        stage.wanted("policies", "p").await;
        stage.edit_status("policies", "p", &json!({"compliant": "Compliant"})).await;
        let towline = stage.start_with("interval = \"1h\"").await;
        stage.passes(&towline, "policies", 0).await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
    });
}

#[test]
fn kinds_that_come_later_a_missing_permission_and_a_killed_api_server_are_named_and_got_over() {
    run(async {
        let stage = Stage::new("later").await;
        let hub = ControlPlane::start(Options { controller_manager: false, ..Options::named("later-hub") })
            .await
            .expect("a hub");
        let admin = hub.client(users::ADMIN).await.expect("a client");
        let namespace = serde_json::from_value(json!({"metadata": {"name": "later"}})).expect("a namespace");
        kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(admin.clone())
            .create(&kube::api::PostParams::default(), &namespace)
            .await
            .expect("it is made");
        let kubeconfig = hub.kubeconfig(users::TOWLINE).expect("a kubeconfig");
        let url = stage.database.url(postgres::READER);
        let admins = hub.kubeconfig(users::ADMIN).expect("a kubeconfig");
        let (code, told) = check(&stage, &stage.config_by(&url, &admins, "")).await;
        assert_eq!(code, Some(1), "{told}");
        tells(
            &told,
            &["policies.v1.policy.open-cluster-management.io", "subscriptions.v1.apps.open-cluster-management.io"],
        );
        let settings = "interval = \"200ms\"\nfamilies = [\"policies\"]";
        let config = stage.config_by(&url, &kubeconfig, settings);
        let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
        let waits_for = |text: &'static str| {
            move |report: &Value| report["waits_for"].as_str().is_some_and(|reason| reason.contains(text))
        };
        stage.family(&towline, "policies", "what is missing", waits_for("not")).await;
        crds::install(&admin, crds::POLICIES).await.expect("the kind is installed");
        stage.family(&towline, "policies", "a missing permission", waits_for("not allowed to watch policies")).await;

        let api: kube::Api<kube::api::DynamicObject> =
            kube::Api::namespaced_with(admin.clone(), "later", &crate::status_sync::world::kind("policies"));
        let policy =
            serde_json::from_value(json!({"apiVersion": "policy.open-cluster-management.io/v1", "kind": "Policy",
            "metadata": {"name": "p"}}))
            .expect("a policy");
        let made = api.create(&kube::api::PostParams::default(), &policy).await.expect("it is made");
        let uid = made.metadata.uid.unwrap_or_default();
        stage.spec("policies", &uid, "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        grant_status_sync(&admin).await.expect("the role is granted");
        let shows = async |word: &str| {
            eventually(format!("the policy to be {word}"), LIMIT, async || {
                let policy = api.get("p").await.map_err(|error| error.to_string())?;
                let found = policy.data.pointer("/status/compliant").cloned().unwrap_or_default();
                if found == word { Ok(()) } else { Err(found.to_string()) }
            })
            .await
            .unwrap();
        };
        shows("Compliant").await;
        hub.kill_api_server().await.expect("it is killed");
        stage.comply(&uid, "hub", "c", "pending").await;
        stage.family(&towline, "policies", "that the cluster is gone", |report| report["waits_for"].is_string()).await;
        hub.start_api_server().await.expect("it is back");
        shows("Pending").await;
        hub.wait_ready(Duration::from_mins(1)).await.expect("it is ready");
    });
}

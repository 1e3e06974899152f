//! What operators are shown of all clusters together.

use integration::hub::Request;
use integration::postgres::ADMIN;
use integration::towline::Towline;
use integration::{eventually, page};
use serde_json::{Value, json};

use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, TIME_PASSES, condition, run};

/// The section's report, once it holds.
pub(crate) async fn report(stage: &Stage, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let outcome = eventually(what.to_owned(), LIMIT, async || {
        let found = stage.replicas[0].towline().admin().section("syncsets").await.map_err(|error| error.to_string())?;
        if holds(&found) { Ok(found) } else { Err(found.to_string()) }
    });
    outcome.await.unwrap_or_else(|error| panic!("{error}\n{}", stage.log()))
}

/// Waits until the metrics have a line, or no longer have it.
pub(crate) async fn metric(stage: &Stage, line: &str, has: bool) {
    let outcome = eventually(format!("{line}: {has}"), LIMIT, async || {
        // They are counted each 15 s, and when somebody asks for the status.
        stage.replicas[0].towline().admin().section("syncsets").await.map_err(|error| error.to_string())?;
        let text = stage.replicas[0].towline().admin().metrics().await.map_err(|error| error.to_string())?;
        if text.lines().any(|found| found == line) == has { Ok(()) } else { Err(text) }
    });
    outcome.await.unwrap_or_else(|error| panic!("{error}"));
}

/// What a command prints that talks to the admin server, and whether it succeeds.
pub(crate) async fn command(stage: &Stage, arguments: &[&str]) -> (bool, String) {
    let admin = stage.replicas[0].towline().admin_url();
    let output = Towline::command(arguments.iter().copied().chain(["--admin", &admin])).await.unwrap();
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn what_fails_is_in_the_status_and_what_is_applied_in_the_metrics() {
    run(async {
        let stage = Stage::with("report", SYNCSETS, 1).await;
        stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let selected = json!({"matchLabels": {"env": "prod"}});
        let nowhere =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "nowhere"}});
        for (name, resource) in [("report-fine", stage.config_map("site", &json!({}))), ("report-bad", nowhere)] {
            let spec = json!({"clusterDeploymentSelector": selected, "resources": [resource]});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec})).await;
        }
        let found = report(&stage, "a failing cluster", |report| report["objects"]["failing"] == 1).await;
        assert_eq!((&found["overview"]["total"], &found["objects"]["in_step"]), (&json!(1), &json!(0)), "{found}");
        let failing = &found["not_in_step"][0];
        assert_eq!(
            (&failing["key"], &failing["reason"]),
            (&json!("report/west-1"), &json!("NamespaceMissing")),
            "{found}"
        );
        assert!(
            failing["cause"]
                .as_str()
                .unwrap()
                .starts_with("SelectorSyncSet report-bad: failed to apply resource 0 (ConfigMap nowhere/a): ")
        );
        assert_eq!(failing["next_step"], "create the namespace, on the cluster or by a syncset", "{found}");
        assert!(found["dispatcher"]["holder"].is_string(), "{found}");
        let (_, table) = command(&stage, &["status"]).await;
        let row = table.lines().find(|line| line.starts_with("syncsets ")).unwrap();
        assert!(row.contains("failing") && row.contains("0/1") && row.contains("1 failing"), "{table}");
        assert!(table.lines().any(|line| line.starts_with("report/west-1") && line.contains("report-bad")), "{table}");
        metric(&stage, "towline_objects{section=\"syncsets\",state=\"failing\"} 1", true).await;
        metric(&stage, "hive_syncsetinstance_resources_applied_total{type=\"apply\",result=\"success\"} 1", true).await;
        metric(&stage, "hive_selectorsyncset_apply_duration_seconds_count{name=\"report-fine\"} 1", true).await;
        let unapplied =
            |name: &str, of: u32| format!("hive_selectorsyncset_clusters_unapplied_total{{name=\"{name}\"}} {of}");
        metric(&stage, &unapplied("report-bad", 1), true).await;
        metric(&stage, &unapplied("report-fine", 0), true).await;
        // A pause is told from the document, before everything else.
        stage
            .change("clusters/report/west-1", &json!({"annotations": {"hive.openshift.io/syncset-pause": "true"}}))
            .await;
        report(&stage, "a paused cluster", |report| report["objects"]["paused"] == 1).await;
        let own = json!({"namespace": stage.namespace, "name": "own", "annotations": {"hive.openshift.io/syncset-metrics-group": "mine"},
            "spec": {"clusterDeploymentRefs": [{"name": "west-1"}], "applyBehavior": "CreateOnly",
                "resources": [stage.config_map("own", &json!({}))]}});
        stage.create("syncsets", &own).await;
        // A series ends with its document.
        stage.send(&Request::delete("/v1/selectorsyncsets/report-bad")).await.success().unwrap();
        metric(&stage, &unapplied("report-bad", 1), false).await;
        // What has its first success, and that of the cluster when nothing fails any more; with Hive's buckets.
        stage
            .change("clusters/report/west-1", &json!({"annotations": {"hive.openshift.io/syncset-pause": null}}))
            .await;
        for line in [
            "hive_syncset_apply_duration_seconds_count{group=\"mine\"} 1",
            "hive_syncset_apply_duration_seconds_bucket{group=\"mine\",le=\"3600\"} 1",
            "hive_clustersync_first_success_duration_seconds_count 1",
            "hive_clustersync_first_success_duration_seconds_bucket{le=\"2400\"} 1",
            "hive_syncsetinstance_resources_applied_total{type=\"createOnly\",result=\"success\"} 1",
            "hive_syncsetinstance_apply_duration_seconds_bucket{type=\"createOnly\",result=\"success\",le=\"30\"} 1",
            "hive_selectorsyncset_clusters_total{name=\"report-fine\"} 1",
            "hive_syncsets_total 1",
            "hive_syncsets_unapplied_total 0",
            "towline_objects{section=\"syncsets\",state=\"in_step\"} 1",
            "workqueue_depth{name=\"syncsets\",controller=\"syncsets\"} 0",
            "controller_runtime_active_workers{controller=\"syncsets\"} 0",
        ] {
            metric(&stage, line, true).await;
        }
        // Each claim of a cluster has waited and ended, and there were requests.
        let metrics = stage.replicas[0].towline().admin().metrics().await.unwrap();
        let value = |name: &str| {
            let of = format!("{name}{{name=\"syncsets\",controller=\"syncsets\"}} ");
            metrics.lines().find_map(|line| line.strip_prefix(&of)?.parse::<f64>().ok()).unwrap()
        };
        let ended = value("workqueue_work_duration_seconds_count");
        assert!(ended >= 1.0 && value("workqueue_queue_duration_seconds_count") >= ended, "{metrics}");
        assert!(value("workqueue_adds_total") >= 1.0, "{metrics}");
        assert!(value("workqueue_retries_total") >= 1.0, "it has failed: {metrics}");
    });
}

#[test]
fn one_held_syncset_is_approved_by_its_name() {
    run(async {
        let stage = Stage::with("approving", SYNCSETS, 1).await;
        let plane = stage.register("west-1", &json!({"env": "prod"}), 0).await;
        let spec = |name: &str, more: &[Value]| {
            let mut resources = vec![stage.config_map(name, &json!({"a": "b"}))];
            resources.extend_from_slice(more);
            json!({"clusterDeploymentSelector": {}, "resourceApplyMode": "Sync", "resources": resources})
        };
        for name in ["approving-a", "approving-b"] {
            let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            stage.create("selectorsyncsets", &json!({"name": name, "spec": spec(name, &[space])})).await;
        }
        stage.has(plane, &[("approving-a", json!({"a": "b"})), ("approving-b", json!({"a": "b"}))]).await;
        for name in ["approving-a", "approving-b"] {
            stage.succeeds("west-1", name, 1).await;
            stage.replace_spec("selectorsyncsets", name, &spec(name, &[])).await;
        }
        let client = stage.database.client(ADMIN).await.unwrap();
        // Should the replica stop while it approves, the database lets go of the rows that it has locked after 3 s: workers need them.
        let note = "create table patience (setting text); grant insert on patience to public; \
             create function note_patience() returns trigger language plpgsql as $$ begin \
               insert into patience values (current_setting('idle_in_transaction_session_timeout')); return new; end $$; \
             create trigger note_patience before update of held on towline_guard for each row \
               when (old.held and not new.held) execute function note_patience()";
        client.batch_execute(note).await.unwrap();
        let found = report(&stage, "two held syncsets", |report| report["held_syncsets"] == 2).await;
        assert_eq!(found["state"], "held", "{found}");
        let (_, listed) = command(&stage, &["approve", "syncsets", "--list"]).await;
        assert!(listed.contains("SelectorSyncSet approving-a") && listed.contains("precious"), "{listed}");
        let (done, refused) = command(&stage, &["approve", "--yes", "syncsets", "approving-c"]).await;
        assert!(!done && refused.contains("no deletions of a syncset approving-c are held"), "{refused}");
        let (done, approved) = command(&stage, &["approve", "--yes", "syncsets", "approving-a"]).await;
        assert!(done && approved.contains("SelectorSyncSet approving-a"), "{approved}");
        let held = async || {
            let rows = client.query("select name from towline_guard where held", &[]).await.unwrap();
            rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
        };
        assert_eq!(held().await, ["approving-b"]);
        let approved = stage.replicas[0].towline().admin().approve("syncsets").await.unwrap();
        page::agrees("/approve/", "syncsets", &approved).unwrap();
        assert!(held().await.is_empty());
        let patience = client.query("select distinct setting from patience", &[]).await.unwrap();
        assert_eq!(patience.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), ["3s"]);
        let (done, refused) = command(&stage, &["approve", "--yes", "syncsets"]).await;
        assert!(!done && refused.contains("no deletions are held"), "{refused}");
    });
}

/// A kubeconfig that is refused waits for somebody: that is not well, and one command says which, why and since when. A replica that
/// allows it serves the cluster without a resync, also if one that does not has refused it since.
#[test]
fn a_refused_kubeconfig_is_told_and_outlives_no_replica_that_refuses_it() {
    run(async {
        let stage = Stage::with("refusing", SYNCSETS, 1).await;
        let plane = crate::syncsets::world::edge(0).await;
        let mut kubeconfig = stage.kubeconfig(plane, plane.address());
        let cluster = kubeconfig["clusters"][0]["cluster"].as_object_mut().unwrap();
        cluster.remove("certificate-authority-data");
        cluster.insert("insecure-skip-tls-verify".to_owned(), json!(true));
        // Whoever applies it is told at once.
        let document =
            json!({"kind": "Cluster", "namespace": "refusing", "name": "west-1", "kubeconfig": kubeconfig.to_string()});
        let path = crate::syncsets::commands::file("refusing-cluster", &document).display().to_string();
        let hub = format!("http://{}", stage.replicas[0].api());
        let applied = Towline::command(["apply", "-f", &path, "--hub", &hub]).await.unwrap();
        let warning = String::from_utf8_lossy(&applied.stderr);
        assert!(applied.status.success(), "{applied:?}");
        assert!(
            warning.starts_with("towline: warning: Cluster/refusing/west-1: the kubeconfig will be refused: ")
                && warning.contains("insecure-tls"),
            "{warning}"
        );
        stage.unreachable("west-1").await;
        let found = report(&stage, "the refused kubeconfig", |report| report["state"] == "failing").await;
        assert_eq!((&found["well"], &found["refused_kubeconfigs"]), (&json!(false), &json!(1)), "{found}");
        let listed = &found["not_in_step"][0];
        assert_eq!(
            (&listed["key"], &listed["reason"]),
            (&json!("refusing/west-1"), &json!("KubeconfigInvalid")),
            "{found}"
        );
        assert!(
            listed["cause"].as_str().unwrap().contains("insecure-tls") && listed["for_seconds"].is_u64(),
            "{found}"
        );
        let (is_well, table) = command(&stage, &["status", "--exit-code"]).await;
        let row = table.lines().find(|line| line.starts_with("refusing/west-1")).unwrap_or_default();
        assert!(
            !is_well && row.contains("unreachable") && row.contains(" → give its document a kubeconfig"),
            "{table}"
        );
        let told = stage.command(&["get", "clustersyncs", "-n", "refusing"]).await;
        let row = told.lines().nth(1).unwrap_or_default();
        assert!(row.contains("Unreachable") && row.contains("insecure-skip-tls-verify"), "{told}");

        let section = "[syncsets]\nrequest_timeout = \"5s\"\nallow = [\"local-networks\", \"insecure-tls\"]";
        let newer = integration::hub::Replica::run(&stage.database, section, &[]).await.unwrap();
        newer.wait_ready(LIMIT).await.unwrap();
        let map = |value: usize| stage.config_map("site", &json!({"value": value.to_string()}));
        let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "refusing"}});
        stage.syncset("base", "Upsert", &[space.clone(), map(0)]).await;
        // The older one may refuse it first, for a minute each time.
        eventually("the newer replica to serve the cluster", LIMIT, async || {
            stage.sql.batch_execute(TIME_PASSES).await.map_err(|error| error.to_string())?;
            match stage.config_maps(plane).await.len() {
                1 => Ok(()),
                count => Err(format!("{count} config maps")),
            }
        })
        .await
        .unwrap();
        stage.has(plane, &[("site", json!({"value": "0"}))]).await;
        let mut value = 0;
        eventually("the older replica to refuse it once more", LIMIT, async || {
            value += 1;
            stage.wants("base", &[space.clone(), map(value)]).await;
            stage.at_rest().await;
            // For a minute, a tenth more or less.
            let refused = "select count(*) from towline_cluster p join towline_work w using (cluster) where not p.reachable \
                 and p.retry_at is null and w.ready_at between now() + interval '30 s' and now() + interval '66 s'";
            match stage.sql.query_one(refused, &[]).await.unwrap().get(0) {
                1_i64 => Ok(()),
                _ => Err(format!("it was applied {value} times")),
            }
        })
        .await
        .unwrap();
        let mut stage = stage;
        std::mem::replace(&mut stage.replicas[0], newer).towline().terminate(LIMIT).await.unwrap();
        stage.sql.batch_execute(TIME_PASSES).await.unwrap();
        stage.has(plane, &[("site", json!({"value": value.to_string()}))]).await;
        report(&stage, "the cluster in step, without a resync", |report| {
            report["objects"]["in_step"] == 1 && report["refused_kubeconfigs"] == 0 && report["well"] == true
        })
        .await;
    });
}

/// Those that are paused are not served on purpose. They neither hide the others nor count as unreachable.
#[test]
fn a_cluster_that_does_not_answer_is_named_beside_any_number_of_paused_ones() {
    run(async {
        let stage = Stage::new("hidden").await;
        assert_eq!(stage.command(&["failures"]).await, "no syncset fails\n");
        for number in 0..20 {
            let name = format!("paused-{number}");
            let document = json!({"namespace": "hidden", "name": name, "kubeconfig": "k", "paused": true});
            stage.create("clusters", &document).await;
        }
        stage.at_rest().await;
        // As it was when somebody paused them.
        let silent = "insert into towline_cluster (cluster, kubeconfig_generation, attempts, reachable) \
             select id, 0, 0, false from clusters on conflict (cluster) do update set reachable = false, retry_at = null";
        assert_eq!(stage.sql.execute(silent, &[]).await.unwrap(), 20);
        // Its own pause is over.
        let silent = json!({"namespace": "hidden", "name": "silent", "kubeconfig": "k",
            "annotations": {"towline.dev/pause-until": "2026-01-01T00:00:00Z"}});
        stage.create("clusters", &silent).await;
        stage.unreachable("silent").await;
        let found = report(&stage, "one unreachable cluster", |report| report["objects"]["unreachable"] == 1).await;
        let named: Vec<&Value> = found["not_in_step"].as_array().unwrap().iter().map(|row| &row["key"]).collect();
        assert_eq!((&found["objects"]["paused"], named), (&json!(20), vec![&json!("hidden/silent")]), "{found}");
        let told = stage.command(&["failures"]).await;
        let expected = "no syncset fails on the clusters that answer\n\
             1 cluster is unreachable: hidden/silent; why: `towline get clustersyncs`\n";
        assert_eq!(told, expected);
        assert_eq!(stage.command(&["failures", "-n", "elsewhere"]).await, "no syncset fails\n");
    });
}

/// Nothing of so much is read, whoever has made it so much: not even how the cluster is.
#[test]
fn a_cluster_of_which_too_much_is_stored_says_that_it_gets_nothing_for_as_long_as_that_is_so() {
    run(async {
        let stage = Stage::new("toomuch").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |value: &str| stage.config_map("site", &json!({"value": value}));
        stage.syncset("base", "Upsert", &[map("1")]).await;
        stage.succeeds("west-1", "base", 1).await;
        let results = "insert into towline_result \
               (cluster, syncset, kind, namespace, name, inputs, generation, result, reason, message, since, pending_deletions) \
             select id, gen_random_uuid(), 'SyncSet', 'toomuch', 'n' || n, decode(repeat('00', 32), 'hex'), 1, 'Failure', 'Rejected', \
               repeat('x', 20000), now(), false from clusters, generate_series(1, 1000) n";
        assert_eq!(stage.sql.execute(results, &[]).await.unwrap(), 1000);
        stage.wants("base", &[map("2")]).await;
        let is =
            |status: &Value, reason: &str| condition(status, "Failed").is_some_and(|found| found["reason"] == reason);
        let status = stage.status("west-1", "why it gets nothing", |status| is(status, "TooManySyncsets")).await;
        let message = "the syncsets of the cluster are too many: what is to be known of them takes more than 16 MiB, so nothing is applied or deleted";
        assert_eq!(condition(&status, "Failed").unwrap()["message"], message, "{status}");
        assert_eq!(condition(&status, "Unreachable").unwrap()["reason"], "ClusterReachable", "{status}");
        assert_eq!((&status["syncSets"], &status["firstSuccessTime"].is_string()), (&json!([]), &true), "{status}");
        let found = report(&stage, "a failing cluster", |report| report["objects"]["failing"] == 1).await;
        let mut listed = found["not_in_step"].as_array().unwrap().iter();
        let failing = listed.find(|row| row["reason"] == "TooManySyncsets").unwrap();
        assert_eq!((&failing["key"], &failing["cause"]), (&json!("toomuch/west-1"), &json!(message)), "{found}");
        let listed = stage.get("fleet/clusters").await;
        let listed = ["state", "reason", "message"].map(|field| listed["items"][0][field].clone());
        assert_eq!(listed, [json!("failing"), json!("TooManySyncsets"), json!(message)]);
        stage.has(plane, &[("site", json!({"value": "1"}))]).await;
        // It fits again.
        stage.sql.execute("delete from towline_result where name like 'n%'", &[]).await.unwrap();
        stage.wants("base", &[map("3")]).await;
        stage.succeeds("west-1", "base", 3).await;
        stage.has(plane, &[("site", json!({"value": "3"}))]).await;
        stage.status("west-1", "that all is applied", |status| is(status, "Success")).await;
        report(&stage, "no failing cluster", |report| report["objects"]["in_step"] == 1).await;
    });
}

/// What somebody has just applied is in the status that he asks for next.
#[test]
fn the_status_is_counted_when_it_is_asked_for() {
    run(async {
        let stage = Stage::new("counted").await;
        stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        for round in 0..5 {
            // A pause is of the document alone, so that it counts at once.
            let is_paused = round % 2 == 0;
            stage.change(&stage.path("clusters", "west-1"), &json!({"paused": is_paused})).await;
            let found = stage.replicas[0].towline().admin().section("syncsets").await.unwrap();
            assert_eq!(found["objects"]["paused"], u8::from(is_paused), "{found}");
        }
    });
}

/// Before the dispatcher has read the log of changes, nobody knows which clusters a change concerns.
#[test]
fn what_was_applied_and_is_not_dispatched_yet_is_pending_at_once() {
    run(async {
        let stage = Stage::with("undispatched", SYNCSETS, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |value: usize| stage.config_map("site", &json!({"value": value.to_string()}));
        stage.syncset("base", "Upsert", &[map(0)]).await;
        stage.succeeds("west-1", "base", 1).await;
        // Among clusters that are in step, and then beside one that is paused.
        for (round, at_rest, pending) in
            [(1, "ready", "changes are being dispatched"), (2, "paused", "changes are being dispatched; 1 paused")]
        {
            report(&stage, at_rest, |report| report["state"] == at_rest).await;
            let taken = "update towline_claim set holder = 'test', token = token + 1, until = now() + interval '1 h' \
                 where name = 'dispatcher'";
            assert_eq!(stage.sql.execute(taken, &[]).await.unwrap(), 1);
            stage.wants("base", &[map(round)]).await;
            for _ in 0..3 {
                let found = stage.replicas[0].towline().admin().section("syncsets").await.unwrap();
                assert_eq!((&found["state"], &found["message"]), (&json!("pending"), &json!(pending)), "{found}");
                let (_, table) = command(&stage, &["status"]).await;
                let row = table.lines().find(|line| line.starts_with("syncsets ")).unwrap_or_default();
                assert!(row.contains(" pending ") && row.contains(pending), "{table}");
            }
            stage.has(plane, &[("site", json!({"value": (round - 1).to_string()}))]).await;
            let free = "update towline_claim set until = now() where name = 'dispatcher'";
            assert_eq!(stage.sql.execute(free, &[]).await.unwrap(), 1);
            stage.has(plane, &[("site", json!({"value": round.to_string()}))]).await;
            report(&stage, at_rest, |report| report["state"] == at_rest).await;
            let paused = json!({"namespace": stage.namespace, "name": format!("west-{}", round + 1), "kubeconfig": "k", "paused": true});
            stage.create("clusters", &paused).await;
        }
    });
}

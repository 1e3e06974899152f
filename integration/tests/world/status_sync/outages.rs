//! Connections that break while both ends live, permissions that are missing, and a replica that takes over.

use integration::postgres::{ADMIN, READER};
use integration::rbac::{grant_changed_status_sync, grant_election};
use integration::{Link, Towline, eventually, users};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::status_sync::world::{LIMIT, PLACEMENT_LABEL, Stage, run};

const SETTINGS: &str = "interval = \"200ms\"\nfamilies = [\"policies\"]";
const FRESHNESS: &str = "towline_oldest_pending_seconds{section=\"status-sync\",kind=\"policies\"} ";

/// The daemon behind a link to the hub, with a policy that it has served.
async fn behind(stage: &Stage) -> (Link, Towline, String) {
    let uid = stage.wanted("policies", "p").await;
    stage.comply(&uid, "hub", "c", "compliant").await;
    let link = Link::to(stage.world.hub.address()).await.expect("a link");
    let kubeconfig = stage.world.hub.kubeconfig_by(users::TOWLINE, link.address()).expect("a kubeconfig");
    let config = stage.config_by(&stage.database.url(READER), &kubeconfig, SETTINGS);
    let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
    towline.wait_ready(LIMIT).await.expect("the daemon is ready");
    stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
    (link, towline, uid)
}

/// Waits until the gauge of freshness is so.
async fn freshness(towline: &Towline, what: &str, holds: impl Fn(f64) -> bool) {
    eventually(format!("the freshness of policies to be {what}"), LIMIT, async || {
        let metrics = towline.admin().metrics().await.map_err(|error| error.chain())?;
        let found = metrics.lines().find_map(|line| line.strip_prefix(FRESHNESS)?.parse::<f64>().ok());
        if found.is_some_and(&holds) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

#[test]
fn connections_that_end_while_the_api_server_lives_stop_nothing() {
    run(async {
        let stage = Stage::new("endings").await;
        let (link, towline, uid) = behind(&stage).await;
        for word in ["non_compliant", "pending", "compliant"] {
            link.hang_up();
            stage.comply(&uid, "hub", "c", word).await;
            let expected = match word {
                "non_compliant" => "NonCompliant",
                "pending" => "Pending",
                _ => "Compliant",
            };
            stage.shows("policies", "p", "/status/compliant", &json!(expected)).await;
            stage.passes(&towline, "policies", 3).await;
        }
        freshness(&towline, "nothing", |seconds| seconds == 0.0).await;
    });
}

#[test]
fn a_change_that_waits_in_a_pass_that_goes_on_shows_and_grows_old() {
    run(async {
        let stage = Stage::new("longpass").await;
        let (link, towline, uid) = behind(&stage).await;
        freshness(&towline, "nothing", |seconds| seconds == 0.0).await;
        link.mute();
        stage.comply(&uid, "hub", "c", "pending").await;
        let under_way =
            |report: &Value| report["oldest_unwritten_seconds"].is_number() && report["write_failure"].is_null();
        stage.family(&towline, "policies", "a change before the pass has ended", under_way).await;
        freshness(&towline, "more than nothing", |seconds| seconds > 0.0).await;
        link.hang_up();
        stage.shows("policies", "p", "/status/compliant", &json!("Pending")).await;
        freshness(&towline, "nothing", |seconds| seconds == 0.0).await;
    });
}

/// The passes of a replica.
async fn passes(towline: &Towline) -> u64 {
    let report = towline.admin().section("status-sync").await.expect("a report");
    report["families"]["policies"]["passes"].as_u64().unwrap_or_default()
}

/// Which of two replicas makes passes.
async fn leader(replicas: &[&Towline]) -> usize {
    eventually("one replica to make passes", LIMIT, async || {
        for (index, replica) in replicas.iter().enumerate() {
            if passes(replica).await > 0 {
                return Ok(index);
            }
        }
        Err("none does".to_owned())
    })
    .await
    .unwrap()
}

async fn allowed(client: &Client, namespace: &str) {
    grant_election(client, namespace, None).await.expect("the election is granted");
}

#[test]
fn a_replica_takes_over_from_one_that_was_killed_and_only_who_writes_has_changes_that_grow_old() {
    run(async {
        let stage = Stage::new("replicas").await;
        allowed(&stage.world.client, &stage.name).await;
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let election = format!(
            "[election]\ncluster = \"hub\"\nnamespace = \"{}\"\nlease_duration = \"4s\"\nrenew_interval = \"1s\"\n",
            stage.name
        );
        let config = format!("{election}{}", stage.config(SETTINGS));
        let one = Towline::start(&config, &[]).await.expect("a replica starts");
        let other = Towline::start(&config, &[]).await.expect("a replica starts");
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        let (leads, stands_by) = if leader(&[&one, &other]).await == 0 { (one, other) } else { (other, one) };
        assert_eq!(passes(&stands_by).await, 0, "both make passes");
        freshness(&stands_by, "nothing", |seconds| seconds == 0.0).await;
        leads.kill9().await.expect("it is killed");
        stage.comply(&uid, "hub", "c", "pending").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Pending")).await;
        freshness(&stands_by, "nothing", |seconds| seconds == 0.0).await;
        assert_eq!(leader(&[&stands_by]).await, 0);
    });
}

#[test]
fn a_write_that_is_not_allowed_is_reported_by_verb_and_kind_and_made_when_it_is_before_the_next_pass_by_the_clock() {
    run(async {
        let stage = Stage::new("forbidden").await;
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        stage.wanted("placements", "d").await;
        let reported =
            json!({"labels": {PLACEMENT_LABEL: "d"}, "status": {"decisions": [{"clusterName": "c", "reason": ""}]}});
        stage.report("placementdecisions", "hub", "x", &reported).await;
        let client = &stage.world.client;
        grant_changed_status_sync(client, users::REPLICA[0], |rules| {
            rules.retain(|rule| rule.resources.iter().flatten().all(|resource| resource != "policies/status"));
            for rule in rules.iter_mut() {
                rule.verbs.retain(|verb| verb != "create");
            }
        })
        .await
        .expect("less is granted");
        let kubeconfig = stage.world.hub.kubeconfig(users::REPLICA[0]).expect("a kubeconfig");
        let settings = "interval = \"1h\"\nfamilies = [\"policies\", \"placementdecisions\"]";
        let config = stage.config_by(&stage.database.url(READER), &kubeconfig, settings);
        let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
        for (family, verb, kind) in
            [("policies", "patch", "policies"), ("placementdecisions", "create", "placementdecisions")]
        {
            let named = |report: &Value| {
                let failure = &report["write_failure"];
                let error = failure["error"].as_str().unwrap_or_default();
                failure["kind"] == "forbidden" && error.contains(&format!("not allowed to {verb} {kind}"))
            };
            stage.family(&towline, family, "the verb and the kind", named).await;
        }
        grant_changed_status_sync(client, users::REPLICA[0], |_| ()).await.expect("the rest is granted");
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        stage
            .has("placementdecisions", "d-decision-1", |object| object.data.pointer("/status/decisions/0").is_some())
            .await;
    });
}

/// Has the API server refuse every change of a policy in a namespace, as long as this is there.
async fn refuse(stage: &Stage) -> Api<DynamicObject> {
    let group = "admissionregistration.k8s.io/v1";
    let policies = Api::all_with(stage.world.client.clone(), &admission("ValidatingAdmissionPolicy"));
    let policy = json!({
        "apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": stage.name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.name}},
                "resourceRules": [{
                    "apiGroups": ["policy.open-cluster-management.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
                    "resources": ["policies/status"],
                }],
            },
            "validations": [{"expression": "false", "message": "not now"}],
        },
    });
    let binding = json!({
        "apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": stage.name},
        "spec": {"policyName": stage.name, "validationActions": ["Deny"]},
    });
    let bindings = Api::all_with(stage.world.client.clone(), &admission("ValidatingAdmissionPolicyBinding"));
    for (api, object) in [(&policies, policy), (&bindings, binding)] {
        let object = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.expect("it is made");
    }
    let edit = Patch::Merge(json!({"status": {"compliant": "Pending"}}));
    eventually("the API server to refuse an edit", LIMIT, async || {
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        match stage.api("policies").patch_status("p", &dry, &edit).await {
            Err(kube::Error::Api(refused)) if refused.message.contains("not now") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    bindings
}

fn admission(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind))
}

#[test]
fn a_write_that_the_api_server_refused_is_made_without_a_new_change_when_it_is_refused_no_longer() {
    run(async {
        let stage = Stage::new("refused").await;
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let refusing = refuse(&stage).await;
        let since = stage.mark().await;
        let towline = stage.start_with("interval = \"1h\"\nfamilies = [\"policies\"]").await;
        let rejected = |report: &Value| report["write_failure"]["kind"] == "rejected";
        let report = stage.family(&towline, "policies", "a write that was rejected", rejected).await;
        assert_eq!(report["written"], 0);
        refusing.delete(&stage.name, &DeleteParams::default()).await.expect("it goes");
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        // Each try is a pass of its own, after a back-off; the last one is the one that went through.
        let tries = stage.requests(since).await["patch policies/status"] as u64;
        assert!(tries >= 2, "{tries} tries");
        let is_made = |report: &Value| report["oldest_unwritten_seconds"].is_null() && report["passes"] == json!(tries);
        let report = stage.family(&towline, "policies", &format!("{tries} passes"), is_made).await;
        assert_eq!(report["written"], 1);
    });
}

#[test]
fn a_statement_that_gets_no_answer_is_told_grows_old_and_is_ended_on_the_server() {
    run(async {
        let stage = Stage::new("unanswered").await;
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let towline = stage.start_with(&format!("{SETTINGS}\nstatement_timeout = \"10s\"")).await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        stage.comply(&uid, "hub", "c", "pending").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Pending")).await;
        let locker = stage.database.client(integration::postgres::ADMIN).await.unwrap();
        locker.batch_execute("BEGIN; LOCK TABLE status.compliance IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let waits = |report: &Value| report["database_unanswered_seconds"].as_f64().is_some_and(|age| age > 1.0);
        stage.family(&towline, "policies", "a database that does not answer", waits).await;
        freshness(&towline, "as old as the question", |seconds| seconds > 5.0).await;
        let told = |report: &Value| report["failure"]["kind"] == "silent";
        let report = stage.family(&towline, "policies", "the statement that was ended", told).await;
        let error = report["failure"]["error"].as_str().unwrap();
        assert_eq!(error, "statement detect_policies was cancelled: no answer within 10s");
        // Asked again since, so that there is at most the one that waits now.
        freshness(&towline, "older than one statement can be", |seconds| seconds > 25.0).await;
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let count: i64 = stage.sql.query_one(waiting, &[]).await.unwrap().get(0);
        assert!(count <= 1, "{count} statements wait");
        locker.batch_execute("COMMIT").await.unwrap();
        stage.comply(&uid, "hub", "c", "compliant").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;
        freshness(&towline, "nothing", |seconds| seconds == 0.0).await;
    });
}

#[test]
fn a_database_url_in_a_file_may_come_late_and_its_password_may_change() {
    run(async {
        let stage = Stage::new("urlfile").await;
        let uid = stage.wanted("policies", "p").await;
        stage.comply(&uid, "hub", "c", "compliant").await;
        let admin = stage.database.client(ADMIN).await.expect("a connection");
        let sql = format!("CREATE ROLE rotated LOGIN PASSWORD 'first' IN ROLE {READER}");
        admin.batch_execute(&sql).await.expect("a role");
        let url = |password: &str| {
            let url = stage.database.url("rotated");
            url.replace("rotated:", &format!("rotated:{password}"))
        };
        let directory = stage.world.hub.directory().join("urlfile");
        std::fs::create_dir(&directory).expect("a directory");
        let file = directory.join("url");
        let inline = format!("database_url = \"{}\"", url("first"));
        let config = stage.config_by(&url("first"), &stage.world.kubeconfig, SETTINGS);
        let config = config.replace(&inline, &format!("database_url_file = \"{}\"", file.display()));
        assert!(config.contains("database_url_file"), "{config}");
        // Neither the file nor what stands in it ends the daemon: its other jobs have nothing to do with it.
        let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
        let fails = async |with: &str| {
            let failed = |report: &Value| report["failure"].to_string().contains(with);
            stage.family(&towline, "policies", with, failed).await;
        };
        fails("failed to read the database URL from").await;
        std::fs::write(&file, "no URL").expect("it is written");
        fails("invalid database URL in").await;
        std::fs::write(&file, url("wrong")).expect("it is written");
        fails("the database rejected the credentials").await;
        std::fs::write(&file, url("first") + "\n").expect("it is written");
        stage.shows("policies", "p", "/status/compliant", &json!("Compliant")).await;

        admin.batch_execute("ALTER ROLE rotated PASSWORD 'second'").await.expect("another password");
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'";
        admin.batch_execute(end).await.expect("its connections end");
        fails("the database rejected the credentials").await;
        std::fs::write(&file, url("second")).expect("it is written");
        stage.comply(&uid, "hub", "c", "pending").await;
        stage.shows("policies", "p", "/status/compliant", &json!("Pending")).await;
        let report = towline.admin().status().await.expect("a report").to_string();
        let log = towline.log().expect("a log");
        for secret in ["first@", "second@", "wrong@"] {
            assert!(!report.contains(secret) && !log.contains(secret), "{secret} is told");
        }
    });
}

//! Clusters that don't answer, or not as they should.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::users::ADMIN;
use integration::{Link, eventually};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::syncsets::guard::{Objects, api};
use crate::syncsets::report::{command, report};
use crate::syncsets::script::{Says, Script};
use crate::syncsets::watching::Watching;
use crate::syncsets::world::{LIMIT, SYNCSETS, Stage, condition, edge, run};

fn is_reachable(status: &Value) -> bool {
    condition(status, "Unreachable").is_some_and(|condition| condition["status"] == "False")
}

#[test]
fn what_was_changed_while_a_cluster_was_gone_is_applied_when_it_is_back() {
    run(async {
        let stage = Stage::new("killed").await;
        let plane = stage.register("west-1", &json!({}), 2).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({"a": "1"}))]).await;
        let before = stage.succeeds("west-1", "base", 1).await;
        plane.kill_api_server().await.unwrap();
        stage.wants("base", &[stage.config_map("site", &json!({"a": "2"}))]).await;
        let unreachable = stage.unreachable("west-1").await;
        assert_eq!(unreachable["reason"], "ErrorConnectingToCluster", "{unreachable}");
        let told =
            |what: &str| stage.log().lines().filter(|line| line.contains(what) && line.contains("/west-1")).count();
        assert_eq!(told("a cluster is unreachable"), 1, "{}", stage.log());
        // The results are what they were.
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
        assert_eq!(status["status"]["syncSets"][0], before, "{status}");
        assert_eq!(condition(&status["status"], "Failed").unwrap()["status"], "False");
        plane.start_api_server().await.unwrap();
        stage.has(plane, &[("site", json!({"a": "2"}))]).await;
        stage.status("west-1", "the cluster to be reachable", is_reachable).await;
        let times = (told("a cluster is unreachable"), told("a cluster is reachable again"));
        assert_eq!(times, (1, 1), "once each: {}", stage.log());
    });
}

#[test]
fn a_cluster_that_swallows_packets_is_unreachable_and_does_not_delay_others() {
    run(async {
        let stage = Stage::new("swallowed").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let link = Link::to(edge(1).await.address()).await.unwrap();
        let far = stage.register("west-2", &json!({}), 1).await;
        let kubeconfig = stage.kubeconfig(far, link.address()).to_string();
        stage.change(&stage.path("clusters", "west-2"), &json!({"kubeconfig": kubeconfig})).await;
        let create = async |name: &str| {
            let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}, {"name": "west-2"}],
                "resources": [stage.config_map(name, &json!({}))]});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
        };
        create("one").await;
        stage.has(far, &[("one", Value::Null)]).await;
        stage.at_rest().await;
        link.cut().await.unwrap();
        create("two").await;
        stage.has(plane, &[("one", Value::Null), ("two", Value::Null)]).await;
        let unreachable = stage.unreachable("west-2").await;
        assert_eq!(unreachable["reason"], "ErrorConnectingToCluster", "{unreachable}");
        link.restore().await.unwrap();
        stage.has(far, &[("one", Value::Null), ("two", Value::Null)]).await;
        stage.status("west-2", "the cluster to be reachable", is_reachable).await;
    });
}

/// While a cluster is silent, nothing but probes goes out, whatever changes.
#[test]
fn changes_start_no_pass_while_a_cluster_is_silent() {
    run(async {
        let section = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]";
        let stage = Stage::with("silent", section, 1).await;
        let is_known = Arc::new(AtomicBool::new(false));
        let knows = Arc::clone(&is_known);
        let server = Script::start(move |request| {
            let system = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"name": "kube-system", "uid": "u-1", "resourceVersion": "1"}});
            match request {
                _ if !knows.load(Ordering::Relaxed) => Says::Body(401, json!({"kind": "Status"}).to_string()),
                "GET /version HTTP/1.1" => Says::Body(200, "{}".to_owned()),
                _ => Says::Body(200, system.to_string()),
            }
        })
        .await;
        stage.registers("west-1", &server.kubeconfig()).await;
        let unreachable = stage.unreachable("west-1").await;
        assert_eq!(unreachable["reason"], "Unauthorized", "{unreachable}");
        stage.at_rest().await;
        // A probe follows 5 s later.
        assert_eq!(server.requests().first().unwrap(), "GET /api/v1/namespaces/kube-system HTTP/1.1");
        for round in 0..20 {
            stage.syncset(&format!("s-{round}"), "Sync", &[stage.config_map("site", &json!({}))]).await;
            stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"round": round.to_string()}})).await;
            stage.at_rest().await;
        }
        let later = server.requests().split_off(1);
        assert!(later.iter().all(|request| request == "GET /version HTTP/1.1"), "{later:?}");
        // A new kubeconfig asks at once, a probe first.
        is_known.store(true, Ordering::Relaxed);
        let mut other = server.kubeconfig();
        other["preferences"] = json!({});
        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": other.to_string()})).await;
        stage.status("west-1", "the cluster to answer", |status| status["syncSets"][0]["result"].is_string()).await;
    });
}

#[test]
fn a_new_kubeconfig_ends_an_invalid_one_and_a_refused_token_at_once() {
    run(async {
        let stage = Stage::new("replaced").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({"a": "0"}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        let good = stage.kubeconfig(plane, plane.address());
        let mut refused = good.clone();
        refused["users"][0]["user"]["token"] = json!("nobody");
        let mut untrusted = good.clone();
        untrusted["clusters"][0]["cluster"]["certificate-authority-data"] = stage
            .kubeconfig(edge(1).await, plane.address())["clusters"][0]["cluster"]["certificate-authority-data"]
            .clone();
        let mut invalid = good.clone();
        invalid["users"][0]["user"]["exec"] = json!({"command": "true"});
        let cases =
            [(refused, "Unauthorized"), (untrusted, "ErrorConnectingToCluster"), (invalid, "KubeconfigInvalid")];
        for (round, (bad, reason)) in cases.into_iter().enumerate() {
            let with = async |kubeconfig: &Value| {
                let change = json!({"kubeconfig": kubeconfig.to_string()});
                stage.change(&stage.path("clusters", "west-1"), &change).await;
            };
            with(&bad).await;
            let unreachable = stage.unreachable("west-1").await;
            assert_eq!(unreachable["reason"], reason, "{unreachable}");
            let data = json!({"a": (round + 1).to_string()});
            stage.wants("base", &[stage.config_map("site", &data)]).await;
            stage.at_rest().await;
            with(&good).await;
            stage.has(plane, &[("site", data)]).await;
            stage.status("west-1", "the cluster to be reachable", is_reachable).await;
        }
    });
}

/// The identity is the UID of the namespace `kube-system`. An account that lacks this right alone is told so.
#[test]
fn an_account_that_may_not_read_the_identity_of_its_cluster_is_forbidden_until_it_may() {
    run(async {
        let stage = Stage::new("unidentifiable").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({"a": "1"}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        let client = plane.client(ADMIN).await.unwrap();
        let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
            (Api::all(client.clone()), Api::all(client));
        let grant = async |name: &str, rule: Value| {
            let role = json!({"metadata": {"name": name}, "rules": [rule]});
            roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
            let group = "rbac.authorization.k8s.io";
            let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": stage.namespace}]});
            bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        };
        grant("unidentifiable-maps", json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]})).await;
        let mut kubeconfig = stage.kubeconfig(plane, plane.address());
        kubeconfig["users"][0]["user"].as_object_mut().unwrap().remove("as-groups");
        stage.pause(true).await;
        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": kubeconfig.to_string()})).await;
        stage.wants("base", &[stage.config_map("site", &json!({"a": "2"}))]).await;
        stage.pause(false).await;

        let unreachable = stage.unreachable("west-1").await;
        assert_eq!(unreachable["reason"], "Forbidden", "{unreachable}");
        let refusal = "User \"unidentifiable\" cannot get resource \"namespaces\" in API group \"\" in the namespace \"kube-system\"";
        let message = unreachable["message"].as_str().unwrap();
        assert!(
            message.starts_with("failed to read the UID of namespace kube-system: ") && message.contains(refusal),
            "{message}"
        );
        let is_listed = |report: &Value| report["objects"]["unreachable"] == 1;
        let found = report(&stage, "the cluster as unreachable", is_listed).await;
        let listed = &found["not_in_step"][0];
        assert_eq!(
            (&listed["key"], &listed["reason"]),
            (&json!("unidentifiable/west-1"), &json!("Forbidden")),
            "{found}"
        );
        assert!(listed["cause"].as_str().unwrap().contains(refusal), "{found}");
        let printed = async |format: &str| command(&stage, &["status", "-o", format]).await.1;
        for format in ["table", "wide"] {
            let table = printed(format).await;
            let row = table.lines().find(|line| line.starts_with("unidentifiable/west-1")).unwrap_or_default();
            assert!(row.contains("unreachable") && row.contains(refusal), "{table}");
        }
        let yaml: Value = serde_saphyr::from_str(&printed("yaml").await).unwrap();
        assert_eq!(yaml["sections"]["syncsets"]["not_in_step"][0]["cause"], listed["cause"], "{yaml}");
        let names = printed("name").await;
        assert_eq!(names.lines().next(), Some("syncsets"), "the worst first: {names}");
        let told = stage.command(&["get", "clustersyncs", "-n", stage.namespace]).await;
        let row = told.lines().nth(1).unwrap_or_default();
        assert!(row.contains("Unreachable") && row.contains("namespace kube-system"), "{told}");
        stage.has(plane, &[("site", json!({"a": "1"}))]).await;

        // With the right, no new kubeconfig is needed.
        let rule =
            json!({"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]});
        grant("unidentifiable-identity", rule).await;
        let again = "update towline_cluster set retry_at = now(); update towline_work set ready_at = now(); \
             select pg_notify('towline_work', '')";
        eventually("the cluster to be asked again and to answer", LIMIT, async || {
            stage.sql.batch_execute(again).await.map_err(|error| error.to_string())?;
            let found = stage.get(&stage.path("clustersyncs", "west-1")).await;
            if is_reachable(&found["status"]) { Ok(()) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();
        stage.succeeds("west-1", "base", 2).await;
        stage.has(plane, &[("site", json!({"a": "2"}))]).await;
    });
}

/// What is noted belongs to the cluster that was there before.
#[test]
fn nothing_is_deleted_on_another_cluster_behind_the_kubeconfig() {
    run(async {
        let stage = Stage::new("another").await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        stage.syncset("base", "Sync", &[map("kept"), map("dropped")]).await;
        stage.syncset("ended", "Sync", &[map("ended")]).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.succeeds("west-1", "ended", 1).await;
        // The other one has the same objects with the same marks, as a copy of the first one would.
        let other = stage.register("scaffold", &json!({}), 1).await;
        stage.remove(&stage.path("clusters", "scaffold")).await;
        stage.at_rest().await;
        let copies = stage.maps(other).await;
        for mut found in stage.config_maps(plane).await {
            found.metadata = kube::core::ObjectMeta {
                labels: found.metadata.labels,
                annotations: found.metadata.annotations,
                name: found.metadata.name,
                ..kube::core::ObjectMeta::default()
            };
            copies.create(&PostParams::default(), &found).await.unwrap();
        }
        let (here, there) = (Watching::begin(&stage, plane).await, Watching::begin(&stage, other).await);
        stage.pause(true).await;
        stage.wants("base", &[map("kept"), map("new")]).await;
        stage.remove(&stage.path("syncsets", "ended")).await;
        let kubeconfig = stage.kubeconfig(other, other.address()).to_string();
        stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": kubeconfig})).await;
        stage.pause(false).await;
        stage.succeeds("west-1", "base", 2).await;
        let names = async |plane| stage.config_maps(plane).await.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        assert_eq!(names(other).await, ["dropped", "ended", "kept", "new"]);
        let is_told = |status: &Value| condition(status, "AnotherCluster").is_some();
        let status = stage.status("west-1", "that it is another cluster", is_told).await;
        let told = condition(&status, "AnotherCluster").unwrap();
        assert_eq!((&told["status"], &told["reason"]), (&json!("True"), &json!("IdentityChanged")), "{status}");
        stage.full_pass().await;
        let status = stage.status("west-1", "that it is still told", is_told).await;
        assert_eq!(condition(&status, "AnotherCluster").unwrap(), told, "for as long as full passes are apart");
        let since = json!({"status": {"conditions": [{"type": "AnotherCluster", "status": "True", "reason": "IdentityChanged",
            "message": "earlier", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        stage
            .sql
            .execute(
                "update clustersyncs set status = status || ($1::text::jsonb)->'status' where namespace = $2",
                &[&since.to_string(), &stage.namespace],
            )
            .await
            .unwrap();
        stage.full_pass().await;
        stage.status("west-1", "the next full pass to have ended it", |status| !is_told(status)).await;
        assert_eq!(there.deleted(&stage, other).await, Vec::<String>::new());
        assert_eq!(here.deleted(&stage, plane).await, Vec::<String>::new());
        assert_eq!(names(plane).await, ["dropped", "ended", "kept"]);
    });
}

/// Clusters that do not answer are asked one after the other, as slots become free. Nobody has a claim on those that wait for that, and
/// they are not looked at again and again.
#[test]
fn silent_clusters_wait_for_their_turn_to_be_asked() {
    run(async {
        let stage = one_slot("turns").await;
        let (mut servers, mut names) = (Vec::new(), Vec::new());
        for number in 0..SLOTS + 2 {
            let server = Script::start(|_| Says::Nothing).await;
            names.push(format!("west-{number}"));
            stage.registers(&names[number], &server.kubeconfig()).await;
            servers.push(server);
        }
        for name in &names {
            stage.unreachable(name).await;
        }
        let probes = || -> Vec<usize> {
            let of = |server: &Script| server.requests().iter().filter(|line| line.starts_with("GET /version")).count();
            servers.iter().map(of).collect()
        };
        asleep(&stage, &names).await;
        let (before, looked_in_vain) = (probes(), in_vain(&stage).await);
        due(&stage, &names).await;
        let (mut has_waited, mut most_claimed) = (false, 0);
        integration::eventually("each to be asked", LIMIT, async || {
            let text = "select count(*) filter (where until > now()), count(*) filter (where until is null and ready_at > now()) \
                 from towline_work";
            let row = stage.sql.query_one(text, &[]).await.unwrap();
            let (claimed, waiting): (i64, i64) = (row.get(0), row.get(1));
            let asked = probes();
            let asked_once = asked.iter().zip(&before).filter(|(now, before)| now > before).count();
            has_waited |= (claimed, waiting) == (i64::try_from(SLOTS).unwrap(), 2) && asked_once <= SLOTS;
            most_claimed = claimed.max(most_claimed);
            let is_asked = asked.iter().zip(&before).all(|(now, before)| now > before);
            if is_asked { Ok(()) } else { Err(format!("{before:?} {asked:?}")) }
        })
        .await
        .unwrap();
        assert!(has_waited, "those that waited were claimed: up to {most_claimed} clusters at once");
        // Both others at first, and once more for each time that one of them came back too early.
        let looked = in_vain(&stage).await - looked_in_vain;
        assert!((2..=14).contains(&looked), "{looked}");
    });
}

/// What somebody has asked for does not wait until others that are silent have been asked.
#[test]
fn a_resync_and_a_new_kubeconfig_do_not_wait_for_silent_clusters() {
    run(async {
        let stage = one_slot("repaired").await;
        let silent = Script::start(|_| Says::Nothing).await;
        let others: Vec<String> = (0..=SLOTS).map(|number| format!("silent-{number}")).collect();
        for name in &others {
            stage.registers(name, &silent.kubeconfig_below(&format!("/{name}"))).await;
        }
        let objects = Objects::default();
        let shared = Arc::clone(&objects);
        let lively = Script::start_with(move |line, body| api(&shared, line, body)).await;
        let refusing = Script::start(|_| Says::Body(401, json!({"kind": "Status"}).to_string())).await;
        stage.registers("west-1", &refusing.kubeconfig()).await;
        for name in others.iter().map(String::as_str).chain(["west-1"]) {
            stage.unreachable(name).await;
        }
        for demand in ["resync", "kubeconfig"] {
            // Each time the silent ones give it 5 s, which a busy machine may need for something else.
            let mut is_at_once = false;
            for round in 0..5 {
                if round > 0 {
                    // It was asked too late, and may have answered.
                    let kubeconfig = json!({"kubeconfig": refusing.kubeconfig().to_string()});
                    stage.change(&stage.path("clusters", "west-1"), &kubeconfig).await;
                    stage.unreachable("west-1").await;
                }
                asleep(&stage, &others).await;
                due(&stage, &others).await;
                let holder = eventually("one to be asked while the other one waits", LIMIT, async || {
                    let text = "select w.cluster::text, w.token, w.until > now(), w.until is null and w.ready_at > now() \
                         from towline_work w join clusters c on c.id = w.cluster where c.name = any($1)";
                    let rows = stage.sql.query(text, &[&others]).await.unwrap();
                    let is = |row: &tokio_postgres::Row, column| row.get::<_, Option<bool>>(column) == Some(true);
                    let (asked, waiting) = (rows.iter().find(|row| is(row, 2)), rows.iter().find(|row| is(row, 3)));
                    match (asked, waiting) {
                        (Some(row), Some(_)) => Ok((row.get::<_, String>(0), row.get::<_, i64>(1))),
                        _ => Err(format!("{} and {}", asked.is_some(), waiting.is_some())),
                    }
                })
                .await
                .unwrap();
                let server = if demand == "resync" { &refusing } else { &lively };
                let asked = server.requests().len();
                if demand == "resync" {
                    let by_name = format!("{}/west-1", stage.namespace);
                    assert_eq!(stage.command(&["resync", &by_name]).await, "a full pass of 1 cluster is due now\n");
                } else {
                    let kubeconfig = lively.kubeconfig_below(&format!("/west-{round}")).to_string();
                    stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": kubeconfig})).await;
                }
                eventually("it to be asked", LIMIT, async || match server.requests().len() {
                    more if more > asked => Ok(()),
                    other => Err(other.to_string()),
                })
                .await
                .unwrap();
                let text = "select exists (select from towline_work where cluster::text = $1 and token = $2 and until > now())";
                is_at_once = stage.sql.query_one(text, &[&holder.0, &holder.1]).await.unwrap().get(0);
                if is_at_once {
                    break;
                }
            }
            assert!(is_at_once, "a {demand} waited each time until the silent one was given up: {}", stage.log());
        }
    });
}

/// However long it was silent: what others do that are silent makes it wait by a few seconds.
#[test]
fn a_cluster_that_is_back_after_long_is_served_within_seconds_while_hundreds_are_silent() {
    // The longest wait is 11 s on a machine that is idle. One run beside three builds had a longer one.
    run(served_in_its_round("back", 200, 30));
}

/// A cluster comes back while so many are silent, of which each is asked again within so many seconds. It is served before any of those is
/// asked a third time.
async fn served_in_its_round(name: &'static str, silent_ones: usize, within: u32) {
    /// Attempts of a day.
    const DAY: i64 = 5_000;
    let stage = Stage::with(name, "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]", 1).await;
    let (objects, is_back) = (Objects::default(), Arc::new(AtomicBool::new(true)));
    let (shared, answers) = (Arc::clone(&objects), Arc::clone(&is_back));
    let server =
        Script::start_with(
            move |line, body| {
                if answers.load(Ordering::Relaxed) { api(&shared, line, body) } else { Says::Nothing }
            },
        )
        .await;
    stage.registers("west-1", &server.kubeconfig_below("/west-1")).await;
    stage.syncset("base", "Upsert", &[stage.config_map("one", &json!({}))]).await;
    stage.succeeds("west-1", "base", 1).await;
    is_back.store(false, Ordering::Relaxed);
    stage.wants("base", &[stage.config_map("one", &json!({})), stage.config_map("two", &json!({}))]).await;
    stage.unreachable("west-1").await;
    let silent = Script::start(|_| Says::Nothing).await;
    for number in 0..silent_ones {
        stage.registers(&format!("silent-{number}"), &silent.kubeconfig_below(&format!("/{number}"))).await;
    }
    let all = i64::try_from(silent_ones).unwrap() + 1;
    let count = async |condition: &str| -> i64 {
        let text = format!("select count(*) from towline_cluster where reachable = false and {condition}");
        stage.sql.query_one(&text, &[]).await.unwrap().get(0)
    };
    eventually("all of them to be silent", LIMIT, async || match count("true").await {
        found if found == all => Ok(()),
        other => Err(format!("{other} of {all}")),
    })
    .await
    .unwrap();
    // A reconcile that is under way writes what it has read before.
    let text = format!("update towline_cluster set attempts = {DAY} where attempts < {DAY}");
    eventually("each of them to have been asked once more", LIMIT, async || {
        stage.sql.batch_execute(&text).await.unwrap();
        match count(&format!("attempts > {DAY}")).await {
            found if found == all => Ok(()),
            other => Err(format!("{other} of {all}")),
        }
    })
    .await
    .unwrap();
    // Whenever it comes back: each time that one is left, it is due again within that time, by the row of the work queue and by its own.
    let notes = "create table waits (cluster uuid, wait interval); grant insert on waits to public; \
         create function note_wait() returns trigger language plpgsql as $$ begin \
           insert into waits select new.cluster, greatest(new.ready_at, p.retry_at) - now() from towline_cluster p \
             where p.cluster = new.cluster and p.reachable = false; return new; end $$; \
         create trigger note_wait after update on towline_work for each row when (old.until is not null and new.until is null) \
           execute function note_wait()";
    stage.sql.batch_execute(notes).await.unwrap();
    let waits = async || -> (i64, f64) {
        let text =
            "select count(distinct cluster), coalesce(extract(epoch from max(wait))::float8, 'infinity') from waits";
        let row = stage.sql.query_one(text, &[]).await.unwrap();
        (row.get(0), row.get(1))
    };
    eventually("each of them to be left once more", LIMIT, async || match waits().await.0 {
        found if found == all => Ok(()),
        other => Err(format!("{other} of {all}")),
    })
    .await
    .unwrap();
    let before = silent.requests().len();
    is_back.store(true, Ordering::Relaxed);
    let asked = server.requests().len();
    let questions = eventually("the change to be applied", LIMIT, async || match objects.lock().len() {
        2 => Ok(server.requests()),
        other => Err(other.to_string()),
    });
    let questions = questions.await.unwrap();
    let longest = waits().await.1;
    assert!(longest <= f64::from(within), "each is asked again within {within} s: {longest} s");
    // The first question that finds it back is the one that serves it.
    let probes = |lines: &[String]| lines.iter().filter(|line| line.starts_with("GET /west-1/version ")).count();
    assert!(probes(&questions) > 0 && probes(&questions[asked..]) <= 1, "{:?}", &questions[asked..]);
    let mut each: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for line in silent.requests().split_off(before) {
        *each.entry(line).or_default() += 1;
    }
    let often: Vec<_> = each.iter().filter(|(_, times)| **times > 2).collect();
    assert!(often.is_empty(), "it was served after others were asked again and again: {often:?}");
}

/// It waits for a slot to connect then, and may have nothing else to ask: what it has answered counts.
#[test]
fn a_cluster_that_answers_while_all_slots_to_connect_are_taken_is_reachable() {
    run(async {
        let stage = one_slot("answering").await;
        let (answer, objects) = (Arc::new(Semaphore::new(0)), Objects::default());
        let (refuses, waits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let states = (Arc::clone(&refuses), Arc::clone(&waits), Arc::clone(&answer));
        let server = Script::start_with(move |line, body| match &states {
            (refuses, ..) if refuses.load(Ordering::Relaxed) => Says::Body(401, json!({"kind": "Status"}).to_string()),
            (_, waits, answer) if waits.load(Ordering::Relaxed) && line.contains("/version") => {
                Says::Later(Arc::clone(answer), 200, "{}".to_owned())
            }
            _ => api(&objects, line, body),
        })
        .await;
        stage.registers("west-1", &server.kubeconfig_below("/west-1")).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        refuses.store(true, Ordering::Relaxed);
        stage.command(&["resync", &format!("{}/west-1", stage.namespace)]).await;
        stage.unreachable("west-1").await;
        // Of which nothing is deleted, so there is nothing to ask any more.
        stage.remove(&stage.path("syncsets", "base")).await;
        stage.at_rest().await;
        refuses.store(false, Ordering::Relaxed);
        waits.store(true, Ordering::Relaxed);
        let asked = server.requests().len();
        due(&stage, &["west-1".to_owned()]).await;
        eventually("it to be asked", LIMIT, async || match server.requests().len() {
            more if more > asked => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
        let silent = Script::start(|_| Says::Nothing).await;
        for number in 0..4 {
            stage.registers(&format!("silent-{number}"), &silent.kubeconfig_below(&format!("/{number}"))).await;
        }
        eventually("the slots to be taken", LIMIT, async || match silent.requests().len() {
            4.. => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
        answer.add_permits(100);
        stage.status("west-1", "it to be reachable again", is_reachable).await;
    });
}

/// The slots to ask silent clusters of a hub with one slot to work.
const SLOTS: usize = 8;

/// None of these silent clusters is asked until its time has come again.
async fn asleep(stage: &Stage, clusters: &[String]) {
    let text = "with named as (select id from clusters where name = any($1)), \
         work as (update towline_work set ready_at = now() + interval '1 h' where cluster in (select id from named)) \
         select count(*) from towline_work where until >= now() and cluster in (select id from named)";
    eventually("nobody to ask them", LIMIT, async || {
        retry_at(stage, clusters, "now() + interval '1 h'").await;
        match stage.sql.query_one(text, &[&clusters]).await.unwrap().get(0) {
            0_i64 => Ok(()),
            asked => Err(format!("{asked} are asked")),
        }
    })
    .await
    .unwrap();
}

/// By itself: a statement that also changed the rows of work could lock those first, and deadlock with the end of a pass.
async fn retry_at(stage: &Stage, clusters: &[String], time: &str) {
    let text = format!(
        "update towline_cluster set retry_at = {time} where cluster in (select id from clusters where name = any($1))"
    );
    stage.sql.execute(&text, &[&clusters]).await.unwrap();
}

/// A hub with one slot to work, and so with few slots to ask silent clusters.
async fn one_slot(name: &'static str) -> Stage {
    let section = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nmax_in_flight = 1";
    Stage::with(name, section, 1).await
}

/// The time of these silent clusters has come.
async fn due(stage: &Stage, clusters: &[String]) {
    retry_at(stage, clusters, "now()").await;
    let text = "with work as (update towline_work set ready_at = now() \
           where cluster in (select id from clusters where name = any($1))) \
         select pg_notify('towline_work', '')";
    stage.sql.execute(text, &[&clusters]).await.unwrap();
}

/// A cluster that has not answered yet holds no slot to work, and be it the only one. Each of the silent clusters gives the other one
/// 5 s, which a busy machine may need for something else.
#[test]
fn a_cluster_that_has_not_answered_yet_holds_no_slot_to_work() {
    run(async {
        let stage = one_slot("permitless").await;
        let objects = Objects::default();
        let shared = Arc::clone(&objects);
        let lively = Script::start_with(move |line, body| api(&shared, line, body)).await;
        stage.registers("west-1", &lively.kubeconfig_below("/west-1")).await;
        stage.syncset("base", "Sync", &[]).await;
        stage.succeeds("west-1", "base", 1).await;
        let silent = Script::start(|_| Says::Nothing).await;
        let mut wanted = Vec::new();
        for number in 0..5 {
            let name = format!("silent-{number}");
            let asked = silent.requests().len();
            let spec =
                json!({"clusterDeploymentRefs": [{"name": name}], "resources": [stage.config_map("one", &json!({}))]});
            stage.create("syncsets", &json!({"namespace": stage.namespace, "name": name, "spec": spec})).await;
            stage.registers(&name, &silent.kubeconfig()).await;
            eventually("the silent cluster to be asked", LIMIT, async || match silent.requests().len() {
                more if more > asked => Ok(()),
                other => Err(other.to_string()),
            })
            .await
            .unwrap();
            wanted.push(stage.config_map(&name, &json!({})));
            stage.wants("base", &wanted).await;
            eventually("the change to be applied", LIMIT, async || match objects.lock().len() {
                found if found == wanted.len() => Ok(()),
                other => Err(other.to_string()),
            })
            .await
            .unwrap();
            let is_pending = "select exists (select from towline_work w join clusters c on c.id = w.cluster where c.name = $1 and w.until > now())";
            if stage.sql.query_one(is_pending, &[&name]).await.unwrap().get(0) {
                return;
            }
        }
        panic!("each time the other cluster waited until the silent one was given up: {}", stage.log());
    });
}

/// How many reconciles have found that they have to wait for a time.
async fn in_vain(stage: &Stage) -> u64 {
    let metrics = stage.replicas[0].towline().admin().metrics().await.unwrap();
    let waited = "controller_runtime_reconcile_total{controller=\"syncsets\",result=\"requeue_after\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(waited)).unwrap().parse().unwrap()
}

/// Another replica may have the key, so this one says nothing of the cluster.
#[test]
fn a_replica_that_lacks_the_key_of_a_kubeconfig_calls_no_cluster_unreachable() {
    run(async {
        const KEYS: [&str; 2] = [
            "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
            "two Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=\n",
        ];
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("syncsets-keys");
        std::fs::write(&file, KEYS[0]).unwrap();
        let section = format!("keys_file = {:?}\n{SYNCSETS}", file.display().to_string());
        let stage = Stage::with("keyless", &section, 1).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.syncset("base", "Upsert", &[stage.config_map("site", &json!({"a": "1"}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        std::fs::write(&file, KEYS[1]).unwrap();
        // It reads the file when it looks at it again.
        let mut changes = 0;
        eventually("the missing key to be named", LIMIT, async || {
            changes += 1;
            stage.wants("base", &[stage.config_map("site", &json!({"a": changes.to_string()}))]).await;
            let log = stage.log();
            let told = "the key \\\"one\\\" is not in keys_file";
            let line = log.lines().find(|line| line.contains("failed to reconcile a cluster") && line.contains(told));
            if line.is_some_and(|line| line.contains("keyless/west-1")) { Ok(()) } else { Err(log) }
        })
        .await
        .unwrap();
        stage.wants("base", &[stage.config_map("site", &json!({"a": "last"}))]).await;
        let status = stage.get(&stage.path("clustersyncs", "west-1")).await;
        assert!(is_reachable(&status["status"]), "{status}");
        let reachable: bool = stage.sql.query_one("select reachable from towline_cluster", &[]).await.unwrap().get(0);
        assert!(reachable);
        std::fs::write(&file, KEYS.concat()).unwrap();
        stage.has(plane, &[("site", json!({"a": "last"}))]).await;
    });
}

//! What a namespace may have, and what is refused beyond that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::hub::{Client, Request};
use integration::postgres::{ADMIN, Database};
use integration::soak::{Random, rounds, seed};
use integration::{Towline, eventually};
use serde_json::{Value, json};

use crate::documents::usage::WRONG;
use crate::hub::world::{Hub, LIMIT, database, done, folder, grant, hub_database, problem_of, run, shown};

const KIB: usize = 1 << 10;

fn cluster(namespace: &str, name: &str, bytes: usize) -> Value {
    json!({"name": name, "namespace": namespace, "kubeconfig": "k".repeat(bytes)})
}

/// The status of an answer; if it is 403, the refusal of a quota.
async fn sent(client: &mut Client, request: &Request) -> u16 {
    let reply = client.send(request).await.expect("an answer");
    if reply.status == 403 {
        assert_eq!(problem_of(&reply), "quota");
        let problem = reply.json().expect("JSON");
        assert!(problem["title"].as_str().is_some_and(|title| title.contains("needs")), "{problem}");
    }
    reply.status
}

async fn created(client: &mut Client, document: &Value) -> u16 {
    sent(client, &Request::post("/v1/clusters", document)).await
}

/// An attacker with a token for one namespace.
#[test]
fn a_namespace_gets_no_more_documents_than_its_quota_however_many_are_sent_at_once() {
    run(async {
        let (place, file) = (database("quotas").await, tokens("quotas").await);
        let env = [("TOWLINE__HUB__TOKENS_FILE", file.as_str()), ("TOWLINE__HUB__MAX_NAMESPACE_DOCUMENTS", "5")];
        let hub = Hub::start(&place, &env).await;
        let client = |caller: &str| hub.client().with_token(caller);
        let (mut mallory, mut ada, mut root) = (client("mallory"), client("ada"), client("root"));

        let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
        let all = names.iter().map(async |name| created(&mut client("mallory"), &cluster("foo", name, 1)).await);
        let mut statuses = BTreeMap::new();
        for status in futures::future::join_all(all).await {
            *statuses.entry(status).or_insert(0) += 1;
        }
        assert_eq!(statuses, BTreeMap::from([(201, 5), (403, 35)]));
        let secret = json!({"name": "s", "namespace": "foo", "data": {}});
        assert_eq!(sent(&mut mallory, &Request::post("/v1/secrets", &secret)).await, 403, "the kinds share it");
        assert_eq!(created(&mut ada, &cluster("bar", "c0", 1)).await, 201, "others have a quota of their own");

        let listed = shown(&mut mallory, "/v1/clusters?namespace=foo").await;
        let name = listed["items"][0]["name"].as_str().expect("a name").to_owned();
        let path = format!("/v1/clusters/foo/{name}");
        assert_eq!(created(&mut mallory, &cluster("foo", &name, 1)).await, 409, "it exists, whatever the quota is");
        let labels = json!({"labels": {"env": "prod"}});
        assert_eq!(sent(&mut mallory, &Request::merge_patch(&path, &labels)).await, 200);
        // An apply tells it of each document, and goes on with the others.
        let manifest = |name: &str, namespace: &str| {
            let mut document = cluster(namespace, name, 1);
            document["kind"] = "Cluster".into();
            document
        };
        let applied = json!([manifest("new", "foo"), manifest(&name, "foo"), manifest("new", "bar")]);
        let answer = done(&mut root, &Request::post("/v1/apply", &applied)).await.json().expect("JSON");
        let results: Vec<&Value> = (0..3).map(|index| &answer["items"][index]["result"]).collect();
        assert_eq!(results, ["failed", "unchanged", "created"], "{answer}");
        assert_eq!(answer["items"][0]["problem"]["type"], "urn:towline:problem:quota", "{answer}");
        // What has no namespace needs a token for all of them, and has no quota.
        for number in 0..7 {
            let syncset = json!({"name": format!("s{number}"), "spec": {"clusterDeploymentSelector": {}}});
            done(&mut root, &Request::post("/v1/selectorsyncsets", &syncset)).await;
        }
        done(&mut mallory, &Request::delete(&path)).await;
        assert_eq!(created(&mut mallory, &cluster("foo", "again", 1)).await, 201);
        assert_eq!(created(&mut mallory, &cluster("foo", "more", 1)).await, 403);

        // It is recorded as what is refused for other reasons.
        eventually("records of what was refused", LIMIT, async || {
            let page = shown(&mut client("root"), "/v1/history?limit=500").await;
            let of = |actor: &str| -> u64 {
                let is_it = |record: &&Value| record["note"] == "quota" && record["actor"] == actor;
                let found = page["items"].as_array().expect("items").iter().filter(is_it);
                found.map(|record| record["count"].as_u64().expect("a number")).sum()
            };
            if (of("mallory"), of("root"), of("ada")) == (37, 1, 0) { Ok(()) } else { Err(page.to_string()) }
        })
        .await
        .expect("records");
    });
}

#[test]
fn at_its_quota_of_bytes_a_namespace_can_shrink_and_clean_up() {
    run(async {
        let place = database("quotabytes").await;
        let hub = Hub::start(&place, &[("TOWLINE__HUB__MAX_NAMESPACE_MEBIBYTES", "1")]).await;
        let mut client = hub.client();
        for number in 0..5 {
            let mut document = cluster("foo", &format!("c{number}"), 200 * KIB);
            document["finalizers"] = json!(["a.io/b"]);
            assert_eq!(created(&mut client, &document).await, 201, "{number}");
        }
        // 1,000 KiB of kubeconfigs, and one or two of each document and its ClusterSync. The rest of the quota is too small for one more.
        assert_eq!(created(&mut client, &cluster("foo", "c5", 200 * KIB)).await, 403);
        assert_eq!(created(&mut client, &cluster("bar", "c5", 200 * KIB)).await, 201, "another namespace");
        let path = "/v1/clusters/foo/c0";
        let kubeconfig = |bytes: usize| Request::merge_patch(path, &json!({"kubeconfig": "k".repeat(bytes)}));
        assert_eq!(sent(&mut client, &kubeconfig(220 * KIB)).await, 403);
        let status = json!({"status": {"text": "x".repeat(100 * KIB)}});
        for path in [path, "/v1/clustersyncs/foo/c0"] {
            assert_eq!(sent(&mut client, &Request::merge_patch(&format!("{path}/status"), &status)).await, 403);
        }
        // What is smaller or as large, and what the deletion of a document takes.
        assert_eq!(sent(&mut client, &kubeconfig(200 * KIB - 1)).await, 200);
        assert_eq!(sent(&mut client, &Request::delete(path)).await, 202);
        assert_eq!(sent(&mut client, &Request::merge_patch(path, &json!({"finalizers": []}))).await, 200);
        assert_eq!(sent(&mut client, &Request::get(path)).await, 404);
        assert_eq!(created(&mut client, &cluster("foo", "c5", 200 * KIB)).await, 201, "there is room again");
        // A quota that was lowered below what there is refuses no deletion either.
        let sql = place.client(ADMIN).await.expect("a connection");
        let used = "select documents, kib from towline_counts where namespace = 'foo'";
        let row = sql.query_one(used, &[]).await.expect("a row");
        assert_eq!(row.get::<_, i64>(0), 5);
        assert!((1_005..=1_024).contains(&row.get::<_, i64>(1)), "{}", row.get::<_, i64>(1));
        drop(hub);
        let hub = Hub::start(&place, &[("TOWLINE__HUB__MAX_NAMESPACE_DOCUMENTS", "1")]).await;
        let mut client = hub.client();
        assert_eq!(created(&mut client, &cluster("foo", "c6", 1)).await, 403);
        for number in 1..6 {
            let path = format!("/v1/clusters/foo/c{number}");
            assert_eq!(sent(&mut client, &Request::merge_patch(&path, &json!({"finalizers": []}))).await, 200);
            assert_eq!(sent(&mut client, &Request::delete(&path)).await, 200);
        }
        assert!(sql.query(used, &[]).await.expect("rows").is_empty(), "a namespace without documents has no row");
        assert_eq!(created(&mut client, &cluster("foo", "c6", 1)).await, 201);
    });
}

/// An attacker with a token for one namespace, whose rollout keeps each content that its syncset had.
#[test]
fn the_revisions_of_rollouts_count_among_the_bytes_of_a_namespace() {
    run(async {
        let (place, file) = (database("quotarevisions").await, tokens("quotarevisions").await);
        let env = [("TOWLINE__HUB__TOKENS_FILE", file.as_str()), ("TOWLINE__HUB__MAX_NAMESPACE_MEBIBYTES", "1")];
        let hub = Hub::start(&place, &env).await;
        let (mut mallory, mut ada) = (hub.client().with_token("mallory"), hub.client().with_token("ada"));
        let content = |number: usize, kib: usize| {
            json!({"spec": {"clusterDeploymentRefs": [{"name": "c1"}], "rollout": {"waves": []},
                "resources": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"},
                    "data": {"a": format!("{number:06}{}", "x".repeat(kib * KIB))}}]}})
        };
        for (client, namespace) in [(&mut mallory, "foo"), (&mut ada, "bar")] {
            let mut syncset = content(0, 100);
            (syncset["name"], syncset["namespace"]) = ("s".into(), namespace.into());
            done(client, &Request::post("/v1/syncsets", &syncset)).await;
        }
        let edit = |number, kib| Request::merge_patch("/v1/syncsets/foo/s", &content(number, kib));
        let sql = place.client(ADMIN).await.expect("a connection");
        for number in 1..=12 {
            done(&mut mallory, &edit(number, 100)).await;
        }
        // The document, and a revision for each content: where there is no room for one more, the oldest goes.
        let used = "select kib from towline_counts where namespace = 'foo'";
        let kib: i64 = sql.query_one(used, &[]).await.expect("a row").get(0);
        assert!((901..=1024).contains(&kib), "{kib} KiB");
        let refused = mallory.send(&edit(13, 600)).await.expect("an answer");
        assert_eq!((refused.status, problem_of(&refused).as_str()), (403, "quota"), "{refused:?}");
        let title = refused.json().expect("JSON")["title"].as_str().expect("text").to_owned();
        assert!(title.contains(" of 1024 KiB, and syncsets/foo/s needs "), "{title}");
        assert!(title.ends_with(" more; the revisions of a rollout count, too"), "{title}");
        done(&mut ada, &Request::merge_patch("/v1/syncsets/bar/s", &content(1, 100))).await;
        // Back to what it had, which is kept; and without the rollout there is room.
        done(&mut mallory, &edit(11, 100)).await;
        done(&mut mallory, &Request::merge_patch("/v1/syncsets/foo/s", &json!({"spec": {"rollout": null}}))).await;
        let mut whole = content(13, 600);
        whole["spec"]["rollout"] = Value::Null;
        done(&mut mallory, &Request::merge_patch("/v1/syncsets/foo/s", &whole)).await;
        assert_eq!(sql.query_one(WRONG, &[]).await.expect("a row").get::<_, i64>(0), 0);
    });
}

/// The tokens of the attacker in one namespace, of somebody in another one, and of an administrator; each is its caller's name.
async fn tokens(name: &str) -> String {
    let mut tokens = String::new();
    for (caller, role, namespaces) in [("mallory", "write", "foo"), ("ada", "write", "bar"), ("root", "admin", "*")] {
        tokens += &grant(role, namespaces, caller).await.replacen("somebody", caller, 1);
    }
    let file = folder(name).join("tokens");
    std::fs::write(&file, tokens).expect("a file");
    file.display().to_string()
}

/// An attacker with a token for one namespace, who has no more of it than the quota allows, at two replicas by turns.
#[test]
fn a_namespace_fills_the_log_no_further_however_often_it_changes_what_it_has() {
    run(async {
        let (place, file) = (database("quotachanges").await, tokens("quotachanges").await);
        let env = [("TOWLINE__HUB__TOKENS_FILE", file.as_str()), ("TOWLINE__HUB__MAX_NAMESPACE_MEBIBYTES", "1")];
        let hubs = [Hub::start(&place, &env).await, Hub::start(&place, &env).await];
        let clients = |caller: &str| hubs.each_ref().map(|hub| hub.client().with_token(caller));
        let (mut mallory, [mut ada, _], [mut root, _]) = (clients("mallory"), clients("ada"), clients("root"));
        let map = |text: String| {
            json!({"spec": {"clusterDeploymentRefs": [{"name": "c1"}], "resources": [{"apiVersion": "v1",
            "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}, "data": {"a": text}}]}})
        };
        let syncset = |namespace: &str| {
            let mut document = map("x".repeat(100 * KIB));
            document["name"] = "s".into();
            document["namespace"] = namespace.into();
            Request::post("/v1/syncsets", &document)
        };
        done(&mut mallory[0], &syncset("foo")).await;
        done(&mut ada, &syncset("bar")).await;
        let changed_at = |path: &str, number: usize| {
            Request::merge_patch(path, &map(format!("{number:06}{}", "x".repeat(100 * KIB))))
        };
        let change = |namespace: &str, number| changed_at(&format!("/v1/syncsets/{namespace}/s"), number);
        // What others write for it fills nothing: an administrator changes twice as much as it may.
        for number in 0..40 {
            done(&mut root, &change("foo", 3_000 + number)).await;
        }
        let sql = place.client(ADMIN).await.expect("a connection");
        let text = "select (coalesce(sum(octet_length(document::text)), 0) / 1024)::bigint from towline_log where namespace = 'foo'";
        let filled = async || -> i64 { sql.query_one(text, &[]).await.expect("a row").get(0) };
        let before = filled().await;
        assert!(before > 4_000, "{before} KiB");
        let mut refused = None;
        for number in 0..200 {
            let reply = mallory[number % 2].send(&change("foo", number)).await.expect("an answer");
            if reply.status != 200 {
                refused = Some(reply);
                break;
            }
        }
        let refused = refused.expect("200 changes of 100 KiB each are not refused where all documents have 1 MiB");
        assert_eq!((refused.status, problem_of(&refused).as_str()), (429, "change-quota"), "{refused:?}");
        let wait: u64 = refused.header(http::header::RETRY_AFTER).and_then(|text| text.parse().ok()).expect("a time");
        assert!((1..=3600).contains(&wait), "{wait} s");
        for (client, number) in mallory.iter_mut().zip(1_000..) {
            // The other replica may have read the log a moment later.
            eventually("a refusal", LIMIT, async || {
                let status = client.send(&change("foo", number)).await.expect("an answer").status;
                if status == 429 { Ok(()) } else { Err(status.to_string()) }
            })
            .await
            .expect("a refusal");
        }
        let filled = filled().await - before;
        // Twice what it may have, and what was on the way meanwhile.
        assert!((1_800..3_000).contains(&filled), "{filled} KiB");

        // What changes nothing is no change.
        done(
            &mut mallory[0],
            &Request::merge_patch("/v1/syncsets/foo/s", &json!({"spec": {"applyBehavior": "Apply"}})),
        )
        .await;
        // A replica that starts counts no change of before.
        let later = Hub::start(&place, &env).await;
        done(&mut later.client().with_token("mallory"), &change("foo", 2_000)).await;
        // It can clean up, and is told nothing new by a dry run; others are not affected, and an administrator helps.
        done(&mut mallory[0], &changed_at("/v1/syncsets/foo/s?dryRun=true", 1)).await;
        done(&mut ada, &change("bar", 1)).await;
        done(&mut root, &change("foo", 1)).await;
        let manifest = json!({"kind": "SyncSet", "namespace": "foo", "name": "s", "spec": map(String::new())["spec"]});
        let answer = done(&mut mallory[0], &Request::post("/v1/apply", &manifest)).await.json().expect("JSON");
        assert_eq!(answer["items"][0]["problem"]["type"], "urn:towline:problem:change-quota", "{answer}");
        // Also what waits for a finalizer, which is then taken off.
        let held = Request::merge_patch("/v1/syncsets/foo/s", &json!({"finalizers": ["example.com/f"]}));
        done(&mut root, &held).await;
        done(&mut mallory[1], &Request::delete("/v1/syncsets/foo/s")).await;
        let freed = Request::merge_patch("/v1/syncsets/foo/s", &json!({"finalizers": []}));
        done(&mut mallory[1], &freed).await;
    });
}

/// An attacker hides what it did behind many other changes: that it did so stays.
#[test]
fn a_namespace_keeps_its_newest_records_and_tells_how_many_older_ones_are_gone() {
    run(async {
        let (place, file) = (database("quotarecords").await, tokens("quotarecords").await);
        let env = [("TOWLINE__HUB__TOKENS_FILE", file.as_str()), ("TOWLINE__HUB__MAX_NAMESPACE_RECORDS", "20")];
        let hub = Hub::start(&place, &env).await;
        let (mut mallory, mut ada) = (hub.client().with_token("mallory"), hub.client().with_token("ada"));
        for client in [(&mut mallory, "foo"), (&mut ada, "bar")] {
            for name in ["c1", "c2"] {
                assert_eq!(created(client.0, &cluster(client.1, name, 1)).await, 201);
            }
        }
        let relabel = |number: usize| {
            Request::merge_patch("/v1/clusters/foo/c1", &json!({"labels": {"n": format!("v{number}")}}))
        };
        for number in 0..50 {
            done(&mut mallory, &relabel(number)).await;
        }
        hub.towline.terminate(LIMIT).await.expect("it ends");
        // Who begins to compact counts at once.
        let hub = Hub::start(&place, &env).await;
        let mut root = hub.client().with_token("root");
        let told = async |client: &mut Client, query: &str| -> Vec<(String, u64)> {
            let page = shown(client, &format!("/v1/history?limit=500&{query}")).await;
            let records = page["items"].as_array().expect("items").clone();
            let told = |record: &Value| {
                (record["verb"].as_str().expect("text").to_owned(), record["count"].as_u64().unwrap_or_default())
            };
            records.iter().map(told).collect()
        };
        let expected = |patches: usize, gone: u64| {
            let mut expected = vec![("patch".to_owned(), 0); patches];
            expected.push(("forget".to_owned(), gone));
            expected
        };
        // 52 records are 19 and one about the others.
        eventually("the oldest records to be dropped", LIMIT, async || {
            let found = told(&mut root, "namespace=foo").await;
            if found == expected(19, 33) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .expect("fewer records");
        assert_eq!(told(&mut root, "kind=clusters&namespace=foo&name=c1").await, expected(19, 33));
        // The record of its creation is gone, and that is told.
        assert_eq!(told(&mut root, "kind=clusters&namespace=foo&name=c2").await, expected(0, 33));
        assert_eq!(told(&mut root, "namespace=bar").await.len(), 2, "others keep theirs");
        // Page by page it is the same.
        let (mut paged, mut next) = (0, String::new());
        loop {
            let page =
                shown(&mut root, &format!("/v1/history?limit=3&kind=clusters&namespace=foo&name=c1{next}")).await;
            paged += page["items"].as_array().expect("items").len();
            match page["continue"].as_str() {
                Some(token) => next = format!("&continue={token}"),
                None => break,
            }
        }
        assert_eq!(paged, 20);
        // What goes later is added.
        let mut mallory = hub.client().with_token("mallory");
        for number in 100..110 {
            done(&mut mallory, &relabel(number)).await;
        }
        hub.towline.terminate(LIMIT).await.expect("it ends");
        let hub = Hub::start(&place, &env).await;
        let mut root = hub.client().with_token("root");
        eventually("more records to be dropped", LIMIT, async || {
            let found = told(&mut root, "namespace=foo").await;
            if found == expected(19, 43) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .expect("fewer records");
    });
}

/// Far too many records, some of them of one moment, beside a namespace whose records can't be deleted.
#[test]
fn a_namespace_whose_records_can_not_be_dropped_holds_up_no_other() {
    run(async {
        let place = hub_database("quotaforget").await;
        Hub::start(&place, &[]).await.towline.terminate(LIMIT).await.expect("it ends");
        let sql = place.client(ADMIN).await.expect("a connection");
        sql.batch_execute(
            "insert into towline_history (at, actor, address, via, verb, kind, namespace, name, details) \
               select now() - interval '1 day' + (number / 3) * interval '1 s', 'mallory', '', 'api', 'patch', 'clusters', namespace, 'c1', '{}' \
               from generate_series(1, 12000) number, unnest(array['bar', 'foo']) namespace; \
             create function stays() returns trigger language plpgsql as $$ begin raise 'it stays'; end $$; \
             create trigger stays before delete on towline_history for each row when (old.namespace = 'bar') execute function stays()",
        )
        .await
        .expect("records");
        let hub = Hub::start(&place, &[("TOWLINE__HUB__MAX_NAMESPACE_RECORDS", "20")]).await;
        let text = "select count(*), count(*) filter (where verb = 'forget'), max(details::jsonb->>'count') from towline_history \
             where namespace = 'foo'";
        eventually("the oldest records to be dropped", LIMIT, async || {
            let row = sql.query_one(text, &[]).await.expect("a row");
            let found = (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, Option<String>>(2));
            if found == (20, 1, Some("11981".to_owned())) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .expect("fewer records");
        let log = hub.towline.log().expect("a log");
        let failed = log.lines().find(|line| line.contains("failed to bound the history of a namespace"));
        assert!(failed.is_some_and(|line| line.contains("bar")), "{log}");
        // What goes is looked up once, however many steps it takes.
        let calls = async |query: &str| -> i64 {
            let text = "select coalesce(sum(calls), 0)::int8 from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
                 where d.datname = current_database() and query like $1";
            sql.query_one(text, &[&query]).await.expect("a count").get(0)
        };
        let looked = calls("select at::text, number from towline_forget_to%").await;
        assert_eq!((looked, calls("select towline_forget(%").await), (2, 3));
    });
}

/// What the replicas have: they can open what either key has sealed, and seal with the first.
const KEYS: &str =
    "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\ntwo Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=\n";
/// What a rotation has, which seals with the other.
const NEW_KEYS: &str =
    "two Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=\none AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

/// Creates, changes and deletes documents of three namespaces, whatever comes of it, and returns how many requests were refused by a quota.
async fn churn(mut client: Client, mut random: Random, requests: u64) -> u64 {
    let mut refused = 0;
    for _ in 0..requests {
        let (namespace, name) = (format!("n{}", random.below(3)), format!("d{}", random.below(6)));
        let bytes = usize::try_from(random.below(40)).expect("few") * KIB;
        let (plural, mut document) = match random.below(3) {
            0 => ("clusters", cluster(&namespace, &name, bytes)),
            1 => ("secrets", json!({"name": name, "namespace": namespace, "data": {"a": "YWFh".repeat(bytes / 4)}})),
            _ => (
                "syncsets",
                json!({"name": name, "namespace": namespace, "spec": {"clusterDeploymentRefs": [{"name": "d1"}],
                "rollout": if random.below(3) > 0 { json!({"waves": []}) } else { Value::Null },
                "resources": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"},
                    "data": {"a": "x".repeat(bytes)}}]}}),
            ),
        };
        let path = format!("/v1/{plural}/{namespace}/{name}");
        let request = match random.below(6) {
            0 | 1 => Request::post(&format!("/v1/{plural}"), &document),
            2 => Request::delete(&path),
            3 => Request::merge_patch(&path, &json!({"annotations": {"a": "y".repeat(bytes)}})),
            4 => Request::merge_patch(&format!("{path}/status"), &json!({"status": {"a": "z".repeat(bytes)}})),
            _ => {
                for field in ["namespace", "name"] {
                    document.as_object_mut().expect("an object").remove(field);
                }
                Request::merge_patch(&path, &document)
            }
        };
        match sent(&mut client, &request).await {
            403 => refused += 1,
            200 | 201 | 404 | 409 => {}
            other => panic!("{other} for {request:?}"),
        }
    }
    refused
}

/// The sums are compared with a recount, also after all sealed fields were encrypted again, and after the versions were renumbered.
#[test]
fn the_sums_are_those_of_the_documents_whatever_clients_and_commands_do() {
    run(async {
        let place = database("quotasums").await;
        let [path, new] = [("keys", KEYS), ("new-keys", NEW_KEYS)].map(|(name, lines)| {
            let file = folder("quotasums").join(name);
            std::fs::write(&file, lines).expect("a file");
            file.display().to_string()
        });
        let env = [
            ("TOWLINE__HUB__KEYS_FILE", path.as_str()),
            ("TOWLINE__HUB__MAX_NAMESPACE_DOCUMENTS", "12"),
            ("TOWLINE__HUB__MAX_NAMESPACE_MEBIBYTES", "1"),
        ];
        let hubs = [Hub::start(&place, &env).await, Hub::start(&place, &env).await];
        let wrong = async |place: &Database| -> i64 {
            place.client(ADMIN).await.expect("a connection").query_one(WRONG, &[]).await.expect("a row").get(0)
        };
        let mut random = Random::new(seed());
        let (mut refused, mut under_load) = (0, 0);
        let url = place.url(ADMIN);
        // The fields that it has encrypted again, and those that use another key at its end.
        let rotate = async || -> (u64, u64) {
            let env = [("POSTGRES_PARAMS", url.as_str()), ("TOWLINE__HUB__KEYS_FILE", &new)];
            let output = Towline::command_with(["hub", "rotate-key", "-o", "json"], &env).await.expect("it runs");
            let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
            let others = told["fieldsByKey"]["one"].as_u64().unwrap_or_default();
            assert_eq!((output.status.success(), told["fieldsByKey"].get("")), (others == 0, None), "{output:?}");
            (told["encryptedAgain"].as_u64().expect("a number"), others)
        };
        for _ in 0..rounds(1) {
            let clients: Vec<_> = (0..6).map(|number| churn(hubs[number % 2].client(), random.split(), 60)).collect();
            let has_ended = AtomicBool::new(false);
            let churned = async {
                let refused = futures::future::join_all(clients).await;
                has_ended.store(true, Ordering::Relaxed);
                refused
            };
            // One rotation alone may have ended before a client writes a field.
            let rotated = async {
                let mut rotated = 0;
                while !has_ended.load(Ordering::Relaxed) {
                    rotated += rotate().await.0;
                }
                rotated
            };
            let (all, rotated) = futures::join!(churned, rotated);
            refused += all.into_iter().sum::<u64>();
            under_load += rotated;
            assert_eq!(wrong(&place).await, 0);
            // Replicas may have sealed values with their former key meanwhile: the next rotation seals these anew, and leaves none.
            assert_eq!(rotate().await.1, 0);
            assert_eq!((rotate().await, wrong(&place).await), ((0, 0), 0));
            let output = Towline::command_with(["hub", "renumber"], &[("POSTGRES_PARAMS", url.as_str())]).await;
            assert!(output.expect("it runs").status.success());
            assert_eq!(wrong(&place).await, 0);
        }
        assert!(refused > 0, "no quota was reached");
        assert!(under_load > 0, "no field was encrypted again while clients wrote");
        let of_keys = "select count(*) filter (where substr(sealed, 3, 3) = 'two'), count(*) from towline_documents where sealed is not null";
        let sql = place.client(ADMIN).await.expect("a connection");
        let most = sql.query_one("select max(documents), max(kib) from towline_counts", &[]).await.expect("a row");
        let sealed = sql.query_one(of_keys, &[]).await.expect("a row");
        assert_eq!(sealed.get::<_, i64>(0), sealed.get::<_, i64>(1));
        assert!(sealed.get::<_, i64>(1) > 0, "there is no sealed field");
        // ClusterSyncs go beyond it.
        assert!(most.get::<_, i64>(0) <= 12 && most.get::<_, i64>(1) <= 1024 + 12, "{most:?}");
    });
}

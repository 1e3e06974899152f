//! A cluster of a few config maps, of which a test decides what it answers to some requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use integration::eventually;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::syncsets::script::{Says, Script, TOKEN};
use crate::syncsets::world::{LIMIT, Stage, condition, run};

/// How the first line of an apply begins.
const SENT: &str = "PATCH /api/v1/namespaces/ns/configmaps/";
const PLAIN: &str = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nrequest_timeout = \"5s\"";

/// Starts one. `first` is asked before it answers a request: `PATCH /api/v1/namespaces/ns/configmaps/a`.
async fn start(first: impl Fn(&str) -> Option<Says> + Clone + Send + 'static) -> Script {
    let there = Arc::new(Mutex::new(BTreeSet::new()));
    Script::start(move |line| {
        let request = line.trim_end_matches(" HTTP/1.1");
        let path = request.split_once('?').map_or(request, |(path, _)| path);
        if let Some(says) = first(path) {
            return says;
        }
        let (verb, path) = path.split_once(' ').unwrap();
        let name = path.rsplit('/').next().unwrap();
        let is_there = there.lock().contains(name);
        match (verb, path) {
            ("GET", "/version") => Says::Body(200, "{}".to_owned()),
            ("GET", "/api/v1/namespaces/kube-system") => Says::Body(200, metadata("kube-system").to_string()),
            ("GET", "/api/v1") => {
                let maps = json!({"name": "configmaps", "kind": "ConfigMap", "namespaced": true, "singularName": "", "verbs": []});
                let list = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [maps]});
                Says::Body(200, list.to_string())
            }
            ("PATCH", _) => {
                there.lock().insert(name.to_owned());
                Says::Body(if is_there { 200 } else { 201 }, metadata(name).to_string())
            }
            ("GET", _) if is_there => Says::Body(200, metadata(name).to_string()),
            _ => status(404, "NotFound", name),
        }
    })
    .await
}

fn metadata(name: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": name, "namespace": "ns",
        "uid": format!("uid-of-{name}"), "resourceVersion": "7", "labels": {"hive.openshift.io/managed": "true"}}})
}

fn status(code: u16, reason: &str, name: &str) -> Says {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": format!("{name}: {reason}"), "details": {"name": name, "kind": "configmaps"}});
    Says::Body(code, body.to_string())
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns"}})
}

async fn register(stage: &Stage, kubeconfig: &Value) {
    let cluster = json!({"namespace": stage.namespace, "name": "west-1", "kubeconfig": kubeconfig.to_string()});
    stage.create("clusters", &cluster).await;
}

fn count(server: &Script, start: &str) -> usize {
    server.requests().iter().filter(|line| line.starts_with(start)).count()
}

/// A list of which more follows for ever costs as many requests as a pass may make, once; then each object is looked at.
#[test]
fn a_list_without_an_end_does_not_keep_a_full_pass_from_its_end() {
    run(async {
        let stage = Stage::shared("pages", PLAIN).await;
        let page = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "9", "continue": "more"}, "items": []});
        let server =
            start(move |path| (path == "GET /api/v1/configmaps").then(|| Says::Body(200, page.to_string()))).await;
        register(&stage, &server.kubeconfig()).await;
        stage.syncset("base", "Sync", &["a", "b", "c"].map(map)).await;
        stage.succeeds("west-1", "base", 1).await;
        let (lists, looks) = ("GET /api/v1/configmaps?", "GET /api/v1/namespaces/ns/configmaps/");
        assert_eq!((count(&server, lists), count(&server, looks)), (0, 3), "first contacts");
        stage.full_pass().await;
        assert_eq!((count(&server, lists), count(&server, looks)), (500, 6));
        assert_eq!(count(&server, "PATCH"), 3, "all of it is in step");
        let text = "select count(*) from towline_cluster where next_full > now()";
        assert_eq!(stage.sql.query_one(text, &[]).await.unwrap().get::<_, i64>(0), 1, "the full pass has ended");
    });
}

/// A webhook may answer 429 for one object, for ever: others are sent all the same.
#[test]
fn an_object_that_is_throttled_alone_fails_and_the_others_are_sent() {
    run(async {
        let stage = Stage::shared("throttled", PLAIN).await;
        let server = start(|path| {
            (path == "PATCH /api/v1/namespaces/ns/configmaps/slow").then(|| status(429, "TooManyRequests", "slow"))
        })
        .await;
        register(&stage, &server.kubeconfig()).await;
        stage.status("west-1", "the first pass", |status| status["firstSuccessTime"].is_string()).await;
        // One pass for both.
        stage.pause(true).await;
        stage.syncset("a", "Sync", &[map("slow"), map("after")]).await;
        stage.syncset("b", "Sync", &[map("other")]).await;
        stage.pause(false).await;
        let status = stage.status("west-1", "both", |status| status["syncSets"][1]["result"] == "Success").await;
        let failed = &status["syncSets"][0];
        assert_eq!((&failed["result"], &failed["reason"]), (&json!("Failure"), &json!("Rejected")), "{status}");
        assert_eq!(failed["failureMessage"], "failed to apply resource 0 (ConfigMap ns/slow): slow: TooManyRequests");
        // In one pass, which ends with the other syncset. What has failed is tried again soon.
        let mut requests = server.requests();
        let end = requests.iter().position(|line| line.starts_with(&format!("{SENT}other"))).unwrap();
        requests.truncate(end);
        let of = |start: &str| requests.iter().filter(|line| line.starts_with(start)).count();
        assert_eq!((of(&format!("{SENT}slow")), of("GET /version")), (3, 1), "whether it answers others");
        assert_eq!((count(&server, &format!("{SENT}other")), count(&server, &format!("{SENT}after"))), (1, 0));
    });
}

/// With a new kubeconfig nothing is known of the cluster: as long as its identity can't be read, nothing follows, and that is told
///.
#[test]
fn nothing_is_asked_of_a_cluster_whose_identity_can_not_be_read() {
    run(async {
        const IDENTITY: &str = "GET /api/v1/namespaces/kube-system";
        let stage = Stage::shared("unidentified", PLAIN).await;
        let code = Arc::new(AtomicU16::new(200));
        let says = Arc::clone(&code);
        let server = start(move |path| {
            let code = says.load(Ordering::Relaxed);
            (code != 200 && path == IDENTITY).then(|| status(code, "ByTest", "kube-system"))
        })
        .await;
        register(&stage, &server.kubeconfig()).await;
        // What goes from it stays: the played server keeps no marks, and so nothing there is provably ours.
        stage.syncset("base", "Upsert", &[map("first")]).await;
        stage.succeeds("west-1", "base", 1).await;
        for (round, refused) in [403, 404, 500].into_iter().enumerate() {
            code.store(refused, Ordering::Relaxed);
            let before = server.requests().len();
            // One change of both, as a pass sees it.
            stage.pause(true).await;
            let mut kubeconfig = server.kubeconfig();
            kubeconfig["preferences"] = json!({"round": round});
            stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": kubeconfig.to_string()})).await;
            let new = format!("new-{round}");
            stage.wants("base", &[map(&new)]).await;
            stage.pause(false).await;
            let unreachable = stage.unreachable("west-1").await;
            let reason = if refused == 403 { "Forbidden" } else { "ErrorConnectingToCluster" };
            assert_eq!(unreachable["reason"], reason, "{unreachable}");
            let message = unreachable["message"].as_str().unwrap();
            assert!(message.starts_with("failed to read the UID of namespace kube-system: "), "{refused}: {message}");
            // Nor when it is asked again.
            stage.at_rest().await;
            let again = "update towline_cluster set retry_at = now(); update towline_work set ready_at = now(); \
                 select pg_notify('towline_work', '')";
            stage.sql.batch_execute(again).await.unwrap();
            let since = || server.requests().split_off(before);
            let is_identity = |line: &String| line.starts_with(&format!("{IDENTITY} "));
            eventually("the identity to be asked for again", LIMIT, async || {
                let asked = since();
                if asked.iter().filter(|line| is_identity(line)).count() > 1 {
                    Ok(())
                } else {
                    Err(format!("{asked:?}"))
                }
            })
            .await
            .unwrap();
            stage.at_rest().await;
            let asked = since();
            assert!(
                asked.iter().all(|line| is_identity(line) || line.starts_with("GET /version ")),
                "{refused}: {asked:?}"
            );
            let status = stage.get(&stage.path("clustersyncs", "west-1")).await["status"].clone();
            assert_eq!(condition(&status, "Unreachable").unwrap()["status"], "True", "{status}");
            code.store(200, Ordering::Relaxed);
            stage.sql.batch_execute(again).await.unwrap();
            stage.succeeds("west-1", "base", round as u64 + 2).await;
            assert_eq!(count(&server, &format!("{SENT}{new}")), 1, "{:?}", since());
        }
    });
}

/// Whom a kubeconfig impersonates is in each request, of whatever kind.
#[test]
fn every_request_is_made_as_the_kubeconfig_says() {
    run(async {
        let stage = Stage::shared("impersonating", PLAIN).await;
        let server = start(|_| None).await;
        let mut kubeconfig = server.kubeconfig();
        let user = &mut kubeconfig["users"][0]["user"];
        user["as"] = json!("robot");
        user["as-uid"] = json!("u-1");
        user["as-groups"] = json!(["crew", "deck"]);
        user["as-user-extra"] = json!({"Scope/a": ["s-1", "s-2"]});
        register(&stage, &kubeconfig).await;
        stage.syncset("base", "Sync", &["a", "b", "c"].map(map)).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.full_pass().await;
        let heads = server.heads();
        let authorization = format!("authorization: Bearer {TOKEN}");
        for head in &heads {
            let mut of_user: Vec<String> = head
                .iter()
                .filter(|line| line.starts_with("impersonate-") || line.starts_with("authorization:"))
                .cloned()
                .collect();
            of_user.sort();
            let expected = [
                authorization.as_str(),
                "impersonate-extra-scope%2fa: s-1",
                "impersonate-extra-scope%2fa: s-2",
                "impersonate-group: crew",
                "impersonate-group: deck",
                "impersonate-uid: u-1",
                "impersonate-user: robot",
            ];
            assert_eq!(of_user, expected);
        }
        // The identity, discovery, and for each object a look, an apply, and a look of the full pass instead of the refused list.
        assert!(heads.len() > 10, "{:?}", server.requests());
    });
}

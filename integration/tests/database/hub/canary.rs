//! Sealed values leave the hub nowhere. Every place that a value can appear in is searched for all spellings of the values
//! that were sent, after requests of which most fail: writes that conflict, that the database refuses, that are no JSON.

use http::header::ACCEPT;
use integration::Towline;
use integration::canary::spellings;
use integration::hub::{Reply, Request};
use integration::postgres::ADMIN;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::hub::world::{Hub, LIMIT, database, folder, log_statements, problem_of, run, server_log};

/// Never an own word of anything that is searched.
const KUBECONFIG: &str = "canary-7c3e-kubeconfig";
/// `canary-7c3e-value-of-a-secret` in base64, as clients send it.
const DATA: &str = "Y2FuYXJ5LTdjM2UtdmFsdWUtb2YtYS1zZWNyZXQ=";
/// The same, decoded.
const DECODED: &str = "canary-7c3e-value-of-a-secret";
const KEYS: &str = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
const YAML: &str = "application/yaml";

/// What was written somewhere.
struct Found(Vec<(String, String)>);

impl Found {
    fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.0.push((place.into(), text.into()));
    }

    fn reply(&mut self, place: &str, reply: &Reply) {
        self.add(place, format!("{:?} {}", reply.headers, String::from_utf8_lossy(&reply.body)));
    }

    /// Every place in which a spelling stands.
    fn leaks(&self) -> Vec<String> {
        let spellings: Vec<String> = [KUBECONFIG, DATA, DECODED].into_iter().flat_map(spellings).collect();
        let mut leaks = Vec::new();
        for (place, text) in &self.0 {
            for spelling in &spellings {
                if let Some(at) = text.find(spelling.as_str()) {
                    let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
                    leaks.push(format!("{place}: {}", text[line..].lines().next().unwrap_or_default()));
                }
            }
        }
        leaks
    }
}

/// Requests with secrets in them, each with the status that it gets. They are sent in this order.
fn requests() -> Vec<(u16, &'static str, Request)> {
    let cluster = |name: &str| json!({"name": name, "namespace": "foo", "kubeconfig": KUBECONFIG});
    // `kubectl apply` has made it of what somebody sends on as a document.
    let copied =
        json!({"kubectl.kubernetes.io/last-applied-configuration": format!("{{\"data\":{{\"k\":\"{DATA}\"}}}}")});
    let secret = |data: Value| json!({"name": "s", "namespace": "foo", "annotations": copied, "data": data});
    let (clusters, one, secrets, of_s) = ("/v1/clusters", "/v1/clusters/foo/c", "/v1/secrets", "/v1/secrets/foo/s");
    let with = |extra: Value| {
        let mut document = cluster("d");
        document.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        document
    };
    let patch = |operations: Value| Request::json_patch(one, &operations);
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let raw = |text: String| Request::post(clusters, &json!({})).body("application/json", text);
    let apply = |text: String| Request::post("/v1/apply", &json!({})).body(YAML, text);
    let big = "x".repeat(4 << 20);
    let deep = "[".repeat(120) + &"]".repeat(120);
    vec![
        (201, "a cluster", Request::post(clusters, &cluster("c"))),
        (201, "a secret", Request::post(secrets, &secret(json!({"k": DATA})))),
        (409, "a cluster that exists", Request::post(clusters, &cluster("c"))),
        (409, "a secret that exists", Request::post(secrets, &secret(json!({"k": DATA})))),
        (422, "a typo", Request::post(clusters, &json!({"name": "d", "namespace": "foo", "kubeconfg": KUBECONFIG}))),
        (422, "a typo in data", Request::post(secrets, &json!({"name": "d", "namespace": "foo", "dat": {"k": DATA}}))),
        (422, "another kind's field", Request::post(secrets, &with(json!({})))),
        (422, "a list for a text", Request::post(clusters, &with(json!({"kubeconfig": [KUBECONFIG]})))),
        (422, "an object for a text", Request::post(clusters, &with(json!({"kubeconfig": {"a": KUBECONFIG}})))),
        (422, "no base64", Request::post(secrets, &secret(json!({"k": KUBECONFIG})))),
        (422, "a list for base64", Request::post(secrets, &secret(json!({"k": [DATA]})))),
        (422, "a text for data", Request::post(secrets, &secret(json!(DATA)))),
        (422, "an invalid label", Request::post(clusters, &with(json!({"labels": {"a": "b c"}})))),
        (422, "an invalid name", Request::post(clusters, &with(json!({"name": "D_"})))),
        (422, "a namespace that is no label", Request::post(clusters, &with(json!({"namespace": "Foo"})))),
        (422, "the character U+0000", Request::post(clusters, &with(json!({"kubeconfig": format!("{KUBECONFIG}\0")})))),
        (
            422,
            "too deep",
            raw(format!(r#"{{"name": "d", "namespace": "foo", "kubeconfig": "{KUBECONFIG}", "a": {deep}}}"#)),
        ),
        (400, "a key twice", raw(format!(r#"{{"kubeconfig": "{KUBECONFIG}", "kubeconfig": "{KUBECONFIG}"}}"#))),
        (400, "an end too early", raw(format!(r#"{{"name": "d", "kubeconfig": "{KUBECONFIG}"#))),
        (400, "no JSON", raw(format!("kubeconfig={KUBECONFIG}"))),
        (400, "a wrong escape", raw(format!(r#"{{"kubeconfig": "{KUBECONFIG}\q"}}"#))),
        (413, "too large", raw(format!(r#"{{"name": "d", "namespace": "foo", "kubeconfig": "{KUBECONFIG}{big}"}}"#))),
        (415, "another type", Request::post(clusters, &cluster("d")).body("text/plain", cluster("d").to_string())),
        (409, "an old version", Request::put(one, &with(json!({"name": "c", "resourceVersion": "999999"})))),
        (412, "another version", Request::put(one, &with(json!({"name": "c"}))).if_match(999_999)),
        (428, "no version", Request::put(one, &with(json!({"name": "c"})))),
        (
            409,
            "another id",
            Request::merge_patch(one, &json!({"id": "6f1c0f0e-6f0a-4a52-9d2d-000000000000", "kubeconfig": KUBECONFIG})),
        ),
        (200, "a new value", Request::merge_patch(one, &json!({"kubeconfig": format!("{KUBECONFIG}-2")}))),
        (
            200,
            "a rehearsal",
            Request::merge_patch("/v1/clusters/foo/c?dryRun=true", &json!({"kubeconfig": KUBECONFIG})),
        ),
        (422, "a typo in a merge patch", Request::merge_patch(one, &json!({"kubeconfg": KUBECONFIG}))),
        (200, "a removal", Request::merge_patch(one, &json!({"kubeconfig": null}))),
        (200, "a value by its key", Request::merge_patch(of_s, &json!({"data": {"l": DATA}}))),
        (422, "a wrong value by its key", Request::merge_patch(of_s, &json!({"data": {"l": KUBECONFIG}}))),
        (200, "a value by a JSON patch", patch(json!([add("/kubeconfig", json!(KUBECONFIG))]))),
        (422, "a guess", patch(json!([{"op": "test", "path": "/kubeconfig", "value": KUBECONFIG}]))),
        (422, "a copy", patch(json!([{"op": "copy", "from": "/kubeconfig", "path": "/annotations/a"}]))),
        (422, "a move", patch(json!([{"op": "move", "from": "/kubeconfig", "path": "/annotations/a"}]))),
        (422, "a part of a text", patch(json!([add("/kubeconfig/a", json!(KUBECONFIG))]))),
        (422, "a typo in a path", patch(json!([add("/kubeconfg", json!(KUBECONFIG))]))),
        (
            409,
            "a test that fails behind a value",
            patch(json!([
            add("/kubeconfig", json!(KUBECONFIG)), {"op": "test", "path": "/paused", "value": true}])),
        ),
        (422, "an unknown operation", patch(json!([{"op": "ad", "path": "/kubeconfig", "value": KUBECONFIG}]))),
        (
            200,
            "documents of which some are wrong",
            apply(format!(
                "kind: Cluster\nname: e\nnamespace: foo\nkubeconfig: {KUBECONFIG}\n---\nkind: Cluster\nname: f\nnamespace: foo\n\
             kubeconfg: {KUBECONFIG}\n---\nkind: Secret\nname: t\nnamespace: foo\nstringData: {{a: {KUBECONFIG}}}\n"
            )),
        ),
        (400, "no YAML", apply(format!("kind: Cluster\nkubeconfig: |\n  {KUBECONFIG}\n bad: [{KUBECONFIG}\n"))),
        (400, "a key of YAML twice", apply(format!("kubeconfig: {KUBECONFIG}\nkubeconfig: {KUBECONFIG}\n"))),
        (422, "a value that the database refuses", Request::post(clusters, &with(json!({"name": "refused"})))),
        (200, "a read", Request::get(one)),
        (200, "a list", Request::get(clusters)),
        (200, "a list of secrets", Request::get(secrets)),
        (200, "an old name", Request::delete("/v1/clusters/foo/e")),
        (200, "a deletion", Request::delete(one)),
        (200, "a deletion of a secret", Request::delete(of_s)),
    ]
}

#[test]
fn no_answer_log_dump_or_report_holds_a_sealed_value() {
    run(async {
        let path = folder("canary").join("keys");
        std::fs::write(&path, KEYS).expect("a file");
        let path = path.display().to_string();
        let database = database("canary").await;
        log_statements(&database, "canary", true).await;
        let env = [("TOWLINE__HUB__KEYS_FILE", path.as_str()), ("TOWLINE__DAEMON__LOG__FILTER", "trace")];
        let hub = Hub::start(&database, &env).await;
        let sql = database.client(ADMIN).await.expect("a connection");
        // Its message shows the whole row.
        sql.batch_execute("alter table clusters add constraint no_refused check (name <> 'refused')")
            .await
            .expect("a check");

        let mut found = Found(Vec::new());
        let mut watches = Vec::new();
        for accept in ["application/x-ndjson", "text/event-stream"] {
            for kind in ["clusters", "secrets"] {
                let request = Request::get(&format!("/v1/{kind}?watch=true&resourceVersion=0")).header(ACCEPT, accept);
                let mut watch = hub.client().watch_with(&request).await.expect("a watch");
                let line = watch.next_line().await.expect("a line").map(<[u8]>::to_vec).expect("the watch goes on");
                found.add("the beginning of a watch", String::from_utf8_lossy(&line));
                watches.push((accept, kind, watch));
            }
        }
        let mut client = hub.client();
        for (status, what, request) in requests() {
            let reply = client.send(&request).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            assert_eq!(reply.status, status, "{what}: {reply:?}");
            if status >= 400 {
                problem_of(&reply);
            }
            found.reply(what, &reply);
            if status < 300 {
                // While the documents have their values.
                for (place, path) in [("a cluster", "/v1/clusters/foo/c"), ("a list", "/v1/secrets")] {
                    found.reply(place, &client.send(&Request::get(path)).await.expect("an answer"));
                }
            }
        }
        for (accept, kind, watch) in &mut watches {
            // The last change of each kind deletes its document.
            loop {
                let line = timeout(LIMIT, watch.next_line()).await.expect("a line in time").expect("a line");
                let line = String::from_utf8_lossy(line.expect("the watch goes on")).into_owned();
                let event: Value = serde_json::from_str(line.trim_start_matches("data: ")).unwrap_or_default();
                found.add(format!("a watch of {kind} as {accept}"), line);
                let last = if *kind == "clusters" { "c" } else { "s" };
                if event["type"] == "DELETED" && event["object"]["name"] == last {
                    break;
                }
            }
        }
        // Documents that stay, for the dump.
        for (path, document) in [
            ("/v1/clusters", json!({"name": "stays", "namespace": "foo", "kubeconfig": KUBECONFIG})),
            ("/v1/secrets", json!({"name": "stays", "namespace": "foo", "data": {"k": DATA}})),
        ] {
            client.send(&Request::post(path, &document)).await.expect("an answer").success().expect("it is created");
        }
        let stored: i64 = sql
            .query_one("select count(*) from towline_documents where get_byte(sealed, 0) = 1", &[])
            .await
            .expect("a count")
            .get(0);
        assert_eq!(stored, 2, "both are encrypted");

        let admin = hub.towline.admin();
        found.add("/status", admin.status().await.expect("a report").to_string());
        found.add("/metrics", admin.metrics().await.expect("metrics"));
        for args in [&["get", "clusters", "--hub", &hub.url][..], &["get", "secret", "foo/stays", "--hub", &hub.url]] {
            let output = Towline::command_with(args, &[]).await.expect("it runs");
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            found.add(format!("towline {}", args.join(" ")), format!("{:?}{:?}", output.stdout, output.stderr));
            found.add(format!("towline {}", args.join(" ")), String::from_utf8_lossy(&output.stdout));
        }
        let dump = database.dump_text(&[]).await.expect("a dump");
        assert!(dump.contains("stays") && dump.contains("towline_log"), "the dump has the documents");
        found.add("pg_dump", dump);
        // With all parameters of all statements, and the rows of those that failed.
        let server = server_log().await;
        assert!(server.contains("towline_write") && server.contains("no_refused"), "the server logs statements");
        found.add("the server's log", server);
        hub.towline.terminate(LIMIT).await.expect("it ends");
        let log = hub.towline.log().expect("a log");
        assert!(log.contains("TRACE") || log.contains("trace"), "the log has everything");
        found.add("the log", log);
        assert_eq!(found.leaks(), Vec::<String>::new());
    });
}

//! Bodies and heads that are too large, too deep, ambiguous or no text at all get a clear problem from a real
//! process, and the next request is served as if nothing had been.

use std::fmt::Write;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use integration::hub::{Client, Request};
use serde_json::{Value, json};

use crate::hub::world::{folder, problem_of, run, shared};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const MIB: usize = 1 << 20;

/// A cluster with this as the value of `status`, which POST ignores, and of `annotations`.
fn cluster(fields: &str) -> String {
    format!(r#"{{"name": "rough", "namespace": "foo", "kubeconfig": "k"{fields}}}"#)
}

fn post(body: impl Into<Vec<u8>>) -> Request {
    Request::post("/v1/clusters", &json!({})).body(JSON, body.into())
}

fn apply(body: impl Into<Vec<u8>>) -> Request {
    Request::post("/v1/apply", &json!({})).body(YAML, body.into())
}

fn syncset(value: &str) -> Request {
    let body = format!(
        r#"{{"name": "rough", "namespace": "foo", "spec": {{"clusterDeploymentRefs": [{{"name": "c"}}], "resources": [
            {{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "m", "namespace": "d"}}, "data": {value}}}]}}}}"#
    );
    Request::post("/v1/syncsets", &json!({})).body(JSON, body)
}

fn nested(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

/// Levels of YAML that each double what they hold.
fn doubling(levels: usize) -> String {
    let mut text = "kind: Cluster\nname: rough\nnamespace: foo\nkubeconfig: k\na0: &a0 [xxxxxxxxxxxxxxxx]\n".to_owned();
    for level in 1..=levels {
        writeln!(text, "a{level}: &a{level} [*a{0}, *a{0}]", level - 1).expect("a string");
    }
    text
}

/// Every kind of body with the status and the type of the problem that it gets.
fn bodies() -> Vec<(&'static str, Request, u16, &'static str)> {
    let status = "/v1/clusters/foo/there/status";
    let thirty_copies: Vec<Value> =
        (0..30).map(|number| json!({"op": "copy", "from": "/status", "path": format!("/status/c{number}")})).collect();
    let growing =
        [vec![json!({"op": "add", "path": "/status/text", "value": "x".repeat(1000)})], thirty_copies].concat();
    vec![
        ("more than 4 MiB of a document", syncset(&format!(r#"{{"k": "{}"}}"#, "x".repeat(4 * MIB))), 413, "too-large"),
        ("700,000 large numbers", syncset(&format!("[{}1]", "1e300,".repeat(700_000))), 413, "too-large"),
        (
            "more than 256 KiB of annotations",
            post(cluster(&format!(r#", "annotations": {{"a": "{}"}}"#, "x".repeat(MIB)))),
            422,
            "invalid",
        ),
        ("127 levels", syncset(&nested(127)), 422, "invalid"),
        ("101 levels", syncset(&nested(101)), 422, "invalid"),
        ("100,000 levels", syncset(&nested(100_000)), 422, "invalid"),
        ("100,000 levels without an end", post("[".repeat(100_000)), 422, "invalid"),
        ("127 levels of YAML", apply(format!("a: {}", nested(127))), 422, "invalid"),
        ("aliases of YAML", apply(doubling(30)), 413, "too-large"),
        ("100,000 lists of YAML", apply("- ".repeat(100_000)), 422, "invalid"),
        ("30 copies", Request::json_patch(status, &json!(growing)), 413, "too-large"),
        (
            "1,001 operations",
            Request::json_patch(status, &json!(vec![json!({"op": "test", "path": "", "value": 1}); 1001])),
            422,
            "invalid",
        ),
        ("1,001 documents", apply("---\nkind: Cluster\n".repeat(1001)), 413, "too-large"),
        ("a key twice", post(r#"{"name": "rough", "name": "rough", "namespace": "foo"}"#), 400, "malformed"),
        ("a key twice, below", syncset(r#"{"a": 1, "\u0061": 2}"#), 400, "malformed"),
        ("a key of YAML twice", apply("name: rough\nname: rough\n"), 400, "malformed"),
        ("U+0000 in a text", syncset(r#"{"a": "\u0000"}"#), 422, "invalid"),
        ("U+0000 in a key", syncset(r#"{"\u0000": "a"}"#), 422, "invalid"),
        ("U+0000 in YAML", apply("kind: Cluster\nname: rough\nkubeconfig: \"\\0\"\n"), 422, "invalid"),
        ("half of a surrogate", syncset(r#"{"a": "\ud800"}"#), 400, "malformed"),
        ("no UTF-8", post(b"{\"name\": \"\xff\xfe\"}".to_vec()), 400, "malformed"),
        ("no UTF-8 as YAML", apply(b"name: \xff\xfe\n".to_vec()), 400, "malformed"),
        ("a byte order mark", post(b"\xef\xbb\xbf{}".to_vec()), 400, "malformed"),
        ("nothing", post(""), 400, "malformed"),
        ("half a document", post(r#"{"name": "rough""#), 400, "malformed"),
        ("two documents", post("{} {}"), 400, "malformed"),
        ("a number beyond doubles", syncset(r#"{"a": 1e400}"#), 400, "malformed"),
        ("not a number", syncset(r#"{"a": NaN}"#), 400, "malformed"),
        ("a list", post("[]"), 422, "invalid"),
        ("null", post("null"), 422, "invalid"),
        ("a compressed body", post(cluster("")).header(CONTENT_ENCODING, "gzip"), 415, "media-type"),
        (
            "another charset",
            post(cluster("")).header(CONTENT_TYPE, "application/json; charset=utf-16"),
            415,
            "media-type",
        ),
        ("YAML where JSON is asked for", post("a: b").header(CONTENT_TYPE, YAML), 415, "media-type"),
        (
            "a selector of 5 KiB",
            Request::get(&format!("/v1/clusters?labelSelector={}", "a".repeat(5000))),
            400,
            "parameter",
        ),
        ("a continue of 2 KiB", Request::get(&format!("/v1/clusters?continue={}", "a".repeat(2000))), 400, "parameter"),
    ]
}

/// The status of the one document that is there: what all other requests are compared with.
async fn is_served(client: &mut Client, after: &str) {
    let reply = client
        .send(&Request::get("/v1/clusters/foo/there"))
        .await
        .unwrap_or_else(|error| panic!("after {after}: {error:?}"));
    assert_eq!(reply.status, 200, "after {after}: {reply:?}");
}

#[test]
fn a_rough_body_gets_a_clear_problem_and_the_next_request_is_served() {
    run(async {
        let (hub, _) = shared().await;
        let mut client = hub.client();
        let there = json!({"name": "there", "namespace": "foo", "kubeconfig": "k"});
        let created =
            client.send(&Request::post("/v1/clusters", &there)).await.expect("an answer").success().expect("created");
        let status = json!({"status": {"a": "b"}});
        client
            .send(&Request::merge_patch("/v1/clusters/foo/there/status", &status))
            .await
            .expect("an answer")
            .success()
            .expect("changed");
        let process = hub.towline.process_id();
        for (what, request, expected, kind) in bodies() {
            // The hub may answer before it has read the whole body, and then close the connection: only the answer counts.
            let mut own = hub.client();
            let reply = own.send(&request).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let said = String::from_utf8_lossy(&reply.body);
            assert_eq!(reply.status, expected, "{what}: {said}");
            assert_eq!(problem_of(&reply), kind, "{what}: {said}");
            assert!(reply.body.len() < 64 << 10, "{what}: an answer of {} bytes", reply.body.len());
            is_served(&mut own, what).await;
            is_served(&mut client, what).await;
        }

        // More than a body may have, sent after the server has agreed to it, and at once.
        let path = folder("rough").join("large.json");
        std::fs::write(&path, cluster(&format!(r#", "annotations": {{"a": "{}"}}"#, "x".repeat(6 * MIB))))
            .expect("a file");
        let file = format!("@{}", path.display());
        for expectation in ["Expect: 100-continue", "Expect:"] {
            let sent = ["-H", "content-type: application/json", "-H", expectation, "--data-binary", &file];
            let answer = hub.expect(413, "/v1/clusters", &sent).await;
            assert_eq!(answer.json()["type"], "urn:towline:problem:too-large", "{expectation}");
            is_served(&mut client, expectation).await;
        }

        // Heads have no problem of their own: the server ends them before there is a request.
        let mut own = hub.client();
        let head = Request::get(&format!("/v1/clusters?continue={}", "a".repeat(MIB)));
        match own.send(&head).await {
            Ok(reply) => assert!([414, 431].contains(&reply.status), "{reply:?}"),
            // The end of the connection can overtake the answer, of which `limits.rs` shows that it is there.
            Err(error) => println!("a long head: {error}"),
        }
        is_served(&mut own, "a head of 1 MiB").await;

        let list =
            client.send(&Request::get("/v1/clusters?namespace=foo")).await.expect("an answer").json().expect("JSON");
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
        assert_eq!(list["items"][0]["id"], created.json().expect("JSON")["id"]);
        let syncsets =
            client.send(&Request::get("/v1/syncsets?namespace=foo")).await.expect("an answer").json().expect("JSON");
        assert_eq!(syncsets["items"], json!([]));
        assert_eq!(hub.towline.process_id(), process);
        let log = hub.towline.log().expect("a log");
        assert!(!log.contains("panicked"), "{log}");
    });
}

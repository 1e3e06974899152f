//! What clients send reaches the database in parameters alone: no text of theirs is ever part of a statement.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use integration::hub::{Client, Reply, Request};
use integration::postgres::ADMIN;
use serde_json::{Value, json};

use crate::hub::world::{Hub, database, done, log_statements, problem_of, run, server_log, shown};

/// Never an own word of a statement or of a message of the server.
const MARK: &str = "mark9d41";

/// Texts that end a literal, a name, a statement or a comment somewhere.
fn texts() -> Vec<String> {
    let quote = |text: &str| text.replace('M', MARK);
    [
        "M'; drop table clusters; --",
        "M' or '1'='1",
        "M\" or \"1\"=\"1",
        "M\\'; drop table clusters; --",
        "\\' or M",
        "M$$; drop table clusters; $$",
        "M$1",
        "$1 M :x ?",
        "M/* */",
        "%s %M {0} {M}",
        "M\\u0027\\",
        "M\u{2019}\u{ff07}",
        "E'\\x27M'",
        "M\n--\r\n;",
    ]
    .map(quote)
    .to_vec()
}

/// In a URL, every character escaped.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |all, byte| all + &format!("%{byte:02X}"))
}

/// Whether this is no answer of a statement that went wrong.
fn is_clear(what: &str, reply: &Reply) {
    let status = reply.status;
    assert!([200, 400, 404, 410, 422].contains(&status), "{what}: {reply:?}");
    if status >= 400 {
        problem_of(reply);
    }
}

/// Parameters and paths: whatever the text is, it matches no document and harms none.
async fn ask_with(client: &mut Client, number: usize, text: &str) {
    let text = escaped(text);
    // Those that are valid last for a second.
    let watches: &[&str] = if number < 2 { &["", "&watch=true&timeoutSeconds=1"] } else { &[""] };
    for query in [
        format!("labelSelector={text}"),
        format!("labelSelector=env%3D{text}"),
        format!("labelSelector=env%20in%20%28prod%2C{text}%29"),
        format!("labelSelector=env%20notin%20%28{text}%29"),
        format!("labelSelector={text}%3Dprod"),
        format!("labelSelector=%21{text}"),
        format!("labelSelector=env%3E{text}"),
        format!("fieldSelector=metadata.name%3D{text}"),
        format!("fieldSelector=metadata.namespace%3D{text}"),
        format!("namespace={text}"),
        format!("limit={text}"),
        format!("fields={text}"),
        format!("continue={text}"),
        format!("resourceVersion={text}"),
        format!("{text}=1"),
    ] {
        for watch in watches {
            let query = format!("/v1/clusters?{query}{watch}");
            let reply = client.send(&Request::get(&query)).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
            is_clear(&query, &reply);
            let body = String::from_utf8_lossy(&reply.body);
            assert!(reply.status != 200 || !body.contains("kubeconfigGeneration"), "{query} shows documents: {body}");
        }
    }
    for path in [format!("/v1/clusters/foo/{text}"), format!("/v1/clusters/{text}/a"), format!("/v1/{text}")] {
        for request in [
            Request::get(&path),
            Request::delete(&path),
            Request::merge_patch(&path, &json!({"labels": {"a": "b"}})),
            Request::merge_patch(&format!("{path}/status"), &json!({"status": {"a": "b"}})),
        ] {
            let reply = client.send(&request).await.expect("an answer");
            is_clear(&path, &reply);
            assert!(reply.status >= 400, "{path}: {reply:?}");
        }
    }
}

/// A token of a page with this text in place of its last key. One that is taken shows what the caller may list anyway.
async fn continue_with(client: &mut Client, token: &str, text: &str) {
    let inside = Value::String(text.to_owned()).to_string();
    for forged in [
        token.replacen("foo", text, 1),
        token.replacen("\"foo\"", &inside, 1),
        token.replacen("\"a\"", &inside, 1),
        format!("{token}{text}"),
    ] {
        let path = format!("/v1/clusters?limit=1&continue={}", URL_SAFE_NO_PAD.encode(&forged));
        let reply = client.send(&Request::get(&path)).await.expect("an answer");
        is_clear(&forged, &reply);
    }
}

/// Fields that accept any text store it and return it unchanged.
async fn store(client: &mut Client, name: &str, text: &str) {
    let one = format!("/v1/syncsets/foo/{name}");
    let document = json!({"name": name, "namespace": "foo", "annotations": {"note": text},
        "spec": {"clusterDeploymentRefs": [{"name": "a"}], "resources": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "d"}, "data": {"k": text}}]}});
    done(client, &Request::post("/v1/syncsets", &document)).await;
    let status = json!({"status": {"message": text, "of": {text: 1}}});
    done(client, &Request::merge_patch(&format!("{one}/status"), &status)).await;
    let read = shown(client, &one).await;
    assert_eq!(read["annotations"]["note"], text);
    assert_eq!(read["spec"]["resources"][0]["data"]["k"], text);
    assert_eq!((&read["status"]["message"], &read["status"]["of"][text]), (&json!(text), &json!(1)));
    let other = json!({"op": "add", "path": "/annotations/other", "value": text});
    done(client, &Request::json_patch(&one, &json!([{"op": "remove", "path": "/annotations/note"}, other]))).await;
}

/// Fields and parameters with a syntax of their own refuse such texts.
async fn refuse(client: &mut Client, version: u64, text: &str) {
    for (field, value) in [
        ("name", json!(text)),
        ("namespace", json!(text)),
        ("labels", json!({"a": text})),
        ("labels", json!({text: "a"})),
        ("annotations", json!({text: "a"})),
        ("finalizers", json!([text])),
        ("resourceVersion", json!(text)),
        ("id", json!(text)),
        (text, json!(1)),
    ] {
        let is_ignored_by_post = ["resourceVersion", "id"].contains(&field);
        let name = if is_ignored_by_post { "a" } else { "new" };
        let mut document = json!({"name": name, "namespace": "foo", "kubeconfig": "k"});
        document[field] = value;
        let request = match field {
            "resourceVersion" => Request::put("/v1/clusters/foo/a?dryRun=true", &document),
            "id" => Request::put("/v1/clusters/foo/a?dryRun=true", &document).if_match(version),
            _ => Request::post("/v1/clusters?dryRun=true", &document),
        };
        let reply = client.send(&request).await.expect("an answer");
        assert!([409, 422].contains(&reply.status), "{field}: {reply:?}");
        assert!(["identity", "invalid"].contains(&problem_of(&reply).as_str()), "{field}: {reply:?}");
    }
}

#[test]
fn no_text_of_a_client_is_part_of_a_statement() {
    run(async {
        let database = database("injection").await;
        log_statements(&database, "injection", false).await;
        let hub = Hub::start(&database, &[]).await;
        let mut client = hub.client();
        for name in ["a", "b", "c"] {
            let cluster = json!({"name": name, "namespace": "foo", "kubeconfig": "k", "labels": {"env": "prod"}});
            done(&mut client, &Request::post("/v1/clusters", &cluster)).await;
        }
        let version = done(&mut client, &Request::get("/v1/clusters/foo/a")).await.version().expect("a version");
        let before = shown(&mut client, "/v1/clusters").await;
        let page = shown(&mut client, "/v1/clusters?limit=1").await;
        let token = URL_SAFE_NO_PAD.decode(page["continue"].as_str().expect("there are more")).expect("base64url");
        let token = String::from_utf8(token).expect("text");
        assert!(token.contains("\"foo\"") && token.contains("\"a\""), "{token}");
        for (number, text) in texts().iter().enumerate() {
            ask_with(&mut client, number, text).await;
            continue_with(&mut client, &token, text).await;
            store(&mut client, &format!("s{number}"), text).await;
            refuse(&mut client, version, text).await;
        }
        let after = shown(&mut client, "/v1/clusters").await;
        assert_eq!(after["items"], before["items"], "the clusters are as they were");

        let log = server_log().await;
        assert!(log.contains("towline_log") && log.contains("select"), "the server logs statements");
        let told: Vec<&str> = log.lines().filter(|line| line.contains(MARK)).collect();
        assert_eq!(told, Vec::<&str>::new());
        let sql = database.client(ADMIN).await.expect("a connection");
        let count = "select count(*) from pg_catalog.pg_class where relname in ('clusters', 'towline_log')";
        let tables: i64 = sql.query_one(count, &[]).await.expect("a count").get(0);
        assert_eq!(tables, 2);
    });
}

//! The routes as a whole, with a database that nobody can reach: what is refused before anything is read.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures::{FutureExt, StreamExt, stream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::watch as latest;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::bodies::slots_for_answers;
use super::limits;
use super::routes::{Action, operations};
use super::{Api, router};
use crate::db::DatabaseSource;
use crate::documents::{self, Keyring, Kind, SchemaState, Store, Tail, Writer};
use crate::hub::metrics::HubMetrics;
use crate::hub::plan::tokens::{Grants, digest_of};
use crate::hub::run::access::Access;
use crate::job::routes::{ApiDescription, ApiRequest, ApiRoute, ApiRoutes, Right};

/// An API whose database refuses connections.
fn api(access: Access) -> Router {
    api_with(access, Keyring::default())
}

fn api_with(access: Access, keyring: Keyring) -> Router {
    api_until(access, keyring, CancellationToken::new())
}

fn api_until(access: Access, keyring: Keyring, stop: CancellationToken) -> Router {
    api_of(access, keyring, stop, Vec::new())
}

/// One with routes of another job.
pub(super) fn api_mounting(access: Access, mounted: Vec<Arc<ApiRoute>>) -> Router {
    api_of(access, Keyring::default(), CancellationToken::new(), mounted)
}

fn api_of(access: Access, keyring: Keyring, stop: CancellationToken, mounted: Vec<Arc<ApiRoute>>) -> Router {
    let url = "postgres://nobody@127.0.0.1:1/none".parse().expect("a URL");
    let database = documents::open(DatabaseSource::Url(Box::new(url)));
    let (writer, handle) = Writer::new(database.clone());
    let (scope, _stop) = crate::actor::Scope::standalone("writer");
    tokio::spawn(writer.run(scope));
    let keyring = latest::Sender::new(Arc::new(keyring)).subscribe();
    router(Arc::new(Api {
        advice: None,
        documents: documents::Documents::new(
            Store::new(database.clone()),
            handle,
            keyring,
            (documents::Quota { documents: 10, kib: 1024 }, documents::Changes::new(1024, Duration::from_hours(1))),
        ),
        tail: Tail::with_ring(database.clone(), 1 << 20),
        reads: limits::for_reads(database.state().max),
        database,
        access,
        requests: limits::for_requests(),
        bodies: limits::for_bodies(),
        watches: limits::for_watches(10),
        metrics: Arc::new(HubMetrics::new(&"hub".parse().expect("a name"))),
        answers: slots_for_answers(),
        outages: Arc::default(),
        refusals: super::super::refusals::Refusals::default(),
        schema: latest::Sender::new(SchemaState::Current).subscribe(),
        mounted,
        ui: true,
        stop,
    }))
}

/// The tokens of the tests: `role namespaces` is the token of such a grant.
const GRANTS: [(&str, &str); 6] =
    [("read", "foo"), ("write", "foo"), ("admin", "foo"), ("read", "*"), ("write", "*"), ("admin", "*")];

pub(in crate::hub) fn tokens() -> Access {
    use std::fmt::Write;
    let mut text = String::new();
    for (role, namespaces) in GRANTS {
        write!(text, "somebody {role} {namespaces} ").expect("a string");
        for byte in digest_of(format!("{role}-{namespaces}").as_bytes()) {
            write!(text, "{byte:02x}").expect("a string");
        }
        text.push('\n');
    }
    Access::Tokens(latest::Sender::new(Arc::new(Grants::parse(&text).expect("grants"))).subscribe())
}

pub(super) async fn send(api: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let answer: Response = api.clone().oneshot(request).await.expect("an answer");
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// What an operation needs: the role, and whether it must be for all namespaces even though the path names `foo`.
#[expect(clippy::match_same_arms, reason = "a table, in which every line is about some operations")]
fn needed(method: &str, path: &str) -> Option<(&'static str, bool)> {
    Some(match (method, path) {
        // Lists without a namespace need all namespaces.
        (
            "GET",
            "/v1/clusters"
            | "/v1/syncsets"
            | "/v1/selectorsyncsets"
            | "/v1/secrets"
            | "/v1/clustersyncs"
            | "/v1/selectorsyncsets/{name}",
        ) => ("read", true),
        (
            "GET",
            "/v1/clusters/{namespace}/{name}"
            | "/v1/syncsets/{namespace}/{name}"
            | "/v1/secrets/{namespace}/{name}"
            | "/v1/clustersyncs/{namespace}/{name}",
        ) => ("read", false),
        ("POST", "/v1/clusters" | "/v1/syncsets" | "/v1/secrets") => ("write", false),
        ("POST", "/v1/selectorsyncsets") => ("write", true),
        (
            "PUT" | "PATCH" | "DELETE",
            "/v1/clusters/{namespace}/{name}" | "/v1/syncsets/{namespace}/{name}" | "/v1/secrets/{namespace}/{name}",
        ) => ("write", false),
        ("PUT" | "PATCH" | "DELETE", "/v1/selectorsyncsets/{name}") => ("write", true),
        (
            "PUT" | "PATCH",
            "/v1/clusters/{namespace}/{name}/status"
            | "/v1/syncsets/{namespace}/{name}/status"
            | "/v1/secrets/{namespace}/{name}/status"
            | "/v1/clustersyncs/{namespace}/{name}/status",
        ) => ("admin", false),
        ("PUT" | "PATCH", "/v1/selectorsyncsets/{name}/status") => ("admin", true),
        // Each document is checked by itself.
        ("POST", "/v1/apply") => ("write", false),
        _ => return None,
    })
}

fn rank(role: &str) -> usize {
    ["read", "write", "admin"].iter().position(|one| *one == role).expect("a role")
}

/// A request in a namespace with a body that is valid.
fn request(method: &Method, path: &str, kind: Option<Kind>, namespace: &str, token: &str) -> Request<Body> {
    let uri = path.replace("{namespace}", namespace).replace("{name}", "one");
    let of_namespace =
        if kind.is_none_or(Kind::is_namespaced) { format!("\"namespace\": \"{namespace}\",") } else { String::new() };
    let own = match kind {
        Some(Kind::Cluster) | None => "\"kubeconfig\": \"k\",",
        Some(Kind::SyncSet) => "\"spec\": {\"clusterDeploymentRefs\": [{\"name\": \"one\"}]},",
        Some(Kind::SelectorSyncSet) => "\"spec\": {\"clusterDeploymentSelector\": {}},",
        Some(_) => "",
    };
    let kind = kind.unwrap_or(Kind::Cluster).name();
    let body = format!("{{{of_namespace}{own}\"kind\": \"{kind}\", \"name\": \"one\"}}");
    let media = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    // A replacement must say which version.
    let condition = (*method == Method::PUT).then_some(("if-match", "\"1\""));
    let request = condition.into_iter().fold(Request::builder(), |request, (name, value)| request.header(name, value));
    request
        .method(method)
        .uri(uri)
        .header(CONTENT_TYPE, media)
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Body::from(body))
        .expect("a request")
}

#[tokio::test]
async fn every_operation_asks_for_its_role_in_its_namespace_before_it_reads_anything() {
    let api = api(tokens());
    for operation in operations() {
        let (method, path) = (operation.method.as_str(), operation.path.as_str());
        let (role, everywhere) =
            needed(method, path).unwrap_or_else(|| panic!("{method} {path} is in no line of the table"));
        for (has, where_) in GRANTS {
            for namespace in ["foo", "bar"] {
                let token = format!("{has}-{where_}");
                let sent = request(&operation.method, path, operation.kind, namespace, &token);
                let (status, body) = send(&api, sent).await;
                let is_there = where_ == "*" || !everywhere && namespace == where_;
                let may = rank(has) >= rank(role) && is_there;
                let what = format!("{method} {path} in {namespace} with {token}: {status} {body}");
                if operation.action == Action::Apply {
                    // Documents are refused one by one, and only who may write nowhere is refused as a whole.
                    if rank(has) < rank(role) {
                        assert_eq!(status, StatusCode::FORBIDDEN, "{what}");
                    } else {
                        assert_eq!(status, StatusCode::OK, "{what}");
                        let expected = if is_there { 503 } else { 403 };
                        assert_eq!(body["items"][0]["problem"]["status"], expected, "{what}");
                    }
                } else if may {
                    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{what}");
                } else {
                    assert_eq!(status, StatusCode::FORBIDDEN, "{what}");
                }
            }
        }
        for token in ["", "unknown"] {
            let (status, _) = send(&api, request(&operation.method, path, operation.kind, "foo", token)).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path} with {token:?}");
        }
    }
}

#[tokio::test]
async fn a_list_of_one_namespace_needs_a_grant_for_it_and_a_watch_the_same() {
    let api = api(tokens());
    for (query, token, expected) in [
        ("namespace=foo", "read-foo", 503),
        ("namespace=bar", "read-foo", 403),
        ("fieldSelector=metadata.namespace%3Dfoo", "read-foo", 503),
        ("namespace=foo&watch=true", "read-foo", 503),
        ("namespace=bar&watch=true", "read-foo", 403),
        ("watch=true", "read-foo", 403),
        ("namespace=bar", "read-*", 503),
        ("namespace=foo&limit=0", "read-foo", 400),
    ] {
        let request = Request::get(format!("/v1/clusters?{query}")).header(AUTHORIZATION, format!("Bearer {token}"));
        let (status, body) = send(&api, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status.as_u16(), expected, "{query} with {token}: {body}");
    }
}

#[tokio::test]
async fn what_has_no_route_or_method_is_a_problem() {
    let api = api(Access::Local);
    for (method, uri, expected) in [
        ("GET", "/", 404),
        ("GET", "/v1/pods", 404),
        ("GET", "/v1/clusters/", 404),
        ("GET", "/v1/clusters/foo", 404),
        ("GET", "/v1/selectorsyncsets/foo/bar", 404),
        ("PUT", "/v1/clusters", 405),
        ("POST", "/v1/clustersyncs", 405),
        ("DELETE", "/v1/clustersyncs/foo/one", 405),
        ("GET", "/v1/clusters/foo/one/status", 405),
        ("BREW", "/v1/clusters", 405),
        ("GET", "/v1/clusters/foo/A%00", 404),
        ("GET", "/v1/clusters/foo/%FF", 400),
        ("GET", "/v1/clusters/foo/one?a=b", 400),
        ("DELETE", "/v1/clusters/foo/one?dryRun=maybe", 400),
    ] {
        let request = Request::builder().method(method).uri(uri).header(HOST, "localhost:7070");
        let (status, body) = send(&api, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(status.as_u16(), expected, "{method} {uri}: {body}");
        let kind = body["type"].as_str().unwrap_or_else(|| panic!("{method} {uri}: {body}"));
        assert!(kind.starts_with("urn:towline:problem:"), "{kind}");
    }
}

#[tokio::test]
async fn a_body_is_refused_for_its_type_its_keys_and_its_levels() {
    let api = api(Access::Local);
    let valid = r#"{"name": "one", "namespace": "foo", "kubeconfig": "k"}"#;
    let deep = format!(
        r#"{{"name": "one", "namespace": "foo", "kubeconfig": "k", "a": {}1{}}}"#,
        "[".repeat(127),
        "]".repeat(127)
    );
    for (media, body, expected) in [
        ("application/json", valid, 503),
        ("application/x-www-form-urlencoded", valid, 503),
        ("text/plain", valid, 415),
        ("application/json", "{", 400),
        ("application/json", r#"{"name": "one", "name": "one"}"#, 400),
        ("application/json", r#"{"name": "one", "namespace": "foo", "kubeconfig": "\u0000"}"#, 422),
        ("application/json", r#"{"name": "one", "namespace": "foo", "kubeconfg": "canary"}"#, 422),
        ("application/json", deep.as_str(), 422),
    ] {
        let request = Request::post("/v1/clusters").header(HOST, "127.0.0.1").header(CONTENT_TYPE, media);
        let (status, answer) = send(&api, request.body(Body::from(body.to_owned())).expect("a request")).await;
        assert_eq!(status.as_u16(), expected, "{media} {body}: {answer}");
        assert!(!answer.to_string().contains("canary"), "{answer}");
    }
}

#[tokio::test]
async fn an_apply_names_what_failed_and_stops_where_the_database_does() {
    let api = api(Access::Local);
    let cluster =
        |name: &str| serde_json::json!({"kind": "Cluster", "namespace": "foo", "name": name, "kubeconfig": "k"});
    let text = serde_json::json!([{"kind": "Cluster", "name": "Not_A-Name", "namespace": "foo", "a": 1}, {"kind": "Pod"},
        {"kind": "ClusterSync", "name": "own", "namespace": "foo"}, cluster("a"), cluster("b")]);
    let request = Request::post("/v1/apply").header(HOST, "localhost").header(CONTENT_TYPE, "application/json");
    let (status, answer) = send(&api, request.body(Body::from(text.to_string())).expect("a request")).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let items = answer["items"].as_array().expect("items");
    let told: Vec<_> =
        items.iter().map(|item| (item["kind"].as_str(), item["name"].as_str(), &item["problem"]["status"])).collect();
    let expected = [
        (Some("Cluster"), Some("Not_A-Name"), 422),
        (None, None, 422),
        (Some("ClusterSync"), Some("own"), 405),
        (Some("Cluster"), Some("a"), 503),
        (Some("Cluster"), Some("b"), 503),
    ];
    for (told, (kind, name, status)) in told.iter().zip(expected) {
        assert_eq!(*told, (kind, name, &serde_json::json!(status)), "{answer}");
    }
    let titles: Vec<_> = items[3..].iter().map(|item| item["problem"]["title"].as_str()).collect();
    assert!(
        titles[0].is_some_and(|title| title.starts_with("the database does not take the change")
            || title == "the database does not answer"),
        "{answer}"
    );
    assert_eq!(titles[1], Some("not tried, since the database has failed at an earlier document"));
}

#[tokio::test]
async fn an_apply_tells_a_thousand_faults_and_one_of_each_document_behind_them() {
    let api = api(Access::Local);
    let labels: serde_json::Map<String, Value> =
        (0..150).map(|number| (format!("!{number}"), serde_json::json!("x"))).collect();
    let text = serde_json::json!(vec![serde_json::json!({"kind": "Cluster", "labels": labels}); 30]);
    let request = Request::post("/v1/apply").header(HOST, "localhost").header(CONTENT_TYPE, "application/json");
    let (status, answer) = send(&api, request.body(Body::from(text.to_string())).expect("a request")).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let items = answer["items"].as_array().expect("items");
    let told: Vec<usize> =
        items.iter().map(|item| item["problem"]["errors"].as_array().expect("faults").len()).collect();
    assert_eq!(told, [[100; 10].as_slice(), &[1; 20]].concat());
    assert!(items.iter().all(|item| item["problem"]["errors"][0]["pointer"] == "/name"), "the first one");
}

#[tokio::test]
async fn before_the_keys_are_read_a_new_kubeconfig_is_refused() {
    let api = api_with(Access::Local, Keyring::unread());
    let body = r#"{"name": "one", "namespace": "foo", "kubeconfig": "canary"}"#;
    let request = Request::post("/v1/clusters").header(HOST, "localhost").header(CONTENT_TYPE, "application/json");
    let (status, answer) = send(&api, request.body(Body::from(body)).expect("a request")).await;
    assert_eq!(
        (status.as_u16(), answer["title"].as_str()),
        (503, Some("the value can't be sealed: keys_file could not be read yet"))
    );
}

#[tokio::test]
async fn the_description_asks_for_a_token_where_one_is_needed() {
    for (access, expected) in [(tokens(), serde_json::json!([{"token": []}])), (Access::Local, Value::Null)] {
        let request = Request::get("/openapi.json").header(HOST, "localhost").body(Body::empty()).expect("a request");
        let (status, description) = send(&api(access), request).await;
        assert_eq!((status, &description["security"]), (StatusCode::OK, &expected));
    }
}

#[tokio::test]
async fn the_page_about_the_api_needs_no_token() {
    let request = Request::get("/docs/").header(HOST, "localhost").body(Body::empty()).expect("a request");
    let response = api(tokens()).oneshot(request).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn callers_from_elsewhere_are_refused_where_there_are_no_tokens() {
    let api = api(Access::Local);
    for (header, value) in [("host", "evil.example"), ("origin", "http://evil.example"), ("via", "1.1 proxy")] {
        let mut request = Request::get("/v1/clusters");
        if header != "host" {
            request = request.header(HOST, "localhost");
        }
        let (status, _) = send(&api, request.header(header, value).body(Body::empty()).expect("a request")).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{header}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_waits_until_it_can_begin_ends_with_the_server() {
    let stop = CancellationToken::new();
    let api = api_until(Access::Local, Keyring::default(), stop.clone());
    let begun = tokio::time::Instant::now();
    // The log is never read, which a watch waits for.
    let request = Request::get("/v1/clusters?watch=true").header(HOST, "localhost").body(Body::empty()).expect("valid");
    let mut answer = Box::pin(send(&api, request));
    assert!(answer.as_mut().now_or_never().is_none());
    stop.cancel();
    let (status, problem) = answer.await;
    assert_eq!(
        (status, problem["type"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("urn:towline:problem:unavailable"))
    );
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
}

/// More than there are slots, and half of those.
const MANY: usize = 300;
const HALF: usize = 128;
/// Left to administrators.
const RESERVED: usize = 32;

#[derive(serde::Serialize, utoipa::ToSchema)]
struct Explained {
    /// How it is.
    how: String,
}

/// An API with a route whose answers never come.
fn slow_api() -> Router {
    let description = ApiDescription { id: "explain", tag: "slow", summary: "Explains", answer: "How it is" };
    let slow = ApiRoute::new((Method::GET, "/v1/slow"), Right::Read, description, async |_: ApiRequest| {
        std::future::pending::<Result<Explained, documents::Problem>>().await
    });
    let mounted = ApiRoutes::default();
    mounted.mount([slow]);
    api_mounting(tokens(), mounted.all())
}

/// A request whose body begins and does not end.
fn dripping(token: &str) -> Request<Body> {
    let begun = stream::iter([Ok::<_, std::convert::Infallible>("{")]);
    let request = Request::post("/v1/clusters").header(CONTENT_TYPE, "application/json");
    let request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    request.body(Body::from_stream(begun.chain(stream::pending()))).expect("a request")
}

fn get(path: &str, token: &str) -> Request<Body> {
    let request = Request::get(path).header(AUTHORIZATION, format!("Bearer {token}"));
    request.body(Body::empty()).expect("a request")
}

/// Sends requests, and returns those that are under way and the statuses of the others.
fn send_many(
    api: &Router,
    request: impl Fn() -> Request<Body>,
    many: usize,
) -> (Vec<impl Future<Output = (StatusCode, Value)> + '_>, Vec<u16>) {
    let (mut under_way, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..many {
        let mut sent = Box::pin(send(api, request()));
        match sent.as_mut().now_or_never() {
            Some((status, _)) => answered.push(status.as_u16()),
            None => under_way.push(sent),
        }
    }
    (under_way, answered)
}

#[tokio::test]
async fn bodies_that_drip_take_no_slot_and_one_token_sends_half_of_them_at_most() {
    let api = slow_api();
    let (_unknown, refused) = send_many(&api, || dripping("unknown"), MANY);
    assert_eq!(refused, vec![401; MANY], "they take nothing");
    let (of_one, refused) = send_many(&api, || dripping("write-foo"), MANY);
    assert_eq!((of_one.len(), refused), (HALF, vec![429; MANY - HALF]));
    let (of_other, _) = send_many(&api, || dripping("write-*"), MANY);
    assert_eq!(of_other.len(), 2 * HALF - RESERVED - HALF);
    let (of_administrator, _) = send_many(&api, || dripping("admin-*"), MANY);
    assert_eq!(of_administrator.len(), RESERVED);
    // Requests without bodies have slots of their own.
    let (explained, refused) = send_many(&api, || get("/v1/slow", "write-foo"), HALF);
    assert_eq!((explained.len(), refused), (HALF, vec![]));
}

#[tokio::test]
async fn one_token_has_half_of_the_slots_at_most_and_some_are_left_for_administrators() {
    let api = slow_api();
    let (of_one, refused) = send_many(&api, || get("/v1/slow", "read-*"), MANY);
    assert_eq!((of_one.len(), refused), (HALF, vec![429; MANY - HALF]));
    // Whoever is an administrator of some namespaces is none of all.
    let (of_other, _) = send_many(&api, || get("/v1/slow", "admin-foo"), MANY);
    assert_eq!(of_other.len(), 2 * HALF - RESERVED - HALF);
    let (_, third) = send_many(&api, || get("/v1/slow", "write-foo"), 1);
    assert_eq!(third, [429]);
    for _ in 0..MANY {
        let (status, _) = send(&api, get("/v1/clusters", "admin-*")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "the database is asked");
    }
    let (of_administrator, _) = send_many(&api, || get("/v1/slow", "admin-*"), MANY);
    assert_eq!(of_administrator.len(), RESERVED);
    drop(of_one);
    let (under_way, _) = send_many(&api, || get("/v1/slow", "write-foo"), MANY);
    assert_eq!(under_way.len(), HALF, "administrators have taken none but those that are left to them");
}

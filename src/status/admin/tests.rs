//! Routes against scripted sections and a scripted tree.

use std::net::IpAddr;

use axum::body::{Body, to_bytes};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::HOST;
use http::{Method, Request};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tower::ServiceExt;

use super::*;
use crate::cluster::ClusterState;
use crate::config::SectionName;
use crate::status::{Facts, Held, HeldObject, NotReady, ObjectState, Objects, Purpose};
use crate::telemetry::{Metric, Series, Totals, recorder};

const NEAR: &str = "127.0.0.1:40000";
const FAR: &str = "192.0.2.7:40000";

struct Scripted {
    name: SectionName,
    readiness: Readiness,
    asked: Arc<Mutex<Vec<&'static str>>>,
    gate: Option<Arc<Notify>>,
}

impl Section for Scripted {
    fn name(&self) -> &SectionName {
        &self.name
    }

    fn job(&self) -> &'static str {
        "sync"
    }

    fn facts(&self) -> Facts {
        let not_ready = match self.readiness.clone() {
            Readiness::NotReady(reason) => Some(NotReady { reason, unreachable: false }),
            Readiness::Unreachable(reason) => Some(NotReady { reason, unreachable: true }),
            Readiness::Ready | Readiness::Held(_) => None,
        };
        let mut objects = Objects::counted([(ObjectState::InStep, 3), (ObjectState::Pending, 1)]);
        objects.oldest = Some(Duration::from_millis(27_500));
        let (flow, subject) = ("hub→edge".to_owned(), "databases".to_owned());
        Facts { flow, subject, objects, not_ready, ..Facts::default() }
    }

    fn report(&self) -> Value {
        json!({ "mode": "syncing" })
    }

    fn lag(&self) -> Option<&'static str> {
        Some("lag_seconds")
    }

    fn approve(&self, _from: IpAddr) -> BoxFuture<'_, Result<Value, Refused>> {
        async {
            if let Some(gate) = &self.gate {
                gate.notified().await;
            }
            self.asked.lock().push("approve");
            match self.readiness {
                Readiness::Ready => Ok(json!({ "approved": 12 })),
                Readiness::Unreachable(_) => Err(Refused::Conflict { reason: "nothing to approve".to_owned() }),
                Readiness::Held(_) | Readiness::NotReady(_) => panic!("scripted"),
            }
        }
        .boxed()
    }

    fn families(&self) -> Vec<Family> {
        const DOCUMENTS: &Metric = &Metric::gauge("documents", "Documents by name");
        let label = Some(("name", self.name.to_string()));
        vec![Family { metric: DOCUMENTS, series: vec![Series { label, value: 5.0 }] }]
    }

    fn approves_by_name(&self) -> bool {
        true
    }

    fn approve_one<'s>(&'s self, name: &'s str, _from: IpAddr) -> BoxFuture<'s, Result<Value, Refused>> {
        self.asked.lock().push("approve one");
        async move { Ok(json!({ "approved": name })) }.boxed()
    }

    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        async { Ok(held()) }.boxed()
    }

    fn detach(&self, local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        self.asked.lock().push(if local_gone { "detach, local gone" } else { "detach" });
        async { Ok(json!({ "released": 3 })) }.boxed()
    }

    fn attach(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        self.asked.lock().push("attach");
        async { Ok(json!({ "attached": 3 })) }.boxed()
    }
}

/// A section that another replica runs.
struct Elsewhere(SectionName);

impl Section for Elsewhere {
    fn name(&self) -> &SectionName {
        &self.0
    }

    fn job(&self) -> &'static str {
        "sync"
    }

    fn facts(&self) -> Facts {
        Facts { purpose: Purpose::Elsewhere { holder: "towline-1".to_owned() }, ..Facts::default() }
    }

    fn report(&self) -> Value {
        json!({})
    }

    fn lag(&self) -> Option<&'static str> {
        Some("lag_seconds")
    }
}

fn held() -> Held {
    let reason = "gone from the hub".to_owned();
    let object = HeldObject { key: "hu/a".to_owned(), kind: "delete", reason, generation: None };
    Held { objects: vec![object], ..Held::default() }
}

fn clusters() -> Vec<ClusterStatus> {
    vec![ClusterStatus {
        name: "edge".parse().expect("a name"),
        state: ClusterState::Unreachable,
        since: Duration::from_millis(27_900),
        reason: Some("connection refused (10.0.0.7:6443)".to_owned()),
        server: Some("10.0.0.7:6443".into()),
    }]
}

struct ScriptedTree {
    silence: Duration,
    answers: bool,
}

impl Tree for ScriptedTree {
    fn report(&self) -> BoxFuture<'_, Value> {
        if self.answers { async { json!({ "name": "root" }) }.boxed() } else { futures::future::pending().boxed() }
    }

    fn ask(&self) -> Duration {
        self.silence
    }
}

struct Fixture {
    admin: Admin,
    asked: Arc<Mutex<Vec<&'static str>>>,
    scrapes: Arc<Mutex<u32>>,
}

fn fixture(sections: &[(&str, Readiness)]) -> Fixture {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let scrapes = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&scrapes);
    let history = Some(History::new(sections.len(), 1));
    let sections = sections
        .iter()
        .map(|(name, readiness)| {
            let (name, readiness) = (name.parse().expect("a name"), readiness.clone());
            Arc::new(Scripted { name, readiness, asked: Arc::clone(&asked), gate: None }) as Arc<dyn Section>
        })
        .collect();
    let admin = Admin {
        started: Instant::now(),
        metrics: recorder([]).expect("the buckets are well formed").handle(),
        before_scrape: Arc::new(move || *counter.lock() += 1),
        sections,
        clusters: Arc::new(clusters),
        tree: Arc::new(ScriptedTree { silence: Duration::from_millis(250), answers: true }),
        history,
        hosts: Vec::new(),
        token_file: None,
        denials: Denials::default(),
    };
    Fixture { admin, asked, scrapes }
}

fn request(method: Method, uri: &str, peer: &str) -> Request<Body> {
    let peer = Peer(peer.parse().expect("an address"));
    let request = Request::builder().method(method).uri(uri).header(HOST, "127.0.0.1:8384").extension(peer);
    request.body(Body::empty()).expect("a request")
}

async fn ask(admin: Admin, request: Request<Body>) -> (StatusCode, Value) {
    let response = router(Arc::new(admin)).oneshot(request).await.expect("routes never fail");
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn get_json(admin: Admin, uri: &str) -> (StatusCode, Value) {
    ask(admin, request(Method::GET, uri, FAR)).await
}

async fn post_json(admin: Admin, uri: &str, peer: &str) -> (StatusCode, Value) {
    ask(admin, request(Method::POST, uri, peer)).await
}

fn unreachable() -> Readiness {
    Readiness::Unreachable("hub does not answer".to_owned())
}

fn not_ready() -> Readiness {
    Readiness::NotReady("first list".to_owned())
}

#[tokio::test]
async fn health_fails_when_the_tree_has_not_answered_for_long() {
    let more = LONGEST_SILENCE + Duration::from_millis(1);
    for (silence, expected) in [(LONGEST_SILENCE, StatusCode::OK), (more, StatusCode::SERVICE_UNAVAILABLE)] {
        let mut admin = fixture(&[]).admin;
        admin.tree = Arc::new(ScriptedTree { silence, answers: true });
        assert_eq!(get_json(admin, "/healthz").await.0, expected, "{silence:?}");
    }
}

#[tokio::test]
async fn an_unreachable_cluster_does_not_take_the_daemon_out() {
    let (status, body) = get_json(fixture(&[("a", Readiness::Ready), ("b", unreachable())]).admin, "/readyz").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        body,
        json!({ "ready": true, "sections": {
            "a": { "state": "ready" },
            "b": { "state": "unreachable", "reason": "hub does not answer" },
        }})
    );
}

#[tokio::test]
async fn one_section_that_is_not_ready_is_enough() {
    let (status, body) = get_json(fixture(&[("a", Readiness::Ready), ("b", not_ready())]).admin, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["sections"]["b"], json!({ "state": "not_ready", "reason": "first list" }));
}

#[tokio::test]
async fn a_section_alone_is_ready_only_when_it_is() {
    for (readiness, expected) in [
        (Readiness::Ready, StatusCode::OK),
        (unreachable(), StatusCode::SERVICE_UNAVAILABLE),
        (not_ready(), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let told = json!(readiness);
        assert_eq!(get_json(fixture(&[("a", readiness)]).admin, "/readyz/a").await, (expected, told));
    }
}

#[tokio::test]
async fn a_section_that_is_not_there_is_answered_with_those_that_are() {
    let sections = [("databases", Readiness::Ready), ("queues", unreachable())];
    let told = json!({ "error": "no section of this name; sections: databases, queues" });
    for uri in ["/approve/nosuch", "/detach/nosuch"] {
        assert_eq!(
            post_json(fixture(&sections).admin, uri, NEAR).await,
            (StatusCode::NOT_FOUND, told.clone()),
            "{uri}"
        );
    }
    assert_eq!(get_json(fixture(&sections).admin, "/readyz/nosuch").await, (StatusCode::NOT_FOUND, told));
    let none = json!({ "error": "no section of this name; sections: there are none" });
    assert_eq!(get_json(fixture(&[]).admin, "/readyz/a").await, (StatusCode::NOT_FOUND, none));
}

#[tokio::test]
async fn status_has_the_clusters_the_tree_and_each_section_s_state_and_report() {
    let (status, body) = get_json(fixture(&[("a", Readiness::Ready)]).admin, "/status").await;
    assert_eq!(status, StatusCode::OK);
    let mut objects: BTreeMap<_, _> = ObjectState::ALL.map(|state| (state.as_str(), 0)).into();
    objects.extend([("in_step", 3), ("pending", 1)]);
    assert_eq!(
        body,
        json!({
            "version": VERSION,
            "started_seconds_ago": 0,
            "clusters": { "edge": {
                "state": "unreachable", "since_seconds": 27, "reason": "connection refused (10.0.0.7:6443)",
            }},
            "tree": { "name": "root" },
            "sections": { "a": {
                "job": "sync", "readiness": { "state": "ready" }, "mode": "syncing",
                "objects": objects, "not_in_step": [],
                "state": "pending", "well": true, "message": "1 pending",
                "overview": {
                    "flow": "hub→edge", "subject": "databases", "total": 4, "in_step": 3, "oldest_seconds": 27.5,
                },
            }},
        })
    );
}

#[tokio::test(start_paused = true)]
async fn status_is_shown_without_a_tree_that_does_not_answer() {
    let mut admin = fixture(&[("a", Readiness::Ready)]).admin;
    admin.tree = Arc::new(ScriptedTree { silence: Duration::ZERO, answers: false });
    let (status, body) = get_json(admin, "/status").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["tree"], json!({ "error": "no answer" }));
    assert_eq!(body["sections"]["a"]["job"], "sync");
}

#[tokio::test]
async fn gauges_are_refreshed_before_each_scrape() {
    let fixture = fixture(&[("a", Readiness::Ready)]);
    let response = router(Arc::new(fixture.admin))
        .oneshot(request(Method::GET, "/metrics", FAR))
        .await
        .expect("routes never fail");
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    let body = String::from_utf8_lossy(&body);
    for line in ["process_resident_memory_bytes ", "# TYPE documents gauge\ndocuments{name=\"a\"} 5\n"] {
        assert!(body.contains(line), "{body}");
    }
    assert_eq!(*fixture.scrapes.lock(), 1);
}

#[tokio::test]
async fn changes_reach_the_section_from_loopback() {
    let sections = [("a", Readiness::Ready)];
    for (uri, told, asked) in [
        ("/approve/a", json!({ "approved": 12 }), "approve"),
        ("/approve/a?name=team%2Da%2Fb%26c", json!({ "approved": "team-a/b&c" }), "approve one"),
        ("/detach/a", json!({ "released": 3 }), "detach"),
        ("/detach/a?local_gone=true", json!({ "released": 3 }), "detach, local gone"),
        ("/attach/a", json!({ "attached": 3 }), "attach"),
    ] {
        let fixture = fixture(&sections);
        assert_eq!(post_json(fixture.admin, uri, NEAR).await, (StatusCode::OK, told));
        assert_eq!(*fixture.asked.lock(), [asked]);
    }
}

#[tokio::test]
async fn who_has_no_token_changes_nothing_and_learns_nothing() {
    for uri in ["/approve/a", "/detach/a", "/attach/a", "/detach/none"] {
        let fixture = fixture(&[("a", Readiness::Ready)]);
        let (status, body) = post_json(fixture.admin, uri, FAR).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{uri}");
        assert_eq!(
            body["error"],
            "without daemon.admin_token_file changes are only accepted from programs of the daemon's machine"
        );
        assert!(fixture.asked.lock().is_empty());
    }
}

#[tokio::test]
async fn held_changes_are_listed_for_every_client_and_stay_held() {
    let fixture = fixture(&[("a", Readiness::Ready)]);
    let asked = Arc::clone(&fixture.asked);
    let answer = ask(fixture.admin, request(Method::GET, "/held/a", FAR)).await;
    let object = json!({ "key": "hu/a", "kind": "delete", "reason": "gone from the hub" });
    let expected = json!({ "because": null, "objects": [object], "digest": held().digest(), "by_name": true });
    assert_eq!(answer, (StatusCode::OK, expected));
    assert!(asked.lock().is_empty());
}

#[test]
fn a_digest_is_of_what_an_approval_would_release() {
    let of = |change: &dyn Fn(&mut Held)| {
        let mut held = held();
        change(&mut held);
        held.digest()
    };
    let same = held().digest();
    let changes: [&dyn Fn(&mut Held); 6] = [
        &|held| held.objects.clear(),
        &|held| held.objects.push(held.objects[0].clone()),
        &|held| held.objects[0].key = "hu/b".to_owned(),
        &|held| held.objects[0].kind = "overwrite",
        &|held| held.objects[0].generation = Some(5),
        &|held| held.because = Some("another cluster".to_owned()),
    ];
    let mut digests: Vec<String> = changes.into_iter().map(of).chain([same]).collect();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), changes.len() + 1, "each is another");
    // Of a section that is held as a whole, the clusters are approved and no object is.
    let clusters = |held: &mut Held| held.because = Some("another cluster".to_owned());
    assert_eq!(
        of(&clusters),
        of(&|held| {
            clusters(held);
            held.objects.clear();
        })
    );
}

#[tokio::test]
async fn an_approval_of_what_was_seen_releases_nothing_else() {
    let seen = held().digest();
    for (name, asked) in [("", "approve"), ("&name=a", "approve one")] {
        for (digest, status, asked) in [(seen.as_str(), StatusCode::OK, &[asked][..]), ("0", StatusCode::CONFLICT, &[])]
        {
            let fixture = fixture(&[("a", Readiness::Ready)]);
            let uri = format!("/approve/a?digest={digest}{name}");
            let (answered, body) = post_json(fixture.admin, &uri, NEAR).await;
            assert_eq!((answered, fixture.asked.lock().as_slice()), (status, asked), "{uri}");
            if status == StatusCode::CONFLICT {
                assert_eq!(body["error"], "what is held has changed since it was listed: list it again");
            }
        }
    }
}

#[tokio::test]
async fn a_page_of_what_is_held_says_how_much_more_there_is() {
    for (uri, objects, more) in [("/held/a?limit=1", 1, Value::Null), ("/held/a?limit=0", 0, json!(1))] {
        let (status, body) = get_json(fixture(&[("a", Readiness::Ready)]).admin, uri).await;
        let shown = body["objects"].as_array().map(Vec::len);
        assert_eq!((status, shown, &body["more"]), (StatusCode::OK, Some(objects), &more), "{uri}");
    }
}

#[tokio::test]
async fn objects_are_given_in_pages_of_at_most_200() {
    let ask =
        async |query: &str| get_json(fixture(&[("a", Readiness::Ready)]).admin, &format!("/objects/{query}")).await;
    let page = json!({ "total": 4, "listed": 0, "matching": 0, "offset": 3, "objects": [] });
    assert_eq!(ask("a?state=failing&text=%3Cimg&sort=age&offset=3&limit=200").await, (StatusCode::OK, page));
    for wrong in ["limit=201", "limit=0", "limit=-1", "sort=name", "state=ill", "offset=x", "page=2"] {
        let (status, body) = ask(&format!("a?{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(body["error"].is_string(), "{wrong}");
    }
    assert_eq!(ask("nosuch").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_last_hour_has_columns_of_each_section_and_of_the_clusters() {
    let mut admin = fixture(&[("a", Readiness::Ready), ("b", unreachable())]).admin;
    admin.sections.push(Arc::new(Elsewhere("c".parse().expect("a name"))));
    let lags = ["lag_seconds"].into();
    let counted = |writes: u32, requests: u32| {
        let text = format!(
            "lag_seconds_count{{section=\"a\"}} {writes}\nlag_seconds_sum{{section=\"a\"}} {writes}\n\
             rest_client_requests_total{{code=\"503\",method=\"GET\",host=\"10.0.0.7:6443\"}} {requests}\n"
        );
        Totals::read(&text, &lags)
    };
    let (first, second) = (counted(3, 5), counted(7, 14));
    let history = admin.history.as_ref().expect("there is a page");
    history.take(&admin.sections, &clusters(), None, &first);
    history.take(&admin.sections, &clusters(), Some(&first), &second);
    let admin = Arc::new(admin);
    let get = async |uri: &str| {
        let answer =
            router(Arc::clone(&admin)).oneshot(request(Method::GET, uri, FAR)).await.expect("routes never fail");
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        let mut body: Value = serde_json::from_slice(&body).expect("JSON");
        if let Some(times) = body["times"].as_array() {
            body["times"] = json!(times.len());
        }
        (status, body)
    };
    let section = |counts: [Value; 2], oldest: Value, writes: Value, delay: Value| {
        let [in_step, failing] = counts.map(|count| json!([count, count]));
        json!({
            "in_step": in_step, "failing": failing, "oldest_seconds": [oldest, oldest], "writes": [null, writes],
            "delay_seconds": [null, delay],
        })
    };
    let counts = || [json!(3), json!(0)];
    for (name, section) in [
        ("a", section(counts(), json!(27.5), json!(4), json!(1.0))),
        ("b", section(counts(), json!(27.5), json!(0), Value::Null)),
        // Another replica runs it.
        ("c", section([Value::Null, Value::Null], Value::Null, Value::Null, Value::Null)),
    ] {
        let expected = json!({ "step_seconds": 15, "window_seconds": 3600, "times": 2, "section": section });
        assert_eq!(get(&format!("/history/{name}")).await, (StatusCode::OK, expected), "{name}");
    }
    assert_eq!(get("/history/nosuch").await.0, StatusCode::NOT_FOUND);
    let (status, body) = get("/history").await;
    assert_eq!((status, &body["times"]), (StatusCode::OK, &json!(2)));
    let edge = json!({ "requests": [null, 9], "errors": [null, 9] });
    assert_eq!(body["clusters"], json!({ "edge": edge }));
}

#[test]
fn clusters_of_one_api_server_have_its_requests_once() {
    let alike = ClusterStatus { name: "hub".parse().expect("a name"), ..clusters().remove(0) };
    let unknown = |name: &str| ClusterStatus { name: name.parse().expect("a name"), server: None, ..alike.clone() };
    let all = [clusters(), vec![alike.clone(), unknown("new"), unknown("newer")]].concat();
    let shown = json!(History::new(0, 5).of_clusters(&all));
    let names: Vec<&String> = shown["clusters"].as_object().expect("clusters").keys().collect();
    assert_eq!(names, ["edge, hub", "new", "newer"]);
}

#[tokio::test]
async fn without_a_page_there_is_neither_a_file_of_it_nor_a_history() {
    for uri in ["/ui/", "/ui/page.js", "/history", "/history/a"] {
        let mut admin = fixture(&[("a", Readiness::Ready)]).admin;
        assert_ne!(get_json(fixture(&[("a", Readiness::Ready)]).admin, uri).await.0, StatusCode::NOT_FOUND, "{uri}");
        admin.history = None;
        assert_eq!(get_json(admin, uri).await.0, StatusCode::NOT_FOUND, "{uri}");
    }
}

#[tokio::test]
async fn changes_are_never_made_by_get() {
    let fixture = fixture(&[("a", Readiness::Ready)]);
    let answer = ask(fixture.admin, request(Method::GET, "/approve/a", NEAR)).await;
    assert_eq!(answer, (StatusCode::METHOD_NOT_ALLOWED, json!({ "error": "method not allowed" })));
    assert!(fixture.asked.lock().is_empty());
}

#[tokio::test]
async fn errors_are_json_with_the_status_that_fits() {
    let refused = post_json(fixture(&[("a", unreachable())]).admin, "/approve/a", NEAR).await;
    assert_eq!(refused, (StatusCode::CONFLICT, json!({ "error": "nothing to approve" })));
    let panicked = post_json(fixture(&[("a", not_ready())]).admin, "/approve/a", NEAR).await;
    assert_eq!(panicked.0, StatusCode::INTERNAL_SERVER_ERROR);
    let nowhere = get_json(fixture(&[]).admin, "/nowhere").await;
    assert_eq!(nowhere, (StatusCode::NOT_FOUND, json!({ "error": "not found" })));
    for query in ["detach/a?local_gone=maybe", "detach/a?localgone=true", "approve/a?names=b"] {
        let fixture = fixture(&[("a", Readiness::Ready)]);
        let answer = post_json(fixture.admin, &format!("/{query}"), NEAR).await;
        assert_eq!(answer.0, StatusCode::BAD_REQUEST, "{query}");
        assert!(answer.1["error"].is_string() && fixture.asked.lock().is_empty());
    }
}

#[tokio::test]
async fn a_failure_is_told_with_its_cause() {
    let refused = Refused::Failed { step: "release finalizers", source: "connection reset".into() };
    assert_eq!(Problem::from(refused).error, "failed to release finalizers: connection reset");
}

#[tokio::test]
async fn a_change_goes_on_when_its_client_hangs_up() {
    let mut fixture = fixture(&[]);
    let gate = Arc::new(Notify::new());
    let section = Scripted {
        name: "a".parse().expect("a name"),
        readiness: Readiness::Ready,
        asked: Arc::clone(&fixture.asked),
        gate: Some(Arc::clone(&gate)),
    };
    fixture.admin.sections.push(Arc::new(section));
    let mut conversation = Box::pin(ask(fixture.admin, request(Method::POST, "/approve/a", NEAR)));
    assert!(futures::poll!(&mut conversation).is_pending());
    drop(conversation);
    gate.notify_one();
    let done = async {
        while fixture.asked.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), done).await.expect("waited for the approval");
}

#[tokio::test]
async fn a_page_that_lets_its_name_lead_here_reads_nothing() {
    let asks = async |host: &'static str, uri: &str, hosts: &[&str]| {
        let mut admin = fixture(&[("a", Readiness::Ready)]).admin;
        admin.hosts = hosts.iter().copied().map(str::to_owned).collect();
        let mut request = request(Method::GET, uri, NEAR);
        request.headers_mut().insert(HOST, http::HeaderValue::from_static(host));
        ask(admin, request).await
    };
    for uri in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/readyz/a",
        "/status",
        "/held/a",
        "/explain/a?name=x",
        "/objects/a",
        "/history",
        "/history/a",
        "/ui/",
        "/ui/daemon.js",
        "/nowhere",
    ] {
        let (status, body) = asks("evil.example:8384", uri, &["edge.example.com"]).await;
        assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{uri}");
        let error = "the Host header is no name of this server: use its address, or add the name to daemon.hosts";
        assert_eq!(body, json!({ "error": error }), "{uri}");
    }
    for (host, hosts) in
        [("edge.example.com", &["edge.example.com"][..]), ("towline.edge.svc:8384", &[]), ("localhost:9", &[])]
    {
        assert_eq!(asks(host, "/readyz", hosts).await.0, StatusCode::OK, "{host}");
    }
}

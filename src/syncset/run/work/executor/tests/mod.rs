//! The requests of steps, and what becomes of the answers.

use serde_json::{Value, json};

use super::*;
use crate::cluster::Clock;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::pass::{Compared, List, Page, Refusal, Refused};
use crate::syncset::plan::spec::PatchType;
use crate::syncset::plan::status::Unreachable;
use server::{Gate, Reply, Server, fence, metadata, status, whole};

mod lists;
mod server;

/// Longer than any answer takes that comes at all.
const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(300);

fn object(kind: &str) -> ObjectRef {
    let text = str::to_owned;
    ObjectRef { group: text(""), kind: text(kind), namespace: text("team"), name: text("site") }
}

fn at(object: &ObjectRef) -> Address<'_> {
    Address { object, api_version: "v1" }
}

/// A request of any sort.
#[derive(Debug)]
enum Step<'a> {
    Resolve { api_version: &'a str, kind: &'a str, wait: bool },
    Look(Address<'a>),
    Lists(Vec<List<'a>>),
    Write(Address<'a>, Write<'a>),
    Delete(Address<'a>),
}

/// What comes of it.
#[derive(Debug, PartialEq)]
enum Answer {
    Kind(Resolution),
    Found(Option<Seen>),
    Pages(Vec<Result<Page, Refused>>),
    Written(Written),
    Deleted(Option<Ending>),
}

impl Executor<'_> {
    async fn carry_out(&mut self, step: &Step<'_>, within: Duration) -> Result<Answer, Failed> {
        self.within = within;
        match step {
            Step::Resolve { api_version, kind, wait } => self.resolve(api_version, kind, *wait).await.map(Answer::Kind),
            Step::Look(at) => self.look(*at).await.map(Answer::Found),
            Step::Lists(lists) => self.list(lists).await.map(Answer::Pages).map_err(Failed::Stopped),
            Step::Write(at, write) => self.write(*at, *write).await.map(Answer::Written),
            Step::Delete(at) => self.delete(*at, "u-1", "7").await.map(Answer::Deleted),
        }
    }
}

fn resolve(kind: &str, wait: bool) -> Step<'_> {
    Step::Resolve { api_version: "v1", kind, wait }
}

fn list(kind: &str, page: usize) -> Step<'_> {
    Step::Lists(vec![List { api_version: "v1", kind, page, compared: &Site }])
}

/// What a list has brought that was read alone.
fn page_of(answer: Answer) -> Result<Page, Refused> {
    let Answer::Pages(pages) = answer else { panic!("{answer:?}") };
    let [page] = pages.try_into().unwrap();
    page
}

/// Only the object that most tests are about is compared.
#[derive(Debug)]
struct Site;

impl Compared for Site {
    fn has(&self, namespace: &str, name: &str) -> bool {
        (namespace, name) == ("team", "site")
    }
}

fn look(object: &ObjectRef) -> Step<'_> {
    Step::Look(at(object))
}

fn apply<'a>(object: &'a ObjectRef, body: &'a Value) -> Step<'a> {
    Step::Write(at(object), Write::Apply(body))
}

fn patch<'a>(object: &'a ObjectRef, patch_type: PatchType, body: &'a Value) -> Step<'a> {
    Step::Write(at(object), Write::Patch { patch_type, manager: Manager::Patch, body })
}

fn delete(object: &ObjectRef) -> Step<'_> {
    Step::Delete(at(object))
}

fn steps<'a>(object: &'a ObjectRef, body: &'a Value) -> Vec<Step<'a>> {
    let create = |dry_run| Step::Write(at(object), Write::Create { body, dry_run });
    vec![
        look(object),
        list(&object.kind, 0),
        apply(object, body),
        create(false),
        create(true),
        patch(object, PatchType::Strategic, body),
        patch(object, PatchType::Merge, body),
        patch(object, PatchType::Json, body),
        delete(object),
    ]
}

/// What comes of one step under an open fence; of a list as of any other request.
async fn outcome(client: &mut Client, step: &Step<'_>) -> Result<Answer, Failed> {
    match Executor::new(client, &fence(), LONG).carry_out(step, LONG).await {
        Ok(answer @ Answer::Pages(_)) => {
            page_of(answer).map(|page| Answer::Pages(vec![Ok(page)])).map_err(Failed::Refused)
        }
        Err(Failed::Stopped(Stop::Throttled { told, message, lists })) => {
            assert_eq!(lists.len(), usize::from(matches!(step, Step::Lists(_))), "{step:?}");
            Err(Failed::Stopped(Stop::Throttled { told, message, lists: Vec::new() }))
        }
        other => other,
    }
}

fn stop(outcome: Result<Answer, Failed>) -> Stop {
    match outcome {
        Err(Failed::Stopped(stop)) => stop,
        other => panic!("the pass goes on: {other:?}"),
    }
}

fn throttled(told: Duration) -> Stop {
    Stop::Throttled { told, message: "said".to_owned(), lists: Vec::new() }
}

async fn refusal(client: &mut Client, step: &Step<'_>) -> (Refusal, String) {
    match outcome(client, step).await {
        Err(Failed::Refused(Refused { refusal, message })) => (refusal, message),
        other => panic!("{step:?}: {other:?}"),
    }
}

#[tokio::test]
async fn each_step_is_one_request_in_the_form_of_its_rule() {
    let server = Server::new().await;
    server.answer(|line| match line {
        line if line.contains("?limit=") => whole(200, &json!({"metadata": {}, "items": [metadata()]})),
        line if line.starts_with("POST") => whole(201, &metadata()),
        _ => whole(200, &metadata()),
    });
    let (mut client, fence) = (server.client(LONG), fence());
    let mut executor = Executor::new(&mut client, &fence, LONG);
    let (object, body) = (object("ConfigMap"), json!({"data": {"a": "b"}}));
    let resolved = executor.carry_out(&resolve("ConfigMap", false), LONG).await;
    assert!(matches!(resolved, Ok(Answer::Kind(Resolution::Served { namespaced: true, .. }))), "{resolved:?}");
    assert_eq!(server.lines(), ["GET /api/v1"]);
    let seen = |answer| match answer {
        Answer::Found(Some(seen)) => (None, Some(seen)),
        answer @ Answer::Pages(_) => (None, page_of(answer).unwrap().objects.pop().map(|(_, _, seen)| seen)),
        Answer::Written(Written { created, seen }) => (Some(created), Some(seen)),
        Answer::Deleted(_) => (None, None),
        other => panic!("{other:?}"),
    };
    let mut created = Vec::new();
    for step in steps(&object, &body) {
        let (is_new, seen): (_, Option<Seen>) = seen(executor.carry_out(&step, LONG).await.unwrap());
        assert!(seen.is_none_or(|seen| seen.uid == "u-1" && seen.version == "7" && seen.marks.managed), "{step:?}");
        created.extend(is_new);
    }
    assert_eq!(created, [false, true, true, false, false, false]);
    let path = "/api/v1/namespaces/team/configmaps";
    let asked = server.asked();
    let lines: Vec<_> = asked.iter().map(|asked| (asked.line.as_str(), asked.media_type.as_str())).collect();
    let writing = |manager: &str| format!("fieldValidation=Ignore&fieldManager={manager}");
    let patching = format!("PATCH {path}/site?{}", writing("towline-patch"));
    assert_eq!(
        lines,
        [
            (format!("GET {path}/site").as_str(), "application/json"),
            ("GET /api/v1/configmaps?limit=500&labelSelector=hive%2Eopenshift%2Eio%2Fmanaged%3Dtrue", ""),
            (&format!("PATCH {path}/site?{}&force=true", writing("towline")), "application/apply-patch+yaml"),
            (&format!("POST {path}?{}", writing("towline-update")), "application/json"),
            (&format!("POST {path}?{}&dryRun=All", writing("towline-update")), "application/json"),
            (&patching, "application/strategic-merge-patch+json"),
            (&patching, "application/merge-patch+json"),
            (&patching, "application/json-patch+json"),
            (&format!("DELETE {path}/site"), "application/json"),
        ]
    );
    for asked in &asked {
        assert!(asked.accept.contains("as=PartialObjectMetadata"), "{asked:?}");
    }
    let sent = body.to_string();
    assert!(asked[2..8].iter().all(|asked| asked.body == sent));
    let options: Value = serde_json::from_str(&asked[8].body).unwrap();
    assert_eq!(options["preconditions"], json!({"uid": "u-1", "resourceVersion": "7"}));
    assert_eq!(options["propagationPolicy"], "Background");
}

#[tokio::test]
async fn an_answer_refuses_the_step_or_ends_the_pass() {
    let (server, object, body) = (Server::new().await, object("ConfigMap"), json!({}));
    let mut client = server.client(LONG);
    let own = json!({"name": "site"});
    let namespace = json!({"name": "team", "kind": "namespaces"});
    let terminating = json!({"causes": [{"reason": "NamespaceTerminating"}]});
    for (code, reason, message, details, expected) in [
        (409, "AlreadyExists", "exists", &own, Refusal::Exists),
        (409, "Conflict", "changed", &own, Refusal::Conflict),
        (404, "NotFound", "no object", &own, Refusal::NotFound),
        (404, "NotFound", "no namespace", &namespace, Refusal::NotFound),
        (403, "Forbidden", "ending", &terminating, Refusal::NamespaceTerminating),
        (403, "Forbidden", "forbidden", &own, Refusal::Forbidden),
        (422, "Invalid", "invalid", &own, Refusal::Invalid),
        (415, "UnsupportedMediaType", "media type", &own, Refusal::UnsupportedMediaType),
        (400, "BadRequest", "bad", &own, Refusal::Rejected),
        (413, "RequestEntityTooLarge", "large", &own, Refusal::Rejected),
        (500, "InternalError", "failed to create typed patch object (x)", &own, Refusal::SchemaMismatch),
        (500, "InternalError", "webhook", &own, Refusal::Server),
        (503, "ServiceUnavailable", "down", &own, Refusal::Server),
    ] {
        let details = details.clone();
        server.answer(move |_| status(code, reason, message, &details));
        assert_eq!(refusal(&mut client, &apply(&object, &body)).await, (expected, message.to_owned()), "{code}");
    }
    let said = |headers: &'static str| {
        move |code: u16| {
            move |_: &str| Reply::Whole(code, headers, r#"{"kind": "Status", "message": "said"}"#.to_owned())
        }
    };
    // About one object perhaps: the others are sent.
    server.answer(said("retry-after: 7\r\n")(503));
    assert_eq!(refusal(&mut client, &apply(&object, &body)).await, (Refusal::Server, "said".to_owned()));
    let silent = |reason, message: &str| Stop::silent(reason, message.to_owned());
    for (headers, code, expected) in [
        ("", 401, silent(Unreachable::Unauthorized, "said")),
        ("retry-after: 7\r\n", 429, throttled(Duration::from_secs(7))),
        ("retry-after: 0\r\n", 429, throttled(Duration::from_secs(1))),
        ("retry-after: 86400\r\n", 429, throttled(Duration::from_mins(1))),
        ("", 429, throttled(Duration::from_secs(5))),
    ] {
        server.answer(said(headers)(code));
        for step in steps(&object, &body) {
            assert_eq!(stop(outcome(&mut client, &step).await), expected, "{step:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_known_to_be_gone_is_not_taken_for_it() {
    let (server, object, body) = (Server::new().await, object("ConfigMap"), json!({}));
    let mut client = server.client(LONG);
    server.answer(|_| status(404, "NotFound", "no object", &json!({"name": "site"})));
    assert!(matches!(outcome(&mut client, &look(&object)).await, Ok(Answer::Found(None))));
    assert!(matches!(outcome(&mut client, &delete(&object)).await, Ok(Answer::Deleted(None))));
    assert_eq!(server.lines().len(), 3, "the kind is known after the first step");
    // What a proxy says, or a server that does not serve the kind any more.
    let strange = "HTTP 404, not a Kubernetes API".to_owned();
    for (step, expected) in [
        (look(&object), Refusal::NotServed),
        (list("ConfigMap", 0), Refusal::NotServed),
        (delete(&object), Refusal::NotServed),
        (apply(&object, &body), Refusal::NotServed),
    ] {
        server.answer(|_| Reply::Whole(404, "", "404 page not found".to_owned()));
        assert_eq!(refusal(&mut client, &step).await, (expected, strange.clone()), "{step:?}");
        server.lines();
        // The kind is asked for again, but not within the pass.
        server.answer(|_| whole(200, &metadata()));
        outcome(&mut client, &look(&object)).await.unwrap();
        assert_eq!(server.lines(), ["GET /api/v1", "GET /api/v1/namespaces/team/configmaps/site"]);
    }
    // A namespace that is missing says nothing of the kind.
    let missing = json!({"name": "team", "kind": "namespaces"});
    server.answer(move |_| status(404, "NotFound", "no namespace", &missing));
    assert_eq!(refusal(&mut client, &apply(&object, &body)).await, (Refusal::NotFound, "no namespace".to_owned()));
    assert_eq!(server.lines().len(), 1);
    assert!(matches!(outcome(&mut client, &look(&object)).await, Err(Failed::Refused(_))));
    assert_eq!(server.lines(), ["GET /api/v1/namespaces/team/configmaps/site"]);
}

#[tokio::test]
async fn of_an_answer_about_a_secret_no_value_is_repeated() {
    let (server, object, body) = (Server::new().await, object("Secret"), json!({"data": {"a": "canary"}}));
    let mut client = server.client(LONG);
    for code in [400, 403, 404, 409, 422, 500, 503] {
        server.answer(move |_| {
            let causes = json!([{"reason": "FieldValueInvalid", "message": "canary", "field": "data[a]"}]);
            status(code, "Told", "Invalid value: canary", &json!({"name": "other", "causes": causes}))
        });
        for step in steps(&object, &body) {
            let (_, message) = refusal(&mut client, &step).await;
            let is_list = matches!(step, Step::Lists(_));
            let expected = format!("HTTP {code} Told: data[a]");
            assert_eq!(message, if is_list { "failed to list the secrets" } else { &expected }, "{step:?}");
        }
    }
    // And an answer that is none is not quoted by its decoder.
    server.answer(|_| whole(200, &json!("canary")));
    for step in steps(&object, &body) {
        if let Err(Failed::Refused(refused)) = outcome(&mut client, &step).await {
            assert!(!refused.message.contains("canary"), "{step:?}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn an_endless_answer_fails_the_step_and_one_that_stops_half_way_ends_the_pass() {
    let (server, object) = (Server::new().await, object("ConfigMap"));
    let mut client = server.client(LONG);
    server.answer(|_| Reply::Begun(vec![b' '; (16 << 20) + 1]));
    let large = "failed to decode the answer: the answer has more than 16 MiB".to_owned();
    assert_eq!(refusal(&mut client, &look(&object)).await, (Refusal::Server, large));
    // A list is cut sooner, since it is read while it arrives.
    let large = "failed to decode the answer: a part of the list has more than 256 KiB".to_owned();
    assert_eq!(refusal(&mut client, &list("ConfigMap", 0)).await, (Refusal::Server, large));
    server.answer(|_| Reply::Begun(br#"{"metadata": {"name":"#.to_vec()));
    let mut impatient = server.client(SHORT);
    let stop = stop(outcome(&mut impatient, &look(&object)).await);
    assert!(matches!(&stop, Stop::Silent { logged, .. } if logged.ends_with("no answer within 300ms")), "{stop:?}");
    assert!(matches!(stop, Stop::Silent { reason: Unreachable::ErrorConnectingToCluster, .. }));
}

#[tokio::test]
async fn the_first_request_has_its_own_deadline_and_does_not_wait_until_the_cluster_may_be_asked() {
    let (server, object, fence) = (Server::new().await, object("ConfigMap"), fence());
    let mut client = server.client(LONG);
    let mut executor = Executor::new(&mut client, &fence, LONG);
    executor.carry_out(&resolve("ConfigMap", false), LONG).await.unwrap();
    assert!(executor.is_answered());
    server.answer(|_| Reply::Begun(Vec::new()));
    let mut executor = Executor::new(&mut client, &fence, LONG);
    // A kind that is known costs no request, so it says nothing of the cluster.
    executor.carry_out(&resolve("ConfigMap", false), SHORT).await.unwrap();
    assert!(!executor.is_answered());
    server.lines();
    for _ in 0..3 {
        let stop = stop(executor.carry_out(&look(&object), SHORT).await);
        assert!(matches!(&stop, Stop::Silent { logged, .. } if logged.contains("within 300ms")), "{stop:?}");
        assert!(!executor.is_answered());
    }
    assert_eq!(server.lines().len(), 3, "one was not sent");
    // Lists and discovery have the same deadline.
    for step in [list("ConfigMap", 0), Step::Resolve { api_version: "apps/v1", kind: "Deployment", wait: false }] {
        let stop = stop(executor.carry_out(&step, SHORT).await);
        assert!(matches!(&stop, Stop::Silent { logged, .. } if logged.contains("within 300ms")), "{stop:?}");
        assert!(!executor.is_answered());
    }
    server.answer(|_| whole(200, &metadata()));
    executor.carry_out(&look(&object), LONG).await.unwrap();
    assert!(executor.is_answered());
    // Later ones are sent as usual.
    executor.carry_out(&look(&object), LONG).await.unwrap();
}

#[tokio::test]
async fn while_the_first_write_waits_the_cluster_has_to_answer_something() {
    let (server, object, body, fence) = (Server::new().await, object("ConfigMap"), json!({}), fence());
    let mut client = server.client(LONG);
    let resolve = resolve("ConfigMap", false);
    Executor::new(&mut client, &fence, LONG).carry_out(&resolve, LONG).await.unwrap();
    let is_write = |step: &Step<'_>| matches!(step, Step::Write(..) | Step::Delete(_));
    let writes: Vec<_> = steps(&object, &body).into_iter().filter(is_write).collect();
    assert_eq!(writes.len(), 7);
    for write in &writes {
        let mut executor = Executor::new(&mut client, &fence, LONG);
        executor.carry_out(&resolve, LONG).await.unwrap();
        // Silent: the probe's deadline ends the pass, and not the write's.
        server.answer(|_| Reply::Begun(Vec::new()));
        server.lines();
        let stop = stop(executor.carry_out(write, SHORT).await);
        assert!(matches!(&stop, Stop::Silent { logged, .. } if logged.contains("within 150ms")), "{stop:?}");
        assert_eq!(server.lines()[1..], ["GET /version"]);
        assert!(!executor.is_answered());
    }
    // Slow, and it lives, whatever it answers: the write has the time that it needs.
    for code in [200, 403, 429, 503] {
        let gate = Gate::default();
        let opened = gate.clone();
        server.answer(move |line| match line {
            "GET /version" => {
                opened.open();
                whole(code, &json!({"major": "1", "minor": "30", "gitVersion": "v1.30.0"}))
            }
            _ => Reply::Held(gate.clone(), Box::new(whole(200, &metadata()))),
        });
        server.lines();
        let mut executor = Executor::new(&mut client, &fence, LONG);
        executor.carry_out(&resolve, LONG).await.unwrap();
        executor.carry_out(&writes[0], LONG).await.unwrap();
        assert_eq!(server.lines()[0], "GET /version", "a request is noted when it is answered");
        assert!(executor.is_answered());
    }
    // After an answer nothing is probed.
    let mut executor = Executor::new(&mut client, &fence, LONG);
    server.answer(|_| whole(200, &metadata()));
    executor.carry_out(&look(&object), LONG).await.unwrap();
    let gate = Gate::default();
    let held = gate.clone();
    server.answer(move |_| Reply::Held(held.clone(), Box::new(whole(200, &metadata()))));
    server.lines();
    let written = executor.carry_out(&writes[0], Duration::from_millis(2));
    tokio::pin!(written);
    assert!(timeout(SHORT, &mut written).await.is_err());
    gate.open();
    written.await.unwrap();
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn nothing_is_sent_after_the_claim_has_ended() {
    let (server, object, body) = (Server::new().await, object("ConfigMap"), json!({}));
    let (mut client, fence) = (server.client(LONG), fence());
    let mut executor = Executor::new(&mut client, &fence, LONG);
    executor.carry_out(&look(&object), LONG).await.unwrap();
    server.lines();
    fence.close();
    for step in steps(&object, &body).into_iter().chain([resolve("Gadget", false), resolve("Gadget", true)]) {
        for within in [SHORT, LONG] {
            assert_eq!(stop(executor.carry_out(&step, within).await), Stop::Lost, "{step:?}");
        }
    }
    assert_eq!(executor.identity().await, Err(Failed::Stopped(Stop::Lost)));
    assert_eq!(executor.probe().await, Err(Stop::Lost));
    assert!(!Executor::new(&mut client, &fence, LONG).is_answered());
    assert!(server.lines().is_empty());
}

#[tokio::test]
async fn pages_follow_each_other_and_a_list_begins_anew() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    server.answer(|line| {
        let next = if line.contains("continue") { "" } else { "token" };
        whole(200, &json!({"metadata": {"continue": next}, "items": [metadata()]}))
    });
    let mut executor = Executor::new(&mut client, &fence, LONG);
    for (page, expected) in [(0, true), (1, false), (0, true), (0, true), (1, false)] {
        let answer = executor.carry_out(&list("ConfigMap", page), LONG).await.unwrap();
        let Page { objects, more } = page_of(answer).unwrap();
        assert_eq!(more, expected);
        let [(namespace, name, seen)] = objects.as_slice() else { panic!("{objects:?}") };
        assert_eq!((namespace.as_str(), name.as_str(), seen.uid.as_str()), ("team", "site", "u-1"));
    }
    let pages: Vec<bool> = server.lines()[1..].iter().map(|line| line.ends_with("&continue=token")).collect();
    assert_eq!(pages, [false, true, false, false, true]);
    server.answer(|_| whole(200, &json!({"metadata": {"continue": "token"}, "items": null})));
    executor.carry_out(&list("Secret", 0), LONG).await.unwrap();
    server.answer(|_| status(410, "Expired", "too old", &json!({})));
    let refused = page_of(executor.carry_out(&list("Secret", 1), LONG).await.unwrap()).unwrap_err();
    assert_eq!(refused.refusal, Refusal::Rejected);
}

#[tokio::test]
async fn of_a_list_only_what_is_compared_is_read() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let other = |namespace: &str, name: &str, fields: Value| json!({"metadata": {"namespace": namespace, "name": name, "managedFields": fields}});
    // What is not compared may be whatever it likes.
    let items = json!([other("team", "other", json!("none")), metadata(), other("another", "site", json!(7))]);
    server.answer(move |_| whole(200, &json!({"metadata": {}, "items": items})));
    let mut executor = Executor::new(&mut client, &fence, LONG);
    let answer = executor.carry_out(&list("ConfigMap", 0), LONG).await.unwrap();
    let Page { objects, more: false } = page_of(answer).unwrap() else { panic!("it is the last page") };
    let [(namespace, name, seen)] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!((namespace.as_str(), name.as_str(), seen.uid.as_str()), ("team", "site", "u-1"));
    // What is compared must be an object.
    server.answer(|_| {
        whole(200, &json!({"metadata": {}, "items": [{"metadata": {"name": "site", "namespace": "team"}}]}))
    });
    let refused = page_of(executor.carry_out(&list("ConfigMap", 0), LONG).await.unwrap()).unwrap_err();
    assert_eq!(refused.refusal, Refusal::Server);
}

#[tokio::test]
async fn identity_and_probe_say_whether_the_cluster_answers() {
    let (server, fence) = (Server::new().await, fence());
    let mut client = server.client(LONG);
    let mut executor = Executor::new(&mut client, &fence, LONG);
    assert_eq!(executor.identity().await, Ok("u-1".to_owned()));
    assert_eq!(executor.probe().await, Ok(()));
    assert_eq!(server.lines(), ["GET /api/v1/namespaces/kube-system", "GET /version"]);
    assert!(executor.is_answered());
    let unreachable = Unreachable::ErrorConnectingToCluster;
    for (code, read, probed) in [
        (403, Ok(Refusal::Forbidden), Ok(())),
        (404, Ok(Refusal::NotServed), Ok(())),
        (502, Ok(Refusal::Server), Err(unreachable)),
        (401, Err(Unreachable::Unauthorized), Err(Unreachable::Unauthorized)),
    ] {
        server.answer(move |_| Reply::Whole(code, "", "<h1>canary</h1>".to_owned()));
        let said = format!("HTTP {code}, not a Kubernetes API");
        let silent = |reason| Stop::silent(reason, said.clone());
        let read = match read {
            Ok(refusal) => Failed::Refused(Refused { refusal, message: said.clone() }),
            Err(reason) => Failed::Stopped(silent(reason)),
        };
        assert_eq!(executor.identity().await, Err(read), "{code}");
        assert_eq!(executor.probe().await, probed.map_err(silent), "{code}");
    }
}

/// An executor of a cluster whose answers take no time of the paused clock.
async fn awaited(
    answer: impl FnMut(&str) -> (u16, Value) + Send + 'static,
) -> (Result<Answer, Failed>, usize, Duration) {
    let (cluster, script) = Cluster::scripted("west");
    script.answer(answer);
    let fence = Fence::new("west", Clock::Paused(Instant::now()));
    fence.open(fence.now() + Duration::from_hours(1));
    let mut kinds = Kinds::default();
    let (served, lists) = (BTreeMap::new(), BTreeMap::new());
    let cluster = cluster.under(&fence);
    let mut executor = Executor { cluster, fence, kinds: &mut kinds, served, lists, within: LONG, is_answered: false };
    let begun = Instant::now();
    let answer = executor.carry_out(&resolve("Gadget", true), LONG).await;
    let looks = script.asked().iter().filter(|line| *line == "GET /api/v1").count();
    (answer, looks, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_definition_was_applied_is_looked_for_every_200_ms_up_to_10_s() {
    let without = json!({"resources": []});
    let with = json!({"resources": [{"name": "gadgets", "kind": "Gadget", "namespaced": false}]});
    let versions = json!({"versions": ["v1"]});
    let unserved = (without.clone(), versions.clone());
    let (answer, looks, took) = awaited(move |line| match line {
        "GET /api/v1" => (200, unserved.0.clone()),
        _ => (200, unserved.1.clone()),
    })
    .await;
    assert!(matches!(answer, Ok(Answer::Kind(Resolution::NotServed))), "{answer:?}");
    assert_eq!((looks, took), (51, LONGEST_WAIT));

    // A server that fails meanwhile is asked again, too.
    let mut answers = vec![(200, with), (503, json!({})), (404, json!({})), (200, without)];
    let (answer, looks, took) = awaited(move |line| match line {
        "GET /api/v1" => answers.pop().unwrap(),
        _ => (200, versions.clone()),
    })
    .await;
    assert!(matches!(answer, Ok(Answer::Kind(Resolution::Served { namespaced: false, .. }))), "{answer:?}");
    assert_eq!((looks, took), (4, 3 * LOOK_AGAIN));

    // One that does not accept us is not.
    let (answer, looks, took) = awaited(|_| (401, json!({}))).await;
    assert!(matches!(answer, Err(Failed::Stopped(Stop::Silent { .. }))), "{answer:?}");
    assert_eq!((looks, took), (1, Duration::ZERO));
}

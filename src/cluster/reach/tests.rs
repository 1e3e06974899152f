//! The requests of a cluster without a session actor, on a paused clock.

use std::num::NonZeroUsize;

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::*;
use crate::cluster::client::Limits;
use crate::cluster::watch::scripted::Script;
use crate::cluster::{Clock, Cluster, Fence, Kind, Object, ObjectKey, PARTIAL_METADATA, Payload, Request, Urgency};

const DEADLINE: Duration = Duration::from_secs(10);
const MOST: usize = 8;

fn scripted() -> (Cluster, Script) {
    let max_in_flight = NonZeroUsize::new(MOST).unwrap();
    let limits = Limits { request_timeout: DEADLINE, watch_timeout: DEADLINE * 29, max_in_flight };
    Cluster::scripted_without_session("west", limits)
}

fn config_maps() -> Kind {
    Kind::core("ConfigMap", "configmaps", true)
}

async fn get(cluster: &Cluster) -> Result<Option<Object>, Error> {
    cluster.get(&config_maps(), &ObjectKey::new("team", "site")).await
}

async fn write(cluster: &Cluster) -> Result<(), Error> {
    let (kind, key) = (config_maps(), ObjectKey::new("team", "site"));
    cluster.write(Request::patch(&kind, &key, Payload::merge_patch(&json!({}))).by("towline")).await.map(drop)
}

async fn list(cluster: &Cluster) -> Result<Vec<Value>, Error> {
    let mut found = Vec::new();
    cluster.list_metadata(&config_maps(), "app in (a,b)", 1000, |item| found.push(item)).await?;
    Ok(found)
}

async fn when_admitted(cluster: &Cluster) -> Result<IgnoredAny, Error> {
    let (kind, key) = (Kind::lease(), ObjectKey::new("n", "a"));
    let request = || Request::get(&kind, &key);
    cluster.exchange_when_admitted(request, PARTIAL_METADATA, DEADLINE, Urgency::WhenAdmitted).await.answer
}

/// Whether a request is still under way when everything has happened that needs no time.
async fn waits(request: impl Future) -> bool {
    tokio::time::timeout(Duration::from_millis(1), request).await.is_err()
}

/// How many objects are seen of a list that may have so many.
async fn count(cluster: &Cluster, most: usize) -> (usize, Result<(), Error>) {
    let mut seen = 0;
    let listed = cluster.list_metadata(&config_maps(), "", most, |_: Value| seen += 1).await;
    (seen, listed)
}

fn object() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "site", "namespace": "team", "uid": "u-1", "resourceVersion": "7"}})
}

/// A cluster that has just given no answer.
async fn silent() -> (Cluster, Script) {
    let (cluster, script) = scripted();
    script.answer(|_| (0, Value::Null));
    assert!(matches!(get(&cluster).await, Err(Error::NoAnswer { .. })));
    assert_eq!(script.asked().len(), 1);
    (cluster, script)
}

#[tokio::test(start_paused = true)]
async fn an_object_is_read_written_and_listed_with_one_request_each() {
    let (cluster, script) = scripted();
    script.answer(|line| {
        if line.ends_with("/site") { (200, object()) } else { (200, json!({"metadata": {}, "items": [object()]})) }
    });
    assert_eq!(&*get(&cluster).await.unwrap().unwrap().uid, "u-1");
    write(&cluster).await.unwrap();
    assert_eq!(list(&cluster).await.unwrap(), [object()]);
    let site = "/api/v1/namespaces/team/configmaps/site";
    assert_eq!(script.asked(), [format!("GET {site}"), format!("PATCH {site}"), "GET /api/v1/configmaps".to_owned()]);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_the_probe_of_a_cluster_that_gives_no_answer() {
    let (cluster, script) = silent().await;
    script.answer(|line| {
        if line.ends_with("/site") { (200, object()) } else { (200, json!({"metadata": {}, "items": null})) }
    });
    script.take(Duration::from_secs(1));
    let requests = async { tokio::join!(get(&cluster), write(&cluster), list(&cluster)) };
    let mut requests = pin!(requests);
    // Longer than the back-off of the probe, and less than the probe takes.
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut requests).await.is_err());
    assert_eq!(script.asked().len(), 1, "one of them is the probe");
    let (got, written, listed) = requests.await;
    assert!(got.is_ok() && written.is_ok() && listed.is_ok(), "{got:?} {written:?} {listed:?}");
    assert_eq!(script.asked().len(), 2, "the others are sent after the probe");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_its_deadline_for_a_cluster_that_gives_no_answer() {
    let (cluster, script) = silent().await;
    let (probe, other) = tokio::join!(get(&cluster), write(&cluster));
    assert!(matches!(probe, Err(Error::NoAnswer { .. })), "{probe:?}");
    let text = "cluster west is not available: no answer from cluster west: no answer within 10s";
    assert_eq!(other.unwrap_err().to_string(), text);
    assert_eq!(script.asked().len(), 1, "only the probe is sent");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_while_a_request_waits_keeps_it_from_being_sent() {
    let (cluster, script) = silent().await;
    let fence = Fence::new("syncsets", Clock::Boot);
    assert!(matches!(get(&cluster.under(&fence)).await, Err(Error::LeaseExpired(_))), "it has not begun");
    fence.open(fence.now() + Duration::from_hours(1));
    let fenced = cluster.under(&fence);
    let mut request = pin!(write(&fenced));
    assert!(waits(&mut request).await, "it does not wait for the probe's turn");
    // Another term, to which the request does not belong.
    fence.open(fence.now() + Duration::from_hours(1));
    assert!(matches!(request.await, Err(Error::LeaseExpired(_))));
    assert!(script.asked().is_empty(), "it was sent");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_server_holds_back_only_requests_that_wait_to_be_admitted() {
    let (cluster, script) = scripted();
    script.answer(|_| (500, Value::Null));
    let begun = Instant::now();
    for _ in 0..5 {
        assert!(matches!(write(&cluster).await, Err(Error::Server { .. })));
    }
    assert_eq!((script.asked().len(), begun.elapsed()), (5, Duration::ZERO));
    assert!(matches!(when_admitted(&cluster).await, Err(Error::Server { .. })));
    assert!(waits(when_admitted(&cluster)).await, "it does not wait");
    assert_eq!(script.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_can_not_be_built_says_nothing_about_the_cluster() {
    let (cluster, script) = silent().await;
    let error = cluster.get(&config_maps(), &ObjectKey::new("team", "a/b")).await.unwrap_err();
    assert!(matches!(error, Error::Rejected { code: 0, .. }), "{error}");
    let two = async { tokio::join!(get(&cluster), get(&cluster)) };
    assert!(waits(two).await);
    assert_eq!(script.asked().len(), 1, "still one at a time");
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_not_remembered_where_nobody_asks_again() {
    let (cluster, script) = scripted();
    script.answer(|_| (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"})));
    for _ in 0..2 {
        assert!(matches!(write(&cluster).await, Err(Error::Forbidden { .. })));
    }
    script.answer(|_| (200, object()));
    write(&cluster).await.unwrap();
    assert_eq!(script.asked().len(), 3, "a request was not sent");
    assert!(!cluster.denied_permissions().any());
}

#[tokio::test(start_paused = true)]
async fn a_429_halves_the_number_of_requests_that_are_sent_in_turn_together() {
    let (cluster, script) = scripted();
    script.answer(|_| (429, Value::Null));
    assert!(matches!(when_admitted(&cluster).await, Err(Error::Throttled { .. })));
    script.answer(|_| (200, object()));
    when_admitted(&cluster).await.unwrap();
    script.asked();
    script.answer(|_| (0, Value::Null));
    let many = futures::future::join_all((0..MOST).map(|_| when_admitted(&cluster)));
    assert!(waits(many).await);
    assert_eq!(script.asked().len(), MOST / 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_page_by_page_up_to_a_number_of_objects() {
    let (cluster, script) = scripted();
    script.answer(|_| (200, json!({"metadata": {"continue": "more"}, "items": [object(), object()]})));
    let (seen, listed) = count(&cluster, 5).await;
    let text = "failed to decode the answer: the list of configmaps has more than 5 objects";
    assert_eq!((seen, listed.unwrap_err().to_string().as_str()), (4, text));
    assert_eq!(script.asked().len(), 3);
    // Pages without objects end, too.
    script.answer(|_| (200, json!({"metadata": {"continue": "more"}, "items": []})));
    let (seen, listed) = count(&cluster, 5).await;
    assert!(seen == 0 && listed.is_err());
    assert_eq!(script.asked().len(), 6);
}

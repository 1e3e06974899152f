use std::cell::RefCell;

use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::documents::decide::{IfMatch, Part};
use crate::documents::{Body, Expected, Key, Kind, Operations};

fn stored(version: i64) -> Stored {
    let row = json!({"kind": "syncsets", "id": Uuid::nil(), "namespace": "foo", "name": "one", "labels": {}, "annotations": {},
        "finalizers": [], "generation": 1, "version": version, "created_at": "2026-11-21T23:40:00Z",
        "updated_at": "2026-11-21T23:40:00Z", "deleted_at": null, "data": {}, "status": {}});
    Stored { document: Document::from_row(&row.to_string()).expect("a row"), sealed: None }
}

/// Counts what a request does to a database in which other writes come first this many times.
#[derive(Default)]
struct Told {
    reads: RefCell<i64>,
    written: RefCell<Vec<Expected>>,
}

async fn ask(request: &Request, mut conflicts: i64, told: &Told) -> Result<Done, Problem> {
    conflicts += 1;
    let is_absent = matches!(request.action, Action::Create(_));
    let read = || async {
        *told.reads.borrow_mut() += 1;
        Ok(((!is_absent).then(|| stored(*told.reads.borrow())), LargeSlot::default()))
    };
    let write = |item: Item| async move {
        told.written.borrow_mut().push(item.changes[0].expected);
        let at = "2026-11-22T00:00:00Z".parse().expect("a time");
        let is_last = i64::try_from(told.written.borrow().len()).is_ok_and(|written| written >= conflicts);
        Ok(if is_last { Outcome::Written { version: 77, at } } else { Outcome::Conflict { present: Some(9) } })
    };
    let decide = |present: Option<Stored>| {
        let keyring = Keyring::default();
        let context = Context { keyring: &keyring, fresh: Fresh::draw() };
        let decided = decided(present.as_ref(), request, &author(), &context);
        std::future::ready(decided.map(|(decision, item)| Decided { decision, item, length: 0 }))
    };
    rounds((request, QUOTA), &LargeSlot::default(), read, decide, write).await
}

const QUOTA: Quota = Quota { documents: 5, kib: 100 };

fn author() -> Author {
    Author::of_api("ada".to_owned(), None)
}

fn request(action: Action) -> Request {
    Request { key: Key::new(Kind::SyncSet, "foo", "one"), action, condition: None, dry_run: false }
}

fn labels() -> Body {
    Body::from_json(br#"{"labels": {"a": "b"}}"#).expect("a body")
}

/// A row with a text of about so many bytes.
fn row(bytes: usize) -> StoredRow {
    let row = json!({"kind": "syncsets", "id": Uuid::nil(), "namespace": "foo", "name": "one", "labels": {}, "annotations": {},
        "finalizers": [], "generation": 1, "version": 1, "created_at": "2026-11-21T23:40:00Z", "updated_at": "2026-11-21T23:40:00Z",
        "deleted_at": null, "data": {"spec": {}}, "status": {"text": "x".repeat(bytes)}});
    StoredRow::of(row.to_string(), None)
}

#[test]
fn patches_of_syncsets_are_read_on_a_blocking_thread_and_take_a_slot_however_short_they_are() {
    let body = |text: &str| Body::from_json(text.as_bytes()).expect("a body");
    let patches = || body(r#"{"spec": {"patches": [{"patch": "a: &a 1"}]}}"#);
    let (with, without) = (StoredRow::of("{\"patches\": [{\"patch\": \"\"}]}".into(), None), row(10));
    let reads = |action, present| reads_patches(&request(action), present);
    for action in [Action::Create(patches()), Action::Apply(patches()), Action::Replace(Part::Document, patches())] {
        assert!(reads(action, None));
    }
    assert!(reads(Action::Merge(Part::Document, patches()), Some(&without)));
    assert!(reads(Action::Merge(Part::Document, labels()), Some(&with)), "what stays is checked again");
    assert!(!reads(Action::Merge(Part::Document, labels()), Some(&without)));
    assert!(!reads(Action::Replace(Part::Document, labels()), Some(&with)), "none stays");
    assert!(!reads(Action::Merge(Part::Status, patches()), Some(&with)) && !reads(Action::Delete(None), Some(&with)));
    let cluster = Request { key: Key::new(Kind::Cluster, "foo", "one"), ..request(Action::Create(patches())) };
    assert!(!reads_patches(&cluster, None));
    assert!(may_grow(&request(Action::Create(patches())), None) && !may_grow(&request(Action::Create(labels())), None));
}

#[tokio::test]
async fn a_short_syncset_whose_patches_have_aliases_keeps_the_runtime_s_thread_free() {
    let text = format!("a: &a {}\nb: [{}1]", "x".repeat(1000), "*a, ".repeat(3000));
    let spec = json!({"spec": {"patches": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "b", "patchType": "merge",
        "patch": text}]}});
    let body = Body::from_json(spec.to_string().as_bytes()).expect("a body");
    let (request, keyring, blocking) = (request(Action::Apply(body)), Keyring::default(), BlockingPool::default());
    let mut asked = Box::pin(decided_blocking(
        Arc::new(Asked { request, author: author(), quota: QUOTA, is_limited: true }),
        Arc::new(keyring),
        100,
        Some(row(10)),
        &blocking,
    ));
    assert!(asked.as_mut().now_or_never().is_none(), "it was decided on this thread");
    assert_eq!(asked.await.map(|decided| decided.decision.effect), Ok(Effect::Changed));
}

#[test]
fn a_short_patch_of_a_large_document_is_large() {
    let row = StoredRow::of("x".repeat(4 << 20), None);
    assert_eq!(longest(22, Some(&row)), 4 << 20);
    assert_eq!(longest(22, None), 22);
    assert_eq!(longest(5 << 20, Some(&row)), 5 << 20);
}

#[test]
fn a_patch_that_copies_is_as_large_as_what_it_may_make() {
    let of = |copies: usize| {
        let copy = json!({"op": "copy", "from": "/spec", "path": "/spec/a"});
        let text = serde_json::to_vec(&vec![copy; copies]).expect("JSON");
        grown(2000, &Action::Patch(Part::Document, Operations::from_json(&text).expect("operations")))
    };
    assert_eq!([of(0), of(1), of(5), of(12), of(999)], [2000, 4000, 64_000, LARGEST, LARGEST]);
    assert_eq!(grown(2000, &Action::Delete(None)), 2000);
}

#[tokio::test]
async fn a_patch_is_decided_again_up_to_five_times() {
    let patch = request(Action::Merge(Part::Document, labels()));
    for conflicts in 0..5 {
        let told = Told::default();
        let done = ask(&patch, conflicts, &told).await.expect("written");
        assert_eq!((done.effect, done.document.version), (Effect::Changed, 77));
        assert_eq!(done.document.updated_at.to_string(), "2026-11-22T00:00:00.000000Z");
        let versions: Vec<_> = (1..=conflicts + 1).map(Expected::Version).collect();
        assert_eq!((*told.reads.borrow(), &*told.written.borrow()), (conflicts + 1, &versions));
    }
    let told = Told::default();
    let problem = ask(&patch, 5, &told).await.expect_err("too many conflicts");
    assert_eq!((problem.kind, told.written.borrow().len()), (ProblemKind::Conflict, 5));
}

#[tokio::test]
async fn a_condition_ends_the_rounds() {
    let condition = IfMatch::parse("\"1\"").ok();
    let told = Told::default();
    let conditional = Request { condition, ..request(Action::Delete(None)) };
    let problem = ask(&conditional, 1, &told).await.expect_err("another version");
    assert_eq!((problem.kind, *told.reads.borrow()), (ProblemKind::Precondition, 2));
}

#[tokio::test]
async fn a_creation_reads_nothing_and_is_decided_once() {
    let create = || Action::Create(Body::from_json(b"{}").expect("a body"));
    let told = Told::default();
    let done = ask(&request(create()), 0, &told).await.expect("created");
    assert_eq!(
        (done.effect, done.document.created_at.to_string()),
        (Effect::Created, "2026-11-22T00:00:00.000000Z".into())
    );
    let problem = ask(&request(create()), 9, &told).await.expect_err("it exists");
    assert_eq!((problem.kind, *told.reads.borrow()), (ProblemKind::Exists, 0));
    assert_eq!(*told.written.borrow(), [Expected::Absent; 2]);
}

#[tokio::test]
async fn no_change_and_a_dry_run_read_once_and_write_nothing() {
    let told = Told::default();
    let same = request(Action::Merge(Part::Document, Body::from_json(b"{\"labels\": {}}").expect("a body")));
    let spec = ask(&same, 0, &told).await.expect("decided");
    assert_eq!(spec.document.version, 77, "defaults of an older release are written");
    let told = Told::default();
    let status = request(Action::Merge(Part::Status, Body::from_json(b"{}").expect("a body")));
    assert_eq!(ask(&status, 0, &told).await.expect("decided").effect, Effect::Unchanged);
    let dry_run = Request { dry_run: true, ..request(Action::Merge(Part::Document, labels())) };
    let done = ask(&dry_run, 0, &told).await.expect("decided");
    assert_eq!((done.effect, done.document.version), (Effect::Changed, 2));
    assert_eq!((*told.reads.borrow(), told.written.borrow().len()), (2, 0));
}

use std::cell::RefCell;

use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::db::DatabaseSource;
use crate::documents::decide::{IfMatch, Part};
use crate::documents::writer::Writer;
use crate::documents::{Body, Expected, Key, Kind, Operations, open};

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

async fn ask(request: &Request, conflicts: i64, told: &Told) -> Result<Done<()>, Problem> {
    ask_with_room(request, conflicts, told, |_| Ok(())).await
}

/// The same with this room for answers.
async fn ask_with_room<A>(
    request: &Request,
    mut conflicts: i64,
    told: &Told,
    admit: impl Fn(usize) -> Result<A, Problem>,
) -> Result<Done<A>, Problem> {
    conflicts += 1;
    let is_absent = matches!(request.action, Action::Create(_));
    let read = || async {
        *told.reads.borrow_mut() += 1;
        Ok((!is_absent).then(|| stored(*told.reads.borrow())))
    };
    let write = |item: Item| async move {
        told.written.borrow_mut().push(item.changes[0].expected);
        let at = "2026-11-22T00:00:00Z".parse().expect("a time");
        let is_last = i64::try_from(told.written.borrow().len()).is_ok_and(|written| written >= conflicts);
        Ok(if is_last { Outcome::Written { version: 77, at } } else { Outcome::Conflict { present: Some(9) } })
    };
    let decide = |present: Option<Stored>| {
        let keyring = Keyring::default();
        let context = Context { keyring: &keyring, fresh: Fresh::draw(), charge: &|_| Ok(()) };
        let decided = decided(present.as_ref(), request, &context);
        std::future::ready(decided.map(|(decision, item)| {
            let answer = printed_length(&decision.document);
            Decided { decision, item, length: 0, answer, memory: memory().share(None) }
        }))
    };
    rounds(request, read, decide, admit, write).await
}

fn request(action: Action) -> Request {
    Request { key: Key::new(Kind::SyncSet, "foo", "one"), action, condition: None, dry_run: false }
}

fn labels() -> Body {
    Body::from_json(br#"{"labels": {"a": "b"}}"#).expect("a body")
}

#[test]
fn large_changes_share_64_mib_and_small_ones_are_free() {
    let room = memory();
    let of = |bytes| {
        let memory = room.share(None);
        reserve(&memory, bytes).map(|()| memory)
    };
    let half = of(MEMORY / 2).expect("there is room");
    let rest = of(MEMORY / 2).expect("there is room");
    assert_eq!(of(FREE + 1).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
    assert!(of(FREE).is_ok(), "it is small");
    drop((half, rest));
    let all = of(9 * MEMORY).expect("one may have all");
    assert!(of(FREE + 1).is_err());
    drop(all);
    assert_eq!(room.taken(), (0, 0));
}

const ONE: Party = Some([1; 32]);

/// A row with a text of about so many bytes.
fn row(bytes: usize) -> StoredRow {
    let row = json!({"kind": "syncsets", "id": Uuid::nil(), "namespace": "foo", "name": "one", "labels": {}, "annotations": {},
        "finalizers": [], "generation": 1, "version": 1, "created_at": "2026-11-21T23:40:00Z", "updated_at": "2026-11-21T23:40:00Z",
        "deleted_at": null, "data": {"spec": {}}, "status": {"text": "x".repeat(bytes)}});
    StoredRow::of(row.to_string(), None)
}

/// Decides on documents of a room as the hub does, and counts the reads.
struct World {
    room: Room,
    aside: Aside,
    reads: RefCell<usize>,
    row: usize,
}

impl World {
    fn new(row: usize) -> Self {
        Self { room: memory(), aside: Aside::default(), reads: RefCell::default(), row }
    }

    async fn ask(&self, action: Action, party: Party) -> Result<Decided<Prepared>, Problem> {
        let request = Arc::new(request(action));
        let keyring = Arc::new(Keyring::default());
        let read = || async {
            *self.reads.borrow_mut() += 1;
            Ok(Some(row(self.row)))
        };
        let attempt = |present, memory| {
            let weight = Weight::of_json(b"{}");
            Asked { request: Arc::clone(&request), keyring: Arc::clone(&keyring), weight }.decided(
                present,
                memory,
                &self.aside,
            )
        };
        let until = Instant::now() + PATIENCE;
        in_turn(read().await?, self.room.share(party), until, &read, attempt).await
    }
}

#[tokio::test]
async fn twenty_large_changes_of_a_token_at_once_are_all_made_in_turn() {
    const LARGE: usize = (4 << 20) - 4096;
    let world = World::new(LARGE);
    let patch = || Action::Merge(Part::Document, labels());
    let all = (0..20).map(|_| world.ask(patch(), ONE));
    let decided = futures::future::join_all(all.map(|asked| async {
        let decided = asked.await?;
        let taken = world.room.taken().0;
        drop(decided);
        Ok::<_, Problem>(taken)
    }))
    .await;
    let taken: Vec<usize> = decided.into_iter().map(|taken| taken.expect("decided")).collect();
    assert!(taken.iter().all(|taken| (LARGE..=MEMORY / 2).contains(taken)), "{taken:?}");
    let (reads, most) = (*world.reads.borrow(), MEMORY / 2 / LARGE);
    assert!((20 + 20 - most..=2 * 20).contains(&reads), "{reads} reads: whoever waits reads again");
    assert_eq!(world.room.taken(), (0, 0));
}

#[tokio::test]
async fn a_change_of_more_than_half_of_the_memory_is_made_while_others_keep_coming() {
    let world = World::new(1 << 20);
    let patch = || Action::Merge(Part::Document, labels());
    let hold = || {
        let memory = world.room.share(None);
        reserve(&memory, MEMORY / 4).map(|()| memory)
    };
    let mut others: Vec<Share> = (0..2).map(|_| hold().expect("half of it")).collect();
    let weight = Weight { bytes: 1 << 20, built: MEMORY };
    let (request, keyring) = (Arc::new(request(patch())), Arc::new(Keyring::default()));
    let read = || async { Ok(Some(row(1 << 20))) };
    let attempt = |present, memory| {
        Asked { request: Arc::clone(&request), keyring: Arc::clone(&keyring), weight }.decided(
            present,
            memory,
            &world.aside,
        )
    };
    let until = Instant::now() + PATIENCE;
    let mut large = Box::pin(in_turn(read().await.expect("a row"), world.room.share(ONE), until, &read, attempt));
    assert!(large.as_mut().now_or_never().is_none());
    // It may be at work on another thread; then it waits.
    while hold().is_ok() {
        assert!(large.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    while let Some(other) = others.pop() {
        assert!(hold().is_err(), "nobody gets ahead of it");
        drop(other);
    }
    let decided = large.await.unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(world.room.taken(), (MEMORY, 1));
    drop(decided);
    assert!(hold().is_ok());
}

#[tokio::test]
async fn copies_have_room_before_they_are_made() {
    let copies = |count: usize| {
        let copy = json!({"op": "copy", "from": "/status", "path": "/spec/a"});
        let text = serde_json::to_vec(&vec![copy; count]).expect("JSON");
        Action::Patch(Part::Status, Operations::from_json(&text).expect("operations"))
    };
    let world = World::new(1 << 20);
    let alone = world.ask(copies(2), ONE).await.expect("decided");
    // The document, and the copies: the second one takes the place of the first one.
    assert!((3 << 20..4 << 20).contains(&world.room.taken().0), "{:?}", world.room.taken());
    drop(alone);
    let other = world.room.share(None);
    other.reserve(MEMORY - (2 << 20)).expect("there is room");
    // There is room for the document, and none for the copies.
    let mut asked = Box::pin(world.ask(copies(2), ONE));
    let is_waiting = || world.room.share(Some([3; 32])).reserve(1).is_err();
    while !is_waiting() {
        assert!(asked.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(world.room.taken().0, MEMORY - (2 << 20), "whoever waits has nothing");
    drop(other);
    let decided = asked.await.expect("decided in its turn");
    assert_eq!((*world.reads.borrow(), world.room.taken().1), (3, 1));
    drop(decided);
    assert_eq!(world.room.taken(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_has_no_turn_in_time_is_busy() {
    let world = World::new(1 << 20);
    let other = world.room.share(None);
    other.reserve(MEMORY).expect("there is room");
    let problem = world.ask(Action::Merge(Part::Document, labels()), ONE).await.err().expect("no room");
    assert_eq!(
        (problem.kind, problem.title.as_str()),
        (ProblemKind::Busy, "too many large documents are being changed")
    );
    let small = World { room: world.room.clone(), ..World::new(1000) };
    assert!(small.ask(Action::Merge(Part::Document, labels()), ONE).await.is_ok(), "it needs none");
}

#[test]
fn patches_of_syncsets_are_read_aside_however_short_they_are() {
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
}

#[tokio::test]
async fn a_short_syncset_whose_patches_have_aliases_keeps_the_runtime_s_thread_free() {
    let text = format!("a: &a {}\nb: [{}1]", "x".repeat(1000), "*a, ".repeat(3000));
    let spec = json!({"spec": {"patches": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "b", "patchType": "merge",
        "patch": text}]}});
    let body = Body::from_json(spec.to_string().as_bytes()).expect("a body");
    let world = World::new(10);
    let mut asked = Box::pin(world.ask(Action::Apply(body), ONE));
    assert!(asked.as_mut().now_or_never().is_none(), "it was decided on this thread");
    assert_eq!(asked.await.map(|decided| decided.decision.verdict), Ok(Verdict::Changed));
}

#[tokio::test]
async fn an_answer_has_room_of_its_own_and_none_of_the_memory_for_changes() {
    let (room, aside) = (memory(), Aside::default());
    let answers = Room::new(MEMORY, "answers");
    let memory = room.share(None);
    reserve(&memory, 40 << 20).expect("there is room");
    let mut document = stored(41).document;
    document.status.insert("text".to_owned(), "x".repeat(4 << 20).into());
    let answer = answers.share(None);
    answer.take(printed_length(&document)).expect("there is room");
    let done = Done { verdict: Verdict::Changed, document: document.clone(), length: 4 << 20, memory, answer };
    let (json, answer) = done.print(&aside).await.expect("printed");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).ok(), serde_json::to_value(&document).ok());
    assert_eq!((room.taken().0, answers.taken().0), (0, json.len()));
    drop(answer);
    assert_eq!(answers.taken().0, 0);
}

#[tokio::test]
async fn a_change_has_room_for_its_answer_in_every_round_before_it_is_written() {
    let patch = request(Action::Merge(Part::Document, labels()));
    let told = Told::default();
    let admitted = RefCell::new(Vec::new());
    let admit = |bytes| {
        admitted.borrow_mut().push((bytes, told.written.borrow().len()));
        if admitted.borrow().len() > 2 { Err(Problem::new(ProblemKind::Busy, "no room")) } else { Ok(()) }
    };
    let problem = ask_with_room(&patch, 4, &told, admit).await.expect_err("no room");
    assert_eq!(problem.kind, ProblemKind::Busy);
    let length = serde_json::to_vec(&ask(&patch, 0, &Told::default()).await.expect("written").document).expect("JSON");
    // The version has one digit more there.
    assert_eq!(*admitted.borrow(), [(length.len() - 1, 0), (length.len() - 1, 1), (length.len() - 1, 2)]);
    assert_eq!(told.written.borrow().len(), 2, "what is refused is not written");
}

/// A syncset whose patches have these texts.
fn with_patches(texts: &[String]) -> Body {
    let patch = |text: &String| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "b", "patchType": "merge", "patch": text});
    let patches: Vec<_> = texts.iter().map(patch).collect();
    Body::from_json(json!({"spec": {"patches": patches}}).to_string().as_bytes()).expect("a body")
}

/// A short text of many small maps: MiB of them.
fn aliases(mib: usize) -> String {
    // A map of an entry takes about 700 bytes.
    let maps = vec!["{a: 1}"; 100].join(", ");
    format!("a: &a [{maps}]\nb: [{}]", vec!["*a"; mib * 15].join(", "))
}

#[tokio::test]
async fn texts_of_patches_have_room_before_they_are_read_and_one_has_it_after_the_other() {
    let world = World::new(10);
    let decided = world.ask(Action::Apply(with_patches(&vec![aliases(2); 4])), ONE).await.expect("decided");
    let (taken, _) = world.room.taken();
    assert!((1 << 20..4 << 20).contains(&taken), "{taken}");
    drop(decided);
    let other = world.room.share(None);
    other.reserve(MEMORY - (1 << 20)).expect("there is room");
    let mut asked = Box::pin(world.ask(Action::Apply(with_patches(&[aliases(2)])), ONE));
    let is_waiting = || world.room.share(Some([3; 32])).reserve(1).is_err();
    while !is_waiting() {
        assert!(asked.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(world.room.taken().0, MEMORY - (1 << 20), "whoever waits has nothing");
    drop(other);
    assert_eq!(asked.await.map(|decided| decided.decision.verdict), Ok(Verdict::Changed));
    assert_eq!(world.room.taken(), (0, 0));
}

#[tokio::test]
async fn patches_that_need_the_whole_room_are_decided_after_a_few_turns() {
    let world = World::new(10);
    let decided = world.ask(Action::Apply(with_patches(&[aliases(70)])), ONE).await.expect("decided");
    assert_eq!(world.room.taken(), (MEMORY, 1));
    drop(decided);
    let other = world.room.share(None);
    other.reserve(MEMORY / 2).expect("there is room");
    let reads = *world.reads.borrow();
    let mut asked = Box::pin(world.ask(Action::Apply(with_patches(&[aliases(70)])), ONE));
    let is_waiting = || world.room.share(Some([3; 32])).reserve(1).is_err();
    while !is_waiting() {
        assert!(asked.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    drop(other);
    assert_eq!(asked.await.map(|decided| decided.decision.verdict), Ok(Verdict::Changed));
    assert!(*world.reads.borrow() - reads <= 10, "each turn has twice as much room as the last one needed");
}

#[tokio::test]
async fn a_body_without_a_key_has_the_faults_of_its_patches_told_as_far_as_there_is_room() {
    let url = "postgres://nobody@127.0.0.1:1/none".parse().expect("a URL");
    let database = open(DatabaseSource::Url(Box::new(url)));
    let (_writer, handle) = Writer::new(database.clone(), Arc::new(()));
    let (_keys, keyring) = watch::channel(Arc::new(Keyring::default()));
    let documents = Documents::new(Store::new(database), handle, keyring);
    // A list is no merge patch.
    let body = with_patches(&["[1]".to_owned(), format!("- {}", aliases(2).replace('\n', "\n  "))]);
    let faults = async || {
        let problem = documents.key_of(Kind::SelectorSyncSet, &body, ONE).await.expect_err("no key");
        problem.faults.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
    };
    assert_eq!(faults().await, ["/name", "/spec/patches/0/patch", "/spec/patches/1/patch"]);
    assert_eq!(documents.memory.taken(), (0, 0));
    let other = documents.memory.share(None);
    other.reserve(MEMORY).expect("there is room");
    assert_eq!(faults().await, ["/name", "/spec/patches/0/patch"], "the large one can't be read now");
    assert_eq!(documents.memory.taken(), (MEMORY, 0));
}

#[test]
fn a_short_patch_of_a_large_document_is_large() {
    let row = StoredRow::of("x".repeat(4 << 20), None);
    let patch = Weight::of_json(br#"{"labels": {"a": "b"}}"#);
    assert_eq!(longest(patch, Some(&row)), 4 << 20);
    assert_eq!(longest(patch, None), 22);
    let larger = Weight::of_json("x".repeat(5 << 20).as_bytes());
    assert_eq!(longest(larger, Some(&row)), 5 << 20);
}

#[test]
fn a_patch_that_copies_is_as_large_as_what_it_may_make() {
    let of = |copies: usize| {
        let copy = json!({"op": "copy", "from": "/spec", "path": "/spec/a"});
        let text = serde_json::to_vec(&vec![copy; copies]).expect("JSON");
        grown(2000, &Action::Patch(Part::Document, Operations::charged(&text, &|_| Ok(())).expect("operations")))
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
        assert_eq!((done.verdict, done.document.version), (Verdict::Changed, 77));
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
        (done.verdict, done.document.created_at.to_string()),
        (Verdict::Created, "2026-11-22T00:00:00.000000Z".into())
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
    assert_eq!(ask(&status, 0, &told).await.expect("decided").verdict, Verdict::Unchanged);
    let dry_run = Request { dry_run: true, ..request(Action::Merge(Part::Document, labels())) };
    let done = ask(&dry_run, 0, &told).await.expect("decided");
    assert_eq!((done.verdict, done.document.version), (Verdict::Changed, 2));
    assert_eq!((*told.reads.borrow(), told.written.borrow().len()), (2, 0));
}

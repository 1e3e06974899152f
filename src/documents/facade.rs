//! What a request about one document goes through: it is read, decided, and written, again if another write came first.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::aside::{Aside, ShutsDown};
use super::body::LARGEST;
use super::decide::{Action, Context, Decision, Fresh, Request, Verdict, decide, exists};
use super::document::Document;
use super::item::{Item, Outcome};
use super::keyring::Keyring;
use super::problem::{Problem, ProblemKind};
use super::room::{Party, Room, Share};
use super::store::{Store, Stored, StoredRow};
use super::weight::Weight;
use super::writer::{Prepared, WriterHandle};

/// How often a request is decided (rule A2). Each time, another write of the same document has come first.
const ROUNDS: u32 = 5;
/// What all changes may take in memory: the text of a document from its reading until the decision, and its values until it is written
/// and printed. The only change of a token may have all of it, several have half. While a
/// change is decided, it takes up to three times as much: the document as it was, as it will be, and as it is sent.
const MEMORY: usize = 64 << 20;
/// A change that takes no more is not counted.
const FREE: usize = 256 << 10;

/// Reads and changes documents. Clones share the writer and the keys.
#[derive(Clone)]
pub struct Documents {
    store: Store,
    writer: WriterHandle,
    keyring: watch::Receiver<Arc<Keyring>>,
    aside: Aside,
    memory: Room,
}

/// What has become of a request.
#[derive(Debug)]
pub struct Done {
    /// In a word.
    pub verdict: Verdict,
    /// The document as it is now; a removed one as it was last. After a dry run, as it would be: with the present version and times.
    pub document: Document,
    /// Bytes of the longest text that it was made from.
    length: usize,
    memory: Share,
}

impl Done {
    /// The document as clients see it, as JSON, and the memory that it has until it is sent. A large one is printed by `aside`.
    pub async fn print(self, aside: &Aside) -> Result<(Vec<u8>, Share), Problem> {
        let Self { document, memory, .. } = self;
        let print = move || {
            // Texts, numbers and maps with text keys always become JSON.
            let json = serde_json::to_vec(&document).unwrap_or_default();
            drop(document);
            memory.shrink(json.len());
            Ok((json, memory))
        };
        let printed: Result<_, ShutsDown> = aside.run(self.length, print).await;
        printed.map_err(|error| Problem::new(ProblemKind::OutcomeUnknown, error.to_string()))
    }
}

impl Documents {
    /// Reads through `store` and writes through `writer`. Each request uses the newest keys.
    pub fn new(store: Store, writer: WriterHandle, keyring: watch::Receiver<Arc<Keyring>>) -> Self {
        Self { store, writer, keyring, aside: Aside::default(), memory: memory() }
    }

    /// Reads single documents.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where large texts are read and printed.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }

    /// Carries out a request with a body of this weight. Its sender has the right to it.
    ///
    /// A creation takes no statement but a share of a write, unless it is a dry run; all else reads first.
    pub async fn change(&self, request: Request, weight: Weight, party: Party) -> Result<Done, Problem> {
        let (request, keyring) = (Arc::new(request), Arc::clone(&self.keyring.borrow()));
        let read = || async {
            let row = self.store.stored(&request.key).await?;
            row.map(|row| Present::of(row, self.memory.share(party))).transpose()
        };
        let decide = |present: Option<Present>| {
            let (request, keyring) = (Arc::clone(&request), Arc::clone(&keyring));
            let (row, memory) = match present {
                Some(Present { row, memory }) => (Some(row), memory),
                None => (None, self.memory.share(party)),
            };
            let length = grown(longest(weight, row.as_ref()), &request.action);
            let decide = move || {
                let present = row.as_ref().map_or(0, |row| row.weight().built.max(row.length()));
                hold(&memory, weight.built.saturating_add(present))?;
                let present = row.map(StoredRow::read).transpose()?;
                let (decision, item) = decided(present.as_ref(), &request, &keyring)?;
                Ok(Decided { decision, item: item.map(Prepared::from), length, memory })
            };
            self.aside.run(length, decide)
        };
        let write = |item: Prepared| async { Ok(self.writer.write(item).await?) };
        rounds(&request, read, decide, write).await
    }
}

/// A document that has been read and waits for its turn to be decided on. Its text is counted.
struct Present {
    row: StoredRow,
    memory: Share,
}

impl Present {
    /// Takes memory for the text of a row.
    fn of(row: StoredRow, memory: Share) -> Result<Self, Problem> {
        hold(&memory, row.length())?;
        Ok(Self { row, memory })
    }
}

/// What is to be done about a request.
struct Decided<I> {
    decision: Decision,
    /// What is to be written.
    item: Option<I>,
    length: usize,
    memory: Share,
}

/// The memory for what all changes have at the same time.
fn memory() -> Room {
    Room::new(MEMORY, "large documents are being changed")
}

/// Bytes of the longer text. A short patch of a large document takes as long as one that is as large.
fn longest(request: Weight, present: Option<&StoredRow>) -> usize {
    present.map_or(0, StoredRow::length).max(request.bytes)
}

/// The bytes of a document when a patch has copied parts of it: what was short may be long then.
fn grown(length: usize, action: &Action) -> usize {
    let copies = if let Action::Patch(_, operations) = action { operations.copies() } else { 0 };
    let doublings = u32::try_from(copies).unwrap_or(u32::MAX).min(LARGEST.ilog2());
    if doublings == 0 { length } else { length.saturating_mul(1 << doublings).min(LARGEST.max(length)) }
}

/// Has so much memory from now on, unless it is little. It does not wait for it: a change that waits has its document's text.
fn hold(memory: &Share, bytes: usize) -> Result<(), Problem> {
    memory.hold(if bytes <= FREE { 0 } else { bytes })
}

/// The decision, and what is to be written of it: nothing in a dry run.
fn decided(
    present: Option<&Stored>,
    request: &Request,
    keyring: &Keyring,
) -> Result<(Decision, Option<Item>), Problem> {
    let mut decision = decide(present, request, &Context { keyring, fresh: Fresh::draw() })?;
    let item = decision.item.take().filter(|_| !request.dry_run);
    Ok((decision, item))
}

/// Reads, decides and writes until no other write comes first.
async fn rounds<P, I, R, D, W>(
    request: &Request,
    read: impl Fn() -> R,
    decide: impl Fn(Option<P>) -> D,
    write: impl Fn(I) -> W,
) -> Result<Done, Problem>
where
    R: Future<Output = Result<Option<P>, Problem>>,
    D: Future<Output = Result<Decided<I>, Problem>>,
    W: Future<Output = Result<Outcome, Problem>>,
{
    let is_creation = matches!(request.action, Action::Create(_));
    for _ in 0..ROUNDS {
        // Whether a new document exists is found out by the write.
        let present = if is_creation && !request.dry_run { None } else { read().await? };
        let Decided { decision, item, length, memory } = decide(present).await?;
        let verdict = decision.verdict;
        let Some(item) = item else {
            return Ok(Done { verdict, document: decision.document, length, memory });
        };
        match write(item).await? {
            Outcome::Written { version, at } => {
                return Ok(Done { verdict, document: decision.written(version, &at), length, memory });
            }
            Outcome::Conflict { .. } if is_creation => return Err(exists(&request.key)),
            Outcome::Conflict { .. } => {}
            // Only items with a claim are fenced, and these have none.
            Outcome::Fenced => return Err(Problem::new(ProblemKind::Unavailable, "the write was fenced")),
        }
    }
    let title = format!("{} was changed by others {ROUNDS} times meanwhile", request.key);
    Err(Problem::new(ProblemKind::Conflict, title))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::documents::decide::{IfMatch, Part};
    use crate::documents::{Body, Expected, Key, Kind, Operations};

    /// A syncset with this version.
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
            Ok((!is_absent).then(|| stored(*told.reads.borrow())))
        };
        let write = |item: Item| async move {
            told.written.borrow_mut().push(item.changes[0].expected);
            let at = "2026-11-22T00:00:00Z".parse().expect("a time");
            let is_last = i64::try_from(told.written.borrow().len()).is_ok_and(|written| written >= conflicts);
            Ok(if is_last { Outcome::Written { version: 77, at } } else { Outcome::Conflict { present: Some(9) } })
        };
        let decide = |present: Option<Stored>| {
            let decided = decided(present.as_ref(), request, &Keyring::default());
            std::future::ready(decided.map(|(decision, item)| Decided {
                decision,
                item,
                length: 0,
                memory: memory().share(None),
            }))
        };
        rounds(request, read, decide, write).await
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
            hold(&memory, bytes).map(|()| memory)
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

    #[test]
    fn the_texts_that_wait_for_a_decision_are_counted() {
        let room = memory();
        let read = |bytes, party| Present::of(StoredRow::of("x".repeat(bytes), None), room.share(party));
        let one = Some([1; 32]);
        let mut waiting: Vec<Present> = (0..8).map(|_| read(4 << 20, one).expect("half of it")).collect();
        assert_eq!(read(4 << 20, one).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
        waiting.extend((0..8).map(|_| read(4 << 20, Some([2; 32])).expect("the other half")));
        assert_eq!(read(4 << 20, None).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
        assert!(read(FREE, one).is_ok(), "small documents are free");
        assert_eq!(room.taken().0, MEMORY);
        drop(waiting);
        let alone = read(4 << 20, one).expect("there is room again");
        assert_eq!(hold(&alone.memory, 2 * MEMORY), Ok(()), "one alone is always possible");
        assert_eq!(room.taken(), (MEMORY, 1));
    }

    #[tokio::test]
    async fn an_answer_keeps_its_memory_until_it_is_sent_and_what_its_values_had_beside_is_free() {
        let (room, aside) = (memory(), Aside::default());
        let memory = room.share(None);
        hold(&memory, 40 << 20).expect("there is room");
        let mut document = stored(41).document;
        document.status.insert("text".to_owned(), "x".repeat(4 << 20).into());
        let done = Done { verdict: Verdict::Changed, document: document.clone(), length: 4 << 20, memory };
        let (json, memory) = done.print(&aside).await.expect("printed");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).ok(), serde_json::to_value(&document).ok());
        assert_eq!(room.taken().0, json.len());
        drop(memory);
        assert_eq!(room.taken().0, 0);
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
}

//! What a request about one document goes through: it is read, decided, and written, again if another write came first.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::aside::Aside;
use super::decide::{Action, Context, Decision, Fresh, Request, Verdict, decide, exists};
use super::document::Document;
use super::item::{Item, Outcome};
use super::keyring::Keyring;
use super::problem::{Problem, ProblemKind};
use super::store::{Store, Stored, StoredRow};
use super::weight::Weight;
use super::writer::{Prepared, WriterHandle};

/// How often a request is decided (rule A2). Each time, another write of the same document has come first.
const ROUNDS: u32 = 5;
/// What the values of all changes may take in memory from the reading of the document until it is written. A single change may have
/// all of it. While it is decided, it takes up to three times as much: the document as it was, as it will be, and as it is sent.
const MEMORY: u32 = 64 << 20;
/// What each change may have beside that.
const FREE: usize = 256 << 10;

/// Reads and changes documents. Clones share the writer and the keys.
#[derive(Clone)]
pub struct Documents {
    store: Store,
    writer: WriterHandle,
    keyring: watch::Receiver<Arc<Keyring>>,
    aside: Aside,
    memory: Arc<Semaphore>,
}

/// What has become of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// In a word.
    pub verdict: Verdict,
    /// The document as it is now; a removed one as it was last. After a dry run, as it would be: with the present version and times.
    pub document: Document,
}

impl Documents {
    /// Reads through `store` and writes through `writer`. Each request uses the newest keys.
    pub fn new(store: Store, writer: WriterHandle, keyring: watch::Receiver<Arc<Keyring>>) -> Self {
        let memory = Arc::new(Semaphore::new(MEMORY as usize));
        Self { store, writer, keyring, aside: Aside::default(), memory }
    }

    /// Reads single documents.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where large bodies are read.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }

    /// Carries out a request with a body of this weight. Its sender has the right to it.
    ///
    /// A creation takes no statement but a share of a write, unless it is a dry run; all else reads first.
    pub async fn change(&self, request: Request, weight: Weight) -> Result<Done, Problem> {
        let (request, keyring) = (Arc::new(request), Arc::clone(&self.keyring.borrow()));
        let read = || async { Ok(self.store.stored(&request.key).await?) };
        let decide = |present: Option<StoredRow>| {
            let (request, keyring) = (Arc::clone(&request), Arc::clone(&keyring));
            let memory = Arc::clone(&self.memory);
            let bytes = longest(weight, present.as_ref());
            let decide = move || {
                let present_weight = present.as_ref().map(StoredRow::weight).unwrap_or_default();
                let memory = hold(&memory, weight.built.saturating_add(present_weight.built))?;
                let present = present.map(StoredRow::read).transpose()?;
                let (decision, item) = decided(present.as_ref(), &request, &keyring)?;
                Ok(Decided { decision, item: item.map(Prepared::from), _memory: memory })
            };
            self.aside.run(bytes, decide)
        };
        let write = |item: Prepared| async { Ok(self.writer.write(item).await?) };
        rounds(&request, read, decide, write).await
    }
}

/// What is to be done about a request.
struct Decided<I> {
    decision: Decision,
    /// What is to be written.
    item: Option<I>,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Bytes of the longer text. A short patch of a large document takes as long as one that is as large.
fn longest(request: Weight, present: Option<&StoredRow>) -> usize {
    present.map_or(0, StoredRow::length).max(request.bytes)
}

/// Takes memory for what is read and decided, unless it is little. It does not wait: a change that waits has its document's text.
fn hold(memory: &Arc<Semaphore>, built: usize) -> Result<Option<OwnedSemaphorePermit>, Problem> {
    if built <= FREE {
        return Ok(None);
    }
    let permits = u32::try_from(built).unwrap_or(MEMORY).min(MEMORY);
    let held = Arc::clone(memory).try_acquire_many_owned(permits).ok();
    held.map(Some).ok_or_else(|| Problem::new(ProblemKind::Busy, "too many large documents are being changed"))
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
        let Decided { decision, item, _memory } = decide(present).await?;
        let verdict = decision.verdict;
        let Some(item) = item else {
            return Ok(Done { verdict, document: decision.document });
        };
        match write(item).await? {
            Outcome::Written { version, at } => return Ok(Done { verdict, document: decision.written(version, &at) }),
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
    use crate::documents::{Body, Expected, Key, Kind};

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
            std::future::ready(decided.map(|(decision, item)| Decided { decision, item, _memory: None }))
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
        let memory = Arc::new(Semaphore::new(MEMORY as usize));
        let of = |built| hold(&memory, built);
        let half = of(MEMORY as usize / 2).expect("there is room");
        let rest = of(MEMORY as usize / 2).expect("there is room");
        assert_eq!(of(FREE + 1).err().map(|problem| problem.kind), Some(ProblemKind::Busy));
        assert!(of(FREE).expect("it is small").is_none());
        drop((half, rest));
        let all = of(9 * MEMORY as usize).expect("one may have all");
        assert!(of(FREE + 1).is_err());
        drop(all);
        assert_eq!(memory.available_permits(), MEMORY as usize);
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

//! What a request about one document goes through: it is read, decided, and written, again if another write came first.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::aside::Aside;
use super::decide::{Action, Context, Decision, Fresh, Request, Verdict, decide, exists};
use super::document::Document;
use super::item::{Item, Outcome};
use super::keyring::Keyring;
use super::problem::{Problem, ProblemKind};
use super::store::{Store, Stored};
use super::writer::WriterHandle;

/// How often a request is decided (rule A2). Each time, another write of the same document has come first.
const ROUNDS: u32 = 5;

/// Reads and changes documents. Clones share the writer and the keys.
#[derive(Clone)]
pub struct Documents {
    store: Store,
    writer: WriterHandle,
    keyring: watch::Receiver<Arc<Keyring>>,
    aside: Aside,
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
        Self { store, writer, keyring, aside: Aside::default() }
    }

    /// Reads single documents.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where large bodies are read.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }

    /// Carries out a request, which came in `bytes` bytes. Its sender has the right to it.
    ///
    /// A creation takes no statement but a share of a write, unless it is a dry run; all else reads first.
    pub async fn change(&self, request: Request, bytes: usize) -> Result<Done, Problem> {
        let (request, keyring) = (Arc::new(request), Arc::clone(&self.keyring.borrow()));
        let read = || async { Ok(self.store.stored(&request.key).await?) };
        let decide = |present: Option<Stored>| {
            let (request, keyring) = (Arc::clone(&request), Arc::clone(&keyring));
            let decide =
                move || decide(present.as_ref(), &request, &Context { keyring: &keyring, fresh: Fresh::draw() });
            self.aside.run(bytes, decide)
        };
        let write = |item| async { Ok(self.writer.write(item).await?) };
        rounds(&request, read, decide, write).await
    }
}

/// Reads, decides and writes until no other write comes first.
async fn rounds<R, D, W>(
    request: &Request,
    read: impl Fn() -> R,
    decide: impl Fn(Option<Stored>) -> D,
    write: impl Fn(Item) -> W,
) -> Result<Done, Problem>
where
    R: Future<Output = Result<Option<Stored>, Problem>>,
    D: Future<Output = Result<Decision, Problem>>,
    W: Future<Output = Result<Outcome, Problem>>,
{
    let is_creation = matches!(request.action, Action::Create(_));
    for _ in 0..ROUNDS {
        // Whether a new document exists is found out by the write.
        let present = if is_creation && !request.dry_run { None } else { read().await? };
        let mut decision = decide(present).await?;
        let verdict = decision.verdict;
        let Some(item) = decision.item.take().filter(|_| !request.dry_run) else {
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
            let context = Context { keyring: &Keyring::default(), fresh: Fresh::draw() };
            std::future::ready(decide(present.as_ref(), request, &context))
        };
        rounds(request, read, decide, write).await
    }

    fn request(action: Action) -> Request {
        Request { key: Key::new(Kind::SyncSet, "foo", "one"), action, condition: None, dry_run: false }
    }

    fn labels() -> Body {
        Body::from_json(br#"{"labels": {"a": "b"}}"#).expect("a body")
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

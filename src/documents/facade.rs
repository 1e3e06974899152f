//! What a request about one document goes through: it is read, decided, and written, again if another write came first.
//!
//! A large document has room before it is decided on. Where there is none, what was read is dropped, and read again when its turn has
//! come: nobody waits with memory in hand.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::aside::{Aside, ShutsDown};
use super::body::{Body, Charge, LARGEST, LARGEST_BUILT};
use super::decide::{Action, Context, Decision, Fresh, Part, Request, Verdict, decide, exists};
use super::document::{Document, Key};
use super::item::{Item, Outcome};
use super::keyring::Keyring;
use super::kind::Kind;
use super::list_error::ListError;
use super::problem::{Problem, ProblemKind};
use super::room::{Party, Room, Share};
use super::store::{Store, Stored, StoredRow};
use super::validate::{check_without_key, key_with_faults};
use super::weight::Weight;
use super::writer::{Prepared, WriterHandle};

/// How often a request is decided. Each time, another write of the same document has come first.
const ROUNDS: u32 = 5;
/// What all changes may take in memory: the text of a document from its reading until the decision, and its values until it is written
/// and printed. The only change of a token may have all of it, several have half. While a
/// change is decided, it takes up to three times as much: the document as it was, as it will be, and as it is sent.
const MEMORY: usize = 64 << 20;
/// A change that takes no more is not counted.
const FREE: usize = 256 << 10;
/// The field of a syncset with texts of patches.
const PATCHES: [&str; 2] = ["spec", "patches"];
/// How long a change waits for its turn to have more, in all. A turn takes about a second, and a client as long to send a body.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads and changes documents. Clones share the writer and the keys.
#[derive(Clone)]
pub struct Documents {
    store: Store,
    writer: WriterHandle,
    keyring: watch::Receiver<Arc<Keyring>>,
    aside: Aside,
    memory: Room,
}

/// What has become of a request. `A` is the room of its answer.
#[derive(Debug)]
pub struct Done<A> {
    pub verdict: Verdict,
    /// The document as it is now; a removed one as it was last. After a dry run, as it would be: with the present version and times.
    pub document: Document,
    /// Bytes of the longest text that it was made from.
    length: usize,
    memory: Share,
    answer: A,
}

impl<A> Done<A> {
    /// The document as clients see it, as JSON, and the room that it has until it is sent. What the decision had of the memory for changes is
    /// free then, however slow the client is. A large one is printed by `aside`.
    pub async fn print(self, aside: &Aside) -> Result<(Vec<u8>, A), Problem> {
        let Self { document, memory, answer, .. } = self;
        let print = move || {
            // Texts, numbers and maps with text keys always become JSON.
            let json = serde_json::to_vec(&document).unwrap_or_default();
            drop((document, memory));
            Ok(json)
        };
        let printed: Result<_, ShutsDown> = aside.run(self.length, print).await;
        let json = printed.map_err(|error| Problem::new(ProblemKind::OutcomeUnknown, error.to_string()))?;
        Ok((json, answer))
    }
}

impl Documents {
    /// Reads through `store` and writes through `writer`. Each request uses the newest keys.
    pub fn new(store: Store, writer: WriterHandle, keyring: watch::Receiver<Arc<Keyring>>) -> Self {
        Self { store, writer, keyring, aside: Aside::default(), memory: memory() }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where large texts are read and printed.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }

    /// The key of a new document, from its body. If it has none, the problem has all faults of the body, those of its patches as far as
    /// there is room to read them.
    pub async fn key_of(&self, kind: Kind, body: &Body, party: Party) -> Result<Key, Problem> {
        let (key, faults) = key_with_faults(kind, body);
        if faults.is_empty() {
            return Ok(key);
        }
        let (memory, body, has_patches) = (self.memory.share(party), body.clone(), body.has_elements(PATCHES));
        let check = move || {
            let all = AtomicUsize::new(0);
            let charge = |more: usize| reserve(&memory, all.fetch_add(more, Ordering::Relaxed).saturating_add(more));
            check_without_key(&key, &body, faults, &charge).map(|()| key)
        };
        if has_patches { self.aside.apart(check).await } else { check() }
    }

    /// Carries out a request with a body of this weight. Its sender has the right to it.
    ///
    /// A creation takes no statement but a share of a write, unless it is a dry run; all else reads first, and a large document again
    /// if it had to wait for room.
    ///
    /// `admit` is told the size of the answer before anything is written, and gives it room or refuses the request.
    pub async fn change<A>(
        &self,
        request: Request,
        weight: Weight,
        party: Party,
        admit: impl Fn(usize) -> Result<A, Problem>,
    ) -> Result<Done<A>, Problem> {
        let (request, keyring) = (Arc::new(request), Arc::clone(&self.keyring.borrow()));
        let until = Instant::now() + PATIENCE;
        let read = || async { Ok(self.store.stored(&request.key).await?) };
        let decide = |present: Option<StoredRow>| {
            let attempt = |present: Option<StoredRow>, memory: Share| {
                let asked = Asked { request: Arc::clone(&request), keyring: Arc::clone(&keyring), weight };
                asked.decided(present, memory, &self.aside)
            };
            in_turn(present, self.memory.share(party), until, &read, attempt)
        };
        let write = |item: Prepared| async { Ok(self.writer.write(item).await?) };
        rounds(&request, &read, decide, admit, write).await
    }
}

/// A request that is decided on.
struct Asked {
    request: Arc<Request>,
    keyring: Arc<Keyring>,
    /// That of its body.
    weight: Weight,
}

/// What is to be done about a request.
struct Decided<I> {
    decision: Decision,
    item: Option<I>,
    length: usize,
    /// Bytes of the answer, up to the digits of the version and the times.
    answer: usize,
    memory: Share,
}

enum Undecided {
    /// It needs so many bytes.
    NoRoom(usize),
    /// No decision can be made, for this reason.
    Problem(Problem),
}

impl From<Problem> for Undecided {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<ListError> for Undecided {
    fn from(error: ListError) -> Self {
        Self::Problem(error.into())
    }
}

impl From<ShutsDown> for Undecided {
    fn from(error: ShutsDown) -> Self {
        Self::Problem(error.into())
    }
}

impl Asked {
    /// A decision about the present document with the memory that it needs.
    async fn decided(
        self,
        present: Option<StoredRow>,
        memory: Share,
        aside: &Aside,
    ) -> Result<Decided<Prepared>, Undecided> {
        let Self { request, keyring, weight } = self;
        // While it waits for a thread, its text is counted.
        let text = present.as_ref().map_or(0, StoredRow::length);
        reserve(&memory, text).map_err(|_| Undecided::NoRoom(expected(weight, text)))?;
        let length = grown(longest(weight, present.as_ref()), &request.action);
        let reads_patches = reads_patches(&request, present.as_ref());
        let decide = move || {
            let present_built = present.as_ref().map_or(0, |row| row.weight().built.max(row.length()));
            let bytes = weight.built.saturating_add(present_built);
            reserve(&memory, bytes).map_err(|_| Undecided::NoRoom(bytes))?;
            let present = present.map(StoredRow::read).transpose()?;
            let (decision, item) = with_room(bytes, &request.action, &memory, |charge| {
                let context = Context { keyring: &keyring, fresh: Fresh::draw(), charge };
                decided(present.as_ref(), &request, &context)
            })?;
            let answer = printed_length(&decision.document);
            Ok(Decided { decision, item: item.map(Prepared::from), length, answer, memory })
        };
        if reads_patches { aside.apart(decide).await } else { aside.run(length, decide).await }
    }
}

/// Decides with memory for what copies and the texts of patches build beside so many bytes.
fn with_room<T>(
    bytes: usize,
    action: &Action,
    memory: &Share,
    decide: impl FnOnce(Charge<'_>) -> Result<T, Problem>,
) -> Result<T, Undecided> {
    let (all, is_full) = (AtomicUsize::new(bytes), AtomicBool::new(false));
    let charge = |more: usize| {
        let all = all.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        reserve(memory, all).inspect_err(|_| is_full.store(true, Ordering::Relaxed))
    };
    let decided = decide(&charge).map_err(|problem| {
        if is_full.load(Ordering::Relaxed) {
            // Where the copies end is not known before they are made, nor how large a text with aliases is.
            let built = bytes.saturating_mul(1 << doublings(action)).min(LARGEST_BUILT);
            let all = all.load(Ordering::Relaxed);
            Undecided::NoRoom(bytes.saturating_add(built).max(all.saturating_mul(2)))
        } else {
            Undecided::Problem(problem)
        }
    })?;
    // It may have waited for more.
    let used = all.load(Ordering::Relaxed);
    memory.shrink(if used <= FREE { 0 } else { used });
    Ok(decided)
}

/// Decides; where there is no room for it, when its turn has come, about what is read then.
async fn in_turn<P, I, R, D>(
    present: Option<P>,
    memory: Share,
    until: Instant,
    read: impl Fn() -> R,
    decide: impl Fn(Option<P>, Share) -> D,
) -> Result<Decided<I>, Problem>
where
    R: Future<Output = Result<Option<P>, Problem>>,
    D: Future<Output = Result<Decided<I>, Undecided>>,
{
    let (reads, turn) = (present.is_some(), memory.another());
    let mut undecided = decide(present, memory).await;
    loop {
        let bytes = match undecided {
            Ok(decided) => return Ok(decided),
            Err(Undecided::Problem(problem)) => return Err(problem),
            Err(Undecided::NoRoom(bytes)) => bytes,
        };
        let memory = turn.another();
        memory.wait(bytes, until).await?;
        // It may need more by then, and waits again.
        let present = if reads { read().await? } else { None };
        undecided = decide(present, memory).await;
    }
}

/// The memory for what all changes have at the same time.
fn memory() -> Room {
    Room::new(MEMORY, "large documents are being changed")
}

/// What a document with a text of this length is likely to need, so that most of those that have waited do not have to wait again: it has
/// some large texts, as most large ones have.
fn expected(request: Weight, text: usize) -> usize {
    request.built.saturating_add(text).saturating_add(text / 8 + FREE)
}

/// Bytes of the longer text. A short patch of a large document takes as long as one that is as large.
fn longest(request: Weight, present: Option<&StoredRow>) -> usize {
    present.map_or(0, StoredRow::length).max(request.bytes)
}

/// The bytes of a document when a patch has copied parts of it: what was short may be long then.
fn grown(length: usize, action: &Action) -> usize {
    let doublings = doublings(action);
    if doublings == 0 { length } else { length.saturating_mul(1 << doublings).min(LARGEST.max(length)) }
}

/// How often a patch may double the document, as far as that is allowed.
fn doublings(action: &Action) -> u32 {
    let copies = if let Action::Patch(_, operations) = action { operations.copies() } else { 0 };
    u32::try_from(copies).unwrap_or(u32::MAX).min(LARGEST.ilog2())
}

/// Whether texts of patches are read: each takes a thread where it is YAML, and its aliases may make 4 MiB of a short one.
fn reads_patches(request: &Request, present: Option<&StoredRow>) -> bool {
    if !matches!(request.key.kind, Kind::SyncSet | Kind::SelectorSyncSet) {
        return false;
    }
    // What stays is checked again.
    let stay = || present.is_some_and(|row| row.contains("\"patches\": [{"));
    match &request.action {
        Action::Create(body) | Action::Apply(body) | Action::Replace(Part::Document, body) => {
            body.has_elements(PATCHES)
        }
        Action::Merge(Part::Document, body) => body.has_elements(PATCHES) || stay(),
        Action::Patch(Part::Document, operations) => operations.may_change(PATCHES) || stay(),
        Action::Delete(_) | Action::Replace(..) | Action::Merge(..) | Action::Patch(..) => false,
    }
}

/// Has so much memory from now on, unless it is little. It does not wait for it.
fn reserve(memory: &Share, bytes: usize) -> Result<(), Problem> {
    if bytes <= FREE { Ok(()) } else { memory.reserve(bytes) }
}

/// The decision, and what is to be written of it: nothing in a dry run.
fn decided(
    present: Option<&Stored>,
    request: &Request,
    context: &Context<'_>,
) -> Result<(Decision, Option<Item>), Problem> {
    let mut decision = decide(present, request, context)?;
    let item = decision.item.take().filter(|_| !request.dry_run);
    Ok((decision, item))
}

/// Bytes of the document as clients see it.
fn printed_length(document: &Document) -> usize {
    let mut counted = Counted(0);
    // Counting does not fail, and a document always becomes JSON.
    let _ = serde_json::to_writer(&mut counted, document);
    counted.0
}

/// Counts what is written to it.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads, decides and writes until no other write comes first.
async fn rounds<P, I, A, R, D, W>(
    request: &Request,
    read: impl Fn() -> R,
    decide: impl Fn(Option<P>) -> D,
    admit: impl Fn(usize) -> Result<A, Problem>,
    write: impl Fn(I) -> W,
) -> Result<Done<A>, Problem>
where
    R: Future<Output = Result<Option<P>, Problem>>,
    D: Future<Output = Result<Decided<I>, Problem>>,
    W: Future<Output = Result<Outcome, Problem>>,
{
    let is_creation = matches!(request.action, Action::Create(_));
    for _ in 0..ROUNDS {
        // Whether a new document exists is found out by the write.
        let present = if is_creation && !request.dry_run { None } else { read().await? };
        let Decided { decision, item, length, answer, memory } = decide(present).await?;
        // What was written can't be refused any more.
        let answer = admit(answer)?;
        let verdict = decision.verdict;
        let Some(item) = item else {
            return Ok(Done { verdict, document: decision.document, length, memory, answer });
        };
        match write(item).await? {
            Outcome::Written { version, at } => {
                return Ok(Done { verdict, document: decision.written(version, &at), length, memory, answer });
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
mod tests;

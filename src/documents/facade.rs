//! What a request about one document goes through: it is read, decided, and written, again if another write came first.
//!
//! A request with a large body or document has one of the [`LargeSlots`] until its client has the answer. So the number of
//! large documents in memory is bounded, and nobody waits for a slot with one in hand.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::blocking::{BlockingPool, ShutsDown};
use super::body::{Body, LARGEST};
use super::changes::Changes;
use super::decide::{Action, Context, Decision, Effect, Fresh, Part, Request, decide, exists};
use super::document::{Document, Key};
use super::history::{Author, Record};
use super::item::{Item, Outcome, Quota, Usage};
use super::keyring::Keyring;
use super::kind::Kind;
use super::large::{LargeSlot, LargeSlots};
use super::problem::{Problem, ProblemKind};
use super::store::{Store, Stored, StoredRow};
use super::validate::{check_without_key, key_with_faults};
use super::writer::{Prepared, WriterHandle};

/// How often a request is decided. Each time, another write of the same document has come first.
const ROUNDS: u32 = 5;
/// Requests with large bodies or documents at a time. Each has a body of up to 5 MiB and what is built of it and of the document, which is
/// at most 80 MiB each and usually as much as their text.
const MOST_LARGE: usize = 8;
/// What has more bytes is large. 256 requests with as much have 8 MiB, and what is built of them takes up to 56 times as much.
const LARGE: usize = 32 << 10;
/// The field of a syncset with texts of patches.
const PATCHES: [&str; 2] = ["spec", "patches"];

/// Reads and changes documents. Clones share the writer, the keys and the slots.
#[derive(Clone)]
pub struct Documents {
    store: Store,
    writer: WriterHandle,
    keyring: watch::Receiver<Arc<Keyring>>,
    /// What each namespace may have.
    quota: Quota,
    changes: Changes,
    blocking: BlockingPool,
    slots: LargeSlots,
}

/// What has become of a request.
#[derive(Debug)]
pub struct Done {
    pub effect: Effect,
    /// The document as it is now; a removed one as it was last. After a dry run, as it would be: with the present version and times.
    pub document: Document,
    /// Whether a syncset has no rollout any more.
    pub ends_rollout: bool,
    /// Bytes of the longest text that it was made from.
    length: usize,
    slot: LargeSlot,
}

impl Done {
    /// The document as clients see it, as JSON, and the slot that it has until it is sent. A large one is printed on a thread of `blocking`.
    pub async fn print(self, blocking: &BlockingPool) -> Result<(Vec<u8>, LargeSlot), Problem> {
        let Self { document, length, slot, .. } = self;
        // Texts, numbers and maps with text keys always become JSON.
        let print = move || Ok(serde_json::to_vec(&document).unwrap_or_default());
        let printed: Result<_, ShutsDown> = blocking.run(length, print).await;
        let json = printed.map_err(|error| Problem::new(ProblemKind::OutcomeUnknown, error.to_string()))?;
        Ok((json, slot))
    }
}

impl Documents {
    /// Reads through `store` and writes through `writer`. Each request uses the newest keys. `changes` says which namespaces have changed too
    /// much.
    pub fn new(
        store: Store,
        writer: WriterHandle,
        keyring: watch::Receiver<Arc<Keyring>>,
        (quota, changes): (Quota, Changes),
    ) -> Self {
        let slots = LargeSlots::new("large bodies and documents", MOST_LARGE, LARGE);
        Self { store, writer, keyring, quota, changes, blocking: BlockingPool::default(), slots }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where large texts are read and printed.
    pub fn blocking(&self) -> &BlockingPool {
        &self.blocking
    }

    /// The slots for requests with large bodies or documents.
    pub fn slots(&self) -> &LargeSlots {
        &self.slots
    }

    /// The key of a new document, from its body, which has this slot. If it has none, the problem has all faults of the body.
    pub async fn key_of(&self, kind: Kind, body: &Body, slot: &LargeSlot) -> Result<Key, Problem> {
        let (key, faults) = key_with_faults(kind, body);
        if faults.is_empty() {
            return Ok(key);
        }
        let (body, has_patches) = (body.clone(), body.has_elements(PATCHES));
        let needs_slot = has_patches && !slot.is_for_large();
        let _slot = if needs_slot { self.slots.take(slot.owner()).await? } else { slot.clone() };
        let check = move || check_without_key(&key, &body, faults).map(|()| key);
        if has_patches { self.blocking.apart(check).await } else { check() }
    }

    /// Carries out a request of this author with a body of so many bytes, which has this slot. Its sender has the right to it.
    ///
    /// A creation takes no statement but a share of a write, unless it is a dry run; all else reads first, and a large document again
    /// if it had to wait for its slot. Deletions, what changes nothing, and what administrators of everything want, are carried out however much
    /// the namespace has changed.
    pub async fn change(
        &self,
        (request, author): (Request, Author),
        bytes: usize,
        slot: LargeSlot,
    ) -> Result<Done, Problem> {
        let is_limited = !slot.owner().is_administrator;
        // What can only add to the log costs no decision.
        if is_limited && !request.dry_run && matches!(request.action, Action::Create(_)) {
            self.changes.admit(&request.key.namespace)?;
        }
        let asked = Asked { request, author, quota: self.quota, is_limited };
        let (asked, keyring) = (Arc::new(asked), Arc::clone(&self.keyring.borrow()));
        let request = &asked.request;
        let needs_slot = may_grow(request, None) && !slot.is_for_large();
        let slot = if needs_slot { self.slots.take(slot.owner()).await? } else { slot };
        let read = || self.read(request, slot.clone());
        let decide = async |present| {
            let (asked, keyring) = (Arc::clone(&asked), Arc::clone(&keyring));
            let decided = decided_blocking(asked, keyring, bytes, present, &self.blocking).await?;
            let ends = matches!(decided.decision.effect, Effect::Deleting | Effect::Deleted);
            if is_limited && decided.item.is_some() && !ends {
                self.changes.admit(&request.key.namespace)?;
            }
            Ok(decided)
        };
        let write = |item: Prepared| async { Ok(self.writer.write(item).await?) };
        rounds((request, self.quota), &slot, read, decide, write).await
    }

    /// The present document, with the slot that it needs.
    async fn read(&self, request: &Request, slot: LargeSlot) -> Result<(Option<StoredRow>, LargeSlot), Problem> {
        let key = &request.key;
        let present = self.store.stored(key).await?;
        if slot.is_for_large() {
            return Ok((present, slot));
        }
        let owner = slot.owner();
        let length = present.as_ref().map_or(0, StoredRow::length);
        let length = if may_grow(request, present.as_ref()) { LARGEST.max(length) } else { length };
        if let Ok(slot) = self.slots.try_take(length, owner) {
            return Ok((present, slot));
        }
        // Nobody waits with a large document in memory.
        drop(present);
        let slot = self.slots.take(owner).await?;
        Ok((self.store.stored(key).await?, slot))
    }
}

/// What a decision is made from, beside the present document.
struct Asked {
    request: Request,
    author: Author,
    quota: Quota,
    /// Whether it counts among what the clients of its namespace change.
    is_limited: bool,
}

/// What is to be done about a request.
struct Decided<I> {
    decision: Decision,
    item: Option<I>,
    length: usize,
}

/// A decision about the present document; of a large one on another thread.
async fn decided_blocking(
    asked: Arc<Asked>,
    keyring: Arc<Keyring>,
    bytes: usize,
    present: Option<StoredRow>,
    blocking: &BlockingPool,
) -> Result<Decided<Prepared>, Problem> {
    let length = grown(longest(bytes, present.as_ref()), &asked.request.action);
    let reads_patches = reads_patches(&asked.request, present.as_ref());
    let decide = move || {
        let present = present.map(StoredRow::read).transpose()?;
        let context = Context { keyring: &keyring, fresh: Fresh::draw() };
        let Asked { request, author, quota, is_limited } = &*asked;
        let (decision, item) = decided(present.as_ref(), request, author, &context)?;
        // A deletion is never refused, also where a rotation of keys has made the document's sealed field longer since.
        let has_quota = !matches!(decision.effect, Effect::Deleting | Effect::Deleted);
        let item = item.map(|item| Item { is_charged: *is_limited, ..item });
        let item = item.map(|item| Prepared::from(if has_quota { item.within(*quota) } else { item }));
        Ok(Decided { decision, item, length })
    };
    if reads_patches { blocking.apart(decide).await } else { blocking.run(length, decide).await }
}

/// Bytes of the longer text. A short patch of a large document takes as long as one that is as large.
fn longest(bytes: usize, present: Option<&StoredRow>) -> usize {
    present.map_or(0, StoredRow::length).max(bytes)
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

/// Whether much may become of what is short: by copies, or by aliases in texts of patches.
fn may_grow(request: &Request, present: Option<&StoredRow>) -> bool {
    doublings(&request.action) > 0 || reads_patches(request, present)
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

/// The decision, and what is to be written of it: nothing in a dry run.
fn decided(
    present: Option<&Stored>,
    request: &Request,
    author: &Author,
    context: &Context<'_>,
) -> Result<(Decision, Option<Item>), Problem> {
    let mut decision = decide(present, request, context)?;
    let mut item = decision.item.take().filter(|_| !request.dry_run);
    // The first change is that of the document, whatever else goes along with it.
    let change = item.as_mut().and_then(|item| item.changes.first_mut());
    if let (Some(change), Some(verb)) = (change, request.action.verb()) {
        let seals = change.row.as_ref().is_some_and(|row| row.sealed.is_some());
        let before = present.map(|present| &present.document);
        let after = Some(&decision.document).filter(|_| decision.effect != Effect::Deleted);
        let words = [verb, decision.effect.word()];
        let sealed = request.key.kind.sealed().filter(|_| seals);
        change.record = Some(Record::of(author, words, [before, after], sealed));
    }
    Ok((decision, item))
}

/// Reads, decides and writes until no other write comes first.
async fn rounds<P, I, R, D, W>(
    (request, quota): (&Request, Quota),
    slot: &LargeSlot,
    read: impl Fn() -> R,
    decide: impl Fn(Option<P>) -> D,
    write: impl Fn(I) -> W,
) -> Result<Done, Problem>
where
    R: Future<Output = Result<(Option<P>, LargeSlot), Problem>>,
    D: Future<Output = Result<Decided<I>, Problem>>,
    W: Future<Output = Result<Outcome, Problem>>,
{
    let is_creation = matches!(request.action, Action::Create(_));
    for _ in 0..ROUNDS {
        // Whether a new document exists is found out by the write.
        let (present, slot) = if is_creation && !request.dry_run { (None, slot.clone()) } else { read().await? };
        let Decided { decision, item, length } = decide(present).await?;
        let (effect, ends_rollout) = (decision.effect, decision.ends_rollout);
        let Some(item) = item else {
            return Ok(Done { effect, document: decision.document, ends_rollout, length, slot });
        };
        match write(item).await? {
            Outcome::Written { version, at } => {
                return Ok(Done { effect, document: decision.written(version, &at), ends_rollout, length, slot });
            }
            Outcome::Conflict { .. } if is_creation => return Err(exists(&request.key)),
            Outcome::Conflict { .. } => {}
            Outcome::Exceeded { used, more } => return Err(exceeded(&request.key, quota, used, more)),
            // Only items with a claim are fenced, and these have none.
            Outcome::Fenced => return Err(Problem::new(ProblemKind::Unavailable, "the write was fenced")),
        }
    }
    let title = format!("{} was changed by others {ROUNDS} times meanwhile", request.key);
    Err(Problem::new(ProblemKind::Conflict, title))
}

/// The namespace would have more than its quota.
fn exceeded(key: &Key, quota: Quota, used: Usage, more: Usage) -> Problem {
    let limit = |limit: u64| i64::try_from(limit).unwrap_or(i64::MAX);
    let (what, limit, used, more) = if more.0 > 0 && used.0.saturating_add(more.0) > limit(quota.documents) {
        ("documents", quota.documents, used.0, more.0)
    } else {
        ("KiB", quota.kib, used.1, more.1)
    };
    let namespace = &key.namespace;
    let revisions =
        if what == "KiB" && key.kind == Kind::SyncSet { "; the revisions of a rollout count, too" } else { "" };
    Problem::new(
        ProblemKind::Quota,
        format!(
            "exceeded quota: namespace {namespace} has {used} of {limit} {what}, and {key} needs {more} more{revisions}"
        ),
    )
}

#[cfg(test)]
mod tests;

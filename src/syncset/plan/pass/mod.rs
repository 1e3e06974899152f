//! A pass over a cluster: what is sent to it and deleted from it, in which order, and what is stored of that.
//!
//! [`pass`] does it from top to bottom, on a [`Target`]: the cluster and the database of the hub, or those of a test. What decides is
//! pure, and has no target. The functions that are given a target ask it something. In the order of a pass: `planned` says what there is to do, `look` reads
//! kinds, lists and objects, `send` and `patch` send, `remove` deletes, and `outcome` is what comes of it. They work on an `item`, with what is `stored` of
//! its object; `failure` is why that was in vain.
//!
//! A pass can be dropped at any request: the next one continues from what is stored. An object is deleted only if a GET
//! shows that a syncset of the cluster sent it, in the version that this GET has shown, and if no live syncset wants it, or the one that does wants it
//! recreated.

mod failure;
mod item;
mod look;
mod outcome;
mod patch;
mod planned;
mod remove;
mod send;
mod stored;
mod target;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

pub use outcome::{End, Outcome, Progress, Release};
pub use stored::telling;
pub use target::{
    Address, Compared, Ending, Failed, List, Manager, Marks, Page, Refusal, Refused, Resolution, Seen, Takeover,
    Target, Write, Writes, Written,
};

use super::name::ObjectRef;
use super::naming::Names;
use super::rows::{AppliedRow, Failure, PatchedRow, ResultRow};
use super::spec::Position;
use super::wanted::{Deletions, Live, Scope, Wanted};
use item::{Item, KindKey, Removal, Task};
use look::Listing;
use stored::StoredRows;

/// Requests and time of one pass.
const MOST_REQUESTS: usize = 500;
const MOST_TIME: Duration = Duration::from_mins(1);
/// What a pass has done so far is stored after so many requests, or after this time.
const STORE_AFTER_REQUESTS: usize = 100;
const STORE_AFTER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Input {
    /// The syncsets that name or select the cluster, in the order in which they are applied. Those that are due are rendered, and so is
    /// everything that [`also_due`](super::wanted::also_due) names; in a full pass all are.
    pub live: Vec<Live>,
    /// Of syncsets that are gone or match no more, whether they may delete. One that is missing here deletes nothing.
    pub gone: BTreeMap<Uuid, Deletions>,
    /// What rollouts are about to bring: it stays if nobody else wants it until then.
    pub awaited: Vec<Names>,
    /// All rows of the cluster.
    pub applied: Vec<AppliedRow>,
    /// All patches of the cluster.
    pub patched: Vec<PatchedRow>,
    /// All results of the cluster.
    pub results: Vec<ResultRow>,
    /// Whether this is a full pass.
    pub full: bool,
    /// Whether another cluster is behind the kubeconfig than the rows are of. The new identity must not be stored
    /// before the pass has stored its first writes.
    pub another_cluster: bool,
    /// Whether the kubeconfig led to another cluster when it was first used. What was there before belongs to somebody else then, whatever it bears:
    /// the marks may have been copied with it, and the kubeconfig may be a mistake.
    pub elsewhere: bool,
    /// From the pass before, if that had to end early; what was in step counts only if it was the same full pass.
    pub progress: Progress,
    /// When the pass begins.
    pub now: Timestamp,
}

impl Input {
    /// The kinds that the pass is going to ask for, and those of all stored objects, which it may ask for: as `apps/v1`, `Deployment`.
    pub fn kinds(&self) -> BTreeSet<(String, String)> {
        let stored = self.applied.iter().filter(|_| !self.another_cluster);
        let stored = stored.map(|row| (row.api_version.clone(), row.object.kind.clone()));
        planned::kinds_in_use(&self.live).into_iter().chain(stored).collect()
    }
}

/// A pass over the cluster. Returns what came of it, which is still to be stored, and why it had to stop, if it had to.
pub async fn pass<T: Target>(target: &mut T, input: Input) -> (Outcome, Option<T::Stop>) {
    let mut pass = Pass::new(input);
    let (end, stop) = match pass.run(target).await {
        Ok(()) => (End::Finished, None),
        Err(EndsEarly::Yielded) => (End::Yielded, None),
        Err(EndsEarly::Stopped(stop)) => (End::Interrupted, Some(stop)),
    };
    (pass.outcome(end), stop)
}

/// Why a pass ends before it has finished. What is known to have been done is stored all the same; the syncsets that were not done keep
/// their results, and stay due.
enum EndsEarly<S> {
    /// It has made as many requests, or taken as long, as a pass may.
    Yielded,
    Stopped(S),
}

/// What a part of a pass comes to.
type Flow<T, A = ()> = Result<A, EndsEarly<<T as Target>::Stop>>;
/// The answer to a request, unless the pass ends.
type Reply<T, A> = Flow<T, Result<A, Refused>>;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what a pass is and what it has met are independent facts")]
struct Pass {
    live: Vec<Live>,
    gone: BTreeMap<Uuid, Deletions>,
    awaited: Vec<Names>,
    full: bool,
    elsewhere: bool,
    progress: Progress,
    stored: StoredRows,
    wanted: Wanted,
    kinds: BTreeMap<KindKey, Result<Resolution, Refused>>,
    /// Whether objects of a group and kind are in namespaces.
    scopes: BTreeMap<(String, String), bool>,
    /// By group and kind, the plural by which a definition is named.
    plurals: BTreeMap<(String, String), String>,
    unresolved: BTreeSet<KindKey>,
    listings: VecDeque<Listing>,
    unprepared: VecDeque<Box<Item>>,
    /// Whether the rows of everything that was ready have been stored.
    is_noted: bool,
    /// By syncset and place, so the first one belongs to the first syncset that is not done.
    tasks: BTreeMap<(usize, Position), Task>,
    /// Objects that syncsets want and others send, with the version under which they would be sent.
    superseded: BTreeMap<(ObjectRef, usize), String>,
    gone_removals: VecDeque<Removal>,
    /// Those of them that wait for what live syncsets delete in their turns.
    late_removals: VecDeque<Removal>,
    /// Whether this pass deletes nothing more: the documents have changed since it was planned, so an object that it is about to delete may
    /// be wanted again. It goes on sending: otherwise nothing would be sent while documents change more often than passes reach a deletion.
    are_deletions_off: bool,
    removals: BTreeMap<usize, VecDeque<Removal>>,
    /// Syncsets that are due and not done.
    turns: VecDeque<usize>,
    /// First failures in sending, by syncset.
    failures: BTreeMap<usize, Failure>,
    /// Failures that keep nothing else from being sent, by syncset: patches that don't render, and objects that somebody deletes again
    /// and again.
    left_out: BTreeMap<usize, Failure>,
    deletion_failures: BTreeMap<Uuid, Failure>,
    wrote: BTreeSet<ObjectRef>,
    /// Group and kind of the definitions that this pass has applied.
    defined: BTreeSet<(String, String)>,
    releases: BTreeMap<Release, usize>,
    contended: Vec<(ObjectRef, Option<String>)>,
    started: Timestamp,
    /// How long it had taken when it last asked for something.
    elapsed: Duration,
    /// How much of that was not the cluster's.
    waited: Duration,
    stored_at: Duration,
    requests: usize,
    /// Kinds that were looked up after it was known what there is to do.
    late_kinds: usize,
    requests_at_store: usize,
}

impl Pass {
    fn new(input: Input) -> Self {
        let mut stored = StoredRows::new(input.applied, input.patched, input.results);
        if input.another_cluster {
            stored.forget_objects();
        }
        let unresolved = planned::kinds_in_use(&input.live);
        let mut progress = if input.another_cluster { Progress::default() } else { input.progress };
        if !input.full {
            progress.objects.clear();
            progress.patches.clear();
            progress.unlisted.clear();
        }
        let is_due = |live: &Live| live.rendered.is_some() && progress.ended.get(&live.header.id) != Some(&live.inputs);
        Self {
            turns: input.live.iter().enumerate().filter(|(_, live)| is_due(live)).map(|(at, _)| at).collect(),
            live: input.live,
            gone: input.gone,
            awaited: input.awaited,
            full: input.full || input.another_cluster,
            elsewhere: input.elsewhere,
            progress,
            stored,
            wanted: Wanted::default(),
            kinds: BTreeMap::new(),
            scopes: BTreeMap::new(),
            plurals: BTreeMap::new(),
            unresolved,
            listings: VecDeque::new(),
            unprepared: VecDeque::new(),
            is_noted: false,
            tasks: BTreeMap::new(),
            superseded: BTreeMap::new(),
            gone_removals: VecDeque::new(),
            late_removals: VecDeque::new(),
            are_deletions_off: false,
            removals: BTreeMap::new(),
            failures: BTreeMap::new(),
            left_out: BTreeMap::new(),
            deletion_failures: BTreeMap::new(),
            wrote: BTreeSet::new(),
            defined: BTreeSet::new(),
            releases: BTreeMap::new(),
            contended: Vec::new(),
            started: input.now,
            elapsed: Duration::ZERO,
            waited: Duration::ZERO,
            stored_at: Duration::ZERO,
            requests: 0,
            late_kinds: 0,
            requests_at_store: 0,
        }
    }

    async fn run<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        // Whether a kind has namespaces decides which references name one object.
        self.resolve_kinds(target).await?;
        self.plan();
        // A full pass lists what was sent before, and first contacts are looked at.
        self.read_lists(target).await?;
        self.look_at_objects(target).await?;
        // The rows of everything that is going to be sent or deleted are stored, without content. Results are stored as unfinished, so
        // that the next pass finds the syncset due even if the change has been taken back. A full pass after one that was cut short would
        // not do instead: the times in `managedFields` have seconds, so it can't tell two writes of ours within one second apart.
        self.open_patches();
        self.step(target).await?;
        if self.stored.has_changed() {
            self.store(target).await?;
        }
        self.is_noted = true;
        self.delete_gone(target).await?;
        // Each syncset that is due sends its objects and patches up to the first error, and then deletes what it no longer wants.
        self.take_turns(target).await?;
        // Only now a namespace or a definition is deleted in which that was.
        self.gone_removals = std::mem::take(&mut self.late_removals);
        self.delete_gone(target).await?;
        self.finish_deletions();
        Ok(())
    }

    async fn take_turns<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        // How many turns in a row have given way to another one without any progress.
        let mut given_way = 0;
        'turns: while let Some(turn) = self.turns.front().copied() {
            if let Some(failure) = self.earlier_failure(turn).filter(|_| !self.failures.contains_key(&turn)) {
                self.fail(turn, failure);
            }
            while let Some(task) = self.next_task(turn) {
                given_way = 0;
                match task {
                    Task::Item(item) => self.send_item(target, item).await?,
                    Task::Patch(patch) => self.send_patch(target, patch).await?,
                    Task::Broken(failure) => self.fail(turn, failure),
                }
            }
            while let Some(removal) = self.removals.get_mut(&turn).and_then(VecDeque::pop_front) {
                // When all of them have given way and nothing was done, each waits for another one: then nobody does, and what would be deleted
                // with an object keeps it.
                if given_way < self.turns.len() && self.has_removal_within(&removal.object, Some(turn)) {
                    // The rest of its turn comes after those of the others.
                    self.removals.entry(turn).or_default().push_front(removal);
                    self.turns.rotate_left(1);
                    given_way += 1;
                    continue 'turns;
                }
                self.remove(target, removal).await?;
                given_way = 0;
            }
            self.turns.pop_front();
            self.finish_turn(turn);
            given_way = 0;
        }
        Ok(())
    }

    /// What a syncset still has to send.
    fn next_task(&mut self, turn: usize) -> Option<Task> {
        let first = self.tasks.first_entry().filter(|first| first.key().0 == turn)?;
        Some(first.remove())
    }

    /// Before something is asked that does not follow from the answer before: a pass gives way to others after a while, and stores now
    /// and then what it has done.
    async fn step<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        self.ready(target).await?;
        let has_begun = self.requests > 0 || self.late_kinds > 0;
        if has_begun && (self.requests >= MOST_REQUESTS || self.taken() >= MOST_TIME) {
            return Err(EndsEarly::Yielded);
        }
        let is_time = self.requests >= self.requests_at_store + STORE_AFTER_REQUESTS
            || self.elapsed >= self.stored_at.saturating_add(STORE_AFTER);
        if is_time && self.stored.is_unwritten() {
            self.store(target).await?;
        }
        Ok(())
    }

    /// Before each request.
    async fn ready<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        target.ready().await.map_err(EndsEarly::Stopped)?;
        self.look_at_the_clock(target);
        Ok(())
    }

    /// Stores what has changed. Syncsets that are not done count as unfinished, in whatever the next pass finds.
    async fn store<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        let writes = self.take_writes();
        target.store(writes).await.map_err(EndsEarly::Stopped)?;
        (self.requests_at_store, self.stored_at) = (self.requests, self.elapsed);
        Ok(())
    }

    async fn look<T: Target>(&mut self, target: &mut T, at: Address<'_>) -> Reply<T, Option<Seen>> {
        self.ready(target).await?;
        self.requests += 1;
        let found = target.look(at).await;
        self.answered(target, found)
    }

    async fn write<T: Target>(&mut self, target: &mut T, at: Address<'_>, write: Write<'_>) -> Reply<T, Written> {
        self.ready(target).await?;
        self.requests += 1;
        let written = target.write(at, write).await;
        self.answered(target, written)
    }

    async fn delete<T: Target>(&mut self, target: &mut T, at: Address<'_>, seen: &Seen) -> Reply<T, Option<Ending>> {
        self.requests += 1;
        let deleted = target.delete(at, &seen.uid, &seen.version).await;
        self.answered(target, deleted)
    }

    /// Whether the next request may be a deletion.
    async fn may_delete<T: Target>(&mut self, target: &mut T) -> Flow<T, bool> {
        if !self.are_deletions_off {
            self.ready(target).await?;
            self.are_deletions_off = !target.may_delete().await.map_err(EndsEarly::Stopped)?;
        }
        Ok(!self.are_deletions_off)
    }

    fn answered<T: Target, A>(&mut self, target: &T, reply: Result<A, Failed<T::Stop>>) -> Reply<T, A> {
        self.look_at_the_clock(target);
        match reply {
            Ok(answer) => Ok(Ok(answer)),
            Err(Failed::Refused(refused)) => Ok(Err(refused)),
            Err(Failed::Stopped(stop)) => Err(EndsEarly::Stopped(stop)),
        }
    }

    fn look_at_the_clock<T: Target>(&mut self, target: &T) {
        (self.elapsed, self.waited) = (target.elapsed(), target.waited());
    }

    /// The time that the cluster has had.
    fn taken(&self) -> Duration {
        self.elapsed.saturating_sub(self.waited)
    }

    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.elapsed).unwrap_or(SignedDuration::MAX);
        self.started.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    fn scope(&self, object: &ObjectRef) -> Scope {
        match self.scopes.get(&(object.group.clone(), object.kind.clone())) {
            Some(true) => Scope::Namespaced,
            Some(false) => Scope::Cluster,
            None => Scope::Unknown,
        }
    }

    /// The position of a syncset, if it is live.
    fn position(&self, syncset: Uuid) -> Option<usize> {
        self.live.iter().position(|live| live.header.id == syncset)
    }

    /// A syncset sends nothing more after its first failure.
    fn fail(&mut self, syncset: usize, failure: Failure) {
        self.tasks.retain(|(of, _), _| *of != syncset);
        if let Some(live) = self.live.get(syncset) {
            self.progress.failed.insert(live.header.id, (live.inputs, failure.clone()));
        }
        self.failures.entry(syncset).or_insert(failure);
    }

    /// Why a syncset could not be sent in the pass from which this one goes on, unless it has changed since: what it deletes may be all
    /// that is left to do.
    fn earlier_failure(&self, syncset: usize) -> Option<Failure> {
        let live = self.live.get(syncset)?;
        let (inputs, failure) = self.progress.failed.get(&live.header.id)?;
        (*inputs == live.inputs).then(|| failure.clone())
    }
}

//! A database of maps, and passes between it and a cluster of maps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use uuid::Uuid;

use super::super::{
    self as passes, Address, Ending, Failed, Input, List, Outcome, Page, Progress, Refusal, Refused, Resolution, Seen,
    Target, Write, Writes, Written,
};
use super::world::{self, Set, World, refused};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::rows::{AppliedRow, PatchedRow, ResultRow};
use crate::syncset::plan::spec::Behavior;
use crate::syncset::plan::wanted::{Deletions, Live, also_due};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Store {
    pub(super) applied: BTreeMap<(ObjectRef, Uuid), AppliedRow>,
    pub(super) patched: BTreeMap<(Uuid, usize), PatchedRow>,
    pub(super) results: BTreeMap<Uuid, ResultRow>,
    /// Whether the document has led to another cluster first.
    pub(super) elsewhere: bool,
}

impl Store {
    pub(super) fn write(&mut self, writes: Writes) {
        self.applied.extend(writes.applied.into_iter().map(|row| ((row.object.clone(), row.syncset), row)));
        writes.forgotten.iter().for_each(|key| drop(self.applied.remove(key)));
        self.patched.extend(writes.patched.into_iter().map(|row| ((row.syncset, row.position), row)));
        writes.unpatched.iter().for_each(|key| drop(self.patched.remove(key)));
        self.results.extend(writes.results.into_iter().map(|row| (row.syncset, row)));
        writes.finished.iter().for_each(|id| drop(self.results.remove(id)));
    }

    fn is_due(&self, set: &Set) -> bool {
        self.results
            .get(&set.id)
            .is_none_or(|row| row.inputs != set.inputs() || row.failure.is_some() || row.has_pending_deletions)
    }

    /// The input of a pass, if there is anything to do.
    pub(super) fn input(&self, sets: &[Set], full: bool) -> Option<Input> {
        let mut sets = sets.to_vec();
        sets.sort_by(|one, other| one.name.cmp(&other.name));
        let ids: BTreeSet<Uuid> = sets.iter().map(|set| set.id).collect();
        let gone = self.results.keys().filter(|id| !ids.contains(id)).map(|id| (*id, Deletions::Allowed));
        let gone: BTreeMap<Uuid, Deletions> = gone.collect();
        let mut live: Vec<Live> = sets.iter().map(|set| set.live(full || self.is_due(set))).collect();
        if gone.is_empty() && live.iter().all(|live| live.rendered.is_none()) {
            return None;
        }
        for id in also_due(&live, self.applied.values()) {
            let position = live.iter().position(|live| live.header.id == id).expect("a live one");
            live[position].rendered = Some(sets[position].rendered());
        }
        Some(Input {
            live,
            gone,
            awaited: Vec::new(),
            applied: self.applied.values().cloned().collect(),
            patched: self.patched.values().cloned().collect(),
            results: self.results.values().cloned().collect(),
            full,
            another_cluster: false,
            elsewhere: self.elsewhere,
            progress: Progress::default(),
            now: Timestamp::UNIX_EPOCH,
        })
    }
}

/// What a pass asks for.
#[derive(Debug)]
pub(super) enum Call<'a> {
    Resolve { api_version: &'a str, kind: &'a str },
    Look(#[expect(dead_code, reason = "it is printed")] &'a ObjectRef),
    Lists(&'a [List<'a>]),
    Write(&'a ObjectRef, Write<'a>),
    MayDelete,
    Delete(#[expect(dead_code, reason = "it is printed")] &'a ObjectRef),
    Store(&'a Writes),
}

impl Call<'_> {
    pub(super) fn is_write_of(&self, verb: &str, name: &str) -> bool {
        matches!(self, Self::Write(object, write) if world::verb(*write) == verb && object.name == name)
    }
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// Of several lists only the first one is read.
    FirstList,
    /// The cluster refuses it. If the pass asks whether it may delete, it may not.
    Refused(Refusal),
    /// It is not done, and the pass has to stop.
    Unsent,
    /// It is done, nobody learns that, and the pass has to stop.
    Unanswered,
    /// It is done, and the process dies. Only what is stored on the way is there.
    Killed,
}

/// The cluster and the database of a pass.
struct Fake<'f, F> {
    world: &'f mut World,
    store: &'f mut Store,
    fate: F,
    began: Duration,
}

impl<F: FnMut(&mut World, &Call<'_>) -> Fate + Send> Fake<'_, F> {
    /// What comes of a call, if it was done and the pass learns that.
    fn call<A>(
        &mut self,
        call: &Call<'_>,
        mut done: impl FnMut(&mut World, &mut Store) -> Result<A, Refused>,
    ) -> Result<A, Failed<Fate>> {
        match (self.fate)(self.world, call) {
            Fate::Done | Fate::FirstList => done(self.world, self.store).map_err(Failed::Refused),
            Fate::Refused(_) if matches!(call, Call::Store(_)) => done(self.world, self.store).map_err(Failed::Refused),
            Fate::Refused(refusal) => Err(Failed::Refused(refused(refusal))),
            Fate::Unsent => Err(Failed::Stopped(Fate::Unsent)),
            fate @ (Fate::Unanswered | Fate::Killed) => {
                drop(done(self.world, self.store));
                Err(Failed::Stopped(fate))
            }
        }
    }
}

impl<F: FnMut(&mut World, &Call<'_>) -> Fate + Send> Target for Fake<'_, F> {
    type Stop = Fate;

    fn elapsed(&self) -> Duration {
        self.world.clock.saturating_sub(self.began)
    }

    fn waited(&self) -> Duration {
        self.world.waited
    }

    async fn ready(&mut self) -> Result<(), Fate> {
        Ok(())
    }

    async fn resolve(&mut self, api_version: &str, kind: &str, wait: bool) -> Result<Resolution, Failed<Fate>> {
        self.call(&Call::Resolve { api_version, kind }, |world, _| Ok(world.resolve(api_version, kind, wait)))
    }

    async fn look(&mut self, at: Address<'_>) -> Result<Option<Seen>, Failed<Fate>> {
        self.call(&Call::Look(at.object), |world, _| world.look(at))
    }

    async fn list(&mut self, lists: &[List<'_>]) -> Result<Vec<Result<Page, Refused>>, Fate> {
        assert!((1..=4).contains(&lists.len()), "{lists:?}");
        match (self.fate)(self.world, &Call::Lists(lists)) {
            Fate::Refused(refusal) => Ok(vec![Err(refused(refusal)); lists.len()]),
            Fate::Unsent => Err(Fate::Unsent),
            fate => {
                let read = if fate == Fate::FirstList { &lists[..1] } else { lists };
                let pages = read.iter().map(|list| self.world.list(list)).collect();
                if matches!(fate, Fate::Unanswered | Fate::Killed) { Err(fate) } else { Ok(pages) }
            }
        }
    }

    async fn write(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Failed<Fate>> {
        self.call(&Call::Write(at.object, write), |world, _| world.write(at, write))
    }

    async fn may_delete(&mut self) -> Result<bool, Fate> {
        match self.call(&Call::MayDelete, |_, _| Ok(())) {
            Ok(()) => Ok(true),
            Err(Failed::Refused(_)) => Ok(false),
            Err(Failed::Stopped(fate)) => Err(fate),
        }
    }

    async fn delete(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Failed<Fate>> {
        self.call(&Call::Delete(at.object), |world, _| world.delete(at, uid, version))
    }

    async fn store(&mut self, writes: Writes) -> Result<(), Fate> {
        match self.call(&Call::Store(&writes), |_, store| {
            store.write(writes.clone());
            Ok(())
        }) {
            Err(Failed::Stopped(fate)) => Err(fate),
            _ => Ok(()),
        }
    }

    fn sent(&mut self, behavior: Behavior, is_success: bool) {
        self.world.sent.push((behavior, is_success));
    }
}

/// One pass to its end. Returns what was requested; nothing if nothing was due.
pub(super) fn pass(world: &mut World, store: &mut Store, sets: &[Set], full: bool) -> Vec<String> {
    world.log.clear();
    if let Some(input) = store.input(sets, full) {
        run(world, store, input);
    }
    std::mem::take(&mut world.log)
}

pub(super) fn run(world: &mut World, store: &mut Store, input: Input) -> Outcome {
    run_while(world, store, input, |_, _| Fate::Done)
}

/// Runs a pass in which something happens to the cluster before a call, or a call goes wrong.
pub(super) fn run_while(
    world: &mut World,
    store: &mut Store,
    input: Input,
    fate: impl FnMut(&mut World, &Call<'_>) -> Fate + Send,
) -> Outcome {
    let began = world.clock;
    world.waited = Duration::ZERO;
    let ran = passes::pass(&mut Fake { world, store, fate, began }, input).now_or_never();
    let (outcome, stop) = ran.expect("a cluster of maps keeps nobody waiting");
    if stop != Some(Fate::Killed) {
        store.write(outcome.writes.clone());
    }
    outcome
}

/// A pass that reaches the cluster and dies before it can note that: only what is stored on the way is there.
pub(super) fn cut_short(world: &mut World, store: &mut Store, sets: &[Set]) {
    let input = store.input(sets, false).expect("something is due");
    let mut on_the_way = store.clone();
    run_while(world, &mut on_the_way, input, |_, call| {
        if let Call::Store(writes) = call {
            store.write((*writes).clone());
        }
        Fate::Done
    });
}

/// A pass that dies after so many calls, without learning what came of the last one, or at its end. Returns whether it died.
pub(super) fn killed_after(world: &mut World, store: &mut Store, sets: &[Set], calls: usize) -> bool {
    killed_while(world, store, sets, calls, |_, _| {})
}

/// The same while something happens to the cluster before a call.
pub(super) fn killed_while(
    world: &mut World,
    store: &mut Store,
    sets: &[Set],
    calls: usize,
    mut before: impl FnMut(&mut World, &Call<'_>) + Send,
) -> bool {
    let Some(input) = store.input(sets, false) else { return false };
    if calls == 0 {
        return true;
    }
    let mut count = 0;
    run_while(world, store, input, |world, call| {
        count += 1;
        before(world, call);
        if count == calls { Fate::Killed } else { Fate::Done }
    });
    count == calls
}

//! A database of maps, and passes between it and a cluster of maps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::super::{Answer, Input, Outcome, Pass, Progress, Step, Writes};
use super::world::{Set, World};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::rows::{AppliedRow, PatchedRow, ResultRow};
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

/// One pass to its end. Returns what was requested; nothing if nothing was due.
pub(super) fn pass(world: &mut World, store: &mut Store, sets: &[Set], full: bool) -> Vec<String> {
    world.log.clear();
    if let Some(input) = store.input(sets, full) {
        run(world, store, input);
    }
    std::mem::take(&mut world.log)
}

pub(super) fn run(world: &mut World, store: &mut Store, input: Input) -> Outcome {
    run_while(world, store, input, |_, _| {})
}

/// Runs a pass in which something happens to the cluster before a step.
pub(super) fn run_while(
    world: &mut World,
    store: &mut Store,
    input: Input,
    mut before: impl FnMut(&mut World, &Step<'_>),
) -> Outcome {
    let mut pass = Pass::new(input);
    loop {
        let answer = match pass.next(Duration::ZERO) {
            Step::Done(outcome) => {
                store.write(outcome.writes.clone());
                return *outcome;
            }
            Step::Store(writes) => {
                store.write(writes);
                Ok(Answer::Stored)
            }
            step => {
                before(world, &step);
                world.perform(step)
            }
        };
        pass.reply(answer);
    }
}

/// A pass that reaches the cluster and dies before it can note that: only what is stored on the way is there.
pub(super) fn cut_short(world: &mut World, store: &mut Store, sets: &[Set]) {
    let mut pass = Pass::new(store.input(sets, false).expect("something is due"));
    loop {
        let answer = match pass.next(Duration::ZERO) {
            Step::Done(_) => return,
            Step::Store(writes) => {
                store.write(writes);
                Ok(Answer::Stored)
            }
            step => world.perform(step),
        };
        pass.reply(answer);
    }
}

/// A pass that dies after so many steps, without learning what came of the last one, or at its end. Returns whether it died.
pub(super) fn killed_after(world: &mut World, store: &mut Store, sets: &[Set], steps: usize) -> bool {
    let Some(input) = store.input(sets, false) else { return false };
    let mut pass = Pass::new(input);
    for _ in 0..steps {
        let answer = match pass.next(Duration::ZERO) {
            Step::Done(outcome) => {
                store.write(outcome.writes);
                return false;
            }
            Step::Store(writes) => {
                store.write(writes);
                Ok(Answer::Stored)
            }
            step => world.perform(step),
        };
        pass.reply(answer);
    }
    true
}

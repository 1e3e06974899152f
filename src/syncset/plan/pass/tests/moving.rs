//! An object that goes from one syncset to another one while rollouts of both run: the laws of rollouts decide who is pinned to what, and
//! real passes follow.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use uuid::Uuid;

use super::super::{Input, Refusal};
use super::deleting::awaited;
use super::store::{Fate, Store, run_while};
use super::world::{Flags, Resource, Set, World, map, set};
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::rollout::laws::{self, Event, LONGEST_END, Model};
use crate::syncset::plan::rollout::{OnFailure, ProgressReason, Spec};
use crate::syncset::plan::rows::ResultRow;
use crate::syncset::plan::spec::Known;

/// Its first content has the object, and those after it may.
const FROM: usize = 0;
/// Its first content may be without it, all others have it.
const TO: usize = 1;
const CLUSTERS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Something happens to one of the two syncsets, or its rollout.
    Of(usize, Event),
    /// A cluster becomes silent, or is paused, or the contrary.
    Silent(usize, bool),
    Pause(usize, bool),
    /// The syncset from which the object comes is deleted.
    Delete,
    /// On a cluster; it may be killed after so many calls.
    Pass {
        cluster: usize,
        is_full: bool,
        killed: Option<usize>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..CLUSTERS;
    prop_oneof![
        24 => (0..2_usize, laws::event()).prop_map(|(of, event)| {
            if is_lawful(of, &event) { Step::Of(of, event) } else { Step::Of(of, Event::Guard) }
        }),
        6 => (10..40_u64, 0..2_usize).prop_map(|(seconds, of)| Step::Of(of, Event::Tick(seconds))),
        1 => (which.clone(), any::<bool>()).prop_map(|(cluster, is)| Step::Silent(cluster, is)),
        1 => (which.clone(), any::<bool>()).prop_map(|(cluster, is)| Step::Pause(cluster, is)),
        1 => Just(Step::Delete),
        16 => (which, any::<bool>(), prop::option::weighted(0.3, 1..14_usize))
            .prop_map(|(cluster, is_full, killed)| Step::Pass { cluster, is_full, killed }),
    ]
}

/// Whether the object still goes where it was to go. Nobody takes it from the syncset that gets it, nor ends the rollout that brings it. What
/// concerns clusters concerns both syncsets, and is a step of its own.
fn is_lawful(of: usize, event: &Event) -> bool {
    match event {
        Event::Work(_)
        | Event::WorkAll
        | Event::Hang(_)
        | Event::Join(_)
        | Event::Answer(_)
        | Event::Stall(_)
        | Event::SetSilent(..)
        | Event::SetPaused(..) => false,
        Event::Edit(revision) | Event::Undo(Some(revision)) => of == FROM || has_it(TO, *revision, false),
        Event::Abort | Event::Undo(None) | Event::Leave(_) => of == FROM,
        _ => true,
    }
}

/// Whether a revision has the object.
fn has_it(of: usize, revision: i32, is_first: bool) -> bool {
    if of == FROM { matches!(revision, 1 | 4) } else { revision != 1 || is_first }
}

struct Story {
    models: [Model; 2],
    clusters: BTreeMap<Uuid, (World, Store)>,
    /// Whether the syncset that gets the object is a new one.
    is_first: bool,
    /// Whether it comes before the other one, which then is the one that sends what both want.
    is_before: bool,
    is_deleted: bool,
    /// What the object is on each cluster.
    uids: BTreeMap<Uuid, u64>,
}

impl Story {
    /// All clusters have the object from the one syncset, and both are edited.
    fn new(specs: [Spec; 2], labels: &[u8], is_first: bool, is_before: bool) -> Result<Self, TestCaseError> {
        let [from, to] = specs;
        let to = Spec { on_failure: OnFailure::Pause, ..to };
        let models = [Model::new(from, labels, true), Model::new(to, labels, !is_first)];
        let ids: Vec<Uuid> = models[FROM].nodes.keys().copied().collect();
        let clusters = ids.iter().map(|id| (*id, (World::new(), Store::default()))).collect();
        let mut story = Self { models, clusters, is_first, is_before, is_deleted: false, uids: BTreeMap::new() };
        for id in &ids {
            story.pass(*id, false, None)?;
            let found = story.clusters[id].0.objects.get(&map("x")).map(|found| found.uid);
            story.uids.insert(*id, found.expect("it is there"));
        }
        if !is_first {
            story.models[TO].happen(&Event::Edit(2))?;
        }
        story.models[FROM].happen(&Event::Edit(2))?;
        Ok(story)
    }

    fn id(&self, cluster: usize) -> Uuid {
        *self.clusters.keys().nth(cluster % self.clusters.len()).expect("a cluster")
    }

    fn happen(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Of(TO, Event::Respecify(spec)) => {
                let spec = Spec { on_failure: OnFailure::Pause, ..spec.clone() };
                self.models[TO].happen(&Event::Respecify(spec))
            }
            Step::Of(of, event) => self.models[*of].happen(event),
            Step::Silent(cluster, is) => {
                self.models.iter_mut().try_for_each(|model| model.happen(&Event::SetSilent(*cluster, *is)))
            }
            Step::Pause(cluster, is) => {
                self.models.iter_mut().try_for_each(|model| model.happen(&Event::SetPaused(*cluster, *is)))
            }
            Step::Delete => {
                self.is_deleted = true;
                Ok(())
            }
            Step::Pass { cluster, is_full, killed } => self.pass(self.id(*cluster), *is_full, *killed),
        }
    }

    /// A syncset as it is on a cluster.
    fn document(&self, of: usize, id: Uuid) -> Option<Set> {
        let model = &self.models[of];
        let node = model.nodes.get(&id).filter(|node| node.matches && !(of == FROM && self.is_deleted))?;
        let revision = model.pin(id)?;
        let content = |name: &str| Resource::Ready(map(name), format!("{of} {revision}"), Flags::default());
        let own = if of == FROM { "from" } else { "to" };
        let mut resources = vec![content(own)];
        resources.extend(has_it(of, revision, self.is_first).then(|| content("x")));
        let is_broken = node.fate(revision) == laws::Fate::Never;
        resources.extend(is_broken.then(|| Resource::Broken(Known::Object(map("z")))));
        let document = match (of == TO, self.is_before) {
            (true, true) => set(SyncSet, "a"),
            (true, false) => set(SelectorSyncSet, "z"),
            (false, _) => set(SyncSet, "m"),
        };
        Some(Set { generation: revision.into(), resources, ..document })
    }

    /// Whether a rollout is about to bring the object to a cluster, as its snapshot says.
    fn is_awaited(&self, id: Uuid) -> bool {
        [FROM, TO].into_iter().any(|of| {
            let model = &self.models[of];
            let rollout = &model.rollout;
            let is_edited = rollout.started < rollout.edited;
            let goal = if is_edited { rollout.newest } else { rollout.goal };
            let leads = rollout.reason != ProgressReason::Aborted || is_edited;
            let is_there = model.nodes.get(&id).is_some_and(|node| node.matches) && !(of == FROM && self.is_deleted);
            is_there && leads && model.pin(id) != Some(goal) && has_it(of, goal, self.is_first)
        })
    }

    /// A pass over a cluster, in which the object is there at each call.
    fn pass(&mut self, id: Uuid, is_full: bool, killed: Option<usize>) -> Result<(), TestCaseError> {
        if self.models[FROM].nodes.get(&id).is_none_or(laws::Node::is_away) {
            return Ok(());
        }
        let documents = [FROM, TO].map(|of| self.document(of, id));
        let sets: Vec<Set> = documents.iter().flatten().cloned().collect();
        let brought = if self.is_awaited(id) { awaited(&[("default", "x")]) } else { Vec::new() };
        let uid = self.uids.get(&id).copied();
        let (world, store) = self.clusters.get_mut(&id).expect("a cluster");
        world.refusals.clear();
        for (of, own) in [(FROM, "from"), (TO, "to")] {
            let model = &self.models[of];
            let fate = model.nodes.get(&id).zip(model.pin(id)).map(|(node, revision)| node.fate(revision));
            if fate == Some(laws::Fate::NotYet) {
                world.refusals.insert(format!("APPLY {}", map(own)), Refusal::Server);
            }
        }
        let (mut calls, mut is_killed) = (0, false);
        let mut absent = Vec::new();
        if let Some(input) = store.input(&sets, is_full) {
            let input = Input { awaited: brought, ..input };
            run_while(world, store, input, |world, call| {
                calls += 1;
                absent.extend(is_lost(world, uid).then(|| format!("before {call:?}")));
                is_killed = killed == Some(calls);
                if is_killed { Fate::Killed } else { Fate::Done }
            });
            absent.extend(is_lost(world, uid).then(|| "at the end".to_owned()));
        }
        prop_assert!(absent.is_empty(), "the object is gone {}", absent.join(", "));
        for (of, document) in documents.iter().enumerate() {
            match document {
                Some(document) if is_killed => {
                    let row = self.clusters[&id].1.results.get(&document.id);
                    let has_begun = row.is_some_and(|row| {
                        row.inputs == ResultRow::UNFINISHED || row.generation == document.generation
                    });
                    self.models[of].interrupt(id, has_begun)?;
                }
                None if is_killed => {}
                _ => self.models[of].work(id)?,
            }
        }
        Ok(())
    }

    /// Whatever has gone wrong is mended, and both rollouts come to their end.
    fn end(&mut self) -> Result<(), TestCaseError> {
        for model in &mut self.models {
            model.nodes.values_mut().take(1).for_each(|node| node.matches = true);
            model.heal();
        }
        let ids: Vec<Uuid> = self.clusters.keys().copied().collect();
        for _ in 0..LONGEST_END {
            ids.iter().try_for_each(|id| self.pass(*id, false, None))?;
            if self.models.iter().all(Model::has_ended) {
                break;
            }
            self.models.iter_mut().filter(|model| !model.has_ended()).try_for_each(Model::go_on)?;
        }
        for model in &self.models {
            prop_assert!(model.has_ended(), "it has not ended: {:?}", model.rollout);
        }
        for id in &ids {
            self.pass(*id, true, None)?;
            self.pass(*id, true, None)?;
            let senders = [FROM, TO].into_iter().filter_map(|of| {
                let document = self.document(of, *id)?;
                let revision = self.models[of].pin(*id)?;
                has_it(of, revision, self.is_first).then_some((document.name, format!("{of} {revision}")))
            });
            let last = senders.max_by(|one, other| one.0.cmp(&other.0)).map(|(_, content)| content);
            let found = self.clusters[id].0.objects.get(&map("x")).and_then(|found| found.data.as_str());
            prop_assert_eq!(found, last.as_deref(), "{}", id);
        }
        Ok(())
    }
}

/// Whether the object is not there any more, or is another one.
fn is_lost(world: &World, uid: Option<u64>) -> bool {
    uid.is_some() && world.objects.get(&map("x")).map(|found| found.uid) != uid
}

proptest! {
    #[test]
    fn an_object_that_goes_from_one_syncset_to_another_by_rollouts_of_both_is_never_absent(
        specs in (laws::spec(), laws::spec()),
        labels in vec(0..8_u8, CLUSTERS),
        (is_first, is_before) in any::<(bool, bool)>(),
        steps in vec(step(), 0..100),
    ) {
        let mut story = Story::new(specs.into(), &labels, is_first, is_before)?;
        for step in &steps {
            story.happen(step)?;
        }
        story.end()?;
    }
}

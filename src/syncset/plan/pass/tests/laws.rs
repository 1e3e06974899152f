//! What holds whatever syncsets, clusters and failures come together.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use uuid::Uuid;

use super::super::Refusal;
use super::store::{Call, Fate, Store, pass, run_while};
use super::world::{Flags, HIVE, Object, Resource, Set, World, map, object, set};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{AppliedRow, ResultRow};
use crate::syncset::plan::spec::{Behavior, Known, Mode};
use crate::syncset::plan::wanted::Deletions;

/// What happens to a cluster and its syncsets.
#[derive(Clone, Debug)]
enum Event {
    Edit {
        set: usize,
        mode: Mode,
        behavior: Behavior,
        resources: Vec<(usize, u8)>,
        patched: Option<usize>,
    },
    /// One of its resources does not render.
    Break {
        set: usize,
        known: u8,
    },
    /// It does not select the cluster any more; what comes back is the same document, or a new one of that name.
    Remove {
        set: usize,
        is_new: bool,
    },
    Hold {
        set: usize,
    },
    /// Somebody else creates an object, or creates it anew.
    Create(usize),
    Delete(usize),
    Touch(usize),
    /// Hive creates an object.
    Hive(usize),
    Pass {
        full: bool,
        /// Which call goes wrong, and how.
        cut: Option<(usize, Fate)>,
        /// Before which call somebody makes an object of their own, whether it is in place of another one or not; which one.
        replaced: Option<(usize, usize)>,
    },
}

fn objects() -> [ObjectRef; 5] {
    [map("a"), map("b"), map("c"), object("", "Namespace", "", "n"), object("", "ConfigMap", "n", "x")]
}

const NAMES: usize = 4;

fn named(at: usize) -> Set {
    match at {
        0 => set(SyncSet, "s"),
        1 => set(SyncSet, "t"),
        2 => set(SelectorSyncSet, "r"),
        _ => set(SelectorSyncSet, "s"),
    }
}

fn edit(modes: &'static [Mode], behaviors: &'static [Behavior], count: usize) -> impl Strategy<Value = Event> {
    let resources = vec((0..count, 1..3_u8), 0..5);
    (0..NAMES, select(modes), select(behaviors), resources, option::of(0..3_usize))
        .prop_map(|(set, mode, behavior, resources, patched)| Event::Edit { set, mode, behavior, resources, patched })
}

fn a_pass(most_replaced: usize) -> impl Strategy<Value = Event> {
    let refusals = vec![Refusal::Forbidden, Refusal::Server, Refusal::Conflict];
    let cut = prop_oneof![Just(Fate::Killed), Just(Fate::Unanswered), select(refusals).prop_map(Fate::Refused)];
    let replaced = option::of((0..14_usize, 0..5_usize));
    (any::<bool>(), option::of((0..14_usize, cut)), replaced).prop_map(move |(full, cut, replaced)| Event::Pass {
        full,
        cut,
        replaced: replaced.filter(|(_, at)| *at < most_replaced),
    })
}

const MODES: &[Mode] = &[Mode::Sync, Mode::Upsert];
const BEHAVIORS: &[Behavior] = &[Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly];

fn anything() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => edit(MODES, BEHAVIORS, 5),
        1 => (0..NAMES, 0..7_u8).prop_map(|(set, known)| Event::Break { set, known }),
        1 => (0..NAMES, any::<bool>()).prop_map(|(set, is_new)| Event::Remove { set, is_new }),
        1 => (0..NAMES).prop_map(|set| Event::Hold { set }),
        1 => (0..5_usize).prop_map(Event::Create),
        1 => (0..5_usize).prop_map(Event::Delete),
        1 => (0..5_usize).prop_map(Event::Touch),
        1 => (0..5_usize).prop_map(Event::Hive),
        5 => a_pass(5),
    ];
    vec(event, 1..25)
}

/// Everything is deleted that nobody wants, and nobody else interferes.
fn strict() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        // `CreateOnly` never deletes what others have created.
        4 => edit(&[Mode::Sync], &BEHAVIORS[..2], 3),
        1 => (0..NAMES, 0..7_u8).prop_map(|(set, known)| Event::Break { set, known }),
        1 => (0..NAMES, any::<bool>()).prop_map(|(set, is_new)| Event::Remove { set, is_new }),
        1 => (0..5_usize).prop_map(Event::Touch),
        5 => a_pass(0),
    ];
    vec(event, 1..25)
}

/// A namespace and an object in it come and go.
fn nested() -> impl Strategy<Value = Vec<Event>> {
    let edited = (0..2_usize, select(MODES), select(BEHAVIORS), vec((3..5_usize, 1..3_u8), 0..3));
    let edit = edited.prop_map(|(set, mode, behavior, resources)| Event::Edit {
        set,
        mode,
        behavior,
        resources,
        patched: None,
    });
    let event = prop_oneof![
        5 => edit,
        2 => (0..2_usize, any::<bool>()).prop_map(|(set, is_new)| Event::Remove { set, is_new }),
        2 => Just(Event::Create(4)),
        5 => a_pass(0),
    ];
    vec(event, 1..25)
}

#[derive(Debug, Default)]
struct Story {
    world: World,
    store: Store,
    sets: BTreeMap<usize, Set>,
    removed: BTreeMap<usize, Set>,
    generation: i64,
    /// Objects with their UIDs that are in a namespace of ours, and are known to have existed before.
    kept: BTreeSet<(ObjectRef, u64)>,
}

impl Story {
    fn new() -> Self {
        Self { world: World::new(), ..Self::default() }
    }

    fn documents(&self) -> Vec<Set> {
        self.sets.values().cloned().collect()
    }

    fn wanted(&self) -> BTreeMap<ObjectRef, (Behavior, String)> {
        let mut sets = self.documents();
        sets.sort_by(|one, other| one.name.cmp(&other.name));
        let mut wanted = BTreeMap::new();
        for set in &sets {
            for resource in &set.resources {
                if let Resource::Ready(object, content, _) = resource {
                    wanted.insert(object.clone(), (set.behavior, content.clone()));
                }
            }
        }
        wanted
    }

    fn happens(&mut self, event: &Event) {
        self.generation += 1;
        match event {
            Event::Edit { set: at, mode, behavior, resources, patched } => {
                let mut edited = self.sets.remove(at).or_else(|| self.removed.remove(at)).unwrap_or_else(|| named(*at));
                let distinct: BTreeMap<usize, u8> = resources.iter().copied().collect();
                let ready = |(at, content): (usize, u8)| {
                    Resource::Ready(objects()[at].clone(), content.to_string(), Flags::default())
                };
                edited.resources = distinct.into_iter().map(ready).collect();
                edited.patches = patched.iter().map(|at| (objects()[*at].clone(), format!("p{at}"))).collect();
                (edited.mode, edited.behavior) = (*mode, *behavior);
                (edited.generation, edited.deletions) = (self.generation + 1, Deletions::Allowed);
                self.sets.insert(*at, edited);
            }
            Event::Break { set, known } => {
                let known = match known {
                    0..5 => Known::Object(objects()[usize::from(*known)].clone()),
                    5 => Known::Kind { group: String::new(), kind: "ConfigMap".to_owned() },
                    _ => Known::Nothing,
                };
                if let Some(set) = self.sets.get_mut(set) {
                    set.resources.push(Resource::Broken(known));
                    set.generation = self.generation + 1;
                }
            }
            Event::Remove { set, is_new } => {
                if let Some(mut removed) = self.sets.remove(set) {
                    if *is_new {
                        removed.id = Uuid::from_u128(u128::from(self.generation.unsigned_abs()));
                    }
                    self.removed.insert(*set, removed);
                } else if let Some(back) = self.removed.remove(set) {
                    self.sets.insert(*set, back);
                }
            }
            Event::Hold { set } => {
                if let Some(set) = self.sets.get_mut(set) {
                    set.deletions = Deletions::Suspended;
                }
            }
            Event::Create(at) => drop(self.world.create(&objects()[*at])),
            Event::Delete(at) => drop(self.world.objects.remove(&objects()[*at])),
            Event::Touch(at) => {
                if self.world.objects.contains_key(&objects()[*at]) {
                    self.world.touch(&objects()[*at], true);
                }
            }
            Event::Hive(at) => drop(self.world.create_by_hive(&objects()[*at])),
            Event::Pass { full, cut, replaced } => self.passes(*full, *cut, *replaced),
        }
    }

    fn passes(&mut self, full: bool, cut: Option<(usize, Fate)>, replaced: Option<(usize, usize)>) {
        let Some(input) = self.store.input(&self.documents(), full) else { return };
        let wanted = self.wanted();
        let (mut calls, mut before) = (0, self.world.objects.clone());
        let kept = &mut self.kept;
        let store = &mut self.store;
        let mut noted = store.clone();
        run_while(&mut self.world, store, input, |world, call| {
            check(kept, &before, world, &wanted);
            if let Some((_, at)) = replaced.filter(|(before, _)| *before == calls) {
                world.create(&objects()[at]);
            }
            before = world.objects.clone();
            if let Call::Store(writes) = call {
                noted.write((*writes).clone());
                note_kept(kept, &noted, world);
            }
            calls += 1;
            cut.filter(|(at, _)| *at + 1 == calls).map_or(Fate::Done, |(_, cut)| cut)
        });
        check(kept, &before, &self.world, &wanted);
        note_kept(kept, &self.store, &self.world);
    }

    /// Passes until nothing is due, as if a full one were due as well. What doesn't render is taken out, and nothing is suspended.
    fn comes_to_rest(&mut self) {
        for set in self.sets.values_mut() {
            set.resources.retain(|resource| matches!(resource, Resource::Ready(..)));
            set.patches.clear();
            (set.generation, set.deletions) = (set.generation + 1000, Deletions::Allowed);
        }
        // What is in a namespace that nobody wants can't be created, or keeps a namespace that is to be deleted.
        if !self.wanted().contains_key(&objects()[3]) {
            for set in self.sets.values_mut() {
                set.resources.retain(|of| !matches!(of, Resource::Ready(object, ..) if *object == objects()[4]));
            }
        }
        // Only the second full pass finds that an object stays that was gone several times.
        for round in 0..8 {
            self.passes(matches!(round, 2 | 5), None, None);
        }
        // What somebody has made of an object keeps it, and what it is in, until that is over.
        let is_taken = |row: &ResultRow| row.failure.as_ref().is_some_and(|is| is.reason == Reason::NotDeleted);
        let is_any_taken = self.store.results.values().any(is_taken);
        let is_within = |row: &ResultRow| row.failure.as_ref().is_some_and(|is| is.reason == Reason::DeletionFailed);
        let is_done = |row: &ResultRow| row.failure.is_none() && !row.has_pending_deletions;
        let is_at_rest = self.store.input(&self.documents(), false).is_none()
            || self.store.results.values().all(|row| is_done(row) || is_taken(row) || (is_any_taken && is_within(row)));
        assert!(is_at_rest, "{:#?}", self.store.results);
    }

    fn sends_nothing_more(&mut self) {
        let requests = pass(&mut self.world, &mut self.store, &self.sets.values().cloned().collect::<Vec<_>>(), true);
        let writes: Vec<&String> =
            requests.iter().filter(|line| !line.starts_with("GET") && !line.starts_with("LIST")).collect();
        assert!(writes.is_empty(), "{writes:?}");
    }

    fn is_as_wanted(&self) {
        for (object, (behavior, content)) in self.wanted() {
            let found = self.world.objects.get(&object).unwrap_or_else(|| panic!("{object} is missing"));
            if behavior != Behavior::CreateOnly {
                assert_eq!(found.data, *content, "{object}");
            }
            if behavior == Behavior::Apply {
                assert_eq!(found.fields["towline"], BTreeSet::from([content]), "{object}");
                let is_adopted = found.annotations.get("towline.dev/adopted").is_some_and(|is| is == "true");
                let mut leftovers = self.world.leftovers(&object);
                leftovers.retain(|manager| *manager != HIVE || !is_adopted);
                assert!(leftovers.is_empty(), "{object} has fields of {leftovers:?}");
            }
        }
    }
}

/// Nothing that is wanted or foreign is ever deleted by a pass. `kept` are objects in a namespace of ours that are known to be foreign.
fn check(
    kept: &BTreeSet<(ObjectRef, u64)>,
    before: &BTreeMap<ObjectRef, Object>,
    world: &World,
    wanted: &BTreeMap<ObjectRef, (Behavior, String)>,
) {
    for (object, was) in before {
        if world.objects.get(object).is_none_or(|is| is.uid != was.uid) {
            assert!(!wanted.contains_key(object), "{object} is wanted and was deleted");
            let is_unknown = object.namespace == "n" && !kept.contains(&(object.clone(), was.uid));
            assert!(!was.foreign || is_unknown, "{object} is not ours and was deleted");
        }
    }
}

/// What is in a namespace without a row of anybody can't be known to it.
fn note_kept(kept: &mut BTreeSet<(ObjectRef, u64)>, store: &Store, world: &World) {
    let [.., namespace, _] = objects();
    if !store.applied.keys().any(|(object, _)| *object == namespace) {
        kept.clear();
        return;
    }
    let is_known = |row: &&AppliedRow| row.adopted && (row.uid.is_some() || row.content.is_some());
    for row in store.applied.values().filter(is_known) {
        if let Some(found) = world.objects.get(&row.object)
            && row.uid.as_ref().is_none_or(|uid| *uid == found.uid.to_string())
        {
            kept.insert((row.object.clone(), found.uid));
        }
    }
}

/// A pass that has everything to do: objects that are sent and patched, compared by a list and by a GET, created anew, taken over, defined and of
/// what is defined, created once, deleted to be created again, deleted, and deleted with their namespace.
fn everything() -> (World, Store, Vec<Set>) {
    let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
    let widget = object("example.com", "Widget", "default", "w");
    let [a, b, c, namespace, inner] = objects();
    let flags = Flags { may_recreate: true, ..Flags::default() };
    let (updated, created) = (set(SyncSet, "updated"), set(SyncSet, "created").behavior(Behavior::CreateOnly));
    let updated = updated.behavior(Behavior::CreateOrUpdate);
    let before = [
        named(0).maps(&["a", "b", "u", "v", "w"]).flags(flags).patch(c.clone(), "p").patch(c.clone(), "stays"),
        named(1).behavior(Behavior::CreateOrUpdate).objects(&[namespace, inner, c.clone()]),
        named(2).behavior(Behavior::CreateOnly).maps(&["o"]),
        updated.clone().maps(&["m"]),
    ];
    let (mut world, mut store) = (World::new(), Store::default());
    pass(&mut world, &mut store, &before, false);
    pass(&mut world, &mut store, &before, false);
    // One has created an object, and was killed before it could note that.
    let created = created.maps(&["once"]);
    let input = store.input(&[&before[..], std::slice::from_ref(&created)].concat(), false).expect("it is due");
    run_while(
        &mut world,
        &mut store,
        input,
        |_, call| {
            if call.is_write_of("POST", "once") { Fate::Killed } else { Fate::Done }
        },
    );
    world.objects.remove(&a);
    world.touch(&b, true);
    world.create_by_hive(&map("h"));
    world.immutable.insert(b);
    world.without_strategic = true;
    world.log.clear();
    let kept =
        named(0).maps(&["a", "b=2", "h", "u", "v", "w"]).flags(flags).patch(c.clone(), "q").patch(c.clone(), "stays");
    let after = vec![
        Set { generation: 9, ..kept },
        Set { generation: 9, ..named(2).behavior(Behavior::Apply).maps(&["o=2"]) },
        Set { generation: 9, ..named(3).objects(&[definition, widget, c]) },
        Set { generation: 9, ..updated.maps(&["m=2"]) },
        created,
    ];
    (world, store, after)
}

/// Each call of a pass goes wrong in each way, and the next ones come to the same.
#[test]
fn wherever_a_pass_fails_or_is_killed_the_next_ones_bring_about_what_is_wanted() {
    let contents = |world: &World| -> Vec<_> {
        let objects = world.objects.iter();
        objects.map(|(object, found)| (object.clone(), found.data.clone(), found.patches.clone())).collect()
    };
    let rest = |world: &mut World, store: &mut Store, sets: &[Set]| {
        for round in 0..6 {
            pass(world, store, sets, round < 3);
        }
        assert!(store.input(sets, false).is_none(), "{:#?}", store.results);
        contents(world)
    };
    let (mut world, mut store, sets) = everything();
    let log = pass(&mut world, &mut store, &sets, true);
    let sent: BTreeSet<&str> = log.iter().filter_map(|line| line.split(' ').next()).collect();
    let all = ["APPLY", "DELETE", "GET", "LIST", "MERGE", "PATCH", "POST", "TAKE", "TRY"];
    assert!(sent.into_iter().eq(all), "{log:#?}");
    let expected = rest(&mut world, &mut store, &sets);
    assert_eq!(expected.len(), 12, "{expected:?}");
    let wrong = [Fate::Unsent, Fate::Unanswered, Fate::Killed].into_iter();
    let wrong = wrong.chain([Refusal::Forbidden, Refusal::Conflict, Refusal::Server].map(Fate::Refused));
    for fate in wrong {
        for at in 0.. {
            let (mut world, mut store, sets) = everything();
            let (input, mut calls) = (store.input(&sets, true).expect("it is full"), 0);
            run_while(&mut world, &mut store, input, |_, _| {
                calls += 1;
                if calls == at + 1 { fate } else { Fate::Done }
            });
            assert_eq!(rest(&mut world, &mut store, &sets), expected, "{fate:?} at {at}");
            if calls <= at {
                assert!(at > 30, "{at}");
                break;
            }
        }
    }
}

proptest! {
    // A soak may want more.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_cluster_gets_what_is_wanted_and_loses_nothing_that_is_wanted_or_not_ours(
        events in anything(),
    ) {
        let mut story = Story::new();
        for event in &events {
            story.happens(event);
        }
        story.comes_to_rest();
        story.is_as_wanted();
        story.sends_nothing_more();
    }

    #[test]
    fn what_is_known_to_have_existed_before_survives_its_namespace(events in nested()) {
        let mut story = Story::new();
        for event in &events {
            story.happens(event);
        }
        story.comes_to_rest();
        story.is_as_wanted();
        story.sends_nothing_more();
    }

    #[test]
    fn a_cluster_that_is_ours_alone_has_exactly_what_is_wanted(events in strict()) {
        let mut story = Story::new();
        for event in &events {
            story.happens(event);
        }
        story.comes_to_rest();
        story.is_as_wanted();
        let wanted: BTreeSet<ObjectRef> = story.wanted().into_keys().collect();
        let ours = story.world.objects.iter().filter(|(_, found)| !found.foreign);
        let ours: BTreeSet<ObjectRef> = ours.map(|(object, _)| object.clone()).collect();
        prop_assert!(ours.is_subset(&wanted), "{:?} is not wanted", ours.difference(&wanted));
        prop_assert!(story.store.applied.keys().all(|(object, _)| wanted.contains(object)));
        story.sends_nothing_more();
    }

    #[test]
    fn the_order_in_which_syncsets_arrive_does_not_matter(
        edits in vec(edit(MODES, &[Behavior::Apply, Behavior::CreateOrUpdate], 5), 1..5), order in any::<u64>(),
    ) {
        let distinct: BTreeMap<usize, Event> = edits.into_iter().map(|event| match event {
            Event::Edit { set, mode, behavior, resources, .. } => {
                (set, Event::Edit { set, mode, behavior, resources, patched: None })
            }
            other => (0, other),
        }).collect();
        let mut shuffled: Vec<&Event> = distinct.values().collect();
        let turns = usize::try_from(order % 7).expect("a small number") % shuffled.len();
        shuffled.rotate_left(turns);
        if order % 2 == 0 {
            shuffled.reverse();
        }
        let states = [distinct.values().collect(), shuffled].map(|events| {
            let mut story = Story::new();
            for event in events {
                story.happens(event);
                story.passes(false, None, None);
            }
            story.comes_to_rest();
            let kept = story.world.objects.iter();
            kept.map(|(object, found)| (object.clone(), found.data.clone())).collect::<Vec<_>>()
        });
        prop_assert_eq!(&states[0], &states[1]);
    }
}

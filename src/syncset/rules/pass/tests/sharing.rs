//! Two documents that lead to one cluster: an object is there as long as one of them wants it, and no longer.

use std::slice::from_ref;
use std::time::Duration;

use super::super::{Answer, End, Input, Outcome, Pass, Progress, Refusal, Step, Writes};
use super::store::Store;
use super::world::{Set, World, map, object, set};
use crate::syncset::rules::name::ObjectRef;
use crate::syncset::rules::name::SyncSetKind::{SelectorSyncSet, SyncSet};
use crate::syncset::rules::spec::Behavior;
use crate::syncset::rules::status::Retry;
use crate::syncset::rules::wanted::{Deletions, group_defined_by, is_namespace};

/// The documents of one cluster.
#[derive(Clone, Default)]
struct Shared {
    world: World,
    stores: [Store; 2],
    /// Which of them want what the other one has removed, so that full passes of them are due.
    bereft: [bool; 2],
}

impl Store {
    /// As the statement before a deletion finds it.
    fn wants(&self, wanted: &ObjectRef) -> bool {
        let is_it = |object: &ObjectRef| {
            object == wanted
                || (is_namespace(wanted) && object.namespace == wanted.name)
                || group_defined_by(wanted) == Some(object.group.as_str())
        };
        self.applied.values().any(|row| row.wanted && is_it(&row.object))
    }
}

impl Shared {
    fn input(&self, at: usize, sets: &[Set], full: bool) -> Option<Input> {
        let input = self.stores[at].input(sets, full);
        input.map(|input| Input { shared: true, ..input })
    }

    /// One step of the pass of a document. Returns what the pass comes to at its end.
    fn step(&mut self, at: usize, pass: &mut Pass) -> Option<Outcome> {
        let answer = match pass.next(Duration::ZERO) {
            Step::Done(outcome) => {
                self.write(at, outcome.writes.clone());
                return Some(*outcome);
            }
            Step::Store(writes) => {
                self.write(at, writes);
                Ok(Answer::Stored)
            }
            Step::Elsewhere { object } => Ok(Answer::Elsewhere(self.stores[1 - at].wants(object))),
            step => self.world.perform(step),
        };
        pass.reply(answer);
        None
    }

    fn write(&mut self, at: usize, writes: Writes) {
        self.bereft[1 - at] |= writes.removed.iter().any(|removed| self.stores[1 - at].wants(removed));
        self.stores[at].write(writes);
    }

    /// The rest of a pass.
    fn finish(&mut self, at: usize, pass: &mut Pass) -> Outcome {
        loop {
            if let Some(outcome) = self.step(at, pass) {
                return outcome;
            }
        }
    }

    /// A pass that is about to delete something.
    fn deleting(&mut self, at: usize, input: Input) -> Pass {
        let mut pass = Pass::new(input);
        while !matches!(pass.next(Duration::ZERO), Step::Delete { .. }) {
            assert!(self.step(at, &mut pass).is_none(), "it is about to be deleted");
        }
        pass
    }

    /// Passes of a document until one has finished.
    fn pass(&mut self, at: usize, sets: &[Set]) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        while outcomes.last().is_none_or(|last| last.end == End::Yielded) && outcomes.len() < 9 {
            let Some(mut input) = self.input(at, sets, false) else { break };
            input.progress = outcomes.last().map(|last| last.progress.clone()).unwrap_or_default();
            let mut pass = Pass::new(input);
            outcomes.push(loop {
                if let Some(outcome) = self.step(at, &mut pass) {
                    break outcome;
                }
            });
        }
        outcomes
    }

    /// Both documents want these.
    fn of(sets: [&Set; 2]) -> Self {
        let mut shared = Self { world: World::new(), ..Self::default() };
        for (at, set) in sets.into_iter().enumerate() {
            shared.pass(at, from_ref(set));
        }
        shared.world.log.clear();
        shared
    }

    fn is_forgotten(&self) -> bool {
        self.stores.iter().all(|store| store.applied.is_empty())
    }
}

/// Many orders of the steps of two passes that begin at once. Whoever has spared the object has another pass, since it is asked for when
/// the other one has dropped it.
#[test]
fn of_two_documents_that_drop_an_object_at_once_one_deletes_it() {
    for names in [["s", "s"], ["s", "t"]] {
        let [one, other] = names.map(|name| set(SelectorSyncSet, name).maps(&["a"]));
        let before = Shared::of([&one, &other]);
        let dropped = [one.maps(&[]), other.maps(&[])];
        let mut most = 0;
        for order in (0..1_u32 << 12).step_by(7) {
            let mut shared = before.clone();
            let begin = |at: usize| shared.input(at, from_ref(&dropped[at]), false).map(Pass::new).expect("it is due");
            let mut passes = [Some(begin(0)), Some(begin(1))];
            let mut steps = 0;
            while passes.iter().any(Option::is_some) {
                let at = usize::from(order >> (steps % 12) & 1 == 1);
                let at = if passes[at].is_some() { at } else { 1 - at };
                let pass = passes[at].as_mut().expect("it has not ended");
                if shared.step(at, pass).is_some() {
                    passes[at] = None;
                }
                steps += 1;
            }
            most = most.max(steps);
            for at in [0, 1] {
                shared.pass(at, from_ref(&dropped[at]));
            }
            assert!(shared.world.objects.is_empty(), "{names:?} {order:b}: {:?}", shared.world.log);
            shared.pass(0, from_ref(&dropped[0]));
            assert!(shared.is_forgotten(), "{names:?} {order:b}: {:?}", shared.stores);
        }
        assert!((10..=12).contains(&most), "{most}");
    }
}

#[test]
fn what_the_other_document_wants_stays_until_it_is_dropped_there_too_whoever_sent_it() {
    for owner in [0, 1] {
        let sets = [set(SyncSet, "s").maps(&["a", "kept"]), set(SyncSet, "t").maps(&["a", "kept"])];
        let mut shared = Shared::of([&sets[0], &sets[1]]);
        // The second one has sent it last.
        assert_eq!(World::seen(&shared.world.objects[&map("a")]).marks.syncset, Some(sets[1].id));
        let dropped = sets.map(|set| set.maps(&["kept"]));
        let [outcome] = shared.pass(owner, from_ref(&dropped[owner])).try_into().expect("one pass");
        assert_eq!((outcome.end, outcome.retry, outcome.releases.len()), (End::Finished, None, 1 - owner));
        assert!(shared.world.objects.contains_key(&map("a")));
        // It is asked for again for another reason.
        shared.pass(owner, from_ref(&dropped[owner]));
        assert!(shared.world.objects.contains_key(&map("a")));
        shared.pass(1 - owner, from_ref(&dropped[1 - owner]));
        shared.pass(owner, from_ref(&dropped[owner]));
        assert!(!shared.world.objects.contains_key(&map("a")) && shared.world.objects.contains_key(&map("kept")));
        assert!(shared.stores.iter().all(|store| store.applied.len() == 1), "{:?}", shared.stores);
    }
}

#[test]
fn a_namespace_stays_with_what_another_document_wants_in_it() {
    let inner = object("", "ConfigMap", "n", "x");
    let outer = object("", "Namespace", "", "n");
    let both = [outer.clone(), inner.clone()];
    for (here, there) in [(&both[..], &both[..]), (&both[..], &both[1..]), (&both[..1], &both[1..])] {
        let sets = [here, there].map(|objects| set(SelectorSyncSet, "s").objects(objects));
        let mut shared = Shared::of([&sets[0], &sets[1]]);
        let dropped = sets.map(|set| set.objects(&[]));
        let [outcome] = shared.pass(0, from_ref(&dropped[0])).try_into().expect("one pass");
        assert_eq!((outcome.retry, shared.world.objects.len()), (None, 2), "{:?}", shared.world.log);
        assert!(outcome.results.iter().all(|row| row.failure.is_none() && row.has_pending_deletions));
        for at in [1, 0, 1, 0] {
            shared.pass(at, from_ref(&dropped[at]));
        }
        assert!(shared.world.objects.is_empty() && shared.is_forgotten(), "{:?}", shared.world.log);
    }
}

/// The API server deletes the contents of a namespace after it has answered the deletion; until then they look as if they stayed.
#[test]
fn whoever_begins_to_want_something_in_a_namespace_while_it_is_deleted_sends_it_again_when_all_of_it_is_gone() {
    let (outer, inner) = (object("", "Namespace", "", "n"), object("", "ConfigMap", "n", "x"));
    for recreated in [false, true] {
        let first = set(SelectorSyncSet, "s").objects(from_ref(&outer));
        let second = set(SelectorSyncSet, "t").objects(&[]);
        let mut shared = Shared::of([&first, &second]);
        shared.world.create(&inner);
        shared.world.slow_namespaces = true;
        let dropped = first.objects(&[]);
        let input = shared.input(0, from_ref(&dropped), false).expect("it is due");
        let mut pass = shared.deleting(0, input);
        let wanted = second.objects(from_ref(&inner));
        shared.pass(1, from_ref(&wanted));
        let outcome = shared.finish(0, &mut pass);
        assert!(shared.world.objects[&outer].terminating && shared.world.objects.contains_key(&inner));
        for outcome in std::iter::once(outcome).chain(shared.pass(0, from_ref(&dropped))) {
            assert_eq!((outcome.retry, outcome.releases.len()), (Some(Retry::Look), 0));
            assert!(outcome.results.iter().all(|row| row.failure.is_none() && row.has_pending_deletions));
        }
        assert_eq!(shared.bereft, [false, false], "it would find everything there");
        shared.world.finish_namespaces();
        if recreated {
            shared.world.create(&outer);
        }
        shared.pass(0, from_ref(&dropped));
        assert_eq!(shared.bereft, [false, true]);
        assert!(shared.stores[0].applied.is_empty());
    }
}

/// Then it is no row that waits until the namespace is gone: it is noted when it turns out to be missing, or to be another one.
#[test]
fn whoever_wants_a_namespace_again_before_it_is_gone_tells_the_others_when_it_is() {
    let (outer, inner) = (object("", "Namespace", "", "n"), object("", "ConfigMap", "n", "x"));
    for behavior in [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly] {
        for (recreated, full) in [(false, false), (false, true), (true, false), (true, true)] {
            if behavior == Behavior::CreateOnly && !full {
                // It is there, and is looked at by the next full pass.
                continue;
            }
            let first = set(SelectorSyncSet, "s").behavior(behavior).objects(from_ref(&outer));
            let second = set(SelectorSyncSet, "t").objects(&[]);
            let mut shared = Shared::of([&first, &second]);
            shared.world.create(&inner);
            shared.world.slow_namespaces = true;
            let dropped = first.objects(&[]);
            let input = shared.input(0, from_ref(&dropped), false).expect("it is due");
            let mut pass = shared.deleting(0, input);
            let there = second.objects(from_ref(&inner));
            shared.pass(1, from_ref(&there));
            shared.finish(0, &mut pass);
            let again = dropped.objects(from_ref(&outer));
            shared.pass(0, from_ref(&again));
            let case = format!("{behavior:?}, recreated: {recreated}, full: {full}");
            assert!(shared.world.objects[&outer].terminating && shared.bereft == [false, false], "{case}");
            shared.world.finish_namespaces();
            if recreated {
                shared.world.create(&outer);
            }
            for _ in 0..2 {
                let mut pass = shared.input(0, from_ref(&again), full).map(Pass::new);
                if let Some(pass) = &mut pass {
                    shared.finish(0, pass);
                }
            }
            assert!(shared.world.objects.contains_key(&outer), "{case}: {:?}", shared.world.log);
            assert_eq!(shared.bereft, [false, true], "{case}: {:?}", shared.world.log);
            // It is told once, also if what is in it can't come back.
            shared.bereft = [false, false];
            for at in [1, 0, 1, 0] {
                let sets = [&again, &there][at];
                let mut pass = Pass::new(shared.input(at, from_ref(sets), true).expect("it is due"));
                shared.finish(at, &mut pass);
            }
            assert_eq!(shared.bereft, [false, false], "{case}");
            assert!(shared.world.objects.contains_key(&inner), "{case}");
        }
    }
}

/// A row of a syncset that no longer wants the object remembers it until another one has sent it, which may be refused each time.
#[test]
fn a_loss_is_told_once_by_each_document_also_if_the_object_can_not_come_back() {
    let outer = object("", "Namespace", "", "n");
    let first = set(SelectorSyncSet, "s").objects(from_ref(&outer));
    let mut shared = Shared::of([&first, &first]);
    let next = [set(SelectorSyncSet, "t").objects(from_ref(&outer))];
    shared.world.refusals.insert("APPLY Namespace n".to_owned(), Refusal::Forbidden);
    for at in [0, 1] {
        shared.pass(at, &next);
        assert_eq!(shared.stores[at].applied.values().filter(|row| row.uid.is_some()).count(), 2);
    }
    shared.world.objects.remove(&outer);
    let mut told = [0, 0];
    for _ in 0..5 {
        for at in [0, 1] {
            let mut pass = Pass::new(shared.input(at, &next, true).expect("it is due"));
            shared.finish(at, &mut pass);
            told[at] += usize::from(std::mem::take(&mut shared.bereft[1 - at]));
        }
    }
    assert_eq!(told, [1, 1], "{:?}", shared.world.log);
    shared.world.refusals.clear();
    for at in [0, 1] {
        shared.pass(at, &next);
    }
    assert!(shared.world.objects.contains_key(&outer));
    for store in &shared.stores {
        assert!(store.applied.values().all(|row| row.uid.is_some() && !row.adopted), "{:?}", store.applied);
    }
}

/// A namespace may take any time to go, or never go.
#[test]
fn namespaces_that_do_not_go_keep_no_other_object_from_its_turn_and_are_looked_at_once_until_the_pass_comes_back() {
    let namespaces: Vec<ObjectRef> = (0..600).map(|at| object("", "Namespace", "", &format!("n{at:03}"))).collect();
    let first = set(SelectorSyncSet, "s").objects(&namespaces);
    let mut shared = Shared::of([&first, &set(SelectorSyncSet, "t")]);
    shared.world.slow_namespaces = true;
    let next = set(SelectorSyncSet, "z").maps(&["z"]);
    let sets = [first.objects(&[]), next.clone()];
    let outcomes = shared.pass(0, &sets);
    let requests: Vec<usize> = outcomes.iter().map(|outcome| outcome.requests).collect();
    // The object of the second one is looked at by the first pass, and once more before it is sent.
    assert_eq!(requests, [1 + 500, 500, 200 + 2]);
    let count = |shared: &Shared, what: &str| shared.world.log.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((count(&shared, "DELETE Namespace"), count(&shared, "APPLY")), (600, 1));
    let last = outcomes.last().expect("it has ended");
    assert_eq!((last.end, last.retry), (End::Finished, Some(Retry::Look)));
    // Each time that it comes back it looks at each of them once, and sends what is new.
    shared.world.log.clear();
    let outcomes = shared.pass(0, &[sets[0].clone(), next.maps(&["z=2"])]);
    assert_eq!((shared.world.log.len(), count(&shared, "GET Namespace"), count(&shared, "APPLY")), (600 + 2, 600, 1));
    assert_eq!(outcomes.last().map(|last| (last.end, last.retry)), Some((End::Finished, Some(Retry::Look))));
    shared.world.finish_namespaces();
    shared.pass(0, &[sets[0].clone()]);
    assert!(shared.stores[0].applied.keys().all(|(object, _)| object.kind != "Namespace"));
}

#[test]
fn objects_that_are_spared_keep_no_other_from_its_turn() {
    let names: Vec<String> = (0..600).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let both = set(SelectorSyncSet, "s").maps(&names);
    let mut shared = Shared::of([&both, &both]);
    let sets = [both.maps(&[]), set(SelectorSyncSet, "z").maps(&["z"])];
    let outcomes = shared.pass(0, &sets);
    let requests: Vec<usize> = outcomes.iter().map(|outcome| outcome.requests).collect();
    // The object of the second one is looked at by both passes, and once more before it is sent.
    assert_eq!(requests, [1 + 499, 101 + 2]);
    assert!(shared.world.objects.contains_key(&map("z")) && shared.world.objects.len() == 601);
}

/// Whoever begins to want an object while it is about to be deleted has written it, so it has another version.
#[test]
fn an_object_that_the_other_document_begins_to_want_meanwhile_is_not_deleted() {
    for name in ["s", "t"] {
        let (first, second) = (set(SelectorSyncSet, "s").maps(&["a"]), set(SelectorSyncSet, name).maps(&[]));
        let mut shared = Shared::of([&first, &second]);
        let dropped = first.maps(&[]);
        let input = shared.input(0, from_ref(&dropped), false).expect("it is due");
        let mut pass = shared.deleting(0, input);
        shared.pass(1, from_ref(&second.maps(&["a=2"])));
        shared.finish(0, &mut pass);
        assert!(shared.world.objects.contains_key(&map("a")), "{name}: {:?}", shared.world.log);
        assert_eq!(shared.bereft, [false, false]);
    }
}

/// Its write changes nothing of the object, so that no version keeps that from being deleted.
#[test]
fn whoever_begins_to_want_an_object_while_it_is_deleted_sends_it_again() {
    for is_killed in [false, true] {
        let (first, second) = (set(SelectorSyncSet, "s").maps(&["a"]), set(SelectorSyncSet, "s").maps(&[]));
        let mut shared = Shared::of([&first, &second]);
        let dropped = first.maps(&[]);
        let input = shared.input(0, from_ref(&dropped), false).expect("it is due");
        let mut pass = shared.deleting(0, input);
        let wanted = second.maps(&["a"]);
        shared.pass(1, from_ref(&wanted));
        assert!(shared.step(0, &mut pass).is_none());
        assert!(!shared.world.objects.contains_key(&map("a")), "{:?}", shared.world.log);
        assert_eq!(shared.bereft, [false, false], "nothing of the deletion is stored");
        if is_killed {
            shared.pass(0, from_ref(&dropped));
        } else {
            shared.finish(0, &mut pass);
        }
        assert_eq!(shared.bereft, [false, true], "killed: {is_killed}");
        let mut full = Pass::new(shared.input(1, from_ref(&wanted), true).expect("it is due"));
        shared.finish(1, &mut full);
        assert!(shared.world.objects.contains_key(&map("a")) && shared.stores[0].applied.is_empty());
    }
}

#[test]
fn a_document_that_turns_up_during_a_pass_is_asked_before_the_next_deletion() {
    let both = set(SelectorSyncSet, "s").maps(&["a", "b"]);
    let mut shared = Shared::of([&both, &both]);
    let dropped = both.maps(&[]);
    let input = shared.input(0, from_ref(&dropped), false).expect("it is due");
    let mut pass = shared.deleting(0, Input { shared: false, ..input });
    pass.share();
    let outcome = shared.finish(0, &mut pass);
    assert_eq!((outcome.end, outcome.requests, shared.world.objects.len()), (End::Finished, 2, 2));
    assert_eq!(shared.world.log, ["GET ConfigMap default/a", "GET ConfigMap default/b"]);
}

/// Who yields has found some to be wanted elsewhere. That may have changed when it goes on, if somebody has asked for it since.
#[test]
fn what_was_spared_by_a_pass_that_yielded_is_looked_at_again_if_another_pass_was_asked_for() {
    let names: Vec<String> = (0..600).map(|at| format!("m{at:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let both = set(SelectorSyncSet, "s").maps(&names);
    let mut shared = Shared::of([&both, &both]);
    let dropped = both.maps(&[]);
    let go_on = |shared: &mut Shared, progress: Progress| {
        let input = shared.input(0, from_ref(&dropped), false).expect("it is due");
        shared.finish(0, &mut Pass::new(Input { progress, ..input }))
    };
    let yielded = go_on(&mut shared, Progress::default());
    assert_eq!((yielded.end, yielded.spared.len()), (End::Yielded, 0), "it is not gone");
    shared.pass(1, from_ref(&dropped));
    assert!(shared.world.objects.is_empty() && shared.stores[1].applied.is_empty());
    let mut unasked = shared.clone();
    assert_eq!(go_on(&mut unasked, yielded.progress.clone()).end, End::Finished);
    assert_eq!(unasked.stores[0].applied.len(), 500);
    let mut outcome = go_on(&mut shared, yielded.progress.asked_again());
    while outcome.end == End::Yielded {
        outcome = go_on(&mut shared, outcome.progress);
    }
    assert!(shared.is_forgotten());
}

#[test]
fn a_syncset_that_is_gone_is_spared_if_all_it_has_left_is_wanted_by_the_other_document() {
    let (mine, theirs) = (set(SelectorSyncSet, "s").maps(&["a", "b"]), set(SelectorSyncSet, "s").maps(&["a"]));
    let mut shared = Shared::of([&mine, &theirs]);
    shared.world.refusals.insert("DELETE ConfigMap default/b".to_owned(), Refusal::Forbidden);
    let gone = shared.input(0, &[], false).expect("it is due");
    let outcome = shared.finish(0, &mut Pass::new(gone));
    assert!(outcome.spared.is_empty(), "b could not be deleted");
    shared.world.refusals.clear();
    let gone = shared.input(0, &[], false).expect("it is due");
    let outcome = shared.finish(0, &mut Pass::new(gone));
    assert_eq!((outcome.spared.len(), outcome.spared.contains(&mine.id)), (1, true));
    // One that may not delete has spared nothing.
    let mut input = shared.input(0, &[], false).expect("it is due");
    input.gone.insert(mine.id, Deletions::NotJudged);
    assert!(shared.finish(0, &mut Pass::new(input)).spared.is_empty());
}

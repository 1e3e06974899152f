//! The requests of a change, counted at the servers: the table "What it may cost" of the specification.

use serde_json::json;

use super::policy;
use super::server::{Sort, Traits};
use super::users::Action;
use super::world::{NAMESPACE, World};

const ORDINARY: Traits = Traits {
    generations: true,
    status_subresource: true,
    defaults_spec: true,
    prunes_status: true,
    annotations_raise_generation: false,
};

fn rest(world: &mut World) {
    for turn in 0.. {
        let moves = world.moves();
        let Some(next) = moves.get(turn % moves.len().max(1)) else { return };
        world.make(next);
        assert!(turn < 500, "does not come to rest:\n{}", world.diary.join("\n"));
    }
}

/// Writes and live reads between two states of rest.
fn cost(world: &mut World, actions: &[Action]) -> (usize, usize) {
    rest(world);
    let before = (world.writes(), world.reads);
    let first = world.diary.len();
    for action in actions {
        world.act(action);
    }
    rest(world);
    let cost = (world.writes() - before.0, world.reads - before.1);
    // Printed when the caller's assertion fails.
    println!("{}", world.diary[first..].join("\n"));
    cost
}

/// A pair in step, in a namespace of others.
fn in_step(traits: Traits, keys: &str) -> World {
    let mut world = World::new(policy(keys), traits);
    world.act(&Action::CreateNamespace);
    assert_eq!(cost(&mut world, &[Action::CreateRemote(0, 0)]), (3, 0), "finalizer, local object, generations");
    world
}

#[test]
fn a_new_remote_object_costs_three_writes() {
    in_step(ORDINARY, "");
    in_step(ORDINARY, "metadata = \"mirror\"");
    in_step(Traits { generations: false, ..ORDINARY }, "");
}

#[test]
fn a_new_namespace_costs_one_more() {
    let mut world = World::new(policy(""), ORDINARY);
    assert_eq!(cost(&mut world, &[Action::CreateRemote(0, 0)]), (4, 0));
    assert!(world.local.get(Sort::Namespace, NAMESPACE).is_some());
    assert_eq!(cost(&mut world, &[Action::DeleteRemote(0)]), (2, 0), "the namespace instead of the object");
}

#[test]
fn a_changed_spec_costs_two_writes() {
    let mut world = in_step(ORDINARY, "");
    let changed = |content| Action::SetContent { remote: true, pair: 0, content };
    for content in [1, 2, 3, 0] {
        assert_eq!(cost(&mut world, &[changed(content)]), (2, 0), "local object, generations");
    }
}

#[test]
fn a_kind_whose_annotations_raise_the_generation_costs_no_more_and_a_restart_nothing() {
    let mut policy = policy("");
    policy.annotations_raise_generation = true;
    let mut world = World::new(policy, Traits { annotations_raise_generation: true, ..ORDINARY });
    world.act(&Action::CreateNamespace);
    assert_eq!(cost(&mut world, &[Action::CreateRemote(0, 0)]), (3, 0), "finalizer, local object, generations");
    for content in [1, 2, 3, 0] {
        let changed = Action::SetContent { remote: true, pair: 0, content };
        assert_eq!(cost(&mut world, &[changed]), (2, 0), "local object, generations");
        assert_eq!(cost(&mut world, &[Action::Crash]), (0, 0), "a restart");
    }
    for value in [Some(1), Some(2), None] {
        let changed = Action::SetMetadata { remote: true, pair: 0, annotation: true, key: 2, value };
        assert_eq!(cost(&mut world, &[changed]), (2, 0), "local annotation, generations");
    }
    for status in [1, 2, 3] {
        assert_eq!(cost(&mut world, &[Action::SetStatus { remote: false, pair: 0, status }]), (1, 0), "{status}");
    }
}

#[test]
fn a_changed_status_costs_one_write() {
    let mut world = in_step(ORDINARY, "");
    for status in [1, 2, 3, 5, 4, 0] {
        assert_eq!(cost(&mut world, &[Action::SetStatus { remote: false, pair: 0, status }]), (1, 0), "{status}");
    }
}

#[test]
fn without_a_status_subresource_a_status_costs_two_writes() {
    let mut world = in_step(Traits { status_subresource: false, ..ORDINARY }, "");
    for status in [2, 3, 5] {
        let status = Action::SetStatus { remote: false, pair: 0, status };
        assert_eq!(cost(&mut world, &[status]), (2, 0), "status, generations");
    }
}

#[test]
fn a_changed_label_or_annotation_costs_one_write() {
    for keys in ["", "metadata = \"mirror\""] {
        let mut world = in_step(ORDINARY, keys);
        for (annotation, value) in [(false, Some(1)), (true, Some(1)), (true, None), (false, None)] {
            let changed = Action::SetMetadata { remote: true, pair: 0, annotation, key: 2, value };
            assert_eq!(cost(&mut world, &[changed]), (1, 0));
        }
    }
}

#[test]
fn a_deleted_remote_object_costs_two_writes() {
    let mut world = in_step(ORDINARY, "");
    assert_eq!(cost(&mut world, &[Action::DeleteRemote(0)]), (2, 0), "local deletion, finalizer");
    assert_eq!((world.remote.get(Sort::Synced, "a"), world.local.get(Sort::Synced, "a")), (None, None));
}

#[test]
fn a_missing_remote_object_costs_one_write_and_one_read() {
    for owned in [false, true] {
        for seen in [false, true] {
            let mut world = World::new(policy(""), ORDINARY);
            if !owned {
                world.act(&Action::CreateNamespace);
            }
            cost(&mut world, &[Action::CreateRemote(0, 0)]);
            let mut gone = vec![Action::StripFinalizer(0), Action::DeleteRemote(0)];
            if !seen {
                gone.push(Action::Crash);
            }
            assert_eq!(cost(&mut world, &gone), (1, 1), "owned: {owned}, seen: {seen}");
            assert_eq!(world.local.get(Sort::Synced, "a"), None);
        }
    }
}

#[test]
fn nothing_costs_nothing_and_neither_does_a_restart() {
    for keys in ["", "metadata = \"mirror\"", "write_back = false"] {
        for generations in [true, false] {
            let traits = Traits { generations, ..ORDINARY };
            let mut world = World::new(policy(keys), traits);
            world.act(&Action::CreateNamespace);
            let unsettling = [Action::CreateRemote(0, 0), Action::SetStatus { remote: false, pair: 0, status: 1 }];
            cost(&mut world, &unsettling);
            world.ask_all();
            assert_eq!(cost(&mut world, &[]), (0, 0), "nothing: {keys}");
            let restart = cost(&mut world, &[Action::Crash]);
            if generations && keys != "write_back = false" {
                assert_eq!(restart, (0, 0), "restart: {keys}");
            } else {
                assert_eq!(restart, (1, 0), "without noted generations a defaulted spec is written once more: {keys}");
            }
        }
    }
}

#[test]
fn an_unknown_outcome_costs_one_read_more() {
    for done in [true, false] {
        let mut world = in_step(ORDINARY, "");
        let changed = Action::SetContent { remote: true, pair: 0, content: 1 };
        let (writes, reads) = cost(&mut world, &[changed, Action::LoseAnswer { done }]);
        assert_eq!(reads, 1);
        assert!(writes <= 3, "{writes} writes");
        assert_eq!(world.local.get(Sort::Synced, "a").map(|local| local["spec"]["size"].clone()), Some(json!(2)));
    }
}

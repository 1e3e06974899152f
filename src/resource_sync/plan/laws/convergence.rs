//! From every reachable state the world converges to the state that the specification demands, whatever happened before. The order
//! of deliveries makes no difference, and nothing is written any more afterwards.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::server::{Sort, Traits, is_deleting};
use super::users::{Action, action, section, traits};
use super::world::{Move, NAMES, NAMESPACE, UNSELECTED, World};
use super::{
    ADOPTED, FINALIZER, LOCAL_GENERATION, LOCAL_NAME, OWNER, PAUSED, REMOTE_GENERATION, REMOTE_UID, SYNC_ERROR, object,
    policy,
};
use crate::resource_sync::config::{Adopt, Metadata};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::ownership::may_go_unclaimed;

/// More moves than any state needs to converge.
const MOST_MOVES: usize = 600;

/// Makes moves, chosen among the possible ones, until none is possible. Returns the moves.
fn come_to_rest(world: &mut World, choices: &[u8]) -> Result<Vec<Move>, TestCaseError> {
    let mut made = Vec::new();
    loop {
        let moves = world.moves();
        let Some(last) = moves.len().checked_sub(1) else { return Ok(made) };
        // When the choices are used up, the possible moves take turns.
        let choice = choices.get(made.len()).map_or(made.len(), |choice| usize::from(*choice));
        let next = moves[choice % (last + 1)].clone();
        world.make(&next);
        made.push(next);
        if made.len() > MOST_MOVES {
            return Err(TestCaseError::fail(format!("does not come to rest: {:?}", &made[MOST_MOVES - 40..])));
        }
    }
}

fn text<'a>(value: &'a Value, map: &str, key: &str) -> Option<&'a str> {
    value["metadata"].get(map)?.get(key)?.as_str()
}

fn holds(value: &Value, finalizer: &str) -> bool {
    value["metadata"]["finalizers"].as_array().is_some_and(|held| held.iter().any(|held| held == finalizer))
}

fn entries(value: &Value, map: &str) -> Map<String, Value> {
    value["metadata"].get(map).and_then(Value::as_object).cloned().unwrap_or_default()
}

fn content(value: &Value) -> Value {
    let mut fields = value.as_object().cloned().unwrap_or_default();
    fields.remove("metadata");
    fields.remove("status");
    Value::Object(fields)
}

/// Checks one pair at rest against the specification.
fn is_as_specified(world: &World, traits: Traits, name: &str) -> Result<(), TestCaseError> {
    let remote = world.remote.get(Sort::Synced, name);
    let local = world.local.get(Sort::Synced, name);
    let namespace = world.local.get(Sort::Namespace, NAMESPACE);
    let merge = world.policy.metadata == Metadata::Merge;
    let is_paused =
        |side: &Option<Value>| side.as_ref().is_some_and(|value| text(value, "annotations", PAUSED) == Some("true"));
    if is_paused(&remote) || is_paused(&local) {
        return Ok(());
    }
    // The section does not see that an object without a local object of ours leaves the selector during a gap of the watch.
    let is_unseen = world.has_gaps && !world.local.was_written_by_us(name);
    let unnoticed = |remote: &Value| is_unseen && text(remote, "labels", UNSELECTED).is_some();
    let at = || format!("{name}\nremote: {remote:?}\nlocal: {local:?}\nnamespace: {namespace:?}");
    let marked = local.as_ref().and_then(|local| text(local, "annotations", REMOTE_UID));
    let Some(remote) = remote.as_ref().filter(|remote| !is_deleting(remote)) else {
        // The remote object is gone or terminating: nothing of ours is left on either side.
        prop_assert!(
            remote.as_ref().is_none_or(|remote| !holds(remote, FINALIZER) || unnoticed(remote)),
            "finalizer: {}",
            at()
        );
        prop_assert!(!merge || marked.is_none(), "an orphan of ours: {}", at());
        prop_assert!(
            remote.is_some() || !local.as_ref().is_some_and(|local| may_go_unclaimed(&object(local), &world.policy)),
            "unclaimed: {}",
            at()
        );
        return Ok(());
    };
    if text(remote, "labels", UNSELECTED).is_some() {
        prop_assert!(unnoticed(remote) || (marked.is_none() && !holds(remote, FINALIZER)), "not let go: {}", at());
        return Ok(());
    }
    let is_left_alone = |local: &Value| {
        world.policy.adopt == Adopt::Never && !is_deleting(local) && !ownership::is_ours(&object(local), &world.policy)
    };
    if local.as_ref().is_some_and(is_left_alone) {
        return Ok(());
    }
    prop_assert!(holds(remote, FINALIZER), "no finalizer: {}", at());
    prop_assert!(namespace.as_ref().is_some_and(|namespace| !is_deleting(namespace)), "no namespace: {}", at());
    let Some(local) = local.as_ref().filter(|local| !is_deleting(local)) else {
        return Err(TestCaseError::fail(format!("no local object: {}", at())));
    };

    let mut expected = content(remote);
    if !world.policy.local_fields.is_empty() {
        match local.pointer("/spec/replicas") {
            Some(replicas) => expected["spec"]["replicas"] = replicas.clone(),
            None => drop(expected.get_mut("spec").and_then(Value::as_object_mut).map(|spec| spec.remove("replicas"))),
        }
    }
    let is_made_up = local.get("spec").is_some_and(Value::is_object) && !world.policy.local_fields.is_empty();
    if expected.get("spec").is_none() && is_made_up {
        // It was created for a local field that has gone since.
        expected["spec"] = json!({});
    }
    if let (true, Some(spec)) = (traits.defaults_spec, expected.get_mut("spec").and_then(Value::as_object_mut)) {
        spec.entry("engine").or_insert(json!("standard"));
    }
    prop_assert_eq!(content(local), expected, "content: {}", at());

    for map in ["labels", "annotations"] {
        let (mut wanted, mut held) = (entries(remote, map), entries(local, map));
        held.remove(ADOPTED);
        wanted.retain(|key, _| ![PAUSED, REMOTE_GENERATION, LOCAL_GENERATION, SYNC_ERROR].contains(&&**key));
        if merge {
            let ours = &local["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"][format!("f:{map}")];
            if map == "annotations" {
                wanted.insert(REMOTE_UID.to_owned(), remote["metadata"]["uid"].clone());
                wanted.insert(LOCAL_NAME.to_owned(), json!(format!("{NAMESPACE}/{name}")));
                let uid = remote["metadata"]["uid"].as_str().unwrap_or_default();
                wanted.insert("cloud.teleport.dev/sync-remote-cluster".to_owned(), json!(format!("hub/{uid}")));
            }
            held.retain(|key, _| wanted.contains_key(key) || ours.get(format!("f:{key}")).is_some());
        }
        prop_assert_eq!(held, wanted, "{}: {}", map, at());
    }

    if world.policy.write_back {
        let mut status = local.get("status").cloned();
        if let (true, Some(status)) = (traits.prunes_status, status.as_mut().and_then(Value::as_object_mut)) {
            status.remove("pruned");
        }
        prop_assert_eq!(remote.get("status").cloned(), status, "status: {}", at());
        for (mark, side) in [(REMOTE_GENERATION, remote), (LOCAL_GENERATION, local)] {
            let noted = text(remote, "annotations", mark).and_then(|text| text.parse::<i64>().ok());
            prop_assert_eq!(noted, side["metadata"]["generation"].as_i64(), "generations: {}", at());
        }
        prop_assert_eq!(text(remote, "annotations", SYNC_ERROR), None, "an error that is over: {}", at());
    }
    Ok(())
}

/// Checks the namespace at rest against the specification: a namespace of ours exists only if an object needs it.
fn namespace_is_as_specified(world: &World) -> Result<(), TestCaseError> {
    let Some(namespace) = world.local.get(Sort::Namespace, NAMESPACE) else { return Ok(()) };
    prop_assert!(!is_deleting(&namespace), "{}", namespace);
    if text(&namespace, "annotations", OWNER).is_none() {
        return Ok(());
    }
    let needed = NAMES.iter().any(|name| {
        let (remote, local) = (world.remote.get(Sort::Synced, name), world.local.get(Sort::Synced, name));
        let is_paused = |side: &Option<Value>| {
            side.as_ref().is_some_and(|value| text(value, "annotations", PAUSED) == Some("true"))
        };
        remote.as_ref().is_some_and(|remote| !is_deleting(remote)) || is_paused(&remote) || is_paused(&local)
    });
    prop_assert!(needed, "our namespace is left over: {}", namespace);
    Ok(())
}

fn rests_as_specified(world: &mut World, traits: Traits, choices: &[u8]) -> Result<(), TestCaseError> {
    world.unknown = None;
    settles(world, traits, choices).map_err(|error| TestCaseError::fail(format!("{error}\n{}", world.diary.join("\n"))))
}

fn settles(world: &mut World, traits: Traits, choices: &[u8]) -> Result<(), TestCaseError> {
    come_to_rest(world, choices)?;
    if world.unseen_ends > 0 {
        world.ask_all();
        come_to_rest(world, &[])?;
    }
    world.diary.push("at rest".to_owned());
    for name in NAMES {
        is_as_specified(world, traits, name)?;
    }
    namespace_is_as_specified(world)?;
    let (writes, reads) = (world.writes(), world.reads);
    world.ask_all();
    come_to_rest(world, &[])?;
    prop_assert_eq!(world.writes(), writes, "a plan that was carried out and made again changes nothing");
    prop_assert!(world.reads <= reads + NAMES.len());
    Ok(())
}

/// Carries out the actions of a story, each followed by so many moves.
fn live_through(world: &mut World, story: &[(Action, usize)], choices: &[u8]) {
    world.has_selector = true;
    let mut choices = choices.iter().cycle();
    for (action, moves) in story {
        world.act(action);
        for _ in 0..*moves {
            let moves = world.moves();
            if moves.is_empty() {
                break;
            }
            let choice = usize::from(*choices.next().unwrap_or(&0));
            world.make(&moves[choice % moves.len()]);
        }
    }
}

/// Whether the meaning of an action is independent of what towline has done before. A pause is not, and neither is an action that
/// deletes an object and creates it anew: the part of the first object's life that was observed decides about labels and
/// annotations that others have set on the local object.
fn is_timeless(action: &Action, world: &World) -> bool {
    // In a namespace of ours it may be deleted until its remote object is seen.
    let is_owned = world.local.get(Sort::Namespace, NAMESPACE);
    let is_owned = is_owned.is_some_and(|namespace| text(&namespace, "annotations", OWNER).is_some());
    let pair = match action {
        Action::CreateLocal(pair, _) if is_owned || world.local.get(Sort::Synced, NAMES[*pair]).is_some() => {
            return false;
        }
        Action::HoldRemote { held: false, .. } => return false,
        Action::CreateRemote(pair, _)
        | Action::CreateLocal(pair, _)
        | Action::SetReplicas(pair, _)
        | Action::SetContent { pair, .. }
        | Action::SetStatus { pair, .. }
        | Action::SetMetadata { pair, .. }
        | Action::DeleteRemote(pair)
        | Action::DeleteLocal(pair)
        | Action::HoldLocal(pair)
        | Action::HoldRemote { pair, .. } => pair,
        _ => return false,
    };
    *pair == 0
}

/// The state of both clusters without the values that differ in each run: versions, UIDs, generations.
fn end_state(world: &World) -> Vec<Value> {
    let mut states = Vec::new();
    for (server, sort) in [(&world.remote, Sort::Synced), (&world.local, Sort::Synced), (&world.local, Sort::Namespace)]
    {
        for name in server.names(sort) {
            let mut state = server.get(sort, &name).unwrap_or_default();
            if is_deleting(&state) {
                // Whether its last status was still written does not matter any more.
                state.as_object_mut().expect("a map").remove("status");
            }
            let metadata = state["metadata"].as_object_mut().expect("a map");
            metadata.retain(|field, _| ["name", "labels", "annotations", "finalizers"].contains(&&**field));
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                for mark in [REMOTE_UID, REMOTE_GENERATION, LOCAL_GENERATION, OWNER] {
                    annotations.entry(mark).and_modify(|value| *value = json!("some"));
                }
            }
            states.push(state);
        }
    }
    states
}

/// A remote object left the selector and was deleted then. The next list finds that the local object of that name, which others
/// have created, is unclaimed.
#[test]
fn what_ends_while_it_is_not_selected_is_seen_by_the_next_look() {
    let traits = Traits {
        generations: false,
        status_subresource: false,
        defaults_spec: false,
        prunes_status: false,
        annotations_raise_generation: false,
    };
    let mut world = World::new(policy("metadata = \"mirror\"\nunclaimed = \"delete\"\nwrite_back = false"), traits);
    let story = [Action::CreateRemote(0, 0), Action::Select { pair: 0, selected: false }];
    live_through(&mut world, &story.map(|action| (action, 0)), &[]);
    come_to_rest(&mut world, &[]).expect("a rest");
    world.act(&Action::CreateNamespace);
    world.act(&Action::CreateLocal(0, 0));
    come_to_rest(&mut world, &[]).expect("a rest");
    assert!(world.local.get(Sort::Synced, NAMES[0]).is_some(), "its remote object is there");
    world.act(&Action::DeleteRemote(0));
    come_to_rest(&mut world, &[]).expect("a rest");
    assert!(world.unseen_ends == 1 && world.local.get(Sort::Synced, NAMES[0]).is_some(), "who told?");
    rests_as_specified(&mut world, traits, &[]).expect("as specified");
    assert!(world.local.get(Sort::Synced, NAMES[0]).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_world_comes_to_rest_as_specified(
        traits in traits(),
        keys in section(),
        has_spec in prop::bool::weighted(0.7),
        foreign_namespace: bool,
        story in vec((action(), 0usize..6), 1..25),
        choices in vec(any::<u8>(), 0..150),
    ) {
        let mut world = World::new(policy(&keys), traits);
        world.has_spec = has_spec;
        if foreign_namespace {
            world.act(&Action::CreateNamespace);
        }
        live_through(&mut world, &story, &choices);
        rests_as_specified(&mut world, traits, &choices)?;
    }

    #[test]
    fn no_order_of_arrival_ends_differently(
        traits in traits(),
        keys in section(),
        story in vec((action(), 0usize..6), 0..12),
        changes in vec(action(), 1..12),
        choices in vec(any::<u8>(), 0..100),
        orders in [vec(any::<u8>(), 0..100), vec(any::<u8>(), 0..100)],
    ) {
        let mut ends = Vec::new();
        for order in &orders {
            let mut world = World::new(policy(&keys), traits);
            // Local fields keep the values with which the object was created, at any time.
            world.policy.local_fields.clear();
            // Adoption depends on the history: on whether the remote object was observed before it was deleted.
            world.policy.adopt = Adopt::Never;
            live_through(&mut world, &story, &choices);
            world.unknown = None;
            come_to_rest(&mut world, &[])?;
            for pair in 0..NAMES.len() {
                for remote in [true, false] {
                    world.act(&Action::Pause { remote, pair, paused: false });
                }
            }
            come_to_rest(&mut world, &[])?;
            let timeless: Vec<&Action> = changes.iter().filter(|action| is_timeless(action, &world)).collect();
            for action in timeless {
                world.act(action);
            }
            rests_as_specified(&mut world, traits, order)?;
            ends.push((end_state(&world), world.diary));
        }
        prop_assert_eq!(&ends[0].0, &ends[1].0, "{}\n\nor\n\n{}", ends[0].1.join("\n"), ends[1].1.join("\n"));
    }
}

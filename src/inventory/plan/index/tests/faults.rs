//! Whatever fails, the last content of every release arrives, no key has two bodies, and without faults nothing is told twice.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::super::*;
use super::world::{World, settings};
use crate::inventory::plan::revision::Stage;

#[derive(Clone, Debug)]
enum Event {
    Install(usize),
    Pods(usize, usize),
    Uninstall(usize),
    /// The project's options, which the registration tells.
    Options(bool),
    /// The next steps are carried out, and the answers are these.
    Steps(Vec<Fault>),
    /// The process is killed.
    Kill,
}

/// How a step ends.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// It did not reach the server, and nobody knows that.
    Lost,
    /// It did not reach the server.
    NotSent,
    /// It reached the server, and the answer was lost.
    AnswerLost,
    /// The process is killed before it learns of the end.
    KilledAfter,
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const PODS: [&[&str]; 3] = [&["p"], &["p", "q"], &["r"]];

fn event() -> impl Strategy<Value = Event> {
    let fault = prop_oneof![3 => Just(Fault::None), 1 => Just(Fault::Lost), 1 => Just(Fault::NotSent), 1 => Just(Fault::AnswerLost), 1 => Just(Fault::KilledAfter)];
    prop_oneof![
        2 => (0..NAMES.len()).prop_map(Event::Install),
        2 => (0..NAMES.len(), 0..PODS.len()).prop_map(|(name, pods)| Event::Pods(name, pods)),
        1 => (0..NAMES.len()).prop_map(Event::Uninstall),
        1 => any::<bool>().prop_map(Event::Options),
        6 => prop::collection::vec(fault, 1..8).prop_map(Event::Steps),
        1 => Just(Event::Kill),
    ]
}

fn lost() -> Refusal {
    Refusal::Later { reason: "NoAnswer".into(), after: None, may_have_arrived: true }
}

/// Carries out one step. Returns whether the process was killed.
fn carry_out(world: &mut World, step: &IndexStep, fault: Fault) -> bool {
    match (step, fault) {
        (step, Fault::None) => world.carry_out(step),
        (IndexStep::Read { key, version, .. }, _) => {
            world.index.read(key, version, Err(ReadFailure::Cluster("lost".into())), world.now);
        }
        (IndexStep::Write(_), Fault::Lost | Fault::NotSent | Fault::AnswerLost) => {
            if matches!(fault, Fault::AnswerLost)
                && let IndexStep::Write(patch) = step
            {
                world.status = patch[1]["value"].clone();
            }
            world.index.written(Err("lost".into()), world.now);
        }
        (IndexStep::Write(patch), Fault::KilledAfter) => world.status = patch[1]["value"].clone(),
        (IndexStep::Post(post), Fault::Lost) => world.answer(post, Err(lost())),
        (IndexStep::Post(post), Fault::NotSent) => {
            let refusal = Refusal::Later { reason: "NoAnswer".into(), after: None, may_have_arrived: false };
            world.answer(post, Err(refusal));
        }
        (IndexStep::Post(post), Fault::AnswerLost) => {
            world.accept(post);
            world.answer(post, Err(lost()));
        }
        (IndexStep::Post(post), Fault::KilledAfter) => world.accept(post),
    }
    matches!(fault, Fault::KilledAfter)
}

proptest! {
    #[test]
    fn every_last_content_arrives_whatever_fails(events in prop::collection::vec(event(), 1..60), is_killed_at_the_end in any::<bool>()) {
        let mut world = World::new(settings());
        let mut revisions = BTreeMap::new();
        let (mut monitoring, mut is_uncertain) = (false, false);
        for event in events {
            match event {
                Event::Install(name) => {
                    let revision = revisions.entry(name).or_insert(0_u64);
                    *revision += 1;
                    world.helm(NAMES[name], *revision, Stage::Deployed);
                }
                Event::Pods(name, pods) if world.live.contains_key(&super::world::key(NAMES[name])) => {
                    world.pods(NAMES[name], PODS[pods]);
                }
                Event::Uninstall(name) => {
                    revisions.remove(&name);
                    world.uninstall(NAMES[name]);
                }
                Event::Options(is_on) => {
                    world.options(&json!({"monitoring": {"enable": is_on}}));
                    monitoring = is_on;
                }
                Event::Steps(faults) => {
                    'steps: for fault in faults {
                        let next = world.next();
                        if next.steps.is_empty() && let Some(until) = next.until {
                            world.advance(until - world.now.at);
                        }
                        is_uncertain |= !matches!(fault, Fault::None | Fault::NotSent);
                        for step in &next.steps {
                            if carry_out(&mut world, step, fault) {
                                world.restart();
                                break 'steps;
                            }
                        }
                    }
                }
                Event::Kill => {
                    is_uncertain = true;
                    world.restart();
                }
                Event::Pods(..) => {}
            }
        }
        // What the process knows beside the status must neither be needed nor do harm.
        if is_killed_at_the_end {
            world.restart();
        }
        world.settle();
        let registered = world.accepted.iter().rfind(|(path, _)| path != "/apps");
        prop_assert_eq!(registered.map(|(_, body)| &body["options_state"]["monitoring"]), Some(&json!(monitoring)));
        let mut last = BTreeMap::new();
        for told in world.told() {
            let (name, what) = told.split_once(' ').unwrap();
            last.insert(name.to_owned(), what.to_owned());
        }
        for name in NAMES {
            let live = world.live.get(&super::world::key(name));
            let expected = live.map(|live| format!("{} deployed [{}]", live.newest.as_ref().unwrap().number, live.pods.join(",")));
            match (expected, last.get(name)) {
                (Some(expected), told) => prop_assert_eq!(told, Some(&expected)),
                (None, Some(told)) => prop_assert!(told.ends_with("uninstalled []"), "{} is gone: {}", name, told),
                (None, None) => {}
            }
        }
        if !is_uncertain {
            // Nobody was killed and no answer was lost: one after the other, the bodies about a release differ.
            let mut before = BTreeMap::new();
            for (_, body) in world.accepted.iter().filter(|(path, _)| path == "/apps") {
                let name = body["app_info"]["helm_info"]["name"].as_str().unwrap().to_owned();
                prop_assert_ne!(before.insert(name, body.clone()), Some(body.clone()));
            }
        }
    }
}

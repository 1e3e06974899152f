//! Too many releases, or too large ones: the first are reported, and the rest is counted.

use serde_json::{Value, json};

use super::super::*;
use super::world::{World, key, settings};
use crate::inventory::plan::revision::Stage;

fn too_many(world: &World) -> Option<Value> {
    let conditions = world.status["conditions"].as_array().unwrap().clone();
    conditions.into_iter().find(|condition| condition["type"] == "TooMany")
}

#[test]
fn only_so_many_releases_are_reported_by_namespace_and_name() {
    let mut world = World::new(Settings { max_releases: 2, ..settings() });
    for name in ["d", "b", "c"] {
        world.helm(name, 1, Stage::Deployed);
    }
    world.settle();
    assert_eq!(world.told(), ["b 1 deployed [p]", "c 1 deployed [p]"]);
    let message = |world: &World| too_many(world).map(|condition| condition["message"].clone());
    assert_eq!(message(&world), Some(json!("1 release is beyond the first 2, which are reported")));
    assert_eq!(world.index.summary().releases, 2);
    world.uninstall("b");
    world.settle();
    assert_eq!(world.told()[2..], ["b 1 uninstalled []", "d 1 deployed [p]"]);
    assert_eq!(message(&world), None);
    world.helm("a", 1, Stage::Deployed);
    world.settle();
    assert_eq!(world.told()[4..], ["a 1 deployed [p]"]);
    assert_eq!((world.index.summary().releases, world.entry("c")["sent"].clone()), (2, json!(1)));
}

/// One id a release. The API knows what was reported once, also while it is beyond the first ones.
#[test]
fn a_release_that_is_beyond_the_first_ones_for_a_while_keeps_its_id() {
    for is_killed in [false, true] {
        let mut world = World::new(Settings { max_releases: 1, ..settings() });
        world.helm("b", 1, Stage::Deployed);
        world.settle();
        let id = world.entry("b")["appUUID"].clone();
        world.helm("a", 1, Stage::Deployed);
        world.settle();
        if is_killed {
            world.restart();
        }
        world.pods("b", &["q"]);
        world.settle();
        assert_eq!(world.told(), ["b 1 deployed [p]", "a 1 deployed [p]"], "b is beyond the first one");
        world.uninstall("a");
        world.settle();
        assert_eq!(world.told()[2..], ["a 1 uninstalled []", "b 1 deployed [q]"]);
        assert_eq!(world.entry("b")["appUUID"], id, "killed: {is_killed}");
    }
}

#[test]
fn a_release_that_was_reported_is_told_to_be_gone_also_beyond_the_first_ones() {
    let mut world = World::new(Settings { max_releases: 1, ..settings() });
    world.helm("b", 1, Stage::Deployed);
    world.settle();
    world.helm("a", 1, Stage::Deployed);
    world.helm("c", 1, Stage::Deployed);
    world.settle();
    world.uninstall("b");
    world.uninstall("c");
    world.settle();
    assert_eq!(world.told()[2..], ["b 1 uninstalled []"], "nobody was told of c");
    assert_eq!((world.entry("b"), world.entry("c")), (Value::Null, Value::Null));
}

#[test]
fn only_releases_that_can_be_reported_count() {
    let mut world = World::new(Settings { max_releases: 1, ..settings() });
    // Helm was interrupted while it installed the first one, and the record of the second one is none.
    world.helm("a", 1, Stage::UnderWay);
    world.helm("b", 1, Stage::Deployed);
    let steps = world.next().steps;
    let Some(IndexStep::Read { key: first, version, .. }) = steps.first() else { panic!("{steps:?}") };
    let undecodable = ReadFailure::Undecodable(crate::inventory::plan::release::Undecodable::Malformed);
    world.index.read(first, version, Err(undecodable), world.now);
    world.helm("c", 1, Stage::Deployed);
    world.index.written(Err("lost".into()), world.now);
    world.settle();
    assert_eq!((world.told(), too_many(&world)), (vec!["c 1 deployed [p]".to_owned()], None));
    // As soon as it can be reported, it takes the place of the last one.
    world.helm("a", 1, Stage::Deployed);
    world.settle();
    assert_eq!(world.told()[1..], ["a 1 deployed [p]"]);
    assert_eq!(too_many(&world).unwrap()["reason"], "MaxReleases");
    assert!(
        world.index.explain(&key("c"), world.now).unwrap().0.join(" ").contains("more releases than can be reported")
    );
}

/// The API server takes no larger status, and without a status nothing is sent.
#[test]
fn what_the_status_has_no_room_for_is_counted_and_others_go_on() {
    let budget = 6000;
    let mut world = World::new(Settings { status_budget: budget, ..settings() });
    let long = |number: usize| format!("long-{number}-{}", "x".repeat(200));
    for number in 0..9 {
        world.helm(&long(number), 1, Stage::Deployed);
    }
    world.helm("web", 1, Stage::Deployed);
    world.settle();
    let condition = too_many(&world).expect("a condition");
    assert_eq!(condition["reason"], "StatusSize");
    let reported = world.told().len();
    let left_out = format!("{} releases are left out, since the status has no more room", 10 - reported);
    assert_eq!(condition["message"], left_out.as_str());
    assert!((3..9).contains(&reported), "{reported}");
    assert!(world.told().contains(&"web 1 deployed [p]".to_owned()), "a small one has room: {:?}", world.told());
    let size = world.status["helmStatus"].to_string().len() + world.status["reconcileHelmReleases"].to_string().len();
    assert!(size <= budget, "{size}");
    let problem = "the project's status has no room for it";
    assert_eq!(world.index.summary().problems.iter().filter(|known| known.reason == problem).count(), 10 - reported);
    // It has, once others are gone.
    for number in 0..6 {
        world.uninstall(&long(number));
    }
    world.settle();
    assert_eq!(too_many(&world), None);
    assert!(world.told().iter().any(|told| told.starts_with(&long(8))), "{:?}", world.told());
}

/// Whoever may write Secrets can write long strings.
#[test]
fn long_strings_are_sent_whole_and_cut_in_the_status_and_a_restart_sends_nothing() {
    let mut world = World::new(settings());
    let long = "\u{1f600}".repeat(1024);
    for number in 0..120 {
        let name = format!("forged-{number}");
        world.helm(&name, 1, Stage::Deployed);
        world.live.get_mut(&key(&name)).unwrap().updated.clone_from(&long);
    }
    world.settle();
    assert_eq!(world.told().len(), 120);
    let size = world.status.to_string().len();
    assert!(size < 120 * 1000, "{size}");
    assert_eq!(world.accepted.last().unwrap().1["app_info"]["helm_info"]["updated"], long.as_str());
    let (reads, writes) = (world.reads, world.writes);
    world.restart();
    world.settle();
    assert_eq!((world.told().len(), world.reads, world.writes), (120, reads + 120, writes));
}

/// A release has the same size before and after it has an id: else it would be left out and taken in again without end.
#[test]
fn whether_there_is_room_for_a_release_does_not_depend_on_whether_it_is_reported() {
    let size = {
        let mut world = World::new(settings());
        world.helm("web", 1, Stage::Deployed);
        world.settle();
        world.status["helmStatus"].to_string().len()
    };
    let mut reported = Vec::new();
    for budget in size..size + 800 {
        let mut world = World::new(Settings { status_budget: budget, ..settings() });
        world.helm("web", 1, Stage::Deployed);
        world.settle();
        reported.push(world.told().len());
    }
    assert!(reported.is_sorted() && reported.first() == Some(&0) && reported.last() == Some(&1), "{reported:?}");
}

/// As many as are reported unless the configuration says otherwise: what a release takes does not depend on how many there are, so a tenth
/// of them needs a tenth of the room.
#[test]
fn two_thousand_ordinary_releases_have_room() {
    let Settings { max_releases, status_budget, .. } = settings();
    assert_eq!(max_releases, 2000);
    let mut world =
        World::new(Settings { max_releases: max_releases / 10, status_budget: status_budget / 10, ..settings() });
    for number in 0..201 {
        world.helm(&format!("release-{number:04}"), 12, Stage::Deployed);
    }
    while world.settle_writes() {}
    let condition = {
        world.index.next(View::Complete, world.now);
        world.index.summary().problems
    };
    let left_out: Vec<&str> = condition.iter().map(|problem| problem.reason.as_str()).collect();
    assert_eq!(left_out, ["there are more releases than can be reported"]);
}

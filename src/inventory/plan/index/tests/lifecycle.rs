//! From the installation of a release to its end.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::*;
use super::world::{DELAY, World, key, settings};
use crate::inventory::plan::identity::GivenId;
use crate::inventory::plan::revision::Stage;

fn installed() -> World {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    world.settle();
    world
}

#[test]
fn a_release_is_told_once_after_the_delay_and_nothing_follows() {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    let begun = world.now.at;
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]"]);
    assert_eq!((world.now.at - begun, world.reads), (DELAY, 1));
    let writes = world.writes;
    world.advance(Duration::from_hours(1));
    world.observe_all();
    world.settle();
    assert_eq!((world.told().len(), world.writes), (1, writes), "something follows");
}

#[test]
fn changes_within_the_delay_are_told_together() {
    let mut world = installed();
    world.helm("web", 2, Stage::Deployed);
    world.posts();
    world.advance(DELAY / 2);
    world.pods("web", &["p", "q"]);
    assert!(world.posts().is_empty());
    world.advance(DELAY / 2);
    assert_eq!(world.posts().len(), 1);
}

#[test]
fn ids_are_in_the_status_before_anything_is_sent() {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    let first = world.next().steps;
    let [IndexStep::Read { key, version, .. }, IndexStep::Write(ids)] = first.as_slice() else { panic!("{first:?}") };
    assert!(ids[1]["value"]["clusterUUID"].as_str().is_some_and(|id| id.starts_with("K-")), "{ids}");
    world.read(key, version);
    world.advance(DELAY);
    assert!(world.next().steps.is_empty(), "the id of the cluster is still being written");
    world.write(ids);
    let steps = world.next().steps;
    let [IndexStep::Post(registration @ Post { key: PostKey::Registration, .. })] = steps.as_slice() else {
        panic!("{steps:?}")
    };
    world.answer(registration, Ok(()));
    let steps = world.next().steps;
    let [IndexStep::Write(ids)] = steps.as_slice() else { panic!("{steps:?}") };
    let app_id = ids[1]["value"]["helmStatus"][0]["appUUID"].clone();
    assert!(app_id.as_str().is_some_and(|id| id.starts_with("A-")), "{ids}");
    world.index.written(Err("forbidden".into()), world.now);
    assert!(world.next().steps.is_empty(), "the status was not written");
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]"]);
    assert_eq!(world.entry("web")["appUUID"], app_id);
}

#[test]
fn a_start_in_step_reads_writes_and_sends_nothing() {
    let mut world = installed();
    let (reads, writes, told) = (world.reads, world.writes, world.accepted.len());
    world.restart();
    world.settle();
    assert_eq!((world.reads, world.writes, world.accepted.len()), (reads, writes, told));
}

#[test]
fn a_restart_sends_what_differs_and_only_that() {
    let mut world = installed();
    world.helm("other", 1, Stage::Deployed);
    world.settle();
    world.restart();
    world.pods("web", &["q"]);
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "other 1 deployed [p]", "web 1 deployed [q]"]);
}

#[test]
fn upgrade_rollback_and_failure_are_told_once_each() {
    let mut world = installed();
    for (revision, stage) in [(2, Stage::Deployed), (3, Stage::Failed), (4, Stage::Deployed)] {
        world.helm("web", revision, Stage::UnderWay);
        world.settle();
        world.helm("web", revision, stage);
        world.settle();
    }
    let expected = ["web 1 deployed [p]", "web 2 deployed [p]", "web 3 failed [p]", "web 4 deployed [p]"];
    assert_eq!(world.told(), expected);
}

#[test]
fn while_a_newer_revision_is_under_way_the_last_report_stands() {
    let mut world = installed();
    world.helm("web", 2, Stage::UnderWay);
    world.pods("web", &["q"]);
    for _ in 0..2 {
        world.advance(Duration::from_secs(599));
        assert!(world.posts().is_empty());
        assert_eq!(world.index.summary().problems.len(), 0);
        world.restart();
    }
    world.helm("web", 2, Stage::Deployed);
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 2 deployed [q]"]);
}

#[test]
fn helm_that_was_killed_is_a_problem_after_ten_minutes_and_what_runs_is_told_with_the_revision_before() {
    let mut world = installed();
    world.helm("web", 2, Stage::UnderWay);
    world.pods("web", &["q"]);
    assert!(world.posts().is_empty());
    world.advance(Duration::from_mins(10));
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 deployed [q]"]);
    let problems = world.index.summary().problems;
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert!(
        problem.reason.starts_with("an operation of Helm on revision 2 has been pending since 22:04:"),
        "{}",
        problem.reason
    );
    let explained = world.index.explain(&key("web"), world.now).expect("it is known").0;
    assert!(explained.contains(&problem.reason), "{explained:?}");
    world.pods("web", &["r"]);
    world.settle();
    assert_eq!(world.told().last().map(String::as_str), Some("web 1 deployed [r]"));
    world.helm("web", 2, Stage::Deployed);
    world.settle();
    assert_eq!(world.told().last().map(String::as_str), Some("web 2 deployed [r]"));
    assert!(world.index.summary().problems.is_empty());
}

#[test]
fn a_first_installation_that_was_interrupted_is_a_problem_and_nothing_is_told_of_it() {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::UnderWay);
    world.settle();
    assert!(world.told().is_empty());
    let problems = world.index.summary().problems;
    assert_eq!(problems.iter().map(|problem| &problem.release).collect::<Vec<_>>(), [&key("web")]);
    assert!(world.index.explain(&key("web"), world.now).is_some());
    world.uninstall("web");
    world.settle();
    assert!(world.told().is_empty() && world.index.summary().problems.is_empty());
}

#[test]
fn a_release_that_comes_and_goes_within_the_delay_is_not_told() {
    for keeps_history in [false, true] {
        let mut world = World::new(settings());
        world.helm("web", 1, Stage::Deployed);
        assert!(world.posts().iter().all(|post| post.key == PostKey::Registration));
        world.advance(DELAY / 2);
        if keeps_history {
            world.helm("web", 1, Stage::Uninstalled);
        } else {
            world.uninstall("web");
        }
        world.settle();
        assert!(world.told().is_empty(), "history: {keeps_history}");
        assert_eq!(world.entry("web"), Value::Null);
        assert!(world.index.keys().next().is_none());
    }
}

#[test]
fn an_uninstalled_release_is_told_once_with_empty_lists_and_forgotten() {
    for keeps_history in [false, true] {
        let mut world = installed();
        world.helm("web", 1, Stage::UnderWay);
        if keeps_history {
            world.helm("web", 1, Stage::Uninstalled);
        } else {
            world.uninstall("web");
        }
        world.settle();
        assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 uninstalled []"], "history: {keeps_history}");
        assert_eq!(world.entry("web"), Value::Null);
        let last = &world.accepted.last().unwrap().1["app_info"]["helm_info"];
        assert_eq!((&last["chart"], &last["appVersion"]), (&json!("chart-web"), &json!("1")), "what was known of it");
        world.observe_all();
        world.restart();
        world.settle();
        assert_eq!(world.told().len(), 2, "it is told again");
        world.helm("web", 2, Stage::Deployed);
        world.settle();
        assert_eq!(world.told().last().map(String::as_str), Some("web 2 deployed [p]"));
    }
}

#[test]
fn a_history_that_was_never_told_is_not_told() {
    let mut world = World::new(settings());
    world.helm("old", 7, Stage::Uninstalled);
    world.settle();
    assert!(world.told().is_empty() && world.index.keys().next().is_none());
}

#[test]
fn a_release_that_is_replaced_by_another_of_equal_revision_is_told_once() {
    let mut world = installed();
    let id = world.entry("web")["appUUID"].clone();
    world.uninstall("web");
    world.helm("web", 1, Stage::Deployed);
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 deployed [p]"], "its record has another time");
    assert_eq!(world.entry("web")["appUUID"], id);
    // The same while nobody looks.
    world.live.remove(&key("web"));
    let index = std::mem::replace(
        &mut world.index,
        Index::new(settings(), super::world::project(&json!({}), &Value::Null), [9; 32]),
    );
    drop(index);
    world.helm("web", 1, Stage::Deployed);
    world.restart();
    world.settle();
    assert_eq!(world.told().len(), 3);
}

#[test]
fn releases_of_denied_namespaces_are_forgotten_without_a_post() {
    let mut world = installed();
    let spec = json!({"denyNamespaces": ["default"]});
    world.index.project_changed(super::world::project(&spec, &world.status));
    world.observe_all();
    world.settle();
    assert_eq!((world.told().len(), world.entry("web")), (1, Value::Null));
}

#[test]
fn a_record_that_was_written_again_and_says_the_same_is_read_and_not_told() {
    let mut world = installed();
    let updated = world.live[&key("web")].updated.clone();
    world.helm("web", 1, Stage::Deployed);
    world.live.get_mut(&key("web")).unwrap().updated = updated;
    world.settle();
    assert_eq!((world.told().len(), world.reads), (1, 2));
    world.restart();
    world.settle();
    assert_eq!((world.told().len(), world.reads), (1, 2), "the version of the record is remembered");
}

#[test]
fn the_secret_uuid_gives_the_id_while_it_is_there() {
    let mut world = World::new(settings());
    world.given = GivenId::Unusable;
    world.helm("web", 1, Stage::Deployed);
    world.settle();
    assert!(world.told().is_empty(), "it waits");
    world.give(GivenId::Given("A-given".into()));
    world.settle();
    let api = |world: &World| world.accepted.last().unwrap().1["app_api_info"].clone();
    assert_eq!((&api(&world)["app_uuid"], &api(&world)["hossted_helm"]), (&json!("A-given"), &json!(true)));
    world.give(GivenId::Unusable);
    world.settle();
    world.give(GivenId::None);
    world.settle();
    assert_eq!((&api(&world)["app_uuid"], &api(&world)["hossted_helm"]), (&json!("A-given"), &json!(false)));
    assert_eq!(world.told().len(), 2);
}

#[test]
fn the_time_of_the_status_never_changes_alone() {
    let mut world = installed();
    let (time, writes) = (world.status["lastReconcileTimestamp"].clone(), world.writes);
    world.advance(Duration::from_hours(1));
    world.observe_all();
    world.settle();
    assert_eq!((&world.status["lastReconcileTimestamp"], world.writes), (&time, writes));
    world.pods("web", &["q"]);
    world.settle();
    assert_ne!(world.status["lastReconcileTimestamp"], time);
    assert_eq!(world.writes, writes + 2, "one before the post and one after it");
}

/// That it is uninstalled was acknowledged while Helm began to install it anew, which failed and left nothing.
#[test]
fn a_release_that_is_told_to_be_uninstalled_is_forgotten_when_nothing_is_left_of_it() {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    world.settle();
    world.uninstall("web");
    world.helm("web", 1, Stage::UnderWay);
    world.settle();
    world.uninstall("web");
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 uninstalled []"]);
    assert_eq!(world.status["helmStatus"], json!([]));
}

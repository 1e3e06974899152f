//! Posts: their order, their keys, and what is done when they fail.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::*;
use super::world::{DELAY, World, key, project, settings};
use crate::inventory::plan::revision::Stage;

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn later(after: Option<Duration>) -> Refusal {
    Refusal::Later { reason: "HTTP503".into(), after, may_have_arrived: true }
}

pub(super) fn rejected() -> Refusal {
    Refusal::Rejected { reason: "HTTP400".into() }
}

/// A world in which one release waits for its first post, after the registration.
pub(super) fn due() -> (World, Post) {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    let [registration] = world.posts().try_into().expect("the registration");
    world.accept(&registration);
    world.answer(&registration, Ok(()));
    assert!(world.posts().is_empty());
    world.advance(DELAY);
    let [post] = world.posts().try_into().expect("the release");
    (world, post)
}

/// The time until the next post of the release, which is then under way.
pub(super) fn next_post(world: &mut World) -> (Duration, Post) {
    let begun = world.now.at;
    loop {
        if let Some(post) = world.posts().pop() {
            return (world.now.at - begun, post);
        }
        let until = world.next().until.expect("something is due");
        world.advance(until - world.now.at);
    }
}

pub(super) fn delivered(world: &World) -> Value {
    let conditions = world.status["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "Delivered").unwrap().clone()
}

#[test]
fn the_registration_goes_first_and_again_when_it_changes() {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    let [first] = world.posts().try_into().expect("one post");
    let id = world.status["clusterUUID"].as_str().unwrap().to_owned();
    assert_eq!((&first.key, first.path.as_str()), (&PostKey::Registration, &*format!("/clusters/{id}/register")));
    world.advance(DELAY * 2);
    assert!(world.posts().is_empty(), "a release before the registration");
    world.answer(&first, Err(later(None)));
    let (_, second) = next_post(&mut world);
    assert_eq!(second, first);
    world.accept(&second);
    world.answer(&second, Ok(()));
    world.settle();
    assert_eq!(world.told().len(), 1);
    world.restart();
    world.settle();
    assert_eq!(world.accepted.len(), 2, "the registration is remembered");
    world.spec = json!({"monitoring": {"enable": true}});
    world.restart();
    world.settle();
    assert_eq!(world.accepted[2].1["options_state"]["monitoring"], true);
}

#[test]
fn the_single_wire_has_no_registration_and_no_path() {
    let mut world = World::new(Settings { wire: Wire::Single, ..settings() });
    world.helm("web", 1, Stage::Deployed);
    assert!(world.posts().is_empty());
    world.advance(DELAY);
    let [post] = world.posts().try_into().expect("one post");
    assert_eq!(post.path, "");
}

#[test]
fn a_post_that_fails_is_repeated_under_its_key_with_a_delay_that_doubles_to_five_minutes() {
    let (mut world, first) = due();
    let mut post = first.clone();
    for attempt in 0..12 {
        world.answer(&post, Err(later(None)));
        let (waited, again) = next_post(&mut world);
        let longest = SECOND * 2_u32.pow(attempt.min(9));
        let longest = longest.min(Duration::from_mins(5));
        assert!(waited <= longest && waited >= longest / 2, "attempt {attempt}: {waited:?}");
        assert_eq!(again, first);
        post = again;
    }
    world.answer(&post, Ok(()));
    world.pods("web", &["q"]);
    world.advance(DELAY);
    let [other] = world.posts().try_into().expect("one post");
    world.answer(&other, Err(later(None)));
    assert!(next_post(&mut world).0 <= SECOND, "the back-off starts over");
}

#[test]
fn the_api_may_ask_for_up_to_an_hour() {
    let (mut world, post) = due();
    world.answer(&post, Err(later(Some(Duration::from_secs(77)))));
    let (waited, post) = next_post(&mut world);
    assert_eq!(waited, Duration::from_secs(77));
    world.answer(&post, Err(later(Some(Duration::from_hours(9)))));
    assert_eq!(next_post(&mut world).0, Duration::from_hours(1));
}

#[test]
fn the_newest_content_replaces_one_that_waits() {
    let (mut world, post) = due();
    world.answer(&post, Err(later(None)));
    world.pods("web", &["q"]);
    let (_, next) = next_post(&mut world);
    assert!(next.body.contains("\"q\"") && next.idempotency_key != post.idempotency_key);
}

#[test]
fn what_changes_while_a_body_is_sent_is_sent_after_the_delay() {
    let (mut world, post) = due();
    world.advance(SECOND);
    world.pods("web", &["q"]);
    world.advance(SECOND);
    world.answer(&post, Ok(()));
    let (waited, next) = next_post(&mut world);
    assert_eq!(waited + SECOND, DELAY, "the delay counts from the change");
    assert!(next.body.contains("\"q\""));
}

#[test]
fn what_changes_back_while_a_body_is_sent_is_sent_again() {
    let (mut world, post) = due();
    world.accept(&post);
    world.answer(&post, Ok(()));
    world.settle();
    world.pods("web", &["q"]);
    world.posts();
    world.advance(DELAY);
    let [second] = world.posts().try_into().expect("one post");
    world.pods("web", &["p"]);
    world.accept(&second);
    world.answer(&second, Ok(()));
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 deployed [q]", "web 1 deployed [p]"]);
    assert_eq!(world.keys.len(), 4, "the content that returned has a key of its own");
}

#[test]
fn an_acknowledgement_is_in_the_status_before_the_next_post_of_its_release() {
    let (mut world, post) = due();
    world.answer(&post, Ok(()));
    world.pods("web", &["q"]);
    let steps = world.next().steps;
    let [IndexStep::Write(patch)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(patch[1]["value"]["helmStatus"][0]["sent"], 1);
    world.advance(DELAY * 3);
    assert!(world.next().steps.is_empty(), "it was sent before the status was written");
    world.write(patch);
    assert_eq!(world.posts().len(), 1);
}

#[test]
fn a_process_that_was_killed_before_it_wrote_an_acknowledgement_repeats_the_key() {
    let (mut world, post) = due();
    world.accept(&post);
    world.answer(&post, Ok(()));
    world.restart();
    world.settle();
    assert_eq!(world.told().len(), 1, "the API has seen another key");
    assert_eq!(world.entry("web")["sent"], 1);
}

#[test]
fn a_content_that_returns_after_a_lost_answer_is_sent_again_even_by_another_process() {
    for is_killed in [false, true] {
        let (mut world, post) = due();
        world.accept(&post);
        world.answer(&post, Ok(()));
        world.settle();
        world.pods("web", &["q"]);
        world.advance(DELAY);
        let [second] = world.posts().try_into().expect("one post");
        world.accept(&second);
        world.live.get_mut(&key("web")).expect("it is installed").pods = vec!["p"];
        if is_killed {
            world.restart();
        } else {
            world.answer(&second, Err(later(None)));
        }
        world.settle();
        assert_eq!(
            world.told(),
            ["web 1 deployed [p]", "web 1 deployed [q]", "web 1 deployed [p]"],
            "killed: {is_killed}"
        );
    }
}

#[test]
fn resync_sends_again_under_a_new_key() {
    let (mut world, post) = due();
    world.accept(&post);
    world.answer(&post, Ok(()));
    world.helm("other", 1, Stage::Deployed);
    world.settle();
    assert_eq!((world.told().len(), world.index.resync(Some(&key("web")))), (2, 1));
    world.observe_all();
    world.settle();
    assert_eq!(world.told()[2..], ["web 1 deployed [p]"]);
    assert_eq!(world.index.resync(None), 2);
    world.observe_all();
    world.settle();
    assert_eq!(world.told().len(), 5);
    assert_eq!(world.index.resync(Some(&key("nobody"))), 0);
}

/// Options that return are another registration.
#[test]
fn each_registration_has_a_key_of_its_own_also_over_a_restart() {
    let mut world = World::new(settings());
    let mut keys = Vec::new();
    for (number, on) in [true, false, true, false].into_iter().enumerate() {
        world.spec = json!({"monitoring": {"enable": on}});
        world.index.project_changed(project(&world.spec, &world.status));
        if number == 3 {
            world.restart();
        }
        let [registration] = world.posts().try_into().expect("a registration");
        world.accept(&registration);
        world.answer(&registration, Ok(()));
        assert!(world.posts().is_empty());
        keys.push(registration.idempotency_key);
    }
    let all: std::collections::BTreeSet<&String> = keys.iter().collect();
    assert_eq!(all.len(), 4, "{keys:?}");
}

/// A process that ends does not insist on a write that fails.
#[test]
fn the_last_write_of_a_process_is_tried_once() {
    let (mut world, post) = due();
    world.accept(&post);
    world.answer(&post, Ok(()));
    assert!(world.index.last_write(world.now).is_some());
    world.index.written(Err("forbidden".into()), world.now);
    assert_eq!(world.index.last_write(world.now), None);
}

/// An API that asks for no pause does not end the back-off.
#[test]
fn a_retry_after_of_nothing_keeps_the_delay() {
    let (mut world, post) = due();
    world.answer(&post, Err(later(Some(Duration::ZERO))));
    let (waited, _) = next_post(&mut world);
    assert!(waited >= SECOND / 2, "{waited:?}");
}

#[test]
fn four_posts_and_two_reads_are_under_way_at_most() {
    let mut world = World::new(settings());
    for name in ["a", "b", "c", "d", "e", "f"] {
        world.helm(name, 1, Stage::Deployed);
    }
    let reads = world.next().steps.into_iter().filter(|step| matches!(step, IndexStep::Read { .. })).count();
    assert_eq!(reads, 2);
    let mut world = World::new(settings());
    for name in ["a", "b", "c", "d", "e", "f"] {
        world.helm(name, 1, Stage::Deployed);
    }
    let [registration] = world.posts().try_into().expect("the registration");
    world.answer(&registration, Ok(()));
    world.posts();
    world.advance(DELAY);
    let posts = world.posts();
    assert_eq!(posts.len(), 4);
    world.answer(&posts[0], Ok(()));
    assert_eq!(world.posts().len(), 1);
}

#[test]
fn a_condition_says_how_many_wait_and_since_when() {
    let (mut world, post) = due();
    world.answer(&post, Err(later(None)));
    world.posts();
    let expected = json!({"type": "Delivered", "status": "False", "reason": "HTTP503", "message": "1 release waits since 22:04:11"});
    assert_eq!(delivered(&world), expected);
    let writes = world.writes;
    for _ in 0..5 {
        let (_, post) = next_post(&mut world);
        world.answer(&post, Err(later(None)));
    }
    assert_eq!(world.writes, writes, "a condition that is the same is written again");
    world.settle();
    assert_eq!(delivered(&world), json!({"type": "Delivered", "status": "True"}));
}

#[test]
fn nothing_is_read_or_sent_while_the_caches_are_incomplete() {
    let (mut world, post) = due();
    world.answer(&post, Err(Refusal::NotSent));
    world.helm("other", 1, Stage::Deployed);
    assert!(world.index.next(View::Listing, world.now).steps.is_empty());
    let obstacle = Obstacle { reason: "NotListed", message: "not allowed to list pods".into() };
    let steps = world.index.next(View::Obstructed(&obstacle), world.now).steps;
    let [IndexStep::Write(patch)] = steps.as_slice() else { panic!("{steps:?}") };
    let ready =
        json!({"type": "Ready", "status": "False", "reason": "NotListed", "message": "not allowed to list pods"});
    assert_eq!(patch[1]["value"]["conditions"][0], ready);
}

#[test]
fn a_release_is_explained() {
    let (mut world, post) = due();
    let lines = |world: &World| world.index.explain(&key("web"), world.now).expect("it is known").0.join("\n");
    assert!(lines(&world).contains("waits: it is being sent"), "{}", lines(&world));
    world.answer(&post, Err(later(Some(Duration::from_secs(9)))));
    let told = lines(&world);
    assert!(told.starts_with("revision 1 deployed, app A-") && told.contains(", never sent\n"), "{told}");
    assert!(told.ends_with("changed at 22:04:11; waits: HTTP503, next try in 9 s"), "{told}");
    world.settle();
    let told = lines(&world);
    assert!(told.ends_with(", sent once, last at 22:04:30"), "{told}");
    world.pods("web", &["q"]);
    let told = lines(&world);
    assert!(told.ends_with("changed at 22:04:30 (pod_info); waits: the delay, for another 10 s"), "{told}");
    assert!(world.index.explain(&key("nobody"), world.now).is_none());
}

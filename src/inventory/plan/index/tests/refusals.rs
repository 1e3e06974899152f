//! What the API refuses, or never gets: only what it may have taken counts as sent.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::*;
use super::delivery::{delivered, due, later, next_post, rejected};
use super::world::{DELAY, World, key, settings};
use crate::inventory::plan::revision::Stage;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_refused_token_holds_everything_up_until_it_changes() {
    let (mut world, post) = due();
    world.answer(&post, Err(Refusal::Unauthorized));
    world.helm("other", 1, Stage::Deployed);
    world.posts();
    world.advance(Duration::from_hours(9));
    assert!(world.posts().is_empty());
    assert_eq!(delivered(&world)["reason"], "Unauthorized");
    world.index.token_changed();
    assert_eq!(world.posts().len(), 2);
}

#[test]
fn a_rejected_body_waits_for_another_content_and_others_go_on() {
    let (mut world, post) = due();
    world.answer(&post, Err(rejected()));
    world.helm("other", 1, Stage::Deployed);
    world.settle();
    assert_eq!(world.told(), ["other 1 deployed [p]"]);
    assert_eq!((&delivered(&world)["reason"], &delivered(&world)["status"]), (&json!("Rejected"), &json!("False")));
    assert_eq!(world.index.summary().problems[0].reason, "rejected: HTTP400");
    world.pods("web", &["q"]);
    world.settle();
    assert_eq!(world.told(), ["other 1 deployed [p]", "web 1 deployed [q]"]);
    assert_eq!(delivered(&world)["status"], "True");
}

#[test]
fn what_was_not_sent_under_an_expired_lease_is_no_failure() {
    let (mut world, post) = due();
    world.answer(&post, Err(Refusal::NotSent));
    assert!(world.posts().is_empty(), "it is tried again at once");
    assert_eq!(world.index.summary().undelivered, None);
    assert_eq!(next_post(&mut world), (SECOND, post.clone()));
    world.answer(&post, Err(Refusal::NotSent));
    assert_eq!(next_post(&mut world), (SECOND, post), "no repetition, so the delay does not grow");
    // The same for the registration.
    let mut world = World::new(settings());
    let [registration] = world.posts().try_into().expect("the registration");
    world.answer(&registration, Err(Refusal::NotSent));
    assert!(world.posts().is_empty(), "it is tried again at once");
    assert_eq!(next_post(&mut world), (SECOND, registration));
}

/// Only what was rejected last waits for another content.
#[test]
fn a_rejected_content_that_returns_is_tried_again() {
    let (mut world, first) = due();
    world.accept(&first);
    world.answer(&first, Ok(()));
    world.settle();
    world.pods("web", &["refused"]);
    let (_, refused) = next_post(&mut world);
    world.answer(&refused, Err(rejected()));
    assert!(world.posts().is_empty());
    world.pods("web", &["fine"]);
    let (_, fine) = next_post(&mut world);
    world.accept(&fine);
    world.answer(&fine, Ok(()));
    world.pods("web", &["refused"]);
    let (_, again) = next_post(&mut world);
    assert_eq!(again.body, refused.body);
}

/// Also what was never acknowledged, since it was rejected.
#[test]
fn resync_sends_what_was_rejected_again_under_a_new_key() {
    let (mut world, post) = due();
    world.answer(&post, Err(rejected()));
    assert!(world.posts().is_empty());
    assert_eq!(world.index.resync(Some(&key("web"))), 1);
    world.observe_all();
    let (_, again) = next_post(&mut world);
    assert_eq!(again.body, post.body);
    assert_ne!(again.idempotency_key, post.idempotency_key);
}

/// A release that was acknowledged with the pod `p`, and now has `q`, whose post is under way.
fn second_post() -> (World, Post) {
    let (mut world, post) = due();
    world.accept(&post);
    world.answer(&post, Ok(()));
    world.settle();
    world.pods("web", &["q"]);
    world.posts();
    world.advance(DELAY);
    let [second] = world.posts().try_into().expect("one post");
    (world, second)
}

fn definite() -> [Refusal; 4] {
    let not_connected = Refusal::Later { reason: "NoAnswer".into(), after: None, may_have_arrived: false };
    [rejected(), Refusal::Unauthorized, Refusal::NotSent, not_connected]
}

/// A content that returns is another post only if the API may know the one in between.
#[test]
fn a_content_that_returns_after_a_definite_refusal_is_not_sent_again() {
    for refusal in definite() {
        let (mut world, second) = second_post();
        world.answer(&second, Err(refusal.clone()));
        world.index.token_changed();
        world.pods("web", &["p"]);
        world.settle();
        assert_eq!(
            (world.told(), world.entry("web")["sent"].clone()),
            (vec!["web 1 deployed [p]".to_owned()], json!(1))
        );
        assert_eq!((&world.entry("web")["sendingHash"], &world.entry("web")["rejected"]), (&Value::Null, &Value::Null));
        world.restart();
        world.settle();
        assert_eq!(world.told().len(), 1, "{refusal:?}");
    }
}

#[test]
fn definite_refusals_do_not_count_as_sent() {
    for refusal in definite() {
        let (mut world, second) = second_post();
        world.answer(&second, Err(refusal.clone()));
        world.index.token_changed();
        world.pods("web", &["r"]);
        world.settle();
        let expected = vec!["web 1 deployed [p]".to_owned(), "web 1 deployed [r]".to_owned()];
        assert_eq!((world.told(), world.entry("web")["sent"].clone()), (expected, json!(2)), "{refusal:?}");
    }
}

/// What is unknown of the first attempt does not become certain by a refusal of the second one.
#[test]
fn a_refusal_after_a_lost_answer_leaves_it_unknown() {
    for refusal in definite() {
        let (mut world, second) = second_post();
        world.accept(&second);
        world.answer(&second, Err(later(None)));
        let (_, again) = next_post(&mut world);
        assert_eq!(again, second);
        world.answer(&again, Err(refusal.clone()));
        world.index.token_changed();
        world.pods("web", &["p"]);
        world.settle();
        assert_eq!(world.told().last().map(String::as_str), Some("web 1 deployed [p]"), "{refusal:?}");
        assert_eq!(world.told().len(), 3, "{refusal:?}");
    }
}

/// A post that a lease's end has interrupted may have arrived.
#[test]
fn what_was_interrupted_may_have_arrived() {
    let (mut world, second) = second_post();
    world.accept(&second);
    world.answer(&second, Err(Refusal::Interrupted));
    world.pods("web", &["p"]);
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 deployed [q]", "web 1 deployed [p]"]);
}

/// Until the content changes, whichever process runs.
#[test]
fn what_was_rejected_is_not_sent_again_after_a_restart() {
    let (mut world, second) = second_post();
    world.answer(&second, Err(rejected()));
    assert!(world.posts().is_empty());
    let condition = delivered(&world);
    for _ in 0..2 {
        let writes = world.writes;
        world.restart();
        world.advance(DELAY * 2);
        assert!(world.posts().is_empty(), "it is sent again");
        assert_eq!((delivered(&world), world.writes), (condition.clone(), writes));
        assert_eq!(world.index.summary().problems[0].reason, "rejected: HTTP400");
    }
    world.pods("web", &["r"]);
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 deployed [r]"]);
    assert_eq!((&world.entry("web")["rejected"], &world.entry("web")["sent"]), (&Value::Null, &json!(2)));
}

#[test]
fn a_registration_that_was_rejected_is_not_sent_again_after_a_restart() {
    let mut world = World::new(settings());
    world.helm("web", 1, Stage::Deployed);
    let [registration] = world.posts().try_into().expect("the registration");
    world.answer(&registration, Err(rejected()));
    assert!(world.posts().is_empty());
    assert_eq!(world.status["rejectedRegistration"]["reason"], "HTTP400");
    world.restart();
    world.advance(DELAY);
    assert!(world.posts().is_empty(), "it is sent again");
    assert_eq!(delivered(&world)["message"], "the registration is rejected");
    world.spec = json!({"monitoring": {"enable": true}});
    world.restart();
    world.settle();
    assert_eq!((world.told().len(), &world.status["rejectedRegistration"]), (1, &Value::Null));
}

/// A body that waits is not sent while Helm is working on a newer revision.
#[test]
fn a_body_that_waits_is_held_while_helm_works_on_a_newer_revision() {
    let (mut world, post) = due();
    world.answer(&post, Err(later(None)));
    world.helm("web", 2, Stage::UnderWay);
    world.posts();
    world.advance(Duration::from_secs(599));
    assert!(world.posts().is_empty(), "it is sent though Helm works on the release");
    let explained = world.index.explain(&key("web"), world.now).unwrap().0.join("\n");
    assert!(explained.ends_with("waits: Helm is working on a newer revision"), "{explained}");
    world.helm("web", 2, Stage::Deployed);
    world.settle();
    assert_eq!(world.told(), ["web 2 deployed [p]"]);
}

/// What is uninstalled is told, though Helm may be installing it anew.
#[test]
fn that_a_release_is_uninstalled_is_not_held() {
    let (mut world, post) = due();
    world.accept(&post);
    world.answer(&post, Ok(()));
    world.settle();
    world.uninstall("web");
    world.helm("web", 1, Stage::UnderWay);
    world.settle();
    assert_eq!(world.told(), ["web 1 deployed [p]", "web 1 uninstalled []"]);
}

/// The API may have the content in between, though the one after it was refused.
#[test]
fn what_was_acknowledged_before_a_lost_answer_is_sent_again() {
    for refusal in definite() {
        for is_killed in [false, true] {
            let (mut world, second) = second_post();
            world.accept(&second);
            world.answer(&second, Err(later(None)));
            world.pods("web", &["r"]);
            let (_, third) = next_post(&mut world);
            world.answer(&third, Err(refusal.clone()));
            world.index.token_changed();
            if is_killed {
                world.settle_writes();
                world.restart();
            }
            world.pods("web", &["p"]);
            world.settle();
            let expected = ["web 1 deployed [p]", "web 1 deployed [q]", "web 1 deployed [p]"];
            assert_eq!(world.told(), expected, "{refusal:?}, killed: {is_killed}");
        }
    }
}

/// A world whose registration was rejected.
fn unregistered() -> (World, Post) {
    let mut world = World::new(Settings { target: "one".into(), ..settings() });
    world.helm("web", 1, Stage::Deployed);
    let [registration] = world.posts().try_into().expect("the registration");
    world.answer(&registration, Err(rejected()));
    assert!(world.posts().is_empty());
    assert_eq!(delivered(&world)["message"], "the registration is rejected");
    (world, registration)
}

#[test]
fn a_rejected_registration_is_sent_to_another_api_and_by_resync() {
    let (mut world, registration) = unregistered();
    world.restart();
    assert!(world.posts().is_empty(), "the same API");
    world.settings.target = "two".into();
    world.restart();
    let [again] = world.posts().try_into().expect("the registration");
    assert_eq!(again.body, registration.body);

    let (mut world, registration) = unregistered();
    assert_eq!(world.index.resync(None), 1);
    let [again] = world.posts().try_into().expect("the registration");
    assert_eq!(again.body, registration.body);
    assert_ne!(again.idempotency_key, registration.idempotency_key);
    // Its number outlives the process.
    world.restart();
    let [repeated] = world.posts().try_into().expect("the registration");
    assert_eq!(repeated, again);
}

#[test]
fn what_one_api_has_rejected_is_sent_to_another_one() {
    let (mut world, post) = due();
    world.answer(&post, Err(rejected()));
    assert!(world.posts().is_empty());
    world.settings.target = "another".into();
    world.restart();
    let (_, again) = next_post(&mut world);
    assert_eq!(again.body, post.body);
}

#[test]
fn a_registration_that_was_rejected_is_not_told_of_when_none_is_needed() {
    let (mut world, _) = unregistered();
    world.settings.wire = Wire::Single;
    world.restart();
    world.settle();
    assert_eq!(delivered(&world)["status"], "True");
}

/// It is Helm that it waits for, whatever the API said before.
#[test]
fn what_waits_for_helm_does_not_wait_for_the_api() {
    let (mut world, second) = second_post();
    world.answer(&second, Err(later(None)));
    world.posts();
    assert_eq!(delivered(&world)["reason"], "HTTP503");
    world.helm("web", 2, Stage::UnderWay);
    assert!(world.posts().is_empty());
    assert_eq!(delivered(&world)["status"], "True");
    let summary = world.index.summary();
    assert_eq!((summary.pending, summary.undelivered.as_deref()), (0, None));
    assert_eq!(summary.problems[0].reason, "Helm is working on a newer revision");
}

#[test]
fn of_what_the_api_never_took_nothing_is_kept_when_it_is_gone() {
    let (mut world, post) = due();
    world.answer(&post, Err(rejected()));
    world.uninstall("web");
    world.settle();
    assert!(world.told().is_empty(), "its end is told");
    assert_eq!((world.entry("web"), world.index.summary().problems.len()), (Value::Null, 0));
}

/// The project asks for this, and nothing else.
fn options(world: &mut World, option: &str) {
    world.options(&json!({ option: {"enable": true} }));
}

/// A world whose registration was acknowledged, and one of another content that is under way.
fn reregistered() -> (World, Post) {
    let mut world = World::new(settings());
    world.settle();
    assert_eq!(world.accepted.len(), 1);
    options(&mut world, "logging");
    let [second] = world.posts().try_into().expect("another registration");
    (world, second)
}

#[test]
fn a_registration_that_returns_after_a_lost_answer_is_sent_again() {
    let (mut world, second) = reregistered();
    world.accept(&second);
    world.answer(&second, Err(later(None)));
    options(&mut world, "none");
    world.settle();
    let bodies: Vec<&Value> = world.accepted.iter().map(|(_, body)| body).collect();
    assert_eq!(bodies.len(), 3);
    assert_eq!((bodies[0], bodies[0] == bodies[1]), (bodies[2], false));
}

/// The status says what was about to be sent: a process that is killed before its answer arrives does not leave the API with options that
/// were taken back.
#[test]
fn a_registration_whose_process_was_killed_is_followed_by_the_one_that_returned() {
    let (mut world, second) = reregistered();
    assert!(world.status["registeringHash"].is_string() && world.status["registeredHash"].is_string());
    world.accept(&second);
    options(&mut world, "none");
    world.restart();
    world.settle();
    let bodies: Vec<&Value> = world.accepted.iter().map(|(_, body)| body).collect();
    assert_eq!(bodies.len(), 3);
    assert_eq!((bodies[0], bodies[0] == bodies[1]), (bodies[2], false));
    assert!(world.status["registeringHash"].is_null() && world.status["registeredHash"].is_string());
}

/// What the API has refused for certain is none that it may know: not for this process, nor for the next one.
#[test]
fn a_registration_that_returns_after_a_definite_refusal_is_not_sent_again() {
    for (refusal, ends) in definite().into_iter().flat_map(|refusal| [false, true].map(|ends| (refusal.clone(), ends)))
    {
        let (mut world, second) = reregistered();
        world.answer(&second, Err(refusal.clone()));
        let may_be_repeated = !matches!(refusal, Refusal::Rejected { .. } | Refusal::Unauthorized);
        if ends && may_be_repeated {
            // It is still announced, since it is about to be sent again.
            continue;
        }
        if ends {
            let patch = world.index.last_write(world.now).expect("what has changed");
            world.write(&patch);
            world.spec = json!({"none": {"enable": true}});
            world.restart();
        } else {
            world.index.token_changed();
            options(&mut world, "none");
        }
        world.settle();
        assert_eq!((world.accepted.len(), &world.status["registeringHash"]), (1, &Value::Null), "{refusal:?}");
    }
}

/// One that was announced and not sent leaves nothing behind.
#[test]
fn options_that_return_before_they_were_sent_are_not_registered_again() {
    let mut world = World::new(settings());
    world.settle();
    options(&mut world, "logging");
    let steps = world.next().steps;
    let [IndexStep::Write(announced)] = steps.as_slice() else { panic!("{steps:?}") };
    assert!(announced[1]["value"]["registeringHash"].is_string(), "{announced}");
    options(&mut world, "none");
    world.write(announced);
    world.settle();
    assert_eq!((world.accepted.len(), &world.status["registeringHash"]), (1, &Value::Null));
}

/// Only what was rejected last waits for another content.
#[test]
fn a_rejected_registration_that_returns_is_tried_again() {
    let (mut world, second) = reregistered();
    world.answer(&second, Err(rejected()));
    assert!(world.posts().is_empty());
    options(&mut world, "monitoring");
    let [third] = world.posts().try_into().expect("another registration");
    world.answer(&third, Err(Refusal::NotSent));
    options(&mut world, "logging");
    let (_, again) = next_post(&mut world);
    assert_eq!(again.body, second.body);
}

/// An API that does not want to know that releases are gone does not let them become ever more.
#[test]
fn releases_that_are_gone_and_rejected_are_kept_as_long_as_the_status_has_room() {
    let mut world = World::new(Settings { status_budget: 6000, ..settings() });
    world.settle();
    for number in 0..40 {
        let name = format!("job-{number}");
        world.helm(&name, 1, Stage::Deployed);
        world.settle();
        world.uninstall(&name);
        loop {
            match &world.posts()[..] {
                [] => world.advance(SECOND),
                posts => {
                    for post in posts {
                        world.answer(post, Err(rejected()));
                    }
                    break;
                }
            }
        }
        world.settle_writes();
    }
    assert_eq!(world.told().len(), 40, "all were reported before");
    let known = world.index.releases.len();
    assert!((3..25).contains(&known), "{known}");
    assert_eq!(known, world.status["helmStatus"].as_array().unwrap().len());
}

//! On what two replicas told: `databases` and `users` run in the second one, `queues` in the first one.

use super::*;

fn replica(name: &str) -> Replica {
    Replica { namespace: "edge".into(), name: name.into(), admin: Ok(8384), api: Ok(7070) }
}

fn status(number: usize) -> Value {
    let text = [include_str!("tests/towline-0.json"), include_str!("tests/towline-1.json")];
    serde_json::from_str(text[number]).expect("a status")
}

fn said(number: usize) -> Said {
    Said { replica: replica(&format!("towline-{number}")), status: Ok(status(number)) }
}

fn silent_one(number: usize) -> Said {
    Said { replica: replica(&format!("towline-{number}")), status: Err("no answer within 7s".into()) }
}

/// With another value at this place of the document.
fn changed(number: usize, pointer: &str, value: Value) -> Said {
    let mut status = status(number);
    *status.pointer_mut(pointer).expect(pointer) = value;
    Said { replica: replica(&format!("towline-{number}")), status: Ok(status) }
}

/// One that runs the same section in every replica, as hubs do.
fn of_hub(number: usize, state: &str) -> Said {
    let mut status = status(number);
    let mut hub = status["sections"]["databases"].clone();
    hub["state"] = json!(state);
    hub.as_object_mut().expect("a section").remove("election");
    status["sections"] = json!({ "hub": hub });
    Said { replica: replica(&format!("towline-{number}")), status: Ok(status) }
}

#[test]
fn a_section_is_told_by_the_replica_that_runs_it() {
    for said in [[said(0), said(1)], [said(1), said(0)]] {
        let merged = merged(&said);
        let sections = merged["sections"].as_object().expect("sections");
        let told: Vec<_> = sections.iter().map(|(name, section)| (name.as_str(), section["replica"].clone())).collect();
        let expected = [("databases", "towline-1"), ("queues", "towline-0"), ("users", "towline-1")];
        assert_eq!(told, expected.map(|(name, replica)| (name, json!(replica))));
        let mut held = merged["sections"]["databases"].clone();
        held.as_object_mut().expect("a section").remove("replica");
        assert_eq!(held, status(1)["sections"]["databases"], "nothing else is changed");
    }
}

#[test]
fn the_only_replica_is_told_as_it_is() {
    assert_eq!(merged(&[said(0)]), status(0));
}

#[test]
fn of_what_all_run_the_worst_is_told() {
    for (one, other, worst) in [("ready", "failing", 1), ("blocked", "failing", 0), ("ready", "ready", 0)] {
        let merged = merged(&[of_hub(0, one), of_hub(1, other)]);
        assert_eq!(merged["sections"]["hub"]["replica"], json!(format!("towline-{worst}")), "{one} {other}");
    }
}

#[test]
fn a_cluster_is_told_once_unless_replicas_differ() {
    let same = merged(&[said(0), said(1)]);
    assert_eq!(same["clusters"]["edge"], status(1)["clusters"]["edge"], "since both see it so");
    let lost = json!({"state": "unreachable", "since_seconds": 5, "reason": "connection refused"});
    let merged = merged(&[changed(0, "/clusters/hub", lost.clone()), said(1)]);
    let names: Vec<_> = merged["clusters"].as_object().expect("clusters").keys().collect();
    assert_eq!(names, ["edge", "hub (towline-0)", "hub (towline-1)"]);
    assert_eq!(merged["clusters"]["hub (towline-0)"], lost);
}

#[test]
fn a_replica_that_does_not_answer_is_named_beside_the_others() {
    let said = [said(0), silent_one(1), changed(1, "/version", json!("0.2.0"))];
    let merged = merged(&said);
    assert_eq!(merged["replicas"]["towline-1"]["version"], json!("0.2.0"), "the last one of a name");
    assert_eq!(merged["version"], json!("0.1.0, 0.2.0"));
    assert_eq!(merged["started_seconds_ago"], json!(70), "the last that was started");
    assert_eq!(silent(&said), ["towline-1 does not answer: no answer within 7s"]);
    let trees: Vec<_> =
        merged["tree"]["children"].as_array().expect("trees").iter().map(|tree| &tree["name"]).collect();
    assert_eq!(trees, ["towline-0", "towline-1"]);
}

#[test]
fn an_order_goes_to_the_replica_that_runs_the_section() {
    let all = [said(0), said(1)];
    let name = |section: &str| runner(section, &all).map(|replica| replica.name.as_str());
    assert_eq!(name("databases"), Ok("towline-1"));
    assert_eq!(name("queues"), Ok("towline-0"));
    assert_eq!(runner("hub", &[silent_one(0), of_hub(1, "ready")]).map(|it| it.name.as_str()), Ok("towline-1"));
    assert_eq!((runs(&status(0)), runs(&status(1))), (1, 2));
}

#[test]
fn a_section_that_nobody_runs_gets_no_order() {
    let told = |section: &str, said: &[Said]| runner(section, said).expect_err("nobody").to_string();
    assert_eq!(told("tables", &[said(0)]), "the release has no section tables; it has databases, queues, users");
    assert_eq!(
        told("databases", &[said(0), silent_one(1)]),
        "section databases runs in no replica that answers; its Lease is held by towline-1_9c21e44d (towline-1 does not \
         answer: no answer within 7s)"
    );
    let free = changed(0, "/sections/databases/election/holder", Value::Null);
    assert_eq!(told("databases", &[free]), "section databases runs in no replica that answers");
    assert_eq!(
        told("databases", &[silent_one(1)]),
        "no replica answers (towline-1 does not answer: no answer within 7s)"
    );
}

use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::Failure;

const INPUTS: Digest = Digest([7; 32]);
const HERE: AppliedOn<'_> = AppliedOn { inputs: INPUTS, cluster: "here" };
const OTHER_INPUTS: AppliedOn<'_> = AppliedOn { inputs: Digest([8; 32]), cluster: "here" };
const WITHIN: Duration = Duration::from_mins(2);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

fn object(name: &str) -> ObjectRef {
    ObjectRef {
        group: "apps".to_owned(),
        kind: "Deployment".to_owned(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

fn reading(name: &str, status: ObjectStatus) -> Reading {
    let assessed = match status {
        ObjectStatus::Current => Assessment::current(),
        ObjectStatus::NoStatus => Assessment::of(status, NO_STATUS, "it has no status"),
        _ => Assessment::of(status, "Why", &format!("{name} is so")),
    };
    Reading { object: object(name), assessed, job: None }
}

/// Reads an object again and again, from a first time on and whenever it is due, and returns the seconds, states and reasons.
fn read_until(status: impl Fn(i64) -> ObjectStatus, last: i64) -> (Vec<(i64, HealthState, String)>, Health) {
    let (mut second, mut read, mut health) = (0, Vec::new(), None);
    loop {
        let next = Health::read(HERE, health.as_ref(), vec![reading("web", status(second))], WITHIN, at(second));
        read.push((second, next.state, next.reason.clone()));
        let due = next.next.map(|due| due.as_second() - at(0).as_second());
        health = Some(next);
        match due.filter(|due| *due <= last) {
            Some(due) => second = due,
            None => return (read, health.expect("one")),
        }
    }
}

fn seconds(read: &[(i64, HealthState, String)]) -> Vec<i64> {
    read.iter().map(|(second, ..)| *second).collect()
}

#[test]
fn what_is_current_is_read_once_more_after_15_seconds() {
    let (read, health) = read_until(|_| ObjectStatus::Current, 1000);
    assert_eq!((seconds(&read), health.state, health.next), (vec![0, 15], HealthState::Current, None));
    assert!(health.objects.is_empty() && health.reason.is_empty() && health.message.is_empty());
    let nothing = Health::read(HERE, None, Vec::new(), WITHIN, at(0));
    assert_eq!((nothing.state, nothing.next), (HealthState::Current, Some(at(15))), "a syncset of ConfigMaps alone");
    let (read, health) =
        read_until(|second| if second < 5 { ObjectStatus::Current } else { ObjectStatus::Failed }, 1000);
    assert_eq!(
        (seconds(&read)[..2].to_vec(), health.state),
        (vec![0, 15], HealthState::Failed),
        "it began to crash later"
    );
}

#[test]
fn what_is_not_current_is_read_after_1_2_4_and_at_most_60_seconds_until_it_is_late() {
    let (read, health) = read_until(|_| ObjectStatus::Progressing, 1000);
    assert_eq!(seconds(&read), [0, 1, 3, 7, 15, 31, 63, 123]);
    assert_eq!((health.state, health.reason.as_str(), health.next), (HealthState::Progressing, "Late", None));
    assert_eq!(health.since, at(123));
    assert_eq!(health.message, "Deployment shop/web: web is so");
    let (read, health) =
        read_until(|second| if second < 20 { ObjectStatus::Progressing } else { ObjectStatus::Current }, 1000);
    assert_eq!((seconds(&read), health.state), (vec![0, 1, 3, 7, 15, 31], HealthState::Current));
    let (read, _) = read_until(|_| ObjectStatus::Unknown, 1000);
    assert_eq!((read.len(), read[0].1), (8, HealthState::Unknown), "what no rule understands may be understood later");
}

#[test]
fn an_object_has_failed_once_two_readings_15_seconds_apart_say_so() {
    let (read, health) = read_until(|_| ObjectStatus::Failed, 1000);
    assert_eq!(seconds(&read), [0, 1, 3, 7, 15]);
    let states: Vec<HealthState> = read.iter().map(|(_, state, _)| *state).collect();
    assert_eq!(
        states,
        [
            HealthState::Progressing,
            HealthState::Progressing,
            HealthState::Progressing,
            HealthState::Progressing,
            HealthState::Failed
        ]
    );
    assert_eq!((health.reason.as_str(), health.next), ("Why", None));
    // One that recovers in between never has.
    let flapping = |second: i64| if second % 2 == 0 { ObjectStatus::Failed } else { ObjectStatus::Progressing };
    let (read, _) = read_until(flapping, 1000);
    assert!(read.iter().all(|(_, state, _)| *state == HealthState::Progressing), "{read:?}");
    // It is read at that very time, however long the wait is by then.
    let (read, health) =
        read_until(|second| if second < 63 { ObjectStatus::Progressing } else { ObjectStatus::Failed }, 1000);
    assert_eq!((seconds(&read).split_off(6), health.state), (vec![63, 78], HealthState::Failed));
}

#[test]
fn an_object_without_a_status_is_current_after_15_seconds_and_stays_so() {
    let (read, health) = read_until(|_| ObjectStatus::NoStatus, 1000);
    assert_eq!((seconds(&read), health.state), (vec![0, 1, 3, 7, 15], HealthState::Current));
    let later = Health::read(HERE, Some(&health), vec![reading("web", ObjectStatus::NoStatus)], WITHIN, at(7200));
    assert_eq!((later.state, later.since), (HealthState::Current, health.since), "a full pass changes nothing");
    let told = (later.reason.as_str(), later.message.as_str());
    assert_eq!(told, ("Assumed", "Deployment.apps shop/web has no status, which counts as current"));
    let both = vec![reading("web", ObjectStatus::NoStatus), reading("other", ObjectStatus::Progressing)];
    let beside = Health::read(HERE, Some(&later), both, WITHIN, at(7300));
    assert_eq!(beside.objects.len(), 1, "nor does another object: {:?}", beside.objects);
}

#[test]
fn what_rests_is_read_later_and_what_has_settled_not_at_all() {
    let (of_rules, short) = (Duration::from_secs(50), Duration::from_millis(20));
    let read = |status| Health::read(HERE, None, vec![reading("web", status)], WITHIN, at(0));
    assert_eq!(read(ObjectStatus::Progressing).resting(at(0), of_rules).next, Some(at(50)));
    assert_eq!(read(ObjectStatus::Progressing).resting(at(0), short).next, Some(at(1)));
    let (_, settled) = read_until(|_| ObjectStatus::Current, 1000);
    assert_eq!(settled.resting(at(15), of_rules).next, None);
}

#[test]
fn what_is_no_longer_current_has_its_time_again_and_what_is_late_has_not() {
    let (_, late) = read_until(|_| ObjectStatus::Progressing, 1000);
    let again = Health::read(HERE, Some(&late), vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(7200));
    assert_eq!((again.reason.as_str(), again.next, again.since), ("Late", None, late.since));
    let well = Health::read(HERE, Some(&again), vec![reading("web", ObjectStatus::Current)], WITHIN, at(14_400));
    assert_eq!((well.state, well.next), (HealthState::Current, None));
    let ill = Health::read(HERE, Some(&well), vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(21_600));
    assert_eq!((ill.state, ill.reason.as_str(), ill.next), (HealthState::Progressing, "Why", Some(at(21_601))));
}

#[test]
fn what_is_late_stays_so_beside_what_has_failed() {
    let both = |other| vec![reading("web", ObjectStatus::Progressing), reading("worker", other)];
    let mut health = Health::read(HERE, None, both(ObjectStatus::Failed), WITHIN, at(0));
    while let Some(next) = health.next {
        health = Health::read(HERE, Some(&health), both(ObjectStatus::Failed), WITHIN, next);
    }
    assert_eq!((health.state, health.reason.as_str(), health.objects.len()), (HealthState::Failed, "Why", 2));
    let again = Health::read(HERE, Some(&health), both(ObjectStatus::Failed), WITHIN, at(7200));
    assert_eq!(
        (again.state, again.next, again.since),
        (HealthState::Failed, None, health.since),
        "a full pass begins nothing"
    );
    let mended = Health::read(HERE, Some(&again), both(ObjectStatus::Current), WITHIN, at(14_400));
    assert_eq!((mended.state, mended.reason.as_str(), mended.next), (HealthState::Progressing, "Late", None));
}

#[test]
fn the_time_in_which_nobody_could_read_does_not_count() {
    let first = Health::read(HERE, None, vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(0));
    let back = Health::read(HERE, Some(&first), vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(3600));
    assert_eq!((back.reason.as_str(), back.next), ("Why", Some(at(3602))), "a cluster that was paused for an hour");
    let (_, failed) = read_until(|_| ObjectStatus::Failed, 1000);
    let mended = Health::read(HERE, Some(&failed), vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(7200));
    assert_eq!((mended.reason.as_str(), mended.next), ("Why", Some(at(7201))), "what had failed has its time again");
    let refreshed = Health { next: Some(at(7000)), ..failed };
    let mended =
        Health::read(HERE, Some(&refreshed), vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(7200));
    assert_eq!((mended.reason.as_str(), mended.next), ("Why", Some(at(7201))), "also if a rollout has it read again");
}

#[test]
fn a_failure_is_confirmed_also_when_it_is_late_and_behind_many_others() {
    let status = |second: i64| if second < 123 { ObjectStatus::Progressing } else { ObjectStatus::Failed };
    let (read, health) = read_until(status, 1000);
    assert_eq!((seconds(&read).split_off(7), health.state, health.next), (vec![123, 138], HealthState::Failed, None));
    let all = || {
        (0..150)
            .map(|at| reading(&format!("a{at:03}"), ObjectStatus::Progressing))
            .chain([reading("web", ObjectStatus::Failed)])
    };
    let first = Health::read(HERE, None, all().collect(), WITHIN, at(0));
    let second = Health::read(HERE, Some(&first), all().collect(), WITHIN, at(15));
    assert_eq!((second.state, second.objects[0].name.as_str()), (HealthState::Failed, "web"));
}

#[test]
fn a_reason_of_a_controller_is_only_shown() {
    let named = || {
        vec![Reading {
            object: object("web"),
            assessed: Assessment::of(ObjectStatus::Progressing, NO_STATUS, "m"),
            job: None,
        }]
    };
    let mut health = Health::read(HERE, None, named(), WITHIN, at(0));
    let mut read = vec![0];
    while let Some(next) = health.next {
        read.push(next.as_second() - at(0).as_second());
        health = Health::read(HERE, Some(&health), named(), WITHIN, next);
    }
    assert_eq!((read, health.reason.as_str()), (vec![0, 1, 3, 7, 15, 31, 63, 123], "Late"));
}

#[test]
fn other_inputs_begin_anew() {
    let (_, failed) = read_until(|_| ObjectStatus::Failed, 1000);
    let other = Health::read(OTHER_INPUTS, Some(&failed), vec![reading("web", ObjectStatus::Failed)], WITHIN, at(20));
    assert_eq!((other.state, other.since, other.next), (HealthState::Progressing, at(20), Some(at(21))));
    assert!(!failed.is_of(Digest([8; 32])) && other.is_of(Digest([8; 32])));
}

#[test]
fn another_cluster_begins_anew() {
    let (_, failed) = read_until(|_| ObjectStatus::Failed, 1000);
    let there = AppliedOn { inputs: INPUTS, cluster: "there" };
    let other = Health::read(there, Some(&failed), vec![reading("web", ObjectStatus::Failed)], WITHIN, at(20));
    assert_eq!((other.state, other.since, other.next), (HealthState::Progressing, at(20), Some(at(21))));
    assert!(failed.is_on(Some("here")) && !failed.is_on(Some("there")) && !failed.is_on(None));
}

#[test]
fn a_job_that_was_seen_to_finish_and_is_gone_stays_current_until_another_one_is_sent() {
    let job = |status, job| Reading { job: Some(job), ..reading("job", status) };
    let finished = |uid: &str| job(ObjectStatus::Current, Job::Finished(uid.to_owned()));
    let gone = |uid: &str| job(ObjectStatus::Progressing, Job::Gone(uid.to_owned()));
    let first = Health::read(HERE, None, vec![finished("u1")], WITHIN, at(0));
    let second = Health::read(HERE, Some(&first), vec![gone("u1")], WITHIN, at(15));
    assert_eq!((second.state, second.next), (HealthState::Current, None));
    // Something else of the syncset has changed.
    let changed = Health::read(OTHER_INPUTS, Some(&second), vec![gone("u1")], WITHIN, at(20));
    assert_eq!(changed.state, HealthState::Current);
    for (previous, gone_now) in [(None, "u1"), (Some(&changed), "u2")] {
        let unseen = Health::read(OTHER_INPUTS, previous, vec![gone(gone_now)], WITHIN, at(30));
        assert_eq!(unseen.state, HealthState::Progressing, "nobody has seen {gone_now} finish");
    }
}

#[test]
fn a_job_that_has_failed_and_is_gone_has_failed_until_another_one_is_sent() {
    let job = |name: &str, status, job| Reading { job: Some(job), ..reading(name, status) };
    let finished = |uid: &str| job("job", ObjectStatus::Failed, Job::Finished(uid.to_owned()));
    let gone = |uid: &str| job("job", ObjectStatus::Progressing, Job::Gone(uid.to_owned()));
    let mut health = Health::read(HERE, None, vec![finished("u1")], WITHIN, at(0));
    while let Some(next) = health.next {
        health = Health::read(HERE, Some(&health), vec![gone("u1")], WITHIN, next);
    }
    let told = |health: &Health| (health.state, health.reason.clone(), health.objects[0].message.clone());
    let expected = (HealthState::Failed, "Why".to_owned(), "job is so".to_owned());
    assert_eq!((told(&health), health.since), (expected.clone(), at(15)));
    let later = Health::read(HERE, Some(&health), vec![gone("u1")], WITHIN, at(7200));
    assert_eq!((told(&later), later.since, later.next), (expected, at(15), None));
    // Another one under its name, or something else of the syncset that has changed.
    let unseen = Health::read(HERE, Some(&later), vec![gone("u2")], WITHIN, at(7300));
    assert_eq!(unseen.state, HealthState::Progressing);
    let changed = Health::read(OTHER_INPUTS, Some(&later), vec![gone("u1")], WITHIN, at(7300));
    let confirmed = Health::read(OTHER_INPUTS, Some(&changed), vec![gone("u1")], WITHIN, at(7315));
    assert_eq!((changed.state, confirmed.state), (HealthState::Progressing, HealthState::Failed), "it is the same Job");
    // Also of more than are stored.
    let many = |job_of: fn(String) -> Job| {
        (0..150).map(|at| job(&format!("a{at:03}"), ObjectStatus::Failed, job_of(format!("u{at}")))).collect::<Vec<_>>()
    };
    let first = Health::read(HERE, None, many(Job::Finished), WITHIN, at(0));
    let second = Health::read(HERE, Some(&first), many(Job::Gone), WITHIN, at(15));
    assert_eq!((second.state, second.objects.len() + second.more), (HealthState::Failed, 150));
}

#[test]
fn whether_a_job_has_finished_is_said_by_its_conditions_whatever_a_rule_says() {
    let job = |seconds: Option<i64>, kind: &str, status: &str| {
        json!({"metadata": {"uid": "u1"}, "spec": {"ttlSecondsAfterFinished": seconds},
            "status": {"active": 1, "conditions": conditions(&[(kind, status, "")])}})
    };
    for (object, finished) in [
        (job(Some(60), "Complete", "True"), true),
        (job(Some(60), "Failed", "True"), true),
        (job(Some(60), "Complete", "False"), false),
        (job(Some(60), "Suspended", "True"), false),
        (job(None, "Complete", "True"), false),
    ] {
        let expected = finished.then(|| Job::Finished("u1".to_owned()));
        assert_eq!(Job::of("batch", "Job", &object), expected, "{object}");
        assert_eq!(Job::of("example.com", "Job", &object), None);
    }
    // Its deletion is its own.
    let mut object = job(Some(60), "Complete", "True");
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(assess("batch", "Job", &object, None), Assessment::current());
    object["status"]["conditions"][0]["status"] = json!("False");
    assert_eq!(assess("batch", "Job", &object, None).reason, "Terminating");
}

#[test]
fn more_objects_than_are_stored_are_read_no_longer_than_few() {
    let failing = || (0..150).map(|at| reading(&format!("a{at:03}"), ObjectStatus::Failed)).collect();
    let first = Health::read(HERE, None, failing(), WITHIN, at(0));
    let second = Health::read(HERE, Some(&first), failing(), WITHIN, at(20));
    assert_eq!((second.state, second.next), (HealthState::Failed, None));
}

#[test]
fn the_worst_object_speaks_for_all_and_the_others_are_counted() {
    let (_, failed) = read_until(|_| ObjectStatus::Failed, 1000);
    let mut readings: Vec<Reading> =
        (0..150).map(|at| reading(&format!("a{at:03}"), ObjectStatus::Progressing)).collect();
    readings.extend([
        reading("web", ObjectStatus::Failed),
        reading("b", ObjectStatus::Unknown),
        reading("c", ObjectStatus::Current),
    ]);
    let health = Health::read(HERE, Some(&failed), readings, WITHIN, at(16));
    assert_eq!((health.state, health.objects.len(), health.more), (HealthState::Failed, MOST_OBJECTS, 52));
    let states: Vec<HealthState> = health.objects.iter().take(3).map(|object| object.state).collect();
    assert_eq!(states, [HealthState::Failed, HealthState::Unknown, HealthState::Progressing]);
    assert_eq!(health.message, "Deployment shop/web: web is so; 151 more objects are not current");
    let long = Reading {
        object: object("a"),
        assessed: Assessment::of(ObjectStatus::Failed, "Why", &"ä\0".repeat(400)),
        job: None,
    };
    let health = Health::read(HERE, None, vec![long, reading("b", ObjectStatus::Progressing)], WITHIN, at(0));
    let (all, first) = (&health.message, &health.objects[0].message);
    assert_eq!((all.chars().count(), first.chars().count()), (256, 256));
    assert!(all.ends_with("…; 1 more object is not current") && !first.contains('\0'), "{all}");
}

fn result(inputs: Digest, failure: Option<Failure>) -> ResultRow {
    ResultRow {
        syncset: Uuid::from_u128(1),
        name: SyncSetName { kind: SyncSetKind::SyncSet, namespace: "foo".to_owned(), name: "base".to_owned() },
        inputs,
        generation: 1,
        failure,
        since: at(0),
        first_success: None,
        has_pending_deletions: false,
    }
}

#[test]
fn health_is_read_of_what_is_applied_at_its_time_and_after_each_full_pass() {
    let applied = result(INPUTS, None);
    let failing = result(INPUTS, Some(Failure { reason: Reason::Forbidden, message: "no".to_owned() }));
    let progressing = Health::read(HERE, None, vec![reading("web", ObjectStatus::Progressing)], WITHIN, at(5));
    let first = Health::read(HERE, None, Vec::new(), WITHIN, at(-20));
    let current = Health::read(HERE, Some(&first), Vec::new(), WITHIN, at(5));
    let of_others = Health::read(OTHER_INPUTS, None, Vec::new(), WITHIN, at(5));
    for (what, result, health, last_full, expected) in [
        ("not applied", None, None, None, None),
        ("fails", Some(&failing), Some(&progressing), None, None),
        ("changed", Some(&result(Digest([9; 32]), None)), Some(&progressing), None, None),
        ("never read", Some(&applied), None, Some(at(0)), Some(Timestamp::MIN)),
        ("read before a change", Some(&applied), Some(&of_others), None, Some(Timestamp::MIN)),
        ("progressing", Some(&applied), Some(&progressing), Some(at(4)), Some(at(6))),
        ("settled", Some(&applied), Some(&current), Some(at(4)), None),
        ("settled, before a full pass", Some(&applied), Some(&current), Some(at(6)), Some(at(6))),
    ] {
        assert_eq!(due(INPUTS, result, health, last_full), expected, "{what}");
    }
}

#[test]
fn what_does_not_answer_or_is_not_applied_as_it_is_now_is_never_shown_as_current() {
    let (applied, other) = (result(INPUTS, None), result(Digest([9; 32]), None));
    let current = Health::read(HERE, None, Vec::new(), WITHIN, at(5));
    let shown = |result, health, is_unreachable| Entry::of(INPUTS, result, health, is_unreachable).to_json();
    assert_eq!(
        shown(Some(&applied), Some(&current), false),
        json!({"state": "Current", "since": format!("{:.0}", at(5))})
    );
    let silent = shown(Some(&applied), Some(&current), true);
    assert_eq!((&silent["state"], &silent["reason"]), (&json!("Unknown"), &json!("Unreachable")));
    assert_eq!(silent["message"], format!("the cluster does not answer; it was Current at {:.0}", at(5)));
    for (result, health, reason) in
        [(None, None, "NotApplied"), (Some(&other), Some(&current), "NotApplied"), (Some(&applied), None, "Waiting")]
    {
        let shown = shown(result, health, false);
        assert_eq!((&shown["state"], &shown["reason"]), (&json!("Progressing"), &json!(reason)));
    }
}

#[test]
fn an_object_is_explained_by_its_state_its_rule_and_its_age() {
    let own = Rule { group: "apps".to_owned(), ..rule("true", None) };
    let own = Settings { within: WITHIN, rules: vec![Rule { kind: "Deployment".to_owned(), ..own }] };
    let without = Settings { within: WITHIN, rules: Vec::new() };
    let told = |name: &str, settings: &Settings, known: Option<&Health>| {
        explained(&object(name), settings, known, |since| format!("{} s", at(150).duration_since(since).as_secs()))
    };
    let (_, late) = read_until(|_| ObjectStatus::Progressing, 1000);
    let expected =
        "Progressing for 150 s, too late (Why): web is so; read 27 s ago, assessed by the syncset's rule for its kind";
    assert_eq!(told("web", &own, Some(&late)), expected);
    assert_eq!(
        told("other", &without, Some(&late)),
        "Current, read 27 s ago, assessed by what its kind's controller says"
    );
    assert_eq!(
        told("web", &own, None),
        "not read yet as it is wanted now; to be assessed by the syncset's rule for its kind"
    );
    let of_others = ObjectRef { group: "db.example.com".to_owned(), ..object("web") };
    assert!(explained(&of_others, &without, Some(&late), |_| String::new()).ends_with("assessed by its conditions"));
    let map = ObjectRef { group: String::new(), kind: "ConfigMap".to_owned(), ..object("web") };
    assert_eq!(explained(&map, &own, None, |_| String::new()), "objects of this kind are not read");
    let many = (0..101).map(|at| reading(&format!("a{at:03}"), ObjectStatus::Progressing)).collect();
    let many = Health::read(HERE, None, many, WITHIN, at(0));
    assert_eq!(told("a100", &without, Some(&many)), "not known: more objects are not current than are noted");
}

/// An object of generation 3.
#[expect(clippy::needless_pass_by_value, reason = "every call makes the values")]
fn of(spec: Value, status: Value) -> Value {
    json!({"metadata": {"name": "a", "generation": 3}, "spec": spec, "status": status})
}

fn conditions(list: &[(&str, &str, &str)]) -> Value {
    list.iter().map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason})).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn kinds_are_assessed_by_what_their_controllers_say() {
    let deployed = |replicas: i64, status: &[(&str, i64)], conditions_of: &[(&str, &str, &str)]| {
        let mut all = json!({"observedGeneration": 3, "conditions": conditions(conditions_of)});
        for (field, count) in status {
            all[*field] = json!(count);
        }
        of(json!({"replicas": replicas, "progressDeadlineSeconds": 600}), all)
    };
    let full = [("replicas", 2), ("updatedReplicas", 2), ("availableReplicas", 2), ("readyReplicas", 2)];
    let well = [("Progressing", "True", "NewReplicaSetAvailable"), ("Available", "True", "MinimumReplicasAvailable")];
    let with =
        |field: &'static str, count: i64| full.map(|(name, before)| (name, if name == field { count } else { before }));
    let pod = |phase: &str, conditions_of: &[(&str, &str, &str)]| {
        of(json!({}), json!({"phase": phase, "conditions": conditions(conditions_of)}))
    };
    let crashing = json!({"phase": "Running", "conditions": conditions(&[("Ready", "False", "ContainersNotReady")]),
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    let job = |conditions_of: &[(&str, &str, &str)]| {
        of(json!({}), json!({"active": 1, "conditions": conditions(conditions_of)}))
    };
    let service = |kind: &str, ingress: Value| of(json!({"type": kind}), json!({"loadBalancer": {"ingress": ingress}}));
    let other = |list: &[(&str, &str, &str)]| of(json!({}), json!({"conditions": conditions(list)}));
    let daemon = |desired: i64, ready: i64| {
        of(
            json!({}),
            json!({"observedGeneration": 3, "desiredNumberScheduled": desired, "currentNumberScheduled": desired,
            "updatedNumberScheduled": desired, "numberAvailable": desired, "numberReady": ready}),
        )
    };
    let stateful = |partition: i64, updated: i64, current: i64, revisions: [&str; 2]| {
        let strategy = if partition < 0 { json!({}) } else { json!({"rollingUpdate": {"partition": partition}}) };
        of(
            json!({"replicas": 3, "updateStrategy": strategy}),
            json!({"observedGeneration": 3,
            "replicas": 3, "readyReplicas": 3, "updatedReplicas": updated, "currentReplicas": current,
            "currentRevision": revisions[0], "updateRevision": revisions[1]}),
        )
    };
    let mut terminating = deployed(2, &full, &well);
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut behind = deployed(2, &full, &well);
    behind["status"]["observedGeneration"] = json!(2);
    let exceeded = [("Progressing", "False", "ProgressDeadlineExceeded"), ("Available", "True", "")];
    let behind_condition =
        of(json!({}), json!({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}));
    let (current, progressing, failed) = (ObjectStatus::Current, ObjectStatus::Progressing, ObjectStatus::Failed);
    for (group, kind, object, status, reason) in [
        ("apps", "Deployment", deployed(2, &full, &well), current, ""),
        ("apps", "Deployment", terminating, progressing, "Terminating"),
        ("apps", "Deployment", behind, progressing, "NotObserved"),
        ("apps", "Deployment", deployed(2, &full, &exceeded), failed, "ProgressDeadlineExceeded"),
        ("apps", "Deployment", deployed(3, &full, &well), progressing, "TooFewReplicas"),
        ("apps", "Deployment", deployed(1, &full, &well), progressing, "ExtraReplicas"),
        ("apps", "Deployment", deployed(2, &with("updatedReplicas", 1), &well), progressing, "TooFewUpdated"),
        ("apps", "Deployment", deployed(2, &with("availableReplicas", 1), &well), progressing, "TooFewAvailable"),
        ("apps", "Deployment", deployed(2, &with("readyReplicas", 1), &well), progressing, "TooFewReady"),
        ("apps", "Deployment", deployed(2, &full, &well[1..]), progressing, "NotAvailable"),
        ("apps", "Deployment", deployed(2, &full, &well[..1]), progressing, "NotAvailable"),
        ("apps", "Deployment", deployed(0, &[], &well), current, ""),
        ("apps", "Deployment", of(json!({}), json!({})), progressing, "TooFewReplicas"),
        ("apps", "StatefulSet", stateful(-1, 3, 3, ["r1", "r1"]), current, ""),
        ("apps", "StatefulSet", stateful(-1, 3, 3, ["r1", "r2"]), progressing, "Updating"),
        ("apps", "StatefulSet", stateful(-1, 3, 2, ["r1", "r1"]), progressing, "TooFewCurrent"),
        ("apps", "StatefulSet", stateful(2, 1, 0, ["r1", "r2"]), current, ""),
        ("apps", "StatefulSet", stateful(1, 1, 0, ["r1", "r2"]), progressing, "TooFewUpdated"),
        ("apps", "StatefulSet", of(json!({"updateStrategy": {"type": "OnDelete"}}), json!({})), current, ""),
        ("apps", "DaemonSet", daemon(2, 2), current, ""),
        ("apps", "DaemonSet", daemon(2, 1), progressing, "TooFewReady"),
        ("apps", "DaemonSet", of(json!({}), json!({})), progressing, "NotObserved"),
        (
            "apps",
            "ReplicaSet",
            deployed(
                2,
                &[("replicas", 2), ("fullyLabeledReplicas", 2), ("availableReplicas", 2), ("readyReplicas", 2)],
                &[],
            ),
            current,
            "",
        ),
        (
            "apps",
            "ReplicaSet",
            deployed(2, &full, &[("ReplicaFailure", "True", "FailedCreate")]),
            progressing,
            "FailedCreate",
        ),
        ("batch", "Job", job(&[]), progressing, "JobRunning"),
        ("batch", "Job", job(&[("Complete", "True", "")]), current, ""),
        ("batch", "Job", job(&[("Failed", "True", "BackoffLimitExceeded")]), failed, "BackoffLimitExceeded"),
        ("batch", "Job", of(json!({"suspend": true}), json!({})), progressing, "Suspended"),
        ("", "Pod", pod("Running", &[("Ready", "True", "")]), current, ""),
        ("", "Pod", pod("Running", &[("Ready", "False", "ContainersNotReady")]), progressing, "ContainersNotReady"),
        ("", "Pod", of(json!({}), crashing), failed, "CrashLoopBackOff"),
        ("", "Pod", pod("Succeeded", &[]), current, ""),
        ("", "Pod", pod("Failed", &[]), failed, "PodFailed"),
        ("", "Pod", pod("Pending", &[("PodScheduled", "False", "Unschedulable")]), failed, "Unschedulable"),
        ("", "Pod", pod("Pending", &[("PodScheduled", "True", "")]), progressing, "Pending"),
        ("", "Service", service("ClusterIP", json!(null)), current, ""),
        ("", "Service", service("LoadBalancer", json!(null)), progressing, "NoAddress"),
        ("", "Service", service("LoadBalancer", json!([{"ip": ""}])), progressing, "NoAddress"),
        ("", "Service", service("LoadBalancer", json!([{"hostname": "a.example"}])), current, ""),
        ("", "PersistentVolumeClaim", of(json!({}), json!({"phase": "Bound"})), current, ""),
        ("", "PersistentVolumeClaim", of(json!({}), json!({"phase": "Pending"})), progressing, "NotBound"),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            other(&[("NamesAccepted", "True", ""), ("Established", "True", "")]),
            current,
            "",
        ),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            other(&[("Established", "False", "Installing")]),
            progressing,
            "Installing",
        ),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            other(&[("NamesAccepted", "False", "MultipleNamesNotAllowed")]),
            failed,
            "MultipleNamesNotAllowed",
        ),
        (
            "apiregistration.k8s.io",
            "APIService",
            other(&[("Available", "False", "MissingEndpoints")]),
            progressing,
            "MissingEndpoints",
        ),
        ("db.example.com", "Postgres", other(&[("Ready", "True", "")]), current, ""),
        ("db.example.com", "Postgres", other(&[("Ready", "Unknown", "")]), progressing, "NotReady"),
        ("db.example.com", "Postgres", other(&[("Available", "True", "")]), current, ""),
        (
            "db.example.com",
            "Postgres",
            other(&[("Ready", "False", "Starting"), ("Available", "True", "")]),
            progressing,
            "Starting",
        ),
        (
            "db.example.com",
            "Postgres",
            other(&[("Ready", "True", ""), ("Stalled", "True", "BadSpec")]),
            failed,
            "BadSpec",
        ),
        (
            "db.example.com",
            "Postgres",
            other(&[("Ready", "True", ""), ("Reconciling", "True", "")]),
            progressing,
            "Reconciling",
        ),
        ("db.example.com", "Postgres", behind_condition, progressing, "NotObserved"),
        ("db.example.com", "Postgres", of(json!({}), json!({"phase": "ready"})), ObjectStatus::Unknown, "NoRule"),
        ("db.example.com", "Postgres", of(json!({}), json!({})), ObjectStatus::NoStatus, "NoStatus"),
        ("db.example.com", "Postgres", json!({"metadata": {}}), ObjectStatus::NoStatus, "NoStatus"),
    ] {
        assert!(assessment::is_assessed(group, kind), "{group} {kind}");
        let assessed = assess(group, kind, &object, None);
        assert_eq!((assessed.status, assessed.reason.as_str()), (status, reason), "{kind}: {object}");
        assert_eq!(assessed.message.is_empty(), status == current, "{kind}: {assessed:?}");
    }
    for (group, kind) in
        [("", "Secret"), ("", "ConfigMap"), ("rbac.authorization.k8s.io", "Role"), ("batch", "CronJob")]
    {
        assert!(!assessment::is_assessed(group, kind), "{kind} has nothing to assess, and a Secret is never read");
    }
}

fn rule(current: &str, failed: Option<&str>) -> Rule {
    Rule {
        group: "db.example.com".to_owned(),
        kind: "Postgres".to_owned(),
        current: current.to_owned(),
        failed: failed.map(str::to_owned),
    }
}

#[test]
fn an_own_rule_decides_instead_of_all_others() {
    let phase =
        |phase: &str| of(json!({}), json!({"phase": phase, "conditions": conditions(&[("Ready", "True", "")])}));
    let by_phase = || rule("status.phase == 'ready'", Some("status.phase == 'dead'"));
    let mut behind = phase("ready");
    behind["status"]["observedGeneration"] = json!(2);
    let mut terminating = phase("dead");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let large = of(json!({"text": "x".repeat(70_000)}), json!({"phase": "ready"}));
    for (rule, object, status, reason) in [
        (by_phase(), phase("ready"), ObjectStatus::Current, ""),
        (by_phase(), phase("dead"), ObjectStatus::Failed, "FailedByRule"),
        (by_phase(), phase("starting"), ObjectStatus::Progressing, "NotCurrent"),
        (by_phase(), json!({"metadata": {}}), ObjectStatus::Progressing, "NotCurrent"),
        (by_phase(), behind, ObjectStatus::Progressing, "NotObserved"),
        (by_phase(), terminating, ObjectStatus::Progressing, "Terminating"),
        (by_phase(), large, ObjectStatus::Unknown, "TooLarge"),
        (rule("true", Some("true")), phase("ready"), ObjectStatus::Failed, "FailedByRule"),
        (rule("status.phase", None), phase("canary"), ObjectStatus::Unknown, "RuleError"),
        (rule("true", Some("status.phase > 3")), phase("canary"), ObjectStatus::Unknown, "RuleError"),
        (rule("what another release understands()", None), phase("canary"), ObjectStatus::Unknown, "RuleError"),
    ] {
        let rules = Rules::parse(std::slice::from_ref(&rule), 1);
        let assessed = assess("db.example.com", "Postgres", &object, rules.of("db.example.com", "Postgres"));
        assert_eq!((assessed.status, assessed.reason.as_str()), (status, reason), "{rule:?}: {assessed:?}");
        assert!(!assessed.message.contains("canary"), "{assessed:?}");
    }
    let settings = |group: &str, kind: &str| {
        let of_kind = Rule { group: group.to_owned(), kind: kind.to_owned(), ..rule("true", None) };
        Settings { within: WITHIN, rules: vec![of_kind] }
    };
    assert!(settings("", "ConfigMap").reads("", "ConfigMap") && !settings("", "ConfigMap").reads("", "Namespace"));
    assert!(settings("", "ConfigMap").reads("apps", "Deployment") && !settings("", "Secret").reads("", "Secret"));
}

#[test]
fn the_more_objects_have_rules_the_less_each_of_them_may_take() {
    let list = |elements: usize| {
        of(json!({"list": vec![1; elements]}), json!({"conditions": conditions(&[("Ready", "True", "")])}))
    };
    let many = |part: &str| vec![part; 18].join(" && ");
    let dear = vec![format!("spec.list.all(e, {})", many("e == 1")); 2].join(" && ");
    let literal = format!("[{}].all(e, {})", vec!["1"; 100].join(", "), many("e == 1"));
    let usual = "status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'True')";
    let wide = of(json!({"list": vec![vec![Value::Null; 10]; 1000]}), json!({}));
    let searched = vec!["spec.list == spec.list"; 28].join(" && ");
    let assessed = |rule: Rule, objects: usize, object: &Value| {
        let rules = Rules::parse(&[rule], objects);
        assess("db.example.com", "Postgres", object, rules.of("db.example.com", "Postgres"))
    };
    for (current, failed, objects, elements, status) in [
        (dear.as_str(), None, 1, 1000, ObjectStatus::Current),
        (&dear, None, 1000, 1000, ObjectStatus::Unknown),
        (&dear, None, 1000, 10, ObjectStatus::Current),
        (&dear, None, 26_000, 10, ObjectStatus::Unknown),
        ("true", Some(format!("!({dear})")), 1000, 1000, ObjectStatus::Unknown),
        ("spec == status || spec.list == spec.list", None, 10_000, 1000, ObjectStatus::Unknown),
        (usual, None, 26_000, 10, ObjectStatus::Current),
        (&literal, None, 1, 1, ObjectStatus::Current),
        (&literal, None, 10_000, 1, ObjectStatus::Unknown),
    ] {
        let found = assessed(rule(current, failed.as_deref()), objects, &list(elements));
        assert_eq!(found.status, status, "{current}, {objects} objects, {elements} elements: {found:?}");
        let is_told = found.reason == "TooLarge" && found.message.contains(&format!("the {objects} objects"));
        assert_eq!(is_told, status == ObjectStatus::Unknown, "{found:?}");
    }
    // However few there are, those of one object take no longer than 50 ms.
    assert_eq!(assessed(rule(&searched, None), 1, &wide).status, ObjectStatus::Current);
    let both = assessed(rule(&searched, Some(&format!("!({searched})"))), 1, &wide);
    assert!(both.reason == "TooLarge" && both.message.contains("with a rule 400000"), "{both:?}");
}

/// What a status of any kind may have, in the places where it is looked at.
fn odd() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![Just("True"), Just("False"), Just("Ready"), Just("Failed"), Just("LoadBalancer"), Just("\0")]
            .prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("status"),
        Just("conditions"),
        Just("type"),
        Just("reason"),
        Just("replicas"),
        Just("readyReplicas"),
        Just("observedGeneration"),
        Just("generation"),
        Just("phase"),
        Just("updateStrategy"),
        Just("rollingUpdate"),
        Just("partition"),
        Just("containerStatuses"),
        Just("desiredNumberScheduled"),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..6).prop_map(|fields| fields
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

proptest! {
    #[test]
    fn any_status_is_assessed_in_few_words(object in odd()) {
        for (group, kind) in [("apps", "Deployment"), ("apps", "StatefulSet"), ("apps", "DaemonSet"), ("apps", "ReplicaSet"), ("batch", "Job"),
            ("", "Pod"), ("", "Service"), ("", "PersistentVolumeClaim"), ("apiextensions.k8s.io", "CustomResourceDefinition"), ("x.example", "X")] {
            let assessed = assess(group, kind, &object, None);
            prop_assert!(assessed.message.chars().count() <= 256 && assessed.reason.len() <= 64 && !assessed.reason.contains('\0'));
        }
    }

    #[test]
    fn it_is_read_again_exactly_while_something_is_undecided(
        steps in prop::collection::vec((1..90_i64, prop::collection::vec(0..5_u8, 3)), 1..20),
    ) {
        let (mut now, mut before) = (0, None::<Health>);
        for (wait, statuses) in steps {
            now += wait;
            let status = |number: u8| {
                [ObjectStatus::Current, ObjectStatus::Progressing, ObjectStatus::NoStatus, ObjectStatus::Unknown, ObjectStatus::Failed][usize::from(number)]
            };
            let readings: Vec<_> =
                statuses.iter().enumerate().map(|(at, number)| reading(&format!("o{at}"), status(*number))).collect();
            let health = Health::read(HERE, before.as_ref(), readings, WITHIN, at(now));
            let undecided = health.objects.iter().any(|object| object.state != HealthState::Failed);
            let is_late = at(now) >= after(health.began, WITHIN);
            let confirms = health.objects.iter().any(|object| object.confirmed_at(health.applied).is_some_and(|then| then > at(now)));
            let again = health.state == HealthState::Current && at(now) < after(health.applied, CONFIRMED_AFTER);
            prop_assert_eq!(health.next.is_some(), undecided && !is_late || confirms || again);
            prop_assert!(health.next.is_none_or(|next| next > at(now) && next <= at(now + 60)));
            let worst = health.objects.iter().map(|object| object.state).max().unwrap_or(HealthState::Current);
            prop_assert_eq!(health.state, worst);
            for object in health.objects.iter().filter(|object| object.state == HealthState::Failed) {
                let had = before.as_ref().and_then(|before| before.objects.iter().find(|had| had.name == object.name));
                prop_assert!(had.is_some_and(|had| had.failed.is_some_and(|failed| at(now) >= after(failed, CONFIRMED_AFTER))));
            }
            let stored: Health = serde_json::from_value(serde_json::to_value(&health).expect("JSON")).expect("the same");
            prop_assert_eq!(&stored, &health);
            before = Some(stored);
        }
    }
}

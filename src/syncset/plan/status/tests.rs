use jiff::SignedDuration;

use super::*;
use crate::syncset::plan::name::Digest;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{ClusterRow, Failure};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

fn result(number: u8, kind: SyncSetKind, name: &str) -> ResultRow {
    let namespace = if kind == SyncSetKind::SyncSet { "team-a" } else { "" };
    ResultRow {
        syncset: Uuid::from_u128(number.into()),
        name: SyncSetName { kind, namespace: namespace.to_owned(), name: name.to_owned() },
        inputs: Digest([number; 32]),
        generation: i64::from(number) + 10,
        failure: None,
        since: at(number.into()),
        first_success: Some(at(i64::from(number) + 100)),
        has_pending_deletions: false,
    }
}

fn failing(result: ResultRow) -> ResultRow {
    let message = "failed to apply resource 0: user \"hub\" cannot patch configmaps".to_owned();
    ResultRow { failure: Some(Failure { reason: Reason::Forbidden, message }), ..result }
}

fn of(results: &[ResultRow], gone: &[u8], conditions: Conditions, previous: &Map<String, Value>) -> Map<String, Value> {
    let gone: Vec<Uuid> = gone.iter().map(|number| Uuid::from_u128(u128::from(*number))).collect();
    let live = results.iter().map(|result| result.syncset).filter(|id| !gone.contains(id)).collect();
    let observed = Observed {
        results,
        live: &live,
        ending: None,
        health: &BTreeMap::new(),
        conditions,
        controlled_by: "towline-1",
    };
    status(&observed, previous, at(1000))
}

fn condition<'s>(status: &'s Map<String, Value>, kind: &str) -> Option<&'s Value> {
    status["conditions"].as_array().expect("a list").iter().find(|condition| condition["type"] == kind)
}

#[test]
fn entries_show_each_syncset_by_kind_sorted_by_name() {
    let results = [
        result(1, SyncSetKind::SelectorSyncSet, "monitoring"),
        failing(ResultRow { first_success: None, ..result(2, SyncSetKind::SyncSet, "b") }),
        result(3, SyncSetKind::SyncSet, "a"),
    ];
    let status = of(&results, &[], Conditions::default(), &Map::new());
    let entries = json!([
        {"name": "a", "observedGeneration": 13, "result": "Success", "lastTransitionTime": "2027-01-15T08:00:03Z",
         "firstSuccessTime": "2027-01-15T08:01:43Z"},
        {"name": "b", "observedGeneration": 12, "result": "Failure", "reason": "Forbidden",
         "failureMessage": "failed to apply resource 0: user \"hub\" cannot patch configmaps",
         "lastTransitionTime": "2027-01-15T08:00:02Z"},
    ]);
    assert_eq!(status["syncSets"], entries);
    assert_eq!(status["selectorSyncSets"][0]["name"], "monitoring");
    assert_eq!(status["controlledBy"], "towline-1");
    assert_eq!(status.get("firstSuccessTime"), None, "not all have succeeded yet");
}

#[test]
fn a_syncset_that_is_gone_and_not_cleaned_up_fails_with_generation_0() {
    let status = of(&[result(1, SyncSetKind::SyncSet, "old")], &[1], Conditions::default(), &Map::new());
    let entry = &status["syncSets"][0];
    assert_eq!((&entry["observedGeneration"], &entry["result"]), (&json!(0), &json!("Failure")));
    assert_eq!(condition(&status, "Failed").expect("there")["message"], "SyncSet old is failing");
}

#[test]
fn of_a_syncset_that_was_created_again_the_living_one_is_shown() {
    let (syncset, name) = (SyncSetKind::SyncSet, "base");
    for results in
        [[result(1, syncset, name), result(2, syncset, name)], [result(2, syncset, name), result(1, syncset, name)]]
    {
        let status = of(&results, &[1], Conditions::default(), &Map::new());
        assert_eq!(status["syncSets"].as_array().expect("a list").len(), 1);
        assert_eq!(status["syncSets"][0]["observedGeneration"], 12);
    }
}

#[test]
fn a_syncset_whose_first_pass_has_not_ended_is_not_shown_as_applied() {
    let begun = ResultRow {
        inputs: ResultRow::UNFINISHED,
        generation: 0,
        first_success: None,
        ..result(1, SyncSetKind::SyncSet, "base")
    };
    let shown = of(std::slice::from_ref(&begun), &[], Conditions::default(), &Map::new());
    assert_eq!((&shown["syncSets"], shown.get("firstSuccessTime")), (&json!([]), None));
    let again = ResultRow { generation: 7, ..begun };
    let shown = of(&[again], &[], Conditions::default(), &Map::new());
    assert_eq!(shown["syncSets"][0]["observedGeneration"], 7, "the outcome of the pass before");
}

#[test]
fn the_condition_names_what_is_failing() {
    let message = |results: &[ResultRow]| {
        let status = of(results, &[], Conditions::default(), &Map::new());
        let failed = condition(&status, "Failed").expect("there");
        (failed["status"].clone(), failed["reason"].clone(), failed["message"].as_str().expect("a text").to_owned())
    };
    let (syncset, selector) = (SyncSetKind::SyncSet, SyncSetKind::SelectorSyncSet);
    let well = "All SyncSets and SelectorSyncSets have been applied to the cluster".to_owned();
    assert_eq!(message(&[]), (json!("False"), json!("Success"), well.clone()));
    assert_eq!(message(&[result(1, syncset, "a")]), (json!("False"), json!("Success"), well));
    let (yes, why) = (json!("True"), json!("Failure"));
    let one = [failing(result(1, syncset, "base")), result(2, syncset, "well")];
    assert_eq!(message(&one), (yes.clone(), why.clone(), "SyncSet base is failing".to_owned()));
    let several =
        [failing(result(1, selector, "c")), failing(result(2, syncset, "b")), failing(result(3, syncset, "a"))];
    let text = "SyncSets a, b and SelectorSyncSet c are failing".to_owned();
    assert_eq!(message(&several), (yes, why, text));
}

#[test]
fn before_the_first_outcome_nothing_is_said_to_be_applied() {
    let failed = |results: &[ResultRow], live: &[u8], reachability: &Reachability, previous: &Map<String, Value>| {
        let live = live.iter().map(|number| Uuid::from_u128(u128::from(*number))).collect();
        let conditions = Conditions { reachability: reachability.clone(), ..Conditions::default() };
        let observed = Observed {
            results,
            live: &live,
            ending: None,
            health: &BTreeMap::new(),
            conditions,
            controlled_by: "towline-1",
        };
        let status = status(&observed, previous, at(1000));
        let failed = condition(&status, "Failed").expect("there")["status"].clone();
        (failed, status.contains_key("firstSuccessTime"), status)
    };
    let silent = Reachability::Unreachable {
        reason: Unreachable::ErrorConnectingToCluster,
        message: "connection refused".to_owned(),
    };
    let (none, one) = (Map::new(), [result(1, SyncSetKind::SyncSet, "a")]);
    for reachability in [Reachability::Unknown, Reachability::Reachable, silent.clone()] {
        let (status, has_succeeded, _) = failed(&[], &[1], &reachability, &none);
        assert_eq!((status, has_succeeded), (json!("Unknown"), false), "{reachability:?}");
    }
    let (status, has_succeeded, _) = failed(&[], &[], &silent, &none);
    assert_eq!((status, has_succeeded), (json!("Unknown"), false), "never reached, also without syncsets");
    let live = BTreeSet::new();
    let conditions = Conditions { paused: Some("paused by its document".to_owned()), ..Conditions::default() };
    let paused = Observed {
        results: &[],
        live: &live,
        ending: None,
        health: &BTreeMap::new(),
        conditions,
        controlled_by: "towline-1",
    };
    let paused = super::status(&paused, &none, at(1000));
    let told = condition(&paused, "Failed").expect("there")["status"].clone();
    assert_eq!((told, paused.contains_key("firstSuccessTime")), (json!("Unknown"), false), "paused from the beginning");
    let (status, has_succeeded, applied) = failed(&one, &[1], &Reachability::Reachable, &none);
    assert_eq!((status, has_succeeded), (json!("False"), true));
    let (status, has_succeeded, _) = failed(&one, &[1], &silent, &applied);
    assert_eq!((status, has_succeeded), (json!("False"), true), "silent, and what was applied still is");
    let (status, has_succeeded, _) = failed(&one, &[1, 2], &silent, &applied);
    assert_eq!((status, has_succeeded), (json!("Unknown"), true), "a new one waits until it is reached");
}

#[test]
fn the_first_success_is_the_latest_of_all_and_never_reset() {
    let results = [result(1, SyncSetKind::SyncSet, "a"), result(2, SyncSetKind::SyncSet, "b")];
    let status = of(&results, &[], Conditions::default(), &Map::new());
    assert_eq!(status["firstSuccessTime"], "2027-01-15T08:01:42Z");
    let more = [result(9, SyncSetKind::SyncSet, "c"), failing(result(3, SyncSetKind::SyncSet, "d"))];
    assert_eq!(of(&more, &[], Conditions::default(), &status)["firstSuccessTime"], status["firstSuccessTime"]);
    let none = of(&[], &[], Conditions::default(), &Map::new());
    assert_eq!(none["firstSuccessTime"], "2027-01-15T08:16:40Z", "without syncsets: now");
}

#[test]
fn conditions_exist_while_they_are_true_and_keep_their_time_while_their_status_is_the_same() {
    let suspended = result(1, SyncSetKind::SelectorSyncSet, "monitoring").name;
    let conditions = Conditions {
        reachability: Reachability::Unreachable {
            reason: Unreachable::Unauthorized,
            message: "it does not accept the credentials".to_owned(),
        },
        paused: Some("paused by paused".to_owned()),
        suspended: vec![suspended],
        has_moved: true,
    };
    let before = of(&[], &[], Conditions::default(), &Map::new());
    let first = of(&[], &[], conditions.clone(), &before);
    let kinds: Vec<&Value> = first["conditions"].as_array().expect("a list").iter().map(|one| &one["type"]).collect();
    assert_eq!(kinds, ["AnotherCluster", "Failed", "Held", "Paused", "Unreachable"]);
    let message = |kind| condition(&first, kind).expect("there")["message"].clone();
    assert_eq!(message("Held"), "deletions of SelectorSyncSet monitoring are held until they are checked and approved");
    assert_eq!(condition(&first, "Unreachable").expect("there")["reason"], "Unauthorized");

    let live = BTreeSet::new();
    let later = Observed {
        results: &[],
        live: &live,
        ending: None,
        health: &BTreeMap::new(),
        conditions,
        controlled_by: "towline-2",
    };
    let same = status(&later, &first, at(2000));
    assert_eq!(same["conditions"], first["conditions"]);
    assert!(!differs(&same, &first));

    let well = Conditions { reachability: Reachability::Reachable, ..Conditions::default() };
    let well = status(&Observed { conditions: well, ..later }, &first, at(2000));
    assert_eq!(well["conditions"].as_array().expect("a list").len(), 2);
    let reached = condition(&well, "Unreachable").expect("there");
    assert_eq!((&reached["status"], &reached["lastTransitionTime"]), (&json!("False"), &json!("2027-01-15T08:33:20Z")));
    assert_eq!(condition(&well, "Failed").expect("there")["status"], "False");
    assert!(differs(&well, &first));
}

#[test]
fn a_syncset_that_was_never_tried_has_its_health_and_no_result() {
    let tried = result(1, SyncSetKind::SyncSet, "b");
    let named = |name: &str| SyncSetName { name: name.to_owned(), ..tried.name.clone() };
    let unreachable = || Entry::of(Digest([1; 32]), None, None, true);
    let health = ["a", "b"].map(|name| (named(name), unreachable())).into();
    let results = [tried.clone()];
    let live = [tried.syncset, Uuid::from_u128(2)].into();
    let conditions = Conditions::default();
    let observed =
        Observed { results: &results, live: &live, ending: None, health: &health, conditions, controlled_by: "" };
    let status = status(&observed, &Map::new(), at(1000));
    let entries = status["syncSets"].as_array().expect("a list");
    assert_eq!(entries[0], json!({"name": "a", "health": unreachable().to_json()}));
    assert_eq!((&entries[1]["name"], &entries[1]["result"], entries.len()), (&json!("b"), &json!("Success"), 2));
    assert_eq!(entries[1]["health"], entries[0]["health"]);
    assert_eq!(condition(&status, "Healthy").expect("there")["status"], "Unknown");
    assert_eq!(condition(&status, "Failed").expect("there")["status"], "Unknown", "it is pending");
}

#[test]
fn a_syncset_whose_deletions_are_held_has_not_succeeded() {
    let (held, other) = (result(1, SyncSetKind::SyncSet, "held"), result(2, SyncSetKind::SyncSet, "other"));
    let conditions = || Conditions { suspended: vec![held.name.clone()], ..Conditions::default() };
    let status = of(&[held.clone(), other.clone()], &[], conditions(), &Map::new());
    let entries = status["syncSets"].as_array().expect("a list");
    assert_eq!((entries[0].get("result"), &entries[0]["reason"]), (None, &json!("Held")));
    assert_eq!((&entries[1]["result"], entries[1].get("reason")), (&json!("Success"), None));
    let failed = condition(&status, "Failed").expect("there");
    let message = "deletions of SyncSet held are held until they are checked and approved";
    assert_eq!(
        (&failed["status"], &failed["reason"], &failed["message"]),
        (&json!("Unknown"), &json!("Held"), &json!(message))
    );
    let status = of(&[failing(held.clone()), other], &[], conditions(), &Map::new());
    assert_eq!(status["syncSets"][0]["result"], "Failure");
    assert_eq!(condition(&status, "Failed").expect("there")["status"], "True");
}

#[test]
fn that_it_is_another_cluster_is_shown_for_a_while_after_it_was_found_out() {
    let moved = of(&[], &[], Conditions { has_moved: true, ..Conditions::default() }, &Map::new());
    let found = condition(&moved, "AnotherCluster").expect("there");
    assert_eq!((&found["status"], &found["reason"]), (&json!("True"), &json!("IdentityChanged")));
    // It was found out at 1000.
    let after = |second| has_moved(&moved, at(second), SignedDuration::from_secs(60));
    assert!(after(1000) && after(1059) && !after(1060));
    let same = of(&[], &[], Conditions::default(), &moved);
    assert!(condition(&same, "AnotherCluster").is_none() && differs(&same, &moved));
    assert!(!has_moved(&same, at(1000), SignedDuration::from_secs(60)));
}

#[test]
fn a_cluster_that_was_never_asked_is_neither_reachable_nor_not() {
    let status = of(&[], &[], Conditions::default(), &Map::new());
    assert_eq!(condition(&status, "Unreachable").expect("there")["status"], "Unknown");
}

/// What is not cleaned up of others is shown.
#[test]
fn a_syncset_that_is_gone_is_hidden_only_if_all_it_has_left_is_being_deleted() {
    let results = [1, 2].map(|number| result(number, SyncSetKind::SyncSet, ["a", "b"][usize::from(number) - 1]));
    let shown = |ending: Option<&[u8]>, results: &[ResultRow]| -> Vec<String> {
        let ending: Option<BTreeSet<Uuid>> =
            ending.map(|ending| ending.iter().map(|number| Uuid::from_u128(u128::from(*number))).collect());
        let (live, conditions) = (BTreeSet::new(), Conditions::default());
        let observed = Observed {
            results,
            live: &live,
            ending: ending.as_ref(),
            health: &BTreeMap::new(),
            conditions,
            controlled_by: "towline-1",
        };
        let status = status(&observed, &Map::new(), at(1000));
        let entries = status["syncSets"].as_array().expect("a list").iter();
        entries.map(|entry| entry["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(shown(Some(&[]), &results), ["a", "b"]);
    assert_eq!(shown(Some(&[1]), &results), ["b"]);
    assert_eq!(shown(None, &results), ["a", "b"], "it was not found out");
    let failed = [failing(results[0].clone()), results[1].clone()];
    assert_eq!(shown(Some(&[1]), &failed), ["a", "b"]);
}

#[test]
fn the_worst_health_is_a_condition_and_each_entry_has_its_own() {
    use crate::syncset::plan::health::{Entry, HealthState};
    let results =
        [(1, "base"), (2, "web"), (3, "old")].map(|(number, name)| result(number, SyncSetKind::SyncSet, name));
    let live: BTreeSet<Uuid> = results.iter().map(|result| result.syncset).collect();
    let entry =
        |state, reason: &str| Entry { state, reason: reason.to_owned(), message: "m".to_owned(), since: Some(at(9)) };
    let shown = |health: &[(usize, HealthState)]| {
        let health = health.iter().map(|(at, state)| (results[*at].name.clone(), entry(*state, "Why"))).collect();
        let conditions = Conditions { reachability: Reachability::Reachable, ..Conditions::default() };
        let observed = Observed {
            results: &results,
            live: &live,
            ending: None,
            health: &health,
            conditions,
            controlled_by: "towline-1",
        };
        status(&observed, &Map::new(), at(10))
    };
    let condition = |status: &Map<String, Value>| {
        let conditions = status["conditions"].as_array().expect("a list").iter();
        let found = conditions.into_iter().find(|condition| condition["type"] == "Healthy")?;
        Some(
            [&found["status"], &found["reason"], &found["message"]]
                .map(|text| text.as_str().unwrap_or_default().to_owned()),
        )
    };
    let without = shown(&[]);
    assert_eq!(condition(&without), None);
    assert!(without["syncSets"].as_array().expect("a list").iter().all(|entry| entry.get("health").is_none()));
    for (health, expected) in [
        (vec![(0, HealthState::Current)], ["True", "Current", "what was applied works, as far as its health is read"]),
        (
            vec![(0, HealthState::Current), (1, HealthState::Progressing)],
            ["False", "Progressing", "SyncSet web is Progressing"],
        ),
        (
            vec![(0, HealthState::Unknown), (1, HealthState::Progressing)],
            ["Unknown", "Unknown", "SyncSet base is Unknown"],
        ),
        (
            vec![(0, HealthState::Failed), (1, HealthState::Failed), (2, HealthState::Unknown)],
            ["False", "Failed", "SyncSets base, web are Failed"],
        ),
    ] {
        assert_eq!(condition(&shown(&health)), Some(expected.map(str::to_owned)), "{health:?}");
    }
    let one = shown(&[(1, HealthState::Failed)]);
    let entries: Vec<&Value> =
        one["syncSets"].as_array().expect("a list").iter().map(|entry| &entry["health"]).collect();
    let of_web = json!({"state": "Failed", "reason": "Why", "message": "m", "since": format!("{:.0}", at(9))});
    assert_eq!(entries, [&Value::Null, &Value::Null, &of_web]);
}

#[test]
fn why_a_cluster_does_not_answer_is_read_from_its_status() {
    let status = json!({"conditions": [{"type": "Failed", "status": "False"},
        {"type": "Unreachable", "status": "True", "reason": "Unauthorized", "message": "no"}]});
    let Value::Object(status) = status else { unreachable!() };
    let of = |reachable, status| Reachability::before(Some(&ClusterRow { reachable, ..ClusterRow::default() }), status);
    let refused = Reachability::Unreachable { reason: Unreachable::Unauthorized, message: "no".to_owned() };
    assert_eq!(of(Some(false), &status), refused);
    assert_eq!(of(Some(true), &status), Reachability::Reachable);
    assert_eq!(
        (of(None, &status), Reachability::before(None, &status)),
        (Reachability::Unknown, Reachability::Unknown)
    );
    assert!(matches!(of(Some(false), &Map::new()), Reachability::Unreachable { .. }));
}

#[test]
fn a_cluster_over_which_no_pass_can_begin_says_why_and_nothing_of_its_syncsets() {
    let since = "2026-11-01T00:00:00Z";
    let of = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "r", "message": "m", "lastTransitionTime": since});
    let conditions = [
        ("AnotherCluster", "True"),
        ("Failed", "False"),
        ("Healthy", "True"),
        ("Held", "True"),
        ("Unreachable", "True"),
    ];
    let before = json!({"conditions": conditions.map(|(kind, status)| of(kind, status)), "firstSuccessTime": since,
        "controlledBy": "towline-1", "syncSets": [{"name": "base", "result": "Success"}]});
    let Value::Object(before) = before else { unreachable!() };
    let failed = json!({"type": "Failed", "status": "True", "reason": "TooManySyncsets", "message": "why", "lastTransitionTime": super::shown(at(1))});
    let conditions = [of("AnotherCluster", "True"), failed, of("Unreachable", "True")];
    let expected = json!({"conditions": conditions, "firstSuccessTime": since, "controlledBy": "towline-1",
        "syncSets": [], "selectorSyncSets": []});
    let shown = without_passes("TooManySyncsets", "why".to_owned(), &before, at(1));
    assert_eq!(json!(shown), expected);
    assert_eq!(without_passes("TooManySyncsets", "why".to_owned(), &shown, at(2)), shown, "since then");
}

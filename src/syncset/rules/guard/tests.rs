use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::syncset::rules::name::SyncSetKind;

fn selecting() -> SyncSetName {
    SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "monitoring".to_owned() }
}

fn resource(version: &str, kind: &str, namespace: &str, name: &str) -> [Option<String>; 4] {
    [version, kind, namespace, name].map(|text| (!text.is_empty()).then(|| text.to_owned()))
}

fn config_maps(names: std::ops::Range<usize>) -> Objects {
    let object = |number: usize| ["", "ConfigMap", "default", &number.to_string()].map(str::to_owned);
    names.map(object).collect()
}

fn case(held: Option<Cause>, change: Change, lost: usize, tracks: usize) -> Case {
    Case { held, change, approval: Approval::None, lost, executed: 0, renamed: 0, tracks, precious: false }
}

const STAYS: Change = Change::Living { drops: false };
const DROPS: Change = Change::Living { drops: true };

#[test]
fn more_than_ten_clusters_and_more_than_a_tenth_and_all_of_two_or_more_are_held() {
    for (lost, tracks, is_held) in [
        (0, 0, false),
        (1, 1, false),
        (1, 2, false),
        (2, 2, true),
        (9, 10, false),
        (10, 10, true),
        (10, 11, false),
        (11, 11, true),
        (11, 109, true),
        (11, 110, false),
        (100, 1_000, false),
        (101, 1_000, true),
    ] {
        let cause = case(None, STAYS, lost, tracks).judge();
        assert_eq!(cause, is_held.then_some(Cause::Unmatched), "{lost} of {tracks}");
    }
    for (change, cause) in [(Change::Gone, Cause::Gone), (DROPS, Cause::Dropped)] {
        assert_eq!(case(None, change, 0, 1).judge(), None, "on the only cluster");
        assert_eq!(case(None, change, 0, 2).judge(), Some(cause), "on all of two");
        assert_eq!(case(None, change, 0, 11).judge(), Some(cause));
    }
}

#[test]
fn something_precious_is_held_on_the_only_cluster_and_on_one_of_many() {
    let precious = |change, lost, tracks| Case { precious: true, ..case(None, change, lost, tracks) }.judge();
    assert_eq!(precious(Change::Gone, 0, 1), Some(Cause::Gone));
    assert_eq!(precious(DROPS, 0, 1), Some(Cause::Dropped));
    assert_eq!(precious(STAYS, 1, 1), Some(Cause::Unmatched));
    assert_eq!(precious(STAYS, 1, 500), Some(Cause::Unmatched));
    for change in [Change::Gone, DROPS, STAYS] {
        assert_eq!(precious(change, 0, 0), None, "nothing is lost");
    }
    let named = |names: &[(&str, &str)]| -> Objects {
        names.iter().map(|(kind, name)| ["", kind, "", name].map(str::to_owned)).collect()
    };
    let living = |objects| State::Living {
        audience: Audience::of(&selecting(), &json!({"clusterDeploymentSelector": {}})).expect("an audience"),
        deletes: true,
        objects,
    };
    let before = [named(&[("Namespace", "n"), ("ConfigMap", "a"), ("ConfigMap", "b")])];
    assert!(living(Some(named(&[("ConfigMap", "a")]))).drops_precious(&before, &[]));
    assert!(!living(Some(named(&[("Namespace", "n")]))).drops_precious(&before, &[]));
    assert!(State::Gone.drops_precious(&before, &[]) && !living(None).drops_precious(&before, &[]));
    let lately = [Dropped { at: String::new(), objects: named(&[("PersistentVolumeClaim", "p")]) }];
    assert!(living(Some(named(&[("Namespace", "n")]))).drops_precious(&[], &lately));
}

#[test]
fn what_was_held_stays_held_until_it_is_taken_back() {
    // That clusters were removed meanwhile takes nothing back.
    for held in [Cause::Gone, Cause::Dropped, Cause::Unmatched] {
        assert_eq!(case(Some(held), Change::Gone, 0, 3).judge(), Some(Cause::Gone));
    }
    assert_eq!(case(Some(Cause::Dropped), DROPS, 0, 3).judge(), Some(Cause::Dropped));
    assert_eq!(case(Some(Cause::Dropped), STAYS, 0, 500).judge(), None, "taken back");
    for (lost, executed, cause) in [
        (11, 0, Some(Cause::Unmatched)),
        (10, 0, Some(Cause::Unmatched)),
        (10, 9, Some(Cause::Unmatched)),
        (10, 10, None),
        (0, 0, None),
    ] {
        let case = Case { executed, ..case(Some(Cause::Unmatched), STAYS, lost, 50) };
        assert_eq!(case.judge(), cause, "{executed} of {lost} are deleted");
        assert_eq!(Case { held: Some(Cause::Dropped), ..case }.judge(), cause.filter(|_| lost > 10), "{lost}");
    }
    assert_eq!(case(Some(Cause::Gone), Change::Gone, 0, 0).judge(), None, "nothing is left to delete");
    assert_eq!(case(Some(Cause::Unreadable), STAYS, 0, 50).judge(), None, "it can be read again");
}

#[test]
fn clusters_where_objects_get_other_names_count_with_those_that_are_matched_no_more() {
    for (lost, renamed, cause) in [
        (10, 10, None),
        (11, 11, Some(Cause::Renamed)),
        (12, 7, Some(Cause::Renamed)),
        (12, 6, Some(Cause::Unmatched)),
        (12, 0, Some(Cause::Unmatched)),
    ] {
        assert_eq!(Case { renamed, ..case(None, STAYS, lost, 50) }.judge(), cause, "{renamed} of {lost}");
    }
    for held in [Cause::Renamed, Cause::Unmatched] {
        let left = Case { renamed: 2, executed: 1, ..case(Some(held), STAYS, 2, 50) };
        assert_eq!(left.judge(), Some(Cause::Renamed), "one is left");
        assert_eq!(Case { executed: 2, ..left }.judge(), None, "all are taken back or carried out");
    }
    for cause in Cause::ALL {
        assert_eq!(Cause::of_name(cause.as_str()), Some(cause));
    }
}

#[test]
fn an_approval_lets_everything_go_but_what_can_not_be_read() {
    for approval in [Approval::Once, Approval::Always] {
        for change in [Change::Gone, DROPS, STAYS] {
            let case = Case { approval, ..case(Some(Cause::Dropped), change, 500, 500) };
            assert_eq!(case.judge(), None, "{approval:?} {change:?}");
        }
        let case = Case { approval, ..case(None, Change::Unreadable, 0, 0) };
        assert_eq!(case.judge(), Some(Cause::Unreadable));
    }
}

#[test]
fn an_annotation_approves_its_own_generation_once_or_always() {
    for (annotation, generation, approved, expected) in [
        (None, 4, 0, Approval::None),
        (Some("4"), 4, 0, Approval::Once),
        (Some("4"), 4, 3, Approval::Once),
        (Some("4"), 4, 4, Approval::None),
        (Some("4"), 5, 0, Approval::None),
        (Some("true"), 4, 0, Approval::None),
        (Some(""), 0, 1, Approval::None),
        (Some("always"), 4, 4, Approval::Always),
        (Some("Always"), 4, 0, Approval::None),
    ] {
        assert_eq!(
            Approval::read(annotation, generation, approved),
            expected,
            "{annotation:?} {generation} {approved}"
        );
    }
}

#[test]
fn an_edit_that_drops_more_than_half_or_something_precious_drops_much() {
    let before = config_maps(0..10);
    assert!(!drops_much(&before, &config_maps(0..5)), "a half");
    assert!(drops_much(&before, &config_maps(0..4)));
    assert!(drops_much(&before, &config_maps(10..30)), "others instead");
    assert!(!drops_much(&before, &config_maps(0..30)) && !drops_much(&Objects::new(), &before));
    for (group, kind) in
        [("", "Namespace"), ("", "PersistentVolumeClaim"), ("apiextensions.k8s.io", "CustomResourceDefinition")]
    {
        let precious = [group, kind, "", "x"].map(str::to_owned);
        let with = before.iter().cloned().chain([precious]).collect();
        assert!(drops_much(&with, &before) && !drops_much(&before, &with), "{kind}");
    }
    let foreign = ["example.com", "Namespace", "", "x"].map(str::to_owned);
    assert!(!drops_much(&before.iter().cloned().chain([foreign]).collect(), &before));
}

#[test]
fn objects_are_compared_without_the_version_and_with_the_targets_of_secrets() {
    let spec = json!({"clusterDeploymentSelector": {}, "resourceApplyMode": "Sync", "secretMappings": [
        {"sourceRef": {"name": "pull", "namespace": "a"}, "targetRef": {"name": "into", "namespace": "b"}}]});
    let read = |resources: &[[Option<String>; 4]]| match State::read(&selecting(), &spec, Some(resources)) {
        State::Living { deletes: true, objects, .. } => objects,
        other => panic!("{other:?}"),
    };
    let one = read(&[resource("apps/v1", "Deployment", "ns", "x"), resource("v1", "Namespace", "ignored", "y")]);
    let other = read(&[resource("v1", "Namespace", "", "y"), resource("apps/v1beta1", "Deployment", "ns", "x")]);
    assert_eq!(one, other);
    let secret = ["", "Secret", "b", "into"].map(str::to_owned);
    assert!(one.as_ref().is_some_and(|objects| objects.len() == 3 && objects.contains(&secret)));
    assert_eq!(read(&[resource("v1", "", "", "y")]), None, "what can't be read may be anything");
}

#[test]
fn what_can_not_be_read_loses_no_cluster_and_drops_nothing() {
    let labels = BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
    let state = |spec: &Value, resources: Option<&[[Option<String>; 4]]>| State::read(&selecting(), spec, resources);
    for spec in [json!({}), json!({"clusterDeploymentSelector": []}), json!(null)] {
        let state = state(&spec, Some(&[]));
        assert_eq!(state, State::Unreadable, "{spec}");
        assert!(!state.loses("team-a", "west-1", &labels));
        assert_eq!(state.change_since(Some(&config_maps(0..3))), Change::Unreadable);
    }
    let spec = |mode: &str| json!({"clusterDeploymentSelector": {"matchLabels": {"env": "test"}}, "secretMappings": [], "resourceApplyMode": mode});
    let before = config_maps(0..3);
    for (mode, resources, drops) in [
        ("Sync", Some(&[][..]), true),
        ("Upsert", Some(&[][..]), false),
        ("Sink", Some(&[][..]), false),
        ("Sync", None, false),
    ] {
        let state = state(&spec(mode), resources);
        assert_eq!(state.change_since(Some(&before)), Change::Living { drops }, "{mode} {resources:?}");
        assert_eq!(state.change_since(None), STAYS, "nothing is known of it");
        assert!(state.loses("team-a", "west-1", &labels));
    }
    assert!(State::Gone.loses("team-a", "west-1", &labels));
}

/// One that selects everything and names these, with or without templates.
fn naming(has_templates: bool, resources: &[[Option<String>; 4]]) -> State {
    let spec = json!({"clusterDeploymentSelector": {}, "resourceApplyMode": "Sync", "secretMappings": [], "enableResourceTemplates": has_templates});
    State::read(&selecting(), &spec, Some(resources))
}

#[test]
fn the_switch_for_templates_drops_what_has_a_template_in_its_name() {
    let resources =
        [resource("v1", "ConfigMap", "{{ fromCDLabel \"a\" }}", "x"), resource("v1", "ConfigMap", "", "{{ \"y\" }}")];
    for is_on in [true, false] {
        let before = naming(is_on, &resources).into_tracked();
        assert_eq!(naming(!is_on, &resources).change_since(&before), DROPS, "{is_on}");
        assert_eq!(naming(is_on, &resources).change_since(&before), STAYS, "{is_on}");
        let plain = [resource("v1", "ConfigMap", "a", "x")];
        assert_eq!(naming(!is_on, &plain).change_since(&naming(is_on, &plain).into_tracked()), STAYS);
    }
}

#[test]
fn what_any_document_named_or_all_of_them_counts_as_dropped() {
    let maps = |numbers: &[u8]| -> Vec<_> {
        numbers.iter().map(|number| resource("v1", "ConfigMap", "a", &number.to_string())).collect()
    };
    let named = |numbers: &[u8]| naming(false, &maps(numbers)).into_tracked().expect("objects");
    let after = naming(false, &maps(&[2, 4, 5, 6, 7, 8, 9, 10]));
    assert_eq!(after.change_since(&[named(&[1, 2]), named(&[2, 3, 4, 5])]), STAYS);
    assert_eq!(after.change_since(&[named(&[1, 3]), named(&[4, 5, 6, 7, 8, 9])]), DROPS, "all of the first");
    assert_eq!(naming(false, &maps(&[2])).change_since(&[named(&[1, 2]), named(&[2, 3])]), DROPS, "two of three");
}

/// Edits one after the other, as long as none of them is held; how many config maps are dropped after each.
fn edits(documents: &[std::ops::Range<usize>]) -> Vec<Option<usize>> {
    let (mut before, mut dropped) = (config_maps(documents[0].clone()), Vec::new());
    let mut judged = Vec::new();
    for (number, document) in documents.iter().skip(1).enumerate() {
        let after = config_maps(document.clone());
        let state = naming(
            false,
            &document.clone().map(|n| resource("v1", "ConfigMap", "default", &n.to_string())).collect::<Vec<_>>(),
        );
        if state.change_within([&before], &dropped) == DROPS {
            judged.push(None);
            continue;
        }
        dropped = dropped_since(dropped, &before, &after, &number.to_string());
        judged.push(Some(dropped.iter().map(|edit| edit.objects.len()).sum()));
        before = after;
    }
    judged
}

#[test]
fn edits_that_drop_little_each_are_judged_together() {
    assert_eq!(edits(&[0..8, 0..4, 0..2]), [Some(4), None], "six of eight");
    assert_eq!(edits(&[0..8, 0..7, 0..6, 0..5, 0..4, 0..3, 0..4]), [Some(1), Some(2), Some(3), Some(4), None, Some(4)]);
    assert_eq!(
        edits(&[0..8, 0..4, 0..8, 0..4, 0..3]),
        [Some(4), Some(0), Some(4), None],
        "what is named again is not dropped"
    );
    assert_eq!(edits(&[0..8, 4..12, 8..16]), [Some(4), None], "others instead");
    assert_eq!(
        edits(&[0..4, 0..40, 0..30, 0..20, 0..19]),
        [Some(0), Some(10), Some(20), None],
        "what came meanwhile counts"
    );
    assert_eq!(edits(&[0..4, 4..5]), [None], "a single edit still is");
}

#[test]
fn what_was_dropped_keeps_its_time() {
    let dropped = dropped_since(Vec::new(), &config_maps(0..4), &config_maps(2..4), "1");
    let dropped = dropped_since(dropped, &config_maps(2..4), &config_maps(1..3), "2");
    let edit = |at: &str, objects| Dropped { at: at.to_owned(), objects };
    assert_eq!(dropped, [edit("2", config_maps(3..4)), edit("1", config_maps(0..1))]);
}

#[test]
fn objects_of_clusters_are_compared_as_they_are_named() {
    let state = naming(
        true,
        &[
            resource("v1", "ConfigMap", "a", "{{ \"x\" }}"),
            resource("rbac.authorization.k8s.io/v1", "ClusterRole", "ignored", "r"),
        ],
    );
    let object =
        |group: &str, kind: &str, namespace: &str, name: &str| [group, kind, namespace, name].map(str::to_owned);
    let role = |namespace| object("rbac.authorization.k8s.io", "ClusterRole", namespace, "r");
    let tracked = [object("", "ConfigMap", "a", "x"), role(""), object("", "Secret", "a", "s")].into();
    assert_eq!(state.as_named(tracked), [role("ignored"), object("", "Secret", "a", "s")].into());
}

#[test]
fn narrowed_namespaces_lose_clusters() {
    let spec = |namespaces: Value| json!({"clusterDeploymentSelector": {}, "secretMappings": [], "clusterNamespaces": namespaces});
    let loses = |namespaces| {
        State::read(&selecting(), &spec(namespaces), Some(&[])).loses("team-a", "west-1", &BTreeMap::new())
    };
    assert!(!loses(json!(["*"])) && !loses(json!(["team-*"])) && loses(json!(["team-b"])) && loses(json!([])));
}

fn guard(judged: i64, gone: bool, held: bool) -> GuardRow {
    GuardRow { syncset: Uuid::from_u128(1), judged, gone, held }
}

#[test]
fn only_what_was_judged_and_is_not_held_is_deleted() {
    use Deletions::{Allowed, Held, NotJudged};
    let of =
        |cursor, guard: Option<&GuardRow>, cluster, syncset| deletions(&Judged { cursor, guard, cluster, syncset });
    let (living, gone, held) = (guard(40, false, false), guard(40, true, false), guard(40, false, true));
    for (what, cursor, guard, cluster, syncset, expected) in [
        ("all judged", 50, Some(&living), 50, Some(40), Allowed),
        ("the cluster is newer", 50, Some(&living), 51, Some(40), NotJudged),
        ("the syncset is newer than the cursor", 50, Some(&guard(60, false, false)), 50, Some(60), NotJudged),
        ("its last version was not judged", 50, Some(&living), 50, Some(41), NotJudged),
        ("never judged", 50, None, 50, Some(40), NotJudged),
        ("gone, and judged before that", 50, Some(&living), 50, None, NotJudged),
        ("gone, and never judged", 50, None, 50, None, NotJudged),
        ("gone", 50, Some(&gone), 50, None, Allowed),
        ("gone, and the cluster is newer", 50, Some(&gone), 51, None, NotJudged),
        ("held", 50, Some(&held), 50, Some(40), Held),
        ("held, and newer", 50, Some(&held), 51, Some(60), Held),
        ("before the first turn", 0, None, 1, Some(1), NotJudged),
        // Versions are lifted after a restore.
        ("written after a restore", 50, Some(&living), 30, Some((1 << 40) + 1), NotJudged),
        ("judged after a restore", 1 << 40, Some(&guard(1 << 40, false, false)), 30, Some(40), Allowed),
    ] {
        assert_eq!(of(cursor, guard, cluster, syncset), expected, "{what}");
    }
}

#[test]
fn causes_are_read_as_they_are_stored() {
    for cause in Cause::ALL {
        assert_eq!(Cause::of_name(cause.as_str()), Some(cause));
    }
    assert_eq!(Cause::of_name("other"), None);
}

fn causes() -> impl Strategy<Value = Option<Cause>> {
    prop_oneof![Just(None), Just(Some(Cause::Dropped)), Just(Some(Cause::Unmatched)), Just(Some(Cause::Gone))]
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![Just(Change::Gone), Just(STAYS), Just(DROPS), Just(Change::Unreadable)]
}

proptest! {
    /// However it is sliced, more than half of what was there within the time is never dropped, and what is remembered stays small.
    #[test]
    fn slices_never_drop_more_than_half(documents in proptest::collection::vec((0_usize..20, 0_usize..20), 2..8)) {
        let documents: Vec<_> = documents.into_iter().map(|(from, count)| from..from + count).collect();
        let (mut before, mut dropped) = (config_maps(documents[0].clone()), Vec::new());
        let mut all = before.clone();
        for document in &documents[1..] {
            let after = config_maps(document.clone());
            let named: Vec<_> = document.clone().map(|n| resource("v1", "ConfigMap", "default", &n.to_string())).collect();
            if naming(false, &named).change_within([&before], &dropped) == DROPS {
                continue;
            }
            dropped = dropped_since(dropped, &before, &after, "now");
            let remembered: Vec<_> = dropped.iter().flat_map(|edit| edit.objects.clone()).collect();
            prop_assert_eq!(remembered.len(), all.difference(&after).count());
            all.extend(after.iter().cloned());
            prop_assert!(2 * remembered.len() <= all.len() && remembered.len() <= after.len());
            before = after;
        }
    }

    /// Nothing is carried out that deletes on more clusters than the limit, unless somebody approves it.
    #[test]
    fn more_than_the_limit_is_never_carried_out(held in causes(), change in changes(), lost in 0_usize..300, more in 0_usize..3_000) {
        let case = case(held, change, lost, lost + more);
        if case.clusters() > mass_change::limit(case.tracks) {
            prop_assert!(case.judge().is_some());
        }
    }

    /// Losing one more cluster never lets something go, and judging again changes nothing.
    #[test]
    fn more_losses_never_release(held in causes(), change in changes(), lost in 0_usize..300, more in 1_usize..3_000) {
        let one = case(held, change, lost, lost + more);
        if one.judge().is_some() {
            let more = Case { lost: lost + 1, ..one };
            prop_assert!(more.judge().is_some());
        }
        let again = Case { held: one.judge(), ..one };
        prop_assert_eq!(again.judge(), one.judge());
    }

    /// What a pass may delete with, the dispatcher has read and judged.
    #[test]
    fn nothing_is_deleted_ahead_of_the_cursor(
        cursor in 0_i64..6, judged in 0_i64..6, cluster in 0_i64..6, syncset in proptest::option::of(0_i64..6),
        gone: bool, held: bool,
    ) {
        let guard = guard(judged, gone, held);
        let allowed = deletions(&Judged { cursor, guard: Some(&guard), cluster, syncset }) == Deletions::Allowed;
        let may = !held && cluster <= cursor && syncset.map_or(gone, |version| version <= cursor.min(judged));
        prop_assert_eq!(allowed, may);
    }
}

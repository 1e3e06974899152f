use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::syncset::plan::name::{ObjectRef, SyncSetName};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{ClusterRow, GuardRow, ResultRow};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

fn document(data: &Value) -> Document {
    let row = json!({"kind": "clusters", "id": Uuid::from_u128(1), "namespace": "team-a", "name": "west-1",
        "labels": {"env": "prod", "region": "eu"}, "annotations": {"note": "n"}, "finalizers": [], "generation": 3, "version": 41,
        "created_at": "2026-11-19T08:00:00Z", "updated_at": "2026-11-19T08:00:00Z", "deleted_at": null, "data": data, "status": {}});
    Document::from_row(&row.to_string()).expect("a row")
}

fn candidate(number: u8, kind: SyncSetKind, name: &str, spec: &Value) -> Candidate {
    let namespace = if kind == SyncSetKind::SyncSet { "team-a" } else { "" };
    Candidate {
        id: Uuid::from_u128(number.into()),
        name: SyncSetName { kind, namespace: namespace.to_owned(), name: name.to_owned() },
        version: i64::from(number) + 100,
        generation: 5,
        is_pinned: false,
        read_before: None,
        metrics_group: None,
        created_at: Timestamp::UNIX_EPOCH,
        is_being_deleted: false,
        bytes: usize::from(number) * 1_000,
        objects: 1,
        is_cut: false,
        spec: spec.as_object().cloned().expect("an object"),
    }
}

fn syncset(number: u8, name: &str) -> Candidate {
    candidate(number, SyncSetKind::SyncSet, name, &json!({"secretMappings": []}))
}

fn selecting(number: u8, name: &str, selector: &Value) -> Candidate {
    let spec = json!({"clusterDeploymentSelector": selector, "clusterNamespaces": ["team-*"], "secretMappings": []});
    candidate(number, SyncSetKind::SelectorSyncSet, name, &spec)
}

fn snapshot(candidates: Vec<Candidate>) -> Snapshot {
    let document = document(&json!({"paused": false, "kubeconfigGeneration": 2}));
    Snapshot {
        at: now(),
        cursor: 1_000,
        cluster: Some(StoredCluster { document, sealed: None }),
        cluster_sync: None,
        candidates,
        awaited: Vec::new(),
        secrets: Vec::new(),
        results: Vec::new(),
        health: BTreeMap::new(),
        rows: 0,
        sent: None,
        with_applied: BTreeSet::new(),
        cluster_row: None,
        has_failure: false,
        resyncs: 0,
        owner: None,
        guards: Vec::new(),
        living: BTreeMap::new(),
    }
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.live.iter().map(|live| live.header.name.name.as_str()).collect()
}

#[test]
fn the_facts_are_those_of_the_document_and_a_cluster_that_is_gone_has_none() {
    let plan = Plan::of(&snapshot(vec![syncset(1, "a")]));
    let facts = plan.facts.expect("a cluster");
    assert_eq!((facts.id, facts.namespace.as_str(), facts.name.as_str()), (Uuid::from_u128(1), "team-a", "west-1"));
    assert_eq!((facts.labels.len(), facts.annotations.len(), facts.kubeconfig_generation), (2, 1, 2));
    assert!(!facts.paused && !facts.is_being_deleted);
    let gone = Plan::of(&Snapshot { cluster: None, ..snapshot(vec![syncset(1, "a")]) });
    assert_eq!((gone.facts, gone.live, gone.action), (None, Vec::new(), Action::Gone));
    for (paused, is_paused) in [(json!(null), false), (json!(false), false), (json!(true), true), (json!("soon"), true)]
    {
        assert_eq!(super::facts(&document(&json!({"paused": paused}))).paused, is_paused, "{paused}");
    }
    let mut deleted = document(&json!({}));
    deleted.deleted_at = Some(now().into());
    assert!(super::facts(&deleted).is_being_deleted);
}

#[test]
fn syncsets_come_by_kind_and_name_and_selectors_decide() {
    let plan = Plan::of(&snapshot(vec![
        selecting(1, "a", &json!({"matchLabels": {"env": "prod"}})),
        selecting(2, "b", &json!({"matchLabels": {"env": "prod", "region": "us"}})),
        selecting(3, "B", &json!({})),
        syncset(4, "z"),
        syncset(5, "Z"),
        Candidate { name: SyncSetName { namespace: "team-b".to_owned(), ..syncset(6, "x").name }, ..syncset(6, "x") },
        Candidate { is_being_deleted: true, ..syncset(7, "y") },
    ]));
    assert_eq!(names(&plan), ["Z", "z", "B", "a"]);
    assert_eq!(plan.live.iter().map(|live| live.header.version).collect::<Vec<_>>(), [105, 104, 103, 101]);
    let Action::Pass(pass_plan) = plan.action else { panic!("a pass") };
    assert_eq!(pass_plan.due.len(), 4);
}

#[test]
fn a_syncset_of_another_namespace_pattern_is_not_for_the_cluster() {
    let mut other = selecting(1, "a", &json!({}));
    other.spec.insert("clusterNamespaces".to_owned(), json!(["team-b", "x*"]));
    assert_eq!(names(&Plan::of(&snapshot(vec![other]))), Vec::<&str>::new());
}

/// What can't be read must not look as if it wanted nothing, or as if it were gone.
#[test]
fn a_syncset_that_can_not_be_read_is_alive_and_forgets_nothing() {
    let no_mode = candidate(1, SyncSetKind::SyncSet, "a", &json!({"resourceApplyMode": "Prune", "secretMappings": []}));
    let no_list = candidate(2, SyncSetKind::SyncSet, "b", &json!({}));
    let no_selector = candidate(3, SyncSetKind::SelectorSyncSet, "c", &json!({"secretMappings": []}));
    let wrong_selector = selecting(4, "d", &json!({"matchExpressions": [{"key": "env", "operator": "Like"}]}));
    let empty = candidate(5, SyncSetKind::SelectorSyncSet, "e", &json!({}));
    let plan = Plan::of(&snapshot(vec![no_mode, no_list, no_selector, wrong_selector, empty]));
    assert_eq!(names(&plan), ["a", "b", "c", "d", "e"]);
    for live in &plan.live {
        let failure = live.undecodable.as_ref().expect("it can't be read");
        assert_eq!(failure.reason, Reason::ResourceInvalid, "{failure:?}");
        assert_eq!((live.header.mode, live.header.generation), (Mode::Sync, 5), "Upsert would forget its objects");
    }
    assert_eq!(
        plan.live[0].undecodable.as_ref().map(|failure| failure.message.as_str()),
        Some("failed to decode spec.resourceApplyMode: \"Prune\"; allowed: Upsert, Sync")
    );
}

/// What exceeds the room of a cluster, by sizes that are known before anything is read.
#[test]
fn of_syncsets_that_are_too_large_together_the_same_ones_are_left_out_until_they_have_room() {
    let mib = |number: u8, name: &str, mib: usize| Candidate { bytes: mib << 20, objects: 0, ..syncset(number, name) };
    let mapping = |target: &str| json!({"sourceRef": {"name": "pull", "namespace": "team-a"}, "targetRef": {"name": target, "namespace": "b"}});
    let mappings = json!({"secretMappings": [mapping("a"), mapping("b")]});
    let mapping = candidate(4, SyncSetKind::SyncSet, "d", &mappings);
    let selecting = |mib: usize| Candidate { bytes: mib << 20, ..selecting(5, "e", &json!({})) };
    let of = |first: usize| {
        let all = vec![selecting(1), mib(3, "c", 5), mib(2, "b", 3), mib(1, "a", first), mapping.clone()];
        Plan::of(&Snapshot { secrets: vec![secret("team-a", 1)], ..snapshot(all) })
    };
    let left_out = |plan: &Plan| {
        let out = plan.live.iter().filter_map(|live| Some((live.header.name.name.clone(), live.undecodable.clone()?)));
        out.collect::<BTreeMap<String, Failure>>()
    };
    let plan = of(1);
    assert_eq!(names(&plan), ["a", "b", "c", "d", "e"]);
    let out = left_out(&plan);
    assert_eq!(out.keys().collect::<Vec<_>>(), ["c"], "1, 3, then 2 with two copies of the Secret, and 1");
    let told =
        "the syncsets of this cluster have more than 8 MiB together: no room is left for the 5120 KiB of this one";
    assert_eq!((out["c"].reason, out["c"].message.as_str()), (Reason::ResourceInvalid, told));
    // Also if nothing else of it changes, it is due when it is left out, and when it is not any more.
    let with_room = of(0);
    assert_eq!(left_out(&with_room).into_keys().collect::<Vec<_>>(), ["d", "e"]);
    for (before, after) in plan.live.iter().zip(&with_room.live) {
        let is_checked_anew = before.undecodable.is_some() != after.undecodable.is_some();
        assert_eq!(before.inputs != after.inputs, is_checked_anew, "{}", before.header.name);
    }
    // What was not read as a whole has no room either, however small the rest is: a part of it is never applied.
    let cut = Candidate { is_cut: true, ..mib(1, "a", 0) };
    assert!(left_out(&Plan::of(&snapshot(vec![cut]))).contains_key("a"));
    let listing = json!({"secretMappings": [{"sourceRef": {"name": "pull", "namespace": "team-a"},
        "targetRef": {"name": "a", "namespace": "b"}, "secretMetadata": ["*"]}]});
    let listing = candidate(1, SyncSetKind::SyncSet, "a", &listing);
    let secrets = vec![SecretFacts { is_cut: true, ..secret("team-a", 1) }];
    assert!(left_out(&Plan::of(&Snapshot { secrets, ..snapshot(vec![listing]) })).contains_key("a"));
    // However small its objects are.
    let many = Candidate { objects: 26_215, ..mib(1, "a", 0) };
    assert!(left_out(&Plan::of(&snapshot(vec![many.clone()]))).contains_key("a"));
    let fewer = Candidate { objects: 26_214, ..many };
    assert!(left_out(&Plan::of(&snapshot(vec![fewer]))).is_empty());
    let later = Candidate { generation: 6, ..mib(3, "c", 4) };
    let later = Plan::of(&snapshot(vec![mib(1, "a", 4), mib(2, "b", 1), later]));
    assert!(left_out(&later).contains_key("c"));
    assert_ne!(later.live[2].inputs, plan.live[2].inputs, "another generation is told, too");
}

#[test]
fn a_syncset_that_is_being_deleted_is_gone_if_it_was_applied() {
    let result = ResultRow {
        syncset: Uuid::from_u128(7),
        name: syncset(7, "y").name,
        inputs: Digest([1; 32]),
        generation: 5,
        failure: None,
        since: now(),
        first_success: None,
        has_pending_deletions: false,
    };
    let deleted = Candidate { is_being_deleted: true, ..syncset(7, "y") };
    let plan = Plan::of(&Snapshot { results: vec![result], ..snapshot(vec![deleted]) });
    let Action::Pass(pass_plan) = plan.action else { panic!("a pass") };
    assert_eq!(pass_plan.gone, BTreeSet::from([Uuid::from_u128(7)]));
}

fn secret(namespace: &str, data_generation: i64) -> SecretFacts {
    SecretFacts {
        id: Uuid::from_u128(50),
        namespace: namespace.to_owned(),
        name: "pull".to_owned(),
        version: 30,
        bytes: 1 << 20,
        data_generation,
        secret_type: "Opaque".to_owned(),
        is_immutable: false,
        is_cut: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn inputs(kind: SyncSetKind, spec: &Value, secrets: Vec<SecretFacts>) -> Digest {
    let plan = Plan::of(&Snapshot { secrets, ..snapshot(vec![candidate(1, kind, "a", spec)]) });
    assert_eq!(plan.live[0].undecodable, None);
    plan.live[0].inputs
}

#[test]
fn inputs_follow_the_secrets_that_a_syncset_may_copy_and_no_others() {
    let mapping = |namespace: &str| {
        json!({"clusterDeploymentSelector": {}, "secretMappings": [
            {"sourceRef": {"name": "pull", "namespace": namespace}, "targetRef": {"name": "pull"}}]})
    };
    for (kind, namespace) in [(SyncSetKind::SyncSet, "team-a"), (SyncSetKind::SelectorSyncSet, "team-b")] {
        let of = |secrets| inputs(kind, &mapping(namespace), secrets);
        let digest = of(vec![secret(namespace, 5)]);
        assert_eq!(of(vec![secret(namespace, 5), secret("other", 7)]), digest);
        assert_ne!(of(vec![secret(namespace, 6)]), digest);
        assert_ne!(of(Vec::new()), digest);
    }
    let of_foreign = |secrets| inputs(SyncSetKind::SyncSet, &mapping("team-b"), secrets);
    assert_eq!(of_foreign(vec![secret("team-b", 5)]), of_foreign(Vec::new()), "nothing of it is looked at");
    let own = mapping("team-b");
    let header = Plan::of(&snapshot(vec![candidate(1, SyncSetKind::SyncSet, "a", &own)])).live.remove(0).header;
    assert_eq!((header.secrets.len(), LiveSyncset::secrets(&header).count()), (1, 0));
    // A revision keeps for which namespaces it was, and changes nothing elsewhere.
    for (namespaces, count) in
        [(json!(["team-*"]), 1), (json!(["other", "team-b"]), 0), (json!([]), 0), (json!("team-*"), 0)]
    {
        let mut revision = mapping("team-b");
        revision["secretNamespaces"] = namespaces;
        let mut snapshot = snapshot(vec![candidate(1, SyncSetKind::SelectorSyncSet, "a", &revision)]);
        assert_eq!(Plan::of(&snapshot).live.len(), count, "{revision}");
        // Something was sent by another revision.
        snapshot.with_applied = BTreeSet::from([Uuid::from_u128(1)]);
        let live = Plan::of(&snapshot).live.remove(0);
        assert_eq!((live.undecodable.is_none(), live.header.secrets.len()), (count == 1, count), "{revision}");
    }
}

/// What a pass is about to delete is still to be deleted if it would plan the same.
#[test]
fn a_deletion_goes_ahead_after_changes_that_concern_neither_what_is_wanted_nor_who_may_delete() {
    let guard = |held| GuardRow { syncset: Uuid::from_u128(9), checked: 900, gone: true, held };
    let before = || Snapshot {
        with_applied: BTreeSet::from([Uuid::from_u128(9)]),
        guards: vec![guard(false)],
        ..snapshot(vec![syncset(1, "a"), selecting(2, "b", &json!({"matchLabels": {"env": "prod"}}))])
    };
    let with_document = |change: &dyn Fn(&mut Document)| {
        let mut changed = before();
        change(&mut changed.cluster.as_mut().expect("a cluster").document);
        changed
    };
    let rechecked = |now: Snapshot| {
        let before = before();
        Rechecked::of((&before, &Plan::of(&before)), (&now, &Plan::of(&now)))
    };
    let label = |key: &'static str, value: &'static str| {
        move |document: &mut Document| drop(document.labels.insert(key.to_owned(), value.to_owned()))
    };
    assert_eq!(rechecked(before()), Rechecked::Same);
    assert_eq!(rechecked(with_document(&|document| document.version = 77)), Rechecked::Same);
    assert_eq!(rechecked(with_document(&label("region", "us"))), Rechecked::Same, "nobody asks for it");
    let annotated = |document: &mut Document| drop(document.annotations.insert("note".to_owned(), "m".to_owned()));
    assert_eq!(rechecked(with_document(&annotated)), Rechecked::Same);
    // The version of a syncset is not its generation.
    let mut noted = before();
    noted.candidates[0].version += 1;
    assert_eq!(rechecked(noted), Rechecked::Same);

    assert_eq!(
        rechecked(with_document(&|document| document.version = 1_001)),
        Rechecked::Changed,
        "it was not checked"
    );
    assert_eq!(rechecked(with_document(&label("env", "test"))), Rechecked::Changed, "one matches no more");
    let mut edited = before();
    edited.candidates[0].generation += 1;
    assert_eq!(rechecked(edited), Rechecked::Changed);
    let mut more = before();
    more.candidates.push(syncset(9, "gone"));
    assert_eq!(rechecked(more), Rechecked::Changed, "it is wanted again");
    assert_eq!(rechecked(Snapshot { guards: vec![guard(true)], ..before() }), Rechecked::Changed, "it is held");
    let kubeconfig = |document: &mut Document| {
        document.data.insert("kubeconfigGeneration".to_owned(), json!(3));
    };
    assert_eq!(rechecked(with_document(&kubeconfig)), Rechecked::Changed);
    let paused = |document: &mut Document| drop(document.data.insert("paused".to_owned(), json!(true)));
    assert_eq!(rechecked(with_document(&paused)), Rechecked::Ended);
    assert_eq!(rechecked(Snapshot { cluster: None, ..before() }), Rechecked::Ended);
}

#[test]
fn a_soak_ends_with_a_reading_of_its_own() {
    let with_health =
        candidate(1, SyncSetKind::SyncSet, "a", &json!({"secretMappings": [], "health": {"within": "5m"}}));
    let inputs = Plan::of(&snapshot(vec![with_health.clone()])).live[0].inputs;
    let (applied_on, within) = (health::AppliedOn { inputs, cluster: "i" }, std::time::Duration::from_mins(5));
    let read_at = now() - SignedDuration::from_hours(1);
    let read = Health::read(applied_on, None, Vec::new(), within, read_at - SignedDuration::from_mins(1));
    let read = Health::read(applied_on, Some(&read), Vec::new(), within, read_at);
    let result = ResultRow {
        syncset: with_health.id,
        name: with_health.name.clone(),
        inputs,
        generation: 5,
        failure: None,
        since: now(),
        first_success: Some(now()),
        has_pending_deletions: false,
    };
    let cluster_row = ClusterRow {
        identity: Some("i".to_owned()),
        home: Some("i".to_owned()),
        kubeconfig_generation: 2,
        asked_generation: 2,
        reachable: Some(true),
        last_contact: None,
        last_full: None,
        next_full: Some(now() + SignedDuration::from_hours(9)),
        attempts: 0,
        retry_at: None,
        left_at: None,
    };
    let is_due = |read_before: Option<Timestamp>, result: ResultRow| {
        let plan = Plan::of(&Snapshot {
            results: vec![result],
            health: BTreeMap::from([(with_health.id, read.clone())]),
            cluster_row: Some(cluster_row.clone()),
            ..snapshot(vec![Candidate { read_before, ..with_health.clone() }])
        });
        matches!(plan.action, Action::Pass(pass_plan) if pass_plan.health == BTreeSet::from([with_health.id]) && pass_plan.due.is_empty())
    };
    assert!(!is_due(None, result.clone()), "it is settled");
    let rounded = Timestamp::from_microsecond(read_at.as_microsecond()).expect("a time");
    assert!(is_due(Some(rounded), result.clone()));
    assert!(!is_due(Some(read_at - SignedDuration::from_secs(1)), result.clone()), "it was read after that");
    assert!(!is_due(Some(rounded), ResultRow { has_pending_deletions: true, ..result }), "it is applied first");
}

#[test]
fn what_a_rollout_is_about_to_bring_counts_on_the_clusters_that_it_is_for() {
    let awaited = |tier: &str, name: &str, resources: Option<Value>| Awaited {
        name: SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "a".to_owned() },
        audience: json!({"clusterDeploymentSelector": {"matchLabels": {"env": tier}}})
            .as_object()
            .cloned()
            .expect("an object"),
        spec: json!({"resourceApplyMode": "Upsert", "enableResourceTemplates": true, "secretMappings": []}),
        resources: resources
            .map(|kind| vec![[Some("v1".to_owned()), kind.as_str().map(str::to_owned), None, Some(name.to_owned())]]),
    };
    let needs = |awaited: Vec<Awaited>, name: &str| {
        let plan = Plan::of(&Snapshot { awaited, ..snapshot(Vec::new()) });
        let object = ObjectRef {
            group: String::new(),
            kind: "Secret".to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
        };
        plan.awaited.iter().any(|names| names.need(&object))
    };
    let named = || awaited("prod", "site-{{ fromCDLabel \"region\" }}", Some(json!("Secret")));
    assert!(needs(vec![named()], "site-eu") && !needs(vec![named()], "site-us"));
    assert!(!needs(vec![awaited("test", "site-eu", Some(json!("Secret")))], "site-eu"), "it is for others");
    assert!(needs(vec![awaited("prod", "x", None)], "site-eu"), "it can't be read");
}

//! What is stored of passes: it is read as it was written, only under a live claim, and with one statement each.

use std::str::FromStr;

use serde_json::{Map, Value, json};
use towline::test_api::cluster::Clock;
use towline::test_api::documents::{Author, Change, Claims, Entry, Expected, Holder, Kind, Role, Row, WorkClaim};
use towline::test_api::syncset::dispatch::{Batch, Dispatch};
use towline::test_api::syncset::plan::name::{Digest, ObjectRef, SyncSetKind, SyncSetName};
use towline::test_api::syncset::plan::pass::Writes;
use towline::test_api::syncset::plan::reason::Reason;
use towline::test_api::syncset::plan::rows::{AppliedRow, ClusterRow, Failure, GuardRow, PatchedRow, ResultRow};
use towline::test_api::syncset::plan::snapshot::Snapshot;
use towline::test_api::syncset::store::{ClusterUpdate, Lacking, PassStore, StoreError};

use crate::documents::claims::Running;
use crate::documents::dispatch::document;
use crate::documents::world::{Stage, cluster, create, item, row, run};

/// An id or a time, of whatever type is wanted.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(number: u64) -> T {
    format!("00000000-0000-4000-9000-{number:012x}").parse().expect("an id")
}

fn time<T: FromStr<Err: std::fmt::Debug>>(second: u32) -> T {
    format!("2026-11-19T08:00:{second:02}.123456Z").parse().expect("a time")
}

fn digest(byte: u8) -> Digest {
    Digest(std::array::from_fn(|at| byte.wrapping_mul(31).wrapping_add(u8::try_from(at).expect("small"))))
}

fn name(kind: SyncSetKind, name: &str) -> SyncSetName {
    let namespace = if kind == SyncSetKind::SyncSet { "foo" } else { "" };
    SyncSetName { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

pub(crate) fn object(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

pub(crate) fn sent() -> AppliedRow {
    AppliedRow {
        object: object("apps", "Deployment", "ns", "agent"),
        syncset: id(11),
        api_version: "apps/v1".to_owned(),
        content: Some(digest(1)),
        wanted: true,
        tracked: false,
        adopted: true,
        uid: Some("u-1".to_owned()),
        version: Some("41".to_owned()),
        owned: Some(digest(2)),
        resent: 3,
        gone: 2,
    }
}

pub(crate) fn waiting() -> AppliedRow {
    AppliedRow {
        object: object("", "Namespace", "", "ns"),
        syncset: id(12),
        api_version: "v1".to_owned(),
        content: None,
        wanted: false,
        tracked: true,
        adopted: false,
        uid: None,
        version: None,
        owned: None,
        resent: 0,
        gone: 0,
    }
}

fn failed() -> ResultRow {
    ResultRow {
        syncset: id(11),
        name: name(SyncSetKind::SyncSet, "base"),
        inputs: digest(3),
        generation: 4,
        failure: Some(Failure { reason: Reason::Forbidden, message: "failed to \"apply\" a\\b: ü".to_owned() }),
        since: time(1),
        first_success: Some(time(2)),
        has_pending_deletions: true,
    }
}

fn succeeded() -> ResultRow {
    ResultRow {
        syncset: id(12),
        name: name(SyncSetKind::SelectorSyncSet, "monitoring"),
        inputs: digest(4),
        generation: 5,
        failure: None,
        since: time(3),
        first_success: None,
        has_pending_deletions: false,
    }
}

pub(crate) fn cluster_row() -> ClusterRow {
    ClusterRow {
        identity: Some("kube-system's".to_owned()),
        home: Some("the first one's".to_owned()),
        kubeconfig_generation: 6,
        asked_generation: 7,
        reachable: Some(true),
        last_contact: Some(time(4)),
        last_full: Some(time(5)),
        next_full: Some(time(6)),
        attempts: 7,
        retry_at: Some(time(8)),
        left_at: Some(time(9)),
    }
}

fn patched(position: usize) -> PatchedRow {
    PatchedRow {
        syncset: id(11),
        position,
        content: Some(digest(5)),
        uid: Some("u-2".to_owned()),
        version: Some("42".to_owned()),
    }
}

/// A cluster with a claim on it.
pub(crate) async fn claimed(stage: &Stage) -> (WorkClaim, PassStore) {
    stage.writer().version(create("c1")).await;
    let text = "insert into towline_work (cluster, ready_at, holder, token, until) \
         select id, now(), 'me', 17, now() + interval '1 h' from clusters where name = 'c1' returning cluster::text";
    let cluster: String = stage.sql.query_one(text, &[]).await.expect("a row").get(0);
    let claim = WorkClaim { cluster: cluster.parse().expect("an id"), holder: "me".to_owned(), token: 17 };
    (claim, PassStore::new(stage.database()))
}

#[test]
fn what_a_pass_has_stored_is_read_as_it_was_written() {
    run(async {
        let stage = Stage::new("stored").await;
        let (claim, store) = claimed(&stage).await;
        let writes = Writes {
            results: vec![failed(), succeeded()],
            applied: vec![sent(), waiting()],
            patched: vec![patched(0), patched(3)],
            ..Writes::default()
        };
        let now = ClusterUpdate { row: cluster_row(), resyncs: 0 };
        store.save(&claim, &writes, Some(&now)).await.expect("it is stored");
        stage
            .run(
                "insert into towline_guard values ('00000000-0000-4000-9000-00000000000b', 43, true, false, 3, now()), \
                 ('00000000-0000-4000-9000-00000000000c', 44, false, true, 4, now()), (gen_random_uuid(), 45, true, true, 5, now()); \
                 update towline_claim set cursor = 46 where name = 'dispatcher'",
            )
            .await;
        let snapshot =
            store.snapshot_within(claim.cluster, usize::MAX).await.expect("a snapshot").expect("there is room");
        let mut results = snapshot.results.clone();
        results.sort_by_key(|row| row.syncset);
        assert_eq!(results, [failed(), succeeded()]);
        assert_eq!((snapshot.cluster_row, snapshot.resyncs, snapshot.cursor), (Some(cluster_row()), 0, 46));
        assert_eq!(snapshot.with_applied, [id(11), id(12)].into());
        let mut guards = snapshot.guards;
        guards.sort_by_key(|row| row.syncset);
        let guard = |syncset, checked, gone, held| GuardRow { syncset: id(syncset), checked, gone, held };
        assert_eq!(guards, [guard(11, 43, true, false), guard(12, 44, false, true)]);
        let mut content = store.content(Some(claim.cluster), &Lacking::default()).await.expect("content");
        content.sent.applied.sort_by_key(|row| row.syncset);
        content.sent.patched.sort_by_key(|row| row.position);
        assert_eq!(
            (content.sent.applied, content.sent.patched),
            (vec![sent(), waiting()], vec![patched(0), patched(3)])
        );
        // Every column but the keys changes, and what is forgotten goes.
        let sent_again = AppliedRow { syncset: id(11), ..AppliedRow { object: sent().object, ..waiting() } };
        let succeeds = ResultRow { syncset: id(11), ..succeeded() };
        let mut other_row = cluster_row();
        other_row.attempts = 0;
        other_row.next_full = None;
        let writes = Writes {
            results: vec![succeeds.clone()],
            finished: vec![id(12)],
            applied: vec![sent_again.clone()],
            forgotten: vec![(waiting().object, id(12))],
            removed: Vec::new(),
            patched: vec![PatchedRow { content: None, uid: None, version: None, ..patched(0) }],
            unpatched: vec![(id(11), 3)],
        };
        let now = ClusterUpdate { row: other_row.clone(), resyncs: 0 };
        store.save(&claim, &writes, Some(&now)).await.expect("it is stored");
        let snapshot =
            store.snapshot_within(claim.cluster, usize::MAX).await.expect("a snapshot").expect("there is room");
        let content = store.content(Some(claim.cluster), &Lacking::default()).await.expect("content");
        assert_eq!((snapshot.results, snapshot.cluster_row), (vec![succeeds], Some(other_row)));
        assert_eq!((content.sent.applied, content.sent.patched), (vec![sent_again], writes.patched));
    });
}

#[test]
fn what_a_pass_has_deleted_counts_but_for_what_was_approved() {
    run(async {
        let stage = Stage::new("deleted_by_pass").await;
        let (claim, store) = claimed(&stage).await;
        let row = |name: &str| AppliedRow { object: object("", "ConfigMap", "ns", name), ..waiting() };
        let adopted = AppliedRow { adopted: true, uid: Some("u".to_owned()), ..row("adopted") };
        let all = vec![waiting(), row("a"), row("b"), row("released"), adopted];
        store.save(&claim, &Writes { applied: all.clone(), ..Writes::default() }, None).await.expect("it is stored");
        let approved = "insert into towline_lost select id, '00000000-0000-4000-9000-00000000000c', 2, 1, 2, 1, false, false from clusters";
        stage.run(approved).await;
        for (gone, left, counted) in
            [(vec![waiting()], "0, 0", 0), (vec![row("a"), row("b"), all[4].clone()], "0, 0", 2), (vec![], "0, 0", 2)]
        {
            let keys = gone.iter().map(|row| (row.object.clone(), row.syncset));
            // Something else is forgotten since another syncset has it, or it stays. The approval was for that, too.
            let forgotten = keys.chain([(all[3].object.clone(), all[3].syncset)]).collect();
            let removed = gone.iter().map(|row| (row.object.clone(), row.syncset)).collect();
            store.save(&claim, &Writes { forgotten, removed, ..Writes::default() }, None).await.expect("it is stored");
            let row = stage.sql.query_one("select approved || ', ' || approved_precious from towline_lost", &[]).await;
            assert_eq!(row.expect("a row").get::<_, String>(0), left);
            let deleted = "select coalesce(sum(objects), 0)::bigint from towline_deleted where syncset = '00000000-0000-4000-9000-00000000000c'";
            assert_eq!(stage.number(deleted).await, counted, "{gone:?}");
        }
        assert_eq!(stage.number("select count(*) from towline_applied").await, 0);
    });
}

#[test]
fn a_pass_that_has_lost_its_claim_stores_nothing() {
    run(async {
        let stage = Stage::new("fenced_passes").await;
        let (claim, store) = claimed(&stage).await;
        let writes =
            Writes { results: vec![failed()], applied: vec![sent()], patched: vec![patched(0)], ..Writes::default() };
        let now = ClusterUpdate { row: cluster_row(), resyncs: 0 };
        store.save(&claim, &writes, Some(&now)).await.expect("it is held");
        let takes = Writes {
            finished: vec![id(11)],
            forgotten: vec![(sent().object, id(11))],
            unpatched: vec![(id(11), 0)],
            applied: vec![waiting()],
            ..Writes::default()
        };
        let counts = "select (select count(*) from towline_result) * 1000 + (select count(*) from towline_applied) * 100 \
             + (select count(*) from towline_patched) * 10 + (select count(*) from towline_cluster)";
        for (lost, back) in [
            ("token = 18", "token = 17"),
            ("holder = 'other'", "holder = 'me'"),
            ("until = now() - interval '1 s'", "until = now() + interval '1 h'"),
        ] {
            stage.run(&format!("update towline_work set {lost}")).await;
            let stored = store.save(&claim, &takes, None).await;
            assert!(matches!(stored, Err(StoreError::ClaimLost)), "{lost}: {stored:?}");
            assert_eq!(stage.number(counts).await, 1111, "{lost}");
            stage.run(&format!("update towline_work set {back}")).await;
        }
        let adds = Writes { applied: vec![waiting()], ..Writes::default() };
        store.save(&claim, &adds, None).await.expect("it is held again");
        assert_eq!(stage.number(counts).await, 1211);
    });
}

#[test]
fn a_demand_for_a_full_pass_is_not_lost_to_a_pass_that_is_under_way() {
    run(async {
        let stage = Stage::new("resynced").await;
        let (claim, store) = claimed(&stage).await;
        let ends = async |resyncs| {
            let now = ClusterUpdate { row: cluster_row(), resyncs };
            store.save(&claim, &Writes::default(), Some(&now)).await.expect("it is stored");
            let snapshot: Snapshot =
                store.snapshot_within(claim.cluster, usize::MAX).await.expect("a snapshot").expect("there is room");
            (snapshot.cluster_row.expect("a row").next_full.is_some(), snapshot.resyncs)
        };
        let author = Author::of_api("ada".to_owned(), None);
        let entry = Entry::of(author, "resync", Kind::Cluster, "foo", "c1");
        // It comes during the first pass of all.
        store.resync(&[claim.cluster], &entry).await.expect("it is due");
        assert_eq!(ends(0).await, (false, 1));
        assert_eq!(ends(1).await, (true, 1));
        store.resync(&[claim.cluster, id(99)], &entry).await.expect("it is due");
        assert_eq!(ends(1).await, (false, 2));
        assert_eq!(ends(2).await, (true, 2));
        assert_eq!(stage.number("select count(*) from towline_cluster").await, 1, "what is no cluster has no state");
        let records = "select count(*) from towline_history where (actor, via, verb, kind, namespace, name) = \
             ('ada', 'api', 'resync', 'clusters', 'foo', 'c1')";
        assert_eq!(stage.number(records).await, 2);
    });
}

#[test]
fn a_removed_cluster_takes_its_state_with_it_and_its_pass_stores_no_more() {
    run(async {
        let stage = Stage::new("removed").await;
        let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
        let mut leadership = claims.role(Role::Dispatcher);
        let _claims = Running::start(claims);
        let (claim, store) = claimed(&stage).await;
        let (grant, dispatch) = (leadership.granted().await, Dispatch::new(stage.database()));
        while dispatch.batch(&grant).await.expect("a batch") != Batch::default() {}
        let writes =
            Writes { results: vec![failed()], applied: vec![sent()], patched: vec![patched(0)], ..Writes::default() };
        let now = ClusterUpdate { row: cluster_row(), resyncs: 0 };
        store.save(&claim, &writes, Some(&now)).await.expect("it is stored");
        store.own(&claim, "a").await.expect("it is noted");
        stage.writer().version(item(vec![Change::delete(&cluster("c1"), Expected::Any)])).await;
        // The pass goes on, and has written rows that are not committed when the dispatcher comes.
        let pass = stage.place.client(integration::postgres::ADMIN).await.expect("a connection");
        let begun =
            "begin; select from towline_work for key share; update towline_result set generation = generation + 1";
        pass.batch_execute(begun).await.expect("it is done");
        let batch = tokio::spawn(async move { dispatch.batch(&grant).await });
        let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
             where a.datname = current_database() and not l.granted";
        stage.becomes("the dispatcher to wait for the pass", waits, 1).await;
        pass.batch_execute("commit").await.expect("it is committed");
        batch.await.expect("no panic").expect("a batch");
        for table in ["work", "result", "applied", "patched", "cluster", "identity"] {
            assert_eq!(stage.number(&format!("select count(*) from towline_{table}")).await, 0, "{table}");
        }
        let stored = store.save(&claim, &writes, Some(&now)).await;
        assert!(matches!(stored, Err(StoreError::ClaimLost)), "{stored:?}");
        assert!(
            store
                .snapshot_within(claim.cluster, usize::MAX)
                .await
                .expect("a snapshot")
                .expect("there is room")
                .cluster
                .is_none()
        );
    });
}

/// 50 syncsets with 5 objects each, of both kinds; others that name or select other clusters.
#[test]
fn a_snapshot_and_content_of_fifty_syncsets_are_one_statement_each() {
    run(async {
        let stage = Stage::new("fifty").await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let (claim, store) = claimed(&stage).await;
        let writer = stage.writer();
        let resources: Vec<Value> = (0..5).map(|n| json!({"kind": "ConfigMap", "metadata": {"name": n}})).collect();
        let put = |kind: Kind, name: String, mut spec: Map<String, Value>, terms: Option<(&str, &str)>| {
            spec.extend([
                ("resources".to_owned(), json!(resources)),
                ("patches".to_owned(), json!([{"patch": "canary"}])),
            ]);
            spec.entry("secretMappings").or_insert_with(|| json!([]));
            let mut item = document(kind, &name, 3, json!({"spec": spec}), &[]);
            item.changes[0].terms = terms.map(|(key, value)| vec![(key.to_owned(), value.to_owned())]);
            item
        };
        let spec = |value: Value| value.as_object().cloned().expect("an object");
        for n in 0..25 {
            let refs = spec(json!({"clusterDeploymentRefs": [{"name": "c0"}, {"name": "c1"}], "secretMappings": [
                {"sourceRef": {"namespace": "foo", "name": "pull"}}], "applyBehavior": "CreateOnly"}));
            writer.version(put(Kind::SyncSet, format!("s{n}"), refs, None)).await;
            let other = spec(json!({"clusterDeploymentRefs": [{"name": "c2"}]}));
            writer.version(put(Kind::SyncSet, format!("o{n}"), other, None)).await;
            let term = [("env", "prod"), ("env", "*"), ("", "")][n % 3];
            let selector = spec(json!({"clusterDeploymentSelector": {}, "clusterNamespaces": ["*"]}));
            writer.version(put(Kind::SelectorSyncSet, format!("t{n}"), selector.clone(), Some(term))).await;
            let other = [("env", "test"), ("region", "*")][n % 2];
            writer.version(put(Kind::SelectorSyncSet, format!("u{n}"), selector, Some(other))).await;
        }
        for name in ["pull", "unused"] {
            let labels = [("a", "b")].map(|(key, value): (&str, &str)| (key.to_owned(), value.to_owned())).into();
            let data = json!({"type": "Opaque", "dataGeneration": 7}).as_object().cloned().expect("an object");
            let row = Row { labels, data, sealed: Some(b"\0sealed".to_vec()), generation: 8, ..row() };
            let key = towline::test_api::documents::Key::new(Kind::Secret, "foo", name);
            writer.version(item(vec![Change::put(&key, Expected::Any, row)])).await;
        }
        let calls = async |beginning: &str| {
            stage
                .number(&format!(
                    "select coalesce(sum(calls), 0)::bigint from statistics.pg_stat_statements s where s.dbid = \
                     (select oid from pg_database where datname = current_database()) and query like '{beginning}%'"
                ))
                .await
        };
        let snapshot =
            store.snapshot_within(claim.cluster, usize::MAX).await.expect("a snapshot").expect("there is room");
        assert_eq!(calls("select snapshot").await, 1);
        let found: Vec<&str> = snapshot.candidates.iter().map(|candidate| candidate.name.name.as_str()).collect();
        assert_eq!(found.iter().filter(|name| name.starts_with('s')).count(), 25, "{found:?}");
        assert_eq!(found.iter().filter(|name| name.starts_with('t')).count(), 25, "{found:?}");
        assert_eq!((found.len(), snapshot.secrets.len()), (50, 1), "{found:?}");
        let secret = &snapshot.secrets[0];
        assert_eq!((secret.name.as_str(), secret.data_generation, secret.secret_type.as_str()), ("pull", 7, "Opaque"));
        for candidate in &snapshot.candidates {
            assert!(
                !candidate.spec.contains_key("resources") && !candidate.spec.contains_key("patches"),
                "{candidate:?}"
            );
            assert_eq!((candidate.generation, candidate.is_being_deleted), (3, false));
            let is_selecting = candidate.name.kind == SyncSetKind::SelectorSyncSet;
            assert_eq!(candidate.spec.contains_key("clusterNamespaces"), is_selecting, "{candidate:?}");
        }
        let found = snapshot.cluster.expect("the cluster");
        assert_eq!((found.document.id, found.document.name.as_str()), (claim.cluster, "c1"));
        let ids: Vec<_> = snapshot.candidates.iter().map(|candidate| candidate.id).collect();
        let rows: Vec<AppliedRow> = ids
            .iter()
            .flat_map(|syncset| (0..5).map(move |n| (*syncset, n)))
            .map(|(syncset, n)| AppliedRow {
                syncset,
                object: object("", "ConfigMap", "ns", &format!("m{n}")),
                ..sent()
            })
            .collect();
        let all = Writes { applied: rows, ..Writes::default() };
        store.save(&claim, &all, None).await.expect("they are committed");
        let lacking = Lacking { syncsets: ids, revisions: Vec::new(), secrets: vec![secret.id] };
        let content = store.content(Some(claim.cluster), &lacking).await.expect("content");
        assert_eq!(calls("select $6,").await, 1);
        assert_eq!((content.payloads.len(), content.sent.applied.len(), content.secrets.len()), (50, 250, 1));
        assert_eq!(content.secrets[0].sealed.as_deref(), Some(&b"\0sealed"[..]));
        for payload in &content.payloads {
            let spec: Value = serde_json::from_str(&payload.text).expect("JSON");
            assert_eq!(spec["resources"], json!(resources));
            let header = snapshot.candidates.iter().find(|candidate| candidate.id == payload.id).expect("its header");
            assert_eq!(header.version, payload.version);
        }
        let none = store.content(Some(claim.cluster), &Lacking::default()).await.expect("content");
        assert_eq!((none.payloads.len(), none.sent.applied.len(), none.secrets.len()), (0, 250, 0));
    });
}

#[test]
fn nothing_is_read_from_a_database_that_is_being_restored() {
    run(async {
        let stage = Stage::new("halved").await;
        let (claim, store) = claimed(&stage).await;
        stage.run("update towline_meta set origin = 'another'").await;
        let snapshot = store.snapshot_within(claim.cluster, usize::MAX).await;
        assert!(matches!(snapshot, Err(StoreError::Restoring(_))), "{snapshot:?}");
        let content = store.content(Some(claim.cluster), &Lacking::default()).await;
        assert!(matches!(content, Err(StoreError::Restoring(_))), "{content:?}");
    });
}

//! What is stored of passes of clusters to which several documents lead: the others are told by the statement that concerns
//! them, and nothing is stored that rests on being alone.

use towline::syncset::rules::name::ObjectRef;
use towline::syncset::rules::pass::Writes;
use towline::syncset::rules::rows::{AppliedRow, PaceRow};
use towline::syncset::store::{Pace, Sharing, Standing, StoreError};

use crate::documents::pass_store::{claimed, id, object, pace, sent, waiting};
use crate::documents::world::{Stage, create, run};

/// Other clusters of the identity in [`pace`], by their names.
async fn twins(stage: &Stage, names: &[&str]) -> Vec<String> {
    let mut ids = Vec::new();
    for name in names {
        stage.writer().version(create(name)).await;
        let text = format!(
            "insert into towline_pace (cluster, identity, kubeconfig_generation, attempts) \
             select id, 'kube-system''s', 1, 0 from clusters where name = '{name}' returning cluster::text"
        );
        ids.push(stage.sql.query_one(&text, &[]).await.expect("a row").get(0));
    }
    ids
}

/// Stores that a cluster has an object.
fn has(cluster: &str, object: &ObjectRef, wanted: bool) -> String {
    let ObjectRef { group, kind, namespace, name } = object;
    format!(
        "delete from towline_applied where cluster = '{cluster}'; insert into towline_applied values ('{cluster}', '{group}', '{kind}', \
         '{namespace}', '{name}', gen_random_uuid(), 'v1', null, {wanted}, true, false, null, null, null, 0)"
    )
}

/// The statement that stores that something is not wanted any more asks for all other documents of the cluster that have it, so
/// that no end of the process comes in between, and an ordinary one asks for none.
#[test]
fn whoever_drops_something_asks_for_all_other_documents_of_the_cluster_that_have_it_in_the_same_statement() {
    run(async {
        let stage = Stage::new("told").await;
        let (claim, store) = claimed(&stage).await;
        let names: Vec<String> = (0..12).map(|number| format!("twin-{number:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let identity = pace().identity;
        let sharing = Sharing { identity: identity.as_deref(), unless_shared: false };
        let drops = Writes { applied: vec![waiting()], ..Writes::default() };
        let alone = store.save_in(&claim, &drops, None, &sharing).await.expect("it is held");
        let version = stage.number("select version from clusters where name = 'c1'").await;
        assert_eq!(alone, Standing { wanted: 1, version: Some(version), is_shared: false });
        let ids = twins(&stage, &names).await;
        assert_eq!(store.with_identity(claim.cluster, "kube-system's").await.expect("clusters").len(), 12);
        for (number, id) in ids.iter().enumerate() {
            stage.run(&has(id, &waiting().object, number % 2 == 0)).await;
        }
        // These have other objects.
        for (name, other) in twins(&stage, &["bare", "other"]).await.iter().zip([None, Some(sent().object)]) {
            if let Some(other) = other {
                stage.run(&has(name, &other, true)).await;
            }
        }
        let adds = Writes { applied: vec![sent()], ..Writes::default() };
        let shared = store.save_in(&claim, &adds, None, &sharing).await.expect("it is held");
        assert_eq!(shared, Standing { is_shared: true, ..alone });
        let asked = "select count(*) from towline_work where holder is null and ready_at <= now()";
        assert_eq!(stage.number(asked).await, 0, "nothing was dropped");
        store.save_in(&claim, &drops, None, &sharing).await.expect("it is held");
        assert_eq!(stage.number(asked).await, 12);
        // Those that are worked on are asked for once more, and so are those of the cluster that the document led to before.
        stage.run("update towline_work set holder = 'other', until = now() + interval '1 h' where token = 0").await;
        stage.run("insert into towline_pace select cluster, 'kube-system''s', 1, true, null, null, null, 0 from towline_work where token = 17").await;
        let moved = Sharing { identity: Some("another"), unless_shared: false };
        store.save_in(&claim, &drops, None, &moved).await.expect("it is held");
        assert_eq!(stage.number("select count(*) from towline_work where holder = 'other' and wanted = 2").await, 12);
        assert_eq!(stage.number("select wanted from towline_work where token = 17").await, 1);
        assert_eq!(ids.len(), 12);
    });
}

/// Other documents show that there is one more or one less of them, and no end of the process may keep that from them.
#[test]
fn whoever_stores_that_a_document_leads_to_another_cluster_asks_for_all_documents_of_both_in_the_same_statement() {
    run(async {
        let stage = Stage::new("moved").await;
        let (claim, store) = claimed(&stage).await;
        let old = twins(&stage, &["old-1", "old-2"]).await;
        let new = twins(&stage, &["new"]).await;
        stage.run(&format!("update towline_pace set identity = 'another' where cluster = '{}'", new[0])).await;
        let found = PaceRow { next_full: None, ..pace() };
        let moves = |identity: &str, identities: &[&str]| Pace {
            row: PaceRow { identity: Some(identity.to_owned()), ..found.clone() },
            resyncs: 0,
            identities: identities.iter().map(|identity| (*identity).to_owned()).collect(),
        };
        let asked = async || {
            let text = "select coalesce(string_agg(c.name || ' ' || w.wanted, ', ' order by c.name), '') from towline_work w \
                 join clusters c on c.id = w.cluster where w.token = 0";
            stage.sql.query_one(text, &[]).await.expect("a row").get::<_, String>(0)
        };
        let none = Writes::default();
        store.save(&claim, &none, Some(&moves("kube-system's", &["kube-system's"]))).await.expect("it is held");
        assert_eq!(asked().await, "old-1 1, old-2 1");
        store.save(&claim, &none, Some(&moves("kube-system's", &[]))).await.expect("it is held");
        assert_eq!(asked().await, "old-1 1, old-2 1", "it stays");
        let there = moves("another", &["another", "kube-system's"]);
        stage.run("update towline_work set token = 18 where token = 17").await;
        let late = store.save(&claim, &none, Some(&there)).await;
        assert!(matches!(late, Err(StoreError::LeaseExpired)), "{late:?}");
        assert_eq!(asked().await, "old-1 1, old-2 1");
        stage.run("update towline_work set token = 17 where token = 18").await;
        store.save(&claim, &none, Some(&there)).await.expect("it is held");
        assert_eq!(asked().await, "new 1, old-1 2, old-2 2");
        assert_eq!(old.len(), 2);
    });
}

/// Of two documents that lead to one cluster, one is stored first, and the other one sees it.
#[test]
fn two_documents_that_are_found_to_lead_to_one_cluster_at_once_are_stored_one_after_the_other() {
    run(async {
        let stage = Stage::new("identities").await;
        let (claim, store) = claimed(&stage).await;
        let elsewhere = stage.place.client(integration::postgres::ADMIN).await.expect("a connection");
        let lock = "begin; select pg_advisory_xact_lock('towline_pace'::regclass::int, hashtext('kube-system''s'))";
        elsewhere.batch_execute(lock).await.expect("it is locked");
        let row = pace();
        let identities = vec!["kube-system's".to_owned()];
        let saved = tokio::spawn(async move {
            let now = Pace { row, resyncs: 0, identities };
            store.save(&claim, &Writes::default(), Some(&now)).await
        });
        let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
             where a.datname = current_database() and not l.granted";
        stage.becomes("the pass to wait for the other one", waits, 1).await;
        // The other one, which does not see this one.
        let ids = twins(&stage, &["twin"]).await;
        elsewhere.batch_execute("commit").await.expect("it is committed");
        saved.await.expect("no panic").expect("it is held");
        let asked = format!("select count(*) from towline_work where token = 0 and cluster = '{}'", ids[0]);
        assert_eq!(stage.number(&asked).await, 1);
    });
}

/// An object that was deleted for one document is sent again for the others. A pass whose claim has ended requests nothing.
#[test]
fn full_passes_of_other_documents_are_made_due_under_a_live_claim_only() {
    run(async {
        let stage = Stage::new("bereft").await;
        let (claim, store) = claimed(&stage).await;
        let ids = twins(&stage, &["twin", "without"]).await;
        stage.run("update towline_pace set next_full = now() + interval '1 h', resyncs = 3").await;
        let gone = [object("", "Namespace", "", "ns")];
        stage.run(&has(&ids[0], &object("", "ConfigMap", "ns", "inner"), true)).await;
        stage.run(&has(&ids[1], &object("", "ConfigMap", "other", "inner"), true)).await;
        let told = "select count(*) from towline_pace p join towline_work w on w.cluster = p.cluster join clusters c on c.id = p.cluster \
             where p.next_full is null and p.resyncs = 4 and w.urgent and w.ready_at <= now() and c.name = 'twin'";
        let all = "select (select count(*) from towline_pace where next_full is null) * 10 + (select count(*) from towline_work where token = 0)";
        stage.run("update towline_work set token = 18").await;
        let late = store.tell_bereft(&claim, "kube-system's", &gone).await;
        assert!(matches!(late, Err(StoreError::LeaseExpired)), "{late:?}");
        assert_eq!(stage.number(all).await, 0);
        stage.run("update towline_work set token = 17").await;
        store.tell_bereft(&claim, "another", &gone).await.expect("it is held");
        assert_eq!(stage.number(all).await, 0);
        let standing = store.tell_bereft(&claim, "kube-system's", &gone).await.expect("it is held");
        assert!(standing.is_shared);
        assert_eq!((stage.number(told).await, stage.number(all).await), (1, 11));
    });
}

/// A namespace or a definition is left for the sake of what another document wants in it; so what that one drops concerns its document.
#[test]
fn a_drop_concerns_documents_that_have_the_object_or_the_namespace_or_the_definition_that_it_is_in() {
    run(async {
        let stage = Stage::new("concerned_documents").await;
        let (claim, store) = claimed(&stage).await;
        let ids = twins(&stage, &["twin"]).await;
        let identity = pace().identity;
        let sharing = Sharing { identity: identity.as_deref(), unless_shared: false };
        let dropped = object("example.com", "Widget", "ns", "w");
        let row = AppliedRow { object: dropped.clone(), ..waiting() };
        let drops = [
            Writes { applied: vec![row.clone()], ..Writes::default() },
            Writes { forgotten: vec![(dropped.clone(), row.syncset)], ..Writes::default() },
        ];
        let definition = |name| object("apiextensions.k8s.io", "CustomResourceDefinition", "", name);
        for (had, is_concerned) in [
            (dropped.clone(), true),
            (object("", "Namespace", "", "ns"), true),
            (definition("widgets.example.com"), true),
            (object("", "Namespace", "", "other"), false),
            (definition("widgets.apps.example.com"), false),
            (object("example.com", "Widget", "other", "w"), false),
            (object("example.com", "Gadget", "ns", "w"), false),
            (object("other.example.com", "Widget", "ns", "w"), false),
        ] {
            for drop in &drops {
                stage.run(&has(&ids[0], &had, false)).await;
                stage.run("delete from towline_work where holder is null").await;
                store.save_in(&claim, drop, None, &sharing).await.expect("it is held");
                let asked = stage.number("select count(*) from towline_work where holder is null").await;
                assert_eq!(asked, i64::from(is_concerned), "{had}");
            }
        }
    });
}

#[test]
fn a_pass_learns_what_has_changed_and_may_store_nothing_if_another_document_has_turned_up() {
    run(async {
        let stage = Stage::new("standing").await;
        let (claim, store) = claimed(&stage).await;
        let identity = Some("kube-system's");
        let before = store.standing(&claim, identity).await.expect("it is held");
        assert_eq!((before.wanted, before.is_shared), (1, false));
        let forgets = Writes { forgotten: vec![(waiting().object, id(12))], ..Writes::default() };
        let alone = Sharing { identity, unless_shared: true };
        let rows = Writes { applied: vec![waiting()], ..Writes::default() };
        store.save(&claim, &rows, None).await.expect("it is held");
        let ids = twins(&stage, &["twin"]).await;
        let found = store.save_in(&claim, &forgets, None, &alone).await.expect("it is held");
        assert!(found.is_shared);
        assert_eq!(stage.number("select count(*) from towline_applied").await, 1, "nothing was written");
        // The other document wants something in the namespace.
        let namespace = object("", "Namespace", "", "ns");
        let definition = object("apiextensions.k8s.io", "CustomResourceDefinition", "", "widgets.example.com");
        for (wanted, is_found) in [
            (namespace.clone(), true),
            (object("apps", "Deployment", "ns", "agent"), true),
            (object("example.com", "Widget", "other", "w"), true),
            (definition.clone(), true),
            (object("apps", "Deployment", "other", "agent"), false),
            (object("", "ConfigMap", "", "ns"), false),
        ] {
            stage.run(&has(&ids[0], &wanted, true)).await;
            let found = store.wanted_elsewhere(claim.cluster, "kube-system's", [&namespace, &definition]).await;
            let expected = if is_found { ids.clone() } else { Vec::new() };
            let found: Vec<String> = found.expect("an answer").iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{wanted}");
        }
        stage.run("update towline_work set wanted = wanted + 1 where token = 17; update clusters set version = version + 7").await;
        let after = store.standing(&claim, identity).await.expect("it is held");
        let version = before.version.map(|version| version + 7);
        assert_eq!(after, Standing { wanted: 2, version, is_shared: true });
        stage.run("update towline_work set token = 18").await;
        assert!(matches!(store.standing(&claim, identity).await, Err(StoreError::LeaseExpired)));
    });
}

/// Passes of several documents lock rows of the same two tables, which must not be in another order each.
#[test]
fn whoever_tells_other_documents_writes_how_its_own_cluster_is_first() {
    run(async {
        let stage = Stage::new("locks").await;
        let (claim, store) = claimed(&stage).await;
        let ids = twins(&stage, &["twin"]).await;
        let now = Pace { row: pace(), resyncs: 0, identities: Vec::new() };
        // That one more document leads to the cluster asks for the other one.
        store.save(&claim, &Writes::default(), Some(&now)).await.expect("it is held");
        stage.run(&has(&ids[0], &waiting().object, false)).await;
        let elsewhere = stage.place.client(integration::postgres::ADMIN).await.expect("a connection");
        let lock = format!("begin; select from towline_pace where cluster = '{}' for update", claim.cluster);
        elsewhere.batch_execute(&lock).await.expect("it is locked");
        let saved = tokio::spawn(async move {
            let drops = Writes { applied: vec![waiting()], ..Writes::default() };
            let sharing = Sharing { identity: now.row.identity.as_deref(), unless_shared: false };
            store.save_in(&claim, &drops, Some(&now), &sharing).await
        });
        let waits =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        stage.becomes("the pass to wait for the row of its cluster", waits, 1).await;
        let free = "select count(*) from (select from towline_work where token = 0 for update skip locked) w";
        assert_eq!(stage.number(free).await, 1);
        elsewhere.batch_execute("commit").await.expect("it is committed");
        saved.await.expect("no panic").expect("it is held");
        assert_eq!(stage.number("select wanted from towline_work where token = 0").await, 2);
    });
}

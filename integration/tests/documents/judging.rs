//! The guard against mass deletions: what the dispatcher holds, what lets it go, and what a pass may delete meanwhile.

use serde_json::{Value, json};
use towline::documents::{Change, Expected, Item, Kind};
use towline::syncset::dispatch::{Dispatch, HeldSyncset, approve, held};
use towline::syncset::rules::guard::Cause;
use towline::syncset::rules::wanted::Deletions;
use towline::syncset::store::PassStore;

use crate::dispatch::{CURSOR, Leader, NEWEST, asked, document, removal, statements};
use crate::world::{Stage, Written, cluster, item, run};

const PROD: [(&str, &str); 1] = [("env", "prod")];
const TEST: [(&str, &str); 1] = [("env", "test")];
const APPROVE: &str = "towline.dev/approve-deletions";

/// A database with clusters, and a dispatcher.
struct Court {
    stage: Stage,
    writer: Written,
    leader: Leader,
    store: PassStore,
}

/// A selector with so many config maps and further resources.
fn selector(generation: i64, selects: &Value, maps: usize, further: &[Value]) -> Item {
    let mut resources: Vec<Value> = (0..maps)
        .map(|n| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n}"), "namespace": "default"}}))
        .collect();
    resources.extend(further.iter().cloned());
    let data = json!({"spec": {"clusterDeploymentSelector": selects, "clusterNamespaces": ["*"], "resourceApplyMode": "Sync",
        "resources": resources, "patches": [], "secretMappings": []}});
    document(Kind::SelectorSyncSet, "base", generation, data, &[])
}

fn of_env(env: &str) -> Value {
    json!({"matchLabels": {"env": env}})
}

fn annotated(mut item: Item, value: &str) -> Item {
    if let Some(row) = item.changes.first_mut().and_then(|change| change.row.as_mut()) {
        row.annotations.insert(APPROVE.to_owned(), value.to_owned());
    }
    item
}

fn with(mut item: Item, pointer: &str, value: Value) -> Item {
    let row = item.changes.first_mut().and_then(|change| change.row.as_mut()).expect("a document");
    let mut data = Value::Object(std::mem::take(&mut row.data));
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    data.pointer_mut(parent).expect("a parent")[field] = value;
    let Value::Object(data) = data else { panic!("an object") };
    row.data = data;
    item
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}})
}

impl Court {
    /// So many clusters with the label `env=prod`, and the syncset `base`, which selects them and has sent ten config maps to each.
    async fn new(name: &str, clusters: usize) -> Self {
        let stage = Stage::new(name).await;
        let writer = stage.writer();
        for number in 0..clusters {
            writer.version(document(Kind::Cluster, &format!("c{number}"), 1, json!({}), &PROD)).await;
        }
        let leader = Leader::of(&stage).await;
        let store = PassStore::new(stage.database());
        let court = Self { stage, writer, leader, store };
        court.changes(selector(1, &of_env("prod"), 10, &[])).await;
        court.applied().await;
        court
    }

    /// Passes have sent the syncset's objects to the clusters that match it.
    async fn applied(&self) {
        self.stage
            .run(
                "insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'm' || n, s.id, 'v1', null, true, true, false, null, null, null, 0 \
                 from clusters c, selectorsyncsets s, generate_series(0, 9) n where c.labels->>'env' = 'prod' on conflict do nothing",
            )
            .await;
    }

    /// Passes have deleted them from the clusters that do not match, as far as they may.
    async fn deleted(&self) -> usize {
        let mut count = 0;
        for id in self.ids("select id::text from clusters where labels->>'env' <> 'prod' order by name").await {
            if self.deletions_on(&id).await == Deletions::Allowed {
                let text = format!("delete from towline_applied where cluster = '{id}'");
                count += self.stage.sql.execute(&text, &[]).await.expect("rows").min(1);
            }
        }
        usize::try_from(count).expect("small")
    }

    async fn ids(&self, text: &str) -> Vec<String> {
        self.stage.sql.query(text, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
    }

    async fn writes(&self, item: Item) {
        self.writer.version(item).await;
    }

    /// Writes, and dispatches.
    async fn changes(&self, item: Item) -> u64 {
        self.writes(item).await;
        self.leader.all().await
    }

    async fn relabels(&self, number: usize, labels: &[(&str, &str)]) {
        self.writes(document(Kind::Cluster, &format!("c{number}"), 1, json!({}), labels)).await;
    }

    /// What is held: on how many clusters of how many, and why.
    async fn held(&self) -> Option<(usize, usize, Cause)> {
        let held: Vec<HeldSyncset> = held(&self.stage.database()).await.expect("a list");
        assert!(
            held.len() <= 1 && held.iter().all(|held| held.label() == "SelectorSyncSet base" && held.since.is_some())
        );
        held.first().map(|held| (held.clusters, held.tracks, held.cause))
    }

    /// What a pass over this cluster may do with what the syncset no longer wants.
    async fn deletions_on(&self, cluster: &str) -> Deletions {
        let snapshot = self.store.snapshot(cluster.parse().expect("an id")).await.expect("a snapshot");
        let syncset = self.ids("select distinct syncset::text from towline_applied").await;
        snapshot.deletions(syncset.first().expect("a syncset").parse().expect("an id"))
    }

    async fn deletions(&self) -> Deletions {
        let id = self.ids("select id::text from clusters where name = 'c0'").await;
        self.deletions_on(id.first().expect("a cluster")).await
    }
}

#[test]
fn a_typo_that_matches_nothing_is_held_as_a_whole_until_it_is_taken_back() {
    run(async {
        let court = Court::new("typo", 12).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        assert_eq!(court.changes(selector(2, &of_env("prodd"), 10, &[])).await, 12);
        assert_eq!(court.held().await, Some((12, 12, Cause::Unmatched)));
        assert_eq!(court.deletions().await, Deletions::Held);
        // Neither another edit nor a judgement of everything lets it go.
        court.changes(selector(3, &of_env("prodd"), 12, &[])).await;
        court.stage.run("update towline_guard set since = since - interval '2 h'; update towline_lost set at = at - interval '2 h'").await;
        let newest = court.stage.number(NEWEST).await;
        court
            .stage
            .run(&format!(
                "update towline_meta set base = {newest} + 1; select setval('towline_version', {newest} + 1)"
            ))
            .await;
        assert!(court.leader.turn().await.was_gap);
        court.leader.dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Unmatched)), Deletions::Held));
        asked(&court.stage).await;
        court.changes(selector(4, &of_env("prod"), 12, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        assert_eq!(asked(&court.stage).await.len(), 12);
        assert_eq!(court.stage.number("select count(*) from towline_lost").await, 0);
    });
}

#[test]
fn clusters_that_lose_their_labels_one_by_one_lose_objects_until_the_limit_is_reached() {
    run(async {
        let court = Court::new("wiped", 30).await;
        let mut deleted = 0;
        for number in 0..30 {
            court.relabels(number, &TEST).await;
            court.leader.all().await;
            deleted += court.deleted().await;
        }
        assert_eq!((deleted, court.held().await), (10, Some((30, 30, Cause::Unmatched))));
        // Labels come back on all but one of those where the objects still are.
        asked(&court.stage).await;
        for number in 11..30 {
            court.relabels(number, &PROD).await;
        }
        assert_eq!((court.leader.all().await, court.held().await), (19, Some((11, 30, Cause::Unmatched))));
        // Also if fewer count than may be lost: a repair takes its time.
        court.stage.run("update towline_lost set at = at - interval '1 h' where (cluster, syncset) not in (select cluster, syncset from towline_applied)").await;
        court.relabels(11, &[("env", "prod"), ("x", "y")]).await;
        court.relabels(10, &[("env", "test"), ("x", "y")]).await;
        court.leader.all().await;
        court.leader.dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
        assert_eq!(court.held().await, Some((1, 20, Cause::Unmatched)));
        court.stage.run("update towline_lost set at = now()").await;
        assert_eq!(court.deleted().await, 0);
        asked(&court.stage).await;
        court.relabels(10, &PROD).await;
        court.leader.all().await;
        assert_eq!((court.held().await, asked(&court.stage).await.len()), (None, 20), "all where it tracks objects");
        assert_eq!(court.deleted().await, 0);
        // What was lost counts for ten minutes, and then the next may go.
        court.relabels(10, &TEST).await;
        court.leader.all().await;
        assert_eq!(court.held().await, Some((11, 30, Cause::Unmatched)));
        court.relabels(10, &PROD).await;
        court.leader.all().await;
        court.stage.run("update towline_lost set at = at - interval '10 min'").await;
        court.relabels(10, &TEST).await;
        court.leader.all().await;
        assert_eq!((court.held().await, court.deleted().await), (None, 1));
        court.leader.dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
        assert_eq!(court.stage.number("select count(*) from towline_lost").await, 1);
    });
}

#[test]
fn a_loss_that_was_carried_out_and_mended_does_not_hide_the_next_one() {
    run(async {
        let court = Court::new("mended_loss", 12).await;
        let lost = "select count(*) from towline_lost";
        // The labels of one cluster after the other are lost for a while, and its objects with them.
        for number in 0..12 {
            court.relabels(number, &TEST).await;
            court.leader.all().await;
            assert_eq!((court.held().await, court.deleted().await), (None, 1));
            court.relabels(number, &PROD).await;
            court.leader.all().await;
            court.applied().await;
            court.stage.run("update towline_lost set at = at - interval '9 min'").await;
            court.leader.dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
        }
        assert_eq!(court.stage.number(lost).await, 1, "they count for ten minutes, whatever is tracked since");
        for number in 0..12 {
            court.relabels(number, &TEST).await;
        }
        court.leader.all().await;
        assert_eq!((court.held().await, court.deleted().await), (Some((12, 12, Cause::Unmatched)), 0));
    });
}

#[test]
fn a_loss_that_was_approved_does_not_hide_the_next_one() {
    run(async {
        let court = Court::new("approved_before", 12).await;
        for generation in [2, 4] {
            court.changes(selector(generation, &of_env("none"), 10, &[])).await;
            assert_eq!(court.held().await, Some((12, 12, Cause::Unmatched)), "generation {generation}");
            approve(&court.stage.database(), None).await.expect("it is approved");
            court.stage.run("delete from towline_applied").await;
            court.changes(selector(generation + 1, &of_env("prod"), 10, &[])).await;
            court.applied().await;
        }
        for number in 0..12 {
            court.relabels(number, &TEST).await;
        }
        court.leader.all().await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Unmatched)));
    });
}

#[test]
fn labels_that_are_wiped_at_once_delete_nothing() {
    run(async {
        let court = Court::new("wiped_at_once", 30).await;
        for number in 0..30 {
            court.relabels(number, &TEST).await;
        }
        let turn = court.leader.turn().await;
        assert_eq!((turn.changes, turn.held, turn.released), (30, 1, 0));
        assert_eq!((court.held().await, court.deleted().await), (Some((30, 30, Cause::Unmatched)), 0));
    });
}

#[test]
fn a_syncset_that_is_deleted_by_mistake_keeps_its_objects_until_it_is_approved_by_name() {
    run(async {
        let court = Court::new("deleted", 12).await;
        court.changes(removal(Kind::SelectorSyncSet, "base")).await;
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Gone)), Deletions::Held));
        // That clusters go takes nothing back.
        court.changes(item(vec![Change::delete(&cluster("c11"), Expected::Any)])).await;
        court.changes(item(vec![Change::delete(&cluster("c10"), Expected::Any)])).await;
        court.leader.dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
        let database = court.stage.database();
        for other in ["other", "foo/base", "Base"] {
            assert_eq!(approve(&database, Some(other)).await.expect("nothing"), [], "{other}");
        }
        assert_eq!(court.deletions().await, Deletions::Held);
        asked(&court.stage).await;
        let approved = approve(&database, Some("base")).await.expect("it is approved");
        assert_eq!(approved.len(), 1);
        assert!(approved[0].as_object().reason.contains("it was deleted"), "{approved:?}");
        assert_eq!(asked(&court.stage).await.len(), 10);
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        // The row stays as long as anybody may have to delete something.
        let guards = "select count(*) from towline_guard where gone";
        for (change, expected) in [
            ("update towline_guard set since = since - interval '2 h'", 1),
            ("update towline_guard set since = now(); delete from towline_applied", 1),
            ("update towline_guard set since = since - interval '2 h'", 0),
        ] {
            court.stage.run(change).await;
            court.leader.dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
            assert_eq!(court.stage.number(guards).await, expected, "{change}");
        }
    });
}

#[test]
fn an_edit_that_drops_much_is_held_until_it_is_taken_back_or_approved() {
    run(async {
        let court = Court::new("drops", 12).await;
        let selects = of_env("prod");
        court.changes(selector(2, &selects, 5, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "a half");
        court.changes(selector(3, &selects, 2, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Dropped)), Deletions::Held));
        court.changes(selector(4, &selects, 2, &[namespace()])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "something else is added");
        asked(&court.stage).await;
        court.changes(selector(5, &selects, 4, &[namespace()])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "most are there again");
        assert_eq!(asked(&court.stage).await.len(), 12);
        court.changes(selector(6, &selects, 4, &[])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "the namespace");
        let approved = approve(&court.stage.database(), None).await.expect("it is approved");
        assert_eq!((approved.len(), court.deletions().await), (1, Deletions::Allowed));
        court.changes(selector(7, &selects, 4, &[])).await;
        assert_eq!(court.held().await, None, "what was approved is not judged again");
        court.changes(selector(8, &selects, 1, &[])).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "another edit is");
    });
}

#[test]
fn a_detour_over_upsert_drops_nothing() {
    run(async {
        let court = Court::new("detour", 12).await;
        let selects = of_env("prod");
        for maps in [0, 3] {
            let detour = with(selector(2, &selects, maps, &[]), "/spec/resourceApplyMode", json!("Upsert"));
            court.changes(detour).await;
            assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed), "it deletes nothing");
            court.changes(selector(3, &selects, maps, &[])).await;
            assert_eq!(
                (court.held().await, court.deletions().await),
                (Some((12, 12, Cause::Dropped)), Deletions::Held)
            );
        }
        // Once nobody tracks anything, there is nothing to delete.
        court.changes(with(selector(4, &selects, 0, &[]), "/spec/resourceApplyMode", json!("Upsert"))).await;
        court.stage.run("update towline_applied set tracked = false").await;
        court.changes(with(selector(5, &selects, 1, &[]), "/spec/resourceApplyMode", json!("Upsert"))).await;
        court.stage.run("update towline_applied set tracked = name = 'm0'").await;
        court.changes(selector(6, &selects, 1, &[])).await;
        assert_eq!(court.held().await, None);
    });
}

#[test]
fn an_annotation_approves_its_generation_once_and_always_as_long_as_it_is_there() {
    run(async {
        let court = Court::new("annotated", 12).await;
        let (none, prod) = (of_env("none"), of_env("prod"));
        court.changes(annotated(selector(2, &none, 10, &[]), "1")).await;
        assert!(court.held().await.is_some(), "another generation");
        asked(&court.stage).await;
        court.changes(annotated(selector(2, &none, 10, &[]), "2")).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        assert_eq!(asked(&court.stage).await.len(), 12);
        court.changes(annotated(selector(3, &prod, 10, &[]), "2")).await;
        court.changes(annotated(selector(4, &prod, 1, &[]), "4")).await;
        assert_eq!(court.held().await, None, "it comes with the edit");
        // What happens later at this generation was not known.
        for number in 0..12 {
            court.relabels(number, &TEST).await;
        }
        court.leader.all().await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Unmatched)));
        court.changes(annotated(selector(4, &prod, 1, &[]), "always")).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        for labels in [&PROD, &TEST] {
            for number in 0..12 {
                court.relabels(number, labels).await;
            }
            court.leader.all().await;
            assert_eq!(court.held().await, None);
        }
        court.changes(removal(Kind::SelectorSyncSet, "base")).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn a_syncset_that_names_fewer_clusters_is_held() {
    run(async {
        let court = Court::new("refs", 12).await;
        let names = |generation: i64, count: usize| {
            let refs: Vec<Value> = (0..count).map(|n| json!({"name": format!("c{n}")})).collect();
            let data = json!({"spec": {"clusterDeploymentRefs": refs, "resourceApplyMode": "Sync", "resources": [], "patches": [],
                "secretMappings": []}});
            document(Kind::SyncSet, "named", generation, data, &[])
        };
        court.changes(names(1, 12)).await;
        court
            .stage
            .run(
                "delete from towline_applied; insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'm', s.id, 'v1', null, \
                 true, true, false, null, null, null, 0 from clusters c, syncsets s",
            )
            .await;
        court.changes(names(2, 2)).await;
        assert_eq!(held(&court.stage.database()).await.expect("a list"), [], "ten of twelve");
        court.changes(names(3, 1)).await;
        let held = held(&court.stage.database()).await.expect("a list");
        assert_eq!((held[0].clusters, held[0].tracks, held[0].argument().as_str()), (11, 12, "foo/named"));
        let approved = approve(&court.stage.database(), Some("foo/named")).await.expect("it is approved");
        assert_eq!(approved, held);
    });
}

#[test]
fn many_syncsets_of_one_turn_are_all_judged_before_the_cursor_moves() {
    run(async {
        let court = Court::new("many", 1).await;
        for number in 0..35 {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            court.writes(document(Kind::SyncSet, &format!("s{number}"), 1, data, &[])).await;
        }
        assert_eq!(court.leader.turn().await.changes, 35);
        let judged =
            "select count(*) from towline_guard g join syncsets s on s.id = g.syncset where g.judged >= s.version";
        assert_eq!(court.stage.number(judged).await, 35);
        assert_eq!(court.stage.number(CURSOR).await, court.stage.number(NEWEST).await);
    });
}

#[test]
fn nothing_is_deleted_ahead_of_the_dispatcher() {
    run(async {
        let court = Court::new("lagging", 12).await;
        // Neither a cluster without its labels, nor a syncset that matches nothing, drops everything or is gone.
        court.relabels(0, &TEST).await;
        assert_eq!(court.deletions().await, Deletions::NotJudged);
        court.leader.all().await;
        assert_eq!(court.deletions().await, Deletions::Allowed, "one of twelve");
        for item in [
            selector(2, &of_env("none"), 10, &[]),
            selector(3, &of_env("prod"), 0, &[]),
            removal(Kind::SelectorSyncSet, "base"),
        ] {
            court.writes(item).await;
            assert_eq!(court.deletions().await, Deletions::NotJudged);
        }
        // A cursor alone is no permission.
        let cursor = court.stage.number(CURSOR).await;
        court.stage.run("update towline_claim set cursor = cursor + 100 where name = 'dispatcher'").await;
        assert_eq!(court.deletions().await, Deletions::NotJudged);
        court.stage.run(&format!("update towline_claim set cursor = {cursor} where name = 'dispatcher'")).await;
        court.leader.all().await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Gone)));
        // Another syncset of that name is another one.
        court.changes(selector(1, &of_env("prod"), 10, &[])).await;
        assert_eq!(court.deletions().await, Deletions::Held);
    });
}

#[test]
fn what_was_applied_between_two_judgements_is_not_dropped_unseen() {
    run(async {
        let court = Court::new("between", 12).await;
        let selects = of_env("prod");
        court.changes(selector(2, &selects, 5, &[])).await;
        court.stage.run("delete from towline_applied where name >= 'm5'").await;
        // Passes apply what a document says before the dispatcher has read it.
        court.writes(selector(3, &selects, 5, &[namespace()])).await;
        court.writes(selector(4, &selects, 5, &[])).await;
        court.leader.all().await;
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Dropped)), Deletions::Held));
        court.changes(annotated(selector(4, &selects, 5, &[]), "x")).await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "nothing was taken back");
        court.changes(selector(5, &selects, 5, &[namespace()])).await;
        assert_eq!(court.held().await, None);
        // The same where the log has a gap, or nothing was judged before.
        for change in ["select 1", "delete from towline_guard"] {
            court.changes(selector(6, &selects, 5, &[])).await;
            approve(&court.stage.database(), None).await.expect("approved");
            court.applied().await;
            court.writes(selector(7, &selects, 4, &[])).await;
            court.stage.run(change).await;
            let newest = court.stage.number(NEWEST).await;
            court.stage.run(&format!("update towline_meta set base = {newest}")).await;
            assert!(court.leader.turn().await.was_gap);
            assert_eq!(court.held().await, Some((12, 12, Cause::Dropped)), "{change}");
            court.changes(selector(8, &selects, 10, &[])).await;
        }
    });
}

#[test]
fn a_gap_in_the_log_hides_no_deletion() {
    run(async {
        let court = Court::new("gap", 12).await;
        let gap = async || {
            let newest = court.stage.number(NEWEST).await;
            court.stage.run(&format!("update towline_meta set base = {newest}")).await;
            assert!(court.leader.turn().await.was_gap);
        };
        court.writes(selector(2, &of_env("prod"), 1, &[])).await;
        gap().await;
        assert_eq!((court.held().await, court.deletions().await), (Some((12, 12, Cause::Dropped)), Deletions::Held));
        court.writes(selector(3, &of_env("prod"), 10, &[])).await;
        gap().await;
        assert_eq!(court.held().await, None);
        for number in 0..12 {
            court.relabels(number, &TEST).await;
        }
        gap().await;
        assert_eq!(court.held().await, Some((12, 12, Cause::Unmatched)));
        // One that was never judged, and is gone.
        court.writes(removal(Kind::SelectorSyncSet, "base")).await;
        court.stage.run("delete from towline_guard; delete from towline_lost").await;
        gap().await;
        let found = held(&court.stage.database()).await.expect("a list");
        assert_eq!(found.iter().map(|held| held.cause).collect::<Vec<_>>(), [Cause::Gone]);
        assert_eq!(approve(&court.stage.database(), Some(&found[0].argument())).await.expect("approved").len(), 1);
        assert_eq!(court.deletions().await, Deletions::Allowed);
    });
}

#[test]
fn what_can_not_be_read_is_held_and_nobody_approves_it() {
    run(async {
        let court = Court::new("unreadable", 3).await;
        let newer = json!({"matchExpressions": [{"key": "env", "operator": "Above", "values": ["1"]}]});
        court.changes(annotated(selector(2, &newer, 10, &[]), "2")).await;
        assert_eq!(court.held().await, Some((0, 3, Cause::Unreadable)));
        assert_eq!(approve(&court.stage.database(), None).await.expect("nothing"), []);
        assert_eq!(court.deletions().await, Deletions::Held);
        court.changes(selector(3, &of_env("prod"), 10, &[])).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn an_approval_is_not_used_up_while_it_can_not_be_read() {
    run(async {
        let court = Court::new("used_up", 12).await;
        let newer = json!({"matchExpressions": [{"key": "env", "operator": "Above", "values": ["1"]}]});
        court.changes(annotated(selector(2, &newer, 10, &[]), "2")).await;
        assert_eq!(court.held().await, Some((0, 12, Cause::Unreadable)));
        court.changes(annotated(selector(2, &of_env("none"), 10, &[]), "2")).await;
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn what_can_be_read_by_now_is_judged_again_when_a_grant_begins() {
    run(async {
        let court = Court::new("readable", 12).await;
        // As a release left it that could not read the document.
        court.stage.run("update towline_guard set held = true, cause = 'unreadable'").await;
        asked(&court.stage).await;
        court.leader.all().await;
        assert_eq!((court.held().await, court.deletions().await), (Some((0, 0, Cause::Unreadable)), Deletions::Held));
        let turn = court.leader.dispatch.review(&court.leader.grant).await.expect("a review");
        assert_eq!((turn.released, turn.held, asked(&court.stage).await.len()), (1, 0, 12));
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
    });
}

#[test]
fn an_approval_that_was_revoked_does_not_approve_a_deletion() {
    run(async {
        for (annotation, expected) in [("never", Some((12, 12, Cause::Gone))), ("always", None)] {
            let court = Court::new(&format!("revoked_{annotation}"), 12).await;
            let other = if annotation == "always" { "never" } else { "always" };
            court.changes(annotated(selector(1, &of_env("prod"), 10, &[]), other)).await;
            court.writes(annotated(selector(1, &of_env("prod"), 10, &[]), annotation)).await;
            court.changes(removal(Kind::SelectorSyncSet, "base")).await;
            assert_eq!(court.held().await, expected, "{annotation}");
        }
    });
}

#[test]
fn without_the_guard_everything_is_judged_and_nothing_is_held() {
    run(async {
        let court = Court::new("unguarded", 12).await;
        court.changes(selector(2, &of_env("none"), 10, &[])).await;
        assert_eq!(court.deletions().await, Deletions::Held);
        let dispatch: Dispatch = court.leader.dispatch.clone().unguarded();
        dispatch.tidy(&court.leader.grant).await.expect("it is tidied");
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
        court.writes(removal(Kind::SelectorSyncSet, "base")).await;
        assert_eq!(court.deletions().await, Deletions::NotJudged);
        dispatch.turn(&court.leader.grant).await.expect("a turn");
        assert_eq!((court.held().await, court.deletions().await), (None, Deletions::Allowed));
    });
}

/// 10,000 clusters with 5 objects of one syncset each.
#[test]
fn judging_costs_the_same_statements_however_many_clusters_there_are() {
    run(async {
        let stage = Stage::new("judged").await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let leader = Leader::of(&stage).await;
        let (writer, selects) = (stage.writer(), of_env("prod"));
        writer.version(selector(1, &selects, 5, &[])).await;
        leader.all().await;
        stage
            .run(
                "insert into towline_documents select 'clusters', gen_random_uuid(), 'foo', 'n' || n, '{\"env\": \"prod\"}', '{}', \
                 '{}', 1, 1, now(), now(), null, '{}', '{}' from generate_series(1, 10000) n; \
                 insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'm' || n, s.id, 'v1', null, true, true, false, null, null, null, 0 \
                 from clusters c, selectorsyncsets s, generate_series(0, 4) n; analyze",
            )
            .await;
        let texts = [
            "select i.id::text, d.id",
            "select i.id::text, t.cluster",
            "with again as",
            "insert into towline_guard",
            "with changed as materialized (select c.id",
            "select i.id::text, g.kind",
            "update towline_guard g",
        ];
        let counts = async || {
            let mut counts = Vec::new();
            for text in texts {
                counts.push(statements(&stage, text).await);
            }
            counts
        };
        for (item, expected, is_held) in [
            (selector(2, &selects, 4, &[]), [1, 1, 0, 1, 0, 0, 0], false),
            (document(Kind::Cluster, "n1", 1, json!({}), &TEST), [0, 0, 1, 0, 1, 1, 0], false),
            (document(Kind::Cluster, "n1", 1, json!({}), &[("env", "test"), ("x", "y")]), [0, 0, 0, 0, 1, 1, 0], false),
            (document(Kind::Cluster, "n2", 1, json!({}), &[("env", "prod"), ("x", "y")]), [0, 0, 0, 0, 1, 0, 0], false),
            (selector(3, &of_env("none"), 4, &[]), [1, 1, 1, 1, 0, 0, 0], true),
        ] {
            writer.version(item).await;
            let before = counts().await;
            let turn = leader.turn().await;
            assert_eq!((turn.changes, turn.held == 1), (1, is_held));
            let after = counts().await;
            let spent: Vec<i64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
            assert_eq!(spent, expected, "{texts:?}");
        }
        let held = held(&stage.database()).await.expect("a list");
        assert_eq!((held[0].clusters, held[0].tracks), (10_000, 10_000));
        // The server believes that the table of what is lost is empty.
        writer.version(selector(4, &of_env("nothing"), 4, &[])).await;
        assert_eq!(leader.turn().await.asked, 0);
        // One has lost its label by itself.
        writer.version(document(Kind::Cluster, "n1", 1, json!({}), &PROD)).await;
        writer.version(selector(5, &selects, 4, &[])).await;
        assert_eq!(leader.turn().await.released, 1);
    });
}

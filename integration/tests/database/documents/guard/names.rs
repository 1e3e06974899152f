//! Clusters that still match after other labels have given objects other names.

use serde_json::{Value, json};
use towline::test_api::documents::{Item, Kind};
use towline::test_api::syncset::dispatch::suspended;
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{PROD, TEST, World, approve, of_env, selector, with};
use crate::documents::dispatch::{NEWEST, document};
use crate::documents::world::run;

const LOST: &str = "select count(*) from towline_lost";

/// A config map whose name has the cluster's region.
fn by_region(generation: i64) -> Item {
    let name = "site-{{ fromCDLabel \"region\" }}";
    let site = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
    with(selector(generation, &of_env("prod"), 0, &[site]), "/spec/enableResourceTemplates", json!(true))
}

fn in_region(region: &str) -> [(&str, &str); 2] {
    [("env", "prod"), ("region", region)]
}

/// So many clusters in region `a`, to which passes have applied the syncset.
async fn regional(name: &str, clusters: usize) -> World {
    let world = World::new(name, 0).await;
    for number in 0..clusters {
        world.relabels(number, &in_region("a")).await;
    }
    world.changes(by_region(2)).await;
    assert_eq!(passed(&world).await, 0);
    world
}

/// Passes apply the syncset, and delete what it names no more where they may. Returns on how many clusters they have.
async fn passed(world: &World) -> usize {
    world
        .stage
        .run(
            "update towline_applied set wanted = false; \
             insert into towline_applied select c.id, '', 'ConfigMap', 'default', n.name, s.id, 'v1', null, true, true, false, null, null, null, 0 \
             from clusters c, selectorsyncsets s, lateral (values ('site-' || (c.labels->>'region'))) n(name) \
             where c.labels->>'env' = 'prod' and n.name is not null \
             on conflict (cluster, api_group, kind, namespace, name, syncset) do update set wanted = true",
        )
        .await;
    world.deleted_where("not a.wanted").await
}

async fn all_in(world: &World, numbers: std::ops::Range<usize>, region: &str) {
    for number in numbers {
        world.relabels(number, &in_region(region)).await;
    }
}

/// The log loses what was not dispatched, if anything.
async fn gap(world: &World) {
    let newest = world.stage.number(NEWEST).await;
    let text = format!("update towline_meta set base = {newest} + 1; select setval('towline_version', {newest} + 1)");
    world.stage.run(&text).await;
    assert!(world.leader.batch().await.was_gap);
}

#[test]
fn clusters_that_are_relabelled_one_by_one_lose_objects_until_the_limit_is_reached() {
    run(async {
        let world = regional("renamed", 30).await;
        let mut deleted = 0;
        for numbers in (0..12).map(|number| number..number + 1).chain(std::iter::once(12..30)) {
            all_in(&world, numbers, "b").await;
            world.leader.all().await;
            deleted += passed(&world).await;
        }
        assert_eq!((deleted, world.suspended().await), (10, Some((30, 30, Cause::Many))));
        // One that is matched no more counts, too.
        world.relabels(29, &TEST).await;
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((30, 30, Cause::Many)));
        // When the labels come back, the objects under the other names are deleted, and these deletions count.
        all_in(&world, 11..30, "a").await;
        world.leader.all().await;
        assert_eq!((world.suspended().await, passed(&world).await), (Some((30, 30, Cause::Many)), 0));
        approve(&world.stage.database(), None).await.expect("it is approved");
        assert_eq!((world.suspended().await, passed(&world).await), (None, 20));
        let names = "select count(*) from towline_applied a join clusters c on c.id = a.cluster \
             where a.name = 'site-' || (c.labels->>'region')";
        assert_eq!(world.stage.number(names).await, 30);
        assert_eq!(world.stage.number("select count(*) from towline_applied").await, 30, "and nothing else");
        all_in(&world, 20..21, "b").await;
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((11, 30, Cause::Many)), "ten have lost objects before");
    });
}

#[test]
fn clusters_that_are_relabelled_at_once_delete_nothing_until_that_is_approved() {
    run(async {
        let world = regional("renamed_at_once", 12).await;
        for region in ["b", "a"] {
            all_in(&world, 0..12, region).await;
            let batch = world.leader.batch().await;
            assert_eq!((batch.changes, batch.suspended), (12, 1));
            assert_eq!((world.suspended().await, passed(&world).await), (Some((12, 12, Cause::Many)), 0));
            // Neither other labels, nor an edit, nor a check of everything lets it go.
            for number in 0..12 {
                world.relabels(number, &[("env", "prod"), ("region", region), ("x", "y")]).await;
            }
            world.changes(by_region(if region == "b" { 3 } else { 4 })).await;
            gap(&world).await;
            world.tidied().await;
            assert_eq!((world.suspended().await, passed(&world).await), (Some((12, 12, Cause::Many)), 0));
            approve(&world.stage.database(), None).await.expect("it is approved");
            // The way back is another change.
            assert_eq!((world.suspended().await, passed(&world).await), (None, 12));
        }
    });
}

#[test]
fn labels_that_are_restored_before_a_pass_leave_nothing_behind() {
    run(async {
        let world = regional("regained", 12).await;
        all_in(&world, 0..12, "b").await;
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
        all_in(&world, 0..12, "a").await;
        world.leader.all().await;
        assert_eq!((world.suspended().await, world.stage.number(LOST).await, passed(&world).await), (None, 0, 0));
    });
}

#[test]
fn a_gap_in_the_log_hides_no_other_name() {
    run(async {
        let world = regional("renamed_in_a_gap", 12).await;
        gap(&world).await;
        assert_eq!(world.suspended().await, None);
        all_in(&world, 0..12, "b").await;
        gap(&world).await;
        assert_eq!((world.suspended().await, passed(&world).await), (Some((12, 12, Cause::Many)), 0));
    });
}

#[test]
fn what_is_not_deleted_does_not_count() {
    run(async {
        let world = regional("not_renamed", 12).await;
        // While a name does not render, everything of its kind stays.
        all_in(&world, 0..12, "a/b").await;
        world.leader.all().await;
        assert_eq!((world.suspended().await, world.stage.number(LOST).await), (None, 0));
        // Without the label it does, to another name.
        for number in 0..12 {
            world.relabels(number, &PROD).await;
        }
        world.leader.all().await;
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
        all_in(&world, 0..12, "a").await;
        world.leader.all().await;
        assert_eq!((world.suspended().await, world.stage.number(LOST).await), (None, 0));
        // Adopted objects are never deleted.
        world.stage.run("update towline_applied set adopted = true where name = 'site-a'").await;
        all_in(&world, 0..12, "b").await;
        world.leader.all().await;
        assert_eq!((world.suspended().await, world.stage.number(LOST).await), (None, 0));
        world.stage.run("update towline_applied set adopted = false").await;
        // Nor does anything count of a syncset that deletes nothing, or names nothing by labels.
        let upsert = with(by_region(3), "/spec/resourceApplyMode", json!("Upsert"));
        let plain = with(by_region(4), "/spec/resources/0/metadata/name", json!("site-a"));
        for item in [upsert, plain] {
            world.changes(item).await;
            for region in ["c", "d"] {
                all_in(&world, 0..12, region).await;
                world.leader.all().await;
            }
            assert_eq!((world.suspended().await, world.stage.number(LOST).await), (None, 0));
        }
    });
}

#[test]
fn a_syncset_that_names_clusters_is_checked_by_their_labels() {
    run(async {
        let world = regional("renamed_refs", 12).await;
        let refs: Vec<Value> = (0..12).map(|number| json!({"name": format!("c{number}")})).collect();
        let site = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "{{ fromCDLabel \"region\" }}"}});
        let data = json!({"spec": {"clusterDeploymentRefs": refs, "resourceApplyMode": "Sync", "enableResourceTemplates": true,
            "resources": [site], "patches": [], "secretMappings": []}});
        world.changes(document(Kind::SyncSet, "named", 1, data, &[])).await;
        world
            .stage
            .run(
                "delete from towline_applied; insert into towline_applied select c.id, '', 'ConfigMap', 'a', 'x', s.id, 'v1', null, \
                 true, true, false, null, null, null, 0 from clusters c, syncsets s",
            )
            .await;
        all_in(&world, 0..12, "b").await;
        world.leader.all().await;
        let suspended = suspended(&world.stage.database()).await.expect("a list");
        let found: Vec<_> = suspended
            .iter()
            .map(|suspended| (suspended.argument(), suspended.clusters, suspended.tracks, suspended.cause))
            .collect();
        assert_eq!(found, [("foo/named".to_owned(), 12, 12, Cause::Many)]);
        assert_eq!(world.deletions().await, Deletions::Suspended);
    });
}

#[test]
fn labels_that_change_while_a_syncset_can_not_be_read_are_checked_once_it_can() {
    run(async {
        let world = regional("renamed_unread", 12).await;
        let newer = json!({"matchExpressions": [{"key": "env", "operator": "Above", "values": ["1"]}]});
        world.changes(with(by_region(3), "/spec/clusterDeploymentSelector", newer)).await;
        assert_eq!(world.suspended().await, Some((0, 12, Cause::Unreadable)));
        all_in(&world, 0..12, "b").await;
        world.leader.all().await;
        world.changes(by_region(4)).await;
        assert_eq!((world.suspended().await, passed(&world).await), (Some((12, 12, Cause::Many)), 0));
    });
}

//! Checks that take too long for a batch, or fail: they keep no other change waiting, and nothing is deleted before they are made.

use serde_json::json;
use towline::test_api::documents::{Item, Kind};
use towline::test_api::syncset::dispatch::{Aside, Batch, Dispatch};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{World, annotated, namespace, of_env, selector};
use crate::documents::dispatch::{CURSOR, NEWEST, asked, document, statements};
use crate::documents::world::run;

const ASIDE: &str = "select count(*) from towline_guard where checked < 0";

/// A change of another namespace.
fn another(generation: i64) -> Item {
    let data = json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
    document(Kind::SyncSet, "another", generation, data, &[])
}

impl World {
    /// One after a start of the dispatcher: nothing of the one before is known.
    async fn checked_aside(&self) -> Option<Batch> {
        let dispatch = Dispatch::new(self.stage.database());
        dispatch.check_aside(&self.leader.grant, &mut Aside::default()).await.expect("a check")
    }

    /// The next batch passes all changes and sets so many checks aside.
    async fn sets_aside(&self, count: usize) {
        assert_eq!(self.leader.batch().await.aside, count);
        assert_eq!(self.stage.number(CURSOR).await, self.stage.number(NEWEST).await, "others do not wait");
    }
}

#[test]
fn a_syncset_with_more_objects_than_a_batch_has_room_for_is_checked_beside_it() {
    run(async {
        let mut world = World::new("many_objects", 12).await;
        // It has 120 objects.
        world.leader.dispatch = world.leader.dispatch.clone().with_room(119);
        asked(&world.stage).await;
        world.writes(selector(2, &of_env("none"), 10, &[])).await;
        world.writes(another(1)).await;
        world.sets_aside(1).await;
        assert_eq!(asked(&world.stage).await.len(), 12, "what it wants is applied");
        let checked =
            "select count(*) from towline_guard g join syncsets s on s.id = g.syncset where g.checked >= s.version";
        assert_eq!(world.stage.number(checked).await, 1, "the other one is checked");
        // Until it is checked nothing is deleted, whatever else happens to it.
        assert_eq!((world.deletions().await, world.suspended().await), (Deletions::Suspended, None));
        world.relabels(3, &[("env", "prod"), ("x", "y")]).await;
        world.sets_aside(1).await;
        world.tidied().await;
        assert_eq!(world.deletions().await, Deletions::Suspended);
        // A dispatcher that was started since finds it.
        assert_eq!(world.checked_aside().await.map(|batch| batch.suspended), Some(1));
        assert_eq!(
            (world.deletions().await, world.suspended().await),
            (Deletions::Suspended, Some((12, 12, Cause::Many)))
        );
        assert_eq!(world.checked_aside().await, None);
        // The clusters are asked for when it may delete.
        world.writes(selector(3, &of_env("prod"), 10, &[])).await;
        world.sets_aside(1).await;
        asked(&world.stage).await;
        assert_eq!(world.checked_aside().await.map(|batch| batch.resumed), Some(1));
        assert_eq!((world.deletions().await, asked(&world.stage).await.len()), (Deletions::Allowed, 12));
        // With room for it nothing is set aside.
        world.leader.dispatch = world.leader.dispatch.clone().with_room(120);
        world.writes(selector(4, &of_env("prod"), 9, &[namespace()])).await;
        world.sets_aside(0).await;
        assert_eq!(world.deletions().await, Deletions::Allowed);
    });
}

#[test]
fn a_check_that_fails_is_made_again_until_it_succeeds_and_holds_up_no_other_change() {
    run(async {
        let world = World::new("failing_check", 12).await;
        let syncset = world.ids("select id::text from selectorsyncsets").await.remove(0);
        let fail = format!(
            "alter table towline_applied rename to rows; \
             create function whole(uuid) returns boolean language plpgsql as $$ \
               begin if $1 = '{syncset}' then raise 'too slow'; end if; return true; end $$; \
             create view towline_applied as select * from rows where whole(syncset)"
        );
        world.stage.run(&fail).await;
        world.writes(selector(2, &of_env("none"), 10, &[])).await;
        world.writes(another(1)).await;
        world.sets_aside(1).await;
        world.writes(another(2)).await;
        world.sets_aside(0).await;
        let mut aside = Aside::default();
        let dispatch = Dispatch::new(world.stage.database());
        for expected in [Some(Batch::default()), None] {
            let checked = dispatch.check_aside(&world.leader.grant, &mut aside).await.expect("it is isolated");
            assert_eq!(checked, expected, "it fails, and then waits");
            assert_eq!(world.stage.number(ASIDE).await, 1);
        }
        world.stage.run("drop view towline_applied; alter table rows rename to towline_applied").await;
        assert_eq!(world.checked_aside().await.map(|batch| batch.suspended), Some(1));
        assert_eq!(world.suspended().await, Some((12, 12, Cause::Many)));
    });
}

#[test]
fn checks_that_were_set_aside_take_turns_by_namespace() {
    run(async {
        let world = World::new("aside_turns", 1).await;
        let rows = "insert into towline_guard (syncset, checked, gone, held, clusters, since, kind, namespace, name) \
             select gen_random_uuid(), -n, false, false, 0, now(), 'SyncSet', case n when 4 then 'b' else 'a' end, 's' || n from generate_series(1, 4) n";
        world.stage.run(rows).await;
        let (mut aside, dispatch) = (Aside::default(), &world.leader.dispatch);
        for left in [3, 2] {
            dispatch.check_aside(&world.leader.grant, &mut aside).await.expect("a check").expect("one is left");
            assert_eq!(world.stage.number(ASIDE).await, left);
        }
        assert_eq!(
            world.stage.number(&format!("{ASIDE} and namespace = 'b'")).await,
            0,
            "the second one is of the other namespace"
        );
    });
}

/// Whoever changes an annotation each second, or the status, has nothing counted.
#[test]
fn what_the_guard_does_not_read_of_a_syncset_is_not_checked_and_forbids_nothing() {
    run(async {
        let world = World::new("unread", 12).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let noted = |note: usize| {
            let mut item = selector(1, &of_env("prod"), 10, &[]);
            let row = item.changes.first_mut().and_then(|change| change.row.as_mut()).expect("a document");
            row.annotations.insert("example.com/note".to_owned(), note.to_string());
            item
        };
        let counted = async || statements(&world.stage, "with has as materialized").await;
        let before = counted().await;
        for note in 0..20 {
            world.changes(noted(note)).await;
            assert_eq!(world.deletions().await, Deletions::Allowed, "what was decided holds for this version");
        }
        assert_eq!(counted().await, before);
        // An approval is read, and so is everything else.
        world.changes(annotated(noted(20), "1")).await;
        assert_eq!(counted().await, before + 1);
        world.changes(selector(2, &of_env("prod"), 9, &[])).await;
        assert_eq!(counted().await, before + 2);
        // What was set aside stays so.
        world.stage.run("update towline_guard set checked = -1").await;
        let mut again = selector(2, &of_env("prod"), 9, &[]);
        again
            .changes
            .first_mut()
            .and_then(|change| change.row.as_mut())
            .expect("a document")
            .annotations
            .insert("a".to_owned(), "b".to_owned());
        world.changes(again).await;
        assert_eq!((world.deletions().await, world.stage.number(ASIDE).await), (Deletions::Suspended, 1));
    });
}

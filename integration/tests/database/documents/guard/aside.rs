//! Checks that take too long for a batch, or fail: they keep no other change waiting, and nothing is deleted before they are made.

use std::sync::atomic::{AtomicBool, Ordering};

use integration::postgres::ADMIN;
use serde_json::json;
use towline::test_api::documents::{Item, Kind, open};
use towline::test_api::syncset::dispatch::{Aside, AsideCheck, Batch, Dispatch, being_counted};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;

use super::{TEST, World, annotated, of_env, selector};
use crate::documents::dispatch::{CURSOR, NEWEST, asked, document, statements};
use crate::documents::world::{run, source};

const ASIDE: &str = "select count(*) from towline_guard where checked < 0";

/// A change of another namespace.
fn another(generation: i64) -> Item {
    let data = json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
    document(Kind::SyncSet, "another", generation, data, &[])
}

impl World {
    /// One after a start of the dispatcher: nothing of the one before is known.
    async fn checked_aside(&self) -> AsideCheck {
        let dispatch = Dispatch::new(self.stage.database());
        dispatch.check_aside(&self.leader.grant, &mut Aside::default()).await.expect("a check")
    }

    /// From now on its objects can't be counted.
    async fn fails(&self) {
        let syncset = self.ids("select id::text from selectorsyncsets").await.remove(0);
        let fail = format!(
            "alter table towline_applied rename to rows; \
             create function whole(uuid) returns boolean language plpgsql as $$ \
               begin if $1 = '{syncset}' then raise 'too slow'; end if; return true; end $$; \
             create view towline_applied as select * from rows where whole(syncset)"
        );
        self.stage.run(&fail).await;
    }

    async fn mend(&self) {
        self.stage.run("drop view towline_applied; alter table rows rename to towline_applied").await;
    }

    /// The same, with this in between: after the count has begun, and before it reads anything.
    async fn checked_aside_while(&self, meanwhile: impl AsyncFnOnce()) -> AsideCheck {
        let waits = "alter table towline_applied rename to rows; \
             create function waits(uuid) returns boolean language plpgsql as $$ begin \
               if current_query() like 'with has as materialized%' then perform pg_advisory_xact_lock_shared(7); end if; return true; end $$; \
             create view towline_applied as select * from rows where waits(syncset); select pg_advisory_lock(7)";
        self.stage.run(waits).await;
        let count = "select count(*) from pg_locks where locktype = 'advisory' and objid = 7 and not granted \
               and database = (select oid from pg_database where datname = current_database())";
        let others = async {
            self.stage.becomes("the count to begin", count, 1).await;
            meanwhile().await;
            self.stage.run("select pg_advisory_unlock(7)").await;
        };
        let (checked, ()) = tokio::join!(self.checked_aside(), others);
        self.mend().await;
        self.stage.run("drop function waits").await;
        checked
    }

    /// The next batch passes all changes and sets so many checks aside.
    async fn sets_aside(&self, count: usize) {
        assert_eq!(self.leader.batch().await.aside, count);
        assert_eq!(self.stage.number(CURSOR).await, self.stage.number(NEWEST).await, "others do not wait");
    }
}

#[test]
fn a_check_that_fails_holds_up_no_other_change_and_nothing_is_deleted_before_it_is_made() {
    run(async {
        let world = World::new("failing_check", 12).await;
        asked(&world.stage).await;
        world.fails().await;
        world.writes(selector(2, &of_env("none"), 10, &[])).await;
        world.writes(another(1)).await;
        world.sets_aside(1).await;
        assert_eq!(asked(&world.stage).await.len(), 12, "what it wants is applied");
        let checked =
            "select count(*) from towline_guard g join syncsets s on s.id = g.syncset where g.checked >= s.version";
        assert_eq!(world.stage.number(checked).await, 1, "the other one is checked");
        // Until it is checked nothing is deleted, whatever else happens to it.
        world.writes(another(2)).await;
        world.sets_aside(0).await;
        let (mut aside, dispatch) = (Aside::default(), Dispatch::new(world.stage.database()));
        for expected in [AsideCheck::Postponed, AsideCheck::Nothing] {
            let checked = dispatch.check_aside(&world.leader.grant, &mut aside).await.expect("it is isolated");
            assert_eq!(checked, expected, "it fails, and then waits");
            assert_eq!(world.stage.number(ASIDE).await, 1);
        }
        world.mend().await;
        assert_eq!((world.deletions().await, world.suspended().await), (Deletions::Suspended, None));
        world.relabels(3, &[("env", "prod"), ("x", "y")]).await;
        world.sets_aside(0).await;
        world.leader.dispatch.tidy(&world.leader.grant).await.expect("it is tidied");
        assert_eq!(world.deletions().await, Deletions::Suspended, "it is not checked by the way");
        // A dispatcher that was started since finds it.
        assert_eq!(world.checked_aside().await, AsideCheck::Done(Batch { suspended: 1, ..Batch::default() }));
        let held = (Deletions::Suspended, Some((12, 12, Cause::Many)));
        assert_eq!((world.deletions().await, world.suspended().await), held);
        assert_eq!(world.checked_aside().await, AsideCheck::Nothing);
        world.writes(selector(3, &of_env("prod"), 10, &[])).await;
        world.sets_aside(0).await;
        assert_eq!(world.deletions().await, Deletions::Allowed);
    });
}

/// Each of its counts takes longer than a batch has for all of them.
#[test]
fn a_namespace_whose_counts_take_long_has_one_of_them_tried_in_a_batch_and_others_are_checked() {
    run(async {
        let world = World::new("slow_counts", 1).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let syncset = |number: usize, generation: i64| {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            document(Kind::SyncSet, &format!("s{number}"), generation, data, &[])
        };
        for number in 10..24 {
            world.changes(syncset(number, 1)).await;
        }
        let slow = "insert into towline_applied select c.id, '', 'ConfigMap', 'default', s.name, s.id, 'v1', null, true, true, false, null, null, null, 0 \
               from clusters c, syncsets s; \
             create sequence tries; alter table towline_applied rename to rows; \
             create function whole(uuid) returns boolean language plpgsql as $$ begin \
               if exists (select from syncsets where id = $1) then perform nextval('tries'), pg_sleep(30); end if; return true; end $$; \
             create view towline_applied as select * from rows where whole(syncset)";
        world.stage.run(slow).await;
        let tries = "select case when is_called then last_value else 0 end from tries";
        for round in 1..3 {
            for number in 10..24 {
                world.writes(syncset(number, round + 1)).await;
            }
            let read = statements(&world.stage, "select i.id::text, d.id").await;
            world.writes(selector(round + 1, &of_env("prod"), 10, &[])).await;
            // A syncset that is aside already is set aside anew. The batch does not count it.
            world.sets_aside(14).await;
            let read = statements(&world.stage, "select i.id::text, d.id").await - read;
            let checked = "select count(*) from towline_guard g join selectorsyncsets s on s.id = g.syncset where g.checked >= s.version";
            assert_eq!((world.stage.number(tries).await, world.stage.number(checked).await), (1, 1));
            // Those of two pages; the first time the share is used up before the second one.
            assert_eq!(read, 1 + round, "what is beyond the share is not read");
        }
        assert_eq!(world.stage.number(&format!("{ASIDE} and (kind, namespace) = ('SyncSet', 'foo')")).await, 14);
        let counting = being_counted(&world.stage.database()).await.expect("a list");
        assert_eq!(counting, (10..24).map(|number| format!("SyncSet foo/s{number}")).collect::<Vec<_>>());
    });
}

#[test]
fn labels_alone_set_nothing_aside_of_a_namespace_that_has_had_its_share() {
    run(async {
        let world = World::new("slow_one", 1).await;
        let syncset = |name: &str, generation: i64| {
            let data =
                json!({"spec": {"clusterDeploymentRefs": [{"name": "c0"}], "resources": [], "secretMappings": []}});
            document(Kind::SyncSet, name, generation, data, &[])
        };
        for name in ["slow", "x", "y"] {
            world.changes(syncset(name, 1)).await;
        }
        let slow = "insert into towline_applied select c.id, '', 'ConfigMap', 'default', s.name, s.id, 'v1', null, true, true, false, null, null, null, 0 \
               from clusters c, syncsets s; \
             alter table towline_applied rename to rows; \
             create function whole(uuid) returns boolean language plpgsql as $$ begin \
               if exists (select from syncsets where id = $1 and name = 'slow') and current_query() like 'with has as materialized%' \
                 then perform pg_sleep(30); end if; return true; end $$; \
             create view towline_applied as select * from rows where whole(syncset)";
        world.stage.run(slow).await;
        world.writes(syncset("slow", 2)).await;
        world.relabels(0, &[("env", "prod"), ("x", "y")]).await;
        world.sets_aside(1).await;
        assert_eq!(world.stage.number(&format!("{ASIDE} and name = 'slow'")).await, 1);
    });
}

/// A tenant may change his cluster's labels again and again.
#[test]
fn labels_that_change_during_a_count_do_not_begin_it_anew_and_are_counted() {
    run(async {
        let world = World::new("relabelled_aside", 12).await;
        world.fails().await;
        // It deletes one of ten objects.
        world.writes(selector(2, &of_env("prod"), 9, &[])).await;
        world.sets_aside(1).await;
        world.mend().await;
        let database = world.stage.database();
        assert_eq!(being_counted(&database).await.expect("a list"), ["SelectorSyncSet base"]);
        let checked = world.checked_aside_while(async || {
            world.relabels(3, &[("env", "prod"), ("x", "y")]).await;
            world.sets_aside(0).await;
        });
        assert_eq!(checked.await, AsideCheck::Done(Batch::default()));
        assert_eq!(
            (world.deletions().await, being_counted(&database).await.expect("a list")),
            (Deletions::Allowed, vec![])
        );
        world.stage.run("update towline_guard set checked = -checked").await;
        let checked = world.checked_aside_while(async || {
            for number in 0..12 {
                world.relabels(number, &TEST).await;
            }
            world.sets_aside(0).await;
        });
        assert_eq!(checked.await, AsideCheck::Done(Batch { suspended: 1, ..Batch::default() }));
        let held = (Deletions::Suspended, Some((12, 12, Cause::Many)));
        assert_eq!((world.deletions().await, world.suspended().await), held);
    });
}

#[test]
fn a_batch_that_has_left_a_count_to_others_looks_at_it_once_that_has_ended() {
    run(async {
        let world = World::new("ended_meanwhile", 12).await;
        world.changes(another(1)).await;
        let sent = "insert into towline_applied select c.id, '', 'ConfigMap', 'default', s.name, s.id, 'v1', null, true, true, false, null, null, null, 0 \
             from clusters c, syncsets s; update towline_guard set checked = -checked where name = 'base'";
        world.stage.run(sent).await;
        world.relabels(0, &TEST).await;
        let (url, grant) = (world.stage.place.url(ADMIN), &world.leader.grant);
        // With a pool of its own: the batch goes on when it is done.
        let has_ended = AtomicBool::new(false);
        let ends = || {
            if has_ended.swap(true, Ordering::Relaxed) {
                return;
            }
            let check = async {
                let dispatch = Dispatch::new(open(source(&url)));
                dispatch.check_aside(grant, &mut Aside::default()).await.expect("a check")
            };
            let checked = std::thread::scope(|scope| {
                scope.spawn(|| tokio::runtime::Runtime::new().expect("a runtime").block_on(check)).join()
            });
            assert_eq!(checked.expect("no panic"), AsideCheck::Done(Batch::default()));
        };
        let batch = world.leader.dispatch.batch_in_pages(grant, &ends).await.expect("a batch");
        assert_eq!((batch.changes, batch.aside, batch.has_more), (1, 0, false));
        assert!(has_ended.load(Ordering::Relaxed));
        let checked = "select count(*) from towline_guard g join towline_claim k on k.name = 'dispatcher' and g.checked = k.cursor \
             where g.name = 'base'";
        assert_eq!(world.stage.number(checked).await, 1);
        assert_eq!(world.stage.number(CURSOR).await, world.stage.number(NEWEST).await);
    });
}

#[test]
fn what_is_held_is_counted_again_beside_the_batches_and_stays_held() {
    run(async {
        let world = World::new("held_aside", 12).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        world.changes(selector(2, &of_env("none"), 10, &[])).await;
        let counted = async || statements(&world.stage, "with has as materialized").await;
        let held = (Deletions::Suspended, Some((12, 12, Cause::Many)));
        let before = counted().await;
        world.leader.dispatch.tidy(&world.leader.grant).await.expect("it is tidied");
        assert_eq!((counted().await, world.stage.number(ASIDE).await), (before, 1));
        assert_eq!((world.deletions().await, world.suspended().await), held);
        assert_eq!(world.checked_aside().await, AsideCheck::Done(Batch::default()));
        assert_eq!((counted().await, world.stage.number(ASIDE).await), (before + 1, 0));
        assert_eq!((world.deletions().await, world.suspended().await), held);
    });
}

#[test]
fn a_check_beside_the_batches_holds_for_what_they_have_passed_and_for_nothing_else() {
    run(async {
        let world = World::new("overtaken_check", 12).await;
        world.fails().await;
        world.writes(selector(2, &of_env("prod"), 9, &[])).await;
        world.sets_aside(1).await;
        world.mend().await;
        // Before the cursor is where it was set aside, nothing is written.
        let later = "update towline_guard set checked = checked - 1000 where checked < 0";
        world.stage.run(later).await;
        assert_eq!(world.checked_aside().await, AsideCheck::Nothing);
        assert_eq!((world.stage.number(ASIDE).await, world.deletions().await), (1, Deletions::Suspended));
        world.stage.run("update towline_guard set checked = checked + 1000 where checked < 0").await;
        // A version that changes nothing for the guard is passed meanwhile.
        let mut noted = selector(2, &of_env("prod"), 9, &[]);
        let row = noted.changes.first_mut().and_then(|change| change.row.as_mut()).expect("a document");
        row.annotations.insert("example.com/note".to_owned(), "1".to_owned());
        world.writes(noted).await;
        world.sets_aside(0).await;
        asked(&world.stage).await;
        assert_eq!(world.checked_aside().await, AsideCheck::Done(Batch::default()));
        assert_eq!(world.deletions().await, Deletions::Allowed, "it holds for that version, too");
        assert_eq!(asked(&world.stage).await.len(), 12, "the clusters have waited for it");
    });
}

/// Somebody on a cluster has taken a Namespace from the syncset.
#[test]
fn what_was_taken_from_a_syncset_is_not_counted_by_each_later_check() {
    run(async {
        let world = World::new("taken_once", 12).await;
        let taken = "insert into towline_applied select c.id, '', 'Namespace', '', 'monitoring', s.id, 'v1', null, GONE, true, false, null, null, null, 0, COUNT \
             from clusters c, selectorsyncsets s where c.name = 'c0'";
        world.stage.run(&taken.replace("GONE", "false").replace("COUNT", "255")).await;
        world.changes(selector(2, &of_env("prod"), 10, &[])).await;
        assert_eq!((world.suspended().await, world.deletions().await), (None, Deletions::Allowed));
        world.stage.run("update towline_applied set gone = 0 where kind = 'Namespace'").await;
        world.changes(selector(3, &of_env("prod"), 10, &[])).await;
        assert_eq!(world.suspended().await, Some((1, 12, Cause::Precious)));
    });
}

#[test]
fn checks_that_were_set_aside_take_turns_by_namespace() {
    run(async {
        let world = World::new("aside_turns", 1).await;
        let rows = "insert into towline_guard (syncset, checked, gone, held, clusters, since, kind, namespace, name) \
             select gen_random_uuid(), -1, false, false, 0, now(), 'SyncSet', case n when 4 then 'b' else 'a' end, 's' || n from generate_series(1, 4) n";
        world.stage.run(rows).await;
        let (mut aside, dispatch) = (Aside::default(), &world.leader.dispatch);
        for left in [3, 2] {
            let checked = dispatch.check_aside(&world.leader.grant, &mut aside).await.expect("a check");
            assert_eq!(checked, AsideCheck::Done(Batch::default()));
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
        let world = World::new("notcounted", 12).await;
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

//! The dispatcher moves rollouts: whom it gives their turn, that it neither loses nor repeats a step, and what it costs.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use integration::eventually;
use serde_json::{Value, json};
use towline::test_api::actor::Scope;
use towline::test_api::cluster::Clock;
use towline::test_api::documents::{Author, Claims, Holder, Key, Kind, Role, WorkQueue, renumber};
use towline::test_api::syncset::dispatch::{Batch, Dispatch, DispatchError, Dispatcher, Rollouts};
use towline::test_api::syncset::rollouts::{Order, carry_out};
use towline::test_api::syncset::{Counted, SyncsetMetrics};

use crate::documents::claims::process;
use crate::documents::dispatch::{Leader, asked, document, removal, statements};
use crate::documents::world::{LIMIT, Stage, Written, run};

/// A database with clusters, a syncset for all of them, and a dispatcher.
struct World {
    stage: Stage,
    writer: Written,
    leader: Leader,
    rollouts: Rollouts,
    generation: i64,
    /// What the documents of the syncset have besides their content.
    rollout: Value,
    health: Value,
}

const SOAKING: &str = "Running Soaking wave 0 goal 2 stable 1";
/// The beginning of the statement with which the guard reads syncsets.
const CHECK: &str = "select i.id::text, d.id is not null";

/// First the canaries, then the others one by one.
fn canary() -> Value {
    json!({"waves": [{"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}}], "maxConcurrent": 1})
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// Longer than a look goes on to further rollouts.
fn takes_long() {
    let until = Instant::now() + Duration::from_millis(101);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

impl World {
    /// So many clusters, of which c1 is a canary. All of them have the content `a`, which is the stable one.
    async fn new(name: &str, clusters: usize, rollout: Value) -> Self {
        let stage = Stage::new(name).await;
        let writer = stage.writer();
        for number in 1..=clusters {
            let tier = if number == 1 { "canary" } else { "other" };
            let labels = [("env", "prod"), ("tier", tier)];
            writer.version(document(Kind::Cluster, &format!("c{number}"), 1, json!({}), &labels)).await;
        }
        let leader = Leader::of(&stage).await;
        let (rollouts, health) = (Rollouts::unknown(), Value::Null);
        let mut world = Self { stage, writer, leader, rollouts, generation: 0, rollout: Value::Null, health };
        world.write("a").await;
        world.rollout = rollout;
        world.write("a").await;
        world.reach("true", "").await;
        world.apply("true").await;
        world
    }

    /// Writes the document with this content, and dispatches that.
    async fn write(&mut self, content: &str) {
        self.write_as("s", content).await;
    }

    /// The same of a syncset of another name.
    async fn write_as(&mut self, name: &str, content: &str) {
        let whom = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "clusterNamespaces": ["*"]});
        self.put(Key::new(Kind::SelectorSyncSet, "", name), whom, content).await;
    }

    /// The same of a `SyncSet` of a namespace, for its clusters with these names, if it has some.
    async fn write_in(&mut self, namespace: &str, name: &str, content: &str) {
        let whom = json!({"clusterDeploymentRefs": [{"name": "c1"}, {"name": "c2"}]});
        self.put(Key::new(Kind::SyncSet, namespace, name), whom, content).await;
    }

    #[expect(clippy::indexing_slicing, reason = "a field is added, and there is one change")]
    async fn put(&mut self, key: Key, mut spec: Value, content: &str) {
        self.generation += 1;
        let resource = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"},
            "data": {"content": content}});
        let of_content =
            json!({"resourceApplyMode": "Sync", "patches": [], "secretMappings": [], "resources": [resource]});
        let fields = of_content.as_object().into_iter().flatten().map(|(field, value)| (field.as_str(), value));
        for (field, value) in fields.chain([("rollout", &self.rollout), ("health", &self.health)]) {
            if !value.is_null() {
                spec[field] = value.clone();
            }
        }
        let mut written = document(key.kind, &key.name, self.generation, json!({ "spec": spec }), &[]);
        written.changes[0].namespace = key.namespace;
        self.writer.version(written).await;
        self.dispatched().await;
    }

    /// Writes this content to `s` and `foo/t`, and returns after how many looks that have time for one rollout both are complete.
    async fn slow_looks(&mut self, content: &str) -> usize {
        const LEFT: &str = "select count(*) from towline_rollout r join towline_documents d on d.id = r.syncset \
            where d.namespace <> 'mallory' and (r.state <> 'Complete' or r.started < r.edited)";
        self.write(content).await;
        self.write_in("foo", "t", content).await;
        for look in 1..80 {
            self.leader.dispatch.roll(&self.leader.grant, &mut self.rollouts, &takes_long).await.expect("a look");
            self.apply("true").await;
            if self.stage.number(LEFT).await == 0 {
                return look;
            }
        }
        panic!("not complete after 79 looks");
    }

    /// Gives a cluster other labels, and dispatches that.
    async fn relabel(&self, name: &str, labels: &[(&str, &str)]) {
        self.writer.version(document(Kind::Cluster, name, 1, json!({}), labels)).await;
        self.dispatched().await;
    }

    /// The log is dispatched, and the requests that came of it are served.
    async fn dispatched(&self) {
        self.leader.all().await;
        asked(&self.stage).await;
    }

    async fn roll(&mut self) -> u64 {
        self.leader.dispatch.roll(&self.leader.grant, &mut self.rollouts, &|| ()).await.expect("it is moved")
    }

    /// Rolls, and returns who was asked for.
    async fn asked_by_a_roll(&mut self) -> BTreeSet<String> {
        self.roll().await;
        asked(&self.stage).await
    }

    /// Whether these clusters `c` answer: `true`, or `false`.
    async fn reach(&self, reachable: &str, condition: &str) {
        self.stage
            .run(&format!(
                "insert into towline_cluster (cluster, kubeconfig_generation, reachable, attempts) select c.id, 1, {reachable}, 0 \
                 from clusters c {condition} on conflict (cluster) do update set reachable = excluded.reachable"
            ))
            .await;
    }

    /// These clusters `c` have applied what they are pinned to, and it works.
    async fn apply(&self, condition: &str) {
        self.result(condition, "'Success', null, null").await;
    }

    async fn result(&self, condition: &str, result: &str) {
        self.stage
            .run(&format!(
                "insert into towline_result (cluster, syncset, kind, namespace, name, inputs, generation, result, reason, message, since, \
                   pending_deletions, health) \
                 select c.id, r.syncset, 'SelectorSyncSet', '', 's', decode(lpad(v.generation::text, 64, '0'), 'hex'), v.generation, \
                   {result}, now(), false, jsonb_build_object('inputs', lpad(v.generation::text, 64, '0'), 'state', 'Current', \
                     'read', clock_timestamp()) \
                 from clusters c cross join towline_rollout r join towline_revision v on v.syncset = r.syncset and v.revision = coalesce( \
                   (select t.revision from towline_turn t where t.syncset = r.syncset and t.cluster = c.id), r.stable) \
                 where {condition} on conflict (cluster, syncset) do update set inputs = excluded.inputs, generation = excluded.generation, \
                   result = excluded.result, reason = excluded.reason, message = excluded.message, health = excluded.health"
            ))
            .await;
    }

    /// `Running Releasing wave 0 goal 2 stable 1`.
    async fn state(&self) -> String {
        let text = "select concat_ws(' ', state, nullif(reason, ''), 'wave', wave, 'goal', goal, 'stable', stable) from towline_rollout";
        self.stage.sql.query_one(text, &[]).await.expect("a row").get(0)
    }

    /// Who has had a turn, and is pinned to which revision.
    async fn turns(&self) -> BTreeSet<String> {
        let text = "select c.name || '@' || t.revision from towline_turn t join clusters c on c.id = t.cluster";
        self.stage.sql.query(text, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
    }

    /// The same, with what each may have again.
    async fn pins(&self) -> BTreeSet<String> {
        let text = "select c.name || '@' || t.revision || coalesce('<' || t.before, '') \
            from towline_turn t join clusters c on c.id = t.cluster";
        self.stage.sql.query(text, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
    }

    /// Somebody orders this of the rollout.
    async fn order(&self, order: Order) {
        let (key, by) = (Key::new(Kind::SelectorSyncSet, "", "s"), Author::of_api("ada".to_owned(), None));
        carry_out(&self.stage.database(), &key, order, &by).await.expect("it is carried out");
    }

    /// Rolls until it has ended, with clusters that apply whatever they are pinned to.
    async fn play(&mut self) {
        for _ in 0..40 {
            self.roll().await;
            self.apply("true").await;
            if self.state().await.starts_with("Complete") {
                return;
            }
        }
        panic!("it does not end: {}", self.state().await);
    }

    /// A roll that is killed after so many steps, unless it ends before. Returns whether it has ended.
    async fn killed(&mut self, mut steps: usize) -> bool {
        let mut roll = pin!(self.leader.dispatch.roll(&self.leader.grant, &mut self.rollouts, &|| ()));
        poll_fn(|context| {
            steps -= 1;
            match roll.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending if steps == 0 => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

#[test]
fn a_new_content_reaches_one_wave_after_the_other() {
    run(async {
        let mut world = World::new("waves", 3, canary()).await;
        assert_eq!(world.asked_by_a_roll().await, names([]), "adding a rollout moves nobody");
        assert_eq!(world.state().await, "Complete wave 0 goal 1 stable 1");
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        assert_eq!(
            (world.state().await.as_str(), world.turns().await),
            ("Running Releasing wave 0 goal 2 stable 1", names(["c1@2"]))
        );
        assert_eq!(world.asked_by_a_roll().await, names([]), "it has not applied it yet");
        world.apply("c.name = 'c1'").await;
        let first = world.asked_by_a_roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 1 goal 2 stable 1");
        assert_eq!(first.len(), 1, "one by one");
        world.apply("true").await;
        let second = world.asked_by_a_roll().await;
        assert_eq!(first.union(&second).cloned().collect::<BTreeSet<_>>(), names(["c2", "c3"]));
        world.apply("true").await;
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!((world.state().await.as_str(), world.turns().await), ("Complete wave 1 goal 2 stable 2", names([])));
    });
}

#[test]
fn whoever_is_paused_or_does_not_answer_is_passed_over_and_asked_for_when_the_content_is_stable() {
    run(async {
        let mut world = World::new("away", 4, json!({"maxConcurrent": 4})).await;
        world.reach("false", "where c.name = 'c2'").await;
        world
            .stage
            .run("delete from towline_cluster where cluster = (select id from clusters where name = 'c3')")
            .await;
        let mut paused = document(Kind::Cluster, "c4", 2, json!({}), &[("env", "prod")]);
        let row = paused.changes[0].row.as_mut().expect("a document");
        row.annotations.insert("towline.dev/pause-until".to_owned(), "2999-01-01T00:00:00Z".to_owned());
        world.writer.version(paused).await;
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        world.apply("c.name = 'c1'").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c2", "c3", "c4"]), "one of them may be back by now");
        assert_eq!((world.state().await.as_str(), world.turns().await), ("Complete wave 0 goal 2 stable 2", names([])));
    });
}

#[test]
fn a_failure_stops_the_rollout_or_takes_it_back() {
    run(async {
        let mut back = canary();
        back["onFailure"] = json!("rollback");
        for (name, rollout, ends) in [
            ("stops", canary(), "Stopped Failures wave 0 goal 2 stable 1"),
            ("goesback", back, "RolledBack wave 0 goal 1 stable 1"),
        ] {
            let mut world = World::new(name, 3, rollout).await;
            world.write("b").await;
            assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
            world.result("c.name = 'c1'", "'Failure', 'ServerError', 'x'").await;
            assert_eq!(world.asked_by_a_roll().await, names([]));
            assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1", "it may pass");
            world.result("c.name = 'c1'", "'Failure', 'ResourceInvalid', 'x'").await;
            let mut moved = Vec::new();
            for _ in 0..4 {
                moved.extend(world.asked_by_a_roll().await);
                world.apply("true").await;
            }
            assert_eq!(world.state().await, ends);
            let is_back = ends.starts_with("RolledBack");
            assert_eq!((moved.len(), world.turns().await.len()), if is_back { (1, 0) } else { (0, 1) });
        }
    });
}

#[test]
fn a_reading_from_before_a_turn_does_not_count() {
    run(async {
        let mut world = World::new("readings", 2, canary()).await;
        world.health = json!({"within": "1m"});
        world.write("b").await;
        world.roll().await;
        // It has applied it, but what is known of its health is older.
        world
            .stage
            .run(
                "update towline_result r set (generation, inputs, health) = (select v.generation, '\\x01'::bytea, \
                    r.health || '{\"inputs\": \"01\"}' from towline_revision v where v.revision = 2)",
            )
            .await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
        world
            .stage
            .run("update towline_result set health = health || jsonb_build_object('read', clock_timestamp())")
            .await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 1 goal 2 stable 1");
    });
}

/// A worker that had read the revision before reads its health once more after the release.
#[test]
fn a_later_reading_of_the_revision_before_does_not_count() {
    run(async {
        let mut world = World::new("latereadings", 2, canary()).await;
        world.health = json!({"within": "1m"});
        world.write("b").await;
        world.roll().await;
        let failed = "update towline_result set health = health || jsonb_build_object('state', 'Failed', 'read', clock_timestamp()) \
            where cluster = (select id from clusters where name = 'c1')";
        world.stage.run(failed).await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
        world.apply("c.name = 'c1'").await;
        world.stage.run(failed).await;
        world.roll().await;
        assert_eq!(world.state().await, "Stopped Failures wave 0 goal 2 stable 1");
    });
}

#[test]
fn a_failure_from_before_a_turn_does_not_count() {
    run(async {
        let mut world = World::new("failedbefore", 2, canary()).await;
        let (is_running, is_stopped) =
            ("Running Releasing wave 0 goal 2 stable 1", "Stopped Failures wave 0 goal 2 stable 1");
        let failure = "'Failure', 'ResourceInvalid', 'x'";
        world.write("b").await;
        world.roll().await;
        world.result("c.name = 'c1'", failure).await;
        world.roll().await;
        assert_eq!(world.state().await, is_stopped);
        // Somebody mends the cluster, and takes the content back and writes it again.
        world.write("c").await;
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        world.roll().await;
        assert_eq!(world.state().await, is_running);
        world.result("c.name = 'c1'", failure).await;
        world.roll().await;
        assert_eq!(world.state().await, is_stopped);
    });
}

#[test]
fn nobody_moves_before_the_guard_has_checked_and_while_it_holds() {
    run(async {
        let mut world = World::new("guardedrollouts", 12, json!({"maxConcurrent": 12})).await;
        world
            .stage
            .run("insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'n' || n, s.id, 'v1', null, true, true, false, null, \
                    null, null, 0 from clusters c, selectorsyncsets s, generate_series(1, 20) n")
            .await;
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!(world.state().await, "Running Held wave 0 goal 2 stable 1");
        world.stage.run("update towline_guard set held = false").await;
        world.roll().await;
        assert_eq!(world.turns().await.len(), 12);
    });
}

#[test]
fn no_time_passes_while_the_guard_holds_or_has_yet_to_check() {
    run(async {
        let mut world = World::new("heldrollouts", 2, canary()).await;
        world.write("b").await;
        world.roll().await;
        let clock = "select clock from towline_rollout";
        let before = world.stage.number(clock).await;
        let mut last = Instant::now();
        for (guard, reason) in [
            ("held = true", "Held"),
            ("held = false, checked = -checked", "Guarding"),
            ("checked = -checked, held = true", "Held"),
        ] {
            world.stage.run(&format!("update towline_guard set {guard}")).await;
            for _ in 0..2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                last = Instant::now();
                world.roll().await;
                assert_eq!(world.state().await, format!("Running {reason} wave 0 goal 2 stable 1"));
                assert_eq!(world.stage.number(clock).await, before, "{reason}");
            }
        }
        world.stage.run("update towline_guard set held = false").await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
        let passed = world.stage.number(clock).await - before;
        let most = i64::try_from(last.elapsed().as_millis()).expect("a short time");
        assert!(passed <= most, "{passed} ms count, and the last look at what was held began {most} ms ago");
    });
}

/// Nobody is of the first wave, until one is. Then another one comes into a wave that is yet to run, and one into a wave that has run.
#[test]
fn clusters_that_are_relabelled_between_waves_have_their_turns_and_an_edit_back_takes_all_of_them_back() {
    run(async {
        let wave = |name: &str| json!({"name": name, "clusterSelector": {"matchLabels": {"wave": name}}});
        let rollout = json!({"waves": [wave("first"), wave("second")], "maxConcurrent": 1});
        let mut world = World::new("relabelled", 4, rollout).await;
        world.write("b").await;
        for _ in 0..3 {
            assert_eq!(world.asked_by_a_roll().await, names([]));
            assert_eq!(world.state().await, "Running EmptyWave wave 0 goal 2 stable 1");
        }
        let label = async |world: &World, name: &str, wave: &str| {
            world.relabel(name, &[("env", "prod"), ("wave", wave)]).await;
        };
        label(&world, "c1", "first").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        label(&world, "c2", "second").await;
        world.apply("c.name = 'c1'").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c2"]));
        label(&world, "c3", "first").await;
        world.apply("c.name = 'c2'").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c3"]));
        assert_eq!(world.state().await, "Running Releasing wave 1 goal 2 stable 1");

        world.apply("c.name = 'c3'").await;
        world.write("a").await;
        let mut back = BTreeSet::new();
        for _ in 0..3 {
            let released = world.asked_by_a_roll().await;
            assert_eq!(released.len(), 1, "one by one: {released:?}");
            assert_eq!(world.state().await, "RollingBack Releasing wave 0 goal 1 stable 1");
            back.extend(released);
            world.apply("true").await;
        }
        assert_eq!(back, names(["c1", "c2", "c3"]), "c4 has it still");
        world.roll().await;
        assert_eq!((world.state().await.as_str(), world.turns().await), ("Complete wave 0 goal 1 stable 1", names([])));
    });
}

#[test]
fn a_cluster_that_was_silent_before_its_turn_is_away_and_one_that_becomes_silent_in_it_is_not() {
    run(async {
        let mut world = World::new("silentbefore", 3, canary()).await;
        let answers = "update towline_cluster set last_contact = clock_timestamp()";
        world.stage.run(answers).await;
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        world.reach("false", "where c.name = 'c1'").await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Unreachable wave 0 goal 2 stable 1");
        world.reach("true", "where c.name = 'c1'").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]), "it has its turn again");
        world.stage.run(answers).await;
        world.reach("false", "where c.name = 'c1'").await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
    });
}

/// It has failed to apply what it had before, which is no sign of a pass of its turn.
#[test]
fn a_cluster_that_is_silent_since_a_pass_of_its_turn_has_begun_to_write_keeps_its_place() {
    run(async {
        let mut world = World::new("silentamid", 3, canary()).await;
        world.stage.run("update towline_cluster set last_contact = clock_timestamp()").await;
        world.result("c.name = 'c1'", "'Failure', 'ServerError', 'x'").await;
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        world.reach("false", "where c.name = 'c1'").await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Unreachable wave 0 goal 2 stable 1");
        world.reach("true", "where c.name = 'c1'").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        // As a pass does it before its first write, whose answer is lost.
        world
            .stage
            .run(
                "update towline_result set inputs = decode(repeat('00', 32), 'hex') \
                 where cluster = (select id from clusters where name = 'c1')",
            )
            .await;
        world.reach("false", "where c.name = 'c1'").await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
        world.stage.run("update towline_rollout set clock = clock + 600000").await;
        world.roll().await;
        assert_eq!(world.state().await, "Stopped Failures wave 0 goal 2 stable 1");
    });
}

/// Of five that are released at once, one fails, and to another one something may have come.
#[test]
fn whoever_was_sent_nothing_has_what_it_had_before_once_its_rollout_stops_or_begins_anew() {
    run(async {
        let mut world = World::new("takenback", 5, json!({"maxConcurrent": 5})).await;
        let fails = "'Failure', 'ResourceInvalid', 'x'";
        world.write("b").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1", "c2", "c3", "c4", "c5"]));
        world.result("c.name = 'c1'", fails).await;
        let begins = "update towline_result set inputs = decode(repeat('00', 32), 'hex') \
            where cluster = (select id from clusters where name = 'c2')";
        world.stage.run(begins).await;
        assert_eq!(world.asked_by_a_roll().await, names(["c3", "c4", "c5"]), "a pass may have read the new one");
        assert_eq!(world.state().await, "Stopped Failures wave 0 goal 2 stable 1");
        assert_eq!(world.turns().await, names(["c1@2", "c2@2"]));
        world.stage.run("update towline_rollout set state = 'Running', tolerated = 1").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c3", "c4", "c5"]), "they have their turns again");
        world.apply("c.name = 'c3'").await;
        world.roll().await;
        // An edit takes the other two back before all have their turns.
        world.write("c").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1", "c2", "c3", "c4", "c5"]));
        let before = "select count(*) from towline_turn where revision = 3 and before is not distinct from ";
        let had =
            [world.stage.number(&format!("{before} 2")).await, world.stage.number(&format!("{before} null")).await];
        assert_eq!(had, [3, 2]);
        let unused = "select count(*) from towline_revision where revision = 2 \
            and revision in (select u.revision from towline_rollout r, towline_unused(r.syncset, 3) u)";
        assert_eq!(world.stage.number(unused).await, 0, "some may have it again");
        world.result("c.name = 'c1'", fails).await;
        assert_eq!(world.asked_by_a_roll().await, names(["c3", "c4", "c5"]));
        assert_eq!(world.state().await, "Stopped Failures wave 0 goal 3 stable 1");
        let left = names(["c1@3", "c2@3", "c3@2"]);
        assert_eq!(world.turns().await, left);
        world.stage.run("update towline_rollout set state = 'Running', tolerated = 1").await;
        world.roll().await;
        assert_eq!(world.turns().await.len(), 5);
        renumber(&world.stage.database(), true).await.expect("it is renumbered");
        assert_eq!(world.turns().await, left, "a restore stops it, too");
    });
}

/// Two of five have the revision before, and all are released. Something was sent to one of the two, and to one of the others.
#[test]
fn each_stop_and_each_other_goal_gives_clusters_that_were_sent_nothing_what_they_had() {
    run(async {
        let taken_back = || names(["c1@3<2", "c2@2", "c3@3"]);
        let (running, stopped, back) = ("wave 0 goal 3 stable 1", names(["c2", "c4", "c5"]), names([]));
        let all = || names(["c1", "c2", "c3", "c4", "c5"]);
        let to_stable = names(["c1@1<3", "c2@1<2", "c3@1<3"]);
        let to_second = names(["c1@2<3", "c2@2<2", "c3@2<3", "c4@2", "c5@2"]);
        let to_newest = names(["c1@4<3", "c2@4<2", "c3@4<3", "c4@4", "c5@4"]);
        // What happens, and who has what at once and after a look of the dispatcher.
        for (name, is_asked, state, pins, then) in [
            ("pause", stopped.clone(), format!("Stopped Paused {running}"), taken_back(), taken_back()),
            ("abort", stopped.clone(), format!("Stopped Aborted {running}"), taken_back(), taken_back()),
            (
                "undo",
                stopped.clone(),
                "RollingBack Guarding wave 0 goal 1 stable 1".to_owned(),
                taken_back(),
                to_stable.clone(),
            ),
            ("undoto", stopped, "RollingBack Guarding wave 0 goal 2 stable 1".to_owned(), taken_back(), to_second),
            ("restore", back, format!("Stopped Restored {running}"), taken_back(), taken_back()),
            ("failure", all(), "RollingBack Releasing wave 0 goal 1 stable 1".to_owned(), to_stable.clone(), to_stable),
            ("edit", all(), "Running Releasing wave 0 goal 4 stable 1".to_owned(), to_newest.clone(), to_newest),
        ] {
            let mut world =
                World::new(&format!("back{name}"), 5, json!({"maxConcurrent": 5, "onFailure": "rollback"})).await;
            world.write("b").await;
            world.roll().await;
            world.apply("c.name in ('c1', 'c2')").await;
            world.roll().await;
            world.write("c").await;
            world.roll().await;
            let begins = "update towline_result set inputs = decode(repeat('00', 32), 'hex') \
                where cluster in (select id from clusters where name in ('c1', 'c3'))";
            world.stage.run(begins).await;
            asked(&world.stage).await;
            let released = names(["c1@3<2", "c2@3<2", "c3@3", "c4@3", "c5@3"]);
            assert_eq!(world.pins().await, released, "{name}");
            match name {
                "pause" => world.order(Order::Pause).await,
                "abort" => world.order(Order::Abort).await,
                "undo" => world.order(Order::Undo { to: None }).await,
                "undoto" => world.order(Order::Undo { to: Some(2) }).await,
                "restore" => {
                    assert!(renumber(&world.stage.database(), true).await.expect("it is renumbered").is_some());
                }
                "edit" => {
                    world.write("d").await;
                    world.roll().await;
                }
                _ => {
                    world.result("c.name = 'c1'", "'Failure', 'ResourceInvalid', 'x'").await;
                    world.roll().await;
                }
            }
            assert_eq!(asked(&world.stage).await, is_asked, "{name}: a pass may have read the new one");
            assert_eq!((world.state().await, world.pins().await), (state, pins), "{name}");
            if name == "restore" {
                continue;
            }
            world.roll().await;
            assert_eq!(world.pins().await, then, "{name}");
            if name == "pause" {
                world.order(Order::Resume).await;
                assert_eq!(world.asked_by_a_roll().await, names(["c2", "c4", "c5"]), "they have their turns again");
                assert_eq!(world.pins().await, released);
            }
        }
    });
}

#[test]
fn a_cluster_that_is_paused_in_its_turn_gives_its_place_away_only_if_nothing_has_come_to_it() {
    run(async {
        let mut world = World::new("pausedamid", 3, json!({"maxConcurrent": 1})).await;
        let pause = async |world: &World, name: &str| {
            let mut paused = document(Kind::Cluster, name, 2, json!({}), &[("env", "prod")]);
            let row = paused.changes[0].row.as_mut().expect("a document");
            row.annotations.insert("towline.dev/pause-until".to_owned(), "2999-01-01T00:00:00Z".to_owned());
            world.writer.version(paused).await;
            world.dispatched().await;
        };
        world.write("b").await;
        let first = world.asked_by_a_roll().await;
        pause(&world, first.first().expect("one was released")).await;
        let second = world.asked_by_a_roll().await;
        assert_eq!(second.len(), 2, "the pass of the first one may have begun: {second:?}");
        let turns = world.turns().await;
        let name = turns.first().and_then(|turn| turn.strip_suffix("@2")).expect("a turn").to_owned();
        assert!(turns.len() == 1 && !first.contains(&name), "{turns:?}");
        // This one has applied it, for now in vain.
        world.result(&format!("c.name = '{name}'"), "'Failure', 'ServerError', 'x'").await;
        pause(&world, &name).await;
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!(world.turns().await, turns, "it is waited for");
        let told = "select count(*) from towline_rollout where message = 'a cluster was paused in its turn, and is waited for'";
        assert_eq!(world.stage.number(told).await, 1);
    });
}

/// By the database's clock it was late, or that clock was set back. The rollout's may have stood still.
#[test]
fn health_that_is_final_is_read_again_while_a_rollout_waits_for_it() {
    run(async {
        let mut world = World::new("refreshed", 2, canary()).await;
        world.health = json!({"within": "1m"});
        world.write("b").await;
        world.roll().await;
        world.apply("c.name = 'c1'").await;
        let running = "Running Releasing wave 0 goal 2 stable 1";
        let read = async |world: &World, state: &str, read: &str, next: &str| {
            let next = if next.is_empty() { "null".to_owned() } else { format!("now() + interval '{next}'") };
            let text = format!(
                "update towline_result set health = health || jsonb_build_object('state', '{state}', 'read', now() + interval '{read}', \
                   'next', {next}) where cluster = (select id from clusters where name = 'c1')"
            );
            world.stage.run(&text).await;
            asked(&world.stage).await;
        };
        for (state, at, next, is_asked) in [
            ("Progressing", "-1 s", "59 s", false),
            ("Progressing", "-1 s", "", false),
            ("Progressing", "-1 min", "59 s", false),
            ("Progressing", "-1 min", "", true),
            ("Unknown", "-1 h", "", true),
            ("Progressing", "1 h", "2 h", true),
        ] {
            read(&world, state, at, next).await;
            let is_due = if is_asked { names(["c1"]) } else { names([]) };
            assert_eq!(world.asked_by_a_roll().await, is_due, "{state} {at} {next}");
            assert_eq!(world.asked_by_a_roll().await, names([]), "once");
            assert_eq!(world.state().await, running);
        }
        let is_due = "select count(*) from towline_result where (health->>'next')::timestamptz <= now()";
        assert_eq!(world.stage.number(is_due).await, 1);
        world.apply("c.name = 'c1'").await;
        world.roll().await;
        assert_eq!(world.state().await, "Running Releasing wave 1 goal 2 stable 1");
    });
}

/// A release is lost, and what else clusters have nobody knows.
#[test]
fn after_a_restore_no_cluster_gets_the_new_content_until_the_rollout_is_resumed() {
    run(async {
        let mut world = World::new("rollrestored", 3, json!({"maxConcurrent": 1})).await;
        world.write("b").await;
        world.roll().await;
        world.apply("true").await;
        world.roll().await;
        let before = world.turns().await;
        assert_eq!(before.len(), 2, "{before:?}");
        world.stage.run("delete from towline_turn where not done").await;
        renumber(&world.stage.database(), true).await.expect("it is renumbered");
        // Claims from before have run out.
        world.stage.run("update towline_claim set until = now(); update towline_work set until = now()").await;
        world.leader = Leader::of(&world.stage).await;
        world.rollouts = Rollouts::unknown();
        world.dispatched().await;
        let kept = world.turns().await;
        assert_eq!(kept.len(), 1, "{kept:?}");
        for _ in 0..3 {
            world.apply("true").await;
            assert_eq!(world.asked_by_a_roll().await, names([]));
        }
        assert_eq!(world.state().await, "Stopped Restored wave 0 goal 2 stable 1");
        assert_eq!(world.turns().await, kept, "nobody else has the new content");
        world.stage.run("update towline_rollout set state = 'Running', reason = 'Releasing'").await;
        world.play().await;
    });
}

#[test]
fn no_cluster_fails_to_which_no_worker_comes_and_one_that_comes_finds_it_in_its_turn() {
    run(async {
        let mut world = World::new("noworkers", 2, canary()).await;
        // So long it may take.
        let ten_minutes = "update towline_rollout set clock = clock + 600000; \
            update towline_work set ready_at = ready_at - interval '10 min'";
        world.write("b").await;
        world.roll().await;
        world.stage.run(ten_minutes).await;
        for _ in 0..3 {
            world.roll().await;
            assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
        }
        world.apply("c.name = 'c1'").await;
        assert!(!world.asked_by_a_roll().await.is_empty());
        assert_eq!(world.state().await, "Running Releasing wave 1 goal 2 stable 1");
        // A worker has it.
        world.stage.run(ten_minutes).await;
        world.roll().await;
        assert_eq!(world.state().await, "Stopped Failures wave 1 goal 2 stable 1");
    });
}

#[test]
fn the_time_in_which_no_dispatcher_lives_does_not_count() {
    run(async {
        let mut rollout = canary();
        rollout["waves"][0]["soak"] = json!("1h");
        let mut world = World::new("rollclock", 2, rollout).await;
        let clock = "select clock from towline_rollout";
        let again = "update towline_rollout set settled = null";
        world.write("b").await;
        world.roll().await;
        world.apply("c.name = 'c1'").await;
        world.roll().await;
        assert_eq!(world.state().await, SOAKING);
        let before = world.stage.number(clock).await;
        for _ in 0..3 {
            world.rollouts = Rollouts::unknown();
            world.stage.run(again).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            world.roll().await;
            assert_eq!(world.stage.number(clock).await, before, "another dispatcher begins");
        }
        world.stage.run(again).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.roll().await;
        let after = world.stage.number(clock).await;
        assert!(after >= before + 20, "{before} {after}: this one has lived meanwhile");
        assert_eq!(world.state().await, SOAKING);
    });
}

#[test]
fn a_cluster_that_leaves_the_syncset_stays_pinned_and_has_its_turn_again_when_it_is_back() {
    run(async {
        let mut rollout = canary();
        rollout["waves"][0]["soak"] = json!("1h");
        let mut world = World::new("leaves", 3, rollout).await;
        world.write("b").await;
        world.roll().await;
        world.apply("c.name = 'c1'").await;
        world.roll().await;
        let done = "select count(*) from towline_turn where done and number > 0";
        assert_eq!((world.state().await.as_str(), world.stage.number(done).await), (SOAKING, 1));
        world.relabel("c1", &[("env", "test"), ("tier", "canary")]).await;
        world.stage.run("delete from towline_result where cluster = (select id from clusters where name = 'c1')").await;
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!((world.turns().await, world.stage.number(done).await), (names(["c1@2"]), 0));
        world.relabel("c1", &[("env", "prod"), ("tier", "canary")]).await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
        world.apply("c.name = 'c1'").await;
        world.roll().await;
        assert_eq!((world.state().await.as_str(), world.stage.number(done).await), (SOAKING, 1));
        // The same while nobody looks.
        world.stage.run("update towline_rollout set state = 'Stopped', reason = 'Paused'").await;
        world.roll().await;
        world.stage.run("delete from towline_result where cluster = (select id from clusters where name = 'c1')").await;
        world.stage.run("update towline_rollout set state = 'Running', reason = 'Releasing'").await;
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!(world.state().await, "Running Releasing wave 0 goal 2 stable 1");
    });
}

#[test]
fn a_rollout_that_can_not_be_read_is_not_checked_at_each_look() {
    run(async {
        let mut world = World::new("unreadablerollout", 2, canary()).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        world.rollout = json!({"waves": 7});
        world.write("b").await;
        let before = statements(&world.stage, CHECK).await;
        for _ in 0..3 {
            assert_eq!(world.roll().await, 0);
        }
        assert_eq!(statements(&world.stage, CHECK).await, before + 1);
        world.rollout = canary();
        world.write("b").await;
        // The wait is over.
        world.rollouts = Rollouts::unknown();
        assert_eq!(world.asked_by_a_roll().await, names(["c1"]));
    });
}

#[test]
fn a_rollout_that_fails_keeps_no_other_one_from_moving() {
    run(async {
        let mut world = World::new("besides", 2, canary()).await;
        world.write_as("t", "a").await;
        world
            .stage
            .run(
                "insert into towline_result (cluster, syncset, kind, namespace, name, inputs, generation, result, since, pending_deletions, health) \
                 select c.id, s.id, 'SelectorSyncSet', '', 't', '\\x01', 1, 'Success', now(), false, '{\"read\": \"never\"}' \
                 from clusters c, selectorsyncsets s where s.name = 't'",
            )
            .await;
        world.write("b").await;
        // Where the database is slow, each look moves one of them on.
        for _ in 0..2 {
            world.roll().await;
        }
        assert_eq!(world.turns().await, names(["c1@2"]));
        world.stage.run("update towline_result set health = null").await;
        world.rollouts = Rollouts::unknown();
        for _ in 0..2 {
            world.roll().await;
        }
        assert_eq!(world.turns().await, names(["c1@1", "c1@2"]));
    });
}

#[test]
fn a_look_that_has_taken_long_ends_and_the_next_one_goes_on_with_other_rollouts() {
    run(async {
        let mut world = World::new("fairly", 2, canary()).await;
        world.write("b").await;
        for name in ["t", "u"] {
            world.write_as(name, "a").await;
        }
        for moved in 1..=3 {
            let roll = world.leader.dispatch.roll(&world.leader.grant, &mut world.rollouts, &takes_long).await;
            roll.expect("it is moved");
            assert_eq!(world.stage.number("select count(distinct syncset) from towline_turn").await, moved);
        }
    });
}

#[test]
fn stopped_rollouts_that_need_somebody_are_shown_before_those_that_were_paused() {
    run(async {
        let mut world = World::new("manystopped", 1, canary()).await;
        for number in 0..24 {
            world.write_as(&format!("s{number:02}"), "a").await;
        }
        world
            .stage
            .run("update towline_rollout set state = 'Stopped', reason = 'Paused', started = edited, since = now()")
            .await;
        for (name, state) in [
            ("s03", "state = 'Stopped', reason = 'Failures'"),
            ("s05", "state = 'RolledBack', reason = ''"),
            // It begins anew.
            ("s07", "state = 'Stopped', reason = 'Failures', started = edited - 1"),
        ] {
            let text = format!(
                "update towline_rollout set {state}, since = now() - interval '1 day' \
                 where syncset = (select id from selectorsyncsets where name = '{name}')"
            );
            world.stage.run(&text).await;
        }
        let claims = Claims::new(&world.stage.database(), Holder::of_this_process(), Clock::Boot);
        let queue = WorkQueue::new(&world.stage.database(), &claims);
        let counted = Counted::read(&world.stage.database(), &queue).await.expect("it is counted");
        let shown = |number: usize| counted.stopped[number].argument();
        assert_eq!((counted.stopped.len(), shown(0), shown(1)), (20, "s03".to_owned(), "s05".to_owned()));
        assert_eq!(counted.more_stopped, 4, "of 24, without the one that begins anew, and s");
    });
}

/// A tenant starts forty, and the database is so slow that a look has time for one. Before, each step of the others' took as many looks as there are
/// rollouts.
#[test]
fn a_namespace_with_many_rollouts_does_not_keep_those_of_others_from_moving() {
    run(async {
        let mut world = World::new("rollturns", 2, canary()).await;
        world.write_in("foo", "t", "a").await;
        let alone = world.slow_looks("b").await;
        // They wait for a first cluster, for ever.
        for number in 0..40 {
            world.write_in("mallory", &format!("m{number}"), "a").await;
        }
        let beside = world.slow_looks("c").await;
        assert!(beside <= 2 * alone, "{beside} looks, and {alone} without the forty");
        let moved = "select count(*) from towline_rollout r join syncsets s on s.id = r.syncset \
            where s.namespace = 'mallory' and r.number > 0";
        assert!(world.stage.number(moved).await >= 3, "they have their turns, too");
    });
}

/// To look at one of them takes 40 ms, and a look goes on to further ones for 100. Each change is written while a look is under way.
#[test]
fn a_change_waits_for_few_of_many_rollouts_and_these_go_on_beside_changes() {
    const ROLLOUTS: i64 = 40;
    const LOOKED: &str = "select coalesce(sum(calls), 0)::bigint from statistics.pg_stat_statements s \
        where s.dbid = (select oid from pg_database where datname = current_database()) and query like 'with c as materialized%'";
    run(async {
        let mut world = World::new("rollsbeside", 2, canary()).await;
        for number in 0..ROLLOUTS {
            world.write_in("foo", &format!("m{number}"), "a").await;
        }
        world.rollout = Value::Null;
        let change = async |writer: &Written, generation: i64| {
            let data = json!({"spec": {"clusterDeploymentRefs": [{"name": "c9"}]}});
            for (kind, name, data) in [(Kind::Cluster, "c9", json!({})), (Kind::SyncSet, "other", data)] {
                if kind == Kind::SyncSet || generation == 0 {
                    let mut written = document(kind, name, generation + 1, data, &[]);
                    "bar".clone_into(&mut written.changes[0].namespace);
                    writer.version(written).await;
                }
            }
        };
        change(&world.writer, 0).await;
        world.dispatched().await;
        let releasing = "select count(*) from towline_rollout where (state, reason) = ('Running', 'Releasing')";
        for _ in 0..60 {
            if world.stage.number(releasing).await < ROLLOUTS {
                world.roll().await;
            }
        }
        assert_eq!(world.stage.number(releasing).await, ROLLOUTS, "each waits for its canary");
        let slow = format!(
            "create schema statistics; create extension pg_stat_statements schema statistics; \
             create or replace function towline_has_begun(inputs bytea, generation bigint, revision_generation bigint) returns boolean \
               language plpgsql as $$ begin perform pg_sleep(0.02); return false; end $$; \
             create table noted (number bigserial, looked bigint); \
             create function note() returns trigger language plpgsql as $$ begin \
               if new.namespace = 'bar' then insert into noted (looked) {LOOKED}; end if; return null; end $$; \
             create function note_request() returns trigger language plpgsql as $$ begin \
               if new.cluster in (select id from clusters where namespace = 'bar') then insert into noted (looked) {LOOKED}; end if; \
               return null; end $$; \
             create trigger note after insert on towline_log for each row execute function note(); \
             create trigger note after insert or update on towline_work for each row execute function note_request()"
        );
        world.stage.run(&slow).await;
        let World { stage, writer, leader, .. } = world;
        drop(leader);
        stage.run("update towline_claim set until = now()").await;
        let (_claims, [leadership]) = process(&stage, [Role::Dispatcher]);
        let observer = Arc::new(SyncsetMetrics::new(&"syncsets".parse().expect("a name")));
        let dispatcher = Dispatcher::new(Dispatch::new(stage.database()), leadership, observer);
        let (scope, drain) = Scope::standalone("dispatcher");
        let body = tokio::spawn(async move { dispatcher.run(scope).await.map_err(|error| error.to_string()) });
        for generation in 1..=5 {
            let before = stage.number(LOOKED).await;
            eventually("a look to begin", LIMIT, async || match stage.number(LOOKED).await {
                looked if looked > before => Ok(()),
                looked => Err(looked.to_string()),
            })
            .await
            .expect("rollouts go on");
            change(&writer, generation).await;
            stage.becomes("the change to be dispatched", "select count(*) from noted", 2 * generation).await;
        }
        drain.cancel();
        tokio::time::timeout(LIMIT, body).await.expect("it ends").expect("no panic").expect("no failure");
        let noted = stage.numbers("select looked from noted order by number").await;
        let meanwhile: Vec<i64> = noted.chunks(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            meanwhile.iter().all(|looked| *looked <= 3),
            "{meanwhile:?} of {ROLLOUTS} rollouts came before the changes"
        );
    });
}

#[test]
fn two_dispatchers_at_once_give_each_cluster_one_turn() {
    run(async {
        let mut world = World::new("twodispatchers", 9, json!({"maxConcurrent": 2})).await;
        world.write("b").await;
        let (dispatch, grant) = (world.leader.dispatch.clone(), world.leader.grant.clone());
        let mut moved = Vec::new();
        for _ in 0..20 {
            let (mut one, mut other) = (Rollouts::unknown(), Rollouts::unknown());
            let (first, second) =
                tokio::join!(dispatch.roll(&grant, &mut one, &|| ()), dispatch.roll(&grant, &mut other, &|| ()));
            first.and(second).expect("both are moved");
            let under_way = world.stage.number("select count(*) from towline_turn where not done").await;
            assert!(under_way <= 2, "{under_way} at once");
            moved.extend(asked(&world.stage).await);
            world.apply("true").await;
        }
        assert_eq!(world.state().await, "Complete wave 0 goal 2 stable 2");
        assert_eq!((moved.len(), moved.iter().collect::<BTreeSet<_>>().len()), (9, 9), "{moved:?}");
        world.write("c").await;
        world.stage.run("update towline_claim set token = token + 1 where name = 'dispatcher'").await;
        let refused = world.leader.dispatch.roll(&world.leader.grant, &mut world.rollouts, &|| ()).await;
        assert!(matches!(refused, Err(DispatchError::ClaimLost)), "{refused:?}");
        assert_eq!(world.state().await, "Complete wave 0 goal 2 stable 2");
    });
}

#[test]
fn a_dispatcher_that_is_killed_between_its_statements_changes_nothing_or_everything() {
    run(async {
        let mut world = World::new("killedrollouts", 3, json!({"maxConcurrent": 1})).await;
        let mut has_ended = false;
        for steps in 1.. {
            world.write(&format!("content {steps}")).await;
            let mut ended = 0;
            for _ in 0..4 {
                ended += usize::from(world.killed(steps).await);
                let under_way = world.stage.number("select count(*) from towline_turn where not done").await;
                assert!(under_way <= 1, "{under_way} at once, after {steps} steps");
                // Whoever was released was asked for in the same transaction.
                let unasked = "select count(*) from towline_turn t where not done \
                    and not exists (select from towline_work w where w.cluster = t.cluster)";
                assert_eq!(world.stage.number(unasked).await, 0, "after {steps} steps");
            }
            // The next dispatcher knows nothing of it, and the last statements may hold a lock still.
            world.rollouts = Rollouts::unknown();
            let busy = "select count(*) from pg_stat_activity where datname = current_database() \
                and backend_type = 'client backend' and state <> 'idle' and pid <> pg_backend_pid()";
            world.stage.becomes("the killed one's statements to have ended", busy, 0).await;
            world.play().await;
            let number = world.stage.number("select number from towline_rollout").await;
            assert_eq!(number, i64::try_from(steps).expect("few"), "each content has one rollout");
            asked(&world.stage).await;
            if ended == 4 {
                has_ended = true;
                break;
            }
        }
        assert!(has_ended);
    });
}

#[test]
fn a_syncset_that_is_deleted_in_the_middle_stops_nothing() {
    run(async {
        let mut world = World::new("deletedamid", 2, canary()).await;
        world.write("b").await;
        world.roll().await;
        world.writer.version(removal(Kind::SelectorSyncSet, "s")).await;
        world.dispatched().await;
        assert_eq!(world.asked_by_a_roll().await, names([]));
        assert_eq!(world.stage.number("select count(*) from towline_turn").await, 0);
    });
}

#[test]
fn a_hub_without_rollouts_is_asked_for_them_once_and_a_rollout_costs_five_statements_a_look() {
    run(async {
        let stage = Stage::new("rollcosts").await;
        stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        let texts = [
            "select k.cursor, exists",
            "BEGIN",
            "select set_config(% from towline_claim",
            "select to_jsonb(r)",
            "with c as materialized",
            "update towline_rollout",
            "with u as",
            "with asked as",
            "COMMIT",
        ];
        let counts = async |stage: &Stage| {
            let mut counts = Vec::new();
            for text in texts {
                counts.push(statements(stage, text).await);
            }
            counts
        };
        let since = |before: &[i64], after: &[i64]| -> Vec<i64> {
            after.iter().zip(before).map(|(after, before)| after - before).collect()
        };
        let leader = Leader::of(&stage).await;
        let mut rollouts = Rollouts::unknown();
        let batch = leader.batch().await;
        assert!(rollouts.next(&batch).is_some(), "nothing is known at first");
        let before = counts(&stage).await;
        leader.dispatch.roll(&leader.grant, &mut rollouts, &|| ()).await.expect("a look");
        assert_eq!(since(&before, &counts(&stage).await), [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(rollouts.next(&Batch { changes: 1, asked: 1, ..Batch::default() }), None);
        assert!(rollouts.next(&Batch { rolls: true, ..Batch::default() }).is_some());
        let mut world = World::new("rollcostsmany", 3, json!({"maxConcurrent": 2})).await;
        world.stage.run("create schema statistics; create extension pg_stat_statements schema statistics").await;
        world.write("b").await;
        let mut before = counts(&world.stage).await;
        world.roll().await;
        let mut after = counts(&world.stage).await;
        assert_eq!(since(&before, &after), [1, 2, 2, 2, 2, 2, 1, 1, 2], "it begins, and releases two");
        before = after;
        asked(&world.stage).await;
        world.roll().await;
        after = counts(&world.stage).await;
        assert_eq!(since(&before, &after), [1, 1, 1, 1, 1, 0, 0, 0, 1], "nothing has changed");
    });
}

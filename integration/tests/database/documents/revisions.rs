//! The revisions of a syncset with a rollout: which content gets one, and which are kept.

use serde_json::{Value, json};
use towline::test_api::documents::{Key, Kind, renumber};
use towline::test_api::syncset::rollouts::sent_again;

use crate::documents::dispatch::{document, removal};
use crate::documents::world::{Stage, Written, run};

/// A syncset with this content, which goes to clusters with this label.
fn spec(content: &str, tier: &str, with_rollout: bool) -> Value {
    let rollout = with_rollout.then(|| json!({"waves": [{"name": tier, "percent": 10}]}));
    let mut spec = json!({"clusterDeploymentSelector": {"matchLabels": {"tier": tier}}, "clusterNamespaces": ["*"],
        "resources": [{"kind": "ConfigMap", "data": {"content": content}}], "rollout": rollout});
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    json!({ "spec": spec })
}

#[test]
fn what_goes_back_names_copies_of_secrets_that_were_deleted() {
    run(async {
        let mut subject = Subject::new("copiessentagain").await;
        for targets in [&["kept", "dropped"][..], &["kept"]] {
            let mapping = |name: &&str| json!({"sourceRef": {"name": "source", "namespace": "team"}, "targetRef": {"name": name, "namespace": "default"}});
            let mut spec = of_namespaces("Sync", &[]);
            spec["spec"]["secretMappings"] = targets.iter().map(mapping).collect();
            subject.write(spec).await;
        }
        subject.stage.run("update towline_rollout set state = 'RollingBack', goal = 1, stable = 1").await;
        let named = sent_again(&subject.stage.database(), &Key::new(Kind::SelectorSyncSet, "", "s")).await;
        assert_eq!(named.expect("a list"), ["Secret default/dropped"]);
    });
}

/// A syncset of these namespaces.
fn of_namespaces(mode: &str, names: &[&str]) -> Value {
    let namespace = |name: &&str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let resources: Vec<Value> = names.iter().map(namespace).collect();
    json!({"spec": {"clusterDeploymentSelector": {}, "clusterNamespaces": ["*"], "resourceApplyMode": mode, "resources": resources,
        "rollout": {"waves": []}}})
}

struct Subject {
    stage: Stage,
    writer: Written,
    generation: i64,
}

impl Subject {
    async fn new(name: &str) -> Self {
        let stage = Stage::new(name).await;
        let writer = stage.writer();
        Self { stage, writer, generation: 0 }
    }

    async fn write(&mut self, spec: Value) -> i64 {
        self.generation += 1;
        self.writer.version(document(Kind::SelectorSyncSet, "s", self.generation, spec, &[])).await
    }

    /// As `revision@generation:content`, each with the version that its document had.
    async fn revisions(&self) -> Vec<(String, i64)> {
        let text = "select revision || '@' || generation || ':' || (content #>> '{resources,0,data,content}'), version \
             from towline_revision r order by revision";
        let rows = self.stage.sql.query(text, &[]).await.expect("rows");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn names(&self) -> Vec<String> {
        self.revisions().await.into_iter().map(|(name, _)| name).collect()
    }

    /// Its row, in words.
    async fn rollout(&self) -> String {
        let text = "select concat_ws(' ', 'newest', newest, 'stable', coalesce(stable, 0), 'goal', goal, 'edited', edited, 'started', started, state, reason) \
             from towline_rollout";
        let rows = self.stage.sql.query(text, &[]).await.expect("rows");
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("; ")
    }

    /// Rows of revisions, rollouts and turns.
    async fn rows(&self) -> i64 {
        let text = "select (select count(*) from towline_revision) + (select count(*) from towline_rollout) \
             + (select count(*) from towline_turn)";
        self.stage.number(text).await
    }

    async fn pin(&self, revision: i32) {
        let text = format!(
            "insert into towline_turn select syncset, gen_random_uuid(), {revision}, 1, 0, 0 from towline_rollout"
        );
        self.stage.run(&text).await;
    }
}

#[test]
fn each_new_content_gets_a_revision_and_nothing_else_does() {
    run(async {
        let mut subject = Subject::new("revised").await;
        let first = subject.write(spec("a", "x", true)).await;
        assert_eq!(subject.revisions().await, [("1@1:a".to_owned(), first)]);
        assert_eq!(subject.rollout().await, "newest 1 stable 0 goal 1 edited 1 started 0 Running Guarding");
        subject.write(spec("a", "y", true)).await;
        assert_eq!(subject.names().await, ["1@1:a"], "whom it is for, and its waves, are no content");
        assert!(subject.rollout().await.contains("edited 1 "));
        let second = subject.write(spec("b", "y", true)).await;
        assert_eq!(subject.revisions().await, [("1@1:a".to_owned(), first), ("2@3:b".to_owned(), second)]);
        subject.write(spec("a", "y", true)).await;
        assert_eq!(subject.revisions().await.first(), Some(&("1@1:a".to_owned(), first)), "as it was sent before");
        assert_eq!(subject.names().await, ["1@1:a", "2@3:b"]);
        assert!(
            subject.rollout().await.starts_with("newest 1 stable 0 goal 1 edited 3 started 0"),
            "{}",
            subject.rollout().await
        );
        subject.write(spec("c", "y", true)).await;
        assert_eq!(subject.names().await, ["1@1:a", "2@3:b", "3@5:c"], "no number is given twice");
        // Content that the server stores out of line.
        let large: String =
            (0..300_000_u64).map(|at| char::from(b'a' + u8::try_from(at * at % 23).expect("small"))).collect();
        subject.write(spec(&large, "y", true)).await;
        subject.write(spec(&large, "z", true)).await;
        subject.write(spec(&large.replacen('a', "b", 1), "z", true)).await;
        subject.write(spec(&large, "z", true)).await;
        assert_eq!(subject.stage.number("select count(*) from towline_revision").await, 5);
        assert!(subject.rollout().await.starts_with("newest 4 "));
    });
}

/// It is found out under the log's lock which content that is.
#[test]
fn no_large_content_is_read_to_find_that_another_one_is_new() {
    run(async {
        let mut subject = Subject::new("compared").await;
        // Letters that can't be compressed, so that they are stored out of line.
        let large = |seed: u64| -> String {
            let mut state = seed;
            let letter = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'a' + u8::try_from((state >> 33) % 26).expect("small"))
            };
            (0..100_000).map(letter).collect()
        };
        for seed in 0..5 {
            subject.write(spec(&large(seed), "x", true)).await;
        }
        let read = "select pg_stat_get_xact_blocks_fetched(reltoastrelid) from pg_class where oid = 'towline_revision'::regclass";
        // The document itself is read before, where it is stored.
        let revise = |content: &str| {
            format!(
                "do $$ declare d towline_documents; begin \
                   select * into d from towline_documents where kind = 'selectorsyncsets'; d.generation := d.generation + 1; \
                   d.data := {content}; perform towline_revise(d, false); end $$"
            )
        };
        let (new, kept) = (
            "jsonb_set(d.data, '{spec,resources,0,data,content}', '\"small\"')",
            "jsonb_set(d.data, '{spec}', (select content from towline_revision where revision = 1) || '{\"rollout\": {\"waves\": []}}')",
        );
        let mut blocks = Vec::new();
        for content in [new, kept] {
            subject.stage.run("begin").await;
            subject.stage.run(&revise(content)).await;
            blocks.push(subject.stage.number(read).await);
            subject.stage.run("rollback").await;
        }
        assert!(blocks[0] == 0 && blocks[1] > 0, "{blocks:?}");
        assert_eq!(subject.names().await.len(), 5);
    });
}

#[test]
fn what_clusters_have_when_a_rollout_is_added_stays_as_it_is() {
    run(async {
        let mut subject = Subject::new("added").await;
        let before = subject.write(spec("a", "x", false)).await;
        assert_eq!(subject.rows().await, 0);
        subject.write(spec("a", "x", true)).await;
        assert_eq!(subject.revisions().await, [("1@1:a".to_owned(), before)]);
        assert_eq!(subject.rollout().await, "newest 1 stable 1 goal 1 edited 0 started 0 Complete ");
        subject.pin(1).await;
        subject.write(spec("a", "x", false)).await;
        assert_eq!(subject.rows().await, 0, "the document's content is all there is");
        // Together with another content.
        let after = subject.write(spec("b", "y", true)).await;
        assert_eq!(subject.revisions().await, [("1@3:a".to_owned(), before + 2), ("2@4:b".to_owned(), after)]);
        assert_eq!(subject.rollout().await, "newest 2 stable 1 goal 1 edited 1 started 0 Complete ");
    });
}

#[test]
fn a_syncset_that_is_deleted_has_no_rollout() {
    run(async {
        let mut subject = Subject::new("endedrollout").await;
        subject.write(spec("a", "x", true)).await;
        subject.pin(1).await;
        subject.writer.version(removal(Kind::SelectorSyncSet, "s")).await;
        assert_eq!(subject.rows().await, 0);
        // With a finalizer.
        subject.write(spec("a", "x", true)).await;
        assert_eq!(subject.rows().await, 2);
        let mut deleting = document(Kind::SelectorSyncSet, "s", 1, spec("a", "x", true), &[]);
        for change in &mut deleting.changes {
            let row = change.row.as_mut().expect("a row");
            row.deleted_at = Some("2026-11-19T08:00:00Z".parse().expect("a time"));
            row.finalizers = vec!["example.com/kept".to_owned()];
        }
        subject.writer.version(deleting).await;
        assert_eq!(subject.rows().await, 0);
    });
}

#[test]
fn ten_revisions_are_kept_and_those_in_use() {
    run(async {
        let mut subject = Subject::new("keptrevisions").await;
        for content in ["a", "b", "c"] {
            subject.write(spec(content, "x", true)).await;
        }
        // As they are in the middle of a rollout; the second one nobody has any more.
        subject.stage.run("update towline_rollout set stable = 1, goal = 3, started = 2").await;
        subject.pin(4).await;
        for content in ["d", "e", "f", "g", "h", "i", "j", "k", "l"] {
            subject.write(spec(content, "x", true)).await;
        }
        let kept = "select array_agg(revision order by revision)::text from towline_revision";
        let revisions: String = subject.stage.sql.query_one(kept, &[]).await.expect("a row").get(0);
        assert_eq!(revisions, "{1,3,4,5,6,7,8,9,10,11,12}");
        for content in ["m", "n"] {
            subject.write(spec(content, "x", true)).await;
        }
        let revisions: String = subject.stage.sql.query_one(kept, &[]).await.expect("a row").get(0);
        assert_eq!(revisions, "{1,3,4,5,6,7,8,9,10,11,12,13,14}");
        subject.write(spec("o", "x", true)).await;
        let revisions: String = subject.stage.sql.query_one(kept, &[]).await.expect("a row").get(0);
        assert_eq!(revisions, "{1,3,4,6,7,8,9,10,11,12,13,14,15}");
    });
}

#[test]
fn a_restored_database_moves_nobody() {
    run(async {
        let mut subject = Subject::new("restoredrollout").await;
        subject.write(spec("a", "x", true)).await;
        renumber(&subject.stage.database(), true).await.expect("an answer").expect("a base");
        assert!(subject.rollout().await.ends_with("Stopped Restored"));
        // One that has ended moves nobody; one that has yet to begin waits to be resumed.
        for (state, reason, edits, then) in [
            ("Complete", "", 0, "Complete "),
            ("Complete", "", 1, "Stopped Restored"),
            ("Stopped", "Aborted", 1, "Stopped Restored"),
            ("Stopped", "Paused", 1, "Stopped Paused"),
        ] {
            let text = format!(
                "update towline_rollout set state = '{state}', reason = '{reason}', started = edited - {edits}, guarded = true"
            );
            subject.stage.run(&text).await;
            renumber(&subject.stage.database(), true).await.expect("an answer").expect("a base");
            assert!(subject.rollout().await.ends_with(then), "{state} {reason} {edits}");
            let guarded = subject.stage.number("select count(*) from towline_rollout where guarded").await;
            assert_eq!(guarded == 0, then == "Stopped Restored", "{state} {reason} {edits}: the guard checks again");
        }
    });
}

#[test]
fn with_other_waves_a_rollout_begins_at_the_first_one_and_another_content_leaves_that_to_the_dispatcher() {
    run(async {
        let mut subject = Subject::new("otherwaves").await;
        subject.write(spec("a", "x", true)).await;
        for (state, content, tier, begins) in [
            ("Running", "a", "y", true),
            ("Running", "b", "y", false),
            ("Stopped", "b", "x", true),
            ("RollingBack", "b", "y", false),
            ("Running", "c", "x", true),
        ] {
            let set = "wave = 1, settled = 5, checking = 6, promoted = 1, tolerated = 2, failures = 2, clock = 7";
            subject.stage.run(&format!("update towline_rollout set state = '{state}', {set}")).await;
            subject.write(spec(content, tier, true)).await;
            let is = if begins {
                "wave = 0 and settled is null and checking is null and promoted = 0 and tolerated = 0 and failures = 0 and clock = 7"
            } else {
                "wave = 1 and settled = 5 and checking = 6 and promoted = 1 and tolerated = 2 and clock = 7"
            };
            let text = format!("select count(*) from towline_rollout where state = '{state}' and {is}");
            assert_eq!(subject.stage.number(&text).await, 1, "{state} {content} {tier}");
        }
    });
}

#[test]
fn what_goes_back_names_what_the_newest_revision_and_those_that_clusters_have_do_not_name() {
    run(async {
        let mut subject = Subject::new("sentagain").await;
        let key = Key::new(Kind::SelectorSyncSet, "", "s");
        let named = async |subject: &Subject, set: &str| {
            subject.stage.run(&format!("update towline_rollout set state = 'RollingBack', {set}")).await;
            let named = sent_again(&subject.stage.database(), &key).await.expect("a list");
            let name = |one: &String| {
                one.trim_start_matches("Namespace ").trim_end_matches(", without what was in it").to_owned()
            };
            named.iter().map(name).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        for names in [&["a", "b"][..], &["c"], &["a", "b", "c"]] {
            subject.write(of_namespaces("Sync", names)).await;
        }
        // Nobody has had the second one.
        assert_eq!(named(&subject, "newest = 3, goal = 1, stable = 1").await, none);
        assert_eq!(named(&subject, "stable = 2").await, ["a", "b"]);
        assert_eq!(named(&subject, "stable = null").await, none);
        subject.pin(2).await;
        assert_eq!(named(&subject, "goal = 1").await, ["a", "b"]);
        subject.stage.run("delete from towline_turn").await;
        // An edit back to the first one, which keeps its number.
        subject.stage.run("update towline_rollout set stable = 3, goal = 3").await;
        subject.write(of_namespaces("Sync", &["a", "b"])).await;
        assert!(subject.rollout().await.starts_with("newest 1 stable 3 goal 3 "));
        assert_eq!(named(&subject, "goal = 3").await, ["c"]);
        subject.write(of_namespaces("Upsert", &[])).await;
        assert!(subject.rollout().await.starts_with("newest 4 stable 3 goal 3 "));
        assert_eq!(named(&subject, "goal = 3").await, none, "it deletes nothing");
    });
}

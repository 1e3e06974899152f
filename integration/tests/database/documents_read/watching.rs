//! What a watch begins with, sends, and ends with.

use std::time::Duration;

use serde_json::{Value, json};
use towline::test_api::documents::{
    Ending, Event, Fields, Filter, Key, Kind, ListError, ListQuery, Object, Store, Tail, Watch, WatchQuery, list,
};

use crate::documents_read::world::{LIMIT, World, run};

const RING: usize = 1 << 20;

fn all() -> Filter {
    Filter::of(Kind::Cluster)
}

async fn start(tail: &Tail, filter: Filter, from: Option<i64>) -> Watch {
    tail.watch(WatchQuery { filter, fields: Fields::All, from }).await.expect("a watch")
}

async fn next(watch: &mut Watch) -> Event {
    let event = tokio::time::timeout(LIMIT, watch.next()).await.expect("an event in time");
    event.expect("an event")
}

async fn ending(watch: &mut Watch) -> Ending {
    let ending = tokio::time::timeout(LIMIT, watch.next()).await.expect("an ending in time");
    ending.expect_err("an ending")
}

/// What is seen of an event: its type, and name, version and content of its document.
fn seen(event: &Event) -> (&'static str, Value) {
    let object = |object: &Object| {
        let document: Value = serde_json::from_slice(object.json()).expect("JSON");
        assert_eq!(document["kind"], "Cluster");
        assert_eq!(document.get("sealed"), None);
        json!([document["name"], document["resourceVersion"], document["content"]])
    };
    match event {
        Event::Initial(document) => ("INITIAL", object(document)),
        Event::Added(document) => ("ADDED", object(document)),
        Event::Modified(document) => ("MODIFIED", object(document)),
        Event::Deleted(document) => ("DELETED", object(document)),
        Event::Bookmark { version, is_end_of_state } => ("BOOKMARK", json!([version, is_end_of_state])),
    }
}

/// A document as `seen` shows it.
fn document(name: &str, version: i64, content: u64) -> Value {
    json!([name, version.to_string(), content])
}

impl World {
    async fn cluster(&self, name: &str, tier: &str, content: u64) -> i64 {
        self.put(content, Kind::Cluster, ("n", name), &json!({"tier": tier}), &json!({"content": content})).await
    }
}

/// A change of another process wakes the tail: it does not wait for the next look, which comes once a second.
#[test]
fn a_change_of_another_process_wakes_the_tail() {
    run(async {
        let world = World::new("woken").await;
        let replica = world.tail(RING);
        let mut watch = start(&replica.tail, all(), None).await;
        assert_eq!(seen(&next(&mut watch).await).0, "BOOKMARK");
        let mut taken = Vec::new();
        while taken.len() < 20 {
            let begun = std::time::Instant::now();
            world.cluster("a", "gold", u64::try_from(taken.len()).expect("few")).await;
            while seen(&next(&mut watch).await).0 == "BOOKMARK" {}
            taken.push(begun.elapsed());
        }
        // A look would come within a second of the last one. Half of the changes may meet a machine that is busy.
        taken.sort();
        assert!(taken[taken.len() / 2] < Duration::from_millis(500), "{taken:?}");
    });
}

#[test]
fn without_a_version_a_watch_sends_the_state_then_a_bookmark_then_the_changes() {
    run(async {
        let world = World::new("state").await;
        let replica = world.tail(RING);
        let (a, b) = (world.cluster("a", "gold", 1).await, world.cluster("b", "silver", 2).await);
        world.put(3, Kind::Secret, ("n", "s"), &json!({}), &json!({})).await;
        for from in [None, Some(0)] {
            let mut watch = start(&replica.tail, all(), from).await;
            assert_eq!(seen(&next(&mut watch).await), ("INITIAL", document("a", a, 1)));
            assert_eq!(seen(&next(&mut watch).await), ("INITIAL", document("b", b, 2)));
            assert_eq!(seen(&next(&mut watch).await), ("BOOKMARK", json!([b + 1, true])));
            assert_eq!(watch.lag(), None);
        }
        let mut watch = start(&replica.tail, all().selected_by("tier=gold").expect("a selector"), None).await;
        assert_eq!(seen(&next(&mut watch).await).0, "INITIAL");
        assert_eq!(seen(&next(&mut watch).await).0, "BOOKMARK");
        let b = world.cluster("b", "gold", 4).await;
        assert_eq!(seen(&next(&mut watch).await), ("ADDED", document("b", b, 4)));
        assert!(watch.lag().is_some());
        let b = world.cluster("b", "gold", 5).await;
        assert_eq!(seen(&next(&mut watch).await), ("MODIFIED", document("b", b, 5)));
        let b = world.cluster("b", "silver", 6).await;
        assert_eq!(seen(&next(&mut watch).await), ("DELETED", document("b", b, 5)), "its last matching state");
        world.cluster("b", "silver", 7).await;
        let a = world.delete(8, Kind::Cluster, ("n", "a")).await;
        assert_eq!(seen(&next(&mut watch).await), ("DELETED", document("a", a, 1)));
    });
}

#[test]
fn a_state_of_several_pages_is_that_of_one_version() {
    run(async {
        let world = World::new("several").await;
        let replica = world.tail(RING);
        let changes: Vec<Value> = (1..=600)
            .map(|number| {
                crate::documents_read::world::put(
                    number,
                    Kind::Cluster,
                    ("n", &format!("c{number:03}")),
                    &json!({}),
                    &json!({"content": number}),
                )
            })
            .collect();
        let newest = crate::documents_read::world::write(&world.sql, 1, &changes).await[599].expect("a version");
        let mut watch = start(&replica.tail, all(), None).await;
        assert_eq!(seen(&next(&mut watch).await).0, "INITIAL");
        // Written before the second page is read: not part of the state, but the first changes after it.
        let last = world.cluster("c600", "gold", 1000).await;
        let first = world.delete(1001, Kind::Cluster, ("n", "c001")).await;
        for number in 2..=600 {
            let version = newest - 600 + number;
            assert_eq!(
                seen(&next(&mut watch).await),
                ("INITIAL", document(&format!("c{number:03}"), version, number.unsigned_abs()))
            );
        }
        assert_eq!(seen(&next(&mut watch).await), ("BOOKMARK", json!([newest, true])));
        assert_eq!(seen(&next(&mut watch).await), ("MODIFIED", document("c600", last, 1000)));
        assert_eq!(seen(&next(&mut watch).await), ("DELETED", document("c001", first, 1)));
    });
}

#[test]
fn a_watch_resumes_from_before_the_ring_and_continues_in_it() {
    run(async {
        let world = World::new("resumes").await;
        let first = world.cluster("a", "gold", 1).await;
        let mut versions = Vec::new();
        for content in 2..=60 {
            if content == 21 {
                // A gap larger than a window.
                world.run("select setval('towline_version', 20000)").await;
            }
            let tier = if content % 2 == 0 { "gold" } else { "silver" };
            versions.push((world.cluster("a", tier, content).await, content));
        }
        // Room for the last few events only.
        let replica = world.tail(8 * 1024);
        let mut watch = start(&replica.tail, all(), Some(first)).await;
        versions.push((world.cluster("a", "gold", 61).await, 61));
        for (version, content) in versions {
            assert_eq!(seen(&next(&mut watch).await), ("MODIFIED", document("a", version, content)));
        }
        assert!(watch.lag().is_some(), "the last event comes from the ring");
        let state = replica.tail.state();
        assert!(state.ring.0 < 20 && state.ring.1 <= 8 * 1024, "{state:?}");
    });
}

#[test]
fn a_version_that_another_replica_has_just_written_is_waited_for_and_one_that_nobody_wrote_is_gone() {
    run(async {
        let world = World::new("ahead").await;
        let replica = world.tail(RING);
        for content in 1..=20 {
            let version = world.cluster("a", "gold", content).await;
            // The tail may not have read it yet.
            start(&replica.tail, all(), Some(version)).await;
        }
        let newest = world.cluster("a", "gold", 21).await;
        // The sequence says nothing of what was written.
        world.run(&format!("select setval('towline_version', {})", newest + 500)).await;
        let ahead = WatchQuery { filter: all(), fields: Fields::All, from: Some(newest + 1) };
        let outcome = replica.tail.watch(ahead).await.err();
        assert!(matches!(outcome, Some(ListError::Gone)), "{outcome:?}");
    });
}

#[test]
fn a_watch_below_the_base_is_gone_before_its_first_event() {
    run(async {
        let world = World::new("below").await;
        let first = world.cluster("a", "gold", 1).await;
        for content in 2..=60 {
            world.cluster("a", "gold", content).await;
        }
        let replica = world.tail(8 * 1024);
        let watch = async |from| {
            let query = WatchQuery { filter: all(), fields: Fields::All, from: Some(from) };
            replica.tail.watch(query).await.map(|_| ())
        };
        assert!(watch(first).await.is_ok());
        // The tail has not read the new base, but the statement has.
        world.run(&format!("update towline_meta set base = {}", first + 1)).await;
        let outcome = watch(first).await;
        assert!(matches!(outcome, Err(ListError::Gone)), "{outcome:?}");
        assert!(watch(first + 1).await.is_ok(), "the base itself is there");
        assert!(matches!(watch(-1).await, Err(ListError::Gone)));
    });
}

#[test]
fn a_watch_that_falls_out_of_the_ring_is_ended_and_resumes_without_a_loss() {
    run(async {
        let world = World::new("behind").await;
        let replica = world.tail(8 * 1024);
        let mut from = world.cluster("a", "gold", 1).await;
        let mut watch = start(&replica.tail, all(), Some(from)).await;
        let mut versions = Vec::new();
        for content in 2..=60 {
            versions.push((world.cluster("a", "gold", content).await, content));
        }
        let newest = versions[58].0;
        integration::eventually("the tail to read everything", LIMIT, async || match replica.tail.state().version {
            version if version == newest => Ok(()),
            version => Err(version.to_string()),
        })
        .await
        .unwrap();
        assert!(matches!(ending(&mut watch).await, Ending::FellBehind));
        assert!(matches!(ending(&mut watch).await, Ending::FellBehind), "an ended watch stays ended");
        let mut watch = start(&replica.tail, all(), Some(from)).await;
        for (version, content) in versions {
            let event = next(&mut watch).await;
            assert_eq!(seen(&event), ("MODIFIED", document("a", version, content)));
            assert!(event.resume_version() > Some(from));
            from = version;
        }
    });
}

#[test]
fn an_event_is_not_lost_by_a_caller_that_stops_waiting() {
    run(async {
        let world = World::new("cancelled").await;
        let replica = world.tail(8 * 1024);
        let first = world.cluster("a", "gold", 1).await;
        let mut last = first;
        for content in 2..=100 {
            last = world.cluster("a", "gold", content).await;
        }
        // A watch that began in the ring while the tail reads this could fall behind.
        integration::eventually("the tail to have read all", LIMIT, async || match replica.tail.state().version {
            version if version == last => Ok(()),
            other => Err(format!("{other}")),
        })
        .await
        .unwrap();
        let mut watch = start(&replica.tail, all(), Some(first)).await;
        let mut versions = Vec::new();
        while versions.len() < 99 {
            // Mostly too short for a statement.
            if let Ok(event) = tokio::time::timeout(Duration::from_micros(100), watch.next()).await {
                versions.extend(event.expect("an event").resume_version());
            }
        }
        assert_eq!(versions, (first + 1..=first + 99).collect::<Vec<_>>());
    });
}

#[test]
fn an_idle_watch_receives_bookmarks_with_the_newest_version() {
    run(async {
        let world = World::new("bookmarks").await;
        let replica = world.tail(RING);
        let version = world.cluster("a", "gold", 1).await;
        let mut watch = start(&replica.tail, all(), Some(version)).await;
        // Nothing that this watch shows: the bookmark says so.
        let other = world.put(2, Kind::Secret, ("n", "s"), &json!({}), &json!({})).await;
        assert_eq!(seen(&next(&mut watch).await), ("BOOKMARK", json!([other, false])));
    });
}

#[test]
fn a_tail_that_was_disconnected_continues_where_it_was() {
    run(async {
        let world = World::new("disconnected").await;
        let replica = world.tail(RING);
        let version = world.cluster("a", "gold", 1).await;
        let mut watch = start(&replica.tail, all(), Some(version)).await;
        for content in 2..=4 {
            world
                .run(
                    "select pg_terminate_backend(pid) from pg_stat_activity \
                     where datname = current_database() and application_name = 'towline tail'",
                )
                .await;
            let version = world.cluster("a", "gold", content).await;
            assert_eq!(seen(&next(&mut watch).await), ("MODIFIED", document("a", version, content)));
        }
        integration::eventually("the failure to be over", LIMIT, async || match replica.tail.state().failure {
            None => Ok(()),
            Some(failure) => Err(failure.to_string()),
        })
        .await
        .unwrap();
    });
}

#[test]
fn metadata_alone_are_the_beginning_of_each_event() {
    run(async {
        let world = World::new("metadata").await;
        let replica = world.tail(RING);
        world.cluster("a", "gold", 1).await;
        let query = WatchQuery { filter: all(), fields: Fields::Metadata, from: None };
        let mut watch = replica.tail.watch(query).await.expect("a watch");
        let metadata = |event: &Event| {
            let (Event::Initial(object) | Event::Modified(object)) = event else { panic!("{event:?}") };
            let mut text = Vec::new();
            object.write(Fields::Metadata, &mut text);
            serde_json::from_slice::<Value>(&text).expect("JSON")
        };
        let initial = metadata(&next(&mut watch).await);
        next(&mut watch).await;
        world.cluster("a", "gold", 2).await;
        let modified = metadata(&next(&mut watch).await);
        for metadata in [initial, modified] {
            assert_eq!((metadata.get("content"), metadata.get("status")), (None, None));
            assert_eq!((&metadata["name"], &metadata["labels"]), (&json!("a"), &json!({"tier": "gold"})));
        }
    });
}

#[test]
fn a_row_of_an_unknown_kind_is_skipped_and_one_that_cannot_be_read_ends_the_watches_of_its_place_alone() {
    run(async {
        let world = World::new("unreadable").await;
        let replica = world.tail(RING);
        let version = world.cluster("a", "gold", 1).await;
        let mut watch = start(&replica.tail, all(), Some(version)).await;
        let gold = all().selected_by("tier=gold").expect("a selector");
        let in_place = [gold, all().in_namespace("n").expect("a namespace"), all().named("b").expect("a name")];
        let elsewhere = [
            Filter::of(Kind::Secret),
            all().in_namespace("m").expect("a namespace"),
            all().named("c").expect("a name"),
        ];
        let mut ended = Vec::new();
        for filter in in_place {
            ended.push(start(&replica.tail, filter, Some(version)).await);
        }
        let mut others = Vec::new();
        for filter in elsewhere {
            others.push(start(&replica.tail, filter, Some(version)).await);
        }
        let insert = async |kind: &str, document: &str| {
            let row = format!(
                "insert into towline_log values (nextval('towline_version'), now(), gen_random_uuid(), '{kind}', \
                 gen_random_uuid(), 'n', 'b', '{{}}', null, '{document}'); notify towline"
            );
            world.run(&row).await;
        };
        insert("pods", "{}").await;
        let version = world.cluster("a", "gold", 2).await;
        assert_eq!(seen(&next(&mut watch).await), ("MODIFIED", document("a", version, 2)));
        insert("clusters", "{}").await;
        assert!(matches!(ending(&mut watch).await, Ending::Gone));
        for watch in &mut ended {
            // Some show the change before the row.
            let ending = loop {
                match tokio::time::timeout(LIMIT, watch.next()).await.expect("an ending in time") {
                    Ok(event) => assert_eq!(event.resume_version(), Some(version)),
                    Err(ending) => break ending,
                }
            };
            assert!(matches!(ending, Ending::Gone));
        }
        // A watch that resumes from behind it sees what follows.
        let mut watch = start(&replica.tail, all(), Some(version + 1)).await;
        let version = world.cluster("a", "gold", 3).await;
        assert_eq!(seen(&next(&mut watch).await), ("MODIFIED", document("a", version, 3)));
        // The others go on, and have missed nothing.
        let labels = json!({});
        let written = [
            world.put(7, Kind::Secret, ("n", "b"), &labels, &json!({"type": "Opaque"})).await,
            world.put(8, Kind::Cluster, ("m", "b"), &labels, &json!({})).await,
            world.put(9, Kind::Cluster, ("n", "c"), &labels, &json!({})).await,
        ];
        for (watch, version) in others.iter_mut().zip(written) {
            let change = loop {
                match next(watch).await {
                    Event::Bookmark { .. } => {}
                    change => break change,
                }
            };
            assert_eq!(change.resume_version(), Some(version));
        }
    });
}

/// A foreign program can write anything into the log. Nobody knows what such a row says about its document, so that all watches of its
/// place learn of it.
#[test]
fn labels_that_are_no_texts_end_the_watches_but_not_the_tail() {
    run(async {
        let world = World::new("labelled").await;
        let replica = world.tail(RING);
        let first = world.cluster("a", "gold", 1).await;
        // The labels of the row itself, and those of the row before it of the same document.
        for content in [2, 3] {
            let version = world.cluster("a", "gold", content).await;
            let mut watch = start(&replica.tail, all(), Some(version)).await;
            let row = format!(
                "insert into towline_log select nextval('towline_version'), now(), gen_random_uuid(), kind, id, namespace, \
                 name, case when {content} = 2 then '{{\"a\": 1}}' else labels end, {version}, document - 'sealed' from towline_log \
                 where version = {version}; update towline_log set labels = '{{\"a\": [1]}}' where {content} = 3 \
                 and version = {version}; notify towline"
            );
            // In one transaction.
            world.run(&row).await;
            assert!(matches!(ending(&mut watch).await, Ending::Gone));
            let mut watch = start(&replica.tail, all(), Some(version + 1)).await;
            let next_version = world.cluster("b", "gold", content).await;
            assert!(matches!(next(&mut watch).await, Event::Added(_) | Event::Modified(_)));
            assert_eq!(next_version, version + 2);
        }
        assert_eq!(replica.tail.state().unreadable, 2, "each is counted");
        // From the log, too, each time that it is read. What is behind it, is read.
        let small = world.tail(1);
        let mut last = 0;
        for content in 4..6 {
            last = world.cluster("a", "gold", content).await;
        }
        integration::eventually("the tail to have read all", LIMIT, async || match small.tail.state().version {
            found if found >= last => Ok(()),
            found => Err(found.to_string()),
        })
        .await
        .unwrap();
        for _ in 0..2 {
            let query = WatchQuery { filter: all(), fields: Fields::All, from: Some(first) };
            assert!(matches!(small.tail.watch(query).await, Err(ListError::Gone)));
        }
        assert_eq!(seen(&next(&mut start(&small.tail, all(), Some(last - 1)).await).await).1, document("a", last, 5));
    });
}

/// The statements since the last count, but those of the tail, and the new connections, which run a statement each.
async fn count_statements(world: &World) -> i64 {
    let statements = "select coalesce(sum(calls), 0)::bigint from pg_stat_statements s, pg_database d \
         where s.dbid = d.oid and datname = current_database() and query not like '%pg_stat_statements%' \
         and query not like 'select m.origin, %' and query not like '%setval%'";
    let count = world.number(statements).await;
    world.forget_statements().await;
    count
}

#[test]
fn a_page_and_a_window_cost_one_statement_and_a_watch_that_begins_in_the_ring_costs_none() {
    run(async {
        let world = World::new("costs").await;
        world.run("create extension pg_stat_statements").await;
        let version = world.cluster("a", "gold", 1).await;
        world.cluster("b", "gold", 2).await;
        for content in 3..=40 {
            world.cluster("b", "gold", content).await;
        }
        let replica = world.tail(8 * 1024);
        start(&replica.tail, all(), Some(version + 39)).await;
        let query = |after| ListQuery { filter: all(), fields: Fields::All, limit: 1, after };
        let first = list(&world.database, &query(None)).await.expect("a page");
        count_statements(&world).await;
        list(&world.database, &query(None)).await.expect("a page");
        assert_eq!(count_statements(&world).await, 1, "a first page");
        list(&world.database, &query(first.next.clone())).await.expect("a page");
        assert_eq!(count_statements(&world).await, 1, "a further page");
        let store = Store::new(world.database.clone());
        assert!(store.get(&Key::new(Kind::Cluster, "n", "a")).await.expect("a read").is_some());
        assert_eq!(count_statements(&world).await, 1, "a document");
        start(&replica.tail, all(), Some(version + 39)).await;
        assert_eq!(count_statements(&world).await, 0, "a watch that begins in the ring");
        start(&replica.tail, all(), None).await;
        assert_eq!(count_statements(&world).await, 1, "a watch that begins with a state of one page");
        start(&replica.tail, all(), Some(version)).await;
        assert_eq!(count_statements(&world).await, 1, "a window of the log");
        world.run(&format!("select setval('towline_version', {})", version + 200_000)).await;
        world.cluster("b", "gold", 41).await;
        count_statements(&world).await;
        let gone = list(&world.database, &query(first.next)).await;
        assert!(matches!(gone, Err(ListError::Gone)));
        list(&world.database, &query(None)).await.expect("a page");
        assert_eq!(count_statements(&world).await, 2, "a page that is gone leaves its connection to the next one");
    });
}

#[test]
fn a_thousand_watches_receive_an_event_that_the_database_is_asked_for_once() {
    run(async {
        let world = World::new("thousand").await;
        world.run("create extension pg_stat_statements").await;
        let replica = world.tail(RING);
        let version = world.cluster("a", "gold", 1).await;
        let mut watches = Vec::new();
        for _ in 0..1000 {
            watches.push(start(&replica.tail, all(), Some(version)).await);
        }
        count_statements(&world).await;
        let version = world.cluster("a", "gold", 2).await;
        for watch in &mut watches {
            assert_eq!(seen(&next(watch).await), ("MODIFIED", document("a", version, 2)));
        }
        assert_eq!(count_statements(&world).await, 1, "the write alone");
        // The others are not asked for their events meanwhile. They hold up neither the tail nor this one.
        let (mut prompt, mut written) = (watches.remove(0), Vec::new());
        for content in 3..=10 {
            written.push((world.cluster("a", "gold", content).await, content));
            let (version, content) = written[written.len() - 1];
            assert_eq!(seen(&next(&mut prompt).await), ("MODIFIED", document("a", version, content)));
        }
        for (version, content) in written {
            assert_eq!(seen(&next(&mut watches[998]).await), ("MODIFIED", document("a", version, content)));
        }
    });
}

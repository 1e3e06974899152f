//! What lists and watches take at most, however large and many the documents are.

use integration::soak::{Random, seed};
use serde_json::{Value, json};
use towline::test_api::documents::{
    BlockingPool, Continue, Document, Fields, Filter, Key, Kind, LargeSlots, ListError, ListQuery, Page, SlotOwner,
    Store, WatchQuery, list, list_json,
};

use crate::documents_read::world::{LIMIT, World, put, run, write};

/// Size of a page.
const MAX_BYTES: usize = 8 * 1024 * 1024;

fn query(after: Option<Continue>) -> ListQuery {
    ListQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, limit: 1000, after }
}

/// The text that makes a document large.
fn length(document: &Document) -> usize {
    document.data["text"].as_str().expect("a text").len()
}

/// All pages of a list; `between` runs after each one.
async fn pages(world: &World, mut between: impl AsyncFnMut(&Page)) -> Vec<Vec<Document>> {
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = list(&world.database, &query(after)).await.expect("a page");
        between(&page).await;
        pages.push(page.items);
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}

#[test]
fn pages_of_documents_of_any_size_end_where_the_next_one_has_no_room() {
    run(async {
        let world = World::new("sizes").await;
        let mut random = Random::new(seed());
        let mut expected = Vec::new();
        for number in 0..80_u64 {
            let size = [100, 3_000, 200_000, 1_000_000, 4_000_000][random.index(5)];
            let size = usize::try_from(random.below(size)).expect("a size");
            // Some texts are stored in a hundredth of their size, others are not.
            let text = if random.below(2) == 0 {
                "x".repeat(size)
            } else {
                std::iter::repeat_with(|| char::from(b'a' + u8::try_from(random.below(26)).expect("a letter")))
                    .take(size)
                    .collect()
            };
            let name = format!("c{number:02}");
            world.put(number, Kind::Cluster, ("n", &name), &json!({}), &json!({"text": text})).await;
            expected.push((name, size));
        }
        // While the pages are read, documents behind them change: their state is then in the log.
        let mut number = 100;
        let pages = pages(&world, async |page| {
            if let Some(last) = page.items.last() {
                let next: u64 = last.name[1..].parse::<u64>().expect("a number") + 1 + number % 2;
                number += 1;
                let name = format!("c{next:02}");
                world.put(number, Kind::Cluster, ("n", &name), &json!({}), &json!({"text": "changed"})).await;
            }
        })
        .await;
        let found: Vec<(String, usize)> =
            pages.iter().flatten().map(|document| (document.name.clone(), length(document))).collect();
        assert_eq!(found, expected);
        for (page, next) in pages.iter().zip(&pages[1..]) {
            let bytes: usize = page.iter().map(length).sum();
            assert!(page.len() == 1 || bytes <= MAX_BYTES, "{bytes}");
            // Beside its text, a document has less than half a KiB.
            let with_next = bytes + length(&next[0]) + 512 * (page.len() + 1);
            assert!(with_next > MAX_BYTES, "{} items of {bytes} bytes leave room for {}", page.len(), length(&next[0]));
        }
        assert!(pages.len() > 3, "{}", pages.len());
    });
}

/// The statements of all connections but that of the test, except those of the tail.
async fn count_statements(world: &World) -> i64 {
    let count = "select coalesce(sum(calls), 0)::bigint from pg_stat_statements s, pg_database d \
         where s.dbid = d.oid and datname = current_database() and query not like '%pg_stat_statements%'";
    let count = world.number(count).await;
    world.forget_statements().await;
    count
}

#[test]
fn a_list_of_500_documents_of_4_mib_is_read_page_by_page_each_with_one_statement_and_the_same_connection() {
    run(async {
        let world = World::new("huge").await;
        world.run("create extension pg_stat_statements").await;
        // In two hundredths of its size, so that the database prints far more than it stores.
        let text = "y".repeat(4 * 1024 * 1024 - 100);
        let version = world.put(1, Kind::Cluster, ("n", "c000"), &json!({}), &json!({"text": text})).await;
        let copies = "insert into towline_documents (kind, id, namespace, name, labels, annotations, finalizers, generation, version, \
               created_at, updated_at, data, status) \
             select kind, gen_random_uuid(), namespace, 'c' || lpad(number::text, 3, '0'), labels, annotations, finalizers, \
               generation, version, created_at, updated_at, data, status \
             from towline_documents, generate_series(1, 499) number";
        world.run(copies).await;
        list(&world.database, &query(None)).await.expect("a page");
        count_statements(&world).await;
        let mut after = None;
        for number in [0, 1, 2] {
            let page = list(&world.database, &query(after)).await.expect("a page");
            assert_eq!(count_statements(&world).await, 1, "page {number}");
            let names: Vec<_> = page.items.iter().map(|document| document.name.clone()).collect();
            assert_eq!((names, page.version), (vec![format!("c{number:03}")], version), "two have no room");
            after = page.next;
        }
        assert!(after.is_some());
    });
}

#[test]
fn large_documents_wait_for_a_thread_of_their_own_and_small_ones_do_not() {
    run(async {
        let world = World::new("aside").await;
        for (number, name, length) in [(1, "large", 4_000_000), (2, "small", 100)] {
            let data = json!({"text": "x".repeat(length)});
            world.put(number, Kind::Cluster, (name, "c"), &json!({}), &data).await;
        }
        let (blocking, slots) = (BlockingPool::default(), LargeSlots::new("large ones", 9, 1 << 20));
        // As many as there are threads.
        let (begun, mut beginnings) = tokio::sync::mpsc::channel(4);
        let mut ends = Vec::new();
        for _ in 0..4 {
            let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
            let (blocking, begun) = (blocking.clone(), begun.clone());
            let work = move || {
                begun.blocking_send(()).expect("the test listens");
                Ok::<_, ListError>(ended.recv().is_err())
            };
            tokio::spawn(async move { blocking.run(1 << 20, work).await });
            ends.push(end);
            beginnings.recv().await.expect("it begins");
        }
        let database = &world.database;
        let read = |namespace: &'static str| {
            let (database, blocking) = (database.clone(), blocking.clone());
            async move {
                let found = Store::new(database).found(&Key::new(Kind::Cluster, namespace, "c")).await.expect("a read");
                found.expect("a document").print(&blocking).await.expect("it is printed")
            }
        };
        let listed = |namespace: &'static str| {
            let (database, blocking, slots) = (database.clone(), blocking.clone(), slots.clone());
            let filter = Filter::of(Kind::Cluster).in_namespace(namespace).expect("a namespace");
            async move {
                list_json(&database, &blocking, &ListQuery { filter, ..query(None) }, (&slots, SlotOwner::default()))
                    .await
                    .expect("a page")
                    .0
                    .items
            }
        };
        let large = [tokio::spawn(read("large")), tokio::spawn(listed("large"))];
        for _ in 0..20 {
            assert_eq!(read("small").await, listed("small").await);
        }
        assert!(large.iter().all(|large| !large.is_finished()));
        drop(ends);
        let [read, listed] = large;
        let (read, listed) = (read.await.expect("no panic"), listed.await.expect("no panic"));
        assert!(read.len() > 4_000_000 && read == listed, "a list shows a document as a read does");
    });
}

#[test]
fn watches_that_read_the_log_leave_half_of_the_connections_to_other_requests() {
    run(async {
        let world = World::new("readers").await;
        let mut version = 0;
        for content in 1..=40 {
            version = world.put(content, Kind::Cluster, ("n", "a"), &json!({}), &json!({"content": content})).await;
        }
        // Room for the last few events only.
        let replica = world.tail(8 * 1024);
        let from = |from| WatchQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, from: Some(from) };
        drop(replica.tail.watch(from(version)).await.expect("the tail reads"));
        let other = world.place.client(integration::postgres::ADMIN).await.expect("a connection");
        // Statements on the log wait now, for 5 s at most.
        other.batch_execute("begin; lock table towline_log in access exclusive mode").await.expect("a lock");
        let watches: Vec<_> = (0..20)
            .map(|_| {
                let tail = replica.tail.clone();
                tokio::spawn(async move { tail.watch(from(version - 39)).await })
            })
            .collect();
        let reading = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
             and query like '%stored_before%'";
        let half = i64::from(world.database.state().max / 2);
        assert_eq!(half, 4);
        integration::eventually("watches to read the log", LIMIT, async || {
            match world.sql.query_one(reading, &[]).await {
                Ok(row) if row.get::<_, i64>(0) == half => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        let store = Store::new(world.database.clone());
        let key = Key::new(Kind::Cluster, "n", "a");
        for _ in 0..20 {
            // Neither of these reads the log.
            assert!(store.get(&key).await.expect("a connection is free").is_some());
        }
        assert_eq!(world.number(reading).await, half);
        other.batch_execute("commit").await.expect("the lock is released");
        for watch in watches {
            let mut watch = watch.await.expect("no panic").expect("a watch");
            let event = tokio::time::timeout(LIMIT, watch.next()).await.expect("in time").expect("an event");
            assert_eq!(event.resume_version(), Some(version - 38));
        }
    });
}

#[test]
fn a_tail_that_starts_reads_the_newest_10_000_versions() {
    run(async {
        let world = World::new("start").await;
        world.run("create extension pg_stat_statements").await;
        // As if each had been written: the same document under many names.
        let change = put(1, Kind::Cluster, ("n", "c000000"), &json!({"tier": "gold"}), &json!({"content": 1}));
        write(&world.sql, 1, &[change]).await;
        let many = "insert into towline_log select nextval('towline_version'), at, request, kind, gen_random_uuid(), namespace, \
               'c' || lpad(number::text, 6, '0'), labels, old_version, document \
             from towline_log, generate_series(1, 19999) number; analyze towline_log";
        world.run(many).await;
        world.forget_statements().await;
        let replica = world.tail(1 << 25);
        integration::eventually("the tail to be at the end", LIMIT, async || match replica.tail.state() {
            state if state.is_ready => Ok(()),
            state => Err(format!("{state:?}")),
        })
        .await
        .unwrap();
        let state = replica.tail.state();
        assert_eq!((state.version, state.ring.0), (20_000, 10_000));
        // Each read gives 500 versions or less, and the last ones a row without any.
        let of = |what: &str| {
            format!(
                "select coalesce(sum({what}), 0)::bigint from pg_stat_statements s, pg_database d \
                 where s.dbid = d.oid and datname = current_database() and query like 'select m.origin, %'"
            )
        };
        let (rows, reads) = (world.number(&of("rows")).await, world.number(&of("calls")).await);
        assert!(reads > 20, "{reads}");
        assert!((10_000..=10_000 + reads).contains(&rows), "{rows} rows in {reads} reads");
    });
}

#[test]
fn a_watch_that_resumes_before_a_row_that_cannot_be_read_is_gone_and_a_list_gets_the_document_itself() {
    run(async {
        let world = World::new("unreadablerow").await;
        for content in 1..=40 {
            world.put(content, Kind::Cluster, ("n", "a"), &json!({}), &json!({"content": content})).await;
        }
        let (a, b) = (20, 41);
        world.put(50, Kind::Cluster, ("n", "b"), &json!({}), &json!({"content": 50})).await;
        let replica = world.tail(8 * 1024);
        let watch = async |from| {
            let query = WatchQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, from: Some(from) };
            replica.tail.watch(query).await.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(watch(a - 1).await, Ok(()));
        let gone = Err("the version is no longer available".to_owned());
        for row in [a, b] {
            world.run(&format!("update towline_log set document = '{{}}' where version = {row}")).await;
        }
        for _ in 0..2 {
            assert_eq!(watch(a - 1).await, gone, "each time");
        }
        assert_eq!(watch(a).await, Ok(()), "behind it");
        let first = list(&world.database, &ListQuery { limit: 1, ..query(None) }).await.expect("a page");
        assert_eq!(first.version, b);
        let next = || query(first.next.clone());
        assert_eq!(list(&world.database, &next()).await.expect("the document itself").items[0].version, b);
        // Now that page needs the row of the log.
        world.put(51, Kind::Cluster, ("n", "b"), &json!({}), &json!({"content": 51})).await;
        let outcome = list(&world.database, &next()).await.map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(outcome, gone);
        let restarted = list(&world.database, &query(None)).await.expect("a page");
        let contents: Vec<&Value> = restarted.items.iter().map(|document| &document.data["content"]).collect();
        assert_eq!(contents, [&json!(40), &json!(51)]);
    });
}

//! Large rows of the log do not keep the thread of a runtime, on which other requests are served.

use std::sync::mpsc;
use std::thread;

use integration::eventually;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::timeout;
use towline::test_api::documents::{Event, Fields, Filter, Kind, ListError, Tail, Watch, WatchQuery};

use crate::documents_read::world::{LIMIT, World, run};

const RING: usize = 32 << 20;

/// How long the calling thread has been on a processor, in nanoseconds: what others do on the machine does not count.
fn busy() -> u64 {
    let file = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a file of Linux");
    file.split(' ').next().and_then(|time| time.parse().ok()).expect("a time")
}

/// Data of nearly 4 MiB, which take long to read.
fn large(number: usize) -> Value {
    json!({"number": number, "list": vec![number; 1_300_000]})
}

/// How long it takes to read them once.
fn time_to_read() -> u64 {
    let text = large(1).to_string();
    let before = busy();
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["number"], 1);
    busy() - before
}

/// A cluster that is there, and its version.
fn world(name: &str) -> (World, i64) {
    run(async {
        let world = World::new(name).await;
        let version = put(&world, &json!({})).await;
        (world, version)
    })
}

async fn put(world: &World, data: &Value) -> i64 {
    world.put(1, Kind::Cluster, ("n", "a"), &json!({}), data).await
}

/// Runs a future on a runtime that has no other thread.
fn alone<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

async fn start(tail: &Tail, from: i64) -> Watch {
    let query = WatchQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, from: Some(from) };
    tail.watch(query).await.expect("a watch")
}

async fn next(watch: &mut Watch) {
    loop {
        match timeout(LIMIT, watch.next()).await.expect("an event in time").expect("an event") {
            // Of a busy machine, which takes its time to write the row.
            Event::Bookmark { .. } => {}
            Event::Modified(object) if object.json().len() > 2 << 20 => return,
            other => panic!("{other:?}"),
        }
    }
}

/// Clients that take nothing hold what was read for them, but at most eight large documents. Whoever comes then waits, until one of these asks
/// for more.
#[test]
fn watches_whose_clients_take_nothing_hold_eight_large_documents_and_others_wait() {
    const MOST: usize = 8;
    let (world, _) = world("largeheld");
    run(async {
        let text = json!({"text": "x".repeat(4_000_000)});
        put(&world, &text).await;
        let replica = world.tail(1);
        let begin = async || {
            let query = WatchQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, from: None };
            replica.tail.watch(query).await
        };
        let is_refused = async || matches!(begin().await, Err(ListError::NoSlot { .. }));
        let mut held = Vec::new();
        for _ in 0..MOST {
            held.push(begin().await.expect("a watch"));
        }
        let event = held[0].next().await.expect("an event");
        assert!(matches!(&event, Event::Initial(object) if object.json().len() > 4_000_000));
        assert!(is_refused().await, "its client has not taken it yet");
        assert!(matches!(held[0].next().await, Ok(Event::Bookmark { is_end_of_state: true, .. })));
        assert!(held[0].next_if_there().is_none(), "its client has taken all");
        let last = begin().await.expect("there is a place again");
        assert!(is_refused().await, "for one");
        drop(last);
    });
}

#[test]
fn the_tail_reads_a_large_row_on_another_thread() {
    let (world, from) = world("largetail");
    let (ready, is_ready) = mpsc::sync_channel(1);
    let took = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            alone(async {
                let replica = world.tail(RING);
                let mut watch = start(&replica.tail, from).await;
                ready.send(()).expect("the test waits");
                let before = busy();
                next(&mut watch).await;
                busy() - before
            })
        });
        is_ready.recv().expect("a watch");
        run(put(&world, &large(2)));
        reader.join().expect("no panic")
    });
    assert!(took < time_to_read() / 2, "{took} of {}", time_to_read());
}

#[test]
fn a_watch_that_resumes_before_a_large_row_reads_it_on_another_thread() {
    let (world, from) = world("largewindow");
    let last = run(async {
        put(&world, &large(2)).await;
        put(&world, &json!({})).await
    });
    let took = alone(async {
        // The ring begins behind the large row.
        let replica = world.tail(1);
        eventually("the tail to have read all", LIMIT, async || match replica.tail.state().version {
            found if found >= last => Ok(()),
            found => Err(found.to_string()),
        })
        .await
        .expect("it has");
        let before = busy();
        let mut watch = start(&replica.tail, from).await;
        next(&mut watch).await;
        busy() - before
    });
    assert!(took < time_to_read() / 2, "{took} of {}", time_to_read());
}

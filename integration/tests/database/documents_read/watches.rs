//! Watches that reconnect at random see each version once, in ascending order, and lose none.

use std::collections::BTreeMap;

use integration::soak::{Random, rounds, seed};
use tokio::task::JoinSet;
use towline::test_api::documents::{Ending, Event, Fields, Filter, Kind, Object, Tail, WatchQuery};

use crate::documents_read::log::{Key, Log, Seen, Writers};
use crate::documents_read::world::{LIMIT, World, run};

/// Holds some hundred events: watches that pause fall out of it, and resume from the log.
const RING: usize = 256 * 1024;

fn filters() -> Vec<Filter> {
    let clusters = || Filter::of(Kind::Cluster);
    vec![
        clusters(),
        Filter::of(Kind::Secret),
        clusters().in_namespace("n0").expect("a namespace"),
        clusters().selected_by("tier=gold").expect("a selector"),
        clusters().in_namespace("n0").and_then(|filter| filter.selected_by("!tier")).expect("a selector"),
    ]
}

/// What one client has seen, over all its watches.
struct Client {
    filter: Filter,
    /// The state that it began with, and its version.
    state: BTreeMap<Key, i64>,
    begin: i64,
    seen: Vec<Seen>,
    /// How often it has resumed, and been ended for being slow.
    resumed: u32,
    fell_behind: u32,
}

fn key(object: &Object) -> Key {
    let document: serde_json::Value = serde_json::from_slice(object.json()).expect("JSON");
    let text = |field: &str| document[field].as_str().expect("a text").to_owned();
    assert_eq!(text("resourceVersion"), object.version().to_string());
    (text("namespace"), text("name"))
}

async fn start(
    tails: &[Tail],
    random: &mut Random,
    filter: &Filter,
    from: Option<i64>,
) -> towline::test_api::documents::Watch {
    let query = WatchQuery { filter: filter.clone(), fields: Fields::All, from };
    let tail = &tails[random.index(tails.len())];
    tail.watch(query).await.unwrap_or_else(|error| panic!("from {from:?}: {error:?}"))
}

/// Watches until the document `zz-end` has been seen with or without a label, whichever the filter shows last.
async fn client(tails: Vec<Tail>, log: Log, mut random: Random, filter: Filter) -> Client {
    let mut client = Client { filter, state: BTreeMap::new(), begin: 0, seen: Vec::new(), resumed: 0, fell_behind: 0 };
    let mut watch = start(&tails, &mut random, &client.filter, None).await;
    let mut from = None;
    // Without the first bookmark, a client has nothing to resume from.
    while from.is_none() {
        match watch.next().await.expect("an event") {
            Event::Initial(object) => {
                assert!(client.state.insert(key(&object), object.version()).is_none(), "a document comes once");
            }
            Event::Bookmark { version, is_end_of_state: true } => from = Some(version),
            other => panic!("{other:?}"),
        }
    }
    client.begin = from.expect("a version");
    let mut left = random.below(300);
    loop {
        if left == 0 {
            drop(watch);
            // Some resume at once, others from before the ring.
            let pause = [0, 20, 1500][random.index(3)];
            let until = log.newest() + pause;
            let _ends = tokio::time::timeout(std::time::Duration::from_secs(1), log.reaches(until)).await;
            watch = start(&tails, &mut random, &client.filter, from).await;
            (left, client.resumed) = (1 + random.below(300), client.resumed + 1);
        }
        left -= 1;
        let event = match watch.next().await {
            Ok(event) => event,
            Err(Ending::FellBehind) => {
                (left, client.fell_behind) = (0, client.fell_behind + 1);
                continue;
            }
            Err(ending) => panic!("{ending:?}"),
        };
        let version = event.resume_version().expect("no state in a resumed watch");
        assert!(from <= Some(version), "{version} after {from:?}");
        from = Some(version);
        let (what, object) = match event {
            Event::Added(object) => ("ADDED", object),
            Event::Modified(object) => ("MODIFIED", object),
            Event::Deleted(object) => ("DELETED", object),
            Event::Bookmark { is_end_of_state: false, .. } => continue,
            other => panic!("{other:?}"),
        };
        let key = key(&object);
        let is_end = key.1 == "zz-end" && (what != "ADDED" || client.filter.selector().as_str() == "!tier");
        client.seen.push(Seen { version, what, key });
        if is_end {
            return client;
        }
    }
}

#[test]
fn watches_that_reconnect_at_random_see_each_version_once_while_other_transactions_stay_open() {
    run(async {
        let world = World::new("watches").await;
        let (log, mut random) = (Log::new(), Random::new(seed()));
        // A transaction that has written, with a version number of the server older than all others, and one with a snapshot.
        let (open, snapshot) =
            (world.place.client("postgres").await.unwrap(), world.place.client("postgres").await.unwrap());
        open.batch_execute("create table elsewhere (n int); begin; insert into elsewhere values (1)").await.unwrap();
        snapshot
            .batch_execute("begin isolation level repeatable read; select count(*) from towline_log")
            .await
            .unwrap();
        let replicas = [world.tail(RING), world.tail(RING)];
        let tails: Vec<Tail> = replicas.iter().map(|replica| replica.tail.clone()).collect();
        let writers = Writers::start(&world, &log, &mut random, 4).await;
        let mut clients = JoinSet::new();
        for index in 0..10 {
            let filter = filters()[index % filters().len()].clone();
            clients.spawn(client(tails.clone(), log.clone(), random.split(), filter));
        }
        for round in 1..=rounds(1) {
            log.reaches(4000 * i64::try_from(round).unwrap()).await;
        }
        writers.end(&world).await;
        let clients = tokio::time::timeout(LIMIT, clients.join_all()).await.expect("all clients to see the end");
        open.batch_execute("commit").await.unwrap();
        let (mut resumed, mut fell_behind) = (0, 0);
        for client in clients {
            let state = log.state(client.begin, &client.filter).into_iter().map(|(key, (version, _))| (key, version));
            assert_eq!(client.state, state.collect::<BTreeMap<_, _>>(), "{:?}", client.filter);
            assert_eq!(client.seen, log.seen_after(client.begin, &client.filter), "{:?}", client.filter);
            (resumed, fell_behind) = (resumed + client.resumed, fell_behind + client.fell_behind);
        }
        println!("the clients resumed {resumed} times, {fell_behind} of these after they fell behind");
        assert!(resumed > 20, "{resumed}");
    });
}

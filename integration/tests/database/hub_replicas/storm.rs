//! Writers, watches and lists while replicas are killed and frozen, other transactions stay open, and the log is compacted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use integration::postgres;
use integration::soak::{Random, rounds, seed};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::hub_replicas::chaos::{Chaos, Progress};
use crate::hub_replicas::filter::Filter;
use crate::hub_replicas::history::{self, History};
use crate::hub_replicas::pages::Reader;
use crate::hub_replicas::watcher::{Media, Plan, Watcher};
use crate::hub_replicas::world::{LIMIT, Roaming, addresses, database, replicas, run, sql};
use crate::hub_replicas::writers::Writers;

/// Versions that are written in `make test`, at least.
const VERSIONS: i64 = 2000;
/// Past versions of which all pages are read meanwhile.
const LISTS: usize = 30;
/// Versions that become too old before all pages are read, at most: no more of each ten than nine.
const MOST_GONE: usize = 9 * LISTS;
/// Lists that are read at the same time.
const READERS: usize = 10;

/// Versions and records that have no counterpart, and what records tell of a write that is not the one of their version. The log has a
/// row for each version, and a cluster brings a `ClusterSync` along that no client has asked for.
const WRONG: &str = "select coalesce(l.version, h.version), l.version is not null, h.records, h.told \
     from (select * from kept.log where kind <> 'clustersyncs') l \
     full join ( \
       select version, count(*) as records, min(kind) as kind, min(namespace) as namespace, min(name) as name, min(id::text) as id, \
         min(verb || details) as told from towline_history where version is not null group by version) h on h.version = l.version \
     where (h.records, h.kind, h.namespace, h.name, h.id) is distinct from (1, l.kind, l.namespace, l.name, l.id::text) \
       or (l.document is null) <> (h.told like 'delete%') \
       or l.document is not null and not exists ( \
         select from towline_history t, jsonb_array_elements(t.details::jsonb->'changes') c where t.version = l.version \
           and l.document->'annotations'->'number' = case c->>'path' \
             when '/annotations' then c->'after'->'number' when '/annotations/number' then c->'after' end)";

/// Each version that a client made has exactly one record, written by the same statement: what the client was answered does not matter.
async fn check_records(database: &postgres::Database) {
    let sql = sql(database).await;
    // The product looks for no version here; without it, each row would read the whole table.
    sql.batch_execute("create index on towline_history (version); analyze towline_history").await.expect("an index");
    let rows = sql.query(WRONG, &[]).await.expect("rows");
    let wrong: Vec<(i64, bool, Option<i64>, Option<String>)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    assert_eq!(wrong, [], "version, whether it is one, its records, and what they tell");
    let by_others = "select count(*) from towline_history where version is null and verb <> 'migrate'";
    let by_others: i64 = sql.query_one(by_others, &[]).await.expect("a row").get(0);
    assert_eq!(by_others, 0, "records of nothing");
}

/// Each of 20 watches that go from replica to replica has seen each version once and in
/// ascending order, replaying them gives the list, and pages of past versions are exact or 410.
#[test]
fn watches_see_each_version_once_pages_are_exact_and_each_version_has_one_record_while_replicas_are_killed_and_frozen()
{
    run(async {
        let database = database("storm").await;
        history::keep(&database).await;
        let places: Vec<Arc<AtomicI64>> = (0..20).map(|_| Arc::default()).collect();
        let compaction = Compaction::start(&database, places.clone()).await;
        let (mut random, progress) = (Random::new(seed()), Progress::new());
        let replicas = replicas(&database, &[]).await;
        let addresses = addresses(&replicas);
        let elsewhere = Elsewhere::begin(&database).await;

        let writers = Writers::start(&addresses, &mut random, &progress);
        let (end, until) = watch::channel(None);
        let mut watches = JoinSet::new();
        for (index, place) in places.into_iter().enumerate() {
            let plan = Plan {
                filter: Filter::all()[index % 10].clone(),
                media: [Media::Lines, Media::Events][index / 10],
                addresses: addresses.clone(),
                is_restless: true,
                begins_anew: false,
                random: random.split(),
                until: until.clone(),
                place,
            };
            watches.spawn(Watcher::new(plan).run());
        }
        let mut chaos = Chaos::new(replicas, &database, random.split(), &progress, 500).await;
        let work = async {
            let lists = Lists::read(&database, &addresses, &mut random, &progress).await;
            progress.reaches(VERSIONS * i64::try_from(rounds(1)).unwrap()).await;
            lists
        };
        // Replicas that were frozen carry out what they were asked before, so that the writers end after it.
        let lists = chaos.during(work).await;
        let answers = writers.end().await;
        let newest = sql(&database).await.query_one("select max(version) from kept.log", &[]).await.unwrap();
        end.send_replace(Some(newest.get(0)));
        let reports = timeout(LIMIT, watches.join_all()).await.expect("all watches to see the newest version");
        let (compacted, base) = compaction.end().await;
        elsewhere.end().await;

        let history = History::read(&database).await;
        answers.check(&history);
        check_records(&database).await;
        lists.check(&history);
        let (mut resumed, mut changes) = (0, 0);
        for report in &reports {
            report.check(&history);
            let list = Roaming::new(&addresses, random.split()).list(&report.filter().path()).await;
            assert_eq!(report.replayed(), list, "{:?}", report.filter());
            (resumed, changes) = (resumed + report.resumed, changes + report.changes());
        }
        let incidents = chaos.incidents();
        println!("{incidents:?}; {changes} changes were watched, {resumed} times from another replica");
        println!("compaction removed {compacted} rows, up to version {base}");
        assert!(incidents.killed > 0 && incidents.frozen > 0 && incidents.disconnected > 0, "{incidents:?}");
        assert!(resumed > 100 && compacted > 0, "{resumed} {compacted}");
    });
}

struct Lists {
    whole: Vec<crate::hub_replicas::pages::Shown>,
    gone: usize,
}

impl Lists {
    /// Reads them. Where a version becomes too old before its last page, a newer one is read instead.
    async fn read(
        database: &postgres::Database,
        addresses: &[std::net::SocketAddr],
        random: &mut Random,
        progress: &Progress,
    ) -> Self {
        let lists = LISTS * usize::try_from(rounds(1)).expect("a few");
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            let mut reader = Reader::new(addresses, random.split(), progress.clone());
            let sql = sql(database).await;
            readers.spawn(async move {
                let (mut whole, mut gone) = (Vec::new(), 0);
                while whole.len() < lists / READERS {
                    match reader.read(&sql).await {
                        Some(shown) => whole.push(shown),
                        None => gone += 1,
                    }
                    assert!(gone <= MOST_GONE * lists / LISTS / READERS, "{gone} versions became too old");
                }
                (whole, gone)
            });
        }
        let (whole, gone): (Vec<_>, Vec<usize>) = readers.join_all().await.into_iter().unzip();
        Self { whole: whole.into_iter().flatten().collect(), gone: gone.iter().sum() }
    }

    /// Each list that was read to its end is exact, and compaction has removed some that were not.
    fn check(&self, history: &History) {
        println!("{} lists were read to their end, {} became too old", self.whole.len(), self.gone);
        for shown in &self.whole {
            shown.check(history);
        }
        assert!(self.whole.len() >= LISTS && self.gone > 0, "{} {}", self.whole.len(), self.gone);
    }
}

/// Compaction under a claim of the test's own, without a history: it stops before the newest 1,000 rows, and where the slowest watch
/// resumes, which it takes for the place of the relay.
struct Compaction {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(i64, i64)>,
}

impl Compaction {
    async fn start(database: &postgres::Database, places: Vec<Arc<AtomicI64>>) -> Self {
        let sql = sql(database).await;
        let claims = "update towline_claim set holder = 'test', token = 1, until = now() + interval '1 day', cursor = 1 \
             where name in ('compaction', 'relay')";
        sql.batch_execute(claims).await.expect("claims");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut removed = 0;
            while !stopped.load(Ordering::Relaxed) {
                let slowest = places.iter().map(|place| place.load(Ordering::Relaxed)).min().unwrap_or_default();
                // A role with the place 0 has not begun, and holds nothing back.
                let slowest = slowest.max(1);
                sql.execute("update towline_claim set cursor = $1 where name = 'relay'", &[&slowest])
                    .await
                    .expect("a place");
                let compact = "select removed from towline_compact('test', 1, interval '0')";
                removed += sql.query_one(compact, &[]).await.expect("a step").get::<_, i64>(0);
                // Without a pause it would take a core for itself.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            let base = sql.query_one("select base from towline_meta", &[]).await.expect("a row");
            (removed, base.get(0))
        });
        Self { stop, task }
    }

    /// The rows that it has removed, and the base.
    async fn end(self) -> (i64, i64) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic")
    }
}

/// Transactions elsewhere in the same server: one that has written, with a number older than all others, and one with a snapshot.
struct Elsewhere {
    written: tokio_postgres::Client,
    snapshot: tokio_postgres::Client,
}

impl Elsewhere {
    async fn begin(database: &postgres::Database) -> Self {
        let (written, snapshot) = (sql(database).await, sql(database).await);
        let write = "create table kept.elsewhere (n int); begin; insert into kept.elsewhere values (1)";
        written.batch_execute(write).await.expect("it is written");
        let look = "begin isolation level repeatable read; select count(*) from towline_log";
        snapshot.batch_execute(look).await.expect("a snapshot");
        Self { written, snapshot }
    }

    async fn end(self) {
        self.written.batch_execute("commit").await.expect("it was open");
        self.snapshot.batch_execute("commit").await.expect("it was open");
    }
}

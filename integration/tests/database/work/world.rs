//! The server, and what a test has of it.

use std::fmt::Debug;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use integration::postgres::{self, ADMIN, HUB};
use integration::{Postgres, eventually};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use towline::test_api::actor::Scope;
use towline::test_api::amqp::AmqpSource;
use towline::test_api::cluster::Clock;
use towline::test_api::db::{Database, DatabaseSource};
use towline::test_api::documents::{
    self, Broker, ClaimLimits, ClaimMix, Claims, Holder, RowEnd, Work, WorkEnd, WorkQueue,
};

pub(crate) use crate::run;
use crate::servers::of_library;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// How long claims last where a test waits for their end or their renewal, instead of 30 s. Their holders give up after two thirds of it.
pub(crate) const SHORT: Duration = Duration::from_secs(9);
/// Ends the claims in the database, as if their holders had been stopped for 30 s.
pub(crate) const END: &str = "update towline_work set until = now() - interval '1 s' where until is not null";

/// A test's database, with the schema of the documents.
pub(crate) struct Stage {
    pub(crate) place: postgres::Database,
    /// A connection that is not of the layer under test.
    pub(crate) sql: Client,
}

impl Stage {
    /// A database of this name; letters only.
    pub(crate) async fn new(name: &str) -> Self {
        Self::made(of_library().await, &format!("work_{name}")).await
    }

    /// The same on another server.
    pub(crate) async fn on(server: &Postgres, name: &str) -> Self {
        let stage = Self::made(server, name).await;
        documents::migrate(&stage.database(), LIMIT).await.expect("the schema");
        stage
    }

    async fn made(server: &Postgres, name: &str) -> Self {
        let place = server.hub_database(name).await.expect("a database");
        let sql = place.client(ADMIN).await.expect("a connection");
        Self { place, sql }
    }

    /// The database as the hub opens it.
    pub(crate) fn database(&self) -> Database {
        open(&self.place.url(HUB))
    }

    /// The first column of the only row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Makes documents of clusters in a namespace, with these numbers.
    pub(crate) async fn documents(&self, namespace: &str, first: u64, last: u64) {
        let documents = format!(
            "insert into towline_documents \
             select 'clusters', ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '{namespace}', 'c' || n, \
               '{{}}', '{{}}', '{{}}', 1, n, now(), now(), null, '{{}}', '{{}}', null from generate_series({first}, {last}) n"
        );
        self.run(&documents).await;
    }

    /// Waits until a query gives a number.
    pub(crate) async fn becomes(&self, what: &str, sql: &str, expected: i64) {
        eventually(what, LIMIT, async || match self.number(sql).await {
            found if found == expected => Ok(()),
            found => Err(found.to_string()),
        })
        .await
        .unwrap();
    }

    /// Waits until a query gives more than this number, and returns it.
    pub(crate) async fn exceeds(&self, what: &str, sql: &str, bound: i64) -> i64 {
        eventually(what, LIMIT, async || match self.number(sql).await {
            found if found > bound => Ok(found),
            found => Err(found.to_string()),
        })
        .await
        .unwrap()
    }

    /// Waits until a statement of this beginning waits for a lock.
    pub(crate) async fn waits_for_a_lock(&self, begin: &str) {
        let waits = format!(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
             and query like '{begin}%'"
        );
        self.becomes("a statement to wait for a lock", &waits, 1).await;
    }

    /// A process that works.
    pub(crate) fn process(&self) -> Process {
        Process::start(&self.database())
    }

    /// The same with claims that last so long.
    pub(crate) fn process_lasting(&self, lifetime: Duration) -> Process {
        Process::lasting(&self.database(), lifetime)
    }
}

/// The database at this URL, as the hub opens it.
pub(crate) fn open(url: &str) -> Database {
    documents::open(DatabaseSource::Url(Box::new(url.parse().unwrap_or_else(|error| panic!("{error}")))))
}

pub(crate) fn broker(url: &str) -> Broker {
    let url = url.parse().unwrap_or_else(|error| panic!("{error}"));
    Broker::new(AmqpSource::Url(Box::new(url)), Arc::new(()))
}

/// What one process has: its claims, which are renewed, and the queue.
pub(crate) struct Process {
    pub(crate) claims: Claims,
    pub(crate) queue: WorkQueue,
    pub(crate) actor: Running,
}

impl Process {
    pub(crate) fn start(database: &Database) -> Self {
        Self::of(database, Claims::new(database, Holder::of_this_process(), Clock::Boot))
    }

    pub(crate) fn lasting(database: &Database, lifetime: Duration) -> Self {
        Self::of(database, Claims::lasting(database, Holder::of_this_process(), Clock::Boot, lifetime))
    }

    fn of(database: &Database, claims: Claims) -> Self {
        let queue = WorkQueue::new(database, &claims);
        let running = claims.clone();
        let actor = Running::start(async move |scope| running.run(scope).await.expect("claims don't fail"));
        Self { claims, queue, actor }
    }

    /// The same with a message broker.
    pub(crate) fn over(mut self, broker: &Broker) -> Self {
        self.queue = self.queue.over(Some(broker.clone()));
        self
    }

    /// Asks for passes of these clusters.
    pub(crate) async fn ask(&self, clusters: &[u64], urgent: bool) {
        self.queue.ask(&ids(clusters), urgent).await.expect("they are asked for");
    }

    /// Claims at most so many rows, in order of their clusters.
    pub(crate) async fn claim(&self, slots: u32) -> Vec<Work> {
        let mut claimed = self.claimed(ClaimMix { urgent_first: 0, oldest: slots }).await;
        claimed.sort_by_key(|work| work.cluster);
        claimed
    }

    /// Claims rows of whatever namespaces they are.
    pub(crate) async fn claimed(&self, mix: ClaimMix) -> Vec<Work> {
        self.queue.claim(mix, &ClaimLimits::NONE).await.expect("an answer").work
    }

    /// Claims the only row that is ready.
    pub(crate) async fn claim_one(&self) -> Work {
        let mut claimed = self.claim(10).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// Ends a pass with success. The next one is due in a century.
    pub(crate) async fn done(&self, work: Work) -> RowEnd {
        self.queue.done(work, &WorkEnd::done(in_a_century(), 0)).await.expect("an answer")
    }
}

/// A running actor. Aborted when dropped.
pub(crate) struct Running {
    drain: Box<dyn Fn() + Send + Sync>,
    body: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(Scope) -> F) -> Self {
        let (scope, drain) = Scope::standalone("actor");
        let body = tokio::spawn(body(scope));
        Self { drain: Box::new(move || drain.cancel()), body }
    }

    /// Asks it to drain, and waits for its end.
    pub(crate) async fn drained(mut self) {
        (self.drain)();
        tokio::time::timeout(LIMIT, &mut self.body).await.expect("it ends").expect("no panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.body.abort();
    }
}

/// A time that no test lives to see.
pub(crate) fn in_a_century<T: FromStr<Err: Debug>>() -> T {
    "2126-01-01T00:00:00Z".parse().expect("a time")
}

pub(crate) fn id<T: FromStr<Err: Debug>>(number: u64) -> T {
    format!("00000000-0000-4000-8000-{number:012x}").parse().expect("a UUID")
}

pub(crate) fn ids<T: FromStr<Err: Debug>>(numbers: &[u64]) -> Vec<T> {
    numbers.iter().map(|number| id(*number)).collect()
}

/// The numbers of the clusters of work.
pub(crate) fn clusters(work: &[Work]) -> Vec<u64> {
    let number = |work: &Work| u64::from_str_radix(&work.cluster.to_string()[24..], 16).expect("a number");
    work.iter().map(number).collect()
}

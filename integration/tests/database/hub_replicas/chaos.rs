//! What happens to replicas meanwhile: they are killed, frozen, and lose their connections to the database.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use integration::hub::Replica;
use integration::postgres;
use integration::soak::Random;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::hub_replicas::world::{LIMIT, ready, sql};

/// Longest wait for progress between two incidents: with all replicas frozen there is none.
const STALLED: Duration = Duration::from_secs(2);

/// How far the clients have come: the newest version that they know, or the number of their operations.
#[derive(Clone)]
pub(crate) struct Progress(watch::Sender<i64>);

impl Progress {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// The clients have come so far.
    pub(crate) fn reached(&self, place: i64) {
        self.0.send_if_modified(|newest| {
            let is_newer = place > *newest;
            *newest = place.max(*newest);
            is_newer
        });
    }

    /// One further.
    pub(crate) fn add_one(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(crate) fn now(&self) -> i64 {
        *self.0.borrow()
    }

    /// Waits until the clients have come so far, as long as they come further.
    pub(crate) async fn reaches(&self, place: i64) {
        let mut newest = self.0.subscribe();
        while self.now() < place {
            let further = timeout(LIMIT, newest.changed()).await;
            assert!(further.is_ok_and(|further| further.is_ok()), "waited for {place}, and it is {}", self.now());
        }
    }

    /// The same, for a short time only.
    async fn reaches_or_stalls(&self, place: i64) {
        let mut newest = self.0.subscribe();
        let _reached = timeout(STALLED, newest.wait_for(|newest| *newest >= place)).await;
    }
}

/// What happens, and to whom.
pub(crate) struct Chaos {
    replicas: Vec<Replica>,
    sql: tokio_postgres::Client,
    random: Random,
    progress: Progress,
    /// Between two incidents the clients come at most so much further.
    between: u64,
    incidents: Incidents,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incidents {
    pub(crate) killed: u32,
    pub(crate) frozen: u32,
    pub(crate) disconnected: u32,
}

impl Chaos {
    pub(crate) async fn new(
        replicas: Vec<Replica>,
        database: &postgres::Database,
        random: Random,
        progress: &Progress,
        between: u64,
    ) -> Self {
        let (sql, progress, incidents) = (sql(database).await, progress.clone(), Incidents::default());
        Self { replicas, sql, random, progress, between, incidents }
    }

    /// Lets incidents happen, one after the other, until this is done. All replicas are ready then.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let is_done = Cell::new(false);
        let work = async {
            let done = work.await;
            is_done.set(true);
            done
        };
        let incidents = async {
            while !is_done.get() {
                let further = i64::try_from(self.random.below(self.between)).expect("a small number");
                self.progress.reaches_or_stalls(self.progress.now() + further).await;
                self.incident().await;
            }
        };
        let (done, ()) = tokio::join!(work, incidents);
        for replica in &self.replicas {
            replica.towline().thaw().expect("it is thawed");
        }
        ready(&self.replicas).await;
        done
    }

    pub(crate) fn incidents(&self) -> Incidents {
        self.incidents
    }

    async fn incident(&mut self) {
        let index = self.random.index(self.replicas.len());
        let replica = &mut self.replicas[index];
        match self.random.below(8) {
            0..=1 => {
                replica.start_again().await.expect("it starts again");
                self.incidents.killed += 1;
            }
            2..=3 => {
                replica.towline().freeze().expect("it is frozen");
                self.incidents.frozen += 1;
            }
            // A frozen replica goes on with what it was doing.
            4..=6 => replica.towline().thaw().expect("it is thawed"),
            _ => {
                let text = "select pg_terminate_backend(pid) from pg_stat_activity \
                     where datname = current_database() and application_name like 'towline%'";
                self.sql.batch_execute(text).await.expect("it is done");
                self.incidents.disconnected += 1;
            }
        }
    }
}

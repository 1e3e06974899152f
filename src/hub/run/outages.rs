//! Requests that the hub could not carry out: the log tells why, and an outage of the database is looked into.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::cluster::full_text;
use crate::db::{self, Database};
use crate::documents::Problem;

/// Shortest time between two lines of the log.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Outages as requests meet them. A lock, since every request that fails counts itself; it is held for one look.
#[derive(Default)]
pub struct Outages {
    told: Mutex<Told>,
    met: Notify,
    failure: watch::Sender<Option<db::Error>>,
}

/// Failures, and what has been said of them.
#[derive(Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

impl Told {
    /// Counts one more. Returns how many there are that no line has told of, if it is time for one.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        if self.last.is_some_and(|last| now < last + TOLD_EVERY) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

impl Outages {
    /// A request has not been carried out. If it is not to blame, the log tells why; in an outage [`Outages::met`] completes.
    pub fn note(&self, problem: &Problem) {
        let Some(cause) = &problem.cause else { return };
        let told = self.told.lock().count(Instant::now());
        if let Some(requests) = told {
            tracing::warn!(error = full_text(cause), requests, "requests could not be carried out");
        }
        if cause.is_outage() {
            self.met.notify_one();
        }
    }

    /// Completes when a request has met an outage since this completed last.
    ///
    /// Cancel safe.
    pub async fn met(&self) {
        self.met.notified().await;
    }

    /// Tries to open a connection, and remembers how that ended. Returns whether there is one.
    pub async fn probe(&self, database: &Database) -> bool {
        let failure = database.connect("probe").await.err();
        let is_well = failure.is_none();
        let before = self.failure.send_replace(failure.clone());
        match (before, failure) {
            (None, Some(error)) => {
                tracing::warn!(error = full_text(&error), "no new connection to the database, retrying");
            }
            (Some(_), None) => tracing::info!("new connections to the database are possible again"),
            _ => {}
        }
        is_well
    }

    /// Why no connection could be opened, the last time that this was tried.
    pub fn failure(&self) -> Option<db::Error> {
        self.failure.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::ProblemKind;

    #[test]
    fn one_line_in_five_seconds_tells_of_all_failures_since_the_last() {
        let (mut told, begun) = (Told::default(), Instant::now());
        let lines = [0, 1, 4_999, 5_000, 5_001, 9_999, 30_000, 30_001].map(|millis| {
            let told = told.count(begun + Duration::from_millis(millis));
            (millis, told)
        });
        let expected = [None, None, Some(3), None, None, Some(3), None];
        assert_eq!(lines[0], (0, Some(1)));
        assert_eq!(lines[1..].iter().map(|(_, told)| *told).collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn only_a_failure_of_the_database_is_looked_into() {
        let outages = Outages::default();
        outages.note(&Problem::new(ProblemKind::Unavailable, "the schema is not there yet"));
        assert!(futures::FutureExt::now_or_never(outages.met()).is_none());
        let error = db::Error::PoolExhausted { seconds: 5 };
        let problem = Problem::new(ProblemKind::Unavailable, "the database does not answer").caused_by(error, true);
        let unreadable = Problem::new(ProblemKind::Unavailable, "a row").caused_by(std::fmt::Error, false);
        outages.note(&unreadable);
        assert!(futures::FutureExt::now_or_never(outages.met()).is_none(), "that row alone");
        outages.note(&problem);
        outages.note(&problem);
        assert!(futures::FutureExt::now_or_never(outages.met()).is_some());
        assert!(futures::FutureExt::now_or_never(outages.met()).is_none(), "it is looked into once");
    }

    #[tokio::test]
    async fn a_database_that_refuses_connections_is_remembered() {
        let url = "postgres://nobody@127.0.0.1:1/none".parse().expect("a URL");
        let outages = Outages::default();
        assert!(!outages.probe(&Database::new(db::DatabaseSource::Url(Box::new(url)))).await);
        assert_eq!(outages.failure().map(|error| error.kind()), Some("connect"));
    }
}

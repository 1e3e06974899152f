//! Requests that were refused for who sent them (401, 403, 429), as records of who did what.
//!
//! They cost their sender nothing, so they are counted in memory and written seldom: refusals of one caller are one record with their
//! number, at most [`BURST`] records are written at once, and one in [`REFILL`] after that, whoever asks how often. Callers whose token is
//! known and all others have shares of their own, so that a flood of unknown tokens hides no known one.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::cluster::full_text;
use crate::db::{self, Database, Json, Type};
use crate::documents::Author;

/// Between two writes.
const EVERY: Duration = Duration::from_secs(10);
/// Records that a share may write at once, and callers that it tells apart until they are written.
const BURST: u32 = 32;
/// After this time a share may write one more: 720 a day.
const REFILL: Duration = Duration::from_mins(2);
/// Most characters of a request's path that are kept.
const LONGEST_TARGET: usize = 200;

/// Refused requests that are not recorded yet. A lock, since each request that is refused counts itself; it is held for one look.
#[derive(Default)]
pub struct Refusals {
    shares: Mutex<Shares>,
    noted: Notify,
}

#[derive(Default)]
struct Shares {
    known: Share,
    unknown: Share,
}

/// Those who are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// The name of the token; empty if it is not known.
    actor: String,
    address: String,
    status: u16,
}

/// A token bucket of records.
#[derive(Default)]
struct Share {
    /// In the order of their first requests, so that none waits behind one that is refused again and again. The default stands for all
    /// callers beyond [`BURST`], which are not told apart.
    waiting: VecDeque<(Refused, Requests)>,
    /// Records that were written and not refilled yet.
    used: u32,
    refilled: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Requests {
    /// The first one.
    target: String,
    count: u64,
}

impl Refusals {
    /// A request was refused. `actor` is the name of its token, if that is known.
    pub fn note(&self, actor: Option<String>, address: Option<IpAddr>, status: StatusCode, target: &str) {
        let mut shares = self.shares.lock();
        let share = if actor.is_some() { &mut shares.known } else { &mut shares.unknown };
        let Author { actor, address, .. } = Author::of_api(actor.unwrap_or_default(), address);
        share.note(Refused { actor, address, status: status.as_u16() }, target);
        drop(shares);
        self.noted.notify_one();
    }

    /// Whether requests with this status are recorded.
    pub fn are_noted(status: StatusCode) -> bool {
        matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS)
    }

    /// Writes what is noted, from time to time. It sends nothing while there is nothing.
    pub async fn write(&self, database: &Database) -> std::convert::Infallible {
        let mut is_failing = false;
        loop {
            self.noted.notified().await;
            loop {
                let written = self.flush(database).await;
                if let (Err(error), false) = (&written, is_failing) {
                    tracing::warn!(error = %full_text(error), "failed to record refused requests, retrying");
                }
                is_failing = written.is_err();
                if let Ok(true) = written {
                    break;
                }
                sleep(EVERY).await;
            }
            sleep(EVERY).await;
        }
    }

    /// Writes what may be written now. Returns whether nothing is left. What could not be written, or was not certainly, is written again
    /// with the next.
    pub async fn flush(&self, database: &Database) -> Result<bool, db::Error> {
        const QUERY: &str = "record_refusals";
        const TEXT: &str = "insert into towline_history (at, actor, address, via, verb, details) \
             select clock_timestamp(), r.actor, r.address, 'api', 'refused', r.details \
             from jsonb_to_recordset($1) as r(actor text, address text, details text)";
        let (known, unknown) = {
            let (mut shares, now) = (self.shares.lock(), Instant::now());
            (shares.known.due(now), shares.unknown.due(now))
        };
        let rows: Vec<Value> = known.iter().chain(&unknown).map(row).collect();
        if !rows.is_empty() {
            database.execute(QUERY, TEXT, &[(&Json(Value::from(rows)), Type::JSONB)]).await?;
        }
        let mut shares = self.shares.lock();
        shares.known.written(&known);
        shares.unknown.written(&unknown);
        Ok(shares.known.is_empty() && shares.unknown.is_empty())
    }
}

/// A record, as the statement takes it.
fn row((Refused { actor, address, status }, Requests { target, count }): &(Refused, Requests)) -> Value {
    let details = if *status == Refused::default().status {
        json!({"note": "of other callers", "count": count})
    } else {
        json!({"request": target, "status": status, "count": count})
    };
    json!({"actor": actor, "address": address, "details": details.to_string()})
}

impl Share {
    fn note(&mut self, refused: Refused, target: &str) {
        let is_full = self.waiting.len() >= usize::try_from(BURST).unwrap_or(usize::MAX);
        let is_known = self.waiting.iter().any(|(waiting, _)| *waiting == refused);
        let refused = if is_full && !is_known { Refused::default() } else { refused };
        if let Some((_, requests)) = self.waiting.iter_mut().find(|(waiting, _)| *waiting == refused) {
            requests.count += 1;
        } else {
            let target = target.chars().take(LONGEST_TARGET).collect();
            self.waiting.push_back((refused, Requests { target, count: 1 }));
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What may be written at this time. It waits until it is [`written`](Self::written).
    fn due(&mut self, now: Instant) -> Vec<(Refused, Requests)> {
        let refilled = *self.refilled.get_or_insert(now);
        let more = now.saturating_duration_since(refilled).as_secs() / REFILL.as_secs();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.used = self.used.saturating_sub(more);
        self.refilled = Some(if self.used == 0 { now } else { refilled + REFILL * more });
        let most = usize::try_from(BURST.saturating_sub(self.used)).unwrap_or_default();
        self.waiting.iter().take(most).cloned().collect()
    }

    /// These were written. Requests that were refused meanwhile wait behind those of others.
    fn written(&mut self, written: &[(Refused, Requests)]) {
        for (refused, Requests { count, .. }) in written {
            self.used += 1;
            let place = self.waiting.iter().position(|(waiting, _)| waiting == refused);
            let Some((_, requests)) = place.and_then(|place| self.waiting.remove(place)) else { continue };
            let left = requests.count.saturating_sub(*count);
            if left > 0 {
                self.waiting.push_back((refused.clone(), Requests { count: left, ..requests }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(number: u32) -> Refused {
        Refused { actor: String::new(), address: format!("10.0.0.{number}"), status: 401 }
    }

    fn details(row: &Value) -> Value {
        serde_json::from_str(row["details"].as_str().expect("a text")).expect("JSON")
    }

    /// The records that are written at this time.
    fn taken(share: &mut Share, now: Instant) -> Vec<Value> {
        let due = share.due(now);
        share.written(&due);
        due.iter().map(row).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_one_caller_are_one_record() {
        let mut share = Share::default();
        for target in ["GET /v1/clusters", "POST /v1/clusters", "GET /v1/secrets"] {
            share.note(refused(1), target);
        }
        let rows = taken(&mut share, Instant::now());
        assert_eq!(rows.len(), 1);
        assert_eq!(details(&rows[0]), json!({"request": "GET /v1/clusters", "status": 401, "count": 3}));
        assert!(share.is_empty() && share.due(Instant::now()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_callers_makes_32_records_and_then_one_in_two_minutes() {
        let (mut share, mut written, mut counted) = (Share::default(), 0, 0);
        let begun = Instant::now();
        // A day of it, a hundred callers each ten seconds.
        for write in 0..8640 {
            for caller in 0..100 {
                share.note(refused(write * 100 + caller), &"x".repeat(1000));
            }
            let rows = taken(&mut share, begun + EVERY * write);
            written += rows.len();
            counted += rows.iter().map(|row| details(row)["count"].as_u64().expect("a number")).sum::<u64>();
        }
        assert!((32..=32 + 720).contains(&written), "{written}");
        let left = share.waiting.iter().map(|(_, requests)| requests.count).sum::<u64>();
        assert_eq!(counted + left, 864_000, "each is counted once");
        assert!(share.waiting.iter().all(|(_, requests)| requests.target.len() == LONGEST_TARGET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_refused_all_the_time_hides_no_other() {
        let (mut share, begun) = (Share::default(), Instant::now());
        let mut seen = Vec::new();
        for write in 0..100 {
            share.note(refused(1), "GET /v1/clusters");
            if write == 50 {
                share.note(refused(2), "GET /v1/secrets");
            }
            seen.extend(taken(&mut share, begun + EVERY * write).into_iter().map(|row| row["address"].clone()));
        }
        assert!(seen.iter().filter(|address| **address == "10.0.0.1").count() > 32, "{seen:?}");
        assert_eq!(seen.iter().filter(|address| **address == "10.0.0.2").count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_written_is_counted_by_the_next_write() {
        let (mut share, now) = (Share::default(), Instant::now());
        for _ in 0..3 {
            share.note(refused(1), "GET /v1/clusters");
        }
        // The database did not answer.
        assert_eq!(share.due(now).len(), 1);
        share.note(refused(1), "GET /v1/clusters");
        let due = share.due(now);
        // Meanwhile there are more.
        share.note(refused(1), "GET /v1/clusters");
        share.note(refused(2), "GET /v1/clusters");
        share.written(&due);
        let counts = |due: Vec<(Refused, Requests)>| due.into_iter().map(|(_, requests)| requests.count).collect();
        let told: [Vec<u64>; 2] = [counts(due), counts(share.due(now))];
        assert_eq!((told, share.used), ([vec![4], vec![1, 1]], 1));
    }
}

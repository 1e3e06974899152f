//! Requests that were refused for who sent them or how much there is of it (401, 403, 429), as records of who did what.
//!
//! They cost their sender nothing, so they are counted in memory and written seldom: refusals of one caller are one record with their
//! number, at most [`BURST`] records are written at once, and one in [`REFILL`] after that, whoever asks how often. Callers whose token is
//! known and all others have buckets of their own, so that a flood of unknown tokens hides no known one; and a token from many addresses
//! hides no other, since it is told apart by few of them.
//!
//! Records that were sent are sent again, as they are, until the database has answered. Each has an id, by which the database takes it once.
//! What is left when the API ends goes to the log.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::cluster::full_text;
use crate::config::text::cut;
use crate::db::{self, Database, Json, Type};
use crate::documents::{Author, ProblemKind};

/// Between two writes.
const EVERY: Duration = Duration::from_secs(10);
/// Records that a bucket may write at once, and unknown callers that are told apart until they are written.
const BURST: u32 = 32;
/// Records of one token that are told apart by their addresses and reasons.
const OF_ONE: usize = 4;
/// After this time a bucket may write one more: 720 a day.
const REFILL: Duration = Duration::from_mins(2);
/// Most characters of a request's path that are kept.
const LONGEST_TARGET: usize = 200;

/// Refused requests that are not recorded yet. A lock, since each request that is refused counts itself; it is held for one look.
#[derive(Default)]
pub struct Refusals {
    buckets: Mutex<Buckets>,
    noted: Notify,
}

#[derive(Default)]
struct Buckets {
    known: Bucket,
    unknown: Bucket,
    /// What was sent, until the database has answered.
    sent: Option<Sent>,
}

/// Those who are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// The name of the token; empty if it is not known.
    actor: String,
    /// Empty for all addresses that are not told apart.
    address: String,
    status: u16,
    /// Why: the type of the problem.
    reason: &'static str,
}

/// A token bucket of records.
#[derive(Default)]
struct Bucket {
    /// In the order of their first requests, so that none waits behind one that is refused again and again. The default stands for all
    /// unknown callers beyond [`BURST`], which are not told apart.
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

/// Records that the database may have taken or not.
#[derive(Clone)]
struct Sent {
    known: Vec<(Refused, Requests)>,
    unknown: Vec<(Refused, Requests)>,
    /// As the statement takes them.
    rows: Value,
}

impl Refusals {
    /// A request was refused for this reason. `actor` is the name of its token, if that is known.
    pub fn note(
        &self,
        actor: Option<String>,
        address: Option<IpAddr>,
        (status, reason): (StatusCode, Option<ProblemKind>),
        target: &str,
    ) {
        let mut buckets = self.buckets.lock();
        let bucket = if actor.is_some() { &mut buckets.known } else { &mut buckets.unknown };
        let Author { actor, address, .. } = Author::of_api(actor.unwrap_or_default(), address);
        let reason = reason.map_or("", ProblemKind::as_str);
        bucket.note(Refused { actor, address, status: status.as_u16(), reason }, target);
        drop(buckets);
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
                let written = self.flush(database, Bucket::due).await;
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

    /// Writes all that waits, whatever may be written now: nobody will do so later, and there is little of it.
    pub async fn finish(&self, database: &Database) -> Result<(), db::Error> {
        while !self.flush(database, |bucket, _| bucket.waiting.iter().cloned().collect()).await? {}
        Ok(())
    }

    /// Logs what still waits when this is dropped: when the API ends, however it ends, nobody writes it any more.
    pub fn log_rest(&self) -> impl Drop + '_ {
        struct LoggedWhenDropped<'r>(&'r Refusals);
        impl Drop for LoggedWhenDropped<'_> {
            fn drop(&mut self) {
                let buckets = self.0.buckets.lock();
                for (refused, Requests { target, count }) in
                    buckets.known.waiting.iter().chain(&buckets.unknown.waiting)
                {
                    let Refused { actor, address, status, reason } = refused;
                    tracing::warn!(
                        token = actor,
                        address,
                        status,
                        reason,
                        request = target,
                        count,
                        "refused requests may not have been recorded"
                    );
                }
            }
        }
        LoggedWhenDropped(self)
    }

    /// Writes what was sent before or, of each bucket, what is due now. Returns whether nothing is left.
    async fn flush(
        &self,
        database: &Database,
        due: fn(&mut Bucket, Instant) -> Vec<(Refused, Requests)>,
    ) -> Result<bool, db::Error> {
        const QUERY: &str = "record_refusals";
        const TEXT: &str = "insert into towline_history (at, id, actor, address, via, verb, details) \
             select clock_timestamp(), r.id, r.actor, r.address, 'api', 'refused', r.details \
             from jsonb_to_recordset($1) as r(id uuid, actor text, address text, details text) \
             on conflict (id) where verb = 'refused' do nothing";
        let sent = self.buckets.lock().send(due);
        if let Some(Sent { known, unknown, rows }) = sent {
            database.execute(QUERY, TEXT, &[(&Json(rows), Type::JSONB)]).await?;
            let mut buckets = self.buckets.lock();
            buckets.known.written(&known);
            buckets.unknown.written(&unknown);
            buckets.sent = None;
        }
        Ok(self.buckets.lock().are_empty())
    }
}

impl Buckets {
    /// What is to be sent: the same as before, as long as it is not known whether it was written.
    fn send(&mut self, due: fn(&mut Bucket, Instant) -> Vec<(Refused, Requests)>) -> Option<Sent> {
        if self.sent.is_none() {
            let now = Instant::now();
            let (known, unknown) = (due(&mut self.known, now), due(&mut self.unknown, now));
            let rows: Vec<Value> = known.iter().chain(&unknown).map(row).collect();
            self.sent = (!rows.is_empty()).then(|| Sent { known, unknown, rows: Value::from(rows) });
        }
        self.sent.clone()
    }

    fn are_empty(&self) -> bool {
        self.known.waiting.is_empty() && self.unknown.waiting.is_empty()
    }
}

/// A record, as the statement takes it.
fn row((refused, Requests { target, count }): &(Refused, Requests)) -> Value {
    let Refused { actor, address, status, reason } = refused;
    let details = if *refused == Refused::default() {
        json!({"note": "of other callers", "count": count})
    } else {
        json!({"request": target, "status": status, "note": reason, "count": count})
    };
    json!({"id": Uuid::new_v4(), "actor": actor, "address": address, "details": details.to_string()})
}

impl Bucket {
    fn note(&mut self, refused: Refused, target: &str) {
        let is_told_apart = self.waiting.iter().any(|(waiting, _)| *waiting == refused);
        let refused = if is_told_apart {
            refused
        } else if refused.actor.is_empty() {
            let is_full = self.waiting.len() >= usize::try_from(BURST).unwrap_or(usize::MAX);
            if is_full { Refused::default() } else { refused }
        } else {
            let of_token = self.waiting.iter().filter(|(waiting, _)| waiting.actor == refused.actor).count();
            let address = if of_token >= OF_ONE { String::new() } else { refused.address };
            Refused { address, ..refused }
        };
        if let Some((_, requests)) = self.waiting.iter_mut().find(|(waiting, _)| *waiting == refused) {
            requests.count += 1;
        } else {
            let target = cut(target, LONGEST_TARGET);
            self.waiting.push_back((refused, Requests { target, count: 1 }));
        }
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

    /// These were written. What else waits of their tokens, or was refused meanwhile, waits behind those of others.
    fn written(&mut self, written: &[(Refused, Requests)]) {
        for (refused, Requests { count, .. }) in written {
            self.used += 1;
            let position = self.waiting.iter().position(|(waiting, _)| waiting == refused);
            let Some((_, requests)) = position.and_then(|position| self.waiting.remove(position)) else { continue };
            let left = requests.count.saturating_sub(*count);
            if left > 0 {
                self.waiting.push_back((refused.clone(), Requests { count: left, ..requests }));
            }
        }
        let is_of_one = |(waiting, _): &(Refused, Requests)| written.iter().any(|(one, _)| one.actor == waiting.actor);
        let (of_these, mut of_others): (VecDeque<_>, VecDeque<_>) = self.waiting.drain(..).partition(is_of_one);
        of_others.extend(of_these);
        self.waiting = of_others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(number: u32) -> Refused {
        Refused { address: format!("10.0.0.{number}"), status: 401, reason: "unauthenticated", ..Refused::default() }
    }

    fn details(row: &Value) -> Value {
        serde_json::from_str(row["details"].as_str().expect("a text")).expect("JSON")
    }

    /// The records that are written at this time.
    fn taken(bucket: &mut Bucket, now: Instant) -> Vec<Value> {
        let due = bucket.due(now);
        bucket.written(&due);
        due.iter().map(row).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_one_caller_are_one_record() {
        let mut bucket = Bucket::default();
        for target in ["GET /v1/clusters", "POST /v1/clusters", "GET /v1/secrets"] {
            bucket.note(refused(1), target);
        }
        let rows = taken(&mut bucket, Instant::now());
        assert_eq!(rows.len(), 1);
        assert_eq!(
            details(&rows[0]),
            json!({"request": "GET /v1/clusters", "status": 401, "note": "unauthenticated", "count": 3})
        );
        assert!(bucket.waiting.is_empty() && bucket.due(Instant::now()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_callers_makes_32_records_and_then_one_in_two_minutes() {
        let (mut bucket, mut written, mut counted) = (Bucket::default(), 0, 0);
        let begun = Instant::now();
        // A day of it, a hundred callers each ten seconds.
        for write in 0..8640 {
            for caller in 0..100 {
                bucket.note(refused(write * 100 + caller), &"x".repeat(1000));
            }
            let rows = taken(&mut bucket, begun + EVERY * write);
            written += rows.len();
            counted += rows.iter().map(|row| details(row)["count"].as_u64().expect("a number")).sum::<u64>();
        }
        assert!((32..=32 + 720).contains(&written), "{written}");
        let left = bucket.waiting.iter().map(|(_, requests)| requests.count).sum::<u64>();
        assert_eq!(counted + left, 864_000, "each is counted once");
        assert!(bucket.waiting.iter().all(|(_, requests)| requests.target.chars().count() == LONGEST_TARGET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_refused_all_the_time_hides_no_other() {
        let (mut bucket, begun) = (Bucket::default(), Instant::now());
        let mut seen = Vec::new();
        for write in 0..100 {
            bucket.note(refused(1), "GET /v1/clusters");
            if write == 50 {
                bucket.note(refused(2), "GET /v1/secrets");
            }
            seen.extend(taken(&mut bucket, begun + EVERY * write).into_iter().map(|row| row["address"].clone()));
        }
        assert!(seen.iter().filter(|address| **address == "10.0.0.1").count() > 32, "{seen:?}");
        assert_eq!(seen.iter().filter(|address| **address == "10.0.0.2").count(), 1);
    }

    /// What a token that many know does, and somebody else once.
    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_refused_from_many_addresses_hides_no_other() {
        let of = |actor: &str, number: u32| Refused {
            actor: actor.to_owned(),
            address: format!("10.0.0.{number}"),
            status: 403,
            reason: "forbidden",
        };
        let (mut bucket, begun, mut seen) = (Bucket::default(), Instant::now(), Vec::new());
        for write in 0..100 {
            for address in 0..100 {
                bucket.note(of("mallory", address), "GET /v1/clusters");
            }
            if write == 50 {
                bucket.note(of("ada", 7), "GET /v1/secrets");
            }
            seen.extend(taken(&mut bucket, begun + EVERY * write));
        }
        let told: Vec<_> = seen.iter().filter(|row| row["actor"] == "ada").collect();
        assert_eq!(told.len(), 1);
        assert_eq!((&told[0]["address"], &details(told[0])["count"]), (&json!("10.0.0.7"), &json!(1)));
        let of_mallory = seen.iter().filter(|row| row["actor"] == "mallory");
        let counted: u64 = of_mallory.map(|row| details(row)["count"].as_u64().expect("a number")).sum();
        let left: u64 = bucket.waiting.iter().map(|(_, requests)| requests.count).sum();
        assert_eq!(counted + left, 10_000, "each is counted once");
        assert!(bucket.waiting.len() <= OF_ONE + 1, "{:?}", bucket.waiting);
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_have_been_written_is_sent_again_as_it_is_and_what_came_meanwhile_after_it() {
        let mut buckets = Buckets::default();
        for _ in 0..3 {
            buckets.unknown.note(refused(1), "GET /v1/clusters");
        }
        let sent = buckets.send(Bucket::due).expect("a record");
        // The database did not answer.
        buckets.unknown.note(refused(1), "GET /v1/clusters");
        buckets.unknown.note(refused(2), "GET /v1/clusters");
        let again = buckets.send(Bucket::due).expect("a record");
        assert_eq!((&again.rows, details(&again.rows[0])["count"].as_u64()), (&sent.rows, Some(3)));
        buckets.unknown.written(&again.unknown);
        buckets.sent = None;
        let next = buckets.send(Bucket::due).expect("records");
        let counts: Vec<_> = next.unknown.iter().map(|(_, requests)| requests.count).collect();
        assert_eq!((counts, buckets.unknown.used), (vec![1, 1], 1));
        assert_ne!(next.rows[0]["id"], sent.rows[0]["id"]);
    }
}

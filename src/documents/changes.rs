//! How much of the log each namespace has filled lately, and whether its clients may change more.
//!
//! The [quota](super::Quota) bounds what a namespace has. Who changes the same documents again and again has no more of them, but each change
//! is kept in the log for a time. So a namespace may fill the log with so many KiB within that time, and after that as much as goes.
//!
//! Each row of the log says how much it counts, and the tail of each replica reads every row. So a bound counts for all replicas together. What
//! Towline itself and administrators of everything write counts nothing: it would keep the namespace's own clients from helping themselves. A
//! `resync` or an order to a rollout, which write a record and no row of the log, count in their replica. A replica that starts has counted nothing.
//!
//! Each namespace has the time at which all that it wrote will have gone. A lock, since the tail counts and requests look; it is held
//! for one look.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::problem::{Problem, ProblemKind};

/// How much a namespace may fill at once, and again within the time for which the log is kept, for each KiB that it may have. So the log
/// has at most four times as much of a namespace, and what arrives before the bound is noticed.
const SHARE: u64 = 2;
/// Namespaces that are remembered before those that have no rows any more are looked for.
const FEW: usize = 1_024;

/// What the namespaces have filled. Clones share it.
#[derive(Clone)]
pub struct Changes {
    within: Duration,
    /// How long a KiB counts: until the others of the bound have had their time.
    of_kib: Duration,
    filled: Arc<Mutex<Filled>>,
}

#[derive(Default)]
struct Filled {
    /// When all that a namespace has filled will have gone.
    until: HashMap<String, Instant>,
    look_again_at: usize,
}

impl Changes {
    /// For namespaces that may have so many KiB, where the log keeps a change for so long.
    pub fn new(kib: u64, within: Duration) -> Self {
        let most = kib.saturating_mul(SHARE).max(1);
        let nanos = within.as_nanos() / u128::from(most);
        let of_kib = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Self { within, of_kib, filled: Arc::default() }
    }

    /// Clients of a namespace have written so many KiB.
    pub fn count(&self, namespace: &str, kib: u32) {
        // SelectorSyncSets have no namespace, and no bound: only tokens for all namespaces may write them.
        if namespace.is_empty() || kib == 0 {
            return;
        }
        let now = Instant::now();
        let mut filled = self.filled.lock();
        let until =
            filled.until.get(namespace).map_or(now, |until| (*until).max(now)) + self.of_kib.saturating_mul(kib);
        // However much was on the way when the bound was noticed, clients wait no longer than the log keeps it.
        let until = until.min(now + 2 * self.within);
        if let Some(of_namespace) = filled.until.get_mut(namespace) {
            *of_namespace = until;
            return;
        }
        filled.until.insert(namespace.to_owned(), until);
        if filled.until.len() >= filled.look_again_at.max(FEW) {
            filled.until.retain(|_, until| *until > now);
            filled.look_again_at = 2 * filled.until.len();
        }
    }

    /// Refuses a change in a namespace that has filled its share.
    pub fn admit(&self, namespace: &str) -> Result<(), Problem> {
        let until = self.filled.lock().until.get(namespace).copied();
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        let Some(wait) = left.checked_sub(self.within).filter(|wait| !wait.is_zero()) else { return Ok(()) };
        let title = format!(
            "namespace {namespace} has changed too much: at most {SHARE} times what it may have within {}",
            humantime::format_duration(self.within)
        );
        Err(Problem::new(ProblemKind::ChangeQuota, title).retry_after(wait))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn waits(changes: &Changes, namespace: &str) -> Option<Duration> {
        changes.admit(namespace).err().and_then(|problem| problem.retry_after)
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_fills_its_share_at_once_and_then_as_much_as_goes() {
        let changes = Changes::new(500, HOUR);
        let mut written = 0;
        // A day of it, as fast as it is let: a change of 10 KiB with its row, each second.
        for _ in 0..24 * 3600 {
            if changes.admit("foo").is_ok() {
                changes.count("foo", 10);
                written += 10;
            }
            advance(Duration::from_secs(1)).await;
        }
        assert!((1_000 + 23 * 1_000..=1_000 + 24 * 1_000 + 10).contains(&written), "{written} KiB");
        assert_eq!(waits(&changes, "bar"), None, "others have shares of their own");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_written_beyond_the_share_delays_clients_and_not_for_longer_than_the_log_is_kept() {
        let changes = Changes::new(500, HOUR);
        for _ in 0..1_500 {
            changes.count("foo", 1);
        }
        assert_eq!(waits(&changes, "foo"), Some(HOUR / 2));
        for _ in 0..100_000 {
            changes.count("foo", 2);
        }
        assert_eq!(waits(&changes, "foo"), Some(HOUR));
        advance(HOUR / 4).await;
        assert_eq!(waits(&changes, "foo"), Some(HOUR / 4 * 3));
        advance(HOUR / 4 * 3).await;
        assert_eq!(waits(&changes, "foo"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_without_rows_are_forgotten_and_none_is_not_counted() {
        let changes = Changes::new(1, HOUR);
        for number in 0..10_000 {
            changes.count(&format!("n{number}"), 1);
            changes.count(&format!("unchanged{number}"), 0);
            changes.count("", 1 << 20);
            advance(HOUR / 100).await;
        }
        assert!(changes.filled.lock().until.len() <= FEW);
        assert_eq!(waits(&changes, ""), None);
    }
}

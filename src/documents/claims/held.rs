//! The work claims of this process, as their renewal sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::lifetime::Lifetime;
use crate::cluster::{self, Clock, Fence};

/// The work claims of this process. Clones are the same.
#[derive(Clone)]
pub(in crate::documents) struct HeldWork {
    clock: Clock,
    lifetime: Lifetime,
    entries: watch::Sender<BTreeMap<Uuid, Entry>>,
}

struct Entry {
    /// As operators know the cluster.
    name: String,
    token: i64,
    fence: Fence,
    since: Instant,
}

/// A work claim that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    pub cluster: Uuid,
    /// The number of the grant.
    pub token: i64,
    /// How long it has been held.
    pub age: Duration,
}

/// Keeps a claim renewed until it is dropped.
pub(in crate::documents) struct Registration {
    held: HeldWork,
    cluster: Uuid,
    token: i64,
    fence: Fence,
}

impl HeldWork {
    /// No claims. They end by this clock.
    pub(in crate::documents) fn new(clock: Clock, lifetime: Lifetime) -> Self {
        Self { clock, lifetime, entries: watch::Sender::default() }
    }

    pub(in crate::documents) fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    /// The time by which claims end.
    pub(in crate::documents) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// A request sent at `sent` was granted. `None` if the answer came too late.
    pub(in crate::documents) fn granted(
        &self,
        cluster: Uuid,
        name: &str,
        token: i64,
        sent: Duration,
    ) -> Option<(Registration, cluster::Claim)> {
        let fence = Fence::new(name, self.clock);
        fence.open(sent + self.lifetime.held_for());
        let claim = fence.claim().ok()?;
        let entry = Entry { name: name.to_owned(), token, fence: fence.clone(), since: Instant::now() };
        self.entries.send_modify(|entries| {
            if let Some(earlier) = entries.insert(cluster, entry) {
                // It had ended in the database, or the cluster would not have been granted again.
                earlier.lose("granted again");
            }
        });
        Some((Registration { held: self.clone(), cluster, token, fence }, claim))
    }

    pub(in crate::documents) fn list(&self) -> Vec<HeldClaim> {
        let of = |(cluster, entry): (&Uuid, &Entry)| HeldClaim {
            cluster: *cluster,
            token: entry.token,
            age: entry.since.elapsed(),
        };
        self.entries.borrow().iter().map(of).collect()
    }

    pub(in crate::documents) async fn becomes_held(&self) {
        let mut entries = self.entries.subscribe();
        // The sender lives as long as this value.
        let _held = entries.wait_for(|entries| !entries.is_empty()).await;
    }

    /// A renewal of these claims, sent at `sent`, was answered with the clusters that were renewed. The others are lost.
    pub(in crate::documents) fn answered(&self, asked: &[HeldClaim], renewed: &[String], sent: Duration) {
        let renewed: BTreeSet<Uuid> = renewed.iter().filter_map(|cluster| cluster.parse().ok()).collect();
        for HeldClaim { cluster, token, .. } in asked {
            let is_kept =
                |entry: &Entry| renewed.contains(cluster) && entry.fence.extend(sent + self.lifetime.held_for());
            // One that ended meanwhile and was granted anew has another token.
            self.remove(*cluster, "not renewed", |entry| entry.token == *token && !is_kept(entry));
        }
    }

    /// Gives up claims that have expired.
    pub(in crate::documents) fn expire(&self) {
        for HeldClaim { cluster, .. } in self.list() {
            self.remove(cluster, "expired", |entry| !entry.fence.is_held());
        }
    }

    /// Closes all fences, and returns what was held.
    pub(in crate::documents) fn give_up(&self) -> Vec<HeldClaim> {
        let held = self.list();
        for HeldClaim { cluster, .. } in &held {
            self.remove(*cluster, "handed back", |_| true);
        }
        held
    }

    /// Removes a claim, and closes its fence, if this holds.
    fn remove(&self, cluster: Uuid, reason: &'static str, holds: impl FnOnce(&Entry) -> bool) {
        self.entries.send_if_modified(|entries| {
            if entries.get(&cluster).is_some_and(holds)
                && let Some(entry) = entries.remove(&cluster)
            {
                entry.lose(reason);
            }
            // Only new claims are waited for.
            false
        });
    }
}

impl Entry {
    fn lose(&self, reason: &'static str) {
        self.fence.close();
        tracing::warn!(cluster = self.name, token = self.token, reason, "work claim lost");
    }
}

impl Registration {
    pub(in crate::documents) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The claim is renewed no more.
    pub(in crate::documents) fn release(&self) {
        self.fence.close();
        self.held.entries.send_if_modified(|entries| {
            if entries.get(&self.cluster).is_some_and(|entry| entry.token == self.token) {
                entries.remove(&self.cluster);
            }
            false
        });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn held() -> HeldWork {
        HeldWork::new(Clock::Paused(Instant::now()), Lifetime::DEFAULT)
    }

    fn tokens(held: &HeldWork) -> Vec<(Uuid, i64)> {
        held.list().iter().map(|claim| (claim.cluster, claim.token)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_20_s_after_its_holder_sent_the_last_renewal_that_was_acknowledged() {
        let (held, cluster) = (held(), Uuid::new_v4());
        let sent = held.now();
        advance(seconds(3)).await;
        let (_registration, claim) = held.granted(cluster, "team-a/west-1", 7, sent).expect("it is granted");
        assert_eq!(claim.check(), Ok(seconds(17)), "it counts from when the request was sent");
        advance(seconds(10)).await;
        held.answered(&held.list(), &[cluster.to_string()], held.now().saturating_sub(seconds(1)));
        assert_eq!(claim.check(), Ok(seconds(19)));
        advance(seconds(19)).await;
        assert!(claim.check().is_err());
        assert_eq!(tokens(&held), [(cluster, 7)]);
        held.expire();
        assert_eq!(tokens(&held), [], "it is renewed no more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_renewal_does_not_return_is_lost_at_once_and_alone() {
        let held = held();
        let (kept, lost) = (Uuid::new_v4(), Uuid::new_v4());
        let (_one, kept_claim) = held.granted(kept, "team-a/west-1", 3, held.now()).expect("it is granted");
        let (_other, lost_claim) = held.granted(lost, "team-a/west-1", 4, held.now()).expect("it is granted");
        held.answered(&held.list(), &[kept.to_string()], held.now());
        assert!(kept_claim.check().is_ok() && lost_claim.check().is_err());
        assert_eq!(tokens(&held), [(kept, 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_says_nothing_about_claims_that_came_after_its_renewal() {
        let (held, cluster) = (held(), Uuid::new_v4());
        let (first, first_claim) = held.granted(cluster, "team-a/west-1", 3, held.now()).expect("it is granted");
        let asked = held.list();
        drop(first);
        assert!(first_claim.check().is_err(), "what is dropped is closed");
        let (_second, second_claim) = held.granted(cluster, "team-a/west-1", 4, held.now()).expect("it is granted");
        let (_new, new_claim) = held.granted(Uuid::new_v4(), "team-a/west-1", 1, held.now()).expect("it is granted");
        held.answered(&asked, &[], held.now());
        assert!(second_claim.check().is_ok() && new_claim.check().is_ok());
        assert_eq!(held.list().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_neither_grants_nor_revives() {
        let (held, cluster) = (held(), Uuid::new_v4());
        let sent = held.now();
        advance(seconds(20)).await;
        assert!(held.granted(cluster, "team-a/west-1", 3, sent).is_none());
        assert_eq!(held.list(), []);
        let (_registration, claim) = held.granted(cluster, "team-a/west-1", 4, held.now()).expect("it is granted");
        let asked = held.list();
        advance(seconds(21)).await;
        held.answered(&asked, &[cluster.to_string()], held.now());
        assert!(claim.check().is_err(), "it had ended");
        assert_eq!(held.list(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_ended_unnoticed_is_closed_by_the_next_one_and_does_not_end_it() {
        let (held, cluster) = (held(), Uuid::new_v4());
        let (old, old_claim) = held.granted(cluster, "team-a/west-1", 3, held.now()).expect("it is granted");
        let (_new, new_claim) = held.granted(cluster, "team-a/west-1", 5, held.now()).expect("it is granted");
        assert!(old_claim.check().is_err() && new_claim.check().is_ok());
        drop(old);
        assert!(new_claim.check().is_ok());
        assert_eq!(tokens(&held), [(cluster, 5)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_waited_for_until_there_is_one() {
        let held = held();
        let other = held.clone();
        let waiting = tokio::spawn(async move { other.becomes_held().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let granted = held.granted(Uuid::new_v4(), "team-a/west-1", 1, held.now()).expect("it is granted");
        waiting.await.unwrap();
        assert_eq!(held.give_up().len(), 1);
        assert!(granted.1.check().is_err());
        assert_eq!(held.list(), []);
    }
}

//! Demands on a watch: it lists and follows only while there is one, and sends requests under the claims of the demands.
//!
//! Streams are numbered. A demand trusts only a list that began after it: the watch may have run for another section while
//! this process was stopped, and its cache may not show yet what another replica did a moment ago. So a demand on a running
//! watch makes it list again; those who use the watch already continue with the cache as it is. Demands that arrive one
//! after the other share lists: a list in progress is not cut short for a demand that came too late for it, and the next
//! list begins a moment after the first such demand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Watch;
use crate::cluster::fence::{Claim, Expired, Fence};
use crate::cluster::store::Listed;

/// Demands within this time after the first one that needs a new list share it. Sections that were just acquired make theirs
/// a few milliseconds apart, and a list takes about as long.
const SHARED_WITHIN: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// How many demands there are.
    wanted: usize,
    /// The first stream that is new enough for all demands.
    needed: u64,
    /// The stream that began last.
    begun: u64,
    /// The last stream whose list has ended.
    listed: u64,
    /// When the first demand was made that needs a stream which has not begun.
    waiting_since: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Demands {
    progress: watch::Sender<Progress>,
    fences: Mutex<Fences>,
}

#[derive(Default)]
struct Fences {
    last: u64,
    by_number: BTreeMap<u64, Option<Fence>>,
}

impl Demands {
    /// Waits until other demands that need a new list have had time to arrive.
    pub(super) async fn gathered(&self) {
        let since = self.progress.borrow().waiting_since;
        if let Some(since) = since {
            tokio::time::sleep_until(since + SHARED_WITHIN).await;
        }
    }

    /// The number of a stream that is about to be opened.
    pub(super) fn begin(&self) -> u64 {
        let mut begun = 0;
        self.progress.send_if_modified(|progress| {
            progress.begun += 1;
            progress.waiting_since = None;
            begun = progress.begun;
            // No task waits for this.
            false
        });
        begun
    }

    /// The number of the stream that was opened last.
    #[cfg(test)]
    pub(super) fn begun(&self) -> u64 {
        self.progress.borrow().begun
    }

    /// The list of a stream has ended. Tasks that wait for it are [woken](Self::tell) when all followers have noted that.
    pub(super) fn listed(&self, stream: u64) {
        self.progress.send_if_modified(|progress| {
            progress.listed = progress.listed.max(stream);
            false
        });
    }

    /// Wakes the tasks that wait for a list.
    pub(super) fn tell(&self) {
        self.progress.send_modify(|_| {});
    }

    pub(super) async fn somebody(&self) {
        self.until(|progress| progress.wanted > 0).await;
    }

    pub(super) async fn nobody(&self) {
        self.until(|progress| progress.wanted == 0).await;
    }

    /// Waits until a demand needs a newer list than this stream's.
    pub(super) async fn newer_than(&self, stream: u64) {
        self.until(|progress| progress.needed > stream).await;
    }

    async fn until(&self, condition: impl Fn(&Progress) -> bool) {
        // This holds the sender, so it is never closed.
        let _ = self.progress.subscribe().wait_for(|progress| condition(progress)).await;
    }

    /// The claim to send a request under: the one that lasts longest. `None` if a demand has no fence.
    pub(super) fn claim(&self) -> Result<Option<Claim>, Expired> {
        let fences = self.fences.lock();
        if fences.by_number.values().any(Option::is_none) {
            return Ok(None);
        }
        let longest = fences.by_number.values().flatten().max_by_key(|fence| fence.remaining());
        match longest {
            Some(fence) => fence.claim().map(Some),
            None => Err(Expired { section: "nobody".into() }),
        }
    }
}

impl Watch {
    /// Makes the watch list again and run until the demand is dropped; under the fence's claims, if there is one.
    pub fn demand(self: &Arc<Self>, fence: Option<&Fence>) -> Demand {
        let number = {
            let mut fences = self.demands.fences.lock();
            fences.last += 1;
            let number = fences.last;
            fences.by_number.insert(number, fence.cloned());
            number
        };
        let mut needs = 0;
        self.demands.progress.send_if_modified(|progress| {
            let before = *progress;
            needs = progress.begun + 1;
            progress.wanted += 1;
            progress.needed = needs;
            progress.waiting_since.get_or_insert_with(Instant::now);
            // Of many simultaneous demands only the first makes a difference.
            before.wanted == 0 || before.needed != needs
        });
        Demand { watch: Arc::clone(self), number, needs }
    }

    /// Whether there is no demand.
    pub fn is_idle(&self) -> bool {
        self.demands.progress.borrow().wanted == 0
    }

    /// Waits until the cache is new enough for all current demands; not if it can't be listed, or if there is no demand.
    pub(super) async fn settled(&self) {
        let mut progress = self.demands.progress.subscribe();
        let mut listed = self.store().listed();
        // Later demands need newer lists: waiting for them would last as long as new ones arrive.
        let needed = progress.borrow().needed;
        loop {
            let Progress { wanted, listed: last, .. } = *progress.borrow_and_update();
            let waits = match &*listed.borrow_and_update() {
                Listed::Yes => last < needed,
                Listed::No { reason, .. } => reason.is_none(),
            };
            if wanted == 0 || !waits {
                return;
            }
            tokio::select! {
                _ = progress.changed() => {}
                _ = listed.changed() => {}
            }
        }
    }
}

/// A demand on a watch, until it is dropped.
pub struct Demand {
    watch: Arc<Watch>,
    number: u64,
    needs: u64,
}

impl Demand {
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Whether the cache is complete, by a list that began after this demand was made.
    pub fn is_met(&self) -> bool {
        self.watch.store().is_listed() && self.watch.demands.progress.borrow().listed >= self.needs
    }

    /// Waits until it is met, and all followers have noted the list.
    pub async fn met(&self) {
        let mut progress = self.watch.demands.progress.subscribe();
        let mut listed = self.watch.store().listed();
        while !self.is_met() || self.watch.is_noting() {
            tokio::select! {
                _ = progress.changed() => {}
                _ = listed.changed() => {}
            }
        }
    }
}

impl Drop for Demand {
    fn drop(&mut self) {
        self.watch.demands.fences.lock().by_number.remove(&self.number);
        self.watch.demands.progress.send_if_modified(|progress| {
            progress.wanted = progress.wanted.saturating_sub(1);
            progress.wanted == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::actor::Scope;
    use crate::cluster::watch::scripted::{Script, decoded};
    use crate::cluster::{Clock, Cluster, ObjectKey, WatchId};

    fn watch() -> (Arc<Watch>, Script) {
        let (cluster, script) = Cluster::scripted("edge");
        let id = WatchId::all(cluster.name().clone(), "databases.v1.demo.towline.dev".parse().unwrap());
        (Watch::new(id, cluster), script)
    }

    #[tokio::test]
    async fn a_demand_is_met_only_by_a_list_that_began_after_it() {
        let (watch, _script) = watch();
        let first = watch.demand(None);
        watch.list(&[]).await;
        assert!(first.is_met());
        let second = watch.demand(None);
        assert!(
            first.is_met() && !second.is_met(),
            "the later demand trusts an older list, or the earlier one no longer does"
        );
        watch.begin(&[]).await;
        let third = watch.demand(None);
        watch.end().await;
        assert!(first.is_met() && second.is_met() && !third.is_met());
        watch.list(&[]).await;
        third.met().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_without_demands_sends_nothing_and_keeps_nothing() {
        let (watch, script) = watch();
        let (scope, _drain) = Scope::standalone("watcher");
        tokio::spawn(Arc::clone(&watch).run(scope));
        sleep(Duration::from_mins(10)).await;
        assert_eq!(script.asked(), Vec::<String>::new(), "requests without a demand");
        let demand = watch.demand(None);
        sleep(Duration::from_secs(1)).await;
        assert!(!script.asked().is_empty(), "it does not start");
        let object =
            serde_json::json!({"metadata": {"namespace": "n", "name": "a", "uid": "u", "resourceVersion": "1"}});
        watch.store().apply(decoded(&object).into_object());
        drop(demand);
        sleep(Duration::from_millis(1)).await;
        script.asked();
        sleep(Duration::from_mins(10)).await;
        assert_eq!(script.asked(), Vec::<String>::new(), "it does not stop");
        assert!(watch.store().get(&ObjectKey::new("n", "a")).is_none() && watch.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_sends_requests_under_the_claims_of_its_demands() {
        let (watch, script) = watch();
        let (scope, _drain) = Scope::standalone("watcher");
        tokio::spawn(Arc::clone(&watch).run(scope));
        let fence = Fence::new("databases", Clock::Paused(Instant::now()));
        let _demand = watch.demand(Some(&fence));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(script.asked(), Vec::<String>::new(), "requests without a claim");
        fence.open(fence.now() + Duration::from_secs(15));
        sleep(Duration::from_secs(1)).await;
        assert!(!script.asked().is_empty(), "it does not start");
    }
}

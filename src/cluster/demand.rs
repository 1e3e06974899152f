//! Who needs a watch: it lists and follows only while somebody does, and then under the claims of those who do.
//!
//! Streams are numbered. Whoever demands a watch trusts only a list that was begun after the demand: the watch may have
//! run for somebody else through a time in which this process was stopped, and what was decided elsewhere until a moment
//! ago may not have reached its cache. So a demand on a running watch makes it list again; those who use it already go on
//! with the cache as it is. Many that come one after the other share lists: one that is going on is not cut short for
//! those who came too late for it, and the next one begins a moment after the first of them came.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fence::{Claim, Expired, Fence};
use super::store::Listed;
use super::watch::Watch;

/// Who comes within this after the first who needs a new list shares it. Sections that were just taken come a few
/// milliseconds apart, and a list costs about as much.
const SHARED_WITHIN: Duration = Duration::from_millis(50);

/// How far a watch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// How many demand it.
    wanted: usize,
    /// The first stream that is new enough for all of them.
    needed: u64,
    /// The stream that was begun last.
    begun: u64,
    /// The last stream whose list has ended.
    listed: u64,
    /// When the first came who needs a stream that has not been begun.
    waiting_since: Option<Instant>,
}

/// The demands on one watch.
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
    /// Waits until those who need a new list have had the time to come.
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
            // Nobody waits for this.
            false
        });
        begun
    }

    /// The number of the stream that was opened last.
    #[cfg(test)]
    pub(super) fn begun(&self) -> u64 {
        self.progress.borrow().begun
    }

    /// The list of a stream has ended. Who waits for it is [told](Self::tell) when all followers have noted that.
    pub(super) fn listed(&self, stream: u64) {
        self.progress.send_if_modified(|progress| {
            progress.listed = progress.listed.max(stream);
            false
        });
    }

    /// Tells those who wait for a list.
    pub(super) fn tell(&self) {
        self.progress.send_modify(|_| {});
    }

    /// Waits until somebody needs the watch.
    pub(super) async fn somebody(&self) {
        self.until(|progress| progress.wanted > 0).await;
    }

    /// Waits until nobody needs the watch.
    pub(super) async fn nobody(&self) {
        self.until(|progress| progress.wanted == 0).await;
    }

    /// Waits until somebody needs a newer list than this stream's.
    pub(super) async fn newer_than(&self, stream: u64) {
        self.until(|progress| progress.needed > stream).await;
    }

    async fn until(&self, condition: impl Fn(&Progress) -> bool) {
        // The sender is right here, so it is never gone.
        let _ = self.progress.subscribe().wait_for(|progress| condition(progress)).await;
    }

    /// Under which claim a request may be sent: the one that lasts longest. `None` where somebody needs none.
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
    /// Makes the watch run, and list anew, until the demand is dropped; under a claim, where it is made under a fence.
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
            // Of many that come together only the first makes a difference to anybody.
            before.wanted == 0 || before.needed != needs
        });
        Demand { watch: Arc::clone(self), number, needs }
    }

    /// Whether nobody needs the watch.
    pub fn is_idle(&self) -> bool {
        self.demands.progress.borrow().wanted == 0
    }

    /// Waits until the cache shows what everybody needs who demands the watch now; not where it can't, or nobody does.
    pub(super) async fn settled(&self) {
        let mut progress = self.demands.progress.subscribe();
        let mut listed = self.store().listed();
        // Who comes later needs a newer list, and would be waited for for as long as others come.
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

/// That somebody needs a watch.
pub struct Demand {
    watch: Arc<Watch>,
    number: u64,
    needs: u64,
}

impl Demand {
    /// The watch.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Whether the cache is whole, and of a list that was begun after this demand was made.
    pub fn is_met(&self) -> bool {
        self.watch.store().is_listed() && self.watch.demands.progress.borrow().listed >= self.needs
    }

    /// Waits until it is met, and what the list means has been noted.
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
    async fn a_demand_is_met_by_a_list_that_was_begun_after_it_and_by_no_other() {
        let (watch, _script) = watch();
        let first = watch.demand(None);
        watch.list(&[]).await;
        assert!(first.is_met());
        let second = watch.demand(None);
        assert!(
            first.is_met() && !second.is_met(),
            "who came later trusts an older list, or who came earlier no longer"
        );
        watch.begin(&[]).await;
        let third = watch.demand(None);
        watch.end().await;
        assert!(first.is_met() && second.is_met() && !third.is_met());
        watch.list(&[]).await;
        third.met().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_nobody_needs_sends_nothing_and_keeps_nothing() {
        let (watch, script) = watch();
        let (scope, _drain) = Scope::standalone("watcher");
        tokio::spawn(Arc::clone(&watch).run(scope));
        sleep(Duration::from_mins(10)).await;
        assert_eq!(script.asked(), Vec::<String>::new(), "requests that nobody needs");
        let demand = watch.demand(None);
        sleep(Duration::from_secs(1)).await;
        assert!(!script.asked().is_empty(), "it does not begin");
        let object =
            serde_json::json!({"metadata": {"namespace": "n", "name": "a", "uid": "u", "resourceVersion": "1"}});
        watch.store().apply(decoded(&object).into_object());
        drop(demand);
        sleep(Duration::from_millis(1)).await;
        script.asked();
        sleep(Duration::from_mins(10)).await;
        assert_eq!(script.asked(), Vec::<String>::new(), "it goes on");
        assert!(watch.store().get(&ObjectKey::new("n", "a")).is_none() && watch.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_sends_under_the_claims_of_those_who_need_it() {
        let (watch, script) = watch();
        let (scope, _drain) = Scope::standalone("watcher");
        tokio::spawn(Arc::clone(&watch).run(scope));
        let fence = Fence::new("databases", Clock::Paused(Instant::now()));
        let _demand = watch.demand(Some(&fence));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(script.asked(), Vec::<String>::new(), "requests without a claim");
        fence.open(fence.now() + Duration::from_secs(15));
        sleep(Duration::from_secs(1)).await;
        assert!(!script.asked().is_empty(), "it does not begin");
    }
}

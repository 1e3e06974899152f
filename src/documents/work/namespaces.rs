//! Slots that no namespace has alone: however slow the clusters of one are, those of the others have their turn.
//!
//! Where several namespaces have clusters, a namespace leaves a quarter of the slots to the others, so that whoever comes finds one; a slot
//! that becomes free goes to the namespace with the fewest ([`Namespaces`]). [`ClaimSlots`] are the slots for clusters that were
//! claimed: of a namespace that has its share of them, no further cluster is claimed. Where n namespaces hold slots, a share is one of n + 1
//! equal parts, so that one more namespace finds free slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// Of so many slots, one is left to other namespaces.
const LEFT: usize = 4;
/// Before a cluster that has answered a probe looks again whether its namespace may have one more slot.
const AGAIN: Duration = Duration::from_millis(200);

/// How many of a number of slots each namespace has.
pub struct Namespaces {
    slots: usize,
    used: BTreeMap<Arc<str>, usize>,
    /// Whether more than one has clusters. Until that is known, they are several.
    are_several: bool,
}

/// Slots for clusters that were claimed. Clones are the same.
#[derive(Clone)]
pub struct ClaimSlots(Arc<Claimed>);

/// The lock is held for one decision, by tasks of one runtime.
struct Claimed {
    free: Arc<Semaphore>,
    namespaces: Mutex<Namespaces>,
    /// A namespace that had its share of the slots has fewer.
    has_less: Notify,
}

/// A slot for a cluster, until it is dropped.
pub struct ClaimSlot {
    _permit: OwnedSemaphorePermit,
    namespace: Arc<str>,
    of: ClaimSlots,
}

/// What may be claimed.
pub(super) struct Claimable {
    /// No clusters of these namespaces.
    pub(super) without: Vec<String>,
    /// So many, of whatever namespaces they are.
    pub(super) most: usize,
}

impl Namespaces {
    pub fn new(slots: usize) -> Self {
        Self { slots, used: BTreeMap::new(), are_several: true }
    }

    /// Whether more than one has clusters.
    pub fn learn(&mut self, are_several: bool) {
        self.are_several = are_several;
    }

    pub fn used(&self, namespace: &str) -> usize {
        self.used.get(namespace).copied().unwrap_or_default()
    }

    /// Whether a namespace may have one more slot, if one is free.
    pub fn may_take(&self, namespace: &str) -> bool {
        self.used(namespace) < self.most()
    }

    pub fn take(&mut self, namespace: &Arc<str>) {
        *self.used.entry(Arc::clone(namespace)).or_default() += 1;
    }

    pub fn give_back(&mut self, namespace: &str) {
        if let Some(used) = self.used.get_mut(namespace) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                self.used.remove(namespace);
            }
        }
    }

    /// Most slots of one namespace.
    fn most(&self) -> usize {
        let left = if self.are_several { self.slots.div_ceil(LEFT) } else { 0 };
        self.slots.saturating_sub(left).max(1)
    }

    /// Whether so many slots are a namespace's share.
    fn are_a_share(&self, used: usize) -> bool {
        self.are_several && used >= self.slots.div_ceil(self.used.len() + 1)
    }

    fn claimable(&self) -> Claimable {
        let (with_share, others): (Vec<_>, Vec<_>) = self.used.iter().partition(|(_, used)| self.are_a_share(**used));
        let largest = others.into_iter().map(|(_, used)| *used).max().unwrap_or_default();
        Claimable {
            without: with_share.into_iter().map(|(namespace, _)| namespace.to_string()).collect(),
            most: self.most().saturating_sub(largest).max(1),
        }
    }
}

impl ClaimSlots {
    pub fn new(slots: usize) -> Self {
        let slots = slots.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Claimed {
            free: Arc::new(Semaphore::new(slots)),
            namespaces: Mutex::new(Namespaces::new(slots)),
            has_less: Notify::new(),
        }))
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.0.free.available_permits()
    }

    /// A slot for a cluster that was claimed before, if one is free and its namespace may have one more.
    pub fn try_take(&self, namespace: &str) -> Option<ClaimSlot> {
        let permit = Arc::clone(&self.0.free).try_acquire_owned().ok()?;
        let may_take = self.0.namespaces.lock().may_take(namespace);
        may_take.then(|| self.given(permit, namespace))
    }

    /// The same, once there is one. Whoever waits for its namespace holds up no other.
    pub async fn take(&self, namespace: &str) -> ClaimSlot {
        loop {
            if let Some(slot) = self.try_take(namespace) {
                return slot;
            }
            sleep(AGAIN).await;
        }
    }

    /// A slot for whatever will be claimed.
    pub(super) fn semaphore(&self) -> &Arc<Semaphore> {
        &self.0.free
    }

    pub(super) fn given(&self, permit: OwnedSemaphorePermit, namespace: &str) -> ClaimSlot {
        let namespace = Arc::from(namespace);
        self.0.namespaces.lock().take(&namespace);
        ClaimSlot { _permit: permit, namespace, of: self.clone() }
    }

    pub(super) fn claimable(&self) -> Claimable {
        self.0.namespaces.lock().claimable()
    }

    pub(super) fn learn(&self, are_several: bool) {
        self.0.namespaces.lock().learn(are_several);
    }

    /// Waits until a namespace that had its share of the slots has fewer, since the last call.
    ///
    /// Cancel safe.
    pub(super) async fn has_less(&self) {
        self.0.has_less.notified().await;
    }
}

impl Drop for ClaimSlot {
    fn drop(&mut self) {
        let mut namespaces = self.of.0.namespaces.lock();
        let had_share = namespaces.are_a_share(namespaces.used(&self.namespace));
        namespaces.give_back(&self.namespace);
        if had_share {
            self.of.0.has_less.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(slots: usize, used: &[(&str, usize)]) -> Namespaces {
        let mut namespaces = Namespaces::new(slots);
        for (namespace, used) in used {
            (0..*used).for_each(|_| namespaces.take(&Arc::from(*namespace)));
        }
        namespaces
    }

    #[test]
    fn a_namespace_leaves_a_quarter_to_the_others_where_there_are_others() {
        for (slots, most) in [(1, 1), (2, 1), (3, 2), (4, 3), (16, 12), (64, 48)] {
            let mut namespaces = with(slots, &[("a", most)]);
            assert!(!namespaces.may_take("a") && namespaces.may_take("b"), "{slots}");
            namespaces.learn(false);
            assert!(namespaces.may_take("a") == (most < slots), "{slots}");
        }
    }

    #[test]
    fn no_cluster_is_claimed_of_a_namespace_with_its_share_and_never_more_than_three_quarters_are_of_one() {
        let claimable = |used: &[(&str, usize)]| {
            let Claimable { without, most } = with(16, used).claimable();
            (without.join(" "), most)
        };
        assert_eq!(claimable(&[]), (String::new(), 12));
        assert_eq!(claimable(&[("a", 5), ("b", 2)]), (String::new(), 7));
        assert_eq!(claimable(&[("a", 6), ("b", 2)]), ("a".to_owned(), 10));
        assert_eq!(claimable(&[("a", 6), ("b", 6)]), ("a b".to_owned(), 12), "a third one finds slots");
        assert_eq!(claimable(&[("a", 12)]), ("a".to_owned(), 12));
        let mut alone = with(16, &[("a", 12)]);
        alone.learn(false);
        assert_eq!((alone.claimable().without.len(), alone.claimable().most), (0, 4));
        alone.take(&Arc::from("a"));
        assert_eq!(alone.claimable().most, 3);
    }

    #[tokio::test]
    async fn whoever_waits_to_claim_hears_when_a_namespace_with_its_share_has_less() {
        use futures::FutureExt;
        let slots = ClaimSlots::new(4);
        let mut held: Vec<_> = (0..3).map(|_| slots.try_take("a").expect("a free slot")).collect();
        assert!(slots.try_take("a").is_none(), "one is for others");
        for _ in 0..2 {
            held.pop();
            assert!(slots.has_less().now_or_never().is_some());
        }
        drop(held);
        assert!(slots.has_less().now_or_never().is_none(), "it had less before");
        assert_eq!(slots.free(), 4);
    }
}

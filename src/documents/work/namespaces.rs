//! Slots that no namespace has alone: however slow the clusters of one are, those of the others have their turn.
//!
//! Where n namespaces hold slots, the share of each is one of n + 1 equal parts. The second and the third namespace find free slots; a
//! further one gets slots as clusters of those above their new share end. One that is alone has half of them: there are twice as many as
//! it is to have. Of a namespace that has its share, no further cluster is claimed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// Before a cluster that has answered a probe looks again whether its namespace may have one more slot.
const AGAIN: Duration = Duration::from_millis(200);

/// How many slots each namespace holds.
#[derive(Default)]
pub struct Namespaces(BTreeMap<Arc<str>, usize>);

/// Slots for clusters that were claimed. Clones are the same.
#[derive(Clone)]
pub struct ClaimSlots(Arc<Claimed>);

/// The lock is held for one decision, by tasks of one runtime.
struct Claimed {
    slots: usize,
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
    pub fn used(&self, namespace: &str) -> usize {
        self.0.get(namespace).copied().unwrap_or_default()
    }

    pub fn take(&mut self, namespace: &Arc<str>) {
        *self.0.entry(Arc::clone(namespace)).or_default() += 1;
    }

    pub fn give_back(&mut self, namespace: &str) {
        if let Some(used) = self.0.get_mut(namespace) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                self.0.remove(namespace);
            }
        }
    }

    /// The share of each namespace of so many slots.
    fn share(&self, slots: usize) -> usize {
        slots.div_ceil(self.0.len().max(1) + 1)
    }

    fn has_share(&self, namespace: &str, slots: usize) -> bool {
        self.used(namespace) >= self.share(slots)
    }

    fn claimable(&self, slots: usize) -> Claimable {
        let share = self.share(slots);
        let (with_share, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|(_, used)| **used >= share);
        let largest = others.into_iter().map(|(_, used)| *used).max().unwrap_or_default();
        Claimable {
            without: with_share.into_iter().map(|(namespace, _)| namespace.to_string()).collect(),
            // They may be of one more namespace.
            most: share.saturating_sub(largest).min(slots.div_ceil(self.0.len() + 2)).max(1),
        }
    }
}

impl ClaimSlots {
    /// So many for a namespace that is alone, and as many for others.
    pub fn new(of_one: usize) -> Self {
        let slots = of_one.saturating_mul(2).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Claimed {
            slots,
            free: Arc::new(Semaphore::new(slots)),
            namespaces: Mutex::default(),
            has_less: Notify::new(),
        }))
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.0.free.available_permits()
    }

    /// A slot for a cluster that was claimed before, if one is free and its namespace may have one more.
    pub fn try_take(&self, namespace: &str) -> Option<ClaimSlot> {
        if self.0.namespaces.lock().has_share(namespace, self.0.slots) {
            return None;
        }
        let permit = Arc::clone(&self.0.free).try_acquire_owned().ok()?;
        Some(self.given(permit, namespace))
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
        self.0.namespaces.lock().claimable(self.0.slots)
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
        let had_share = namespaces.has_share(&self.namespace, self.of.0.slots);
        namespaces.give_back(&self.namespace);
        if had_share {
            self.of.0.has_less.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_namespace_that_is_alone_has_half_and_each_further_one_finds_free_slots() {
        for (of_one, shares) in [(1, [1, 1, 0]), (2, [2, 2, 0]), (8, [8, 6, 2]), (64, [64, 43, 21])] {
            let slots = ClaimSlots::new(of_one);
            let mut held = Vec::new();
            for (namespace, share) in ["a", "b", "c"].into_iter().zip(shares) {
                let before = held.len();
                held.extend(std::iter::from_fn(|| slots.try_take(namespace)));
                assert_eq!(held.len() - before, share, "{namespace} of {of_one}");
            }
            drop(held);
            assert_eq!(slots.free(), 2 * of_one);
        }
    }

    #[test]
    fn no_cluster_is_claimed_of_a_namespace_with_its_share_and_no_claim_gives_one_more_than_that() {
        let claimable = |used: &[(&str, usize)]| {
            let mut namespaces = Namespaces::default();
            for (namespace, used) in used {
                (0..*used).for_each(|_| namespaces.take(&Arc::from(*namespace)));
            }
            let Claimable { without, most } = namespaces.claimable(16);
            (without.join(" "), most)
        };
        assert_eq!(claimable(&[]), (String::new(), 8));
        assert_eq!(claimable(&[("a", 3)]), (String::new(), 5));
        assert_eq!(claimable(&[("a", 8)]), ("a".to_owned(), 6));
        assert_eq!(claimable(&[("a", 5), ("b", 2)]), (String::new(), 1));
        assert_eq!(claimable(&[("a", 8), ("b", 2)]), ("a".to_owned(), 4));
        assert_eq!(claimable(&[("a", 6), ("b", 6)]), ("a b".to_owned(), 4), "a third one finds slots");
    }

    #[test]
    fn whoever_waits_to_claim_hears_when_a_namespace_with_its_share_has_less() {
        let slots = ClaimSlots::new(3);
        let mut held: Vec<_> = (0..3).map(|_| slots.try_take("a").expect("a free slot")).collect();
        assert!(slots.try_take("a").is_none(), "the others are not for it");
        held.pop();
        assert!(slots.has_less().now_or_never().is_some());
        drop(held);
        assert!(slots.has_less().now_or_never().is_none(), "it had less before");
        assert_eq!(slots.free(), 6);
    }
}

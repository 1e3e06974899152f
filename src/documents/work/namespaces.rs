//! Slots that no namespace has alone: however slow the clusters of one are, those of the others get some.
//!
//! Where n namespaces hold slots, the limit of each is one of n + 1 equal parts. The second and the third namespace find free slots; a
//! further one gets slots as clusters of those above their new limit end. One that is alone has half of them: there are twice as many as
//! it is to have. Of a namespace that has as many, no further cluster is claimed.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

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
    /// A namespace that had as many slots as it may may have one more.
    has_less: Notify,
}

/// A slot for a cluster, until it is dropped.
pub struct ClaimSlot {
    _permit: OwnedSemaphorePermit,
    namespace: Arc<str>,
    of: ClaimSlots,
}

/// How many further clusters may be claimed of each namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Of those that hold slots.
    pub of: BTreeMap<Arc<str>, usize>,
    /// Of each of the others.
    pub of_others: usize,
}

impl ClaimLimits {
    /// As many of each as there are.
    pub const NONE: Self = Self { of: BTreeMap::new(), of_others: usize::MAX };

    /// The namespaces of which no further cluster may be claimed.
    pub fn without(&self) -> Vec<&str> {
        self.of.iter().filter(|(_, most)| **most == 0).map(|(namespace, _)| &**namespace).collect()
    }
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

    /// How many of so many slots each namespace may have.
    fn limit(&self, slots: usize) -> usize {
        slots.div_ceil(self.0.len().max(1) + 1)
    }

    fn is_at_limit(&self, namespace: &str, slots: usize) -> bool {
        self.used(namespace) >= self.limit(slots)
    }

    fn limits(&self, slots: usize) -> ClaimLimits {
        let limit = self.limit(slots);
        ClaimLimits {
            of: self.0.iter().map(|(namespace, used)| (Arc::clone(namespace), limit.saturating_sub(*used))).collect(),
            of_others: slots.div_ceil(self.0.len() + 2),
        }
    }

    fn some_are_at_limit(&self, slots: usize) -> bool {
        let limit = self.limit(slots);
        self.0.values().any(|used| *used >= limit)
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
        if self.0.namespaces.lock().is_at_limit(namespace, self.0.slots) {
            return None;
        }
        let permit = Arc::clone(&self.0.free).try_acquire_owned().ok()?;
        Some(self.given(permit, namespace))
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

    /// At most so many slots are taken by one claim: it may be of several namespaces that have none yet, and there is to be something left
    /// for others.
    pub(super) fn most_at_once(&self) -> usize {
        self.0.slots.div_ceil(2)
    }

    pub(super) fn limits(&self) -> ClaimLimits {
        self.0.namespaces.lock().limits(self.0.slots)
    }

    /// Waits until a slot was given back while a namespace was at its limit, since the last call: it may have one more now.
    ///
    /// Cancel safe.
    pub(super) async fn has_less(&self) {
        self.0.has_less.notified().await;
    }
}

impl Drop for ClaimSlot {
    fn drop(&mut self) {
        let mut namespaces = self.of.0.namespaces.lock();
        let was_at_limit = namespaces.some_are_at_limit(self.of.0.slots);
        namespaces.give_back(&self.namespace);
        if was_at_limit {
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
        for (of_one, limits) in [(1, [1, 1, 0]), (2, [2, 2, 0]), (8, [8, 6, 2]), (64, [64, 43, 21])] {
            let slots = ClaimSlots::new(of_one);
            let mut held = Vec::new();
            for (namespace, limit) in ["a", "b", "c"].into_iter().zip(limits) {
                let before = held.len();
                held.extend(std::iter::from_fn(|| slots.try_take(namespace)));
                assert_eq!(held.len() - before, limit, "{namespace} of {of_one}");
            }
            drop(held);
            assert_eq!(slots.free(), 2 * of_one);
        }
    }

    #[test]
    fn of_each_namespace_as_many_are_claimed_as_it_has_less_than_its_limit() {
        let limits = |used: &[(&str, usize)]| {
            let mut namespaces = Namespaces::default();
            for (namespace, used) in used {
                (0..*used).for_each(|_| namespaces.take(&Arc::from(*namespace)));
            }
            let limits = namespaces.limits(16);
            (limits.of.values().copied().collect::<Vec<_>>(), limits.of_others, limits.without().join(" "))
        };
        assert_eq!(limits(&[]), (vec![], 8, String::new()));
        assert_eq!(limits(&[("a", 3)]), (vec![5], 6, String::new()));
        assert_eq!(limits(&[("a", 8)]), (vec![0], 6, "a".to_owned()));
        assert_eq!(limits(&[("a", 5), ("b", 2)]), (vec![1, 4], 4, String::new()), "b does not wait for a");
        assert_eq!(limits(&[("a", 8), ("b", 2)]), (vec![0, 4], 4, "a".to_owned()));
        assert_eq!(limits(&[("a", 6), ("b", 6)]), (vec![0, 0], 4, "a b".to_owned()), "a third one finds slots");
    }

    #[test]
    fn whoever_waits_to_claim_hears_when_a_namespace_at_its_limit_may_have_more() {
        let slots = ClaimSlots::new(3);
        let mut held: Vec<_> = (0..3).map(|_| slots.try_take("a").expect("a free slot")).collect();
        assert!(slots.try_take("a").is_none(), "the others are not for it");
        held.pop();
        assert!(slots.has_less().now_or_never().is_some());
        held.pop();
        assert!(slots.has_less().now_or_never().is_none(), "it had less before");
        let other = slots.try_take("b").expect("a free slot");
        held.push(slots.try_take("a").expect("each may have two"));
        assert!(slots.try_take("a").is_none());
        drop(other);
        assert!(slots.has_less().now_or_never().is_some(), "it is alone again");
        assert!(slots.try_take("a").is_some());
        drop(held);
        assert_eq!(slots.free(), 6);
    }
}

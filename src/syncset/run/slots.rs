//! What a process does at once: so many clusters are connected to, so many worked on, and so many silent ones asked whether
//! they answer again. A silent one that finds no slot for that comes back by appointment.
//!
//! A pass takes a slot to connect, and a slot to work with the first answer of its cluster: so a cluster that does not answer holds
//! up no other. Of four slots to work three go to urgent work, if there is any, and the fourth to any, so that neither starves. A namespace
//! works on `max_in_flight` clusters at most; there are a quarter more slots for others, and the next one goes to the namespace that has
//! fewest. All other slots are divided, too ([`ClaimSlots`]), and silent clusters of several namespaces come back in turns.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::documents::{ClaimOrder, ClaimSlot, ClaimSlots, Namespaces, Work};

/// For so many slots to work of one namespace, there is one more for others.
const FOR_OTHERS: usize = 4;
/// Slots to connect, for each slot to work.
const CONNECTING: usize = 4;
/// Slots to ask a silent cluster, for each slot to work: while one does not answer, nothing is done but to wait for 5 s. So more of them become free each
/// second than clusters are asked.
const PROBING: usize = 8;
/// So many silent clusters are asked each second, for each slot to work, also if they refuse at once: each costs a claim, a snapshot and a
/// write. Of as many as that in [`LONGEST_WAIT`], each one that is back is found out within a minute.
const EACH_SECOND: u32 = 1;
/// A silent cluster is put off for at most this long.
const LONGEST_WAIT: Duration = Duration::from_secs(50);
/// A silent cluster is put off for at least this long: workers look at the work queue once a second.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// The slots of a process. Clones are the same.
#[derive(Clone)]
pub struct Slots {
    connecting: ClaimSlots,
    probing: ClaimSlots,
    /// For silent clusters for which somebody has requested a pass.
    demanded: ClaimSlots,
    /// The lock is held for one decision, by tasks of one runtime.
    appointments: Arc<Mutex<Appointments>>,
    slow: ClaimSlots,
    working: Arc<Working>,
}

/// When silent clusters are to come back: those that were asked in vain, and those that have found no slot. Nobody keeps a slot for a cluster: one
/// that comes back and finds none gets another appointment. Where n namespaces have some, those of each are n times as far apart: nobody waits behind
/// the clusters of others.
#[derive(Debug)]
struct Appointments {
    /// How far apart they are of a namespace that is alone.
    apart: Duration,
    /// The last one of each namespace that has some.
    last: BTreeMap<Arc<str>, Instant>,
}

/// A slot to work on a cluster, until it is dropped. None while it is passed on.
pub struct WorkSlot {
    of: Option<Arc<Working>>,
    namespace: Arc<str>,
}

/// The slots to work. The lock is held for one decision, by tasks of one runtime.
struct Working(Mutex<Queue>);

/// Who waits for a slot, by number in the order of arrival. While one is free, only those wait whose namespace may have no more.
struct Queue {
    /// Most of one namespace.
    most: usize,
    free: usize,
    namespaces: Namespaces,
    order: ClaimOrder,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    is_urgent: bool,
    namespace: Arc<str>,
    sender: oneshot::Sender<WorkSlot>,
}

impl Slots {
    /// Slots to work on this many clusters of one namespace at once.
    pub fn new(max_in_flight: NonZeroUsize) -> Self {
        let most = max_in_flight.get();
        let queue = Queue {
            most,
            free: most.saturating_add(most.div_ceil(FOR_OTHERS)),
            namespaces: Namespaces::default(),
            order: ClaimOrder::default(),
            next: 0,
            waiting: BTreeMap::new(),
        };
        Self {
            connecting: ClaimSlots::new(most.saturating_mul(CONNECTING)),
            probing: ClaimSlots::new(most.saturating_mul(PROBING)),
            demanded: ClaimSlots::new(most),
            appointments: Arc::new(Mutex::new(Appointments::new(most))),
            slow: ClaimSlots::new(most),
            working: Arc::new(Working(Mutex::new(queue))),
        }
    }

    /// The slots to connect, of which a worker takes one for each cluster that it claims.
    pub fn connecting(&self) -> ClaimSlots {
        self.connecting.clone()
    }

    /// A slot to ask a silent cluster whether it answers. If none is free, after how long one is expected to be. There are further slots
    /// for what somebody has asked for.
    pub fn probe(&self, namespace: &str, is_demanded: bool) -> Result<ClaimSlot, Duration> {
        let own = is_demanded.then(|| self.demanded.try_take(namespace)).flatten();
        own.or_else(|| self.probing.try_take(namespace)).ok_or_else(|| self.next_probe(namespace))
    }

    /// After how long a cluster that was asked in vain may be asked again, so that each of those that are silent is asked.
    pub fn next_probe(&self, namespace: &str) -> Duration {
        self.appointments.lock().next(namespace, Instant::now(), rand::random())
    }

    /// A slot to connect to a cluster that has answered a probe, if its namespace may have one. Else it keeps the one to probe.
    pub fn connect(&self, work: &Work) -> Option<ClaimSlot> {
        self.connecting.try_take(work.namespace())
    }

    /// A slot for a cluster that is worked on and takes long to answer, if its namespace may have one.
    pub fn slow(&self, work: &Work) -> Option<ClaimSlot> {
        self.slow.try_take(work.namespace())
    }

    /// A slot to work on a cluster that has answered.
    ///
    /// Cancel safe; whoever asks again is the last in the queue.
    pub async fn work(&self, work: &Work) -> WorkSlot {
        self.work_on(work.urgent, work.namespace()).await
    }

    async fn work_on(&self, is_urgent: bool, namespace: &str) -> WorkSlot {
        let waiting = {
            let (mut queue, namespace) = (self.working.0.lock(), Arc::<str>::from(namespace));
            if queue.free > 0 && queue.may_take(&namespace) {
                queue.take(&namespace);
                return WorkSlot { of: Some(Arc::clone(&self.working)), namespace };
            }
            let (sender, receiver) = oneshot::channel();
            let number = queue.next;
            queue.next += 1;
            queue.waiting.insert(number, Waiting { is_urgent, namespace, sender });
            receiver
        };
        match waiting.await {
            Ok(slot) => slot,
            // The queue is kept by `self`.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Appointments {
    /// For so many slots to work.
    fn new(working: usize) -> Self {
        let each_second = u32::try_from(working.max(1)).unwrap_or(u32::MAX).saturating_mul(EACH_SECOND);
        Self { apart: Duration::from_secs(1) / each_second, last: BTreeMap::new() }
    }

    /// After how long one more of a namespace is to come back. `random`, from 0 up to 1, spreads those that would have to wait for too long.
    fn next(&mut self, namespace: &str, now: Instant, random: f64) -> Duration {
        self.last.retain(|_, last| *last > now);
        let last = self.last.get(namespace).copied();
        let namespaces = self.last.len() + usize::from(last.is_none());
        let at = last.unwrap_or(now) + self.apart.saturating_mul(u32::try_from(namespaces).unwrap_or(u32::MAX));
        let wait = at - now;
        if wait > LONGEST_WAIT {
            return LONGEST_WAIT.mul_f64(0.5 + random / 2.0);
        }
        self.last.insert(Arc::from(namespace), at);
        wait.max(SHORTEST_WAIT)
    }
}

impl Queue {
    fn take(&mut self, namespace: &Arc<str>) {
        self.free -= 1;
        self.namespaces.take(namespace);
        self.order.taken(1);
    }

    fn give_back(&mut self, namespace: &str) {
        self.free += 1;
        self.namespaces.give_back(namespace);
    }

    /// Whether a namespace may have one more slot, if one is free.
    fn may_take(&self, namespace: &str) -> bool {
        self.namespaces.used(namespace) < self.most
    }

    /// Takes a slot for the next in the queue: of those whose namespace has fewest slots, the one that has waited longest. Where urgent work
    /// comes first, others only come if there is none.
    fn next(&mut self) -> Option<Waiting> {
        if self.free == 0 {
            return None;
        }
        let prefers_urgent = self.order.prefers_urgent();
        let may_take = self.waiting.iter().filter(|(_, waiting)| self.may_take(&waiting.namespace));
        let rank = |(number, waiting): &(&u64, &Waiting)| {
            (prefers_urgent && !waiting.is_urgent, self.namespaces.used(&waiting.namespace), **number)
        };
        let (_, _, number) = may_take.map(|one| rank(&one)).min()?;
        let next = self.waiting.remove(&number)?;
        self.take(&next.namespace);
        Some(next)
    }
}

impl Working {
    /// Gives free slots to those that wait for them.
    fn hand_out(self: &Arc<Self>) {
        loop {
            let Some(Waiting { namespace, sender, .. }) = self.0.lock().next() else { return };
            // A waiter that has given up is skipped.
            if let Err(mut unused) = sender.send(WorkSlot { of: Some(Arc::clone(self)), namespace }) {
                unused.of = None;
                self.0.lock().give_back(&unused.namespace);
            }
        }
    }
}

impl Drop for WorkSlot {
    fn drop(&mut self) {
        let Some(working) = self.of.take() else { return };
        working.0.lock().give_back(&self.namespace);
        working.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::task::JoinHandle;

    use super::*;

    fn slots(most: usize) -> Slots {
        Slots::new(NonZeroUsize::new(most).expect("not zero"))
    }

    /// Waits for a slot in a task, which has begun to wait when this returns.
    async fn waiting(slots: &Slots, is_urgent: bool) -> JoinHandle<WorkSlot> {
        let before = slots.working.0.lock().next;
        let task = tokio::spawn({
            let slots = slots.clone();
            async move { slots.work_on(is_urgent, "alone").await }
        });
        while slots.working.0.lock().next == before {
            tokio::task::yield_now().await;
        }
        task
    }

    #[tokio::test]
    async fn as_many_work_at_once_as_there_are_slots() {
        let slots = slots(2);
        let (one, two) = (slots.work_on(false, "alone").await, slots.work_on(true, "alone").await);
        let third = waiting(&slots, true).await;
        assert!(!third.is_finished());
        drop(one);
        let third = third.await.expect("a slot");
        assert_eq!(slots.working.0.lock().free, 1, "for others");
        drop((two, third));
        assert_eq!(slots.working.0.lock().free, 3);
    }

    #[tokio::test]
    async fn three_of_four_slots_are_for_urgent_work_and_the_fourth_for_what_waits_longest() {
        let slots = slots(1);
        let mut held = slots.work_on(true, "alone").await;
        let mut other = Vec::new();
        for _ in 0..3 {
            other.push(waiting(&slots, false).await);
        }
        let mut urgent = Vec::new();
        for _ in 0..9 {
            urgent.push(waiting(&slots, true).await);
        }
        let mut order = Vec::new();
        for _ in 0..12 {
            drop(held);
            let (slot, lane) = tokio::select! {
                slot = async { other.first_mut().expect("guarded").await }, if !other.is_empty() => (slot, 'o'),
                slot = async { urgent.first_mut().expect("guarded").await }, if !urgent.is_empty() => (slot, 'u'),
            };
            if lane == 'o' {
                other.remove(0)
            } else {
                urgent.remove(0)
            };
            held = slot.expect("a slot");
            order.push(lane);
        }
        assert_eq!(order.into_iter().collect::<String>(), "uuouuuouuuou");
    }

    /// A tenant's clusters, however many and slow, keep nobody else's change waiting.
    #[tokio::test]
    async fn there_is_one_slot_more_than_a_namespace_may_have_and_the_next_one_goes_to_whoever_has_fewest() {
        let slots = slots(4);
        let ask = |namespace: &'static str| Box::pin(slots.work_on(true, namespace));
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            let mut asks = ask("slow");
            match asks.as_mut().now_or_never() {
                Some(slot) => held.push(slot),
                None => waiting.push(asks),
            }
        }
        assert_eq!(held.len(), 4, "as many as it may have");
        let first = ask("other").now_or_never().expect("a slot at once");
        let mut second = ask("other");
        assert!(second.as_mut().now_or_never().is_none());
        held.pop();
        let second = second.now_or_never().expect("the next slot, after eight that have waited longer");
        assert!(waiting.iter_mut().all(|asks| asks.as_mut().now_or_never().is_none()));
        drop((first, second));
        let granted = waiting.iter_mut().filter_map(|asks| asks.as_mut().now_or_never()).collect::<Vec<_>>();
        assert_eq!(granted.len(), 1, "four, and the fifth is free");
        assert_eq!(slots.working.0.lock().free, 1);
    }

    #[tokio::test]
    async fn whoever_gives_up_waiting_costs_no_slot() {
        let slots = slots(1);
        let held = slots.work_on(false, "alone").await;
        let (gone, also_gone) = (waiting(&slots, true).await, waiting(&slots, false).await);
        let stays = waiting(&slots, false).await;
        for task in [gone, also_gone] {
            task.abort();
            assert!(task.await.is_err_and(|error| error.is_cancelled()));
        }
        drop(held);
        let stays = stays.await.expect("a slot");
        assert_eq!(slots.working.0.lock().free, 1, "for others");
        drop(stays);
        assert_eq!(slots.working.0.lock().free, 2);
    }

    #[tokio::test]
    async fn a_slot_that_was_granted_and_not_taken_is_given_back() {
        let slots = slots(1);
        let held = slots.work_on(false, "alone").await;
        let mut late = Box::pin(slots.work_on(false, "alone"));
        assert!(late.as_mut().now_or_never().is_none(), "it waits");
        drop(held);
        assert_eq!(slots.working.0.lock().free, 1, "it was granted");
        drop(late);
        assert_eq!(slots.working.0.lock().free, 2);
    }

    #[test]
    fn of_one_namespace_four_times_as_many_connect_and_eight_times_as_many_silent_clusters_are_asked() {
        let free = |slots: &Slots| (slots.connecting().free(), slots.probing.free());
        assert_eq!(free(&slots(64)), (2 * 256, 2 * 512), "others find as many");
        let small = slots(1);
        let mut probing: Vec<_> = (0..8).map(|_| small.probe("silent", false)).collect();
        assert!(probing.iter().all(Result::is_ok) && small.probe("silent", false).is_err());
        assert!(small.probe("other", false).is_ok());
        probing.pop();
        assert!(small.probe("silent", false).is_ok());
    }

    #[test]
    fn what_somebody_has_asked_for_has_slots_of_its_own_when_silent_clusters_have_all_others() {
        let slots = slots(8);
        let probe = |is_demanded| slots.probe("silent", is_demanded);
        let usual: Vec<_> = (0..64).map(|_| probe(false)).collect();
        assert!(usual.iter().all(Result::is_ok) && probe(false).is_err());
        let demanded: Vec<_> = (0..8).map(|_| probe(true)).collect();
        assert!(demanded.iter().all(Result::is_ok));
        assert!(probe(true).is_err(), "all are taken");
        assert!(slots.probe("other", true).is_ok() && slots.probe("other", false).is_ok(), "but those of others");
        assert_eq!(slots.connecting().free(), 64, "those that answer are not held up");
        drop(usual);
        assert!(probe(true).is_ok());
    }

    /// However many clusters of a namespace are silent, one of another is asked as soon as if it were one of two.
    #[test]
    fn a_silent_cluster_does_not_wait_behind_the_thousands_of_another_namespace() {
        let (mut appointments, now) = (Appointments::new(64), Instant::now());
        for _ in 0..10_000 {
            appointments.next("silent", now, 0.5);
        }
        let last = appointments.last.get("silent").copied().expect("it has some");
        assert!(last - now > LONGEST_WAIT / 2);
        assert_eq!(appointments.next("other", now, 0.5), SHORTEST_WAIT);
        let later = last + Duration::from_secs(1);
        assert_eq!(appointments.next("third", later, 0.5), SHORTEST_WAIT);
        assert_eq!(appointments.last.len(), 1, "nothing is remembered of namespaces without any");
    }

    #[test]
    fn silent_clusters_come_back_one_after_the_other_and_too_many_are_spread() {
        let now = Instant::now();
        let after = |millis: u64| Duration::from_millis(millis);
        let mut appointments = Appointments { apart: after(1250), last: BTreeMap::new() };
        let first: Vec<_> = (0..3).map(|_| appointments.next("a", now, 0.0)).collect();
        assert_eq!(first, [after(1250), after(2500), after(3750)], "one after the other");
        assert_eq!(appointments.next("a", now + after(1000), 0.0), after(4000), "behind those that wait");
        assert_eq!(appointments.next("a", now + after(60_000), 0.0), after(1250), "nobody waits any more");
        let later = now + after(120_000);
        while appointments.next("a", later, 0.0) < LONGEST_WAIT {}
        let last = appointments.last.clone();
        assert_eq!(appointments.next("a", later, 0.0), LONGEST_WAIT / 2, "too many are spread");
        assert_eq!(appointments.next("a", later, 1.0), LONGEST_WAIT);
        assert_eq!(appointments.last, last);
    }

    /// Also if they swallow packets, the slots suffice for as many as are asked.
    #[test]
    fn of_thousands_of_silent_clusters_each_is_asked_within_a_minute_and_of_a_hundred_each_at_once() {
        let (mut appointments, now) = (Appointments::new(64), Instant::now());
        let waits: Vec<Duration> = (0..3000).map(|_| appointments.next("a", now, 0.5)).collect();
        assert!(waits[99] < Duration::from_secs(2), "{:?}", waits[99]);
        assert!(waits[2999] < LONGEST_WAIT, "{:?}", waits[2999]);
        let within = |seconds| waits.iter().filter(|wait| **wait < Duration::from_secs(seconds)).count();
        assert!(within(20) <= 20 * 64 + 64, "no more than 64 each second: {}", within(20));
        // Each of them holds one for 5 s.
        assert!(within(5) < 64 * PROBING, "{}", within(5));
    }
}

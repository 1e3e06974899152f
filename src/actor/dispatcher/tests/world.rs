//! A world of keys to reconcile, that sees what a dispatcher does to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::actor::mailbox::{KeyMailbox, key_mailbox};

/// What the tests see of one key.
#[derive(Default)]
pub(super) struct Probe {
    pub(super) requested: AtomicU64,
    /// The request that the last complete run has seen.
    pub(super) seen: AtomicU64,
    pub(super) running: AtomicUsize,
    pub(super) starts: AtomicUsize,
}

/// A world of keys. Runs take a permit of `gate` each, then end as `outcome` says.
pub(super) struct World {
    pub(super) probes: Vec<Probe>,
    pub(super) gate: Semaphore,
    pub(super) running: AtomicUsize,
    pub(super) most_running: AtomicUsize,
    pub(super) twice_at_once: AtomicBool,
    pub(super) outcome: Box<dyn Fn(usize, usize) -> Outcome + Send + Sync>,
    pub(super) events: Mutex<HashMap<&'static str, usize>>,
}

pub(super) const OPEN: usize = Semaphore::MAX_PERMITS / 2;

impl World {
    pub(super) fn new(
        keys: usize,
        gate: usize,
        outcome: impl Fn(usize, usize) -> Outcome + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            probes: std::iter::repeat_with(Probe::default).take(keys).collect(),
            gate: Semaphore::new(gate),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            twice_at_once: AtomicBool::new(false),
            outcome: Box::new(outcome),
            events: Mutex::default(),
        })
    }

    pub(super) fn starts(&self) -> Vec<usize> {
        self.probes.iter().map(|probe| probe.starts.load(SeqCst)).collect()
    }

    pub(super) fn count(&self, event: &'static str) -> usize {
        self.events.lock().get(event).copied().unwrap_or(0)
    }

    fn note(&self, event: &'static str) {
        *self.events.lock().entry(event).or_default() += 1;
    }
}

/// Counts a run for as long as it lives, however it ends.
struct Running<'a>(&'a World, usize);

impl<'a> Running<'a> {
    fn enter(world: &'a World, key: usize) -> Self {
        if world.probes[key].running.fetch_add(1, SeqCst) > 0 {
            world.twice_at_once.store(true, SeqCst);
        }
        let running = world.running.fetch_add(1, SeqCst) + 1;
        world.most_running.fetch_max(running, SeqCst);
        Self(world, key)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
        self.0.probes[self.1].running.fetch_sub(1, SeqCst);
    }
}

impl Reconcile<usize> for World {
    async fn reconcile(&self, key: &usize) -> Outcome {
        let probe = &self.probes[*key];
        let _running = Running::enter(self, *key);
        let run = probe.starts.fetch_add(1, SeqCst);
        let requested = probe.requested.load(SeqCst);
        self.gate.acquire().await.expect("the gate is never closed").forget();
        let outcome = (self.outcome)(*key, run);
        probe.seen.fetch_max(requested, SeqCst);
        outcome
    }
}

impl Observe<usize> for Arc<World> {
    fn added(&self, _: &usize) {
        self.note("added");
    }
    fn started(&self, _: &usize, _: Duration) {
        self.note("started");
    }
    fn finished(&self, _: &usize, _: Duration, _: &Outcome) {
        self.note("finished");
    }
    fn retried(&self, _: &usize, _: Duration) {
        self.note("retried");
    }
    fn panicked(&self, _: &usize, _: &str) {
        self.note("panicked");
    }
}

pub(super) const LIMITS: Limits =
    Limits { slots: 4, waiting: 100, backoff: Backoff { first: SECOND, cap: Duration::from_secs(8), jitter: 0.0 } };

pub(super) struct Rig {
    pub(super) world: Arc<World>,
    pub(super) mailbox: KeyMailbox<usize>,
    pub(super) dispatcher: Dispatcher<World, Arc<World>>,
    pub(super) drain: CancellationToken,
    pub(super) body: JoinHandle<Result<(), BoxError>>,
}

impl Rig {
    pub(super) fn start(world: Arc<World>, capacity: usize, limits: Limits) -> Self {
        let (mailbox, inbox) = key_mailbox(capacity);
        let (scope, drain) = Scope::standalone("dispatcher");
        let dispatcher = Dispatcher::new(Arc::clone(&world), Arc::new(Arc::clone(&world)), limits);
        let body = tokio::spawn(dispatcher.clone().run(scope, inbox));
        Self { world, mailbox, dispatcher, drain, body }
    }

    pub(super) async fn request(&self, key: usize) {
        self.world.probes[key].requested.fetch_add(1, SeqCst);
        self.mailbox.request(key).await.expect("the inbox is open");
    }
}

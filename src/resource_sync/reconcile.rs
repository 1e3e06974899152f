//! The reconciler of one pair: observe, plan, do, until the plan has nothing left to do.
//!
//! State it owns: which of its own writes the caches have not shown yet, which outcomes are unknown, how often it had to
//! rewrite what somebody else changed. Who sends to it: the dispatcher, one request at a time. What it sends: requests to
//! the two clusters, Events. Passivated when idle and made again on demand: all it knows is then found in the caches, or
//! costs at most a write that changes nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::events::PairEvent;
use super::execute::execute;
use super::guard::Verdict;
use super::plan::{self, Absence, Namespace, Next, Observed, Remote, Rest, Step, UPLOAD_SECRET};
use super::section::{Mode, Section};
use super::table::Failure;
use crate::actor::{Outcome, Reconciler, ReconcilerFactory};
use crate::cluster::{Error, ObjectKey, Retry, Store, Written};
use crate::telemetry::{Direction, ObjectState as PairState, SyncMetrics};

/// A cache that has not shown our write after this is asked about: a live GET.
const CATCH_UP: Duration = Duration::from_secs(5);
/// A namespace that is going is looked at again after this, should its watch not tell before.
const NAMESPACE_TERMINATES: Duration = Duration::from_secs(5);
/// No pair needs more steps than this in one go; one that does goes round in circles.
const MOST_STEPS: usize = 40;
/// After so many rewrites of what somebody else changed ...
const REWRITES: usize = 3;
/// ... within this ...
const REWRITES_WITHIN: Duration = Duration::from_mins(1);
/// ... the next one has to wait for this.
const REWRITE_PAUSE: Duration = Duration::from_secs(30);

/// Makes the reconcilers of one section.
pub struct PairReconcilers {
    section: Arc<Section>,
    metrics: Arc<SyncMetrics>,
}

impl PairReconcilers {
    /// The factory of a section.
    pub fn new(section: Arc<Section>, metrics: Arc<SyncMetrics>) -> Self {
        Self { section, metrics }
    }
}

impl ReconcilerFactory<ObjectKey> for PairReconcilers {
    type Reconciler = PairReconciler;

    fn create(&self, key: &ObjectKey) -> PairReconciler {
        PairReconciler {
            section: Arc::clone(&self.section),
            metrics: Arc::clone(&self.metrics),
            key: key.clone(),
            remote: Awaited::default(),
            local: Awaited::default(),
            namespace: Awaited::default(),
            secrets: Vec::new(),
            waiting_since: None,
            rewrites: VecDeque::new(),
        }
    }
}

/// What the cache of one object has yet to show.
#[derive(Debug, Default)]
struct Awaited {
    /// Our last write's version.
    written: Option<Arc<str>>,
    /// The incarnation that we deleted.
    deleted: Option<Arc<str>>,
    /// The outcome of our last write is unknown.
    unknown: bool,
}

impl Awaited {
    fn is_shown(&mut self, store: &Store, key: &ObjectKey) -> bool {
        if self.written.as_ref().is_some_and(|written| store.has_caught_up(key, written)) {
            self.written = None;
        }
        if let Some(uid) = &self.deleted
            && store.get(key).is_none_or(|held| held.deleting || held.uid != *uid)
        {
            self.deleted = None;
        }
        self.written.is_none() && self.deleted.is_none()
    }

    fn wrote(&mut self, written: &Written) {
        self.unknown = false;
        if !written.resource_version.is_empty() {
            self.written = Some(Arc::clone(&written.resource_version));
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The reconciler of one pair.
pub struct PairReconciler {
    section: Arc<Section>,
    metrics: Arc<SyncMetrics>,
    key: ObjectKey,
    remote: Awaited,
    local: Awaited,
    namespace: Awaited,
    /// Versions of local secrets that we wrote, by index of the name.
    secrets: Vec<(usize, ObjectKey, Arc<str>)>,
    waiting_since: Option<Instant>,
    rewrites: VecDeque<Instant>,
}

fn is_missing_secret(step: &str, error: &Error) -> bool {
    step == UPLOAD_SECRET && matches!(error, Error::NotFound { .. })
}

/// How one reconcile ended.
enum End {
    Rest(Rest),
    Held,
    /// Waits for news, or looks again after this.
    Later(PairState, Option<Duration>),
    Failed(&'static str, Error),
    /// Too many steps.
    Circles,
}

impl Reconciler for PairReconciler {
    async fn reconcile(&mut self) -> Outcome {
        let section = Arc::clone(&self.section);
        let Some(remote_key) = section.mapping().remote_of(&self.key) else { return Outcome::Done };
        // When the last cache has listed, every pair is asked for.
        if !section.is_listed() {
            return Outcome::Wait;
        }
        if !section.is_available() {
            section.park(self.key.clone());
            // The attendant may have looked just before this was parked.
            if !section.is_available() {
                return Outcome::Wait;
            }
        }
        if !self.has_caught_up(&section, &remote_key) {
            let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
            let left = CATCH_UP.saturating_sub(waiting_since.elapsed());
            if !left.is_zero() {
                return Outcome::RetryAfter(left);
            }
            // The watch is behind, or will never show it: look.
            self.remote.unknown |= self.remote.written.is_some();
            self.local.unknown |= self.local.written.is_some() || self.local.deleted.is_some();
            self.namespace.clear();
            self.secrets.clear();
        }
        self.waiting_since = None;

        let mut observed = section.observe(&self.key, &remote_key);
        if let Err(error) = self.resolve_unknown(&section, &mut observed).await {
            return self.finish(&section, &observed, End::Failed("read_after_unknown_outcome", error));
        }
        let (end, observed) = self.carry_out(&section, observed).await;
        self.finish(&section, &observed, end)
    }
}

impl PairReconciler {
    fn has_caught_up(&mut self, section: &Section, remote_key: &ObjectKey) -> bool {
        let watches = section.watches();
        let remote = self.remote.is_shown(watches.remote.store(), remote_key);
        let local = self.local.is_shown(watches.local.store(), &self.key);
        let namespace_key = ObjectKey::new("", Arc::clone(&self.key.namespace));
        let namespace = self.namespace.is_shown(watches.namespaces.store(), &namespace_key);
        self.secrets.retain(|(index, key, written)| {
            watches.secrets.get(*index).is_some_and(|watch| !watch.store().has_caught_up(key, written))
        });
        remote && local && namespace && self.secrets.is_empty()
    }

    /// A write whose outcome is unknown is followed by a live GET before the next decision about that object.
    async fn resolve_unknown(&mut self, section: &Section, observed: &mut Observed) -> Result<(), Error> {
        if self.remote.unknown
            && let Some(kind) = section.remote_kind()
        {
            let live = section.remote_cluster().get(&kind, &observed.remote_key).await?;
            self.remote.clear();
            observed.remote = match live {
                Some(live) => Remote::Present(Arc::new(live)),
                None => Remote::Absent(match &observed.remote {
                    Remote::Present(held) if held.deleting => Absence::SeenTerminating,
                    Remote::Present(_) => Absence::Unexplained,
                    Remote::Absent(absence) => absence.clone(),
                }),
            };
        }
        if self.local.unknown
            && let Some(kind) = section.local_kind()
        {
            let live = section.local_cluster().get(&kind, &self.key).await?;
            self.local.clear();
            observed.local = live.map(Arc::new);
        }
        Ok(())
    }

    async fn carry_out(&mut self, section: &Section, mut observed: Observed) -> (End, Observed) {
        let mut secret_failure = None;
        for _ in 0..MOST_STEPS {
            let next = match section.mode() {
                Mode::Syncing => plan::next(&observed, section.policy()),
                Mode::Detaching => plan::detach(&observed, section.policy(), false),
                Mode::DetachingLocalGone => plan::detach(&observed, section.policy(), true),
            };
            let step = match next {
                Next::Rest(rest) => {
                    let end = secret_failure.map_or(End::Rest(rest), |(step, error)| End::Failed(step, error));
                    return (end, observed);
                }
                Next::ConfirmAbsence => match self.confirm_absence(section, &mut observed).await {
                    Ok(None) => continue,
                    Ok(Some(end)) => return (end, observed),
                    Err(error) => return (End::Failed("confirm_absence", error), observed),
                },
                Next::Do(step) => step,
            };
            if section.config().dry_run && section.mode() == Mode::Syncing {
                section.table.lock().planned(step.name());
                tracing::info!(section = %section.name(), key = %self.key, step = step.name(), "dry run");
                return (End::Later(PairState::Pending, None), observed);
            }
            if let Some(end) = self.contention(section, &step, &observed) {
                return (end, observed);
            }
            match execute(section, &step, &observed).await {
                Ok(written) => {
                    self.note(section, &step, &written, &observed);
                    observed = observed.after(&step, &written, section.policy());
                }
                // One failing secret stops neither the others nor the spec.
                Err(error) if matches!(step, Step::UploadSecret(_) | Step::NoteSecretHash(_)) => {
                    if let Step::UploadSecret(name) | Step::NoteSecretHash(name) = &step
                        && let Some(secret) = observed.secrets.iter_mut().find(|secret| secret.name == *name)
                    {
                        secret.fail();
                    }
                    secret_failure = Some((step.name(), error));
                }
                Err(error) => {
                    self.note_failure(&step, &error);
                    return (End::Failed(step.name(), error), observed);
                }
            }
        }
        (End::Circles, observed)
    }

    /// Rule 3: a missing remote object is asked for, under the guard. `Ok(None)`: the plan can go on.
    async fn confirm_absence(&mut self, section: &Section, observed: &mut Observed) -> Result<Option<End>, Error> {
        let verdict = section.guard.lock().verdict(&self.key, section.objects(), Instant::now());
        match verdict {
            Verdict::Held => return Ok(Some(End::Held)),
            Verdict::Wait => return Ok(Some(End::Later(PairState::Pending, None))),
            Verdict::Go => {
                observed.remote = Remote::Absent(Absence::Confirmed);
                return Ok(None);
            }
            Verdict::Confirm => {}
        }
        let Some(kind) = section.remote_kind() else { return Ok(Some(End::Later(PairState::Pending, None))) };
        let Some(live) = section.remote_cluster().get(&kind, &observed.remote_key).await? else {
            section.guard.lock().confirm(&self.key);
            return Ok(None);
        };
        if section.guard.lock().clear(&self.key) {
            section.request_suspects().await;
        }
        let labels = live.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        if section.config().selector.matches(&labels) {
            // It lives and is selected: the cache is behind and will show it.
            return Ok(Some(End::Later(PairState::Pending, Some(CATCH_UP))));
        }
        observed.remote = Remote::Absent(Absence::LeftSelector(Arc::new(live)));
        Ok(None)
    }

    /// Somebody else keeps changing what is ours: after a few rewrites we slow down.
    fn contention(&mut self, section: &Section, step: &Step, observed: &Observed) -> Option<End> {
        let (Step::PatchLocal(change), Some(remote), Some(local)) = (step, observed.remote_object(), &observed.local)
        else {
            return None;
        };
        if change.content.is_none() || !observed.settled.is_rewrite(remote) {
            return None;
        }
        let now = Instant::now();
        while self.rewrites.front().is_some_and(|when| now.saturating_duration_since(*when) > REWRITES_WITHIN) {
            self.rewrites.pop_front();
        }
        if self.rewrites.len() >= REWRITES
            && let Some(last) = self.rewrites.back()
        {
            let left = (*last + REWRITE_PAUSE).saturating_duration_since(now);
            if !left.is_zero() {
                return Some(End::Later(PairState::Pending, Some(left)));
            }
        }
        self.rewrites.push_back(now);
        self.metrics.contended_field();
        if self.rewrites.len() >= REWRITES {
            let mut table = section.table.lock();
            let pair = table.pair(&self.key);
            if !std::mem::replace(&mut pair.told_contended, true) {
                drop(table);
                section.tell(PairEvent::contended(local));
            }
        }
        None
    }

    /// Notes what the caches have yet to show, and what a write may settle on.
    fn note(&mut self, section: &Section, step: &Step, written: &Written, observed: &Observed) {
        match step {
            Step::AddFinalizer | Step::NoteGenerations { .. } => self.remote.wrote(written),
            Step::RemoveFinalizer => {
                self.remote.wrote(written);
                section.guard.lock().clear(&self.key);
            }
            Step::WriteRemoteStatus => {
                self.remote.wrote(written);
                if let Some(local) = &observed.local {
                    let mut table = section.table.lock();
                    if let Some(lag) = table.status_written(&self.key, Instant::now()) {
                        self.metrics.written(Direction::Status, lag);
                    }
                    let settled = &mut table.pair(&self.key).settled;
                    settled.wrote_status(local, written);
                    let shown = section.watches().remote.store().get(&observed.remote_key);
                    settled.observe(shown.as_deref(), None, section.policy());
                }
            }
            Step::CreateLocal | Step::PatchLocal(_) => {
                self.local.wrote(written);
                if let Some(lag) = section.table.lock().spec_written(&self.key, Instant::now()) {
                    self.metrics.written(Direction::Spec, lag);
                }
                let wrote_content = !matches!(step, Step::PatchLocal(change) if change.content.is_none());
                if let (true, Some(remote)) = (wrote_content, observed.remote_object()) {
                    let mut table = section.table.lock();
                    let settled = &mut table.pair(&self.key).settled;
                    settled.wrote_content(remote, written);
                    let shown = section.watches().local.store().get(&self.key);
                    settled.observe(None, shown.as_deref(), section.policy());
                }
            }
            Step::ReleaseLocal(_) => self.local.wrote(written),
            Step::DeleteLocal => {
                self.local.wrote(written);
                self.local.deleted = observed.local.as_ref().map(|local| Arc::clone(&local.uid));
                self.went(section, observed);
            }
            Step::CreateNamespace | Step::ReleaseNamespace => self.namespace.wrote(written),
            Step::DeleteNamespace => {
                self.namespace.wrote(written);
                if let Namespace::Present { object, .. } = &observed.namespace {
                    self.namespace.deleted = Some(Arc::clone(&object.uid));
                }
                self.went(section, observed);
            }
            Step::UploadSecret(name) => {
                section.table.lock().pair(&self.key).uploads.insert(Arc::clone(name), Instant::now());
            }
            Step::NoteSecretHash(name) => {
                let index = section.config().secret_names.iter().position(|configured| **configured == **name);
                if let Some(index) = index {
                    let key = ObjectKey::new(Arc::clone(&self.key.namespace), Arc::clone(name));
                    self.secrets.push((index, key, Arc::clone(&written.resource_version)));
                }
            }
        }
    }

    /// The local side was deleted because its remote object is missing: it counts for the guard.
    fn went(&self, section: &Section, observed: &Observed) {
        if matches!(observed.remote, Remote::Absent(_)) {
            section.guard.lock().went(&self.key, Instant::now());
        }
    }

    fn note_failure(&mut self, step: &Step, error: &Error) {
        if !error.outcome_is_unknown() {
            return;
        }
        match step {
            Step::AddFinalizer | Step::RemoveFinalizer | Step::WriteRemoteStatus | Step::NoteGenerations { .. } => {
                self.remote.unknown = true;
            }
            Step::CreateLocal | Step::PatchLocal(_) | Step::ReleaseLocal(_) | Step::DeleteLocal => {
                self.local.unknown = true;
            }
            // A namespace or a secret that was written is written again to the same effect, or the conflict tells.
            Step::CreateNamespace
            | Step::DeleteNamespace
            | Step::ReleaseNamespace
            | Step::UploadSecret(_)
            | Step::NoteSecretHash(_) => {}
        }
    }

    fn finish(&mut self, section: &Section, observed: &Observed, end: End) -> Outcome {
        let now = Instant::now();
        let (state, outcome) = match end {
            End::Rest(rest) => return self.rested(section, observed, rest),
            End::Held => (PairState::Held, Outcome::Wait),
            End::Later(state, after) => (state, after.map_or(Outcome::Wait, Outcome::RetryAfter)),
            End::Circles => {
                let reason = "the two sides do not settle".to_owned();
                self.failed(
                    section,
                    observed,
                    Failure { key: self.key.clone(), step: "plan", kind: "circles", reason },
                    now,
                );
                (PairState::Failing, Outcome::Retry)
            }
            // Not a failure: the namespace goes first.
            End::Failed(_, Error::NamespaceTerminating { .. }) => {
                (PairState::Pending, Outcome::RetryAfter(NAMESPACE_TERMINATES))
            }
            End::Failed(step, error) => match error.retry() {
                // The cache catches up; that is no failure. A secret that the remote lacks is one: it is not made here.
                Retry::Reread if !is_missing_secret(step, &error) => (PairState::Pending, Outcome::Retry),
                Retry::WhenAvailable => {
                    section.park(self.key.clone());
                    (PairState::Pending, if section.is_available() { Outcome::Retry } else { Outcome::Wait })
                }
                retry => {
                    let failure =
                        Failure { key: self.key.clone(), step, kind: error.kind(), reason: error.to_string() };
                    self.failed(section, observed, failure, now);
                    let outcome = match retry {
                        Retry::WhenAllowed => {
                            section.park(self.key.clone());
                            Outcome::Wait
                        }
                        Retry::After(delay) => Outcome::RetryAfter(delay),
                        Retry::Backoff | Retry::Reread | Retry::WhenAvailable => Outcome::Retry,
                    };
                    (PairState::Failing, outcome)
                }
            },
        };
        section.table.lock().ended(&self.key, state);
        outcome
    }

    fn rested(&mut self, section: &Section, observed: &Observed, rest: Rest) -> Outcome {
        let mut table = section.table.lock();
        let before = table.pair(&self.key).state;
        let state = match rest {
            Rest::InStep => PairState::InStep,
            Rest::Paused => PairState::Paused,
            Rest::LocalTerminating | Rest::NamespaceTerminating => PairState::Deleting,
            Rest::Unclaimed | Rest::Gone => {
                table.forget(&self.key);
                drop(table);
                // The namespace that was made for it may have to go later, when others no longer live in it: that the
                // object went the regular way is known until then.
                let is_owner = matches!(&observed.namespace, Namespace::Present { object, ours: true }
                    if object.annotation(&section.policy().marks.owner) == Some(&*self.key.name));
                if !is_owner && (observed.remote_object().is_none() || section.mode() == Mode::Syncing) {
                    section.watches().remote.store().forget(&observed.remote_key);
                }
                section.guard.lock().clear(&self.key);
                return Outcome::Done;
            }
        };
        let told = table.pair(&self.key).told_failure.take();
        if rest == Rest::InStep {
            table.pair(&self.key).settled.in_step();
        }
        table.ended(&self.key, state);
        drop(table);
        if let Some(local) = &observed.local {
            match (state, told) {
                (PairState::InStep, Some(_)) => section.tell(PairEvent::synced(local)),
                (PairState::Paused, _) if before != PairState::Paused => section.tell(PairEvent::paused(local)),
                _ => {}
            }
        }
        Outcome::Done
    }

    fn failed(&self, section: &Section, observed: &Observed, failure: Failure, now: Instant) {
        let mut table = section.table.lock();
        let told = table.pair(&self.key).told_failure.replace((failure.step, failure.kind));
        let is_news = told != Some((failure.step, failure.kind));
        if is_news {
            tracing::warn!(
                section = %section.name(), remote = %section.config().remote, local = %section.config().local,
                key = %failure.key, step = failure.step, reason = failure.reason, "sync failed"
            );
            // Also of one that could not be made; but an Event needs a namespace to be in.
            if observed.local.is_some() || observed.namespace != Namespace::Missing {
                let local = observed.local.as_deref();
                section.tell(PairEvent::failed(&failure.key, local, failure.step, &failure.reason));
            }
        }
        table.failed(failure, now);
    }
}

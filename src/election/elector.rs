//! The elector of one section: acquires the section's Lease when it is this replica's turn, and makes the section run while
//! this replica holds it.
//!
//! State it owns: the term. The section's requests share the fence, the supervisor the gate. It has no mailbox: the view of the
//! Leases wakes it, and it follows the gate and its own renewals, which run in a task of their own and wait for nothing. What
//! it sends: writes of one Lease, and what the gate should do. Restarted, it knows of no term, and first ends what still runs
//! under the last one. It is drained after the section that it runs: it releases the Lease as soon as the section has
//! drained, by one write.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::leases::Leases;
use super::record::{self, Acquisition, SectionRecord};
use super::section_lease::SectionLease;
use super::view::{LeaseView, Next};
use crate::actor::{Backoff, BoxError, GateState, Scope, sleep_until};
use crate::cluster::Error;

/// Back-off after a failed attempt to acquire a section. As a rule, a change of the record comes earlier.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// After so many conflicts in a row over a Lease that the watch does not show, it is not another replica that comes first.
const UNSEEN: u32 = 3;
/// A failed renewal is tried again after this part of the interval.
const RENEW_RETRY_PART: u32 = 5;
/// How long the end of a term waits for a renewal that is under way, whose answer tells the version.
const LAST_RENEWAL: Duration = Duration::from_secs(1);
/// How often a release is attempted when the record turns out to have been renewed just before.
const RELEASES: usize = 3;

pub(super) struct Elector {
    pub(super) identity: Arc<str>,
    pub(super) lease_duration: Duration,
    pub(super) renew_interval: Duration,
    pub(super) leases: Arc<Leases>,
    pub(super) view: Arc<LeaseView>,
    pub(super) lease: Arc<SectionLease>,
}

/// When this process acquired its section, as the record says it: a record with such a time is our own, and may be acquired
/// again at once. First the last acquisition that succeeded, then those whose outcome is unknown.
#[derive(Default)]
struct OwnAcquisitions(Vec<Arc<str>>);

impl OwnAcquisitions {
    /// The number that is remembered.
    const MOST: usize = 8;

    fn tried(&mut self, acquired: &Arc<str>, failure: Option<&Error>) {
        match failure {
            None => self.0.clear(),
            Some(error) if !error.outcome_is_unknown() => return,
            Some(_) if self.0.len() == Self::MOST => drop(self.0.remove(1)),
            Some(_) => {}
        }
        self.0.push(Arc::clone(acquired));
    }
}

/// A term of this process.
struct Term {
    /// When it began, as the record says it.
    acquired: Arc<str>,
    /// The latest state of its renewals.
    renewals: watch::Receiver<Renewal>,
    /// Dropping it ends the renewals.
    stop_renewals: DropGuard,
}

/// The state of a term's renewals.
#[derive(Clone, Debug)]
enum Renewal {
    /// The record is in our name, in this version.
    Held(Arc<str>),
    /// The renewals have stopped; the record was in our name, in this version.
    Stopped(Arc<str>),
    /// Another replica has the Lease, or it is gone.
    Lost,
}

/// Why a term ends.
enum End {
    /// The claim has expired or another replica has the Lease. The record may still be in our name.
    Lost,
    Shutdown,
}

impl Elector {
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        self.stop_section().await;
        let mut own = OwnAcquisitions::default();
        loop {
            scope.set_state("waiting");
            let Some(term) = self.wait_for_turn(&scope, &mut own).await else { return Ok(()) };
            scope.set_state("holding");
            let section = &self.lease.section;
            tracing::info!(%section, identity = %self.identity, "acquired the section lease, section starts");
            self.lease.gate_handle.open();
            match self.hold(&scope, &term).await {
                End::Lost => {
                    tracing::warn!(%section, "lost the section lease, aborting the section");
                    drop(term);
                    self.stop_section().await;
                }
                End::Shutdown => {
                    self.end_term(term).await;
                    return Ok(());
                }
            }
            self.lease.term_ended();
        }
    }

    async fn stop_section(&self) {
        self.lease.fence.close();
        self.lease.gate_handle.abort();
        self.lease.gate_handle.closed().await;
    }

    /// Waits until this replica has acquired the section; `None` when the process ends.
    async fn wait_for_turn(&self, scope: &Scope, own: &mut OwnAcquisitions) -> Option<Term> {
        let mut wakes = self.view.waits(self.lease.section.as_str());
        let mut failures = 0;
        loop {
            if scope.is_draining() || self.lease.gate_handle.state() == GateState::Ended {
                return None;
            }
            wakes.mark_unchanged();
            let (next, record) = self.view.next(self.lease.section.as_str(), &own.0);
            let until = match next {
                Next::Wait(until) => until,
                Next::Acquire => match self.acquire(scope, record.as_ref(), own).await {
                    Ok(term) => return Some(term),
                    Err(error) => {
                        self.view.not_acquired(self.lease.section.as_str());
                        failures += 1;
                        if !matches!(error, Error::Conflict { .. }) {
                            self.tell(error.kind(), &error);
                        } else if record.is_none() && failures >= UNSEEN {
                            let (name, label) = (record::lease_name(&self.lease.section), record::LABEL);
                            let advice = "set it, or delete the Lease while no replica runs the section";
                            self.tell(&name, &format!("Lease {name} has not the label {label}: {advice}"));
                        }
                        Some(Instant::now() + RETRY.next_delay(failures))
                    }
                },
            };
            tokio::select! {
                () = scope.draining() => return None,
                _ = self.lease.gate_handle.reaches(|state| state == GateState::Ended) => return None,
                _ = wakes.changed() => failures = 0,
                () = sleep_until(until) => {}
            }
        }
    }

    /// What fails for one section as a rule fails for all of them: it is a warning once, and in each section's report.
    fn tell(&self, kind: &str, failure: &impl Display) {
        let section = &self.lease.section;
        self.lease.request_failed(failure);
        if self.leases.is_news(kind) {
            tracing::warn!(%section, error = %failure, "failed to acquire a section lease, retrying");
        } else {
            tracing::debug!(%section, error = %failure, "still failed to acquire a section lease, retrying");
        }
    }

    /// Acquires the Lease if it has not changed since it was seen.
    async fn acquire(
        &self,
        scope: &Scope,
        before: Option<&SectionRecord>,
        own: &mut OwnAcquisitions,
    ) -> Result<Term, Error> {
        let acquired: Arc<str> = record::now().into();
        let fence = &self.lease.fence;
        let (identity, duration) = (&*self.identity, self.lease_duration);
        let acquisition = Acquisition { identity, duration, acquired: &acquired, before };
        let sent = fence.now();
        let result = self.leases.acquire(&self.lease.section, &acquisition).await;
        own.tried(&acquired, result.as_ref().err());
        let version = result?;
        fence.open(sent + self.lease_duration);
        self.lease.term_began(&acquired);
        let (state, renewals) = watch::channel(Renewal::Held(Arc::clone(&version)));
        let stop = CancellationToken::new();
        let renewer = Renewer {
            leases: Arc::clone(&self.leases),
            lease: Arc::clone(&self.lease),
            identity: Arc::clone(&self.identity),
            acquired: Arc::clone(&acquired),
            lease_duration: self.lease_duration,
            renew_interval: self.renew_interval,
            version,
            state,
        };
        scope.spawn(renewer.run(stop.clone()));
        Ok(Term { acquired, renewals, stop_renewals: stop.drop_guard() })
    }

    /// Holds the section until the term has to end and, unless the Lease is lost, the section has drained.
    async fn hold(&self, scope: &Scope, term: &Term) -> End {
        let Ok(claim) = self.lease.fence.claim() else { return End::Lost };
        let mut renewals = term.renewals.clone();
        let lost = async {
            tokio::select! {
                biased;
                _ = claim.expired() => {}
                _ = renewals.wait_for(|renewal| matches!(renewal, Renewal::Lost)) => {}
            }
        };
        tokio::pin!(lost);
        tokio::select! {
            biased;
            () = &mut lost => return End::Lost,
            _ = self.lease.gate_handle.reaches(|state| state == GateState::Ended) => {}
            () = scope.draining() => {}
        }
        scope.set_state("releasing");
        self.lease.gate_handle.drain(Instant::now() + self.lease_duration);
        // This replica holds and renews the Lease until the section has drained.
        tokio::select! {
            biased;
            () = lost => End::Lost,
            _ = self.lease.gate_handle.closed() => End::Shutdown,
        }
    }

    /// Releases the Lease, when nothing of the section runs any more.
    async fn end_term(&self, term: Term) {
        self.lease.fence.close();
        let Term { acquired, mut renewals, stop_renewals } = term;
        drop(stop_renewals);
        let stopped = renewals.wait_for(|renewal| !matches!(renewal, Renewal::Held(_)));
        // A renewal that takes longer succeeds before the release or not at all: both name the version that they expect.
        drop(timeout(LAST_RENEWAL, stopped).await);
        let version = match &*renewals.borrow() {
            Renewal::Held(version) | Renewal::Stopped(version) => Some(Arc::clone(version)),
            Renewal::Lost => None,
        };
        let section = &self.lease.section;
        let released = match version {
            Some(version) => self.release(version, &acquired).await,
            None => Ok(false),
        };
        match released {
            Ok(true) => tracing::info!(%section, "released the section lease"),
            Ok(false) => tracing::warn!(%section, "section lease was not released: this replica no longer holds it"),
            Err(error) => {
                self.lease.request_failed(&error);
                tracing::warn!(%section, %error, "failed to release the section lease, it will expire");
            }
        }
    }

    /// Writes that no replica holds the section; `false` if the record is no longer of this term.
    async fn release(&self, mut version: Arc<str>, acquired: &Arc<str>) -> Result<bool, Error> {
        let section = &self.lease.section;
        let mut result = self.leases.release(section, &version).await;
        for _ in 1..RELEASES {
            match result {
                Err(Error::Conflict { .. }) => {}
                Err(Error::NotFound { .. }) => return Ok(false),
                result => return result.map(|()| true),
            }
            let Some(newer) = version_if_ours(&self.leases, &self.lease, &self.identity, acquired).await? else {
                return Ok(false);
            };
            version = newer;
            result = self.leases.release(section, &version).await;
        }
        result.map(|()| true)
    }
}

/// Reads the version of the record; `None` if it is no longer of this term.
async fn version_if_ours(
    leases: &Leases,
    lease: &SectionLease,
    identity: &Arc<str>,
    acquired: &Arc<str>,
) -> Result<Option<Arc<str>>, Error> {
    let record = leases.read(&lease.section).await?;
    let ours =
        record.filter(|record| record.holder.as_ref() == Some(identity) && record.acquired.as_ref() == Some(acquired));
    Ok(ours.map(|record| record.version))
}

/// The renewals of one term: a task of its own.
struct Renewer {
    leases: Arc<Leases>,
    lease: Arc<SectionLease>,
    identity: Arc<str>,
    acquired: Arc<str>,
    lease_duration: Duration,
    renew_interval: Duration,
    version: Arc<str>,
    state: watch::Sender<Renewal>,
}

impl Renewer {
    async fn run(mut self, stop: CancellationToken) {
        let mut due = Instant::now() + self.renew_interval;
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    self.state.send_replace(Renewal::Stopped(Arc::clone(&self.version)));
                    return;
                }
                () = tokio::time::sleep_until(due) => {}
            }
            let began = Instant::now();
            match self.renew().await {
                Ok(true) => due = began + self.renew_interval,
                Ok(false) => {
                    self.state.send_replace(Renewal::Lost);
                    return;
                }
                Err(error) => {
                    self.lease.request_failed(&error);
                    tracing::debug!(section = %self.lease.section, %error, "section lease was not renewed, retrying");
                    due = Instant::now() + self.renew_interval / RENEW_RETRY_PART;
                }
            }
        }
    }

    /// Renews once; `false` if this replica no longer holds the Lease.
    async fn renew(&mut self) -> Result<bool, Error> {
        let sent = self.lease.fence.now();
        let renewed = match self.leases.renew(&self.lease.section, &self.version).await {
            // Another replica wrote the record, or a person, or a renewal of ours whose answer was lost.
            Err(Error::Conflict { .. }) => {
                match version_if_ours(&self.leases, &self.lease, &self.identity, &self.acquired).await? {
                    Some(version) => self.leases.renew(&self.lease.section, &version).await,
                    None => return Ok(false),
                }
            }
            // Any replica may create a Lease that does not exist.
            Err(Error::NotFound { .. }) => return Ok(false),
            result => result,
        };
        self.version = renewed?;
        self.lease.fence.extend(sent + self.lease_duration);
        self.lease.renewed();
        self.state.send_replace(Renewal::Held(Arc::clone(&self.version)));
        Ok(true)
    }
}

#[cfg(test)]
mod tests;

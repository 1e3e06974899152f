//! The elector of one section: takes its Lease when it is this replica's turn, and makes the section run while it holds.
//!
//! State it owns: the term. The seat (fence and gate) is shared with the section's requests and the supervisor. Who sends
//! to it: nobody; it is woken by the roll, and follows the gate's standing and its own renewals, which run in a task of their own and
//! wait for nothing. What it sends: writes of one Lease, and what is wanted of the gate. Restarted, it knows of no term:
//! what ran under the last one ends first. Drained last of all that it lets run: it gives the Lease up as soon as the
//! section has drained, by one write.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::leases::Leases;
use super::plan::Next;
use super::record::{self, SeatRecord, Taking};
use super::roll::Roll;
use super::seat::Seat;
use crate::actor::{Backoff, BoxError, Scope, Standing};
use crate::cluster::Error;

/// After an attempt to take a section failed; the record's next change comes first, as a rule.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// A failed renewal is tried again after this part of the interval.
const RENEW_RETRY_PART: u32 = 5;
/// A renewal that is under way when the term is given up is waited for so long: what it came to tells the version.
const LAST_RENEWAL: Duration = Duration::from_secs(1);
/// As often the record may turn out to have been renewed just before it is given up.
const RELEASES: usize = 3;

/// What an elector works with.
pub(super) struct Elector {
    pub(super) identity: Arc<str>,
    pub(super) lease_duration: Duration,
    pub(super) renew_interval: Duration,
    pub(super) leases: Arc<Leases>,
    pub(super) roll: Arc<Roll>,
    pub(super) seat: Arc<Seat>,
}

/// When this process took its section, in the words of the record: a record that says so is our own, and may be taken
/// again at once. The last time for certain, and after it those of which no answer came.
#[derive(Default)]
struct Own(Vec<Arc<str>>);

impl Own {
    /// As many attempts without an answer are remembered.
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
    /// When it was taken, in the words of the record.
    acquired: Arc<str>,
    /// What the renewals tell.
    renewals: watch::Receiver<Renewal>,
    /// Ends the renewals.
    over: DropGuard,
}

/// How far the renewals of a term are.
#[derive(Clone, Debug)]
enum Renewal {
    /// The record is in our name, in this version.
    Held(Arc<str>),
    /// They have ended when it was in this version.
    Stopped(Arc<str>),
    /// Somebody else has the section.
    Lost,
}

/// Why a term ended.
enum End {
    /// The claim is gone; whether the record is still in our name is to be seen.
    Lost,
    /// This replica has fewer sections.
    GivenUp(Arc<str>),
    /// This process ends.
    Leaving,
}

impl Elector {
    /// The body of the actor.
    pub(super) async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        self.stop_section().await;
        let mut own = Own::default();
        loop {
            scope.set_state("waiting");
            let Some(term) = self.wait_for_turn(&scope, &mut own).await else { return Ok(()) };
            scope.set_state("holding");
            let section = &self.seat.section;
            tracing::info!(%section, identity = %self.identity, "section runs here");
            self.seat.keeper.open();
            match self.hold(&scope, &term).await {
                End::Lost => {
                    tracing::warn!(%section, "the claim was lost, the section is aborted");
                    drop(term);
                    self.stop_section().await;
                }
                End::GivenUp(heir) => {
                    own = Own::default();
                    self.give_up(term, Some(&heir)).await;
                }
                End::Leaving => {
                    let heir = self.roll.heir_after(section.as_str());
                    self.give_up(term, heir.as_deref()).await;
                    return Ok(());
                }
            }
            self.seat.ended();
        }
    }

    async fn stop_section(&self) {
        self.seat.fence.close();
        self.seat.keeper.abort();
        self.seat.keeper.closed().await;
    }

    /// Waits until the section is this replica's; `None` when the process ends.
    async fn wait_for_turn(&self, scope: &Scope, own: &mut Own) -> Option<Term> {
        let mut wakes = self.roll.wakes(self.seat.section.as_str());
        let mut failures = 0;
        loop {
            if scope.is_draining() || self.seat.keeper.standing() == Standing::Ended {
                return None;
            }
            wakes.mark_unchanged();
            let (next, record) = self.roll.next(self.seat.section.as_str(), &own.0);
            let look = match next {
                Next::Look(at) => at,
                Next::Take => match self.take(scope, record.as_ref(), own).await {
                    Ok(term) => return Some(term),
                    Err(error) => {
                        if !matches!(error, Error::Conflict { .. }) {
                            self.seat.failed(&error);
                            tracing::debug!(section = %self.seat.section, %error, "section was not taken");
                        }
                        failures += 1;
                        Some(Instant::now() + RETRY.next_delay(failures))
                    }
                },
            };
            tokio::select! {
                () = scope.draining() => return None,
                _ = self.seat.keeper.stands(|standing| standing == Standing::Ended) => return None,
                _ = wakes.changed() => failures = 0,
                () = sleep_until(look) => {}
            }
        }
    }

    /// Takes the section, if its record is as it was seen.
    async fn take(&self, scope: &Scope, before: Option<&SeatRecord>, own: &mut Own) -> Result<Term, Error> {
        let acquired: Arc<str> = record::now().into();
        let fence = &self.seat.fence;
        let taking = Taking { identity: &self.identity, duration: self.lease_duration, acquired: &acquired, before };
        let sent = fence.now();
        let taken = self.leases.take(&self.seat.section, &taking).await;
        own.tried(&acquired, taken.as_ref().err());
        let version = taken?;
        fence.open(sent + self.lease_duration);
        self.seat.took(&acquired);
        let (tell, renewals) = watch::channel(Renewal::Held(Arc::clone(&version)));
        let over = CancellationToken::new();
        let renewer = Renewer {
            leases: Arc::clone(&self.leases),
            seat: Arc::clone(&self.seat),
            identity: Arc::clone(&self.identity),
            acquired: Arc::clone(&acquired),
            lease_duration: self.lease_duration,
            renew_interval: self.renew_interval,
            version,
            tell,
        };
        scope.spawn(renewer.run(over.clone()));
        Ok(Term { acquired, renewals, over: over.drop_guard() })
    }

    /// Holds the section until the term ends.
    async fn hold(&self, scope: &Scope, term: &Term) -> End {
        let Ok(claim) = self.seat.fence.claim() else { return End::Lost };
        let mut renewals = term.renewals.clone();
        let mut wakes = self.roll.wakes(self.seat.section.as_str());
        let lost = async {
            tokio::select! {
                biased;
                _ = claim.expired() => {}
                _ = renewals.wait_for(|renewal| matches!(renewal, Renewal::Lost)) => {}
            }
        };
        tokio::pin!(lost);
        let end = loop {
            wakes.mark_unchanged();
            if let Some(offer) = self.roll.gives_up(self.seat.section.as_str()) {
                tracing::info!(section = %self.seat.section, to = %offer.heir, "section is given up, another replica has fewer");
                break End::GivenUp(offer.heir);
            }
            tokio::select! {
                biased;
                () = &mut lost => return End::Lost,
                _ = self.seat.keeper.stands(|standing| standing == Standing::Ended) => break End::Leaving,
                () = scope.draining() => break End::Leaving,
                _ = wakes.changed() => {}
            }
        };
        scope.set_state("giving up");
        self.seat.keeper.drain(Instant::now() + self.lease_duration);
        // It is held, and renewed, until the section has drained.
        tokio::select! {
            biased;
            () = lost => End::Lost,
            _ = self.seat.keeper.closed() => end,
        }
    }

    /// Gives the Lease up: nothing of the section runs any more.
    async fn give_up(&self, term: Term, heir: Option<&str>) {
        self.seat.fence.close();
        let Term { acquired, mut renewals, over } = term;
        drop(over);
        let stopped = renewals.wait_for(|renewal| !matches!(renewal, Renewal::Held(_)));
        // One that takes longer goes through before what follows, or not at all: both name the version they are based on.
        drop(timeout(LAST_RENEWAL, stopped).await);
        let version = match &*renewals.borrow() {
            Renewal::Held(version) | Renewal::Stopped(version) => Some(Arc::clone(version)),
            Renewal::Lost => None,
        };
        let section = &self.seat.section;
        let released = match version {
            Some(version) => self.release(version, &acquired, heir).await,
            None => Ok(false),
        };
        match released {
            Ok(true) => tracing::info!(%section, "section was given up"),
            Ok(false) => tracing::warn!(%section, "section was to be given up, and its Lease is somebody else's"),
            Err(error) => {
                self.seat.failed(&error);
                tracing::warn!(%section, %error, "section could not be given up, its Lease runs out");
            }
        }
    }

    /// Writes that nobody holds the section; `false` where the record is no longer of this term.
    async fn release(&self, mut version: Arc<str>, acquired: &Arc<str>, heir: Option<&str>) -> Result<bool, Error> {
        let section = &self.seat.section;
        let mut result = self.leases.release(section, &version, heir).await;
        for _ in 1..RELEASES {
            match result {
                Err(Error::Conflict { .. }) => {}
                Err(Error::NotFound { .. }) => return Ok(false),
                result => return result.map(|()| true),
            }
            let Some(newer) = still_ours(&self.leases, &self.seat, &self.identity, acquired).await? else {
                return Ok(false);
            };
            version = newer;
            result = self.leases.release(section, &version, heir).await;
        }
        result.map(|()| true)
    }
}

/// The version of the record, where it is still of this term.
async fn still_ours(
    leases: &Leases,
    seat: &Seat,
    identity: &Arc<str>,
    acquired: &Arc<str>,
) -> Result<Option<Arc<str>>, Error> {
    let record = leases.read(&seat.section).await?;
    let ours =
        record.filter(|record| record.holder.as_ref() == Some(identity) && record.acquired.as_ref() == Some(acquired));
    Ok(ours.map(|record| record.version))
}

/// The renewals of one term: a task of its own.
struct Renewer {
    leases: Arc<Leases>,
    seat: Arc<Seat>,
    identity: Arc<str>,
    acquired: Arc<str>,
    lease_duration: Duration,
    renew_interval: Duration,
    version: Arc<str>,
    tell: watch::Sender<Renewal>,
}

impl Renewer {
    async fn run(mut self, over: CancellationToken) {
        let mut due = Instant::now() + self.renew_interval;
        loop {
            tokio::select! {
                () = over.cancelled() => {
                    self.tell.send_replace(Renewal::Stopped(Arc::clone(&self.version)));
                    return;
                }
                () = tokio::time::sleep_until(due) => {}
            }
            let began = Instant::now();
            match self.renew().await {
                Ok(true) => due = began + self.renew_interval,
                Ok(false) => {
                    self.tell.send_replace(Renewal::Lost);
                    return;
                }
                Err(error) => {
                    self.seat.failed(&error);
                    tracing::debug!(section = %self.seat.section, %error, "claim was not renewed");
                    due = Instant::now() + self.renew_interval / RENEW_RETRY_PART;
                }
            }
        }
    }

    /// Renews once; `false` when somebody else has the section.
    async fn renew(&mut self) -> Result<bool, Error> {
        let sent = self.seat.fence.now();
        let renewed = match self.leases.renew(&self.seat.section, &self.version).await {
            // Somebody wrote the record: another replica, a person, or a renewal of ours whose answer was lost.
            Err(Error::Conflict { .. }) => match self.still_ours().await? {
                Some(version) => self.leases.renew(&self.seat.section, &version).await,
                None => return Ok(false),
            },
            // What is not there anybody may make.
            Err(Error::NotFound { .. }) => return Ok(false),
            result => result,
        };
        self.version = renewed?;
        self.seat.fence.extend(sent + self.lease_duration);
        self.seat.renewed();
        self.tell.send_replace(Renewal::Held(Arc::clone(&self.version)));
        Ok(true)
    }

    async fn still_ours(&self) -> Result<Option<Arc<str>>, Error> {
        still_ours(&self.leases, &self.seat, &self.identity, &self.acquired).await
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

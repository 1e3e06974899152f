//! The seat of one section: its fence, its gate, and what is reported of it.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::actor::{Gate, GateKeeper, Standing, gate};
use crate::cluster::{Clock, Fence};
use crate::config::SectionName;

/// What the elector of a section has in its hands.
pub(super) struct Seat {
    pub(super) section: SectionName,
    /// What lets the section's requests through.
    pub(super) fence: Fence,
    /// What makes the section run.
    pub(super) keeper: GateKeeper,
    pub(super) gate: Gate,
    term: Mutex<Term>,
}

#[derive(Default)]
struct Term {
    since: Option<Instant>,
    acquired: Option<Arc<str>>,
    renewals: u64,
    failures: u64,
    failure: Option<String>,
}

/// A section's part in the election, for `/status`.
#[derive(Debug, Serialize)]
pub(super) struct SeatReport {
    identity: Arc<str>,
    /// Who runs the section, as far as this replica can see.
    holder: Option<Arc<str>>,
    /// Whether it runs here.
    held: bool,
    /// When this replica took it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    acquired: Option<Arc<str>>,
    /// For how long it has run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_for_seconds: Option<u64>,
    /// What is left of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_seconds: Option<f64>,
    /// Renewals, over all terms of this process.
    renewals: u64,
    /// Requests to the election's cluster that failed.
    failures: u64,
    /// Why the last of them did, while none has gone well since.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Living replicas.
    replicas: usize,
}

impl Seat {
    pub(super) fn new(section: &SectionName, clock: Clock) -> Arc<Self> {
        let (keeper, gate) = gate();
        let fence = Fence::new(section.as_str(), clock);
        Arc::new(Self { section: section.clone(), fence, keeper, gate, term: Mutex::default() })
    }

    /// Whether the section runs here, under a claim that holds at this moment.
    pub(super) fn is_held(&self) -> bool {
        self.fence.is_held() && self.keeper.standing() == Standing::Running
    }

    /// A term has begun, at that time in the words of the record.
    pub(super) fn took(&self, acquired: &Arc<str>) {
        let mut term = self.term.lock();
        term.since = Some(Instant::now());
        term.acquired = Some(Arc::clone(acquired));
        term.failure = None;
    }

    /// When the last term was taken, in the words of the record.
    #[cfg(test)]
    pub(super) fn acquired(&self) -> Option<Arc<str>> {
        self.term.lock().acquired.clone()
    }

    /// The term is over.
    pub(super) fn ended(&self) {
        self.term.lock().since = None;
    }

    pub(super) fn renewed(&self) {
        let mut term = self.term.lock();
        term.renewals += 1;
        term.failure = None;
    }

    pub(super) fn failed(&self, error: &impl std::fmt::Display) {
        let mut term = self.term.lock();
        term.failures += 1;
        term.failure = Some(error.to_string());
    }

    /// The last failure, while nothing has gone well since.
    pub(super) fn failure(&self) -> Option<String> {
        self.term.lock().failure.clone()
    }

    pub(super) fn report(&self, identity: Arc<str>, holder: Option<Arc<str>>, replicas: usize) -> SeatReport {
        let held = self.is_held();
        let term = self.term.lock();
        SeatReport {
            identity,
            holder,
            held,
            acquired: term.acquired.clone(),
            held_for_seconds: term.since.filter(|_| held).map(|since| since.elapsed().as_secs()),
            claim_seconds: held.then(|| self.fence.remaining().as_secs_f64()),
            renewals: term.renewals,
            failures: term.failures,
            failure: term.failure.clone(),
            replicas,
        }
    }
}

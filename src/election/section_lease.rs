//! What the elector of one section shares: the fence with the section's requests, the gate with the supervisor, and the
//! latest status with the report.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::actor::{Gate, GateHandle, GateState, gate};
use crate::cluster::{Clock, Fence};
use crate::config::SectionName;

/// The Lease of one section, as this process holds it or not. The elector writes, others read.
pub(super) struct SectionLease {
    pub(super) section: SectionName,
    /// Lets the section's requests through while the claim is valid.
    pub(super) fence: Fence,
    /// Makes the section run.
    pub(super) gate_handle: GateHandle,
    pub(super) gate: Gate,
    status: watch::Sender<Status>,
}

#[derive(Default)]
struct Status {
    since: Option<Instant>,
    acquired: Option<Arc<str>>,
    renewals: u64,
    failures: u64,
    failure: Option<String>,
}

/// A section's election, for `/status`.
#[derive(Debug, Serialize)]
pub(super) struct ElectionReport {
    identity: Arc<str>,
    /// The replica that runs the section, as far as this one can see.
    holder: Option<Arc<str>>,
    /// Whether it runs here.
    held: bool,
    /// When this replica last acquired it.
    #[serde(skip_serializing_if = "Option::is_none")]
    acquired: Option<Arc<str>>,
    /// For how long it has run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_for_seconds: Option<u64>,
    /// For how long the claim is still valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_seconds: Option<f64>,
    /// Renewals, over all terms of this process.
    renewals: u64,
    /// Requests to the election's cluster that failed.
    failures: u64,
    /// The error of the last one, until a request succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl SectionLease {
    pub(super) fn new(section: &SectionName, clock: Clock) -> Arc<Self> {
        let (gate_handle, gate) = gate();
        let fence = Fence::new(section.as_str(), clock);
        Arc::new(Self { section: section.clone(), fence, gate_handle, gate, status: watch::Sender::default() })
    }

    /// Whether the section runs here, under a claim that is valid at this moment.
    pub(super) fn is_held(&self) -> bool {
        self.fence.is_held() && self.gate_handle.state() == GateState::Running
    }

    /// A term has begun; `acquired` is its time in the record.
    pub(super) fn term_began(&self, acquired: &Arc<str>) {
        self.status.send_modify(|status| {
            status.since = Some(Instant::now());
            status.acquired = Some(Arc::clone(acquired));
            status.failure = None;
        });
    }

    /// When this process last acquired the Lease, as the record says it.
    #[cfg(test)]
    pub(super) fn acquired(&self) -> Option<Arc<str>> {
        self.status.borrow().acquired.clone()
    }

    pub(super) fn term_ended(&self) {
        self.status.send_modify(|status| status.since = None);
    }

    pub(super) fn renewed(&self) {
        self.status.send_modify(|status| {
            status.renewals += 1;
            status.failure = None;
        });
    }

    pub(super) fn request_failed(&self, failure: &impl std::fmt::Display) {
        self.status.send_modify(|status| {
            status.failures += 1;
            status.failure = Some(failure.to_string());
        });
    }

    /// The error of the last failed request, until one succeeds.
    pub(super) fn failure(&self) -> Option<String> {
        self.status.borrow().failure.clone()
    }

    pub(super) fn report(&self, identity: Arc<str>, holder: Option<Arc<str>>) -> ElectionReport {
        let held = self.is_held();
        let status = self.status.borrow();
        ElectionReport {
            identity,
            holder,
            held,
            acquired: status.acquired.clone(),
            held_for_seconds: status.since.filter(|_| held).map(|since| since.elapsed().as_secs()),
            claim_seconds: held.then(|| self.fence.remaining().as_secs_f64()),
            renewals: status.renewals,
            failures: status.failures,
            failure: status.failure.clone(),
        }
    }
}

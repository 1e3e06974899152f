//! Sends the requests of a renewal or a verification to one hub, one after the other.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::SignedDuration;
use serde_json::Value;
use tokio::time::Instant;

use super::super::config::LeaseConfig;
use super::super::plan::renewals::Failure;
use super::super::plan::steps;
use super::super::plan::steps::{After, Found, MOST_STEPS, Method, RenewalAnswer, RenewalStep, Stamp};
use crate::cluster::{
    Cluster, DynamicCluster, Error, Exchange, FIELD_MANAGER, Fence, Kind, ObjectKey, PARTIAL_METADATA, Request,
    Urgency, Verb,
};

/// The Lease on the hub, and its holder.
pub struct Target {
    pub config: LeaseConfig,
    /// Namespace and name on the hub.
    pub key: ObjectKey,
    /// The value of `holderIdentity`.
    pub holder: String,
    /// The kind. It has one version, so discovery is not asked.
    pub kind: Kind,
    /// Where the section is elected: requests are sent only while this fence is open.
    pub fence: Option<Fence>,
}

/// The end of a renewal.
pub struct Renewed {
    pub sent: Instant,
    /// The method of the next renewal.
    pub method: Method,
    pub outcome: Result<(), Error>,
    /// How far this machine's clock is ahead of the hub's at least, as far as the hub has told.
    pub skew: Option<SignedDuration>,
}

/// The end of a verification: the lease, if the credentials work.
pub type Verified = Result<Found, Error>;

/// Verifies credentials by reading the lease. They work if the hub returns the lease, and also if it answers that there
/// is none.
pub async fn verify(target: Arc<Target>, hub: Arc<DynamicCluster>, deadline: Duration, urgency: Urgency) -> Verified {
    let request = || Request::get(&target.kind, &target.key);
    let exchange = target.on(&hub).exchange_when_admitted(request, "application/json", deadline, urgency).await;
    match exchange.answer {
        Ok(lease) => Ok(Found::Lease(Box::new(lease))),
        Err(Error::NotFound { .. }) => Ok(Found::Missing),
        Err(error) => Err(error),
    }
}

/// The parameters of a renewal.
pub struct Order {
    /// The hub, with the credentials to use.
    pub hub: Arc<DynamicCluster>,
    /// How to renew an existing lease.
    pub method: Method,
    /// What is known of the lease.
    pub found: Found,
    /// Whether to acquire the lease, not only to renew it.
    pub take: bool,
    /// How long each request may take.
    pub deadline: Duration,
}

/// Renews the lease. This takes one request, unless the lease does not exist, the verb is forbidden, or the lease has to be read in order
/// to take it.
pub async fn renew(target: Arc<Target>, order: Order) -> Renewed {
    let Order { hub, mut method, found, take, deadline } = order;
    let mut updates = matches!(method, Method::Update(_));
    let mut step = steps::first(&mut method, found, take);
    let mut sent = Instant::now();
    let mut skew = None;
    for _ in 0..MOST_STEPS {
        let exchange = target.send(&hub, &step, take, updates, deadline).await;
        sent = exchange.sent;
        skew = exchange.skew.or(skew);
        let (answer, error) = match exchange.answer {
            Ok(lease) => (RenewalAnswer::Done(Box::new(lease)), None),
            Err(error) => match answer_of(&error) {
                Some(answer) => (answer, Some(error)),
                None => return Renewed { sent, method: retry_by(updates), outcome: Err(error), skew },
            },
        };
        updates |= step.is_patch() && answer == RenewalAnswer::Forbidden;
        match steps::after(&step, answer, updates) {
            After::Renewed(method) => return Renewed { sent, method, outcome: Ok(()), skew },
            After::Then(next) => step = next,
            After::Failed(method) => {
                let outcome = Err(error.unwrap_or_else(|| keeps_changing(&target.key)));
                return Renewed { sent, method, outcome, skew };
            }
        }
    }
    Renewed { sent, method: retry_by(updates), outcome: Err(keeps_changing(&target.key)), skew }
}

fn retry_by(updates: bool) -> Method {
    if updates { Method::Update(None) } else { Method::Patch }
}

/// The error when another client creates, changes and deletes the lease faster than it can be renewed.
fn keeps_changing(key: &ObjectKey) -> Error {
    Error::Conflict { message: format!("lease {key} keeps changing"), exists: true }
}

/// The answer about the lease that an error stands for; `None` where it stands for something else.
fn answer_of(error: &Error) -> Option<RenewalAnswer> {
    match error {
        Error::NotFound { .. } => Some(RenewalAnswer::Missing),
        Error::Conflict { exists: true, .. } => Some(RenewalAnswer::Exists),
        Error::Conflict { exists: false, .. } => Some(RenewalAnswer::Conflict),
        Error::Forbidden { .. } => Some(RenewalAnswer::Forbidden),
        _ => None,
    }
}

/// The kind of a failure, for the plan.
pub fn failure(error: &Error) -> Failure {
    match error {
        Error::Unauthorized { .. } => Failure::Unauthorized,
        Error::LeaseExpired(_) => Failure::SectionLeaseExpired,
        error if error.is_unreachable() => Failure::Hub,
        Error::Throttled { .. } | Error::Server { .. } | Error::Decode { .. } => Failure::Hub,
        _ => Failure::Refused,
    }
}

impl Target {
    pub fn new(config: LeaseConfig, holder: String, fence: Option<Fence>) -> Self {
        let key = ObjectKey::new(config.lease_namespace.as_str(), config.lease_name.as_str());
        Self { config, key, holder, kind: Kind::lease(), fence }
    }

    /// The hub, for requests that are sent only under the section's fence.
    fn on(&self, hub: &Cluster) -> Cluster {
        self.fence.as_ref().map_or_else(|| hub.clone(), |fence| hub.under(fence))
    }

    async fn send(
        &self,
        hub: &Cluster,
        step: &RenewalStep,
        take: bool,
        updates: bool,
        deadline: Duration,
    ) -> Exchange<Value> {
        let verb = match step {
            RenewalStep::Patch | RenewalStep::Take(_) => Verb::Patch,
            RenewalStep::Create => Verb::Create,
            RenewalStep::Read => Verb::Get,
            RenewalStep::Update(_) => Verb::Update,
        };
        // An update needs the complete last reply; a patch needs no reply.
        let accept = if updates || *step == RenewalStep::Read { "application/json" } else { PARTIAL_METADATA };
        let request = || {
            let stamp = Stamp { config: &self.config, holder: &self.holder, at: SystemTime::now(), take };
            Request::new(verb, &self.kind, &self.key, stamp.payload(step)).by(FIELD_MANAGER)
        };
        self.on(hub).exchange_when_admitted(request, accept, deadline, Urgency::WhenAdmitted).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Expired;

    #[test]
    fn a_request_that_was_not_sent_is_no_refusal() {
        let expired = Expired { section: "heartbeat".into() };
        assert_eq!(failure(&Error::LeaseExpired(expired)), Failure::SectionLeaseExpired);
    }
}

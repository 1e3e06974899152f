//! The requests of a renewal and of a verification, one after the other, against one hub.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::Instant;

use super::config::LeaseConfig;
use super::hub::{Exchange, Hub, Urgency};
use super::plan::Failure;
use super::turn::{self, After, Answer, MOST_STEPS, Method, Stamp, Step};
use crate::cluster::{Error, FIELD_MANAGER, Fence, Kind, ObjectKey, PARTIAL_METADATA, Request, Verb};

/// The lease on the hub, and who holds it.
pub(super) struct Target {
    /// The section.
    pub(super) config: LeaseConfig,
    /// Namespace and name on the hub.
    pub(super) key: ObjectKey,
    /// What is written as the holder.
    pub(super) holder: String,
    /// The kind, in its one version: never asked for.
    pub(super) kind: Kind,
    /// Requests are only sent while it is open, where the section is elected.
    pub(super) fence: Option<Fence>,
}

/// How a renewal went.
pub(super) struct Renewed {
    /// When the last request was sent.
    pub(super) sent: Instant,
    /// The next time by this method.
    pub(super) method: Method,
    /// Whether it is renewed.
    pub(super) outcome: Result<(), Error>,
}

/// How a verification went: when they work, whether the lease is there.
pub(super) type Verified = Result<bool, Error>;

/// Reads the lease with credentials that nobody has used yet. That it is there, or that the hub says that it is not,
/// shows that they work.
pub(super) async fn verify(target: Arc<Target>, hub: Arc<Hub>, deadline: Duration, urgency: Urgency) -> Verified {
    let request = || target.request(Verb::Get, "application/json", Vec::new());
    match hub.send::<IgnoredAny>(request, PARTIAL_METADATA, deadline, urgency, target.fence.as_ref()).await.answer {
        Ok(IgnoredAny) => Ok(true),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a renewal needs to know.
pub(super) struct Order {
    /// With which credentials.
    pub(super) hub: Arc<Hub>,
    /// How.
    pub(super) method: Method,
    /// The hub has just said that the lease is not there.
    pub(super) is_missing: bool,
    /// Whether it is taken, not only renewed.
    pub(super) take: bool,
    /// How long each request is waited for.
    pub(super) deadline: Duration,
}

/// Renews the lease: one request, unless it is not there, or not granted that way.
pub(super) async fn renew(target: Arc<Target>, order: Order) -> Renewed {
    let Order { hub, mut method, is_missing, take, deadline } = order;
    let mut updates = matches!(method, Method::Update(_));
    let mut step = turn::first(&mut method, is_missing);
    let mut sent = Instant::now();
    for _ in 0..MOST_STEPS {
        let exchange = target.carry_out(&hub, &step, take, updates, deadline).await;
        sent = exchange.sent;
        let (answer, error) = match exchange.answer {
            Ok(lease) => (Answer::Done(Box::new(lease)), None),
            Err(error) => match answer_of(&error) {
                Some(answer) => (answer, Some(error)),
                None => return Renewed { sent, method: retry_by(updates), outcome: Err(error) },
            },
        };
        updates |= step == Step::Patch && answer == Answer::Forbidden;
        match turn::after(&step, answer, updates) {
            After::Renewed(method) => return Renewed { sent, method, outcome: Ok(()) },
            After::Then(next) => step = next,
            After::Failed(method) => {
                let outcome = Err(error.unwrap_or_else(|| contended(&target.key)));
                return Renewed { sent, method, outcome };
            }
        }
    }
    Renewed { sent, method: retry_by(updates), outcome: Err(contended(&target.key)) }
}

fn retry_by(updates: bool) -> Method {
    if updates { Method::Update(None) } else { Method::Patch }
}

/// Somebody else makes, changes and deletes the lease faster than it can be renewed.
fn contended(key: &ObjectKey) -> Error {
    Error::Conflict { message: format!("lease {key} keeps changing"), exists: true }
}

/// What an error says about the lease; none where it says something else.
fn answer_of(error: &Error) -> Option<Answer> {
    match error {
        Error::NotFound { .. } => Some(Answer::Missing),
        Error::Conflict { exists: true, .. } => Some(Answer::Exists),
        Error::Conflict { exists: false, .. } => Some(Answer::Conflict),
        Error::Forbidden { .. } => Some(Answer::Forbidden),
        _ => None,
    }
}

/// Of which kind a failure is, for the plan.
pub(super) fn failure(error: &Error) -> Failure {
    match error {
        Error::Unauthorized { .. } => Failure::Unauthorized,
        Error::Unclaimed(_) => Failure::Unclaimed,
        error if error.is_unreachable() => Failure::Hub,
        Error::Throttled { .. } | Error::Server { .. } | Error::Decode { .. } => Failure::Hub,
        _ => Failure::Refused,
    }
}

impl Target {
    /// The lease of a section.
    pub(super) fn new(config: LeaseConfig, holder: String, fence: Option<Fence>) -> Self {
        let key = ObjectKey::new(config.lease_namespace.as_str(), config.lease_name.as_str());
        Self { config, key, holder, kind: Kind::lease(), fence }
    }

    fn request(&self, verb: Verb, content_type: &'static str, body: Vec<u8>) -> Request<'_> {
        let manager = (verb != Verb::Get).then_some(FIELD_MANAGER);
        Request { verb, kind: &self.kind, key: &self.key, subresource: "", content_type, body, manager }
    }

    async fn carry_out(
        &self,
        hub: &Hub,
        step: &Step,
        take: bool,
        updates: bool,
        deadline: Duration,
    ) -> Exchange<Value> {
        let (verb, content_type) = match step {
            Step::Patch => (Verb::Patch, "application/merge-patch+json"),
            Step::Create => (Verb::Create, "application/json"),
            Step::Read => (Verb::Get, "application/json"),
            Step::Update(_) => (Verb::Update, "application/json"),
        };
        // An update needs the whole of the last reply; a patch needs no reply at all.
        let accept = if updates || *step == Step::Read { "application/json" } else { PARTIAL_METADATA };
        let request = || {
            let stamp = Stamp { config: &self.config, holder: &self.holder, at: SystemTime::now(), take };
            self.request(verb, content_type, stamp.body(step))
        };
        hub.send(request, accept, deadline, Urgency::InTurn, self.fence.as_ref()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Expired;

    #[test]
    fn what_was_not_sent_is_no_refusal() {
        let expired = Expired { section: "heartbeat".into() };
        assert_eq!(failure(&Error::Unclaimed(expired)), Failure::Unclaimed);
    }
}

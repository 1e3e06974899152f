//! What the managed cluster says: the Secret's credentials, and whether the pod is ready.
//!
//! Each is a follower of one watch that publishes the latest state to however many leases there are. It keeps nothing
//! else, so whatever restarts finds the state where it was.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::watch;

use super::credentials;
use super::hub::{Hub, Hubs};
use crate::cluster::{Follower, Object, ObjectKey, Watch};

/// What the Secret offers.
#[derive(Clone, Debug)]
pub(super) enum Offer {
    /// Nobody has looked yet.
    Unknown,
    /// There is no such Secret.
    Missing,
    /// There is one that can't be used.
    Faulty(credentials::Error),
    /// Credentials that make a client. Whether the hub takes them is another question.
    Given(Arc<Hub>),
}

/// Follows a Secret.
pub(super) struct SecretFollower {
    key: ObjectKey,
    hubs: Arc<Hubs>,
    offer: watch::Sender<Offer>,
}

impl SecretFollower {
    /// A follower of the Secret of this name.
    pub(super) fn new(key: ObjectKey, hubs: Arc<Hubs>) -> Self {
        Self { key, hubs, offer: watch::Sender::new(Offer::Unknown) }
    }

    /// The latest offer, and each change of it.
    pub(super) fn offers(&self) -> watch::Receiver<Offer> {
        self.offer.subscribe()
    }

    async fn look(&self, watch: &Watch) {
        let offer = match watch.store().get(&self.key) {
            None => Offer::Missing,
            Some(secret) => {
                let read = credentials::read(secret.content.as_str()).await;
                match read.and_then(|credentials| self.hubs.hub(credentials)) {
                    Ok(hub) => Offer::Given(hub),
                    Err(fault) => Offer::Faulty(fault),
                }
            }
        };
        self.offer.send_if_modified(|current| {
            let same = match (&*current, &offer) {
                (Offer::Missing, Offer::Missing) => true,
                (Offer::Faulty(current), Offer::Faulty(next)) => current == next,
                (Offer::Given(current), Offer::Given(next)) => current.fingerprint() == next.fingerprint(),
                _ => false,
            };
            if !same {
                *current = offer;
            }
            !same
        });
    }
}

impl Follower for SecretFollower {
    fn wants(&self, key: &ObjectKey) -> bool {
        *key == self.key
    }

    fn changed<'a>(&'a self, watch: &'a Watch, _: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(self.look(watch))
    }

    fn listed<'a>(&'a self, watch: &'a Watch, _: bool, _: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(self.look(watch))
    }
}

/// What the pod says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// Nobody has looked yet.
    Unknown,
    /// There is no such pod.
    Missing,
    /// Its condition `Ready` is not `True`.
    NotReady,
    /// It is.
    Ready,
}

impl PodState {
    fn of(pod: Option<&Object>) -> Self {
        let Some(pod) = pod else { return Self::Missing };
        let status: PodStatus =
            pod.status.as_ref().and_then(|status| serde_json::from_str(status.as_str()).ok()).unwrap_or_default();
        let is_ready =
            status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True");
        if is_ready { Self::Ready } else { Self::NotReady }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    conditions: Vec<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// Follows a pod.
pub(super) struct PodFollower {
    key: ObjectKey,
    state: watch::Sender<PodState>,
}

impl PodFollower {
    /// A follower of the pod of this name.
    pub(super) fn new(key: ObjectKey) -> Self {
        Self { key, state: watch::Sender::new(PodState::Unknown) }
    }

    /// The latest state, and each change of it.
    pub(super) fn states(&self) -> watch::Receiver<PodState> {
        self.state.subscribe()
    }

    fn look(&self, watch: &Watch) {
        let next = PodState::of(watch.store().get(&self.key).as_deref());
        self.state.send_if_modified(|current| std::mem::replace(current, next) != next);
    }
}

impl Follower for PodFollower {
    fn wants(&self, key: &ObjectKey) -> bool {
        *key == self.key
    }

    fn changed<'a>(&'a self, watch: &'a Watch, _: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.look(watch) })
    }

    fn listed<'a>(&'a self, watch: &'a Watch, _: bool, _: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.look(watch) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::object::Decoded;

    fn state(status: &Value) -> PodState {
        let pod = json!({"metadata": {"name": "add-on-0", "namespace": "n"}, "status": status});
        let decoded: Decoded = serde_json::from_value(pod).expect("an object");
        PodState::of(Some(&decoded.into_object()))
    }

    #[test]
    fn a_pod_is_ready_when_its_condition_says_so_and_not_otherwise() {
        let condition = |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status}]});
        assert_eq!(state(&condition("Ready", "True")), PodState::Ready);
        for other in [condition("Ready", "False"), condition("Ready", "Unknown"), condition("Initialized", "True")] {
            assert_eq!(state(&other), PodState::NotReady, "{other}");
        }
        assert_eq!(state(&json!({})), PodState::NotReady);
        assert_eq!(PodState::of(None), PodState::Missing);
    }
}

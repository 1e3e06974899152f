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
#[derive(Clone, Debug, Default)]
pub(super) enum Offer {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// There is no such Secret.
    Missing,
    /// There is one that can't be used.
    Faulty(credentials::Error),
    /// Credentials that make a client. Whether the hub takes them is another question.
    Given(Arc<Hub>),
}

impl Offer {
    /// The client of equal credentials is that of `hubs`.
    pub(super) fn of(secret: Option<&Object>, hubs: &Arc<Hubs>) -> Self {
        let Some(secret) = secret else { return Self::Missing };
        let read = credentials::read(secret.content.as_str());
        match read.and_then(|credentials| hubs.hub(credentials)) {
            Ok(hub) => Self::Given(hub),
            Err(fault) => Self::Faulty(fault),
        }
    }
}

/// Clients of equal credentials are equal.
impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, Self::Unknown) | (Self::Missing, Self::Missing) => true,
            (Self::Faulty(one), Self::Faulty(other)) => one == other,
            (Self::Given(one), Self::Given(other)) => one.fingerprint() == other.fingerprint(),
            _ => false,
        }
    }
}

/// What the pod says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PodState {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// There is no such pod.
    Missing,
    /// Its condition `Ready` is not `True`.
    NotReady,
    /// It is.
    Ready,
}

impl PodState {
    pub(super) fn of(pod: Option<&Object>) -> Self {
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

/// What an object says, where there is one.
type Read<S> = Box<dyn Fn(Option<&Object>) -> S + Send + Sync>;

/// Follows one object, and publishes what it says.
pub(super) struct ObjectFollower<S> {
    key: ObjectKey,
    read: Read<S>,
    state: watch::Sender<S>,
}

impl<S: Default + PartialEq> ObjectFollower<S> {
    /// A follower of the object of this name, which may not be there. Before anybody has looked, the state is the default
    /// one.
    pub(super) fn new(key: ObjectKey, read: impl Fn(Option<&Object>) -> S + Send + Sync + 'static) -> Self {
        Self { key, read: Box::new(read), state: watch::Sender::new(S::default()) }
    }

    /// The latest state, and each change of it.
    pub(super) fn states(&self) -> watch::Receiver<S> {
        self.state.subscribe()
    }

    fn look(&self, watch: &Watch) {
        let next = (self.read)(watch.store().get(&self.key).as_deref());
        self.state.send_if_modified(|current| {
            let is_news = *current != next;
            if is_news {
                *current = next;
            }
            is_news
        });
    }
}

impl<S: Default + PartialEq + Send + Sync> Follower for ObjectFollower<S> {
    fn wants(&self, key: &ObjectKey) -> bool {
        *key == self.key
    }

    fn changed<'a>(&'a self, watch: &'a Watch, _: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.look(watch) })
    }

    /// Here, and not when the list is told: a section whose term has just begun decides as soon as it has ended.
    fn note(&self, watch: &Watch, _: bool, vanished: Vec<ObjectKey>) -> Vec<ObjectKey> {
        self.look(watch);
        vanished
    }

    /// No credentials stay in memory that nobody here is to use.
    fn forget(&self) {
        self.state.send_replace(S::default());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::timeout;

    use super::*;
    use crate::actor::Scope;
    use crate::cluster::object::Decoded;
    use crate::cluster::watch::scripted::Script;
    use crate::cluster::{Cluster, Kind, WatchId};
    use crate::config::ResourceId;

    const WITHIN: Duration = Duration::from_hours(1);

    /// A watch of the Secret `hub`, which its follower looks at after `first` was told.
    fn secret_watch(first: Option<Arc<dyn Follower>>) -> (Arc<Watch>, Arc<ObjectFollower<Offer>>, Script) {
        let (cluster, script) = Cluster::scripted("edge");
        let id = WatchId {
            namespace: "n".into(),
            fields: "metadata.name=hub".into(),
            ..WatchId::all(
                cluster.name().clone(),
                ResourceId { plural: "secrets".into(), version: "v1".into(), group: String::new() },
            )
        };
        let watch = Watch::new(id, cluster);
        watch.assume_kind(Kind::core("Secret", "secrets", true));
        let hubs = Arc::default();
        let follower = ObjectFollower::new(ObjectKey::new("n", "hub"), move |secret| Offer::of(secret, &hubs));
        let follower = Arc::new(follower);
        first
            .into_iter()
            .chain([Arc::clone(&follower) as Arc<dyn Follower>])
            .for_each(|follower| watch.follow(follower));
        (watch, follower, script)
    }

    /// The Secret with this token.
    fn secret(token: &str) -> Value {
        let kubeconfig = json!({
            "clusters": [{"name": "hub", "cluster": {"server": "https://hub:6443"}}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "me"}}],
            "current-context": "hub",
        });
        let data = k8s_openapi::ByteString(kubeconfig.to_string().into_bytes());
        let metadata = json!({"namespace": "n", "name": "hub", "uid": "u", "resourceVersion": token.len().to_string()});
        json!({"metadata": metadata, "data": {"kubeconfig": data}})
    }

    /// Takes its time over the end of a list.
    struct Slow;

    impl Follower for Slow {
        fn wants(&self, _: &ObjectKey) -> bool {
            true
        }
        fn changed<'a>(&'a self, _: &'a Watch, _: &'a ObjectKey) -> BoxFuture<'a, ()> {
            Box::pin(async {})
        }
        fn listed<'a>(&'a self, _: &'a Watch, _: bool, _: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
            Box::pin(tokio::time::sleep(Duration::from_secs(1)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_list_finds_what_it_says_and_nothing_older() {
        let (watch, follower, _) = secret_watch(Some(Arc::new(Slow)));
        watch.list(&[secret("a")]).await;
        let mut offers = follower.states();
        assert!(matches!(*offers.borrow_and_update(), Offer::Given(_)), "no credentials");
        let demand = watch.demand(None);
        let met = tokio::spawn(async move {
            demand.met().await;
            offers.borrow().clone()
        });
        watch.list(&[]).await;
        let offer = met.await.unwrap();
        assert!(matches!(offer, Offer::Missing), "it was met with what an earlier list said: {offer:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_credentials_stay_in_memory_while_nobody_needs_the_secret() {
        let (watch, follower, script) = secret_watch(None);
        script.answer(|line| match line {
            line if line.starts_with("LIST") => (
                200,
                json!({"type": "BOOKMARK", "object": {"kind": "Secret", "apiVersion": "v1",
                "metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}}),
            ),
            _ => (0, json!(null)),
        });
        let (scope, _stop) = Scope::standalone("watcher");
        let running = tokio::spawn(Arc::clone(&watch).run(scope));
        let demand = watch.demand(None);
        timeout(WITHIN, demand.met()).await.expect("the list never ended");
        watch.show(&secret("a")).await;
        let mut offers = follower.states();
        let hub = match &*offers.borrow_and_update() {
            Offer::Given(hub) => Arc::downgrade(hub),
            other => panic!("{other:?}"),
        };
        drop(demand);
        let gone = offers.wait_for(|offer| matches!(offer, Offer::Unknown));
        drop(timeout(WITHIN, gone).await.expect("the credentials stay").unwrap());
        assert!(hub.upgrade().is_none(), "somebody keeps the client");
        running.abort();
    }

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

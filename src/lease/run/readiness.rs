//! The state of the managed cluster: the Secret's credentials, and whether the pod is ready.
//!
//! One follower of each watch publishes the latest state to all leases that depend on it. It keeps nothing else, so a
//! renewer that restarts finds the current state.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::watch;

use super::credentials;
use crate::cluster::{DynamicCluster, DynamicClusters, Follower, Object, ObjectKey, Watch};

#[derive(Clone, Debug, Default)]
pub enum SecretState {
    /// It has not been looked up yet.
    #[default]
    Unknown,
    Missing,
    /// It exists and cannot be used.
    Invalid(credentials::Error),
    /// It has credentials that a client can be built from. The hub may still refuse them.
    Valid(Arc<DynamicCluster>),
}

impl SecretState {
    /// The state that a Secret shows. Equal credentials share a client in `hubs`.
    pub fn of(secret: Option<&Object>, hubs: &DynamicClusters) -> Self {
        let Some(secret) = secret else { return Self::Missing };
        let read = credentials::read(secret.content.as_str());
        match read.and_then(|read| credentials::connect(read, hubs)) {
            Ok(hub) => Self::Valid(hub),
            Err(fault) => Self::Invalid(fault),
        }
    }
}

/// Clients with equal credentials are equal.
impl PartialEq for SecretState {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unknown, Self::Unknown) | (Self::Missing, Self::Missing) => true,
            (Self::Invalid(one), Self::Invalid(other)) => one == other,
            (Self::Valid(one), Self::Valid(other)) => one.fingerprint() == other.fingerprint(),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodState {
    /// It has not been looked up yet.
    #[default]
    Unknown,
    Missing,
    /// Its condition `Ready` is not `True`.
    NotReady,
    /// Its condition `Ready` is `True`.
    Ready,
}

impl PodState {
    /// The state that a pod shows.
    pub fn of(pod: Option<&Object>) -> Self {
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

/// Derives the state from the object, or from its absence.
type Read<S> = Box<dyn Fn(Option<&Object>) -> S + Send + Sync>;

/// Follows one object, and publishes its state.
pub struct ObjectFollower<S> {
    key: ObjectKey,
    read: Read<S>,
    state: watch::Sender<S>,
}

impl<S: Default + PartialEq> ObjectFollower<S> {
    /// A follower of the object with this name, which need not exist. The state is the default one until the object has
    /// been looked up.
    pub fn new(key: ObjectKey, read: impl Fn(Option<&Object>) -> S + Send + Sync + 'static) -> Self {
        Self { key, read: Box::new(read), state: watch::Sender::new(S::default()) }
    }

    pub fn states(&self) -> watch::Receiver<S> {
        self.state.subscribe()
    }

    fn look(&self, watch: &Watch) {
        let next = (self.read)(watch.store().get(&self.key).as_deref());
        self.state.send_if_modified(|current| {
            let has_changed = *current != next;
            if has_changed {
                *current = next;
            }
            has_changed
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

    /// The state is updated here and not in `listed`: a section that has just acquired its lease decides as soon as the
    /// list has ended.
    fn note(&self, watch: &Watch, _: bool, vanished: Vec<ObjectKey>) -> Vec<ObjectKey> {
        self.look(watch);
        vanished
    }

    /// Credentials that no section here may use do not stay in memory.
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
    use crate::cluster::{Cluster, Kind, WatchId, WatchSpec};
    use crate::config::ResourceId;

    const WITHIN: Duration = Duration::from_hours(1);

    /// A watch of the Secret `hub`, whose follower is called after `first`.
    fn secret_watch(first: Option<Arc<dyn Follower>>) -> (Arc<Watch>, Arc<ObjectFollower<SecretState>>, Script) {
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
        let hubs = DynamicClusters::default();
        let follower = ObjectFollower::new(ObjectKey::new("n", "hub"), move |secret| SecretState::of(secret, &hubs));
        let follower = Arc::new(follower);
        let kind = Some(Kind::core("Secret", "secrets", true));
        let followers = first.into_iter().chain([Arc::clone(&follower) as Arc<dyn Follower>]).collect();
        watch.specified(WatchSpec { kind, followers, ..WatchSpec::default() });
        (watch, follower, script)
    }

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

    /// Is slow to handle the end of a list.
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
        let mut states = follower.states();
        assert!(matches!(*states.borrow_and_update(), SecretState::Valid(_)), "no credentials");
        let demand = watch.demand(None);
        let met = tokio::spawn(async move {
            demand.met().await;
            states.borrow().clone()
        });
        watch.list(&[]).await;
        let state = met.await.unwrap();
        assert!(
            matches!(state, SecretState::Missing),
            "the demand was met with the state of an earlier list: {state:?}"
        );
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
        let mut states = follower.states();
        let hub = match &*states.borrow_and_update() {
            SecretState::Valid(hub) => Arc::downgrade(hub),
            other => panic!("{other:?}"),
        };
        drop(demand);
        let gone = states.wait_for(|state| matches!(state, SecretState::Unknown));
        drop(timeout(WITHIN, gone).await.expect("the credentials stay").unwrap());
        assert!(hub.upgrade().is_none(), "the client is still in use");
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

//! Clusters and watches under the control of a test.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::{Watch, WatchSpec};
use crate::cluster::client::Availability;
use crate::cluster::client::{Cluster, Limits};
use crate::cluster::connection::Connection;
use crate::cluster::identity::Identity;
use crate::cluster::kind::Kind;
use crate::cluster::object::Decoded;
use crate::config::{ClusterAccess, ClusterConfig};

type Answer = dyn FnMut(&str) -> (u16, Value) + Send;

/// A scripted API server, and the requests that it received: `PATCH /api/v1/namespaces/a`. A streamed list is a `LIST`, a
/// resumed watch is a `WATCH`. A status of 0 means that no answer is sent, one of 1 that the connection breaks.
#[derive(Clone)]
pub(crate) struct Script {
    asked: Arc<Mutex<Vec<String>>>,
    answer: Arc<Mutex<Box<Answer>>>,
    takes: Arc<Mutex<Duration>>,
}

impl Script {
    fn new() -> Self {
        let done = json!({"metadata": {"uid": "written", "resourceVersion": "1000", "generation": 1}});
        let answer: Box<Answer> = Box::new(move |_| (200, done.clone()));
        Self { asked: Arc::default(), answer: Arc::new(Mutex::new(answer)), takes: Arc::default() }
    }

    /// The requests since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// Answers from now on with a status and a body, by the request's line.
    pub(crate) fn answer(&self, answer: impl FnMut(&str) -> (u16, Value) + Send + 'static) {
        *self.answer.lock() = Box::new(answer);
    }

    /// Every answer takes so long from now on.
    pub(crate) fn take(&self, time: Duration) {
        *self.takes.lock() = time;
    }

    fn client(&self) -> Client {
        let script = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let script = script.clone();
            async move {
                let query = request.uri().query().unwrap_or_default();
                let verb = match request.method() {
                    _ if query.contains("sendInitialEvents=true") => "LIST",
                    _ if query.contains("watch=true") => "WATCH",
                    method => method.as_str(),
                };
                let line = format!("{verb} {}", request.uri().path());
                script.asked.lock().push(line.clone());
                let (code, body) = (script.answer.lock())(&line);
                let takes = *script.takes.lock();
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                if code == 0 {
                    futures::future::pending::<()>().await;
                }
                if code == 1 {
                    return Err(BoxError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
                }
                let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                response.map_err(BoxError::from)
            }
        });
        Client::new(service, "default")
    }
}

impl Cluster {
    /// A cluster that is available, and the script of its API server, by which every request succeeds.
    pub(crate) fn scripted(name: &str) -> (Self, Script) {
        let nowhere = ClusterAccess::Kubeconfig { path: "/nonexistent".into(), context: None };
        let cluster = Self::new(name.parse().expect("a name"), &ClusterConfig::new(nowhere));
        let script = Script::new();
        cluster.new_session(&script);
        (cluster, script)
    }

    /// A scripted cluster without a session actor.
    pub(in crate::cluster) fn scripted_without_session(name: &str, limits: Limits) -> (Self, Script) {
        let script = Script::new();
        let connection = Connection::over(name.parse().expect("a name"), script.client());
        (Self::connected(connection, limits), script)
    }

    /// New credentials for the same server.
    pub(crate) fn new_session(&self, script: &Script) {
        self.set_session(Connection::over(self.name().clone(), script.client()));
        self.set_identity(Identity::Known(self.name().to_string().into()));
        self.set_availability(Availability::Available);
    }
}

/// An object as the wire has it.
pub(crate) fn decoded(value: &Value) -> Decoded {
    serde_json::from_str(&value.to_string()).expect("an object")
}

impl Watch {
    /// Adds what a user of the watch requires, as the registry does.
    pub(crate) fn specified(self: &Arc<Self>, spec: WatchSpec) {
        self.specify(spec);
    }

    /// Whether it lists only where that is granted.
    pub(crate) fn is_only_if_granted(&self) -> bool {
        self.spec().only_if_granted
    }

    /// The kind is served, and a list with the current credentials has these objects.
    pub(crate) async fn list(&self, objects: &[Value]) {
        self.begin(objects).await;
        self.end().await;
    }

    /// A list begins, and mentions these objects.
    pub(crate) async fn begin(&self, objects: &[Value]) {
        let id = &self.id.resource;
        let namespaced = id.plural != "namespaces";
        let resource = ApiResource {
            group: id.group.clone(),
            version: id.version.clone(),
            api_version: format!("{}/{}", id.group, id.version),
            kind: "Kind".into(),
            plural: id.plural.clone(),
        };
        self.kind.send_replace(Some(Arc::new(Kind { resource, namespaced, status_subresource: true })));
        self.demands.begin();
        self.store.may_list();
        self.take(Event::Init, 0).await;
        for object in objects {
            self.take(Event::InitApply(decoded(object)), 0).await;
        }
    }

    /// The list that has begun ends.
    pub(crate) async fn end(&self) {
        self.listed_with(self.cluster.epoch().unwrap_or_default());
        self.is_live.store(true, Ordering::Release);
        self.take(Event::InitDone, self.demands.begun()).await;
    }

    /// The connection is lost and reconnects at once: the watch is resumed.
    pub(crate) async fn resume(&self) {
        let broken = watcher::Error::WatchFailed(kube::Error::Service("connection reset".into()));
        self.is_live.store(false, Ordering::Release);
        assert!(self.after_error(broken, true, &mut 0).await.is_none(), "the watch is resumed");
        if !self.cluster.is_identity_wanted() {
            return;
        }
        assert_eq!(self.cluster.identity(), Identity::Unread, "another cluster may answer now");
        self.cluster.set_identity(Identity::Known(self.cluster.name().to_string().into()));
    }

    /// Whether a new list was requested.
    pub(crate) fn is_asked_to_list(&self) -> bool {
        self.list_again.notified().now_or_never().is_some()
    }

    /// Nobody demands the watch any more: its cache is emptied.
    pub(crate) fn empty(&self) {
        self.store.clear();
    }

    /// An object was created or changed.
    pub(crate) async fn show(&self, object: &Value) {
        self.take(Event::Apply(decoded(object)), 0).await;
    }

    pub(crate) async fn gone(&self, object: &Value) {
        self.take(Event::Delete(decoded(object)), 0).await;
    }
}

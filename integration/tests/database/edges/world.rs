//! The cluster, and a client of it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use integration::crds::{DATABASES, REGIONS};
use integration::users::ADMIN;
use integration::{ControlPlane, Options, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use towline::test_api::cluster::{DynamicCluster, DynamicClusters, Error, Kind, Metadata, ObjectKey, Request, Stated};
use towline::test_api::http::DeniedNetworks;
use towline::test_api::syncset::kubeconfig::{Allowed, of_user};

pub(crate) use crate::run;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();

/// A test's namespace, and the cluster as its administrator.
pub(crate) struct Edge {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) cluster: Arc<DynamicCluster>,
    pub(crate) namespace: &'static str,
}

pub(crate) fn config_maps() -> Kind {
    Kind::core("ConfigMap", "configmaps", true)
}

pub(crate) fn namespaces() -> Kind {
    Kind::core("Namespace", "namespaces", false)
}

pub(crate) fn custom(kind: &str, plural: &str, namespaced: bool) -> Kind {
    let mut of_demo = Kind::core(kind, plural, namespaced);
    "demo.towline.dev".clone_into(&mut of_demo.resource.group);
    "demo.towline.dev/v1".clone_into(&mut of_demo.resource.api_version);
    of_demo
}

/// The cluster of a kubeconfig.
pub(crate) fn connect(kubeconfig: &str) -> Arc<DynamicCluster> {
    let credentials = of_user(kubeconfig.as_bytes(), Allowed::default()).unwrap();
    let most = NonZeroUsize::new(16).unwrap();
    // The API server is on loopback.
    let clusters = DynamicClusters::of_many(LIMIT, most, "edges", DeniedNetworks::default());
    clusters.cluster("team-a", &"edge".parse().unwrap(), credentials).unwrap()
}

impl Edge {
    /// With a namespace of this name.
    pub(crate) async fn new(namespace: &'static str) -> Self {
        Self::of(ADMIN, namespace).await
    }

    /// The same as another user, so that its requests are counted apart.
    pub(crate) async fn of(user: &str, namespace: &'static str) -> Self {
        let start =
            async || ControlPlane::start(Options::named("edges").with_crds(&[DATABASES, REGIONS])).await.unwrap();
        let plane = PLANE.get_or_init(start).await;
        let edge = Self { plane, cluster: connect(&kubeconfig(plane, user)), namespace };
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        edge.cluster.change(Request::create(&namespaces(), &ObjectKey::new("", namespace), &body)).await.unwrap();
        edge
    }

    pub(crate) fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(self.namespace, name)
    }

    /// A config map with these data.
    pub(crate) fn config_map(&self, name: &str, data: &Value) -> Value {
        let metadata = json!({"name": name, "namespace": self.namespace, "labels": {"of": self.namespace}, "annotations": {"note": name}});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    }

    /// Applies a config map.
    pub(crate) async fn apply(&self, name: &str, data: &Value) -> Result<Stated<Metadata>, Error> {
        let (kind, key, body) = (config_maps(), self.key(name), self.config_map(name, data));
        self.cluster.change(Request::apply(&kind, &key, &body).by("towline").forced()).await
    }

    pub(crate) async fn metadata(&self, kind: &Kind, name: &str) -> Option<Metadata> {
        self.cluster.read_metadata(kind, &self.key(name)).await.unwrap()
    }

    /// Waits until an object is gone.
    pub(crate) async fn is_gone(&self, kind: &Kind, name: &str) {
        eventually(format!("{name} to be gone"), LIMIT, async || match self.metadata(kind, name).await {
            None => Ok(()),
            Some(found) => Err(format!("{found:?}")),
        })
        .await
        .unwrap();
    }
}

pub(crate) fn kubeconfig(plane: &ControlPlane, user: &str) -> String {
    std::fs::read_to_string(plane.kubeconfig(user).unwrap()).unwrap()
}

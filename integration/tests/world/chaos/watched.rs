//! Which objects vanish from an edge, as a watch from the beginning tells it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use integration::users::ADMIN;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::chaos::fleet::{EDGES, edge};
use crate::chaos::oracle::{Kind, Object};

/// Namespace and object, by UID.
type Vanished = BTreeMap<String, (String, Object)>;

/// Watches config maps, deployments and secrets on all edges.
pub(crate) struct Watched {
    vanished: Arc<Mutex<Vanished>>,
    watches: Vec<JoinHandle<()>>,
}

impl Watched {
    pub(crate) async fn start() -> Self {
        let vanished = Arc::default();
        let mut watches = Vec::new();
        for number in 0..EDGES {
            let client = edge(number).await.client(ADMIN).await.unwrap();
            watches.push(watch::<ConfigMap>(client.clone(), Kind::ConfigMap, &vanished).await);
            watches.push(watch::<Deployment>(client.clone(), Kind::Deployment, &vanished).await);
            watches.push(watch::<Secret>(client, Kind::Secret, &vanished).await);
        }
        Self { vanished, watches }
    }

    /// Everything that has vanished so far. A watch that has ended otherwise than in order fails here.
    pub(crate) fn vanished(&self) -> Vanished {
        assert!(self.watches.iter().all(|watch| !watch.is_finished()), "a watch has ended");
        self.vanished.lock().clone()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watches.iter().for_each(JoinHandle::abort);
    }
}

/// Watches without a gap: each watch resumes where the one before has ended.
async fn watch<K>(client: Client, kind: Kind, vanished: &Arc<Mutex<Vanished>>) -> JoinHandle<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static,
{
    let objects: Api<K> = Api::all(client);
    let mut version = objects.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let vanished = Arc::clone(vanished);
    tokio::spawn(async move {
        loop {
            let mut events = objects.watch(&WatchParams::default(), &version).await.unwrap().boxed();
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        version = object.resource_version().unwrap();
                    }
                    WatchEvent::Deleted(object) => {
                        version = object.resource_version().unwrap();
                        let place = (object.namespace().unwrap(), (kind, object.name_any()));
                        vanished.lock().insert(object.uid().unwrap(), place);
                    }
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(error) => panic!("{error:?}"),
                }
            }
        }
    })
}

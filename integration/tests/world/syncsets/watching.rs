//! A watch of the config maps of a test, which sees every moment at which one is absent.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use integration::{ControlPlane, eventually};
use kube::ResourceExt;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::syncsets::world::{LIMIT, Stage};

/// The last config map that is made.
const END: &str = "end-of-watch";

pub(crate) struct Watching {
    seen: Arc<Mutex<Vec<(&'static str, String)>>>,
    watch: JoinHandle<()>,
}

impl Watching {
    /// From now on.
    pub(crate) async fn begin(stage: &Stage, plane: &ControlPlane) -> Self {
        let maps = stage.maps(plane).await;
        let mut version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            // The server ends each watch after some minutes, and the next one resumes there.
            loop {
                let mut events = maps.watch(&WatchParams::default(), &version).await.unwrap().boxed();
                while let Ok(Some(event)) = events.try_next().await {
                    let (what, map) = match event {
                        WatchEvent::Added(map) => (Some("added"), map),
                        WatchEvent::Deleted(map) => (Some("deleted"), map),
                        WatchEvent::Modified(map) => (None, map),
                        WatchEvent::Bookmark(bookmark) => {
                            version = bookmark.metadata.resource_version;
                            continue;
                        }
                        WatchEvent::Error(error) => panic!("{error}"),
                    };
                    version = map.resource_version().unwrap();
                    shared.lock().extend(what.map(|what| (what, map.name_any())));
                }
            }
        });
        Self { seen, watch }
    }

    /// The names of all that was deleted up to now.
    pub(crate) async fn deleted(self, stage: &Stage, plane: &ControlPlane) -> Vec<String> {
        let maps = stage.maps(plane).await;
        let end = serde_json::from_value(json!({"metadata": {"name": END}})).unwrap();
        maps.create(&PostParams::default(), &end).await.unwrap();
        eventually("the end of the watch", LIMIT, async || {
            let has_end = self.seen.lock().iter().any(|(_, name)| name == END);
            if has_end { Ok(()) } else { Err(format!("ended: {}", self.watch.is_finished())) }
        })
        .await
        .unwrap();
        self.watch.abort();
        maps.delete(END, &kube::api::DeleteParams::default()).await.unwrap();
        let seen = self.seen.lock();
        seen.iter().filter(|(what, _)| *what == "deleted").map(|(_, name)| name.clone()).collect()
    }
}

//! The stream of one watch: kube's watcher over the cluster's client, and what each of its events does to the cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, ListSemantic};

use super::{Watch, WatchSpec};
use crate::cluster::built_in::BuiltIn;
use crate::cluster::client::Session;
use crate::cluster::connection::guarded;
use crate::cluster::kind::Kind;
use crate::cluster::object::{Decoded, Managed, Object, ObjectKey};
use crate::cluster::tool_marks::LAST_APPLIED;

/// Objects a page, where the server has no streaming lists.
const PAGE_SIZE: u32 = 500;

impl Watch {
    /// A new stream, which begins with a list.
    pub(super) fn stream(
        self: &Arc<Self>,
        session: &Session,
        kind: &Kind,
        streaming: bool,
    ) -> BoxStream<'static, watcher::Result<Event<Decoded>>> {
        let watch = Arc::clone(self);
        let client = guarded(session.connection.client(), move || watch.demands.claim());
        let client = self.definition.observing(client);
        let timeout = self.cluster.watch_timeout().as_secs();
        let mut config = watcher::Config::default().timeout(u32::try_from(timeout).unwrap_or(u32::MAX));
        if !self.id.labels.is_empty() {
            config = config.labels(&self.id.labels);
        }
        if !self.id.fields.is_empty() {
            config = config.fields(&self.id.fields);
        }
        config = if streaming {
            config.streaming_lists()
        } else {
            config.list_semantic(ListSemantic::MostRecent).page_size(PAGE_SIZE)
        };
        if self.id.metadata_only {
            let api: Api<PartialObjectMeta<Decoded>> = self.api(client, kind);
            watcher::watcher(api, config).map_ok(|event| of_decoded(event, Decoded::from)).boxed()
        } else if let Some(built_in) = self.built_in() {
            let api: Api<Managed> = self.api(client, kind);
            let portable = |managed| built_in.portable(managed);
            watcher::watcher(api, config).map_ok(move |event| of_decoded(event, portable)).boxed()
        } else {
            let api: Api<Decoded> = self.api(client, kind);
            watcher::watcher(api, config).boxed()
        }
    }

    /// The kind's row of the table, where portable parts are cached.
    fn built_in(&self) -> Option<&'static BuiltIn> {
        self.spec().portable.then(|| BuiltIn::of(&self.id.resource.group, &self.id.resource.plural))?
    }

    fn api<K>(&self, client: kube::Client, kind: &Kind) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        if self.id.namespace.is_empty() {
            Api::all_with(client, &kind.resource)
        } else {
            Api::namespaced_with(client, &self.id.namespace, &kind.resource)
        }
    }

    /// Applies an event of the stream with this number: first to the cache, then by telling the followers.
    pub(super) async fn take(&self, event: Event<Decoded>, stream: u64) {
        let spec = self.spec();
        match event {
            Event::Init => self.store.begin_list(),
            Event::InitApply(decoded) | Event::Apply(decoded) => {
                self.store.saw(decoded.object());
                if let Some(object) = wanted(decoded, &spec) {
                    let key = object.key.clone();
                    if self.store.apply(object) && self.store.is_listed() {
                        self.tell(&key, &spec).await;
                    }
                }
            }
            Event::Delete(decoded) => {
                self.store.lost(decoded.object());
                if let Some(object) = wanted(decoded, &spec) {
                    self.store.delete(&object);
                    if self.store.is_listed() {
                        self.tell(&object.key, &spec).await;
                    }
                }
            }
            Event::InitDone => {
                let first = !self.store.is_listed();
                self.noting.store(true, Ordering::Release);
                let vanished = self.store.end_list();
                // Before the followers note the list: they treat the list that a section demanded differently.
                self.demands.listed(stream);
                let mut noted = Vec::with_capacity(spec.followers.len());
                for follower in &spec.followers {
                    let theirs = vanished.iter().filter(|key| follower.wants(key)).cloned().collect();
                    noted.push((follower, follower.note(self, first, theirs)));
                }
                self.noting.store(false, Ordering::Release);
                // Not earlier: a task that waits for this list must not find what a follower noted about an older one. Not
                // later: a follower may wait for room in the mailbox of an actor that waits for this list.
                self.demands.tell();
                for (follower, theirs) in noted {
                    follower.listed(self, first, theirs).await;
                }
            }
        }
    }

    async fn tell(&self, key: &ObjectKey, spec: &WatchSpec) {
        for follower in spec.followers.iter().filter(|follower| follower.wants(key)) {
            follower.changed(self, key).await;
        }
    }
}

fn of_decoded<K>(event: Event<K>, decoded: impl Fn(K) -> Decoded) -> Event<Decoded> {
    match event {
        Event::Apply(object) => Event::Apply(decoded(object)),
        Event::Delete(object) => Event::Delete(decoded(object)),
        Event::InitApply(object) => Event::InitApply(decoded(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

/// The part of an object that is cached; `None` if no follower wants it.
fn wanted(decoded: Decoded, spec: &WatchSpec) -> Option<Object> {
    let mut object = decoded.into_object();
    if !spec.followers.iter().any(|follower| follower.wants(&object.key)) {
        return None;
    }
    // As large as the object, and needed only where annotations are mirrored.
    if !spec.keep_last_applied {
        object.hidden_annotations |= object.annotations.remove(LAST_APPLIED).is_some();
    }
    if let Some(projection) = &spec.projection {
        projection(&mut object);
    }
    Some(object)
}

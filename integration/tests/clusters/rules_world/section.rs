//! A test's part of both clusters, in a section of the daemon that tests share or of one of its own.

use std::collections::BTreeMap;
use std::ops::Deref;

use integration::audit::{Mark, Record};
use integration::compare::{Mapping, differences};
use integration::{ControlPlane, Filter, Towline, eventually, users};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    LIMIT, SECRETS, WATCHED_SECRET, World, config_maps, databases, deployments, documents, queues, regions, widgets,
    world,
};

/// The daemon's finalizer, by default.
pub(crate) const FINALIZER: &str = "cloud.teleport.dev/sync-local";

/// An annotation or finalizer of the default domain.
pub(crate) fn mark(name: &str) -> String {
    format!("cloud.teleport.dev/{name}")
}

/// A test's namespaces on both clusters, and who acts on either end.
pub(crate) struct Place {
    pub(crate) world: &'static World,
    /// The prefix of its namespaces, and of a section of its own also the name.
    pub(crate) name: String,
    pub(crate) kind: ApiResource,
    /// The user on the hub.
    pub(crate) hub: Client,
    /// The controller on the edge.
    pub(crate) edge: Client,
    pub(crate) mapping: Mapping,
}

/// A place with a section and a daemon of its own: for tests of settings, starts and stops, and of what a daemon tells of a section.
pub(crate) struct Section {
    place: Place,
    pub(crate) towline: Towline,
}

impl Deref for Section {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// One kind of request: verb, resource with subresource, and how often.
pub(crate) type Counts = BTreeMap<String, usize>;

/// What is expected of [`Section::counted`].
pub(crate) fn counts<const N: usize>(expected: [(&str, usize); N]) -> Counts {
    expected.into_iter().map(|(what, count)| (what.to_owned(), count)).collect()
}

/// `plural.version.group`.
pub(crate) fn resource(kind: &ApiResource) -> String {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    format!("{}.{}{group}", kind.plural, kind.version)
}

/// The `[clusters]` of the configuration.
pub(crate) fn clusters(world: &World) -> String {
    format!(
        "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n",
        world.hub_kubeconfig.display(),
        world.edge_kubeconfig.display()
    )
}

/// A `[[sync]]` from the hub to the edge, for namespaces that begin with the section's name.
pub(crate) fn sync(name: &str, kind: &ApiResource, settings: &str) -> String {
    format!(
        "[[sync]]\nname = {name:?}\nremote = \"hub\"\nlocal = \"edge\"\nresource = {:?}\n\
         namespace_prefix = \"{name}-\"\n{settings}\n",
        resource(kind)
    )
}

impl Section {
    /// Starts a daemon with this section and waits until it is ready.
    pub(crate) async fn start(name: &str, kind: ApiResource, settings: &str) -> Self {
        Self::start_with(name, kind, settings, |_| {}).await
    }

    /// The same, for a section whose settings matter to what is in step.
    pub(crate) async fn start_with(
        name: &str,
        kind: ApiResource,
        settings: &str,
        change: impl FnOnce(&mut Mapping),
    ) -> Self {
        let config = clusters(world().await) + &sync(name, &kind, settings);
        Self::start_config(name, kind, &config, change).await
    }

    /// The same with a whole configuration.
    pub(crate) async fn start_config(
        name: &str,
        kind: ApiResource,
        config: &str,
        change: impl FnOnce(&mut Mapping),
    ) -> Self {
        let towline = Towline::start(config, &[]).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        let mut place = Place::new(name, kind).await;
        change(&mut place.mapping);
        Self { place, towline }
    }

    /// One daemon with a section of this kind for each of these names and settings: the section of the first, and the places of the others.
    pub(crate) async fn start_several(kind: &ApiResource, sections: &[(&str, &str)]) -> (Self, Vec<Place>) {
        let all = sections.iter().map(|(name, settings)| sync(name, kind, settings)).collect::<String>();
        let config = clusters(world().await) + &all;
        let first = Self::start_config(sections[0].0, kind.clone(), &config, |_| {}).await;
        let mut others = Vec::new();
        for (name, _) in &sections[1..] {
            others.push(Place::new(name, kind.clone()).await);
        }
        (first, others)
    }

    /// Kills the daemon and starts it anew with other sections, between the same clusters.
    pub(crate) async fn restart_with(&mut self, sections: &str) {
        self.towline.kill9().await.unwrap();
        std::fs::write(self.towline.config_path(), clusters(self.world) + sections).unwrap();
        self.towline.start_again().await.unwrap();
    }

    /// The section has another name or another mapping from now on.
    pub(crate) fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    /// Waits for something in the section's report.
    pub(crate) async fn report_has(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        report_has(&self.towline, &self.name, what, holds).await
    }
}

/// Waits for something in the report of a section.
pub(crate) async fn report_has(towline: &Towline, section: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(format!("{section} to report {what}"), LIMIT, async || {
        let report = towline.admin().section(section).await.map_err(|error| error.chain())?;
        if holds(&report) { Ok(report) } else { Err(report.to_string()) }
    })
    .await
    .unwrap()
}

/// The daemon that tests share: a section of default settings for each of these kinds, and one that takes secrets up.
async fn shared_daemon() {
    static SHARED: OnceCell<Towline> = OnceCell::const_new();
    let start = async || {
        let mut config = clusters(world().await);
        for kind in [databases(), documents(), widgets(), queues(), config_maps(), deployments()] {
            config += &sync(&kind.plural, &kind, "").replace(&format!("\"{}-\"", kind.plural), "\"any-\"");
        }
        let secrets: Vec<&str> = SECRETS.into_iter().chain([WATCHED_SECRET]).collect();
        let settings = format!("secret_names = {secrets:?}\nsecret_metadata = [\"team\", \"example.org/*\"]");
        config += &sync("secrets", &databases(), &settings);
        let towline = Towline::start(&config, &[]).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        towline
    };
    SHARED.get_or_init(start).await;
}

impl Place {
    async fn new(name: &str, kind: ApiResource) -> Self {
        let world = world().await;
        let (namespace_prefix, namespaced) = (format!("{name}-"), kind != regions());
        let mapping = Mapping { namespace_prefix, namespaced, ..Mapping::default() };
        let hub = world.hub.client(users::HUB_USER).await.unwrap();
        let edge = world.edge.client(users::EDGE_CONTROLLER).await.unwrap();
        Self { world, name: name.to_owned(), kind, hub, edge, mapping }
    }

    /// In a section of default settings that the daemon of all tests runs.
    pub(crate) async fn shared(name: &str, kind: ApiResource) -> Self {
        shared_daemon().await;
        Self::new(&format!("any-{name}"), kind).await
    }

    /// The same, in the section of databases that takes secrets up.
    pub(crate) async fn shared_with_secrets(name: &str) -> Self {
        shared_daemon().await;
        Self::new(&format!("secrets-{name}"), databases()).await
    }

    /// Waits until the state of a section of a daemon says with which settings it runs.
    pub(crate) async fn settings_noted(&self, section: &str) {
        integration::settings_noted(&self.edge, "default", section, LIMIT).await.unwrap();
    }

    /// A namespace of this place: its prefix and the suffix.
    pub(crate) fn namespace(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.name)
    }

    pub(crate) fn local_namespace(&self, suffix: &str) -> String {
        self.namespace(suffix) + &self.mapping.local_namespace_suffix
    }

    /// The kind on the hub.
    pub(crate) fn remote(&self, suffix: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.hub.clone(), &self.namespace(suffix), &self.kind)
    }

    /// The kind on the edge.
    pub(crate) fn local(&self, suffix: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.edge.clone(), &self.local_namespace(suffix), &self.kind)
    }

    /// Secrets on the hub.
    pub(crate) fn remote_secrets(&self, suffix: &str) -> Api<Secret> {
        Api::namespaced(self.hub.clone(), &self.namespace(suffix))
    }

    /// Secrets on the edge.
    pub(crate) fn local_secrets(&self, suffix: &str) -> Api<Secret> {
        Api::namespaced(self.edge.clone(), &self.local_namespace(suffix))
    }

    /// Makes a namespace on the hub.
    pub(crate) async fn make_remote_namespace(&self, suffix: &str) {
        make_namespace(&self.hub, &self.namespace(suffix), &json!({})).await;
    }

    /// Makes a namespace on the edge that nobody owns.
    pub(crate) async fn make_local_namespace(&self, suffix: &str) {
        make_namespace(&self.edge, &self.local_namespace(suffix), &json!({})).await;
    }

    /// Makes a namespace on both sides.
    pub(crate) async fn make_namespaces(&self, suffix: &str) {
        self.make_remote_namespace(suffix).await;
        self.make_local_namespace(suffix).await;
    }

    /// An object of the kind, without a namespace: the API fills it in.
    pub(crate) fn object(&self, name: &str, content: &Value) -> DynamicObject {
        let mut object = json!({
            "apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": {"name": name},
        });
        merge(&mut object, content);
        serde_json::from_value(object).unwrap()
    }

    /// Makes an object on the hub.
    pub(crate) async fn make_remote(&self, suffix: &str, name: &str, content: &Value) -> DynamicObject {
        self.remote(suffix).create(&PostParams::default(), &self.object(name, content)).await.unwrap()
    }

    /// Makes an object on the edge.
    pub(crate) async fn make_local(&self, suffix: &str, name: &str, content: &Value) -> DynamicObject {
        self.local(suffix).create(&PostParams::default(), &self.object(name, content)).await.unwrap()
    }

    /// Waits until both sides are in step.
    pub(crate) async fn in_step(&self) {
        eventually(format!("{} to be in step", self.name), LIMIT, async || {
            match differences(&self.hub, &self.edge, &self.kind, &self.mapping).await {
                Ok(found) if found.is_empty() => Ok(()),
                Ok(found) => Err(found.join("\n")),
                Err(error) => Err(error.chain()),
            }
        })
        .await
        .unwrap();
    }

    /// Waits until a change that was made now has travelled both ways, several times: whatever the daemon still had to
    /// do for changes before, it has begun. The object that travels is made first in a namespace of its own.
    pub(crate) async fn quiet(&self) {
        self.quiet_with(&json!({})).await;
    }

    /// The same with a messenger that has this content too.
    pub(crate) async fn quiet_with(&self, content: &Value) {
        let name = "messenger";
        for round in 0..3 {
            let value = format!("{round}-{}", self.messages(content).await);
            let patch = json!({"metadata": {"labels": {"message": value}}});
            self.remote("messages").patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            self.local_has("messages", name, |local| local.labels().get("message") == Some(&value)).await;
        }
    }

    /// A number that was not in a message before; makes the messenger, where there is none.
    async fn messages(&self, content: &Value) -> String {
        if let Some(messenger) = self.remote("messages").get_opt("messenger").await.unwrap() {
            return messenger.resource_version().unwrap_or_default();
        }
        self.make_namespaces("messages").await;
        let mut messenger = self.minimal();
        merge(&mut messenger, content);
        self.make_remote("messages", "messenger", &messenger).await;
        self.local_has("messages", "messenger", |_| true).await;
        "first".to_owned()
    }

    /// The least that the API server takes.
    fn minimal(&self) -> Value {
        match self.kind.kind.as_str() {
            "Database" => json!({"spec": {"engine": "messenger-1"}}),
            "ConfigMap" => json!({}),
            _ => json!({"spec": {}}),
        }
    }

    /// Waits until the local object is there and so.
    pub(crate) async fn local_has(
        &self,
        suffix: &str,
        name: &str,
        holds: impl Fn(&DynamicObject) -> bool,
    ) -> DynamicObject {
        object_that(&self.local(suffix), &format!("{name} on the edge"), name, holds).await
    }

    /// Waits until the remote object is there and so.
    pub(crate) async fn remote_has(
        &self,
        suffix: &str,
        name: &str,
        holds: impl Fn(&DynamicObject) -> bool,
    ) -> DynamicObject {
        object_that(&self.remote(suffix), &format!("{name} on the hub"), name, holds).await
    }

    /// Waits until the local object is gone.
    pub(crate) async fn local_gone(&self, suffix: &str, name: &str) {
        gone(&self.local(suffix), &format!("{name} on the edge"), name).await;
    }

    /// Waits until the remote object is gone.
    pub(crate) async fn remote_gone(&self, suffix: &str, name: &str) {
        gone(&self.remote(suffix), &format!("{name} on the hub"), name).await;
    }

    pub(crate) async fn patch_remote(&self, suffix: &str, name: &str, patch: &Value) -> DynamicObject {
        self.remote(suffix).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// Puts the remote object's content in the place of what is there, whatever was written since it was read.
    pub(crate) async fn replace_remote(&self, suffix: &str, name: &str, mut object: DynamicObject) {
        let held = self.remote(suffix).get(name).await.unwrap();
        object.metadata = held.metadata;
        self.remote(suffix).replace(name, &PostParams::default(), &object).await.unwrap();
    }

    pub(crate) async fn patch_local(&self, suffix: &str, name: &str, patch: &Value) -> DynamicObject {
        self.local(suffix).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// Merges into the local object's status.
    pub(crate) async fn patch_local_status(&self, suffix: &str, name: &str, status: &Value) -> DynamicObject {
        let patch = Patch::Merge(json!({"status": status}));
        self.local(suffix).patch_status(name, &PatchParams::default(), &patch).await.unwrap()
    }

    pub(crate) async fn delete_remote(&self, suffix: &str, name: &str) {
        self.remote(suffix).delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits for an Event about the object on the edge, and gives its note.
    pub(crate) async fn event(&self, suffix: &str, name: &str, reason: &str) -> String {
        let api: Api<Event> = Api::namespaced(self.edge.clone(), &self.local_namespace(suffix));
        eventually(format!("an Event {reason} about {name}"), LIMIT, async || {
            let events = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let about = |event: &&Event| {
                event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name)
                    && event.reason.as_deref() == Some(reason)
            };
            let found = events.items.iter().find(about);
            found
                .map(|event| event.note.clone().unwrap_or_default())
                .ok_or_else(|| format!("{:?}", events.items.iter().map(|event| &event.reason).collect::<Vec<_>>()))
        })
        .await
        .unwrap()
    }

    /// How many Events there are about the object on the edge, by reason.
    pub(crate) async fn events(&self, suffix: &str, name: &str) -> Counts {
        let api: Api<Event> = Api::namespaced(self.edge.clone(), &self.local_namespace(suffix));
        let mut counts = Counts::new();
        for event in api.list(&ListParams::default()).await.unwrap().items {
            if event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name) {
                *counts.entry(event.reason.unwrap_or_default()).or_default() += 1;
            }
        }
        counts
    }

    /// Marks the present moment on both sides.
    pub(crate) async fn mark(&self) -> (Mark, Mark) {
        (mark_of(&self.world.hub).await, mark_of(&self.world.edge).await)
    }

    /// What the daemon asked of the hub and of the edge since then, in this namespace and about it. Watches aside.
    pub(crate) async fn counted_with_events(&self, suffix: &str, since: (Mark, Mark)) -> (Counts, Counts) {
        let about = |record: &Record, namespace: &str| {
            record.namespace == namespace || (record.resource == "namespaces" && record.name == namespace)
        };
        let (remote, local) = (self.namespace(suffix), self.local_namespace(suffix));
        let hub = count(&self.world.hub, since.0, |record| about(record, &remote)).await;
        (hub, count(&self.world.edge, since.1, |record| about(record, &local)).await)
    }

    /// The same without Events, which may come long after what they tell of.
    pub(crate) async fn counted(&self, suffix: &str, since: (Mark, Mark)) -> (Counts, Counts) {
        let (mut hub, mut edge) = self.counted_with_events(suffix, since).await;
        for counts in [&mut hub, &mut edge] {
            counts.retain(|request, _| !request.ends_with(" events"));
        }
        (hub, edge)
    }
}

/// The value of a series of this section.
pub(crate) async fn series(section: &Section, name: &str, labels: &str) -> Option<String> {
    let metrics = section.towline.admin().metrics().await.unwrap();
    let begin = format!("{name}{{");
    let line = metrics.lines().find(|line| line.starts_with(&begin) && line.contains(labels))?.to_owned();
    line.rsplit(' ').next().map(str::to_owned)
}

/// Marks the present moment in one cluster.
pub(crate) async fn mark_of(plane: &ControlPlane) -> Mark {
    plane.audit().unwrap().mark().await.unwrap()
}

/// The daemon's requests on one cluster since then, as `verb resource/subresource`.
pub(crate) async fn count(plane: &ControlPlane, since: Mark, takes: impl Fn(&Record) -> bool) -> Counts {
    let records = plane.audit().unwrap().records(&Filter::since(since).user(users::TOWLINE)).await.unwrap();
    let mut counts = Counts::new();
    for record in records.iter().filter(|record| takes(record)) {
        let resource = match (record.resource.as_str(), record.subresource.as_str()) {
            ("", _) => record.uri.clone(),
            (resource, "") => resource.to_owned(),
            (resource, subresource) => format!("{resource}/{subresource}"),
        };
        *counts.entry(format!("{} {resource}", record.verb)).or_default() += 1;
    }
    counts
}

/// Waits until an object is there and so.
pub(crate) async fn object_that(
    api: &Api<DynamicObject>,
    what: &str,
    name: &str,
    holds: impl Fn(&DynamicObject) -> bool,
) -> DynamicObject {
    eventually(what, LIMIT, async || match api.get_opt(name).await {
        Ok(Some(object)) if holds(&object) => Ok(object),
        Ok(Some(object)) => Err(serde_json::to_string(&object).unwrap_or_default()),
        Ok(None) => Err("it is not there".to_owned()),
        Err(error) => Err(error.to_string()),
    })
    .await
    .unwrap()
}

/// Waits until an object is gone.
pub(crate) async fn gone<K>(api: &Api<K>, what: &str, name: &str)
where
    K: Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    eventually(format!("{what} to be gone"), LIMIT, async || match api.get_opt(name).await {
        Ok(None) => Ok(()),
        Ok(Some(object)) => Err(serde_json::to_string(&object).unwrap_or_default()),
        Err(error) => Err(error.to_string()),
    })
    .await
    .unwrap();
}

/// Makes a namespace with these annotations.
pub(crate) async fn make_namespace(client: &Client, name: &str, annotations: &Value) {
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
}

pub(crate) fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

//! One cluster of the story, as the people and controllers in it use it.

use std::time::{Duration, Instant};

use integration::arrivals::{Arrivals, Change};
use integration::audit::Mark;
use integration::{ControlPlane, Filter, Options, crds, eventually, users};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::controller::CREDENTIALS;
use crate::error::Error;
use crate::requests::Requests;

/// Far longer than anything takes, on a machine that others use as well.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

pub(crate) fn databases() -> ApiResource {
    ApiResource {
        group: "demo.towline.dev".to_owned(),
        version: "v1".to_owned(),
        api_version: "demo.towline.dev/v1".to_owned(),
        kind: "Database".to_owned(),
        plural: "databases".to_owned(),
    }
}

/// A new database: `kubectl create` would send the same.
pub(crate) fn database(namespace: &str, name: &str, size: &str) -> Value {
    json!({
        "apiVersion": "demo.towline.dev/v1", "kind": "Database",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"engine": "postgres-17", "storage": size},
    })
}

/// A control plane, with the one who acts in the story.
pub(crate) struct Cluster {
    /// `hub`, `west` or `east`.
    pub(crate) name: &'static str,
    pub(crate) plane: ControlPlane,
    /// For looking, and for what nobody in the story does.
    pub(crate) admin: Client,
    /// The hub's user, or an edge's controllers.
    pub(crate) user: Client,
    pub(crate) is_up: bool,
    start: Option<Mark>,
    counted: Requests,
}

impl Cluster {
    /// Starts one that serves the demo kind, and others.
    pub(crate) async fn start(name: &'static str, user: &str, others: &[&'static str]) -> Result<Self, Error> {
        let options = Options::named(name).with_crds(&[crds::DATABASES]).with_crds(others);
        let plane = ControlPlane::start(options).await?;
        let (admin, user) = (plane.client(users::ADMIN).await?, plane.client(user).await?);
        let cluster = Self { name, plane, admin, user, is_up: true, start: None, counted: Requests::default() };
        cluster.warm_up().await?;
        Ok(cluster)
    }

    /// The first write of a new kind takes a new API server two seconds, which are not the story's.
    async fn warm_up(&self) -> Result<(), Error> {
        let (namespace, name) = ("default", "warm-up");
        self.create(namespace, name, database(namespace, name, "1Gi")).await?;
        self.delete(namespace, name).await.map(|_| ())
    }

    /// Waits until the cluster's own controllers act: on a database that nobody else knows, and on its end, which the
    /// garbage collector has to allow.
    pub(crate) async fn controllers_act(&self) -> Result<(), Error> {
        let (namespace, name) = ("default", "probe");
        self.create(namespace, name, database(namespace, name, "1Gi")).await?;
        let api = self.databases(namespace);
        eventually(format!("a status of {name} on {}", self.name), LIMIT, async || {
            let probe = api.get(name).await.map_err(|error| error.to_string())?;
            let phase = probe.data.pointer("/status/phase").and_then(Value::as_str);
            if phase == Some("Ready") { Ok(()) } else { Err(format!("{phase:?}")) }
        })
        .await?;
        let deleted = api.delete(name, &DeleteParams::foreground()).await;
        deleted.map_err(Error::kubernetes(self.did(&format!("delete {namespace}/{name}"))))?;
        eventually(format!("{name} to be gone from {}", self.name), LIMIT, async || match api.get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(probe)) => Err(format!("{:?}", probe.metadata.finalizers)),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        Ok(())
    }

    /// The databases in a namespace, for whoever acts in this cluster.
    pub(crate) fn databases(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.user.clone(), namespace, &databases())
    }

    pub(crate) async fn make_namespace(&self, name: &str) -> Result<(), Error> {
        let api: Api<Namespace> = Api::all(self.user.clone());
        let namespace = Namespace { metadata: named(name), ..Namespace::default() };
        let made = api.create(&PostParams::default(), &namespace).await;
        made.map(|_| ()).map_err(Error::kubernetes(self.did(&format!("make namespace {name}"))))
    }

    /// Makes the secret that is filled later.
    pub(crate) async fn make_empty_credentials(&self, namespace: &str) -> Result<(), Error> {
        let secret = Secret { metadata: named(CREDENTIALS), type_: Some("Opaque".to_owned()), ..Secret::default() };
        let made = self.secrets(namespace).create(&PostParams::default(), &secret).await;
        made.map(|_| ()).map_err(Error::kubernetes(self.did(&format!("make {namespace}/{CREDENTIALS}"))))
    }

    pub(crate) async fn project_status(&self, name: &str) -> Result<Value, Error> {
        let kind = ApiResource {
            group: "hossted.com".to_owned(),
            version: "v1".to_owned(),
            api_version: "hossted.com/v1".to_owned(),
            kind: "Hosstedproject".to_owned(),
            plural: "hosstedprojects".to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(self.admin.clone(), &kind);
        let found = api.get(name).await.map_err(Error::kubernetes(self.did(&format!("read project {name}"))))?;
        Ok(found.data.get("status").cloned().unwrap_or_default())
    }

    pub(crate) fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.user.clone(), namespace)
    }

    /// Makes a database, and tells when the request was sent.
    pub(crate) async fn create(&self, namespace: &str, name: &str, object: Value) -> Result<Instant, Error> {
        let action = self.did(&format!("make {namespace}/{name}"));
        let object = serde_json::from_value(object).map_err(|error| Error::wrong(&action, error.to_string()))?;
        let sent = Instant::now();
        self.databases(namespace).create(&PostParams::default(), &object).await.map_err(Error::kubernetes(action))?;
        Ok(sent)
    }

    /// Changes a database, and tells when the request was sent.
    pub(crate) async fn change(&self, namespace: &str, name: &str, patch: Value) -> Result<Instant, Error> {
        let sent = Instant::now();
        let changed = self.databases(namespace).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        changed.map_err(Error::kubernetes(self.did(&format!("change {namespace}/{name}"))))?;
        Ok(sent)
    }

    /// Deletes a database, and tells when the request was sent.
    pub(crate) async fn delete(&self, namespace: &str, name: &str) -> Result<Instant, Error> {
        let sent = Instant::now();
        let deleted = self.databases(namespace).delete(name, &DeleteParams::default()).await;
        deleted.map_err(Error::kubernetes(self.did(&format!("delete {namespace}/{name}"))))?;
        Ok(sent)
    }

    pub(crate) async fn get(&self, namespace: &str, name: &str) -> Result<DynamicObject, Error> {
        let found = self.databases(namespace).get(name).await;
        found.map_err(Error::kubernetes(self.did(&format!("read {namespace}/{name}"))))
    }

    /// Looks out for a database that is as wanted, from now on.
    pub(crate) async fn look_out(
        &self,
        (namespace, name): (&str, &str),
        wanted: impl Fn(Change, &Value) -> bool + Send + Sync + 'static,
    ) -> Result<Sighting, Error> {
        self.look_out_for(&databases(), (namespace, name), wanted).await
    }

    /// Looks out for [`CREDENTIALS`] that are as wanted, from now on.
    pub(crate) async fn look_out_for_credentials(
        &self,
        namespace: &str,
        wanted: impl Fn(Change, &Value) -> bool + Send + Sync + 'static,
    ) -> Result<Sighting, Error> {
        self.look_out_for(&ApiResource::erase::<Secret>(&()), (namespace, CREDENTIALS), wanted).await
    }

    /// Looks out for an object of a kind that is as wanted, from now on.
    pub(crate) async fn look_out_for(
        &self,
        kind: &ApiResource,
        (namespace, name): (&str, &str),
        wanted: impl Fn(Change, &Value) -> bool + Send + Sync + 'static,
    ) -> Result<Sighting, Error> {
        let key = (Value::from(namespace), Value::from(name));
        let seen = move |change: &Change, object: &Value| {
            let is_it = object.pointer("/metadata/namespace") == Some(&key.0)
                && object.pointer("/metadata/name") == Some(&key.1);
            (is_it && wanted(*change, object)).then(|| SEEN.to_owned())
        };
        let arrivals = Arrivals::watch(&self.admin, kind, seen).await?;
        Ok(Sighting { what: format!("{namespace}/{name} on {}", self.name), arrivals })
    }

    /// Looks out for databases in a namespace that are as wanted, from now on: each counts once.
    pub(crate) async fn look_out_in(
        &self,
        namespace: &str,
        wanted: impl Fn(Change) -> bool + Send + Sync + 'static,
    ) -> Result<Arrivals, Error> {
        let namespace = Value::from(namespace);
        let seen = move |change: &Change, object: &Value| {
            let is_it = object.pointer("/metadata/namespace") == Some(&namespace) && wanted(*change);
            is_it.then(|| object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned())
        };
        Ok(Arrivals::watch(&self.admin, &databases(), seen).await?)
    }

    /// Begins to count the requests of Towline's users.
    pub(crate) async fn begin_to_count(&mut self) -> Result<(), Error> {
        self.start = Some(self.plane.audit()?.mark().await?);
        Ok(())
    }

    /// The requests of the daemon and of the hub server so far, where the API server runs; else those until it ended.
    pub(crate) async fn requests(&mut self) -> Result<Requests, Error> {
        if let Some(start) = self.start
            && self.is_up
        {
            let mut records = self.plane.audit()?.records(&Filter::since(start).with_watches()).await?;
            records.retain(|record| [users::TOWLINE, users::HUB_SERVER].contains(&record.user.as_str()));
            self.counted = Requests::of(&records);
        }
        Ok(self.counted)
    }

    fn did(&self, what: &str) -> String {
        format!("{what} on {}", self.name)
    }
}

const SEEN: &str = "seen";

/// Something that somebody looks out for.
#[derive(Debug)]
pub(crate) struct Sighting {
    what: String,
    arrivals: Arrivals,
}

impl Sighting {
    /// Waits until it was seen, and tells when.
    pub(crate) async fn moment(&self) -> Result<Instant, Error> {
        self.arrivals.wait_for(1, LIMIT).await.map_err(|error| Error::wrong(&self.what, error.to_string()))?;
        self.arrivals.first(SEEN).ok_or_else(|| Error::wrong(&self.what, "not seen"))
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

/// How much a database may store.
pub(crate) fn storage(database: &Value) -> &str {
    database.pointer("/spec/storage").and_then(Value::as_str).unwrap_or("nothing")
}

/// What a database's spec says, for people: `postgres-17, 10Gi`.
pub(crate) fn spec(database: &DynamicObject) -> String {
    let engine = database.data.pointer("/spec/engine").and_then(Value::as_str).unwrap_or("nothing");
    format!("{engine}, {}", storage(&database.data))
}

//! A cluster with a project and releases, and the API that is told.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use integration::rbac::grant_inventory;
use integration::{
    Chart, ControlPlane, Error, Filter, Helm, Mark, Options as PlaneOptions, Sink, Towline, crds, eventually, helm,
    users,
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// From a change to its post, instead of the default of 10 s.
pub(crate) const DELAY: Duration = Duration::from_millis(500);
/// No step takes that long, even on a machine that does other things too.
const LONGEST_STEP: Duration = Duration::from_mins(10);
/// Requests of this program in flight.
const AT_ONCE: usize = 16;
/// How large the manifests of a release are that this program writes.
const MANIFEST: usize = 8_000;

pub(crate) struct World {
    pub(crate) plane: ControlPlane,
    pub(crate) sink: Sink,
    admin: Client,
    helm: Helm,
    chart: String,
    namespaces: usize,
}

impl World {
    /// A cluster with so many namespaces and a project.
    pub(crate) async fn start(namespaces: usize) -> Result<Self, Error> {
        let options = PlaneOptions { controller_manager: false, ..PlaneOptions::named("inventory") };
        let plane = ControlPlane::start(options.with_crds(&[crds::HOSSTED_PROJECTS])).await?;
        let admin = plane.client(users::ADMIN).await?;
        grant_inventory(&admin, None).await?;
        let helm = Helm::on(&plane).await?;
        let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\ndata: {value: \"{{ .Values.value }}\"}\n";
        let chart = helm.chart(&Chart::new("small", "1.0").with("templates/config.yaml", template))?;
        let world = Self { plane, sink: Sink::start().await?, admin, helm, chart, namespaces };
        for number in 0..namespaces {
            let metadata = ObjectMeta { name: Some(world.namespace(number)), ..ObjectMeta::default() };
            let namespace = Namespace { metadata, ..Namespace::default() };
            let made = Api::all(world.admin.clone()).create(&PostParams::default(), &namespace).await;
            made.map_err(Error::kubernetes("create a namespace"))?;
        }
        let project =
            json!({"apiVersion": "hossted.com/v1", "kind": "Hosstedproject", "metadata": {"name": "main"}, "spec": {}});
        let project = serde_json::from_value(project).map_err(|error| unreadable("the project", &error))?;
        let made = world.projects().create(&PostParams::default(), &project).await;
        made.map_err(Error::kubernetes("create the project"))?;
        std::fs::write(world.token(), "token-1\n").map_err(Error::file("write", &world.token()))?;
        Ok(world)
    }

    fn namespace(&self, number: usize) -> String {
        format!("bench-{}", number % self.namespaces)
    }

    fn token(&self) -> std::path::PathBuf {
        self.plane.directory().join("api-token")
    }

    fn projects(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("hossted.com", "v1", "Hosstedproject");
        Api::all_with(self.admin.clone(), &ApiResource::from_gvk_with_plural(&kind, "hosstedprojects"))
    }

    /// Installs a release.
    pub(crate) async fn install(&self, name: &str, number: usize) -> Result<(), Error> {
        let namespace = self.namespace(number);
        self.helm.run(&["install", name, &self.chart, "--namespace", &namespace]).await.map(drop)
    }

    /// Upgrades it.
    pub(crate) async fn upgrade(&self, name: &str, number: usize) -> Result<(), Error> {
        let namespace = self.namespace(number);
        let args = ["upgrade", name, &self.chart, "--namespace", &namespace, "--set", "value=2"];
        self.helm.run(&args).await.map(drop)
    }

    /// Writes the records of so many further releases.
    pub(crate) async fn write_records(&self, count: usize) -> Result<(), Error> {
        let made = stream::iter(0..count).map(async |number| {
            let name = format!("many-{number}");
            let document = json!({"info": {"last_deployed": "2026-11-21T21:58:40Z"}, "manifest": name.repeat(MANIFEST / name.len()),
                "chart": {"metadata": {"name": name, "appVersion": "1"}}});
            let packed = helm::packed(document.to_string().as_bytes()).map_err(|error| Error::Unreadable {
                what: "a record that was packed".to_owned(),
                detail: error.to_string(),
            })?;
            let mut record = helm::record(&name, &packed);
            let namespace = self.namespace(number);
            if let Some(place) = record.pointer_mut("/metadata/namespace") {
                *place = json!(namespace);
            }
            let record: Secret = serde_json::from_value(record).map_err(|error| unreadable("a record", &error))?;
            let made = Api::namespaced(self.admin.clone(), &namespace).create(&PostParams::default(), &record).await;
            made.map(drop).map_err(Error::kubernetes("write a record"))
        });
        made.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Starts the daemon, and waits until its lists have ended.
    pub(crate) async fn towline(&self) -> Result<Towline, Error> {
        let config = format!(
            "[clusters.edge]\nkubeconfig = \"{}\"\n\
             [inventory]\ncluster = \"edge\"\napi_url = \"{}/v1\"\ntoken_file = \"{}\"\norg_id = \"o1\"\nemail = \"a@b.example\"\n\
             delay = \"{}ms\"\n",
            self.plane.kubeconfig(users::TOWLINE)?.display(),
            self.sink.url(),
            self.token().display(),
            DELAY.as_millis()
        );
        let towline = Towline::start(&config, &[]).await?;
        towline.wait_ready(LONGEST_STEP).await?;
        Ok(towline)
    }

    /// Waits until the status says of so many releases that they were told and acknowledged.
    pub(crate) async fn wait_until_told(&self, releases: usize) -> Result<(), Error> {
        self.wait("all releases to be told", |entries| {
            let told = entries.iter().filter(|entry| is_told(entry)).count();
            if told == releases { Ok(()) } else { Err(format!("{told}")) }
        })
        .await
    }

    /// Waits until a release was told and acknowledged so many times.
    pub(crate) async fn wait_until_sent(&self, name: &str, times: u64) -> Result<(), Error> {
        self.wait("the release to be told", |entries| {
            let entry =
                entries.iter().find(|entry| entry.get("name").is_some_and(|found| found == name)).ok_or("no entry")?;
            if is_told(entry) && entry.get("sent").is_some_and(|sent| *sent == times) {
                Ok(())
            } else {
                Err(entry.to_string())
            }
        })
        .await
    }

    async fn wait(&self, what: &str, look: impl Fn(&[Value]) -> Result<(), String>) -> Result<(), Error> {
        eventually(what, LONGEST_STEP, async || {
            let project = self.projects().get("main").await.map_err(|error| error.to_string())?;
            look(project.data.pointer("/status/helmStatus").and_then(Value::as_array).map_or(&[], Vec::as_slice))
        })
        .await
    }

    /// The daemon's requests since then, but for those that ask whether the cluster answers; and the watches among them.
    pub(crate) async fn requests(&self, since: Mark) -> Result<(usize, usize), Error> {
        let filter = Filter::since(since).user(users::TOWLINE).with_watches();
        let records = self.plane.audit()?.records(&filter).await?;
        let records: Vec<_> = records.iter().filter(|record| !record.uri.starts_with("/version")).collect();
        let watches = records.iter().filter(|record| record.verb == "watch").count();
        Ok((records.len() - watches, watches))
    }
}

fn is_told(entry: &Value) -> bool {
    entry.get("sendingHash").is_none() && entry.get("sentHash").is_some()
}

fn unreadable(what: &str, error: &serde_json::Error) -> Error {
    Error::Unreadable { what: what.to_owned(), detail: error.to_string() }
}

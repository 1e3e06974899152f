//! The inventory: what it costs to report releases of Helm, to report one that changed, to rest, and to start in step; and what many
//! releases take.
//!
//! One control plane, and one API that accepts everything.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use integration::rbac::grant_inventory;
use integration::{
    Chart, ControlPlane, Error, Helm, Options as PlaneOptions, Sink, Towline, crds, eventually, helm, users,
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::measure::{Done, Probes};
use crate::options::Options;
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "one API server and one API that accepts everything, on this machine over loopback; releases that Helm has installed, \
                       with a ConfigMap each, and many that are written as Helm writes them; towline's release build";
const NAMESPACES: usize = 50;
/// From a change to its post, instead of the default of 10 s.
const DELAY: Duration = Duration::from_millis(500);
/// No step takes that long, even on a machine that does other things too.
const LONGEST_STEP: Duration = Duration::from_mins(10);
/// Requests of this program in flight.
const AT_ONCE: usize = 16;
/// How large the manifests of a release are that this program writes.
const MANIFEST: usize = 8_000;

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("inventory", SETTING);
    for _ in 0..options.runs {
        let mut world = Box::pin(Inventory::start(options)).await?;
        runner::run(&mut world, &options.releases.to_string(), "", &mut table).await?;
    }
    Ok(table)
}

struct Inventory<'o> {
    options: &'o Options,
    plane: ControlPlane,
    sink: Sink,
    admin: Client,
    helm: Helm,
    chart: String,
    towline: Option<Towline>,
}

#[derive(Clone, Copy)]
enum Step {
    /// The first start: all releases are posted.
    FirstReports,
    Upgrade,
    Idle,
    /// The daemon is ended and started with everything told.
    Restart,
    /// Many further releases, posted by a process of their own, so that its memory is that of so many.
    Many,
}

impl World for Inventory<'_> {
    type Step = Step;
    type Ready = ();

    fn phases(&self) -> Vec<Phase<Step>> {
        vec![
            Phase::new("first reports", Step::FirstReports, "releases"),
            Phase::new("one release upgraded", Step::Upgrade, "releases"),
            Phase::new(format!("idle, {} s", self.options.idle.as_secs()), Step::Idle, ""),
            Phase::new("start in step", Step::Restart, ""),
            Phase::new("many further releases", Step::Many, "releases"),
        ]
    }

    fn probes(&self) -> Probes<'_> {
        Probes {
            programs: self.towline.iter().map(|towline| towline as _).collect(),
            planes: vec![(&self.plane, users::TOWLINE)],
            sink: Some(&self.sink),
            ..Probes::default()
        }
    }

    /// Each step waits for the acknowledgement in the project's status, which is written last.
    async fn settled(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn prepare(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Step::FirstReports => {
                for number in 0..self.options.releases {
                    let namespace = namespace(number);
                    self.helm.run(&["install", &release(number), &self.chart, "--namespace", &namespace]).await?;
                }
            }
            Step::Restart => self.stop().await?,
            Step::Many => {
                self.stop().await?;
                self.write_records().await?;
            }
            Step::Upgrade | Step::Idle => {}
        }
        Ok(())
    }

    async fn perform(&mut self, step: Step, (): ()) -> Result<Done, Error> {
        let (began, releases) = (Instant::now(), self.options.releases);
        let changes = match step {
            Step::FirstReports => {
                self.start_towline().await?;
                self.wait_until_told(releases).await?;
                releases
            }
            Step::Upgrade => {
                let (name, namespace) = (release(0), namespace(0));
                let args = ["upgrade", &name, &self.chart, "--namespace", &namespace, "--set", "value=2"];
                self.helm.run(&args).await?;
                self.wait_until_sent_twice(&name).await?;
                1
            }
            Step::Idle => {
                tokio::time::sleep(self.options.idle).await;
                return Ok(Done::default());
            }
            Step::Restart => {
                self.start_towline().await?;
                let time = Some(began.elapsed());
                // What has to be told would be on its way by now.
                tokio::time::sleep(DELAY * 4).await;
                return Ok(Done { time, ..Done::default() });
            }
            Step::Many => {
                self.start_towline().await?;
                self.wait_until_told(releases + self.options.many).await?;
                self.options.many
            }
        };
        Ok(Done { changes: Some(changes), time: Some(began.elapsed()), ..Done::default() })
    }
}

impl<'o> Inventory<'o> {
    async fn start(options: &'o Options) -> Result<Self, Error> {
        let plane = PlaneOptions { controller_manager: false, ..PlaneOptions::named("inventory") };
        let plane = ControlPlane::start(plane.with_crds(&[crds::HOSSTED_PROJECTS])).await?;
        let admin = plane.client(users::ADMIN).await?;
        grant_inventory(&admin, None).await?;
        let helm = Helm::on(&plane).await?;
        let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\ndata: {value: \"{{ .Values.value }}\"}\n";
        let chart = helm.chart(&Chart::new("small", "1.0").with("templates/config.yaml", template))?;
        for number in 0..NAMESPACES {
            let metadata = ObjectMeta { name: Some(namespace(number)), ..ObjectMeta::default() };
            let namespace = Namespace { metadata, ..Namespace::default() };
            let made = Api::all(admin.clone()).create(&PostParams::default(), &namespace).await;
            made.map_err(Error::kubernetes("create a namespace"))?;
        }
        let world = Self { options, plane, sink: Sink::start().await?, admin, helm, chart, towline: None };
        let project =
            json!({"apiVersion": "hossted.com/v1", "kind": "Hosstedproject", "metadata": {"name": "main"}, "spec": {}});
        let project = serde_json::from_value(project).map_err(|error| unreadable("the project", &error))?;
        let made = world.projects().create(&PostParams::default(), &project).await;
        made.map_err(Error::kubernetes("create the project"))?;
        std::fs::write(world.token(), "token-1\n").map_err(Error::file("write", &world.token()))?;
        Ok(world)
    }

    fn token(&self) -> std::path::PathBuf {
        self.plane.directory().join("api-token")
    }

    fn projects(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("hossted.com", "v1", "Hosstedproject");
        Api::all_with(self.admin.clone(), &ApiResource::from_gvk_with_plural(&kind, "hosstedprojects"))
    }

    async fn write_records(&self) -> Result<(), Error> {
        let made = stream::iter(0..self.options.many).map(async |number| {
            let name = format!("many-{number}");
            let document = json!({"info": {"last_deployed": "2026-11-21T21:58:40Z"}, "manifest": name.repeat(MANIFEST / name.len()),
                "chart": {"metadata": {"name": name, "appVersion": "1"}}});
            let packed = helm::packed(document.to_string().as_bytes()).map_err(|error| Error::Unreadable {
                what: "a record that was packed".to_owned(),
                detail: error.to_string(),
            })?;
            let mut record = helm::record(&name, &packed);
            let namespace = namespace(number);
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
    async fn start_towline(&mut self) -> Result<(), Error> {
        let config = format!(
            "[clusters.edge]\nkubeconfig = \"{}\"\n\
             [inventory]\ncluster = \"edge\"\napi_url = \"{}/v1\"\ntoken_file = \"{}\"\norg_id = \"o1\"\nemail = \"a@b.example\"\n\
             delay = \"{}ms\"\n",
            self.plane.kubeconfig(users::TOWLINE)?.display(),
            self.sink.url(),
            self.token().display(),
            DELAY.as_millis()
        );
        let towline = self.towline.insert(Towline::start(&config, &[]).await?);
        towline.wait_ready(LONGEST_STEP).await
    }

    async fn stop(&mut self) -> Result<(), Error> {
        match self.towline.take() {
            Some(towline) => towline.terminate(LONGEST_STEP).await.map(drop),
            None => Ok(()),
        }
    }

    /// Waits until the status says of so many releases that they were told and acknowledged.
    async fn wait_until_told(&self, releases: usize) -> Result<(), Error> {
        self.wait("all releases to be told", |entries| {
            let told = entries.iter().filter(|entry| is_told(entry)).count();
            if told == releases { Ok(()) } else { Err(format!("{told}")) }
        })
        .await
    }

    /// Waits until a release was told and acknowledged a second time.
    async fn wait_until_sent_twice(&self, name: &str) -> Result<(), Error> {
        self.wait("the release to be told", |entries| {
            let entry = entries.iter().find(|entry| entry.get("name").is_some_and(|found| found == name));
            let entry = entry.ok_or("no entry")?;
            let is_sent = is_told(entry) && entry.get("sent").is_some_and(|sent| *sent == 2);
            if is_sent { Ok(()) } else { Err(entry.to_string()) }
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
}

fn release(number: usize) -> String {
    format!("web-{number}")
}

fn namespace(number: usize) -> String {
    format!("bench-{}", number % NAMESPACES)
}

fn is_told(entry: &Value) -> bool {
    entry.get("sendingHash").is_none() && entry.get("sentHash").is_some()
}

fn unreadable(what: &str, error: &serde_json::Error) -> Error {
    Error::Unreadable { what: what.to_owned(), detail: error.to_string() }
}

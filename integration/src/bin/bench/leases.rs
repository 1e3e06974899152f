//! Heartbeat leases: what it costs to start and to renew many in one daemon, and one in a side-car.
//!
//! One control plane is the hub, another the managed cluster with the credentials' Secret.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use futures::future::try_join;
use integration::{ControlPlane, Error, Filter, Options as PlaneOptions, Towline, eventually, users};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use serde_json::json;

use crate::measure::{Done, Probes};
use crate::options::Options;
use crate::runner::{self, Phase, World};
use crate::table::Table;

const SETTING: &str = "two API servers with an etcd of their own each (no fsync), all on this machine; audit log at level Metadata, written \
                       in batches; towline's release build";
/// Where the leases are, on the hub.
const LEASES: &str = "bench-leases";
/// Where the Secret is, on the managed cluster, and its name.
const SECRET_NAMESPACE: &str = "bench-add-on";
const SECRET: &str = "hub-kubeconfig";
/// No step takes that long, even on a machine that does other things too.
const LONGEST_STEP: Duration = Duration::from_mins(10);

pub(crate) async fn measure(options: &Options) -> Result<Table, Error> {
    let mut table = Table::new("lease", SETTING);
    let mut world = Run::start(options).await?;
    for _ in 0..options.runs {
        runner::run(&mut world, "", "", &mut table).await?;
    }
    Ok(table)
}

struct Run<'o> {
    options: &'o Options,
    hub: ControlPlane,
    managed: ControlPlane,
    /// May do everything on the hub, and is not counted.
    leases: Api<Lease>,
    towline: Option<Towline>,
}

/// One lease in a side-car, or many in a daemon.
#[derive(Clone, Copy)]
struct Fleet {
    leases: usize,
    duration: Duration,
    is_side_car: bool,
}

#[derive(Clone, Copy)]
enum Step {
    /// From the start of the process until all leases are there.
    Start(Fleet),
    Renew(Fleet),
}

impl World for Run<'_> {
    type Step = Step;
    type Ready = ();

    fn phases(&self) -> Vec<Phase<Step>> {
        let fleets = [
            Fleet { leases: 1, duration: Duration::from_secs(15), is_side_car: true },
            Fleet { leases: 1_000, duration: Duration::from_secs(30), is_side_car: false },
            Fleet { leases: self.options.leases, duration: Duration::from_mins(1), is_side_car: false },
        ];
        let phases = fleets.into_iter().flat_map(|fleet| {
            let Fleet { leases, duration, is_side_car } = fleet;
            let what =
                if is_side_car { "a side-car".to_owned() } else { format!("{leases} of {} s", duration.as_secs()) };
            [
                Phase::new(format!("{what}: start"), Step::Start(fleet), "leases"),
                Phase::new(format!("{what}: renewed"), Step::Renew(fleet), "renewals"),
            ]
        });
        phases.collect()
    }

    fn probes(&self) -> Probes<'_> {
        let programs = self.towline.iter().map(|towline| towline as _).collect();
        let planes = vec![(&self.hub, users::TOWLINE), (&self.managed, users::HUB_USER)];
        Probes { programs, planes, ..Probes::default() }
    }

    /// Leases are renewed all the time.
    async fn settled(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn prepare(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Step::Start(_) => {
                drop(self.towline.take());
                let gone = self.leases.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
                gone.map(drop).map_err(Error::kubernetes("delete the leases"))
            }
            Step::Renew(fleet) => {
                // All have been renewed once: what follows is the steady state.
                tokio::time::sleep(fleet.duration / 2).await;
                Ok(())
            }
        }
    }

    async fn perform(&mut self, step: Step, (): ()) -> Result<Done, Error> {
        match step {
            Step::Start(fleet) => {
                let began = Instant::now();
                self.towline = Some(self.towline(fleet).await?);
                self.wait_for(fleet.leases).await?;
                Ok(Done { changes: Some(fleet.leases), time: Some(began.elapsed()), ..Done::default() })
            }
            Step::Renew(_) => {
                let audit = self.hub.audit()?;
                let renewals = Filter::since(audit.mark().await?).user(users::TOWLINE).verb("patch").resource("leases");
                let began = Instant::now();
                tokio::time::sleep(self.options.idle).await;
                let time = began.elapsed();
                Ok(Done { changes: Some(audit.count(&renewals).await?), time: Some(time), ..Done::default() })
            }
        }
    }
}

impl<'o> Run<'o> {
    async fn start(options: &'o Options) -> Result<Self, Error> {
        let start = |name: &str| ControlPlane::start(PlaneOptions::measured(name));
        let (hub, managed) = try_join(start("hub"), start("managed")).await?;
        let (hub_admin, managed_admin) = (hub.client(users::ADMIN).await?, managed.client(users::ADMIN).await?);
        for (client, name) in [(&hub_admin, LEASES), (&managed_admin, SECRET_NAMESPACE)] {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
            create(Api::all(client.clone()), &Namespace { metadata, ..Default::default() }).await?;
        }
        // The rights are wider than those of `deploy/`, which do not matter here.
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bench"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": users::TOWLINE}],
        });
        create::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>(Api::all(hub_admin.clone()), &read(binding)?).await?;
        let path = hub.kubeconfig(users::TOWLINE)?;
        let kubeconfig = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let secret = json!({"metadata": {"name": SECRET}, "stringData": {"kubeconfig": kubeconfig}});
        create::<Secret>(Api::namespaced(managed_admin, SECRET_NAMESPACE), &read(secret)?).await?;
        Ok(Self { options, hub, managed, leases: Api::namespaced(hub_admin, LEASES), towline: None })
    }

    async fn towline(&self, fleet: Fleet) -> Result<Towline, Error> {
        let kubeconfig = self.managed.kubeconfig(users::HUB_USER)?.display().to_string();
        let seconds = fleet.duration.as_secs();
        if fleet.is_side_car {
            let seconds = seconds.to_string();
            let flags = ["--lease-name", "lease-00000", "--lease-namespace", LEASES, "--hub-kubeconfig-secret", SECRET];
            let times = ["--lease-duration", &seconds, "--startup-delay", "0"];
            let env = [("WATCH_NAMESPACE", SECRET_NAMESPACE), ("KUBECONFIG", kubeconfig.as_str())];
            return Towline::start_lease(&[&flags[..], &times[..]].concat(), &env, "--").await;
        }
        let mut config = format!("[clusters.managed]\nkubeconfig = \"{kubeconfig}\"\n");
        for number in 0..fleet.leases {
            // Writing to a string can't fail.
            let _ = write!(
                config,
                "[[lease]]\nname = \"lease-{number:05}\"\ncluster = \"managed\"\nlease_name = \"lease-{number:05}\"\n\
                 lease_namespace = \"{LEASES}\"\nsecret_name = \"{SECRET}\"\nsecret_namespace = \"{SECRET_NAMESPACE}\"\n\
                 duration = \"{seconds}s\"\nstartup_delay = \"0s\"\n",
            );
        }
        Towline::start(&config, &[]).await
    }

    async fn wait_for(&self, count: usize) -> Result<(), Error> {
        eventually(format!("{count} leases to be on the hub"), LONGEST_STEP, async || {
            let listed = self.leases.list_metadata(&ListParams::default()).await;
            let found = listed.map_err(|error| error.to_string())?.items.len();
            if found >= count { Ok(()) } else { Err(format!("{found} are there")) }
        })
        .await
    }
}

async fn create<K>(api: Api<K>, object: &K) -> Result<(), Error>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), object).await.map(drop).map_err(Error::kubernetes("prepare a cluster"))
}

fn read<K: serde::de::DeserializeOwned>(object: serde_json::Value) -> Result<K, Error> {
    let unreadable =
        |error: serde_json::Error| Error::Unreadable { what: "an object".to_owned(), detail: error.to_string() };
    serde_json::from_value(object).map_err(unreadable)
}

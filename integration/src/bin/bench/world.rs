//! Two control planes and the daemon between them.

use std::time::{Duration, Instant};

use futures::future::try_join;
use integration::load::{Write, burst};
use integration::rbac::{Grant, Side};
use integration::{ControlPlane, Error, Options as PlaneOptions, Towline, eventually, users};
use kube::Client;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use crate::options::{Options, Propagation};

/// Name of the section.
const SECTION: &str = "bench";
/// No phase of 10,000 objects takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_PHASE: Duration = Duration::from_mins(20);

/// Two control planes, each with an etcd of its own.
pub(crate) struct Clusters {
    /// The source of the spec.
    pub(crate) hub: ControlPlane,
    /// The source of the status.
    pub(crate) edge: ControlPlane,
    /// For the load on the hub.
    pub(crate) hub_client: Client,
    /// For the load on the edge.
    pub(crate) edge_client: Client,
}

impl Clusters {
    /// Starts both, with the kind, the namespaces and the daemon's rights.
    pub(crate) async fn start(options: &Options) -> Result<Self, Error> {
        let (hub, edge) = try_join(
            ControlPlane::start(plane_options("hub", options)),
            ControlPlane::start(plane_options("edge", options)),
        )
        .await?;
        for (plane, side) in [(&hub, Side::Remote), (&edge, Side::Local)] {
            let admin = plane.client(users::ADMIN).await?;
            Grant::kind(side, options.kind.as_str(), options.kind.group()).apply(&admin).await?;
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
            // The namespaces are there before anything is measured, but for those that the daemon is to make.
            let made = if options.owned && side == Side::Local { 0 } else { options.namespaces };
            let namespaces = (0..made).map(|number| {
                let name = namespace(number, options.namespaces);
                let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                Write::create(&kind, None, &name, &body)
            });
            burst(&admin, namespaces.collect(), 4).await?;
        }
        let hub_client = hub.client(users::HUB_USER).await?;
        let edge_client = edge.client(users::EDGE_CONTROLLER).await?;
        Ok(Self { hub, edge, hub_client, edge_client })
    }

    /// Starts the daemon between them, and waits until it is ready.
    pub(crate) async fn towline(&self, options: &Options) -> Result<Towline, Error> {
        let config = format!(
            "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n[[sync]]\nname = \"{SECTION}\"\n\
             remote = \"hub\"\nlocal = \"edge\"\nresource = \"{}.v1.{}\"\npropagation_policy = \"{}\"\n",
            self.hub.kubeconfig(users::TOWLINE)?.display(),
            self.edge.kubeconfig(users::TOWLINE)?.display(),
            options.kind.as_str(),
            options.kind.group(),
            options.propagation.as_str(),
        );
        let towline = Towline::start(&config, &[]).await?;
        towline.wait_ready(LONGEST_PHASE).await?;
        Ok(towline)
    }
}

fn plane_options(name: &str, options: &Options) -> PlaneOptions {
    PlaneOptions {
        // It also ends the namespaces.
        controller_manager: options.propagation == Propagation::Foreground || options.owned,
        ..PlaneOptions::measured(name).with_crds(options.kind.crds())
    }
}

fn namespace(number: usize, namespaces: usize) -> String {
    format!("bench-{:02}", number % namespaces)
}

/// Namespace and name of an object.
pub(crate) fn place(number: usize, namespaces: usize) -> (String, String) {
    (namespace(number, namespaces), format!("object-{number:05}"))
}

/// Waits until the section says that all pairs are in step; how long that took, since `since`.
pub(crate) async fn wait_in_step(towline: &Towline, objects: usize, since: Instant) -> Result<Duration, Error> {
    eventually(format!("{objects} objects to be in step"), LONGEST_PHASE, async || {
        let report = towline.admin().section(SECTION).await.map_err(|error| error.to_string())?;
        let in_step = report.pointer("/objects/in_step").and_then(Value::as_u64);
        if in_step == u64::try_from(objects).ok() { Ok(since.elapsed()) } else { Err(report.to_string()) }
    })
    .await
}

/// Waits until the daemon does nothing any more: what follows a phase belongs to it.
pub(crate) async fn wait_at_rest(towline: &Towline) -> Result<(), Error> {
    /// In looks of 20 ms. The kernel counts CPU time in steps of 10 ms, and idling takes less than that in this time.
    const QUIET_LOOKS: u32 = 10;
    let (mut last, mut quiet) = (towline.usage()?.cpu, 0);
    eventually("towline to be at rest", LONGEST_PHASE, async || {
        let now = towline.usage().map_err(|error| error.to_string())?.cpu;
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        if quiet >= QUIET_LOOKS { Ok(()) } else { Err(format!("{now:?} of CPU time")) }
    })
    .await
}

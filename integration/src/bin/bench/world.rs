//! Two control planes, and the program between them.

use std::time::Duration;

use futures::future::try_join;
use integration::compare::{Mapping, differences};
use integration::load::{Write, burst};
use integration::rbac::{Grant, Side, grant_reference};
use integration::{ControlPlane, Error, Options as PlaneOptions, Reference, Towline, users};
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::json;

use crate::daemon::{Daemon, Program};
use crate::options::{Options, Propagation};

/// Name of the section.
pub(crate) const SECTION: &str = "bench";
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
    /// Starts both, with the kind, the namespaces and the programs' rights.
    pub(crate) async fn start(options: &Options) -> Result<Self, Error> {
        let (hub, edge) = try_join(
            ControlPlane::start(plane_options("hub", options)),
            ControlPlane::start(plane_options("edge", options)),
        )
        .await?;
        for (plane, side) in [(&hub, Side::Remote), (&edge, Side::Local)] {
            let admin = plane.client(users::ADMIN).await?;
            Grant::kind(side, options.kind.as_str(), options.kind.group()).apply(&admin).await?;
            if options.against.is_some() {
                grant_reference(&admin, options.kind.as_str(), options.kind.group()).await?;
            }
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

    /// Starts a program between them, and waits until it is ready.
    pub(crate) async fn start_program(&self, program: Program, options: &Options) -> Result<Daemon, Error> {
        let daemon = match program {
            Program::Towline => Daemon::Towline(Box::new(self.towline(options).await?)),
            Program::Go => {
                let propagation = options.propagation.as_str();
                Daemon::Go(Box::new(Reference::start(&self.hub, &self.edge, &resource(options), propagation).await?))
            }
        };
        daemon.wait_ready().await?;
        Ok(daemon)
    }

    async fn towline(&self, options: &Options) -> Result<Towline, Error> {
        let config = format!(
            "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n[[sync]]\nname = \"{SECTION}\"\n\
             remote = \"hub\"\nlocal = \"edge\"\nresource = \"{}\"\npropagation_policy = \"{}\"\n",
            self.hub.kubeconfig(users::TOWLINE)?.display(),
            self.edge.kubeconfig(users::TOWLINE)?.display(),
            resource(options),
            options.propagation.as_str(),
        );
        Towline::start(&config, &[]).await
    }

    /// An error where the clusters are not in step, or where there are not so many objects: nothing is measured of a
    /// program that did not do its work.
    pub(crate) async fn check_in_step(&self, options: &Options, program: Program, objects: usize) -> Result<(), Error> {
        let kind = options.kind.resource();
        let found = differences(&self.hub_client, &self.edge_client, &kind, &Mapping::default()).await?;
        let all = Api::<PartialObjectMeta<DynamicObject>>::all_with(self.hub_client.clone(), &kind);
        let listed = all.list_metadata(&ListParams::default()).await.map_err(Error::kubernetes("count the objects"))?;
        let there = listed.items.len();
        if found.is_empty() && there == objects {
            return Ok(());
        }
        let first: Vec<_> = found.iter().take(3).map(String::as_str).collect();
        Err(Error::Unreadable {
            what: format!("what {} has done", program.as_str()),
            detail: format!(
                "{there} objects instead of {objects}, and {} differences, such as: {}",
                found.len(),
                first.join("; ")
            ),
        })
    }
}

fn resource(options: &Options) -> String {
    format!("{}.v1.{}", options.kind.as_str(), options.kind.group())
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

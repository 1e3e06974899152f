//! Two clusters, and for each test a namespace of Leases and six sections with namespaces of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use integration::rbac::{Grant, Side, grant_election};
use integration::{ControlPlane, Options, crds, users};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

/// On two busy cores.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// Sections of each test.
pub(crate) const SECTIONS: usize = 6;
/// The kind that the sections keep in step.
pub(crate) const PLURAL: &str = "databases";

/// Runs a test on the one runtime of the process: what tests share lives on it, and must not end with one of them.
pub(crate) fn run(company: Company, test: impl Future<Output = ()>) {
    static ROOM: Semaphore = Semaphore::const_new(2);
    crate::run(async {
        let _room = ROOM.acquire_many(company as u32).await.unwrap();
        test.await;
    });
}

/// What a test bears beside it: replicas that don't get the processor for seconds lose their claims, and rightly so.
#[derive(Clone, Copy)]
pub(crate) enum Company {
    One = 1,
    /// None: it measures times, counts what a user reads, wherever that is, or stops the API server.
    None = 2,
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) hub: Arc<ControlPlane>,
    pub(crate) edge: Arc<ControlPlane>,
    pub(crate) hub_client: Client,
    pub(crate) edge_client: Client,
    /// The namespace of the Leases, and what the sections' namespaces begin with.
    pub(crate) name: String,
    pub(crate) lease: Duration,
    pub(crate) renew: Duration,
    /// The file with the token that replicas want of orders, if they want one.
    pub(crate) token_file: Option<PathBuf>,
}

async fn plane(name: &str, side: Side) -> Arc<ControlPlane> {
    let options = Options { controller_manager: false, ..Options::named(name).with_crds(&[crds::DATABASES]) };
    let plane = ControlPlane::start(options).await.unwrap();
    let admin = plane.client(users::ADMIN).await.unwrap();
    Grant::demo(side).to_group(users::REPLICAS).apply(&admin).await.unwrap();
    Arc::new(plane)
}

impl World {
    /// On the clusters that tests share.
    pub(crate) async fn shared(name: &str, lease: Duration, renew: Duration) -> Self {
        static PAIR: OnceCell<(Arc<ControlPlane>, Arc<ControlPlane>)> = OnceCell::const_new();
        let start = async || tokio::join!(plane("hub", Side::Remote), plane("edge", Side::Local));
        let (hub, edge) = PAIR.get_or_init(start).await;
        let hub_client = hub.client(users::HUB_USER).await.unwrap();
        let edge_client = edge.client(users::EDGE_CONTROLLER).await.unwrap();
        make_namespace(&edge_client, name).await;
        grant_election(&edge_client, name, Some(users::REPLICAS)).await.unwrap();
        let (hub, edge, name) = (Arc::clone(hub), Arc::clone(edge), name.to_owned());
        let world = Self { hub, edge, hub_client, edge_client, name, lease, renew, token_file: None };
        for number in 0..SECTIONS {
            make_namespace(&world.hub_client, &world.namespace(number)).await;
            let object = json!({
                "apiVersion": "demo.towline.dev/v1",
                "kind": "Database",
                "metadata": {"name": "orders"},
                "spec": {"engine": "postgres-17", "storage": "1Gi"},
            });
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            world.on_hub(number).create(&PostParams::default(), &object).await.unwrap();
        }
        world
    }

    pub(crate) fn sections(&self) -> Vec<String> {
        (0..SECTIONS).map(|number| format!("{}-s{number}", self.name)).collect()
    }

    /// The one namespace of a section, on both clusters.
    pub(crate) fn namespace(&self, number: usize) -> String {
        format!("{}-s{number}-team", self.name)
    }

    pub(crate) fn on_hub(&self, number: usize) -> Api<DynamicObject> {
        Api::namespaced_with(self.hub_client.clone(), &self.namespace(number), &kind())
    }

    /// Every section of a replica's configuration.
    pub(crate) fn configuration(&self) -> String {
        let election = format!(
            "[election]\ncluster = \"edge\"\nnamespace = \"{}\"\nlease_duration = \"{}s\"\nrenew_interval = \"{}ms\"\n",
            self.name,
            self.lease.as_secs(),
            self.renew.as_millis()
        );
        let section = |name: &String| {
            format!(
                "[[sync]]\nname = \"{name}\"\nremote = \"hub\"\nlocal = \"edge\"\n\
                 resource = \"databases.v1.demo.towline.dev\"\nnamespace_prefix = \"{name}-\"\n"
            )
        };
        let token = |path: &PathBuf| format!("[daemon]\nadmin_token_file = \"{}\"\n", path.display());
        let token = self.token_file.iter().map(token);
        token.collect::<String>() + &election + &self.sections().iter().map(section).collect::<String>()
    }
}

pub(crate) fn kind() -> ApiResource {
    let mut kind = ApiResource::from_gvk(&GroupVersionKind::gvk("demo.towline.dev", "v1", "Database"));
    PLURAL.clone_into(&mut kind.plural);
    kind
}

pub(crate) async fn make_namespace(client: &Client, name: &str) {
    let metadata = kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
}

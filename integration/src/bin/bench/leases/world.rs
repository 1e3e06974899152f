//! A hub, a managed cluster, and the Secret with the hub's credentials.

use std::fmt::Write as _;
use std::time::Duration;

use futures::future::try_join;
use integration::{ControlPlane, Error, Options as PlaneOptions, eventually, users};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// Where the leases are, on the hub.
pub(crate) const LEASE_NAMESPACE: &str = "bench-leases";
/// Where the Secret is, on the managed cluster.
pub(crate) const SECRET_NAMESPACE: &str = "bench-add-on";
/// Its name.
pub(crate) const SECRET: &str = "hub-kubeconfig";
/// The pod that gates a lease, in the namespace of the Secret.
pub(crate) const POD: &str = "add-on-0";
/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);

/// Two control planes, each with an etcd of its own.
pub(crate) struct World {
    /// Where the leases are.
    pub(crate) hub: ControlPlane,
    /// Where the Secret is.
    pub(crate) managed: ControlPlane,
    /// May do everything on the hub, and is not counted.
    pub(crate) hub_admin: Client,
    managed_admin: Client,
}

impl World {
    pub(crate) async fn start() -> Result<Self, Error> {
        let (hub, managed) = try_join(ControlPlane::start(plane("hub")), ControlPlane::start(plane("managed"))).await?;
        let (hub_admin, managed_admin) = (hub.client(users::ADMIN).await?, managed.client(users::ADMIN).await?);
        for (client, name) in [(&hub_admin, LEASE_NAMESPACE), (&managed_admin, SECRET_NAMESPACE)] {
            let namespace = Namespace {
                metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
                ..Default::default()
            };
            let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
            made.map_err(Error::kubernetes("create a namespace"))?;
        }
        let world = Self { hub, managed, hub_admin, managed_admin };
        world.grant(users::TOWLINE).await?;
        world.grant(users::STRANGER).await?;
        Ok(world)
    }

    /// Lets the user do what the lease job does on the hub. The rights are wider than those of `deploy/`, which do not matter
    /// here: one binding for each user, so that one can be revoked.
    pub(crate) async fn grant(&self, user: &str) -> Result<(), Error> {
        let bindings: Api<ClusterRoleBinding> = Api::all(self.hub_admin.clone());
        let name = format!("bench-{user}");
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        let made = bindings.patch(&name, &PatchParams::apply("bench").force(), &Patch::Apply(&binding)).await;
        made.map(drop).map_err(Error::kubernetes(format!("grant {name}")))
    }

    /// Takes it back.
    pub(crate) async fn revoke(&self, user: &str) -> Result<(), Error> {
        let bindings: Api<ClusterRoleBinding> = Api::all(self.hub_admin.clone());
        let gone = bindings.delete(&format!("bench-{user}"), &DeleteParams::default()).await;
        gone.map(drop).map_err(Error::kubernetes(format!("revoke {user}")))
    }

    /// Puts this user's kubeconfig for the hub into the Secret.
    pub(crate) async fn give_credentials(&self, user: &str) -> Result<(), Error> {
        let path = self.hub.kubeconfig(user)?;
        let kubeconfig = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        self.write_secret(&kubeconfig).await
    }

    /// Puts a kubeconfig into the Secret that the hub does not know.
    pub(crate) async fn give_broken_credentials(&self) -> Result<(), Error> {
        let path = self.managed.kubeconfig(users::TOWLINE)?;
        let text = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        self.write_secret(&text.replace(&self.managed.address().to_string(), &self.hub.address().to_string())).await
    }

    async fn write_secret(&self, kubeconfig: &str) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.managed_admin.clone(), SECRET_NAMESPACE);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"kubeconfig": kubeconfig},
        });
        let written = secrets.patch(SECRET, &PatchParams::apply("bench").force(), &Patch::Apply(&secret)).await;
        written.map(drop).map_err(Error::kubernetes("write the credentials' Secret"))
    }

    /// Makes the pod, where there is none, and says whether it is ready.
    pub(crate) async fn turn_pod(&self, ready: bool) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.managed_admin.clone(), SECRET_NAMESPACE);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD},
            "spec": {"containers": [{"name": "add-on", "image": "add-on"}]},
        });
        let made = pods.patch(POD, &PatchParams::apply("bench").force(), &Patch::Apply(&pod)).await;
        made.map_err(Error::kubernetes("make the pod"))?;
        let status = if ready { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let turned = pods.patch_status(POD, &PatchParams::default(), &Patch::Merge(patch)).await;
        turned.map(drop).map_err(Error::kubernetes("turn the pod"))
    }

    /// The daemon's configuration: so many sections with the same Secret.
    pub(crate) fn config(&self, leases: usize, duration: Duration) -> Result<String, Error> {
        let kubeconfig = self.managed.kubeconfig(users::HUB_USER)?;
        let mut config = format!("[clusters.managed]\nkubeconfig = \"{}\"\n", kubeconfig.display());
        for number in 0..leases {
            // Writing to a string can't fail.
            let _ = write!(
                config,
                "[[lease]]\nname = \"{name}\"\ncluster = \"managed\"\nlease_name = \"{name}\"\nlease_namespace = \"{LEASE_NAMESPACE}\"\n\
                 secret_name = \"{SECRET}\"\nsecret_namespace = \"{SECRET_NAMESPACE}\"\nduration = \"{}s\"\nstartup_delay = \"0s\"\n",
                duration.as_secs(),
                name = lease_name(number),
            );
        }
        Ok(config)
    }

    /// The leases on the hub.
    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.hub_admin.clone(), LEASE_NAMESPACE)
    }

    /// Waits until so many leases are there.
    pub(crate) async fn wait_for_leases(&self, count: usize) -> Result<(), Error> {
        let leases = self.leases();
        eventually(format!("{count} leases to be on the hub"), LONGEST_STEP, async || {
            let found =
                leases.list_metadata(&ListParams::default()).await.map_err(|error| error.to_string())?.items.len();
            if found >= count { Ok(()) } else { Err(format!("{found} are there")) }
        })
        .await
    }

    /// Takes all leases away, so that the next measurement begins with none.
    pub(crate) async fn delete_leases(&self) -> Result<(), Error> {
        let gone = self.leases().delete_collection(&DeleteParams::default(), &ListParams::default()).await;
        gone.map(drop).map_err(Error::kubernetes("delete the leases"))
    }
}

/// Name of a lease and of its section.
pub(crate) fn lease_name(number: usize) -> String {
    format!("lease-{number:05}")
}

fn plane(name: &str) -> PlaneOptions {
    PlaneOptions::measured(name)
}

//! Two clusters, and for each test a namespace on both, with the Secret, the pod and the Lease of `deploy/side-car`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use integration::audit::{Mark, Record};
use integration::rbac::{LeaseSide, grant_lease};
use integration::{ControlPlane, Filter, Options, Towline, eventually, users};
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) use crate::run;

/// On two busy cores.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// The names of `deploy/side-car`.
pub(crate) const LEASE: &str = "add-on";
pub(crate) const SECRET: &str = "add-on-hub-kubeconfig";
pub(crate) const POD: &str = "add-on-0";

async fn plane(name: &str) -> Arc<ControlPlane> {
    let options = Options { controller_manager: false, ..Options::named(name) };
    Arc::new(ControlPlane::start(options).await.unwrap())
}

pub(crate) struct World {
    pub(crate) managed: Arc<ControlPlane>,
    pub(crate) hub: Arc<ControlPlane>,
    pub(crate) managed_admin: Client,
    pub(crate) hub_admin: Client,
    /// The namespace on both clusters.
    pub(crate) namespace: String,
    /// Whom the process is on both clusters.
    pub(crate) user: &'static str,
}

impl World {
    /// On clusters that tests share.
    pub(crate) async fn shared(name: &str, user: &'static str) -> Self {
        static PAIR: OnceCell<(Arc<ControlPlane>, Arc<ControlPlane>)> = OnceCell::const_new();
        let (managed, hub) = PAIR.get_or_init(async || tokio::join!(plane("managed"), plane("hub"))).await;
        Self::between(Arc::clone(managed), Arc::clone(hub), name, user).await
    }

    /// The same managed cluster with another hub.
    pub(crate) async fn with_hub(&self, hub: Arc<ControlPlane>, name: &str) -> Self {
        Self::between(Arc::clone(&self.managed), hub, name, self.user).await
    }

    async fn between(managed: Arc<ControlPlane>, hub: Arc<ControlPlane>, name: &str, user: &'static str) -> Self {
        let (managed_admin, hub_admin) =
            (managed.client(users::ADMIN).await.unwrap(), hub.client(users::ADMIN).await.unwrap());
        for client in [&managed_admin, &hub_admin] {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let namespaces: Api<Namespace> = Api::all(client.clone());
            namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
        }
        grant_lease(&managed_admin, LeaseSide::Managed, name, user, None).await.unwrap();
        grant_lease(&hub_admin, LeaseSide::Hub, name, user, None).await.unwrap();
        Self { managed, hub, managed_admin, hub_admin, namespace: name.to_owned(), user }
    }

    // The Secret.

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.managed_admin.clone(), &self.namespace)
    }

    /// A kubeconfig of the hub for whoever this is.
    pub(crate) fn kubeconfig(&self, user: &Value) -> String {
        let address = self.hub.address();
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "hub", "cluster": {"server": format!("https://{address}"), "certificate-authority": "ca.crt"}}],
            "users": [{"name": "add-on", "user": user}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "add-on"}}],
            "current-context": "hub",
        })
        .to_string()
    }

    /// The token of a user on the hub.
    pub(crate) fn token(&self, user: &str) -> String {
        let kubeconfig = std::fs::read_to_string(self.hub.kubeconfig(user).unwrap()).unwrap();
        let kubeconfig: Value = serde_json::from_str(&kubeconfig).unwrap();
        kubeconfig["users"][0]["user"]["token"].as_str().unwrap().to_owned()
    }

    /// Writes the Secret with these keys, the hub's authority and nothing else.
    pub(crate) async fn put_secret(&self, keys: &[(&str, &str)]) {
        let mut data: BTreeMap<String, ByteString> =
            keys.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect();
        data.insert("ca.crt".to_owned(), ByteString(self.hub.authority_pem().as_bytes().to_vec()));
        let metadata = ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() };
        let secret = Secret { metadata, data: Some(data), ..Secret::default() };
        let secrets = self.secrets();
        if secrets.get_opt(SECRET).await.unwrap().is_some() {
            secrets.replace(SECRET, &PostParams::default(), &secret).await.unwrap();
        } else {
            secrets.create(&PostParams::default(), &secret).await.unwrap();
        }
    }

    /// Writes the Secret for a user of the hub, by token.
    pub(crate) async fn offer(&self, user: &str) {
        self.put_secret(&[("kubeconfig", &self.kubeconfig(&json!({"token": self.token(user)})))]).await;
    }

    // The pod.

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.managed_admin.clone(), &self.namespace)
    }

    pub(crate) async fn make_pod(&self) {
        let pod = json!({"metadata": {"name": POD}, "spec": {"containers": [{"name": "add-on", "image": "add-on"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
    }

    pub(crate) async fn turn_pod(&self, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.pods().patch_status(POD, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn ready_pod(&self) {
        self.make_pod().await;
        self.turn_pod(true).await;
    }

    pub(crate) async fn delete_pod(&self) {
        self.pods().delete(POD, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    // The Lease.

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.hub_admin.clone(), &self.namespace)
    }

    /// Waits until the lease is renewed later than this.
    pub(crate) async fn renewed_after(&self, after: Timestamp) -> LeaseSpec {
        eventually(format!("lease {} to be renewed after {after}", self.namespace), LIMIT, async || {
            let lease = self.leases().get_opt(LEASE).await.map_err(|error| error.to_string())?;
            let spec = lease.and_then(|lease| lease.spec).ok_or("there is no lease")?;
            match &spec.renew_time {
                Some(time) if time.0 > after => Ok(spec),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap()
    }

    /// Waits until the lease has run out, by its own fields.
    pub(crate) async fn run_out(&self) {
        eventually(format!("lease {} to run out", self.namespace), LIMIT, async || {
            let lease = self.leases().get(LEASE).await.map_err(|error| error.to_string())?;
            let spec = lease.spec.unwrap_or_default();
            let seconds = spec.lease_duration_seconds.unwrap_or_default();
            let ends = spec.renew_time.map(|time| time.0.as_microsecond() + i64::from(seconds) * 1_000_000);
            let now = Timestamp::now().as_microsecond();
            if ends.is_some_and(|ends| ends < now) { Ok(()) } else { Err(format!("{ends:?} at {now}")) }
        })
        .await
        .unwrap();
    }

    /// What the hub was asked on leases in this namespace since then, by whom ever but the tests themselves.
    pub(crate) async fn requests(&self, since: Mark) -> Vec<Record> {
        let records = self.hub.audit().unwrap().records(&Filter::since(since).resource("leases")).await.unwrap();
        records.into_iter().filter(|record| record.namespace == self.namespace && record.user != users::ADMIN).collect()
    }

    /// Those that renewed it, in the order of their arrival.
    pub(crate) async fn renewals(&self, since: Mark) -> Vec<Renewal> {
        let mut renewals: Vec<Renewal> = self
            .requests(since)
            .await
            .into_iter()
            .filter(|record| record.status < 300 && ["create", "patch", "update"].contains(&record.verb.as_str()))
            .map(|record| Renewal { at: record.received.parse().unwrap(), user: record.user })
            .collect();
        renewals.sort_by_key(|renewal| renewal.at);
        renewals
    }

    /// Waits until there are so many renewals since then, and gives them.
    pub(crate) async fn wait_for_renewals(&self, since: Mark, count: usize) -> Vec<Renewal> {
        eventually(format!("{count} renewals of lease {}", self.namespace), LIMIT * 2, async || {
            let renewals = self.renewals(since).await;
            if renewals.len() >= count { Ok(renewals) } else { Err(format!("{} of them", renewals.len())) }
        })
        .await
        .unwrap()
    }

    pub(crate) async fn mark(&self) -> Mark {
        self.hub.audit().unwrap().mark().await.unwrap()
    }

    // The process.

    /// Where the process finds the managed cluster.
    pub(crate) fn managed_kubeconfig(&self) -> PathBuf {
        self.managed.kubeconfig(self.user).unwrap()
    }

    /// The side-car, with these flags over those that every test needs.
    pub(crate) async fn side_car(&self, flags: &[&str]) -> Towline {
        self.side_car_with(flags, "--").await
    }

    pub(crate) async fn side_car_with(&self, flags: &[&str], dashes: &str) -> Towline {
        let (kubeconfig, namespace) = (self.managed_kubeconfig(), self.namespace.as_str());
        let env = [
            ("KUBECONFIG", kubeconfig.to_str().unwrap()),
            ("WATCH_NAMESPACE", namespace),
            ("POD_NAME", POD),
            ("POD_NAMESPACE", namespace),
        ];
        let own = [
            format!("{dashes}lease-name={LEASE}"),
            format!("{dashes}lease-namespace={namespace}"),
            format!("{dashes}hub-kubeconfig-secret={SECRET}"),
            format!("{dashes}startup-delay=0"),
        ];
        let all: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Towline::start_lease(&all, &env, dashes).await.unwrap()
    }

    /// Waits until the section's report satisfies the condition, and gives it.
    pub(crate) async fn report(
        &self,
        towline: &Towline,
        what: &str,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Value {
        eventually(format!("{} to report {what}", self.namespace), LIMIT, async || {
            let report = towline.admin().section(LEASE).await.map_err(|error| error.to_string())?;
            if condition(&report) { Ok(report) } else { Err(report.to_string()) }
        })
        .await
        .unwrap()
    }
}

/// A renewal that the hub has acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) at: Timestamp,
    pub(crate) user: String,
}

/// From each renewal to the next.
pub(crate) fn gaps(renewals: &[Renewal]) -> Vec<Duration> {
    renewals.windows(2).map(|pair| between(pair[0].at, pair[1].at)).collect()
}

/// From one moment to a later one.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(to.as_microsecond() - from.as_microsecond()).unwrap_or_default())
}

//! A Kubernetes control plane of its own: etcd, API server and controller manager, real and on loopback.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use integration::{ControlPlane, Options, users};
//!
//! let hub = ControlPlane::start(Options::named("hub")).await?;
//! let client = hub.client(users::ADMIN).await?;
//! hub.kill_api_server().await?; // SIGKILL; etcd keeps what it has
//! hub.start_api_server().await?; // at the same address, and ready
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! Everything ends with the value, and with the process that holds it, however that ends.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use tokio::process::Command;

use crate::audit::{self, Audit};
use crate::certificates::{Certificates, ClientCertificate};
use crate::etcd::Etcd;
use crate::port::Port;
use crate::process::{Process, Spec};
use crate::room::Room;
use crate::usage::Usage;
use crate::users::{self, ADMIN, CONTROLLER_MANAGER};
use crate::{Error, crds, eventually, programs};

/// It is ready within three seconds on an idle machine; with several starting on two busy cores, everything is slower.
const LONGEST_START: Duration = Duration::from_mins(2);

/// What runs beside the controllers of namespaces and garbage where a test asks for [`Options::with_workloads`]. No kubelet and no
/// scheduler, so pods stay pending unless a test binds them or writes their status.
pub const WORKLOAD_CONTROLLERS: [&str; 18] = [
    "deployment-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "cronjob-controller",
    "ttl-after-finished-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
    "clusterrole-aggregation-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "resourcequota-controller",
    "horizontal-pod-autoscaler-controller",
];

/// Which etcd holds a control plane's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// The one that all control planes of this process share, each under a prefix of its own: 100 MB less memory.
    Shared,
    /// One that nobody else uses: for measuring, and where a compaction must not touch others.
    Own,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// What it is called in files, tokens and errors; letters, digits and `-`.
    pub name: String,
    /// Whether requests are logged, so that they can be counted.
    pub audit: bool,
    /// Whether namespaces terminate and owners' dependents are collected.
    pub controller_manager: bool,
    /// Whether the controllers of built-in kinds run as well: [`WORKLOAD_CONTROLLERS`], with the admission of service accounts.
    pub workloads: bool,
    pub service_range: &'static str,
    pub etcd: Storage,
    /// Manifests of custom resource definitions. The garbage collector looks for new kinds at its start and then
    /// twice a minute: of those here it knows from the first moment, of those installed later it may not.
    pub crds: Vec<&'static str>,
    /// Further flags of the API server, such as `--watch-cache=false`.
    pub extra_flags: Vec<String>,
    /// By how many percent the heap of its programs may grow before garbage is collected. More than Go's 100 saves a seventh of the
    /// CPU time of tests, for 120 MB of memory.
    pub garbage_percent: u32,
}

impl Options {
    /// Audited, with a controller manager, on the shared etcd.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            audit: true,
            controller_manager: true,
            workloads: false,
            service_range: "10.0.0.0/24",
            etcd: Storage::Shared,
            crds: Vec::new(),
            // Nobody sends so much that it would have to queue, and its objects are a third of what a start takes.
            extra_flags: vec!["--enable-priority-and-fairness=false".to_owned()],
            garbage_percent: 400,
        }
    }

    /// For a bench: on an etcd of its own, without a controller manager, and audited in batches, since a line written in the
    /// midst of each request would be measured, too. Nothing is dropped.
    pub fn measured(name: &str) -> Self {
        let flags =
            ["--audit-log-mode=batch", "--audit-log-batch-max-wait=1s", "--audit-log-batch-buffer-size=1000000"];
        Self {
            etcd: Storage::Own,
            controller_manager: false,
            extra_flags: flags.map(str::to_owned).to_vec(),
            garbage_percent: 100,
            ..Self::named(name)
        }
    }

    /// The same, with the controllers of built-in kinds, and with Services in this range. So a pod can only be made after its
    /// namespace has got the `ServiceAccount` named `default`, which takes a moment.
    #[must_use]
    pub fn with_workloads(mut self, service_range: &'static str) -> Self {
        (self.workloads, self.service_range) = (true, service_range);
        self
    }

    #[must_use]
    pub fn with_crds(mut self, crds: &[&'static str]) -> Self {
        self.crds.extend_from_slice(crds);
        self
    }
}

#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: who depends on something ends before it, and the directory goes last.
    controller_manager: Mutex<Option<Arc<Process>>>,
    api_server: Mutex<Option<Arc<Process>>>,
    etcd: Arc<Etcd>,
    prefix: Mutex<String>,
    audit: Option<Audit>,
    options: Options,
    certificates: Certificates,
    port: Port,
    room: Room,
}

impl ControlPlane {
    /// Starts one, and waits until it is ready and serves the kinds of [`Options::crds`].
    pub async fn start(options: Options) -> Result<Self, Error> {
        let room = Room::new(&options.name)?;
        let certificates = Certificates::make(&room)?;
        room.write("tokens.csv", &users::token_file(&options.name))?;
        room.write("audit-policy.yaml", audit::POLICY)?;
        let etcd = match options.etcd {
            Storage::Shared => Etcd::shared().await?,
            Storage::Own => Arc::new(Etcd::start(&format!("etcd-{}", options.name)).await?),
        };
        let prefix = format!("/{}", room.path().file_name().unwrap_or_default().to_string_lossy());
        let mut plane = Self {
            controller_manager: Mutex::new(None),
            api_server: Mutex::new(None),
            etcd,
            prefix: Mutex::new(prefix),
            audit: None,
            certificates,
            port: Port::take()?,
            room,
            options,
        };
        let admin = plane.client(ADMIN).await?;
        if plane.options.audit {
            plane.audit = Some(Audit::new(plane.name(), plane.room.join("audit.log"), admin.clone()));
        }
        plane.start_api_server().await?;
        for crd in &plane.options.crds {
            crds::install(&admin, crd).await?;
        }
        plane.start_controller_manager().await?;
        Ok(plane)
    }

    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Where the API server listens, running or not.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The prefix in etcd under which the objects are.
    pub fn prefix(&self) -> String {
        self.prefix.lock().clone()
    }

    /// The directory with the logs, the audit log and the kubeconfigs.
    pub fn directory(&self) -> &Path {
        self.room.path()
    }

    /// A kubeconfig for one of [`users::USERS`]. The file lives as long as the control plane, and is written once: who
    /// uses it watches it for changes.
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf, Error> {
        let name = format!("{}.kubeconfig", user.replace(':', "-"));
        self.room.write_once(&name, &self.kubeconfig_text(user, self.address())?)
    }

    /// kubectl as one of [`users::USERS`] runs it.
    pub async fn kubectl(&self, user: &str) -> Result<Command, Error> {
        let mut command = Command::new(programs::control_plane("kubectl").await?);
        let cache = self.directory().join("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig(user)?).arg("--cache-dir").arg(cache).kill_on_drop(true);
        Ok(command)
    }

    /// The same by another way to the API server, such as a [`crate::Link`].
    pub fn kubeconfig_by(&self, user: &str, address: SocketAddr) -> Result<PathBuf, Error> {
        let name = format!("{}-by-{}.kubeconfig", user.replace(':', "-"), address.port());
        self.room.write(&name, &self.kubeconfig_text(user, address)?)
    }

    fn kubeconfig_text(&self, user: &str, address: SocketAddr) -> Result<String, Error> {
        Ok(users::kubeconfig(users::named(user)?, &self.options.name, address, &self.certificates.authority_pem))
    }

    /// The authority that its certificate is signed by, in PEM.
    pub fn authority_pem(&self) -> &str {
        &self.certificates.authority_pem
    }

    /// A certificate by which it knows a user, for so long.
    pub fn client_certificate(&self, user: &str, good_for: Duration) -> Result<ClientCertificate, Error> {
        self.certificates.client(user, good_for)
    }

    /// A client of one of [`users::USERS`], which retries nothing by itself.
    pub async fn client(&self, user: &str) -> Result<Client, Error> {
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig_text(user, self.address())?)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        Client::try_from(config).map_err(Error::kubernetes("make a client"))
    }

    /// What tells the cluster from others: the UID of its namespace `kube-system`.
    pub async fn uid(&self) -> Result<String, Error> {
        let namespaces: Api<Namespace> = Api::all(self.client(ADMIN).await?);
        let system = namespaces.get("kube-system").await.map_err(Error::kubernetes("read kube-system"))?;
        Ok(system.metadata.uid.unwrap_or_default())
    }

    /// The requests that the API server has answered.
    pub fn audit(&self) -> Result<&Audit, Error> {
        self.audit.as_ref().ok_or_else(|| Error::NoAudit(self.options.name.clone()))
    }

    /// What the API server has used since it was started last. An error where it does not run.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.running_api_server()?.usage()
    }

    /// Kills the API server with SIGKILL and waits until it is gone. What it has acknowledged stays in etcd.
    pub async fn kill_api_server(&self) -> Result<(), Error> {
        let process = self.running_api_server()?;
        process.kill().await?;
        *self.api_server.lock() = None;
        match &self.audit {
            Some(audit) => audit.server_was_killed().await,
            None => Ok(()),
        }
    }

    /// Starts the API server that was killed, at the same address, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<(), Error> {
        let process = Process::start(Spec {
            name: format!("kube-apiserver of {}", self.options.name),
            program: programs::control_plane("kube-apiserver").await?,
            args: self.api_server_flags().into_iter().map(Into::into).collect(),
            env: vec![("GOGC".to_owned(), self.options.garbage_percent.to_string())],
            log: self.room.join("kube-apiserver.log"),
            piped_stdin: false,
        })
        .await?;
        *self.api_server.lock() = Some(Arc::new(process));
        self.wait_ready(LONGEST_START).await
    }

    /// Restarts with another prefix in etcd: to clients, the same address now has another cluster's content, or none.
    pub async fn restart_with_prefix(&self, prefix: &str) -> Result<(), Error> {
        let manager = self.controller_manager.lock().take();
        if let Some(manager) = &manager {
            manager.kill().await?;
        }
        self.kill_api_server().await?;
        *self.prefix.lock() = format!("/{}", prefix.trim_start_matches('/'));
        self.start_api_server().await?;
        if manager.is_some() { self.start_controller_manager().await } else { Ok(()) }
    }

    /// Restarts the controller manager, which makes the garbage collector look for new kinds at once.
    pub async fn restart_controller_manager(&self) -> Result<(), Error> {
        let manager = self.controller_manager.lock().take();
        if let Some(manager) = manager {
            manager.kill().await?;
        }
        self.start_controller_manager().await
    }

    /// Makes etcd forget the past. A running API server still serves watches from its own cache of recent changes;
    /// after a restart, a watch from an older `resourceVersion` gets a 410. A shared etcd forgets for all its users.
    pub async fn compact_etcd(&self) -> Result<(), Error> {
        self.etcd.compact().await
    }

    /// Waits until the API server is ready and has made the namespace `default`.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        let admin = self.client(ADMIN).await?;
        let process = self.running_api_server()?;
        let what = format!("the API server of {} to be ready", self.options.name);
        eventually(what, limit, async || {
            // An end by itself is told at once and not after the limit.
            if let Err(ended) = process.check() {
                return Ok(Err(ended));
            }
            for path in ["/readyz", "/api/v1/namespaces/default"] {
                let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
                admin.request_text(request).await.map_err(|error| format!("{path}: {error}"))?;
            }
            Ok(Ok(()))
        })
        .await?
    }

    /// Stops everything. Dropping does the same, but blocks its thread meanwhile.
    pub async fn stop(self) -> Result<(), Error> {
        let processes = [self.controller_manager.lock().take(), self.api_server.lock().take()];
        for process in processes.into_iter().flatten() {
            process.kill().await?;
        }
        Ok(())
    }

    fn running_api_server(&self) -> Result<Arc<Process>, Error> {
        let process = self.api_server.lock().clone();
        process.ok_or_else(|| Error::NotRunning { process: format!("the API server of {}", self.options.name) })
    }

    fn api_server_flags(&self) -> Vec<String> {
        let file = |name: &str| self.room.join(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-servers={}", self.etcd.url()),
            format!("--etcd-prefix={}", self.prefix.lock()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port.number()),
            format!("--tls-cert-file={}", self.certificates.server_certificate.display()),
            format!("--tls-private-key-file={}", self.certificates.server_key.display()),
            format!("--service-cluster-ip-range={}", self.options.service_range),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", self.certificates.account_key.display()),
            format!("--service-account-key-file={}", self.certificates.account_public_key.display()),
            "--authorization-mode=RBAC".to_owned(),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--client-ca-file={}", self.certificates.authority.display()),
            // No kubelet or load balancer looks for endpoints.
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        if !self.options.workloads {
            // No controller makes service accounts.
            flags.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        if self.options.audit {
            flags.extend([
                format!("--audit-policy-file={}", file("audit-policy.yaml")),
                format!("--audit-log-path={}", file("audit.log")),
                // In megabytes; a rotation would take counted requests away.
                "--audit-log-maxsize=1000000".to_owned(),
            ]);
        }
        flags.extend(self.options.extra_flags.iter().cloned());
        flags
    }

    async fn start_controller_manager(&self) -> Result<(), Error> {
        if !self.options.controller_manager {
            return Ok(());
        }
        let mut controllers = vec!["namespace-controller", "garbage-collector-controller"];
        if self.options.workloads {
            controllers.extend(WORKLOAD_CONTROLLERS);
        }
        let flags = [
            format!("--kubeconfig={}", self.kubeconfig(CONTROLLER_MANAGER)?.display()),
            format!("--controllers={}", controllers.join(",")),
            // For the tokens of service accounts, and what their Secrets hold beside them.
            format!("--service-account-private-key-file={}", self.certificates.account_key.display()),
            format!("--root-ca-file={}", self.certificates.authority.display()),
            "--leader-elect=false".to_owned(),
            // Nobody asks it for anything.
            "--secure-port=0".to_owned(),
            // The default of 20 requests a second would be what tests of mass deletion measure.
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        let process = Process::start(Spec {
            name: format!("kube-controller-manager of {}", self.options.name),
            program: programs::control_plane("kube-controller-manager").await?,
            args: flags.into_iter().map(Into::into).collect(),
            env: vec![("GOGC".to_owned(), self.options.garbage_percent.to_string())],
            log: self.room.join("kube-controller-manager.log"),
            piped_stdin: false,
        })
        .await?;
        *self.controller_manager.lock() = Some(Arc::new(process));
        Ok(())
    }
}

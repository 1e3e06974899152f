//! A cluster with a project, Helm, an API that is told, and a daemon between them.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use integration::audit::Record;
use integration::rbac::grant_inventory;
use integration::{Chart, ControlPlane, Filter, Helm, Options, Sink, Told, Towline, crds, eventually, users};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// On two busy cores.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// From a change to its post.
pub(crate) const DELAY: &str = "500ms";
/// What must not be seen anywhere.
pub(crate) const CANARY: &str = "canary-5f0c1d";
/// The tests that run at once, and so the API servers that they share: a start of one takes more than most tests.
static ROOM: Semaphore = Semaphore::const_new(4);
/// API servers that no test uses now.
static IDLE: Mutex<Vec<Arc<ControlPlane>>> = Mutex::new(Vec::new());

/// Runs a test on the one runtime of the process: what tests share lives on it, and must not end with one of them.
pub(crate) fn run(test: impl Future<Output = ()>) {
    crate::run(async {
        let _room = ROOM.acquire().await.unwrap();
        test.await;
    });
}

/// A chart with a pod, a service, a claim and an ingress, whose values go everywhere but into what is reported.
pub(crate) fn chart() -> Chart {
    const LABELS: &str = "  labels:\n    app.kubernetes.io/instance: {{ .Release.Name }}\n    app.kubernetes.io/managed-by: {{ .Release.Service }}\n";
    let object = |api: &str, kind: &str, name: &str, rest: &str| {
        format!("apiVersion: {api}\nkind: {kind}\nmetadata:\n  name: \"{{{{ .Release.Name }}}}{name}\"\n{LABELS}{rest}")
    };
    Chart::new("keycloak-chart", "23.0.5")
        .with("values.yaml", format!("image: keycloak:23\npassword: {CANARY}\nbroken: false\n"))
        .with(
            "templates/pod.yaml",
            object(
                "v1",
                "Pod",
                "-{{ .Values.image | replace \":\" \"-\" }}",
                "spec:\n  containers:\n  - name: main\n    image: {{ .Values.image }}\n    env: [{name: PASSWORD, value: {{ .Values.password }}}]\n  - {name: proxy, image: \"proxy:1\"}\n",
            ),
        )
        .with(
            "templates/service.yaml",
            object("v1", "Service", "-http", "spec:\n  ports: [{name: a, port: 80}, {name: b, port: 8443}]\n"),
        )
        .with(
            "templates/claim.yaml",
            object("v1", "PersistentVolumeClaim", "-data", "spec:\n  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 8Gi}}\n"),
        )
        .with(
            "templates/ingress.yaml",
            object(
                "networking.k8s.io/v1",
                "Ingress",
                "-public",
                "spec:\n  rules:\n  - {host: id.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}\n",
            ),
        )
        .with("templates/secret.yaml", object("v1", "Secret", "-secret", "stringData: {password: \"{{ .Values.password }}\"}\n"))
        .with(
            "templates/config.yaml",
            object(
                "v1",
                "ConfigMap",
                "-config",
                "data: {password: \"{{ .Values.password }}\"}\n",
            ),
        )
        // The API server refuses the port, and nobody before it.
        .with(
            "templates/broken.yaml",
            format!("{{{{ if .Values.broken }}}}\n{}{{{{ end }}}}\n", object("v1", "Service", "-broken", "spec:\n  ports: [{port: 70000}]\n")),
        )
}

/// A chart with nothing but a `ConfigMap`.
pub(crate) fn small_chart() -> Chart {
    Chart::new("small", "1.0").with(
        "templates/config.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\ndata: {value: \"{{ .Values.value }}\"}\n",
    )
}

/// An API server. Where a test leaves nothing behind but what [`emptied`] takes away, the next one has it.
pub(crate) struct Plane {
    plane: Arc<ControlPlane>,
    is_shared: bool,
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if self.is_shared && !std::thread::panicking() {
            IDLE.lock().push(Arc::clone(&self.plane));
        }
    }
}

/// A daemon reports all releases of a cluster, so nothing that an earlier test has made may be left, but empty namespaces.
async fn emptied(admin: &Client) {
    let all = ListParams::default();
    let at_once = DeleteParams::default().grace_period(0);
    projects(admin).delete_collection(&at_once, &all).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    for namespace in namespaces.list_metadata(&all).await.unwrap() {
        let namespace = namespace.name_any();
        if namespace.starts_with("kube-") {
            continue;
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(admin.clone(), &namespace);
        for claim in claims.list_metadata(&all).await.unwrap() {
            // Nobody runs here who takes it off.
            let without = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            claims.patch_metadata(&claim.name_any(), &PatchParams::default(), &without).await.unwrap();
        }
        for (group, version, kind) in [
            ("", "v1", "Secret"),
            ("", "v1", "ConfigMap"),
            ("", "v1", "Pod"),
            ("", "v1", "PersistentVolumeClaim"),
            ("", "v1", "Service"),
            ("networking.k8s.io", "v1", "Ingress"),
            ("coordination.k8s.io", "v1", "Lease"),
        ] {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let objects: Api<DynamicObject> = Api::namespaced_with(admin.clone(), &namespace, &kind);
            // The API server's own Service stays.
            let all = ListParams::default().fields("metadata.name!=kubernetes");
            objects.delete_collection(&at_once, &all).await.unwrap();
        }
    }
}

fn projects(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("hossted.com", "v1", "Hosstedproject");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "hosstedprojects"))
}

pub(crate) struct World {
    pub(crate) plane: Plane,
    pub(crate) admin: Client,
    pub(crate) helm: Helm,
    pub(crate) sink: Sink,
    token: PathBuf,
}

impl World {
    /// With a project, and a sink without TLS.
    pub(crate) async fn new() -> Self {
        let world = Self::without_project().await;
        world.main_project().await;
        world
    }

    pub(crate) async fn without_project() -> Self {
        Self::with_sink(Sink::start().await.unwrap()).await
    }

    pub(crate) async fn with_sink(sink: Sink) -> Self {
        let idle = IDLE.lock().pop();
        let Some(plane) = idle else {
            let options = Options { controller_manager: false, ..Options::named("inventory") };
            return Self::of(options.with_crds(&[crds::HOSSTED_PROJECTS]), true, sink).await;
        };
        emptied(&plane.client(users::ADMIN).await.unwrap()).await;
        Self::on(Plane { plane, is_shared: true }, sink).await
    }

    pub(crate) async fn without_crd(name: &str) -> Self {
        let options = Options { controller_manager: false, ..Options::named(name) };
        Self::of(options, false, Sink::start().await.unwrap()).await
    }

    /// With a project, and the controllers of workloads.
    pub(crate) async fn with_workloads(name: &str) -> Self {
        let options = Options::named(name).with_workloads("10.2.0.0/24").with_crds(&[crds::HOSSTED_PROJECTS]);
        let world = Self::of(options, false, Sink::start().await.unwrap()).await;
        world.project("main", &json!({})).await;
        world
    }

    async fn of(options: Options, is_shared: bool, sink: Sink) -> Self {
        let plane = Arc::new(ControlPlane::start(options).await.unwrap());
        Self::on(Plane { plane, is_shared }, sink).await
    }

    async fn on(plane: Plane, sink: Sink) -> Self {
        let admin = plane.client(users::ADMIN).await.unwrap();
        grant_inventory(&admin, None).await.unwrap();
        let helm = Helm::on(&plane).await.unwrap();
        let token = plane.directory().join("api-token");
        std::fs::write(&token, "token-1\n").unwrap();
        Self { plane, admin, helm, sink, token }
    }

    async fn main_project(&self) {
        self.project("main", &json!({"denyNamespaces": ["kube-system"], "logging": {"enable": true}})).await;
    }

    /// Writes the token's file as a mounted Secret changes it: at once.
    pub(crate) fn change_token(&self, token: &str) {
        let next = self.token.with_extension("next");
        std::fs::write(&next, token).unwrap();
        std::fs::rename(next, &self.token).unwrap();
    }

    /// A configuration with further keys of the section.
    pub(crate) fn config(&self, keys: &str) -> String {
        self.config_as(users::TOWLINE, keys)
    }

    pub(crate) fn config_as(&self, user: &str, keys: &str) -> String {
        let delay = if keys.contains("delay") { String::new() } else { format!("delay = \"{DELAY}\"\n") };
        format!(
            "[daemon]\nlog = {{ format = \"text\", filter = \"towline=trace\" }}\n[clusters.edge]\nkubeconfig = \"{}\"\n\
             [inventory]\ncluster = \"edge\"\napi_url = \"{}/v1\"\ntoken_file = \"{}\"\norg_id = \"o1\"\nemail = \"a@b.example\"\n\
             {delay}{keys}\n",
            self.plane.kubeconfig(user).unwrap().display(),
            self.sink.url(),
            self.token.display(),
        )
    }

    /// Starts the daemon, and waits until its lists have ended.
    pub(crate) async fn start(&self, keys: &str) -> Towline {
        let daemon = Towline::start(&self.config(keys), &[]).await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        daemon
    }

    // Projects.

    pub(crate) fn projects(&self) -> Api<DynamicObject> {
        projects(&self.admin)
    }

    pub(crate) async fn project(&self, name: &str, spec: &Value) {
        let project =
            json!({"apiVersion": "hossted.com/v1", "kind": "Hosstedproject", "metadata": {"name": name}, "spec": spec});
        self.projects().create(&PostParams::default(), &serde_json::from_value(project).unwrap()).await.unwrap();
    }

    pub(crate) async fn change_project(&self, name: &str, spec: &Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.projects().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The status of the project `main`.
    pub(crate) async fn status(&self) -> Value {
        let project = self.projects().get("main").await.unwrap();
        project.data.get("status").cloned().unwrap_or_default()
    }

    /// Waits until a condition of a project is so.
    pub(crate) async fn wait_for_condition(&self, project: &str, kind: &str, status: &str) -> Value {
        eventually(format!("condition {kind} of {project} to be {status}"), LIMIT, async || {
            let project = self.projects().get(project).await.map_err(|error| error.to_string())?;
            let conditions = project.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.iter().find(|condition| condition["type"] == kind && condition["status"] == status);
            found.cloned().ok_or_else(|| format!("{conditions:?}"))
        })
        .await
        .unwrap()
    }

    /// Waits until the status says that everything that the sink has accepted of a release was acknowledged.
    pub(crate) async fn wait_until_acknowledged(&self, name: &str) {
        eventually(format!("{name} to be acknowledged"), LIMIT, async || {
            let status = self.status().await;
            let entries = status["helmStatus"].as_array().cloned().unwrap_or_default();
            let entry = entries.into_iter().find(|entry| entry["name"] == name).ok_or("no entry")?;
            if entry["sendingHash"].is_null() && !entry["sentHash"].is_null() { Ok(()) } else { Err(entry.to_string()) }
        })
        .await
        .unwrap();
    }

    /// Waits until the status has no release any more.
    pub(crate) async fn wait_until_forgotten(&self) {
        eventually("all releases to be forgotten", LIMIT, async || {
            let status = self.status().await;
            if status["helmStatus"] == json!([]) { Ok(()) } else { Err(status.to_string()) }
        })
        .await
        .unwrap();
    }

    // The cluster.

    /// Makes a namespace, unless an earlier test has left it.
    pub(crate) async fn namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        let made = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        match namespaces.create(&PostParams::default(), &made).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other.unwrap()),
        }
    }

    /// Creates objects that the API server takes as they are.
    pub(crate) async fn create(&self, object: &Value) {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.admin.clone(), namespace, &resource),
            None => Api::all_with(self.admin.clone(), &resource),
        };
        api.create(&PostParams::default(), &serde_json::from_value(object.clone()).unwrap()).await.unwrap();
    }

    // What was told.

    /// Waits until so many bodies about a release were accepted, and gives them.
    pub(crate) async fn told(&self, name: &str, count: usize) -> Vec<Value> {
        eventually(format!("{count} reports of {name}"), LIMIT, async || {
            let bodies = self.accepted(name);
            if bodies.len() >= count { Ok(bodies) } else { Err(format!("{} reports", bodies.len())) }
        })
        .await
        .unwrap()
    }

    /// The bodies about a release that were accepted.
    pub(crate) fn accepted(&self, name: &str) -> Vec<Value> {
        let is_about = |told: &Told| told.body["app_info"]["helm_info"]["name"] == name;
        self.sink.accepted().into_iter().filter(is_about).map(|told| told.body).collect()
    }

    /// The daemon's requests since a moment, but for watches.
    pub(crate) async fn requests(&self, since: integration::Mark) -> Vec<Record> {
        let audit = self.plane.audit().unwrap();
        audit.records(&Filter::since(since).user(users::TOWLINE)).await.unwrap()
    }
}

/// Revision and status of a body.
pub(crate) fn brief(body: &Value) -> (u64, String) {
    let info = &body["app_info"]["helm_info"];
    (info["revision"].as_u64().unwrap(), info["status"].as_str().unwrap().to_owned())
}

/// Runs `towline resync` or `towline explain` for a release. Returns whether it succeeded, and what it printed.
pub(crate) async fn ask(daemon: &Towline, word: &str, release: &str) -> (bool, String) {
    let admin = daemon.admin_url();
    let output = Towline::command([word, "inventory", release, "--admin", &admin]).await.unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

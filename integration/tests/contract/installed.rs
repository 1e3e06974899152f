//! Releases as they run: Helm installs presets on an API server, and the test does what a node would do with their pods, which therefore run with
//! the file, the mounts and the account that the chart gives them. Of what they ask of their cluster and of the hub, nothing is forbidden.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

use std::fs;
use std::time::Duration;

use integration::control_plane::{ControlPlane, Options};
use integration::{Filter, Helm, Mark, Sink, Told, Towline, crds, eventually, pod, users};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::chart::{permissions, repository};

/// Longer than anything here takes while two cores are busy with something else.
const LIMIT: Duration = Duration::from_mins(2);
/// Where the releases are, each named like its preset.
const NAMESPACE: &str = "installed";
/// Of the edge's objects, on both clusters.
const SHOP: &str = "west-installed";

/// Makes an object of these fields.
async fn make<K>(api: &Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn kind(client: &Client, namespace: Option<&str>, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// A cluster with releases, and the hub that some of them reach, on which `deploy/hub` and `deploy/side-car/hub` are.
struct Edge<'h> {
    plane: ControlPlane,
    client: Client,
    helm: Helm,
    hub: &'h ControlPlane,
    on_hub: Client,
    /// The moments in the audit logs of both before anything ran.
    since: [Mark; 2],
}

impl<'h> Edge<'h> {
    async fn start(hub: &'h ControlPlane) -> Self {
        let options = Options::named("installed").with_crds(&[crds::DATABASES]);
        let plane = ControlPlane::start(options).await.unwrap();
        let (client, on_hub) = (plane.client(users::ADMIN).await.unwrap(), hub.client(users::ADMIN).await.unwrap());
        for name in [NAMESPACE, "add-on"] {
            make(&Api::<Namespace>::all(client.clone()), json!({"metadata": {"name": name}})).await;
        }
        let of_west = json!({"metadata": {"name": SHOP, "labels": {"placement.towline.dev/edge": "west"}}});
        make(&Api::<Namespace>::all(on_hub.clone()), of_west).await;
        let since = [plane.audit().unwrap().mark().await.unwrap(), hub.audit().unwrap().mark().await.unwrap()];
        let helm = Helm::on(&plane).await.unwrap();
        Self { plane, client, helm, hub, on_hub, since }
    }

    async fn secret(&self, namespace: &str, name: &str, data: Value) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        make(&secrets, json!({"metadata": {"name": name}, "stringData": data})).await;
    }

    /// What a Secret holds for an account of the hub, as deploy/README.md makes it.
    async fn access(&self, namespace: &str, account: &str) -> Value {
        let of_admin = fs::read_to_string(self.hub.kubeconfig(users::ADMIN).unwrap()).unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&of_admin).unwrap();
        kubeconfig["users"][0]["user"] = json!({"tokenFile": "token"});
        let token = pod::token(&self.on_hub, namespace, account).await.unwrap();
        json!({"kubeconfig": kubeconfig.to_string(), "token": token})
    }

    /// Installs or upgrades a release with its preset and further values.
    async fn helm(&self, command: &str, release: &str, set: &[String]) {
        let chart = repository("deploy/chart");
        let values = chart.join("presets").join(release).with_extension("yaml");
        let set = [&["image.repository=registry.example/towline".to_owned()], set].concat().join(",");
        let (chart, values) = (chart.to_str().unwrap(), values.to_str().unwrap());
        let args = [command, release, chart, "--namespace", NAMESPACE, "--values", values, "--set", &set];
        self.helm.run(&args).await.unwrap();
    }

    /// Runs a pod of a release, as soon as its account may do what its roles say: the API server learns of them by watches of its own.
    async fn run(&self, release: &str) -> Towline {
        let manifest = self.helm.run(&["get", "manifest", release, "--namespace", NAMESPACE]).await.unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&manifest).unwrap();
        let roles = objects.iter().filter(|object| object["kind"] == "Role" || object["kind"] == "ClusterRole");
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        for permission in permissions(roles, NAMESPACE) {
            let [verb, group, resource, namespace, name] = &permission;
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let review = json!({"metadata": {}, "spec": {"user": account(release), "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace, "name": name,
            }}});
            let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
            eventually(format!("{permission:?} for {release}"), LIMIT, async || {
                let answer =
                    reviews.create(&PostParams::default(), &review).await.map_err(|error| error.to_string())?;
                if answer.status.as_ref().is_some_and(|status| status.allowed) {
                    Ok(())
                } else {
                    Err(format!("{answer:?}"))
                }
            })
            .await
            .unwrap();
        }
        let pod = pod::run(&self.plane, NAMESPACE, release, &[]).await.unwrap();
        pod.wait_ready(LIMIT).await.unwrap();
        pod
    }

    /// All requests of a release's account, and of the one that it has on the hub, were answered otherwise.
    async fn nothing_was_forbidden(&self, release: &str, on_hub: Option<&str>) {
        let own = account(release);
        let hubs = on_hub.map(|account| (self.hub, self.since[1], account));
        for (plane, since, user) in [(&self.plane, self.since[0], own.as_str())].into_iter().chain(hubs) {
            let of_user = Filter::since(since).user(user).with_watches();
            let requests = plane.audit().unwrap().records(&of_user).await.unwrap();
            assert!(!requests.is_empty(), "{user} has asked for something");
            let forbidden: Vec<_> = requests.iter().filter(|request| request.status == 403).collect();
            assert!(forbidden.is_empty(), "{user}: {forbidden:?}");
        }
    }

    /// Two pods divide the sections of resource sync: a spec goes down, its status and its Secret up, and both objects go.
    async fn syncs_with_two_replicas(&self) {
        const RELEASE: &str = "edge-replicated";
        const SECRET: &str = "database-credentials";
        self.secret(NAMESPACE, "towline-hub", self.access("towline-edges", "west").await).await;
        self.helm("install", RELEASE, &[]).await;
        let pods = [self.run(RELEASE).await, self.run(RELEASE).await];
        let databases = |client: &Client| kind(client, Some(SHOP), "demo.towline.dev", "Database");
        let (here, there) = (databases(&self.client), databases(&self.on_hub));
        let secrets_there = kind(&self.on_hub, Some(SHOP), "", "Secret");
        let database = json!({"apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": {"name": "orders"},
            "spec": {"engine": "postgres-17"}});
        make(&there, database).await;
        make(&secrets_there, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}})).await;
        let found = async |api: &Api<DynamicObject>, name: &str, pointer: &str, value: &str| {
            eventually(format!("{pointer} of {name}"), LIMIT, async || match api.get_opt(name).await {
                Ok(Some(object)) if object.data.pointer(pointer) == Some(&value.into()) => Ok(object),
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap()
        };
        let local = found(&here, "orders", "/spec/engine", "postgres-17").await;
        let ready = Patch::Merge(json!({"status": {"phase": "Ready"}}));
        here.patch_status("orders", &PatchParams::default(), &ready).await.unwrap();
        found(&there, "orders", "/status/phase", "Ready").await;
        let controller = json!({"apiVersion": "demo.towline.dev/v1", "kind": "Database", "name": "orders", "uid": local.uid(),
            "controller": true});
        let secret = json!({"metadata": {"name": SECRET, "ownerReferences": [controller]}, "stringData": {"password": "sesame"}});
        make(&Api::<Secret>::namespaced(self.client.clone(), SHOP), secret).await;
        found(&secrets_there, SECRET, "/data/password", "c2VzYW1l").await;
        there.delete("orders", &DeleteParams::default()).await.unwrap();
        for api in [&here, &there] {
            eventually("the object to be gone", LIMIT, async || match api.get_opt("orders").await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap();
        }
        for pod in pods {
            assert!(pod.terminate(LIMIT).await.unwrap().success());
        }
        self.nothing_was_forbidden(RELEASE, Some("system:serviceaccount:towline-edges:west")).await;
    }

    /// A Lease is renewed on the hub while a pod is ready.
    async fn renews_a_lease(&self) {
        const RELEASE: &str = "lease";
        self.secret("add-on", "add-on-hub-kubeconfig", self.access("edge-west", "add-on").await).await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "add-on");
        let add_on =
            json!({"metadata": {"name": "add-on-0"}, "spec": {"containers": [{"name": "add-on", "image": "add-on"}]}});
        make(&pods, add_on).await;
        let ready = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        pods.patch_status("add-on-0", &PatchParams::default(), &ready).await.unwrap();
        self.helm("install", RELEASE, &["config.lease[0].startup_delay=0s".to_owned()]).await;
        let pod = self.run(RELEASE).await;
        let leases: Api<Lease> = Api::namespaced(self.on_hub.clone(), "edge-west");
        eventually("the lease of the add-on", LIMIT, async || match leases.get_opt("add-on").await {
            Ok(Some(lease)) if lease.spec.as_ref().is_some_and(|spec| spec.renew_time.is_some()) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        assert!(pod.terminate(LIMIT).await.unwrap().success());
        self.nothing_was_forbidden(RELEASE, Some("system:serviceaccount:edge-west:add-on")).await;
    }

    /// The pod's template of a release.
    async fn template(&self, release: &str) -> Value {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        serde_json::to_value(deployments.get(release).await.unwrap().spec.template).unwrap()
    }

    /// The inventory tells of its own release what Helm does with it, each time with the configuration of that revision.
    async fn is_upgraded_and_rolled_back(&self) {
        const RELEASE: &str = "inventory";
        let sink = Sink::start().await.unwrap();
        self.secret(NAMESPACE, "towline-inventory", json!({"token": "sesame"})).await;
        let mut templates = Vec::new();
        // Revision, the name of the context in its configuration, and how often that will have been registered.
        for (revision, context, registrations) in [(1, "first", 1), (2, "second", 1), (3, "first", 2)] {
            if revision == 3 {
                self.helm.run(&["rollback", RELEASE, "1", "--namespace", NAMESPACE]).await.unwrap();
            } else {
                let api = format!("config.inventory.api_url={}/v1", sink.url());
                let context = format!("config.inventory.context_name={context}");
                let command = if revision == 1 { "install" } else { "upgrade" };
                self.helm(command, RELEASE, &[api, context, "config.inventory.delay=500ms".to_owned()]).await;
            }
            if revision == 1 {
                self.project().await;
            }
            templates.push(self.template(RELEASE).await);
            let pod = self.run(RELEASE).await;
            let registers = |told: &Told| told.line.ends_with("/register") && told.body["context_name"] == context;
            let registered = sink.wait_for("the registration", registrations, LIMIT, registers).await.unwrap();
            assert!(registered.iter().all(|told| told.authorization == "Bearer sesame"), "{registered:?}");
            let tells = |told: &Told| {
                let release = &told.body["app_info"]["helm_info"];
                release["name"] == RELEASE && release["revision"] == revision
            };
            sink.wait_for("the release", 1, LIMIT, tells).await.unwrap();
            assert!(pod.terminate(LIMIT).await.unwrap().success());
        }
        let checksum = |template: &Value| template["metadata"]["annotations"]["checksum/config"].clone();
        assert!(checksum(&templates[0]).is_string() && checksum(&templates[0]) != checksum(&templates[1]));
        assert_eq!(templates[0], templates[2]);
        self.nothing_was_forbidden(RELEASE, None).await;
    }

    /// Turns the inventory on, as soon as the kind is served that the release has brought.
    async fn project(&self) {
        let project =
            json!({"apiVersion": "hossted.com/v1", "kind": "Hosstedproject", "metadata": {"name": "main"}, "spec": {}});
        let project: DynamicObject = serde_json::from_value(project).unwrap();
        let projects = kind(&self.client, None, "hossted.com", "Hosstedproject");
        eventually("the project", LIMIT, async || {
            projects.create(&PostParams::default(), &project).await.map(drop).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
    }
}

fn account(release: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{release}")
}

pub(crate) async fn runs_with_what_it_is_given(hub: &ControlPlane) {
    let edge = Edge::start(hub).await;
    edge.syncs_with_two_replicas().await;
    edge.renews_a_lease().await;
    edge.is_upgraded_and_rolled_back().await;
    edge.plane.stop().await.unwrap();
}

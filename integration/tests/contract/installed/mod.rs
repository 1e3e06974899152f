//! Releases as they run: Helm installs each preset on an API server, and the test does what a node would do with its pods, which therefore run with
//! the file, the mounts and the account that the chart gives them. Of what they ask of their cluster and of the hub, nothing is forbidden.
//!
//! The preset `trial` runs in `start.rs`, as the page about it says.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod on_clusters;
mod on_databases;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use integration::control_plane::{ControlPlane, Options};
use integration::{Filter, Helm, Mark, Towline, crds, eventually, pod, users};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::chart::{PRESETS, permissions, repository};
use super::start;

/// Longer than anything here takes while two cores are busy with something else.
const LIMIT: Duration = Duration::from_mins(2);

pub(crate) async fn runs_with_what_it_is_given(hub: &ControlPlane) {
    let site = Site::start(hub).await;
    tokio::join!(
        on_clusters::resource_sync_goes_on_with_two_replicas(&site),
        on_clusters::a_lease_is_renewed(&site),
        on_clusters::the_inventory_is_upgraded_and_rolled_back(&site),
        on_databases::status_sync_sums_up(&site),
        on_databases::the_hub_applies_syncsets_and_publishes_events(&site),
    );
    let mut installed = std::mem::take(&mut *site.installed.lock());
    if start::blocks().iter().any(|block| block.contains("presets/trial.yaml")) {
        installed.insert("trial".to_owned());
    }
    assert_eq!(installed, PRESETS.map(str::to_owned).into());
    site.plane.stop().await.unwrap();
}

/// A cluster with releases, each in a namespace of its name, and the hub that some of them reach, on which `deploy/hub` and `deploy/side-car/hub`
/// are.
struct Site<'h> {
    plane: ControlPlane,
    client: Client,
    helm: Helm,
    hub: &'h ControlPlane,
    on_hub: Client,
    /// The moments in the audit logs of both before anything ran.
    since: [Mark; 2],
    /// The presets that were installed.
    installed: Mutex<BTreeSet<String>>,
}

impl<'h> Site<'h> {
    async fn start(hub: &'h ControlPlane) -> Self {
        let options = Options::named("installed").with_crds(&[crds::DATABASES]).with_crds(&crds::HUB_KINDS);
        let plane = ControlPlane::start(options).await.unwrap();
        let (client, on_hub) = (plane.client(users::ADMIN).await.unwrap(), hub.client(users::ADMIN).await.unwrap());
        let since = [plane.audit().unwrap().mark().await.unwrap(), hub.audit().unwrap().mark().await.unwrap()];
        let helm = Helm::on(&plane).await.unwrap();
        Self { plane, client, helm, hub, on_hub, since, installed: Mutex::default() }
    }

    async fn namespace(&self, name: &str) {
        make(&Api::<Namespace>::all(self.client.clone()), json!({"metadata": {"name": name}})).await;
    }

    /// Makes a Secret, or adds to one.
    async fn secret(&self, namespace: &str, name: &str, data: Value) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data});
        secrets.patch(name, &PatchParams::apply("test"), &Patch::Apply(secret)).await.unwrap();
    }

    /// What a Secret holds for an account of the hub, as deploy/README.md makes it.
    async fn access(&self, namespace: &str, account: &str) -> Value {
        let token = pod::token(&self.on_hub, namespace, account).await.unwrap();
        json!({"kubeconfig": kubeconfig(self.hub, &json!({"tokenFile": "token"})), "token": token})
    }

    /// Installs or upgrades a release with a preset and further values.
    async fn helm(&self, command: &str, release: &str, preset: &str, set: &[String]) {
        let chart = repository("deploy/chart");
        let values = chart.join("presets").join(preset).with_extension("yaml");
        let set = [&["image.repository=registry.example/towline".to_owned()], set].concat().join(",");
        let (chart, values) = (chart.to_str().unwrap(), values.to_str().unwrap());
        let args = [command, release, chart, "--namespace", release, "--values", values, "--set", &set];
        self.helm.run(&args).await.unwrap();
        self.installed.lock().insert(preset.to_owned());
    }

    /// Runs a pod of a release as soon as its account may do what its roles say, and waits until it is ready.
    async fn pod(&self, release: &str) -> Towline {
        let manifest = self.helm.run(&["get", "manifest", release, "--namespace", release]).await.unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&manifest).unwrap();
        let is_role = |object: &&Value| object["kind"] == "Role" || object["kind"] == "ClusterRole";
        self.permitted(&account(release), objects.iter().filter(is_role), release).await;
        pod::run(&self.plane, release, release, &[], LIMIT).await.unwrap()
    }

    /// Waits until somebody may do what roles say, of which the API server learns by watches of its own.
    async fn permitted(&self, user: &str, roles: impl Iterator<Item = &Value>, own_namespace: &str) {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        for permission in permissions(roles, own_namespace) {
            let [verb, group, resource, namespace, name] = &permission;
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace, "name": name,
            }}});
            let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
            eventually(format!("{permission:?} for {user}"), LIMIT, async || {
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
    }

    /// Of what somebody has asked of the releases' cluster, nothing was forbidden.
    async fn nothing_was_forbidden(&self, user: &str) {
        was_never_forbidden(&self.plane, self.since[0], user).await;
    }

    /// The same of the hub.
    async fn nothing_was_forbidden_on_the_hub(&self, user: &str) {
        was_never_forbidden(self.hub, self.since[1], user).await;
    }
}

async fn was_never_forbidden(plane: &ControlPlane, since: Mark, user: &str) {
    let of_user = Filter::since(since).user(user).with_watches();
    let requests = plane.audit().unwrap().records(&of_user).await.unwrap();
    assert!(!requests.is_empty(), "{user} has asked for something");
    let forbidden: Vec<_> = requests.iter().filter(|request| request.status == 403).collect();
    assert!(forbidden.is_empty(), "{user}: {forbidden:?}");
}

/// The account of a release's pods.
fn account(release: &str) -> String {
    format!("system:serviceaccount:{release}:{release}")
}

/// A kubeconfig with a user of one's own.
fn kubeconfig(plane: &ControlPlane, user: &Value) -> String {
    let of_admin = fs::read_to_string(plane.kubeconfig(users::ADMIN).unwrap()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&of_admin).unwrap();
    kubeconfig["users"][0]["user"] = user.clone();
    kubeconfig.to_string()
}

async fn ends(pod: Towline) {
    assert!(pod.terminate(LIMIT).await.unwrap().success());
}

/// Makes an object of these fields.
async fn make<K>(api: &Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn kind(client: &Client, namespace: &str, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Waits until an object has a field of this value.
async fn shows(api: &Api<DynamicObject>, name: &str, pointer: &str, value: impl Into<Value>) -> DynamicObject {
    let value = value.into();
    eventually(format!("{pointer} of {name}"), LIMIT, async || match api.get_opt(name).await {
        Ok(Some(object)) if object.data.pointer(pointer) == Some(&value) => Ok(object),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap()
}

async fn gone(api: &Api<DynamicObject>, name: &str) {
    eventually(format!("{name} to be gone"), LIMIT, async || match api.get_opt(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
}

//! Presets that need clusters alone: resource sync, lease, inventory.

use integration::{Sink, Told, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{LIMIT, Site, account, ends, gone, kind, make, shows};

/// One pod brings a spec down. Two that take its place and divide the sections bring status and Secret up, and delete both objects. After a rollback
/// it is one again.
pub(super) async fn resource_sync_goes_on_with_two_replicas(site: &Site<'_>) {
    const RELEASE: &str = "edge";
    const SHOP: &str = "west-installed";
    const SECRET: &str = "database-credentials";
    let of_west = json!({"metadata": {"name": SHOP, "labels": {"placement.towline.dev/edge": "west"}}});
    make(&Api::<Namespace>::all(site.on_hub.clone()), of_west).await;
    site.namespace(RELEASE).await;
    site.secret(RELEASE, "towline-hub", site.access("towline-edges", "west").await).await;
    site.helm("install", RELEASE, "edge", &[]).await;
    let pod = site.pod(RELEASE).await;
    let databases = |client: &Client| kind(client, SHOP, "demo.towline.dev", "Database");
    let (here, there) = (databases(&site.client), databases(&site.on_hub));
    let database = json!({"apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": {"name": "orders"},
        "spec": {"engine": "postgres-17"}});
    make(&there, database).await;
    let local = shows(&here, "orders", "/spec/engine", "postgres-17").await;
    ends(pod).await;

    site.helm("upgrade", RELEASE, "edge-replicated", &[]).await;
    let pods = [site.pod(RELEASE).await, site.pod(RELEASE).await];
    let ready = Patch::Merge(json!({"status": {"phase": "Ready"}}));
    here.patch_status("orders", &PatchParams::default(), &ready).await.unwrap();
    shows(&there, "orders", "/status/phase", "Ready").await;
    let secrets_there = kind(&site.on_hub, SHOP, "", "Secret");
    make(&secrets_there, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}})).await;
    let controller = json!({"apiVersion": "demo.towline.dev/v1", "kind": "Database", "name": "orders", "uid": local.uid(),
        "controller": true});
    let secret =
        json!({"metadata": {"name": SECRET, "ownerReferences": [controller]}, "stringData": {"password": "sesame"}});
    make(&Api::<Secret>::namespaced(site.client.clone(), SHOP), secret).await;
    shows(&secrets_there, SECRET, "/data/password", "c2VzYW1l").await;
    there.delete("orders", &DeleteParams::default()).await.unwrap();
    gone(&here, "orders").await;
    gone(&there, "orders").await;
    for pod in pods {
        ends(pod).await;
    }

    site.helm.run(&["rollback", RELEASE, "1", "--namespace", RELEASE]).await.unwrap();
    let pod = site.pod(RELEASE).await;
    let database = json!({"apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": {"name": "invoices"},
        "spec": {"engine": "postgres-17"}});
    make(&there, database).await;
    shows(&here, "invoices", "/spec/engine", "postgres-17").await;
    ends(pod).await;
    site.nothing_was_forbidden(&account(RELEASE)).await;
    site.nothing_was_forbidden_on_the_hub("system:serviceaccount:towline-edges:west").await;
}

/// A Lease is renewed on the hub while a pod is ready.
pub(super) async fn a_lease_is_renewed(site: &Site<'_>) {
    const RELEASE: &str = "lease";
    site.namespace("add-on").await;
    site.namespace(RELEASE).await;
    site.secret("add-on", "add-on-hub-kubeconfig", site.access("edge-west", "add-on").await).await;
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), "add-on");
    let add_on =
        json!({"metadata": {"name": "add-on-0"}, "spec": {"containers": [{"name": "add-on", "image": "add-on"}]}});
    make(&pods, add_on).await;
    let ready = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    pods.patch_status("add-on-0", &PatchParams::default(), &ready).await.unwrap();
    site.helm("install", RELEASE, RELEASE, &["config.lease[0].startup_delay=0s".to_owned()]).await;
    let pod = site.pod(RELEASE).await;
    let leases: Api<Lease> = Api::namespaced(site.on_hub.clone(), "edge-west");
    eventually("the lease of the add-on", LIMIT, async || match leases.get_opt("add-on").await {
        Ok(Some(lease)) if lease.spec.as_ref().is_some_and(|spec| spec.renew_time.is_some()) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    ends(pod).await;
    site.nothing_was_forbidden(&account(RELEASE)).await;
    site.nothing_was_forbidden_on_the_hub("system:serviceaccount:edge-west:add-on").await;
}

/// The inventory tells of its own release what Helm does with it, each time with the configuration of that revision.
pub(super) async fn the_inventory_is_upgraded_and_rolled_back(site: &Site<'_>) {
    const RELEASE: &str = "inventory";
    let sink = Sink::start().await.unwrap();
    site.namespace(RELEASE).await;
    site.secret(RELEASE, "towline-inventory", json!({"token": "sesame"})).await;
    let mut templates = Vec::new();
    // Revision, the name of the context in its configuration, and how often that will have been registered.
    for (revision, context, registrations) in [(1, "first", 1), (2, "second", 1), (3, "first", 2)] {
        if revision == 3 {
            site.helm.run(&["rollback", RELEASE, "1", "--namespace", RELEASE]).await.unwrap();
        } else {
            let api = format!("config.inventory.api_url={}/v1", sink.url());
            let context = format!("config.inventory.context_name={context}");
            let command = if revision == 1 { "install" } else { "upgrade" };
            site.helm(command, RELEASE, RELEASE, &[api, context, "config.inventory.delay=500ms".to_owned()]).await;
        }
        if revision == 1 {
            project(site).await;
        }
        templates.push(template(site, RELEASE).await);
        let pod = site.pod(RELEASE).await;
        let registers = |told: &Told| told.line.ends_with("/register") && told.body["context_name"] == context;
        let registered = sink.wait_for("the registration", registrations, LIMIT, registers).await.unwrap();
        assert!(registered.iter().all(|told| told.authorization == "Bearer sesame"), "{registered:?}");
        let tells = |told: &Told| {
            let release = &told.body["app_info"]["helm_info"];
            release["name"] == RELEASE && release["revision"] == revision
        };
        sink.wait_for("the release", 1, LIMIT, tells).await.unwrap();
        ends(pod).await;
    }
    let checksum = |template: &Value| template["metadata"]["annotations"]["checksum/config"].clone();
    assert!(checksum(&templates[0]).is_string() && checksum(&templates[0]) != checksum(&templates[1]));
    assert_eq!(templates[0], templates[2]);
    site.nothing_was_forbidden(&account(RELEASE)).await;
}

/// The pod's template of a release.
async fn template(site: &Site<'_>, release: &str) -> Value {
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), release);
    serde_json::to_value(deployments.get(release).await.unwrap().spec.template).unwrap()
}

/// Turns the inventory on, as soon as the kind is served that the release has brought.
async fn project(site: &Site<'_>) {
    let project =
        json!({"apiVersion": "hossted.com/v1", "kind": "Hosstedproject", "metadata": {"name": "main"}, "spec": {}});
    let project: DynamicObject = serde_json::from_value(project).unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("hossted.com", "v1", "Hosstedproject"));
    let projects: Api<DynamicObject> = Api::all_with(site.client.clone(), &resource);
    eventually("the project", LIMIT, async || {
        projects.create(&PostParams::default(), &project).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

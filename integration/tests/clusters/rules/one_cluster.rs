//! Both roles on one API server: suffixes keep the two sides apart.

use integration::{Towline, users};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::rules_world::*;

struct OneCluster {
    client: Client,
    towline: Towline,
}

impl OneCluster {
    /// A section for each of these names and settings.
    async fn start(sections: &[(&str, &str)]) -> Self {
        let world = world().await;
        let mut config = format!("[clusters.edge]\nkubeconfig = \"{}\"\n", world.edge_kubeconfig.display());
        for (name, settings) in sections {
            config += &sync(name, &leaflets(), settings).replace("remote = \"hub\"", "remote = \"edge\"");
        }
        let towline = Towline::start(&config, &[]).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        Self { client: world.edge.client(users::EDGE_CONTROLLER).await.unwrap(), towline }
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &leaflets())
    }

    async fn make(&self, namespace: &str, name: &str, spec: &Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "demo.towline.dev/v1", "kind": "Leaflet", "metadata": {"name": name}, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        self.api(namespace).create(&PostParams::default(), &object).await.unwrap()
    }

    async fn set(&self, namespace: &str, name: &str, patch: &Value, status: bool) {
        let api = self.api(namespace);
        let params = PatchParams::default();
        if status {
            api.patch_status(name, &params, &Patch::Merge(patch)).await.unwrap();
        } else {
            api.patch(name, &params, &Patch::Merge(patch)).await.unwrap();
        }
    }
}

#[test]
fn suffixes_of_namespaces_of_names_and_of_both_keep_the_two_sides_of_one_cluster_apart() {
    run(async {
        let sections = [
            ("both", "local_namespace_suffix = \"-copy\""),
            ("names", "remote_resource_suffix = \"-draft\""),
            ("together", "remote_resource_suffix = \"-draft\"\nlocal_namespace_suffix = \"-copy\""),
        ];
        let one = OneCluster::start(&sections).await;
        a_namespace_suffix(&one).await;
        a_resource_suffix_in_one_namespace(&one).await;
        both_suffixes_are_inverted_exactly(&one).await;
    });
}

async fn a_namespace_suffix(one: &OneCluster) {
    make_namespace(&one.client, "both-a", &json!({})).await;
    one.make("both-a", "page", &json!({"title": "one"})).await;
    let copies = one.api("both-a-copy");
    object_that(&copies, "the copy", "page", |copy| copy.data["spec"] == json!({"title": "one"})).await;
    one.set("both-a", "page", &json!({"spec": {"title": "two"}}), false).await;
    object_that(&copies, "the change", "page", |copy| copy.data["spec"] == json!({"title": "two"})).await;
    one.set("both-a-copy", "page", &json!({"status": {"read": 1}}), true).await;
    object_that(&one.api("both-a"), "the status", "page", |page| page.data["status"] == json!({"read": 1})).await;
    // A copy is never copied again.
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(one.client.clone());
    assert!(namespaces.get_opt("both-a-copy-copy").await.unwrap().is_none());
    let copy = copies.get("page").await.unwrap();
    assert!(copy.finalizers().is_empty(), "a copy is nobody's remote");
    one.api("both-a").delete("page", &DeleteParams::default()).await.unwrap();
    gone(&one.api("both-a"), "the page", "page").await;
    gone(&namespaces, "the namespace of copies", "both-a-copy").await;
    assert!(namespaces.get("both-a").await.is_ok(), "{}", one.towline.admin_url());
}

async fn a_resource_suffix_in_one_namespace(one: &OneCluster) {
    make_namespace(&one.client, "names-a", &json!({})).await;
    let pages = one.api("names-a");
    one.make("names-a", "page-draft", &json!({"title": "one"})).await;
    one.make("names-a", "unrelated", &json!({"title": "mine"})).await;
    object_that(&pages, "the copy", "page", |copy| copy.data["spec"] == json!({"title": "one"})).await;
    one.set("names-a", "page", &json!({"spec": {"title": "drift"}, "metadata": {"labels": {"a": "b"}}}), false).await;
    object_that(&pages, "the drift mended", "page", |copy| copy.data["spec"] == json!({"title": "one"})).await;
    one.set("names-a", "page", &json!({"status": {"read": 1}}), true).await;
    object_that(&pages, "the status", "page-draft", |page| page.data["status"] == json!({"read": 1})).await;
    pages.delete("page-draft", &DeleteParams::default()).await.unwrap();
    gone(&pages, "the draft", "page-draft").await;
    assert!(pages.get_opt("page").await.unwrap().is_none());
    let unrelated = pages.get("unrelated").await.unwrap();
    assert!(unrelated.annotations().is_empty() && unrelated.finalizers().is_empty());
}

async fn both_suffixes_are_inverted_exactly(one: &OneCluster) {
    make_namespace(&one.client, "together-a", &json!({})).await;
    one.make("together-a", "page-draft", &json!({"title": "one"})).await;
    one.make("together-a", "page", &json!({"title": "not a remote"})).await;
    let copies = one.api("together-a-copy");
    object_that(&copies, "the copy", "page", |copy| copy.data["spec"] == json!({"title": "one"})).await;
    one.set("together-a-copy", "page", &json!({"status": {"read": 1}}), true).await;
    let originals = one.api("together-a");
    object_that(&originals, "the status", "page-draft", |page| page.data["status"] == json!({"read": 1})).await;
    assert_eq!(originals.get("page").await.unwrap().data.get("status"), None);
    assert_eq!(copies.list(&kube::api::ListParams::default()).await.unwrap().items.len(), 1);
}

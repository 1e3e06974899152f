//! What a namespace may have, and what is refused beyond that.

use std::collections::BTreeMap;

use integration::hub::Request;
use integration::postgres::{ADMIN, Database};
use serde_json::{Value, json};

use crate::hub::world::{Hub, database, run};

const KIB: usize = 1 << 10;

fn cluster(namespace: &str, name: &str) -> Value {
    json!({"name": name, "namespace": namespace, "kubeconfig": "k"})
}

/// A cluster that takes so many bytes in the database: a kubeconfig is stored as it is.
fn large(name: &str, bytes: usize) -> Value {
    json!({"name": name, "namespace": "foo", "kubeconfig": "k".repeat(bytes)})
}

/// The status of the answer; a refusal is the one of a quota.
async fn sent(hub: &Hub, request: &Request) -> u16 {
    let reply = hub.client().send(request).await.expect("an answer");
    if reply.status == 403 {
        let problem = reply.json().expect("JSON");
        assert!(problem["title"].as_str().is_some_and(|title| title.starts_with("exceeded quota: ")), "{problem}");
    }
    reply.status
}

async fn created(hub: &Hub, document: &Value) -> u16 {
    sent(hub, &Request::post("/v1/clusters", document)).await
}

/// What is counted is what there is.
async fn is_exact(place: &Database) {
    let text = "select count(*) from towline_usage u full join ( \
           select namespace, count(*) as documents, sum(pg_column_size(labels) + pg_column_size(annotations) + pg_column_size(data) \
             + pg_column_size(status) + coalesce(pg_column_size(sealed), 0)) as bytes \
           from towline_documents where kind in ('clusters', 'syncsets', 'secrets') group by namespace) d using (namespace) \
         where u.documents is distinct from coalesce(d.documents, 0) or u.bytes is distinct from coalesce(d.bytes, 0)";
    let sql = place.client(ADMIN).await.expect("a connection");
    let wrong: i64 = sql.query_one(text, &[]).await.expect("a count").get(0);
    assert_eq!(wrong, 0, "namespaces whose usage is not what they have");
}

#[test]
fn a_namespace_gets_no_more_documents_than_its_quota_however_many_are_sent_at_once() {
    run(async {
        let place = database("quota").await;
        let hub = Hub::start(&place, &[("TOWLINE__HUB__MAX_DOCUMENTS", "5")]).await;
        let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
        let all = futures::future::join_all(names.iter().map(async |name| created(&hub, &cluster("foo", name)).await));
        let mut statuses = BTreeMap::new();
        for status in all.await {
            *statuses.entry(status).or_insert(0) += 1;
        }
        assert_eq!(statuses, BTreeMap::from([(201, 5), (403, 35)]));
        assert_eq!(created(&hub, &cluster("bar", "c0")).await, 201, "others have a quota of their own");
        let listed = hub.expect(200, "/v1/clusters?namespace=foo", &[]).await.json();
        let name = listed["items"][0]["name"].as_str().expect("a name").to_owned();
        // What is there may be changed.
        let path = format!("/v1/clusters/foo/{name}");
        let labels = json!({"labels": {"env": "prod"}});
        assert_eq!(sent(&hub, &Request::merge_patch(&path, &labels)).await, 200);
        // An apply tells it of each document.
        let manifest = |name: &str, namespace: &str| {
            let mut document = cluster(namespace, name);
            document["kind"] = "Cluster".into();
            document
        };
        let applied = json!([manifest("new", "foo"), manifest(&name, "foo"), manifest("new", "bar")]).to_string();
        let answer = hub.expect(200, "/v1/apply", &["--json", &applied]).await.json();
        let results: Vec<&Value> = (0..3).map(|index| &answer["items"][index]["result"]).collect();
        assert_eq!((results[0], results[2]), (&json!("failed"), &json!("created")), "{answer}");
        assert_eq!(answer["items"][0]["problem"]["status"], 403, "{answer}");
        assert_ne!(results[1], "failed", "{answer}");
        // What has no namespace needs a token for all of them, and no quota.
        for number in 0..7 {
            let syncset = json!({"name": format!("s{number}"), "spec": {"clusterDeploymentSelector": {}}});
            assert_eq!(sent(&hub, &Request::post("/v1/selectorsyncsets", &syncset)).await, 201);
        }
        hub.expect(200, &path, &["-X", "DELETE"]).await;
        assert_eq!(created(&hub, &cluster("foo", "again")).await, 201);
        assert_eq!(created(&hub, &cluster("foo", "more")).await, 403);
        is_exact(&place).await;
    });
}

#[test]
fn a_namespace_gets_no_more_bytes_than_its_quota_but_for_one_document() {
    run(async {
        let place = database("quotabytes").await;
        let hub = Hub::start(&place, &[("TOWLINE__HUB__MAX_MEBIBYTES", "1")]).await;
        for number in 0..6 {
            // 5 are 1,000 KiB.
            assert_eq!(created(&hub, &large(&format!("c{number}"), 200 * KIB)).await, 201, "{number}");
        }
        assert_eq!(created(&hub, &large("c6", 200 * KIB)).await, 403);
        assert_eq!(created(&hub, &cluster("foo", "little")).await, 403);
        let patch = async |changes: Value| sent(&hub, &Request::merge_patch("/v1/clusters/foo/c0", &changes)).await;
        assert_eq!(patch(json!({"kubeconfig": "k".repeat(9 * KIB)})).await, 403);
        // What is little may still be changed.
        assert_eq!(patch(json!({"labels": {"env": "prod"}})).await, 200);
        is_exact(&place).await;
        hub.expect(200, "/v1/clusters/foo/c5", &["-X", "DELETE"]).await;
        assert_eq!(patch(json!({"kubeconfig": "k".repeat(9 * KIB)})).await, 200);
        assert_eq!(created(&hub, &cluster("foo", "little")).await, 201);
        is_exact(&place).await;
    });
}

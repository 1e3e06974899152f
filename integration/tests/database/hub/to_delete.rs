//! `resourcesToDelete` and `superseded` of a `ClusterSync`: read with one document, not stored, and accepted when they are
//! sent back.

use http::header::{ETAG, IF_NONE_MATCH};
use integration::hub::{Client, Request};
use integration::page;
use integration::postgres::ADMIN;
use serde_json::{Value, json};

use crate::hub::world::{done, run, shared, shown};

/// The clusters `c1` and `c2` of a namespace of a hub that no worker writes to.
struct Stage {
    client: Client,
    sql: tokio_postgres::Client,
    namespace: &'static str,
    /// Of the `ClusterSync` of `c1`, and of its status.
    path: String,
    status: String,
}

/// An id of a syncset.
fn id(number: usize) -> String {
    format!("00000000-0000-4000-9000-{number:012}")
}

impl Stage {
    async fn new(namespace: &'static str) -> Self {
        let (hub, place) = shared().await;
        let mut client = hub.client();
        for name in ["c1", "c2"] {
            let document = json!({"name": name, "namespace": namespace, "kubeconfig": "k"});
            done(&mut client, &Request::post("/v1/clusters", &document)).await;
        }
        let path = format!("/v1/clustersyncs/{namespace}/c1");
        let sql = place.client(ADMIN).await.expect("a connection");
        Self { client, sql, namespace, status: format!("{path}/status"), path }
    }

    /// A result of the syncset with this id on a cluster.
    async fn result(&self, cluster: &str, (kind, name, number): (&str, &str, usize)) {
        let text = format!(
            "insert into towline_result (cluster, syncset, kind, namespace, name, inputs, generation, result, since, pending_deletions) \
             select id, '{}', '{kind}', '', '{name}', '', 1, 'Success', now(), false from clusters \
             where namespace = '{}' and name = '{cluster}'",
            id(number),
            self.namespace
        );
        self.sql.batch_execute(&text).await.expect("a result");
    }

    /// A row of an object: group, kind, namespace, name and version; whether it is tracked and adopted.
    async fn object(&self, cluster: &str, syncset: usize, of: [&str; 5], is: (bool, bool)) {
        let ([group, kind, namespace, name, version], (tracked, adopted)) = (of, is);
        let text = format!(
            "insert into towline_applied select id, '{group}', '{kind}', '{namespace}', '{name}', '{}', '{version}', null, true, \
               {tracked}, {adopted}, null, null, null, 0 from clusters where namespace = '{}' and name = '{cluster}'",
            id(syncset),
            self.namespace
        );
        self.sql.batch_execute(&text).await.expect("a row");
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": name})
}

#[test]
fn the_objects_that_a_syncset_deletes_are_shown_with_one_cluster_sync_and_nowhere_else() {
    run(async {
        let mut stage = Stage::new("todelete").await;
        let stored = json!({"syncSets": [{"name": "base", "result": "Success"}, {"name": "none"}, "odd", {"name": 7}],
            "selectorSyncSets": [{"name": "base", "observedGeneration": 3}], "conditions": [{"type": "Failed"}]});
        done(&mut stage.client, &Request::merge_patch(&stage.status, &json!({"status": stored}))).await;
        let before = done(&mut stage.client, &Request::get(&stage.path)).await;
        assert_eq!(before.json().expect("JSON")["status"], stored, "there is nothing to delete");
        for (cluster, syncset) in [
            ("c1", ("SyncSet", "base", 1)),
            ("c1", ("SelectorSyncSet", "base", 2)),
            // Created again under its name.
            ("c1", ("SyncSet", "base", 3)),
            ("c2", ("SyncSet", "base", 1)),
        ] {
            stage.result(cluster, syncset).await;
        }
        let (tracked, adopted, forgotten) = ((true, false), (true, true), (false, false));
        for (cluster, syncset, of, is) in [
            ("c1", 1, ["apps", "Deployment", "default", "web", "apps/v1"], tracked),
            ("c1", 1, ["", "ConfigMap", "default", "b", "v1"], tracked),
            ("c1", 1, ["", "ConfigMap", "default", "adopted", "v1"], adopted),
            ("c1", 1, ["", "ConfigMap", "default", "forgotten", "v1"], forgotten),
            ("c1", 2, ["", "Namespace", "", "monitoring", "v1"], tracked),
            ("c1", 3, ["", "ConfigMap", "default", "a", "v1"], tracked),
            ("c1", 2, ["", "ConfigMap", "default", "b", "v1"], forgotten),
            ("c2", 1, ["", "ConfigMap", "default", "elsewhere", "v1"], tracked),
            ("c2", 2, ["", "ConfigMap", "default", "a", "v1"], tracked),
        ] {
            stage.object(cluster, syncset, of, is).await;
        }
        let mut expected = stored.clone();
        let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "web"});
        expected["syncSets"][0]["resourcesToDelete"] = json!([map("a"), map("b"), web]);
        // Both of that name want it, and so does a selector syncset.
        expected["syncSets"][0]["superseded"] = json!([map("b")]);
        let monitoring = json!({"apiVersion": "v1", "kind": "Namespace", "name": "monitoring"});
        expected["selectorSyncSets"][0]["resourcesToDelete"] = json!([monitoring]);
        // It has the same version, and is not the same answer.
        let tag = before.header(ETAG).expect("a tag").to_owned();
        let reply = done(&mut stage.client, &Request::get(&stage.path).header(IF_NONE_MATCH, &tag)).await;
        assert_eq!((reply.status, reply.header(ETAG)), (200, Some(tag.as_str())));
        let read = reply.json().expect("JSON");
        assert_eq!(read["status"], expected);
        page::agrees("/v1/clustersyncs", "objects", &read).expect("what the page reads");
        let list =
            shown(&mut stage.client, "/v1/clustersyncs?namespace=todelete&fieldSelector=metadata.name%3Dc1").await;
        assert_eq!(list["items"][0]["status"], stored);
        // The cluster itself is as it is stored, and not sent again.
        let cluster = done(&mut stage.client, &Request::get("/v1/clusters/todelete/c1")).await;
        let tag = cluster.header(ETAG).expect("a tag").to_owned();
        let again = stage.client.send(&Request::get("/v1/clusters/todelete/c1").header(IF_NONE_MATCH, &tag)).await;
        assert_eq!(again.expect("an answer").status, 304);
    });
}

#[test]
fn what_was_read_and_is_sent_back_is_no_change() {
    run(async {
        let mut stage = Stage::new("sentback").await;
        stage.result("c1", ("SyncSet", "base", 1)).await;
        for name in ["a", "b"] {
            stage.object("c1", 1, ["", "ConfigMap", "default", name, "v1"], (true, false)).await;
        }
        let stored = json!({"syncSets": [{"name": "base"}], "selectorSyncSets": []});
        let written = done(&mut stage.client, &Request::merge_patch(&stage.status, &json!({"status": stored}))).await;
        let version = written.version().expect("a version");
        let read = shown(&mut stage.client, &stage.path).await;
        assert_eq!(read["status"]["syncSets"][0]["resourcesToDelete"], json!([map("a"), map("b")]));
        // With the version in the body, with a condition, and as a patch.
        for request in [
            Request::put(&stage.status, &read),
            Request::put(&stage.status, &read).if_match(version),
            Request::merge_patch(&stage.status, &json!({"status": read["status"]})),
        ] {
            let answer = done(&mut stage.client, &request).await;
            assert_eq!(
                (answer.version().expect("a version"), &answer.json().expect("JSON")["status"]),
                (version, &stored)
            );
        }
        let add = json!([{"op": "add", "path": "/status/syncSets/0/resourcesToDelete", "value": [1]}]);
        let answer = done(&mut stage.client, &Request::json_patch(&stage.status, &add)).await;
        assert_eq!(answer.version().expect("a version"), version);
        // Another change is made without it.
        let mut changed = read.clone();
        changed["status"]["syncSets"][0]["result"] = json!("Success");
        let answer = done(&mut stage.client, &Request::put(&stage.status, &changed)).await.json().expect("JSON");
        assert_eq!(answer["status"]["syncSets"], json!([{"name": "base", "result": "Success"}]));
        let logged = "select count(*) from towline_log where namespace = 'sentback' and document::text like '%resourcesToDelete%'";
        let logged: i64 = stage.sql.query_one(logged, &[]).await.expect("a count").get(0);
        assert_eq!(logged, 0);
    });
}

#[test]
fn a_thousand_objects_are_named_the_same_number_of_each_syncset_and_the_rest_is_counted() {
    run(async {
        let mut stage = Stage::new("omitted").await;
        // The last one sends 200 objects of the one before, and has adopted them.
        for (number, count, prefix, adopted) in
            [(1, 1_500, "m1", false), (2, 300, "m2", false), (3, 900, "m3", false), (4, 200, "m3", true)]
        {
            stage.result("c1", ("SyncSet", &format!("s{number}"), number)).await;
            let rows = format!(
                "insert into towline_applied select c.id, '', 'ConfigMap', 'default', '{prefix}' || lpad(n::text, 4, '0'), '{}', 'v1', null, true, \
                   true, {adopted}, null, null, null, 0 from clusters c, generate_series(1, {count}) n \
                 where c.namespace = 'omitted' and c.name = 'c1'",
                id(number)
            );
            stage.sql.batch_execute(&rows).await.expect("rows");
        }
        let entries = json!([{"name": "s1"}, {"name": "s2"}, {"name": "s3"}, {"name": "s4"}]);
        done(&mut stage.client, &Request::merge_patch(&stage.status, &json!({"status": {"syncSets": entries}}))).await;
        let read = shown(&mut stage.client, &stage.path).await;
        page::agrees("/v1/clustersyncs", "more objects", &read).expect("what the page reads");
        let told = |entry: &Value, field: &str| {
            let named = entry[field].as_array().map_or(0, Vec::len);
            (named, entry[format!("{field}Omitted")].as_u64())
        };
        let told = |entry: &Value| (told(entry, "resourcesToDelete"), told(entry, "superseded"));
        let told: Vec<_> = read["status"]["syncSets"].as_array().expect("entries").iter().map(told).collect();
        let none = (0, None);
        let expected =
            [((267, Some(1_233)), none), ((267, Some(33)), none), ((266, Some(634)), (200, None)), (none, none)];
        assert_eq!(told, expected);
        assert_eq!(
            read["status"]["syncSets"][0]["resourcesToDelete"][266],
            map("m10267"),
            "the first ones in their order"
        );
        assert_eq!(read["status"]["syncSets"][2]["superseded"][199], map("m30200"));
        let answer = done(&mut stage.client, &Request::put(&stage.status, &read)).await.json().expect("JSON");
        assert_eq!((&answer["status"]["syncSets"], &answer["resourceVersion"]), (&entries, &read["resourceVersion"]));
    });
}

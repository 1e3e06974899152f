//! The way of a first user: a database, `towline hub`, `curl`.

use integration::postgres::ADMIN;
use serde_json::json;

use crate::hub::world::{Hub, database, run, shared};

const MERGE: &str = "content-type: application/merge-patch+json";

#[test]
fn a_first_user_registers_lists_changes_watches_and_deletes_a_cluster() {
    run(async {
        let database = database("walk").await;
        let hub = Hub::start(&database, &[]).await;

        // As a first user types it: curl sends a form's type, and nobody has a token.
        let body = r#"{"name":"cluster1","namespace":"foo","kubeconfig":"foobar"}"#;
        let created = hub.expect(201, "/v1/clusters", &["-X", "POST", "-d", body]).await;
        assert!(created.head.contains("location: /v1/clusters/foo/cluster1"), "{}", created.head);
        let cluster = created.json();
        let version = cluster["resourceVersion"].as_str().expect("a version").to_owned();
        assert!(created.head.contains(&format!("etag: \"{version}\"")), "{}", created.head);
        assert_eq!(
            (&cluster["kind"], &cluster["generation"], &cluster["paused"]),
            (&json!("Cluster"), &json!(1), &json!(false))
        );
        assert_eq!(cluster["kubeconfigGeneration"], 1);
        assert!(!created.body.contains("foobar"), "{}", created.body);

        let sql = database.client(ADMIN).await.expect("a connection");
        let row = sql.query_one("select * from clusters", &[]).await.expect("one row");
        assert_eq!((row.get::<_, &str>("namespace"), row.get::<_, &str>("name")), ("foo", "cluster1"));
        assert_eq!(row.get::<_, i64>("version").to_string(), version);

        hub.expect(409, "/v1/clusters", &["-X", "POST", "-d", body]).await;
        let rehearsed = body.replace("cluster1", "cluster9");
        let rehearsed = hub.expect(200, "/v1/clusters?dryRun=true", &["-X", "POST", "-d", &rehearsed]).await;
        assert!(!rehearsed.head.contains("etag") && !rehearsed.head.contains("location"), "{}", rehearsed.head);
        hub.expect(404, "/v1/clusters/foo/cluster9", &[]).await;
        let other = r#"{"name":"cluster2","namespace":"foo","kubeconfig":"k","labels":{"env":"test"}}"#;
        hub.expect(201, "/v1/clusters", &["--json", other]).await;
        let etag = format!("if-none-match: \"{version}\"");
        hub.expect(304, "/v1/clusters/foo/cluster1", &["-H", &etag]).await;
        assert_eq!(hub.expect(200, "/v1/clusters/foo/cluster1", &[]).await.json(), cluster);
        hub.expect(404, "/v1/clusters/foo/none", &[]).await;

        let mut watch = hub.watch("/v1/clusters?watch=true&labelSelector=env%3Dprod", &[]);
        let line = watch.line().await.expect("the end of the state");
        assert!(line.contains("initial-events-end"), "{line}");
        let labelled = hub
            .expect(
                200,
                "/v1/clusters/foo/cluster1",
                &["-X", "PATCH", "-H", MERGE, "-d", r#"{"labels":{"env":"prod"}}"#],
            )
            .await;
        assert_eq!(labelled.json()["generation"], 1, "labels are no own field");
        let (kind, object) = watch.event().await;
        assert_eq!((kind.as_str(), &object), ("ADDED", &labelled.json()));

        let list = hub.expect(200, "/v1/clusters?labelSelector=env%3Dprod", &[]).await.json();
        assert_eq!(list["items"], json!([labelled.json()]));
        let page = hub.expect(200, "/v1/clusters?namespace=foo&limit=1", &[]).await.json();
        let next = page["continue"].as_str().expect("there is more").to_owned();
        let rest = hub.expect(200, &format!("/v1/clusters?namespace=foo&limit=1&continue={next}"), &[]).await.json();
        assert_eq!((&rest["items"][0]["name"], rest.get("continue")), (&json!("cluster2"), None));
        hub.expect(400, &format!("/v1/clusters?continue={next}"), &[]).await;

        hub.expect(428, "/v1/clusters/foo/cluster1", &["-X", "PUT", "--json", "{}"]).await;
        let old = format!("if-match: \"{version}\"");
        hub.expect(412, "/v1/clusters/foo/cluster1", &["-X", "PUT", "-H", &old, "--json", "{}"]).await;
        let paused = hub
            .expect(200, "/v1/clusters/foo/cluster1", &["-X", "PATCH", "-H", MERGE, "-d", r#"{"paused":true}"#])
            .await;
        assert_eq!((&paused.json()["generation"], &paused.json()["paused"]), (&json!(2), &json!(true)));
        let (kind, object) = watch.event().await;
        assert_eq!((kind.as_str(), &object), ("MODIFIED", &paused.json()));
        let status = ["-X", "PATCH", "-H", MERGE, "-d", r#"{"status":{"seen":true}}"#];
        let seen = hub.expect(200, "/v1/clusters/foo/cluster1/status", &status).await.json();
        assert_eq!((&seen["status"], &seen["generation"]), (&json!({"seen": true}), &json!(2)));
        assert_eq!(watch.event().await.0, "MODIFIED");

        let tried = hub.expect(200, "/v1/clusters/foo/cluster1?dryRun=true", &["-X", "DELETE"]).await.json();
        assert_eq!(tried["resourceVersion"], seen["resourceVersion"]);
        // A version in the body is a condition, too.
        let earlier = json!({"resourceVersion": version}).to_string();
        hub.expect(409, "/v1/clusters/foo/cluster1", &["-X", "DELETE", "--json", &earlier]).await;
        let typo = r#"{"resourceVersoin":"1"}"#;
        let refused = hub.expect(422, "/v1/clusters/foo/cluster1", &["-X", "DELETE", "--json", typo]).await.json();
        assert_eq!(refused["errors"][0]["suggestion"], "resourceVersion");
        let newest = json!({"resourceVersion": seen["resourceVersion"]}).to_string();
        let deleted = hub.expect(200, "/v1/clusters/foo/cluster1", &["-X", "DELETE", "--json", &newest]).await.json();
        assert_eq!(deleted["status"], json!({"seen": true}));
        let (kind, object) = watch.event().await;
        assert_eq!((kind.as_str(), &object["name"]), ("DELETED", &json!("cluster1")));
        hub.expect(404, "/v1/clusters/foo/cluster1", &["-X", "DELETE"]).await;
        let left: i64 = sql.query_one("select count(*) from clustersyncs", &[]).await.expect("a count").get(0);
        assert_eq!(left, 1, "the ClusterSync is gone with its cluster");

        let metrics = hub.towline.admin().metrics().await.expect("metrics");
        for series in [
            r#"towline_hub_requests_total{route="/v1/clusters",method="POST",code="201"} 2"#,
            r#"towline_hub_requests_total{route="/v1/clusters/{namespace}/{name}",method="DELETE",code="404"} 1"#,
            "towline_hub_watchers 1",
        ] {
            assert!(metrics.contains(series), "no {series} in {metrics}");
        }
    });
}

#[test]
fn server_sent_events_have_the_version_as_their_id_and_resume_from_it() {
    run(async {
        let (hub, _) = shared().await;
        let make = async |name: &str| {
            let body = json!({"name": name, "namespace": "events", "kubeconfig": "k"}).to_string();
            let made = hub.expect(201, "/v1/clusters", &["--json", &body]).await.json();
            made["resourceVersion"].as_str().expect("a version").to_owned()
        };
        let first = make("a").await;
        let accept = ["-H", "accept: text/event-stream"];
        let path = "/v1/clusters?watch=true&namespace=events";
        let mut watch = hub.watch(path, &accept);
        let line = watch.line().await.expect("the state");
        assert!(line.starts_with("data: {\"type\":\"ADDED\""), "{line}");
        assert_eq!(watch.line().await.as_deref(), Some(""));
        let id = watch.line().await.expect("the end of the state");
        assert!(id.starts_with("id: "), "{id}");
        let second = make("b").await;
        let mut resumed = hub.watch(path, &[&accept[..], &["-H", &format!("last-event-id: {first}")]].concat());
        loop {
            let line = resumed.line().await.expect("it goes on");
            if line.contains("\"name\":\"b\"") {
                break;
            }
            assert!(!line.contains("\"name\":\"a\""), "the event that was the last one is repeated: {line}");
            assert!(line != format!("id: {first}"), "{line}");
        }
        let gone = format!("{path}&resourceVersion={}", second.parse::<i64>().expect("a number") + (1 << 30));
        hub.expect(410, &gone, &[]).await;
    });
}

/// A document with finalizers stays until the last of them is removed, and the answers say which it is.
#[test]
fn a_document_with_finalizers_is_deleted_when_the_last_of_them_is_removed() {
    run(async {
        let (hub, _) = shared().await;
        let path = "/v1/clusters/finalizers/a";
        let body = json!({"name": "a", "namespace": "finalizers", "kubeconfig": "k",
            "finalizers": ["example.com/one", "example.com/two"]})
        .to_string();
        hub.expect(201, "/v1/clusters", &["--json", &body]).await;
        let mut watch = hub.watch("/v1/clusters?watch=true&namespace=finalizers", &[]);
        assert_eq!(watch.event().await.0, "ADDED");
        let leave = async |status: u16, finalizers: &[&str]| {
            let body = json!({"finalizers": finalizers, "labels": {"left": finalizers.len().to_string()}}).to_string();
            hub.expect(status, path, &["-X", "PATCH", "-H", MERGE, "-d", &body]).await.json()
        };
        let deleting = hub.expect(202, path, &["-X", "DELETE"]).await.json();
        assert!(deleting["deletedAt"].is_string(), "{deleting}");
        assert_eq!(hub.expect(202, path, &["-X", "DELETE"]).await.json(), deleting, "deleting again changes nothing");
        let refused = leave(422, &["example.com/one", "example.com/three"]).await;
        assert_eq!(refused["errors"][0]["pointer"], "/finalizers/1", "{refused}");
        let one = leave(200, &["example.com/one"]).await;
        assert_eq!(hub.expect(200, path, &[]).await.json(), one);
        let removed = leave(200, &[]).await;
        assert_eq!(removed["labels"], json!({"left": "1"}), "its last state");
        hub.expect(404, path, &[]).await;
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(watch.event().await);
        }
        let kinds: Vec<&str> = seen.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["MODIFIED", "MODIFIED", "DELETED"]);
        assert_eq!((&seen[0].1, &seen[1].1), (&deleting, &one));
        assert_eq!(seen[2].1["labels"], json!({"left": "1"}));
    });
}

//! The database goes away and comes back.

use integration::Postgres;
use integration::postgres::Transport;
use serde_json::json;

use crate::world::{Hub, readiness, run};

#[test]
fn requests_are_503_while_the_database_is_away_and_served_again_when_it_is_back() {
    run(async {
        let server = Postgres::start("hub-outage", Transport::Plain).await.expect("a server");
        let database = server.empty_database("outage").await.expect("a database");
        let hub = Hub::start(&database, &[]).await;
        let body = |name: &str| json!({"name": name, "namespace": "foo", "kubeconfig": "k"}).to_string();
        hub.expect(201, "/v1/clusters", &["--json", &body("a")]).await;
        server.kill().await.expect("it is killed");
        readiness(&hub, 503).await;
        for (path, args) in [
            ("/v1/clusters", &[][..]),
            ("/v1/clusters/foo/a", &[]),
            ("/v1/clusters", &["--json", &body("b")]),
            ("/v1/clusters/foo/a", &["-X", "DELETE"]),
        ] {
            let answer = hub.expect(503, path, args).await;
            assert!(answer.head.contains("retry-after: "), "{answer:?}");
            assert!(answer.head.contains("content-type: application/problem+json"), "{answer:?}");
        }
        assert_eq!(
            hub.towline.admin().readyz().await.expect("an answer").status,
            200,
            "one outage takes no daemon out"
        );
        server.start_again().await.expect("it starts");
        readiness(&hub, 200).await;
        let list = hub.expect(200, "/v1/clusters?fields=metadata", &[]).await.json();
        let names: Vec<&str> =
            list["items"].as_array().expect("items").iter().filter_map(|item| item["name"].as_str()).collect();
        assert_eq!(names, ["a"], "what was answered with 503 and nothing written is not there");
        hub.expect(201, "/v1/clusters", &["--json", &body("b")]).await;
    });
}

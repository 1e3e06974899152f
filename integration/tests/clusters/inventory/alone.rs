//! `towline inventory`: the environment is all that it is told.

use integration::{Towline, users};
use serde_json::json;

use crate::inventory::world::{LIMIT, World, brief, run, small_chart};

#[test]
fn the_environment_alone_makes_it_report() {
    run(async {
        let world = World::new().await;
        let kubeconfig = world.plane.kubeconfig(users::TOWLINE).unwrap().display().to_string();
        let url = format!("{}/v1", world.sink.url());
        let daemon = Towline::start_inventory(&[
            ("KUBECONFIG", &kubeconfig),
            ("HOSSTED_API_URL", &url),
            ("HOSSTED_AUTH_TOKEN", "token-5f0c1d"),
            ("EMAIL_ID", "a@b.example"),
            ("HOSSTED_ORG_ID", "o7"),
            ("CONTEXT_NAME", "edge-west"),
            ("RECONCILE_DURATION", "500ms"),
        ])
        .await
        .unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        let chart = world.helm.chart(&small_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        let told = world.told("web", 1).await;
        assert_eq!(brief(&told[0]), (1, "deployed".to_owned()));
        let sender = &told[0]["app_api_info"];
        assert_eq!((&sender["org_id"], &sender["email_id"]), (&json!("o7"), &json!("a@b.example")));
        world.helm.run(&["uninstall", "web"]).await.unwrap();
        assert_eq!(brief(&world.told("web", 2).await[1]), (1, "uninstalled".to_owned()));
        world.wait_until_forgotten().await;
        let posts = world.sink.told();
        assert_eq!(posts.len(), 3, "the registration, and each change once");
        assert_eq!(posts[0].body["context_name"], "edge-west");
        assert!(posts.iter().all(|post| post.authorization == "Bearer token-5f0c1d"), "{posts:?}");
        assert_eq!(daemon.admin().section("inventory").await.unwrap()["project"], "counts");
        assert!(!daemon.log().unwrap().contains("token-5f0c1d"), "the token is in the log");
        assert!(daemon.terminate(LIMIT).await.unwrap().success());
    });
}

#[test]
fn an_environment_without_an_api_is_refused_with_all_that_is_missing() {
    run(async {
        let output = Towline::command_with(["inventory"], &[("RECONCILE_DURATION", "soon")]).await.unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        for name in ["HOSSTED_API_URL", "HOSSTED_AUTH_TOKEN", "RECONCILE_DURATION"] {
            assert!(told.contains(name), "{name} in {told}");
        }
    });
}

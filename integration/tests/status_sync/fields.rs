//! Placement rules, placements, statuses and reports of subscriptions: what their fields come to.

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::world::{Stage, run};

#[test]
fn decisions_of_placement_rules_stand_in_order_without_doubles() {
    run(async {
        let stage = Stage::new("rules").await;
        stage.wanted("placementrules", "rule").await;
        let decision = |cluster: &str| json!({"clusterName": cluster, "clusterNamespace": format!("ns-{cluster}")});
        let reported = |clusters: &[&str]| json!({"status": {"decisions": clusters.iter().map(|cluster| decision(cluster)).collect::<Vec<_>>()}});
        stage.report("placementrules", "b", "rule", &reported(&["x", "a"])).await;
        stage.report("placementrules", "a", "rule", &reported(&["z", "x"])).await;
        stage.report("placementrules", "a", "rule-bar", &reported(&["other"])).await;
        let towline = stage.start().await;
        let expected = json!([decision("z"), decision("x"), decision("a")]);
        stage.shows("placementrules", "rule", "/status/decisions", &expected).await;
        stage.execute("DELETE FROM status.placementrules", &[]).await;
        stage.shows("placementrules", "rule", "/status/decisions", &Value::Null).await;
        drop(towline);
    });
}

#[test]
fn selected_clusters_are_summed_beside_what_is_not_ours() {
    run(async {
        let stage = Stage::new("selected").await;
        stage.wanted("placements", "sum").await;
        let others = json!({"conditions": [{"type": "Kept"}], "decisionGroups": [{"kept": true}]});
        stage.edit_status("placements", "sum", &others).await;
        for (leaf_hub, number) in [("a", 3), ("b", 4)] {
            stage.report("placements", leaf_hub, "sum", &json!({"status": {"numberOfSelectedClusters": number}})).await;
        }
        let towline = stage.start().await;
        stage.shows("placements", "sum", "/status/numberOfSelectedClusters", &json!(7)).await;
        let most = json!({"status": {"numberOfSelectedClusters": 2_147_483_647}});
        stage.report("placements", "b", "sum", &most).await;
        stage.shows("placements", "sum", "/status/numberOfSelectedClusters", &json!(i32::MAX)).await;
        stage.execute("DELETE FROM status.placements", &[]).await;
        let shown = stage.shows("placements", "sum", "/status/numberOfSelectedClusters", &json!(0)).await;
        assert_eq!(shown.data["status"]["conditions"], others["conditions"]);
        assert_eq!(shown.data["status"]["decisionGroups"], others["decisionGroups"]);
        drop(towline);
    });
}

#[test]
fn statuses_of_a_subscription_are_gathered_in_an_object_of_its_name() {
    run(async {
        let stage = Stage::new("statuses").await;
        let uid = stage.wanted("subscriptions", "app").await;
        let status = |package: &str, phase: &str| {
            json!({"statuses": {"packages": [{"name": package, "phase": phase}],
                "subscription": {"phase": phase, "message": package}}})
        };
        let table = "subscription_statuses";
        stage.report(table, "b", "app", &status("pb", "Failed")).await;
        stage.report(table, "a", "app", &status("pa", "Deployed")).await;
        stage.report(table, "c", "app", &json!({"statuses": {"packages": [{"name": "pc"}]}})).await;
        let towline = stage.start().await;
        let expected = json!({
            "packages": [{"name": "pa", "phase": "Deployed"}, {"name": "pb", "phase": "Failed"}, {"name": "pc"}],
            "subscription": {"phase": "Failed", "message": "pb"},
        });
        let made = stage.shows("subscriptionstatuses", "app", "/statuses", &expected).await;
        let label = "apps.open-cluster-management.io/hosting-subscription";
        assert_eq!(made.labels().iter().collect::<Vec<_>>(), [(&label.to_owned(), &"statuses.app".to_owned())]);
        assert!(made.annotations().is_empty());
        assert_eq!(
            (made.owner_references()[0].uid.as_str(), made.owner_references()[0].kind.as_str()),
            (&*uid, "Subscription")
        );
        // An object within the field is replaced, not mixed with what was there.
        stage.execute("DELETE FROM status.subscription_statuses WHERE leaf_hub_name <> 'c'", &[]).await;
        stage.shows("subscriptionstatuses", "app", "/statuses", &json!({"packages": [{"name": "pc"}]})).await;
        stage.execute("DELETE FROM status.subscription_statuses", &[]).await;
        stage.gone("subscriptionstatuses", "app").await;
        drop(towline);
    });
}

#[test]
fn a_long_hosting_label_is_cut_and_the_whole_is_in_an_annotation() {
    run(async {
        let stage = Stage::new("hosting").await;
        let name = format!("app-{}", "x".repeat(70));
        stage.wanted("subscriptions", &name).await;
        stage.report("subscription_reports", "a", &name, &json!({"reportType": "Application"})).await;
        let towline = stage.start().await;
        let made = stage.shows("subscriptionreports", &name, "/reportType", &json!("Application")).await;
        let key = "apps.open-cluster-management.io/hosting-subscription";
        let whole = format!("hosting.{name}");
        let label = &made.labels()[key];
        assert_eq!((label.len(), &label[..54], &label[54..55]), (63, &whole[..54], "-"));
        assert_eq!(made.annotations()[key], whole);
        drop(towline);
    });
}

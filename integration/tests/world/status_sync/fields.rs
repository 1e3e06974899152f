//! Placement rules, placements, statuses and reports of subscriptions: what their fields come to.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::status_sync::world::{Stage, run};

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
        // Not by the code that the daemon has.
        let hash = "SELECT left(encode(sha256(convert_to($1, 'UTF8')), 'hex'), 8)";
        let hash: String = stage.sql.query_one(hash, &[&whole]).await.expect("a hash").get(0);
        assert_eq!((hash.len(), label.len()), (8, 63));
        assert_eq!(*label, format!("{}-{hash}", &whole[..54]));
        assert_eq!(made.annotations()[key], whole);
        drop(towline);
    });
}

#[test]
fn statuses_and_reports_follow_a_subscription_that_was_made_anew() {
    run(async {
        let stage = Stage::new("subscribed").await;
        let before = stage.wanted("subscriptions", "again").await;
        let shown = [
            ("subscription_statuses", "subscriptionstatuses", "/statuses/packages", json!([{"name": "p"}])),
            ("subscription_reports", "subscriptionreports", "/reportType", json!("Application")),
        ];
        let content = json!({"statuses": {"packages": [{"name": "p"}]}, "reportType": "Application"});
        for (family, ..) in &shown {
            stage.report(family, "hub", "again", &content).await;
        }
        let towline = stage.start().await;
        for (_, target, pointer, value) in &shown {
            let made = stage.shows(target, "again", pointer, value).await;
            assert_eq!(made.owner_references()[0].uid, before, "{target}");
        }
        stage.api("subscriptions").delete("again", &DeleteParams::background()).await.expect("it is deleted");
        for (family, target, ..) in &shown {
            stage.gone(target, "again").await;
            stage.family(&towline, family, "a waiting row", |report| report["waiting"] == json!({"absent": 1})).await;
        }
        // The row still has the old UID; it is the only one of its name.
        let after = stage.make("subscriptions", "again", &json!({})).await.uid().expect("a UID");
        assert_ne!(before, after);
        for (family, target, pointer, value) in &shown {
            let made = stage.shows(target, "again", pointer, value).await;
            assert_eq!(made.owner_references().len(), 1, "{target}");
            let owner = &made.owner_references()[0];
            assert_eq!((&owner.uid, owner.controller), (&after, Some(true)), "{target}");
            stage.family(&towline, family, "nothing that waits", |report| report["waiting"] == json!({})).await;
        }
    });
}

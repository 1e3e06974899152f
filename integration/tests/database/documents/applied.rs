//! On how many clusters syncsets are applied, and that one which was never applied counts as unapplied.

use serde_json::{Value, json};
use towline::test_api::documents::Kind;
use towline::test_api::syncset::{Applied, SelectorApplied};

use crate::documents::dispatch::{document, removal};
use crate::documents::world::{Stage, run};

fn refs(names: &[&str]) -> Value {
    let refs: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({"spec": {"clusterDeploymentRefs": refs}})
}

fn selects(selector: &Value, namespaces: &[&str]) -> Value {
    json!({"spec": {"clusterDeploymentSelector": selector, "clusterNamespaces": namespaces}})
}

async fn counted(stage: &Stage) -> (Vec<(String, usize, usize)>, usize, usize) {
    let Applied { selectors, syncsets, syncsets_unapplied } = Applied::read(&stage.database()).await.expect("counts");
    let of = |SelectorApplied { name, clusters, unapplied }| (name, clusters, unapplied);
    (selectors.into_iter().map(of).collect(), syncsets, syncsets_unapplied)
}

/// A pass has tried a syncset on a cluster.
async fn tried(stage: &Stage, plural: &str, syncset: &str, cluster: &str, result: &str) {
    let (reason, first) = if result == "Success" { ("null", "now()") } else { ("'Rejected'", "null") };
    let text = format!(
        "delete from towline_result r using clusters c, {plural} s where r.cluster = c.id and r.syncset = s.id \
           and c.name = '{cluster}' and s.name = '{syncset}'; \
         insert into towline_result select c.id, s.id, '', '', s.name, '', 1, '{result}', {reason}, {reason}, now(), {first}, false \
           from clusters c, {plural} s where c.name = '{cluster}' and s.name = '{syncset}'"
    );
    stage.run(&text).await;
}

#[test]
fn a_syncset_that_was_never_applied_on_a_cluster_counts_as_unapplied_there() {
    run(async {
        let stage = Stage::new("unapplied").await;
        let writer = stage.writer();
        for (name, env) in [("c1", "prod"), ("c2", "prod"), ("c3", "test")] {
            writer.version(document(Kind::Cluster, name, 1, json!({}), &[("env", env)])).await;
        }
        let prod = json!({"matchLabels": {"env": "prod"}});
        let not_prod = json!({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["prod"]}]});
        for (kind, name, data) in [
            // One that names a cluster twice, and one that is not there.
            (Kind::SyncSet, "s1", refs(&["c1", "c2", "c2", "c9"])),
            (Kind::SyncSet, "s2", refs(&["c3"])),
            (Kind::SyncSet, "nowhere", json!({"spec": {}})),
            (Kind::SelectorSyncSet, "all", selects(&json!({}), &["*"])),
            (Kind::SelectorSyncSet, "elsewhere", selects(&json!({}), &["bar"])),
            (Kind::SelectorSyncSet, "other", selects(&not_prod, &["f*"])),
            (Kind::SelectorSyncSet, "prod", selects(&prod, &["foo"])),
            // What a newer release may have written.
            (Kind::SelectorSyncSet, "unread", selects(&json!([]), &["*"])),
        ] {
            writer.version(document(kind, name, 1, data, &[])).await;
        }
        let of = |name: &str, clusters: usize, unapplied: usize| (name.to_owned(), clusters, unapplied);
        let never =
            vec![of("all", 3, 3), of("elsewhere", 0, 0), of("other", 1, 1), of("prod", 2, 2), of("unread", 0, 0)];
        assert_eq!(counted(&stage).await, (never, 3, 3), "nothing was tried");
        for (plural, syncset, cluster, result) in [
            ("syncsets", "s1", "c1", "Success"),
            ("syncsets", "s2", "c3", "Failure"),
            ("selectorsyncsets", "all", "c1", "Success"),
            ("selectorsyncsets", "all", "c2", "Failure"),
            ("selectorsyncsets", "prod", "c1", "Success"),
            ("selectorsyncsets", "prod", "c2", "Success"),
        ] {
            tried(&stage, plural, syncset, cluster, result).await;
        }
        let some =
            vec![of("all", 3, 2), of("elsewhere", 0, 0), of("other", 1, 1), of("prod", 2, 0), of("unread", 0, 0)];
        assert_eq!(counted(&stage).await, (some, 3, 2));
        // What it has left on a cluster that it is no longer for counts until it is cleaned up; what is gone does not.
        tried(&stage, "selectorsyncsets", "prod", "c3", "Success").await;
        writer.version(removal(Kind::SelectorSyncSet, "all")).await;
        writer.version(removal(Kind::SyncSet, "s2")).await;
        writer.version(removal(Kind::Cluster, "c2")).await;
        stage
            .run("delete from towline_result r where not exists (select from clusters c where c.id = r.cluster)")
            .await;
        let left = vec![of("elsewhere", 0, 0), of("other", 1, 1), of("prod", 2, 0), of("unread", 0, 0)];
        assert_eq!(counted(&stage).await, (left, 1, 0));
    });
}

/// More selectors than one statement counts.
#[test]
fn all_selectors_are_counted_however_many_there_are() {
    run(async {
        let stage = Stage::new("selectors").await;
        let writer = stage.writer();
        writer.version(document(Kind::Cluster, "c1", 1, json!({}), &[("n", "7")])).await;
        for number in 0..120 {
            let selector = json!({"matchLabels": {"n": (number % 10).to_string()}});
            writer
                .version(document(Kind::SelectorSyncSet, &format!("s{number:03}"), 1, selects(&selector, &["*"]), &[]))
                .await;
        }
        let (selectors, ..) = counted(&stage).await;
        assert_eq!(selectors.len(), 120);
        for (number, (name, clusters, unapplied)) in selectors.into_iter().enumerate() {
            let expected = usize::from(number % 10 == 7);
            assert_eq!((name, clusters, unapplied), (format!("s{number:03}"), expected, expected));
        }
    });
}

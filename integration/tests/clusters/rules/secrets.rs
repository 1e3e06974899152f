//! Secrets that go up.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::rules_world::*;

const NAME: &str = "database-credentials";

fn settings(names: &[&str]) -> String {
    format!("secret_names = {names:?}")
}

/// A pair in step: its local object, which owns secrets.
async fn database(place: &Place) -> DynamicObject {
    place.make_namespaces("a").await;
    place.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
    place.in_step().await;
    place.local_has("a", "orders", |_| true).await
}

async fn with_database(name: &str, settings: &str) -> (Section, DynamicObject) {
    let section = Section::start(name, databases(), settings).await;
    let database = database(&section).await;
    (section, database)
}

fn owned(database: &DynamicObject, content: &Value) -> Value {
    let mut content = content.clone();
    content["metadata"]["ownerReferences"] = json!([controller(database)]);
    content
}

/// Waits until the hub's secret has the local one's content.
async fn uploaded(section: &Place, name: &str, key: &str, value: &str) -> Secret {
    secret_that(&section.remote_secrets("a"), name, value, |secret| data(secret, key) == value).await
}

#[test]
fn an_edge_gives_no_orders_to_tools_of_the_hub_by_labels_and_annotations_that_the_section_does_not_list() {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    const REFLECTED: &str = "reflector.v1.k8s.emberstack.com/reflection-auto-enabled";
    const ARGO: &str = "argocd.argoproj.io/secret-type";
    run(async {
        let everything = settings(&[NAME]) + "\nsecret_metadata = [\"*\"]";
        let all = Section::start("secret-marks-all", databases(), &everything).await;
        let few = Place::shared_with_secrets("marks").await;
        for (section, is_listed) in [(&few, false), (&*all, true)] {
            let database = database(section).await;
            make_secret(&section.remote_secrets("a"), NAME, &json!({})).await;
            let content = json!({
                "metadata": {
                    "labels": {ARGO: "cluster"},
                    "annotations": {LAST_APPLIED: "{\"data\":{\"password\":\"cA==\"}}", REFLECTED: "true"},
                },
                "stringData": {"password": "p"},
            });
            put_secret(&section.local_secrets("a"), NAME, &owned(&database, &content)).await;
            let secret = uploaded(section, NAME, "password", "p").await;
            assert_eq!(secret.annotations().get(LAST_APPLIED), None, "the data are in it");
            assert_eq!(secret.annotations().contains_key(REFLECTED), is_listed);
            assert_eq!(secret.labels().contains_key(ARGO), is_listed);
            secret_that(&section.local_secrets("a"), NAME, "its hash", |local| {
                noted_hash(local) == noted_hash(&secret)
            })
            .await;
            let since = section.mark().await;
            let key = if is_listed { LAST_APPLIED } else { REFLECTED };
            let changed = json!({"metadata": {"annotations": {key: "{}"}}});
            section.local_secrets("a").patch(NAME, &PatchParams::default(), &Patch::Merge(&changed)).await.unwrap();
            section.quiet().await;
            assert_eq!(section.counted("a", since).await, (counts([]), counts([])), "{key}: its change costs nothing");
        }
    });
}

#[test]
fn a_controlled_secret_goes_up_with_its_type_and_hash_and_the_labels_and_annotations_that_are_listed() {
    run(async {
        let section = Place::shared_with_secrets("whole").await;
        let database = database(&section).await;
        section.quiet().await;
        make_secret(&section.remote_secrets("a"), NAME, &json!({"stringData": {"old": "x"}})).await;
        let content = json!({
            "metadata": {"labels": {"team": "a"}, "annotations": {"example.org/note": "<&>"}},
            "stringData": {"user": "u", "password": "p"},
        });
        let since = section.mark().await;
        put_secret(&section.local_secrets("a"), NAME, &owned(&database, &content)).await;
        let secret = uploaded(&section, NAME, "password", "p").await;
        assert_eq!(secret.data.as_ref().map(std::collections::BTreeMap::len), Some(2), "the old entry is gone");
        assert_eq!(secret.type_.as_deref(), Some("Opaque"));
        assert_eq!(secret.labels().get("team").map(String::as_str), Some("a"));
        assert_eq!(secret.annotations().get("example.org/note").map(String::as_str), Some("<&>"));
        let remote = section.remote_has("a", "orders", |_| true).await;
        let [owner] = secret.owner_references() else { panic!("{:?}", secret.owner_references()) };
        assert_eq!((Some(&owner.uid), owner.controller), (remote.metadata.uid.as_ref(), Some(true)));
        assert_eq!(owner.block_owner_deletion, None);
        let is_noted = |local: &Secret| noted_hash(local) == noted_hash(&secret);
        secret_that(&section.local_secrets("a"), NAME, "its hash", is_noted).await;
        section.quiet().await;
        let two_writes = (counts([("update secrets", 1)]), counts([("patch secrets", 1)]));
        assert_eq!(section.counted("a", since).await, two_writes);
        // A change of what is in the hash goes up, too.
        let since = section.mark().await;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"team": "b"}}}));
        section.local_secrets("a").patch(NAME, &PatchParams::default(), &patch).await.unwrap();
        let is_changed = |secret: &Secret| secret.labels().get("team").map(String::as_str) == Some("b");
        secret_that(&section.remote_secrets("a"), NAME, "the new label", is_changed).await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, two_writes);
    });
}

#[test]
fn only_the_controlling_owner_counts_and_only_by_uid() {
    run(async {
        let section = Place::shared_with_secrets("owner").await;
        let database = database(&section).await;
        let other = section.make_local("a", "existing", &json!({"spec": {"engine": "x-1"}})).await;
        for name in SECRETS {
            make_secret(&section.remote_secrets("a"), name, &json!({})).await;
        }
        let mut not_controlling = controller(&database);
        not_controlling["controller"] = json!(false);
        // Controlled by an object of the same name and another kind.
        let budget = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "orders"}});
        let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
            kube::Api::namespaced(section.edge.clone(), &section.namespace("a"));
        let params = PatchParams::apply("edge-controller");
        let map = maps.patch("orders", &params, &Patch::Apply(budget)).await.unwrap();
        let namesake = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "orders", "uid": map.metadata.uid, "controller": true,
        });
        for (name, owners) in [
            (SECRETS[0], json!([not_controlling])),
            (SECRETS[1], json!([not_controlling, namesake])),
            (SECRETS[2], json!([not_controlling, controller(&other)])),
        ] {
            let content = json!({"stringData": {"password": "p"}, "metadata": {"ownerReferences": owners}});
            put_secret(&section.local_secrets("a"), name, &content).await;
        }
        section.quiet().await;
        for name in SECRETS {
            let remote = section.remote_secrets("a").get(name).await.unwrap();
            assert!(remote.data.is_none() && noted_hash(&remote).is_none(), "{name}");
            assert!(noted_hash(&section.local_secrets("a").get(name).await.unwrap()).is_none(), "{name}");
        }
        // And once it controls one, that goes.
        let content =
            json!({"stringData": {"password": "p"}, "metadata": {"ownerReferences": [controller(&database)]}});
        section.local_secrets("a").delete(SECRETS[0], &kube::api::DeleteParams::default()).await.unwrap();
        put_secret(&section.local_secrets("a"), SECRETS[0], &content).await;
        uploaded(&section, SECRETS[0], "password", "p").await;
    });
}

#[test]
fn a_secret_that_the_remote_lacks_or_whose_type_cannot_change_is_reported_and_the_rest_goes_on() {
    run(async {
        let (section, database) = with_database("secret-missing", &settings(&SECRETS)).await;
        make_secret(&section.remote_secrets("a"), SECRETS[1], &json!({})).await;
        for name in [SECRETS[0], SECRETS[1]] {
            let content = owned(&database, &json!({"stringData": {"password": name}}));
            put_secret(&section.local_secrets("a"), name, &content).await;
        }
        uploaded(&section, SECRETS[1], "password", SECRETS[1]).await;
        let report = section
            .report_has("a failing upload", |report| {
                let cause = report["not_in_step"][0]["cause"].as_str().unwrap_or_default();
                report["objects"]["failing"] == json!(1) && cause.contains(SECRETS[0])
            })
            .await;
        assert_eq!(report["not_in_step"][0]["key"], json!(format!("{}/orders", section.namespace("a"))), "{report}");
        let note = section.event("a", "orders", "SyncFailed").await;
        assert!(note.contains(SECRETS[0]), "{note}");
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "7Gi"}})).await;
        section.in_step().await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.in_step().await;
        assert!(section.remote_secrets("a").get_opt(SECRETS[0]).await.unwrap().is_none());
        make_secret(&section.remote_secrets("a"), SECRETS[0], &json!({})).await;
        uploaded(&section, SECRETS[0], "password", SECRETS[0]).await;
        section.event("a", "orders", "Synced").await;
        assert_eq!(section.events("a", "orders").await, counts([("SyncFailed", 1), ("Synced", 1)]));

        section.make_namespaces("b").await;
        section.make_remote("b", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        let database = section.local_has("b", "orders", |_| true).await;
        make_secret(&section.remote_secrets("b"), SECRETS[0], &json!({"type": "example.org/old"})).await;
        make_secret(&section.remote_secrets("b"), SECRETS[1], &json!({})).await;
        for name in [SECRETS[0], SECRETS[1]] {
            let content = owned(&database, &json!({"stringData": {"password": name}}));
            put_secret(&section.local_secrets("b"), name, &content).await;
        }
        let is_up = |secret: &Secret| data(secret, "password") == SECRETS[1];
        secret_that(&section.remote_secrets("b"), SECRETS[1], "its password", is_up).await;
        section.patch_remote("b", "orders", &json!({"spec": {"storage": "7Gi"}})).await;
        section.in_step().await;
        let is_immutable = |cause: &Value| cause.as_str().is_some_and(|cause| cause.contains("immutable"));
        section.report_has("a failing upload", |report| is_immutable(&report["not_in_step"][0]["cause"])).await;
        let note = section.event("b", "orders", "SyncFailed").await;
        assert!(note.contains(SECRETS[0]) && note.contains("type") && note.contains("immutable"), "{note}");
        let left = section.remote_secrets("b").get(SECRETS[0]).await.unwrap();
        assert!(left.data.is_none() && noted_hash(&left).is_none());
        let local = section.local_secrets("b").get(SECRETS[0]).await.unwrap();
        assert!(noted_hash(&local).is_none(), "what was not uploaded is not noted");
    });
}

#[test]
fn drift_on_the_remote_is_mended_at_once_where_it_can_be_seen() {
    run(async {
        let section = Place::shared_with_secrets("drift").await;
        let database = database(&section).await;
        make_secret(&section.remote_secrets("a"), WATCHED_SECRET, &json!({})).await;
        let content = owned(&database, &json!({"stringData": {"password": "p"}}));
        put_secret(&section.local_secrets("a"), WATCHED_SECRET, &content).await;
        uploaded(&section, WATCHED_SECRET, "password", "p").await;
        section.quiet().await;
        let since = section.mark().await;
        let drift = Patch::Merge(json!({"stringData": {"password": "drift"}}));
        section.remote_secrets("a").patch(WATCHED_SECRET, &PatchParams::default(), &drift).await.unwrap();
        uploaded(&section, WATCHED_SECRET, "password", "p").await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, (counts([("update secrets", 1)]), counts([])));
        // Deleted and made again by somebody: it is filled again.
        section.remote_secrets("a").delete(WATCHED_SECRET, &kube::api::DeleteParams::default()).await.unwrap();
        make_secret(&section.remote_secrets("a"), WATCHED_SECRET, &json!({})).await;
        uploaded(&section, WATCHED_SECRET, "password", "p").await;
    });
}

#[test]
fn a_secret_takes_the_suffix_on_the_remote() {
    run(async {
        // The role grants the remote's name: local name + suffix.
        let settings = "secret_names = [\"database\"]\nremote_resource_suffix = \"-replica\"";
        let section = Section::start_with("secret-suffix", databases(), settings, |mapping| {
            mapping.remote_resource_suffix = "-replica".to_owned();
        })
        .await;
        grant_local_secret(section.world, "database").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders-replica", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "ignored-1"}})).await;
        let database = section.local_has("a", "orders", |local| local.data["spec"]["engine"] == "postgres-17").await;
        make_secret(&section.remote_secrets("a"), "database-replica", &json!({})).await;
        let content = owned(&database, &json!({"stringData": {"password": "p"}}));
        put_secret(&section.local_secrets("a"), "database", &content).await;
        uploaded(&section, "database-replica", "password", "p").await;
        assert!(section.remote_has("a", "orders", |_| true).await.finalizers().is_empty(), "without the suffix");
    });
}

#[test]
fn a_name_that_left_the_settings_is_told_at_the_next_start_and_its_copy_stays() {
    run(async {
        let both = format!("secret_names = [{:?}, {:?}]", SECRETS[0], SECRETS[1]);
        let mut section = Section::start("left-secret", databases(), &both).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        let database = section.local_has("a", "orders", |_| true).await;
        for secret in [SECRETS[0], SECRETS[1]] {
            make_secret(&section.remote_secrets("a"), secret, &json!({})).await;
            let content =
                json!({"stringData": {"password": secret}, "metadata": {"ownerReferences": [controller(&database)]}});
            put_secret(&section.local_secrets("a"), secret, &content).await;
            secret_that(&section.local_secrets("a"), secret, "its hash noted", |held| noted_hash(held).is_some()).await;
        }
        assert!(section.towline.admin().section(&section.name).await.unwrap().get("left_secrets").is_none());
        section.towline.terminate(LIMIT).await.unwrap();
        let path = section.towline.config_path();
        let config = std::fs::read_to_string(&path).unwrap();
        let one = format!("secret_names = [{:?}]", SECRETS[0]);
        assert!(config.contains(&both));
        std::fs::write(&path, config.replace(&both, &one)).unwrap();
        section.towline.start_again().await.unwrap();
        section.report_has("the name", |report| report["left_secrets"] == json!([SECRETS[1]])).await;
        let log = section.towline.log().unwrap();
        assert_eq!(log.matches("taken out of secret_names").count(), 1, "{log}");
        assert!(section.remote_secrets("a").get(SECRETS[1]).await.unwrap().data.is_some(), "the copy stays");
        // It is told once: the settings of the next start are those of the last run.
        section.towline.terminate(LIMIT).await.unwrap();
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.in_step().await;
        assert!(section.towline.admin().section(&section.name).await.unwrap().get("left_secrets").is_none());
    });
}

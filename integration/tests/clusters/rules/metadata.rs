//! Labels and annotations.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::json;

use crate::rules_world::*;

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn merged_metadata_is_asserted_and_what_others_put_there_stays() {
    run(async {
        let section = Place::shared("merged", databases()).await;
        section.make_remote_namespace("a").await;
        let content = json!({
            "metadata": {
                "labels": {"team": "a", "tier": "1"},
                "annotations": {
                    "example.org/note": "b", "argocd.argoproj.io/tracking-id": "x",
                    "kubectl.kubernetes.io/last-applied-configuration": "{}",
                },
            },
            "spec": {"engine": "postgres-17"},
        });
        section.make_remote("a", "orders", &content).await;
        section.in_step().await;
        let others = json!({"metadata": {"labels": {"zone": "z"}, "annotations": {"example.org/other": "o"}}});
        section.patch_local("a", "orders", &others).await;
        // Drift of ours is mended, what the remote drops goes, the rest stays.
        section.patch_local("a", "orders", &json!({"metadata": {"labels": {"team": "drift", "tier": null}}})).await;
        section.in_step().await;
        let change =
            json!({"metadata": {"labels": {"tier": null, "new": "n"}, "annotations": {"example.org/note": null}}});
        section.patch_remote("a", "orders", &change).await;
        let wanted = map(&[("new", "n"), ("team", "a"), ("zone", "z")]);
        let local = section.local_has("a", "orders", |local| local.labels() == &wanted).await;
        let uid = section.remote_has("a", "orders", |_| true).await.uid().unwrap();
        let source = format!("{}/{uid}", section.world.hub.uid().await.unwrap());
        let expected = map(&[
            ("example.org/other", "o"),
            (&mark("sync-remote-cluster"), &source),
            (&mark("sync-remote-uid"), &uid),
            (&mark("sync-local-name"), "any-merged-a/orders"),
        ]);
        assert_eq!(local.annotations(), &expected);
        section.quiet().await;
        section.in_step().await;
    });
}

#[test]
fn excluded_keys_stay_on_the_remote() {
    run(async {
        let settings = "metadata_exclude = [\"example.org/*\", \"team\"]";
        let section = Section::start_with("excluded", databases(), settings, |mapping| {
            mapping.metadata_exclude = vec!["example.org/*".to_owned(), "team".to_owned()];
        })
        .await;
        section.make_remote_namespace("a").await;
        let content = json!({
            "metadata": {
                "labels": {"team": "a", "tier": "1", "example.org/label": "l"},
                "annotations": {"example.org/note": "b", "argocd.argoproj.io/tracking-id": "x"},
            },
            "spec": {"engine": "postgres-17"},
        });
        section.make_remote("a", "orders", &content).await;
        let local = section.local_has("a", "orders", |_| true).await;
        assert_eq!(local.labels(), &map(&[("tier", "1")]));
        assert!(local.annotations().contains_key("argocd.argoproj.io/tracking-id"), "the default is replaced");
        assert!(!local.annotations().contains_key("example.org/note"));
        let since = section.mark().await;
        section.patch_remote("a", "orders", &json!({"metadata": {"annotations": {"example.org/note": "c"}}})).await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await.1, counts([]), "and their changes cost nothing there");
    });
}

#[test]
fn mirrored_metadata_equals_the_remote_s() {
    run(async {
        let mirror = |mapping: &mut integration::compare::Mapping| mapping.mirror = true;
        let mut section = Section::start_with("mirrored", databases(), "metadata = \"mirror\"", mirror).await;
        section.make_namespaces("a").await;
        let content = json!({
            "metadata": {"labels": {"team": "a"}, "annotations": {
                "example.org/note": "b", "argocd.argoproj.io/tracking-id": "x",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            }},
            "spec": {"engine": "postgres-17"},
        });
        section.make_remote("a", "orders", &content).await;
        section.in_step().await;
        let annotations = map(&[
            ("argocd.argoproj.io/tracking-id", "x"),
            ("example.org/note", "b"),
            ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
        ]);
        let local = section.local_has("a", "orders", |_| true).await;
        assert_eq!((local.labels(), local.annotations()), (&map(&[("team", "a")]), &annotations));
        let others = json!({"metadata": {"labels": {"zone": "z"}, "annotations": {"example.org/other": "o"}}});
        let changed = section.patch_local("a", "orders", &others).await;
        let mended = |local: &kube::core::DynamicObject| {
            local.resource_version() != changed.resource_version() && !local.labels().contains_key("zone")
        };
        let local = section.local_has("a", "orders", mended).await;
        assert_eq!((local.labels(), local.annotations()), (&map(&[("team", "a")]), &annotations));
        section.in_step().await;
        // Without a mark of ours on it, it is still known as ours after a restart.
        section.towline.kill9().await.unwrap();
        section.delete_remote("a", "orders").await;
        section.towline.start_again().await.unwrap();
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
    });
}

#[test]
fn domain_and_finalizer_are_those_of_the_configuration() {
    run(async {
        let settings = "annotation_domain = \"sync.example.org\"\nfinalizer = \"sync-west\"";
        let section = Section::start_with("domain", databases(), settings, |mapping| {
            mapping.annotation_domain = "sync.example.org".to_owned();
            mapping.finalizer = "sync-west".to_owned();
        })
        .await;
        section.make_remote_namespace("a").await;
        let other = json!({"metadata": {"annotations": {mark("paused"): "true"}}, "spec": {"engine": "postgres-17"}});
        section.make_remote("a", "orders", &other).await;
        section.in_step().await;
        let remote = section.remote_has("a", "orders", |_| true).await;
        assert_eq!(remote.finalizers(), ["sync.example.org/sync-west"]);
        assert!(remote.annotations().contains_key("sync.example.org/sync-remote-generation"));
        section.delete_remote("a", "orders").await;
        section.remote_gone("a", "orders").await;
    });
}

#[test]
fn marks_by_which_other_tools_prune_stay_on_the_remote_and_helms_label_counts_with_its_value() {
    run(async {
        let section = Place::shared("marked", databases()).await;
        section.make_remote_namespace("a").await;
        let content = |manager: &str| {
            json!({
                "metadata": {
                    "labels": {
                        "app.kubernetes.io/managed-by": manager, "app.kubernetes.io/instance": "orders",
                        "kustomize.toolkit.fluxcd.io/name": "apps", "helm.toolkit.fluxcd.io/name": "apps",
                        "applyset.kubernetes.io/part-of": "x", "kapp.k14s.io/app": "1",
                    },
                    "annotations": {
                        "argocd.argoproj.io/tracking-id": "x", "meta.helm.sh/release-name": "orders",
                        "config.kubernetes.io/owning-inventory": "i", "config.k8s.io/owning-inventory": "i",
                        "objectset.rio.cattle.io/id": "o", "example.org/note": "n",
                    },
                },
                "spec": {"engine": "postgres-17"},
            })
        };
        section.make_remote("a", "orders", &content("Helm")).await;
        section.make_remote("a", "others", &content("Orders")).await;
        let own = ["sync-remote-cluster", "sync-remote-uid", "sync-local-name"].map(mark);
        let local = section.local_has("a", "orders", |_| true).await;
        assert_eq!(local.labels(), &map(&[("app.kubernetes.io/instance", "orders")]));
        let others: Vec<_> = local.annotations().keys().filter(|key| !own.contains(key)).collect();
        assert_eq!(others, ["example.org/note"]);
        let local = section.local_has("a", "others", |_| true).await;
        let expected = [("app.kubernetes.io/instance", "orders"), ("app.kubernetes.io/managed-by", "Orders")];
        assert_eq!(local.labels(), &map(&expected));
    });
}

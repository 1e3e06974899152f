//! How kinds are found, and lists of metadata.

use std::collections::BTreeSet;
use std::time::Duration;

use integration::users::{ADMIN, HUB_USER};
use integration::{Filter, crds, eventually};
use serde_json::json;
use tokio::time::Instant;
use towline::test_api::cluster::{Cluster, Kind, KindError, KindId, Kinds, Metadata, Pages};

use crate::edges::world::{Edge, LIMIT, config_maps, custom, run};

async fn find(kinds: &mut Kinds, cluster: &Cluster, api_version: &str, kind: &str) -> Result<Kind, KindError> {
    let id = KindId::of(api_version, kind);
    kinds
        .look_up(cluster, &BTreeSet::from([id.clone()]), Instant::now(), Instant::now() + LIMIT)
        .await
        .remove(&id)
        .unwrap()
}

#[test]
fn kinds_are_found_by_group_version_and_kind_with_one_request_for_a_version() {
    run(async {
        let edge = Edge::of(HUB_USER, "kinds").await;
        let wanted =
            [("v1", "ConfigMap"), ("v1", "Namespace"), ("apps/v1", "Deployment"), ("demo.towline.dev/v1", "Region")];
        let wanted: BTreeSet<KindId> = wanted.iter().map(|(version, kind)| KindId::of(version, kind)).collect();
        let mut kinds = Kinds::default();
        let mark = edge.plane.audit().unwrap().mark().await.unwrap();
        for _ in 0..2 {
            let found = kinds.look_up(&edge.cluster, &wanted, Instant::now(), Instant::now() + LIMIT).await;
            let found: Vec<Kind> = found.into_values().map(Result::unwrap).collect();
            let deployments = found.iter().find(|kind| kind.resource.kind == "Deployment").unwrap();
            assert!(deployments.namespaced && deployments.status_subresource);
            assert!(found.contains(&config_maps()) && found.iter().filter(|kind| !kind.namespaced).count() == 2);
            assert_eq!(deployments.collection_path("n"), "/apis/apps/v1/namespaces/n/deployments");
        }
        let asked = edge.plane.audit().unwrap().records(&Filter::since(mark).user(HUB_USER)).await.unwrap();
        let asked: Vec<&str> = asked.iter().map(|record| record.uri.as_str()).collect();
        assert_eq!(asked, ["/api/v1", "/apis/apps/v1", "/apis/demo.towline.dev/v1"]);
    });
}

#[test]
fn what_a_group_does_not_serve_is_told_apart_from_another_version() {
    run(async {
        let edge = Edge::new("versions").await;
        let mut kinds = Kinds::default();
        for (api_version, kind) in [
            ("v1", "Nothing"),
            ("apps/v1", "Nothing"),
            ("nothing.test/v1", "Thing"),
            ("v1", "Eviction"),
            ("apps/v1", "Scale"),
        ] {
            let found = find(&mut kinds, &edge.cluster, api_version, kind).await;
            assert!(matches!(found, Err(KindError::NotServed(_))), "{api_version} {kind}: {found:?}");
        }
        for (wanted, kind, served) in [
            ("apps/v1beta1", "Deployment", "apps/v1"),
            ("demo.towline.dev/v2", "Region", "demo.towline.dev/v1"),
            ("v2", "Pod", "v1"),
        ] {
            match find(&mut kinds, &edge.cluster, wanted, kind).await {
                Err(KindError::OtherVersion { api_version, .. }) => assert_eq!(api_version, served),
                other => panic!("{wanted} {kind}: {other:?}"),
            }
        }
    });
}

#[test]
fn a_fresh_definition_is_found_when_it_is_served() {
    run(async {
        let edge = Edge::new("fresh").await;
        let mut kinds = Kinds::default();
        let (api_version, kind) = ("demo.towline.dev/v1beta1", "Queue");
        assert!(find(&mut kinds, &edge.cluster, api_version, kind).await.is_err());
        let client = edge.plane.client(ADMIN).await.unwrap();
        let (installed, found) = tokio::join!(
            crds::install(&client, crds::QUEUES),
            eventually("the kind to be found", LIMIT, async || {
                find(&mut kinds, &edge.cluster, api_version, kind).await.map_err(|error| format!("{error:?}"))
            })
        );
        installed.unwrap();
        assert!(found.unwrap().namespaced);
    });
}

#[test]
fn an_api_service_that_is_down_leaves_its_kinds_unknown() {
    run(async {
        let edge = Edge::new("down").await;
        let kind = {
            let mut kind = Kind::core("APIService", "apiservices", false);
            "apiregistration.k8s.io".clone_into(&mut kind.resource.group);
            "apiregistration.k8s.io/v1".clone_into(&mut kind.resource.api_version);
            kind
        };
        let body = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.down.test"},
            "spec": {"group": "down.test", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
                "insecureSkipTLSVerify": true, "service": {"namespace": "down", "name": "nothing", "port": 443}}});
        let key = towline::test_api::cluster::ObjectKey::new("", "v1.down.test");
        let made = edge.cluster.change(towline::test_api::cluster::Request::create(&kind, &key, &body)).await.unwrap();
        let mut kinds = Kinds::default();
        let found = eventually("the group to be known", LIMIT, async || {
            match find(&mut kinds, &edge.cluster, "down.test/v1", "Thing").await {
                Err(KindError::Unread(error)) => Ok(error),
                other => Err(format!("{other:?}")),
            }
        });
        let error = found.await.unwrap();
        edge.cluster.remove(&kind, &key, &made.body.uid, None).await.unwrap();
        // And the other groups are not concerned.
        assert!(find(&mut kinds, &edge.cluster, "apps/v1", "Deployment").await.is_ok(), "{error}");
    });
}

#[test]
fn a_list_of_metadata_comes_in_pages_and_an_empty_one_of_a_custom_kind_has_none() {
    run(async {
        let edge = Edge::new("pages").await;
        for number in 0..3 {
            edge.apply(&format!("site-{number}"), &json!({})).await.unwrap();
        }
        let mut pages = Pages::of(&config_maps(), "of=pages", 100_000);
        let page: Vec<Metadata> = pages.next(&edge.cluster).await.unwrap().unwrap();
        assert_eq!((page.len(), pages.has_next()), (3, false));
        assert!(page.iter().all(|metadata| metadata.managers.len() == 1 && &*metadata.key.namespace == "pages"));
        assert!(pages.next::<Metadata>(&edge.cluster).await.unwrap().is_none());
        let mut none = Pages::of(&custom("Region", "regions", false), "of=nothing", 100_000);
        assert_eq!(none.next::<Metadata>(&edge.cluster).await.unwrap(), Some(Vec::new()));
        let mut few = Pages::of(&config_maps(), "of=pages", 2);
        few.next::<Metadata>(&edge.cluster).await.unwrap_err();
        assert!(edge.cluster.probe(Duration::from_secs(5)).await.is_ok());
    });
}

//! `towline check`, as people run it: what a file alone shows, and what only the clusters know.

use std::fs;

use integration::rbac::{Grant, Side};
use integration::{Towline, crds, eventually};

use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use crate::rules_world::*;

/// Exit code and everything that was said.
pub(crate) async fn check(world: &World, name: &str, config: &str, connect: bool) -> (Option<i32>, String) {
    let path = world.hub.directory().join(format!("{name}.toml"));
    fs::write(&path, config).unwrap();
    let args = ["check", "--config", path.to_str().unwrap()];
    let output = Towline::command(args.into_iter().chain(connect.then_some("--connect"))).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn what_a_check_finds_is_a_document_and_nothing_else() {
    run(async {
        let world = world().await;
        let path = world.hub.directory().join("document.toml");
        let document = async |config: String| {
            fs::write(&path, config).unwrap();
            let output = Towline::command(["check", path.to_str().unwrap(), "-o", "json"]).await.unwrap();
            let document: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
            (output.status.code(), document)
        };
        let good = clusters(world) + &sync("document", &databases(), "");
        let (code, found) = document(good.clone()).await;
        assert_eq!(
            (code, &found["valid"], &found["sections"]),
            (Some(0), &json!(true), &json!(["document"])),
            "{found}"
        );
        let (code, found) = document(good + "[daemon]\nlisen = \"127.0.0.1:0\"\n").await;
        assert_eq!(
            (code, &found["valid"], &found["faults"][0]["path"]),
            (Some(2), &json!(false), &json!("daemon.lisen"))
        );
    });
}

/// One section under two names.
fn twice(section: &str, first: &str, second: &str, settings: &str) -> String {
    let named = |name: &str| format!("name = {name:?}");
    section.to_owned() + &section.replacen(&named(first), &(named(second) + "\n" + settings), 1)
}

#[test]
fn sections_that_meet_are_refused_by_the_file_alone_and_every_fault_is_told_at_once() {
    run(async {
        let world = world().await;
        let one = sync("meets", &databases(), "");
        let config = clusters(world) + &twice(&one, "meets", "again", "") + "[daemon]\nlisen = \"127.0.0.1:0\"\n";
        for connect in [false, true] {
            let (code, told) = check(world, "meets", &config, connect).await;
            assert_eq!(code, Some(2), "{told}");
            for fault in [
                "same local objects",
                "finalizer `cloud.teleport.dev/sync-local`",
                "writes back to the same remote objects",
            ] {
                let told_of = told
                    .lines()
                    .any(|line| line.contains("sync[1]") && line.contains("section `meets`") && line.contains(fault));
                assert!(told_of, "nothing about {fault} in:\n{told}");
            }
            assert!(told.contains("daemon.lisen"), "{told}");
            assert!(!told.contains("cluster hub:"), "no cluster is asked with a faulty file: {told}");
        }
        // The same objects for two clusters: apart on the local side, and each with a finalizer of its own.
        let apart = "finalizer = \"sync-again\"\nwrite_back = false\nlocal_namespace_suffix = \"-again\"";
        let first = one.replacen("resource =", "local_namespace_suffix = \"-first\"\nresource =", 1);
        let config =
            clusters(world) + &first + &one.replacen("name = \"meets\"", &format!("name = \"again\"\n{apart}"), 1);
        let (code, told) = check(world, "apart", &config, true).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("the configuration is valid: 2 cluster(s), 2 section(s)"), "{told}");
        assert!(!told.contains("--connect"), "{told}");
        let (code, told) = check(world, "apart", &config, false).await;
        assert_eq!(code, Some(0), "{told}");
        assert!(told.contains("were not read; --connect"), "{told}");
    });
}

#[test]
fn sections_of_a_cluster_scoped_kind_meet_whatever_their_namespaces_and_only_the_clusters_tell() {
    run(async {
        let world = world().await;
        let config = clusters(world) + &sync("north", &regions(), "") + &sync("south", &regions(), "");
        let (code, told) = check(world, "scoped", &config, false).await;
        assert_eq!(code, Some(0), "the prefixes keep namespaces apart: {told}");
        let (code, told) = check(world, "scoped", &config, true).await;
        assert_eq!(code, Some(1), "{told}");
        for cluster in ["hub", "edge"] {
            assert!(told.lines().any(|line| line == format!("cluster {cluster}: answers")), "{told}");
        }
        assert!(
            told.lines().any(|line| {
                line.contains("sync[1]") && line.contains("section `north`") && line.contains("same local objects")
            }),
            "{told}"
        );
        assert!(!told.contains("not allowed"), "nothing is amiss but that: {told}");
    });
}

#[test]
fn kinds_that_describe_their_own_cluster_are_refused_with_the_reason() {
    run(async {
        let world = world().await;
        let section = |name: &str, resource: &str, settings: &str| {
            let text = sync(name, &databases(), settings);
            text.replace("databases.v1.demo.towline.dev", resource)
        };
        for (resource, settings, reason) in [
            ("nodes.v1", "", Some("nodes of their own cluster")),
            ("events.v1.events.k8s.io", "", Some("Events report")),
            ("leases.v1.coordination.k8s.io", "", Some("belongs to who renews it")),
            ("certificatesigningrequests.v1.certificates.k8s.io", "", Some("signer")),
            ("endpointslices.v1.discovery.k8s.io", "", Some("label selector")),
            ("endpointslices.v1.discovery.k8s.io", "selector = \"by=hand\"", None),
            ("apiservices.v1.apiregistration.k8s.io", "", Some("label selector")),
            ("apiservices.v1.apiregistration.k8s.io", "selector = \"by=hand\"", None),
            ("services.v1", "", None),
        ] {
            let config = clusters(world) + &section("bound", resource, settings);
            let (code, told) = check(world, "bound", &config, false).await;
            assert_eq!(code, Some(if reason.is_some() { 2 } else { 0 }), "{resource}: {told}");
            if let Some(reason) = reason {
                let is_told = told.lines().any(|line| line.contains("sync[0].resource") && line.contains(reason));
                assert!(is_told, "{resource}: {told}");
            }
        }
    });
}

/// A kind of a group that no cluster knows, and another kind of that group.
fn brochures() -> (ApiResource, [String; 2]) {
    let manifests = ["brochure", "catalogue"].map(|name| {
        let kind = name[..1].to_uppercase() + &name[1..];
        crds::DOCUMENTS
            .replace("document", name)
            .replace("Document", &kind)
            .replace("demo.towline.dev", "print.towline.dev")
    });
    (ApiResource::from_gvk(&GroupVersionKind::gvk("print.towline.dev", "v1", "Brochure")), manifests)
}

#[test]
fn a_kind_that_was_never_installed_on_the_edge_is_named_with_the_cluster_and_what_to_do() {
    run(async {
        let world = world().await;
        let (kind, [brochures, catalogues]) = brochures();
        let (hub, edge) = (admin(&world.hub).await, admin(&world.edge).await);
        for (client, side) in [(&hub, Side::Remote), (&edge, Side::Local)] {
            let grant = Grant::kind(side, "brochures", "print.towline.dev").secrets(&SECRETS);
            grant.apply(client).await.unwrap();
        }
        crds::install(&hub, &brochures).await.unwrap();
        let config = clusters(world) + &sync("printed", &kind, "");
        let names_it = |told: &str| {
            ["brochures.v1.print.towline.dev", "cluster edge", "not served: ", "install what defines it"]
                .iter()
                .all(|part| told.contains(part))
        };
        let checked = async || {
            let (code, told) = check(world, "printed", &config, true).await;
            assert_eq!(code, Some(1), "{told}");
            let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("sync printed: ")).collect();
            assert!(lines.len() == 1 && names_it(lines[0]), "nothing else is amiss: {told}");
        };
        checked().await;
        let towline = Towline::start(&config, &[]).await.unwrap();
        let shows = async || {
            eventually("/status, readiness and the table to name the missing kind", LIMIT, async || {
                let section = towline.admin().section("printed").await.map_err(|error| error.to_string())?;
                let ready = towline.admin().section_readyz("printed").await.map_err(|error| error.to_string())?;
                let output = Towline::command(["status", "--exit-code", "--admin", &towline.admin_url()]).await;
                let output = output.map_err(|error| error.to_string())?;
                let table = String::from_utf8(output.stdout).unwrap();
                let rows = table.lines().filter(|line| line.starts_with("printed "));
                let is_told = rows.into_iter().any(|line| line.contains(" not_ready ") && names_it(line))
                    && section["waits_for"].as_str().is_some_and(names_it)
                    && (ready.status, names_it(&ready.body)) == (503, true)
                    && output.status.code() == Some(3);
                if is_told { Ok(()) } else { Err(format!("{section}\n{}\n{table}", ready.body)) }
            })
            .await
            .unwrap();
        };
        shows().await;
        // So it is where the group is known, and the kind in it is not.
        crds::install(&edge, &catalogues).await.unwrap();
        checked().await;
        shows().await;
        crds::install(&edge, &brochures).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        let (code, told) = check(world, "printed", &config, true).await;
        assert_eq!(code, Some(0), "{told}");
    });
}

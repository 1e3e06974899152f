//! Bad input: configuration files and kubeconfigs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use integration::audit::Record;
use integration::{Filter, Towline, eventually, users};
use serde_json::{Value, json};

use crate::faults::world::{LIMIT, Lane, make_namespace, report, run, start};

/// A directory that goes with the test, below that of a cluster.
fn scratch(lane: &Lane) -> PathBuf {
    let path = lane.hub.directory().join(format!("{}files", lane.prefix));
    fs::create_dir(&path).unwrap();
    path
}

async fn check(path: &Path, connect: bool) -> Output {
    let connect = connect.then_some("--connect");
    let path = path.to_str().unwrap();
    Towline::command(["check", "--config", path].into_iter().chain(connect)).await.unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const FAULTY: &str = r#"
[daemon]
listen = "everywhere"
shutdown_grace = 30
lisen = "127.0.0.1:1"
log = { format = "xml", filter = "in=fo=x" }

[clusters.hub]
kubeconfig = "/etc/hub"
in_cluster = true

[clusters.Edge_1]
kubeconfig = "/etc/edge"

[clusters.empty]

[[sync]]
name = "one"
remote = "hub"
local = "egde"
resource = "databases"
selector = "a in (b"
metadata = "merg"
local_fields = ["status/phase"]
max_in_flight = 64
former_names = ["two"]
unclamed = "keep"

[[sync]]
name = "one"
remote = "hub"
resource = "databases.v1.demo.towline.dev"
annotation_domain = "not a domain"

[sinc]
"#;

#[test]
fn all_faults_of_a_configuration_are_told_at_once() {
    run(async {
        let lane = Lane::shared("faulty", "databases").await;
        let path = scratch(&lane).join("towline.toml");
        fs::write(&path, FAULTY).unwrap();
        let output = check(&path, false).await;
        let told = text(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        for fault in [
            "daemon.listen",
            "daemon.shutdown_grace",
            "daemon.lisen",
            "daemon.log.format",
            "daemon.log.filter",
            "clusters.hub",
            "clusters.Edge_1",
            "clusters.empty",
            "sync[0].local",
            "sync[0].resource",
            "sync[0].selector",
            "sync[0].metadata",
            "sync[0].local_fields",
            "sync[0].max_in_flight",
            "sync[0].former_names",
            "sync[0].unclamed",
            "sync[1].name",
            "sync[1].local",
            "sync[1].annotation_domain",
            "sinc",
        ] {
            assert!(told.lines().any(|line| line.contains(fault)), "nothing about {fault} in:\n{told}");
        }
        for meant in ["`listen`", "`merge`", "`unclaimed`", "`sync`"] {
            assert!(told.contains(&format!("did you mean {meant}")), "{meant} is not proposed in:\n{told}");
        }
        let running = Towline::start(FAULTY, &[]).await.unwrap();
        assert_eq!(running.wait_exited(LIMIT).await.unwrap().code(), Some(2), "nothing starts with it");
        fs::write(&path, "[[sync]\n").unwrap();
        assert_eq!(check(&path, false).await.status.code(), Some(2));
        assert_eq!(check(&path.with_extension("missing"), false).await.status.code(), Some(2));
        lane.in_step("all along").await;
    });
}

/// What must not be told of a kubeconfig.
const CANARY: &str = "canary-token";

/// A kubeconfig with a client certificate that the API server knew until now.
fn expired(lane: &Lane, server: &str, authority: &Value) -> String {
    let certificate = lane.hub.client_certificate(users::TOWLINE, Duration::ZERO).unwrap();
    let base64 = |pem: String| serde_json::to_value(k8s_openapi::ByteString(pem.into_bytes())).unwrap();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "expired",
        "contexts": [{"name": "expired", "context": {"cluster": "expired", "user": "expired"}}],
        "clusters": [{"name": "expired", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": "expired", "user": {
            "client-certificate-data": base64(certificate.certificate_pem), "client-key-data": base64(certificate.key_pem),
        }}],
    })
    .to_string()
}

/// Waits until everything says that the cluster `bad` has no credentials at all.
async fn shows_no_credentials(towline: &Towline, path: &Path) {
    let status = eventually("a cluster without credentials", LIMIT, async || {
        let status = towline.admin().status().await.map_err(|error| error.to_string())?;
        if status["clusters"]["bad"]["state"] == "no_credentials" { Ok(status) } else { Err(status.to_string()) }
    })
    .await
    .unwrap();
    let reason = status["clusters"]["bad"]["reason"].as_str().unwrap();
    assert!(reason.contains(path.to_str().unwrap()), "{reason}");
    let metrics = towline.admin().metrics().await.unwrap();
    assert!(metrics.contains("towline_cluster_available{cluster=\"bad\"} 0\n"), "{metrics}");
    let section = &status["sections"]["bad"];
    assert_eq!(section["state"], "blocked", "{section}");
    assert_eq!(section["message"], "cluster bad has no usable credentials", "{section}");
    assert_eq!(towline.admin().section_readyz("bad").await.unwrap().status, 503);
}

#[test]
fn a_bad_kubeconfig_is_told_with_its_cause_and_mended_without_a_restart() {
    run(async {
        let good = Lane::shared("good", "databases").await;
        let bad = good.beside("bad", "databases").await;
        let directory = scratch(&good);
        let proper = fs::read_to_string(bad.hub.kubeconfig(users::TOWLINE).unwrap()).unwrap();
        let read: Value = serde_json::from_str(&proper).unwrap();
        let cluster = &read["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().unwrap();
        let expired = expired(&bad, server, &cluster["certificate-authority-data"]);

        for lane in [&good, &bad] {
            lane.make_namespace("team").await;
            lane.order_many("team", 3).await;
        }
        let kubeconfig = directory.join("kubeconfig");
        let config = good.clusters()
            + &Lane::cluster("bad", &kubeconfig)
            + &good.section("good", "")
            + &bad.section_between("bad", "bad", "edge", "");
        let file = directory.join("towline.toml");
        fs::write(&file, &config).unwrap();
        let towline = start(&config).await;
        good.in_step("beside a cluster without credentials").await;
        shows_no_credentials(&towline, &kubeconfig).await;

        let nowhere = proper.replace(server, "https://127.0.0.1:9");
        let garbage = format!("users:\n- name: towline\n  user:\n    exec: {CANARY}\n    token: {CANARY}\n");
        let no_context = proper.replace("\"current-context\"", "\"previous-context\"");
        let cases = [
            ("", "the file is empty"),
            (garbage.as_str(), "not a kubeconfig: `users[0].user.exec` is of a wrong type"),
            (no_context.as_str(), "context"),
            (nowhere.as_str(), "connection refused (127.0.0.1:9)"),
            (expired.as_str(), "client certificate expired at "),
        ];
        for (content, cause) in cases {
            fs::write(&kubeconfig, content).unwrap();
            report(&towline, "bad", cause, |report| {
                report["waits_for"].as_str().is_some_and(|reason| reason.contains(cause))
            })
            .await;
            let log = towline.log().unwrap();
            assert!(log.lines().any(|line| line.contains("bad") && line.contains(cause)), "{cause} is not in:\n{log}");
            let output = check(&file, true).await;
            let told = text(&output);
            assert_eq!(output.status.code(), Some(1), "{told}");
            assert!(told.lines().any(|line| line.contains("cluster bad") && line.contains(cause)), "{cause}: {told}");
            assert!(told.lines().any(|line| line.contains("cluster edge: answers")), "{told}");
            let mut everything = log + &told + &towline.admin().status().await.unwrap().to_string();
            everything += &towline.admin().section_readyz("bad").await.unwrap().body;
            assert!(!everything.contains("PRIVATE KEY") && !everything.contains(CANARY), "{everything}");
        }
        assert_eq!(towline.admin().readyz().await.unwrap().status, 200);

        fs::write(&kubeconfig, &proper).unwrap();
        assert_eq!(bad.in_step("with good credentials").await.len(), 3);
        eventually("the check to find nothing", LIMIT, async || {
            let output = check(&file, true).await;
            if output.status.success() { Ok(()) } else { Err(text(&output)) }
        })
        .await
        .unwrap();
        good.in_step("at the end").await;
    });
}

#[test]
fn what_newcomers_stumble_over_is_told_with_what_to_do() {
    run(async {
        let lane = Lane::shared("stumbles", "databases").await;
        let scratch = scratch(&lane);
        let told = async |content: &str, connect: bool| {
            let path = scratch.join("towline.toml");
            fs::write(&path, content).unwrap();
            let output = check(&path, connect).await;
            (output.status.code(), text(&output))
        };
        let (code, nothing) = told("", false).await;
        assert_eq!(code, Some(0), "{nothing}");
        assert!(nothing.contains("nothing will run") && nothing.contains("[status_sync]"), "{nothing}");
        let (code, home) = told("[clusters.hub]\nkubeconfig = \"~/.kube/config\"\n", false).await;
        assert_eq!(code, Some(2), "{home}");
        assert!(home.contains("clusters.hub.kubeconfig") && home.contains("~ is not expanded"), "{home}");
        // No test runs in a pod.
        let (code, outside) = told("[clusters.hub]\nin_cluster = true\n", true).await;
        assert_eq!(code, Some(1), "{outside}");
        assert!(outside.contains("cluster hub: ") && outside.contains("not in a pod"), "{outside}");
        assert!(outside.contains("name a `kubeconfig`"), "{outside}");
        // Port 9 of loopback: nobody has it.
        let output = Towline::command(["status", "--admin", "http://127.0.0.1:9"]).await.unwrap();
        let gone = text(&output);
        assert_eq!(output.status.code(), Some(1), "{gone}");
        assert!(gone.contains("127.0.0.1:9") && gone.contains("daemon.listen") && gone.contains("--admin"), "{gone}");
    });
}

#[test]
fn a_missing_namespace_of_the_election_is_found_by_check_and_told_once_until_it_is_there() {
    run(async {
        const NAMESPACE: &str = "election-to-be";
        let lane = Lane::shared("no-election", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 2).await;
        let config = lane.clusters()
            + &Lane::cluster("seats", &lane.edge.kubeconfig(users::ADMIN).unwrap())
            + &format!("[election]\ncluster = \"seats\"\nnamespace = \"{NAMESPACE}\"\n")
            + &lane.section("lane", "");
        let path = lane.edge.directory().join("no-election.toml");
        fs::write(&path, &config).unwrap();
        let output = check(&path, true).await;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let fault =
            format!("election: cluster seats: namespace {NAMESPACE}: not served: namespaces \"{NAMESPACE}\" not found");
        assert!(!output.status.success() && told.contains(&fault), "{told}");

        let audit = lane.edge.audit().unwrap();
        let mark = audit.mark().await.unwrap();
        let towline = Towline::start(&config, &[]).await.unwrap();
        eventually("the replica to have tried again", LIMIT, async || {
            let records = audit.records(&Filter::since(mark)).await.map_err(|error| error.to_string())?;
            let tries = |record: &&Record| record.namespace == NAMESPACE && record.verb == "create";
            let count = records.iter().filter(tries).count();
            if count > 3 { Ok(()) } else { Err(format!("{count} tries")) }
        })
        .await
        .unwrap();
        let log = towline.log().unwrap();
        assert_eq!(
            log.matches("failed to acquire a section lease, retrying").count()
                - log.matches("still failed to acquire").count(),
            1,
            "{log}"
        );
        make_namespace(&lane.edge_client, NAMESPACE).await;
        towline.wait_ready(LIMIT).await.unwrap();
        lane.in_step("once the namespace is there").await;
    });
}

#[test]
fn kinds_that_clusters_fill_by_themselves_are_warned_of() {
    run(async {
        let lane = Lane::shared("warned", "databases").await;
        let path = scratch(&lane).join("towline.toml");
        let section = |name: &str, resource: &str, more: &str| {
            format!(
                "[[sync]]\nname = \"{name}\"\nremote = \"hub\"\nlocal = \"edge\"\nresource = \"{resource}\"\n{more}\n"
            )
        };
        let prefix = "namespace_prefix = \"team-\"";
        let sections = [
            section("all-namespaces", "namespaces.v1", ""),
            section("all-secrets", "secrets.v1", prefix),
            section("all-pods", "pods.v1", prefix),
            section("all-maps", "configmaps.v1", ""),
            section("all-accounts", "serviceaccounts.v1", prefix),
            section("databases", "databases.v1.demo.towline.dev", ""),
        ];
        fs::write(&path, lane.clusters() + &sections.concat()).unwrap();
        let output = check(&path, false).await;
        let told = text(&output);
        assert_eq!(output.status.code(), Some(0), "{told}");
        for warned in ["all-namespaces", "all-secrets", "all-pods", "all-maps"] {
            assert!(told.contains(&format!("sync {warned}: kind ")), "{warned} is not warned of in:\n{told}");
        }
        for fine in ["all-accounts", "databases"] {
            assert!(!told.contains(&format!("sync {fine}: ")), "{fine} is warned of in:\n{told}");
        }
    });
}

//! Kubeconfigs are written by API users, and so is what they lead to: what is refused is told by its field, no
//! value of them is ever shown, and nothing that a server says does harm.

use integration::hub::Request;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::syncsets::script::{Says, Script, TOKEN, kubeconfig};
use crate::syncsets::world::{SYNCSETS, Stage, condition, run};

/// The tables that syncsets have, but for [`CONTENTS`].
pub(crate) const STATE: [&str; 11] = [
    "towline_applied",
    "towline_deleted",
    "towline_guard",
    "towline_identity",
    "towline_lost",
    "towline_cluster",
    "towline_patched",
    "towline_result",
    "towline_rollout",
    "towline_turn",
    "towline_work",
];
/// Those that have the contents of syncsets, in which nobody may put a secret: their revisions, and the record of who did what.
const CONTENTS: [&str; 2] = ["towline_history", "towline_revision"];
/// Nothing is allowed beside the default.
const GUARDED: &str = "[syncsets]\nrequest_timeout = \"5s\"";
pub(crate) const PLAIN: &str = "[syncsets]\nallow = [\"local-networks\", \"plain-http\"]\nrequest_timeout = \"5s\"";

pub(crate) fn base64(text: &str) -> String {
    serde_json::to_value(ByteString(text.into())).unwrap().as_str().unwrap().to_owned()
}

/// The condition `Unreachable` of a cluster with this kubeconfig, once it is true.
async fn refused(stage: &Stage, name: &str, kubeconfig: &Value) -> Value {
    let cluster = json!({"namespace": stage.namespace, "name": name, "kubeconfig": kubeconfig.to_string()});
    stage.create("clusters", &cluster).await;
    stage.unreachable(name).await
}

#[test]
fn a_kubeconfig_that_runs_reads_or_goes_around_is_refused_by_its_field() {
    run(async {
        let stage = Stage::with("fields", SYNCSETS, 1).await;
        let faulty = |path: &str, value: Value| {
            let mut faulty = kubeconfig("https://127.0.0.1:1/");
            let (parent, field) = path.rsplit_once('/').unwrap();
            faulty.pointer_mut(parent).unwrap()[field] = value;
            faulty
        };
        let canary = "/canary-4d02";
        let cases = [
            ("exec", "/users/0/user/exec", json!({"command": canary}), "users[0].user.exec"),
            ("plug-in", "/users/0/user/auth-provider", json!({"name": canary}), "users[0].user.auth-provider"),
            ("token-file", "/users/0/user/tokenFile", json!(canary), "users[0].user.tokenFile"),
            ("cert-file", "/users/0/user/client-certificate", json!(canary), "users[0].user.client-certificate"),
            ("key-file", "/users/0/user/client-key", json!(canary), "users[0].user.client-key"),
            ("ca-file", "/clusters/0/cluster/certificate-authority", json!(canary), "cluster.certificate-authority"),
            ("proxy", "/clusters/0/cluster/proxy-url", json!("http://canary-4d02:3128"), "cluster.proxy-url"),
            ("insecure", "/clusters/0/cluster/insecure-skip-tls-verify", json!(true), "insecure-skip-tls-verify"),
            ("plain", "/clusters/0/cluster/server", json!("http://canary-4d02"), "clusters[0].cluster.server"),
            ("user", "/clusters/0/cluster/server", json!("https://canary-4d02:x@host"), "clusters[0].cluster.server"),
            ("query", "/clusters/0/cluster/server", json!("https://host/?canary-4d02"), "clusters[0].cluster.server"),
            (
                "fragment",
                "/clusters/0/cluster/server",
                json!("https://host/#canary-4d02"),
                "clusters[0].cluster.server",
            ),
        ];
        for (name, path, value, field) in cases {
            let condition = refused(&stage, name, &faulty(path, value)).await;
            assert_eq!(condition["reason"], "KubeconfigInvalid", "{name}: {condition}");
            let message = condition["message"].as_str().unwrap();
            assert!(message.contains(field) && !message.contains("canary"), "{name}: {message}");
        }
        for (name, field, value) in [
            ("as", "as", json!("canary-4d02\r\nX-Remote-User: root")),
            ("as-uid", "as-uid", json!("canary-4d02\n")),
            ("as-groups", "as-groups", json!(["crew", "canary-4d02\n"])),
            ("as-many", "as-groups", json!((0..101).map(|at| format!("canary-4d02-{at}")).collect::<Vec<_>>())),
            ("as-extra", "as-user-extra", json!({"scope": ["canary-4d02\0"]})),
        ] {
            let mut faulty = kubeconfig("https://127.0.0.1:1/");
            let user = &mut faulty["users"][0]["user"];
            user["as"] = json!("somebody");
            user[field] = value;
            let condition = refused(&stage, name, &faulty).await;
            assert_eq!(condition["reason"], "KubeconfigInvalid", "{name}: {condition}");
            let message = condition["message"].as_str().unwrap();
            assert!(message.contains(field) && !message.contains("canary"), "{name}: {message}");
        }
        // Without a user to be, the rest would be of nobody.
        let without = faulty("/users/0/user/as-uid", json!(canary));
        let condition = refused(&stage, "as-nobody", &without).await;
        assert!(condition["message"].as_str().unwrap().contains("users[0].user.as-uid"), "{condition}");
        // Commands and files also where the current context does not lead.
        let mut other = kubeconfig("https://127.0.0.1:1/");
        other["users"].as_array_mut().unwrap().push(json!({"name": "other", "user": {"exec": {"command": canary}}}));
        let condition = refused(&stage, "other-user", &other).await;
        assert!(condition["message"].as_str().unwrap().contains("users[1].user.exec"), "{condition}");
        let garbage = json!(format!("{canary}: [\n"));
        let condition = refused(&stage, "garbage", &garbage).await;
        assert_eq!(condition["reason"], "KubeconfigInvalid", "{condition}");
        stage.never_shows(&["canary"]).await;
    });
}

#[test]
fn no_kubeconfig_leads_to_a_denied_network() {
    run(async {
        let stage = Stage::with("denied", GUARDED, 1).await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let hosts = [
            ("loopback", "127.0.0.1"),
            ("loopback-two", "127.8.8.8"),
            ("six", "[::1]"),
            ("mapped", "[::ffff:127.0.0.1]"),
            ("link-local", "169.254.169.254"),
            ("unspecified", "0.0.0.0"),
            ("resolved", "localhost"),
        ];
        for (name, host) in hosts {
            let condition = refused(&stage, name, &kubeconfig(&format!("https://{host}:{port}"))).await;
            assert_eq!(condition["reason"], "ErrorConnectingToCluster", "{name}: {condition}");
            // That a name has addresses, and which, is nobody's business.
            let shown = if name == "resolved" { "no API server answers" } else { "in the denied network" };
            let message = condition["message"].as_str().unwrap();
            assert!(message.contains(shown), "{name}: {message}");
        }
        assert!(stage.log().contains("all addresses of localhost are in denied networks"));
        let accepted = listener.accept();
        assert_eq!(accepted.err().map(|error| error.kind()), Some(std::io::ErrorKind::WouldBlock), "nobody connects");
        stage.never_shows(&[TOKEN]).await;
    });
}

#[test]
fn what_a_server_says_is_never_shown_unless_it_is_a_status() {
    run(async {
        let stage = Stage::shared("garbage", PLAIN).await;
        let canary = "canary-91c4";
        for (name, says, shown) in [
            ("not-http", Says::Garbage, ""),
            ("endless", Says::Endless, ""),
            ("silent", Says::Nothing, ""),
            ("html", Says::Body(502, format!("<html>{canary}</html>")), "HTTP 502, not a Kubernetes API"),
            ("no-status", Says::Body(200, format!("{{\"kind\": \"{canary}\"")), ""),
            ("redirect", Says::Body(302, format!("http://{canary}/")), ""),
        ] {
            let server = Script::start(move |_| says.clone()).await;
            let condition = refused(&stage, name, &server.kubeconfig()).await;
            assert_eq!(condition["reason"], "ErrorConnectingToCluster", "{name}: {condition}");
            let message = condition["message"].as_str().unwrap();
            assert!(message.contains(shown), "{name}: {message}");
            assert!(!server.requests().is_empty(), "{name}");
        }
        stage.never_shows(&[canary, TOKEN]).await;
    });
}

#[test]
fn values_of_secrets_are_never_shown() {
    run(async {
        let stage = Stage::new("canaries").await;
        stage.register("west-1", &json!({}), 0).await;
        let canary = "canary-secret-20ee";
        // The API server refuses it and quotes what is wrong.
        let source = json!({"namespace": stage.namespace, "name": "source", "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64(canary)}});
        stage.create("secrets", &source).await;
        let mapping =
            json!({"sourceRef": {"name": "source"}, "targetRef": {"name": "pull", "namespace": stage.namespace}});
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "secretMappings": [mapping]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        let status = stage.status("west-1", "the failure", |status| status["syncSets"][0]["result"] == "Failure").await;
        let entry = &status["syncSets"][0];
        assert_eq!(entry["reason"], "Rejected", "{entry}");
        let message = entry["failureMessage"].as_str().unwrap();
        assert!(message.starts_with("failed to apply secret 0 (Secret "), "{message}");
        let plain = json!({"data": {".dockerconfigjson": base64(&json!({"auths": {canary: {}}}).to_string())}});
        stage.change(&stage.path("secrets", "source"), &plain).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.never_shows(&[canary, &base64(canary), &base64(canary)[..12]]).await;
    });
}

/// A Secret of the hub, as it is mapped.
async fn secret_to_map(stage: &Stage) -> Value {
    let source = json!({"namespace": stage.namespace, "name": "pull", "data": {"token": base64("canary-mapped")}});
    stage.create("secrets", &source).await;
    json!({"sourceRef": {"name": "pull", "namespace": stage.namespace}, "targetRef": {"name": "pull", "namespace": stage.namespace}})
}

/// Whoever only writes to the database would be sent the Secrets of a cluster by a kubeconfig of his own in its row.
#[test]
fn a_kubeconfig_that_was_stored_without_the_key_leads_nowhere() {
    run(async {
        let keys = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("syncsets-unsealed-keys");
        std::fs::write(&keys, "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
        let stage = Stage::with("unsealed", &format!("keys_file = {keys:?}\n\n{PLAIN}"), 1).await;
        stage.register("west-1", &json!({}), 0).await;
        let mapping = secret_to_map(&stage).await;
        let spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "secretMappings": [mapping]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        stage.succeeds("west-1", "base", 1).await;
        stage.at_rest().await;
        let server = Script::start(|_| Says::Nothing).await;
        let own = [b"\0", server.kubeconfig().to_string().as_bytes()].concat();
        stage.sql.execute("update clusters set sealed = $1 where name = 'west-1'", &[&own]).await.unwrap();
        stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"a": "b"}})).await;
        stage.change(&stage.path("secrets", "pull"), &json!({"data": {"token": base64("canary-changed")}})).await;
        let condition = stage.unreachable("west-1").await;
        assert_eq!(condition["reason"], "KubeconfigInvalid", "{condition}");
        assert!(condition["message"].as_str().unwrap().contains("is stored unencrypted"), "{condition}");
        assert_eq!(server.requests(), [""; 0]);
    });
}

/// Whoever may write clusters somewhere would receive the Secrets of other namespaces by the labels of a cluster of his own.
#[test]
fn labels_bring_a_cluster_no_secrets_of_namespaces_that_do_not_name_its_own() {
    run(async {
        let stage = Stage::shared("labelled", PLAIN).await;
        stage.register("west-1", &json!({"env": "prod"}), 0).await;
        // It answers who it is, and nothing else is asked of a cluster to which nothing goes.
        let identity = "/api/v1/namespaces/kube-system";
        let server = Script::start(move |line| {
            let namespace = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"name": "kube-system", "uid": "fake"}});
            if line.contains(identity) { Says::Body(200, namespace.to_string()) } else { Says::Nothing }
        })
        .await;
        let own = json!({"namespace": "labelled-tenant", "name": "fake", "labels": {"env": "prod"},
            "kubeconfig": server.kubeconfig().to_string()});
        stage.create("clusters", &own).await;
        let mapping = secret_to_map(&stage).await;
        let mut spec =
            json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}, "secretMappings": [mapping]});
        let post = async |spec: &Value| {
            stage.send(&Request::post("/v1/selectorsyncsets", &json!({"name": "labelled", "spec": spec}))).await
        };
        let refused = post(&spec).await;
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(refused.status == 422 && text.contains("/spec/clusterNamespaces"), "{text}");
        // Nor by mappings that are added later.
        let without = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "prod"}}});
        post(&without).await.success().unwrap();
        let added = json!({"spec": {"secretMappings": spec["secretMappings"]}});
        let refused = stage.send(&Request::merge_patch("/v1/selectorsyncsets/labelled", &added)).await;
        assert_eq!(refused.status, 422);
        stage.remove("selectorsyncsets/labelled").await;

        spec["clusterNamespaces"] = json!([stage.namespace]);
        post(&spec).await.success().unwrap();
        stage.succeeds("west-1", "labelled", 1).await;
        stage.at_rest().await;
        let further = || server.requests().into_iter().filter(|line| !line.contains(identity)).collect::<Vec<_>>();
        assert_eq!(further(), [""; 0]);

        // Nor by a revision with mappings that a rollout still holds on to, while the document is for all namespaces again.
        let waves = json!([{"name": "canary", "clusterSelector": {"matchLabels": {"env": "nobody"}}}]);
        for change in [json!({"rollout": {"waves": waves}}), json!({"secretMappings": null, "clusterNamespaces": null})]
        {
            stage.change("selectorsyncsets/labelled", &json!({"spec": change})).await;
        }
        stage.at_rest().await;
        assert_eq!(further(), [""; 0]);
        stage.succeeds("west-1", "labelled", 1).await;
    });
}

impl Stage {
    /// The condition `Unreachable` of a cluster, once it is true.
    pub(crate) async fn unreachable(&self, cluster: &str) -> Value {
        let is_true =
            |status: &Value| condition(status, "Unreachable").is_some_and(|condition| condition["status"] == "True");
        let status = self.status(cluster, "the cluster to be unreachable", is_true).await;
        condition(&status, "Unreachable").unwrap().clone()
    }

    /// Nothing that anybody can see has one of these texts.
    pub(crate) async fn never_shows(&self, canaries: &[&str]) {
        self.never_shows_in(&[&STATE[..], &CONTENTS].concat(), canaries).await;
    }

    /// Of all tables, only these are looked at.
    pub(crate) async fn never_shows_in(&self, tables: &[&str], canaries: &[&str]) {
        self.at_rest().await;
        let mut shown = vec![("the log", self.log())];
        let admin = self.replicas[0].towline().admin();
        shown.push(("/status", admin.status().await.unwrap().to_string()));
        shown.push(("/metrics", admin.metrics().await.unwrap()));
        for plural in ["clustersyncs", "clusters", "secrets"] {
            let list = self.send(&Request::get(&format!("/v1/{plural}"))).await.success().unwrap();
            shown.push((plural, String::from_utf8_lossy(&list.body).into_owned()));
        }
        // Whatever is stored of passes and deletions.
        for table in tables {
            let rows = self.sql.query(&format!("select t::text from {table} t"), &[]).await.unwrap();
            shown.push((*table, rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()));
        }
        for (what, text) in shown {
            for canary in canaries {
                let at = text.find(canary);
                assert_eq!(at.map(|at| &text[at.saturating_sub(200)..]), None, "{what} shows {canary}");
            }
        }
    }
}

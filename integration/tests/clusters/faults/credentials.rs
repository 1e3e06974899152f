//! Credentials that are rotated, as Kubernetes rotates mounted secrets, while the old ones are revoked.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use integration::rbac::Side;
use integration::{ControlPlane, Filter, Towline, eventually, users};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::faults::world::{LIMIT, Lane, objects, report, run, start};

/// An account with the rights of the daemon's side, whose tokens live as long as a secret of the same number.
pub(crate) struct Account {
    client: Client,
    name: &'static str,
    proper: Value,
    tokens: usize,
}

impl Account {
    pub(crate) async fn on(plane: &ControlPlane, side: Side, account_name: &'static str) -> Self {
        let client = plane.client(users::ADMIN).await.unwrap();
        let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let account = ServiceAccount { metadata: named(account_name), ..ServiceAccount::default() };
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let role = match side {
            Side::Remote => "towline-resource-sync-remote:databases.demo.towline.dev",
            Side::Local => "towline-resource-sync-local:databases.demo.towline.dev",
        };
        let binding = ClusterRoleBinding {
            metadata: named(&format!("{account_name}-{side:?}").to_lowercase()),
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "ClusterRole".to_owned(),
                name: role.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: account_name.to_owned(),
                namespace: Some("default".to_owned()),
                ..Subject::default()
            }]),
        };
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        bindings.create(&PostParams::default(), &binding).await.unwrap();
        let proper = fs::read_to_string(plane.kubeconfig(users::TOWLINE).unwrap()).unwrap();
        Self { client, name: account_name, proper: serde_json::from_str(&proper).unwrap(), tokens: 0 }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn issue(&mut self) -> String {
        self.tokens += 1;
        let name = format!("{}-{}", self.name, self.tokens);
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let secret = Secret { metadata, ..Secret::default() };
        let secret = self.secrets().create(&PostParams::default(), &secret).await.unwrap();
        let bound = json!({"kind": "Secret", "apiVersion": "v1", "name": name, "uid": secret.metadata.uid});
        let order = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound, "audiences": []}});
        let request = http::Request::post(format!("/api/v1/namespaces/default/serviceaccounts/{}/token", self.name))
            .header("content-type", "application/json")
            .body(order.to_string().into_bytes())
            .unwrap();
        let issued: Value = self.client.request(request).await.unwrap();
        issued["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Revokes a token by its number, and waits until the API server refuses it.
    pub(crate) async fn revoke(&self, number: usize, token: &str) {
        let name = format!("{}-{number}", self.name);
        self.secrets().delete(&name, &DeleteParams::default()).await.unwrap();
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        eventually("the old token to be refused", LIMIT, async || {
            let request = http::Request::post("/apis/authentication.k8s.io/v1/tokenreviews")
                .header("content-type", "application/json")
                .body(review.to_string().into_bytes())
                .unwrap();
            let answer: Value = self.client.request(request).await.map_err(|error| error.to_string())?;
            if answer["status"]["authenticated"] == json!(true) { Err(answer.to_string()) } else { Ok(()) }
        })
        .await
        .unwrap();
    }

    pub(crate) fn kubeconfig(&self, user: Value) -> String {
        let mut kubeconfig = self.proper.clone();
        kubeconfig["users"][0]["user"] = user;
        kubeconfig.to_string()
    }
}

/// A directory as the kubelet mounts a secret: files are links through `..data`, which is swapped.
struct Mounted {
    path: PathBuf,
    generation: usize,
}

impl Mounted {
    fn at(path: PathBuf, files: &[&str]) -> Self {
        fs::create_dir(&path).unwrap();
        for file in files {
            symlink(Path::new("..data").join(file), path.join(file)).unwrap();
        }
        Self { path, generation: 0 }
    }

    fn swap(&mut self, files: &[(&str, &str)]) {
        let old = self.path.join(format!("..{}", self.generation));
        self.generation += 1;
        let name = format!("..{}", self.generation);
        fs::create_dir(self.path.join(&name)).unwrap();
        for (file, content) in files {
            fs::write(self.path.join(&name).join(file), content).unwrap();
        }
        symlink(&name, self.path.join("..data_tmp")).unwrap();
        fs::rename(self.path.join("..data_tmp"), self.path.join("..data")).unwrap();
        // Nothing there the first time.
        drop(fs::remove_dir_all(old));
    }
}

#[test]
fn rotated_credentials_are_taken_up_without_a_restart() {
    run(async {
        let lane = Lane::shared("rotated", "databases").await;
        let (mut hub, mut edge) = (
            Account::on(&lane.hub, Side::Remote, "rotated").await,
            Account::on(&lane.edge, Side::Local, "rotated").await,
        );
        lane.make_namespace("team").await;
        lane.order_many("team", 10).await;
        let mut hub_files = Mounted::at(lane.hub.directory().join("rotated"), &["kubeconfig", "token"]);
        let mut edge_files = Mounted::at(lane.edge.directory().join("rotated"), &["kubeconfig", "token"]);
        let token_file = edge_files.path.join("token");
        // One has the token in the kubeconfig, the other in a file that the kubeconfig names.
        let (mut hub_token, mut edge_token) = (hub.issue().await, edge.issue().await);
        let in_kubeconfig = |account: &Account, token: &str| account.kubeconfig(json!({"token": token}));
        let beside = edge.kubeconfig(json!({"tokenFile": token_file}));
        hub_files.swap(&[("kubeconfig", &in_kubeconfig(&hub, &hub_token))]);
        edge_files.swap(&[("kubeconfig", &beside), ("token", &edge_token)]);
        let clusters = Lane::cluster("hub", &hub_files.path.join("kubeconfig"))
            + &Lane::cluster("edge", &edge_files.path.join("kubeconfig"));
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        let before = lane.in_step("with the first credentials").await;

        // New ones first, then the old ones are revoked: nobody notices anything.
        let (old_hub, old_edge) = (hub_token, edge_token);
        hub_token = hub.issue().await;
        hub_files.swap(&[("kubeconfig", &in_kubeconfig(&hub, &hub_token))]);
        hub.revoke(1, &old_hub).await;
        edge_token = edge.issue().await;
        edge_files.swap(&[("kubeconfig", &beside), ("token", &edge_token)]);
        edge.revoke(1, &old_edge).await;
        lane.resize_many("team", 10, "2Gi").await;
        lane.report_many("team", 10, "second").await;
        assert_eq!(lane.in_step("with the second credentials").await, before);

        // The other way round: for a while there are none that are good.
        hub.revoke(2, &hub_token).await;
        lane.report_many("team", 10, "third").await;
        report(&towline, "lane", "changes that wait", |report| objects(report, "in_step") < 10).await;
        let log = towline.log().unwrap();
        hub_token = hub.issue().await;
        hub_files.swap(&[("kubeconfig", &in_kubeconfig(&hub, &hub_token))]);
        assert_eq!(lane.in_step("with the third credentials").await, before);
        edge.revoke(2, &edge_token).await;
        lane.resize_many("team", 10, "3Gi").await;
        edge_token = edge.issue().await;
        edge_files.swap(&[("kubeconfig", &beside), ("token", &edge_token)]);
        assert_eq!(lane.in_step("with the fourth credentials").await, before);

        let status = towline.admin().status().await.unwrap();
        assert!(!status.to_string().contains("\"restarts\":1"), "nothing had to be restarted: {status}");
        for token in [&old_hub, &old_edge, &hub_token, &edge_token] {
            assert!(
                !log.contains(token.as_str()) && !status.to_string().contains(token.as_str()),
                "the token is in the log or the status"
            );
        }
    });
}

#[test]
fn in_a_pod_the_service_account_is_used_and_its_token_rotated() {
    run(async {
        let lane = Lane::shared("in-pod", "databases").await;
        let mut edge = Account::on(&lane.edge, Side::Local, "in-pod").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 3).await;
        let cluster = &edge.proper["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().unwrap().trim_start_matches("https://").to_owned();
        let (host, port) = server.rsplit_once(':').unwrap();
        let authority = lane.edge.authority_pem().to_owned();
        let mut files = Mounted::at(lane.edge.directory().join("in-pod"), &["token", "ca.crt", "namespace"]);
        let first = edge.issue().await;
        files.swap(&[("token", &first), ("ca.crt", &authority), ("namespace", "default")]);
        let hub = lane.hub.kubeconfig(users::TOWLINE).unwrap();
        let config = Lane::cluster("hub", &hub) + "[clusters.edge]\nin_cluster = true\n" + &lane.section("lane", "");
        let env = [("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)];
        let file = lane.edge.directory().join("in-pod.toml");
        fs::write(&file, config).unwrap();
        let mounts = [
            (file, "/etc/towline/towline.toml"),
            (hub.clone(), hub.to_str().unwrap()),
            (files.path.clone(), "/var/run/secrets/kubernetes.io/serviceaccount"),
        ];
        let args = ["run", "--config", "/etc/towline/towline.toml"];
        let towline = Towline::start_in_container(&args, &env, &mounts).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        let before = lane.in_step("with the first token").await;
        let audit = lane.edge.audit().unwrap();
        let since = audit.mark().await.unwrap();

        let second = edge.issue().await;
        files.swap(&[("token", &second), ("ca.crt", &authority), ("namespace", "default")]);
        edge.revoke(1, &first).await;
        lane.resize_many("team", 3, "2Gi").await;
        lane.report_many("team", 3, "second").await;
        assert_eq!(lane.in_step("with the second token").await, before);
        let by_account = Filter::since(since).user("system:serviceaccount:default:in-pod").verb("patch");
        assert_eq!(audit.count(&by_account.resource("databases")).await.unwrap(), 3);
        let log = towline.log().unwrap();
        assert!(!log.contains(&first) && !log.contains(&second), "the token is in the log or the status");
    });
}

//! Runs the blocks of docs/start.md, one after the other, against a real API server. The test does what a node would do: it runs the pod
//! on another database, and `kubectl exec` runs the program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration::commands::KubectlTowline;
use integration::control_plane::ControlPlane;
use integration::port::Port;
use integration::postgres::HUB;
use integration::{Kubelet, Towline, eventually, pod, programs, users};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::process::Command;

use crate::database_server;

/// Longer than anything here takes while two cores are busy with something else.
const LIMIT: Duration = Duration::from_mins(2);

/// Passes on to kubectl what needs no node.
const KUBECTL: &str = r#"#!/bin/bash
case " $* " in
*" exec "*)
    while [[ $1 != -- ]]; do shift; done
    [[ $2 == towline ]] && exec "$TOWLINE_BIN" "${@:3}"
    ;;
*" delete namespace/"*) exec "$REAL_KUBECTL" "$@" --wait=false ;;
*) exec "$REAL_KUBECTL" "$@" ;;
esac
"#;
/// Nothing becomes ready without a node.
const HELM: &str = r#"#!/bin/bash
exec "$REAL_HELM" "${@/#--wait/--timeout=1m}"
"#;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The blocks of commands, in the order of the page.
pub(crate) fn blocks() -> Vec<String> {
    let page = fs::read_to_string(repository("docs/start.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```\n").next().unwrap().to_owned());
    blocks.collect()
}

#[test]
fn the_page_has_at_most_twelve_commands() {
    let begins = |line: &&str| line.starts_with("kubectl ") || line.starts_with("helm ");
    let commands: usize = blocks().iter().map(|block| block.lines().filter(begins).count()).sum();
    assert_eq!(commands, 12);
}

struct Terminal {
    directory: PathBuf,
    kubeconfig: PathBuf,
    server: String,
    hub: String,
}

impl Terminal {
    fn new(plane: &ControlPlane, hub: &Port) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("start");
        fs::create_dir_all(&directory).unwrap();
        for (name, script) in [("kubectl", KUBECTL), ("helm", HELM)] {
            let file = directory.join(name);
            fs::write(&file, script).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self {
            directory,
            kubeconfig: plane.kubeconfig(users::ADMIN).unwrap(),
            server: format!("https://{}", plane.address()),
            hub: format!("http://{}", hub.address()),
        }
    }

    /// What a block prints, or why it fails.
    async fn run(&self, block: &str) -> Result<String, String> {
        let path = format!("{}:{}", self.directory.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("bash")
            .args([
                "-euo",
                "pipefail",
                "-c",
                &block.replace("https://kubernetes.default.svc", &self.server).replace("REGISTRY", "registry.example"),
            ])
            .current_dir(repository("."))
            .env("PATH", path)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("REAL_KUBECTL", programs::control_plane("kubectl").await.unwrap())
            .env("REAL_HELM", programs::helm().await.unwrap())
            .env("TOWLINE_BIN", programs::towline().await.unwrap())
            .env("TOWLINE_HUB", &self.hub)
            .output()
            .await
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(told.into_owned()) } else { Err(told.into_owned()) }
    }
}

/// What a controller does in every namespace.
async fn authority(plane: &ControlPlane, client: &Client) {
    let map = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": plane.authority_pem()}});
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "start");
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
}

/// The pod of the release, on another database than the page's.
async fn daemon(plane: &ControlPlane, client: &Client, hub: &Port, database: &str) -> Towline {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "start");
    assert!(secrets.get("towline-hub").await.unwrap().data.unwrap().contains_key("POSTGRES_PARAMS"));
    let another = Patch::Merge(json!({"stringData": {"POSTGRES_PARAMS": database}}));
    secrets.patch("towline-hub", &PatchParams::default(), &another).await.unwrap();
    let listen = hub.address().to_string();
    // The API server is on this machine.
    let env = [("TOWLINE__HUB__LISTEN", listen.as_str()), ("TOWLINE__SYNCSETS__ALLOW", "local-networks")];
    pod::run(plane, "start", "towline", &env, LIMIT).await.unwrap()
}

/// Who is elsewhere reaches the hub through the API server, although it listens on loopback alone.
async fn is_reached_by_kubectl(terminal: &Terminal, plane: &ControlPlane, client: &Client, daemon: &Towline) {
    let directory = terminal.directory.join("plugin");
    drop(fs::remove_dir_all(&directory));
    fs::create_dir_all(&directory).unwrap();
    let node = Kubelet::start(client, "start").await.unwrap();
    let address = |url: &str| url.strip_prefix("http://").unwrap().parse().unwrap();
    let ports = [("admin", address(&daemon.admin_url())), ("api", address(&terminal.hub))];
    pod::show(&node, client, ("start", "towline"), "towline-0", &ports).await.unwrap();
    let kubectl = KubectlTowline::new(&directory, &plane.kubeconfig(users::ADMIN).unwrap(), "start").await.unwrap();
    let output = kubectl.run(&["get", "clusters", "-o", "name"]).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Cluster/start/here\n", "{output:?}");
    node.remove("start", "towline-0").await.unwrap();
}

pub(crate) async fn is_as_the_page_says(plane: &ControlPlane, client: &Client) {
    let blocks: [String; 6] = blocks().try_into().unwrap();
    let [install, register, look, break_it, mend, remove] = &blocks;
    let database = database_server().await.hub_database("start").await.unwrap();
    // A container has no file of names.
    let database = database.url_by(HUB, &database.address().to_string());
    let hub = Port::take().unwrap();
    let terminal = Terminal::new(plane, &hub);
    terminal.run(install).await.unwrap();
    authority(plane, client).await;
    let daemon = daemon(plane, client, &hub, &database).await;
    terminal.run(register).await.unwrap();
    let says = async |what: &str, block: &str, expected: &str| {
        eventually(what, LIMIT, async || match terminal.run(block).await {
            Ok(told) if told.contains(expected) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
    };
    says("the ConfigMap", look, "text: hello").await;
    is_reached_by_kubectl(&terminal, plane, client, &daemon).await;
    let told = terminal.run(break_it).await.unwrap();
    assert!(told.contains("SelectorSyncSet") && told.contains("greeting"), "{told}");
    says("the change by hand", look, "text: changed by hand").await;
    terminal.run(mend).await.unwrap();
    says("the ConfigMap as it was", look, "text: hello").await;
    daemon.terminate(LIMIT).await.unwrap();
    terminal.run(remove).await.unwrap();
}

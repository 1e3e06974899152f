//! The quick start of the page about syncsets: a reader types its commands one after the other.

use std::path::Path;
use std::process::Output;

use integration::hub::{Replica, Request};
use integration::{eventually, programs, users};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::json;
use tokio::process::Command;

use crate::syncsets::world::edge;
use crate::syncsets_commands::world::{LIMIT, database, run};

/// The blocks of commands of the quick start: what is typed in the hub's terminal, and in another one.
fn quick_start(page: &str) -> [&str; 2] {
    let section = page.split("\n## ").find(|section| section.starts_with("Quick start\n")).expect("the section");
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("the end of a block"));
    let blocks: Vec<&str> = blocks.collect();
    blocks.try_into().expect("two blocks")
}

async fn typed(prelude: &str, commands: &str, folder: &Path, variables: &[(&str, &str)]) -> Output {
    let script = format!("set -euo pipefail\n{prelude}\n{commands}");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(folder).envs(variables.iter().copied());
    command.output().await.expect("bash is installed")
}

/// What was printed by commands that have all succeeded.
fn printed(output: &Output) -> String {
    let [printed, complaints] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{printed}\n{complaints}");
    printed.into_owned()
}

#[test]
fn the_commands_of_the_quick_start_bring_a_syncset_onto_a_cluster() {
    run(async {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/syncsets.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let [start, commands] = quick_start(&page);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("syncsets-page");
        std::fs::create_dir_all(&folder).expect("a folder");

        // The hub that the page starts has a free port here, and a database of its own; all other variables are the page's.
        assert!(start.ends_with(" towline hub\n"), "{start}");
        let exported =
            printed(&typed("towline() { env | grep -E '^(SYNCSET|TOWLINE__)'; }", start, &folder, &[]).await);
        let variables: Vec<(&str, &str)> = exported.lines().map(|line| line.split_once('=').expect("a name")).collect();
        assert_eq!(variables.len(), 2, "{exported}");
        let database = database("page").await;
        let (edge, replica) = tokio::join!(edge(1), Replica::start(&database, &variables));
        let replica = replica.expect("a hub");
        replica.wait_ready(LIMIT).await.expect("it is ready");

        let kubectl = programs::control_plane("kubectl").await.expect("kubectl");
        let towline = programs::towline().await.expect("the binary");
        let kubeconfig = edge.kubeconfig(users::ADMIN).expect("a kubeconfig");
        let (hub, admin) = (format!("http://{}", replica.api()), replica.towline().admin_url());
        let prelude = r#"kubectl() { "$KUBECTL" "$@"; }
            towline() {
                local command=$1 at=(--hub "$HUB"); shift
                [[ $command != status ]] || at=(--admin "$ADMIN")
                "$TOWLINE" "$command" "${at[@]}" "$@"
            }"#;
        let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (kubectl, towline, kubeconfig) = (path(&kubectl), path(&towline), path(&kubeconfig));
        let environment = [
            ("KUBECTL", kubectl.as_str()),
            ("TOWLINE", &towline),
            ("KUBECONFIG", &kubeconfig),
            ("HUB", &hub),
            ("ADMIN", &admin),
        ];
        let told = printed(&typed(prelude, commands, &folder, &environment).await);
        for part in
            ["Cluster/team-a/west-1 created", "SelectorSyncSet/monitoring created", "NAMESPACE   NAME", "syncsets"]
        {
            assert!(told.contains(part), "no {part} in {told}");
        }

        let maps: Api<ConfigMap> = Api::namespaced(edge.client(users::ADMIN).await.expect("a client"), "monitoring");
        let outcome = eventually("the object of the page", LIMIT, async || {
            let found = maps.get_opt("site").await.map_err(|error| error.to_string())?;
            let data = json!(found.and_then(|found| found.data));
            if data == json!({"region": "west"}) { Ok(()) } else { Err(data.to_string()) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", replica.towline().log().unwrap_or_default());
        }
        let mut client = replica.client();
        eventually("the result of the page", LIMIT, async || {
            let reply = client.send(&Request::get("/v1/clustersyncs/team-a/west-1")).await;
            let found = reply.map_err(|error| error.to_string())?.json().map_err(|error| error.to_string())?;
            let result = found.pointer("/status/selectorSyncSets/0/result").cloned();
            if result == Some(json!("Success")) { Ok(()) } else { Err(found.to_string()) }
        })
        .await
        .expect("the cluster's status");
    });
}

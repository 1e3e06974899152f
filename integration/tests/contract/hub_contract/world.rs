//! Hubs on databases of the server that tests share.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use integration::hub::{Replica, Request};
use serde_json::Value;
use tokio::process::Command;

use crate::{HUB_KEYS, HUB_TOKENS, database_server};
pub(crate) use crate::{HUB_TOKEN as TOKEN, run};

/// Longer than a hub takes to start while two cores are busy with something else.
const LIMIT: Duration = Duration::from_mins(2);

/// A running hub on a database of this name; letters only. With `[syncsets]` it has all routes that there are.
async fn hub(name: &str, env: &[(&str, &str)]) -> Replica {
    let database = database_server().await.hub_database(name).await.expect("a database");
    let hub = Replica::run(&database, "[syncsets]\n", env).await.expect("it starts");
    hub.wait_ready(LIMIT).await.expect("it is ready");
    hub
}

/// A hub that everybody on this machine may use.
pub(crate) async fn local_hub(name: &str) -> Replica {
    hub(name, &[]).await
}

/// A hub that needs a token, and seals with a key.
pub(crate) async fn guarded_hub(name: &str) -> Replica {
    let folder = folder(name);
    let (tokens, keys) = (folder.join("tokens"), folder.join("keys"));
    fs::write(&tokens, HUB_TOKENS).expect("a file");
    fs::write(&keys, HUB_KEYS).expect("a file");
    let path = |path: &PathBuf| path.display().to_string();
    let env = [("TOWLINE__HUB__TOKENS_FILE", path(&tokens)), ("TOWLINE__HUB__KEYS_FILE", path(&keys))];
    hub(name, &env.each_ref().map(|(name, value)| (*name, value.as_str()))).await
}

/// Where a test keeps its files.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-contract-{name}"));
    fs::create_dir_all(&path).expect("a directory");
    path
}

/// The document as a hub serves it, to anybody.
pub(crate) async fn description(hub: &Replica) -> Value {
    let reply = hub.client().send(&Request::get("/openapi.json")).await.expect("an answer");
    assert_eq!(reply.status, 200);
    serde_json::from_slice(&reply.body).expect("JSON")
}

/// Runs a program, which must succeed.
pub(crate) async fn succeed(command: &mut Command) -> Output {
    let output = command.kill_on_drop(true).output().await.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    output
}

/// Everything that a program has printed.
pub(crate) fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).join("\n")
}

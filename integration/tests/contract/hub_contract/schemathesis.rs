//! What schemathesis finds: requests of all kinds, valid and not, made from the description, and answers that it does not have.

use std::path::{Path, PathBuf};
use std::process::Output;

use integration::hub::{Client, Replica, Request};
use integration::programs;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::hub_contract::world::{TOKEN, description, folder, guarded_hub, local_hub, run, said};

/// The same requests each time. `SEED` changes it.
const SEED: &str = "41";
/// Random requests to each operation, beside those that the description itself suggests; `ROUNDS` times as many.
const EXAMPLES: u32 = 12;

/// Where the description says that the version of a list is text.
const TYPE_OF_VERSION: &str = "/components/schemas/ClusterList/properties/resourceVersion/type";
/// Documents of each kind, as in `hooks.py`.
const DOCUMENTS: u32 = 20;

async fn schemathesis(name: &str, args: &[&str]) -> (Output, PathBuf) {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemathesis/schemathesis.toml");
    let folder = folder(name);
    let report = folder.join("report.json");
    let of_environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let examples = EXAMPLES * of_environment("ROUNDS").and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let mut command = Command::new(programs::schemathesis().await.expect("schemathesis"));
    command.arg("--config-file").arg(config).args(["run", "--no-color"]);
    command.args(["--seed", &of_environment("SEED").unwrap_or_else(|| SEED.to_owned())]);
    command.args(["--max-examples", &examples.to_string()]);
    command.arg("--report-json-path").arg(&report).args(args);
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemathesis/hooks.py");
    command.env("SCHEMATHESIS_HOOKS", hooks).env("PYTHONDONTWRITEBYTECODE", "1");
    // It keeps files in its working directory.
    let output = command.current_dir(folder).kill_on_drop(true).output().await.expect("it runs");
    (output, report)
}

/// Makes the documents that `hooks.py` puts into requests.
async fn make_documents(client: &mut Client) {
    for number in 0..DOCUMENTS {
        let name = format!("made-{number}");
        for (path, document) in [
            ("/v1/clusters", json!({"namespace": "made", "name": name, "kubeconfig": "k"})),
            (
                "/v1/syncsets",
                json!({"namespace": "made", "name": name, "spec": {"clusterDeploymentRefs": [{"name": "made-0"}]}}),
            ),
            ("/v1/selectorsyncsets", json!({"name": name, "spec": {"clusterDeploymentSelector": {}}})),
            ("/v1/secrets", json!({"namespace": "made", "name": name, "data": {"key": "dmFsdWU="}})),
        ] {
            let reply = client.send(&Request::post(path, &document)).await.expect("an answer");
            assert_eq!(reply.status, 201, "{path}: {reply:?}");
        }
    }
}

/// The description of a hub has every answer that it gives.
async fn expect_conformance(name: &str, hub: &Replica, args: &[&str]) {
    let url = format!("http://{}/openapi.json", hub.api());
    let paths = description(hub).await["paths"].as_object().cloned().expect("paths");
    // Of all operations it leaves out the one that it gets the description from.
    let others = paths.iter().filter(|(path, _)| *path != "/openapi.json").filter_map(|(_, item)| item.as_object());
    let operations: usize = others.map(serde_json::Map::len).sum();
    let (output, report) = schemathesis(name, &[&[url.as_str()], args].concat()).await;
    assert!(output.status.success(), "{}", said(&output));
    let report = std::fs::read_to_string(report).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let (all, tested) = (&report["operations"], &report["operations"]["tested"]);
    assert_eq!(
        (tested, &all["total"], &all["skipped"]),
        (&operations.into(), &operations.into(), &0.into()),
        "{report}"
    );
}

#[test]
fn a_hub_with_tokens_answers_as_it_is_described() {
    run(async {
        let hub = guarded_hub("guarded").await;
        make_documents(&mut hub.client().with_token(TOKEN)).await;
        let token = format!("Authorization: Bearer {TOKEN}");
        expect_conformance("guarded", &hub, &["--header", &token]).await;
    });
}

#[test]
fn a_hub_without_tokens_answers_as_it_is_described() {
    run(async {
        let hub = local_hub("local").await;
        make_documents(&mut hub.client()).await;
        // `curl -d` needs no media type.
        let conformance = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                           response_schema_conformance";
        // What the description itself suggests is the same as for a hub with tokens, and most of the walk.
        expect_conformance("local", &hub, &["--checks", conformance, "--phases", "fuzzing,stateful"]).await;
    });
}

#[test]
fn an_answer_that_the_description_lacks_is_found() {
    run(async {
        let hub = local_hub("lacking").await;
        let folder = folder("lacking");
        for (name, pointer) in [("status", "/paths/~1v1~1clusters/get/responses/400"), ("type", TYPE_OF_VERSION)] {
            let mut lacking = description(&hub).await;
            let (place, last) = pointer.rsplit_once('/').expect("a pointer");
            let removed = lacking.pointer_mut(place).and_then(Value::as_object_mut).and_then(|map| map.remove(last));
            assert!(removed.is_some(), "the description has no {pointer}");
            if name == "type" {
                *lacking.pointer_mut(place).expect("a property") = json!({"type": "integer"});
            }
            let document = folder.join(format!("{name}.json"));
            std::fs::write(&document, lacking.to_string()).expect("a file");
            let (document, url) = (document.display().to_string(), format!("http://{}", hub.api()));
            let only =
                ["--include-operation-id", "listClusters", "--exclude-checks", "ignored_auth", "--phases", "coverage"];
            let (output, _) = schemathesis("lacking", &[&["--url", &url, &document], &only[..]].concat()).await;
            let said = said(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            let expected = if name == "status" { "Undocumented status code" } else { "Response violates schema" };
            assert!(said.contains(expected), "{said}");
        }
    });
}

//! The pages about the hub: a reader types their commands one after the other.

use std::path::Path;

use integration::postgres::ADMIN;
use integration::programs;
use tokio::process::Command;

use crate::hub::world::{Hub, database, run};

/// What the first page starts, which is running here already.
const START: &str = "towline hub\n";

/// The shell's commands of the pages, as one script.
fn script(pages: &str) -> String {
    let blocks = pages.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("the end of a block"));
    blocks.filter(|block| !block.ends_with(START)).collect()
}

#[test]
fn the_commands_of_the_page_do_what_it_says() {
    run(async {
        let database = database("page").await;
        let hub = Hub::start(&database, &[]).await;
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let pages = ["hub.md", "hub-security.md"].map(|page| std::fs::read_to_string(docs.join(page)).expect("a page"));
        let commands = script(&pages.concat()).replace("http://127.0.0.1:7070", &hub.url);
        let towline = programs::towline().await.expect("the binary");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-page");
        std::fs::create_dir_all(&folder).expect("a folder");
        // A refusal ends the script, unless the page announces it.
        let prelude = r#"set -euo pipefail
            curl() { command curl -sS --fail-with-body --max-time 60 "$@" || return; echo; }
            towline() { local command=$1; shift; "$TOWLINE" "$command" --hub "$HUB" "$@"; }
            "#;
        let announced = commands.replace("# 422", "&& exit 1 || echo refused");
        // The page watches for three seconds; here the watch lasts until it has shown the event, however long that takes.
        let watched = announced
            .replace("&timeoutSeconds=3' &", "&timeoutSeconds=60' > watched 2>&1 &")
            .replace("\nwait\n", "\nuntil grep -q ADDED watched; do sleep 0.1; done\ncat watched\n");
        assert!(watched.matches("watched").count() == 3, "{watched}");
        let output = Command::new("bash")
            .args(["-c", &format!("{prelude}\n{watched}")])
            .current_dir(&folder)
            .envs([("HUB", hub.url.as_str()), ("POSTGRES_PARAMS", &database.url(ADMIN))])
            .env("TOWLINE", towline)
            .output()
            .await
            .expect("bash is installed");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        for part in [
            "\"name\":\"cluster1\"",
            "\"type\":\"BOOKMARK\"",
            "{\"type\":\"ADDED\"",
            "\"items\":[",
            "created",
            "region: eu",
            "\"suggestion\":\"patches\"",
            "refused",
            "\"openapi\": \"3.1.0\"",
            "swagger-ui-bundle.js",
        ] {
            assert!(said.contains(part), "no {part} in {said}");
        }
        let row = |line: &str| line.split('|').map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        assert!(said.lines().any(|line| row(line).starts_with(&["foo", "cluster1"].map(str::to_owned))), "{said}");
        assert!(!said.contains("foobar"), "{said}");

        // The files of tokens and keys that the page makes are of use.
        let made = |name: &str| folder.join(name).display().to_string();
        let files = [("TOWLINE__HUB__TOKENS_FILE", made("tokens")), ("TOWLINE__HUB__KEYS_FILE", made("keys"))];
        let guarded = Hub::start(&database, &files.each_ref().map(|(key, file)| (*key, file.as_str()))).await;
        let token = std::fs::read_to_string(folder.join("token")).expect("a token");
        let bearer = format!("authorization: Bearer {}", token.trim());
        guarded.expect(200, "/v1/clusters?namespace=team-a", &["-H", &bearer]).await;
        guarded.expect(403, "/v1/clusters", &["-H", &bearer]).await;
        guarded.expect(401, "/v1/clusters?namespace=team-a", &[]).await;
    });
}

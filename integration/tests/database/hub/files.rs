//! Files of tokens and keys that can't be used for a while.

use std::path::{Path, PathBuf};

use integration::postgres::ADMIN;
use integration::{Towline, eventually};
use serde_json::json;

use crate::hub::world::{Hub, LIMIT, database, run};

const MERGE: &str = "content-type: application/merge-patch+json";
/// A line of `keys_file`.
const KEY: &str = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
/// The SHA-256 of `sesame`.
const DIGEST: &str = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";

fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-{name}"));
    std::fs::write(&path, text).expect("a file");
    path
}

/// A hub that may never be ready.
pub(crate) async fn unready(env: &[(&str, &str)]) -> Hub {
    let towline = Towline::start_hub(&[env, &[("TOWLINE__HUB__LISTEN", "127.0.0.1:0")]].concat()).await;
    let towline = towline.expect("it starts");
    let listening = eventually("the API to listen", LIMIT, async || {
        let report = towline.admin().section("hub").await.map_err(|error| error.to_string())?;
        report["api"].as_str().map(|address| format!("http://{address}")).ok_or_else(|| report.to_string())
    });
    let url = listening.await.expect("an address");
    Hub { towline, url }
}

/// Waits until the section says this of its files.
async fn told(hub: &Hub, part: &str) {
    eventually(format!("the section to tell {part:?}"), LIMIT, async || {
        let status = hub.towline.admin().status().await.map_err(|error| error.to_string())?.to_string();
        if status.contains(part) { Ok(()) } else { Err(status) }
    })
    .await
    .expect("told");
}

#[test]
fn an_emptied_tokens_file_revokes_nothing_and_a_comment_everything() {
    run(async {
        let path = file("emptied", &format!("ada read * {DIGEST}\n"));
        let env = path.display().to_string();
        let hub = Hub::start(&database("emptied").await, &[("TOWLINE__HUB__TOKENS_FILE", &env)]).await;
        let token = ["-H", "authorization: Bearer sesame"];
        hub.expect(200, "/v1/clusters", &token).await;
        std::fs::write(&path, "").expect("emptied");
        told(&hub, "it is empty").await;
        hub.expect(200, "/v1/clusters", &token).await;
        std::fs::write(&path, "# nobody\n").expect("a comment");
        eventually("the token to be revoked", LIMIT, async || match hub.curl("/v1/clusters", &token).await.status {
            401 => Ok(()),
            status => Err(status.to_string()),
        })
        .await
        .expect("revoked");
    });
}

#[test]
fn while_keys_were_never_read_all_goes_on_that_needs_none() {
    run(async {
        let path = file("unread-keys", KEY);
        let env = path.display().to_string();
        let database = database("unreadkeys").await;
        let params = database.url(ADMIN);
        let hub = Hub::start(&database, &[("TOWLINE__HUB__KEYS_FILE", &env)]).await;
        let cluster = |name: &str| json!({"name": name, "namespace": "foo", "kubeconfig": "k"}).to_string();
        for name in ["a", "b"] {
            hub.expect(201, "/v1/clusters", &["--json", &cluster(name)]).await;
        }
        drop(hub);
        std::fs::write(&path, "one\n").expect("no key");
        let hub = unready(&[("POSTGRES_PARAMS", &params), ("TOWLINE__HUB__KEYS_FILE", &env)]).await;
        eventually("the first write", LIMIT, async || {
            let labels = ["-X", "PATCH", "-H", MERGE, "-d", r#"{"labels":{"env":"prod"}}"#];
            let answer = hub.curl("/v1/clusters/foo/a", &labels).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await
        .expect("labels need no key");
        let merge = |text: &'static str| ["-X", "PATCH", "-H", MERGE, "-d", text];
        hub.expect(200, "/v1/clusters/foo/a/status", &merge(r#"{"status":{"seen":true}}"#)).await;
        hub.expect(200, "/v1/clusters/foo/a", &merge(r#"{"paused":true}"#)).await;
        hub.expect(200, "/v1/clusters/foo/b", &["-X", "DELETE"]).await;
        let secret = merge(r#"{"kubeconfig":"other"}"#);
        let new = cluster("c");
        for (path, args) in [("/v1/clusters", &["--json", new.as_str()][..]), ("/v1/clusters/foo/a", &secret)] {
            let refused = hub.expect(503, path, args).await;
            assert!(refused.head.contains("retry-after: "), "{refused:?}");
            assert!(refused.body.contains("keys_file could not be read yet"), "{refused:?}");
        }
        std::fs::write(&path, KEY).expect("the key again");
        eventually("a sealed field to be written", LIMIT, async || {
            let answer = hub.curl("/v1/clusters/foo/a", &secret).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await
        .expect("written");
        let rows = database.client(ADMIN).await.expect("a connection").query("select sealed from clusters", &[]).await;
        let sealed: Vec<Vec<u8>> = rows.expect("rows").iter().map(|row| row.get(0)).collect();
        assert_eq!(sealed.len(), 1);
        assert_eq!(sealed[0][0], 1, "it is not stored plainly");
        // A file that becomes faulty later changes nothing.
        std::fs::write(&path, "").expect("emptied");
        told(&hub, "there is no key").await;
        hub.expect(201, "/v1/clusters", &["--json", &new]).await;
    });
}

//! Tokens and keys.

use integration::postgres::ADMIN;
use integration::{Towline, eventually};
use serde_json::json;

use crate::hub::world::{Hub, LIMIT, database, folder, grant, run};

const CANARY: &str = "canary-5b1f";
/// Lines of `keys_file`: 32 bytes in base64 each.
const KEYS: [&str; 2] =
    ["one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "two Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=\n"];

#[test]
fn a_token_that_is_taken_away_ends_its_watches() {
    run(async {
        let room = folder("tokens");
        let file = room.join("tokens");
        let read = grant("read", "team-*", "reader").await;
        let write = grant("write", "*", "writer").await;
        std::fs::write(&file, format!("{read}{write}")).expect("a file");
        let path = file.display().to_string();
        let hub = Hub::start(&database("tokens").await, &[("TOWLINE__HUB__TOKENS_FILE", &path)]).await;
        let (reader, writer) = ("authorization: Bearer reader", "authorization: Bearer writer");
        hub.expect(401, "/v1/clusters?namespace=team-a", &[]).await;
        hub.expect(403, "/v1/clusters", &["-H", reader]).await;
        hub.expect(403, "/v1/clusters/shop/c", &["-H", reader]).await;
        hub.expect(404, "/v1/clusters/team-a/c", &["-H", reader]).await;
        let body = json!({"name": "c", "namespace": "team-a", "kubeconfig": "k"}).to_string();
        hub.expect(403, "/v1/clusters", &["-H", reader, "--json", &body]).await;
        hub.expect(415, "/v1/clusters", &["-H", writer, "-d", &body]).await;
        hub.expect(201, "/v1/clusters", &["-H", writer, "--json", &body]).await;
        let mut watch = hub.watch("/v1/clusters?watch=true&namespace=team-a", &["-H", reader]);
        assert_eq!(watch.event().await.0, "ADDED");

        // A faulty file changes nothing, and is reported.
        std::fs::write(&file, "what").expect("a file");
        eventually("the fault to be reported", LIMIT, async || {
            let report = hub.towline.admin().section("hub").await.map_err(|error| error.to_string())?;
            if report["state"] == "failing" { Ok(()) } else { Err(report.to_string()) }
        })
        .await
        .expect("a report");
        hub.expect(200, "/v1/clusters/team-a/c", &["-H", reader]).await;

        std::fs::write(&file, &write).expect("a file");
        while let Some(line) = watch.line().await {
            assert!(line.contains("BOOKMARK"), "{line}");
        }
        hub.expect(401, "/v1/clusters/team-a/c", &["-H", reader]).await;
    });
}

#[test]
fn a_kubeconfig_is_nowhere_to_be_read_and_its_key_can_be_changed() {
    run(async {
        let room = folder("keys");
        let file = room.join("keys");
        std::fs::write(&file, KEYS[0]).expect("a file");
        let path = file.display().to_string();
        let database = database("keys").await;
        let hub = Hub::start(&database, &[("TOWLINE__HUB__KEYS_FILE", &path)]).await;
        let body = json!({"name": "c", "namespace": "foo", "kubeconfig": CANARY}).to_string();
        let created = hub.expect(201, "/v1/clusters", &["--json", &body]).await;
        let wrong = json!({"name": "d", "namespace": "foo", "kubeconfg": CANARY}).to_string();
        let refused = hub.expect(422, "/v1/clusters", &["--json", &wrong]).await;
        let list = hub.expect(200, "/v1/clusters", &[]).await;
        // The same again: each has a nonce of its own, or equal texts would be known by their equal ciphers.
        for name in ["e", "f", "g"] {
            let body = json!({"name": name, "namespace": "foo", "kubeconfig": CANARY}).to_string();
            hub.expect(201, "/v1/clusters", &["--json", &body]).await;
        }
        let sql = database.client(ADMIN).await.expect("a connection");
        // Behind the format and the name of the key, which has three letters both before and after the rotation.
        let nonces = async || -> Vec<Vec<u8>> {
            let nonces = "select distinct substring(sealed from 6 for 12) from clusters";
            sql.query(nonces, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
        };
        let before = nonces().await;
        assert_eq!(before.len(), 4);
        let stored: String = sql
            .query_one("select (select string_agg(d::text, '') from towline_documents d) || (select string_agg(l::text, '') from towline_log l)", &[])
            .await
            .expect("all rows")
            .get(0);
        let hexadecimal = CANARY.bytes().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let shown = hub.towline.admin().status().await.expect("a status").to_string();
        let log = hub.towline.log().expect("a log");
        for text in [&created.body, &refused.body, &list.body, &stored, &shown, &log] {
            assert!(!text.contains(CANARY) && !text.contains(&hexadecimal), "{text}");
        }

        let params = database.url(ADMIN);
        let env = [("POSTGRES_PARAMS", params.as_str()), ("TOWLINE__HUB__KEYS_FILE", path.as_str())];
        let rotate = async |args: &[&str]| {
            let output = Towline::command_with(args, &env).await.expect("it runs");
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let check = ["hub", "rotate-key", "--check"];
        assert_eq!(rotate(&check).await, (Some(0), "4 sealed fields use one\n".to_owned()));
        std::fs::write(&file, [KEYS[1], KEYS[0]].concat()).expect("a file");
        assert_eq!(rotate(&check).await.0, Some(1), "the old key is in use");
        let (code, told) = rotate(&["hub", "rotate-key"]).await;
        assert_eq!((code, told.as_str()), (Some(0), "4 sealed fields encrypted again\n4 sealed fields use two\n"));
        let after = nonces().await;
        assert!(after.len() == 4 && after.iter().all(|nonce| !before.contains(nonce)), "{before:?} {after:?}");
        let same = hub.expect(200, "/v1/clusters/foo/c", &[]).await;
        assert_eq!(same.json(), created.json(), "no version was created");
        // Without the key nothing is opened, and so nothing rotated.
        std::fs::write(&file, KEYS[0]).expect("a file");
        assert_eq!(rotate(&["hub", "rotate-key"]).await.0, Some(1));
    });
}

/// Without keys the start warns, and the fields are stored as they are until a rotation encrypts them. That has to be allowed: somebody
/// who writes to the database could have stored them.
#[test]
fn fields_that_were_stored_without_keys_are_encrypted_by_a_rotation() {
    run(async {
        let database = database("nokeys").await;
        let sql = database.client(ADMIN).await.expect("a connection");
        let stored = async || -> Vec<u8> {
            sql.query_one("select sealed from clusters where name = 'c'", &[]).await.expect("a row").get(0)
        };
        let warning = "without keys_file kubeconfigs and secrets are stored unencrypted";
        let open = Hub::start(&database, &[]).await;
        assert!(open.towline.log().expect("a log").contains(warning));
        let body = json!({"name": "c", "namespace": "foo", "kubeconfig": CANARY}).to_string();
        let created = open.expect(201, "/v1/clusters", &["--json", &body]).await.json();
        assert_eq!(stored().await, [b"\0", CANARY.as_bytes()].concat());
        drop(open);

        let file = folder("nokeys").join("keys");
        std::fs::write(&file, KEYS[0]).expect("a file");
        let (path, params) = (file.display().to_string(), database.url(ADMIN));
        let env = [("POSTGRES_PARAMS", params.as_str()), ("TOWLINE__HUB__KEYS_FILE", path.as_str())];
        let accepting = [env[0], env[1], ("TOWLINE__HUB__ACCEPT_UNSEALED", "true")];
        let rotate = async |env: &[(&str, &str)], args: &[&str]| {
            let output = Towline::command_with([&["hub", "rotate-key"], args].concat(), env).await.expect("it runs");
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        assert_eq!(rotate(&env, &["--check"]).await.0, Some(1), "one has no key");
        let (code, complained) = rotate(&env, &[]).await;
        let refused =
            "the sealed field of clusters/foo/c: the value is stored unencrypted, which accept_unsealed does not allow";
        assert!(code == Some(1) && complained.contains(refused), "{complained}");
        assert_eq!(stored().await, [b"\0", CANARY.as_bytes()].concat(), "it is as it was");
        assert_eq!(rotate(&accepting, &[]).await, (Some(0), String::new()));
        assert_eq!(rotate(&env, &["--check"]).await.0, Some(0));
        let sealed = stored().await;
        assert!(sealed.starts_with(b"\x01\x03one"), "{sealed:?}");
        assert!(!sealed.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()), "{sealed:?}");

        let hub = Hub::start(&database, &[("TOWLINE__HUB__KEYS_FILE", &path)]).await;
        assert!(!hub.towline.log().expect("a log").contains(warning));
        assert_eq!(hub.expect(200, "/v1/clusters/foo/c", &[]).await.json(), created);
        // The value is the same: setting it again is no change.
        let same = ["-X", "PATCH", "-H", "content-type: application/merge-patch+json", "-d", &body];
        assert_eq!(hub.expect(200, "/v1/clusters/foo/c", &same).await.json(), created);
    });
}

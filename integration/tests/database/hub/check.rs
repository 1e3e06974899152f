//! `towline check --connect` with `[hub]`: what its database and its files lack, all at once.

use std::path::{Path, PathBuf};

use integration::postgres::{ADMIN, Transport};
use integration::{Postgres, Towline};

use crate::hub::world::{Hub, LIMIT, database, run};

/// Exit code and everything that was said of a section with these keys.
async fn check(name: &str, keys: &str) -> (Option<i32>, String) {
    let path = file(&format!("{name}.toml"), &format!("[hub]\n{keys}"));
    let output = Towline::command(["check", "--connect", path.to_str().expect("a path")]).await.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{name}"));
    std::fs::write(&path, text).expect("a file");
    path
}

fn tells(told: &str, expected: &[&str]) {
    for text in expected {
        assert!(told.lines().any(|line| line.contains(text)), "nothing of {text:?} in\n{told}");
    }
}

#[test]
fn the_database_and_the_files_of_the_hub_are_checked() {
    run(async {
        let server = Postgres::start("hub-check", Transport::Plain).await.expect("a server");
        let database = server.empty_database("checked").await.expect("a database");
        let url = format!("database_url = {:?}\n", database.url(ADMIN));
        let (code, told) = check("empty", &url).await;
        assert_eq!(code, Some(0), "the hub migrates at its start: {told}");

        let keys = file("keys", "one two\n");
        let tokens = file("tokens", "");
        let faulty = format!("{url}migrate = false\nkeys_file = {keys:?}\ntokens_file = {tokens:?}\n");
        let (code, told) = check("faulty", &format!("{faulty}[daemon]\nadmin_token_file = {tokens:?}\n")).await;
        assert_eq!(code, Some(1), "{told}");
        tells(&told, &["daemon.admin_token_file: the token file", "check-tokens contains no token"]);
        let migrations = "migrations of the schema are missing, run `towline migrate`";
        tells(&told, &[migrations, "check-keys: line 1 is no key", "check-tokens: it is empty", "4 fault(s)"]);

        // Beside the names, standard error says why.
        let path = file("faulty.toml", &format!("[hub]\n{faulty}"));
        let args = ["check", "--connect", path.to_str().expect("a path"), "-o", "name"];
        let output = Towline::command(args).await.expect("it runs");
        let [names, told] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
        assert_eq!((output.status.code(), names.as_str()), (Some(1), "hub\n"), "{told}");
        tells(&told, &[migrations, "check-keys: line 1 is no key"]);

        // Fields that another replica has encrypted.
        let keys = file("good-keys", "first MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n");
        let with_keys = format!("keys_file = {keys:?}\n");
        let variables = [("TOWLINE__HUB__KEYS_FILE", keys.to_str().expect("a path"))];
        let hub = Hub::start(&database, &variables).await;
        let secret = r#"{"namespace": "foo", "name": "pull", "data": {"token": "eA=="}}"#;
        hub.expect(201, "/v1/secrets", &["-d", secret]).await;
        let (code, told) = check("sealed", &format!("{url}{with_keys}")).await;
        assert_eq!(code, Some(0), "{told}");
        tells(&told, &["answers"]);
        let (code, told) = check("without-keys", &url).await;
        assert_eq!(code, Some(1), "{told}");
        tells(&told, &["1 sealed field cannot be opened: without keys_file there is not the key first", "1 fault(s)"]);
        drop(hub);
        // One that somebody has stored who does not have the key, or that is from before there were keys.
        let plain = "update secrets set sealed = '\\x00'";
        database.client(ADMIN).await.expect("a connection").batch_execute(plain).await.expect("it is stored");
        let (code, told) = check("unsealed", &format!("{url}{with_keys}")).await;
        assert_eq!(code, Some(1), "{told}");
        let why =
            "1 sealed field cannot be opened: the value is stored unencrypted, which accept_unsealed does not allow";
        tells(&told, &[why, "1 fault(s)"]);
        let (code, told) = check("accepted", &format!("{url}{with_keys}accept_unsealed = true\n")).await;
        assert_eq!(code, Some(0), "{told}");

        // A server in recovery.
        let standby = server.standby("hub-check-standby").await.expect("a standby");
        let url = format!("database_url = {:?}\n", standby.copied_database(&database).url(ADMIN));
        let (code, told) = check("standby", &url).await;
        assert_eq!(code, Some(1), "{told}");
        tells(&told, &["the server is in recovery, but the hub needs the primary", "1 fault(s)"]);

        server.kill().await.expect("it is killed");
        let (code, told) = check("away", &format!("database_url = {:?}\n", database.url(ADMIN))).await;
        assert_eq!(code, Some(1), "{told}");
        tells(&told, &["failed to connect to the database", "1 fault(s)"]);
    });
}

/// Nobody serves other machines without tokens, keys and TLS by mistake.
#[test]
fn a_hub_that_other_machines_can_reach_does_not_start_without_tokens_keys_and_tls() {
    run(async {
        let database = [("POSTGRES_PARAMS", "host=127.0.0.1 dbname=none"), ("TOWLINE__HUB__LISTEN", "0.0.0.0:0")];
        let output = Towline::command_with(["hub"], &database).await.expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        tells(&told, &["tokens_file", "keys_file", "tls_cert"]);
    });
}

/// A variable that happens to be there does not give the daemon another database. It has variables of its own.
#[test]
fn towline_run_reads_no_postgres_params() {
    run(async {
        let path = file("params.toml", "[hub]\nlisten = \"\"\n");
        let path = path.to_str().expect("a path");
        let params = ("POSTGRES_PARAMS", "host=127.0.0.1 dbname=none");
        let own = ("TOWLINE__HUB__DATABASE_URL", "postgres://me@127.0.0.1/none");
        for command in [&["run", "--config", path][..], &["check", path]] {
            let env = [params];
            let output = tokio::time::timeout(LIMIT, Towline::command_with(command.iter().copied(), &env))
                .await
                .expect("it ends");
            let output = output.expect("it runs");
            let told = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(2), "{command:?}: {told}");
            tells(&told, &["exactly one of `database_url` and `database_url_file`"]);
        }
        let output = Towline::command_with(["check", path], &[params, own]).await.expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    });
}

#[test]
fn an_address_that_is_taken_ends_the_hub_with_1() {
    run(async {
        let url = database("taken").await.url(ADMIN);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = taken.local_addr().expect("an address").to_string();
        let env = [
            ("POSTGRES_PARAMS", url.as_str()),
            ("TOWLINE__HUB__LISTEN", &address),
            ("TOWLINE__DAEMON__LISTEN", "127.0.0.1:0"),
        ];
        let hub = Towline::command_with(["hub"], &env);
        let output = tokio::time::timeout(LIMIT, hub).await.expect("it ends").expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("failed to listen on {address} (`listen` of the hub): ")), "{told}");
    });
}

//! The commands: clients of the API, and those that maintain the database.

use integration::Towline;
use integration::postgres::ADMIN;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::hub::world::{CLOSE, GATE, Hub, LIMIT, OPEN, database, grant, run, shared};

const MANIFESTS: &str = "\
kind: Cluster
namespace: foo
name: west
kubeconfig: text
labels: {env: prod}
---
kind: Secret
namespace: foo
name: pull
data: {key: dmFsdWU=}
";

/// The same in another namespace.
fn manifests(namespace: &str) -> String {
    MANIFESTS.replace("namespace: foo", &format!("namespace: {namespace}"))
}

async fn towline(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = Towline::command_with(args, env).await.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_apply_warns_of_a_syncset_for_a_cluster_that_does_not_exist_and_makes_it() {
    run(async {
        let (hub, _) = shared().await;
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-references.yaml");
        let syncset = |name: &str, clusters: &str| {
            format!(
                "---\nkind: SyncSet\nnamespace: warned\nname: {name}\nspec: {{clusterDeploymentRefs: [{clusters}]}}\n"
            )
        };
        let text =
            [syncset("early", "{name: west}"), manifests("warned"), syncset("base", "{name: west}, {name: wset}")];
        std::fs::write(&path, text.join("---\n")).expect("a file");
        let file = path.display().to_string();
        for args in [&["apply", "--dry-run", "-f", &file][..], &["apply", "-f", &file], &["apply", "-f", &file]] {
            let (code, told, error) = towline(&[args, &["--hub", &hub.url]].concat(), &[]).await;
            assert_eq!((code, told.lines().count()), (Some(0), 4), "{told} {error}");
            assert_eq!(error, "towline: warning: SyncSet/warned/base: there is no cluster warned/wset\n");
        }
    });
}

#[test]
fn an_apply_that_takes_a_rollout_away_says_what_that_does() {
    run(async {
        let hub = Hub::start(&database("norollout").await, &[]).await;
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-rollout.yaml");
        let file = path.display().to_string();
        let apply = async |spec: &str, further: &[&str]| {
            let text =
                format!("kind: SyncSet\nnamespace: foo\nname: base\nspec: {{clusterDeploymentRefs: []{spec}}}\n");
            std::fs::write(&path, text).expect("a file");
            let (code, told, error) =
                towline(&[&["apply", "-f", &file, "--hub", &hub.url], further].concat(), &[]).await;
            assert_eq!(code, Some(0), "{told} {error}");
            error
        };
        let with = apply(", rollout: {}", &[]).await;
        assert!(!with.contains("warning"), "{with}");
        let warning =
            "towline: warning: SyncSet/foo/base: without a rollout, its newest content goes to all clusters at once\n";
        assert_eq!(apply("", &["--dry-run"]).await, warning);
        assert_eq!(apply("", &[]).await, warning);
        assert_eq!(apply("", &[]).await, "");
    });
}

#[test]
fn documents_are_applied_shown_and_deleted_from_the_command_line() {
    run(async {
        let (hub, _) = shared().await;
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-manifests.yaml");
        let file = path.display().to_string();
        let manifests = manifests("commands");
        std::fs::write(&path, &manifests).expect("a file");
        let run = async |args: &[&str]| towline(&[args, &["--hub", &hub.url]].concat(), &[]).await;
        let (code, told, error) = run(&["apply", "-f", &file, "--dry-run"]).await;
        let expected = "Cluster/commands/west created (dry run)\nSecret/commands/pull created (dry run)\n";
        assert_eq!((code, told.as_str()), (Some(0), expected), "{error}");
        let (code, told, error) = run(&["apply", "-f", &file]).await;
        assert_eq!(
            (code, told.as_str()),
            (Some(0), "Cluster/commands/west created\nSecret/commands/pull created\n"),
            "{error}"
        );
        let (_, told, _) = run(&["apply", "-f", &file]).await;
        assert_eq!(told, "Cluster/commands/west unchanged\nSecret/commands/pull unchanged\n");
        std::fs::write(&path, manifests.replace("env: prod", "env: test") + "---\nkind: Pod\n").expect("a file");
        let (code, told, error) = run(&["apply", "-f", &file]).await;
        assert_eq!(
            (code, told.as_str()),
            (Some(1), "Cluster/commands/west configured\nSecret/commands/pull unchanged\n")
        );
        assert!(error.contains("/kind: found \"Pod\""), "{error}");
        // An error about the whole file names it.
        for (content, fault) in [("# nothing yet\n", "there is no document"), ("kind: [Cluster\n", "")] {
            std::fs::write(&path, content).expect("a file");
            let (code, told, error) = run(&["apply", "-f", &file]).await;
            assert_eq!((code, told.as_str()), (Some(1), ""), "{error}");
            assert!(error.contains(&format!("{file}: {fault}")), "{error}");
        }

        let (code, told, error) = run(&["get", "cluster", "commands/west", "-o", "json"]).await;
        assert_eq!(code, Some(0), "{error}");
        let cluster: Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!((&cluster["labels"]["env"], &cluster["name"]), (&"test".into(), &"west".into()));
        let (_, told, _) = run(&["get", "clusters", "-l", "env=test", "-n", "commands"]).await;
        assert_eq!(told.lines().count(), 2, "{told}");
        let (code, told, error) = run(&["get", "clusters", "-l", "env=prod", "-n", "commands"]).await;
        assert_eq!((code, told.as_str(), error.as_str()), (Some(0), "", "towline: there are no clusters here\n"));
        let (code, told, error) = run(&["delete", "clusters", "commands/west"]).await;
        assert_eq!((code, told.as_str()), (Some(0), "Cluster/commands/west deleted\n"), "{error}");
        let (code, _, error) = run(&["delete", "clusters", "commands/west"]).await;
        assert_eq!(code, Some(1));
        assert!(error.contains("there is no clusters/commands/west"), "{error}");
        // What is typed wrong is told before anything is asked.
        for (args, fault) in [
            (&["get", "clusters", "a/b/c"][..], "\"b/c\" is no name"),
            (&["get", "clusters", "Foo/west"], "\"Foo\" is no namespace"),
            (&["get", "clusters", "west"], "NAMESPACE/NAME"),
            (&["get", "clusters", "-n", "Foo"], "\"Foo\" is no namespace"),
            (&["history", "-n", "Foo"], "\"Foo\" is no namespace"),
            (&["apply", "-f", "/none"], "failed to read /none"),
            (&["get", "clusters", "--token-file", "/none"], "failed to read the token file /none"),
            (&["get", "clusters", "--certificate-authority", "/none"], "failed to read the certificates in /none"),
            (&["get", "clusters", "--hub", "hub.example"], "not an http:// or https:// URL"),
        ] {
            let (code, told, error) = towline(args, &[]).await;
            assert_eq!((code, told.as_str()), (Some(2), ""), "{args:?}: {error}");
            assert!(error.contains(fault), "{args:?}: {error}");
        }
        // Port 1 is nobody's.
        let (code, _, error) = towline(&["get", "clusters", "--hub", "http://127.0.0.1:1"], &[]).await;
        assert_eq!(code, Some(1));
        assert!(error.contains("127.0.0.1:1") && error.ends_with("; --hub URL names another hub\n"), "{error}");
    });
}

/// It waits in the database until the test has seen the line.
#[test]
fn an_apply_that_takes_long_says_so_on_standard_error() {
    run(async {
        let database = database("progress").await;
        let hub = Hub::start(&database, &[]).await;
        let sql = database.client(ADMIN).await.expect("a connection");
        sql.batch_execute(GATE).await.expect("a gate");
        sql.batch_execute(CLOSE).await.expect("it is closed");
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-many.yaml");
        let document =
            |number: usize| format!("---\nkind: Cluster\nnamespace: foo\nname: many-{number}\nkubeconfig: text\n");
        std::fs::write(&path, (0..100).map(document).collect::<String>()).expect("a file");
        let file = path.display().to_string();
        let mut applying = tokio::process::Command::new(integration::programs::towline().await.expect("a binary"))
            .args(["apply", "-f", &file, "--hub", &hub.url])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let errors = tokio::io::BufReader::new(applying.stderr.take().expect("its errors"));
        let mut errors = tokio::io::AsyncBufReadExt::lines(errors);
        let line = tokio::time::timeout(LIMIT, errors.next_line()).await.expect("a line in time");
        let line = line.expect("it is text").expect("it goes on");
        assert!(line.starts_with(&format!("towline: applying {file}, for ")) && line.ends_with('s'), "{line}");
        sql.batch_execute(OPEN).await.expect("it is open");
        let ended = applying.wait_with_output().await.expect("it ends");
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && told.lines().count() == 100, "{told}");
        assert!(told.lines().all(|line| line.ends_with(" created")), "{told}");
    });
}

/// One option decides how anything is printed.
#[test]
fn documents_are_printed_as_tables_names_json_and_yaml_and_followed() {
    run(async {
        let (hub, _) = shared().await;
        let manifests = manifests("formats");
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-formats.yaml");
        let file = path.display().to_string();
        let syncset = "---\nkind: SyncSet\nnamespace: formats\nname: base\nspec:\n  clusterDeploymentRefs: [{name: west}]\n  resources:\n  \
                       - {apiVersion: v1, kind: ConfigMap, metadata: {name: site, namespace: default}, data: {script: \"a\\n\\n  b\\n\", tabs: \"\\ta\\nb\", mode: \"0400\"}}\n";
        std::fs::write(&path, manifests.clone() + syncset).expect("a file");
        let run = async |args: &[&str]| {
            let (code, told, error) = towline(&[args, &["--hub", &hub.url]].concat(), &[]).await;
            assert_eq!(code, Some(0), "{args:?}: {error}");
            told
        };
        run(&["apply", "-f", &file]).await;
        // Ages are of seconds here: the last cell of a row.
        let table = async |args: &[&str]| {
            let told = run(args).await;
            let rows: Vec<Vec<String>> =
                told.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
            assert!(
                rows[1].iter().any(|cell| cell.strip_suffix('s').is_some_and(|age| age.parse::<u8>().is_ok())),
                "{told}"
            );
            rows
        };
        let rows = table(&["get", "clusters", "-n", "formats"]).await;
        assert_eq!(rows[0], ["NAMESPACE", "NAME", "PAUSED", "AGE"]);
        assert_eq!(rows[1][..3], ["formats", "west", "false"]);
        let rows = table(&["get", "clusters", "-n", "formats", "-o", "wide"]).await;
        assert_eq!((rows[0][4].as_str(), rows[1][4].as_str()), ("LABELS", "env=prod"));
        let rows = table(&["get", "syncset", "formats/base"]).await;
        assert_eq!(rows[0], ["NAMESPACE", "NAME", "MODE", "CLUSTERS", "RESOURCES", "AGE"]);
        assert_eq!(rows[1][..5], ["formats", "base", "Upsert", "1", "1"]);
        let rows = table(&["get", "clustersyncs", "-n", "formats"]).await;
        assert_eq!(rows[0][2..], ["STATE", "SINCE", "SUCCEEDED", "HEALTH", "MESSAGE", "AGE"]);
        assert_eq!(run(&["get", "secrets", "-n", "formats", "-o", "name"]).await, "Secret/formats/pull\n");
        let list: Value =
            serde_json::from_str(&run(&["get", "clusters", "-n", "formats", "-o", "json"]).await).expect("JSON");
        assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&"List".into(), Some(1)));

        // What is printed as YAML is what was applied.
        let told = run(&["get", "syncset", "formats/base", "-o", "yaml"]).await;
        let resource = "      mode: \"0400\"\n      script: |\n        a\n\n          b\n      tabs: \"\\ta\\nb\"\n";
        assert!(told.contains(resource), "{told}");
        std::fs::write(&path, told).expect("a file");
        assert_eq!(run(&["apply", "-f", &file]).await, "SyncSet/formats/base unchanged\n");

        // A watch prints what is there, and then each change.
        let binary = integration::programs::towline().await.expect("a binary");
        let mut watching = tokio::process::Command::new(binary)
            .args(["get", "clusters", "formats/west", "-w", "--hub", &hub.url])
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let output = tokio::io::BufReader::new(watching.stdout.take().expect("its output"));
        let mut lines = tokio::io::AsyncBufReadExt::lines(output);
        let mut next = async || {
            let line = tokio::time::timeout(LIMIT, lines.next_line()).await.expect("a line in time");
            line.expect("it is text").expect("it goes on").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(next().await, ["EVENT", "NAMESPACE", "NAME", "PAUSED", "AGE"]);
        assert_eq!(next().await[..4], ["added", "formats", "west", "false"]);
        let another = manifests.replace("name: west", "name: east");
        std::fs::write(&path, another).expect("a file");
        run(&["apply", "-f", &file]).await;
        std::fs::write(&path, manifests.replace("env: prod", "env: test")).expect("a file");
        run(&["apply", "-f", &file]).await;
        assert_eq!(next().await[..4], ["modified", "formats", "west", "false"], "of this one alone");
        run(&["delete", "clusters", "formats/west"]).await;
        assert_eq!(next().await[..3], ["deleted", "formats", "west"]);
    });
}

/// A watch goes on where it was when its replica is back, prints each change once, and says meanwhile why it waits.
#[test]
fn a_watch_outlives_its_replica_and_prints_each_change_once() {
    run(async {
        let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let listen = address.to_string();
        let mut hub = Hub::start(&database("outlived").await, &[("TOWLINE__HUB__LISTEN", &listen)]).await;
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-reconnect.yaml");
        let (file, url) = (path.display().to_string(), hub.url.clone());
        let apply = async |env: &str| {
            std::fs::write(&path, MANIFESTS.replace("env: prod", &format!("env: {env}"))).expect("a file");
            let (code, _, error) = towline(&["apply", "-f", &file, "--hub", &url], &[]).await;
            assert_eq!(code, Some(0), "{error}");
        };
        apply("prod").await;
        let binary = integration::programs::towline().await.expect("a binary");
        for output in ["wide", "name"] {
            let mut watching = tokio::process::Command::new(&binary)
                .args(["get", "clusters", "-w", "-o", output])
                .env("TOWLINE_HUB", &url)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("it starts");
            let mut printed = lines(watching.stdout.take().expect("its output"));
            let mut complaints = lines(watching.stderr.take().expect("its complaints"));
            if output == "wide" {
                assert!(next(&mut printed).await.starts_with("EVENT"));
            }
            let first = next(&mut printed).await;
            assert!(first.contains("west") && first.contains("added"), "{first}");
            hub.towline.kill9().await.expect("it ends");
            let complaint = next(&mut complaints).await;
            assert!(complaint.contains(&listen) && complaint.ends_with(", trying again"), "{complaint}");
            hub.towline.start_again().await.expect("it starts");
            hub.towline.wait_ready(LIMIT).await.expect("it is ready");
            for env in ["test", "prod"] {
                apply(env).await;
                let line = next(&mut printed).await;
                let expected = if output == "wide" { format!("env={env}") } else { "Cluster/foo/west".to_owned() };
                assert!(line.contains("modified") && line.contains(&expected), "{line}");
            }
        }
    });
}

type Printed<R> = tokio::io::Lines<tokio::io::BufReader<R>>;

fn lines<R: tokio::io::AsyncRead>(output: R) -> Printed<R> {
    tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(output))
}

async fn next<R: tokio::io::AsyncRead + Unpin>(lines: &mut Printed<R>) -> String {
    let line = tokio::time::timeout(LIMIT, lines.next_line()).await.expect("a line in time");
    line.expect("it is text").expect("it goes on")
}

/// Where a program may colour what it prints, `NO_COLOR` keeps it from that.
#[test]
fn no_color_is_honoured() {
    run(async {
        let forced = [("CLICOLOR_FORCE", "1")];
        let (_, told, error) = towline(&["fly"], &forced).await;
        assert!((told + &error).contains('\u{1b}'), "{error}");
        let (_, told, error) = towline(&["fly"], &[forced[0], ("NO_COLOR", "1")]).await;
        assert!(!(told + &error).contains('\u{1b}'), "{error}");
    });
}

/// This hub behind somebody who lets it say that it is of release 9.
async fn of_another_release(hub: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let hub = hub.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut asks, mut hears) = client.into_split();
            let (mut says, mut is_told) = TcpStream::connect(&hub).await.expect("the hub").into_split();
            tokio::spawn(async move { tokio::io::copy(&mut asks, &mut is_told).await });
            tokio::spawn(async move {
                let mut said = Vec::new();
                while says.read_buf(&mut said).await.is_ok_and(|count| count > 0) {
                    let name = b"server: towline/";
                    let at = said.windows(name.len()).position(|part| part == name);
                    if let Some(version) = at.and_then(|at| said.get_mut(at + name.len())) {
                        *version = b'9';
                    }
                    hears.write_all(&said).await?;
                    said.clear();
                }
                std::io::Result::Ok(())
            });
        }
    });
    url
}

#[test]
fn a_hub_of_another_minor_release_is_warned_of() {
    run(async {
        let (hub, _) = shared().await;
        let (code, told, error) = towline(&["get", "clusters", "-n", "nobody", "--hub", &hub.url], &[]).await;
        assert_eq!((code, told.as_str(), error.as_str()), (Some(0), "", "towline: there are no clusters here\n"));
        let other = of_another_release(&hub.url).await;
        let (code, _, error) = towline(&["get", "clusters", "-n", "nobody", "--hub", &other], &[]).await;
        let lines: Vec<_> = error.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("towline: warning: the server is towline 9."), "{error}");
        assert_eq!((code, lines[1]), (Some(0), "towline: there are no clusters here"));
    });
}

/// Where there are tokens, the commands need one.
#[test]
fn the_commands_show_their_token() {
    run(async {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (tokens, own) = (folder.join("hub-commands-tokens"), folder.join("hub-commands-token"));
        std::fs::write(&tokens, grant("write", "*", "secret-of-ada").await).expect("a file");
        std::fs::write(&own, "secret-of-ada\n").expect("a file");
        let (tokens, own) = (tokens.display().to_string(), own.display().to_string());
        let hub = Hub::start(&database("commandtoken").await, &[("TOWLINE__HUB__TOKENS_FILE", &tokens)]).await;
        let path = folder.join("hub-token-manifests.yaml");
        std::fs::write(&path, MANIFESTS).expect("a file");
        let file = path.display().to_string();
        for command in [&["apply", "-f", &file][..], &["get", "clusters"], &["delete", "clusters", "foo/west"]] {
            let args = [command, &["--hub", &hub.url]].concat();
            let (code, _, error) = towline(&args, &[]).await;
            assert_eq!(code, Some(1), "{command:?}: {error}");
            let (code, told, error) = towline(&[&args[..], &["--token-file", &own]].concat(), &[]).await;
            assert_eq!(code, Some(0), "{command:?}: {told} {error}");
            assert!(!error.contains("secret-of-ada"), "{error}");
        }
        let env = [("TOWLINE_HUB", hub.url.as_str()), ("TOWLINE_TOKEN_FILE", own.as_str())];
        let (code, _, error) = towline(&["get", "secrets"], &env).await;
        assert_eq!(code, Some(0), "{error}");
    });
}

#[test]
fn the_schema_is_migrated_by_a_command_where_the_hub_shall_not() {
    run(async {
        // An empty one.
        let database = crate::db::world::Stage::new("migrate").await.place;
        let params = database.url(ADMIN);
        let env = [("POSTGRES_PARAMS", params.as_str())];
        let (code, told, error) = towline(&["migrate", "status"], &env).await;
        assert_eq!(code, Some(1), "{error}");
        assert!(told.contains("the schema is at migration 0, this release knows"), "{told}");

        let own = [("TOWLINE__HUB__LISTEN", "127.0.0.1:0"), ("TOWLINE__HUB__MIGRATE", "false")];
        let waiting = Towline::start_hub(&[&env[..], &own].concat()).await.expect("it starts");
        let shown = integration::eventually("the missing schema to be shown", LIMIT, async || {
            let answer = waiting.admin().section_readyz("hub").await.map_err(|error| error.to_string())?;
            if answer.body.contains("run `towline migrate`") { Ok(answer) } else { Err(answer.body) }
        });
        assert_eq!(shown.await.expect("an answer").status, 503);

        let (code, told, error) = towline(&["migrate"], &env).await;
        assert_eq!(code, Some(0), "{error}");
        assert!(told.contains("migrations applied"), "{told}");
        waiting.wait_ready(LIMIT).await.expect("it begins by itself");
        let (code, told, _) = towline(&["migrate", "status", "-o", "json"], &env).await;
        let document: Value = serde_json::from_str(&told).expect("JSON alone");
        assert_eq!((code, &document["usable"], &document["applied"]), (Some(0), &json!(true), &document["known"]));

        // As it is in a pod: the daemon has a file, and there are no variables.
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("migrated.toml");
        let config = |toml: &str| std::fs::write(&file, toml).expect("a file");
        let of_file = ["--config", file.to_str().expect("a path")];
        config("[daemon]\n");
        let (code, _, error) = towline(&[&["migrate", "status"], &of_file[..]].concat(), &env).await;
        assert_eq!((code, error.as_str()), (Some(2), "towline: the configuration has no [hub]\n"));
        config(&format!("[hub]\ndatabase_url = {params:?}\n"));
        let (code, told, error) = towline(&[&["migrate", "status"], &of_file[..]].concat(), &[]).await;
        assert_eq!(code, Some(0), "{told} {error}");

        let sql = database.client(ADMIN).await.expect("a connection");
        let (code, told, error) = towline(&[&["hub", "renumber"], &of_file[..]].concat(), &[]).await;
        assert_eq!(code, Some(0), "{error}");
        let base: i64 = sql.query_one("select base from towline_meta", &[]).await.expect("a row").get(0);
        assert_eq!(told, format!("further versions are above {base}\n"));
        assert!(base >= 1 << 40, "{base}");

        // A newer release migrates the database, in a way that this one need not know: an upgrade is taken back.
        let newer = "update towline_meta set migration = 1000, release = '9.9.9'";
        sql.execute(newer, &[]).await.expect("a newer schema");
        let (code, told, error) = towline(&["migrate"], &env).await;
        assert_eq!(code, Some(0), "{error}");
        assert!(told.contains("towline 9.9.9 has brought the schema to 1000"), "{told}");
        for migrate in ["true", "false"] {
            let own = [("TOWLINE__HUB__LISTEN", "127.0.0.1:0"), ("TOWLINE__HUB__MIGRATE", migrate)];
            let older = Towline::start_hub(&[&env[..], &own].concat()).await.expect("it starts");
            older.wait_ready(LIMIT).await.expect("it serves");
            let log = older.log().expect("the log");
            assert_eq!(log.matches("a newer release has migrated the schema").count(), 1, "{log}");
        }
        let (code, told, _) = towline(&["migrate", "status"], &env).await;
        assert_eq!(code, Some(0));
        assert!(told.contains("applied by towline 9.9.9, for releases that know migration"), "{told}");

        let own = [("TOWLINE__HUB__LISTEN", "127.0.0.1:0")];
        let running = Towline::start_hub(&[&env[..], &own].concat()).await.expect("it starts");
        running.wait_ready(LIMIT).await.expect("it serves");
        sql.execute("update towline_meta set oldest = 999", &[]).await.expect("one that it has to know");
        let ended = running.wait_exited(LIMIT).await.expect("it ends");
        assert_eq!(ended.code(), Some(1), "it does not go on with what it must not use");
        let (code, _, error) = towline(&["migrate"], &env).await;
        assert_eq!(code, Some(1));
        assert!(error.contains("needs a release that knows migration 999; this is towline "), "{error}");
        let older = Towline::start_hub(&[&env[..], &own].concat()).await.expect("it starts");
        let ended = older.wait_exited(LIMIT).await.expect("it ends");
        assert_eq!(ended.code(), Some(1), "a binary older than the schema does not run");
    });
}

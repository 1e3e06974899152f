//! Every command of a hub with every `-o`: one document as JSON and YAML, only names with `name`, and on standard error what is neither.

use integration::Towline;
use integration::commands::{FORMATS, Printed, in_each_format};
use serde_json::Value;

use crate::syncsets_commands::failures::fail;
use crate::syncsets_commands::rights::{file, token_file};
use crate::syncsets_commands::rollout::{set, stage, syncset};
use crate::syncsets_commands::world::{Stage, run};

const DONE: Option<i32> = Some(0);

/// A hub with a rollout, and what its commands need.
struct Scene {
    stage: Stage,
    token: String,
    admin: String,
    /// Of the variables of those that work on the database: its name and its value.
    database: (&'static str, String),
    keys: String,
}

impl Scene {
    async fn new() -> Self {
        let (stage, _) = stage("formats").await;
        fail(&stage, "west", ("SyncSet", "foo", "base"), "no").await;
        let config = std::fs::read_to_string(stage.replica.towline().config_path()).expect("its configuration");
        let url = config.lines().find_map(|line| line.strip_prefix("database_url = \"")).expect("a database");
        let database = ("POSTGRES_PARAMS", url.trim_end_matches('"').to_owned());
        let keys = file("formats-keys", "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").display().to_string();
        let admin = stage.replica.towline().admin_url();
        Self { stage, token: token_file("admin", "*"), admin, database, keys }
    }

    /// A command of the hub's API.
    async fn api(&self, args: &[&str], format: &str) -> Result<std::process::Output, integration::Error> {
        let hub = format!("http://{}", self.stage.replica.api());
        Towline::command([args, &["-o", format, "--token-file", &self.token, "--hub", &hub]].concat()).await
    }

    /// A command that has to succeed, before or after the one that is looked at.
    async fn done(&self, args: &[&str]) {
        let output = self.api(args, "name").await.expect("it runs");
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
}

/// What was printed, if the command ended so, with this part in its table.
fn checked(args: &[&str], printed: Result<Printed, String>, code: Option<i32>, part: &str) -> Printed {
    let printed = printed.unwrap_or_else(|wrong| unreachable!("{args:?}: {wrong}"));
    assert_eq!(printed.code, code, "{args:?}: {printed:?}");
    assert!(printed.table.contains(part), "{args:?}: no {part} in {printed:?}");
    printed
}

/// What reads, or changes nothing when it is repeated.
async fn what_reads(scene: &Scene, document: &str) {
    let base = "SyncSet/foo/base";
    for (args, names, part) in [
        (&["apply", "-f", document, "--dry-run"][..], &[base][..], "SyncSet/foo/base unchanged (dry run)"),
        (&["apply", "-f", document], &[base], "SyncSet/foo/base unchanged"),
        (&["get", "clusters"], &["Cluster/foo/east", "Cluster/foo/west"], "NAMESPACE   NAME"),
        (&["get", "clusters", "foo/west"], &["Cluster/foo/west"], "NAMESPACE   NAME"),
        (&["get", "syncsets", "-n", "foo"], &[base], "NAMESPACE   NAME"),
        (&["pause", "foo/west"], &["Cluster/foo/west"], "foo/west paused"),
        (&["resync", "foo/west"], &["Cluster/foo/west"], "a full pass of 1 cluster is due now"),
        (&["explain", "foo/west", "ConfigMap/default/site"], &[base], "wanted by  SyncSet foo/base"),
        (&["failures"], &[base], "CLUSTERS   SYNCSET"),
        (&["rollout", "status"], &[base], "SYNCSET"),
        (&["rollout", "status", "foo/base"], &[base], "SyncSet foo/base: Stopped (Failures)"),
        (&["rollout", "history", "foo/base"], &["2", "1"], "REVISION   GENERATION"),
    ] {
        let printed = checked(args, in_each_format(async |format| scene.api(args, format).await).await, DONE, part);
        assert_eq!(printed.names, names, "{args:?}: {printed:?}");
        assert!(printed.told.values().all(String::is_empty), "{args:?}: {printed:?}");
    }
    // No cluster could be compared: all are paused. And a rollout that is followed to its end has not ended well.
    let watched = ["rollout", "status", "--watch", "foo/base"];
    for (args, code, part) in
        [(&["diff", "-f", document][..], 1, "foo/west  paused"), (&watched, 3, "SyncSet foo/base: Stopped (Failures)")]
    {
        let printed = in_each_format(async |format| scene.api(args, format).await).await;
        let printed = checked(args, printed, Some(code), part);
        assert_eq!(printed.names, [base], "{args:?}: {printed:?}");
        assert!(printed.told.values().all(String::is_empty), "{args:?}: {printed:?}");
    }
    let of_daemon: [(&[&str], &[&str], &str); 4] = [
        (&["status"], &["syncsets", "hub"], "SECTION"),
        (&["status", "hub"], &["hub"], "SECTION"),
        (&["approve", "syncsets", "--list"], &[], "nothing is held"),
        (&["status", "--exit-code", "hub"], &["hub"], "SECTION"),
    ];
    for (args, names, part) in of_daemon {
        let printed = in_each_format(async |format| {
            Towline::command([args, &["-o", format, "--admin", &scene.admin]].concat()).await
        });
        let mut printed = checked(args, printed.await, DONE, part);
        printed.names.sort_by(|one, other| other.cmp(one));
        assert_eq!(printed.names, names, "{args:?}: {printed:?}");
        assert!(printed.told.values().all(String::is_empty), "{args:?}: {printed:?}");
    }
}

/// A history may be as long as the table that has it: it is one document for each record.
async fn a_history_is_a_document_a_record(scene: &Scene) {
    let of = async |format: &str| {
        let output = scene.api(&["history", "syncsets", "foo/base"], format).await.expect("it runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let json: Vec<Value> =
        of("json").await.lines().map(|line| serde_json::from_str(line).expect("a record as JSON")).collect();
    let yaml: Vec<Value> = serde_saphyr::from_multiple(&of("yaml").await).expect("records as YAML");
    assert!(json.len() > 1 && json == yaml, "{json:#?}\n{yaml:#?}");
    assert_eq!(of("name").await, "SyncSet/foo/base\n".repeat(json.len()));
    for format in ["table", "wide"] {
        assert!(of(format).await.contains("apply SyncSet/foo/base"), "{format}");
    }
}

/// Each of them is given what it can change before, or its change is taken back.
async fn what_changes(scene: &Scene, document: &str) {
    let base = ["SyncSet/foo/base"];
    let running =
        "state = 'Running', reason = 'Guarding', stable = 1, goal = 2, started = edited, guarded = false, promoted = 0";
    let waiting = "state = 'Running', reason = 'AwaitingPromotion', stable = 1, goal = 2, started = edited, guarded = true, wave = 0, promoted = 0";
    let stopped = "state = 'Stopped', reason = 'Failures', stable = 1, goal = 2, started = edited";
    let paused = "state = 'Stopped', reason = 'Paused', stable = 1, goal = 2, started = edited";
    for (args, before, part) in [
        (&["rollout", "pause", "foo/base"][..], running, "Stopped (Paused)"),
        (&["rollout", "resume", "foo/base"], paused, "Running"),
        (&["rollout", "promote", "foo/base"], waiting, "Running"),
        (&["rollout", "abort", "foo/base", "--yes"], running, "Stopped (Aborted)"),
        (&["rollout", "undo", "foo/base", "--yes"], stopped, "RollingBack"),
    ] {
        let printed = in_each_format(async |format| {
            set(&scene.stage, before).await;
            scene.api(args, format).await
        });
        let printed = checked(args, printed.await, DONE, part);
        assert_eq!(printed.names, base, "{args:?}: {printed:?}");
        assert!(printed.told.values().all(String::is_empty), "{args:?}: {printed:?}");
    }
    for (args, before, name, part) in [
        (&["resume", "foo/west"][..], &["pause", "foo/west"][..], "Cluster/foo/west", "foo/west resumed"),
        (&["delete", "syncsets", "foo/base"], &["apply", "-f", document], base[0], "SyncSet/foo/base deleted"),
    ] {
        let printed = in_each_format(async |format| {
            scene.done(before).await;
            scene.api(args, format).await
        });
        let printed = checked(args, printed.await, DONE, part);
        assert_eq!(printed.names, [name], "{args:?}: {printed:?}");
        assert!(printed.told.values().all(String::is_empty), "{args:?}: {printed:?}");
    }
}

/// Those that open the database themselves.
async fn what_maintains_the_database(scene: &Scene) {
    let (variable, url) = (scene.database.0, scene.database.1.as_str());
    let keys = [("TOWLINE__HUB__KEYS_FILE", scene.keys.as_str()), ("TOWLINE__HUB__ACCEPT_UNSEALED", "true")];
    let env = [&[(variable, url)][..], &keys].concat();
    for (args, count, part) in [
        (&["migrate", "status"][..], 1, "the schema is at migration"),
        (&["migrate"], 1, "0 migrations applied"),
        // What was stored without a key is sealed, after which there is nothing else.
        (&["hub", "rotate-key"], 1, "encrypted again"),
        (&["hub", "rotate-key", "--check"], 1, "sealed fields use one"),
        (&["hub", "renumber"], 1, "further versions are above"),
    ] {
        let printed =
            in_each_format(async |format| Towline::command_with([args, &["-o", format]].concat(), &env).await).await;
        let printed = checked(args, printed, DONE, part);
        assert_eq!(printed.names.len(), count, "{args:?}: {printed:?}");
        assert!(printed.told.values().all(String::is_empty), "{args:?}: {printed:?}");
    }
}

/// A refusal is on standard error alone, whatever the format is; a document that says what is wrong goes with it.
async fn what_fails(scene: &Scene) {
    let faulty = file("formats-faulty.toml", "[daemon]\nlisen = \"127.0.0.1:0\"\n").display().to_string();
    for (args, code) in [
        (&["get", "clusters", "foo/none"][..], 1),
        (&["delete", "syncsets", "foo/none"], 1),
        (&["rollout", "promote", "foo/base", "none"], 1),
        (&["rollout", "undo", "foo/base", "--to", "7"], 1),
        (&["rollout", "abort", "foo/base"], 2),
    ] {
        for format in FORMATS {
            let output = scene.api(args, format).await.expect("it runs");
            assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{args:?} {format}: {output:?}");
            assert!(!output.stderr.is_empty(), "{args:?} {format}");
        }
    }
    // Someone who asks for what a rollout does not allow is not asked first.
    set(&scene.stage, "state = 'Complete', reason = '', stable = 2, goal = 2, started = edited").await;
    let stable = "undo: all clusters have the stable revision 2 already: name another one by `--to`; \
                  `towline rollout history foo/base` shows those that are kept";
    for (args, refusal) in [
        (&["abort"][..], "abort: the rollout is Complete; possible now: "),
        (&["undo"], stable),
        (&["undo", "--to", "2"], stable),
    ] {
        let output = scene.api(&[&["rollout"], args, &["foo/base"]].concat(), "json").await.expect("it runs");
        let told = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(1) && told.starts_with(&format!("towline: {refusal}")), "{told}");
        assert_eq!(told.lines().count(), 1, "no plan and no question: {told}");
    }
    let invalid = in_each_format(async |format| Towline::command(["check", &faulty, "-o", format]).await);
    let invalid = checked(&["check"], invalid.await, Some(2), "");
    assert!(invalid.told.values().all(|told| told.contains("daemon.lisen")), "{invalid:?}");
    assert!(invalid.names.is_empty() && invalid.document.get("valid") == Some(&Value::Bool(false)), "{invalid:?}");
}

#[test]
fn every_command_of_a_hub_prints_every_format() {
    run(async {
        let scene = Scene::new().await;
        let document = file("formats-document", &syncset("2").to_string()).display().to_string();
        set(&scene.stage, "state = 'Complete', reason = '', stable = 1, started = edited").await;
        scene.done(&["apply", "-f", &document]).await;
        set(
            &scene.stage,
            "state = 'Stopped', reason = 'Failures', message = '1 has failed', goal = 2, started = edited",
        )
        .await;
        what_reads(&scene, &document).await;
        a_history_is_a_document_a_record(&scene).await;
        what_fails(&scene).await;
        what_changes(&scene, &document).await;
        what_maintains_the_database(&scene).await;
    });
}

//! `towline rollout` and its routes: who may steer what, what is refused, and what is recorded.
//!
//! Another process is the dispatcher, so that a rollout is as a test has made it.

#![expect(clippy::indexing_slicing, reason = "the allowance for tests does not reach their helpers")]

use std::process::Stdio;

use integration::commands::in_each_format;
use integration::hub::{Client, Request};
use integration::page;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::syncsets_commands::fleet::make_nothing_due;
use crate::syncsets_commands::rights::{file, guarded, token, token_file};
use crate::syncsets_commands::world::{HubPod, LIMIT, Stage, make, run, shown};

const ONE: &str = "/v1/syncsets/foo/base/rollout";

/// A syncset for two clusters, with a canary.
pub(crate) fn syncset(value: &str) -> Value {
    json!({"kind": "SyncSet", "namespace": "foo", "name": "base", "spec": {
        "clusterDeploymentRefs": [{"name": "west"}, {"name": "east"}],
        "resources": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site", "namespace": "default"}, "data": {"a": value}}],
        "rollout": {"waves": [{"name": "canary", "clusterSelector": {"matchLabels": {"env": "canary"}}, "pause": true}]}}})
}

async fn apply(client: &mut Client, document: &Value) {
    let reply = client.send(&Request::post("/v1/apply", document)).await.expect("an answer").success();
    let answer = reply.expect("it is applied").json().expect("JSON");
    assert!(answer["items"][0].get("problem").is_none(), "{answer}");
}

/// A hub with two clusters and a rollout that has not begun.
pub(crate) async fn stage(name: &str) -> (Stage, Client) {
    let grants = [("admin", "*"), ("read", "foo"), ("write", "foo"), ("write", "bar")];
    let stage = guarded(name, &grants).await;
    make_nothing_due(&stage).await;
    let mut admin = stage.replica.client().with_token(&token("admin", "*"));
    make(&mut admin, "foo", "west", "canary", true).await;
    make(&mut admin, "foo", "east", "prod", true).await;
    apply(&mut admin, &syncset("1")).await;
    (stage, admin)
}

/// Brings the rollout into a state, as the dispatcher would.
pub(crate) async fn set(stage: &Stage, change: &str) {
    let changed = stage.sql.execute(&format!("update towline_rollout set {change}"), &[]).await.expect("an update");
    assert_eq!(changed, 1);
}

async fn steer(client: &mut Client, body: &Value) -> (u16, Value) {
    let reply = client.send(&Request::post(ONE, body)).await.expect("an answer");
    (reply.status, reply.json().expect("JSON"))
}

/// What is shown of a rollout at its head.
fn told(rollout: &Value) -> [&Value; 5] {
    ["state", "reason", "revision", "stable", "wave"].map(|field| &rollout[field])
}

#[test]
fn a_rollout_is_steered_by_those_who_may_write_the_syncset_and_seen_by_those_who_may_read_it() {
    run(async {
        let (stage, mut admin) = stage("steering").await;
        let everywhere =
            json!({"kind": "SelectorSyncSet", "name": "all", "spec": {"clusterDeploymentSelector": {}, "rollout": {}}});
        apply(&mut admin, &everywhere).await;
        let pause = json!({"action": "pause"});
        let all = "/v1/selectorsyncsets/all/rollout";
        let asked = |path: &str, body: Option<&Value>| match body {
            Some(body) => Request::post(path, body),
            None => Request::get(path),
        };
        for (of, path, body, status) in [
            (token("read", "foo"), ONE, None, 200),
            (token("read", "foo"), ONE, Some(&pause), 403),
            (token("write", "bar"), ONE, None, 403),
            (token("write", "bar"), ONE, Some(&pause), 403),
            (token("write", "bar"), "/v1/syncsets/foo/base/rollout/revisions", None, 403),
            (token("write", "foo"), all, None, 403),
            (token("write", "foo"), all, Some(&pause), 403),
            (token("write", "foo"), "/v1/syncsets/foo/none/rollout", None, 404),
            (token("write", "foo"), "/v1/syncsets/foo/none/rollout", Some(&pause), 404),
            (token("write", "foo"), ONE, Some(&json!({"action": "stop"})), 422),
            (token("write", "foo"), ONE, Some(&pause), 200),
            (token("admin", "*"), all, Some(&pause), 200),
        ] {
            let mut client = stage.replica.client().with_token(&of);
            let reply = client.send(&asked(path, body)).await.expect("an answer");
            assert_eq!(reply.status, status, "{of} {path} {body:?}: {:?}", reply.json().ok());
        }
        assert_eq!(stage.replica.client().send(&Request::get(ONE)).await.expect("an answer").status, 401);
        for (of, names) in [("foo", &["base"][..]), ("bar", &[]), ("*", &["all", "base"])] {
            let role = if of == "*" { "admin" } else { "write" };
            let list = shown(&mut stage.replica.client().with_token(&token(role, of)), "/v1/rollouts").await;
            let mut found: Vec<_> = list["items"].as_array().expect("items").iter().map(|item| &item["name"]).collect();
            found.sort_by_key(ToString::to_string);
            assert_eq!(
                (found, &list["more"]),
                (names.iter().map(|name| json!(name)).collect::<Vec<_>>().iter().collect(), &json!(0)),
                "{of}"
            );
        }
    });
}

#[test]
fn a_command_that_the_state_does_not_allow_is_refused_and_says_what_is_now() {
    run(async {
        let (stage, mut admin) = stage("refusing").await;
        let first = shown(&mut admin, ONE).await;
        assert_eq!(told(&first), [&json!("Running"), &json!("Guarding"), &json!(1), &Value::Null, &json!("canary")]);
        let syncset_status = shown(&mut admin, "/v1/syncsets/foo/base").await["status"].take();
        assert_eq!(
            syncset_status,
            json!({"rollout": {"state": "Running", "reason": "Guarding", "revision": 1, "wave": "canary"}})
        );
        page::agrees("/v1/syncsets", "rollout", &shown(&mut admin, "/v1/syncsets/foo/base").await)
            .expect("what the page reads");
        let refused = async |admin: &mut Client, body: &Value, title: &str| {
            let (status, problem) = steer(admin, body).await;
            assert_eq!((status, &problem["type"]), (409, &json!("urn:towline:problem:conflict")), "{problem}");
            assert!(problem["title"].as_str().is_some_and(|told| told.contains(title)), "{problem}");
        };
        let [pause, resume, promote, abort, undo] =
            ["pause", "resume", "promote", "abort", "undo"].map(|action| json!({ "action": action }));
        refused(&mut admin, &promote, "the rollout is Running (Guarding)").await;
        refused(&mut admin, &promote, "possible now: pause, abort").await;
        refused(&mut admin, &undo, "no stable revision").await;
        refused(&mut admin, &resume, "possible now: pause, abort").await;

        let (status, paused) = steer(&mut admin, &pause).await;
        assert_eq!(
            (status, &paused["state"], &paused["reason"], &paused["actor"]),
            (200, &json!("Stopped"), &json!("Paused"), &json!("somebody"))
        );
        assert_eq!(paused["commands"], json!(["resume", "abort"]));
        refused(&mut admin, &pause, "the rollout is Stopped (Paused)").await;
        assert_eq!(steer(&mut admin, &resume).await.1["state"], "Running");

        set(&stage, "state = 'Running', reason = 'AwaitingPromotion', started = edited, guarded = true").await;
        let waits = shown(&mut admin, ONE).await;
        assert_eq!(waits["nextStep"], "`towline rollout promote foo/base canary`");
        // Somebody has promoted another wave, and did not hear of it.
        let other = json!({"action": "promote", "wave": "rest"});
        refused(&mut admin, &other, "wave canary waits to be promoted, and not rest").await;
        assert_eq!(stage.number("select promoted::bigint from towline_rollout").await, 0);
        assert_eq!(steer(&mut admin, &json!({"action": "promote", "wave": "canary"})).await.0, 200);
        assert_eq!(stage.number("select promoted::bigint from towline_rollout").await, 1);

        set(&stage, "state = 'Complete', reason = '', stable = 1, started = edited, wave = 1").await;
        refused(&mut admin, &undo, "all clusters have the stable revision 1 already").await;
        apply(&mut admin, &syncset("2")).await;
        let edited = shown(&mut admin, ONE).await;
        assert_eq!(told(&edited), [&json!("Running"), &json!("Guarding"), &json!(2), &json!(1), &json!("canary")]);
        set(&stage, "state = 'Stopped', reason = 'Failures', message = '1 cluster has failed', goal = 2, started = edited, failures = 1, wave = 0").await;
        for (path, request) in [(ONE, "/v1/syncsets/rollout"), ("/v1/rollouts", "/v1/rollouts")] {
            page::agrees(request, "stopped", &shown(&mut admin, path).await).expect("what the page reads");
        }
        page::agrees("/v1/syncsets", "stable", &shown(&mut admin, "/v1/syncsets/foo/base").await)
            .expect("what the page reads");
        refused(&mut admin, &json!({"action": "undo", "to": 7}), "revision 7 is not kept").await;
        let (status, back) = steer(&mut admin, &undo).await;
        assert_eq!(
            (status, &back["state"], &back["revision"], &back["stable"]),
            (200, &json!("RollingBack"), &json!(1), &json!(1))
        );
        assert_eq!(steer(&mut admin, &abort).await.1["reason"], "Aborted");

        let record = shown(&mut admin, "/v1/history?kind=syncsets&namespace=foo&name=base").await;
        let verbs: Vec<_> = record["items"]
            .as_array()
            .expect("records")
            .iter()
            .map(|one| one["verb"].as_str().unwrap_or_default())
            .collect();
        let expected =
            ["abort-rollout", "undo-rollout", "apply", "promote-rollout", "resume-rollout", "pause-rollout", "apply"];
        assert_eq!(verbs, expected);
        let resumed = &record["items"][4];
        assert_eq!(resumed["note"], "revision 1: Stopped (Paused) → Running (Guarding)", "{resumed}");
        let undone = &record["items"][1];
        assert_eq!(
            (&undone["actor"], &undone["note"]),
            (&json!("somebody"), &json!("revision 1: Stopped (Failures) → RollingBack (Guarding)"))
        );
    });
}

/// The hub is a pod, of which somebody knows the release alone.
async fn through_kubectl_it_is_the_same(stage: &Stage, reader: &str, writer: &str) {
    let pod = HubPod::new(stage, "through-kubectl").await;
    let kubectl = &pod.kubectl;

    let arguments = ["rollout", "status", "foo/base", "--token-file", reader];
    let printed = in_each_format(async |format| kubectl.run(&[&arguments[..], &["-o", format]].concat()).await).await;
    let printed = printed.expect("what it prints");
    let direct: Value =
        serde_json::from_str(&stage.expect(&[&arguments[..], &["-o", "json"]].concat()).await).expect("JSON");
    let fields = |rollout: &Value| ["kind", "state", "reason", "newest", "waves"].map(|field| rollout[field].clone());
    assert_eq!(fields(&printed.document), fields(&direct));
    assert_eq!((printed.code, printed.names), (Some(0), vec!["SyncSet/foo/base".to_owned()]));
    assert!(printed.told.values().all(String::is_empty), "{:?}", printed.told);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for (arguments, code, output, error) in [
        (
            &["rollout", "status", "-w", "foo/base", "--token-file", reader][..],
            3,
            "SyncSet foo/base: Stopped (Failures)",
            "",
        ),
        (&["rollout", "resume", "foo/base", "--token-file", writer], 0, "SyncSet foo/base: Running", ""),
        (&["rollout", "promote", "foo/base", "--token-file", writer], 1, "", "possible now: "),
        (&["rollout", "status"], 1, "", "a token is required"),
        (&["rollout", "abort", "foo/base", "--token-file", writer], 2, "", "there is no terminal to ask on"),
        // The namespace of the documents is another one.
        (
            &["get", "syncset", "base", "--in-namespace", "foo", "-o", "name", "--token-file", reader],
            0,
            "SyncSet/foo/base\n",
            "",
        ),
        (&["get", "syncset", "base", "--token-file", reader], 2, "", "NAMESPACE/NAME"),
        (
            &["explain", "foo/west", "ConfigMap/default/site", "--token-file", reader],
            0,
            "cluster    not contacted yet\n",
            "",
        ),
        (&["pause", "west", "--in-namespace", "foo", "--token-file", reader], 1, "", "does not have the role `write`"),
        (&["resync", "foo/none", "--token-file", writer], 1, "", "there is no clusters/foo/none"),
        // It is named, and has no TLS.
        (
            &["rollout", "status", "--hub", "https://hub.example", "--token-file", reader],
            1,
            "",
            "failed to connect to hub.example",
        ),
    ] {
        let mut command = kubectl.command(&[&["-n", "through-kubectl"], arguments].concat());
        // A hub and a token that somebody's shell has are those of another one.
        let said = command.env("TOWLINE_HUB", "https://other.example").env("TOWLINE_TOKEN_FILE", writer).output().await;
        let said = said.expect("it runs");
        assert_eq!(said.status.code(), Some(code), "{arguments:?}: {said:?}");
        let told = text(&said.stderr);
        assert!(
            text(&said.stdout).starts_with(output) && told.contains(error) && !told.contains("--hub URL"),
            "{arguments:?}: {said:?}"
        );
        assert_eq!((said.stdout.is_empty(), said.stderr.is_empty()), (output.is_empty(), error.is_empty()), "{said:?}");
    }
    let follow = ["-n", "through-kubectl", "rollout", "status", "--watch", "foo/base", "--token-file", reader];
    let mut followed =
        kubectl.command(&follow).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut shown = BufReader::new(followed.stdout.take().expect("a pipe")).lines();
    let mut told = BufReader::new(followed.stderr.take().expect("a pipe")).lines();
    let first = timeout(LIMIT, shown.next_line()).await.expect("the rollout").expect("a line");
    assert!(first.as_ref().is_some_and(|line| line.starts_with("SyncSet foo/base: Running")), "{first:?}");
    pod.remove().await;
    let outage = async {
        loop {
            match told.next_line().await.expect("it is read") {
                Some(line) if !line.ends_with("trying again") => {}
                line => return line,
            }
        }
    };
    let outage = timeout(LIMIT, outage).await.expect("a line about the outage");
    let is_told = outage.as_ref().is_some_and(|line| line.contains("failed to get an answer"));
    assert!(is_told, "its requests do not wait until the hub is back: {outage:?}");
    pod.run().await;
    let abort = kubectl.run(&["rollout", "abort", "foo/base", "--yes", "--token-file", writer]).await.expect("it runs");
    assert!(abort.status.success() && text(&abort.stdout).contains("Stopped (Aborted)"), "{abort:?}");
    let end = timeout(LIMIT, followed.wait()).await.expect("it ends with the rollout").expect("a code");
    assert_eq!(end.code(), Some(3));
    pod.remove().await;
}

#[test]
fn commands_show_rollouts_and_their_revisions_and_ask_before_they_move_clusters_back() {
    run(async {
        let (stage, mut admin) = stage("showing").await;
        let (reader, writer) = (token_file("read", "foo"), token_file("write", "foo"));
        set(&stage, "state = 'Complete', reason = '', stable = 1, started = edited").await;
        apply(&mut admin, &syncset("2")).await;
        set(&stage, "state = 'Stopped', reason = 'Failures', message = '1 cluster has failed', goal = 2, started = edited, since = now() - interval '30 min'").await;
        let list = stage.expect(&["rollout", "status", "--token-file", &reader]).await;
        assert!(
            list.contains("SyncSet foo/base   Stopped   Failures   canary   1 → 2      30m   edit the syncset"),
            "{list}"
        );
        let status = stage.expect(&["rollout", "status", "foo/base", "--token-file", &reader]).await;
        let mut lines = status.lines();
        assert_eq!(lines.next(), Some("SyncSet foo/base: Stopped (Failures) for 30m, revision 1 → 2"));
        assert!(
            status
                .contains("now: 1 cluster has failed\nnext step: edit the syncset, or `towline rollout undo foo/base`"),
            "{status}"
        );
        let said = stage.command(&["rollout", "status", "-w", "foo/base", "--token-file", &reader]).await;
        assert_eq!((said.code, said.output), (Some(3), status), "it has ended");
        // One cluster has the first revision, and the other one was tried with the second in vain.
        let results = "insert into towline_result (cluster, syncset, kind, namespace, name, inputs, generation, result, reason, message, since, \
               pending_deletions) \
             select c.id, s.id, 'SyncSet', 'foo', 'base', '\\x01', g.generation, g.result, g.reason, g.reason, now(), false \
             from syncsets s, clusters c join (values ('west', 1, 'Success', null), ('east', 2, 'Failure', 'Forbidden')) \
               g(name, generation, result, reason) on g.name = c.name";
        assert_eq!(stage.sql.execute(results, &[]).await.expect("two rows"), 2);
        let history = stage.expect(&["rollout", "history", "foo/base", "--token-file", &reader]).await;
        let rows: Vec<Vec<&str>> = history
            .lines()
            .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        let cells = |row: usize| [0, 1, 3, 4, 5].map(|column| rows[row][column]);
        assert_eq!(cells(1), ["2", "2", "somebody", "0", "newest, goal"]);
        assert_eq!(cells(2), ["1", "1", "somebody", "1", "stable"]);
        stage.sql.execute("delete from towline_result", &[]).await.expect("no rows any more");
        assert_eq!(
            stage.expect(&["rollout", "history", "foo/base", "-o", "name", "--token-file", &reader]).await,
            "2\n1\n"
        );

        through_kubectl_it_is_the_same(&stage, &reader, &writer).await;

        let undo = ["rollout", "undo", "foo/base", "--to", "1", "--token-file", &writer];
        let said = stage.command(&undo).await;
        assert!(said.code == Some(2) && said.error.contains("would go to revision 1"), "{said:?}");
        assert_eq!(stage.number("select goal::bigint from towline_rollout").await, 2, "nothing was done");
        stage
            .refused(
                &["rollout", "undo", "foo/base", "--yes", "--token-file", &reader],
                "the token does not have the role `write`",
            )
            .await;
        let told = stage.expect(&[&undo[..], &["--yes"]].concat()).await;
        assert!(told.starts_with("SyncSet foo/base: RollingBack (Guarding) for 0s, revision 1\n"), "{told}");
        stage.refused(&["rollout", "promote", "foo/base", "--token-file", &writer], "possible now: pause").await;
        stage
            .refused(
                &["rollout", "status", "foo/none", "--token-file", &reader],
                "there is no SyncSet foo/none with a rollout",
            )
            .await;

        set(&stage, "state = 'Running', reason = 'AwaitingPromotion', goal = 2, started = edited, guarded = true, wave = 0, promoted = 0").await;
        let promote = ["rollout", "promote", "foo/base", "rest", "--token-file", &writer];
        stage.refused(&promote, "wave canary waits to be promoted, and not rest").await;
        let told = stage.expect(&["rollout", "promote", "foo/base", "canary", "--token-file", &writer]).await;
        assert!(told.starts_with("SyncSet foo/base: Running (AwaitingPromotion)"), "{told}");
        assert_eq!(stage.number("select promoted::bigint from towline_rollout").await, 1);

        let report = stage.replica.towline().admin().status().await.expect("a status");
        assert!(report["sections"]["syncsets"].is_object(), "{report}");
        let without =
            json!({"kind": "SyncSet", "namespace": "foo", "name": "base", "spec": {"clusterDeploymentRefs": []}});
        let path = file("showing-without", &without.to_string()).display().to_string();
        let said = stage.command(&["apply", "-f", &path, "--token-file", &writer]).await;
        assert!(said.code == Some(0) && said.error.contains("goes to all clusters at once"), "{said:?}");
        stage.refused(&["rollout", "status", "foo/base", "--token-file", &reader], "with a rollout").await;
        assert_eq!(stage.expect(&["rollout", "status", "--token-file", &reader]).await, "no syncset has a rollout\n");
    });
}

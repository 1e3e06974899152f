//! `towline pause` and `resume`.

use integration::Towline;
use integration::hub::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::syncsets_commands::world::{Stage, make, run, shown};

const UNTIL: &str = "towline.dev/pause-until";
const REASON: &str = "towline.dev/pause-reason";
const OF_HIVE: &str = "hive.openshift.io/syncset-pause";
const WEST: &str = "/v1/clusters/foo/west";

#[test]
fn a_cluster_is_paused_and_resumed() {
    run(async {
        let stage = Stage::new("pause").await;
        let mut client = stage.replica.client();
        make(&mut client, "foo", "west", "prod", false).await;
        assert_eq!(stage.expect(&["pause", "foo/west", "--reason", "an upgrade"]).await, "foo/west paused\n");
        let west = shown(&mut client, WEST).await;
        assert_eq!((&west["paused"], &west["annotations"]), (&json!(true), &json!({REASON: "an upgrade"})));
        assert_eq!(stage.expect(&["resume", "foo/west"]).await, "foo/west resumed\n");
        let west = shown(&mut client, WEST).await;
        assert_eq!((&west["paused"], &west["annotations"]), (&json!(false), &json!({})));
        let version = west["resourceVersion"].clone();
        assert_eq!(stage.expect(&["resume", "foo/west"]).await, "foo/west was not paused by Towline\n");
        let document: Value =
            serde_json::from_str(&stage.expect(&["resume", "--all", "-o", "json"]).await).expect("JSON");
        let result = json!({"cluster": "foo/west", "result": "was not paused by Towline"});
        assert_eq!(document, json!({"items": [result]}));
        assert_eq!(stage.expect(&["resume", "foo/west", "-o", "name"]).await, "Cluster/foo/west\n");
        assert_eq!(shown(&mut client, WEST).await["resourceVersion"], version, "nothing was written");

        let told = stage.expect(&["pause", "foo/west", "--for", "2h"]).await;
        let west = shown(&mut client, WEST).await;
        let until = west["annotations"][UNTIL].as_str().expect("an end");
        assert_eq!(told, format!("foo/west paused until {until}\n"));
        let lasts = "select $1::text::timestamptz between now() + interval '1 h' and now() + interval '2 h 1 s'";
        let lasts = stage.sql.query_one(lasts, &[&until]).await.expect("a time").get::<_, bool>(0);
        assert!(lasts && until.ends_with('Z'), "{until}");
        assert_eq!((&west["paused"], &west["annotations"][REASON]), (&json!(false), &Value::Null));

        // A pause without an end replaces one that has one.
        assert_eq!(stage.expect(&["pause", "foo/west"]).await, "foo/west paused\n");
        let west = shown(&mut client, WEST).await;
        assert_eq!((&west["paused"], &west["annotations"]), (&json!(true), &json!({})));
        let told = stage.expect(&["pause", "foo/west", "--for", "90m"]).await;
        assert!(told.ends_with(", and by its field `paused` until it is resumed\n"), "{told}");
        stage.refused(&["pause", "foo/none"], "there is no clusters/foo/none").await;
        for args in [&["pause"][..], &["pause", "foo/west", "--for", "soon"], &["pause", "foo/west", "--for", "0s"]] {
            let said = stage.command(args).await;
            assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        }
    });
}

#[test]
fn resume_names_the_pauses_of_hive_and_leaves_them() {
    run(async {
        let stage = Stage::new("hive").await;
        let mut client = stage.replica.client();
        make(&mut client, "foo", "west", "prod", true).await;
        let patch = Request::merge_patch(WEST, &json!({"annotations": {OF_HIVE: "true"}}));
        client.send(&patch).await.expect("an answer").success().expect("it is changed");
        let remains = format!("but remains paused by Hive's {OF_HIVE}, which resume leaves alone");
        assert_eq!(stage.expect(&["resume", "foo/west"]).await, format!("foo/west resumed, {remains}\n"));
        let west = shown(&mut client, WEST).await;
        assert_eq!((&west["paused"], &west["annotations"]), (&json!(false), &json!({OF_HIVE: "true"})));
        assert_eq!(
            stage.expect(&["resume", "foo/west"]).await,
            format!("foo/west was not paused by Towline, {remains}\n")
        );
    });
}

#[test]
fn clusters_of_a_selector_are_paused_while_others_change_them() {
    run(async {
        let stage = Stage::new("many").await;
        let mut client = stage.replica.client();
        let names: Vec<String> = (10..20).map(|number| format!("c{number}")).collect();
        for name in &names {
            make(&mut client, "foo", name, "prod", false).await;
        }
        make(&mut client, "foo", "other", "test", false).await;
        let mut writer = stage.replica.client();
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let changing = async {
            let mut rounds = 0;
            // It ends some day, or commands might never find a moment between two changes.
            while stopped.try_recv().is_err() && rounds < 20 {
                rounds += 1;
                for name in &names {
                    let patch = json!({"labels": {"round": rounds.to_string()}});
                    let request = Request::merge_patch(&format!("/v1/clusters/foo/{name}"), &patch);
                    writer.send(&request).await.expect("an answer").success().expect("it is changed");
                }
            }
            rounds
        };
        let pausing = async {
            // The other clusters of the selector are paused even if one changes all the time.
            let mut said = stage.command(&["pause", "-l", "env=prod", "--reason", "x"]).await;
            while said.code == Some(1) {
                said = stage.command(&["pause", "-l", "env=prod", "--reason", "x"]).await;
            }
            stop.send(()).expect("the writer listens");
            said
        };
        let (rounds, said) = tokio::join!(changing, pausing);
        let expected: Vec<String> = names.iter().map(|name| format!("foo/{name} paused\n")).collect();
        let expected = expected.concat();
        assert_eq!((said.code, said.output), (Some(0), expected), "{}", said.error);
        for name in &names {
            let cluster = shown(&mut client, &format!("/v1/clusters/foo/{name}")).await;
            assert_eq!((&cluster["paused"], &cluster["labels"]["round"]), (&json!(true), &json!(rounds.to_string())));
        }
        assert_eq!(shown(&mut client, "/v1/clusters/foo/other").await["paused"], false);
        let told = stage.expect(&["resume", "--all"]).await;
        assert_eq!(told.lines().filter(|line| line.ends_with(" resumed")).count(), names.len(), "{told}");
        assert!(told.contains("foo/other was not paused by Towline\n"), "{told}");
        stage.refused(&["pause", "-l", "env=dev"], "no cluster matches").await;
    });
}

/// A hub that gives these answers, status and body, one after the other. Returns its address, and in the end the heads of the requests.
async fn scripted(answers: Vec<(u16, Value)>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let serving = tokio::spawn(async move {
        let mut asked = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a whole head"));
            }
            let head = String::from_utf8(head).expect("text");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut sent = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut sent).await.expect("a whole body");
            let body = body.to_string();
            let answer =
                format!("HTTP/1.1 {status} Told\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.expect("the client reads");
            asked.push(head + &String::from_utf8_lossy(&sent));
        }
        asked
    });
    (url, serving)
}

fn west(version: &str, paused: bool) -> Value {
    json!({"namespace": "foo", "name": "west", "resourceVersion": version, "paused": paused, "annotations": {}})
}

#[test]
fn a_change_is_decided_again_when_another_one_comes_first_and_not_for_ever() {
    run(async {
        let conflict = || {
            (412, json!({"type": "urn:towline:problem:precondition", "title": "If-Match does not hold", "status": 412}))
        };
        let answers = vec![(200, west("7", true)), conflict(), (200, west("9", false))];
        let (url, serving) = scripted(answers).await;
        let output = Towline::command(["resume", "foo/west", "--hub", &url]).await.expect("it runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "foo/west was not paused by Towline\n", "{output:?}");
        let asked = serving.await.expect("no panic");
        assert!(asked[1].contains("if-match: \"7\"\r\n") && asked[1].ends_with("{\"paused\":false}"), "{}", asked[1]);

        let mut answers = vec![(200, west("1", false))];
        for version in 2..6 {
            answers.extend([conflict(), (200, west(&version.to_string(), false))]);
        }
        answers.push(conflict());
        let (url, serving) = scripted(answers).await;
        let output = Towline::command(["pause", "foo/west", "--hub", &url]).await.expect("it runs");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(error, "towline: foo/west: If-Match does not hold\n");
        let asked = serving.await.expect("no panic");
        assert!(asked[9].contains("if-match: \"5\"\r\n"), "{}", asked[9]);
    });
}

#[test]
fn what_was_done_before_an_error_is_told_with_it() {
    run(async {
        let east =
            json!({"namespace": "foo", "name": "east", "resourceVersion": "3", "paused": false, "annotations": {}});
        // One that is paused already needs no request.
        let list = || (200, json!({"items": [west("7", false), east]}));
        let (url, _serving) = scripted(vec![list()]).await;
        let output = Towline::command(["resume", "--all", "-o", "json", "--hub", &url]).await.expect("it runs");
        assert_eq!(output.status.code(), Some(0), "nothing has to be changed: {output:?}");

        // The hub goes away after the list.
        let mut gone = east.clone();
        gone["paused"] = true.into();
        let (url, _serving) = scripted(vec![(200, json!({"items": [west("7", false), gone]}))]).await;
        let output = Towline::command(["resume", "--all", "-o", "json", "--hub", &url]).await.expect("it runs");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let done = json!({"cluster": "foo/west", "result": "was not paused by Towline"});
        assert_eq!((output.status.code(), document), (Some(1), json!({"items": [done]})));
        assert!(String::from_utf8_lossy(&output.stderr).contains("towline: "), "{output:?}");
    });
}

//! What commands show of a running daemon: `status --watch` and `explain`.

use std::process::Stdio;

use integration::{Towline, programs};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::rules_world::*;

/// The next line that has this.
async fn line_with<R: AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>, text: &str) -> String {
    let found = async {
        loop {
            let line = lines.next_line().await.unwrap();
            assert!(line.is_some(), "it ended before {text:?}");
            if let Some(line) = line.filter(|line| line.contains(text)) {
                return line;
            }
        }
    };
    let found = tokio::time::timeout(LIMIT, found).await;
    assert!(found.is_ok(), "no line with {text:?}");
    found.unwrap()
}

#[test]
fn a_watched_status_prints_each_change_also_over_a_restart_until_it_is_interrupted() {
    run(async {
        let mut section = Section::start("watched", databases(), "").await;
        let mut watch = Command::new(programs::towline().await.unwrap())
            .args(["status", "--watch", "--admin", &section.towline.admin_url()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut complaints = BufReader::new(watch.stderr.take().unwrap()).lines();
        line_with(&mut lines, " section watched ready").await;
        section.towline.kill9().await.unwrap();
        line_with(&mut complaints, "trying again").await;
        section.restart_with(&sync("watched", &section.kind, "dry_run = true")).await;
        line_with(&mut lines, " section watched dry_run: nothing is written").await;
        let id = i32::try_from(watch.id().unwrap()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), rustix::process::Signal::INT)
            .unwrap();
        assert_eq!(watch.wait().await.unwrap().code(), Some(130));
    });
}

#[test]
fn a_watched_status_of_nobody_fails_at_once() {
    run(async {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let watching = Towline::command(["status", "--watch", "--admin", &nobody]);
        let output = tokio::time::timeout(LIMIT, watching).await.expect("it ends").unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    });
}

#[test]
fn an_object_is_explained_with_both_sides() {
    run(async {
        let section = Section::start("explained", databases(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17"}})).await;
        section.in_step().await;
        let url = section.towline.admin_url();
        let explain = async |args: &[&str]| {
            let output =
                Towline::command([&["explain", "explained"], args, &["--admin", &url]].concat()).await.unwrap();
            (
                output.status.code(),
                String::from_utf8(if args.contains(&"none") { output.stderr } else { output.stdout }).unwrap(),
            )
        };
        let (code, text) = explain(&["explained-a/orders", "-o", "json"]).await;
        assert_eq!(code, Some(0), "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        let [object] = document["objects"].as_array().unwrap().as_slice() else { panic!("{document}") };
        assert_eq!((&object["key"], &object["state"]), (&json!("explained-a/orders"), &json!("in_step")));
        let (remote, local) = (&object["sides"]["remote"], &object["sides"]["local"]);
        assert_eq!(
            (&remote["cluster"], &remote["exists"], &remote["finalizers"]),
            (&json!("hub"), &json!(true), &json!([FINALIZER]))
        );
        let uid = section.remote_has("a", "orders", |_| true).await.metadata.uid.unwrap();
        assert_eq!(local["marks"][mark("sync-remote-uid")], json!(uid), "{local}");
        let (_, text) = explain(&["explained-a/orders"]).await;
        assert!(
            text.lines().any(|line| line.starts_with("remote") && line.contains(&format!("finalizer {FINALIZER}"))),
            "{text}"
        );
        let (code, told) = explain(&["none"]).await;
        assert!(code == Some(1) && told.contains("section explained knows no object none"), "{told}");
    });
}

/// Answers two requests as a daemon of another release does.
#[test]
fn a_daemon_of_another_minor_release_is_warned_of_once() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            for body in ["{\"because\":null,\"objects\":[],\"digest\":\"d\"}", "{\"approved\":1}"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let answer =
                    format!("HTTP/1.1 200 OK\r\nserver: towline/99.7\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let output = Towline::command(["approve", "lane", "--admin", &admin]).await.unwrap();
        server.await.unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.matches("towline 99.7").count()), (Some(0), 1), "{told}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "lane: 1 change is approved\n");
    });
}

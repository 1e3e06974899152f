//! A stranger's client: the example of docs/bus.md, as it stands there.

use std::process::Stdio;

use integration::hub::Request;
use integration::programs;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

use crate::world::{LIMIT, World, create, label, run};

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    timeout(LIMIT, lines.next_line()).await.expect("a line comes").expect("it runs").expect("it goes on")
}

/// Each change once and in order, and a new list where events are missing.
#[test]
fn the_example_of_the_manual_follows_the_clusters() {
    run(async {
        let world = World::new("python").await;
        let replica = world.relaying().await;
        let manual = include_str!("../../../docs/bus.md");
        let example = manual.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
        let mut command = Command::new(programs::pika().await.expect("Python with pika"));
        command
            .args(["-c", example])
            .env("AMQP_URL", world.broker.url())
            .env("HUB", format!("http://{}", replica.api()));
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let begin = line(&mut lines).await;
        assert!(begin.starts_with("list ") && begin.ends_with(" 1"), "{begin}");
        let mut api = replica.client();
        let version = create(&mut api, "c1").await;
        assert_eq!(line(&mut lines).await, format!("ADDED foo/c1 {version} 2"));
        for value in 0..20 {
            let version = label(&mut api, "c1", &value.to_string()).await;
            assert_eq!(line(&mut lines).await, format!("MODIFIED foo/c1 {version} 2"));
        }
        api.send(&Request::delete("/v1/clusters/foo/c1")).await.expect("an answer").success().expect("deleted");
        let deleted = line(&mut lines).await;
        assert!(deleted.starts_with("DELETED foo/c1 ") && deleted.ends_with(" 1"), "{deleted}");
        world.relayed().await;
        world.run("update towline_meta set base = (select max(version) from towline_log)").await;
        world.run("update towline_claim set cursor = 1 where name = 'relay'").await;
        let again = line(&mut lines).await;
        assert!(again.starts_with("list ") && again.ends_with(" 1"), "{again}");
    });
}

//! A stranger's client: the example of docs/bus.md, as it stands there.

use std::process::Stdio;
use std::time::Duration;

use integration::hub::{Replica, Request};
use integration::{eventually, programs};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::world::{LIMIT, World, create, label, run};

/// Before the example is started again.
const PAUSE: Duration = Duration::from_millis(500);

/// Starts the example. It ends when its connection does.
fn start(python: &str, broker: &str, hub: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let manual = include_str!("../../../docs/bus.md");
    let example = manual.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let mut command = Command::new(python);
    command.args(["-c", example]).env("AMQP_URL", broker).env("HUB", hub);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    (child, lines)
}

/// The example, which is started again whenever it ends.
pub(crate) struct Follower {
    /// The highest version that it has handled, and how many clusters it knows.
    told: watch::Receiver<(i64, usize)>,
    body: JoinHandle<()>,
}

impl Follower {
    pub(crate) async fn start(world: &World, replica: &Replica) -> Self {
        let python = programs::pika().await.expect("Python with pika").display().to_string();
        let (broker, hub) = (world.broker.url(), format!("http://{}", replica.api()));
        let (sender, told) = watch::channel((0, 0));
        let body = tokio::spawn(async move {
            loop {
                let (_child, mut lines) = start(&python, &broker, &hub);
                let mut highest = 0;
                while let Ok(Some(line)) = lines.next_line().await {
                    let words: Vec<&str> = line.split(' ').collect();
                    let [version, count] = words[words.len() - 2..] else { panic!("{line}") };
                    let (version, count) = (version.parse().expect("a version"), count.parse().expect("a count"));
                    // A list may be as old as the last event; no event is told twice.
                    assert!(version > highest || words[0] == "list" && version >= highest, "{line} after {highest}");
                    highest = version;
                    sender.send_replace((version, count));
                }
                sleep(PAUSE).await;
            }
        });
        Self { told, body }
    }

    /// Waits until it has handled this version, and knows so many clusters.
    pub(crate) async fn knows(&self, version: i64, clusters: usize) {
        eventually("the example to know all clusters", LIMIT, async || {
            assert!(!self.body.is_finished(), "an event was told twice");
            let (highest, count) = *self.told.borrow();
            if highest >= version && count == clusters { Ok(()) } else { Err(format!("{highest} {count}")) }
        })
        .await
        .unwrap();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.body.abort();
    }
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    timeout(LIMIT, lines.next_line()).await.expect("a line comes").expect("it runs").expect("it goes on")
}

/// Each change once and in order, and a new list where events are missing.
#[test]
fn the_example_of_the_manual_follows_the_clusters() {
    run(async {
        let world = World::new("python").await;
        let replica = world.relaying().await;
        let python = programs::pika().await.expect("Python with pika").display().to_string();
        let (_child, mut lines) = start(&python, &world.broker.url(), &format!("http://{}", replica.api()));
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

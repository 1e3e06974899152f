//! A client in another language: the example of docs/bus.md, as it stands there.

use std::process::Stdio;
use std::time::Duration;

use integration::hub::{Replica, Request};
use integration::{eventually, programs};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::bus::world::{LIMIT, World, create, label, run};

/// Before the example is started again.
const PAUSE: Duration = Duration::from_millis(500);

/// Starts the example. It ends when its connection does.
fn start(python: &str, broker: &str, hub: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let manual = include_str!("../../../../docs/bus.md");
    let example = manual.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let mut command = Command::new(python);
    command.args(["-c", example]).env("AMQP_URL", broker).env("HUB", hub);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    (child, lines)
}

/// What the example has told since it was started last.
#[derive(Clone, Debug, Default)]
struct Told {
    /// The version of its last list, and of each event since.
    listed: i64,
    handled: Vec<i64>,
    /// How many clusters it knows.
    count: usize,
}

/// The example, which is started again whenever it ends.
pub(crate) struct Follower {
    told: watch::Receiver<Told>,
    body: JoinHandle<()>,
}

impl Told {
    /// A line `list version count`, or `type cluster version count`.
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [version, count] = words[words.len() - 2..] else { panic!("{line}") };
        let version = version.parse().expect("a version");
        self.count = count.parse().expect("a count");
        if words[0] == "list" {
            (self.listed, self.handled) = (version, Vec::new());
        } else {
            self.handled.push(version);
        }
    }

    fn highest(&self) -> i64 {
        self.handled.last().copied().unwrap_or(self.listed)
    }
}

impl Follower {
    pub(crate) async fn start(world: &World, replica: &Replica) -> Self {
        let python = programs::pika().await.expect("Python with pika").display().to_string();
        let (broker, hub) = (world.url(), format!("http://{}", replica.api()));
        let (sender, told) = watch::channel(Told::default());
        let body = tokio::spawn(async move {
            loop {
                let (_child, mut lines) = start(&python, &broker, &hub);
                while let Ok(Some(line)) = lines.next_line().await {
                    sender.send_modify(|told| told.hear(&line));
                }
                sleep(PAUSE).await;
            }
        });
        Self { told, body }
    }

    /// Waits until it has handled this version and knows so many clusters. It must have handled each change since its last list once, and in
    /// order.
    pub(crate) async fn knows(&self, world: &World, version: i64, clusters: usize) {
        let told = eventually("the example to know all clusters", LIMIT, async || {
            let told = self.told.borrow().clone();
            if told.highest() >= version && told.count == clusters { Ok(told) } else { Err(format!("{told:?}")) }
        })
        .await
        .unwrap();
        assert_eq!(told.handled, world.changes(told.listed, told.highest()).await, "since {}", told.listed);
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

/// Each change once and in order, and a new list where events are missing. A queue is declared again whenever the consumer starts, so its type must
/// not depend on the default one, which may have changed since.
#[test]
fn the_example_of_the_manual_follows_the_clusters() {
    run(async {
        let mut world = World::new("python").await;
        let all = "<<\".*\">>, <<\".*\">>, <<\".*\">>";
        let add = format!(
            "ok = rabbit_vhost:add(<<\"quorum\">>, #{{default_queue_type => <<\"quorum\">>}}, <<\"test\">>), \
             ok = rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, <<\"quorum\">>, {all}, <<\"test\">>)."
        );
        world.broker.eval(&add).await.expect("a virtual host with another default");
        "quorum".clone_into(&mut world.vhost);
        let replica = world.relaying().await;
        let python = programs::pika().await.expect("Python with pika").display().to_string();
        let (_child, mut lines) = start(&python, &world.url(), &format!("http://{}", replica.api()));
        let begin = line(&mut lines).await;
        assert!(begin.starts_with("list ") && begin.ends_with(" 1"), "{begin}");
        let types = "[amqqueue:get_type(Queue) || Queue <- rabbit_amqqueue:list(<<\"quorum\">>), \
             element(4, amqqueue:get_name(Queue)) =:= <<\"example.clusters\">>].";
        assert_eq!(world.broker.eval(types).await.expect("the queue"), "[rabbit_classic_queue]");
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

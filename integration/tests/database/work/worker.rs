//! A worker as a process of its own: this program again, as one of its tests. It can be killed and stopped.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use towline::test_api::db::Database;
use towline::test_api::documents::{Broker, ClaimSlots, Work, WorkConsumer, WorkEnd, WorkQueue};

use crate::work::world::{Process, Running, SHORT, broker, in_a_century, open, run};

const URL: &str = "WORKER_DATABASE";
const ORACLE: &str = "WORKER_ORACLE";
const SLOTS: &str = "WORKER_SLOTS";
const BROKER: &str = "WORKER_BROKER";
/// Requests of a pass, and the time between two.
const REQUESTS: usize = 4;
const BETWEEN: Duration = Duration::from_millis(40);

/// A running worker. Killed when dropped; it ends by itself when the oracle does.
pub(crate) struct Worker(Child);

impl Worker {
    /// Starts a worker under a name, with so many slots.
    pub(crate) fn start(name: &str, url: &str, oracle: &str, slots: usize) -> Self {
        Self::start_over(name, url, oracle, slots, None)
    }

    /// The same with a message broker.
    pub(crate) fn start_over(name: &str, url: &str, oracle: &str, slots: usize, broker: Option<&str>) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        let test =
            module_path!().split_once("::").map_or_else(String::new, |(_, module)| format!("{module}::as_a_worker"));
        command.args(["--exact", &test, "--ignored", "--nocapture"]);
        command.env(URL, url).env(ORACLE, format!("{name} {oracle}")).env(SLOTS, slots.to_string());
        command.envs(broker.map(|broker| (BROKER, broker)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        Self(command.spawn().expect("a process"))
    }

    fn signal(&self, signal: Signal) {
        let id = self.0.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it runs");
        kill_process(id, signal).expect("it is sent");
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.0.kill().await.expect("it is killed");
    }

    /// SIGSTOP.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }
}

/// What a worker has.
struct Worked {
    queue: WorkQueue,
    database: Database,
    name: String,
    oracle: String,
}

/// The worker, if this process is one.
#[test]
#[ignore = "the process that other tests start"]
fn as_a_worker() {
    let Ok(url) = std::env::var(URL) else { return };
    let (name, oracle) =
        std::env::var(ORACLE).expect("where").split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("two");
    let slots = std::env::var(SLOTS).expect("how many").parse().expect("a number");
    run(async {
        let mut until_the_end = TcpStream::connect(&oracle).await.expect("the oracle");
        let broker = std::env::var(BROKER).ok().map(|url| broker(&url));
        let _works = work(&name, &url, &oracle, slots, broker);
        // The oracle says nothing here until it is gone.
        let _end = until_the_end.read(&mut [0]).await;
    });
}

/// Works in this process, until what this returns is dropped.
pub(crate) fn work(name: &str, url: &str, oracle: &str, slots: usize, broker: Option<Broker>) -> (Process, Running) {
    let process = Process::lasting(&open(url), SHORT);
    let queue = process.queue.clone().over(broker);
    let consumer = WorkConsumer::new(queue, ClaimSlots::new(slots));
    let (name, oracle) = (name.to_owned(), oracle.to_owned());
    let worked = Arc::new(Worked { queue: process.queue.clone(), database: open(url), name, oracle });
    let consumer = Running::start(async move |scope| {
        let deliver = |work, slot| {
            let worked = Arc::clone(&worked);
            tokio::spawn(async move {
                worked.pass(work).await;
                drop(slot);
            });
        };
        consumer.run(&scope, deliver).await;
    });
    (process, consumer)
}

impl Worked {
    /// A pass, until its claim is lost.
    async fn pass(&self, work: Work) {
        let finished = tokio::select! {
            biased;
            _ = work.expired() => false,
            done = self.requests(&work) => done.is_some(),
        };
        if finished {
            // If it fails, the row returns by itself.
            let _ = self.queue.done(work, &WorkEnd::done(in_a_century(), 0)).await;
        }
    }

    /// The requests of a pass, each under the claim. `None` if one failed.
    async fn requests(&self, work: &Work) -> Option<()> {
        let mut cluster = BufStream::new(TcpStream::connect(&self.oracle).await.ok()?);
        self.send(&mut cluster, work, "begin", 0).await?;
        let query = format!("select number from changes where cluster = '{}'", work.cluster);
        let rows = loop {
            match self.database.all("read", &query, &[]).await {
                Ok(rows) => break rows,
                // Of a busy machine, or a database that is away. The claim may last.
                Err(_) => tokio::time::sleep(BETWEEN).await,
            }
        };
        let number = rows.first()?.try_get(0).ok()?;
        for _ in 0..REQUESTS {
            tokio::time::sleep(BETWEEN).await;
            self.send(&mut cluster, work, "request", number).await?;
        }
        self.send(&mut cluster, work, "end", number).await
    }

    async fn send(&self, cluster: &mut BufStream<TcpStream>, work: &Work, what: &str, number: i64) -> Option<()> {
        let line = format!("{} {what} {} {} {number}\n", self.name, work.cluster, work.token);
        work.check().ok()?;
        cluster.write_all(line.as_bytes()).await.ok()?;
        cluster.flush().await.ok()?;
        let mut answer = String::new();
        cluster.read_line(&mut answer).await.ok().filter(|length| *length > 0).map(drop)
    }
}

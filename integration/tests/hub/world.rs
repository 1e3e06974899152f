//! The server, a hub on a database of it, and what a test asks it with.

use std::future::Future;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use integration::postgres::{self, ADMIN, Transport};
use integration::{Postgres, Towline, eventually};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static SERVER: OnceCell<Postgres> = OnceCell::const_new();

/// Runs a test on the runtime that outlives all tests.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

/// An empty database of this name; letters only.
pub(crate) async fn database(name: &str) -> postgres::Database {
    let start = async || Postgres::start("hub", Transport::Plain).await.expect("a server");
    SERVER.get_or_init(start).await.empty_database(name).await.expect("a database")
}

/// A running hub.
pub(crate) struct Hub {
    pub(crate) towline: Towline,
    /// `http://127.0.0.1:…`.
    pub(crate) url: String,
}

/// What `curl` got.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Hub {
    /// Runs `towline hub` with this database and these variables, until it is ready.
    pub(crate) async fn start(database: &postgres::Database, env: &[(&str, &str)]) -> Self {
        let params = database.url(ADMIN);
        Self::start_by(&params, env).await
    }

    /// The same with this text as `POSTGRES_PARAMS`.
    pub(crate) async fn start_by(params: &str, env: &[(&str, &str)]) -> Self {
        let own = [("POSTGRES_PARAMS", params), ("TOWLINE__HUB__LISTEN", "127.0.0.1:0")];
        let towline = Towline::start_hub(&[&own, env].concat()).await.expect("it starts");
        towline.wait_ready(LIMIT).await.expect("it is ready");
        let report = towline.admin().section("hub").await.expect("a report");
        let url = format!("http://{}", report["api"].as_str().unwrap_or_else(|| panic!("{report}")));
        Self { towline, url }
    }

    /// `curl` with these arguments; a path takes the place of the URL.
    pub(crate) async fn curl(&self, path: &str, args: &[&str]) -> Answer {
        let url = format!("{}{path}", self.url);
        let output = Command::new("curl").args(["-sS", "-i", "--max-time", "60"]).args(args).arg(&url).output().await;
        let output = output.expect("curl is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path} {args:?}: {output:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// The same, which must have this status.
    pub(crate) async fn expect(&self, status: u16, path: &str, args: &[&str]) -> Answer {
        let answer = self.curl(path, args).await;
        assert_eq!(answer.status, status, "{path} {args:?}: {answer:?}");
        answer
    }

    /// A watch by `curl`.
    pub(crate) fn watch(&self, path: &str, args: &[&str]) -> Watch {
        let mut command = Command::new("curl");
        command.args(["-sSN", "--max-time", "120"]).args(args).arg(format!("{}{path}", self.url));
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("curl is installed");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Watch { lines, _child: child }
    }
}

/// The lines of a watch.
pub(crate) struct Watch {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Watch {
    /// The next line; none at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(LIMIT, self.lines.next_line()).await.expect("a line in time").expect("text")
    }

    /// The next event that is no bookmark.
    pub(crate) async fn event(&mut self) -> (String, Value) {
        loop {
            let line = self.line().await.expect("the watch goes on");
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            if event["type"] != "BOOKMARK" {
                return (event["type"].as_str().unwrap_or_default().to_owned(), event["object"].clone());
            }
        }
    }
}

impl Answer {
    /// The body.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

/// Waits until `/readyz/hub` has this status.
pub(crate) async fn readiness(hub: &Hub, status: u16) {
    eventually(format!("/readyz/hub to be {status}"), LIMIT, async || {
        let answer = hub.towline.admin().section_readyz("hub").await.map_err(|error| error.to_string())?;
        if answer.status == status { Ok(()) } else { Err(answer.body) }
    })
    .await
    .expect("readiness");
}

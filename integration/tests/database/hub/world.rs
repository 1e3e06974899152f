//! The server, a hub on a database of it, and what a test asks it with.

use std::process::Stdio;
use std::time::Duration;

use integration::hub::{Client, Reply, Request};
use integration::postgres::{self, ADMIN};
use integration::{Towline, eventually};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::OnceCell;

pub(crate) use crate::run;
use crate::servers::of_hubs;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);

/// A gate before the end of each write, within the statement: for the lock of the log a write waits for 5 s alone.
pub(crate) const GATE: &str = "create schema gate; create table gate.closed (n int); \
     create function gate.wait() returns trigger language plpgsql as \
     $$ begin while exists (select from gate.closed) loop perform pg_sleep(0.01); end loop; return new; end $$; \
     create trigger gate before insert on towline_log for each row execute function gate.wait()";
pub(crate) const CLOSE: &str = "insert into gate.closed values (1)";
pub(crate) const OPEN: &str = "delete from gate.closed";
/// How many writes wait for it to be opened.
pub(crate) const WAITING: &str = "select count(*) from pg_stat_activity where datname = current_database() \
     and query like 'call%' and wait_event = 'PgSleep'";

/// A database of this name; letters only.
pub(crate) async fn database(name: &str) -> postgres::Database {
    of_hubs().await.empty_database(name).await.expect("a database")
}

/// The same for [`integration::hub::Replica`], with statements that are counted.
pub(crate) async fn hub_database(name: &str) -> postgres::Database {
    of_hubs().await.hub_database(name).await.expect("a database")
}

/// Everything that all servers' logs have; statements of databases that [`log_statements`] was called for among it.
pub(crate) async fn server_log() -> String {
    String::from_utf8_lossy(&std::fs::read(of_hubs().await.log_path()).expect("the server's log")).into_owned()
}

/// Lets the server log the statements of a database, with their parameters or without.
pub(crate) async fn log_statements(database: &postgres::Database, name: &str, with_parameters: bool) {
    let most = if with_parameters { -1 } else { 0 };
    let statements = format!(
        "alter database {name} set log_statement = 'all'; alter database {name} set log_parameter_max_length = {most}; \
         alter database {name} set log_parameter_max_length_on_error = {most}"
    );
    database.client(ADMIN).await.expect("a connection").batch_execute(&statements).await.expect("settings");
}

/// The line of `tokens_file` for a token.
pub(crate) async fn grant(role: &str, namespaces: &str, token: &str) -> String {
    // The digest is the one that `sha256sum` prints.
    let script = format!("printf %s {token} | sha256sum | cut -d' ' -f1");
    let output = Command::new("sh").args(["-c", &script]).output().await.expect("a shell");
    format!("somebody {role} {namespaces} {}", String::from_utf8(output.stdout).expect("a digest"))
}

/// A folder for a test's files.
pub(crate) fn folder(name: &str) -> std::path::PathBuf {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-{name}"));
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

/// The type of a problem, without what all have in common. Panics where the answer is no problem as the API describes it.
pub(crate) fn problem_of(reply: &Reply) -> String {
    assert_eq!(reply.header(http::header::CONTENT_TYPE), Some("application/problem+json"), "{reply:?}");
    let body = reply.json().expect("JSON");
    assert_eq!(body["status"], reply.status, "{reply:?}");
    let kind = body["type"].as_str().and_then(|kind| kind.strip_prefix("urn:towline:problem:"));
    kind.unwrap_or_else(|| panic!("{reply:?}")).to_owned()
}

/// Sends a request that must succeed.
pub(crate) async fn done(client: &mut Client, request: &Request) -> Reply {
    client.send(request).await.expect("an answer").success().expect("it succeeds")
}

/// What is at a path.
pub(crate) async fn shown(client: &mut Client, path: &str) -> Value {
    done(client, &Request::get(path)).await.json().expect("JSON")
}

/// A hub without tokens that tests share, each in a namespace of its own, and its database.
pub(crate) async fn shared() -> &'static (Hub, postgres::Database) {
    static SHARED: OnceCell<(Hub, postgres::Database)> = OnceCell::const_new();
    let start = async || {
        let place = database("shared").await;
        (Hub::start(&place, &[]).await, place)
    };
    SHARED.get_or_init(start).await
}

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

    /// A client that keeps its connection.
    pub(crate) fn client(&self) -> Client {
        let address = self.url.strip_prefix("http://").and_then(|address| address.parse().ok());
        Client::to(address.expect("an address"))
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

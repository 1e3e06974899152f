//! The server, replicas on a database of it, and what a test asks them with.

use std::net::SocketAddr;
use std::time::Duration;

use integration::hub::{Client, Replica, Reply, Request};
use integration::postgres::{self, ADMIN, HUB, Transport};
use integration::soak::Random;
use integration::{Error, Postgres, Towline, eventually};
use serde_json::Value;
use tokio::time::timeout;

pub(crate) use crate::run;
use crate::servers::of_hubs;

/// Longer than anything takes while two cores are busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);
/// After this time a client takes a replica for frozen, and its answer for lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Namespace and name.
pub(crate) type Key = (String, String);

/// A database of this name with the schema; letters only.
pub(crate) async fn database(name: &str) -> postgres::Database {
    of_hubs().await.hub_database(&format!("replicas_{name}")).await.expect("a database")
}

/// A server of its own.
pub(crate) async fn server(name: &str) -> Postgres {
    Postgres::start(name, Transport::Plain).await.expect("a server")
}

/// The same database on this server.
pub(crate) async fn prepared(server: &Postgres, name: &str) -> postgres::Database {
    let database = server.hub_database(name).await.expect("a database");
    command(&["migrate"], &database.url(HUB)).await;
    database
}

/// Runs a command of the binary on a database. It must succeed.
pub(crate) async fn command(args: &[&str], url: &str) {
    let output = Towline::command_with(args, &[("POSTGRES_PARAMS", url)]).await.expect("it runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
}

/// A connection that is no replica's.
pub(crate) async fn sql(database: &postgres::Database) -> tokio_postgres::Client {
    database.client(ADMIN).await.expect("a connection")
}

/// Three replicas that are ready.
pub(crate) async fn replicas(database: &postgres::Database, env: &[(&str, &str)]) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(database, env).await.expect("it starts"));
    }
    ready(&replicas).await;
    replicas
}

/// Waits until replicas are ready and have the schema.
pub(crate) async fn ready(replicas: &[Replica]) {
    for replica in replicas {
        replica.wait_ready(LIMIT).await.expect("it is ready");
        let admin = replica.towline().admin();
        eventually("the hub to be ready", LIMIT, async || {
            let answer = admin.section_readyz("hub").await.map_err(|error| error.to_string())?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await
        .expect("it is ready");
    }
}

/// Where the APIs of replicas are.
pub(crate) fn addresses(replicas: &[Replica]) -> Vec<SocketAddr> {
    replicas.iter().map(Replica::api).collect()
}

/// A client that goes to any replica, and to another one after an error.
pub(crate) struct Roaming {
    addresses: Vec<SocketAddr>,
    present: usize,
    client: Client,
    random: Random,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It was answered, and the answer says whether it was carried out.
    Answered(Reply),
    /// It has not been carried out, and never will be.
    Refused,
    /// It may have been carried out, or may be later.
    Unknown,
}

impl Roaming {
    pub(crate) fn new(addresses: &[SocketAddr], mut random: Random) -> Self {
        let present = random.index(addresses.len());
        Self { addresses: addresses.to_vec(), present, client: Client::to(addresses[present]), random }
    }

    /// Sends a request once.
    pub(crate) async fn send(&mut self, request: &Request) -> Outcome {
        let answer = timeout(PATIENCE, self.client.send(request)).await;
        let outcome = match answer {
            Ok(Ok(reply)) if reply.status < 500 && reply.status != 429 => return Outcome::Answered(reply),
            Ok(Ok(reply)) => {
                let problem = reply.json().expect("a problem")["type"].as_str().unwrap_or_default().to_owned();
                match (reply.status, problem.trim_start_matches("urn:towline:problem:")) {
                    (429, "busy") | (503, "unavailable") => Outcome::Refused,
                    (503, "outcome-unknown") => Outcome::Unknown,
                    _ => panic!("{reply:?}"),
                }
            }
            // Nothing was sent.
            Ok(Err(Error::Network { .. })) => Outcome::Refused,
            Ok(Err(_)) | Err(_) => Outcome::Unknown,
        };
        self.change().await;
        outcome
    }

    /// Sends a request that only reads until it is answered.
    pub(crate) async fn read(&mut self, path: &str) -> Reply {
        let read = async {
            loop {
                if let Outcome::Answered(reply) = self.send(&Request::get(path)).await {
                    return reply;
                }
            }
        };
        timeout(LIMIT, read).await.unwrap_or_else(|_| panic!("waited for an answer to {path}"))
    }

    /// All items of a list, read in pages of 7.
    pub(crate) async fn list(&mut self, path: &str) -> Vec<Value> {
        let first = format!("{path}{}limit=7", if path.contains('?') { "&" } else { "?" });
        let (mut next, mut items) = (first.clone(), Vec::new());
        loop {
            let reply = self.read(&next).await.success().expect("a page").json().expect("JSON");
            items.extend(reply["items"].as_array().expect("items").iter().cloned());
            let Some(token) = reply["continue"].as_str() else { return items };
            next = format!("{first}&continue={token}");
        }
    }

    /// Goes to another replica.
    async fn change(&mut self) {
        let others = self.addresses.len() - 1;
        if others > 0 {
            self.present = (self.present + 1 + self.random.index(others)) % self.addresses.len();
        }
        self.client = Client::to(self.addresses[self.present]);
        // A replica that is down refuses at once, and a client that does nothing else would take a core.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Namespace and name of a document.
pub(crate) fn key(document: &Value) -> Key {
    let text = |field: &str| document[field].as_str().unwrap_or_else(|| panic!("no {field}: {document}")).to_owned();
    (text("namespace"), text("name"))
}

/// The version of a document or bookmark.
pub(crate) fn version(object: &Value) -> i64 {
    let text = object["resourceVersion"].as_str().unwrap_or_else(|| panic!("no version: {object}"));
    text.parse().unwrap_or_else(|_| panic!("no version: {object}"))
}

/// The number of the write that a document shows; the hub's own documents have none.
pub(crate) fn number(document: &Value) -> Option<u64> {
    document["annotations"]["number"].as_str().map(|number| number.parse().expect("a number"))
}

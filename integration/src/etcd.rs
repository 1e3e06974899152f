//! etcd, without fsync: what it holds is worth nothing after a crash of the machine, and everything after its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::http_client::Http;
use crate::port::Port;
use crate::process::{Process, Spec};
use crate::room::Room;
use crate::{Error, eventually, programs};

/// It is ready in a third of a second on an idle machine; with many tests starting at once, everything is slower.
const LONGEST_START: Duration = Duration::from_mins(1);

/// The one that control planes share, while any of them lives.
static SHARED: Mutex<Weak<Etcd>> = Mutex::const_new(Weak::new());

#[derive(Debug)]
pub(crate) struct Etcd {
    // Dropped in this order: the process ends before its directory goes and its ports become free.
    process: Process,
    http: Http,
    client_port: Port,
    _peer_port: Port,
    _room: Room,
}

impl Etcd {
    /// The one that several API servers share by prefix; started for the first and stopped with the last of them.
    pub(crate) async fn shared() -> Result<Arc<Self>, Error> {
        let mut shared = SHARED.lock().await;
        if let Some(etcd) = shared.upgrade() {
            return Ok(etcd);
        }
        let etcd = Arc::new(Self::start("etcd-shared").await?);
        *shared = Arc::downgrade(&etcd);
        Ok(etcd)
    }

    pub(crate) async fn start(name: &str) -> Result<Self, Error> {
        let room = Room::new(name)?;
        let (client_port, peer_port) = (Port::take()?, Port::take()?);
        let (client, peer) = (format!("http://{}", client_port.address()), format!("http://{}", peer_port.address()));
        let flags = [
            format!("--data-dir={}", room.join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
            // A bench with 10,000 objects changes each many times between two compactions.
            "--quota-backend-bytes=4294967296".to_owned(),
        ];
        let process = Process::start(Spec {
            name: name.to_owned(),
            program: programs::control_plane("etcd").await?,
            args: flags.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            log: room.join("etcd.log"),
            piped_stdin: false,
        })
        .await?;
        let etcd =
            Self { process, http: Http::to(client_port.address()), client_port, _peer_port: peer_port, _room: room };
        eventually(format!("{name} to be ready"), LONGEST_START, async || {
            // An end by itself is told at once and not after the limit.
            if let Err(ended) = etcd.process.check() {
                return Ok(Err(ended));
            }
            let answer = etcd.http.get("/health").await.map_err(|error| error.to_string())?;
            if answer.status == 200 { Ok(Ok(())) } else { Err(answer.body) }
        })
        .await??;
        Ok(etcd)
    }

    /// For `--etcd-servers`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.client_port.address())
    }

    /// Forgets every revision before the present one.
    pub(crate) async fn compact(&self) -> Result<(), Error> {
        let path = "/v3/maintenance/status";
        let status: Value = parse(path, &self.http.post(path, "{}").await?.success(path)?)?;
        let revision = status.pointer("/header/revision").and_then(Value::as_str).unwrap_or_default().to_owned();
        let path = "/v3/kv/compaction";
        let order = json!({"revision": revision, "physical": true}).to_string();
        let answer = self.http.post(path, &order).await?;
        // Nothing was written since the last compaction: there is nothing to forget.
        if answer.body.contains("required revision has been compacted") {
            return Ok(());
        }
        answer.success(path).map(|_| ())
    }
}

fn parse(what: &str, body: &str) -> Result<Value, Error> {
    serde_json::from_str(body).map_err(|error| Error::Unreadable { what: what.to_owned(), detail: error.to_string() })
}

//! What stands for the clusters: it sees each request, and knows which grant it was sent under.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What was seen of one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The highest token.
    pub(crate) token: i64,
    /// Who has it.
    pub(crate) worker: String,
    /// Whether its pass has not ended.
    pub(crate) is_under_way: bool,
    /// What the last pass that has ended had read.
    pub(crate) number: i64,
}

/// What was seen of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sights {
    pub(crate) clusters: BTreeMap<String, Seen>,
    /// Passes that have ended, by worker.
    pub(crate) ended: BTreeMap<String, usize>,
    /// Passes that another one had to follow before they ended.
    pub(crate) replaced: usize,
    /// What must not happen.
    pub(crate) violations: Vec<String>,
}

/// The oracle. Workers end when it is dropped.
pub(crate) struct Oracle {
    pub(crate) address: String,
    pub(crate) sights: watch::Receiver<Sights>,
    body: JoinHandle<()>,
}

impl Sights {
    /// A line `worker what cluster token number`.
    fn see(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [worker, what, cluster, token, number] = words[..] else { panic!("{line}") };
        let (token, number): (i64, i64) = (token.parse().expect("a token"), number.parse().expect("a number"));
        let seen = self.clusters.entry(cluster.to_owned()).or_default();
        let is_in_order =
            if what == "begin" { token > seen.token } else { token == seen.token && worker == seen.worker };
        if !is_in_order {
            self.violations.push(format!("{line} after {seen:?}"));
        }
        if what == "begin" {
            self.replaced += usize::from(seen.is_under_way);
            *seen = Seen { token, worker: worker.to_owned(), is_under_way: true, ..seen.clone() };
        }
        if what == "end" {
            seen.is_under_way = false;
            seen.number = number;
            *self.ended.entry(worker.to_owned()).or_default() += 1;
        }
    }

    /// The passes of a worker that have not ended.
    pub(crate) fn under_way(&self, worker: &str) -> Vec<(String, i64)> {
        let of = |(cluster, seen): (&String, &Seen)| {
            (seen.is_under_way && seen.worker == worker).then(|| (cluster.clone(), seen.token))
        };
        self.clusters.iter().filter_map(of).collect()
    }

    /// Whether somebody else has taken over these passes, or they have ended.
    pub(crate) fn are_replaced(&self, passes: &[(String, i64)]) -> bool {
        passes.iter().all(|(cluster, token)| self.clusters.get(cluster).is_some_and(|seen| seen.token > *token))
    }

    /// Passes that have ended.
    pub(crate) fn all_ended(&self) -> usize {
        self.ended.values().sum()
    }
}

impl Oracle {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (sender, sights) = watch::channel(Sights::default());
        let body = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            let sender = Arc::new(Mutex::new(sender));
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&sender)));
            }
        });
        Self { address, sights, body }
    }

    pub(crate) async fn until(&mut self, what: &str, holds: impl FnMut(&Sights) -> bool) -> Sights {
        let waited = tokio::time::timeout(2 * crate::work::world::LIMIT, self.sights.wait_for(holds)).await;
        let seen = waited.unwrap_or_else(|_| panic!("{what} did not happen")).expect("it runs").clone();
        assert_eq!(seen.violations, [""; 0]);
        seen
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.body.abort();
    }
}

async fn serve(stream: TcpStream, sights: Arc<Mutex<watch::Sender<Sights>>>) {
    let mut stream = BufStream::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|length| length > 0) {
        sights.lock().send_modify(|sights| sights.see(line.trim()));
        line.clear();
        if stream.write_all(b"\n").await.is_err() || stream.flush().await.is_err() {
            break;
        }
    }
}

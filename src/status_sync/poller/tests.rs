//! The poller against a cluster that is played, without a database.

use tokio::task::JoinHandle;

use super::*;
use crate::actor::key_mailbox;
use crate::cluster::WatchId;
use crate::cluster::watch::scripted::Script;

const WITHIN: Duration = Duration::from_hours(1);

/// A poller of policies whose cluster is played, and whose database never answers.
fn poller() -> (Arc<Poller>, Script) {
    let (cluster, script) = Cluster::scripted("hub");
    let id = WatchId {
        cluster: cluster.name().clone(),
        resource: facts(StatusFamily::Policies).target(),
        namespace: String::new(),
        labels: String::new(),
        fields: String::new(),
        metadata_only: false,
        projection: Some("status_sync"),
    };
    let url = "postgres://u:p@127.0.0.1:1/d".parse().expect("a URL");
    let shared = Shared {
        database: Database::new(&url).expect("a pool"),
        permits: Arc::new(Semaphore::new(1)),
        interval: Duration::from_secs(5),
        namespace: String::new(),
        any_rows: watch::Sender::new(false),
        approvals: watch::Sender::new(0),
        fence: None,
    };
    (Arc::new(Poller::new(StatusFamily::Policies, Arc::new(shared), Watch::new(id, cluster), None)), script)
}

/// Begins to run; at its end the poller drains.
fn start(poller: &Arc<Poller>) -> JoinHandle<()> {
    let poller = Arc::clone(poller);
    tokio::spawn(async move {
        let (scope, _stop) = Scope::standalone("poller");
        let (_mailbox, inbox) = key_mailbox(1);
        poller.run(scope, inbox).await.expect("it drains");
    })
}

/// Waits until the poller is so.
async fn becomes(poller: &Poller, what: &str, mut holds: impl FnMut(&Poller) -> bool) {
    let waited = tokio::time::timeout(WITHIN, async {
        while !holds(poller) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited until {what}: {:?}", poller.report()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_resumed_after_a_lost_connection_is_listed_again() {
    let (poller, _script) = poller();
    let running = start(&poller);
    becomes(&poller, "it needs the watch", |poller| !poller.target.is_idle()).await;
    poller.target.list(&[]).await;
    becomes(&poller, "it has asked the database", |poller| poller.report().failure.is_some()).await;
    poller.target.resume().await;
    assert!(!poller.is_ready(), "what answers now may be another cluster");
    becomes(&poller, "it asks for a list", |poller| poller.target.is_asked_to_list()).await;
    poller.target.list(&[]).await;
    becomes(&poller, "it goes on", |poller| poller.report().waits_for.is_none()).await;
    running.abort();
}

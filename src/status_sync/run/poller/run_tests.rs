//! The poller with a scripted cluster and without a database.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::actor::wait_until_ready;
use super::pass::recheck;
use super::state::{FamilyContext, PollerState};
use super::table::Table;
use super::{FamilyReport, KeyFollower, Poller, SectionContext};
use crate::actor::{Scope, key_mailbox, mailbox};
use crate::cluster::watch::scripted::Script;
use crate::cluster::{Cluster, ObjectKey, Watch, WatchId, WatchSpec};
use crate::config::SectionName;
use crate::db::{Database, DatabaseSource};
use crate::state::{Keeping, Owner, StateStore};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::changes::Waiting;
use crate::status_sync::plan::{Fingerprint, RowId, family_spec};
use crate::status_sync::run::database::Found;
use crate::status_sync::run::identity::HubIdentification;

const WITHIN: Duration = Duration::from_hours(1);

/// A poller of policies with a scripted cluster and no database.
fn poller() -> (Arc<Poller>, Script) {
    poller_of(1, Duration::from_secs(5))
}

/// The same with a database at this port, and this interval.
pub(super) fn poller_of(port: u16, interval: Duration) -> (Arc<Poller>, Script) {
    let (cluster, script) = Cluster::scripted("hub");
    let id = WatchId {
        projection: Some("status_sync"),
        ..WatchId::all(cluster.name().clone(), family_spec(StatusFamily::Policies).target())
    };
    let url = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode=disable").parse().expect("a URL");
    let database = Database::new(DatabaseSource::Url(Box::new(url)));
    let identification = identification_of(&cluster, database.clone());
    let shared = SectionContext {
        database,
        slots: Arc::new(Semaphore::new(1)),
        interval,
        namespace: String::new(),
        any_rows: watch::Sender::new(false),
        approvals: watch::Sender::new(0),
        fence: None,
        identification,
        events: mailbox(1).0,
    };
    (Arc::new(Poller::new(StatusFamily::Policies, Arc::new(shared), Watch::new(id, cluster), None)), script)
}

/// The identification of the hub, whose state is kept in memory.
fn identification_of(cluster: &Cluster, database: Database) -> Arc<HubIdentification> {
    let section: SectionName = "status-sync".parse().expect("a name");
    let owner = Owner { section: section.clone(), read_only: false };
    let store = StateStore::new(owner, cluster.clone(), &Keeping::in_memory());
    let identification =
        HubIdentification::new(section, cluster.clone(), store, database, vec![StatusFamily::Policies]);
    identification.begin(true);
    Arc::new(identification)
}

/// Starts the poller, which nobody drains.
fn start(poller: &Arc<Poller>) -> JoinHandle<()> {
    start_in(poller, Scope::standalone("poller").0)
}

fn start_in(poller: &Arc<Poller>, scope: Scope) -> JoinHandle<()> {
    let poller = Arc::clone(poller);
    tokio::spawn(async move {
        let (_mailbox, inbox) = key_mailbox(1);
        poller.run(scope, inbox).await.expect("it drains");
    })
}

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
    becomes(&poller, "it needs the watch", |poller| !poller.context.hub.target.is_idle()).await;
    poller.context.hub.target.list(&[]).await;
    becomes(&poller, "it has asked the database", |poller| poller.report().failure.is_some()).await;
    poller.context.hub.target.resume().await;
    assert!(!poller.context.hub.is_ready(), "what answers now may be another cluster");
    becomes(&poller, "it asks for a list", |poller| poller.context.hub.target.is_asked_to_list()).await;
    poller.context.hub.target.list(&[]).await;
    becomes(&poller, "it continues", |poller| poller.report().waits_for.is_none()).await;
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn keys_that_arrive_while_no_pass_can_begin_are_recorded_after_the_next_recheck() {
    let (poller, _script) = poller();
    let (mailbox, inbox) = key_mailbox(1);
    let mut state = PollerState::new(inbox, Vec::new());
    let (scope, _drain) = Scope::standalone("poller");
    // The watch needs a follower; the keys that it shows are requested below.
    let (nobody, _) = key_mailbox(1);
    let follower = Arc::new(KeyFollower { namespace: String::new(), mailbox: nobody });
    poller.context.hub.target.specified(WatchSpec::followed_by(follower));
    let shown = ["a", "b", "c"].map(|name| ObjectKey::new("n", name));
    let now = Instant::now();
    let found =
        |(id, key): (u128, &ObjectKey)| Found { id: RowId(id), key: key.clone(), fingerprint: Fingerprint::new(1, 7) };
    let table = &poller.context.table;
    table.lock().update((1..).zip(&shown).map(found).collect(), now);
    for id in 1..=3 {
        table.lock().get_mut(RowId(id)).expect("a row").waiting = Some(Waiting::Absent);
    }
    let show = async {
        for key in &shown {
            mailbox.request(key.clone()).await.expect("the mailbox is open");
        }
        while mailbox.gauge().read().depth > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // One of the objects does not exist any more.
        let object =
            |key: &ObjectKey| json!({"metadata": {"namespace": &*key.namespace, "name": &*key.name, "uid": "uid"}});
        poller.context.hub.target.list(&[object(&shown[0]), object(&shown[2])]).await;
    };
    let both = async { tokio::join!(wait_until_ready(&poller.context, &scope, &mut state), show) };
    tokio::time::timeout(WITHIN, both).await.expect("the list ends the waiting");
    assert_eq!(state.changed_keys, HashSet::from(shown));
    assert_eq!(table.lock().next_requeue(now, Duration::ZERO), None, "nothing was decided meanwhile");
    recheck(&poller.context, &scope, &mut state, &HashSet::new()).await.expect("nothing to ask the database for");
    assert!(state.changed_keys.is_empty(), "{:?}", state.changed_keys);
    let requeued = table.lock().take_requeued(Instant::now(), Duration::ZERO);
    assert_eq!(requeued, HashSet::from([RowId(1), RowId(3)]), "those that wait for what has appeared");
}

#[tokio::test(start_paused = true)]
async fn the_report_and_the_memory_of_rows_begin_and_end_with_a_run() {
    let (poller, _script) = poller();
    let of_before = |report: &mut FamilyReport| {
        report.passes = 3;
        report.oldest_pending = Some(Instant::now());
    };
    let is_new = |report: &FamilyReport| report.passes == 0 && report.oldest_pending.is_none();
    poller.context.reporter.sender().send_modify(of_before);
    poller.context.shared.any_rows.send_replace(true);
    let running = start(&poller);
    becomes(&poller, "it begins anew", |poller| is_new(&poller.report()) && !*poller.context.shared.any_rows.borrow())
        .await;
    poller.context.reporter.sender().send_modify(of_before);
    running.abort();
    assert!(running.await.is_err_and(|error| error.is_cancelled()));
    assert!(is_new(&poller.report()), "a poller that does not run has a change that grows old: {:?}", poller.report());
}

#[tokio::test(start_paused = true)]
async fn contenders_are_those_of_the_conflicts_that_go_on() {
    let (poller, _script) = poller();
    let FamilyContext { reporter, guard, shared, .. } = &poller.context;
    let mut table = Table::default();
    let keys = ["a", "b", "calm"].map(|name| ObjectKey::new("n", name));
    let found =
        |(id, key): (u128, &ObjectKey)| Found { id: RowId(id), key: key.clone(), fingerprint: Fingerprint::new(1, 7) };
    table.update((1..).zip(&keys).map(found).collect(), Instant::now());
    let edited = |table: &mut Table, id: u128, by: &str| {
        let tracker = &mut table.get_mut(RowId(id)).expect("a row").conflict;
        tracker.record_edit(&keys[0]);
        if tracker.write_begins(Instant::now(), shared.interval).is_some() {
            tracker.told(by.to_owned());
        }
        tracker.record_applied(true);
    };
    let contenders = |table: &Table| {
        reporter.update(table, guard);
        poller.report().to_json()["contenders"].clone()
    };
    for _ in 0..3 {
        edited(&mut table, 1, "n/a: A");
        tokio::time::advance(shared.interval).await;
    }
    for _ in 0..3 {
        edited(&mut table, 2, "n/b: A");
    }
    edited(&mut table, 3, "n/calm: A");
    assert_eq!(contenders(&table), json!({"objects": 2, "examples": ["n/a: A", "n/b: A"]}));
    tokio::time::advance(Duration::from_mins(1).saturating_sub(shared.interval)).await;
    assert_eq!(contenders(&table), json!({"objects": 1, "examples": ["n/b: A"]}), "nobody edits the first any more");
    tokio::time::advance(Duration::from_hours(6)).await;
    assert_eq!(contenders(&table), json!(null));
    for _ in 0..3 {
        edited(&mut table, 1, "n/a: B");
    }
    assert_eq!(contenders(&table), json!({"objects": 1, "examples": ["n/a: B"]}));
    table.update(Vec::new(), Instant::now());
    assert_eq!(contenders(&table), json!(null), "the row is gone");
}

#[tokio::test]
async fn a_drain_ends_the_wait_for_a_silent_database() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (poller, _script) = poller_of(listener.local_addr().expect("an address").port(), Duration::from_secs(5));
    let (scope, drain) = Scope::standalone("poller");
    let running = start_in(&poller, scope);
    becomes(&poller, "it needs the watch", |poller| !poller.context.hub.target.is_idle()).await;
    poller.context.hub.target.list(&[]).await;
    let _silent = listener.accept().await.expect("a connection");
    tokio::time::pause();
    drain.cancel();
    // The paused clock advances only when all tasks wait, here for the database.
    let ended = tokio::time::timeout(Duration::from_millis(1), running).await;
    ended.expect("the drain did not end the wait").expect("no panic");
}

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;
use tokio::task::JoinHandle;

use super::scripted::Script;
use super::*;
use crate::actor::Scope;
use crate::cluster::ClusterState;
use crate::cluster::{Availability, Listed, ObjectKey};
use crate::config::ResourceId;

const WITHIN: Duration = Duration::from_hours(1);

/// Counts the lists that the watch reports to it.
#[derive(Default)]
struct Ear(parking_lot::Mutex<Vec<bool>>);

impl Follower for Ear {
    fn wants(&self, _: &ObjectKey) -> bool {
        true
    }
    fn changed<'a>(&'a self, _: &'a Watch, _: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
    fn listed<'a>(&'a self, _: &'a Watch, first: bool, _: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        self.0.lock().push(first);
        Box::pin(async {})
    }
}

/// A watch of one secret; `review` answers whether it may be watched.
fn secrets(mut review: impl FnMut() -> (u16, bool) + Send + 'static) -> (Arc<Watch>, Script) {
    let (cluster, script) = Cluster::scripted("hub");
    script.answer(move |line| match line {
        "GET /api/v1" => (200, json!({"resources": [{"name": "secrets", "kind": "Secret", "namespaced": true}]})),
        "LIST /api/v1/secrets" => (
            200,
            json!({"type": "BOOKMARK", "object": {"kind": "Secret", "apiVersion": "v1",
            "metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}}),
        ),
        "WATCH /api/v1/secrets" => (0, json!(null)),
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
            let (code, allowed) = review();
            (code, json!({"status": {"allowed": allowed}}))
        }
        other => panic!("{other} was not expected"),
    });
    let id = WatchId {
        fields: "metadata.name=one".into(),
        ..WatchId::all(
            cluster.name().clone(),
            ResourceId { plural: "secrets".into(), version: "v1".into(), group: String::new() },
        )
    };
    (Watch::new(id, cluster), script)
}

/// Saves discovery.
fn of_secrets() -> WatchSpec {
    WatchSpec { kind: Some(Kind::core("Secret", "secrets", true)), ..WatchSpec::default() }
}

fn start(watch: &Arc<Watch>) -> JoinHandle<()> {
    let watch = Arc::clone(watch);
    tokio::spawn(async move {
        let (scope, _stop) = Scope::standalone("watcher");
        let _demand = watch.demand(None);
        watch.run(scope).await.expect("it drains");
    })
}

async fn listed(watch: &Watch) {
    let mut listed = watch.store().listed();
    let waited = tokio::time::timeout(WITHIN, listed.wait_for(|listed| *listed == Listed::Yes)).await;
    assert!(waited.is_ok_and(|listed| listed.is_ok()), "the list never ended");
}

#[tokio::test(start_paused = true)]
async fn a_failed_review_is_no_denial() {
    let mut reviews = 0;
    let (watch, _) = secrets(move || {
        reviews += 1;
        if reviews < 3 { (500, false) } else { (200, true) }
    });
    watch.specify(WatchSpec { only_if_granted: true, ..WatchSpec::default() });
    let running = start(&watch);
    listed(&watch).await;
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_granted_is_reviewed_again_later() {
    let mut reviews = 0;
    let (watch, script) = secrets(move || {
        reviews += 1;
        (200, reviews > 2)
    });
    watch.specify(WatchSpec { only_if_granted: true, ..WatchSpec::default() });
    let running = start(&watch);
    let mut store = watch.store().listed();
    let refused = Listed::No { reason: Some("not granted".into()), unreachable: false };
    store.wait_for(|listed| *listed == refused).await.expect("the watch lives");
    let asked = script.asked();
    assert!(!asked.iter().any(|line| line.starts_with("LIST")), "a list was sent that is not granted: {asked:?}");
    listed(&watch).await;
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_restarted_watcher_reports_its_list_as_a_first_one() {
    let (watch, _) = secrets(|| (500, false));
    let ear = Arc::new(Ear::default());
    watch.specify(WatchSpec::followed_by(Arc::clone(&ear) as _));
    for restarts in 0..2 {
        let running = start(&watch);
        while ear.0.lock().len() <= restarts {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        running.abort();
        assert!(running.await.is_err_and(|error| error.is_cancelled()));
    }
    assert_eq!(*ear.0.lock(), [true, true], "the first run may not have reported all that it cached");
}

/// Demands it so many times, a millisecond apart, waits until all demands are met, and returns the number of lists.
async fn lists_for(watch: &Arc<Watch>, script: &Script, demands: usize) -> usize {
    let mut made = Vec::new();
    for _ in 0..demands {
        made.push(watch.demand(None));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for demand in &made {
        tokio::time::timeout(WITHIN, demand.met()).await.expect("a demand was never met");
    }
    script.asked().iter().filter(|line| line.starts_with("LIST")).count()
}

#[tokio::test(start_paused = true)]
async fn a_list_is_not_cut_short_for_later_demands_and_these_share_the_next_one() {
    let (watch, script) = secrets(|| (500, false));
    watch.specify(of_secrets());
    script.take(Duration::from_secs(10));
    let running = start(&watch);
    listed(&watch).await;
    script.asked();
    assert_eq!(lists_for(&watch, &script, 1_000).await, 2, "the demands before the first list began, and all others");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn demands_shortly_after_each_other_share_a_list_however_quick_it_is() {
    let (watch, script) = secrets(|| (500, false));
    watch.specify(of_secrets());
    let running = start(&watch);
    listed(&watch).await;
    script.asked();
    for _ in 0..25 {
        assert_eq!(lists_for(&watch, &script, 40).await, 1);
    }
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_requested_after_a_lost_connection_is_made_once() {
    let (watch, script) = secrets(|| (500, false));
    let ear = Arc::new(Ear::default());
    watch.specify(WatchSpec::followed_by(Arc::clone(&ear) as _));
    let running = start(&watch);
    listed(&watch).await;
    assert!(watch.is_current());
    watch.resume().await;
    assert!(!watch.is_current());
    script.asked();
    watch.become_current();
    watch.become_current();
    let waited = tokio::time::timeout(WITHIN, async {
        while !watch.is_current() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.expect("the list never ended");
    assert_eq!(script.asked().iter().filter(|line| line.starts_with("LIST")).count(), 1);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn an_early_demand_waits_for_no_list_that_only_later_demands_need() {
    let ((local, local_script), (remote, remote_script)) = (secrets(|| (500, false)), secrets(|| (500, false)));
    for (watch, script) in [(&local, &local_script), (&remote, &remote_script)] {
        watch.specify(of_secrets());
        script.take(Duration::from_millis(200));
    }
    remote.specify(WatchSpec { list_after: vec![Arc::clone(&local)], ..WatchSpec::default() });
    let running = [start(&local), start(&remote)];
    listed(&remote).await;
    let mut pairs = Vec::new();
    let mut met = 0;
    for _ in 0..100 {
        pairs.push((local.demand(None), remote.demand(None)));
        // Less than a list apart, for the time of a hundred lists.
        tokio::time::sleep(Duration::from_millis(150)).await;
        met = pairs.iter().filter(|(_, there)| there.is_met()).count();
        assert!(
            pairs.iter().all(|(here, there)| here.is_met() || !there.is_met()),
            "the remote list that a demand trusts was begun before the local one had ended"
        );
    }
    // A list of each, the time to gather demands, and the list that they came too late for.
    assert!(met >= 90, "{met} of 100 were met while others arrived");
    for running in running {
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_failed_for_long_is_retried_every_second_when_the_cluster_is_available_again() {
    let (watch, script) = secrets(|| (200, true));
    script.answer(|_| (404, json!({"kind": "Status", "code": 404, "message": "not yet"})));
    let running = start(&watch);
    let _demand = watch.demand(None);
    tokio::time::sleep(Duration::from_mins(10)).await;
    script.asked();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(script.asked().len() <= 1, "a kind that has been missing for long is requested seldom");
    for _ in 0..2 {
        watch.cluster().set_unavailable(ClusterState::Unreachable, "restarted".to_owned());
        tokio::time::sleep(Duration::from_secs(10)).await;
        watch.cluster().set_availability(Availability::Available);
        script.asked();
        for second in 0..50 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!script.asked().is_empty(), "no request in second {second}");
        }
    }
    running.abort();
}

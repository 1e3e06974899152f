//! What an elector writes, and what runs meanwhile, on a paused clock and a scripted API server.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::task::LocalSet;

use tokio::time::sleep;

use super::*;
use crate::actor::{ChildSpec, Supervisor, SupervisorHandle};
use crate::cluster::watch::scripted::Script;
use crate::cluster::{Clock, Cluster, Watch, WatchId};
use crate::config::ElectionConfig;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/towline/leases/towline-databases";

struct Scene {
    script: Script,
    watch: Arc<Watch>,
    lease: Arc<SectionLease>,
    tree: SupervisorHandle,
    drains_for: Arc<parking_lot::Mutex<Duration>>,
    runs: Arc<AtomicBool>,
    /// How many records the watch has shown.
    version: u64,
}

/// Notes when it is dropped.
struct Runs(Arc<AtomicBool>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Scene {
    /// An elector of the replica `me`, and its section; the watch has shown nothing yet.
    fn new() -> Self {
        let (cluster, script) = Cluster::scripted("edge");
        let config = ElectionConfig::new("edge".parse().unwrap(), "towline");
        let watch = Watch::new(
            WatchId {
                namespace: "towline".into(),
                labels: record::LABEL.into(),
                ..WatchId::all(cluster.name().clone(), record::leases_id())
            },
            cluster.clone(),
        );
        let me: Arc<str> = "me".into();
        let sections = ["databases".parse().unwrap()];
        let view = LeaseView::new(Arc::clone(&me), config.lease_duration, &sections, &watch);
        watch.specified(view.follows());
        let lease = SectionLease::new(&"databases".parse().unwrap(), Clock::Paused(Instant::now()));
        let elector = Arc::new(Elector {
            identity: me,
            lease_duration: config.lease_duration,
            renew_interval: config.renew_interval,
            leases: Arc::new(Leases::new(&cluster, &config)),
            view: Arc::clone(&view),
            lease: Arc::clone(&lease),
        });
        let (drains_for, runs) = (Arc::new(parking_lot::Mutex::new(Duration::ZERO)), Arc::new(AtomicBool::new(false)));
        let (drain, running) = (Arc::clone(&drains_for), Arc::clone(&runs));
        let section = ChildSpec::new("sync databases", move |scope| {
            let (drain, running) = (Arc::clone(&drain), Arc::clone(&running));
            async move {
                running.store(true, SeqCst);
                let _runs = Runs(running);
                scope.draining().await;
                let drain = *drain.lock();
                sleep(drain).await;
                Ok(())
            }
        });
        let electing = ChildSpec::new("election databases", move |scope| Arc::clone(&elector).run(scope));
        let view = ChildSpec::new("lease_view", move |scope| Arc::clone(&view).run(scope));
        let children = vec![view, electing, section.gated(lease.gate.clone())];
        let tree = Supervisor::start("test", children);
        Self { script, watch, lease, tree, drains_for, runs, version: 100 }
    }

    fn held_by(&mut self, holder: &str, acquired: &str) -> Value {
        let acquisition = Acquisition { identity: holder, duration: Duration::from_secs(15), acquired, before: None };
        let mut lease = acquisition.body("towline-databases", "towline");
        self.stamp(&mut lease);
        lease
    }

    fn stamp(&mut self, lease: &mut Value) {
        self.version += 1;
        lease["metadata"]["uid"] = json!("lease-uid");
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    /// The replica has seen that there is no Lease: it acquires the section.
    async fn acquires_the_section(&mut self) {
        self.watch.list(&[]).await;
        self.until("the section runs", |scene| scene.runs.load(SeqCst)).await;
        assert!(self.lease.is_held());
        assert_eq!(self.script.asked(), [format!("POST {}", LEASE.trim_end_matches("/towline-databases"))]);
    }

    async fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        for _ in 0..600_000 {
            if condition(self) {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        panic!("waited in vain until {what}");
    }
}

async fn scene(test: impl AsyncFnOnce(Scene)) {
    LocalSet::new().run_until(async { test(Scene::new()).await }).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_renewed_by_one_request_an_interval() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        sleep(Duration::from_secs(51)).await;
        assert_eq!(scene.script.asked(), vec![format!("PATCH {LEASE}"); 10]);
        assert!(scene.lease.is_held() && scene.runs.load(SeqCst));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_finds_another_holder_in_the_record_stops_at_once() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        let theirs = scene.held_by("them", "2026-01-01T00:00:00.000000Z");
        scene.script.answer(move |line| match line.split(' ').next() {
            Some("PATCH") => (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"})),
            Some("POST") => (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"})),
            _ => (200, theirs.clone()),
        });
        let lost = Instant::now();
        scene.until("the section ends", |scene| !scene.runs.load(SeqCst)).await;
        assert!(lost.elapsed() < Duration::from_secs(6), "it took {:?}", lost.elapsed());
        assert!(!scene.lease.fence.is_held());
        assert_eq!(scene.script.asked()[..2], [format!("PATCH {LEASE}"), format!("GET {LEASE}")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_is_found_in_the_record() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        // Every write conflicts until the record has been read.
        let seen = Arc::new(AtomicBool::new(false));
        let acquired = Arc::new(parking_lot::Mutex::new(String::new()));
        let mut mine = scene.held_by("me", "");
        let (read, written) = (Arc::clone(&seen), Arc::clone(&acquired));
        // The test does not know when the elector acquired it, so the record says what the elector wrote.
        *written.lock() = scene.lease.acquired().expect("it is held").to_string();
        scene.script.answer(move |line| match line.split(' ').next() {
            Some("PATCH") if !read.load(SeqCst) => (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"})),
            Some("GET") => {
                read.store(true, SeqCst);
                mine["spec"]["acquireTime"] = json!(*acquired.lock());
                (200, mine.clone())
            }
            _ => (200, json!({"metadata": {"uid": "lease-uid", "resourceVersion": "2000"}})),
        });
        sleep(Duration::from_secs(31)).await;
        assert!(scene.lease.is_held() && scene.runs.load(SeqCst), "the elector counted the Lease as lost");
        let asked = scene.script.asked();
        assert_eq!(asked.iter().filter(|line| line.starts_with("GET")).count(), 1, "{asked:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_section_ends_a_margin_before_its_claim_expires() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        let began = Instant::now();
        scene.script.answer(|_| (500, json!({"kind": "Status", "code": 500, "reason": "InternalError"})));
        scene.until("the section ends", |scene| !scene.runs.load(SeqCst)).await;
        assert!((13..=14).contains(&began.elapsed().as_secs()), "it ended after {:?}", began.elapsed());
        // When the server is back, it acquires the Lease that is still in its name.
        scene.script.answer(|_| (200, json!({"metadata": {"uid": "lease-uid", "resourceVersion": "2000"}})));
        let mine = scene.lease.acquired().expect("it was held").to_string();
        let record = scene.held_by("me", &mine);
        scene.watch.show(&record).await;
        scene.until("the section runs again", |scene| scene.runs.load(SeqCst)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_by_one_write_as_soon_as_the_section_has_drained() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        *scene.drains_for.lock() = Duration::from_secs(12);
        let tree = scene.tree.clone();
        let asked = Instant::now();
        let draining = tokio::task::spawn_local(async move { tree.drain(Duration::from_secs(30)).await });
        sleep(Duration::from_secs(11)).await;
        assert!(scene.lease.is_held(), "the claim ended before the section had drained");
        assert_eq!(scene.script.asked(), vec![format!("PATCH {LEASE}"); 2], "it is renewed meanwhile");
        scene.until("the section has drained", |scene| !scene.runs.load(SeqCst)).await;
        assert!(draining.await.unwrap().is_empty());
        assert_eq!((asked.elapsed().as_secs(), scene.script.asked()), (12, vec![format!("PATCH {LEASE}")]));
        assert!(!scene.lease.fence.is_held());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_also_while_a_renewal_gets_no_answer() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        // The renewal gets no answer; later requests succeed.
        let is_first = Arc::new(AtomicBool::new(true));
        scene.script.answer(move |_| {
            let code = if is_first.swap(false, SeqCst) { 0 } else { 200 };
            (code, json!({"metadata": {"uid": "lease-uid", "resourceVersion": "2000"}}))
        });
        sleep(Duration::from_millis(5_500)).await;
        assert_eq!(scene.script.asked(), [format!("PATCH {LEASE}")], "the renewal is under way");
        let asked = Instant::now();
        assert!(scene.tree.clone().drain(Duration::from_secs(30)).await.is_empty());
        assert_eq!(scene.script.asked(), [format!("PATCH {LEASE}")], "the Lease was left to expire");
        assert!(asked.elapsed() < Duration::from_secs(2), "it took {:?}", asked.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_by_a_request_without_an_answer_is_released_in_its_newer_version() {
    scene(async |mut scene| {
        scene.acquires_the_section().await;
        let mut mine = scene.held_by("me", scene.lease.acquired().expect("it is held").as_ref());
        mine["metadata"]["resourceVersion"] = json!("2001");
        let patches = Arc::new(parking_lot::Mutex::new(0));
        scene.script.answer(move |line| {
            if line.starts_with("GET") {
                return (200, mine.clone());
            }
            *patches.lock() += 1;
            match *patches.lock() {
                1 => (0, json!(null)),
                2 => (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"})),
                _ => (200, json!({"metadata": {"uid": "lease-uid", "resourceVersion": "2002"}})),
            }
        });
        sleep(Duration::from_millis(5_500)).await;
        scene.script.asked();
        assert!(scene.tree.clone().drain(Duration::from_secs(30)).await.is_empty());
        assert_eq!(scene.script.asked(), [format!("PATCH {LEASE}"), format!("GET {LEASE}"), format!("PATCH {LEASE}")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_sees_nothing_change_after_its_watch_was_resumed_lists_and_takes_the_section() {
    scene(async |mut scene| {
        let theirs = scene.held_by("them", "2026-01-01T00:00:00.000000Z");
        scene.watch.list(std::slice::from_ref(&theirs)).await;
        scene.watch.resume().await;
        let watch = Arc::clone(&scene.watch);
        scene.until("a list is asked for", |scene| scene.watch.is_asked_to_list()).await;
        sleep(Duration::from_mins(1)).await;
        assert!(!watch.is_asked_to_list(), "once");
        assert_eq!(scene.script.asked(), Vec::<String>::new(), "nothing is decided by what it does not see");
        let listed = Instant::now();
        watch.list(&[theirs]).await;
        scene.until("the section runs", |scene| scene.runs.load(SeqCst)).await;
        assert!((15..=18).contains(&listed.elapsed().as_secs()), "it took {:?}", listed.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_watch_does_not_show_is_told_and_tried_with_back_off() {
    scene(async |mut scene| {
        let exists = || (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"}));
        scene.script.answer(move |_| exists());
        scene.watch.list(&[]).await;
        scene.until("it is told", |scene| scene.lease.failure().is_some()).await;
        let told = scene.lease.failure().unwrap();
        assert!(told.starts_with("Lease towline-databases has not the label towline.dev/election: "), "{told}");
        scene.script.asked();
        sleep(Duration::from_secs(20)).await;
        let tries = scene.script.asked().len();
        assert!((8..=22).contains(&tries), "{tries} tries");
    })
    .await;
}

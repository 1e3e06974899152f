//! The conduct of an elector: what it writes, and what runs meanwhile, on a paused clock and a scripted API server.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};
use tokio::task::LocalSet;

use tokio::time::sleep;

use super::*;
use crate::actor::{ChildSpec, RestartPolicy, Supervisor, SupervisorHandle};
use crate::cluster::watch::scripted::Script;
use crate::cluster::{Clock, Cluster, Watch, WatchId};
use crate::config::ElectionConfig;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/towline/leases/towline-databases";

struct Scene {
    script: Script,
    watch: Arc<Watch>,
    seat: Arc<Seat>,
    tree: SupervisorHandle,
    /// How long the section drains.
    drains_for: Arc<parking_lot::Mutex<Duration>>,
    runs: Arc<AtomicBool>,
    /// How many records the watch has shown.
    version: u64,
}

/// Says when what it belongs to is dropped.
struct Runs(Arc<AtomicBool>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Scene {
    /// An elector of the replica `me`, and its section; nothing is seen yet.
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
        let roll = Roll::new(Arc::clone(&me), Duration::from_secs(1), &watch);
        watch.specified(roll.follows());
        let seat = Seat::new(&"databases".parse().unwrap(), Clock::Paused(Instant::now()));
        let elector = Arc::new(Elector {
            identity: me,
            lease_duration: config.lease_duration,
            renew_interval: config.renew_interval,
            leases: Arc::new(Leases::new(&cluster, &config)),
            roll: Arc::clone(&roll),
            seat: Arc::clone(&seat),
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
        let looking = ChildSpec::new("roll", move |scope| Arc::clone(&roll).run(scope));
        let children = vec![looking, electing, section.gated(seat.gate.clone())];
        let tree = Supervisor::start("test", children, RestartPolicy::ACTOR);
        Self { script, watch, seat, tree, drains_for, runs, version: 100 }
    }

    fn replica(&mut self, identity: &str) -> Value {
        let section = "databases".parse().unwrap();
        let mut lease = record::replica(identity, "towline", Duration::from_secs(15), &[section]);
        self.stamp(&mut lease);
        lease
    }

    fn seat_of(&mut self, holder: &str, acquired: &str) -> Value {
        let taking = Taking { identity: holder, duration: Duration::from_secs(15), acquired, before: None };
        let mut lease = taking.body("towline-databases", "towline");
        self.stamp(&mut lease);
        lease
    }

    fn stamp(&mut self, lease: &mut Value) {
        self.version += 1;
        lease["metadata"]["uid"] = json!("lease-uid");
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    /// The replica has seen itself, and its section is free: it takes it.
    async fn takes_the_section(&mut self) {
        let myself = self.replica("me");
        self.watch.list(&[myself]).await;
        self.until("the section runs", |scene| scene.runs.load(SeqCst)).await;
        assert!(self.seat.is_held());
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
        scene.takes_the_section().await;
        sleep(Duration::from_secs(51)).await;
        assert_eq!(scene.script.asked(), vec![format!("PATCH {LEASE}"); 10]);
        assert!(scene.seat.is_held() && scene.runs.load(SeqCst));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_finds_somebody_else_in_the_record_stops_at_once() {
    scene(async |mut scene| {
        scene.takes_the_section().await;
        let theirs = scene.seat_of("them", "2026-01-01T00:00:00.000000Z");
        scene.script.answer(move |line| match line.split(' ').next() {
            Some("PATCH") => (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"})),
            Some("POST") => (409, json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"})),
            _ => (200, theirs.clone()),
        });
        let lost = Instant::now();
        scene.until("the section ends", |scene| !scene.runs.load(SeqCst)).await;
        assert!(lost.elapsed() < Duration::from_secs(6), "it took {:?}", lost.elapsed());
        assert!(!scene.seat.fence.is_held());
        assert_eq!(scene.script.asked()[..2], [format!("PATCH {LEASE}"), format!("GET {LEASE}")]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_is_found_in_the_record() {
    scene(async |mut scene| {
        scene.takes_the_section().await;
        // Whatever is asked for is refused as outdated until the record was read.
        let seen = Arc::new(AtomicBool::new(false));
        let acquired = Arc::new(parking_lot::Mutex::new(String::new()));
        let mut mine = scene.seat_of("me", "");
        let (read, told) = (Arc::clone(&seen), Arc::clone(&acquired));
        // The moment that it was taken is not known here, so the record says what the elector wrote.
        *told.lock() = scene.seat.acquired().expect("it is held").to_string();
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
        assert!(scene.seat.is_held() && scene.runs.load(SeqCst), "it was taken for lost");
        let asked = scene.script.asked();
        assert_eq!(asked.iter().filter(|line| line.starts_with("GET")).count(), 1, "{asked:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_section_ends_a_margin_before_its_claim_does() {
    scene(async |mut scene| {
        scene.takes_the_section().await;
        let taken = Instant::now();
        scene.script.answer(|_| (500, json!({"kind": "Status", "code": 500, "reason": "InternalError"})));
        scene.until("the section ends", |scene| !scene.runs.load(SeqCst)).await;
        assert!((13..=14).contains(&taken.elapsed().as_secs()), "it ended after {:?}", taken.elapsed());
        // Back again, it takes up what still is in its name.
        scene.script.answer(|_| (200, json!({"metadata": {"uid": "lease-uid", "resourceVersion": "2000"}})));
        let mine = scene.seat.acquired().expect("it was held").to_string();
        let record = scene.seat_of("me", &mine);
        scene.watch.show(&record).await;
        scene.until("the section runs again", |scene| scene.runs.load(SeqCst)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_up_by_one_write_as_soon_as_the_section_has_drained() {
    scene(async |mut scene| {
        scene.takes_the_section().await;
        *scene.drains_for.lock() = Duration::from_secs(12);
        let tree = scene.tree.clone();
        let asked = Instant::now();
        let draining = tokio::task::spawn_local(async move { tree.drain(Duration::from_secs(30)).await });
        sleep(Duration::from_secs(11)).await;
        assert!(scene.seat.is_held(), "the claim was let go under a section that still works");
        assert_eq!(scene.script.asked(), vec![format!("PATCH {LEASE}"); 2], "it is renewed meanwhile");
        scene.until("the section has drained", |scene| !scene.runs.load(SeqCst)).await;
        assert!(draining.await.unwrap().unfinished.is_empty());
        assert_eq!((asked.elapsed().as_secs(), scene.script.asked()), (12, vec![format!("PATCH {LEASE}")]));
        assert!(!scene.seat.fence.is_held());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_up_also_while_a_renewal_gets_no_answer() {
    scene(async |mut scene| {
        scene.takes_the_section().await;
        // The renewal gets no answer; what comes after it goes through.
        let is_first = Arc::new(AtomicBool::new(true));
        scene.script.answer(move |_| {
            let code = if is_first.swap(false, SeqCst) { 0 } else { 200 };
            (code, json!({"metadata": {"uid": "lease-uid", "resourceVersion": "2000"}}))
        });
        sleep(Duration::from_millis(5_500)).await;
        assert_eq!(scene.script.asked(), [format!("PATCH {LEASE}")], "the renewal is under way");
        let asked = Instant::now();
        assert!(scene.tree.clone().drain(Duration::from_secs(30)).await.unfinished.is_empty());
        assert_eq!(scene.script.asked(), [format!("PATCH {LEASE}")], "the Lease was left to run out");
        assert!(asked.elapsed() < Duration::from_secs(2), "it took {:?}", asked.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_by_a_request_without_an_answer_is_given_up_in_its_newer_version() {
    scene(async |mut scene| {
        scene.takes_the_section().await;
        let mut mine = scene.seat_of("me", scene.seat.acquired().expect("it is held").as_ref());
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
        assert!(scene.tree.clone().drain(Duration::from_secs(30)).await.unfinished.is_empty());
        assert_eq!(scene.script.asked(), [format!("PATCH {LEASE}"), format!("GET {LEASE}"), format!("PATCH {LEASE}")]);
    })
    .await;
}

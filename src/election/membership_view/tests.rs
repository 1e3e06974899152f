//! How often the plan is computed, and which electors are woken, with a thousand sections.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::{Cluster, WatchId};
use crate::config::SectionName;

const SECTIONS: usize = 1_000;
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);
const REPLICAS: [&str; 3] = ["me", "other", "third"];

struct Scene {
    watch: Arc<Watch>,
    view: Arc<MembershipView>,
    wakes: Vec<watch::Receiver<u64>>,
    running: JoinHandle<Result<(), BoxError>>,
    version: u64,
}

impl Scene {
    /// A thousand sections, held by three replicas in turn, and electors that have asked once.
    async fn balanced() -> Self {
        let (cluster, _) = Cluster::scripted("edge");
        let id = WatchId {
            namespace: "towline".into(),
            labels: record::LABEL.into(),
            ..WatchId::all(cluster.name().clone(), record::leases_id())
        };
        let watch = Watch::new(id, cluster);
        let view = MembershipView::new("me".into(), Duration::from_secs(1), &watch);
        watch.specified(view.follows());
        let wakes = (0..SECTIONS).map(|number| view.wakes(&name(number))).collect();
        let (scope, _stop) = Scope::standalone("membership_view");
        let running = tokio::spawn(Arc::clone(&view).run(scope));
        let mut scene = Self { watch, view, wakes, running, version: 0 };
        let replicas = REPLICAS.map(|replica| scene.replica(replica));
        let sections: Vec<Value> = (0..SECTIONS).map(|number| scene.section(number, REPLICAS[number % 3])).collect();
        scene.watch.list(&replicas.into_iter().chain(sections).collect::<Vec<_>>()).await;
        sleep(RENEW).await;
        // The first renewals that are seen confirm that the replicas are alive, which changes the plan.
        scene.renew().await;
        sleep(BATCH_DELAY * 2).await;
        for number in 0..SECTIONS {
            scene.view.next(&name(number), &[]);
            scene.wakes[number].mark_unchanged();
        }
        scene
    }

    fn replica(&mut self, identity: &str) -> Value {
        let sections: Vec<SectionName> = (0..SECTIONS).map(|number| name(number).parse().unwrap()).collect();
        let lease = record::replica(identity, "towline", LEASE, &sections);
        self.stamped(lease)
    }

    fn section(&mut self, number: usize, holder: &str) -> Value {
        let acquired = "2026-01-01T00:00:00.000000Z";
        let acquisition = record::Acquisition { identity: holder, duration: LEASE, acquired, before: None };
        let lease = acquisition.body(&format!("towline-{}", name(number)), "towline");
        self.stamped(lease)
    }

    fn free(&mut self, number: usize) -> Value {
        let mut lease = self.section(number, "nobody");
        lease["spec"]["holderIdentity"] = json!(null);
        lease
    }

    fn stamped(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["uid"] = json!("lease-uid");
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        lease
    }

    /// Every record is written once more, as it is.
    async fn renew(&mut self) {
        for replica in REPLICAS {
            let lease = self.replica(replica);
            self.watch.show(&lease).await;
        }
        for number in 0..SECTIONS {
            let lease = self.section(number, REPLICAS[number % 3]);
            self.watch.show(&lease).await;
        }
    }

    fn computations(&self) -> u64 {
        self.view.state.lock().plan.computations
    }

    /// The electors that were woken since the last time.
    fn woken(&mut self) -> Vec<usize> {
        let woken = (0..SECTIONS).filter(|number| self.wakes[*number].has_changed().unwrap()).collect();
        self.wakes.iter_mut().for_each(watch::Receiver::mark_unchanged);
        woken
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn name(number: usize) -> String {
    format!("s{number:04}")
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_in_time_wakes_no_elector_and_computes_nothing() {
    let mut scene = Scene::balanced().await;
    let before = scene.computations();
    scene.renew().await;
    sleep(BATCH_DELAY * 2).await;
    assert_eq!((scene.computations() - before, scene.woken()), (0, vec![]));
    // The plan is valid until a replica would be late, ten seconds after its last renewal: every other interval.
    for _ in 0..12 {
        sleep(RENEW).await;
        scene.renew().await;
    }
    assert!(scene.computations() - before <= 12, "{} times in a minute", scene.computations() - before);
    assert_eq!(scene.woken(), Vec::<usize>::new());
}

#[tokio::test(start_paused = true)]
async fn records_that_change_together_cost_one_computation_and_wake_the_electors_of_their_sections() {
    let mut scene = Scene::balanced().await;
    let before = scene.computations();
    for number in 0..100 {
        let lease = scene.section(number, "third");
        scene.watch.show(&lease).await;
    }
    sleep(BATCH_DELAY * 2).await;
    let changed: Vec<usize> = (0..100).filter(|number| number % 3 != 2).collect();
    assert_eq!((scene.computations() - before, scene.woken()), (1, changed));
}

#[tokio::test(start_paused = true)]
async fn only_the_elector_whose_section_should_be_handed_over_is_woken_and_only_once() {
    let mut scene = Scene::balanced().await;
    let mut lease = scene.replica("fourth");
    lease["spec"]["holderIdentity"] = json!("fourth");
    scene.watch.show(&lease).await;
    sleep(BATCH_DELAY * 2).await;
    // The most loaded replica has 334 of them; it hands over its last section first.
    let last = (0..SECTIONS).rev().find(|number| number % 3 == 0).unwrap();
    assert_eq!(scene.woken(), [last]);
    assert_eq!(scene.view.start_handover(&name(0)).map(|handover| handover.section), None);
    let handover = scene.view.start_handover(&name(last)).expect("it should be handed over");
    assert_eq!((handover.section, &*handover.preferred_holder), (name(last), "fourth"));
    assert!(scene.view.start_handover(&name(last)).is_none(), "the answer is given once");
}

#[tokio::test(start_paused = true)]
async fn the_sections_of_a_dead_replica_are_assigned_by_one_computation_for_all() {
    let mut scene = Scene::balanced().await;
    let before = scene.computations();
    // The other replica renews nothing any more.
    for _ in 0..3 {
        sleep(RENEW).await;
        for number in (0..SECTIONS).filter(|number| number % 3 != 1) {
            let lease = scene.section(number, REPLICAS[number % 3]);
            scene.watch.show(&lease).await;
        }
        for replica in ["me", "third"] {
            let lease = scene.replica(replica);
            scene.watch.show(&lease).await;
        }
    }
    // Each elector wakes by its own timer: it was told to wait until the section expires.
    let assigned = (0..SECTIONS).filter(|number| scene.view.next(&name(*number), &[]).0 == Next::Acquire).count();
    assert_eq!(assigned, 166, "half of the free sections, one fewer because this replica has one more");
    assert!(scene.computations() - before <= 10, "{} times", scene.computations() - before);
}

#[tokio::test(start_paused = true)]
async fn of_sections_that_are_free_together_none_is_reassigned_while_the_others_are_acquired() {
    let mut scene = Scene::balanced().await;
    for number in 0..SECTIONS {
        let lease = scene.free(number);
        scene.watch.show(&lease).await;
    }
    sleep(BATCH_DELAY * 2).await;
    let mine = |scene: &Scene| -> Vec<usize> {
        (0..SECTIONS).filter(|number| scene.view.next(&name(*number), &[]).0 == Next::Acquire).collect()
    };
    let first = mine(&scene);
    assert_eq!(first.len(), SECTIONS / 3 + 1, "of equally loaded replicas the first by name has one more");
    let others: Vec<usize> = (0..SECTIONS).filter(|number| !first.contains(number)).collect();
    // The other replicas are much faster.
    for (turn, number) in others.iter().enumerate() {
        let lease = scene.section(*number, REPLICAS[1 + turn % 2]);
        scene.watch.show(&lease).await;
        assert!(turn % 100 > 0 || mine(&scene) == first, "after {turn} were acquired");
    }
    assert_eq!(mine(&scene), first);
}

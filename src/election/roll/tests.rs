//! How often anything is worked out, and whom it wakes, with a thousand sections.

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
    roll: Arc<Roll>,
    wakes: Vec<watch::Receiver<u64>>,
    looking: JoinHandle<Result<(), BoxError>>,
    version: u64,
}

impl Scene {
    /// A thousand sections, held by three replicas in turn, and electors that have looked once.
    async fn settled() -> Self {
        let (cluster, _) = Cluster::scripted("edge");
        let id = WatchId {
            namespace: "towline".into(),
            labels: record::LABEL.into(),
            ..WatchId::all(cluster.name().clone(), record::leases_id())
        };
        let watch = Watch::new(id, cluster);
        let roll = Roll::new("me".into(), Duration::from_secs(1), &watch);
        watch.specified(roll.follows());
        let wakes = (0..SECTIONS).map(|number| roll.wakes(&name(number))).collect();
        let (scope, _stop) = Scope::standalone("roll");
        let looking = tokio::spawn(Arc::clone(&roll).run(scope));
        let mut scene = Self { watch, roll, wakes, looking, version: 0 };
        let replicas = REPLICAS.map(|replica| scene.replica(replica));
        let seats: Vec<Value> = (0..SECTIONS).map(|number| scene.seat(number, REPLICAS[number % 3])).collect();
        scene.watch.list(&replicas.into_iter().chain(seats).collect::<Vec<_>>()).await;
        sleep(RENEW).await;
        // That the replicas are heard for the first time makes a difference.
        scene.renew().await;
        sleep(TOGETHER * 2).await;
        for number in 0..SECTIONS {
            scene.roll.next(&name(number), &[]);
            scene.wakes[number].mark_unchanged();
        }
        scene
    }

    fn replica(&mut self, identity: &str) -> Value {
        let sections: Vec<SectionName> = (0..SECTIONS).map(|number| name(number).parse().unwrap()).collect();
        let lease = record::replica(identity, "towline", LEASE, &sections);
        self.stamped(lease)
    }

    fn seat(&mut self, number: usize, holder: &str) -> Value {
        let acquired = "2026-01-01T00:00:00.000000Z";
        let taking = record::Taking { identity: holder, duration: LEASE, acquired, before: None };
        let lease = taking.body(&format!("towline-{}", name(number)), "towline");
        self.stamped(lease)
    }

    fn free(&mut self, number: usize) -> Value {
        let mut lease = self.seat(number, "nobody");
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
            let lease = self.seat(number, REPLICAS[number % 3]);
            self.watch.show(&lease).await;
        }
    }

    fn deals(&self) -> u64 {
        self.roll.state.lock().view.deals
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
        self.looking.abort();
    }
}

fn name(number: usize) -> String {
    format!("s{number:04}")
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_in_time_wakes_nobody_and_is_no_reason_to_work_anything_out() {
    let mut scene = Scene::settled().await;
    let before = scene.deals();
    scene.renew().await;
    sleep(TOGETHER * 2).await;
    assert_eq!((scene.deals() - before, scene.woken()), (0, vec![]));
    // What is worked out holds until a replica would be late, ten seconds after its last renewal: every other interval.
    for _ in 0..12 {
        sleep(RENEW).await;
        scene.renew().await;
    }
    assert!(scene.deals() - before <= 12, "{} times in a minute", scene.deals() - before);
    assert_eq!(scene.woken(), Vec::<usize>::new());
}

#[tokio::test(start_paused = true)]
async fn records_that_change_together_are_worked_out_once_and_wake_the_electors_of_their_sections() {
    let mut scene = Scene::settled().await;
    let before = scene.deals();
    for number in 0..100 {
        let lease = scene.seat(number, "third");
        scene.watch.show(&lease).await;
    }
    sleep(TOGETHER * 2).await;
    let changed: Vec<usize> = (0..100).filter(|number| number % 3 != 2).collect();
    assert_eq!((scene.deals() - before, scene.woken()), (1, changed));
}

#[tokio::test(start_paused = true)]
async fn of_all_electors_the_one_whose_section_is_to_be_given_up_is_woken_and_only_once() {
    let mut scene = Scene::settled().await;
    let mut lease = scene.replica("fourth");
    lease["spec"]["holderIdentity"] = json!("fourth");
    scene.watch.show(&lease).await;
    sleep(TOGETHER * 2).await;
    // The most loaded one has 334 of them; of its sections the last goes first.
    let last = (0..SECTIONS).rev().find(|number| number % 3 == 0).unwrap();
    assert_eq!(scene.woken(), [last]);
    assert_eq!(scene.roll.gives_up(&name(0)).map(|offer| offer.section), None);
    let offer = scene.roll.gives_up(&name(last)).expect("it is to be given up");
    assert_eq!((offer.section, &*offer.heir), (name(last), "fourth"));
    assert!(scene.roll.gives_up(&name(last)).is_none(), "a yes is given once");
}

#[tokio::test(start_paused = true)]
async fn what_a_silent_replica_leaves_is_worked_out_once_for_all_and_looked_at_by_its_heirs() {
    let mut scene = Scene::settled().await;
    let before = scene.deals();
    // Of the other replica nothing is heard any more.
    for _ in 0..3 {
        sleep(RENEW).await;
        for number in (0..SECTIONS).filter(|number| number % 3 != 1) {
            let lease = scene.seat(number, REPLICAS[number % 3]);
            scene.watch.show(&lease).await;
        }
        for replica in ["me", "third"] {
            let lease = scene.replica(replica);
            scene.watch.show(&lease).await;
        }
    }
    // By its own timer: it was told to look when the section runs out.
    let taken = (0..SECTIONS).filter(|number| scene.roll.next(&name(*number), &[]).0 == Next::Take).count();
    assert_eq!(taken, 166, "half of what is free, one fewer than who has one fewer");
    assert!(scene.deals() - before <= 10, "{} times", scene.deals() - before);
}

#[tokio::test(start_paused = true)]
async fn of_sections_that_are_free_together_none_becomes_anothers_while_their_heirs_take_them() {
    let mut scene = Scene::settled().await;
    for number in 0..SECTIONS {
        let lease = scene.free(number);
        scene.watch.show(&lease).await;
    }
    sleep(TOGETHER * 2).await;
    let mine = |scene: &Scene| -> Vec<usize> {
        (0..SECTIONS).filter(|number| scene.roll.next(&name(*number), &[]).0 == Next::Take).collect()
    };
    let first = mine(&scene);
    assert_eq!(first.len(), SECTIONS / 3 + 1, "of equals the first by name has one more");
    let others: Vec<usize> = (0..SECTIONS).filter(|number| !first.contains(number)).collect();
    // The others are faster by far.
    for (turn, number) in others.iter().enumerate() {
        let lease = scene.seat(*number, REPLICAS[1 + turn % 2]);
        scene.watch.show(&lease).await;
        assert!(turn % 100 > 0 || mine(&scene) == first, "after {turn} were taken");
    }
    assert_eq!(mine(&scene), first);
}

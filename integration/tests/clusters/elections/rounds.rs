//! Seeded rounds of events that happen to replicas, with a short lease, and the invariants checked in each.

use std::time::Duration;

use futures::future::join_all;
use integration::soak::{self, Random};
use integration::users;

use crate::elections::churn::Churn;
use crate::elections::monitor::Monitor;
use crate::elections::replica::Replica;
use crate::elections::world::{Company, LIMIT, World, run};

/// Rounds of each world in `make test`.
const ROUNDS: u64 = 4;
const WORLDS: u64 = 2;
/// The smallest and the largest number of replicas.
const REPLICAS: std::ops::RangeInclusive<usize> = 2..=users::REPLICA.len();

/// What happens in a round.
#[derive(Debug)]
enum Event {
    Join,
    Kill,
    /// One is terminated by SIGTERM.
    Terminate,
    /// One is stopped for so long, and continues.
    Freeze(Duration),
    /// One does not reach the Leases for so long.
    Partition(Duration),
}

struct Game {
    world: World,
    monitor: Monitor,
    dice: Random,
    replicas: Vec<Replica>,
    log: Vec<String>,
}

impl Game {
    fn event(&mut self) -> Event {
        let around_a_lease = self.world.lease / 2 + Duration::from_millis(self.dice.below(3_000));
        let may_leave = self.replicas.len() > *REPLICAS.start();
        match self.dice.below(5) {
            0 if may_leave => Event::Kill,
            1 if may_leave => Event::Terminate,
            2 => Event::Freeze(around_a_lease),
            3 => Event::Partition(around_a_lease),
            _ if self.replicas.len() < *REPLICAS.end() => Event::Join,
            _ => Event::Kill,
        }
    }

    async fn join(&mut self) {
        let free = (0..users::REPLICA.len())
            .find(|number| self.replicas.iter().all(|replica| replica.user != users::REPLICA[*number]));
        let replica = Replica::start_behind_a_link(&self.world, free.unwrap()).await;
        self.monitor.add(&replica.identity, &replica.towline.admin_url()).await;
        self.replicas.push(replica);
    }

    async fn happen(&mut self, event: &Event) {
        let chosen = self.dice.index(self.replicas.len());
        self.log.push(format!("{event:?} {}", self.replicas[chosen].identity));
        match event {
            Event::Join => self.join().await,
            Event::Kill => self.replicas.remove(chosen).kill().await,
            Event::Terminate => {
                // It may report undone work if it has just lost a claim.
                let _ = self.replicas.remove(chosen).towline.terminate(LIMIT).await.unwrap();
            }
            Event::Freeze(time) => {
                self.replicas[chosen].towline.freeze().unwrap();
                tokio::time::sleep(*time).await;
                self.replicas[chosen].towline.thaw().unwrap();
            }
            Event::Partition(time) => {
                let link = self.replicas[chosen].link.as_ref().unwrap();
                link.cut().await.unwrap();
                tokio::time::sleep(*time).await;
                link.restore().await.unwrap();
            }
        }
    }

    /// Waits until the replicas hold all sections and run those that they hold, and until each section has written.
    async fn wait_until_all_run(&self, when: &str) {
        let alive: Vec<&str> = self.replicas.iter().map(|replica| replica.identity.as_str()).collect();
        let what = format!("{when} of {}: {:?}", self.world.name, self.log);
        self.monitor.all_run(&alive, &what).await;
        self.monitor.all_write(&what).await;
        self.monitor.check().await;
    }

    async fn play(mut self) {
        for _ in 0..3 {
            self.join().await;
        }
        self.wait_until_all_run("at the beginning").await;
        for round in 0..soak::rounds(ROUNDS) {
            let event = self.event();
            self.happen(&event).await;
            self.wait_until_all_run(&format!("after round {round}")).await;
        }
        self.monitor.check_writes().await;
    }
}

#[test]
fn whatever_happens_a_section_never_runs_twice_and_is_soon_run_again() {
    run(Company::One, async {
        let seed = soak::seed();
        // Worlds mostly wait for leases, so they run at once; more of them would only slow each other down.
        let games = (0..WORLDS).map(|world| seed + world).map(async |seed| {
            let name = format!("seed{seed}");
            let world = World::shared(&name, Duration::from_secs(3), Duration::from_secs(1)).await;
            let monitor = Monitor::start(&world).await;
            let _churn = Churn::start(&world, Duration::from_millis(200));
            Game { world, monitor, dice: Random::new(seed), replicas: Vec::new(), log: Vec::new() }.play().await;
        });
        join_all(games).await;
    });
}

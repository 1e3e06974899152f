//! Rounds of random changes while workers are killed and frozen, answers of clusters are lost, and the database fails over and is restored.

use std::collections::BTreeSet;
use std::time::Duration;

use integration::eventually;
use integration::soak::{self, Random};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use towline::test_api::syncset::rollouts::Order;

use crate::chaos::claims::Claims;
use crate::chaos::documents::{CLUSTERS, Documents};
use crate::chaos::endpoint::now;
use crate::chaos::fences::{Fenced, fenced};
use crate::chaos::fleet::{Fleet, LIMIT, run};
use crate::chaos::history::History;
use crate::chaos::incidents::Incidents;
use crate::chaos::oracle::may_stay;
use crate::chaos::recoveries::{FIRST, Recoveries};
use crate::chaos::rolled;
use crate::chaos::watched::Watched;

/// Longest wait for requests between two rounds.
const STALLED: Duration = Duration::from_millis(500);
/// Between two promotions at the end.
const PROMOTED_EVERY: Duration = Duration::from_millis(500);
/// Between two rounds workers send at most so many requests.
const BETWEEN: u64 = 60;
/// In rounds with faults, of so many requests one goes wrong.
const ONE_FAILS_OF: u64 = 40;

#[test]
fn whatever_happens_clusters_get_what_the_documents_say_and_never_lose_what_stays_wanted() {
    run(async {
        let mut random = Random::new(soak::seed());
        let mut fleet = Fleet::new("storm").await;
        rolled::note(&fleet.database).await;
        let documents = Documents::new(&mut random);
        for cluster in documents.clusters.clone() {
            fleet.register(cluster.team, &cluster.name, &cluster.labels).await;
        }
        for request in documents.first() {
            fleet.send(&request).await;
        }
        let watched = Watched::start().await;
        let keys = "mass_delete_guard = false\nrequest_timeout = \"3s\"\nreapply_interval = \"15s\"";
        for _ in 0..3 {
            fleet.start_worker(keys).await;
        }
        let mut storm = Storm {
            documents,
            history: History::default(),
            incidents: Incidents::default(),
            recoveries: Recoveries::default(),
            promoted: 0,
        };
        storm.rage(&mut fleet, soak::rounds(FIRST).max(FIRST), &mut random).await;
        storm.calm_down(&mut fleet).await;
        let Storm { history, incidents, recoveries, promoted, .. } = storm;
        let claims = Claims::read(&fleet.database).await;
        let requests = fenced(&fleet, &claims);
        let (deletions, unclaimed) = check_deletions(&fleet, &requests, &history, &watched);
        let rolled = rolled::check(&fleet.database).await;
        let (killed, frozen, takeovers) = (incidents.killed, incidents.frozen, claims.takeovers());
        let Recoveries { failovers, restores, stopped, resumed, paused, .. } = recoveries;
        println!(
            "{} requests, {deletions} deletions, {unclaimed} of them late, {takeovers} takeovers, {killed} killed, {frozen} frozen, \
             {failovers} failovers, {restores} restores, {stopped} rollouts stopped by these, {resumed} resumed, {paused} paused, \
             {promoted} promoted, {rolled:?}",
            requests.len()
        );
        assert!(killed > 0 && frozen > 0 && takeovers > 0 && incidents.dispatchers > 0, "{incidents:?} {takeovers}");
        assert!(rolled.released > 0 && rolled.waves > 0, "{rolled:?}");
        assert!(failovers > 0 && restores > 0, "{failovers} failovers, {restores} restores");
        assert!(
            stopped > 0 && resumed > 0 && paused > 0 && promoted > 0,
            "{stopped} stopped, {resumed} resumed, {paused} paused, {promoted} promoted"
        );
        // Each process sends one request late at most each time that it is thawed, to each cluster; that is seldom a deletion.
        let may_be_late = 1 + deletions / 10;
        assert!(deletions > 0 && unclaimed <= may_be_late, "{deletions} deletions had claims, {unclaimed} had none");
    });
}

/// What the test knows.
struct Storm {
    documents: Documents,
    history: History,
    incidents: Incidents,
    recoveries: Recoveries,
    /// How many waves were promoted at the end.
    promoted: usize,
}

impl Storm {
    async fn rage(&mut self, fleet: &mut Fleet, rounds: u64, random: &mut Random) {
        let mut progress = fleet.traffic.requests.subscribe();
        for round in 0..rounds {
            for _ in 0..=random.below(3) {
                for (request, after) in self.documents.change(random) {
                    let sent = now();
                    fleet.send(&request).await;
                    self.history.changed(&self.documents, &after, sent, now());
                    self.documents = after;
                }
            }
            if round % 4 == 0 {
                let order = [Order::Pause, Order::Promote { wave: None }, Order::Resume][random.index(3)].clone();
                rolled::steer(fleet, self.documents.steer(&[order])).await;
            }
            if round % 20 == 0 {
                let one_fails_of = if round % 40 == 0 { 0 } else { ONE_FAILS_OF };
                fleet.places.iter().for_each(|place| place.endpoint.one_fails_of(one_fails_of));
            }
            self.incidents.happen(fleet, round, random).await;
            self.recover(fleet, round, random).await;
            let further = *progress.borrow_and_update() + random.below(BETWEEN);
            let _stalled = timeout(STALLED, progress.wait_for(|requests| *requests >= further)).await;
        }
    }

    async fn recover(&mut self, fleet: &mut Fleet, round: u64, random: &mut Random) {
        let Self { documents, history, incidents, recoveries, .. } = self;
        *documents = recoveries.happen(fleet, documents.clone(), history, incidents, (round, random)).await;
    }

    /// Nothing more happens, and everything comes to its end.
    async fn calm_down(&mut self, fleet: &mut Fleet) {
        fleet.places.iter().for_each(|place| place.endpoint.one_fails_of(0));
        self.incidents.end(fleet);
        for request in self.documents.resume() {
            fleet.send(&request).await;
        }
        rolled::steer(fleet, self.documents.steer(&[Order::Resume])).await;
        let (promote, mut promoted) = (self.documents.steer(&[Order::Promote { wave: None }]), 0);
        let promoting = async {
            loop {
                promoted += rolled::steer(fleet, promote.clone()).await;
                sleep(PROMOTED_EVERY).await;
            }
        };
        tokio::select! {
            () = self.settle(fleet) => {}
            () = promoting => {}
        }
        self.promoted = promoted;
    }

    /// Waits until each cluster has what the documents say, and all rollouts are complete.
    async fn settle(&self, fleet: &Fleet) {
        for cluster in 0..CLUSTERS {
            let settled = eventually(format!("cluster {cluster} to hold what is wanted"), LIMIT, async || {
                self.differences(fleet, cluster).await
            });
            if let Err(error) = settled.await {
                panic!("{error}\n{}", status(fleet, &self.documents, cluster).await);
            }
        }
        let complete =
            eventually("all rollouts to be complete", LIMIT, async || rolled::complete(&fleet.database).await);
        complete.await.unwrap();
    }

    /// What is missing, wrong, or too much on a cluster.
    async fn differences(&self, fleet: &Fleet, cluster: usize) -> Result<(), String> {
        let documents = &self.documents;
        let found = fleet.held(cluster).await;
        let wanted = documents.wanted(cluster);
        let mut all = Vec::new();
        for (object, data) in &wanted {
            match (found.get(object), data) {
                (None, _) => all.push(format!("{object:?} is missing")),
                (Some(found), Some(data)) if found != data => {
                    all.push(format!("{object:?} is {found:?}, should be {data:?}"));
                }
                _ => {}
            }
        }
        let extra = found.keys().filter(|object| !wanted.contains_key(*object) && !may_stay(object));
        let extra = extra.filter(|object| !self.recoveries.may_be_forgotten(fleet, cluster, object));
        all.extend(extra.map(|object| format!("{object:?} is too much")));
        let rows = rows(fleet, cluster).await;
        if rows != (documents.rows(cluster), 0) {
            all.push(format!("rows are {rows:?}, should be {}", documents.rows(cluster)));
        }
        if all.is_empty() { Ok(()) } else { Err(all.join("; ")) }
    }
}

/// How many rows of a cluster say that an object is wanted, and how many that it is not any more.
async fn rows(fleet: &Fleet, cluster: usize) -> (usize, usize) {
    let text = "select count(*) filter (where wanted), count(*) filter (where not wanted) from towline_applied \
         where cluster = $1::text::uuid";
    let row = fleet.sql.query_one(text, &[&fleet.places[cluster].id]).await.unwrap();
    let count = |at: usize| usize::try_from(row.get::<_, i64>(at)).unwrap();
    (count(0), count(1))
}

/// Nothing was deleted that was wanted since the claim was granted under which it was deleted, and nothing vanished otherwise. How many
/// deletions had a claim, and how many had none.
fn check_deletions(fleet: &Fleet, requests: &[Fenced], history: &History, watched: &Watched) -> (usize, usize) {
    let (mut checked, mut unclaimed) = (0, 0);
    let all = fleet.places.iter().flat_map(|place| place.endpoint.asked());
    let deleted: BTreeSet<String> = all.filter(|asked| asked.status == 200).filter_map(|asked| asked.uid).collect();
    for Fenced { cluster, asked, claim } in requests {
        if asked.method != http::Method::DELETE || asked.status != 200 {
            continue;
        }
        let object = asked.object();
        // A request that was about to be sent when its process was frozen is bounded by its deadline alone.
        let Some(claim) = claim else {
            unclaimed += 1;
            continue;
        };
        checked += 1;
        assert!(
            !history.wanted(*cluster, &object, claim.granted, asked.at),
            "{object:?} of cluster {cluster} was deleted although it was wanted: {asked:?} {claim:?}\n{}",
            fleet.log()
        );
    }
    for (uid, (namespace, object)) in watched.vanished() {
        let is_ours = fleet.places.iter().any(|place| place.namespace == namespace);
        assert!(
            !is_ours || deleted.contains(&uid),
            "{object:?} vanished from {namespace}, and no worker has deleted it"
        );
    }
    (checked, unclaimed)
}

async fn status(fleet: &Fleet, documents: &Documents, cluster: usize) -> String {
    let document = &documents.clusters[cluster];
    let path = format!("/v1/clustersyncs/{}/{}", document.team, document.name);
    let status: Value = fleet.send(&integration::hub::Request::get(&path)).await;
    let asked = fleet.places[cluster].endpoint.asked();
    let last: Vec<_> = asked
        .iter()
        .rev()
        .take(30)
        .map(|asked| json!([asked.at, asked.method.as_str(), asked.path, asked.status]))
        .collect();
    format!("{status:#}\n{last:#?}\n{}", fleet.log())
}

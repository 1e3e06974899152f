//! What happens to the database in the middle of a rollout: a standby takes over from it, or an earlier dump replaces it.

use integration::eventually;
use integration::postgres::Dump;
use integration::soak::Random;
use towline::test_api::syncset::rollouts::Order;

use crate::chaos::documents::Documents;
use crate::chaos::endpoint::{Moment, now};
use crate::chaos::fleet::{Fleet, LIMIT};
use crate::chaos::history::History;
use crate::chaos::incidents::Incidents;
use crate::chaos::oracle::Object;
use crate::chaos::rolled;

/// In the first rounds each happens once, whatever the lots say: the failover, the dump, and its restore in these rounds.
pub(crate) const FIRST: u64 = 24;
const FIRST_FAILOVER: u64 = 4;
const FIRST_DUMP: u64 = 11;
const FIRST_RESTORE: u64 = 20;
/// After them, in so many rounds each happens once: first the failover, then a dump, and after a few rounds more its restore.
const CYCLE: u64 = 40;
const FAILS_OVER_BEFORE: u64 = 16;
const DUMPED_BEFORE: u64 = 30;

/// What has happened, and is to happen.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    pub(crate) failovers: u32,
    pub(crate) restores: u32,
    /// Rollouts that have stopped for that.
    pub(crate) stopped: i64,
    /// And were resumed then.
    pub(crate) resumed: usize,
    /// Rollouts that were paused after a dump, which has them running.
    pub(crate) paused: usize,
    /// The rounds of this cycle.
    fails_over_at: u64,
    dumps_at: u64,
    restores_at: u64,
    saved: Option<Saved>,
    /// From each dump until its restore, and until nobody works any more under a claim from before.
    lost: Vec<(Moment, Moment)>,
}

/// A dump, and the documents that it has.
#[derive(Debug)]
struct Saved {
    dump: Dump,
    documents: Documents,
    at: Moment,
}

impl Recoveries {
    /// Perhaps something happens in this round. Returns the documents after it.
    pub(crate) async fn happen(
        &mut self,
        fleet: &mut Fleet,
        mut documents: Documents,
        history: &mut History,
        incidents: &mut Incidents,
        (round, random): (u64, &mut Random),
    ) -> Documents {
        if round == 0 {
            (self.fails_over_at, self.dumps_at, self.restores_at) = (FIRST_FAILOVER, FIRST_DUMP, FIRST_RESTORE);
        } else if round >= FIRST && (round - FIRST).is_multiple_of(CYCLE) {
            self.fails_over_at = round + 1 + random.below(FAILS_OVER_BEFORE);
            self.dumps_at = round + FAILS_OVER_BEFORE + 1 + random.below(DUMPED_BEFORE - FAILS_OVER_BEFORE);
            self.restores_at = self.dumps_at + 1 + random.below(CYCLE - DUMPED_BEFORE - 1);
        }
        if [self.fails_over_at, self.dumps_at].contains(&round) {
            incidents.thaw_dispatcher(fleet).await;
        }
        if round == self.fails_over_at {
            let standby = fleet.standby().await;
            documents = begin_rollout(fleet, documents, history, random).await;
            fleet.fail_over(standby).await;
            self.failovers += 1;
            self.recover(fleet, &documents, incidents, random).await;
        }
        if round == self.dumps_at {
            documents = begin_rollout(fleet, documents, history, random).await;
            let (at, dump) = (now(), fleet.database.dump_without("noted").await.unwrap());
            self.saved = Some(Saved { dump, documents: documents.clone(), at });
            self.paused += rolled::steer(fleet, documents.steer(&[Order::Pause])).await;
        }
        if round == self.restores_at
            && let Some(Saved { dump, documents: saved, at }) = self.saved.take()
        {
            let (restored, sent) = (saved.restored(&documents), now());
            fleet.restore(&dump).await;
            history.changed(&documents, &restored, sent, now());
            documents = restored;
            self.restores += 1;
            self.recover(fleet, &documents, incidents, random).await;
            self.lost.push((at, now()));
        }
        documents
    }

    /// No rollout moves any more, until somebody resumes it. Whoever had a claim from before works under it no more when there is a
    /// dispatcher.
    async fn recover(
        &mut self,
        fleet: &mut Fleet,
        documents: &Documents,
        incidents: &mut Incidents,
        random: &mut Random,
    ) {
        let text = "select count(*) filter (where state in ('Running', 'RollingBack')), \
            count(*) filter (where (state, reason) = ('Stopped', 'Restored')) from towline_rollout";
        let row = fleet.sql.query_one(text, &[]).await.unwrap();
        let (running, stopped): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(running, 0, "rollouts run after the database has failed over or was restored");
        self.stopped += stopped;
        incidents.end(fleet);
        fleet.end_claims().await;
        // One that starts asks at once to be the dispatcher, the others every ten seconds.
        let worker = random.index(fleet.workers.len());
        incidents.kill(fleet, worker).await;
        fleet.dispatcher().await;
        self.resumed += rolled::steer(fleet, documents.steer(&[Order::Resume])).await;
    }

    /// Whether nobody may know any more that an object is on a cluster: it was sent there, and what was stored of that is lost.
    pub(crate) fn may_be_forgotten(&self, fleet: &Fleet, cluster: usize, object: &Object) -> bool {
        let is_lost = |at: Moment| self.lost.iter().any(|(from, until)| (*from..=*until).contains(&at));
        let of_it = |method: &http::Method| [http::Method::PATCH, http::Method::POST].contains(method);
        let mut asked = fleet.places[cluster].endpoint.asked().into_iter();
        asked.any(|asked| of_it(&asked.method) && is_lost(asked.at) && asked.object() == *object)
    }
}

/// Changes a syncset, and waits until its rollout has released a cluster.
async fn begin_rollout(fleet: &Fleet, documents: Documents, history: &mut History, random: &mut Random) -> Documents {
    let (request, name, after) = documents.roll(random);
    let sent = now();
    fleet.send(&request).await;
    history.changed(&documents, &after, sent, now());
    let text = "select count(*) from towline_rollout r join selectorsyncsets s on s.id = r.syncset \
        join towline_turn t on t.syncset = r.syncset and t.number = r.number and t.revision = r.goal \
        where s.name = $1 and r.state = 'Running' and r.goal = r.newest";
    let released = eventually("a rollout to release a cluster", LIMIT, async || {
        rolled::steer(fleet, after.steer(&[Order::Resume])).await;
        let released: i64 = fleet.sql.query_one(text, &[&name]).await.map_err(|error| error.to_string())?.get(0);
        if released > 0 { Ok(()) } else { Err("nobody is released".to_owned()) }
    });
    if let Err(error) = released.await {
        panic!("{error}\n{}", fleet.log());
    }
    after
}

//! The actor that counts clusters by state, for the report and the metrics.
//!
//! State: the newest counts, as a latest value. It reads the database every 15 s, sends to nobody, and nobody sends to it. A failed read
//! leaves the counts as they are, with the failure. Restart: it counts again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::metrics::SyncsetMetrics;
use crate::actor::{BoxError, ChildSpec, Scope};
use crate::db::{self, Database, column};
use crate::documents::Shared;

/// Between two counts.
const EVERY: Duration = Duration::from_secs(15);
const QUERY: &str = "count_clusters_by_state";
/// Each cluster has one state, the first of these that holds. The second row of numbers is about work that is ready.
const COUNT: &str = "with state as ( \
       select case when p.cluster is null or p.reachable is null then 'unknown' when not p.reachable then 'unreachable' \
           when exists (select from towline_result r where r.cluster = c.id and r.result = 'Failure') then 'failing' \
           when w.ready_at <= now() or w.until >= now() then 'due' else 'in_step' end as state \
       from clusters c left join towline_pace p on p.cluster = c.id left join towline_work w on w.cluster = c.id \
       where c.kind = 'clusters' and c.deleted_at is null) \
     select state, count(*) from state group by state \
     union all select 'oldest', coalesce(extract(epoch from now() - min(ready_at)), -1)::bigint from towline_work \
       where ready_at <= now() and urgent and (until is null or until < now())";
/// The states, in the order in which they are shown.
const STATES: [&str; 5] = ["in_step", "due", "failing", "unreachable", "unknown"];

/// Clusters by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Each state with its clusters.
    pub(super) states: Vec<(&'static str, i64)>,
    /// Since when the oldest change that is due has been due.
    pub(super) oldest: Option<Duration>,
}

/// What is known of all clusters. Clones are the same.
#[derive(Clone)]
pub(super) struct Overview {
    shared: Arc<Shared>,
    latest: watch::Sender<Option<Result<Counted, db::Error>>>,
}

impl Overview {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), latest: watch::Sender::new(None) }
    }

    /// The newest counts; none before the first.
    pub(super) fn latest(&self) -> Option<Result<Counted, db::Error>> {
        self.latest.borrow().clone()
    }

    /// The actor, under its name `overview`.
    pub(super) fn child(self) -> ChildSpec {
        ChildSpec::new("overview", move |scope| self.clone().run(scope))
    }

    async fn run(self, scope: Scope) -> Result<(), BoxError> {
        tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            () = self.shared.has_schema() => {}
        }
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = scope.draining() => return Ok(()),
                _ = every.tick() => {}
            }
            let counted = count(&self.shared.database).await;
            if let Ok(counted) = &counted {
                counted.states.iter().for_each(|(state, count)| SyncsetMetrics::clusters(state, *count));
            }
            self.latest.send_replace(Some(counted));
        }
    }
}

async fn count(database: &Database) -> Result<Counted, db::Error> {
    let rows = database.all(QUERY, COUNT, &[]).await?;
    let mut counted = Counted { states: STATES.iter().map(|state| (*state, 0)).collect(), oldest: None };
    for row in &rows {
        let (state, number): (&str, i64) = (column(QUERY, row, 0)?, column(QUERY, row, 1)?);
        if state == "oldest" {
            counted.oldest = u64::try_from(number).ok().map(Duration::from_secs);
        } else if let Some((_, count)) = counted.states.iter_mut().find(|(known, _)| *known == state) {
            *count = number;
        }
    }
    Ok(counted)
}

//! Clusters by state, what fails, what waits, and how far the dispatcher is.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::db::{self, Database, Type, column};
use crate::documents::{Counts, Parameters, WorkQueue};
use crate::status::ObjectState;
use crate::syncset::plan::action::PAUSES;
use crate::syncset::plan::health::HealthState;
use crate::syncset::plan::rollout::{ProgressReason, RolloutPhase};
use crate::syncset::plan::status::Unreachable;
use crate::syncset::run::dispatch::{DispatchError, SuspendedSyncset, suspended_within};
use crate::syncset::run::paused::{is_paused, pause};
use crate::syncset::run::rollouts::{ShownRollout, stopped_rollouts};
use fleet::NamespaceFilter;

/// Of held syncsets, of stopped rollouts, of failures and of clusters that do not answer, as many are read.
const MOST_READ: i64 = 20;
/// Clusters that do not answer and are named beside failures.
const FIRST_UNREACHABLE: usize = 5;

/// The states of clusters: each is in the first one that holds.
///
/// `Unreachable` are also those whose kubeconfig is refused. Of those that are `Held`, deletions are suspended. A cluster is `Pending` that has
/// work that is ready or under way, whose API server has asked to wait (429), or over which no pass has ended yet.
pub const CLUSTER_STATES: [ObjectState; 6] = [
    ObjectState::Paused,
    ObjectState::Unreachable,
    ObjectState::Failing,
    ObjectState::Held,
    ObjectState::Pending,
    ObjectState::InStep,
];

#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub states: BTreeMap<ObjectState, usize>,
    /// Syncsets whose health was read, each counted once per cluster.
    pub health: BTreeMap<HealthState, usize>,
    /// Since when the oldest change that is due has been due.
    pub oldest: Option<Duration>,
    /// The newest failures.
    pub failures: Vec<FailingSyncset>,
    /// How many of the clusters that are not reachable have a kubeconfig that is refused.
    pub refused: usize,
    /// The clusters that are not reachable, those with a refused kubeconfig first; not all if they are many.
    pub unreachable: Vec<UnreachableCluster>,
    /// Syncsets whose deletions are held; not all if they are many.
    pub suspended: Vec<SuspendedSyncset>,
    /// How many more there are.
    pub more_suspended: usize,
    /// Of how many syncsets it is not known yet whether their deletions are held.
    pub counting: usize,
    pub rollouts: BTreeMap<RolloutGroup, usize>,
    /// Rollouts that have stopped, for whatever reason, or gone back: those first that need somebody; not all if they are many.
    pub stopped: Vec<ShownRollout>,
    /// How many more of them there are.
    pub more_stopped: usize,
    pub work: Counts,
    pub dispatcher: DispatcherState,
}

/// How rollouts are counted: those that have stopped by why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RolloutGroup {
    Running,
    /// By somebody, until somebody resumes it.
    Paused,
    /// By itself.
    Stopped,
    Aborted,
    RollingBack,
    RolledBack,
    Complete,
}

impl RolloutGroup {
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Paused,
        Self::Stopped,
        Self::Aborted,
        Self::RollingBack,
        Self::RolledBack,
        Self::Complete,
    ];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Aborted => "aborted",
            Self::RollingBack => "rolling_back",
            Self::RolledBack => "rolled_back",
            Self::Complete => "complete",
        }
    }

    fn of(state: RolloutPhase, reason: &str) -> Self {
        match (state, ProgressReason::of_name(reason)) {
            (RolloutPhase::Running, _) => Self::Running,
            (RolloutPhase::Stopped, Some(ProgressReason::Paused)) => Self::Paused,
            (RolloutPhase::Stopped, Some(ProgressReason::Aborted)) => Self::Aborted,
            (RolloutPhase::Stopped, _) => Self::Stopped,
            (RolloutPhase::RollingBack, _) => Self::RollingBack,
            (RolloutPhase::RolledBack, _) => Self::RolledBack,
            (RolloutPhase::Complete, _) => Self::Complete,
        }
    }
}

/// A syncset that fails on a cluster, or a cluster over which no pass can begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingSyncset {
    /// `namespace/name`; the id if its document is gone.
    pub cluster: String,
    /// `SelectorSyncSet monitoring`; none if no pass can begin.
    pub syncset: Option<String>,
    pub reason: String,
    /// Why, in a sentence, as it is stored: it never repeats a value of a secret.
    pub message: String,
    pub age: Duration,
}

/// A cluster that does not answer, or whose kubeconfig is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachableCluster {
    /// `namespace/name`.
    pub cluster: String,
    /// Why and for how long, as its `ClusterSync` says it; none if that has not been written yet.
    pub condition: Option<(Unreachable, String, Timestamp)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatcherState {
    /// The process that is the dispatcher.
    pub holder: Option<String>,
    /// Up to which version of the log it has dispatched.
    pub cursor: i64,
    /// The newest version.
    pub newest: i64,
    /// Age of the oldest change that it has not dispatched.
    pub lag: Option<Duration>,
}

/// Where documents of clusters are, of which nobody has asked for a deletion.
macro_rules! clusters {
    () => {
        " from clusters c where c.kind = 'clusters' and c.deleted_at is null"
    };
}

/// Further queries of a statement: `state` has the rows of `mine` with the state that each cluster has if nothing pauses it. Where these are
/// not `all` clusters, what fails and what is held is read of them alone. It is looked up in a hash and not joined: a server that has last
/// analyzed the tables when nothing failed would read all that fails for each cluster.
macro_rules! state {
    (all) => {
        state!("", "")
    };
    (mine) => {
        state!(" join mine m on m.id = r.cluster", " join mine m on m.id = l.cluster")
    };
    ($of_failing:literal, $of_held:literal) => {
        concat!(
            "failing as materialized (select r.cluster from towline_result r",
            $of_failing,
            " where r.result = 'Failure'), \
             held as materialized (select l.cluster from towline_guard g join towline_lost l on l.syncset = g.syncset",
            $of_held,
            " where g.held and l.objects > l.approved), \
             state as (select m.*, p.last_contact, case when w.ready_at <= now() then w.ready_at end as due_since, \
                 case when not p.reachable and p.retry_at is null then 'refused' when not p.reachable then 'unreachable' \
                   when p.failure is not null or m.id in (select cluster from failing) then 'failing' when m.id in (select cluster from held) then 'held' \
                   when p.cluster is null or p.reachable is null or p.retry_at > now() or w.ready_at <= now() or w.until >= now() then 'pending' \
                   else 'in_step' end as state \
               from mine m left join towline_cluster p on p.cluster = m.id left join towline_work w on w.cluster = m.id)"
        )
    };
}

pub mod fleet;

/// Clusters by state and by what pauses them.
const STATES: &str = concat!(
    "with mine as (select c.id, ",
    pause!(),
    clusters!(),
    "), ",
    state!(all),
    " select state, count(*), pause from state group by state, pause"
);
/// A failing syncset may be on thousands of clusters, of which the newest failures are shown; and clusters over which no pass can begin.
const FAILURES: &str = "select f.kind, f.namespace, f.name, coalesce(c.namespace || '/' || c.name, f.cluster::text), f.reason, f.message, \
       extract(epoch from now() - f.since)::float8 \
     from ((select cluster, kind, namespace, name, reason, message, since from towline_result where result = 'Failure' order by since desc limit $1) \
       union all (select cluster, null, '', '', failure->>'reason', failure->>'message', (failure->>'since')::timestamptz \
         from towline_cluster where failure is not null limit $1)) f \
     left join clusters c on c.kind = 'clusters' and c.id = f.cluster order by f.kind nulls first, f.namespace, f.name";
/// As many as are shown, and their `ClusterSync`s, without those that are paused: also by one of the values in parameter $3.
const UNREACHABLE: &str = concat!(
    "select u.namespace || '/' || u.name, (s.status->'conditions')::text \
     from (select * from (select c.namespace, c.name, p.retry_at is null as is_refused, p.last_contact, ",
    pause!(),
    " from towline_cluster p join clusters c on c.kind = 'clusters' and c.id = p.cluster \
           where p.reachable = false and c.deleted_at is null) s \
         where s.pause is null or (s.pause <> '' and s.pause not in (select unnest($3::text[]))) \
         order by s.is_refused desc, s.last_contact desc nulls first, 1, 2 limit $2) u \
     left join clustersyncs s on s.kind = 'clustersyncs' and s.namespace = u.namespace and s.name = u.name"
);
/// The rest. Indexes answer it but for the health of syncsets, which small columns tell, and of a thousand clusters that were never reached
/// their documents.
const REST: &str = "select case when d.until > now() then d.holder end, d.cursor, \
       greatest(m.base, (select max(version) from towline_log)), \
       (select extract(epoch from now() - l.at)::float8 from towline_log l where l.version > d.cursor order by l.version limit 1), \
       (select extract(epoch from now() - min(ready_at))::float8 from towline_work \
         where ready_at <= now() and urgent and (until is null or until < now())), to_json(now()) #>> '{}', \
       (select jsonb_object_agg(state, syncsets)::text from (select state, count(*) as syncsets from ( \
         select case when p.reachable = false then 'Unknown' else r.health_state end as state \
         from towline_result r left join towline_cluster p on p.cluster = r.cluster \
           where r.health is not null and r.result = 'Success' and r.health_inputs = r.inputs \
         union all select 'Unknown' \
         from (select cluster from towline_cluster where reachable = false and identity is null limit 1000) p \
           join clusters c on c.kind = 'clusters' and c.id = p.cluster and c.deleted_at is null \
           join clustersyncs s on s.kind = 'clustersyncs' and s.namespace = c.namespace and s.name = c.name \
           cross join lateral jsonb_path_query(s.status, '$.*[*] ? (exists (@.health) && !exists (@.result))')) u \
         group by state) h), \
       (select jsonb_agg(jsonb_build_array(state, reason, rollouts))::text from ( \
         select state, reason, count(*) as rollouts from towline_rollout group by state, reason) r), \
       (select count(*) from towline_guard where checked < 0 and not held) \
     from towline_claim d, towline_meta m where d.name = 'dispatcher'";

impl Counted {
    pub async fn read(database: &Database, queue: &WorkQueue) -> Result<Self, DispatchError> {
        const QUERY: &str = "syncsets_overview";
        let mut counted = Self { work: queue.counts().await?, ..Self::default() };
        let rows = database.all(QUERY, REST, &[]).await?;
        let mut now = Timestamp::now();
        if let Some(row) = rows.first() {
            counted.dispatcher = DispatcherState {
                holder: column(QUERY, row, 0)?,
                cursor: column(QUERY, row, 1)?,
                newest: column(QUERY, row, 2)?,
                lag: seconds(column(QUERY, row, 3)?),
            };
            counted.oldest = seconds(column(QUERY, row, 4)?);
            now = column::<&str>(QUERY, row, 5)?.parse().unwrap_or(now);
            let health = column::<Option<&str>>(QUERY, row, 6)?.and_then(|text| serde_json::from_str(text).ok());
            counted.health = health.unwrap_or_default();
            let rollouts = column::<Option<&str>>(QUERY, row, 7)?.and_then(|text| serde_json::from_str(text).ok());
            let rollouts: Vec<(String, String, usize)> = rollouts.unwrap_or_default();
            counted.counting = number(column(QUERY, row, 8)?);
            for (state, reason, count) in rollouts {
                let Some(state) = RolloutPhase::of_name(&state) else { continue };
                *counted.rollouts.entry(RolloutGroup::of(state, &reason)).or_default() += count;
            }
        }
        let pausing = counted.count_states(database, now).await?;
        if counted.of(ObjectState::Unreachable) > 0 {
            counted.unreachable = unreachable(database, &pausing).await?;
        }
        counted.failures = failures(database).await?;
        let held = suspended_within(database, |_| String::new(), Some(MOST_READ), true).await?;
        (counted.suspended, counted.more_suspended) = held;
        let stopped = [RolloutGroup::Paused, RolloutGroup::Stopped, RolloutGroup::Aborted, RolloutGroup::RolledBack];
        if stopped.iter().any(|group| counted.rollouts.contains_key(group)) {
            (counted.stopped, counted.more_stopped) = stopped_rollouts(database, MOST_READ).await?;
        }
        Ok(counted)
    }

    /// Counts the clusters by state, and those with a refused kubeconfig, which are unreachable. Returns the values of `pause-until` that pause
    /// some of these.
    async fn count_states(&mut self, database: &Database, now: Timestamp) -> Result<Vec<String>, db::Error> {
        const QUERY: &str = "count_clusters_by_state";
        let keys: Vec<String> = PAUSES.map(str::to_owned).to_vec();
        let mut pausing: Vec<String> = Vec::new();
        self.states = CLUSTER_STATES.into_iter().map(|state| (state, 0)).collect();
        for row in &database.all(QUERY, STATES, &[(&keys as _, Type::TEXT_ARRAY)]).await? {
            let (name, clusters, pause): (&str, i64, Option<&str>) =
                (column(QUERY, row, 0)?, column(QUERY, row, 1)?, column(QUERY, row, 2)?);
            let state = state_of(name, pause, now);
            match (state, name) {
                (ObjectState::Paused, "refused" | "unreachable") => pausing.extend(pause.map(str::to_owned)),
                (ObjectState::Unreachable, "refused") => self.refused += number(clusters),
                _ => {}
            }
            *self.states.entry(state).or_default() += number(clusters);
        }
        Ok(pausing)
    }

    pub fn of(&self, state: ObjectState) -> usize {
        self.states.get(&state).copied().unwrap_or_default()
    }
}

/// The state of a cluster of which this was read.
fn state_of(name: &str, pause: Option<&str>, now: Timestamp) -> ObjectState {
    if is_paused(pause, now) {
        return ObjectState::Paused;
    }
    let name = if name == "refused" { "unreachable" } else { name };
    CLUSTER_STATES.into_iter().find(|state| state.as_str() == name).unwrap_or(ObjectState::Pending)
}

async fn unreachable(database: &Database, pausing: &[String]) -> Result<Vec<UnreachableCluster>, db::Error> {
    const QUERY: &str = "unreachable_clusters";
    let keys: Vec<String> = PAUSES.map(str::to_owned).to_vec();
    let params = [(&keys as _, Type::TEXT_ARRAY), (&MOST_READ as _, Type::INT8), (&pausing as _, Type::TEXT_ARRAY)];
    let mut found = Vec::new();
    for row in &database.all(QUERY, UNREACHABLE, &params).await? {
        let conditions = column::<Option<&str>>(QUERY, row, 1)?.and_then(|text| serde_json::from_str(text).ok());
        found.push(UnreachableCluster {
            cluster: column(QUERY, row, 0)?,
            condition: why(&conditions.unwrap_or_default()),
        });
    }
    Ok(found)
}

/// How many clusters in these namespaces are not reachable, and namespace and name of the first ones. Those that are paused do not count.
pub(in crate::syncset) async fn unreachable_within(
    database: &Database,
    namespaces: &NamespaceFilter,
) -> Result<(usize, Vec<(String, String)>), db::Error> {
    const QUERY: &str = "count_unreachable_clusters";
    let (mut parameters, now) = (Parameters::default(), Timestamp::now());
    parameters.texts(Some(PAUSES.map(str::to_owned).to_vec()));
    let text = format!(
        "select count(*), pause, (array_agg(namespace order by namespace, name))[1:{FIRST_UNREACHABLE}], \
           (array_agg(name order by namespace, name))[1:{FIRST_UNREACHABLE}] \
         from (select c.namespace, c.name, {}{}{} and exists ( \
             select from towline_cluster p where p.cluster = c.id and p.reachable = false)) u group by pause",
        pause!(),
        clusters!(),
        namespaces.condition(&mut parameters),
    );
    let (mut count, mut first) = (0, Vec::new());
    for row in &database.all(QUERY, &text, &parameters.as_params()).await? {
        if is_paused(column(QUERY, row, 1)?, now) {
            continue;
        }
        count += number(column(QUERY, row, 0)?);
        let (namespaces, clusters): (Vec<String>, Vec<String>) = (column(QUERY, row, 2)?, column(QUERY, row, 3)?);
        first.extend(namespaces.into_iter().zip(clusters));
    }
    first.sort();
    first.truncate(FIRST_UNREACHABLE);
    Ok((count, first))
}

/// What the conditions of a `ClusterSync` say of it.
fn why(conditions: &Value) -> Option<(Unreachable, String, Timestamp)> {
    let mut conditions = conditions.as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == "Unreachable" && condition["status"] == "True")?;
    let text = |field: &str| found.get(field).and_then(Value::as_str);
    let reason = Unreachable::of_name(text("reason")?)?;
    Some((reason, text("message")?.to_owned(), text("lastTransitionTime")?.parse().ok()?))
}

async fn failures(database: &Database) -> Result<Vec<FailingSyncset>, db::Error> {
    const QUERY: &str = "last_failing_syncsets";
    let rows = database.all(QUERY, FAILURES, &[(&MOST_READ, Type::INT8)]).await?;
    let failure = |row| -> Result<FailingSyncset, db::Error> {
        let (kind, namespace, name): (Option<&str>, &str, &str) =
            (column(QUERY, row, 0)?, column(QUERY, row, 1)?, column(QUERY, row, 2)?);
        let slash = if namespace.is_empty() { "" } else { "/" };
        Ok(FailingSyncset {
            cluster: column(QUERY, row, 3)?,
            syncset: kind.map(|kind| format!("{kind} {namespace}{slash}{name}")),
            reason: column::<Option<String>>(QUERY, row, 4)?.unwrap_or_default(),
            message: column::<Option<String>>(QUERY, row, 5)?.unwrap_or_default(),
            age: seconds(column(QUERY, row, 6)?).unwrap_or_default(),
        })
    };
    rows.iter().map(failure).collect()
}

fn seconds(seconds: Option<f64>) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds?.max(0.0)).ok()
}

fn number(count: i64) -> usize {
    usize::try_from(count).unwrap_or_default()
}

//! The states of the clusters in some namespaces: counted, and in pages. What they cost grows with what these namespaces have.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{number, seconds, state_of, why};
use crate::db::{self, Database, Row, column};
use crate::documents::{Filter, HAS_HEALTH, IS_WHOLE, Kind, ListError, Parameters, label_conditions};
use crate::status::ObjectState;
use crate::syncset::plan::action::PAUSES;
use crate::syncset::run::paused::pause;

/// Namespaces by their names, all if there are none, or by the beginnings of their names.
#[derive(Clone, Debug, Default)]
pub struct NamespaceFilter {
    pub names: Option<Vec<String>>,
    pub prefixes: Vec<String>,
}

impl NamespaceFilter {
    /// That the cluster `c` is in one of them, preceded by `and`. An index finds these.
    pub(in crate::syncset) fn condition(&self, parameters: &mut Parameters) -> String {
        let Some(names) = &self.names else { return String::new() };
        let mut any = vec![format!("c.namespace = any({})", parameters.texts(Some(names.clone())))];
        for prefix in &self.prefixes {
            // `~` is behind everything that a name has.
            let (first, end) = (parameters.text(prefix.as_str()), parameters.text(format!("{prefix}~")));
            any.push(format!("(c.namespace >= {first} and c.namespace < {end})"));
        }
        format!(" and ({})", any.join(" or "))
    }
}

/// How many clusters are in each state.
pub type States = BTreeMap<ObjectState, usize>;

/// Clusters by state, and by the values of a label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub states: States,
    /// The values with the most clusters, these first; `None` are the clusters without the label.
    pub groups: Vec<(Option<String>, States)>,
    /// How many values there are beside these.
    pub more: usize,
}

/// How many clusters are in each state, and of these by the value of a label, for at most so many values.
pub async fn states_within(
    database: &Database,
    namespaces: &NamespaceFilter,
    label: Option<&str>,
    most: i64,
) -> Result<Counts, ListError> {
    const QUERY: &str = "count_fleet";
    let (mut parameters, now) = (Parameters::default(), Timestamp::now());
    parameters.texts(Some(PAUSES.map(str::to_owned).to_vec()));
    let within = namespaces.condition(&mut parameters);
    let (value, groups) = match label {
        None => (
            "null::text".to_owned(),
            "null::text as value, state, pause, true as is_of_all, count(*) as clusters from state group by state, pause",
        ),
        Some(label) => (
            format!("c.labels->>{}", parameters.text(label)),
            "value, state, pause, grouping(value) = 1 as is_of_all, count(*) as clusters from state \
             group by grouping sets ((state, pause), (value, state, pause))",
        ),
    };
    let most = parameters.number(most);
    let text = format!(
        "with mine as (select c.id, {value} as value, {}{}{within}), {}, \
         counted as (select {groups}), \
         sized as (select *, sum(clusters) over (partition by is_of_all, value) as size from counted), \
         placed as (select *, dense_rank() over (order by is_of_all desc, size desc, value collate \"C\") - 1 as place from sized), \
         shown as (select *, max(place) over () as groups from placed) \
         select w.is_whole, s.state, s.clusters, s.pause, s.value, s.is_of_all, s.groups \
         from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join shown s on s.place <= {most} order by s.place",
        pause!(),
        clusters!(),
        if namespaces.names.is_none() { state!(all) } else { state!(mine) },
    );
    let rows = database.all(QUERY, &text, &parameters.as_params()).await?;
    check_whole(QUERY, &rows)?;
    let mut counts = Counts::default();
    for row in &rows {
        let Some(name) = column::<Option<&str>>(QUERY, row, 1)? else { continue };
        let (clusters, state) = (number(column(QUERY, row, 2)?), state_of(name, column(QUERY, row, 3)?, now));
        counts.more = number(column(QUERY, row, 6)?);
        let states = if column(QUERY, row, 5)? {
            &mut counts.states
        } else {
            let value: Option<String> = column(QUERY, row, 4)?;
            if counts.groups.last().is_none_or(|(last, _)| *last != value) {
                counts.groups.push((value, States::new()));
            }
            let Some((_, states)) = counts.groups.last_mut() else { continue };
            states
        };
        *states.entry(state).or_default() += clusters;
    }
    counts.more = counts.more.saturating_sub(counts.groups.len());
    Ok(counts)
}

/// A syncset, on whose clusters a page looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncsetFilter {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// Only clusters where it is so: one of [`OUTCOMES`] or [`HELD`]. Without it, all on which it was tried.
    pub outcome: Option<&'static str>,
}

/// How a syncset is on a cluster: it was not applied, or its health as it was read last, or it has none.
pub const OUTCOMES: [&str; 7] = ["not_applied", "failed", "late", "unknown", "progressing", "current", "applied"];
/// Its deletions are held on a cluster, whatever else it is there.
pub const HELD: &str = "held";

/// A [`SyncsetFilter`] as SQL.
struct SyncsetText {
    /// The ids as an array: that of its document, and those of which deletions are held, which may be gone.
    ids: String,
    /// One of [`OUTCOMES`] of `r`, a row of `towline_result`, with `p`, that of its cluster. What has `spec.health` and was not read since it
    /// was applied is counted as progressing in the syncset's status, too.
    outcome: String,
}

impl SyncsetFilter {
    fn text(&self, parameters: &mut Parameters) -> SyncsetText {
        let [plural, kind, namespace, name] =
            [self.kind.plural(), self.kind.name(), &self.namespace, &self.name].map(|text| parameters.text(text));
        let of_document =
            |of: &str| format!("{of}.kind = {plural} and {of}.namespace = {namespace} and {of}.name = {name}");
        let ids = format!(
            "array(select s.id from towline_documents s where {} \
               union select h.syncset from towline_guard h \
               where h.held and h.kind = {kind} and h.namespace = {namespace} and h.name = {name})",
            of_document("s")
        );
        let outcome = format!(
            "case when r.result = 'Failure' then 'not_applied' \
               when r.health is null and not exists (select from towline_documents t where {} and {HAS_HEALTH}) then 'applied' \
               when p.reachable = false then 'unknown' when r.health_inputs is distinct from r.inputs then 'progressing' \
               when r.health->>'reason' = 'Late' then 'late' else lower(r.health_state) end",
            of_document("t")
        );
        SyncsetText { ids, outcome }
    }

    /// That it was tried on the cluster `c`, or is so there, preceded by `and`. What is rare has an index.
    fn condition(&self, SyncsetText { ids, outcome: of_row }: &SyncsetText) -> String {
        let mut result = "towline_result r".to_owned();
        let mut so = String::new();
        match self.outcome {
            None => {}
            Some(HELD) => {
                return format!(
                    " and exists (select from towline_lost l join towline_guard h on h.syncset = l.syncset \
                       where l.cluster = c.id and l.syncset = any({ids}) and h.held and l.objects > l.approved)"
                );
            }
            Some("not_applied") => so.push_str(" and r.result = 'Failure'"),
            Some(outcome) => {
                result.push_str(" left join towline_cluster p on p.cluster = r.cluster");
                so = format!(" and {of_row} = '{outcome}'");
                if matches!(outcome, "failed" | "late") {
                    so.push_str(" and (r.health_state = 'Failed' or r.health->>'reason' = 'Late')");
                }
            }
        }
        format!(" and exists (select from {result} where r.cluster = c.id and r.syncset = any({ids}){so})")
    }
}

/// Which clusters a page has.
#[derive(Clone, Debug)]
pub struct Selection {
    pub namespaces: NamespaceFilter,
    /// Of which the labels count.
    pub filter: Filter,
    pub state: Option<ObjectState>,
    /// Only those with this in `namespace/name`.
    pub text: String,
    pub syncset: Option<SyncsetFilter>,
    /// Namespace and name of the last one that is not asked for.
    pub after: Option<(String, String)>,
    pub limit: usize,
}

/// A cluster with its state, and why it is in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedCluster {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub state: ObjectState,
    /// For how long it is in the state, as far as that is known: has not answered, has had a syncset that fails, or has been due.
    pub age: Option<Duration>,
    /// How many syncsets fail on it, and which one failed last, or the one that was asked for: its kind and name, reason and message.
    pub failing: usize,
    pub syncset: Option<String>,
    /// One of [`OUTCOMES`], of the one that was asked for.
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// A page: `limit` clusters, fewer only if there are no more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPage {
    pub clusters: Vec<ListedCluster>,
    /// The last cluster of the page, after which the next page begins, if there is one.
    pub next: Option<(String, String)>,
}

const PAGE: &str = "page_of_fleet";

impl Selection {
    /// A statement for so many clusters, which always returns a row. Without a state, states are found out for these alone, and in any case
    /// what is shown beside the state.
    fn statement(&self, after: Option<&(String, String)>, limit: i64, parameters: &mut Parameters) -> String {
        parameters.texts(Some(PAUSES.map(str::to_owned).to_vec()));
        let mut of_cluster =
            vec![self.namespaces.condition(parameters), label_conditions(&self.filter, "c", parameters)];
        if !self.text.is_empty() {
            let text = parameters.text(self.text.as_str());
            of_cluster.push(format!(" and strpos(c.namespace || '/' || c.name, {text}) > 0"));
        }
        if let Some((namespace, name)) = after {
            let (namespace, name) = (parameters.text(namespace.as_str()), parameters.text(name.as_str()));
            of_cluster.push(format!(" and (c.namespace, c.name) > ({namespace}, {name})"));
        }
        let asked = self.syncset.as_ref().map(|syncset| (syncset, syncset.text(parameters)));
        of_cluster.extend(asked.iter().map(|(syncset, text)| syncset.condition(text)));
        let told = asked.map_or_else(
            || {
                "select * from (select null as kind, null as namespace, null as name, p.failure->>'reason' as reason, \
                     p.failure->>'message' as message, null as outcome, 0 as place \
                   from towline_cluster p where p.cluster = g.id and p.failure is not null \
                   union all (select r.kind, r.namespace, r.name, r.reason, r.message, null, 1 from towline_result r \
                     where r.cluster = g.id and r.result = 'Failure' order by r.since desc, r.syncset limit 1)) t order by place limit 1"
                    .to_owned()
            },
            |(_, SyncsetText { ids, outcome })| {
                // What was read of other inputs says nothing.
                let read = |field: &str| {
                    format!("coalesce(r.{field}, case when r.health_inputs = r.inputs then r.health->>'{field}' end) as {field}")
                };
                let (reason, message) = (read("reason"), read("message"));
                format!(
                    "select r.kind, r.namespace, r.name, {reason}, {message}, {outcome} as outcome from towline_result r \
                       left join towline_cluster p on p.cluster = r.cluster \
                       where r.cluster = g.id and r.syncset = any({ids}) order by r.since desc limit 1"
                )
            },
        );
        let of_cluster = of_cluster.concat();
        let first = format!(" order by namespace, name limit {}", parameters.number(limit));
        // Those whose `pause-until` is not compared here are decided about when they are read.
        let (of_all, of_state) = match self.state {
            None => (first, String::new()),
            Some(ObjectState::Paused) => (String::new(), format!(" where pause is not null{first}")),
            Some(ObjectState::Unreachable) => {
                let unreachable = "state in ('refused', 'unreachable') and pause is distinct from ''";
                (String::new(), format!(" where {unreachable}{first}"))
            }
            Some(state) => {
                (String::new(), format!(" where state = '{}' and pause is distinct from ''{first}", state.as_str()))
            }
        };
        format!(
            "with mine as (select c.id, c.namespace, c.name, {}{}{of_cluster}{of_all}), {}, \
             page as (select * from state{of_state}) \
             select w.is_whole, g.namespace, g.name, g.state, g.pause, d.labels::text, \
               extract(epoch from now() - case g.state when 'failing' then n.since when 'pending' then g.due_since \
                 when 'refused' then g.last_contact when 'unreachable' then g.last_contact end)::float8, n.failing, \
               l.kind || ' ' || case when l.namespace = '' then '' else l.namespace || '/' end || l.name, l.reason, l.message, \
               case when g.state in ('refused', 'unreachable') then (y.status->'conditions')::text end, l.outcome \
             from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join page g on true \
             left join clusters d on d.kind = 'clusters' and d.id = g.id \
             left join lateral (select count(*) as failing, coalesce(min(r.since), (select (p.failure->>'since')::timestamptz \
                 from towline_cluster p where p.cluster = g.id)) as since \
               from towline_result r where r.cluster = g.id and r.result = 'Failure') n on true \
             left join lateral ({told}) l on true \
             left join clustersyncs y on y.kind = 'clustersyncs' and y.namespace = g.namespace and y.name = g.name \
             order by g.namespace, g.name",
            pause!(),
            clusters!(),
            state!(mine),
        )
    }

    /// One statement, and further ones only if it has read clusters that are in another state by a `pause-until` that the database can't read.
    pub async fn page(&self, database: &Database) -> Result<ClusterPage, ListError> {
        let (mut clusters, mut after, now) = (Vec::new(), self.after.clone(), Timestamp::now());
        // The one more says that there is another page.
        let asked = self.limit.saturating_add(1);
        while clusters.len() < asked {
            let mut parameters = Parameters::default();
            let limit = i64::try_from(asked).unwrap_or(i64::MAX);
            let text = self.statement(after.as_ref(), limit, &mut parameters);
            let rows = database.all(PAGE, &text, &parameters.as_params()).await?;
            check_whole(PAGE, &rows)?;
            let mut read = 0;
            for row in &rows {
                let Some(cluster) = listed(row, now)? else { break };
                read += 1;
                after = Some((cluster.namespace.clone(), cluster.name.clone()));
                clusters.extend(Some(cluster).filter(|cluster| self.state.is_none_or(|state| state == cluster.state)));
            }
            if read < asked {
                break;
            }
        }
        let is_last = clusters.len() < asked;
        clusters.truncate(self.limit);
        let next = clusters.last().filter(|_| !is_last);
        let next = next.map(|last| (last.namespace.clone(), last.name.clone()));
        Ok(ClusterPage { clusters, next })
    }
}

/// A row of a page; none for that which says that there is no cluster.
fn listed(row: &Row, now: Timestamp) -> Result<Option<ListedCluster>, db::Error> {
    let Some(namespace) = column::<Option<String>>(PAGE, row, 1)? else { return Ok(None) };
    let state = state_of(column(PAGE, row, 3)?, column(PAGE, row, 4)?, now);
    let conditions = column::<Option<&str>>(PAGE, row, 11)?.and_then(|text| serde_json::from_str(text).ok());
    let mut age = seconds(column(PAGE, row, 6)?);
    let (reason, message) = match conditions.as_ref().and_then(|conditions: &Value| why(conditions)) {
        Some((reason, message, since)) => {
            age = Duration::try_from(now.duration_since(since)).ok();
            (Some(reason.as_str().to_owned()), Some(message))
        }
        None => (column(PAGE, row, 9)?, column(PAGE, row, 10)?),
    };
    Ok(Some(ListedCluster {
        namespace,
        name: column(PAGE, row, 2)?,
        labels: serde_json::from_str(column(PAGE, row, 5)?).unwrap_or_default(),
        state,
        age: age.filter(|_| state != ObjectState::Paused),
        failing: number(column(PAGE, row, 7)?),
        syncset: column(PAGE, row, 8)?,
        outcome: column(PAGE, row, 12)?,
        reason,
        message,
    }))
}

impl ListedCluster {
    /// The cluster of this name, if there is one.
    pub async fn read(database: &Database, namespace: &str, name: &str) -> Result<Option<Self>, ListError> {
        let one = Selection {
            namespaces: NamespaceFilter { names: Some(vec![namespace.to_owned()]), prefixes: Vec::new() },
            filter: Filter::of(Kind::Cluster),
            state: None,
            // Of names that begin so this is the first one.
            text: format!("{namespace}/{name}"),
            syncset: None,
            after: None,
            limit: 1,
        };
        Ok(one.page(database).await?.clusters.pop().filter(|cluster| cluster.name == name))
    }
}

/// How a syncset was applied to a cluster last.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedSyncset {
    /// `SyncSet team-a/base`.
    pub syncset: String,
    /// That of the document, as it was applied.
    pub generation: i64,
    pub is_applied: bool,
    /// Since when that is so.
    pub since: String,
    pub age: Option<Duration>,
}

/// The syncsets of a cluster, those first that fail, then those that have changed last: at most so many, and how many there are.
pub async fn applied_on(
    database: &Database,
    cluster: &ListedCluster,
    most: i64,
) -> Result<(Vec<AppliedSyncset>, usize), db::Error> {
    const QUERY: &str = "syncsets_of_cluster";
    let mut parameters = Parameters::default();
    let [namespace, name] = [&cluster.namespace, &cluster.name].map(|text| parameters.text(text.as_str()));
    let text = format!(
        "select r.kind || ' ' || case when r.namespace = '' then '' else r.namespace || '/' end || r.name, r.generation, r.result = 'Success', \
           to_json(date_trunc('second', r.since) at time zone 'UTC') #>> '{{}}', extract(epoch from now() - r.since)::float8, count(*) over () \
         from clusters c join towline_result r on r.cluster = c.id \
         where c.kind = 'clusters' and c.namespace = {namespace} and c.name = {name} and c.deleted_at is null \
         order by r.result = 'Success', r.since desc, r.syncset limit {}",
        parameters.number(most)
    );
    let rows = database.all(QUERY, &text, &parameters.as_params()).await?;
    let all = rows.first().map(|row| column(QUERY, row, 5)).transpose()?.map(number).unwrap_or_default();
    let of_row = |row: &Row| {
        Ok::<_, db::Error>(AppliedSyncset {
            syncset: column(QUERY, row, 0)?,
            generation: column(QUERY, row, 1)?,
            is_applied: column(QUERY, row, 2)?,
            since: format!("{}Z", column::<&str>(QUERY, row, 3)?),
            age: seconds(column(QUERY, row, 4)?),
        })
    };
    Ok((rows.iter().map(of_row).collect::<Result<_, _>>()?, all))
}

/// While a dump is being restored, half of the clusters look like all of them.
fn check_whole(query: &'static str, rows: &[Row]) -> Result<(), ListError> {
    let first = rows.first().map(|row| column::<bool>(query, row, 0)).transpose()?;
    if first == Some(true) { Ok(()) } else { Err(ListError::Restoring) }
}

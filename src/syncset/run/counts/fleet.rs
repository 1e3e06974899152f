//! The states of the clusters in some namespaces: counted, and in pages.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{SyncState, number, seconds, state_of, why};
use crate::db::{Database, Row, Type, column};
use crate::documents::{Filter, IS_WHOLE, ListError, Parameters, label_conditions};
use crate::syncset::plan::action::PAUSES;

/// Namespaces by their names, all if there are none, or by the beginnings of their names.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub names: Option<Vec<String>>,
    pub prefixes: Vec<String>,
}

/// How many clusters are in each state.
pub type States = BTreeMap<SyncState, usize>;

/// With the value of a label. It always returns a row.
const STATES_WITHIN: &str = concat!(
    "with ",
    failing_and_held!(),
    ", state as (select c.labels->>$4 as value, ",
    state_and_marks!(),
    clusters!(),
    " and ",
    within!(),
    "), grouped as (select value, state, count(*) as clusters, marks::text from state group by value, state, marks) "
);

/// How many clusters are in each state, by the value of a label; by none without one.
pub async fn states_within(
    database: &Database,
    places: &Places,
    label: Option<&str>,
) -> Result<BTreeMap<Option<String>, States>, ListError> {
    const QUERY: &str = "count_fleet";
    let (keys, now) = (PAUSES.map(str::to_owned).to_vec(), Timestamp::now());
    let text = format!(
        "{STATES_WITHIN}select w.is_whole, g.state, g.clusters, g.marks, g.value \
         from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join grouped g on true"
    );
    let params = [
        (&keys as _, Type::TEXT_ARRAY),
        (&places.names as _, Type::TEXT_ARRAY),
        (&places.prefixes as _, Type::TEXT_ARRAY),
        (&label as _, Type::TEXT),
    ];
    let rows = database.all(QUERY, &text, &params).await?;
    check_whole(QUERY, &rows)?;
    let mut groups: BTreeMap<Option<String>, States> = BTreeMap::new();
    for row in &rows {
        let Some(name) = column::<Option<&str>>(QUERY, row, 1)? else { continue };
        let state = state_of(name, column(QUERY, row, 3)?, now);
        let states = groups.entry(column(QUERY, row, 4)?).or_default();
        *states.entry(state).or_default() += number(column(QUERY, row, 2)?);
    }
    Ok(groups)
}

/// A syncset as results name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncsetName {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// Which clusters a page has.
#[derive(Clone, Debug)]
pub struct Selection {
    pub places: Places,
    /// Of which the labels count.
    pub filter: Filter,
    pub state: Option<SyncState>,
    /// Only those with this in `namespace/name`.
    pub text: String,
    /// Only those on which this syncset fails.
    pub failing: Option<SyncsetName>,
    /// Namespace and name of the last one that is not asked for.
    pub after: Option<(String, String)>,
    pub limit: i64,
}

/// A cluster with its state, and why it is in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedCluster {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub state: SyncState,
    /// Since when it last answered, or failed, as far as that is known.
    pub age: Option<Duration>,
    /// How many syncsets fail on it, and which one failed last: its kind and name, reason and message.
    pub failing: usize,
    pub syncset: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// A page: up to `limit` clusters, and whether there may be more. A paused cluster may be left out after it was read, so that a page can have
/// fewer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPage {
    pub clusters: Vec<ListedCluster>,
    /// The last cluster of the page, after which the next page begins.
    pub next: Option<(String, String)>,
}

impl Selection {
    /// One statement, which always returns a row. The failure that is shown is looked up for the clusters of the page alone.
    fn statement(&self, parameters: &mut Parameters) -> String {
        // The first three are those of the macros.
        parameters.texts(Some(PAUSES.map(str::to_owned).to_vec()));
        parameters.texts(self.places.names.clone());
        parameters.texts(Some(self.places.prefixes.clone()));
        let mut of_cluster = vec![label_conditions(&self.filter, "c", parameters)];
        if !self.text.is_empty() {
            let text = parameters.text(self.text.as_str());
            of_cluster.push(format!(" and strpos(c.namespace || '/' || c.name, {text}) > 0"));
        }
        if let Some((namespace, name)) = &self.after {
            let (namespace, name) = (parameters.text(namespace.as_str()), parameters.text(name.as_str()));
            of_cluster.push(format!(" and (c.namespace, c.name) > ({namespace}, {name})"));
        }
        if let Some(SyncsetName { kind, namespace, name }) = &self.failing {
            let [kind, namespace, name] = [kind, namespace, name].map(|text| parameters.text(text.as_str()));
            of_cluster.push(format!(
                " and exists (select from towline_result r where r.cluster = c.id and r.result = 'Failure' \
                   and r.kind = {kind} and r.namespace = {namespace} and r.name = {name})"
            ));
        }
        let of_state = match self.state {
            None => String::new(),
            // Which of them are paused is decided from what was read.
            Some(SyncState::Paused) => " where marks is not null".to_owned(),
            Some(SyncState::Unreachable) => " where state in ('refused', 'unreachable')".to_owned(),
            Some(state) => format!(" where state = '{}'", state.as_str()),
        };
        let (of_cluster, limit) = (of_cluster.concat(), parameters.number(self.limit));
        format!(
            "with {}, page as (select * from (select c.id, c.namespace, c.name, c.labels, p.last_contact, {}{} and {}{of_cluster}) s{of_state} \
               order by namespace, name limit {limit}) \
             select w.is_whole, g.namespace, g.name, g.state, g.marks::text, g.labels::text, \
               extract(epoch from now() - coalesce(l.since, g.last_contact))::float8, n.failing, \
               l.kind || ' ' || case when l.namespace = '' then '' else l.namespace || '/' end || l.name, l.reason, l.message, \
               case when g.state in ('refused', 'unreachable') then (y.status->'conditions')::text end \
             from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join page g on true \
             left join lateral (select count(*) as failing from towline_result r where r.cluster = g.id and r.result = 'Failure') n on true \
             left join lateral (select r.* from towline_result r where r.cluster = g.id and r.result = 'Failure' \
               order by r.since desc, r.syncset limit 1) l on true \
             left join clustersyncs y on y.kind = 'clustersyncs' and y.namespace = g.namespace and y.name = g.name \
             order by g.namespace, g.name",
            failing_and_held!(),
            state_and_marks!(),
            clusters!(),
            within!(),
        )
    }

    pub async fn page(&self, database: &Database) -> Result<ClusterPage, ListError> {
        const QUERY: &str = "page_of_fleet";
        let (mut parameters, now) = (Parameters::default(), Timestamp::now());
        let text = self.statement(&mut parameters);
        let rows = database.all(QUERY, &text, &parameters.as_params()).await?;
        check_whole(QUERY, &rows)?;
        let mut page = ClusterPage::default();
        for row in &rows {
            let Some(namespace) = column::<Option<String>>(QUERY, row, 1)? else { continue };
            let name: String = column(QUERY, row, 2)?;
            page.next = Some((namespace.clone(), name.clone()));
            let state = state_of(column(QUERY, row, 3)?, column(QUERY, row, 4)?, now);
            if self.state.is_some_and(|wanted| wanted != state) {
                continue;
            }
            let conditions = column::<Option<&str>>(QUERY, row, 11)?.and_then(|text| serde_json::from_str(text).ok());
            let silent = conditions.as_ref().and_then(|conditions: &Value| why(conditions));
            let (reason, message) = match silent {
                Some((reason, message, _)) => (Some(reason.as_str().to_owned()), Some(message)),
                None => (column(QUERY, row, 9)?, column(QUERY, row, 10)?),
            };
            page.clusters.push(ListedCluster {
                namespace,
                name,
                labels: serde_json::from_str(column(QUERY, row, 5)?).unwrap_or_default(),
                state,
                age: seconds(column(QUERY, row, 6)?),
                failing: number(column(QUERY, row, 7)?),
                syncset: column(QUERY, row, 8)?,
                reason,
                message,
            });
        }
        let is_last = i64::try_from(rows.len()).unwrap_or(i64::MAX) < self.limit;
        page.next = page.next.filter(|_| !is_last);
        Ok(page)
    }
}

/// While a dump is being restored, half of the clusters look like all of them.
fn check_whole(query: &'static str, rows: &[Row]) -> Result<(), ListError> {
    let first = rows.first().map(|row| column::<bool>(query, row, 0)).transpose()?;
    if first == Some(true) { Ok(()) } else { Err(ListError::Restoring) }
}

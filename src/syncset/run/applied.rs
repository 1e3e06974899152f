//! On how many clusters syncsets are applied, as Hive's gauges show it.
//!
//! Counted are the clusters that a syncset is for, and those where it was tried before and something of it is left. It was never applied on
//! one without a result, for instance because the cluster has not been reached since.

use serde_json::Value;

use crate::db::{self, Database, Row, column};
use crate::documents::Parameters;
use crate::syncset::plan::matching::Audience;
use crate::syncset::run::dispatch::condition;

/// Most values of a metric's label that users can choose.
pub const MOST_LABELS: usize = 1000;
/// Most selections of one statement, and about how many values they compare.
const MOST_SELECTIONS: usize = 50;
const MOST_VALUES: usize = 500;

/// Pairs of clusters and syncsets, each with the result if there is one.
const COUNTS: &str = "count(*), count(*) filter (where r.result is distinct from 'Success' or r.first_success is null)";

/// `SyncSet`s name clusters of their own namespace.
fn of_syncsets() -> String {
    format!(
        "select {COUNTS} from ( \
             select distinct s.id as syncset, c.id as cluster from syncsets s \
               cross join lateral jsonb_array_elements(case jsonb_typeof(s.data #> '{{spec,clusterDeploymentRefs}}') \
                 when 'array' then s.data #> '{{spec,clusterDeploymentRefs}}' else '[]' end) r \
               join clusters c on c.kind = 'clusters' and c.namespace = s.namespace and c.name = r->>'name' \
             where s.kind = 'syncsets' and s.deleted_at is null and c.deleted_at is null) n \
           full join ( \
             select syncset, cluster, result, first_success from towline_result \
             where syncset in (select id from syncsets where kind = 'syncsets')) r on r.syncset = n.syncset and r.cluster = n.cluster"
    )
}

/// The selectors, the first ones in their order.
fn selectors() -> String {
    format!(
        "select id::text, name, deleted_at is not null, (data #> '{{spec,clusterDeploymentSelector}}')::text, \
           (data #> '{{spec,clusterNamespaces}}')::text \
         from selectorsyncsets where kind = 'selectorsyncsets' order by name limit {MOST_LABELS}"
    )
}

struct Selector {
    id: String,
    name: String,
    /// None if it is for no cluster any more, or if that can't be read.
    audience: Option<Audience>,
}

impl Selector {
    fn of(query: &'static str, row: &Row) -> Result<Self, db::Error> {
        let value = |index| -> Result<Option<Value>, db::Error> {
            let text = column::<Option<&str>>(query, row, index)?;
            // The database prints valid JSON.
            Ok(text.and_then(|text| serde_json::from_str(text).ok()))
        };
        let is_being_deleted: bool = column(query, row, 2)?;
        let audience = Audience::selected(value(3)?.as_ref(), value(4)?.as_ref());
        Ok(Self {
            id: column(query, row, 0)?,
            name: column(query, row, 1)?,
            audience: audience.filter(|_| !is_being_deleted),
        })
    }

    fn weight(&self) -> usize {
        self.audience.as_ref().map_or(0, Audience::weight)
    }

    /// The statement's part for this selector, the `number`th one.
    fn statement(&self, number: usize, parameters: &mut Parameters) -> String {
        let id = parameters.text(&self.id);
        let condition = self.audience.as_ref().map(|audience| condition(audience, parameters));
        let condition = condition.unwrap_or_else(|| "false".to_owned());
        format!(
            "select {number}::bigint, {COUNTS} \
             from (select c.id from clusters c where {condition} and c.deleted_at is null) n \
             full join (select * from towline_result where syncset = {id}::text::uuid) r on r.cluster = n.id"
        )
    }
}

/// As many as one statement may count.
fn batches(selectors: Vec<Selector>) -> Vec<Vec<Selector>> {
    let (mut batches, mut values): (Vec<Vec<Selector>>, usize) = (Vec::new(), 0);
    for selector in selectors {
        let weight = selector.weight();
        let room = batches.last_mut().filter(|batch| batch.len() < MOST_SELECTIONS && values + weight <= MOST_VALUES);
        if let Some(batch) = room {
            values += weight;
            batch.push(selector);
        } else {
            values = weight;
            batches.push(vec![selector]);
        }
    }
    batches
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sorted by name.
    pub selectors: Vec<SelectorApplied>,
    /// `SyncSet`s, each once for each of its clusters.
    pub syncsets: usize,
    /// Those of them that fail or were never applied.
    pub syncsets_unapplied: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectorApplied {
    pub name: String,
    pub clusters: usize,
    /// Those of them on which it fails or was never applied.
    pub unapplied: usize,
}

impl Applied {
    /// Counts. Each number is of one moment. Names beyond [`MOST_LABELS`] are left out, and so is what is gone.
    pub async fn read(database: &Database) -> Result<Self, db::Error> {
        const SYNCSETS: &str = "count_applied_syncsets";
        const SELECTORS: &str = "applied_selectors";
        const QUERY: &str = "count_applied_selectors";
        let mut applied = Self::default();
        if let Some(row) = database.all(SYNCSETS, &of_syncsets(), &[]).await?.first() {
            (applied.syncsets, applied.syncsets_unapplied) = (number(SYNCSETS, row, 0)?, number(SYNCSETS, row, 1)?);
        }
        let found = database.all(SELECTORS, &selectors(), &[]).await?;
        let found: Vec<Selector> = found.iter().map(|row| Selector::of(SELECTORS, row)).collect::<Result<_, _>>()?;
        for batch in batches(found) {
            let mut parameters = Parameters::default();
            let parts = batch.iter().enumerate().map(|(number, selector)| selector.statement(number, &mut parameters));
            let text = parts.collect::<Vec<_>>().join(" union all ");
            for row in &database.all(QUERY, &text, &parameters.as_params()).await? {
                if let Some(Selector { name, .. }) = batch.get(number(QUERY, row, 0)?) {
                    let (clusters, unapplied) = (number(QUERY, row, 1)?, number(QUERY, row, 2)?);
                    applied.selectors.push(SelectorApplied { name: name.clone(), clusters, unapplied });
                }
            }
        }
        // Parts of a statement come in any order.
        applied.selectors.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(applied)
    }
}

fn number(query: &'static str, row: &Row, index: usize) -> Result<usize, db::Error> {
    Ok(usize::try_from(column::<i64>(query, row, index)?).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_statement_has_too_many_selectors_or_values() {
        let selector = |values: usize| {
            let values: Vec<String> = (0..values).map(|value| value.to_string()).collect();
            let expression = |values: &[String]| json!({"key": "n", "operator": "In", "values": values});
            let expressions: Vec<Value> = values.chunks(200).map(expression).collect();
            let audience = Audience::selected(Some(&json!({"matchExpressions": expressions})), None);
            Selector { id: String::new(), name: values.len().to_string(), audience }
        };
        let sizes = |selectors: Vec<Selector>| batches(selectors).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(Vec::new()), Vec::<usize>::new());
        assert_eq!(sizes((0..120).map(|_| selector(1)).collect()), [50, 50, 20]);
        assert_eq!(sizes(vec![selector(100), selector(600), selector(400), selector(90), selector(10)]), [1, 1, 2, 1]);
    }
}

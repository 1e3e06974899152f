//! On how many clusters syncsets are applied, as Hive's gauges show it.

use crate::db::{self, Database, column};
use crate::syncset::metrics::MOST_LABELS;

const QUERY: &str = "count_applied_syncsets";

/// Of syncsets that are gone nothing is counted, and names beyond the limit are left out, the last ones in their order. One read of the
/// results, whatever there is of them.
fn statement() -> String {
    format!(
        "with counted as materialized ( \
           select syncset, count(*) as clusters, count(*) filter (where result <> 'Success' or first_success is null) as unapplied \
           from towline_result group by syncset) \
         select null::text, coalesce(sum(c.clusters), 0)::bigint, coalesce(sum(c.unapplied), 0)::bigint \
           from counted c join syncsets s on s.kind = 'syncsets' and s.id = c.syncset \
         union all (select s.name, c.clusters, c.unapplied from counted c \
           join selectorsyncsets s on s.kind = 'selectorsyncsets' and s.id = c.syncset order by s.name limit {MOST_LABELS})"
    )
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// By name.
    pub selectors: Vec<SelectorApplied>,
    /// `SyncSet`s, each once for each of its clusters.
    pub syncsets: usize,
    /// Those of them that fail or were never applied.
    pub syncsets_unapplied: usize,
}

/// A `SelectorSyncSet`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectorApplied {
    /// Its name.
    pub name: String,
    /// Clusters on which it was tried.
    pub clusters: usize,
    /// Those of them on which it fails or was never applied.
    pub unapplied: usize,
}

impl Applied {
    pub(super) async fn read(database: &Database) -> Result<Self, db::Error> {
        let mut applied = Self::default();
        for row in &database.all(QUERY, &statement(), &[]).await? {
            let number = |index| -> Result<usize, db::Error> {
                Ok(usize::try_from(column::<i64>(QUERY, row, index)?).unwrap_or_default())
            };
            let (clusters, unapplied) = (number(1)?, number(2)?);
            if let Some(name) = column(QUERY, row, 0)? {
                applied.selectors.push(SelectorApplied { name, clusters, unapplied });
            } else {
                (applied.syncsets, applied.syncsets_unapplied) = (clusters, unapplied);
            }
        }
        Ok(applied)
    }
}

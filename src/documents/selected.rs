//! Which documents a filter shows, by their ids.

use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::filter::Filter;
use super::list_error::ListError;
use super::restored::IS_WHOLE;
use super::selector::{Parameters, label_conditions, place_conditions};
use crate::db::{self, Database, Json, Type, column};

/// The ids of the documents that a filter shows, without those whose deletion was requested. One statement.
pub async fn selected_ids(database: &Database, filter: &Filter) -> Result<Vec<Uuid>, ListError> {
    const QUERY: &str = "selected_ids";
    let mut parameters = Parameters::default();
    let place = place_conditions(filter, "t", &mut parameters);
    let labels = label_conditions(filter, "t", &mut parameters);
    let text = format!(
        "select w.is_whole, d.id::text from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w \
         left join lateral (select t.id from towline_documents t where {place}t.deleted_at is null{labels}) d on true",
    );
    let rows = database.all(QUERY, &text, &parameters.as_params()).await?;
    let first = rows.first().map(|row| column::<bool>(QUERY, row, 0)).transpose()?;
    if first != Some(true) {
        return Err(ListError::Restoring);
    }
    let mut ids = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(id) = column::<Option<&str>>(QUERY, row, 1)? else { continue };
        ids.push(id.parse().map_err(|error| db::Error::Decode { query: QUERY, source: Arc::new(error) })?);
    }
    Ok(ids)
}

/// Those of these clusters that do not exist, by namespace and name.
pub async fn missing_clusters(
    database: &Database,
    clusters: &[(String, String)],
) -> Result<Vec<(String, String)>, db::Error> {
    const QUERY: &str = "missing_clusters";
    const TEXT: &str = "select n.e->>0, n.e->>1 from jsonb_array_elements($1) with ordinality n(e, place) \
         where not exists (select from clusters c where c.kind = 'clusters' and c.namespace = n.e->>0 and c.name = n.e->>1) \
         order by n.place";
    let rows = database.all(QUERY, TEXT, &[(&Json(json!(clusters)), Type::JSONB)]).await?;
    rows.iter().map(|row| Ok((column(QUERY, row, 0)?, column(QUERY, row, 1)?))).collect()
}

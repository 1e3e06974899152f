//! Which clusters changes concern, as the database knows it.

use uuid::Uuid;

use super::concern::Concern;
use super::error::DispatchError;
use super::ids;
use super::selection::{Parameter, Parameters};
use super::suspended::Released;
use super::tracked::tracked;
use crate::db::{Transaction, Type, column};

/// Adds the clusters of the syncsets that map changed secrets. A syncset that no longer maps one is covered by its own change.
pub(super) async fn mappers(
    transaction: &mut Transaction<'static>,
    mut concern: Concern,
) -> Result<Concern, DispatchError> {
    const QUERY: &str = "secret_mappers";
    const TEXT: &str = "with changed as materialized (select jsonb_build_array(jsonb_build_object('sourceRef', \
           jsonb_build_object('namespace', namespace, 'name', name))) as mapping from unnest($1::text[], $2::text[]) c(namespace, name)) \
         select s.namespace, (s.data #> '{spec,clusterDeploymentRefs}')::text, null, null from changed \
           join syncsets s on s.data #> '{spec,secretMappings}' @> changed.mapping \
         union select null, null, (s.data #> '{spec,clusterDeploymentSelector}')::text, (s.data #> '{spec,clusterNamespaces}')::text \
           from changed join selectorsyncsets s on s.data #> '{spec,secretMappings}' @> changed.mapping";
    if concern.secrets.is_empty() {
        return Ok(concern);
    }
    let (namespaces, names): (Vec<String>, Vec<String>) = std::mem::take(&mut concern.secrets).into_iter().unzip();
    let params = [(&namespaces as _, Type::TEXT_ARRAY), (&names as _, Type::TEXT_ARRAY)];
    for row in &transaction.all(QUERY, TEXT, &params).await? {
        let value = |index| -> Result<Option<serde_json::Value>, DispatchError> {
            let text = column::<Option<&str>>(QUERY, row, index)?;
            // The database prints valid JSON.
            Ok(text.and_then(|text| serde_json::from_str(text).ok()))
        };
        match column::<Option<&str>>(QUERY, row, 0)? {
            Some(namespace) => concern.add_refs(namespace, value(1)?.as_ref()),
            None => concern.add_selection(value(2)?.as_ref(), value(3)?.as_ref()),
        }
    }
    Ok(concern.limited())
}

/// The clusters that are concerned, and those where these syncsets track objects: one statement, whatever the changes are.
pub(super) async fn concerned(
    transaction: &mut Transaction<'static>,
    concern: &Concern,
    released: &[Released],
) -> Result<Vec<Uuid>, DispatchError> {
    const QUERY: &str = "concerned_clusters";
    if concern.is_empty() && released.is_empty() {
        return Ok(Vec::new());
    }
    let mut parameters = Parameters::default();
    let texts = |texts: Vec<String>| Parameter::Texts(texts);
    let text = if concern.all {
        "select c.id::text from clusters c".to_owned()
    } else {
        let ids = parameters.add(texts(concern.clusters.iter().map(Uuid::to_string).collect()));
        let (namespaces, names) = concern.named.iter().cloned().unzip();
        let (namespaces, names) = (parameters.add(texts(namespaces)), parameters.add(texts(names)));
        let mut text = format!(
            "select c.id::text from clusters c where c.kind = 'clusters' and c.id = any({ids}::text[]::uuid[]) \
             union select c.id::text from unnest({namespaces}::text[], {names}::text[]) r(namespace, name) join clusters c \
               on c.kind = 'clusters' and c.namespace = r.namespace and c.name = r.name"
        );
        for selection in &concern.selections {
            let condition = selection.condition(&mut parameters);
            text.push_str(" union select c.id::text from clusters c where ");
            text.push_str(&condition);
        }
        if !released.is_empty() {
            let released = parameters.add(texts(released.iter().map(|released| released.id.to_string()).collect()));
            let of_released = format!(
                " union select t.cluster::text from unnest({released}::text[]::uuid[]) i(id) cross join lateral ({}) t",
                tracked("i.id")
            );
            text.push_str(&of_released);
        }
        text
    };
    ids(QUERY, &transaction.all(QUERY, &text, &parameters.as_params()).await?)
}

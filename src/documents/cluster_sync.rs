//! What the status of a `ClusterSync` names beside what is stored in it: for each syncset the objects that it deletes on the cluster when it
//! no longer wants them, those that it wants and another syncset sends, and those that are not healthy.
//!
//! They are stored for each object and not in the document, which would be written with every one of them: they are read with the
//! document. So they have no version of their own, and what a client sends back of them is not stored.

use serde_json::{Map, Value};

/// Most objects that one answer names, those of all syncsets and both fields together: about 200 KB. Of each syncset the same number is named in
/// each field, as far as it has that many.
const MOST: usize = 1_000;
/// What is deleted, each as `{"apiVersion", "kind", "namespace", "name"}`.
const TO_DELETE: &str = "resourcesToDelete";
/// What another syncset sends, in the same way.
const SUPERSEDED: &str = "superseded";
/// What is not current, each with its state, reason and message, as it was read when the syncset had been applied as it is now.
const UNHEALTHY: &str = "unhealthy";
/// The field that says how many objects more there are than are named; absent if all are.
const OMITTED: &str = "Omitted";
/// The lists of a status that have an entry for each syncset, and the kinds of these.
const LISTS: [(&str, &str); 2] = [("syncSets", "SyncSet"), ("selectorSyncSets", "SelectorSyncSet")];

/// The fields of an entry that are not stored.
fn fields() -> impl Iterator<Item = String> {
    [TO_DELETE, SUPERSEDED, UNHEALTHY].into_iter().flat_map(|field| [field.to_owned(), format!("{field}{OMITTED}")])
}

/// The status of `t`, a row of `clustersyncs`, with the objects. Of a syncset that was created again under its name, those of both are named.
///
/// An object that was adopted or is not tracked is never deleted. Of those that want an object the last one sends it: a `SelectorSyncSet` after
/// every `SyncSet`, names in the order of their bytes. The rows of a cluster are read by their primary key.
pub(super) fn status() -> String {
    let lists = LISTS.map(|(list, kind)| format!("('{list}', '{kind}')")).join(", ");
    let unstored = fields().collect::<Vec<_>>().join(",");
    format!(
        "(with applied as ( \
           select r.kind as of_kind, r.name as of_name, a.api_group, a.api_version, a.kind, a.namespace, a.name, \
             a.tracked and not a.adopted as is_deleted, \
             a.wanted and rank() over (partition by a.wanted, a.api_group, a.kind, a.namespace, a.name \
               order by r.kind = 'SelectorSyncSet' desc, r.name collate \"C\" desc) > 1 as is_superseded \
           from clusters c join towline_applied a on a.cluster = c.id \
             join towline_result r on r.cluster = a.cluster and r.syncset = a.syncset \
           where c.kind = 'clusters' and c.namespace = t.namespace and c.name = t.name), \
         object as ( \
           select distinct field, of_kind, of_name, api_group, api_version, applied.kind, namespace, name \
           from applied join (values ('{TO_DELETE}'), ('{SUPERSEDED}')) f(field) \
             on case field when '{TO_DELETE}' then is_deleted else is_superseded end), \
         numbered as ( \
           select *, row_number() over (partition by field, of_kind, of_name order by api_group, kind, namespace, name, api_version) as nth \
           from object), \
         placed as (select *, row_number() over (order by nth, field, of_kind, of_name) as place from numbered), \
         field as ( \
           select of_kind, of_name, \
             jsonb_build_object(field, coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('apiVersion', api_version, \
                 'kind', kind, 'namespace', nullif(namespace, ''), 'name', name)) order by nth) filter (where place <= {MOST}), '[]')) \
               || case when max(place) <= {MOST} then '{{}}' \
                 else jsonb_build_object(field || '{OMITTED}', count(*) filter (where place > {MOST})) end as shown \
           from placed group by field, of_kind, of_name), \
         named as ( \
           select of_kind, of_name, jsonb_object_agg(key, value) as shown \
           from field cross join lateral jsonb_each(shown) group by of_kind, of_name), \
         entry as ( \
           select l.list, e.nth, case when jsonb_typeof(e.entry) <> 'object' then e.entry \
             else (e.entry - '{{{unstored}}}'::text[]) || coalesce(n.shown, '{{}}') || coalesce(h.shown, '{{}}') end as shown \
           from (values {lists}) l(list, kind) \
             cross join lateral jsonb_array_elements( \
               case jsonb_typeof(t.status->l.list) when 'array' then t.status->l.list else '[]' end) with ordinality e(entry, nth) \
             left join named n on n.of_kind = l.kind and n.of_name = e.entry->>'name' \
             left join lateral ( \
               select jsonb_build_object('{UNHEALTHY}', r.health->'objects') || case when r.health->>'more' = '0' then '{{}}' \
                 else jsonb_build_object('{UNHEALTHY}{OMITTED}', r.health->'more') end as shown \
               from clusters c join towline_result r on r.cluster = c.id \
               where e.entry ? 'health' and (e.entry->'health' ? 'since' or e.entry->'health'->>'reason' not in ('NotApplied', 'Waiting')) and c.kind = 'clusters' and c.namespace = t.namespace and c.name = t.name and r.kind = l.kind \
                 and r.name = e.entry->>'name' and r.health_inputs = r.inputs \
                 and r.health->'objects' <> '[]' limit 1) h on true) \
         select t.status || coalesce(jsonb_object_agg(list, entries), '{{}}') \
         from (select list, jsonb_agg(shown order by nth) as entries from entry group by list) shown)"
    )
}

/// Removes them from a status that a client sends: it has read them, and they are not stored.
pub(super) fn strip(status: &mut Map<String, Value>) {
    let unstored: Vec<String> = fields().collect();
    for (list, _) in LISTS {
        for entry in status.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(fields) = entry {
                fields.retain(|field, _| !unstored.contains(field));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_stored_is_removed_from_entries_alone() {
        let Value::Object(mut status) = json!({
            "syncSets": [{"name": "a", "resourcesToDelete": [{"kind": "ConfigMap"}], "resourcesToDeleteOmitted": 3, "superseded": []}, "b", 4],
            "selectorSyncSets": [{"resourcesToDelete": "x", "result": "Success", "supersededOmitted": 1}],
            "resourcesToDelete": [1], "conditions": [{"resourcesToDelete": [2]}],
        }) else {
            unreachable!()
        };
        strip(&mut status);
        let expected = json!({
            "syncSets": [{"name": "a"}, "b", 4], "selectorSyncSets": [{"result": "Success"}],
            "resourcesToDelete": [1], "conditions": [{"resourcesToDelete": [2]}],
        });
        assert_eq!(Value::Object(status), expected);
        for other in [json!({"syncSets": {"resourcesToDelete": 1}}), json!({"syncSets": null}), json!({})] {
            let Value::Object(mut status) = other.clone() else { unreachable!() };
            strip(&mut status);
            assert_eq!(Value::Object(status), other);
        }
    }
}

//! The statements of the two kinds of pages. Their first column says whether the page can be shown, their second one is a
//! document; it is null in the only row if there is none.

use super::{Continue, ListQuery};
use crate::documents::filter::Fields;
use crate::documents::selector::{Parameters, label_conditions, place_conditions};

/// A page at a version that is older by more than this many versions is refused: it would take too long (L4).
const MAX_AGE: i64 = 100_000;

pub(super) struct Statement {
    pub(super) text: String,
    pub(super) parameters: Parameters,
}

/// One row more than `limit` is read: it says that there is another page.
pub(super) fn of(query: &ListQuery, limit: u32) -> Statement {
    let mut parameters = Parameters::default();
    let with_one_more = parameters.number(i64::from(limit) + 1);
    let text = match &query.after {
        None => first(query, &with_one_more, &mut parameters),
        Some(after) => next(query, after, &with_one_more, &mut parameters),
    };
    Statement { text, parameters }
}

/// An expression without own fields and status where only metadata is asked for, so that they are not sent.
fn shown(fields: Fields, document: &str) -> String {
    match fields {
        Fields::All => document.to_owned(),
        Fields::Metadata => format!(r#"({document}) || '{{"data": {{}}, "status": {{}}}}'"#),
    }
}

/// R and the rows come from one snapshot (L3).
fn first(query: &ListQuery, limit: &str, parameters: &mut Parameters) -> String {
    let places = place_conditions(&query.filter, "t", parameters);
    let labels = label_conditions(&query.filter, "t", parameters);
    format!(
        "select r.version, d.document::text from ( \
           select greatest(m.base, (select max(version) from towline_log)) as version from towline_meta m) r \
         left join lateral ( \
           select namespace, name, {document} as document from towline_documents t \
           where {places}true{labels} order by namespace, name limit {limit}) d on true \
         order by d.namespace, d.name",
        document = shown(query.fields, "to_jsonb(t) - 'sealed'"),
    )
}

/// The documents that have not changed since R, and what the log has of the others (V7).
fn next(query: &ListQuery, after: &Continue, limit: &str, parameters: &mut Parameters) -> String {
    let r = parameters.number(after.version);
    let key = format!("({}, {})", parameters.text(&after.namespace), parameters.text(&after.name));
    let places = place_conditions(&query.filter, "t", parameters);
    let labels = label_conditions(&query.filter, "t", parameters);
    let logged_places = place_conditions(&query.filter, "n", parameters);
    let logged_labels = label_conditions(&query.filter, "p", parameters);
    format!(
        "select r.gone, d.document::text from ( \
           select {r} < m.base or {r} > n.newest or n.newest - {r} > {MAX_AGE} as gone from towline_meta m, \
             lateral (select greatest(m.base, (select max(version) from towline_log)) as newest) n) r \
         left join lateral ( \
           select * from ( \
             select namespace, name, {document} as document from towline_documents t \
             where {places}version <= {r} and (namespace, name) > {key}{labels} \
             union all \
             select p.namespace, p.name, {logged} from towline_log n join towline_log p on p.version = n.old_version \
             where {logged_places}n.version > {r} and n.old_version <= {r} and (n.namespace, n.name) > {key}{logged_labels} \
           ) u order by namespace, name limit {limit}) d on not r.gone \
         order by d.namespace, d.name",
        document = shown(query.fields, "to_jsonb(t) - 'sealed'"),
        logged = shown(query.fields, "p.document"),
    )
}

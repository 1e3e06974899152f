//! The statements of the two kinds of pages. Their rows are read by `item`, in the order of their numbers.
//!
//! A page is read in three steps of one statement: the state of the versions, the keys of one item more than the page may have, and
//! then the items themselves. The items are read in portions of [`PORTION`] bytes as they are stored, until the page is full: sorting
//! whole documents, or printing those that have no room in the page, would take longer than everything else.

use super::{Continue, ListQuery};
use crate::documents::filter::Fields;
use crate::documents::restored::IS_WHOLE;
use crate::documents::selector::{Parameters, label_conditions, place_conditions};

/// A page at a version that is older by more than this many versions is refused: it would take too long.
const MAX_AGE: i64 = 100_000;
/// Bytes of a portion in the database's own, compressed form. A page ends within a portion or at its end, so that at most one
/// portion is printed in vain; compression makes texts shorter by a factor of at most 100 or so.
const PORTION: usize = 128 * 1024;
/// The same for a page that is smaller than that. There are no other sizes, because each is a statement of its own.
const SMALL_PORTION: usize = 16 * 1024;
/// Most bytes of an item beside its names, labels, annotations, finalizers, own fields and status: field names, times, numbers.
const FRAME: usize = 384;

pub(super) struct Statement {
    pub(super) text: String,
    pub(super) parameters: Parameters,
}

/// The statement of a page with at most so many items and bytes, but at least one item.
pub(super) fn of(query: &ListQuery, limit: u32, max_bytes: usize) -> Statement {
    let mut parameters = Parameters::default();
    let portion = if max_bytes < PORTION { SMALL_PORTION } else { PORTION };
    // The last one says that there is another page.
    let one_more = parameters.number(i64::from(limit) + 1);
    let limit = parameters.number(i64::from(limit));
    let max_bytes = parameters.number(i64::try_from(max_bytes).unwrap_or(i64::MAX));
    let kind = parameters.text(query.filter.kind().plural());
    let columns = Columns::of(query.fields);
    let (version, is_gone, keys) = match &query.after {
        None => ("n.newest".to_owned(), "false".to_owned(), first(query, &columns, &one_more, &mut parameters)),
        Some(after) => {
            let r = parameters.number(after.version);
            let is_gone = format!("{r} < n.base or {r} > n.newest or n.newest - {r} > {MAX_AGE}");
            let keys = next(query, after, &r, &columns, &one_more, &mut parameters);
            (r, is_gone, keys)
        }
    };
    let Columns { data, status, logged, .. } = columns;
    let text = format!(
        "with recursive state as materialized ( \
           select n.is_whole, {is_gone} as is_gone, {version} as version from ( \
             select m.base, {IS_WHOLE} as is_whole, greatest(m.base, (select max(version) from towline_log)) as newest \
             from towline_meta m, towline_version s offset 0) n), \
         keys as materialized ( \
           select k.*, row_number() over ordered as n, nullif(lead(portion) over ordered, portion) as next from ( \
             select k.*, (sum(stored) over ordered - stored)::bigint / {portion} as portion from ({keys}) k \
             window ordered as (order by namespace, name rows unbounded preceding)) k \
           window ordered as (order by namespace, name rows unbounded preceding)), \
         items as ( \
           select 0::bigint as n, 0::bigint as next, 0::bigint as bytes, null::text collate \"C\" as namespace, \
             null::text collate \"C\" as name, null::bigint as version, null::text as id, null::bigint as generation, \
             null::text as labels, null::text as annotations, null::text[] as finalizers, null::timestamptz as created_at, \
             null::timestamptz as updated_at, null::timestamptz as deleted_at, null::text as data, null::text as status, \
             null::text as document \
           union all \
           select k.n, k.next, (k.before + sum({FRAME} + octet_length(k.namespace) + octet_length(k.name) + coalesce( \
               octet_length(d.document), octet_length(d.labels) + octet_length(d.annotations) + pg_column_size(d.finalizers) \
               + coalesce(octet_length(d.data) + octet_length(d.status), 0))) over (order by k.n rows unbounded preceding))::bigint, \
             k.namespace, k.name, d.* \
           from (select k.*, i.bytes as before from items i join keys k on k.portion = i.next and k.n <= {limit} \
             where i.bytes <= {max_bytes} offset 0) k cross join lateral ( \
             select t.version, t.id::text, t.generation, t.labels::text, t.annotations::text, t.finalizers, t.created_at, \
               t.updated_at, t.deleted_at, {data} as data, {status} as status, null::text as document \
             from towline_documents t where k.logged is null and t.kind = {kind} and t.id = k.id \
             union all \
             select p.version, null, null, null, null, null, null, null, null, null, null, ({logged})::text \
             from towline_log p where p.version = k.logged offset 0) d) \
         select s.is_whole, s.is_gone, s.version, (select count(*) from keys), i.n, i.namespace, i.name, i.version, i.id, \
           i.generation, i.labels, i.annotations, i.finalizers, i.created_at, i.updated_at, i.deleted_at, i.data, i.status, i.document \
         from state s left join items i on i.n > 0 and (i.n = 1 or i.bytes <= {max_bytes})",
    );
    Statement { text, parameters }
}

/// Expressions that depend on how much of a document is shown.
struct Columns {
    /// Bytes of a document as it is stored.
    stored: &'static str,
    data: &'static str,
    status: &'static str,
    logged: &'static str,
}

impl Columns {
    fn of(fields: Fields) -> Self {
        match fields {
            Fields::All => Self {
                stored: "pg_column_size(t.labels) + pg_column_size(t.annotations) + pg_column_size(t.data) + pg_column_size(t.status)",
                data: "t.data::text",
                status: "t.status::text",
                logged: "p.document",
            },
            Fields::Metadata => Self {
                stored: "pg_column_size(t.labels) + pg_column_size(t.annotations)",
                data: "null::text",
                status: "null::text",
                logged: r#"p.document || '{"data": {}, "status": {}}'"#,
            },
        }
    }
}

/// R and the rows come from one snapshot.
fn first(query: &ListQuery, columns: &Columns, one_more: &str, parameters: &mut Parameters) -> String {
    let places = place_conditions(&query.filter, "t", parameters);
    let labels = label_conditions(&query.filter, "t", parameters);
    format!(
        "select t.namespace, t.name, t.id, null::bigint as logged, ({stored})::bigint as stored from towline_documents t \
         where {places}(select is_whole from state){labels} order by t.namespace, t.name limit {one_more}",
        stored = columns.stored,
    )
}

/// The documents that have not changed since R, and what the log has of the others. Each of the two is cut on its own: so the
/// first one is read in the order of an index.
fn next(
    query: &ListQuery,
    after: &Continue,
    r: &str,
    columns: &Columns,
    one_more: &str,
    parameters: &mut Parameters,
) -> String {
    let key = format!("({}, {})", parameters.text(&after.namespace), parameters.text(&after.name));
    let places = place_conditions(&query.filter, "t", parameters);
    let labels = label_conditions(&query.filter, "t", parameters);
    let logged_places = place_conditions(&query.filter, "n", parameters);
    let logged_labels = label_conditions(&query.filter, "p", parameters);
    let can_be_shown = "(select is_whole and not is_gone from state)";
    format!(
        "(select t.namespace, t.name, t.id, null::bigint as logged, ({stored})::bigint as stored from towline_documents t \
          where {places}t.version <= {r} and (t.namespace, t.name) > {key} and {can_be_shown}{labels} \
          order by t.namespace, t.name limit {one_more}) \
         union all \
         (select n.namespace, n.name, n.id, p.version, pg_column_size(p.document)::bigint \
          from towline_log n join towline_log p on p.version = n.old_version \
          where {logged_places}n.version > {r} and n.old_version <= {r} and (n.namespace, n.name) > {key} \
            and {can_be_shown}{logged_labels} order by n.namespace, n.name limit {one_more}) \
         order by namespace, name limit {one_more}",
        stored = columns.stored,
    )
}

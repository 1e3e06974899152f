//! Reads what the log says above the dispatcher's cursor: its place in the log, and the changes of documents with what decides whom they concern.

use std::sync::{Arc, LazyLock};

use crate::db::{self, Database, Row, Text, column};
use crate::documents::{IS_WHOLE, Kind};
use crate::syncset::plan::concern::{Change, DocumentState, Head};
use crate::syncset::plan::guard::APPROVE;

const QUERY: &str = "dispatch_read";
/// Most rows of one read.
pub(super) const ROWS: i64 = 500;
/// Most bytes of the documents of one read as they are stored, and of what it prints of them.
const BYTES: i64 = 8 << 20;

pub(super) struct Read {
    pub(super) head: Head,
    pub(super) changes: Vec<Change>,
    /// Version of the last row; the cursor if there is none.
    pub(super) last: i64,
    /// Whether there may be more rows.
    pub(super) is_full: bool,
}

/// It always returns a row; its version is null where there is nothing new. The state before a change is that of the row before it of
/// the same document, which the log keeps as long as it has the change and the cursor is not behind its base. It is looked up by itself: of a
/// join the planner, which can't know how few rows are above the cursor, makes a read of the whole log.
///
/// A row may have two documents of 4 MiB, of which it prints what names clusters. So it ends where the documents as they are stored, and
/// what it has printed, come to more than 8 MiB, but not before the first row.
static STATEMENT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {IS_WHOLE}, m.base, greatest(m.base, (select max(version) from towline_log)), c.cursor, l.* \
         from towline_meta m cross join towline_version s \
         cross join (select cursor from towline_claim where name = 'dispatcher') c \
         left join lateral ( \
           select version, kind, id, namespace, name, existed, \"exists\", before, after, rows from ( \
             select o.*, sum(coalesce(length(before), 0) + coalesce(length(after), 0)) over (order by version) \
                 - coalesce(length(before), 0) - coalesce(length(after), 0) as printed \
             from ( \
               select n.version, n.kind, n.id::text, n.namespace, n.name, n.old_version is not null as existed, \
                 n.document is not null as \"exists\", {before} as before, {after} as after, n.rows \
               from (select *, count(*) over () as rows, sum(size) over (order by version) - size as stored from ( \
                   select n.*, p.document as old_document, \
                     coalesce(pg_column_size(n.document), 0) + coalesce(pg_column_size(p.document), 0) as size \
                   from (select * from towline_log where version > c.cursor order by version limit {ROWS}) n \
                   left join lateral (select document from towline_log where version = n.old_version limit 1) p on true) n) n \
               left join lateral jsonb_to_record({old_document}) as b{record} on true \
               left join lateral jsonb_to_record({document}) as a{record} on true \
               where n.stored <= {BYTES}) o) o \
           where printed <= {BYTES} \
         ) l on true order by l.version",
        before = state("b"),
        after = state("a"),
        record = RECORD,
        old_document = object("n.old_document"),
        document = object("n.document"),
    )
});

/// A document of a kind that concerns clusters, as an expression; null if it is no object.
fn object(document: &str) -> String {
    format!(
        "case when n.kind <> 'clustersyncs' then jsonb_path_query_first({document}, 'strict $ ? (@.type() == \"object\")') end"
    )
}

/// Columns of a document in the log. A large one is decompressed once. None has a type that a document could fail to have: it would
/// fail the read of all others.
const RECORD: &str =
    "(generation jsonb, labels jsonb, annotations jsonb, finalizers jsonb, deleted_at text, data jsonb)";

/// The expression that prints a document before or after a change, of `jsonb_to_record` with [`RECORD`] as its columns.
fn state(record: &str) -> String {
    format!(
        "case when {record}.generation is not null then jsonb_build_object('generation', {record}.generation, \
           'metadata', md5(concat_ws(' ', {record}.labels::text, {record}.annotations::text, {record}.finalizers::text, \
             {record}.deleted_at)), 'labels', md5({record}.labels::text), \
           'guarded', md5(concat_ws(' ', {record}.annotations->>'{APPROVE}', {record}.deleted_at)), \
           'refs', {record}.data #> '{{spec,clusterDeploymentRefs}}', \
           'selector', {record}.data #> '{{spec,clusterDeploymentSelector}}', \
           'namespaces', {record}.data #> '{{spec,clusterNamespaces}}', \
           'rolls', {record}.data #> '{{spec,rollout}}' is not null)::text end"
    )
}

/// Reads up to 500 rows above the cursor.
pub(super) async fn read(database: &Database) -> Result<Read, db::Error> {
    let rows = database.all(QUERY, Text::Prepared(&STATEMENT), &[]).await?;
    let Some(first) = rows.first() else {
        // The table of the origin is empty: it is being restored.
        let head = Head { is_whole: false, base: 0, newest: 0, cursor: 0 };
        return Ok(Read { head, changes: Vec::new(), last: 0, is_full: false });
    };
    let head = Head {
        is_whole: column(QUERY, first, 0)?,
        base: column(QUERY, first, 1)?,
        newest: column(QUERY, first, 2)?,
        cursor: column(QUERY, first, 3)?,
    };
    let (mut changes, mut last) = (Vec::with_capacity(rows.len()), head.cursor);
    let mut found = 0;
    for row in &rows {
        let Some(version) = column::<Option<i64>>(QUERY, row, 4)? else { continue };
        last = version;
        found = column(QUERY, row, 13)?;
        changes.push(change(row)?);
    }
    let is_full = found == ROWS || i64::try_from(changes.len()).is_ok_and(|count| count < found);
    Ok(Read { head, changes, last, is_full })
}

fn change(row: &Row) -> Result<Change, db::Error> {
    let id: &str = column(QUERY, row, 6)?;
    let state = |index: usize, exists: usize| -> Result<DocumentState, db::Error> {
        Ok(DocumentState::read(column(QUERY, row, index)?, column(QUERY, row, exists)?))
    };
    Ok(Change {
        kind: Kind::of_plural(column(QUERY, row, 5)?),
        id: id.parse().map_err(|error| db::Error::Decode { query: QUERY, source: Arc::new(error) })?,
        namespace: column(QUERY, row, 7)?,
        name: column(QUERY, row, 8)?,
        before: state(11, 9)?,
        after: state(12, 10)?,
    })
}

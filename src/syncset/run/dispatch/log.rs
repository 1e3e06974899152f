//! What the log says above the dispatcher's cursor: its place in the log, and the changes of documents with what decides whom they concern.

use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::db::{self, Database, Row, Text, column};
use crate::documents::{IS_WHOLE, Kind};

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
        before = DocumentState::expression("b"),
        after = DocumentState::expression("a"),
        record = DocumentState::RECORD,
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

/// Versions are lifted by this much when the database was restored or failed over.
const LIFT: i64 = 1 << 40;

/// The state of the log, as one statement reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Whether the database can be read: it is not being restored, and its versions are its own.
    pub(super) is_whole: bool,
    /// The log has all rows above it.
    pub(super) base: i64,
    /// The newest version.
    pub(super) newest: i64,
    /// Up to where changes were dispatched; 0 before the first start.
    pub(super) cursor: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchStep {
    /// The rows are the next ones.
    Follow,
    /// Rows are missing, or nothing was dispatched yet: all clusters are asked for.
    All {
        /// Whether the passes are full ones, since clusters may hold objects of transactions that the database has lost.
        in_full: bool,
    },
    /// The versions have another origin, and have to be renumbered first.
    Renumber,
}

impl Head {
    pub(super) fn step(self) -> BatchStep {
        let Self { is_whole, base, newest, cursor } = self;
        if !is_whole {
            BatchStep::Renumber
        } else if cursor == 0 && newest > 0 {
            // After a first start nothing was sent by anybody; in a renumbered database something may have been.
            BatchStep::All { in_full: base >= LIFT }
        } else if cursor > newest || base / LIFT > cursor / LIFT {
            // The versions were renumbered since.
            BatchStep::All { in_full: true }
        } else if base > cursor {
            BatchStep::All { in_full: false }
        } else {
            BatchStep::Follow
        }
    }
}

/// A row of the log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    /// None for a kind that only a newer release knows.
    pub(super) kind: Option<Kind>,
    pub(super) id: Uuid,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) before: DocumentState,
    pub(super) after: DocumentState,
}

/// A document before or after a change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DocumentState {
    Absent,
    Present(Facts),
    /// It can't be read, or the log no longer has it.
    Unknown,
}

/// What decides whom a change concerns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Facts {
    pub(super) generation: i64,
    /// A hash of labels, annotations, finalizers and the time of deletion: the metadata that clients change.
    pub(super) metadata: String,
    /// A hash of labels.
    pub(super) labels: String,
    /// Of a `SyncSet`.
    pub(super) refs: Option<Value>,
    /// Of a `SelectorSyncSet`.
    pub(super) selector: Option<Value>,
    /// Of a `SelectorSyncSet`.
    pub(super) namespaces: Option<Value>,
    /// Whether it has a rollout, which moves clusters to another content.
    #[serde(default)]
    pub(super) rolls: bool,
}

impl Change {
    /// Whether only the status has changed.
    pub(super) fn is_of_status_alone(&self) -> bool {
        match (&self.before, &self.after) {
            (DocumentState::Present(before), DocumentState::Present(after)) => {
                before.generation == after.generation && before.metadata == after.metadata
            }
            _ => false,
        }
    }

    /// Whether it may be of a syncset with a rollout, which may have to begin.
    pub(super) fn may_begin_a_rollout(&self) -> bool {
        let is_syncset = matches!(self.kind, Some(Kind::SyncSet | Kind::SelectorSyncSet));
        is_syncset
            && match &self.after {
                DocumentState::Present(after) => after.rolls,
                DocumentState::Unknown => true,
                DocumentState::Absent => false,
            }
    }

    /// Whether a syncset has only got another content, to which its rollout moves clusters.
    pub(super) fn is_for_a_rollout(&self) -> bool {
        match (&self.before, &self.after) {
            (DocumentState::Present(before), DocumentState::Present(after)) => {
                let Facts { generation: _, metadata, labels: _, refs, selector, namespaces, rolls } = after;
                let same = (&before.metadata, &before.refs, &before.selector, &before.namespaces);
                before.rolls && *rolls && same == (metadata, refs, selector, namespaces)
            }
            _ => false,
        }
    }
}

impl DocumentState {
    /// As the read's statement prints it; `exists` says whether there has to be one.
    pub(super) fn read(text: Option<&str>, exists: bool) -> Self {
        match text {
            Some(text) => serde_json::from_str(text).map_or(Self::Unknown, Self::Present),
            None if exists => Self::Unknown,
            None => Self::Absent,
        }
    }

    /// The expression that prints it, of `jsonb_to_record` with [`RECORD`](Self::RECORD) as its columns.
    pub(super) fn expression(record: &str) -> String {
        format!(
            "case when {record}.generation is not null then jsonb_build_object('generation', {record}.generation, \
               'metadata', md5(concat_ws(' ', {record}.labels::text, {record}.annotations::text, {record}.finalizers::text, \
                 {record}.deleted_at)), 'labels', md5({record}.labels::text), \
               'refs', {record}.data #> '{{spec,clusterDeploymentRefs}}', \
               'selector', {record}.data #> '{{spec,clusterDeploymentSelector}}', \
               'namespaces', {record}.data #> '{{spec,clusterNamespaces}}', \
               'rolls', {record}.data #> '{{spec,rollout}}' is not null)::text end"
        )
    }

    /// Columns of a document in the log. A large one is decompressed once. None has a type that a document could fail to have: it would
    /// fail the read of all others.
    pub(super) const RECORD: &str =
        "(generation jsonb, labels jsonb, annotations jsonb, finalizers jsonb, deleted_at text, data jsonb)";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_has_to_be_there_and_is_not_readable_is_unknown() {
        assert_eq!(DocumentState::read(None, false), DocumentState::Absent);
        assert_eq!(DocumentState::read(None, true), DocumentState::Unknown);
        assert_eq!(DocumentState::read(Some("{}"), true), DocumentState::Unknown);
        let text = r#"{"generation": 3, "metadata": "x", "labels": "y", "refs": null, "selector": {"a": 1}, "namespaces": ["*"]}"#;
        let facts = Facts {
            generation: 3,
            metadata: "x".to_owned(),
            labels: "y".to_owned(),
            refs: None,
            selector: Some(serde_json::json!({"a": 1})),
            namespaces: Some(serde_json::json!(["*"])),
            rolls: false,
        };
        assert_eq!(DocumentState::read(Some(text), true), DocumentState::Present(facts));
    }

    fn step(base: i64, newest: i64, cursor: i64) -> BatchStep {
        Head { is_whole: true, base, newest, cursor }.step()
    }

    #[test]
    fn a_cursor_between_base_and_newest_is_followed() {
        for cursor in [10, 15, 20] {
            assert_eq!(step(10, 20, cursor), BatchStep::Follow);
        }
        assert_eq!(step(0, 0, 0), BatchStep::Follow, "an empty log");
    }

    #[test]
    fn the_first_start_and_a_gap_ask_for_all_clusters() {
        assert_eq!(step(0, 20, 0), BatchStep::All { in_full: false });
        assert_eq!(step(10, 20, 9), BatchStep::All { in_full: false });
    }

    #[test]
    fn lost_versions_ask_for_full_passes_of_all_clusters() {
        assert_eq!(step(10, 20, 21), BatchStep::All { in_full: true });
        assert_eq!(step(LIFT + 20, LIFT + 20, 20), BatchStep::All { in_full: true });
        assert_eq!(
            step(LIFT + 130, LIFT + 130, 600),
            BatchStep::All { in_full: true },
            "lost versions were dispatched"
        );
        assert_eq!(step(LIFT + 20, LIFT + 30, LIFT + 19), BatchStep::All { in_full: false }, "a later gap");
        assert_eq!(step(LIFT + 20, LIFT + 30, 0), BatchStep::All { in_full: true }, "the first start after a restore");
    }

    #[test]
    fn nothing_is_dispatched_while_the_database_is_being_restored() {
        for cursor in [0, 5, 15, 25] {
            let head = Head { is_whole: false, base: 10, newest: 20, cursor };
            assert_eq!(head.step(), BatchStep::Renumber);
        }
    }
}

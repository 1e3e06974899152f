//! What was written: each row that the log has ever had, whatever compaction has removed since.

use std::collections::BTreeMap;
use std::ops::Bound;

use integration::postgres;
use serde_json::Value;
use tokio_postgres::types::Json;

use crate::hub_replicas::filter::{Filter, Labels};
use crate::hub_replicas::world::{Key, number, sql};

/// Copies each row, in the transaction that writes it.
const KEEP: &str = "create schema kept; create table kept.log (like public.towline_log including indexes); \
     create function kept.keep() returns trigger language plpgsql security definer as \
     $$ begin insert into kept.log select new.*; return null; end $$; \
     create trigger keep after insert on public.towline_log for each row execute function kept.keep()";

/// Keeps all rows of the log from now on.
pub(crate) async fn keep(database: &postgres::Database) {
    sql(database).await.batch_execute(KEEP).await.expect("a trigger");
}

/// All versions.
pub(crate) struct History {
    rows: BTreeMap<i64, Row>,
}

/// One version.
pub(crate) struct Row {
    pub(crate) kind: String,
    pub(crate) key: Key,
    labels: Labels,
    /// None: a removal.
    document: Option<Value>,
}

/// A change as a watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) version: i64,
    pub(crate) what: String,
    pub(crate) key: Key,
    /// The write whose content it shows.
    pub(crate) number: Option<u64>,
}

impl Row {
    /// The write that it comes from.
    pub(crate) fn number(&self) -> Option<u64> {
        self.document.as_ref().and_then(number)
    }

    pub(crate) fn is_removal(&self) -> bool {
        self.document.is_none()
    }
}

impl History {
    pub(crate) async fn read(database: &postgres::Database) -> Self {
        let text = "select version, kind, namespace, name, labels, document from kept.log";
        let rows = sql(database).await.query(text, &[]).await.expect("rows");
        let rows = rows.iter().map(|row| {
            let (Json(labels), document) = (row.get(4), row.get::<_, Option<Json<Value>>>(5));
            let document = document.map(|Json(document)| document);
            (row.get(0), Row { kind: row.get(1), key: (row.get(2), row.get(3)), labels, document })
        });
        Self { rows: rows.collect() }
    }

    /// The documents that a filter shows at a version: version and number.
    pub(crate) fn state(&self, at: i64, filter: &Filter) -> BTreeMap<Key, (i64, Option<u64>)> {
        let mut state = BTreeMap::new();
        for (version, row) in self.rows.range(..=at) {
            if !filter.covers(&row.kind, &row.key.0) {
                continue;
            }
            if !row.is_removal() && filter.selects(&row.labels) {
                state.insert(row.key.clone(), (*version, row.number()));
            } else {
                state.remove(&row.key);
            }
        }
        state
    }

    /// What a watch with this filter shows after one version and up to another one.
    pub(crate) fn changes(&self, after: i64, until: i64, filter: &Filter) -> Vec<Seen> {
        let mut shown = self.state(after, filter);
        let mut changes = Vec::new();
        for (version, row) in self.rows.range((Bound::Excluded(after), Bound::Included(until))) {
            if !filter.covers(&row.kind, &row.key.0) {
                continue;
            }
            let matches = !row.is_removal() && filter.selects(&row.labels);
            let (before, now) = (shown.remove(&row.key), matches.then(|| (*version, row.number())));
            let (what, number) = match (before, now) {
                (None, None) => continue,
                (None, Some((_, number))) => ("ADDED", number),
                (Some(_), Some((_, number))) => ("MODIFIED", number),
                (Some((_, number)), None) => ("DELETED", number),
            };
            shown.extend(now.map(|now| (row.key.clone(), now)));
            changes.push(Seen { version: *version, what: what.to_owned(), key: row.key.clone(), number });
        }
        changes
    }

    /// The write that each number belongs to. No write was made twice.
    pub(crate) fn by_number(&self) -> BTreeMap<u64, i64> {
        let mut found = BTreeMap::new();
        for (version, row) in &self.rows {
            if let Some(number) = row.number() {
                let earlier = found.insert(number, *version);
                assert_eq!(earlier, None, "write {number} was made twice, the second time as version {version}");
            }
        }
        found
    }

    /// Whether the first change of a document after a version is its removal.
    pub(crate) fn is_removed_after(&self, version: i64) -> bool {
        let row = &self.rows[&version];
        let later = self.rows.range(version + 1..).find(|(_, later)| later.kind == row.kind && later.key == row.key);
        later.is_some_and(|(_, later)| later.is_removal())
    }

    pub(crate) fn versions(&self) -> usize {
        self.rows.len()
    }
}

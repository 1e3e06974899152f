//! The changes between two versions, from the log itself: for watches that resume from before the ring.

use super::entry::{self, Entry, EntryError};
use crate::cluster::full_text;
use crate::db::{Database, column};
use crate::documents::blocking::BlockingPool;
use crate::documents::filter::Filter;
use crate::documents::list_error::ListError;
use crate::documents::selector::{Parameters, place_conditions};

/// Most rows of a window that are sent to a watch at once.
const ROWS: i64 = 500;
const QUERY: &str = "read_log";

/// Changes in the order of their versions.
pub(super) struct Window {
    pub(super) entries: Vec<Entry>,
    /// Up to here all changes have been read.
    pub(super) position: i64,
}

/// Reads the changes of the filter's kind, namespace and name above `after` and up to `until`, or the first ones of them, up to the one that
/// makes them larger than `max_bytes`. Large rows are read on a thread of `blocking`.
pub(super) async fn read(
    database: &Database,
    blocking: &BlockingPool,
    filter: &Filter,
    after: i64,
    until: i64,
    max_bytes: usize,
) -> Result<Window, ListError> {
    let mut parameters = Parameters::default();
    // The database counts in its own, compressed form.
    let stored_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
    let text = statement(filter, after, until, stored_bytes, &mut parameters);
    let mut rows = database.rows(QUERY, &text, &parameters.as_params()).await?;
    let (mut window, mut bytes) = (Window { entries: Vec::new(), position: until }, 0);
    // The statement returns a row even where there is no change.
    let mut is_there = false;
    while let Some(row) = rows.next().await? {
        is_there = column(QUERY, &row, 0)?;
        let Some(version) = column::<Option<i64>>(QUERY, &row, 1)? else { continue };
        window.position = version;
        match Entry::read_blocking(blocking, QUERY, row, 1).await {
            Ok(Some(entry)) => {
                if let Err(error) = &entry.change {
                    // Every further attempt would come here again. A client that starts again with the state does not.
                    let error = full_text(error);
                    tracing::error!(
                        version,
                        error,
                        "a row of the log can't be read, ending the watch that resumes before it"
                    );
                    return Err(ListError::Gone);
                }
                bytes += entry.bytes();
                window.entries.push(entry);
            }
            // The statement asks for a known kind.
            Ok(None) => {}
            Err(EntryError::Columns(error)) => return Err(error.into()),
            Err(EntryError::ShutsDown(error)) => return Err(error.into()),
        }
        // Rows that are left unread end the connection. That is rare: the statement itself returns few large documents.
        if bytes > max_bytes {
            break;
        }
    }
    if is_there { Ok(window) } else { Err(ListError::Gone) }
}

/// The first rows between the versions, and whether the base of the same snapshot allows it; there are none if it does not.
fn statement(filter: &Filter, after: i64, until: i64, stored_bytes: i64, parameters: &mut Parameters) -> String {
    let places = place_conditions(filter, "t", parameters);
    let (after, until) = (parameters.number(after), parameters.number(until));
    let stored_bytes = parameters.number(stored_bytes);
    format!(
        "select m.base <= {after}, l.* from towline_meta m left join lateral ( \
           select {columns} from ( \
             select t.*, sum(stored) over (order by version) - stored as stored_before from ( \
               select *, coalesce(pg_column_size(document), 0) as stored from towline_log t \
               where {places}t.version > {after} and t.version <= {until} order by t.version limit {ROWS}) t) n \
           left join towline_log p on p.version = n.old_version \
           where n.stored_before < {stored_bytes}) l on m.base <= {after} order by l.version",
        columns = entry::COLUMNS,
    )
}

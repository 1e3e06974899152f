//! The statements of the relay.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::plan::Head;
use crate::db::{self, Database, Type, column};
use crate::documents::blocking::BlockingPool;
use crate::documents::bus::message::{About, Message};
use crate::documents::claims::Grant;
use crate::documents::filter::Filter;
use crate::documents::kind::Kind;
use crate::documents::restored::IS_WHOLE;
use crate::documents::tail::{COLUMNS, Entry, EntryError};

const QUERY: &str = "relay_read";
/// Most rows of one read.
const ROWS: i64 = 500;
/// A read ends behind the document that makes it larger than this, as documents are stored.
const BYTES: i64 = 8 << 20;
/// And as messages: a document that compresses well is much larger then. Ending a read early costs its connection.
const MESSAGE_BYTES: usize = 32 << 20;

pub(super) struct Read {
    pub(super) head: Head,
    pub(super) rows: Vec<Row>,
    /// Version of the last row; the cursor if there is none.
    pub(super) last: i64,
}

/// A row of the log. One without a message can't be read.
pub(super) struct Row {
    pub(super) version: i64,
    pub(super) kind: Kind,
    pub(super) message: Option<Message>,
}

/// It always returns a row; its version is null where there is nothing new. The row `relist` says whether consumers have to be told to list
/// (`cursor`), and which broker has all events up to the cursor, or the demand to list instead (`holder`).
fn statement() -> String {
    format!(
        "select {IS_WHOLE}, m.base, greatest(m.base, (select max(version) from towline_log)), c.cursor, \
         coalesce(r.cursor > 0, false), r.holder is distinct from $3, l.* \
         from towline_meta m cross join towline_version s \
         cross join (select cursor from towline_claim where name = 'relay') c \
         left join (select cursor, holder from towline_claim where name = 'relist') r on true left join lateral ( \
           select {COLUMNS}, n.id::text as id from ( \
             select * from (select t.*, sum(coalesce(pg_column_size(document), 0)) over (order by version) \
                 - coalesce(pg_column_size(document), 0) as stored \
               from (select * from towline_log where version > c.cursor order by version limit $1) t) t where stored <= $2) n \
           left join towline_log p on p.version = n.old_version) l on true order by l.version",
    )
}

/// Reads the rows above the cursor, for the broker at this place.
pub(super) async fn read(database: &Database, blocking: &BlockingPool, place: &str) -> Result<Read, db::Error> {
    let params = [(&ROWS as _, Type::INT8), (&BYTES as _, Type::INT8), (&place as _, Type::TEXT)];
    let mut found = database.rows(QUERY, &statement(), &params).await?;
    let nothing =
        Head { is_whole: false, base: 0, newest: 0, cursor: 0, is_relist_pending: false, is_elsewhere: false };
    let mut read = Read { head: nothing, rows: Vec::new(), last: 0 };
    let (mut is_first, mut bytes) = (true, 0);
    while let Some(row) = found.next().await? {
        if std::mem::take(&mut is_first) {
            let cursor = column(QUERY, &row, 3)?;
            let (base, newest) = (column(QUERY, &row, 1)?, column(QUERY, &row, 2)?);
            let (is_relist_pending, is_elsewhere) = (column(QUERY, &row, 4)?, column(QUERY, &row, 5)?);
            read.head =
                Head { is_whole: column(QUERY, &row, 0)?, base, newest, cursor, is_relist_pending, is_elsewhere };
            read.last = cursor;
        }
        let Some(version) = column::<Option<i64>>(QUERY, &row, 6)? else { continue };
        read.last = version;
        let id: &str = column(QUERY, &row, 14)?;
        let id: Uuid = id.parse().map_err(|error| db::Error::Decode { query: QUERY, source: Arc::new(error) })?;
        match Entry::read_blocking(blocking, QUERY, row, 6).await {
            Ok(Some(entry)) => {
                let row = Row::of(&entry, id);
                bytes += row.message.as_ref().map_or(0, |message| message.body.len());
                read.rows.push(row);
            }
            // Only a newer release knows what it is.
            Ok(None) => {}
            Err(EntryError::Columns(error)) => return Err(error),
            Err(EntryError::ShutsDown(error)) => {
                return Err(db::Error::Decode { query: QUERY, source: Arc::new(error) });
            }
        }
        if bytes > MESSAGE_BYTES {
            break;
        }
    }
    Ok(read)
}

impl Row {
    fn of(entry: &Entry, id: Uuid) -> Self {
        let about = About { kind: entry.kind, namespace: &entry.namespace, name: &entry.name, id };
        let seen = entry.seen_through(&Filter::of(entry.kind)).ok().flatten();
        let message = seen.and_then(|event| Message::of(&event, &about));
        Self { version: entry.version, kind: entry.kind, message }
    }
}

/// Moves the cursor, if the claim is still held and the cursor is where the read began: consumers at the broker of this place need
/// not be told to list any more. False if not.
pub(super) async fn move_cursor(
    database: &Database,
    grant: &Grant,
    place: &str,
    from: i64,
    to: i64,
) -> Result<bool, db::Error> {
    const QUERY: &str = "move_relay";
    const TEXT: &str = "with moved as ( \
           update towline_claim set cursor = $4 where name = 'relay' and holder = $1 and token = $2 and cursor = $3 \
             and until > clock_timestamp() and (select origin = towline_origin() from towline_meta) returning 1), \
         told as (update towline_claim set cursor = 0, holder = $5 \
           where name = 'relist' and (cursor > 0 or holder is distinct from $5) and exists (select from moved)), \
         first as (insert into towline_claim (name, holder) select 'relist', $5 from moved \
           where not exists (select from towline_claim where name = 'relist') on conflict (name) do nothing) \
         select exists (select from moved)";
    let holder = grant.holder.as_str();
    let params = [
        (&holder as _, Type::TEXT),
        (&grant.token as _, Type::INT8),
        (&from as _, Type::INT8),
        (&to as _, Type::INT8),
        (&place as _, Type::TEXT),
    ];
    let rows = database.all(QUERY, TEXT, &params).await?;
    rows.first().map_or(Ok(false), |row| column(QUERY, row, 0))
}

/// Notes that consumers have to be told to list, whoever is the relay by then. It is the cursor of a row that is no
/// claim, and needs none: a list too many does no harm.
pub(super) async fn note_pending_relist(database: &Database) -> Result<(), db::Error> {
    const TEXT: &str =
        "insert into towline_claim (name, cursor) values ('relist', 1) on conflict (name) do update set cursor = 1";
    database.execute("owe_relist", TEXT, &[]).await.map(drop)
}

/// How old the oldest row above the cursor is.
pub(super) async fn lag(database: &Database) -> Result<Duration, db::Error> {
    const QUERY: &str = "relay_lag";
    const TEXT: &str = "select extract(epoch from clock_timestamp() - at)::float8 from towline_log \
         where version > (select cursor from towline_claim where name = 'relay') order by version limit 1";
    let rows = database.all(QUERY, TEXT, &[]).await?;
    let seconds: f64 = rows.first().map_or(Ok(0.0), |row| column(QUERY, row, 0))?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

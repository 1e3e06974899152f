//! Schema migrations: SQL texts that are part of the program, each applied once, in order.
//!
//! A table in the schema, created by the first migration, has a single row with the number of the last one (`migration int`), the
//! release that applied it (`release text`), and the last migration that a release has to know to use the schema (`oldest int`): after
//! an upgrade that is taken back, the former release goes on with the newer schema if it knows that one, and else refuses it.
//!
//! A migration and its number are one transaction, so that a failed migration leaves nothing behind. Migrations run on a dedicated
//! connection under a session-level advisory lock: if several processes start, one migrates, and the others wait and then find
//! nothing to do.

use std::time::Duration;

use super::pool::Connection;
use super::{Database, Param, Type, column};
use crate::telemetry::VERSION;

/// Extra time for the answer of a server that cancels the statement at its own timeout.
const GRACE: Duration = Duration::from_secs(5);
/// SQLSTATE `lock_not_available`.
const LOCK_TIMEOUT: &str = "55P03";

/// One migration. Its number is its position in the list, from 1; a released migration never changes.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// What it does, for errors and the log.
    pub name: &'static str,
    /// A release may use the schema after this migration if it knows the migration of this number, from 1. What older releases do not
    /// see (a new table, a column with a default) leaves it where it was; what they rely on goes no earlier than one release after
    /// nobody uses it any more.
    pub oldest: i32,
    /// Statements without `BEGIN` and `COMMIT`; each must be allowed in a transaction.
    pub sql: &'static str,
}

/// The migrations of a schema, the first one of the search path.
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    table: &'static str,
    list: &'static [Migration],
    record: Option<&'static str>,
}

/// What of a schema there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The last applied migration; 0 if there is none.
    pub applied: i32,
    /// The last migration that this program has.
    pub known: i32,
    /// The last migration that a release has to know to use the schema; 0 if there is no schema.
    pub oldest: i32,
    /// The release that applied the last migration; empty if there is no schema.
    pub release: String,
}

/// Why migrating the schema, or reading its version, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer release has migrated the schema in a way that this release must not use.
    #[error(
        "towline {release} has brought the schema to migration {applied}, which needs a release that knows migration {oldest}; this is \
         towline {}, which knows {known}: run towline {release} or a later one, or restore the database as it was before",
        VERSION
    )]
    Newer {
        /// The last migration that was applied.
        applied: i32,
        /// The last one that this program has.
        known: i32,
        /// The last one that a program has to have.
        oldest: i32,
        /// The release that applied the last one.
        release: String,
    },
    #[error("another process is migrating the schema and did not finish within {}", humantime::format_duration(*.within))]
    Locked { within: Duration },
    /// A migration failed and was rolled back. Those before it have been applied.
    #[error("failed to apply migration {number} ({name})")]
    Apply {
        /// Its place in the list, from 1.
        number: i32,
        name: &'static str,
        source: super::Error,
    },
    /// The version table does not have exactly one row.
    #[error("table {table} has {rows} rows, but must have exactly one, with the number of the last migration")]
    Table {
        table: String,
        /// Its rows, or the number of updated rows.
        rows: u64,
    },
    #[error("no schema of the account's search_path exists")]
    NoSchema,
    /// The database did not answer, or not as expected.
    #[error("failed to read the schema's version")]
    Read { source: super::Error },
    /// Connecting or taking the lock failed.
    #[error("failed to prepare the migrations")]
    Prepare { source: super::Error },
}

impl Error {
    /// What concerns the database as a whole ([`super::Error::outage`]).
    pub fn outage(&self) -> Option<&'static str> {
        match self {
            Self::Apply { source, .. } | Self::Read { source } | Self::Prepare { source } => source.outage(),
            Self::Newer { .. } | Self::Locked { .. } | Self::Table { .. } | Self::NoSchema => None,
        }
    }
}

impl Status {
    /// The number of migrations still to apply.
    pub fn pending(&self) -> i32 {
        (self.known - self.applied).max(0)
    }

    /// Whether a newer release has migrated the schema.
    pub fn is_newer(&self) -> bool {
        self.applied > self.known
    }

    /// An error if this release must not use the schema.
    pub fn check(self) -> Result<Self, Error> {
        if self.oldest <= self.known {
            return Ok(self);
        }
        let Self { applied, known, oldest, release } = self;
        Err(Error::Newer { applied, known, oldest, release })
    }
}

impl Migrations {
    /// `table` holds the number; the first migration of `list` creates it.
    pub const fn new(table: &'static str, list: &'static [Migration]) -> Self {
        Self { table, list, record: None }
    }

    /// The same, where the transaction of each migration also runs a statement, whose parameter is its number and name.
    #[must_use]
    pub const fn recorded(self, sql: &'static str) -> Self {
        Self { record: Some(sql), ..self }
    }

    /// The last migration of the list.
    pub fn known(&self) -> i32 {
        i32::try_from(self.list.len()).unwrap_or(i32::MAX)
    }

    /// Reads the schema's version. A newer schema is not an error here: see [`Status::check`].
    pub async fn status(&self, database: &Database) -> Result<Status, Error> {
        let mut connection = Self::connection(database).await.map_err(|source| Error::Read { source })?;
        self.read(&mut connection).await.map(|(_, status)| status)
    }

    /// Applies the missing migrations and returns the version before. `limit` bounds the wait for another process that
    /// is migrating, and each migration.
    pub async fn run(&self, database: &Database, limit: Duration) -> Result<Status, Error> {
        let mut connection = Self::connection(database).await.map_err(|source| Error::Prepare { source })?;
        let (table, status) = self.read(&mut connection).await?;
        let status = status.check()?;
        if status.pending() == 0 {
            return Ok(status);
        }
        lock(&mut connection, &table, limit).await?;
        // Another process may have migrated in the meantime.
        let (table, before) = self.read(&mut connection).await?;
        let before = before.check()?;
        for (number, migration) in (1..).zip(self.list).filter(|(number, _)| *number > before.applied) {
            apply(&mut connection, &table, (number, migration), self.record, limit).await?;
            tracing::info!(table, number, name = migration.name, "migration applied");
        }
        // Closing the connection releases the lock.
        Ok(before)
    }

    async fn connection(database: &Database) -> Result<Connection, super::Error> {
        database.connect("migrations").await
    }

    /// The table's qualified name, and the schema's version.
    async fn read(&self, connection: &mut Connection) -> Result<(String, Status), Error> {
        const QUERY: &str = "read_migration";
        const TEXT: &str = "SELECT name, to_regclass(name) IS NOT NULL FROM \
             (SELECT format('%I.%I', current_schema(), $1) AS name WHERE current_schema() IS NOT NULL) found";
        let read = |source| Error::Read { source };
        let known = self.known();
        let found = connection.all(QUERY, TEXT, &[(&self.table, Type::TEXT)]).await.map_err(read)?;
        let found = found.first().ok_or(Error::NoSchema)?;
        let table: String = column(QUERY, found, 0).map_err(read)?;
        if !column::<bool>(QUERY, found, 1).map_err(read)? {
            return Ok((table, Status { applied: 0, known, oldest: 0, release: String::new() }));
        }
        let text = format!("SELECT migration, oldest, release FROM {table}");
        let rows = connection.all(QUERY, &text, &[]).await.map_err(read)?;
        match rows.as_slice() {
            [row] => {
                let applied = column(QUERY, row, 0).map_err(read)?;
                let (oldest, release) = (column(QUERY, row, 1).map_err(read)?, column(QUERY, row, 2).map_err(read)?);
                Ok((table, Status { applied, known, oldest, release }))
            }
            rows => Err(Error::Table { table, rows: u64::try_from(rows.len()).unwrap_or(u64::MAX) }),
        }
    }
}

/// Takes the lock for the lifetime of the connection. The account's own timeouts are replaced, since they would count the
/// wait for another process.
async fn lock(connection: &mut Connection, table: &str, limit: Duration) -> Result<(), Error> {
    const QUERY: &str = "lock_migrations";
    let millis = milliseconds(limit);
    let text = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {millis}");
    let locking = async {
        let mut transaction = connection.begin(QUERY, limit + GRACE).await?;
        transaction.run(QUERY, &text).await?;
        let text = "SELECT pg_advisory_lock(hashtextextended('migrations of ' || $1, 0))";
        transaction.execute(QUERY, text, &[(&table, Type::TEXT)]).await?;
        // The lock belongs to the session and outlives the transaction.
        transaction.commit().await
    };
    locking.await.map_err(|source| match source.server() {
        Some(refused) if refused.code() == LOCK_TIMEOUT => Error::Locked { within: limit },
        _ => Error::Prepare { source },
    })
}

async fn apply(
    connection: &mut Connection,
    table: &str,
    (number, migration): (i32, &Migration),
    record: Option<&str>,
    limit: Duration,
) -> Result<(), Error> {
    const QUERY: &str = "migrate";
    let failed = |source| Error::Apply { number, name: migration.name, source };
    let mut transaction = connection.begin(QUERY, limit + GRACE).await.map_err(failed)?;
    let timeout = format!("SET LOCAL statement_timeout = {}", milliseconds(limit));
    transaction.run(QUERY, &timeout).await.map_err(failed)?;
    transaction.run(QUERY, migration.sql).await.map_err(failed)?;
    let text = format!("UPDATE {table} SET migration = $1, oldest = greatest(oldest, $2), release = $3");
    let values: [Param<'_>; 3] = [(&number, Type::INT4), (&migration.oldest, Type::INT4), (&VERSION, Type::TEXT)];
    let rows = transaction.execute(QUERY, &text, &values).await.map_err(failed)?;
    if rows != 1 {
        return Err(Error::Table { table: table.to_owned(), rows });
    }
    if let Some(record) = record {
        let note = format!("migration {number}: {}", migration.name);
        transaction.execute(QUERY, record, &[(&note, Type::TEXT)]).await.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)
}

/// A timeout in the server's unit; zero would mean no timeout.
fn milliseconds(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis().max(1)).unwrap_or(i32::MAX)
}

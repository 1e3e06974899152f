//! The database of the documents: its connections, and its tables and functions, in the first schema of the search path.

use std::time::Duration;

use crate::db::migrations::{self, Migration, Migrations, Status};
use crate::db::{self, Database, DatabaseSource, column};

/// What every new connection runs first. It refuses a server that can't be written to or is too old, and limits statements (30 s),
/// waits for a lock (5 s) and idle transactions (30 s) on the server.
const SET_UP: &str = include_str!("schema/set_up.sql");
/// Longest wait for a connection of the pool: a client would rather try again.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for an answer: the server's own limit for a statement and 5 s for the way.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);

pub const SCHEMA: Migrations = Migrations::new(
    "towline_meta",
    &[Migration {
        name: "create documents, their log and history, claims and the state of syncsets",
        oldest: 1,
        sql: concat!(
            include_str!("schema/tables.sql"),
            include_str!("schema/history.sql"),
            include_str!("schema/origin.sql"),
            include_str!("schema/write.sql"),
            include_str!("schema/rollout.sql"),
            include_str!("schema/procedure.sql"),
            include_str!("schema/renumber.sql"),
            include_str!("schema/compact.sql"),
            include_str!("schema/syncsets.sql"),
        ),
    }],
)
.recorded(RECORD);

/// The pool for the documents. It connects on first use.
pub fn open(source: DatabaseSource) -> Database {
    Database::with_set_up(source, SET_UP).answering_within(ANSWER_WITHIN).waiting_at_most(PATIENCE)
}

/// Whether the schema is there, as everything sees it that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaState {
    Missing {
        reason: String,
        /// Why, for clients: nothing that the server says.
        told: &'static str,
    },
    /// It is as this release needs it.
    Current,
}

/// Records a migration.
const RECORD: &str = "insert into towline_history (at, actor, address, via, verb, details) values (clock_timestamp(), session_user, \
     coalesce(host(inet_client_addr()), ''), 'database', 'migrate', jsonb_build_object('note', $1::text)::text)";

/// The schema as it is after [`migrate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    pub before: Status,
    /// Whether the database shows where its versions come from. If not, a promoted standby and a restored dump go unnoticed, and
    /// an operator has to renumber the versions.
    pub shows_origin: bool,
}

/// Brings the schema up to date, and says in the log if the server refuses to show where its versions come from. `limit` bounds the
/// wait for another process that is migrating, and each migration.
pub async fn migrate(database: &Database, limit: Duration) -> Result<Migrated, migrations::Error> {
    let before = SCHEMA.run(database, limit).await?;
    let shows_origin = shows_origin(database).await.map_err(|source| migrations::Error::Read { source })?;
    if !shows_origin {
        tracing::warn!(
            database = database.place(),
            "the server does not show its system identifier and timeline: after a failover or a restore, renumber the versions"
        );
    }
    Ok(Migrated { before, shows_origin })
}

async fn shows_origin(database: &Database) -> Result<bool, db::Error> {
    const QUERY: &str = "origin";
    let rows = database.all(QUERY, "select towline_origin() <> ''", &[]).await?;
    rows.first().map_or(Ok(false), |row| column(QUERY, row, 0))
}

//! The tables and functions of the documents, in the first schema of the search path.

use std::time::Duration;

use crate::db::migrations::{self, Migration, Migrations, Status};
use crate::db::{self, Database, column};

/// The migrations of the schema. Each keeps the previous release working, since replicas are replaced one by one.
pub const SCHEMA: Migrations = Migrations::new(
    "towline_meta",
    &[
        Migration {
            name: "create documents, log and claims",
            sql: concat!(
                include_str!("schema/tables.sql"),
                include_str!("schema/origin.sql"),
                include_str!("schema/write.sql"),
                include_str!("schema/renumber.sql"),
                include_str!("schema/compact.sql"),
            ),
        },
        Migration { name: "create the state of syncsets", sql: include_str!("schema/syncsets.sql") },
        Migration { name: "judge edits over ten minutes", sql: include_str!("schema/judging.sql") },
        // Each is a transaction: one that locked a table while it waits for another would wait for a dispatcher that waits for it.
        Migration { name: "index what may be deleted", sql: include_str!("schema/tracked.sql") },
        Migration { name: "drop the index before", sql: "drop index if exists towline_applied_syncset_cluster_idx" },
        Migration { name: "judge labels that give objects other names", sql: include_str!("schema/renaming.sql") },
        Migration { name: "index the log by syncset", sql: include_str!("schema/log_of_syncsets.sql") },
        Migration { name: "index what is held or gone", sql: include_str!("schema/held.sql") },
        Migration { name: "index what fails by cluster", sql: include_str!("schema/failing.sql") },
        Migration { name: "note to which cluster a document led first", sql: include_str!("schema/home.sql") },
        Migration { name: "count in how many full passes an object was gone", sql: include_str!("schema/gone.sql") },
    ],
);

/// The schema as it is after [`migrate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version before.
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

//! What leaf hubs report: rows of a database, as the components of a hub of hubs write them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use integration::Error as FixtureError;
use integration::postgres::{self, Database, Postgres, Transport};
use serde_json::json;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::error::Error;

/// The database of the hub, and the leaf hubs' connection to it.
pub(crate) struct LeafHubs {
    server: Postgres,
    database: Database,
    sql: Client,
}

impl LeafHubs {
    /// Starts a server with an empty database, and writes its URL for the daemon.
    pub(crate) async fn start(url_file: &Path) -> Result<Self, Error> {
        let server = Postgres::start("demo", Transport::Plain).await?;
        let database = server.database("hub_of_hubs").await?;
        let sql = database.client(postgres::ADMIN).await?;
        // It names an account that may read, and make the triggers that tell of changes.
        fs::write(url_file, database.url(postgres::NOTIFIER) + "\n").map_err(Error::file("write", url_file))?;
        Ok(Self { server, database, sql })
    }

    /// The hub wants this policy: a row of `spec`, whose id is the object's UID.
    pub(crate) async fn want(&self, uid: &str, namespace: &str, name: &str) -> Result<(), Error> {
        let payload = json!({"metadata": {"uid": uid, "namespace": namespace, "name": name}}).to_string();
        let row = "INSERT INTO spec.policies (id, payload) VALUES ($1::text::uuid, $2::text::jsonb)";
        self.execute("want a policy", row, &[uid, &payload]).await.map(|_| ())
    }

    /// Leaf hubs report how clusters comply, as (leaf hub, cluster, word), in one transaction. When it was committed.
    pub(crate) async fn report(&self, uid: &str, rows: &[(&str, &str, &str)]) -> Result<Instant, Error> {
        let column = |of: fn(&(&str, &str, &str)) -> String| rows.iter().map(of).collect::<Vec<_>>().join(",");
        let (leaf_hubs, clusters) = (column(|row| row.0.to_owned()), column(|row| row.1.to_owned()));
        let words = column(|row| row.2.to_owned());
        let report = "INSERT INTO status.compliance SELECT $1::text::uuid, cluster, leaf_hub, 'none', \
                      word::status.compliance_type FROM unnest(string_to_array($2, ','), string_to_array($3, ','), \
                      string_to_array($4, ',')) AS reported (leaf_hub, cluster, word) \
                      ON CONFLICT (leaf_hub_name, id, cluster_name) DO UPDATE SET compliance = excluded.compliance";
        self.execute("report compliance", report, &[uid, &leaf_hubs, &clusters, &words]).await?;
        Ok(Instant::now())
    }

    /// Makes another database on the server, for the hub server.
    pub(crate) async fn hub_database(&self) -> Result<Database, Error> {
        Ok(self.server.hub_database("hub").await?)
    }

    /// The URL for people, as the administrator.
    pub(crate) fn url(&self) -> String {
        self.database.url(postgres::ADMIN)
    }

    pub(crate) async fn stop(self, limit: Duration) -> Result<(), Error> {
        // A server waits for its connections to end.
        drop(self.sql);
        Ok(self.server.stop(limit).await?)
    }

    async fn execute(&self, what: &'static str, sql: &str, texts: &[&str]) -> Result<u64, Error> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            texts.iter().map(|text| (text as &(dyn ToSql + Sync), Type::TEXT)).collect();
        Ok(self.sql.execute_typed(sql, &typed).await.map_err(FixtureError::database(what))?)
    }
}

//! A database server, a database for each run, and the replicas on it.

use std::time::Duration;

use integration::hub::Replica;
use integration::postgres::{self, Database, Postgres, Transport};
use integration::{Error, eventually};

use super::documents::Fleet;
use crate::options::HubOptions;

/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);

/// What a server has as it is installed, and what the steps read: over the settings that make the fixture quick.
const SETTINGS: [&str; 3] =
    ["autovacuum=on", "full_page_writes=on", "shared_preload_libraries=pg_stat_statements,auto_explain"];

/// Starts the server of all runs.
pub(crate) async fn start_server(options: &HubOptions) -> Result<Postgres, Error> {
    let mut settings = SETTINGS.to_vec();
    if options.fsync {
        settings.push("fsync=on");
    }
    Postgres::start_with("bench-hub", Transport::Plain, &settings).await
}

/// A database and its replicas, of which the first runs in every step.
pub(crate) struct World<'s> {
    pub(crate) server: &'s Postgres,
    database: Database,
    name: String,
    pub(crate) fleet: Fleet,
    /// An administrator's connection. What it does is counted as the database's CPU time, and never as a statement.
    pub(crate) sql: tokio_postgres::Client,
    first: Replica,
    others: Vec<Replica>,
}

impl<'s> World<'s> {
    /// Makes a database and starts a replica, which makes the schema.
    pub(crate) async fn begin(server: &'s Postgres, name: &str, fleet: Fleet) -> Result<Self, Error> {
        let database = server.hub_database(name).await?;
        let sql = database.client(postgres::ADMIN).await?;
        let first = Replica::start(&database, &[]).await?;
        first.wait_ready(LONGEST_STEP).await?;
        Ok(Self { server, database, name: name.to_owned(), fleet, sql, first, others: Vec::new() })
    }

    /// Ends the replicas and removes the database.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        self.replicas(1).await?;
        self.first.towline().terminate(LONGEST_STEP).await?;
        drop(self.sql);
        let drop_database = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let admin = self.server.maintenance().await?;
        admin.batch_execute(&drop_database).await.map_err(Error::database("remove a database"))
    }

    /// The replica that runs in every step.
    pub(crate) fn first(&self) -> &Replica {
        &self.first
    }

    /// The same, to be started again.
    pub(crate) fn first_mut(&mut self) -> &mut Replica {
        &mut self.first
    }

    /// All replicas.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Replica> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Starts or ends replicas until there are so many.
    pub(crate) async fn replicas(&mut self, count: usize) -> Result<(), Error> {
        while self.others.len() + 1 < count {
            let replica = Replica::start(&self.database, &[]).await?;
            replica.wait_ready(LONGEST_STEP).await?;
            self.others.push(replica);
        }
        while self.others.len() + 1 > count.max(1) {
            let Some(replica) = self.others.pop() else { break };
            replica.towline().terminate(LONGEST_STEP).await?;
        }
        Ok(())
    }

    /// Removes dead rows and collects what the planner needs.
    pub(crate) async fn vacuum(&self) -> Result<(), Error> {
        for table in ["towline_documents", "towline_log"] {
            self.execute("vacuum", &format!("VACUUM (ANALYZE) {table}")).await?;
        }
        Ok(())
    }

    /// Runs statements as the administrator.
    pub(crate) async fn execute(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.sql.batch_execute(sql).await.map_err(Error::database(what))
    }

    /// Waits until a replica that was started again is ready.
    pub(crate) async fn wait_for_hub(&self) -> Result<(), Error> {
        eventually("/readyz/hub to say yes", LONGEST_STEP, async || {
            let answer = self.first.towline().admin().section_readyz("hub").await.map_err(|error| error.to_string())?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await
    }
}

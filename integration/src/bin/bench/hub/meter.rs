//! What a step costs: at the kernel's counters and at the server's statistics of statements.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::{Error, Usage, postgres};
use serde::Serialize;

use super::world::World;
use crate::measure::mebibytes;

/// What a step has cost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cost {
    /// CPU seconds of all replicas.
    pub(crate) towline_cpu_seconds: f64,
    /// The most memory that one replica held in the step.
    pub(crate) towline_peak_mib: f64,
    /// CPU seconds of the database server, with everything that serves a connection.
    pub(crate) database_cpu_seconds: f64,
    /// Its memory at the end of the step; what its processes share counts once.
    pub(crate) database_mib: f64,
    /// CPU seconds of this program.
    pub(crate) load_cpu_seconds: f64,
    /// The replicas' statements.
    pub(crate) statements: i64,
}

/// Before a step.
pub(crate) struct Meter {
    towline: Duration,
    database: Duration,
    own: Usage,
}

impl Meter {
    /// Begins with the replicas that run.
    pub(crate) async fn begin(world: &World<'_>) -> Result<Self, Error> {
        for replica in world.all() {
            replica.towline().reset_rss_peak()?;
        }
        Ok(Self { towline: cpu(world)?, ..Self::before_start(world).await? })
    }

    /// Begins before the only replica is started.
    pub(crate) async fn before_start(world: &World<'_>) -> Result<Self, Error> {
        world.execute("reset the statistics", "SELECT statistics.pg_stat_statements_reset()").await?;
        Ok(Self { towline: Duration::ZERO, database: world.server.cpu()?, own: Usage::own()? })
    }

    pub(crate) async fn end(self, world: &World<'_>) -> Result<Cost, Error> {
        let (towline, database, own) = (cpu(world)?, world.server.cpu()?, Usage::own()?);
        let mut peak = 0.0_f64;
        for replica in world.all() {
            peak = peak.max(mebibytes(replica.towline().usage()?.rss_peak));
        }
        let since = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64();
        Ok(Cost {
            towline_cpu_seconds: since(self.towline, towline),
            towline_peak_mib: peak,
            database_cpu_seconds: since(self.database, database),
            database_mib: mebibytes(world.server.memory()?),
            load_cpu_seconds: since(self.own.cpu, own.cpu),
            statements: statements(world).await?.values().sum(),
        })
    }
}

fn cpu(world: &World<'_>) -> Result<Duration, Error> {
    world.all().map(|replica| Ok(replica.towline().usage()?.cpu)).sum()
}

/// The replicas' statements since the last reset: how often each was sent.
pub(crate) async fn statements(world: &World<'_>) -> Result<BTreeMap<String, i64>, Error> {
    let sql = "SELECT s.query, sum(s.calls)::int8 FROM statistics.pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
               JOIN pg_database d ON d.oid = s.dbid WHERE r.rolname = $1 AND d.datname = current_database() GROUP BY 1";
    let rows = world.sql.query(sql, &[&postgres::HUB]).await.map_err(Error::database("read the statistics"))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

impl Cost {
    /// For a line of progress.
    pub(crate) fn line(&self) -> String {
        format!(
            "CPU s: towline {:.2}, database {:.2}, load {:.2}; {} statements; {:.1} MiB, database {:.0} MiB",
            self.towline_cpu_seconds,
            self.database_cpu_seconds,
            self.load_cpu_seconds,
            self.statements,
            self.towline_peak_mib,
            self.database_mib,
        )
    }
}

//! What a phase costs: at the kernel's counters, at the server's statistics of statements, at the audit log.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::audit::Mark;
use integration::{Error, Filter, Towline, Usage, users};
use serde::Serialize;

use super::world::World;
use crate::measure::mebibytes;

/// What a phase has cost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cost {
    pub(crate) daemon_cpu_seconds: f64,
    /// The most memory that it held in the phase.
    pub(crate) daemon_peak_mib: f64,
    /// CPU seconds of the database server, with everything that serves a connection.
    pub(crate) database_cpu_seconds: f64,
    /// CPU seconds of the API server.
    pub(crate) api_server_cpu_seconds: f64,
    pub(crate) etcd_cpu_seconds: f64,
    /// CPU seconds of this program, which watches and makes the load.
    pub(crate) load_cpu_seconds: f64,
    /// The daemon's statements.
    pub(crate) statements: i64,
    /// How many different ones.
    pub(crate) different_statements: i64,
    /// The daemon's requests but for watches.
    pub(crate) requests: usize,
    /// The same by verb and resource, watches included.
    pub(crate) requests_by_kind: BTreeMap<String, usize>,
}

/// Before a phase.
pub(crate) struct Meter {
    daemon: Option<Usage>,
    database: Duration,
    api_server: Duration,
    etcd: Duration,
    own: Usage,
    mark: Mark,
}

impl Meter {
    /// Begins with a daemon that runs, or before one is started.
    pub(crate) async fn begin(world: &World, towline: Option<&Towline>) -> Result<Self, Error> {
        world.execute("reset the statistics", "SELECT pg_stat_statements_reset()", &[]).await?;
        let mark = world.hub.audit()?.mark().await?;
        if let Some(towline) = towline {
            towline.reset_rss_peak()?;
        }
        let hub = world.hub.usage()?;
        Ok(Self {
            daemon: towline.map(Towline::usage).transpose()?,
            database: world.server.cpu()?,
            api_server: hub.api_server.cpu,
            etcd: hub.etcd.cpu,
            own: Usage::own()?,
            mark,
        })
    }

    /// So much of the database's time was not the daemon's doing.
    pub(crate) fn forgive(&mut self, database: Duration) {
        self.database += database;
    }

    pub(crate) async fn end(self, world: &World, towline: &Towline) -> Result<Cost, Error> {
        let (daemon, hub, own) = (towline.usage()?, world.hub.usage()?, Usage::own()?);
        let database = world.server.cpu()?;
        let since = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64();
        let of_towline = Filter::since(self.mark).user(users::TOWLINE);
        let audit = world.hub.audit()?;
        let (statements, different_statements) = statements(world).await?;
        Ok(Cost {
            daemon_cpu_seconds: since(self.daemon.map(|usage| usage.cpu).unwrap_or_default(), daemon.cpu),
            daemon_peak_mib: mebibytes(daemon.rss_peak),
            database_cpu_seconds: since(self.database, database),
            api_server_cpu_seconds: since(self.api_server, hub.api_server.cpu),
            etcd_cpu_seconds: since(self.etcd, hub.etcd.cpu),
            load_cpu_seconds: since(self.own.cpu, own.cpu),
            statements,
            different_statements,
            requests: audit.count(&of_towline).await?,
            requests_by_kind: audit.summary(&of_towline.with_watches()).await?,
        })
    }
}

/// The statements of the daemon's accounts since the last reset: how many, and how many different ones.
async fn statements(world: &World) -> Result<(i64, i64), Error> {
    let sql = "SELECT coalesce(sum(s.calls), 0)::int8, count(*) FROM pg_stat_statements s \
               JOIN pg_roles r ON r.oid = s.userid JOIN pg_database d ON d.oid = s.dbid \
               WHERE r.rolname LIKE 'towline%' AND d.datname = current_database()";
    let row = world.sql.query_one(sql, &[]).await.map_err(Error::database("read the statistics"))?;
    Ok((row.get(0), row.get(1)))
}

/// The value of a series at the daemon's `/metrics`; 0 where it is not there yet.
pub(crate) async fn metric(towline: &Towline, series: &str) -> Result<f64, Error> {
    let text = towline.admin().metrics().await?;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    Ok(value.unwrap_or_default())
}

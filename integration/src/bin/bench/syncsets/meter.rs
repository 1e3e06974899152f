//! What a phase costs: at the kernel's counters, the database's statistics, and the API servers' audit logs.

use std::time::Duration;

use integration::audit::Mark;
use integration::{Error, Filter, Usage, postgres, users};
use serde::Serialize;

use super::world::World;
use crate::measure::mebibytes;

/// What a phase has cost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cost {
    /// CPU seconds of all replicas.
    pub(crate) towline_cpu_seconds: f64,
    /// The most memory that one replica held in the phase.
    pub(crate) towline_peak_mib: f64,
    /// CPU seconds of the database server.
    pub(crate) database_cpu_seconds: f64,
    /// CPU seconds of the API servers, without their etcds.
    pub(crate) api_servers_cpu_seconds: f64,
    /// CPU seconds of this program.
    pub(crate) load_cpu_seconds: f64,
    /// Requests of the workers to the API servers.
    pub(crate) requests: usize,
    /// Statements of the replicas.
    pub(crate) statements: i64,
}

/// Before a phase.
pub(crate) struct Meter {
    towline: Duration,
    database: Duration,
    api_servers: Duration,
    own: Usage,
    marks: Vec<Mark>,
    simulated: u64,
}

impl Meter {
    /// Begins with the replicas that run.
    pub(crate) async fn begin(world: &World) -> Result<Self, Error> {
        let mut marks = Vec::new();
        for edge in &world.edges {
            marks.push(edge.audit()?.mark().await?);
        }
        for replica in &world.replicas {
            replica.towline().reset_rss_peak()?;
        }
        world.execute("reset the statistics", "SELECT statistics.pg_stat_statements_reset()").await?;
        Ok(Self {
            towline: towline(world)?,
            database: world.server.cpu()?,
            api_servers: api_servers(world)?,
            own: Usage::own()?,
            marks,
            simulated: simulated(world),
        })
    }

    /// Ends, when nothing is left to be done.
    pub(crate) async fn end(self, world: &World) -> Result<Cost, Error> {
        world.at_rest().await?;
        let since = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64();
        let mut cost = Cost {
            towline_cpu_seconds: since(self.towline, towline(world)?),
            database_cpu_seconds: since(self.database, world.server.cpu()?),
            api_servers_cpu_seconds: since(self.api_servers, api_servers(world)?),
            load_cpu_seconds: since(self.own.cpu, Usage::own()?.cpu),
            ..Cost::default()
        };
        for replica in &world.replicas {
            cost.towline_peak_mib = cost.towline_peak_mib.max(mebibytes(replica.towline().usage()?.rss_peak));
        }
        for (edge, mark) in world.edges.iter().zip(&self.marks) {
            cost.requests += edge.audit()?.count(&Filter::since(*mark).user(users::EDGE_CONTROLLER)).await?;
        }
        cost.requests += usize::try_from(simulated(world) - self.simulated).unwrap_or(usize::MAX);
        let statements = format!(
            "SELECT coalesce(sum(s.calls), 0)::int8 FROM statistics.pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid \
             WHERE r.rolname = '{}'",
            postgres::HUB
        );
        cost.statements = world.number(&statements).await?;
        Ok(cost)
    }
}

fn towline(world: &World) -> Result<Duration, Error> {
    world.replicas.iter().map(|replica| Ok(replica.towline().usage()?.cpu)).sum()
}

/// Requests to simulated API servers.
fn simulated(world: &World) -> u64 {
    world.simulated().map_or(0, integration::simulated::ApiServers::requests)
}

fn api_servers(world: &World) -> Result<Duration, Error> {
    world.edges.iter().map(|edge| Ok(edge.usage()?.api_server.cpu)).sum()
}

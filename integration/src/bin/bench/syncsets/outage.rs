//! Ways in which a cluster is dead.

use integration::simulated::{ApiServers, Behavior};
use integration::{Error, Link, users};

use super::world::World;
use crate::options::Death;

/// An address that refuses connections.
const REFUSING: &str = "127.0.0.1:1";

/// Servers that stand for dead ones of real clusters.
pub(super) struct Outage {
    servers: ApiServers,
    /// Swallows every packet.
    link: Link,
}

impl Outage {
    /// Of so many clusters.
    pub(super) async fn begin(world: &World, clusters: usize) -> Result<Self, Error> {
        let servers = ApiServers::start(clusters).await?;
        let link = Link::to(world.edge(0)?.address()).await?;
        link.cut().await?;
        Ok(Self { servers, link })
    }

    /// A kubeconfig that leads to a dead cluster.
    pub(super) fn kubeconfig(&self, world: &World, number: usize, death: Option<Death>) -> Result<String, Error> {
        let behavior = match death {
            None | Some(Death::Refuses) => {
                let address = world.edge(number)?.address().to_string();
                return Ok(world.kubeconfig(number)?.replace(&address, REFUSING));
            }
            Some(Death::Swallows) => {
                let path = world.edge(0)?.kubeconfig_by(users::EDGE_CONTROLLER, self.link.address())?;
                return std::fs::read_to_string(&path).map_err(Error::file("read", &path));
            }
            Some(Death::Stops) => Behavior::StopsHalfWay,
            Some(Death::Slow) => Behavior::IsSlow,
        };
        self.servers.set_behavior(number, behavior);
        self.servers.kubeconfig(number, self.servers.address())
    }
}

//! One replica: a process, the user it is, and what may be done to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use integration::{Link, Towline, users};

use crate::elections::world::{LIMIT, World};

pub(crate) struct Replica {
    pub(crate) towline: Towline,
    /// Who it is to the API servers.
    pub(crate) user: &'static str,
    /// Who it is in the Leases.
    pub(crate) identity: String,
    /// Its way to the election's cluster.
    pub(crate) link: Option<Link>,
}

impl Replica {
    /// Starts one as the user of this number.
    pub(crate) async fn start(world: &World, number: usize) -> Self {
        Self::start_by(world, number, None).await
    }

    /// The same, whose way to the edge can be cut.
    pub(crate) async fn start_behind_a_link(world: &World, number: usize) -> Self {
        let link = Link::to(world.edge.address()).await.unwrap();
        Self::start_by(world, number, Some(link)).await
    }

    async fn start_by(world: &World, number: usize, link: Option<Link>) -> Self {
        // No two processes of a test have the same identity, also not one after the other.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let user = users::REPLICA[number];
        let identity = format!("{user}_{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let hub = world.hub.kubeconfig(user).unwrap();
        let edge = match &link {
            Some(link) => world.edge.kubeconfig_by(user, link.address()).unwrap(),
            None => world.edge.kubeconfig(user).unwrap(),
        };
        let clusters = [("hub", hub), ("edge", edge)]
            .map(|(name, path)| format!("[clusters.{name}]\nkubeconfig = \"{}\"\n", path.display()))
            .concat();
        let config = format!("[daemon.log]\nfilter = \"info,towline=debug\"\n{clusters}{}", world.configuration());
        let env = [("TOWLINE__ELECTION__IDENTITY", identity.as_str())];
        let towline = Towline::start(&config, &env).await.unwrap();
        Self { towline, user, identity, link }
    }

    /// Which sections it says run in it, by its metrics. `None`: no answer.
    pub(crate) async fn claims(&self) -> Option<BTreeMap<String, bool>> {
        claims(&self.towline.admin().metrics().await.ok()?)
    }

    pub(crate) async fn kill(&self) {
        self.towline.kill9().await.unwrap();
    }

    pub(crate) async fn terminate(&self) {
        let status = self.towline.terminate(LIMIT).await.unwrap();
        assert!(status.success(), "{status}: {}", self.towline.log().unwrap());
    }
}

/// The sections of `leader_election_master_status`, and whether it is 1.
pub(crate) fn claims(metrics: &str) -> Option<BTreeMap<String, bool>> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("leader_election_master_status{name=\""));
    lines.map(|line| line.split_once("\"} ").map(|(name, value)| (name.to_owned(), value == "1"))).collect()
}

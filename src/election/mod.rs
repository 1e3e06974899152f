//! Election per section: replicas of one daemon share its sections out among themselves.
//!
//! Each section has a Lease, and so has each replica; one watch shows them all. `roll` holds what was seen, and wakes the
//! electors that have something to do. `plan` is pure: who takes which free section, and who gives one up for whom;
//! `shares` says how many each is to have, `offers` what became of what was given up, `seen` since when what is known;
//! all are pure, too.
//! `elector` is the actor of one section: it takes the Lease,
//! renews it, and opens the section's gate and fence meanwhile. `membership` says that this replica lives. `record` is how
//! Leases are read and written, `leases` the requests, `seat` what elector, requests and report share, `report` what the
//! admin server shows.
//!
//! At any time at most one replica runs a section. A record is taken over when it has not changed for its duration, by the
//! clock of who watches, and a holder stops by its own clock (which runs on while it is stopped or the machine sleeps) a
//! duration after it *sent* its last acknowledged renewal, which is earlier. No clocks are compared.

mod elector;
#[cfg(test)]
mod laws;
mod leases;
mod membership;
mod offers;
mod plan;
mod record;
mod report;
mod roll;
mod seat;
mod seen;
mod shares;

use std::sync::Arc;

use self::elector::Elector;
use self::leases::Leases;
use self::membership::Membership;
use self::roll::Roll;
use self::seat::Seat;
use crate::actor::{ChildSpec, Gate};
use crate::cluster::{Clock, Cluster, Demand, Error, Fence, Kind, Verb, Watch, WatchId, WatchRegistry, WatchSpec};
use crate::config::{ElectionConfig, SectionName};

pub use report::Elected;

/// What an election needs of its cluster: verbs on Leases in the namespace.
pub const VERBS: [Verb; 7] =
    [Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch, Verb::Update, Verb::Delete];
/// The resource that they are on.
pub const RESOURCE: &str = "leases.coordination.k8s.io";
/// A replica that just came looks on for this part of the renewal interval: those that start together see each other
/// before the first of them takes everything.
const SETTLE_PART: u32 = 5;

/// Whether a Lease can be made where the election has its own: permissions say nothing of a namespace that is not there.
pub async fn try_lease(config: &ElectionConfig, cluster: &Cluster) -> Result<(), Error> {
    let lease = record::replica("towline-check", &config.namespace, config.lease_duration, &[]);
    match cluster.try_create(&Kind::lease(), &config.namespace, &lease).await {
        // Left by a replica of that name: the namespace is there.
        Err(Error::Conflict { .. }) => Ok(()),
        result => result,
    }
}

/// The election of this replica.
pub struct Election {
    config: ElectionConfig,
    identity: Arc<str>,
    leases: Arc<Leases>,
    roll: Arc<Roll>,
    watch: Arc<Watch>,
    seats: Vec<Arc<Seat>>,
    _demand: Demand,
}

impl Election {
    /// An election over these sections that has not begun. Before any actor starts.
    pub fn new(config: &ElectionConfig, sections: &[SectionName], watches: &mut WatchRegistry) -> Arc<Self> {
        let identity: Arc<str> = config.identity.clone().unwrap_or_else(default_identity).into();
        let cluster = watches.canonical(&config.cluster);
        let leases = Arc::new(Leases::new(&watches.cluster(&cluster), config));
        let id = WatchId {
            namespace: config.namespace.clone(),
            labels: record::LABEL.to_owned(),
            ..WatchId::all(cluster, record::leases_id())
        };
        let watch = watches.watch(id, WatchSpec { kind: Some(Kind::lease()), ..WatchSpec::default() });
        let roll = Roll::new(Arc::clone(&identity), config.renew_interval / SETTLE_PART, &watch);
        watches.specify(&watch, roll.follows());
        let seats = sections.iter().map(|section| Seat::new(section, Clock::Boot)).collect();
        let demand = watch.demand(None);
        Arc::new(Self { config: config.clone(), identity, leases, roll, watch, seats, _demand: demand })
    }

    /// How this replica is called.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    fn seat(&self, section: &SectionName) -> Option<&Arc<Seat>> {
        self.seats.iter().find(|seat| seat.section == *section)
    }

    /// The fence of a section's requests.
    pub fn fence(&self, section: &SectionName) -> Option<Fence> {
        self.seat(section).map(|seat| seat.fence.clone())
    }

    /// The gate of a section's branch of the tree.
    pub fn gate(&self, section: &SectionName) -> Option<Gate> {
        self.seat(section).map(|seat| seat.gate.clone())
    }

    /// The actor that looks at the roll, and the electors, one a section. They go before the sections in the tree, to be
    /// drained after them.
    pub fn electors(&self) -> Vec<ChildSpec> {
        let elector = |seat: &Arc<Seat>| {
            Arc::new(Elector {
                identity: Arc::clone(&self.identity),
                lease_duration: self.config.lease_duration,
                renew_interval: self.config.renew_interval,
                leases: Arc::clone(&self.leases),
                roll: Arc::clone(&self.roll),
                seat: Arc::clone(seat),
            })
        };
        let child = |seat| {
            let elector: Arc<Elector> = elector(seat);
            ChildSpec::new(format!("election {}", seat.section), move |scope| Arc::clone(&elector).run(scope))
        };
        let roll = Arc::clone(&self.roll);
        let looking = ChildSpec::new("roll", move |scope| Arc::clone(&roll).run(scope));
        std::iter::once(looking).chain(self.seats.iter().map(child)).collect()
    }

    /// The membership. It goes last in the tree, to be drained first.
    pub fn membership(&self) -> ChildSpec {
        let membership = Arc::new(Membership {
            identity: Arc::clone(&self.identity),
            lease_duration: self.config.lease_duration,
            renew_interval: self.config.renew_interval,
            sections: self.seats.iter().map(|seat| seat.section.clone()).collect(),
            leases: Arc::clone(&self.leases),
            roll: Arc::clone(&self.roll),
            watch: Arc::clone(&self.watch),
        });
        ChildSpec::new("membership", move |scope| Arc::clone(&membership).run(scope))
    }
}

/// The host's name and a random suffix, so that no two processes share it.
fn default_identity() -> String {
    const LONGEST_HOST: usize = 150;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let tame =
        |character: char| if character.is_ascii_alphanumeric() || "-.".contains(character) { character } else { '-' };
    let host: String = host.chars().take(LONGEST_HOST).map(tame).collect();
    let host = host.trim_matches(|end: char| !end.is_ascii_alphanumeric());
    format!("{}_{:08x}", if host.is_empty() { "towline" } else { host }, rand::random::<u32>())
}

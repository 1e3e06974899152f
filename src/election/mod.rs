//! Leader election for each section: the replicas of one daemon share its sections.
//!
//! Each section has a Lease, and one watch shows them all. [`view`] holds what this replica has observed of them, and decides
//! when it may acquire a free one. [`elector`] is the actor of one section: it acquires the Lease, renews it, and opens the
//! section's gate and fence meanwhile. [`record`] reads and writes the content of Leases, [`leases`] sends the requests.
//! [`section_lease`] is what a section's elector, its requests and its report share, and [`report`] what the admin server
//! shows.
//!
//! A *term* begins when a process acquires a section's Lease, and ends when it releases or loses it.
//!
//! At any time at most one replica runs a section. A replica acquires another one's Lease when it has not changed for its
//! duration, by the clock of the replica that watches. The holder stops by its own clock (which also runs while the process
//! is stopped or the machine sleeps) one duration after it *sent* its last acknowledged renewal, which is earlier. Clocks of
//! different machines are never compared.

mod elector;
mod leases;
mod record;
mod report;
mod section_lease;
mod view;

use std::sync::Arc;

use crate::actor::{ChildSpec, Gate};
use crate::cluster::{
    AccessRequest, Clock, Cluster, Demand, Error, Fence, Kind, Verb, Watch, WatchId, WatchRegistry, WatchSpec,
};
use crate::config::{ElectionConfig, SectionName};
use elector::Elector;
use leases::Leases;
use record::Acquisition;
use section_lease::SectionLease;
use view::LeaseView;

pub use report::Elected;

/// The permissions that an election over these sections needs in its namespace.
pub fn needed_access<'s>(sections: impl IntoIterator<Item = &'s SectionName>, namespace: &str) -> Vec<AccessRequest> {
    let leases = |verb, name: &str| AccessRequest::new(verb, "leases.coordination.k8s.io", namespace, name);
    // One watch shows all Leases, and for a Lease that is about to be created, the API server authorizes without a name.
    let mut needed = [Verb::List, Verb::Watch, Verb::Create].map(|verb| leases(verb, "")).to_vec();
    for section in sections {
        needed.extend([Verb::Get, Verb::Patch].map(|verb| leases(verb, &record::lease_name(section))));
    }
    needed
}

/// Checks with a dry run that a Lease can be created in the election's namespace. Permissions alone don't show that the
/// namespace exists.
pub async fn try_lease(config: &ElectionConfig, cluster: &Cluster) -> Result<(), Error> {
    let now = record::now();
    let acquisition = Acquisition { identity: "check", duration: config.lease_duration, acquired: &now, before: None };
    let lease = acquisition.body("towline-check", &config.namespace);
    match cluster.try_create(&Kind::lease(), &config.namespace, &lease).await {
        // There is a section of that name: the namespace exists.
        Err(Error::Conflict { .. }) => Ok(()),
        result => result,
    }
}

pub struct Election {
    config: ElectionConfig,
    identity: Arc<str>,
    leases: Arc<Leases>,
    view: Arc<LeaseView>,
    watch: Arc<Watch>,
    sections: Vec<Arc<SectionLease>>,
    _demand: Demand,
}

impl Election {
    /// An election over these sections. It has to be made before any actor starts.
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
        let view = LeaseView::new(Arc::clone(&identity), config.lease_duration, sections, &watch);
        watches.specify(&watch, view.follows());
        let sections = sections.iter().map(|section| SectionLease::new(section, Clock::Boot)).collect();
        let demand = watch.demand(None);
        Arc::new(Self { config: config.clone(), identity, leases, view, watch, sections, _demand: demand })
    }

    fn section_lease(&self, section: &SectionName) -> Option<&Arc<SectionLease>> {
        self.sections.iter().find(|lease| lease.section == *section)
    }

    pub fn fence(&self, section: &SectionName) -> Option<Fence> {
        self.section_lease(section).map(|lease| lease.fence.clone())
    }

    /// The gate of a section's branch of the tree.
    pub fn gate(&self, section: &SectionName) -> Option<Gate> {
        self.section_lease(section).map(|lease| lease.gate.clone())
    }

    /// The actor of the view, and one elector for each section. They come before the sections in the tree, so
    /// that they are drained after them.
    pub fn electors(&self) -> Vec<ChildSpec> {
        let child = |lease: &Arc<SectionLease>| {
            let elector = Arc::new(Elector {
                identity: Arc::clone(&self.identity),
                lease_duration: self.config.lease_duration,
                renew_interval: self.config.renew_interval,
                leases: Arc::clone(&self.leases),
                view: Arc::clone(&self.view),
                lease: Arc::clone(lease),
            });
            ChildSpec::new(format!("election {}", lease.section), move |scope| Arc::clone(&elector).run(scope))
        };
        let view = Arc::clone(&self.view);
        let view = ChildSpec::new("lease_view", move |scope| Arc::clone(&view).run(scope));
        std::iter::once(view).chain(self.sections.iter().map(child)).collect()
    }
}

/// The host's name and a random suffix, so that no two processes have the same.
fn default_identity() -> String {
    const LONGEST_HOST: usize = 150;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let allowed =
        |character: char| if character.is_ascii_alphanumeric() || "-.".contains(character) { character } else { '-' };
    let host: String = host.chars().take(LONGEST_HOST).map(allowed).collect();
    let host = host.trim_matches(|end: char| !end.is_ascii_alphanumeric());
    format!("{}_{:08x}", if host.is_empty() { "towline" } else { host }, rand::random::<u32>())
}

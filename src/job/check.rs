//! What the checks of all jobs share: reachable clusters, identities and stored states.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use crate::actor::Scope;
use crate::cluster::{Availability, Cluster, Identity, session};
use crate::config::{ClusterConfig, ClusterName};
use crate::state;

/// A cluster that has not answered after this counts as unreachable.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The environment of the checks of all jobs.
pub struct Surroundings<'c> {
    /// Every cluster of the configuration; `None` if it does not answer, which is printed already.
    pub clusters: BTreeMap<ClusterName, Option<Cluster>>,
    pub configured: &'c BTreeMap<ClusterName, ClusterConfig>,
    pub keeping: state::Keeping,
}

impl Surroundings<'_> {
    /// A cluster, if it answers.
    pub fn cluster(&self, name: &ClusterName) -> Option<&Cluster> {
        self.clusters.get(name)?.as_ref()
    }
}

/// Connects to a cluster. Returns it once it answers, or the reason why it does not.
pub async fn reach(name: &ClusterName, config: &ClusterConfig) -> Result<Cluster, String> {
    let cluster = Cluster::new(name.clone(), config);
    cluster.want_identity();
    connect(&cluster, config).await?;
    Ok(cluster)
}

/// Starts a cluster's session, and waits until it answers.
pub async fn connect(cluster: &Cluster, config: &ClusterConfig) -> Result<(), String> {
    let (scope, _stop) = Scope::standalone("check");
    tokio::spawn(session::run(cluster.clone(), config.clone(), scope));
    let mut availability = cluster.availability();
    let answer = tokio::time::timeout(
        ANSWER_WITHIN,
        availability.wait_for(|availability| *availability != Availability::Starting),
    )
    .await;
    match answer {
        Ok(Ok(availability)) => match &*availability {
            Availability::Unavailable { reason } => return Err(reason.clone()),
            Availability::Available | Availability::Starting => {}
        },
        Ok(Err(_)) | Err(_) => return Err(format!("no answer within {}", humantime::format_duration(ANSWER_WITHIN))),
    }
    Ok(())
}

/// Checks whether a cluster's identity can be read. Returns the number of faults.
pub fn check_identity(who: &str, cluster: &Cluster) -> usize {
    let Identity::Unknown { reason } = cluster.identity() else { return 0 };
    say(&format!("{who}: cluster {}: its identity is unknown: {reason}", cluster.name()));
    1
}

tokio::task_local! {
    /// What was said instead of printed.
    static SAID: RefCell<Vec<String>>;
}

/// Prints a line of a command's answer.
pub fn say(text: &str) {
    if SAID.try_with(|said| said.borrow_mut().push(text.to_owned())).is_err()
        && writeln!(std::io::stdout(), "{text}").is_err()
    {
        // Nobody reads any more: `towline get clusters | head`.
        std::process::exit(1);
    }
}

/// Does some work whose lines are part of a document, and returns them.
pub async fn collected<T>(work: impl Future<Output = T>) -> (T, Vec<String>) {
    let work = async {
        let outcome = work.await;
        (outcome, SAID.with(RefCell::take))
    };
    SAID.scope(RefCell::default(), work).await
}

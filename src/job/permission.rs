//! The permissions that sections need: one list per job, by verb and resource. `towline check --connect` asks the clusters for
//! them, and the roles in `deploy/` are tested against them.

use std::collections::BTreeMap;
use std::fmt;

use super::check::say;
use crate::cluster::{AccessRequest, Cluster, Decision, Error, Kind, Verb};
use crate::config::{ClusterName, ResourceId};
use crate::state;

/// The verbs that reading objects and following their changes need.
pub const READ: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

/// A permission that a section needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    pub place: PermissionPlace,
    /// One of these is enough. Most permissions have only one.
    pub any_of: Vec<AccessRequest>,
    /// The consequence if it is missing.
    pub need: Need,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionPlace {
    /// In a cluster of the configuration.
    Cluster(ClusterName),
    /// In the hub that a Secret of the section leads to.
    HubOfSecret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The section can't do its job.
    Required,
    /// Everything else works. The text says what the permission is for.
    Optional(String),
    /// The guard is stricter. The check reports that when it reads the cluster's identity.
    Identity,
}

impl Permission {
    /// A permission that a section needs to do its job.
    pub fn required(place: &PermissionPlace, request: AccessRequest) -> Self {
        Self { place: place.clone(), any_of: vec![request], need: Need::Required }
    }

    /// Each of these verbs on a resource, `plural.group/subresource`. An empty namespace or name means all of them.
    pub fn each(place: &PermissionPlace, verbs: &[Verb], resource: &str, namespace: &str, name: &str) -> Vec<Self> {
        verbs.iter().map(|verb| Self::required(place, AccessRequest::new(*verb, resource, namespace, name))).collect()
    }

    /// The permission to read a cluster's identity.
    pub fn identity(place: &PermissionPlace) -> Self {
        let any_of = vec![AccessRequest::new(Verb::Get, "namespaces", "", "kube-system")];
        Self { place: place.clone(), any_of, need: Need::Identity }
    }

    #[must_use]
    pub fn optional(self, purpose: &str) -> Self {
        Self { need: Need::Optional(purpose.to_owned()), ..self }
    }

    /// Whether it is for more than reading.
    pub fn is_to_write(&self) -> bool {
        !self.any_of.iter().all(|request| READ.contains(&request.verb))
    }

    /// The same in one namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        let within = |request: &AccessRequest| AccessRequest { namespace: namespace.to_owned(), ..request.clone() };
        Self { any_of: self.any_of.iter().map(within).collect(), ..self.clone() }
    }
}

/// What a review found, which is told in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    weight: Weight,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Weight {
    Fault,
    /// The server did not answer.
    Unanswered,
    /// It may be none, for this reason.
    Unknown(&'static str),
    /// What it would be for.
    Optional(String),
}

impl Finding {
    pub fn fault(text: String) -> Self {
        Self { weight: Weight::Fault, text }
    }

    pub fn is_fault(&self) -> bool {
        matches!(self.weight, Weight::Fault | Weight::Unanswered)
    }

    /// Whether the server did not answer.
    pub fn is_unanswered(&self) -> bool {
        self.weight == Weight::Unanswered
    }

    /// The same if it can't be told whether it is a fault.
    #[must_use]
    pub fn unknown(self, why: &'static str) -> Self {
        if self.is_fault() { Self { weight: Weight::Unknown(why), ..self } } else { self }
    }
}

/// Verbs on a resource that are denied for the same reason; `reason` is the authorizer's, or empty.
struct Denied<'p> {
    first: &'p Permission,
    verbs: Vec<&'static str>,
    reason: String,
}

impl<'p> Denied<'p> {
    fn new(permission: &'p Permission, reason: String) -> Self {
        let verbs = permission.any_of.iter().map(|request| request.verb.as_str()).collect();
        Self { first: permission, verbs, reason }
    }

    /// Adds a permission that differs in the verb alone. Returns whether it does.
    fn adds(&mut self, permission: &Permission, reason: &str) -> bool {
        let ([first], [other]) = (self.first.any_of.as_slice(), permission.any_of.as_slice()) else { return false };
        let is_such = self.first.need == permission.need
            && self.reason == reason
            && AccessRequest { verb: first.verb, ..other.clone() } == *first;
        if is_such {
            self.verbs.push(other.verb.as_str());
        }
        is_such
    }

    fn finding(&self) -> Finding {
        let text = self.first.any_of.first().map(|first| first.denied(&self.reason)).unwrap_or_default();
        let (first, between) = (self.verbs.first().copied().unwrap_or_default(), self.between());
        Finding { weight: self.first.need.weight(), text: text.replacen(first, &self.verbs.join(between), 1) }
    }

    /// Each of them is missing, or one would be enough.
    fn between(&self) -> &'static str {
        if self.first.any_of.len() == 1 { ", " } else { " or " }
    }
}

impl Need {
    fn weight(&self) -> Weight {
        match self {
            Self::Optional(purpose) => Weight::Optional(purpose.clone()),
            Self::Required | Self::Identity => Weight::Fault,
        }
    }
}

/// The kinds that sections work with, as the clusters serve them.
#[derive(Clone, Debug, Default)]
pub struct Kinds(BTreeMap<(ClusterName, String), Kind>);

impl Kinds {
    pub fn insert(&mut self, cluster: &ClusterName, id: &ResourceId, kind: Kind) {
        self.0.insert((cluster.clone(), id.to_string()), kind);
    }

    /// How a cluster serves a kind; `None` if that is unknown.
    pub fn get(&self, cluster: &ClusterName, id: &ResourceId) -> Option<&Kind> {
        self.0.get(&(cluster.clone(), id.to_string()))
    }

    /// How any cluster serves a kind.
    pub fn any(&self, id: &ResourceId) -> Option<&Kind> {
        let name = id.to_string();
        self.0.iter().find(|((_, known), _)| *known == name).map(|(_, kind)| kind)
    }

    /// Asks a cluster for a kind, once. Prints what is wrong, and returns the number of faults.
    pub async fn discover(&mut self, who: &str, cluster: &Cluster, id: &ResourceId) -> usize {
        if self.get(cluster.name(), id).is_some() {
            return 0;
        }
        match Kind::discover(cluster, id).await {
            Ok(kind) => {
                self.insert(cluster.name(), id, kind);
                0
            }
            Err(error) => {
                say(&format!("{who}: cluster {}: kind {id}: {}", cluster.name(), error.to_string().trim_end()));
                1
            }
        }
    }
}

pub enum Reviewer<'c> {
    Cluster(&'c Cluster),
    /// The hub that a Secret of the section leads to.
    Hub(&'c Cluster),
}

impl Reviewer<'_> {
    async fn review(&self, request: &AccessRequest) -> Result<Decision, Error> {
        match self {
            Self::Cluster(cluster) | Self::Hub(cluster) => cluster.review_access(request).await,
        }
    }

    /// Reviews each of the permissions, and prints those that are missing. Returns the number of faults.
    pub async fn check(&self, who: &str, permissions: &[Permission]) -> usize {
        self.tell(who, &self.find(permissions).await)
    }

    /// Reviews each of the permissions. Those that are missing on a resource are one finding.
    pub async fn find(&self, permissions: &[Permission]) -> Vec<Finding> {
        let (mut denied, mut failed): (Vec<Denied<'_>>, Vec<Finding>) = (Vec::new(), Vec::new());
        for permission in permissions.iter().filter(|permission| permission.need != Need::Identity) {
            match self.missing(permission).await {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    if !denied.iter_mut().any(|one| one.adds(permission, &reason)) {
                        denied.push(Denied::new(permission, reason));
                    }
                }
                // The next review would not be answered either.
                Err(error) if error.is_unreachable() => {
                    failed.push(Finding { weight: Weight::Unanswered, text: error.to_string() });
                    break;
                }
                Err(error) => failed.push(Finding { weight: permission.need.weight(), text: error.to_string() }),
            }
        }
        denied.iter().map(Denied::finding).chain(failed).collect()
    }

    /// Prints what a review found, faults first, and returns their number.
    pub fn tell(&self, who: &str, findings: &[Finding]) -> usize {
        let (faults, others): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.is_fault());
        for Finding { weight, text } in faults.iter().chain(&others) {
            match weight {
                Weight::Fault | Weight::Unanswered => say(&format!("{who}: {self}: {text}")),
                Weight::Unknown(why) => say(&format!("{who}: {self}: {why}: {text}")),
                Weight::Optional(purpose) => say(&format!("{who}: {self}: optional, for {purpose}: {text}")),
            }
        }
        faults.len()
    }

    /// Why a permission is missing, which may be empty; `None` if it is granted.
    async fn missing(&self, permission: &Permission) -> Result<Option<String>, Error> {
        let mut reason = String::new();
        for request in &permission.any_of {
            let decision = self.review(request).await?;
            if decision.allowed {
                return Ok(None);
            }
            reason = decision.reason;
        }
        Ok(Some(reason))
    }
}

impl fmt::Display for Reviewer<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(cluster) => write!(formatter, "cluster {}", cluster.name()),
            Self::Hub(_) => formatter.write_str("hub"),
        }
    }
}

/// Checks whether a section may store its state, and whether an object of somebody else is in its place. Returns the number of
/// faults.
pub async fn check_state(who: &str, owner: state::Owner, cluster: &Cluster, keeping: &state::Keeping) -> usize {
    let who = format!("{who}: state");
    let section = owner.section.clone();
    let store = state::StateStore::new(owner, cluster.clone(), keeping);
    let Some(namespace) = store.namespace() else { return 0 };
    let place = PermissionPlace::Cluster(cluster.name().clone());
    let needed = state::needed_access(&section, &namespace).into_iter();
    let needed: Vec<_> = needed.map(|request| Permission::required(&place, request)).collect();
    let faults = Reviewer::Cluster(cluster).check(&who, &needed).await;
    if faults > 0 {
        return faults;
    }
    match store.check().await {
        Ok(()) => 0,
        Err(reason) => {
            say(&format!("{who}: cluster {}: {reason}", cluster.name()));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_every_verb_that_is_missing_or_every_one_that_would_do() {
        let hub = PermissionPlace::HubOfSecret;
        let leases = Permission::each(&hub, &[Verb::Get, Verb::Patch], "leases.coordination.k8s.io", "edge", "");
        let mut denied = Denied::new(&leases[0], String::new());
        assert!(denied.adds(&leases[1], "") && !denied.adds(&leases[1], "no"));
        assert!(
            !denied.adds(&leases[1].clone().optional("nothing"), "") && !denied.adds(&leases[1].within("other"), "")
        );
        let text = denied.finding().text;
        assert_eq!(text, "not allowed to get, patch leases.coordination.k8s.io in namespace edge");
        let mut either = leases[1].clone();
        either.any_of.push(AccessRequest::new(Verb::Update, "leases.coordination.k8s.io", "edge", ""));
        assert!(!denied.adds(&either, ""));
        assert_eq!(
            Denied::new(&either, "no".to_owned()).finding().text,
            "not allowed to patch or update leases.coordination.k8s.io in namespace edge: no"
        );
    }
}

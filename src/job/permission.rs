//! The permissions that sections need: one list per job, by verb and resource. `towline check --connect` asks the clusters for
//! them, and the roles in `deploy/` are tested against them.

use std::collections::BTreeMap;
use std::fmt;

use super::check::say;
use crate::cluster::{AccessRequest, Cluster, Decision, Error, Kind, Verb};
use crate::config::{ClusterName, ResourceId};

/// The verbs that reading objects and following their changes need.
pub const READ: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];
/// Events, as RBAC calls them.
pub const EVENTS: &str = "events.events.k8s.io";

/// A permission that a section needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    pub place: Place,
    /// One of these is enough. Most permissions have only one.
    pub any_of: Vec<AccessRequest>,
    /// The consequence if it is missing.
    pub need: Need,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
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
    pub fn required(place: &Place, request: AccessRequest) -> Self {
        Self { place: place.clone(), any_of: vec![request], need: Need::Required }
    }

    /// Each of these verbs on a resource, `plural.group/subresource`. An empty namespace or name means all of them.
    pub fn each(place: &Place, verbs: &[Verb], resource: &str, namespace: &str, name: &str) -> Vec<Self> {
        verbs.iter().map(|verb| Self::required(place, AccessRequest::new(*verb, resource, namespace, name))).collect()
    }

    /// The permission to read a cluster's identity.
    pub fn identity(place: &Place) -> Self {
        let any_of = vec![AccessRequest::new(Verb::Get, "namespaces", "", "kube-system")];
        Self { place: place.clone(), any_of, need: Need::Identity }
    }

    #[must_use]
    pub fn optional(self, purpose: &str) -> Self {
        Self { need: Need::Optional(purpose.to_owned()), ..self }
    }

    /// The message about a denial; `reason` is the authorizer's, or empty.
    fn denied(&self, reason: &str) -> String {
        match self.any_of.as_slice() {
            [only] => only.denied(reason),
            several => {
                let verbs: Vec<&str> = several.iter().map(|request| request.verb.as_str()).collect();
                let text = several.first().map(|first| first.denied(reason)).unwrap_or_default();
                let first = verbs.first().copied().unwrap_or_default();
                text.replacen(first, &verbs.join(" or "), 1)
            }
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
        let mut faults = 0;
        for permission in permissions.iter().filter(|permission| permission.need != Need::Identity) {
            let missing = match self.missing(permission).await {
                Ok(None) => continue,
                Ok(Some(missing)) => missing,
                // The next review would not be answered either.
                Err(error) if error.is_unreachable() => {
                    say(&format!("{who}: {self}: {error}"));
                    return faults + 1;
                }
                Err(error) => error.to_string(),
            };
            if let Need::Optional(purpose) = &permission.need {
                say(&format!("{who}: {self}: optional, for {purpose}: {missing}"));
            } else {
                faults += 1;
                say(&format!("{who}: {self}: {missing}"));
            }
        }
        faults
    }

    /// The message about a missing permission; `None` if it is granted.
    async fn missing(&self, permission: &Permission) -> Result<Option<String>, Error> {
        let mut reason = String::new();
        for request in &permission.any_of {
            let decision = self.review(request).await?;
            if decision.allowed {
                return Ok(None);
            }
            reason = decision.reason;
        }
        Ok(Some(permission.denied(&reason)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_names_every_verb_that_would_do() {
        let hub = Place::HubOfSecret;
        let mut permission = Permission::each(&hub, &[Verb::Patch], "leases.coordination.k8s.io", "edge", "").remove(0);
        assert_eq!(permission.denied(""), "not allowed to patch leases.coordination.k8s.io in namespace edge");
        permission.any_of.push(AccessRequest::new(Verb::Update, "leases.coordination.k8s.io", "edge", ""));
        assert_eq!(
            permission.denied("no"),
            "not allowed to patch or update leases.coordination.k8s.io in namespace edge: no"
        );
    }
}

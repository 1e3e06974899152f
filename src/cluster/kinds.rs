//! The kinds in use of a cluster, found by discovery and kept for a while.
//!
//! A kind is looked up by group, version and kind; one request reads all kinds of a version. Only what was found is kept: a kind
//! that a cluster does not serve is looked for each time, since its definition may be on its way. That a kind is not served in
//! *any* version is concluded only from lists that say so. A 404 says nothing, because a proxy can answer it, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use kube::core::ApiResource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::{Cluster, Error, Kind};
use crate::config::ResourceId;
use crate::config::names::{is_label, is_subdomain};

/// How long a kind is kept. A kind whose definition was replaced by one with another plural or scope is found again after this.
pub const KEPT: Duration = Duration::from_mins(10);
/// The most versions of one group that are looked through; known groups have five.
const MOST_VERSIONS: usize = 20;

/// A kind as documents name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId {
    /// Group; empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl KindId {
    pub fn of(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    fn version(&self) -> Version {
        (self.group.clone(), self.version.clone())
    }

    /// Whether any server can serve it: others would lead a path elsewhere.
    fn is_possible(&self) -> bool {
        (self.group.is_empty() || is_subdomain(&self.group)) && is_label(&self.version)
    }
}

/// `apps/v1, Kind=Deployment`, as Kubernetes prints it.
impl fmt::Display for KindId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, Kind={}", api_version(&self.group, &self.version), self.kind)
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum KindError {
    /// The cluster says that its group has the kind in no version.
    #[error("the cluster does not serve {0}")]
    NotServed(KindId),
    /// The cluster serves the kind in another version.
    #[error("the cluster does not serve {id}, but serves the kind in {api_version}")]
    OtherVersion {
        id: KindId,
        /// The version that is served: `apps/v1`.
        api_version: String,
    },
    /// It is not known whether the cluster serves the kind.
    #[error("failed to read the kinds of the cluster")]
    Unread(#[source] Error),
}

/// A group and a version of it.
type Version = (String, String);

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
    kind: String,
    namespaced: bool,
}

#[derive(Deserialize)]
struct CoreVersions {
    versions: Vec<String>,
}

#[derive(Deserialize)]
struct GroupList {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

/// The kinds of one version of a group, by their names; `None` if the server does not have the version.
type Listed = Option<BTreeMap<String, Kind>>;

struct Found {
    kind: Kind,
    read: Instant,
}

/// The kinds in use of one cluster.
#[derive(Default)]
pub struct Kinds {
    found: BTreeMap<KindId, Found>,
    expected: BTreeSet<KindId>,
}

impl Kinds {
    /// Kinds that are going to be looked up, instead of those that were named before: a list that is read for another kind is
    /// searched for them, too. Nothing is read for them alone.
    pub fn expect(&mut self, kinds: BTreeSet<KindId>) {
        self.expected = kinds;
    }

    /// How the cluster serves a kind, if that is known and was read less than [`KEPT`] before `now`.
    pub fn known(&self, id: &KindId, now: Instant) -> Option<&Kind> {
        let found = self.found.get(id).filter(|found| now.saturating_duration_since(found.read) < KEPT);
        found.map(|found| &found.kind)
    }

    /// Asks for a kind again when it is looked up next, since an answer says that the cluster serves it no longer as it did.
    pub fn forget(&mut self, id: &KindId) {
        self.found.remove(id);
    }

    /// How the cluster serves these kinds. Asks it for those that are not known or were read more than [`KEPT`] before `now`: one
    /// request for each version of a group, and more only for a kind that is not in its version. Nothing is asked for after `until`: what
    /// is not known then counts as not answered.
    pub async fn look_up(
        &mut self,
        cluster: &Cluster,
        wanted: &BTreeSet<KindId>,
        now: Instant,
        until: Instant,
    ) -> BTreeMap<KindId, Result<Kind, KindError>> {
        self.found.retain(|_, found| now.saturating_duration_since(found.read) < KEPT);
        let unknown = wanted.iter().filter(|id| !self.found.contains_key(id) && id.is_possible());
        let versions: BTreeSet<Version> = unknown.map(KindId::version).collect();
        let named = wanted.union(&self.expected).cloned().collect();
        let mut discovery = Discovery { cluster, named, until, lists: BTreeMap::new(), groups: None };
        for (group, version) in versions {
            // Below, every kind of this version gets its error.
            let Ok(Some(listed)) = discovery.list(&group, &version).await else { continue };
            for id in discovery.named.iter().filter(|id| (&id.group, &id.version) == (&group, &version)) {
                if let Some(kind) = listed.get(&id.kind) {
                    self.found.entry(id.clone()).or_insert_with(|| Found { kind: kind.clone(), read: now });
                }
            }
        }
        let mut outcome = BTreeMap::new();
        for id in wanted {
            let served = match self.found.get(id) {
                Some(found) => Ok(found.kind.clone()),
                None => Err(discovery.elsewhere(id).await),
            };
            outcome.insert(id.clone(), served);
        }
        outcome
    }
}

/// What was read for one look-up, each list once.
struct Discovery<'c> {
    cluster: &'c Cluster,
    /// Of each list only these are kept: a list has as many kinds as a server likes.
    named: BTreeSet<KindId>,
    until: Instant,
    lists: BTreeMap<Version, Result<Listed, Error>>,
    groups: Option<Result<BTreeMap<String, Vec<String>>, Error>>,
}

impl Discovery<'_> {
    async fn list(&mut self, group: &str, version: &str) -> Result<Listed, Error> {
        let key = (group.to_owned(), version.to_owned());
        if let Some(listed) = self.lists.get(&key) {
            return listed.clone();
        }
        let listed = self.read(group, version).await;
        self.lists.insert(key, listed.clone());
        listed
    }

    async fn read(&self, group: &str, version: &str) -> Result<Listed, Error> {
        let list: ResourceList = match self.fetch(&Kind::root(group, version)).await {
            Ok(list) => list,
            Err(Error::NotServed { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let named: BTreeSet<&str> =
            self.named.iter().filter(|id| id.group == group).map(|id| id.kind.as_str()).collect();
        let with_status: BTreeSet<String> = list
            .resources
            .iter()
            .filter(|served| named.contains(served.kind.as_str()))
            .filter_map(|served| served.name.strip_suffix("/status"))
            .map(str::to_owned)
            .collect();
        let mut kinds = BTreeMap::new();
        for served in list.resources {
            // The others are subresources, or would lead a path elsewhere.
            if !named.contains(served.kind.as_str()) || !is_label(&served.name) {
                continue;
            }
            let resource = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: api_version(group, version),
                kind: served.kind.clone(),
                plural: served.name.clone(),
            };
            let status_subresource = with_status.contains(&served.name);
            kinds.entry(served.kind).or_insert(Kind { resource, namespaced: served.namespaced, status_subresource });
        }
        Ok(Some(kinds))
    }

    /// Why a kind is not in its version.
    async fn elsewhere(&mut self, id: &KindId) -> KindError {
        if !id.is_possible() {
            return KindError::NotServed(id.clone());
        }
        match self.other_version(id).await {
            Ok(None) => KindError::NotServed(id.clone()),
            Ok(Some(api_version)) => KindError::OtherVersion { id: id.clone(), api_version },
            Err(error) => KindError::Unread(error),
        }
    }

    /// A version of its group that has the kind.
    async fn other_version(&mut self, id: &KindId) -> Result<Option<String>, Error> {
        // What could not be read may have it.
        self.list(&id.group, &id.version).await?;
        let versions = self.versions(&id.group).await?;
        if versions.len() > MOST_VERSIONS {
            let source = format!("the group of {id} has more than {MOST_VERSIONS} versions").into();
            return Err(Error::Decode { source });
        }
        for version in &versions {
            let Some(kinds) = self.list(&id.group, version).await? else {
                // It is coming or going: said to be there, and not there.
                let message = format!("{} is not served yet", api_version(&id.group, version));
                return Err(Error::NotServed { message, of_namespace: false });
            };
            if kinds.contains_key(&id.kind) {
                return Ok(Some(api_version(&id.group, version)));
            }
        }
        Ok(None)
    }

    /// The versions of a group; none if the server says that there is no such group.
    async fn versions(&mut self, group: &str) -> Result<Vec<String>, Error> {
        if group.is_empty() {
            let CoreVersions { versions } = self.fetch("/api").await?;
            return Ok(versions.into_iter().filter(|version| is_label(version)).collect());
        }
        if self.groups.is_none() {
            let named: BTreeSet<&str> = self.named.iter().map(|id| id.group.as_str()).collect();
            let read = self.fetch("/apis").await.map(|GroupList { groups }| by_name(groups, &named));
            self.groups = Some(read);
        }
        let Some(groups) = &self.groups else { return Ok(Vec::new()) };
        Ok(groups.clone()?.remove(group).unwrap_or_default())
    }

    async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let late = || Error::NoAnswer {
            cluster: self.cluster.name().clone(),
            source: "the kinds of the cluster were not read in time".to_owned().into(),
        };
        if Instant::now() >= self.until {
            return Err(late());
        }
        tokio::time::timeout_at(self.until, self.cluster.fetch(path)).await.unwrap_or_else(|_| Err(late()))
    }
}

fn by_name(groups: Vec<Group>, named: &BTreeSet<&str>) -> BTreeMap<String, Vec<String>> {
    let versions = |group: Group| {
        let versions = group.versions.into_iter().map(|entry| entry.version).filter(|version| is_label(version));
        (group.name, versions.collect())
    };
    groups.into_iter().filter(|group| named.contains(group.name.as_str())).map(versions).collect()
}

impl Kind {
    /// Asks the cluster how it serves a kind; [`Error::NotServed`] if it does not.
    pub async fn discover(cluster: &Cluster, id: &ResourceId) -> Result<Self, Error> {
        let list: ResourceList = cluster.fetch(&Self::root(&id.group, &id.version)).await?;
        let status_name = format!("{}/status", id.plural);
        let status_subresource = list.resources.iter().any(|served| served.name == status_name);
        let served = list.resources.into_iter().find(|served| served.name == id.plural).ok_or_else(|| {
            let cluster = cluster.name();
            let message = format!(
                "cluster {cluster} does not serve {id}: check the name and version, or install what defines it"
            );
            Error::NotServed { message, of_namespace: false }
        })?;
        let api_version = if id.group.is_empty() { id.version.clone() } else { format!("{}/{}", id.group, id.version) };
        Ok(Self {
            resource: ApiResource {
                group: id.group.clone(),
                version: id.version.clone(),
                api_version,
                kind: served.kind,
                plural: id.plural.clone(),
            },
            namespaced: served.namespaced,
            status_subresource,
        })
    }

    /// The schema by which the cluster prunes objects of this kind (`OpenAPI` v3, which every user may read); none if it publishes none.
    pub async fn schema(&self, cluster: &Cluster) -> Result<Option<Value>, Error> {
        #[derive(Deserialize)]
        struct Document {
            components: Components,
        }
        #[derive(Deserialize)]
        struct Components {
            schemas: BTreeMap<String, Value>,
        }
        let path = format!("/openapi/v3{}", Self::root(&self.resource.group, &self.resource.version));
        let Document { components } = cluster.fetch(&path).await?;
        let is_it = |schema: &Value| {
            let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array).into_iter().flatten();
            kinds.filter_map(|kind| kind.get("kind")).any(|kind| *kind == *self.resource.kind)
        };
        Ok(components.schemas.into_values().find(is_it))
    }
}

#[cfg(test)]
mod tests;

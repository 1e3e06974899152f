//! What the clusters have to hold: plain code over the documents.

use std::collections::BTreeMap;

use crate::chaos::documents::{Behavior, Cluster, Documents, Selects, Set};

/// What syncsets send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ConfigMap,
    Secret,
    /// Current only once a controller of the cluster has looked at it.
    Deployment,
}

pub(crate) type Object = (Kind, String);
pub(crate) type Data = BTreeMap<String, String>;

/// How an object is wanted: its data, or any if `CreateOnly` may have found another syncset's.
pub(crate) type Wanted = BTreeMap<Object, Option<Data>>;

/// Whether an object of this name that nobody wants may stay: a syncset that never deletes may have sent it.
pub(crate) fn may_stay(object: &Object) -> bool {
    object.1.starts_with('m') && !object.1.starts_with("mapped")
}

impl Documents {
    /// The syncsets of a cluster, in the order in which they are applied: the last one that wants an object sends it.
    fn of(&self, number: usize) -> Vec<&Set> {
        let cluster = &self.clusters[number];
        let mut sets: Vec<&Set> = self.sets.iter().filter(|set| set.exists && set.selects(number, cluster)).collect();
        sets.sort_by_key(|set| (set.team.is_none(), set.name.as_bytes()));
        sets
    }

    /// What a cluster has to hold.
    pub(crate) fn wanted(&self, number: usize) -> Wanted {
        self.of(number).into_iter().flat_map(|set| self.objects(number, set)).collect()
    }

    /// How many rows there have to be of a cluster: each of its syncsets has one for each of its objects.
    pub(crate) fn rows(&self, number: usize) -> usize {
        self.of(number).into_iter().map(|set| self.objects(number, set).len()).sum()
    }

    fn objects(&self, number: usize, set: &Set) -> Wanted {
        let region = self.clusters[number].labels.get("region").map_or("", String::as_str);
        let mut wanted = Wanted::new();
        for resource in &set.resources {
            let mut data = Data::from([("by".to_owned(), set.by()), ("region".to_owned(), region.to_owned())]);
            data.extend(resource.extra.map(|extra| (format!("extra-{extra}"), "here".to_owned())));
            let data = (set.behavior != Behavior::CreateOnly).then_some(data);
            wanted.insert((resource.kind, resource.name.replace("REGION", region)), data);
        }
        if let (Some((mapped, _)), Some(team)) = (&set.mapped, set.team) {
            let data = Data::from([("password".to_owned(), format!("p{}", self.secrets[&(team, *mapped)]))]);
            wanted.insert((Kind::Secret, format!("mapped-{mapped}")), Some(data));
        }
        wanted
    }
}

impl Set {
    fn selects(&self, number: usize, cluster: &Cluster) -> bool {
        if self.team.is_some_and(|team| team != cluster.team) {
            return false;
        }
        let region = cluster.labels.get("region").map(String::as_str);
        match &self.selects {
            Selects::Named(named) => named.contains(&number),
            Selects::All => true,
            Selects::Env(env) => cluster.labels["env"] == *env,
            Selects::RegionIn(one, other) => region.is_some_and(|region| region == *one || region == *other),
            Selects::RegionNotIn(not) => region != Some(not),
            Selects::RegionExists(exists) => region.is_some() == *exists,
            Selects::OfTeam(team) => cluster.team == *team,
        }
    }
}

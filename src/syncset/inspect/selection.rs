//! The clusters of a syncset that is not written. Pure.

use std::collections::BTreeSet;

use super::compared::ClusterReference;
use crate::syncset::plan::matching::Audience;
use crate::syncset::run::store::ClusterPlace;

#[derive(Default)]
pub(super) struct Selected<'p> {
    pub(super) places: Vec<&'p ClusterPlace>,
    /// How many of these the stored syncset is not for.
    pub(super) new: usize,
    /// Those that the stored syncset is for, and this one is not.
    pub(super) no_longer: Vec<&'p ClusterPlace>,
}

pub(super) fn selected<'p>(audience: &Audience, stored: Option<&Audience>, places: &'p [ClusterPlace]) -> Selected<'p> {
    let mut selected = Selected::default();
    for place in places {
        let ClusterPlace { namespace, name, labels, .. } = place;
        let is_now = audience.includes(namespace, name, labels);
        let was = stored.is_some_and(|stored| stored.includes(namespace, name, labels));
        selected.new += usize::from(is_now && !was);
        selected.no_longer.extend((was && !is_now).then_some(place));
        if is_now {
            selected.places.push(place);
        }
    }
    selected
}

/// The clusters that a syncset names and that there are not, by name.
pub(super) fn missing(audience: &Audience, places: &[ClusterPlace]) -> Vec<ClusterReference> {
    let Audience::Named { namespace, clusters } = audience else { return Vec::new() };
    let found: BTreeSet<&str> =
        places.iter().filter(|place| place.namespace == *namespace).map(|place| place.name.as_str()).collect();
    let missing = clusters.iter().filter(|name| !found.contains(name.as_str()));
    missing.map(|name| ClusterReference { namespace: namespace.clone(), name: name.clone() }).collect()
}

/// How an answer names a cluster.
pub(super) fn reference(place: &ClusterPlace) -> ClusterReference {
    ClusterReference { namespace: place.namespace.clone(), name: place.name.clone() }
}

/// At most `most` of them, evenly spread over the list.
pub(super) fn spread<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).filter_map(|index| all.get(index * all.len() / count).copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::syncset::plan::name::{SyncSetKind, SyncSetName};

    fn place(name: &str, env: &str) -> ClusterPlace {
        let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
        ClusterPlace { id: Uuid::from_u128(1), namespace: "team".to_owned(), name: name.to_owned(), labels }
    }

    fn audience(env: &str) -> Audience {
        let name =
            SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "monitoring".to_owned() };
        let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}});
        Audience::of(&name, &spec).expect("an audience")
    }

    #[test]
    fn clusters_that_are_new_and_no_longer_selected_are_counted() {
        let places = [place("a", "prod"), place("b", "test"), place("c", "test"), place("d", "dev")];
        let found = selected(&audience("prod"), Some(&audience("test")), &places);
        let names: Vec<&str> = found.places.iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["a"]);
        let no_longer: Vec<&str> = found.no_longer.iter().map(|place| place.name.as_str()).collect();
        assert_eq!((found.new, no_longer), (1, vec!["b", "c"]));
        assert_eq!(selected(&audience("prod"), None, &places).new, 1, "of a name that nobody has, all are new");
    }

    #[test]
    fn clusters_that_are_named_and_not_there_are_missing() {
        let of = |kind, namespace: &str, spec: serde_json::Value| {
            let name = SyncSetName { kind, namespace: namespace.to_owned(), name: "base".to_owned() };
            let places = [place("a", "prod"), place("b", "prod")];
            let audience = Audience::of(&name, &spec).expect("an audience");
            missing(&audience, &places)
                .into_iter()
                .map(|missing| missing.namespace + "/" + &missing.name)
                .collect::<Vec<_>>()
        };
        let named = json!({"clusterDeploymentRefs": [{"name": "b"}, {"name": "z"}, {"name": "B"}]});
        assert_eq!(of(SyncSetKind::SyncSet, "team", named.clone()), ["team/B", "team/z"]);
        assert_eq!(of(SyncSetKind::SyncSet, "other", named), ["other/B", "other/b", "other/z"]);
        let none = json!({"clusterDeploymentSelector": {"matchLabels": {"env": "none"}}});
        assert!(of(SyncSetKind::SelectorSyncSet, "", none).is_empty());
    }

    #[test]
    fn a_sample_is_taken_from_everywhere_in_the_list() {
        let all: Vec<usize> = (0..10).collect();
        assert_eq!(spread(&all, 3), [0, 3, 6]);
        assert_eq!(spread(&all, 20), all);
        assert!(spread::<usize>(&[], 5).is_empty());
    }
}

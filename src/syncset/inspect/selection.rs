//! The clusters of a syncset that is not written, and how its deletions would be judged. Pure.

use std::collections::BTreeSet;

use super::compared::ClusterReference;
use crate::syncset::rules::guard::{Approval, Case, State};
use crate::syncset::rules::matching::Audience;
use crate::syncset::store::{ClusterPlace, StoredSyncset};

/// The clusters of a syncset.
#[derive(Default)]
pub(super) struct Selected<'p> {
    pub(super) places: Vec<&'p ClusterPlace>,
    /// How many of these the stored syncset is not for.
    pub(super) new: usize,
    /// Those that the stored syncset is for, and this one is not.
    pub(super) no_longer: Vec<&'p ClusterPlace>,
    /// On how many clusters the stored syncset tracks objects, and on how many of these it would match no more.
    tracks: usize,
    lost: usize,
    /// Whether a Namespace, a CRD or a PVC is among the former, and on one of the latter.
    tracks_precious: bool,
    loses_precious: bool,
    /// On how many clusters it has deleted objects within the time that counts, and applied them again, also under other names.
    applied_again: usize,
    /// On how many of those that count it has lost objects that got other names.
    renamed: usize,
}

pub(super) fn selected<'p>(audience: &Audience, stored: Option<&Audience>, places: &'p [ClusterPlace]) -> Selected<'p> {
    let mut selected = Selected::default();
    for place in places {
        let ClusterPlace { namespace, name, labels, is_tracked, has_precious, loss, .. } = place;
        let is_now = audience.includes(namespace, name, labels);
        let was = stored.is_some_and(|stored| stored.includes(namespace, name, labels));
        selected.new += usize::from(is_now && !was);
        selected.no_longer.extend((was && !is_now).then_some(place));
        selected.tracks += usize::from(*is_tracked);
        selected.tracks_precious |= *has_precious;
        // As the dispatcher judges it: what was approved counts no more, and what was applied again was deleted all the same.
        let counts = loss.is_some_and(|loss| loss.counts);
        let renamed_left = loss.and_then(|loss| loss.renamed_left);
        if let Some(is_left) = renamed_left.filter(|_| is_now) {
            let is_left = is_left && !loss.is_some_and(|loss| loss.is_back);
            let has_counted = *is_tracked && counts;
            selected.renamed += usize::from(has_counted);
            selected.lost += usize::from(has_counted && is_left);
            selected.applied_again += usize::from(has_counted && !is_left);
            selected.places.push(place);
            continue;
        }
        let was_lost = loss.is_some_and(|loss| !loss.is_back && loss.renamed_left.is_none());
        let is_lost = *is_tracked && !is_now && (counts || !was_lost);
        selected.lost += usize::from(is_lost);
        selected.loses_precious |= is_lost && *has_precious;
        selected.applied_again += usize::from(*is_tracked && is_now && counts && !was_lost);
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

/// So many of them, from everywhere in the list.
pub(super) fn spread<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).filter_map(|index| all.get(index * all.len() / count).copied()).collect()
}

/// A syncset as it would be judged if it was written now. `state` and `annotation` are of the proposed one.
pub(super) fn case(
    state: &State,
    annotation: Option<&str>,
    stored: Option<&StoredSyncset>,
    selected: &Selected<'_>,
    is_guarding: bool,
) -> Case {
    let (generation, approved) = stored.map_or((0, 0), |stored| (stored.generation, stored.approved));
    let approval = match Approval::read(annotation, generation.saturating_add(1), approved) {
        _ if !is_guarding => Approval::Always,
        approval => approval,
    };
    let executed = stored.map_or(0, |stored| stored.executed);
    let executed = if selected.tracks > 0 { executed } else { 0 };
    let named = || stored.and_then(|stored| stored.objects.as_ref());
    let dropped = stored.map_or(&[][..], |stored| stored.dropped.as_slice());
    let is_dropped = selected.tracks_precious && state.drops_precious(named(), dropped);
    Case {
        precious: is_dropped || selected.loses_precious,
        held: stored.and_then(|stored| stored.held),
        change: state.change_within(named(), dropped),
        approval,
        lost: selected.lost + selected.applied_again + executed,
        executed: selected.applied_again + executed,
        renamed: selected.renamed,
        tracks: selected.tracks + executed,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::syncset::rules::guard::{Cause, Dropped};
    use crate::syncset::rules::name::{SyncSetKind, SyncSetName};
    use crate::syncset::store::Loss;

    fn place(name: &str, env: &str, is_tracked: bool) -> ClusterPlace {
        let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
        let (id, namespace, name) = (Uuid::from_u128(1), "team".to_owned(), name.to_owned());
        ClusterPlace { id, namespace, name, labels, is_tracked, has_precious: false, loss: None }
    }

    fn audience(env: &str) -> Audience {
        let name =
            SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "monitoring".to_owned() };
        let spec = json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}});
        Audience::of(&name, &spec).expect("an audience")
    }

    #[test]
    fn clusters_that_are_new_no_longer_selected_and_lost_are_counted() {
        let places =
            [place("a", "prod", true), place("b", "test", true), place("c", "test", false), place("d", "dev", true)];
        let found = selected(&audience("prod"), Some(&audience("test")), &places);
        let names: Vec<&str> = found.places.iter().map(|place| place.name.as_str()).collect();
        assert_eq!(names, ["a"]);
        let no_longer: Vec<&str> = found.no_longer.iter().map(|place| place.name.as_str()).collect();
        assert_eq!((found.new, found.tracks, found.lost, no_longer), (1, 3, 2, vec!["b", "c"]));
        assert_eq!(selected(&audience("prod"), None, &places).new, 1, "of a name that nobody has, all are new");
    }

    #[test]
    fn clusters_that_are_named_and_not_there_are_missing() {
        let of = |kind, namespace: &str, spec: serde_json::Value| {
            let name = SyncSetName { kind, namespace: namespace.to_owned(), name: "base".to_owned() };
            let places = [place("a", "prod", false), place("b", "prod", false)];
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

    /// As the dispatcher counts them: clusters that came back and were applied to again have lost their objects all the same, and what
    /// was approved counts no more.
    #[test]
    fn clusters_that_came_back_count_and_approved_losses_do_not() {
        let of = |name: &str, env: &str, loss: Option<(bool, bool)>| ClusterPlace {
            loss: loss.map(|(counts, is_back)| Loss { counts, is_back, renamed_left: None }),
            ..place(name, env, true)
        };
        let back = (0..10).map(|number| of(&format!("back-{number}"), "prod", Some((true, true))));
        let approved = (0..20).map(|number| of(&format!("approved-{number}"), "test", Some((false, false))));
        let stored = StoredSyncset {
            id: Uuid::from_u128(2),
            generation: 3,
            spec: json!({}),
            objects: Some(BTreeSet::new()),
            dropped: Vec::new(),
            held: None,
            approved: 0,
            executed: 0,
        };
        let state =
            |env: &str| State::Living { audience: audience(env), deletes: true, objects: Some(BTreeSet::new()) };
        let judged = |places: &[ClusterPlace]| {
            let found = selected(&audience("prod"), Some(&audience("prod")), places);
            let case = case(&state("prod"), None, Some(&stored), &found, true);
            (case.lost, case.executed, case.tracks, case.judge())
        };
        let mut places: Vec<ClusterPlace> = back.chain(approved).collect();
        assert_eq!(judged(&places), (10, 10, 30, None), "not more than ten");
        places.push(of("new", "test", None));
        assert_eq!(judged(&places), (11, 10, 31, Some(Cause::Unmatched)), "one more that is lost is too many");
        for place in &mut places {
            place.loss = place.loss.map(|loss| Loss { counts: false, ..loss });
        }
        assert_eq!(judged(&places), (1, 0, 31, None), "after ten minutes");
    }

    /// As the dispatcher judges it: by what it would drop of what was judged last, and by what edits before have dropped with that. What an
    /// edit has dropped and the next one brings back makes the first kind no smaller.
    #[test]
    fn an_edit_is_judged_by_itself_and_together_with_those_before() {
        let objects = |names: &[&str]| -> BTreeSet<[String; 4]> {
            names.iter().map(|name| ["", "ConfigMap", "default", name].map(str::to_owned)).collect()
        };
        let places: Vec<ClusterPlace> = (0..11).map(|number| place(&format!("c{number}"), "prod", true)).collect();
        let found = selected(&audience("prod"), Some(&audience("prod")), &places);
        let judged = |named: &[&str], dropped: &[&str], after: &[&str]| {
            let dropped = vec![Dropped { at: String::new(), objects: objects(dropped) }];
            let stored = StoredSyncset {
                id: Uuid::from_u128(2),
                generation: 3,
                spec: json!({}),
                objects: Some(objects(named)),
                dropped,
                held: None,
                approved: 0,
                executed: 0,
            };
            let state = State::Living { audience: audience("prod"), deletes: true, objects: Some(objects(after)) };
            case(&state, None, Some(&stored), &found, true).judge()
        };
        assert_eq!(judged(&["a", "b", "c", "d"], &[], &["a", "b", "c"]), None);
        assert_eq!(judged(&["a", "b"], &["c", "d"], &["a"]), Some(Cause::Dropped), "together too many");
        assert_eq!(judged(&["a"], &["b", "c"], &["b", "c"]), Some(Cause::Dropped), "by itself all");
    }

    #[test]
    fn clusters_where_objects_got_other_names_count_until_they_are_deleted_or_named_again() {
        let of = |counts, is_back, is_left| {
            let loss = Some(Loss { counts, is_back, renamed_left: Some(is_left) });
            ClusterPlace { loss, ..place("a", "prod", true) }
        };
        for (place, expected) in [
            (of(true, false, true), (1, 0, 1)),
            (of(true, false, false), (0, 1, 1)),
            (of(true, true, true), (0, 1, 1)),
            (of(false, false, true), (0, 0, 0)),
        ] {
            let places = [place];
            let found = selected(&audience("prod"), Some(&audience("prod")), &places);
            assert_eq!((found.lost, found.applied_again, found.renamed), expected, "{places:?}");
            assert_eq!(found.places.len(), 1);
            let none = selected(&audience("test"), Some(&audience("prod")), &places);
            assert_eq!((none.lost, none.renamed), (1, 0), "all of it is lost: {places:?}");
        }
    }
}

//! Checks sections against each other: whether two of them can sync the same object.
//!
//! A section maps the remote object `n`·`S` in namespace `R` to the local object `n` in `R`·`L`, where `S` is its
//! `remote_resource_suffix`, `L` its `local_namespace_suffix`, and `R` begins with its `namespace_prefix` `P`. So
//! - its local names are all names, whatever `S` is: names never keep two sections apart on the local side;
//! - its local namespaces are the `P`·`x`·`L`, and its remote ones the `P`·`x` that leave room for `L`;
//! - its remote names are those that end with `S`.
//!
//! Whether two such sets of namespaces overlap is decided exactly, by building a namespace that is in both; the fault shows it
//! as an example. Selectors and the longest names of a kind are ignored, so the check assumes an overlap: labels change, and
//! two sections with disjoint selectors may still meet over time. Whether two clusters with different kubeconfigs are the same
//! can't be told from a file, so they count as different.

use std::collections::BTreeMap;

use super::SyncConfig;
use crate::config::fault::{Fault, Problem};
use crate::config::names::{LONGEST_LABEL, is_label};
use crate::config::{ClusterConfig, ClusterName, same_cluster};

/// Whether a kind's objects have namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    /// They don't, so prefixes and suffixes of namespaces mean nothing.
    Cluster,
}

struct Overlap {
    /// A namespace that is in both; none for a cluster-scoped kind.
    namespace: Option<String>,
}

/// All conflicts within and between sections, each reported at the later section of the file.
pub fn conflicts(
    sections: &[(usize, &SyncConfig)],
    clusters: &BTreeMap<ClusterName, ClusterConfig>,
    scope: impl Fn(&SyncConfig) -> Scope,
) -> Vec<Fault> {
    let mut faults = circles(sections, clusters, &scope);
    for (position, (index, section)) in sections.iter().enumerate() {
        let path = format!("sync[{index}]");
        let section_scope = scope(section);
        if !is_invertible(section, clusters, section_scope) {
            let namespaced = section_scope == Scope::Namespaced;
            faults.push(Fault::new(path.clone(), Problem::NotInvertible { namespaced }));
        }
        for &(_, earlier) in sections.iter().take(position) {
            if !section.resource.same_objects(&earlier.resource) {
                continue;
            }
            let problems = between(earlier, section, clusters, section_scope);
            faults.extend(problems.into_iter().map(|problem| Fault::new(path.clone(), problem)));
        }
    }
    faults
}

/// Sections of one kind that form a circle: each takes the local objects of the one before for its remote objects, so that
/// objects would be created from themselves. Reported at the last of them in the file.
fn circles(
    sections: &[(usize, &SyncConfig)],
    clusters: &BTreeMap<ClusterName, ClusterConfig>,
    scope: impl Fn(&SyncConfig) -> Scope,
) -> Vec<Fault> {
    let leads_to = |from: &SyncConfig, to: &SyncConfig| {
        from.resource.same_objects(&to.resource)
            && same_cluster(&from.local, &to.remote, clusters)
            && !same_cluster(&from.remote, &from.local, clusters)
            && !same_cluster(&to.remote, &to.local, clusters)
            && passes_on(from, to, scope(from))
    };
    let mut faults = Vec::new();
    for (position, (index, last)) in sections.iter().enumerate() {
        let earlier = sections.get(..position).unwrap_or_default();
        // The shortest way from the last section back to itself, through those before it.
        let mut ways: Vec<Vec<&SyncConfig>> = vec![vec![last]];
        let mut seen: Vec<&SyncConfig> = Vec::new();
        let mut circle = None;
        while let (Some(way), None) = (if ways.is_empty() { None } else { Some(ways.remove(0)) }, &circle) {
            let Some(end) = way.last() else { continue };
            if way.len() > 1 && leads_to(end, last) {
                circle = Some(way);
                break;
            }
            for &(_, next) in earlier {
                if leads_to(end, next) && !seen.iter().any(|seen| seen.name == next.name) {
                    seen.push(next);
                    ways.push(way.iter().copied().chain([next]).collect());
                }
            }
        }
        if let Some(circle) = circle {
            let names = circle.iter().map(|section| section.name.clone()).collect();
            faults.push(Fault::new(format!("sync[{index}]"), Problem::Circle { sections: names }));
        }
    }
    faults
}

/// Whether a local object of the first section may be a remote one of the second. That depends on the namespaces alone: local
/// names may be any, so some end with the suffix that the second requires.
fn passes_on(from: &SyncConfig, to: &SyncConfig, scope: Scope) -> bool {
    if scope == Scope::Cluster {
        return true;
    }
    let Some(prefix) = longer(&from.namespace_prefix, &to.namespace_prefix, str::starts_with) else { return false };
    namespaces(prefix, &from.local_namespace_suffix)
        .any(|namespace| is_local_namespace(from, &namespace) && is_remote_namespace(to, &namespace))
}

/// The conflicts between two sections of one kind.
fn between(
    earlier: &SyncConfig,
    later: &SyncConfig,
    clusters: &BTreeMap<ClusterName, ClusterConfig>,
    scope: Scope,
) -> Vec<Problem> {
    let other = || earlier.name.clone();
    let mut problems = Vec::new();
    if same_cluster(&earlier.local, &later.local, clusters)
        && let Some(overlap) = local_overlap(earlier, later, scope)
    {
        problems.push(Problem::LocalOverlap { other: other(), example: overlap.namespace });
    }
    if same_cluster(&earlier.remote, &later.remote, clusters)
        && let Some(overlap) = remote_overlap(earlier, later, scope)
    {
        // Former finalizers count, too: a section removes them.
        let (ours, theirs) = (finalizers(later), finalizers(earlier));
        if let Some(finalizer) = ours.into_iter().find(|finalizer| theirs.contains(finalizer)) {
            problems.push(Problem::SharedFinalizer { other: other(), example: overlap.namespace.clone(), finalizer });
        }
        if earlier.write_back && later.write_back {
            problems.push(Problem::SecondWriter { other: other(), example: overlap.namespace });
        }
    }
    problems
}

/// The present and the former finalizers of a section.
fn finalizers(section: &SyncConfig) -> Vec<String> {
    std::iter::once(section.finalizer_key()).chain(section.former_finalizer_keys()).collect()
}

/// Whether an object's key tells on which side of the pair it is.
fn is_invertible(section: &SyncConfig, clusters: &BTreeMap<ClusterName, ClusterConfig>, scope: Scope) -> bool {
    let namespaces_differ = scope == Scope::Namespaced && !section.local_namespace_suffix.is_empty();
    let names_differ = !section.remote_resource_suffix.is_empty();
    names_differ || namespaces_differ || !same_cluster(&section.remote, &section.local, clusters)
}

/// Where both sections have local objects. Their local names always overlap.
fn local_overlap(left: &SyncConfig, right: &SyncConfig, scope: Scope) -> Option<Overlap> {
    if scope == Scope::Cluster {
        return Some(Overlap { namespace: None });
    }
    let prefix = longer(&left.namespace_prefix, &right.namespace_prefix, str::starts_with)?;
    let suffix = longer(&left.local_namespace_suffix, &right.local_namespace_suffix, str::ends_with)?;
    let namespace = namespaces(prefix, suffix)
        .find(|namespace| [left, right].into_iter().all(|section| is_local_namespace(section, namespace)))?;
    Some(Overlap { namespace: Some(namespace) })
}

/// Where both sections have remote objects.
fn remote_overlap(left: &SyncConfig, right: &SyncConfig, scope: Scope) -> Option<Overlap> {
    longer(&left.remote_resource_suffix, &right.remote_resource_suffix, str::ends_with)?;
    if scope == Scope::Cluster {
        return Some(Overlap { namespace: None });
    }
    let prefix = longer(&left.namespace_prefix, &right.namespace_prefix, str::starts_with)?;
    let namespace = namespaces(prefix, "")
        .find(|namespace| [left, right].into_iter().all(|section| is_remote_namespace(section, namespace)))?;
    Some(Overlap { namespace: Some(namespace) })
}

/// Whether a section has local objects in a namespace.
fn is_local_namespace(section: &SyncConfig, namespace: &str) -> bool {
    is_label(namespace)
        && namespace
            .strip_suffix(section.local_namespace_suffix.as_str())
            .is_some_and(|remote| is_label(remote) && remote.starts_with(&section.namespace_prefix))
}

/// Whether a section has remote objects in a namespace, which requires that the local namespace has a legal name.
fn is_remote_namespace(section: &SyncConfig, namespace: &str) -> bool {
    is_local_namespace(section, &format!("{namespace}{}", section.local_namespace_suffix))
}

/// The longer of two texts, if it contains the shorter one in the way of `contains`; otherwise no text has both.
fn longer<'t>(left: &'t str, right: &'t str, contains: fn(&'t str, &'t str) -> bool) -> Option<&'t str> {
    let (long, short) = if left.len() >= right.len() { (left, right) } else { (right, left) };
    contains(long, short).then_some(long)
}

/// One text of each length up to a namespace's that begins with `prefix` and ends with `suffix`, which share letters
/// where there is no room for both.
///
/// One of each length is enough: the characters between prefix and suffix are free, and a letter is legal at every place.
fn namespaces(prefix: &str, suffix: &str) -> impl Iterator<Item = String> {
    let shortest = prefix.len().max(suffix.len()).max(1);
    (shortest..=LONGEST_LABEL).filter_map(move |length| {
        let apart = prefix.len() + suffix.len();
        if length >= apart {
            return Some(format!("{prefix}{}{suffix}", "x".repeat(length - apart)));
        }
        let (shared, own) = suffix.split_at_checked(apart - length)?;
        prefix.ends_with(shared).then(|| format!("{prefix}{own}"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{ClusterAccess, ResourceId};

    fn section(name: &str, prefix: &str, namespace_suffix: &str, resource_suffix: &str) -> SyncConfig {
        let resource: ResourceId = "databases.v1.demo.towline.dev".parse().expect("a kind");
        let name = name.parse().expect("a name");
        let mut section =
            SyncConfig::new(name, "hub".parse().expect("a name"), "edge".parse().expect("a name"), resource);
        section.namespace_prefix = prefix.to_owned();
        section.local_namespace_suffix = namespace_suffix.to_owned();
        section.remote_resource_suffix = resource_suffix.to_owned();
        section
    }

    fn check(sections: &[SyncConfig], scope: Scope) -> Vec<Problem> {
        let sections: Vec<_> = sections.iter().enumerate().collect();
        conflicts(&sections, &BTreeMap::new(), |_| scope).into_iter().map(|fault| fault.problem).collect()
    }

    fn local_example(left: &SyncConfig, right: &SyncConfig) -> Option<String> {
        local_overlap(left, right, Scope::Namespaced).and_then(|overlap| overlap.namespace)
    }

    #[test]
    fn sections_with_comparable_prefixes_and_suffixes_meet() {
        let meets = |left: (&str, &str), right: (&str, &str)| {
            local_example(&section("a", left.0, left.1, ""), &section("b", right.0, right.1, ""))
        };
        assert_eq!(meets(("", ""), ("", "")).as_deref(), Some("x"));
        assert_eq!(meets(("team-", ""), ("team-a-", "")).as_deref(), Some("team-a-x"));
        assert_eq!(meets(("team-", "-edge"), ("", "-edge")).as_deref(), Some("team-x-edge"));
        assert_eq!(meets(("", "-a-edge"), ("", "-edge")).as_deref(), Some("x-a-edge"));
        assert_eq!(meets(("team-", ""), ("base-", "")), None);
        assert_eq!(meets(("", "-edge"), ("", "-east")), None);
    }

    #[test]
    fn a_suffix_may_reach_into_the_other_sections_prefix_where_room_is_scarce() {
        // 40 + 30 letters don't fit in one namespace one after the other, and do when they share some.
        let long_prefix = section("a", &"a".repeat(40), "a", "");
        let long_suffix = section("b", "a", &"a".repeat(30), "");
        assert_eq!(local_example(&long_prefix, &long_suffix).map(|name| name.len()), Some(41));
        let disjoint_suffix = section("c", "a", &format!("b{}", "a".repeat(29)), "");
        assert_eq!(local_example(&long_prefix, &disjoint_suffix), None);
    }

    #[test]
    fn a_resource_suffix_does_not_keep_local_objects_apart() {
        let mut other = section("b", "", "", "-b");
        other.remote = "mesh".parse().expect("a name");
        let problems = check(&[section("a", "", "", "-a"), other], Scope::Namespaced);
        assert!(matches!(problems.as_slice(), [Problem::LocalOverlap { .. }]), "{problems:?}");
    }

    #[test]
    fn a_cluster_scoped_kind_has_no_namespaces_to_keep_sections_apart() {
        let sections = [section("a", "team-", "", "-a"), section("b", "base-", "", "-b")];
        assert_eq!(check(&sections, Scope::Namespaced), vec![]);
        let problems = check(&sections, Scope::Cluster);
        assert!(matches!(problems.as_slice(), [Problem::LocalOverlap { example: None, .. }]), "{problems:?}");
    }

    #[test]
    fn followers_of_the_same_objects_need_finalizers_of_their_own_and_one_writer() {
        let first = section("a", "", "", "");
        let mut second = section("b", "", "", "");
        second.local = "far".parse().expect("a name");
        second.resource.version = "v2".to_owned();
        let problems = check(&[first.clone(), second.clone()], Scope::Namespaced);
        assert!(
            matches!(problems.as_slice(), [Problem::SharedFinalizer { .. }, Problem::SecondWriter { .. }]),
            "{problems:?}"
        );
        second.finalizer = "sync-far".to_owned();
        second.write_back = false;
        assert_eq!(check(&[first.clone(), second.clone()], Scope::Namespaced), vec![]);
        second.finalizer = first.finalizer.clone();
        second.annotation_domain = "far.towline.dev".to_owned();
        assert_eq!(check(&[first.clone(), second.clone()], Scope::Namespaced), vec![]);
        second = SyncConfig { write_back: true, remote_resource_suffix: "-b".to_owned(), ..first.clone() };
        second.local = "far".parse().expect("a name");
        let named = SyncConfig { remote_resource_suffix: "-a".to_owned(), ..first };
        assert_eq!(check(&[named, second], Scope::Namespaced), vec![], "other remote names");
    }

    #[test]
    fn sections_of_one_kind_that_lead_in_a_circle_are_refused() {
        let between = |name: &str, remote: &str, local: &str, prefix: &str| {
            let mut section = section(name, prefix, "", "");
            section.remote = remote.parse().expect("a name");
            section.local = local.parse().expect("a name");
            section.finalizer = format!("sync-{name}");
            section
        };
        let circle = |sections: &[SyncConfig]| {
            let problems = check(sections, Scope::Namespaced).into_iter();
            let circles = problems.filter_map(|problem| match problem {
                Problem::Circle { sections } => Some(sections.iter().map(ToString::to_string).collect::<Vec<_>>()),
                _ => None,
            });
            circles.collect::<Vec<_>>()
        };
        let (down, up) = (between("down", "hub", "edge", ""), between("up", "edge", "hub", ""));
        assert_eq!(circle(&[down.clone(), up.clone()]), [["up", "down"]]);
        let chain = [down.clone(), between("on", "edge", "leaf", ""), between("back", "leaf", "hub", "")];
        assert_eq!(circle(&chain), [["back", "down", "on"]]);
        assert_eq!(circle(&chain[..2]), Vec::<Vec<String>>::new(), "a chain");
        let mut other_kind = up.clone();
        other_kind.resource.plural = "queues".to_owned();
        assert_eq!(circle(&[down.clone(), other_kind]), Vec::<Vec<String>>::new());
        let apart = [between("down", "hub", "edge", "down-"), between("up", "edge", "hub", "up-")];
        assert_eq!(circle(&apart), Vec::<Vec<String>>::new(), "each has namespaces of its own");
        let mut suffixed = down;
        suffixed.local_namespace_suffix = "-edge".to_owned();
        assert_eq!(circle(&[suffixed, up]).len(), 1, "it grows for ever");
    }

    #[test]
    fn one_cluster_on_both_sides_needs_a_suffix() {
        let same = |namespace_suffix, resource_suffix, scope| {
            let mut section = section("a", "", namespace_suffix, resource_suffix);
            section.local = section.remote.clone();
            check(&[section], scope)
        };
        assert_eq!(same("", "", Scope::Namespaced), vec![Problem::NotInvertible { namespaced: true }]);
        assert_eq!(same("-l", "", Scope::Namespaced), vec![]);
        assert_eq!(same("", "-r", Scope::Namespaced), vec![]);
        assert_eq!(same("-l", "", Scope::Cluster), vec![Problem::NotInvertible { namespaced: false }]);
        assert_eq!(same("", "-r", Scope::Cluster), vec![]);
    }

    #[test]
    fn two_names_with_the_same_credentials_are_one_cluster() {
        let clusters =
            ["hub", "edge"].map(|name| (name.parse().expect("a name"), ClusterConfig::new(ClusterAccess::InCluster)));
        let faults = conflicts(&[(3, &section("a", "", "", ""))], &BTreeMap::from(clusters), |_| Scope::Namespaced);
        let expected = Fault::new("sync[3]", Problem::NotInvertible { namespaced: true });
        assert_eq!(faults, vec![expected]);
    }

    /// All texts of up to `longest` of two characters, one of which may not begin or end a name.
    fn all_texts(longest: usize) -> Vec<String> {
        let mut texts = vec![String::new()];
        let mut last = texts.clone();
        for _ in 0..longest {
            last = last.iter().flat_map(|text| [format!("{text}a"), format!("{text}-")]).collect();
            texts.extend(last.iter().cloned());
        }
        texts
    }

    proptest! {
        #[test]
        fn sections_meet_exactly_where_a_namespace_is_in_both(
            left_prefix in "([a][a-]{0,2})?", left_suffix in "([a-]{0,2}[a])?",
            right_prefix in "([a][a-]{0,2})?", right_suffix in "([a-]{0,2}[a])?",
        ) {
            let left = section("a", &left_prefix, &left_suffix, "");
            let right = section("b", &right_prefix, &right_suffix, "");
            // Both patterns have at most six fixed characters: if they meet at all, then within seven.
            let texts = all_texts(7);
            let shared = |is: fn(&SyncConfig, &str) -> bool| texts.iter().any(|text| is(&left, text) && is(&right, text));
            prop_assert_eq!(local_example(&left, &right).is_some(), shared(is_local_namespace));
            let remote = remote_overlap(&left, &right, Scope::Namespaced);
            prop_assert_eq!(remote.is_some(), shared(is_remote_namespace));
            if let Some(example) = local_example(&left, &right) {
                prop_assert!(is_local_namespace(&left, &example) && is_local_namespace(&right, &example));
            }
        }
    }
}

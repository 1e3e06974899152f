//! The documents: clusters of 2 KB with six labels, and a kubeconfig of 1 KB, which is sealed and not shown.

use std::fmt::Write;

use serde_json::{Value, json};

/// The namespace that is listed: six in ten of the clusters are in it.
pub(crate) const FLEET: &str = "fleet";
/// So that a document as it is shown has 2 KB.
const ANNOTATION: usize = 1_600;
/// What a kubeconfig with a token has.
const KUBECONFIG: usize = 1_024;

/// All documents, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    /// How many are the clusters that are listed; the others only make the tables larger.
    pub(crate) clusters: usize,
}

/// Six labels. `group` has a hundred values, `env` three, of which one is rare, and one in a hundred has `canary`.
fn labels(number: usize) -> Value {
    let env = match number % 100 {
        17 => "test",
        rest if rest % 10 == 0 => "prod",
        _ => "dev",
    };
    let last = if number % 100 == 42 { "canary" } else { "owner" };
    json!({
        "env": env,
        "group": format!("g{:02}", number % 100),
        "region": format!("region-{}", number % 20),
        "version": format!("1.{}", number % 30),
        "tier": if number.is_multiple_of(3) { "edge" } else { "core" },
        last: format!("team-{}", number % 7),
    })
}

impl Fleet {
    /// A cluster's namespace. The others have namespaces of their own, so that the listed one stays as it is.
    pub(crate) fn namespace(self, number: usize) -> String {
        if number >= self.clusters {
            return format!("other-{:02}", number % 50);
        }
        match number % 10 {
            0..6 => FLEET.to_owned(),
            team => format!("team-{team}"),
        }
    }

    /// A cluster's path.
    pub(crate) fn path(self, number: usize) -> String {
        path_in(&self.namespace(number), number)
    }

    /// A whole cluster as a client sends it. The round changes its annotation, and nothing that has an index.
    pub(crate) fn cluster(self, number: usize, round: usize) -> Value {
        cluster_in(&self.namespace(number), number, round)
    }
}

/// A cluster's path in any namespace.
pub(crate) fn path_in(namespace: &str, number: usize) -> String {
    format!("/v1/clusters/{namespace}/{}", name(number))
}

/// A cluster in any namespace.
pub(crate) fn cluster_in(namespace: &str, number: usize, round: usize) -> Value {
    json!({
        "namespace": namespace,
        "name": name(number),
        "labels": labels(number),
        "annotations": {"example.org/inventory": noise(number * 31 + round, ANNOTATION)},
        "kubeconfig": noise(number * 37, KUBECONFIG),
    })
}

fn name(number: usize) -> String {
    format!("cluster-{number:06}")
}

/// Text that does not compress, as keys and certificates don't.
fn noise(seed: usize, length: usize) -> String {
    let mut state = u64::try_from(seed).unwrap_or_default().wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        // Numbers of the generator SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        // Writing to a string can't fail.
        let _ = write!(text, "{:016x}", mixed ^ (mixed >> 27));
    }
    text.truncate(length);
    text
}

#[cfg(test)]
mod tests {
    use super::{FLEET, Fleet, labels, noise};

    #[test]
    fn documents_have_six_labels_and_the_selectors_match_what_they_say() {
        let of = |label: &str, value: Option<&str>| {
            let has = |number: &usize| {
                labels(*number).get(label).is_some_and(|found| value.is_none_or(|value| found == value))
            };
            (0..10_000).filter(has).count()
        };
        assert!((0..1_000).all(|number| labels(number).as_object().is_some_and(|labels| labels.len() == 6)));
        assert_eq!((of("group", Some("g07")), of("canary", None), of("env", Some("test"))), (100, 100, 100));
        let fleet = Fleet { clusters: 10_000 };
        assert_eq!((0..20_000).filter(|number| fleet.namespace(*number) == FLEET).count(), 6_000);
    }

    #[test]
    fn every_round_has_another_annotation_and_the_same_labels() {
        let fleet = Fleet { clusters: 10_000 };
        let (first, second) = (fleet.cluster(1, 0), fleet.cluster(1, 1));
        assert_ne!(first["annotations"], second["annotations"]);
        assert_eq!(first["labels"], second["labels"]);
        assert_eq!(noise(1, 100).len(), 100);
    }
}

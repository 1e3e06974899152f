//! The objects of kind `Hosstedproject`: what each says, and which one counts.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::cluster::{CanonicalJson, Object};

/// What a project asks for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::inventory) struct Spec {
    /// Nothing is collected or sent.
    pub(in crate::inventory) stop: bool,
    /// Namespaces that are left alone.
    #[serde(deserialize_with = "null_as_default")]
    pub(in crate::inventory) deny_namespaces: BTreeSet<String>,
    /// For the registration.
    #[serde(deserialize_with = "null_as_default")]
    pub(in crate::inventory) monitoring: Switch,
    /// For the registration.
    #[serde(deserialize_with = "null_as_default")]
    pub(in crate::inventory) cve: Switch,
    /// For the registration.
    #[serde(deserialize_with = "null_as_default")]
    pub(in crate::inventory) logging: Switch,
    /// For the registration.
    #[serde(deserialize_with = "null_as_default")]
    pub(in crate::inventory) ingress: Switch,
    /// Charts that hossted-operator would install.
    #[serde(deserialize_with = "null_as_default")]
    helm: Vec<serde::de::IgnoredAny>,
}

/// An option that is on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(in crate::inventory) struct Switch {
    pub(in crate::inventory) enable: bool,
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::inventory) struct Project {
    pub(in crate::inventory) name: String,
    pub(in crate::inventory) uid: String,
    pub(in crate::inventory) version: String,
    created: Option<jiff::Timestamp>,
    /// What it asks for; the defaults where it can't be read, which its CRD rules out.
    pub(in crate::inventory) spec: Spec,
    pub(in crate::inventory) status: Option<CanonicalJson>,
}

impl Project {
    /// The project that a cache holds.
    pub(in crate::inventory) fn of(object: &Object) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Content {
            #[serde(deserialize_with = "null_as_default")]
            spec: Spec,
        }
        let content: Content = serde_json::from_str(object.content.as_str()).unwrap_or_default();
        Self {
            name: object.key.name.to_string(),
            uid: object.uid.to_string(),
            version: object.resource_version.to_string(),
            created: object.created,
            spec: content.spec,
            status: object.status.clone(),
        }
    }

    pub(in crate::inventory) fn status(&self) -> Value {
        self.status.as_ref().map_or(Value::Null, CanonicalJson::value)
    }
}

/// Why a project does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::inventory) enum Ignored {
    /// It asks for charts to be installed, which Towline does not do.
    InstallsCharts,
    /// Another one counts.
    NotTheFirst,
}

impl Ignored {
    /// The reason of its condition, and the message.
    pub(in crate::inventory) fn explanation(self) -> (&'static str, &'static str) {
        match self {
            Self::InstallsCharts => ("InstallsCharts", "spec.helm is not supported: Towline installs no charts"),
            Self::NotTheFirst => ("NotTheFirst", "another Hosstedproject counts: the oldest, then the first by name"),
        }
    }
}

/// The project that counts, and those that are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::inventory) struct Choice {
    pub(in crate::inventory) chosen: Option<Project>,
    pub(in crate::inventory) ignored: Vec<(Project, Ignored)>,
}

impl Choice {
    /// The oldest one counts, then the first by name.
    pub(in crate::inventory) fn among(mut projects: Vec<Project>) -> Self {
        projects.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
        let mut choice = Self::default();
        for project in projects {
            if !project.spec.helm.is_empty() {
                choice.ignored.push((project, Ignored::InstallsCharts));
            } else if choice.chosen.is_some() {
                choice.ignored.push((project, Ignored::NotTheFirst));
            } else {
                choice.chosen = Some(project);
            }
        }
        choice
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Decoded;

    fn project(name: &str, created: &str, spec: &Value) -> Project {
        let metadata = json!({"name": name, "uid": format!("u-{name}"), "creationTimestamp": created});
        let object = json!({"metadata": metadata, "spec": spec, "status": {"clusterUUID": "K-1"}});
        Project::of(&serde_json::from_value::<Decoded>(object).unwrap().into_object())
    }

    const EARLY: &str = "2026-11-21T22:00:00Z";
    const LATE: &str = "2026-11-21T22:00:01Z";

    #[test]
    fn the_oldest_project_counts_then_the_first_by_name() {
        let names = |projects: Vec<Project>| {
            let choice = Choice::among(projects);
            let ignored: Vec<_> = choice.ignored.iter().map(|(project, why)| (project.name.clone(), *why)).collect();
            (choice.chosen.map(|project| project.name), ignored)
        };
        let none = json!({});
        let (a, b, c) = (project("a", LATE, &none), project("b", EARLY, &none), project("c", EARLY, &none));
        let others = |names: [&str; 2]| names.map(|name| (name.to_owned(), Ignored::NotTheFirst)).to_vec();
        for order in [vec![a.clone(), b.clone(), c.clone()], vec![c.clone(), b.clone(), a.clone()]] {
            assert_eq!(names(order), (Some("b".to_owned()), others(["c", "a"])));
        }
        let installs = project("0", EARLY, &json!({"helm": [{"chartName": "x"}]}));
        let (chosen, ignored) = names(vec![installs, a]);
        assert_eq!(
            (chosen.as_deref(), ignored.as_slice()),
            (Some("a"), &[("0".to_owned(), Ignored::InstallsCharts)][..])
        );
        assert_eq!(names(Vec::new()), (None, Vec::new()));
    }

    #[test]
    fn every_field_of_a_spec_is_read_and_each_may_be_absent() {
        let spec = project(
            "a",
            EARLY,
            &json!({"stop": true, "denyNamespaces": ["kube-system", "b"], "monitoring": {"enable": true},
            "cve": {"enable": false}, "logging": {"enable": true}, "ingress": null, "helm": null, "unknown": 1}),
        )
        .spec;
        assert!(spec.stop && spec.monitoring.enable && !spec.cve.enable && spec.logging.enable && !spec.ingress.enable);
        assert_eq!(spec.deny_namespaces, BTreeSet::from(["b".to_owned(), "kube-system".to_owned()]));
        for least in
            [json!({}), json!({"denyNamespaces": null, "monitoring": null, "cve": {}, "helm": []}), Value::Null]
        {
            assert_eq!(project("a", EARLY, &least).spec, Spec::default(), "{least}");
        }
    }
}

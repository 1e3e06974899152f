//! Which clusters a syncset is for: those that a `SyncSet` names, and those whose namespace and labels a `SelectorSyncSet`
//! selects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::name::{SyncSetKind, SyncSetName};
use super::parse::{field, invalid, invalid_text, list};
use super::rows::Failure;
use crate::config::Requirement;
use crate::documents::{NamespacePattern, requirements_of};

/// The clusters that a syncset is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    /// Clusters of one namespace, by name.
    Named { namespace: String, clusters: BTreeSet<String> },
    Selected {
        /// One of these has to match the namespace. They say who may receive the content: whoever can write clusters there.
        namespaces: Vec<NamespacePattern>,
        /// All of these have to hold for the labels.
        requirements: Vec<Requirement>,
    },
}

impl Audience {
    /// Reads it from `spec`. If that fails it is not known whom the syncset is for: it sends nothing, and nothing that it has
    /// applied to any cluster may be deleted.
    pub fn of(name: &SyncSetName, spec: &Value) -> Result<Self, Failure> {
        match name.kind {
            SyncSetKind::SyncSet => {
                let mut clusters = BTreeSet::new();
                for (index, reference) in list(spec, "clusterDeploymentRefs")?.iter().enumerate() {
                    let cluster = reference.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
                    let place = || format!("spec.clusterDeploymentRefs[{index}].name");
                    let cluster =
                        cluster.ok_or_else(|| invalid(&place(), reference.get("name"), "the name of a cluster"))?;
                    clusters.insert(cluster.to_owned());
                }
                Ok(Self::Named { namespace: name.namespace.clone(), clusters })
            }
            SyncSetKind::SelectorSyncSet => {
                let everywhere = || pattern(&Value::from("*"), "clusterNamespaces", 0).map(|pattern| vec![pattern]);
                let namespaces = patterns(spec, "clusterNamespaces")?.map_or_else(everywhere, Ok)?;
                // One that is missing would select all clusters.
                let selector = field(spec, "clusterDeploymentSelector")?;
                let place = "spec.clusterDeploymentSelector";
                let selector = selector.ok_or_else(|| invalid(place, None, "a label selector"))?;
                let requirements = requirements_of(selector).map_err(|problem| {
                    let fault = problem.faults.first();
                    let (pointer, found) = fault
                        .map_or(("", problem.title.as_str()), |fault| (fault.pointer.as_str(), fault.found.as_str()));
                    invalid_text(&format!("{place}{}", pointer.replace('/', ".")), found, "a label selector")
                })?;
                Ok(Self::Selected { namespaces, requirements })
            }
        }
    }

    /// Whom a selector selects, in all namespaces or in these. `None` if that can't be read, as it may be after a newer release has run.
    pub fn selected(selector: Option<&Value>, namespaces: Option<&Value>) -> Option<Self> {
        let name = SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: String::new() };
        Self::of(&name, &json!({"clusterDeploymentSelector": selector, "clusterNamespaces": namespaces})).ok()
    }

    /// How much work it is for each cluster to find out whether this is for it: the values that are compared.
    pub fn weight(&self) -> usize {
        match self {
            Self::Named { .. } => 2,
            Self::Selected { requirements, .. } => requirements.iter().map(Requirement::weight).sum::<usize>() + 2,
        }
    }

    pub fn includes(&self, namespace: &str, name: &str, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Named { namespace: own, clusters } => own == namespace && clusters.contains(name),
            Self::Selected { namespaces, requirements } => {
                namespaces.iter().any(|pattern| pattern.matches(namespace))
                    && requirements.iter().all(|requirement| requirement.holds(labels))
            }
        }
    }
}

/// The namespaces on whose clusters a revision acts at all: one that copies secrets only in those that its document named beside them, any other
/// one in all. Its syncset may be for more namespaces today; on their clusters the revision sends and deletes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveNamespaces(Option<Vec<NamespacePattern>>);

impl EffectiveNamespaces {
    /// None if they can't be read.
    pub fn of(spec: &Value) -> Self {
        Self(patterns(spec, "secretNamespaces").unwrap_or_else(|_| Some(Vec::new())))
    }

    pub fn include(&self, namespace: &str) -> bool {
        self.0.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(namespace)))
    }
}

fn patterns(spec: &Value, name: &str) -> Result<Option<Vec<NamespacePattern>>, Failure> {
    if field(spec, name)?.is_none() {
        return Ok(None);
    }
    let patterns = list(spec, name)?.iter().enumerate();
    patterns.map(|(index, value)| pattern(value, name, index)).collect::<Result<_, _>>().map(Some)
}

fn pattern(value: &Value, name: &str, index: usize) -> Result<NamespacePattern, Failure> {
    let place = || format!("spec.{name}[{index}]");
    let pattern = value.as_str().and_then(NamespacePattern::parse);
    pattern.ok_or_else(|| invalid(&place(), Some(value), NamespacePattern::ALLOWED))
}

#[cfg(test)]
mod tests;

//! The kinds that the bench can use, and what a change of each looks like.

use std::str::FromStr;

use integration::crds;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

/// A kind of small objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadKind {
    /// A built-in kind with a status.
    PodDisruptionBudgets,
    /// The demo kind, a custom resource: dearer for the API servers.
    Databases,
}

impl LoadKind {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::PodDisruptionBudgets, Self::Databases];

    /// Its plural.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PodDisruptionBudgets => "poddisruptionbudgets",
            Self::Databases => "databases",
        }
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::PodDisruptionBudgets => "policy",
            Self::Databases => "demo.towline.dev",
        }
    }

    /// Definitions to install first.
    pub(crate) fn crds(self) -> &'static [&'static str] {
        match self {
            Self::PodDisruptionBudgets => &[],
            Self::Databases => &[crds::DATABASES],
        }
    }

    /// For requests.
    pub(crate) fn resource(self) -> ApiResource {
        let kind = match self {
            Self::PodDisruptionBudgets => "PodDisruptionBudget",
            Self::Databases => "Database",
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.group(), "v1", kind))
    }

    /// A new object whose spec has this mark.
    pub(crate) fn object(self, namespace: &str, name: &str, mark: u64) -> Value {
        let resource = self.resource();
        let spec = match self {
            Self::PodDisruptionBudgets => {
                json!({"minAvailable": mark, "selector": {"matchLabels": {"app": name}}})
            }
            Self::Databases => json!({"engine": "postgres-16", "storage": format!("{mark}Gi"), "replicas": 2}),
        };
        json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": spec,
        })
    }

    /// A merge patch that gives the spec another mark.
    pub(crate) fn spec_patch(self, mark: u64) -> Value {
        match self {
            Self::PodDisruptionBudgets => json!({"spec": {"minAvailable": mark}}),
            Self::Databases => json!({"spec": {"storage": format!("{mark}Gi")}}),
        }
    }

    /// A merge patch that gives the status another mark.
    pub(crate) fn status_patch(self, mark: u64) -> Value {
        match self {
            Self::PodDisruptionBudgets => json!({"status": {
                "currentHealthy": mark, "desiredHealthy": 1, "disruptionsAllowed": 1, "expectedPods": 3,
            }}),
            Self::Databases => json!({"status": {"phase": "Ready", "observedGeneration": mark}}),
        }
    }

    /// The mark that the spec has.
    pub(crate) fn spec_mark(self, object: &Value) -> Option<u64> {
        match self {
            Self::PodDisruptionBudgets => object.pointer("/spec/minAvailable")?.as_u64(),
            Self::Databases => object.pointer("/spec/storage")?.as_str()?.strip_suffix("Gi")?.parse().ok(),
        }
    }

    /// The mark that the status has.
    pub(crate) fn status_mark(self, object: &Value) -> Option<u64> {
        let field = match self {
            Self::PodDisruptionBudgets => "/status/currentHealthy",
            Self::Databases => "/status/observedGeneration",
        };
        object.pointer(field)?.as_u64()
    }
}

impl FromStr for LoadKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(())
    }
}

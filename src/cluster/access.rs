//! Access reviews (`SelfSubjectAccessReview`).

use serde::Deserialize;
use serde_json::{Value, json};

use super::Verb;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRequest {
    pub verb: Verb,
    /// Plural name of the kind.
    pub resource: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace; empty means all of them.
    pub namespace: String,
    /// Name; empty means any.
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// The authorizer's reason, often empty.
    pub reason: String,
}

impl AccessRequest {
    /// A question; `resource` is `plural.group/subresource`, without the parts that it does not have.
    pub fn new(verb: Verb, resource: &str, namespace: &str, name: &str) -> Self {
        let (whole, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (plural, group) = whole.split_once('.').unwrap_or((whole, ""));
        Self {
            verb,
            resource: plural.to_owned(),
            group: group.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The text of a denial, for people; `reason` is the authorizer's, or empty.
    pub fn denied(&self, reason: &str) -> String {
        let which = if self.name.is_empty() { String::new() } else { format!(" {}", self.name) };
        let place = if self.namespace.is_empty() { String::new() } else { format!(" in namespace {}", self.namespace) };
        let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!("not allowed to {} {}{which}{place}{because}", self.verb, self.full_resource())
    }

    /// `plural.group/subresource`.
    pub fn full_resource(&self) -> String {
        let mut text = self.resource.clone();
        for (separator, part) in [('.', &self.group), ('/', &self.subresource)] {
            if !part.is_empty() {
                text.push(separator);
                text.push_str(part);
            }
        }
        text
    }
}

#[derive(Deserialize)]
pub(super) struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    reason: String,
}

/// The path that reviews are posted to.
pub(super) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

impl AccessRequest {
    pub(super) fn review(&self) -> Value {
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": {
                "verb": self.verb.as_str(),
                "group": self.group,
                "resource": self.resource,
                "subresource": self.subresource,
                "namespace": self.namespace,
                "name": self.name,
            }},
        })
    }
}

impl From<Review> for Decision {
    fn from(Review { status }: Review) -> Self {
        Self { allowed: status.allowed, reason: status.reason }
    }
}

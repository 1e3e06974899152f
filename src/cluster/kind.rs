//! A kind as the API server serves it.

use std::fmt;

use kube::core::ApiResource;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

use super::ObjectKey;
use crate::config::ResourceId;

/// What is encoded in a part of a path: everything but what is never special there. Names of roles have colons.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

fn encoded(segment: &str) -> PercentEncode<'_> {
    utf8_percent_encode(segment, SEGMENT)
}

/// A kind that a cluster serves, found by discovery.
#[derive(Clone, PartialEq, Eq)]
pub struct Kind {
    /// For kube's APIs.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether it has the subresource `/status`.
    pub status_subresource: bool,
}

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.full_resource(), self.resource.kind)
    }
}

impl Kind {
    /// A kind of the core group that is known without discovery.
    pub fn core(kind: &str, plural: &str, namespaced: bool) -> Self {
        Self {
            resource: ApiResource {
                group: String::new(),
                version: "v1".into(),
                api_version: "v1".into(),
                kind: kind.into(),
                plural: plural.into(),
            },
            namespaced,
            status_subresource: false,
        }
    }

    /// Leases, in their one version.
    pub fn lease() -> Self {
        let mut kind = Self::core("Lease", "leases", true);
        "coordination.k8s.io".clone_into(&mut kind.resource.group);
        "coordination.k8s.io/v1".clone_into(&mut kind.resource.api_version);
        kind
    }

    /// As the configuration names it.
    pub fn id(&self) -> ResourceId {
        let ApiResource { plural, version, group, .. } = &self.resource;
        ResourceId { plural: plural.clone(), version: version.clone(), group: group.clone() }
    }

    /// `plural.group`, or `plural` for the core group.
    pub fn full_resource(&self) -> String {
        if self.resource.group.is_empty() {
            self.resource.plural.clone()
        } else {
            format!("{}.{}", self.resource.plural, self.resource.group)
        }
    }

    /// `/api/v1` or `/apis/group/version`.
    pub(super) fn root(group: &str, version: &str) -> String {
        let version = encoded(version);
        if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{}/{version}", encoded(group)) }
    }

    pub fn collection_path(&self, namespace: &str) -> String {
        let root = Self::root(&self.resource.group, &self.resource.version);
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{}/{}", encoded(namespace), encoded(&self.resource.plural))
        } else {
            format!("{root}/{}", encoded(&self.resource.plural))
        }
    }

    pub fn object_path(&self, key: &ObjectKey) -> String {
        format!("{}/{}", self.collection_path(&key.namespace), encoded(&key.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_kinds_scope() {
        let namespaces = Kind::core("Namespace", "namespaces", false);
        assert_eq!(namespaces.object_path(&ObjectKey::new("", "a")), "/api/v1/namespaces/a");
        let mut kind = Kind::core("Secret", "secrets", true);
        assert_eq!(kind.object_path(&ObjectKey::new("n", "a")), "/api/v1/namespaces/n/secrets/a");
        assert_eq!(kind.collection_path(""), "/api/v1/secrets");
        kind.resource.group = "demo.towline.dev".into();
        assert_eq!(kind.collection_path("n"), "/apis/demo.towline.dev/v1/namespaces/n/secrets");
        assert_eq!(kind.full_resource(), "secrets.demo.towline.dev");
        assert_eq!(
            Kind::lease().object_path(&ObjectKey::new("n", "a")),
            "/apis/coordination.k8s.io/v1/namespaces/n/leases/a"
        );
    }
}

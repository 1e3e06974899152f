//! What identifies syncsets and the objects that they send.

use std::fmt;

/// The two kinds of syncsets, in the order in which they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncSetKind {
    /// Names clusters of its own namespace.
    SyncSet,
    /// Selects clusters by their labels.
    SelectorSyncSet,
}

/// The name of a syncset. The order is the one in which the syncsets of a cluster are applied, since all its `SyncSet`s
/// are in its namespace; names compare bytewise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncSetName {
    pub kind: SyncSetKind,
    /// Its namespace; empty for a `SelectorSyncSet`.
    pub namespace: String,
    pub name: String,
}

/// What identifies an object in a cluster, whatever version of its kind a syncset names. For a cluster-scoped kind the
/// namespace is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// API group; empty for the core group.
    pub group: String,
    pub kind: String,
    /// Empty without one.
    pub namespace: String,
    pub name: String,
}

/// A SHA-256, by which contents are compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of a syncset that is left out although it has these inputs: it differs from theirs, and changes when they change.
    #[must_use]
    pub fn inverted(self) -> Self {
        Self(self.0.map(|byte| !byte))
    }
}

impl SyncSetKind {
    /// As documents name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SyncSet => "SyncSet",
            Self::SelectorSyncSet => "SelectorSyncSet",
        }
    }
}

/// `SyncSet team-a/base`, `SelectorSyncSet monitoring`.
impl fmt::Display for SyncSetName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ", self.kind.as_str())?;
        if !self.namespace.is_empty() {
            write!(formatter, "{}/", self.namespace)?;
        }
        formatter.write_str(&self.name)
    }
}

/// `Deployment.apps team-a/agent`, `Namespace monitoring`.
impl fmt::Display for ObjectRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(formatter, ".{}", self.group)?;
        }
        formatter.write_str(" ")?;
        if !self.namespace.is_empty() {
            write!(formatter, "{}/", self.namespace)?;
        }
        formatter.write_str(&self.name)
    }
}

/// A few digits, which are enough to tell two apart.
impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syncset(kind: SyncSetKind, name: &str) -> SyncSetName {
        let namespace = if kind == SyncSetKind::SyncSet { "team-a" } else { "" };
        SyncSetName { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn syncsets_come_before_selector_syncsets_and_names_compare_bytewise() {
        let mut names = [
            syncset(SyncSetKind::SelectorSyncSet, "a"),
            syncset(SyncSetKind::SyncSet, "b"),
            syncset(SyncSetKind::SyncSet, "a-1"),
            syncset(SyncSetKind::SyncSet, "a.1"),
            syncset(SyncSetKind::SyncSet, "a"),
        ];
        names.sort();
        let shown: Vec<String> = names.iter().map(ToString::to_string).collect();
        let order =
            ["SyncSet team-a/a", "SyncSet team-a/a-1", "SyncSet team-a/a.1", "SyncSet team-a/b", "SelectorSyncSet a"];
        assert_eq!(shown, order);
    }

    #[test]
    fn objects_are_shown_with_group_and_namespace() {
        let object = |group: &str, kind: &str, namespace: &str, name: &str| ObjectRef {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        assert_eq!(object("apps", "Deployment", "team-a", "agent").to_string(), "Deployment.apps team-a/agent");
        assert_eq!(object("", "Namespace", "", "monitoring").to_string(), "Namespace monitoring");
    }
}

//! The name of an actor: its place in the tree, as a path.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An actor's place in the tree: `towline/sync databases/dispatcher`.
///
/// Cheap to clone. The last part is the name its [`ChildSpec`](super::ChildSpec) gave it, unique among its siblings.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

impl Name {
    /// The name of a tree's root.
    pub fn root(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name of a child of this actor.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self(Arc::from(format!("{}/{name}", self.0)))
    }

    /// The whole path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

//! The one table of what the API has: from it the router and the authorization are made.

use http::Method;

use crate::documents::Kind;
use crate::hub::plan::tokens::Role;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A list, or a watch.
    List,
    Create,
    Read,
    /// Another content for a document.
    Replace,
    Patch,
    Delete,
    /// Another status for a document.
    ReplaceStatus,
    /// Changes of the status of a document.
    PatchStatus,
    /// Many documents, of any kind, as they should be.
    Apply,
}

/// A method of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub method: Method,
    /// The path, with its variables in braces.
    pub path: String,
    /// The kind of documents; none for those of no kind in particular.
    pub kind: Option<Kind>,
    pub action: Action,
}

/// Parameters of a list.
const OF_LIST: &[&str] = &[
    "namespace",
    "labelSelector",
    "fieldSelector",
    "limit",
    "continue",
    "fields",
    "watch",
    "resourceVersion",
    "timeoutSeconds",
];
/// Parameters of a change.
const OF_CHANGE: &[&str] = &["dryRun"];

impl Action {
    pub fn role(self) -> Role {
        match self {
            Self::List | Self::Read => Role::Read,
            Self::Create | Self::Replace | Self::Patch | Self::Delete | Self::Apply => Role::Write,
            Self::ReplaceStatus | Self::PatchStatus => Role::Admin,
        }
    }

    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::List => OF_LIST,
            Self::Read => &[],
            Self::Create
            | Self::Replace
            | Self::Patch
            | Self::Delete
            | Self::ReplaceStatus
            | Self::PatchStatus
            | Self::Apply => OF_CHANGE,
        }
    }
}

pub fn operations() -> Vec<Operation> {
    let mut operations = Vec::new();
    for kind in Kind::ALL {
        let all = format!("/v1/{}", kind.plural());
        let one =
            if kind.is_namespaced() { format!("{all}/{{namespace}}/{{name}}") } else { format!("{all}/{{name}}") };
        let status = format!("{one}/status");
        let mut add = |method: Method, path: &str, action| {
            operations.push(Operation { method, path: path.to_owned(), kind: Some(kind), action });
        };
        add(Method::GET, &all, Action::List);
        add(Method::GET, &one, Action::Read);
        if kind.is_written_by_clients() {
            add(Method::POST, &all, Action::Create);
            add(Method::PUT, &one, Action::Replace);
            add(Method::PATCH, &one, Action::Patch);
            add(Method::DELETE, &one, Action::Delete);
        }
        add(Method::PUT, &status, Action::ReplaceStatus);
        add(Method::PATCH, &status, Action::PatchStatus);
    }
    let mut add = |method: Method, path: &str, action| {
        operations.push(Operation { method, path: path.to_owned(), kind: None, action });
    };
    add(Method::POST, "/v1/apply", Action::Apply);
    operations
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_method_of_a_path_is_one_operation() {
        let operations = operations();
        let distinct: BTreeSet<_> = operations.iter().map(|one| (one.path.as_str(), one.method.as_str())).collect();
        assert_eq!(distinct.len(), operations.len());
        // 4 kinds with 8 operations, one that the hub writes itself with 4, and apply.
        assert_eq!(operations.len(), 4 * 8 + 4 + 1);
    }
}

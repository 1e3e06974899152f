//! Reading bodies: JSON and YAML with the limits of documents, and comparing and measuring what was read.
//!
//! A body is read into values of `serde_json` part by part ([`crate::yaml`] and a visitor of our own for JSON), because three things
//! have to be refused that the usual visitor lets through: a key that occurs twice, more than [`LEVELS`] levels, and U+0000, which a
//! `jsonb` can't hold. The parts' lengths are counted as PostgreSQL would print them, so that neither aliases of YAML nor `1e300` make
//! more of a body than [`LARGEST`].

mod equality;
mod manifests;
mod printed;
mod reader;

use std::fmt;

use serde_json::{Map, Value};

use super::problem::{Fault, Problem, ProblemKind};
use crate::config::text::kind_of;

pub(super) use crate::yaml::Path;
pub(super) use equality::{same, same_map};
pub use manifests::{Manifest, manifests_of_json, manifests_of_yaml};
pub use printed::sizes;
pub(super) use printed::{Extent, extent, extent_of_map, length_of_text};
pub(super) use reader::{Limits, yaml};

/// Longest document, in bytes as PostgreSQL prints it.
pub(super) const LARGEST: usize = 4 << 20;
/// Most memory that the values of a document take, about: 20 times its text if that is as long as it may be, and more than 50 times
/// the 1.5 MiB that an object of Kubernetes has at most. Without it, 3 MiB of `{"a":1}` would take 300 MiB.
pub(super) const LARGEST_BUILT: usize = 80 << 20;
/// Most levels of objects and lists in a document. `serde_json` stops at 128, and a row of the log has two levels of its own.
pub(super) const LEVELS: usize = 100;

/// A document or a merge patch as a client sent it: a JSON object. It may hold values that are to be sealed, so `Debug` shows only
/// the names of its fields.
#[derive(Clone, PartialEq)]
pub struct Body(Map<String, Value>);

impl Body {
    pub fn from_json(text: &[u8]) -> Result<Self, Problem> {
        Self::of(reader::json(text, &Limits::document())?)
    }

    /// A JSON value that has been read.
    pub(super) fn of(value: Value) -> Result<Self, Problem> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            other => {
                let fault = Fault::new("", kind_of(&other)).allowed("an object");
                Err(Problem::invalid(vec![fault]))
            }
        }
    }

    /// A field, if it is a text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).and_then(Value::as_str)
    }

    /// Whether this field of this object is a list with elements.
    pub(super) fn has_elements(&self, [parent, field]: [&str; 2]) -> bool {
        let list = self.0.get(parent).and_then(|parent| parent.get(field)).and_then(Value::as_array);
        list.is_some_and(|list| !list.is_empty())
    }

    /// The clusters that the document of a syncset names, as far as it is one.
    pub fn cluster_names(&self) -> impl Iterator<Item = &str> {
        let references =
            self.0.get("spec").and_then(|spec| spec.get("clusterDeploymentRefs")).and_then(Value::as_array);
        references.into_iter().flatten().filter_map(|reference| reference.get("name").and_then(Value::as_str))
    }

    pub fn json(&self) -> Vec<u8> {
        // Maps with text keys always become JSON.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    pub(super) fn into_fields(self) -> Map<String, Value> {
        self.0
    }
}

impl From<Map<String, Value>> for Body {
    fn from(fields: Map<String, Value>) -> Self {
        Self(fields)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// Reads JSON of any type. A list of operations has two levels more than the parts of a document in it.
pub(super) fn json(text: &[u8], levels: usize) -> Result<Value, Problem> {
    reader::json(text, &Limits { levels, ..Limits::document() })
}

/// More than a document may have.
pub(super) fn too_large() -> Problem {
    let title = "the document has more than 4 MiB, where a number counts with all its digits";
    Problem::new(ProblemKind::TooLarge, title)
}

/// More parts than a document may have.
pub(super) fn too_many_parts() -> Problem {
    let title =
        "the document has too many small parts: they take more than 80 MiB of memory, in which a map takes 600 bytes";
    Problem::new(ProblemKind::TooLarge, title)
}

/// Deeper than a document may be.
pub(super) fn too_deep(pointer: String) -> Problem {
    let found = format!("more than {LEVELS} levels of objects and lists");
    Problem::invalid(vec![Fault::new(pointer, found).allowed(format!("at most {LEVELS} levels"))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_is_a_document() {
        for (text, found) in [("[]", "a list"), ("null", "null"), ("\"canary\"", "a string"), ("1", "a number")] {
            let problem = Body::from_json(text.as_bytes()).expect_err("no document");
            assert_eq!(problem.faults, [Fault::new("", found).allowed("an object")]);
        }
    }

    #[test]
    fn debug_shows_no_value() {
        let body = Body::from_json(br#"{"kubeconfig": "canary", "name": "a"}"#).expect("a body");
        assert_eq!(format!("{body:?}"), r#"{"kubeconfig", "name"}"#);
    }
}

//! Collecting faults.

use serde_json::Value;

use crate::config::fault::nearest;
use crate::documents::body::Path;
use crate::documents::problem::{Fault, Problem};

/// Most faults that are told of one document: it may have a million.
const MOST: usize = 100;

/// Faults of a document, in the order of its fields.
#[derive(Debug, Default)]
pub(in crate::documents) struct Faults {
    found: Vec<Fault>,
}

impl Faults {
    pub(in crate::documents) fn push(&mut self, fault: Fault) {
        if self.found.len() < MOST {
            self.found.push(fault);
        }
    }

    pub(in crate::documents) fn add(&mut self, path: &Path<'_>, found: impl Into<String>, allowed: impl Into<String>) {
        if self.found.len() < MOST {
            self.push(Fault::new(path.to_string(), found).allowed(allowed));
        }
    }

    /// Adds an unknown field. Its value is not shown: it may be a secret under a mistyped name.
    pub(in crate::documents) fn unknown_field(&mut self, parent: &Path<'_>, name: &str, known: &[&str]) {
        let suggestion = nearest(name, known.iter().copied());
        let fault = Fault::new(parent.field(name).to_string(), "an unknown field");
        self.push(match suggestion {
            Some(_) => fault.suggestion(suggestion),
            None => fault.allowed(known.join(", ")),
        });
    }

    /// Adds the fields of an object that are none of these.
    pub(in crate::documents) fn unknown_fields(
        &mut self,
        fields: &serde_json::Map<String, Value>,
        parent: &Path<'_>,
        known: &[&str],
    ) {
        for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
            self.unknown_field(parent, name, known);
        }
    }

    /// Adds the faults of another part that are not yet there.
    pub(in crate::documents) fn extend(&mut self, others: Self) {
        for fault in others.found {
            if !self.found.contains(&fault) {
                self.push(fault);
            }
        }
    }

    pub(in crate::documents) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// A problem if there are any.
    pub(in crate::documents) fn into_result(self) -> Result<(), Problem> {
        if self.found.is_empty() { Ok(()) } else { Err(Problem::invalid(self.found)) }
    }
}

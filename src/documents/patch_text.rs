//! The texts of a syncset's patches.

use serde_json::Value;

use super::body::{self, Limits, kind_of};
use super::operations::Operations;
use super::problem::ProblemKind;

/// What a patch has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchForm {
    /// A part of the object: strategic and JSON merge patches.
    Object,
    /// A list of operations: JSON patches.
    Operations,
}

/// Why a text is no patch. It shows nothing of the text but the names of fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPatch {
    /// There is nothing in it.
    #[error("nothing")]
    Nothing,
    /// It has more than one YAML document.
    #[error("several documents")]
    Several,
    /// There is no thread to read YAML, which says nothing about the text. Another attempt may succeed.
    #[error("a text that can't be read now: there is no thread for YAML")]
    Busy,
    /// It is neither JSON nor YAML, or too large.
    #[error("a text that is no patch: {0}")]
    Unreadable(String),
    /// The operations are none of a JSON patch.
    #[error("a list that is no JSON patch{0}")]
    Operations(String),
    /// It is something else.
    #[error("{0} as the patch")]
    Form(&'static str),
}

/// Reads the texts of a syncset's patches, which share the size of a document: aliases may make much of a short text.
pub struct PatchReader {
    left: Limits<'static>,
}

impl Default for PatchReader {
    fn default() -> Self {
        Self { left: Limits::document() }
    }
}

impl PatchForm {
    /// What texts of this form have to be.
    pub fn allowed(self) -> &'static str {
        match self {
            Self::Object => "an object as JSON or YAML",
            Self::Operations => "a list of operations as JSON or YAML",
        }
    }
}

impl PatchReader {
    /// Reads a text: JSON or YAML.
    pub fn read(&mut self, text: &str, form: PatchForm) -> Result<Value, InvalidPatch> {
        let values = match body::json(text.as_bytes(), body::LEVELS, self.left.charge) {
            Ok(value) => Ok(vec![value]),
            Err(_) => body::yaml(text, &self.left),
        };
        if values.as_ref().is_err_and(|problem| problem.kind == ProblemKind::Busy) {
            return Err(InvalidPatch::Busy);
        }
        let size = match &values {
            Ok(values) => values.iter().map(|value| body::extent(value).bytes).sum(),
            // It has been read up to the limit.
            Err(problem) if problem.kind == ProblemKind::TooLarge => self.left.bytes,
            // One that is wrong costs the others little, and many of them have a limit all the same.
            Err(_) => text.len().max(self.left.bytes / 16),
        };
        self.left.bytes = self.left.bytes.saturating_sub(size);
        let mut values = values.map_err(|problem| InvalidPatch::Unreadable(problem.title))?;
        let value = match (values.pop(), values.is_empty()) {
            (Some(value), true) => value,
            (None, _) => return Err(InvalidPatch::Nothing),
            _ => return Err(InvalidPatch::Several),
        };
        match (&value, form) {
            (Value::Object(_), PatchForm::Object) => Ok(value),
            (Value::Array(_), PatchForm::Operations) => match Operations::of(&value) {
                Ok(_) => Ok(value),
                Err(problem) => {
                    let first = problem.faults.first();
                    let first = first.map(|fault| format!(", at {} {}", fault.pointer, fault.found));
                    Err(InvalidPatch::Operations(first.unwrap_or_default()))
                }
            },
            _ => Err(InvalidPatch::Form(kind_of(&value))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Problem;
    use super::*;

    #[test]
    fn a_text_that_can_not_be_read_now_is_not_wrong() {
        static BUSY: fn(usize) -> Result<(), Problem> = |_| Err(Problem::new(ProblemKind::Busy, "no thread"));
        let mut reader = PatchReader::default();
        reader.left.charge = &BUSY;
        for text in ["{\"a\": 1}", "a: 1"] {
            assert_eq!(reader.read(text, PatchForm::Object), Err(InvalidPatch::Busy));
        }
        assert_eq!(reader.left.bytes, Limits::document().bytes, "it takes nothing from the others");
    }
}

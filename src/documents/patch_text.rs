//! The texts of a syncset's patches.

use serde_json::Value;

use super::body::{self, Limits};
use super::operations::Operations;
use super::problem::ProblemKind;
use crate::config::text::kind_of;

/// What a patch has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchForm {
    /// A part of the object: strategic and JSON merge patches.
    Object,
    /// A list of operations: JSON patches.
    Operations,
}

/// Why an object has no owners.
pub(super) const OWNERLESS: &str = "none: owners are known by UIDs, which another cluster does not have, and its garbage collector deletes \
                                    an object whose owners it does not know";

/// Why a text is no patch. It shows nothing of the text but the names of fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPatch {
    #[error("nothing")]
    Nothing,
    /// It has more than one YAML document.
    #[error("several documents")]
    Several,
    /// It is neither JSON nor YAML, or too large.
    #[error("a text that is no patch: {0}")]
    Unreadable(String),
    /// The operations are none of a JSON patch.
    #[error("a list that is no JSON patch{0}")]
    Operations(String),
    #[error("owners of the object")]
    Owners,
    #[error("{0} as the patch")]
    Form(&'static str),
}

/// Reads the texts of a syncset's patches, which share the size of a document: aliases may make much of a short text.
pub struct PatchReader {
    left: Limits,
}

impl Default for PatchReader {
    fn default() -> Self {
        Self { left: Limits::document() }
    }
}

impl InvalidPatch {
    /// What a text of this form has to be instead.
    pub fn allowed(&self, form: PatchForm) -> &'static str {
        match (self, form) {
            (Self::Owners, _) => OWNERLESS,
            (_, PatchForm::Object) => "an object as JSON or YAML",
            (_, PatchForm::Operations) => "a list of operations as JSON or YAML",
        }
    }
}

impl PatchReader {
    /// Reads a text: JSON or YAML.
    pub fn read(&mut self, text: &str, form: PatchForm) -> Result<Value, InvalidPatch> {
        let values = match body::json(text.as_bytes(), body::LEVELS) {
            Ok(value) => Ok(vec![value]),
            Err(_) => body::yaml(text, &self.left),
        };
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
            (Value::Object(_) | Value::Array(_), _) if gives_owners(&value) => Err(InvalidPatch::Owners),
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

/// Whether an object's `ownerReferences` name somebody.
pub fn has_owners(references: &Value) -> bool {
    !(references.is_null() || references.as_array().is_some_and(Vec::is_empty))
}

/// Whether a patch gives the object owners.
fn gives_owners(patch: &Value) -> bool {
    const OWNERS: &str = "/metadata/ownerReferences";
    let are_at = |value: &Value, pointer: &str| value.pointer(pointer).is_some_and(has_owners);
    let Some(operations) = patch.as_array() else { return are_at(patch, OWNERS) };
    operations.iter().any(|operation| {
        let text = |field: &str| operation.get(field).and_then(Value::as_str).unwrap_or_default();
        match (text("op"), text("path")) {
            ("remove" | "test", _) => false,
            ("move" | "copy", place) => place.starts_with(OWNERS),
            (_, "") => are_at(operation, "/value/metadata/ownerReferences"),
            (_, "/metadata") => are_at(operation, "/value/ownerReferences"),
            (_, OWNERS) => are_at(operation, "/value"),
            (_, place) => place.starts_with(OWNERS),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_gives_no_owners() {
        let owner = r#"{"uid": "u"}"#;
        for (text, form, is_refused) in [
            (format!(r#"{{"metadata": {{"ownerReferences": [{owner}]}}}}"#), PatchForm::Object, true),
            (r#"{"metadata": {"ownerReferences": null}}"#.to_owned(), PatchForm::Object, false),
            (
                r#"{"metadata": {"ownerReferences": []}, "data": {"ownerReferences": [1]}}"#.to_owned(),
                PatchForm::Object,
                false,
            ),
            (
                format!(r#"[{{"op": "add", "path": "/metadata/ownerReferences", "value": [{owner}]}}]"#),
                PatchForm::Operations,
                true,
            ),
            (
                format!(r#"[{{"op": "add", "path": "/metadata/ownerReferences/-", "value": {owner}}}]"#),
                PatchForm::Operations,
                true,
            ),
            (
                format!(r#"[{{"op": "replace", "path": "/metadata", "value": {{"ownerReferences": [{owner}]}}}}]"#),
                PatchForm::Operations,
                true,
            ),
            (
                format!(
                    r#"[{{"op": "replace", "path": "", "value": {{"metadata": {{"ownerReferences": [{owner}]}}}}}}]"#
                ),
                PatchForm::Operations,
                true,
            ),
            (
                r#"[{"op": "copy", "from": "/data", "path": "/metadata/ownerReferences"}]"#.to_owned(),
                PatchForm::Operations,
                true,
            ),
            (r#"[{"op": "remove", "path": "/metadata/ownerReferences"}]"#.to_owned(), PatchForm::Operations, false),
            (
                r#"[{"op": "add", "path": "/metadata/ownerReferences", "value": []}]"#.to_owned(),
                PatchForm::Operations,
                false,
            ),
        ] {
            let found = PatchReader::default().read(&text, form);
            assert_eq!(found == Err(InvalidPatch::Owners), is_refused, "{text}: {found:?}");
        }
    }
}

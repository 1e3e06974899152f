//! The texts of a syncset's patches.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::body::{self, Charge, Limits, kind_of};
use super::operations::Operations;
use super::problem::{Problem, ProblemKind};

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
    /// There is no room for what is read, which says nothing about the text. Another attempt may succeed.
    #[error("a text that can't be read now: there is no memory for it")]
    Busy,
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
    left: Limits<'static>,
    /// The room that was taken for texts which were checked.
    room: usize,
}

/// The room for texts that are checked one after the other: as much as the largest of them needs, since each is gone before the next.
struct Largest<'c> {
    charge: Charge<'c>,
    taken: AtomicUsize,
    /// What is built of the present text.
    built: AtomicUsize,
}

impl Default for PatchReader {
    fn default() -> Self {
        Self { left: Limits::document(), room: 0 }
    }
}

impl Largest<'_> {
    /// Takes room for so many bytes more of the present text, before they are built.
    fn build(&self, more: usize) -> Result<(), Problem> {
        let built = self.built.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        let missing = built.saturating_sub(self.taken.load(Ordering::Relaxed));
        if missing > 0 {
            (self.charge)(missing)?;
            self.taken.store(built, Ordering::Relaxed);
        }
        Ok(())
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
        self.charged(text, form, &|_| Ok(()))
    }

    /// Reads a text only to know what is wrong with it. `charge` takes room for what is built, before it is; the texts that are checked
    /// by this reader share the room of the largest.
    pub fn check(&mut self, text: &str, form: PatchForm, charge: Charge<'_>) -> Result<(), InvalidPatch> {
        let largest = Largest { charge, taken: AtomicUsize::new(self.room), built: AtomicUsize::new(0) };
        let checked = self.charged(text, form, &|more| largest.build(more)).map(drop);
        self.room = largest.taken.into_inner();
        checked
    }

    fn charged(&mut self, text: &str, form: PatchForm, charge: Charge<'_>) -> Result<Value, InvalidPatch> {
        let values = match body::json(text.as_bytes(), body::LEVELS, charge) {
            Ok(value) => Ok(vec![value]),
            Err(problem) if problem.kind == ProblemKind::Busy => Err(problem),
            Err(_) => body::yaml(text, &Limits { charge, ..self.left }),
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
            (Value::Object(_) | Value::Array(_), _) if gives_owners(&value) => Err(InvalidPatch::Owners),
            (Value::Object(_), PatchForm::Object) => Ok(value),
            (Value::Array(_), PatchForm::Operations) => {
                // Operations have values of their own.
                charge(body::extent(&value).built).map_err(|_| InvalidPatch::Busy)?;
                match Operations::of(&value) {
                    Ok(_) => Ok(value),
                    Err(problem) => {
                        let first = problem.faults.first();
                        let first = first.map(|fault| format!(", at {} {}", fault.pointer, fault.found));
                        Err(InvalidPatch::Operations(first.unwrap_or_default()))
                    }
                }
            }
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

    fn busy() -> Problem {
        Problem::new(ProblemKind::Busy, "no room")
    }

    #[test]
    fn a_text_that_can_not_be_read_now_is_not_wrong() {
        let mut reader = PatchReader::default();
        for text in ["{\"a\": 1}", "a: 1"] {
            assert_eq!(reader.check(text, PatchForm::Object, &|_| Err(busy())), Err(InvalidPatch::Busy));
        }
        assert_eq!(reader.left.bytes, Limits::document().bytes, "it takes nothing from the others");
    }

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

    #[test]
    fn texts_that_are_checked_have_the_room_of_the_largest() {
        let taken = AtomicUsize::new(0);
        let charge = |more| {
            taken.fetch_add(more, Ordering::Relaxed);
            Ok(())
        };
        let maps = |count: usize| format!("x: [{}]", vec!["{a: 1}"; count].join(", "));
        let built = |count| {
            let values = body::yaml(&maps(count), &Limits::document()).expect("YAML");
            body::extent(&values[0]).built
        };
        let mut reader = PatchReader::default();
        for count in [300, 20, 300, 10] {
            assert_eq!(reader.check(&maps(count), PatchForm::Object, &charge), Ok(()));
            let room = taken.load(Ordering::Relaxed);
            assert!((built(300)..built(300) + (64 << 10)).contains(&room), "{room}");
        }
        assert_eq!(reader.check(&maps(900), PatchForm::Object, &charge), Ok(()));
        let room = taken.load(Ordering::Relaxed);
        assert!((built(900)..built(900) + (64 << 10)).contains(&room), "{room}");
    }

    #[test]
    fn operations_have_room_for_their_own_values() {
        let taken = AtomicUsize::new(0);
        let charge = |more| {
            let taken = taken.fetch_add(more, Ordering::Relaxed) + more;
            if taken > 128 << 10 { Err(busy()) } else { Ok(()) }
        };
        let add = serde_json::json!([{"op": "add", "path": "/a", "value": vec![serde_json::json!({"a": 1}); 130]}]);
        let mut reader = PatchReader::default();
        let built = body::extent(&add).built;
        assert!((64 << 10..128 << 10).contains(&built) && 2 * built > 128 << 10, "{built}");
        let text = add.to_string();
        assert_eq!(reader.check(&text, PatchForm::Operations, &charge), Err(InvalidPatch::Busy));
        assert_eq!(reader.check(&text, PatchForm::Operations, &|_| Ok(())), Ok(()));
    }
}

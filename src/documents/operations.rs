//! JSON patches (RFC 6902) with the limits of documents.
//!
//! The crate `json-patch` carries out the operations. It has no limits, so each operation is measured before; and it can panic
//! where it undoes a patch that failed, so nothing is undone: the document of a patch that failed is thrown away.

use std::fmt;

use json_patch::jsonptr::index::Index;
use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{
    AddOperation, CopyOperation, MoveOperation, PatchErrorKind, PatchOperation, RemoveOperation, ReplaceOperation,
    TestOperation,
};
use serde_json::Value;

use super::body::{
    self, Extent, LARGEST, LARGEST_BUILT, LEVELS, extent, length_of_text, same, too_deep, too_large, too_many_parts,
};
use super::problem::{Fault, Problem, ProblemKind};
use crate::config::text::kind_of;

/// Most operations of a patch.
const MOST: usize = 1_000;
/// How much a patch may move, copy and shift in all: bytes and elements. Without it a thousand copies of 2 MiB, each over the last,
/// would take half a minute.
const WORK: usize = 16 * LARGEST;

/// The operations of a JSON patch, on parts of the document only. Values may be secret: `Debug` shows the paths alone.
#[derive(Clone, PartialEq)]
pub struct Operations(Vec<PatchOperation>);

impl Operations {
    /// How many copy something: each can double the document.
    pub fn copies(&self) -> usize {
        self.0.iter().filter(|operation| matches!(operation, PatchOperation::Copy(_))).count()
    }

    /// Reads a patch: a list of operations.
    pub fn from_json(text: &[u8]) -> Result<Self, Problem> {
        Self::of(&body::json(text, LEVELS + 2)?)
    }

    /// Takes a JSON value as a patch. The faults point into the patch.
    pub(super) fn of(patch: &Value) -> Result<Self, Problem> {
        let Value::Array(elements) = patch else {
            let fault = Fault::new("", kind_of(patch)).allowed("a list of operations");
            return Err(Problem::invalid(vec![fault]));
        };
        if elements.len() > MOST {
            let fault = Fault::new("", format!("{} operations", elements.len())).allowed(format!("at most {MOST}"));
            return Err(Problem::invalid(vec![fault]));
        }
        let mut faults = Vec::new();
        let operations = elements.iter().enumerate();
        let operations = operations.filter_map(|(index, element)| operation(index, element, &mut faults)).collect();
        if faults.is_empty() { Ok(Self(operations)) } else { Err(Problem::invalid(faults)) }
    }

    /// The same patch where the second of these names in every path is replaced.
    pub(super) fn renamed(mut self, [parent, old]: [&str; 2], new: &str) -> Self {
        let rename = |pointer: &mut PointerBuf| {
            let mut names = pointer.tokens();
            if names.next().is_some_and(|name| name.decoded() == parent)
                && names.next().is_some_and(|name| name.decoded() == old)
            {
                // It has a second name.
                let _ = pointer.replace(1, new);
            }
        };
        for operation in &mut self.0 {
            match operation {
                PatchOperation::Add(AddOperation { path, .. })
                | PatchOperation::Remove(RemoveOperation { path })
                | PatchOperation::Replace(ReplaceOperation { path, .. })
                | PatchOperation::Test(TestOperation { path, .. }) => rename(path),
                PatchOperation::Move(MoveOperation { from, path })
                | PatchOperation::Copy(CopyOperation { from, path }) => {
                    rename(from);
                    rename(path);
                }
            }
        }
        self
    }

    /// Whether it may change this field of this object, both on the way to it and below it.
    pub(super) fn may_change(&self, [parent, field]: [&str; 2]) -> bool {
        self.0.iter().any(|operation| {
            let mut names = operation.path().tokens();
            let is_removal = matches!(operation, PatchOperation::Remove(_) | PatchOperation::Test(_));
            !is_removal
                && names.next().is_none_or(|name| name.decoded() == parent)
                && names.next().is_none_or(|name| name.decoded() == field)
        })
    }

    /// Applies the patch. `intercept` may carry out an operation itself, and then returns true. The faults point into the patch.
    /// The document of a patch that failed is changed in part.
    pub(super) fn apply(
        &self,
        document: &mut Value,
        mut intercept: impl FnMut(&PatchOperation, &str) -> Result<bool, Problem>,
    ) -> Result<(), Problem> {
        let Extent { bytes, built, .. } = extent(document);
        let mut size = Size { bytes, built, work: 0 };
        for (index, operation) in self.0.iter().enumerate() {
            let place = format!("/{index}");
            if !intercept(operation, &place)? {
                size.add(document, operation, &place)?;
                apply(document, operation, &place)?;
            }
        }
        Ok(())
    }
}

fn operation(index: usize, element: &Value, faults: &mut Vec<Fault>) -> Option<PatchOperation> {
    let place = format!("/{index}");
    let Value::Object(fields) = element else {
        faults.push(Fault::new(place, kind_of(element)).allowed("an operation: an object"));
        return None;
    };
    let mut pointer = |field: &str| match fields.get(field).map(|value| value.as_str().map(pointer_to_a_part)) {
        Some(Some(Some(pointer))) => Some(pointer),
        other => {
            let found = match other {
                None => "missing",
                Some(None) => "not a string",
                Some(Some(_)) => "no pointer to a part of the document",
            };
            let fault = Fault::new(format!("{place}/{field}"), found);
            faults.push(fault.allowed("a JSON pointer such as \"/labels/env\""));
            None
        }
    };
    let name = fields.get("op").and_then(Value::as_str).unwrap_or_default();
    let path = pointer("path");
    let from = if matches!(name, "move" | "copy") { pointer("from") } else { None };
    let value = fields.get("value").cloned();
    if value.is_none() && matches!(name, "add" | "replace" | "test") {
        faults.push(Fault::new(format!("{place}/value"), "missing").allowed("a value"));
    }
    match name {
        "add" => Some(PatchOperation::Add(AddOperation { path: path?, value: value? })),
        "remove" => Some(PatchOperation::Remove(RemoveOperation { path: path? })),
        "replace" => Some(PatchOperation::Replace(ReplaceOperation { path: path?, value: value? })),
        "move" => Some(PatchOperation::Move(MoveOperation { from: from?, path: path? })),
        "copy" => Some(PatchOperation::Copy(CopyOperation { from: from?, path: path? })),
        "test" => Some(PatchOperation::Test(TestOperation { path: path?, value: value? })),
        _ => {
            let found = fields.get("op").map_or("missing", |_| "an unknown operation");
            let fault = Fault::new(format!("{place}/op"), found);
            faults.push(fault.allowed("add, remove, replace, move, copy or test"));
            None
        }
    }
}

/// A JSON pointer that is not the one to the whole document.
fn pointer_to_a_part(text: &str) -> Option<PointerBuf> {
    PointerBuf::parse(text).ok().filter(|pointer| !pointer.is_root())
}

impl fmt::Debug for Operations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let described = self.0.iter().map(|operation| match operation {
            PatchOperation::Add(AddOperation { path, .. }) => format!("add {path}"),
            PatchOperation::Remove(RemoveOperation { path }) => format!("remove {path}"),
            PatchOperation::Replace(ReplaceOperation { path, .. }) => format!("replace {path}"),
            PatchOperation::Move(MoveOperation { from, path }) => format!("move {from} {path}"),
            PatchOperation::Copy(CopyOperation { from, path }) => format!("copy {from} {path}"),
            PatchOperation::Test(TestOperation { path, .. }) => format!("test {path}"),
        });
        formatter.debug_list().entries(described).finish()
    }
}

fn apply(document: &mut Value, operation: &PatchOperation, place: &str) -> Result<(), Problem> {
    if let PatchOperation::Test(TestOperation { path, value }) = operation {
        // The crate takes 1 and 1.0 for different numbers.
        if document.pointer(path.as_str()).is_some_and(|present| same(present, value)) {
            return Ok(());
        }
        let title = format!("the test at {path} failed (operation {place} of the patch)");
        return Err(Problem::new(ProblemKind::TestFailed, title));
    }
    json_patch::patch_unsafe(document, std::slice::from_ref(operation)).map_err(|error| {
        let (field, pointer) = match (&error.kind, operation) {
            (
                PatchErrorKind::InvalidFromPointer,
                PatchOperation::Move(MoveOperation { from, .. }) | PatchOperation::Copy(CopyOperation { from, .. }),
            ) => ("from", from.as_str()),
            _ => ("path", operation.path().as_str()),
        };
        let found = match error.kind {
            PatchErrorKind::CannotMoveInsideItself => format!("{pointer}, which is inside of the value that is moved"),
            _ => format!("{pointer}, which is no place of the document"),
        };
        let fault = Fault::new(format!("{place}/{field}"), found).allowed("a place of the document");
        Problem::invalid(vec![fault])
    })
}

/// The most that a document can have become by a patch so far.
struct Size {
    /// Its length as PostgreSQL prints it.
    bytes: usize,
    /// Bytes that its values take in memory, about. The nodes around them are left out: a patch has at most [`MOST`] operations.
    built: usize,
    work: usize,
}

impl Size {
    /// Adds what an operation will make of the document, before it is carried out: thirty doublings of a small value are gigabytes.
    /// An operation on a place that the document does not have fails by itself.
    fn add(&mut self, document: &Value, operation: &PatchOperation, place: &str) -> Result<(), Problem> {
        let at = |pointer: &Pointer| document.pointer(pointer.as_str()).map(extent).unwrap_or_default();
        let path = operation.path();
        let (new, gone) = match operation {
            PatchOperation::Add(AddOperation { value, .. }) => (extent(value), Extent::default()),
            PatchOperation::Replace(ReplaceOperation { value, .. }) => (extent(value), at(path)),
            PatchOperation::Remove(_) => (Extent::default(), at(path)),
            PatchOperation::Copy(CopyOperation { from, .. }) => (at(from), Extent::default()),
            PatchOperation::Move(MoveOperation { from, .. }) => {
                let moved = at(from);
                (moved, moved)
            }
            PatchOperation::Test(_) => return Ok(()),
        };
        // So that nothing is ever built that is too deep to be measured, compared or dropped by recursion.
        if path.count() + new.levels > LEVELS {
            return Err(too_deep(format!("{place}/path")));
        }
        // Once a value is moved away, another one may be at its new place. Then nothing is taken off for that place.
        let (shifted_away, is_unsure) = match operation {
            PatchOperation::Move(MoveOperation { from, .. }) => {
                let shifted = shifted(document, from);
                (shifted, shifted > 0 || from.starts_with(path))
            }
            _ => (0, false),
        };
        self.work += shifted_away;
        if matches!(operation, PatchOperation::Move(_) | PatchOperation::Copy(_)) {
            self.work += new.bytes;
        }
        if !matches!(operation, PatchOperation::Replace(_)) {
            self.work += shifted(document, path);
        }
        if self.work > WORK {
            let title = "the patch copies and moves too much; send the result as a merge patch instead";
            return Err(Problem::new(ProblemKind::TooLarge, title));
        }
        let (replaced, around) = match (operation, path.split_back()) {
            (PatchOperation::Replace(_) | PatchOperation::Remove(_), _) | (_, None) => (Extent::default(), 0),
            (_, Some((parent, last))) => {
                match document.pointer(parent.as_str()).and_then(|parent| parent.get(&*last.decoded())) {
                    Some(present) if !is_unsure => (extent(present), 0),
                    _ => (Extent::default(), length_of_text(&last.decoded()) + 4),
                }
            }
        };
        self.bytes = (self.bytes + new.bytes + around).saturating_sub(gone.bytes + replaced.bytes);
        self.built = (self.built + new.built).saturating_sub(gone.built + replaced.built);
        if self.bytes > LARGEST {
            Err(too_large())
        } else if self.built > LARGEST_BUILT {
            Err(too_many_parts())
        } else {
            Ok(())
        }
    }
}

/// How many elements of a list are shifted where one comes or goes.
fn shifted(document: &Value, pointer: &Pointer) -> usize {
    let Some((parent, last)) = pointer.split_back() else { return 0 };
    match (document.pointer(parent.as_str()), last.to_index()) {
        (Some(Value::Array(elements)), Ok(Index::Num(index))) => elements.len().saturating_sub(index),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;

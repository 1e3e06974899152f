//! JSON patches (RFC 6902) with the limits of documents.
//!
//! The crate `json-patch` is the model in tests. It can't be used here: it has no limits, and 5.0 panics on some patches that fail.

use std::fmt;

use serde_json::{Map, Value};

use super::body::{
    self, Extent, LARGEST, LARGEST_BUILT, LEVELS, extent, kind_of, length_of_text, same, too_deep, too_large,
    too_many_parts,
};
use super::problem::{Fault, Problem, ProblemKind};

/// Most operations of a patch.
const MOST: usize = 1_000;
/// How much a patch may move, copy and shift in all: bytes and elements. Without it a thousand copies of 2 MiB, each over the last,
/// would take half a minute.
const WORK: usize = 16 * LARGEST;

/// The operations of a JSON patch. Values may be secret: `Debug` shows the paths alone.
#[derive(Clone, PartialEq)]
pub struct Operations(Vec<Operation>);

#[derive(Clone, PartialEq)]
pub(super) enum Operation {
    Add { at: Pointer, value: Value },
    Remove { at: Pointer },
    Replace { at: Pointer, value: Value },
    Move { from: Pointer, at: Pointer },
    Copy { from: Pointer, at: Pointer },
    Test { at: Pointer, value: Value },
}

/// A JSON pointer (RFC 6901) below the whole document: it has at least one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer(Vec<String>);

/// A place that does not fit the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misfit {
    Missing,
    /// What is there has no parts, or the index is none of a list.
    NoSuchPart,
}

impl Operations {
    /// How many copy something: each can double the document.
    pub fn copies(&self) -> usize {
        self.0.iter().filter(|operation| matches!(operation, Operation::Copy { .. })).count()
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
        let rename = |pointer: &mut Pointer| {
            if let [first, second, ..] = pointer.0.as_mut_slice()
                && first == parent
                && second == old
            {
                new.clone_into(second);
            }
        };
        for operation in &mut self.0 {
            match operation {
                Operation::Add { at, .. }
                | Operation::Remove { at }
                | Operation::Replace { at, .. }
                | Operation::Test { at, .. } => rename(at),
                Operation::Move { from, at } | Operation::Copy { from, at } => {
                    rename(from);
                    rename(at);
                }
            }
        }
        self
    }

    /// Whether it may change this field of this object, both on the way to it and below it.
    pub(super) fn may_change(&self, [parent, field]: [&str; 2]) -> bool {
        self.0.iter().any(|operation| match operation {
            Operation::Add { at, .. }
            | Operation::Replace { at, .. }
            | Operation::Move { at, .. }
            | Operation::Copy { at, .. } => match at.names() {
                [first] => first == parent,
                [first, second, ..] => first == parent && second == field,
                [] => true,
            },
            Operation::Remove { .. } | Operation::Test { .. } => false,
        })
    }

    /// Applies the patch. `intercept` may carry out an operation itself, and then returns true. The faults point into the patch.
    pub(super) fn apply(
        self,
        document: &mut Value,
        mut intercept: impl FnMut(&Operation, &str) -> Result<bool, Problem>,
    ) -> Result<(), Problem> {
        let Extent { bytes, built, .. } = extent(document);
        let mut patched = Patched { document, bytes, built, work: 0 };
        for (index, operation) in self.0.into_iter().enumerate() {
            let place = format!("/{index}");
            if !intercept(&operation, &place)? {
                patched.apply(operation, &place)?;
            }
        }
        Ok(())
    }
}

fn operation(index: usize, element: &Value, faults: &mut Vec<Fault>) -> Option<Operation> {
    let place = format!("/{index}");
    let Value::Object(fields) = element else {
        faults.push(Fault::new(place, kind_of(element)).allowed("an operation: an object"));
        return None;
    };
    let mut pointer = |field: &str| match fields.get(field).map(|value| value.as_str().map(Pointer::parse)) {
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
    let at = pointer("path");
    let from = if matches!(name, "move" | "copy") { pointer("from") } else { None };
    let value = fields.get("value").cloned();
    if value.is_none() && matches!(name, "add" | "replace" | "test") {
        faults.push(Fault::new(format!("{place}/value"), "missing").allowed("a value"));
    }
    match name {
        "add" => Some(Operation::Add { at: at?, value: value? }),
        "remove" => Some(Operation::Remove { at: at? }),
        "replace" => Some(Operation::Replace { at: at?, value: value? }),
        "move" => Some(Operation::Move { from: from?, at: at? }),
        "copy" => Some(Operation::Copy { from: from?, at: at? }),
        "test" => Some(Operation::Test { at: at?, value: value? }),
        _ => {
            let found = fields.get("op").map_or("missing", |_| "an unknown operation");
            let fault = Fault::new(format!("{place}/op"), found);
            faults.push(fault.allowed("add, remove, replace, move, copy or test"));
            None
        }
    }
}

impl Pointer {
    /// None for the whole document, and for what is no pointer.
    fn parse(text: &str) -> Option<Self> {
        let names = text.strip_prefix('/')?.split('/').map(|name| {
            let is_escape = |part: &str| part.starts_with(['0', '1']);
            let is_valid = name.split('~').skip(1).all(is_escape);
            is_valid.then(|| name.replace("~1", "/").replace("~0", "~"))
        });
        names.collect::<Option<Vec<_>>>().map(Self)
    }

    /// Its names, at least one.
    pub(super) fn names(&self) -> &[String] {
        &self.0
    }

    fn split(&self) -> (&[String], &str) {
        self.0.split_last().map_or((&[], ""), |(last, parents)| (parents, last.as_str()))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &String| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        formatter.write_str(&self.0.iter().map(name).collect::<String>())
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let described = self.0.iter().map(|operation| match operation {
            Operation::Add { at, .. } => format!("add {at}"),
            Operation::Remove { at } => format!("remove {at}"),
            Operation::Replace { at, .. } => format!("replace {at}"),
            Operation::Move { from, at } => format!("move {from} {at}"),
            Operation::Copy { from, at } => format!("copy {from} {at}"),
            Operation::Test { at, .. } => format!("test {at}"),
        });
        formatter.debug_list().entries(described).finish()
    }
}

/// A document while it is patched.
struct Patched<'d> {
    document: &'d mut Value,
    /// Its length as PostgreSQL prints it.
    bytes: usize,
    /// Bytes that its values take in memory, about.
    built: usize,
    work: usize,
}

impl Patched<'_> {
    fn apply(&mut self, operation: Operation, place: &str) -> Result<(), Problem> {
        let at_path = |at: &Pointer| misfit(place, "path", at);
        match operation {
            Operation::Add { at, value } => {
                let size = extent(&value);
                self.add(&at, value, size, place)
            }
            Operation::Remove { at } => {
                self.remove(&at).map_err(at_path(&at))?;
                self.work(0)
            }
            Operation::Replace { at, value } => {
                let size = extent(&value);
                check_levels(&at, size, place)?;
                let present = get_mut(self.document, at.names()).map_err(at_path(&at))?;
                let old = extent(present);
                *present = value;
                self.rebuild(size.built, old.built)?;
                self.resize(size.bytes, old.bytes)
            }
            Operation::Move { from, at } => {
                if at.names().starts_with(from.names()) {
                    if at == from {
                        return get(self.document, from.names()).map(drop).map_err(misfit(place, "from", &from));
                    }
                    let fault = Fault::new(format!("{place}/path"), "a place inside of the value that is moved");
                    return Err(Problem::invalid(vec![fault.allowed("another place")]));
                }
                let value = self.remove(&from).map_err(misfit(place, "from", &from))?;
                let size = self.measured(&value)?;
                self.add(&at, value, size, place)
            }
            Operation::Copy { from, at } => {
                let value = get(self.document, from.names()).map_err(misfit(place, "from", &from))?;
                let size = extent(value);
                self.work(size.bytes)?;
                // Before the copy is made: thirty doublings of a small value are gigabytes.
                if self.bytes + size.bytes > LARGEST {
                    return Err(too_large());
                }
                if self.built + size.built > LARGEST_BUILT {
                    return Err(too_many_parts());
                }
                let copy = get(self.document, from.names()).map_err(misfit(place, "from", &from))?.clone();
                self.add(&at, copy, size, place)
            }
            Operation::Test { at, value } => {
                let present = get(self.document, at.names());
                if present.is_ok_and(|present| same(present, &value)) {
                    return Ok(());
                }
                let title = format!("the test at {at} failed (operation {place} of the patch)");
                Err(Problem::new(ProblemKind::TestFailed, title))
            }
        }
    }

    fn add(&mut self, at: &Pointer, value: Value, size: Extent, place: &str) -> Result<(), Problem> {
        check_levels(at, size, place)?;
        let (parents, last) = at.split();
        let wrong = misfit(place, "path", at);
        match get_mut(self.document, parents).map_err(&wrong)? {
            Value::Object(fields) => {
                let separator = if fields.is_empty() { 0 } else { 2 };
                let old = fields.insert(last.to_owned(), value).map(|old| extent(&old));
                let new = old.map_or_else(|| length_of_text(last) + 2 + separator, |_| 0);
                let old = old.unwrap_or_default();
                self.rebuild(size.built, old.built)?;
                self.resize(size.bytes + new, old.bytes)
            }
            Value::Array(elements) => {
                let index = if last == "-" { Some(elements.len()) } else { index_of(last) };
                let index = index.filter(|index| *index <= elements.len()).ok_or_else(|| wrong(Misfit::NoSuchPart))?;
                let shifted = elements.len() - index;
                let separator = if elements.is_empty() { 0 } else { 2 };
                elements.insert(index, value);
                self.work(shifted)?;
                self.rebuild(size.built, 0)?;
                self.resize(size.bytes + separator, 0)
            }
            _ => Err(wrong(Misfit::NoSuchPart)),
        }
    }

    fn remove(&mut self, at: &Pointer) -> Result<Value, Misfit> {
        let (parents, last) = at.split();
        let (removed, key, rest) = match get_mut(self.document, parents)? {
            Value::Object(fields) => {
                let removed = fields.remove(last).ok_or(Misfit::Missing)?;
                (removed, length_of_text(last) + 2, fields.len())
            }
            Value::Array(elements) => {
                let index = index_of(last).filter(|index| *index < elements.len()).ok_or(Misfit::Missing)?;
                self.work += elements.len() - index;
                (elements.remove(index), 0, elements.len())
            }
            _ => return Err(Misfit::NoSuchPart),
        };
        let separator = if rest == 0 { 0 } else { 2 };
        let size = extent(&removed);
        self.bytes = self.bytes.saturating_sub(size.bytes + key + separator);
        self.built = self.built.saturating_sub(size.built);
        Ok(removed)
    }

    fn measured(&mut self, value: &Value) -> Result<Extent, Problem> {
        let size = extent(value);
        self.work(size.bytes).map(|()| size)
    }

    /// Counts bytes that are copied and elements that are shifted, up to a limit.
    fn work(&mut self, more: usize) -> Result<(), Problem> {
        self.work += more;
        if self.work <= WORK {
            return Ok(());
        }
        let title = "the patch copies and moves too much; send the result as a merge patch instead";
        Err(Problem::new(ProblemKind::TooLarge, title))
    }

    /// Counts the values in memory. The nodes around them are left out: a patch has at most [`MOST`] operations.
    fn rebuild(&mut self, more: usize, less: usize) -> Result<(), Problem> {
        self.built = (self.built + more).saturating_sub(less);
        if self.built > LARGEST_BUILT { Err(too_many_parts()) } else { Ok(()) }
    }

    fn resize(&mut self, more: usize, less: usize) -> Result<(), Problem> {
        self.bytes = (self.bytes + more).saturating_sub(less);
        if self.bytes > LARGEST { Err(too_large()) } else { Ok(()) }
    }
}

/// So that nothing is ever built that is too deep to be measured, compared or dropped by recursion.
fn check_levels(at: &Pointer, value: Extent, place: &str) -> Result<(), Problem> {
    if at.names().len() + value.levels > LEVELS { Err(too_deep(format!("{place}/path"))) } else { Ok(()) }
}

/// A problem for a place that does not fit the document.
fn misfit(place: &str, field: &str, at: &Pointer) -> impl Fn(Misfit) -> Problem + use<> {
    let (place, at) = (format!("{place}/{field}"), at.to_string());
    move |misfit| {
        let found = match misfit {
            Misfit::Missing => format!("{at}, where the document has nothing"),
            Misfit::NoSuchPart => format!("{at}, which can't be a place of the document"),
        };
        Problem::invalid(vec![Fault::new(place.clone(), found).allowed("a place of the document")])
    }
}

fn get<'d>(mut value: &'d Value, names: &[String]) -> Result<&'d Value, Misfit> {
    for name in names {
        value = match value {
            Value::Object(fields) => fields.get(name).ok_or(Misfit::Missing)?,
            Value::Array(elements) => index_of(name).and_then(|index| elements.get(index)).ok_or(Misfit::Missing)?,
            _ => return Err(Misfit::NoSuchPart),
        };
    }
    Ok(value)
}

fn get_mut<'d>(mut value: &'d mut Value, names: &[String]) -> Result<&'d mut Value, Misfit> {
    for name in names {
        value = match value {
            Value::Object(fields) => fields.get_mut(name).ok_or(Misfit::Missing)?,
            Value::Array(elements) => {
                index_of(name).and_then(|index| elements.get_mut(index)).ok_or(Misfit::Missing)?
            }
            _ => return Err(Misfit::NoSuchPart),
        };
    }
    Ok(value)
}

/// An index in its one form: without sign and leading zeros.
fn index_of(name: &str) -> Option<usize> {
    let index: usize = name.parse().ok()?;
    (index.to_string() == name).then_some(index)
}

/// Applies a merge patch (RFC 7396): null removes, objects are merged, and all else replaces. An object that is new loses its nulls.
pub(super) fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(&key)),
            Value::Object(fields) => {
                let entry = target.entry(key).or_insert(Value::Null);
                if !entry.is_object() {
                    *entry = Value::Object(Map::new());
                }
                if let Value::Object(present) = entry {
                    merge(present, fields);
                }
            }
            other => drop(target.insert(key, other)),
        }
    }
}

#[cfg(test)]
mod tests;

//! The patches that syncsets send to clusters.

use serde_json::{Value, json};

use super::faults::Faults;
use super::fields::{object, required, word};
use super::objects;
use crate::documents::body::{self, Limits, Path, kind_of};
use crate::documents::operations::Operations;

const KNOWN: [&str; 6] = ["apiVersion", "kind", "name", "namespace", "patchType", "patch"];
const TYPES: [&str; 3] = ["strategic", "merge", "json"];

/// Checks patches, and fills in their types.
pub(super) fn patches(patches: &[Value], parent: &Path<'_>, are_templates: bool, faults: &mut Faults) -> Value {
    let patches_path = parent.field("patches");
    let mut checked = Vec::with_capacity(patches.len());
    // For all together: aliases may make much of a short text.
    let mut left = Limits::document();
    for (index, patch) in patches.iter().enumerate() {
        let path = patches_path.element(index);
        let Some(fields) = object(patch, &path, faults) else {
            continue;
        };
        faults.unknown_fields(fields, &path, &KNOWN);
        objects::group_and_kind(fields, &path, faults);
        objects::name(fields, &path, false, faults);
        objects::namespace(fields, &path, false, faults);
        let patch_type = word(fields, "patchType", &TYPES, &path, faults);
        let text = required(fields, "patch", &path, faults);
        if let (Some(patch_type), Some(text)) = (patch_type, text) {
            // A template is a patch only after it was rendered.
            if are_templates && text.contains("{{") {
                objects::template(text, &path.field("patch"), faults);
            } else {
                content(text, patch_type, &path.field("patch"), &mut left, faults);
            }
        }
        let mut filled = fields.clone();
        filled.insert("patchType".to_owned(), json!(patch_type));
        checked.push(Value::Object(filled));
    }
    Value::Array(checked)
}

/// Checks the text of a patch: JSON or YAML, of the form that its type has.
fn content(text: &str, patch_type: &str, path: &Path<'_>, left: &mut Limits<'_>, faults: &mut Faults) {
    let (allowed, is_list) = match patch_type {
        "json" => ("a list of operations as JSON or YAML", true),
        _ => ("an object as JSON or YAML", false),
    };
    let values = match body::json(text.as_bytes(), body::LEVELS, left.charge) {
        Ok(value) => Ok(vec![value]),
        Err(_) => body::yaml(text, left),
    };
    let size = match &values {
        Ok(values) => values.iter().map(|value| body::extent(value).bytes).sum(),
        // It has been read up to the limit, perhaps.
        Err(_) => left.bytes,
    };
    left.bytes = left.bytes.saturating_sub(size);
    let value = match values.map(|mut values| (values.pop(), values.is_empty())) {
        Ok((Some(value), true)) => value,
        Ok((None, _)) => return faults.add(path, "nothing", allowed),
        Ok(_) => return faults.add(path, "several documents", allowed),
        Err(problem) => return faults.add(path, format!("a text that is no patch: {}", problem.title), allowed),
    };
    match (&value, is_list) {
        (Value::Object(_), false) => {}
        (Value::Array(_), true) => {
            if let Err(problem) = Operations::of(&value) {
                let first = problem
                    .faults
                    .first()
                    .map_or_else(String::new, |fault| format!(", at {} {}", fault.pointer, fault.found));
                faults.add(path, format!("a list that is no JSON patch{first}"), allowed);
            }
        }
        _ => faults.add(path, format!("{} as the patch", kind_of(&value)), allowed),
    }
}

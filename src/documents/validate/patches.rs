//! The patches that syncsets send to clusters.

use serde_json::{Value, json};

use super::faults::Faults;
use super::fields::{object, required, word};
use super::objects;
use crate::documents::body::Path;
use crate::documents::patch_text::{PatchForm, PatchReader};

const KNOWN: [&str; 7] = ["apiVersion", "kind", "name", "namespace", "patchType", "patch", APPLY_MODE];
/// A field of Hive's patches. Of its two values one says what always happens here.
const APPLY_MODE: &str = "applyMode";
const TYPES: [&str; 3] = ["strategic", "merge", "json"];

/// Checks patches, and fills in their types.
pub(super) fn patches(patches: &[Value], parent: &Path<'_>, are_templates: bool, faults: &mut Faults) -> Value {
    let patches_path = parent.field("patches");
    let mut checked = Vec::with_capacity(patches.len());
    // For all together: aliases may make much of a short text.
    let mut reader = PatchReader::default();
    for (index, patch) in patches.iter().enumerate() {
        let path = patches_path.element(index);
        let Some(fields) = object(patch, &path, faults) else {
            continue;
        };
        faults.unknown_fields(fields, &path, &KNOWN);
        let is_of_secret = objects::group_and_kind(fields, &path, faults) == Some(objects::SECRET);
        objects::name(fields, &path, false, faults);
        objects::namespace(fields, &path, false, faults);
        if fields.get(APPLY_MODE).is_some_and(|mode| mode == "ApplyOnce") {
            let allowed = "AlwaysApply: a patch is sent again when it, its syncset or its target has changed";
            faults.add(&path.field(APPLY_MODE), "ApplyOnce, which is not supported", allowed);
        } else {
            word(fields, APPLY_MODE, &["AlwaysApply"], &path, faults);
        }
        let patch_type = word(fields, "patchType", &TYPES, &path, faults);
        let text = required(fields, "patch", &path, faults);
        if let (Some(patch_type), Some(text)) = (patch_type, text) {
            // A template is a patch only after it was rendered.
            let path = path.field("patch");
            if are_templates && text.contains("{{") {
                objects::template(text, &path, faults);
                if is_of_secret {
                    faults.add(
                        &path,
                        "a template in a patch of a Secret",
                        "a patch without {{ }}, so that it can be checked for values",
                    );
                }
            } else {
                let form = if patch_type == "json" { PatchForm::Operations } else { PatchForm::Object };
                match reader.read(text, form) {
                    Err(error) => faults.add(&path, error.to_string(), error.allowed(form)),
                    Ok(content) if is_of_secret && objects::patches_values(&content) => {
                        faults.add(&path, "values of a Secret", objects::NO_VALUES);
                    }
                    Ok(_) => {}
                }
            }
        }
        let mut filled = fields.clone();
        filled.insert("patchType".to_owned(), json!(patch_type));
        filled.remove(APPLY_MODE);
        checked.push(Value::Object(filled));
    }
    Value::Array(checked)
}

//! Fields of a resource that are set when it is created and then left alone: the annotation `towline.dev/ignore-fields`.

use std::fmt;

use serde_json::{Map, Value};

use super::faults::Faults;
use crate::config::text::quoted;
use crate::documents::body::Path;
use crate::yaml::{escape, unescape};

/// The annotation of a resource whose value names such fields.
pub const IGNORE_FIELDS: &str = "towline.dev/ignore-fields";
/// What its value has to be.
pub const FIELD_POINTERS: &str = "JSON pointers to fields, separated by commas, with * for each element of a list or a map, such as \
     \"/spec/replicas,/webhooks/*/clientConfig/caBundle\"";
/// Most fields that one annotation names.
const MOST: usize = 64;

/// A JSON pointer (RFC 6901) in which `*` stands for all elements of a list or a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPointer(Vec<String>);

impl FieldPointer {
    /// Of these segments, not escaped.
    pub fn new(segments: Vec<String>) -> Self {
        Self(segments)
    }

    /// Its segments, not escaped.
    pub fn segments(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for FieldPointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|segment| write!(formatter, "/{}", escape(segment)))
    }
}

/// Reads the value of the annotation. An error says what is wrong with it.
pub fn field_pointers(text: &str) -> Result<Vec<FieldPointer>, String> {
    let pointers: Vec<FieldPointer> = text.split(',').map(|part| pointer(part.trim())).collect::<Result<_, _>>()?;
    if pointers.len() > MOST { Err(format!("{} fields, of at most {MOST}", pointers.len())) } else { Ok(pointers) }
}

fn pointer(text: &str) -> Result<FieldPointer, String> {
    let Some(below) = text.strip_prefix('/') else {
        return Err(format!("{}, which does not begin with /", quoted(text)));
    };
    let segments: Option<Vec<String>> = below.split('/').map(unescape).collect();
    let Some(segments) = segments.filter(|segments| segments.iter().all(|segment| !segment.is_empty())) else {
        return Err(format!("{}, which is no JSON pointer to a field", quoted(text)));
    };
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    // By these an object is known, to the cluster and to us.
    let is_identity = match names.as_slice() {
        ["metadata", "labels", label, ..] => matches!(*label, "*" | "hive.openshift.io/managed"),
        ["metadata", "annotations", annotation, ..] => *annotation == "*" || annotation.starts_with("towline.dev/"),
        ["apiVersion" | "kind" | "metadata" | "*", ..] => true,
        _ => false,
    };
    if is_identity {
        return Err(format!("{}, by which the object is known", quoted(text)));
    }
    Ok(FieldPointer(segments))
}

/// Checks the annotation of a resource, if it has one. What a template makes of it is checked when it is rendered.
pub(super) fn check(metadata: &Map<String, Value>, parent: &Path<'_>, is_template: bool, faults: &mut Faults) {
    let annotations = parent.field("annotations");
    let Some(value) = metadata.get("annotations").and_then(|annotations| annotations.get(IGNORE_FIELDS)) else {
        return;
    };
    let Some(text) = value.as_str() else { return };
    if is_template && text.contains("{{") {
        return;
    }
    if let Err(error) = field_pointers(text) {
        faults.add(&annotations.field(IGNORE_FIELDS), error, FIELD_POINTERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read_and_written_alike() {
        let text = "/spec/replicas,/webhooks/*/clientConfig/caBundle,/metadata/annotations/a.b~1c~0d";
        let pointers = field_pointers(&text.replace(',', " ,  ")).expect("pointers");
        assert_eq!(pointers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), text);
        assert_eq!(pointers[2].segments(), ["metadata", "annotations", "a.b/c~d"]);
    }

    #[test]
    fn what_is_no_pointer_to_a_field_is_refused() {
        for wrong in
            ["", "spec", "/", "/spec/", "//a", "/spec/~2", "/spec/a~", "/spec,", "/spec,,/data", ".spec.replicas"]
        {
            let error = field_pointers(wrong).expect_err(wrong);
            assert!(error.contains("JSON pointer") || error.contains("begin with /"), "{wrong}: {error}");
        }
        for identity in [
            "/kind",
            "/*",
            "/metadata",
            "/metadata/name",
            "/metadata/labels",
            "/metadata/labels/*",
            "/metadata/labels/hive.openshift.io~1managed",
            "/metadata/annotations/towline.dev~1syncset-id",
        ] {
            assert!(field_pointers(identity).expect_err(identity).contains("known"), "{identity}");
        }
        let many = vec!["/spec/a"; MOST + 1].join(",");
        assert_eq!(field_pointers(&many), Err("65 fields, of at most 64".to_owned()));
    }
}

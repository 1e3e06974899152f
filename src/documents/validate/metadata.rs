//! Labels, annotations and finalizers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::faults::Faults;
use super::fields::object;
use crate::cluster::tool_marks::LAST_APPLIED;
use crate::config::names::{is_label_key, is_qualified_name};
use crate::config::text::{described, kind_of, quoted};
use crate::documents::body::Path;

/// Most labels of a document.
const LABELS: usize = 256;
/// Most bytes of all annotations together, keys and values.
const ANNOTATIONS: usize = 256 << 10;
/// Most finalizers of a document.
const FINALIZERS: usize = 64;

/// What keys of labels and annotations, and finalizers, have to be.
const QUALIFIED: &str = "at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit, after an \
                         optional DNS subdomain and /";

/// Whether a text may be the value of a label.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified_name(text)
}

/// What values of labels have to be.
pub(super) const LABEL_VALUE: &str =
    "empty, or at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit";

pub(super) fn labels(value: &Value, faults: &mut Faults) -> BTreeMap<String, String> {
    let path = Path::Root.field("labels");
    let labels = texts(value, &path, is_label_key, faults);
    for (key, value) in &labels {
        if !is_label_value(value) {
            faults.add(&path.field(key), quoted(value), LABEL_VALUE);
        }
    }
    check_totals(&labels, &BTreeMap::new(), faults);
    labels
}

pub(super) fn annotations(value: &Value, faults: &mut Faults) -> BTreeMap<String, String> {
    let path = Path::Root.field("annotations");
    // As in Kubernetes, the domain of an annotation may have capital letters.
    let mut annotations = texts(value, &path, |key| is_label_key(&key.to_lowercase()), faults);
    // A second copy of the document, with its kubeconfig or its values: `kubectl apply` no longer owns it.
    annotations.remove(LAST_APPLIED);
    check_totals(&BTreeMap::new(), &annotations, faults);
    annotations
}

/// Checks how many labels there are, and how long the annotations are in all.
pub(in crate::documents) fn check_totals(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    faults: &mut Faults,
) {
    if labels.len() > LABELS {
        faults.add(&Path::Root.field("labels"), format!("{} labels", labels.len()), format!("at most {LABELS}"));
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATIONS {
        let allowed = format!("at most {ANNOTATIONS} bytes of keys and values");
        faults.add(&Path::Root.field("annotations"), format!("{bytes} bytes"), allowed);
    }
}

pub(super) fn finalizers(value: &Value, faults: &mut Faults) -> Vec<String> {
    let path = Path::Root.field("finalizers");
    let Value::Array(elements) = value else {
        faults.add(&path, kind_of(value), "a list of names");
        return Vec::new();
    };
    if elements.len() > FINALIZERS {
        faults.add(&path, format!("{} finalizers", elements.len()), format!("at most {FINALIZERS}"));
        return Vec::new();
    }
    let mut finalizers: Vec<String> = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        match element {
            Value::String(name) if finalizers.contains(name) => {
                faults.add(&path.element(index), format!("{} again", quoted(name)), "each finalizer once");
            }
            Value::String(name) if is_label_key(name) => finalizers.push(name.clone()),
            other => faults.add(&path.element(index), described(other), QUALIFIED),
        }
    }
    finalizers
}

/// A map of texts with checked keys.
fn texts(value: &Value, path: &Path<'_>, is_key: fn(&str) -> bool, faults: &mut Faults) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for (key, value) in object(value, path, faults).into_iter().flatten() {
        if !is_key(key) {
            faults.add(path, format!("the key {}", quoted(key)), QUALIFIED);
            continue;
        }
        match value {
            Value::String(text) => drop(texts.insert(key.clone(), text.clone())),
            other => faults.add(&path.field(key), described(other), "a string"),
        }
    }
    texts
}

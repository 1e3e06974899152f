//! Own fields of clusters.

use serde_json::{Map, Value, json};

use super::SealedValue;
use super::faults::Faults;
use super::fields::boolean;
use crate::config::text::kind_of;
use crate::documents::body::Path;

/// The fields that are not sealed.
pub(super) fn fields(fields: &Map<String, Value>, faults: &mut Faults) -> Map<String, Value> {
    let paused = boolean(fields, "paused", &Path::Root, faults);
    Map::from_iter([("paused".to_owned(), json!(paused))])
}

/// Any text is accepted: whether it leads to a cluster is found out when it is used.
pub(in crate::documents) fn kubeconfig(
    value: Option<&Value>,
    is_required: bool,
    faults: &mut Faults,
) -> Option<SealedValue> {
    let path = Path::Root.field("kubeconfig");
    match value {
        Some(Value::String(text)) => Some(SealedValue::Kubeconfig(text.as_str().into())),
        Some(other) => {
            faults.add(&path, kind_of(other), "a string");
            None
        }
        None => {
            if is_required {
                faults.add(&path, "missing", "a string");
            }
            None
        }
    }
}

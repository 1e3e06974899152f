//! Fields that an API server does not keep as they were written: pruned fields and normalized values.
//!
//! Fields that it *adds* (defaults) are not among them. The difference matters after a restart, when only the generations on the
//! remote object show that two contents belong together: the server may have added a field, but a missing field may be kept by
//! now, since the definition of the kind may have changed meanwhile.

use serde_json::Value;

use super::patch::without_local_fields;
use crate::cluster::CanonicalJson;
use crate::resource_sync::config::SpecPointer;

/// How many fields of one object are named.
const NAMED: usize = 5;

/// The fields of one object that were not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Unkept {
    /// The first of them, as paths: `spec.rules[0].port`.
    pub named: Vec<String>,
    pub count: usize,
}

impl Unkept {
    fn add(&mut self, path: &str) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(path.to_owned());
        }
    }

    /// The fields in words: `spec.shape, spec.size and 3 more`.
    pub fn list(&self) -> String {
        let named = self.named.join(", ");
        match self.count.saturating_sub(self.named.len()) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }
}

/// The written fields that are missing in the object that the server shows, or have another value there; `None` if it kept
/// everything. Local fields are ignored.
pub(crate) fn of_content(
    written: &CanonicalJson,
    shown: &CanonicalJson,
    local_fields: &[SpecPointer],
) -> Option<Box<Unkept>> {
    if written == shown {
        return None;
    }
    of_value("", &without_local_fields(written, local_fields), &without_local_fields(shown, local_fields))
}

/// The written fields of a status that the server did not keep.
pub(crate) fn of_status(written: Option<&CanonicalJson>, shown: Option<&CanonicalJson>) -> Option<Box<Unkept>> {
    if written == shown {
        return None;
    }
    let written = written?.value();
    of_value("status", &written, &shown.map_or(Value::Null, CanonicalJson::value))
}

fn of_value(path: &str, written: &Value, shown: &Value) -> Option<Box<Unkept>> {
    let mut unkept = Unkept::default();
    compare(path, written, shown, &mut unkept);
    (unkept.count > 0).then(|| Box::new(unkept))
}

fn compare(path: &str, written: &Value, shown: &Value, unkept: &mut Unkept) {
    match (written, shown) {
        (Value::Object(written), Value::Object(shown)) => {
            for (field, value) in written {
                let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                match shown.get(field) {
                    Some(shown) => compare(&path, value, shown, unkept),
                    None => unkept.add(&path),
                }
            }
        }
        (Value::Array(written), Value::Array(shown)) if written.len() == shown.len() => {
            for (index, (value, shown)) in written.iter().zip(shown).enumerate() {
                compare(&format!("{path}[{index}]"), value, shown, unkept);
            }
        }
        _ if written == shown => {}
        _ => unkept.add(path),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn unkept(written: &Value, shown: &Value) -> Vec<String> {
        let [written, shown] = [written, shown].map(CanonicalJson::of);
        of_content(&written, &shown, &[]).map(|unkept| unkept.named).unwrap_or_default()
    }

    #[test]
    fn what_is_added_is_kept_and_what_is_missing_or_changed_is_not() {
        let written = json!({"spec": {"size": 1, "rules": [{"port": 1}, {"port": 2}], "tags": [], "note": null}});
        for (shown, expected) in [
            (
                json!({"spec": {"size": 1, "rules": [{"port": 1, "kind": "x"}, {"port": 2}], "tags": [], "note": null, "colour": "grey"}, "more": 1}),
                vec![],
            ),
            (
                json!({"spec": {"size": 2, "rules": [{"port": 1}, {}], "tags": []}}),
                vec!["spec.note", "spec.rules[1].port", "spec.size"],
            ),
            (
                json!({"spec": {"size": 1, "rules": [{"port": 1}], "tags": null, "note": null}}),
                vec!["spec.rules", "spec.tags"],
            ),
            (json!({}), vec!["spec"]),
        ] {
            assert_eq!(unkept(&written, &shown), expected, "{shown}");
        }
    }

    #[test]
    fn only_the_first_fields_are_named_and_all_are_counted() {
        let written = json!({"spec": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}});
        let found = of_content(&CanonicalJson::of(&written), &CanonicalJson::of(&json!({"spec": {}})), &[]).unwrap();
        assert_eq!((found.count, found.named.len()), (7, NAMED));
        assert_eq!(found.list(), "spec.a, spec.b, spec.c, spec.d, spec.e and 2 more");
    }

    #[test]
    fn a_status_that_is_dropped_whole_is_one_field() {
        let status = CanonicalJson::of(&json!({"phase": "Ready"}));
        assert_eq!(of_status(Some(&status), None).unwrap().list(), "status");
        assert_eq!(of_status(None, Some(&status)), None, "the server's own");
        assert_eq!(of_status(Some(&status), Some(&status)), None);
    }
}

//! Which fields of an object other managers have taken over (`managedFields`). Pure. Values are never shown, also not those that are keys of
//! lists: who may read a cluster may not be allowed to read the syncset.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::cluster::{ManagedFields, shown_manager};
use crate::syncset::plan::seen::is_shown;

/// Fields that a manager has taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The manager, and the subresource through which it has written.
    pub(super) manager: String,
    /// When it last changed something, if the server gives a time.
    pub(super) at: Option<Timestamp>,
    /// The fields: `.data.region`, `.spec.containers[].image`.
    pub(super) fields: Vec<String>,
}

/// Fields that `body` sets, that the manager `ours` no longer owns, and who owns them now.
pub(super) fn taken(body: &Value, managers: &[ManagedFields], ours: &str) -> Vec<Taken> {
    let of = |entry: &ManagedFields| {
        let mut found = BTreeSet::new();
        leaves(&entry.fields_value(), body, String::new(), &mut found);
        found
    };
    let kept: BTreeSet<String> = managers.iter().filter(|entry| entry.manager == ours).flat_map(of).collect();
    let others = managers.iter().filter(|entry| entry.manager != ours && is_shown(entry));
    let taken = others.map(|entry| Taken {
        manager: shown_manager(&entry.manager, &entry.subresource),
        at: entry.time.as_ref().and_then(|time| time.parse().ok()),
        fields: of(entry).into_iter().filter(|field| !kept.contains(field)).collect(),
    });
    taken.filter(|taken| !taken.fields.is_empty()).collect()
}

/// The paths of a set of fields that `body` has, too.
fn leaves(fields: &Value, body: &Value, path: String, found: &mut BTreeSet<String>) {
    let below: Vec<(&String, &Value)> =
        fields.as_object().into_iter().flatten().filter(|(key, _)| *key != ".").collect();
    if below.is_empty() {
        found.insert(path);
        return;
    }
    for (key, inner) in below {
        if let Some(name) = key.strip_prefix("f:") {
            if let Some(value) = body.get(name) {
                leaves(inner, value, format!("{path}.{name}"), found);
            }
        } else if let Some(keys) = key.strip_prefix("k:") {
            let Ok(Value::Object(keys)) = serde_json::from_str(keys) else { continue };
            let has_keys = |element: &&Value| keys.iter().all(|(name, value)| element.get(name) == Some(value));
            if let Some(element) = body.as_array().into_iter().flatten().find(has_keys) {
                leaves(inner, element, format!("{path}[]"), found);
            }
        } else if let Some(value) = key.strip_prefix("v:") {
            let Ok(value) = serde_json::from_str::<Value>(value) else { continue };
            if body.as_array().is_some_and(|elements| elements.contains(&value)) {
                found.insert(format!("{path}[]"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, fields: &Value) -> ManagedFields {
        let entry =
            json!({"manager": manager, "operation": "Update", "time": "2026-11-23T08:00:00Z", "fieldsV1": fields});
        serde_json::from_value(entry).expect("an entry")
    }

    #[test]
    fn fields_are_taken_that_we_set_and_own_no_more() {
        let body = json!({"data": {"region": "west", "zone": "a"},
            "spec": {"containers": [{"name": "a", "image": "x"}], "args": ["one"]}, "metadata": {"labels": {"env": "prod"}}});
        let ours = entry("towline", &json!({"f:data": {"f:zone": {}}, "f:metadata": {"f:labels": {"f:env": {}}}}));
        let edit = entry(
            "kubectl-edit",
            &json!({"f:data": {".": {}, "f:region": {}, "f:zone": {}, "f:theirs": {}},
                "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}, "k:{\"name\":\"b\"}": {"f:image": {}}},
                    "f:args": {"v:\"one\"": {}, "v:\"two\"": {}}}}),
        );
        let found = taken(&body, &[ours.clone(), edit], "towline");
        let fields = [".data.region", ".spec.args[]", ".spec.containers[].image"];
        let [found] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((found.manager.as_str(), found.fields.as_slice()), ("kubectl-edit", &fields.map(str::to_owned)[..]));
        let status = entry("kubelet", &json!({"f:status": {"f:phase": {}}}));
        assert_eq!(taken(&body, &[ours.clone(), status], "towline"), []);
        let mut scaled = entry("hpa", &json!({"f:data": {"f:region": {}}}));
        scaled.subresource = "scale".to_owned();
        let found = taken(&body, &[ours, scaled], "towline");
        assert_eq!(found.iter().map(|taken| taken.manager.as_str()).collect::<Vec<_>>(), ["hpa by /scale"]);
    }

    #[test]
    fn of_what_a_cluster_says_nothing_is_shown_that_no_api_server_writes() {
        let body = json!({"data": {"region": "west"}});
        let taken_by = |manager: &str, subresource: &str, time: &str| {
            let mut entry = entry(manager, &json!({"f:data": {"f:region": {}}}));
            (entry.subresource, entry.time) = (subresource.to_owned(), Some(time.to_owned()));
            taken(&body, &[entry], "towline").pop().map(|taken| (taken.manager, taken.at.map(|at| at.to_string())))
        };
        let time = "2026-11-23T08:00:00Z";
        assert_eq!(taken_by("hpa", "", time), Some(("hpa".to_owned(), Some(time.to_owned()))));
        for (manager, subresource) in [("h\u{1b}pa", ""), ("hpa", "sc\u{9b}ale"), (&"h".repeat(129), "")] {
            assert_eq!(taken_by(manager, subresource, time), None, "{manager:?} {subresource:?}");
        }
        for time in ["yesterday", "2026-11-23T08:00:00Z\u{1b}[31m"] {
            assert_eq!(taken_by("hpa", "", time), Some(("hpa".to_owned(), None)));
        }
    }
}

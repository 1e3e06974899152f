//! Documents as the rows of a table, as `towline get` prints them. Pure.

use jiff::Timestamp;
use serde_json::Value;

use crate::config::text::{cut, one_line};
use crate::documents::Kind;
use crate::job::output::{NOTHING, aligned, or_nothing};
use crate::status::brief;

/// Characters that are shown of a message, unless the table is wide: as many as `towline failures` shows.
const MESSAGE: usize = 140;
/// The conditions of a `ClusterSync` that an operator should know, the one that explains the others first.
const CONDITIONS: [&str; 5] = ["Paused", "Unreachable", "AnotherCluster", "Held", "Failed"];

pub fn headings(kind: Kind, is_wide: bool) -> Vec<&'static str> {
    let (own, wide): (&[_], &[_]) = match kind {
        Kind::Cluster => (&["PAUSED"], &["LABELS"]),
        Kind::SyncSet => (&["MODE", "CLUSTERS", "RESOURCES"], &["PATCHES", "SECRETS", "BEHAVIOR"]),
        Kind::SelectorSyncSet => (&["MODE", "RESOURCES"], &["PATCHES", "SECRETS", "BEHAVIOR", "SELECTOR"]),
        Kind::Secret => (&["TYPE"], &["IMMUTABLE"]),
        Kind::ClusterSync => (&["STATE", "SINCE", "SUCCEEDED", "HEALTH", "MESSAGE"], &["REASON"]),
    };
    let of_names: &[_] = if kind.is_namespaced() { &["NAMESPACE", "NAME"] } else { &["NAME"] };
    [of_names, own, &["AGE"], if is_wide { wide } else { &[] }].concat()
}

/// A table of documents, without the end of its last line.
pub fn table<'d>(kind: Kind, documents: impl IntoIterator<Item = &'d Value>, is_wide: bool) -> String {
    let (headings, now) = (headings(kind, is_wide).into_iter().map(str::to_owned).collect(), Timestamp::now());
    let rows = documents.into_iter().map(|document| row(kind, document, is_wide, now));
    aligned(&[headings].into_iter().chain(rows).collect::<Vec<_>>()).trim_end_matches('\n').to_owned()
}

pub fn row(kind: Kind, document: &Value, is_wide: bool, now: Timestamp) -> Vec<String> {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).map(one_line).unwrap_or_default();
    let count = |pointer: &str| document.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len).to_string();
    let is_set = |pointer: &str| (document.pointer(pointer) == Some(&Value::Bool(true))).to_string();
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let mode = || or(text("/spec/resourceApplyMode"), "Upsert");
    let behavior = || or(text("/spec/applyBehavior"), "Apply");
    let (own, wide) = match kind {
        Kind::Cluster => (vec![is_set("/paused")], vec![labels(document)]),
        Kind::SyncSet => (
            vec![mode(), count("/spec/clusterDeploymentRefs"), count("/spec/resources")],
            vec![count("/spec/patches"), count("/spec/secretMappings"), behavior()],
        ),
        Kind::SelectorSyncSet => {
            let selector = document.pointer("/spec/clusterDeploymentSelector").map(ToString::to_string);
            let wide = vec![count("/spec/patches"), count("/spec/secretMappings"), behavior()];
            let wide = [wide, vec![one_line(&selector.unwrap_or_default())]].concat();
            (vec![mode(), count("/spec/resources")], wide)
        }
        Kind::Secret => (vec![or_nothing(&text("/type"))], vec![is_set("/immutable")]),
        Kind::ClusterSync => of_cluster_sync(document, is_wide, now),
    };
    let namespace = kind.is_namespaced().then(|| text("/namespace"));
    let mut row: Vec<String> = namespace.into_iter().chain([text("/name")]).chain(own).collect();
    row.push(since(document.get("createdAt"), now));
    if is_wide {
        row.extend(wide);
    }
    row
}

/// `SyncSet/team-a/base`, as `towline apply` names it.
pub fn name(kind: Kind, document: &Value) -> String {
    let text = |field: &str| document.get(field).and_then(Value::as_str).map(one_line).unwrap_or_default();
    let namespace = if kind.is_namespaced() { text("namespace") + "/" } else { String::new() };
    format!("{}/{namespace}{}", kind.name(), text("name"))
}

/// Its own columns, and those of a wide table.
fn of_cluster_sync(document: &Value, is_wide: bool, now: Timestamp) -> (Vec<String>, Vec<String>) {
    let list = |pointer: &str| document.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(one_line).unwrap_or_default();
    let found = CONDITIONS.into_iter().find_map(|name| {
        let is_it = |condition: &&Value| text(condition, "type") == name && text(condition, "status") == "True";
        list("/status/conditions").find(is_it)
    });
    let failed = || list("/status/conditions").find(|condition| text(condition, "type") == "Failed");
    let state = match found.or_else(failed) {
        None => "Pending".to_owned(),
        Some(condition) if text(condition, "status") == "True" => text(condition, "type"),
        Some(condition) => text(condition, "reason"),
    };
    let results = || list("/status/syncSets").chain(list("/status/selectorSyncSets"));
    let succeeded = results().filter(|result| text(result, "result") == "Success").count();
    // Its reason is the worst state; there is none unless the health of a syncset is read.
    let healthy = list("/status/conditions").find(|condition| text(condition, "type") == "Healthy");
    let health = healthy.map(|condition| text(condition, "reason")).unwrap_or_default();
    let told = found.or_else(|| healthy.filter(|condition| text(condition, "status") != "True"));
    let message = told.map(|condition| text(condition, "message")).unwrap_or_default();
    let message = if is_wide { message } else { cut(&message, MESSAGE) };
    let began = found.and_then(|condition| condition.get("lastTransitionTime"));
    let reason = found.map(|condition| text(condition, "reason")).unwrap_or_default();
    let succeeded = format!("{succeeded}/{}", results().count());
    let own = vec![state, since(began, now), succeeded, or_nothing(&health), or_nothing(&message)];
    (own, vec![or_nothing(&reason)])
}

fn labels(document: &Value) -> String {
    let labels = document.get("labels").and_then(Value::as_object).into_iter().flatten();
    let labels = labels.map(|(key, value)| one_line(&format!("{key}={}", value.as_str().unwrap_or_default())));
    or_nothing(&labels.collect::<Vec<_>>().join(","))
}

/// How long ago that was.
fn since(time: Option<&Value>, now: Timestamp) -> String {
    let time = time.and_then(Value::as_str).and_then(|time| time.parse::<Timestamp>().ok());
    let age = time.map(|time| now.duration_since(time).try_into().unwrap_or_default());
    age.map_or_else(|| NOTHING.to_owned(), brief)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_has_a_cell_for_each_heading() {
        let document = json!({"namespace": "foo", "name": "a", "createdAt": "2026-11-26T12:00:00Z"});
        let now = "2026-11-27T12:00:00Z".parse().expect("a time");
        for kind in Kind::ALL {
            for is_wide in [false, true] {
                let (headings, row) = (headings(kind, is_wide), row(kind, &document, is_wide, now));
                assert_eq!(headings.len(), row.len(), "{kind:?}: {headings:?} {row:?}");
                let place = headings.iter().position(|heading| *heading == "AGE").expect("an age");
                assert_eq!(row[place], "24h");
            }
        }
    }

    #[test]
    fn why_a_cluster_is_not_served_is_in_its_row() {
        let now = "2026-11-27T12:00:00Z".parse().expect("a time");
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-27T11:00:00Z"});
        let shown = |conditions: &[Value]| {
            let document = json!({"namespace": "foo", "name": "a", "status": {"conditions": conditions, "syncSets": [{"result": "Success"}, {"result": "Failure"}]}});
            row(Kind::ClusterSync, &document, false, now)[2..7].to_vec()
        };
        let refused = "`users[0].user.exec` is refused: it runs a command or a plug-in";
        let failed = condition("Failed", "Unknown", "Pending", "");
        assert_eq!(
            shown(&[failed.clone(), condition("Unreachable", "True", "KubeconfigInvalid", refused)]),
            ["Unreachable", "60m", "1/2", "-", refused]
        );
        let long = "m".repeat(200);
        let shown_of_it = &shown(&[condition("Unreachable", "True", "Unauthorized", &long)])[4];
        assert_eq!(*shown_of_it, "m".repeat(139) + "…");
        assert_eq!(shown(&[failed]), ["Pending", "-", "1/2", "-", "-"]);
        let success = condition("Failed", "False", "Success", "");
        assert_eq!(shown(std::slice::from_ref(&success)), ["Success", "-", "1/2", "-", "-"]);
        let healthy = |status: &str, state: &str| condition("Healthy", status, state, "SyncSet base is so");
        assert_eq!(shown(&[success.clone(), healthy("True", "Current")]), ["Success", "-", "1/2", "Current", "-"]);
        let told = ["Success", "-", "1/2", "Failed", "SyncSet base is so"];
        assert_eq!(shown(&[success, healthy("False", "Failed")]), told);
    }
}

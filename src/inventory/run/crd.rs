//! What another CRD of the projects' kind drops of the status.

use serde_json::Value;

use super::kinds::projects;
use crate::cluster::{Cluster, Error};

/// The fields of the status, but for those that hossted-operator has as well.
const FIELDS: [&str; 10] = [
    "status.registeredHash",
    "status.registeringHash",
    "status.registrations",
    "status.rejectedRegistration",
    "status.helmStatus[].resourceVersion",
    "status.helmStatus[].storageNamespace",
    "status.helmStatus[].sentHash",
    "status.helmStatus[].sent",
    "status.helmStatus[].sendingHash",
    "status.helmStatus[].rejected",
];

/// A sentence about the fields that a cluster's CRD drops; none if it keeps all of them.
pub async fn dropped(cluster: &Cluster) -> Result<Option<String>, Error> {
    let Some(schema) = projects().schema(cluster).await? else { return Ok(None) };
    let dropped = dropped_by(&schema);
    Ok((!dropped.is_empty()).then(|| {
        let fields = dropped.join(", ");
        format!("the CRD of {} drops {fields}: a restart sends again what they would remember", projects().id())
    }))
}

fn dropped_by(schema: &Value) -> Vec<&'static str> {
    FIELDS.into_iter().filter(|field| !keeps(schema, field)).collect()
}

/// Whether a schema keeps a field, by the rules of pruning.
fn keeps(schema: &Value, field: &str) -> bool {
    const ALL: &str = "x-kubernetes-preserve-unknown-fields";
    let mut at = schema;
    for step in field.split('.') {
        let (name, is_list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
        if at.get(ALL) == Some(&Value::Bool(true)) {
            return true;
        }
        let Some(next) = at.get("properties").and_then(|properties| properties.get(name)) else { return false };
        let next = if is_list { next.get("items") } else { Some(next) };
        let Some(next) = next else { return false };
        at = next;
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shipped() -> Value {
        let crd: Value =
            serde_saphyr::from_str(include_str!("../../../deploy/chart/files/hosstedprojects.yaml")).unwrap();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
    }

    #[test]
    fn the_crd_that_is_shipped_drops_nothing() {
        assert_eq!(dropped_by(&shipped()), [""; 0]);
    }

    #[test]
    fn what_a_crd_drops_is_named() {
        let mut crd = shipped();
        let status = &mut crd["properties"]["status"]["properties"];
        status.as_object_mut().unwrap().remove("registeredHash");
        status["helmStatus"]["items"]["properties"].as_object_mut().unwrap().remove("sentHash");
        assert_eq!(dropped_by(&crd), ["status.registeredHash", "status.helmStatus[].sentHash"]);
        assert_eq!(dropped_by(&json!({"type": "object"})), FIELDS);
        let keeps_all = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(dropped_by(&keeps_all), [""; 0]);
        assert_eq!(dropped_by(&json!({"properties": {"status": keeps_all}})), [""; 0]);
    }
}

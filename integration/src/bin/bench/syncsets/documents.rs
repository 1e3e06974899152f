//! The documents.

use serde_json::{Value, json};

/// The namespace of all documents.
pub(crate) const NAMESPACE: &str = "fleet";
/// Config maps of the `SelectorSyncSet`.
pub(crate) const MAPS: usize = 10;

/// The name of a cluster, and of its namespace on its API server.
pub(crate) fn name(number: usize) -> String {
    format!("c{number:05}")
}

/// A cluster whose objects are kept apart by its label `ns`.
pub(crate) fn cluster(number: usize, kubeconfig: &str) -> Value {
    let labels = json!({"ns": name(number), "round": "0"});
    json!({"namespace": NAMESPACE, "name": name(number), "labels": labels, "kubeconfig": kubeconfig})
}

/// A config map with this value, in the namespace of the cluster that it is for.
fn map(name: &str, value: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "{{ fromCDLabel \"ns\" }}"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value, "text": "x".repeat(200)}})
}

/// A config map of the same size that no syncset has.
pub(crate) fn plain_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": "plain", "text": "x".repeat(200)}})
}

/// One of many `SelectorSyncSet`s for all clusters, with so many config maps, of which the first one has this value.
pub(crate) fn broad(number: usize, maps: usize, value: &str) -> Value {
    let maps = (0..maps).map(|map| {
        let metadata = json!({"name": format!("s{number:03}-{map}"), "namespace": "default"});
        let value = if map == 0 { value } else { "1" };
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value, "text": "x".repeat(200)}})
    });
    json!({"name": format!("s{number:03}"), "spec": {"clusterDeploymentSelector": {}, "resourceApplyMode": "Sync",
        "resources": maps.collect::<Vec<_>>()}})
}

/// The `SelectorSyncSet` for all clusters: `values` are those of its config maps, in their order.
pub(crate) fn base(values: &[&str]) -> Value {
    let maps: Vec<Value> = values.iter().enumerate().map(|(number, value)| map(&format!("m{number}"), value)).collect();
    let secret = json!({"sourceRef": {"name": "pull", "namespace": NAMESPACE}, "targetRef": {"name": "pull", "namespace": "default"}});
    json!({"name": "base", "spec": {"clusterDeploymentSelector": {}, "resourceApplyMode": "Sync", "enableResourceTemplates": true,
        "resources": maps, "secretMappings": [secret]}})
}

/// A `SyncSet` for one cluster. Its map has this value, or that of the label `round`.
pub(crate) fn single(number: usize, value: Option<&str>) -> Value {
    let value = value.unwrap_or("{{ fromCDLabel \"round\" }}");
    json!({"namespace": NAMESPACE, "name": "single", "spec": {"clusterDeploymentRefs": [{"name": name(number)}],
        "resourceApplyMode": "Sync", "enableResourceTemplates": true, "resources": [map("single", value)]}})
}

/// The secret that is mapped, with this value.
pub(crate) fn secret(value: &str) -> Value {
    json!({"namespace": NAMESPACE, "name": "pull", "type": "Opaque", "data": {"value": base64(value)}})
}

/// The base64 of a text of digits whose length is a multiple of three, so that nothing is left over.
fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let index = (bits >> (18 - 6 * position) & 63) as usize;
            let letter = LETTERS.get(index).copied().unwrap_or(b'A');
            encoded.push(if position > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text), encoded);
        }
    }
}

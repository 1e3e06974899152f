//! Secrets, as the edge's controller makes them and as the hub's user sees them.

use integration::eventually;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{LIMIT, mark};

/// An owner reference that makes this object the controller.
pub(crate) fn controller(object: &DynamicObject) -> Value {
    let types = object.types.clone().unwrap_or_default();
    json!({
        "apiVersion": types.api_version, "kind": types.kind, "name": object.name_any(),
        "uid": object.metadata.uid, "controller": true,
    })
}

fn secret(name: &str, content: &Value) -> Value {
    let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    for (key, value) in content.as_object().into_iter().flatten() {
        match key.as_str() {
            "metadata" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    secret["metadata"][key] = value.clone();
                }
            }
            _ => secret[key] = value.clone(),
        }
    }
    secret
}

pub(crate) async fn make_secret(api: &Api<Secret>, name: &str, content: &Value) -> Secret {
    let secret: Secret = serde_json::from_value(secret(name, content)).unwrap();
    api.create(&PostParams::default(), &secret).await.unwrap()
}

/// Makes a secret or changes it.
pub(crate) async fn put_secret(api: &Api<Secret>, name: &str, content: &Value) -> Secret {
    let params = PatchParams::apply("edge-controller").force();
    api.patch(name, &params, &Patch::Apply(secret(name, content))).await.unwrap()
}

/// Waits until the secret is there and so.
pub(crate) async fn secret_that(api: &Api<Secret>, name: &str, what: &str, holds: impl Fn(&Secret) -> bool) -> Secret {
    eventually(format!("the secret {name} with {what}"), LIMIT, async || match api.get_opt(name).await {
        Ok(Some(secret)) if holds(&secret) => Ok(secret),
        Ok(Some(secret)) => Err(serde_json::to_string(&secret).unwrap_or_default()),
        Ok(None) => Err("it is not there".to_owned()),
        Err(error) => Err(error.to_string()),
    })
    .await
    .unwrap()
}

/// The hash of what was last uploaded, as it is noted.
pub(crate) fn noted_hash(secret: &Secret) -> Option<&str> {
    secret.annotations().get(&mark("last-uploaded-hash")).map(String::as_str)
}

/// One entry, as text; empty where there is none.
pub(crate) fn data(secret: &Secret, key: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

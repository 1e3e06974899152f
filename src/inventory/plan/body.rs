//! What is sent: the bodies, their hashes, and the keys under which the API recognises a repetition.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::contents::Contents;
use super::project::Spec;
use super::release::Facts;
use super::revision::Stage;
use crate::cluster::ObjectKey;

/// What every body says of its sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Sender {
    pub(in crate::inventory) email: String,
    pub(in crate::inventory) org_id: String,
    pub(in crate::inventory) context_name: String,
}

/// What a body says of its release.
#[derive(Clone, Debug)]
pub(in crate::inventory) struct Told<'a> {
    pub(in crate::inventory) key: &'a ObjectKey,
    /// The id of the release.
    pub(in crate::inventory) app_id: &'a str,
    /// Whether the id comes from the Secret `uuid`.
    pub(in crate::inventory) is_given: bool,
    pub(in crate::inventory) revision: u64,
    /// Its status.
    pub(in crate::inventory) stage: Stage,
    /// What Helm's record says.
    pub(in crate::inventory) facts: &'a Facts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Body {
    /// JSON with sorted keys.
    pub(in crate::inventory) text: String,
    /// SHA-256 of that, in hexadecimal digits.
    pub(in crate::inventory) hash: String,
    /// The parts of a body about a release, to say which of them have changed.
    pub(in crate::inventory) parts: Parts,
}

/// A digest of each part of a body about a release. It is only compared within this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Parts([u64; PARTS.len()]);

/// The parts: the sender's, and the fields of `app_info`.
const PARTS: [&str; 6] = ["app_api_info", "helm_info", "pod_info", "service_info", "volume_info", "ingress_info"];

impl Parts {
    fn of(sender: &Map<String, Value>, app_info: &Map<String, Value>) -> Self {
        let digest = |value: &Value| {
            let mut hasher = DefaultHasher::new();
            value.to_string().hash(&mut hasher);
            hasher.finish()
        };
        let sender = Value::Object(sender.clone());
        Self(PARTS.map(|part| app_info.get(part).map_or_else(|| digest(&sender), digest)))
    }

    /// The names of the parts that differ.
    pub(in crate::inventory) fn differing(&self, other: &Self) -> Vec<&'static str> {
        let parts = PARTS.into_iter().zip(self.0.iter().zip(&other.0));
        parts.filter(|(_, (one, other))| one != other).map(|(part, _)| part).collect()
    }
}

impl Body {
    fn of(value: &Value, parts: Parts) -> Self {
        // serde_json's maps are sorted.
        let text = value.to_string();
        let hash = hash_of(&[&text]);
        Self { text, hash, parts }
    }
}

/// SHA-256 of texts, each of which ends with a line feed if there are several.
fn hash_of(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for (position, text) in texts.iter().enumerate() {
        if position > 0 {
            hash.update("\n");
        }
        hash.update(text);
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Stands for an API and a wire in a status, without naming them.
pub(in crate::inventory) fn target(url: &str, is_single: bool) -> String {
    let wire = if is_single { "single" } else { "instances" };
    hash_of(&[url, wire]).chars().take(8).collect()
}

/// The key of a post: equal for a repetition, and new for a content that returns, since `sent` counts what was acknowledged.
pub(in crate::inventory) fn idempotency_key(id: &str, hash: &str, sent: u64) -> String {
    hash_of(&[id, hash, &sent.to_string()])
}

impl Sender {
    /// The body about a release.
    pub(in crate::inventory) fn release(&self, cluster_id: &str, told: &Told<'_>, contents: Contents) -> Body {
        let Told { key, app_id, is_given, revision, stage, facts } = told;
        let (name, namespace) = (&*key.name, &*key.namespace);
        let mut sender_info = Map::new();
        for (field, value) in [("email_id", &self.email), ("org_id", &self.org_id)] {
            if !value.is_empty() {
                sender_info.insert(field.to_owned(), json!(value));
            }
        }
        for (field, value) in [
            ("cluster_uuid", json!(cluster_id)),
            ("app_uuid", json!(app_id)),
            ("app_name", json!(name)),
            ("type", json!("k8s")),
            ("hossted_helm", json!(is_given)),
        ] {
            sender_info.insert(field.to_owned(), value);
        }
        let helm_info = json!({
            "name": name, "namespace": namespace, "revision": revision, "updated": facts.updated,
            "status": stage.as_str(), "chart": facts.chart, "appVersion": facts.app_version,
        });
        let mut app_info = Map::from_iter([("helm_info".to_owned(), helm_info)]);
        contents.write(&mut app_info);
        let parts = Parts::of(&sender_info, &app_info);
        Body::of(&json!({"app_api_info": sender_info, "app_info": app_info}), parts)
    }

    /// The body that registers the cluster.
    pub(in crate::inventory) fn registration(&self, spec: &Spec) -> Body {
        let mut registration = Map::new();
        for (field, value) in [("org_id", &self.org_id), ("context_name", &self.context_name)] {
            if !value.is_empty() {
                registration.insert(field.to_owned(), json!(value));
            }
        }
        registration.insert("type".to_owned(), json!("k8s"));
        let options = json!({
            "monitoring": spec.monitoring.enable, "logging": spec.logging.enable, "cve_scan": spec.cve.enable,
            "ingress": spec.ingress.enable,
        });
        registration.insert("options_state".to_owned(), options);
        Body::of(&Value::Object(registration), Parts::default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::contents::Content;
    use super::*;
    use crate::cluster::object::Decoded;

    const CLUSTER: &str = "K-3f0e4c1a-7c0f-4d57-9a52-6f2f0d1b8a11";
    const APP: &str = "A-9d3c1f9e-0b57-4a6e-8f0a-5f9f3f3f7c55";

    fn sender() -> Sender {
        Sender { email: "a@b.example".into(), org_id: "o1".into(), context_name: "edge-west".into() }
    }

    fn golden(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    fn object(content: Content, name: &str, fields: Value) -> Vec<Arc<crate::cluster::Object>> {
        let mut object = json!({"metadata": {"name": name, "namespace": "default"}});
        let Value::Object(fields) = fields else { panic!("fields") };
        object.as_object_mut().unwrap().extend(fields);
        let mut object = serde_json::from_value::<Decoded>(object).unwrap().into_object();
        content.projection()(&mut object);
        vec![Arc::new(object)]
    }

    fn contents() -> Contents {
        let pod = json!({"spec": {"containers": [{"image": "keycloak:23"}, {"image": "proxy:1"}]}, "status": {"phase": "Running"}});
        let claim = json!({"spec": {"resources": {"requests": {"storage": "8Gi"}}}});
        Contents::of([
            object(Content::Pod, "keycloak-0", pod),
            object(Content::Service, "keycloak-http", json!({"spec": {"ports": [{"port": 80}, {"port": 8443}]}})),
            object(Content::Volume, "data-keycloak-0", claim),
            object(Content::Ingress, "keycloak-public", json!({"spec": {"rules": [{"host": "id.example"}]}})),
        ])
    }

    fn facts() -> Facts {
        Facts {
            updated: "2026-11-21T21:58:40.338988+05:30".into(),
            chart: "keycloak-chart".into(),
            app_version: "23.0.5".into(),
        }
    }

    fn release(sender: &Sender, contents: Contents) -> Body {
        let (key, facts) = (ObjectKey::new("default", "keycloak"), facts());
        let told = Told { key: &key, app_id: APP, is_given: false, revision: 3, stage: Stage::Deployed, facts: &facts };
        sender.release(CLUSTER, &told, contents)
    }

    #[test]
    fn a_release_is_told_field_by_field_as_the_specification_has_it() {
        let body = release(&sender(), contents());
        let expected = golden(include_str!("golden/app.json"));
        assert_eq!(golden(&body.text), expected);
        assert_eq!(body.text, expected.to_string(), "the keys are sorted");
    }

    #[test]
    fn a_registration_is_told_field_by_field_as_the_specification_has_it() {
        let on = super::super::project::Switch { enable: true };
        let mut spec = Spec::default();
        (spec.monitoring, spec.logging) = (on, on);
        assert_eq!(golden(&sender().registration(&spec).text), golden(include_str!("golden/registration.json")));
        let least = golden(&Sender::default().registration(&Spec::default()).text);
        let options = json!({"monitoring": false, "logging": false, "cve_scan": false, "ingress": false});
        assert_eq!(least, json!({"type": "k8s", "options_state": options}));
    }

    #[test]
    fn what_is_not_configured_is_left_out_and_lists_are_never_null() {
        let body = golden(&release(&Sender::default(), Contents::default()).text);
        let expected = json!({"cluster_uuid": CLUSTER, "app_uuid": APP, "app_name": "keycloak", "type": "k8s", "hossted_helm": false});
        assert_eq!(body["app_api_info"], expected);
        for content in Content::ALL {
            assert_eq!(body["app_info"][content.field()], json!([]), "{content:?}");
        }
    }

    #[test]
    fn the_parts_that_differ_are_named() {
        let body = release(&sender(), contents());
        assert_eq!(body.parts.differing(&release(&sender(), contents()).parts), [""; 0]);
        let empty = release(&sender(), Contents::default());
        let lists = ["pod_info", "service_info", "volume_info", "ingress_info"];
        assert_eq!(body.parts.differing(&empty.parts), lists);
        assert_eq!(body.parts.differing(&release(&Sender::default(), contents()).parts), ["app_api_info"]);
    }

    #[test]
    fn the_hash_is_that_of_the_text_and_the_key_is_new_when_a_content_returns() {
        let body = release(&sender(), contents());
        // printf '' | sha256sum, and printf 'a\nb\n7' | sha256sum.
        assert_eq!(hash_of(&[""]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash_of(&["a", "b", "7"]), idempotency_key("a", "b", 7));
        assert_eq!(body.hash, hash_of(&[&body.text]));
        let key = |sent| idempotency_key(APP, &body.hash, sent);
        assert_eq!(key(2), key(2));
        let keys = [key(2), key(3), idempotency_key("A-1", &body.hash, 2), idempotency_key(APP, "0", 2)];
        for (position, one) in keys.iter().enumerate() {
            assert!(keys.iter().skip(position + 1).all(|other| other != one), "{keys:?}");
        }
    }
}

//! What runs in a release: pods, services, volume claims and ingresses, as they are reported.
//!
//! The caches hold of each object only its item of the report ([`Content::projection`]), so that a watch event which changes nothing
//! that is reported changes nothing in the body either. Most objects name their release in a label. Where a chart does not set it, the
//! release's manifest lists the object, or what has made it: so each object holds, as its labels, what it may belong to
//! ([`Content::owners`]), as the name of a release or as [entries](entry) of a manifest.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::quantity::bytes;
use super::text::tame;
use crate::cluster::{CanonicalJson, Object, Projection};

/// The label with the release's name.
pub(in crate::inventory) const INSTANCE: &str = "app.kubernetes.io/instance";
/// The selector of services and ingresses: Helm itself sets this label on all objects of a manifest.
const BY_HELM: &str = "app.kubernetes.io/managed-by=Helm";
/// The label of a pod with the end of its `ReplicaSet`'s name, behind the name of the Deployment.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// The most objects of a kind that a report lists.
const MOST: usize = 1000;

/// A kind of object that is reported with a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::inventory) enum Content {
    Pod,
    Service,
    /// Persistent volume claims.
    Volume,
    Ingress,
}

impl Content {
    pub(in crate::inventory) const ALL: [Self; 4] = [Self::Pod, Self::Service, Self::Volume, Self::Ingress];

    /// Its place among them.
    pub(in crate::inventory) fn place(self) -> usize {
        match self {
            Self::Pod => 0,
            Self::Service => 1,
            Self::Volume => 2,
            Self::Ingress => 3,
        }
    }

    /// The field of the report with its items.
    pub(in crate::inventory) fn field(self) -> &'static str {
        match self {
            Self::Pod => "pod_info",
            Self::Service => "service_info",
            Self::Volume => "volume_info",
            Self::Ingress => "ingress_info",
        }
    }

    /// Which objects may belong to a release of Helm's. Pods and claims that controllers make have no label of Helm's, and those of
    /// older charts none of the release's, either.
    pub(in crate::inventory) fn selector(self) -> &'static str {
        match self {
            Self::Service | Self::Ingress => BY_HELM,
            Self::Pod | Self::Volume => "",
        }
    }

    /// Reduces an object as it comes from the watch to its item, and what it may belong to.
    pub(in crate::inventory) fn projection(self) -> Projection {
        Arc::new(move |object| {
            let status = object.status.take().map_or(Value::Null, |status| status.value());
            object.content = CanonicalJson::of(&Value::Object(self.trimmed(&object.content.value(), &status)));
            let owners = self.owners(object).into_iter().map(Arc::from);
            object.labels = owners.map(|owner: Arc<str>| (Arc::clone(&owner), owner)).collect();
            object.annotations.clear();
            object.finalizers.clear();
            object.owned = Vec::new();
            object.controller = None;
        })
    }

    /// What an object may belong to. What made a pod follows from the names that the control plane gives, so that nothing else is read.
    fn owners(self, object: &Object) -> Vec<String> {
        let name = &*object.key.name;
        let mut owners: Vec<String> = object.labels.get(INSTANCE).map(ToString::to_string).into_iter().collect();
        match (self, &object.controller) {
            (Self::Pod, None) => owners.push(entry("Pod", name)),
            (Self::Pod, Some(controller)) => {
                let template = object.labels.get(TEMPLATE_HASH);
                let behind = template.and_then(|hash| controller.name.strip_suffix(&**hash)?.strip_suffix('-'));
                owners.push(entry(&controller.kind, &controller.name));
                owners.extend(match &*controller.kind {
                    "ReplicaSet" => behind.map(|deployment| entry("Deployment", deployment)),
                    "Job" => before_number(&controller.name).map(|cron_job| entry("CronJob", cron_job)),
                    _ => None,
                });
            }
            (Self::Volume, _) => {
                owners.push(entry("PersistentVolumeClaim", name));
                owners.extend(before_number(name).map(entry_of_claims));
            }
            (Self::Service, _) => owners.push(entry("Service", name)),
            (Self::Ingress, _) => owners.push(entry("Ingress", name)),
        }
        owners
    }

    /// The fields of an item but its name and its namespace.
    fn trimmed(self, content: &Value, status: &Value) -> Map<String, Value> {
        let texts = |list: &str, text: &str| -> Vec<Value> {
            let found = elements(content, list).filter_map(|element| element.pointer(text)?.as_str());
            found.filter(|text| !text.is_empty()).map(|text| json!(tame(text))).collect()
        };
        let mut item = Map::new();
        match self {
            Self::Pod => {
                let images = texts("/spec/containers", "/image");
                item.extend(images.first().map(|image| ("image".to_owned(), image.clone())));
                item.insert("images".to_owned(), Value::Array(images));
                let phase = status.get("phase").and_then(Value::as_str).unwrap_or_default();
                item.insert("status".to_owned(), json!(tame(phase)));
            }
            Self::Service => {
                let ports: Vec<Value> = elements(content, "/spec/ports")
                    .filter_map(|port| port.get("port")?.as_i64())
                    .map(Value::from)
                    .collect();
                item.extend(first_and_all(("port", "ports"), ports));
            }
            Self::Volume => {
                let requested = content.pointer("/spec/resources/requests/storage").and_then(Value::as_str);
                item.extend(requested.and_then(bytes).map(|size| ("size".to_owned(), json!(size))));
            }
            Self::Ingress => item.extend(first_and_all(("domain", "domains"), texts("/spec/rules", "/host"))),
        }
        item
    }
}

/// An object that a manifest lists. No release has such a name.
pub(in crate::inventory) fn entry(kind: &str, name: &str) -> String {
    format!("{kind}/{name}")
}

/// The claims that a `StatefulSet` makes: `TEMPLATE-NAME-ORDINAL`.
pub(in crate::inventory) fn entry_of_claims(template_and_name: &str) -> String {
    entry("volumeClaimTemplates", template_and_name)
}

/// Whether it is [an entry](entry) of a manifest, not the name of a release.
pub(in crate::inventory) fn is_entry(owner: &str) -> bool {
    owner.contains('/')
}

/// What precedes `-NUMBER`.
fn before_number(name: &str) -> Option<&str> {
    let (before, number) = name.rsplit_once('-')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(before)
}

/// The elements of a list; none where there is no list.
fn elements<'v>(content: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    content.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The seed's field with the first value, and the one with all; neither for an empty list.
fn first_and_all((first, all): (&str, &str), values: Vec<Value>) -> Vec<(String, Value)> {
    match values.first().cloned() {
        Some(value) => vec![(first.to_owned(), value), (all.to_owned(), Value::Array(values))],
        None => Vec::new(),
    }
}

/// The objects of a release, as they are reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::inventory) struct Contents {
    /// The items of each kind, sorted by name.
    lists: [Vec<Value>; 4],
    /// There are more objects than are listed.
    is_truncated: bool,
}

impl Contents {
    /// Of objects that the [projections](Content::projection) have reduced, in any order.
    pub(in crate::inventory) fn of(mut objects: [Vec<Arc<Object>>; 4]) -> Self {
        let mut contents = Self::default();
        for (list, of_kind) in contents.lists.iter_mut().zip(&mut objects) {
            of_kind.sort_by(|one, other| one.key.name.cmp(&other.key.name));
            // A label and the manifest may both name it.
            of_kind.dedup_by(|one, other| one.key == other.key);
            contents.is_truncated |= of_kind.len() > MOST;
            list.extend(of_kind.iter().take(MOST).map(|object| item(object)));
        }
        contents
    }

    /// Adds the lists to `app_info`.
    pub(in crate::inventory) fn write(self, app_info: &mut Map<String, Value>) {
        for (content, list) in Content::ALL.into_iter().zip(self.lists) {
            app_info.insert(content.field().to_owned(), Value::Array(list));
        }
        if self.is_truncated {
            app_info.insert("truncated".to_owned(), json!(true));
        }
    }
}

fn item(object: &Object) -> Value {
    let mut item = object.content.value();
    if let Some(fields) = item.as_object_mut() {
        fields.insert("name".to_owned(), json!(&*object.key.name));
        fields.insert("namespace".to_owned(), json!(&*object.key.namespace));
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Decoded;

    /// An object as the cache holds it.
    fn held(content: Content, object: &Value) -> Arc<Object> {
        let mut object = serde_json::from_value::<Decoded>(object.clone()).unwrap().into_object();
        content.projection()(&mut object);
        Arc::new(object)
    }

    fn reported(content: Content, fields: &Value) -> Value {
        let mut object = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        item(&held(content, &object))
    }

    #[test]
    fn a_pod_has_all_images_the_first_one_and_its_phase() {
        let pod = json!({"spec": {"containers": [{"image": "keycloak:23", "env": [{"value": "canary"}]}, {"image": "proxy:1"}],
            "initContainers": [{"image": "init:1"}]}, "status": {"phase": "Running", "message": "canary"}});
        let expected = json!({"name": "a", "namespace": "n", "image": "keycloak:23", "images": ["keycloak:23", "proxy:1"],
            "status": "Running"});
        assert_eq!(reported(Content::Pod, &pod), expected);
        let least = json!({"name": "a", "namespace": "n", "images": [], "status": ""});
        assert_eq!(reported(Content::Pod, &json!({"spec": {}})), least);
    }

    #[test]
    fn what_the_api_server_leaves_out_is_left_out() {
        let ports = json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}, {"port": 8443}]}});
        let expected = json!({"name": "a", "namespace": "n", "port": 80, "ports": [80, 8443]});
        assert_eq!(reported(Content::Service, &ports), expected);
        let rules = json!({"spec": {"rules": [{"host": "id.example"}, {}, {"host": ""}, {"host": "*.b.example"}]}});
        let expected =
            json!({"name": "a", "namespace": "n", "domain": "id.example", "domains": ["id.example", "*.b.example"]});
        assert_eq!(reported(Content::Ingress, &rules), expected);
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1536Mi"}}}});
        assert_eq!(reported(Content::Volume, &claim), json!({"name": "a", "namespace": "n", "size": 1_610_612_736}));
        for (content, fields) in [
            (Content::Service, json!({"spec": {"type": "ExternalName"}})),
            (Content::Ingress, json!({"spec": {"defaultBackend": {}}})),
            (Content::Volume, json!({"spec": {"resources": {}}})),
            (Content::Volume, json!({"spec": {"resources": {"requests": {"storage": "a lot"}}}})),
        ] {
            assert_eq!(reported(content, &fields), json!({"name": "a", "namespace": "n"}), "{content:?}");
        }
    }

    #[test]
    fn the_caches_hold_the_items_and_what_they_may_belong_to_alone() {
        let pod = json!({"metadata": {"name": "a", "namespace": "n", "labels": {(INSTANCE): "keycloak", "secret": "canary"},
            "annotations": {"note": "canary"}, "finalizers": ["f"]}, "spec": {"containers": [{"image": "i", "args": ["canary"]}]}});
        let object = held(Content::Pod, &pod);
        assert_eq!(object.content.as_str(), r#"{"image":"i","images":["i"],"status":""}"#);
        assert!(!format!("{object:?}").contains("canary") && object.status.is_none(), "{object:?}");
        assert_eq!(object.labels.keys().map(|owner| &**owner).collect::<Vec<_>>(), ["Pod/a", "keycloak"]);
    }

    #[test]
    fn what_has_made_an_object_is_known_by_the_names_that_the_control_plane_gives() {
        let owners = |content: Content, name: &str, labels: Value, controller: Option<(&str, &str)>| {
            let owner =
                controller.map(|(kind, name)| json!({"kind": kind, "name": name, "uid": "u", "controller": true}));
            let metadata = json!({"name": name, "namespace": "n", "labels": labels, "ownerReferences": owner.into_iter().collect::<Vec<_>>()});
            let owners = held(content, &json!({ "metadata": metadata }))
                .labels
                .keys()
                .map(ToString::to_string)
                .collect::<Vec<_>>();
            owners.join(" ")
        };
        let hash = json!({"pod-template-hash": "7d4b9"});
        for (labels, controller, expected) in [
            (json!({}), None, "Pod/p"),
            (hash.clone(), Some(("ReplicaSet", "web-7d4b9")), "Deployment/web ReplicaSet/web-7d4b9"),
            (hash, Some(("ReplicaSet", "web")), "ReplicaSet/web"),
            (json!({}), Some(("ReplicaSet", "web-7d4b9")), "ReplicaSet/web-7d4b9"),
            (json!({(INSTANCE): "w"}), Some(("StatefulSet", "web-1")), "StatefulSet/web-1 w"),
            (json!({}), Some(("DaemonSet", "web")), "DaemonSet/web"),
            (json!({}), Some(("Job", "once")), "Job/once"),
            (json!({}), Some(("Job", "nightly-29388123")), "CronJob/nightly Job/nightly-29388123"),
        ] {
            assert_eq!(owners(Content::Pod, "p", labels, controller), expected);
        }
        let claim = owners(Content::Volume, "data-web-0", json!({}), None);
        assert_eq!(claim, "PersistentVolumeClaim/data-web-0 volumeClaimTemplates/data-web");
        assert_eq!(owners(Content::Service, "s", json!({(INSTANCE): "w"}), None), "Service/s w");
        assert_eq!(owners(Content::Ingress, "i", json!({}), None), "Ingress/i");
    }

    #[test]
    fn items_are_sorted_by_name_and_at_most_a_thousand_of_a_kind() {
        let pod = |number: usize| {
            let metadata = json!({"name": format!("p-{number:04}"), "namespace": "n"});
            held(Content::Pod, &json!({"metadata": metadata}))
        };
        let written = |count: usize| {
            let pods = (0..count).rev().map(pod).collect();
            let mut info = Map::new();
            Contents::of([pods, Vec::new(), Vec::new(), Vec::new()]).write(&mut info);
            info
        };
        let names = |info: &Map<String, Value>| -> Vec<String> {
            info["pod_info"].as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap().to_owned()).collect()
        };
        let all = written(MOST);
        assert_eq!(all.get("truncated"), None);
        let expected: Vec<String> = (0..MOST).map(|number| format!("p-{number:04}")).collect();
        assert_eq!(names(&all), expected);
        let cut = written(MOST + 1);
        assert_eq!((&cut["truncated"], names(&cut)), (&json!(true), expected));
        assert_eq!(
            (&cut["service_info"], &cut["volume_info"], &cut["ingress_info"]),
            (&json!([]), &json!([]), &json!([]))
        );
    }
}

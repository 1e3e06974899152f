//! The status of the project: what has been told of each release, and what keeps the rest from being told.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::identity::{is_app_id, is_cluster_id};
use super::release::Facts;
use super::revision::{Revision, Stage};
use super::text::{brief, stored_size, tame};
use crate::cluster::ObjectKey;

/// What the status holds of a release: what was acknowledged last, or, until something is, what is to be told first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Entry {
    /// The id of the release.
    pub(in crate::inventory) app_id: String,
    /// Whether the id comes from the Secret `uuid`.
    pub(in crate::inventory) is_given: bool,
    pub(in crate::inventory) revision: u64,
    /// Its status.
    pub(in crate::inventory) stage: Stage,
    /// What Helm's record says.
    pub(in crate::inventory) facts: Facts,
    /// The version of the object that stored the revision: an object of the same version need not be read after a restart.
    pub(in crate::inventory) version: String,
    /// The namespace of that object; empty if it is the release's.
    pub(in crate::inventory) stored_in: String,
    /// The hash of the body that was acknowledged last; empty if none was.
    pub(in crate::inventory) sent_hash: String,
    /// How many bodies were acknowledged; and those that may have been accepted, and were replaced before that was known.
    pub(in crate::inventory) sent: u64,
    /// The hash of the body that is about to be sent, or was, until it is acknowledged: a process that was killed meanwhile leaves it
    /// behind, and what the API knows then is unknown. Empty if nothing is under way.
    pub(in crate::inventory) sending_hash: String,
    /// What the API has rejected for good: it is not sent again until the release changes.
    pub(in crate::inventory) rejected: Option<Rejection>,
}

/// A body that the API has rejected for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Rejection {
    pub(in crate::inventory) hash: String,
    /// `HTTP400`.
    pub(in crate::inventory) reason: String,
    /// Which API that was, and how bodies were sent: another one may take it.
    pub(in crate::inventory) target: String,
}

impl Rejection {
    fn of(value: &Value) -> Option<Self> {
        let target = text(value, "target").unwrap_or_default();
        let rejection = Self { hash: hash(value, "hash"), reason: text(value, "reason")?, target };
        Some(rejection).filter(|found| !found.hash.is_empty())
    }

    fn to_json(&self) -> Value {
        json!({"hash": self.hash, "reason": self.reason, "target": self.target})
    }
}

impl Entry {
    /// The entry as the status holds it: long strings are cut. The version is left out if one was, so that the record is read again
    /// after a restart.
    pub(in crate::inventory) fn stored(&self) -> Self {
        let Facts { updated, chart, app_version } = &self.facts;
        let facts = Facts {
            updated: brief(updated).to_owned(),
            chart: brief(chart).to_owned(),
            app_version: brief(app_version).to_owned(),
        };
        let version = if facts == self.facts { self.version.clone() } else { String::new() };
        Self { facts, version, ..self.clone() }
    }

    /// The most bytes that a release takes in the API server's store, with the record that was read and the newest revision. It does not
    /// depend on whether there is an entry yet, nor on what is under way: a release that is left out would have room then, take it, and
    /// be left out again.
    pub(in crate::inventory) fn size(
        key: &ObjectKey,
        entry: Option<&Self>,
        facts: Option<&Facts>,
        newest: Option<&Revision>,
    ) -> usize {
        let of_facts = |facts: &Facts| {
            let texts = [&facts.updated, &facts.chart, &facts.app_version];
            texts.into_iter().map(|text| stored_size(brief(text))).sum::<usize>()
        };
        let of_facts = entry.map(|entry| &entry.facts).into_iter().chain(facts).map(of_facts).max();
        let names = key.name.len() + key.namespace.len();
        let of_entry = entry.map_or((0, 0, 0), |entry| (entry.revision, entry.sent, entry.version.len()));
        let stored_in =
            newest.map(|newest| &*newest.object.namespace).filter(|namespace| *namespace != &*key.namespace);
        let of_entry_stored = entry.map(|entry| entry.stored_in.as_str()).filter(|namespace| !namespace.is_empty());
        let of_storage = stored_in.or(of_entry_stored).map_or(0, |namespace| STORED_IN + namespace.len());
        let of_newest = newest.map_or((0, 0), |newest| (newest.number, newest.version.len()));
        let (revision, sent, version) = (of_entry.0.max(of_newest.0), of_entry.1, of_entry.2.max(of_newest.1));
        FIXED
            + LONGEST_ID
            + 4 * names
            + 3 * digits(revision)
            + digits(sent)
            + version
            + of_storage
            + of_facts.unwrap_or_default()
    }
}

/// The bytes of all field names and hashes of an entry, of its line in `reconcileHelmReleases`, and of the name of that line in the
/// object's managed fields.
const FIXED: usize = 480;
/// The bytes of the field with the namespace that a release is stored in, but for the namespace.
const STORED_IN: usize = 64;
/// The bytes of the longest id.
const LONGEST_ID: usize = 66;

/// The digits of a hash.
const HASH: usize = 64;

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |last| usize::try_from(last).unwrap_or(usize::MAX).saturating_add(1))
}

/// The types of the conditions of a project that counts.
const KINDS: [&str; 3] = ["Ready", "Delivered", "TooMany"];

/// The conditions of a project that are none of Towline's: somebody else keeps them in a project that is ignored.
pub(in crate::inventory) fn others(status: &Value) -> impl Iterator<Item = &Value> {
    let all = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    let is_ours = |condition: &Value| {
        condition.get("type").and_then(Value::as_str).is_some_and(|kind| kind == "Ignored" || KINDS.contains(&kind))
    };
    all.filter(move |condition| !is_ours(condition))
}

/// A condition of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Condition {
    /// Its type.
    pub(in crate::inventory) kind: &'static str,
    pub(in crate::inventory) is_true: bool,
    /// Why, in one word; empty if there is nothing to say.
    pub(in crate::inventory) reason: String,
    pub(in crate::inventory) message: String,
}

impl Condition {
    /// A condition that says nothing more.
    pub(in crate::inventory) fn plain(kind: &'static str, is_true: bool) -> Self {
        Self { kind, is_true, reason: String::new(), message: String::new() }
    }

    pub(in crate::inventory) fn because(kind: &'static str, is_true: bool, reason: &str, message: &str) -> Self {
        Self { kind, is_true, reason: reason.to_owned(), message: tame(message) }
    }

    /// Reads a condition. One of another type differs from all that are written.
    fn of(condition: &Value) -> Self {
        let or_empty = |field| text(condition, field).unwrap_or_default();
        let kind = or_empty("type");
        Self {
            kind: KINDS.into_iter().find(|known| **known == kind).unwrap_or_default(),
            is_true: or_empty("status") == "True",
            reason: or_empty("reason"),
            message: or_empty("message"),
        }
    }

    fn to_json(&self) -> Value {
        let mut condition = Map::new();
        condition.insert("type".to_owned(), json!(self.kind));
        condition.insert("status".to_owned(), json!(if self.is_true { "True" } else { "False" }));
        for (field, text) in [("reason", &self.reason), ("message", &self.message)] {
            if !text.is_empty() {
                condition.insert(field.to_owned(), json!(text));
            }
        }
        Value::Object(condition)
    }
}

/// What the status holds of the cluster's registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Registered {
    /// The hash of the one that was acknowledged last; empty if none was, or if the API may know another one since.
    pub(in crate::inventory) hash: String,
    /// How many were acknowledged; and those that may have been accepted, and were replaced before that was known. Options that return
    /// are another registration, with another key.
    pub(in crate::inventory) sent: u64,
    /// The hash of the one that is about to be sent, or was, until it is acknowledged. Empty if nothing is under way.
    pub(in crate::inventory) sending_hash: String,
    /// The one that the API has rejected for good.
    pub(in crate::inventory) rejected: Option<Rejection>,
}

/// What is read of a status when a section begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Remembered {
    pub(in crate::inventory) cluster_id: Option<String>,
    pub(in crate::inventory) registered: Registered,
    /// The releases.
    pub(in crate::inventory) entries: BTreeMap<ObjectKey, Entry>,
    pub(in crate::inventory) conditions: Vec<Condition>,
}

impl Remembered {
    /// Reads a status. What can't be read counts as absent: ids are parts of URLs and keys.
    pub(in crate::inventory) fn of(status: &Value) -> Self {
        let cluster_id = text(status, "clusterUUID").filter(|id| is_cluster_id(id));
        let list = |field| status.get(field).and_then(Value::as_array).into_iter().flatten();
        Self {
            cluster_id,
            registered: Registered {
                hash: hash(status, "registeredHash"),
                sent: status.get("registrations").and_then(Value::as_u64).unwrap_or_default(),
                sending_hash: hash(status, "registeringHash"),
                rejected: status.get("rejectedRegistration").and_then(Rejection::of),
            },
            entries: list("helmStatus").filter_map(entry).collect(),
            conditions: list("conditions").map(Condition::of).collect(),
        }
    }
}

fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field)?.as_str().map(str::to_owned)
}

/// A hash; empty for what can't be one.
fn hash(value: &Value, field: &str) -> String {
    text(value, field).filter(|hash| hash.len() <= HASH).unwrap_or_default()
}

fn entry(value: &Value) -> Option<(ObjectKey, Entry)> {
    let key = ObjectKey::new(text(value, "namespace")?, text(value, "name")?);
    let or_empty = |field| text(value, field).unwrap_or_default();
    let entry = Entry {
        app_id: text(value, "appUUID").filter(|id| is_app_id(id))?,
        is_given: value.get("hossted_helm").and_then(Value::as_bool).unwrap_or_default(),
        revision: value.get("revision").and_then(Value::as_u64).unwrap_or_default(),
        stage: Stage::parse(&or_empty("status")),
        facts: Facts {
            updated: tame(&or_empty("updated")),
            chart: tame(&or_empty("chart")),
            app_version: tame(&or_empty("appVersion")),
        },
        version: or_empty("resourceVersion"),
        stored_in: or_empty("storageNamespace"),
        sent_hash: hash(value, "sentHash"),
        sent: value.get("sent").and_then(Value::as_u64).unwrap_or_default(),
        sending_hash: hash(value, "sendingHash"),
        rejected: value.get("rejected").and_then(Rejection::of),
    };
    Some((key, entry))
}

/// The status that is written. `lastReconcileTimestamp` is not part of it: it changes with other fields, never alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::inventory) struct Written {
    pub(in crate::inventory) cluster_id: String,
    pub(in crate::inventory) registered: Registered,
    /// The releases.
    pub(in crate::inventory) entries: BTreeMap<ObjectKey, Entry>,
    pub(in crate::inventory) conditions: Vec<Condition>,
}

impl Written {
    /// As JSON, with the time of the change.
    pub(in crate::inventory) fn to_json(&self, now: jiff::Timestamp) -> Value {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for key in self.entries.keys() {
            *names.entry(&key.name).or_default() += 1;
        }
        let mut reconciled = Map::new();
        let mut releases = Vec::with_capacity(self.entries.len());
        for (key, entry) in &self.entries {
            let is_unique = names.get(&*key.name) == Some(&1);
            let name = if is_unique { key.name.to_string() } else { key.to_string() };
            reconciled.insert(name, json!(format!("{key} {}", entry.revision)));
            releases.push(release(key, entry));
        }
        let revisions: Vec<u64> = self.entries.values().map(|entry| entry.revision).collect();
        let mut status = Map::new();
        for (field, value) in [
            ("clusterUUID", json!(self.cluster_id)),
            ("lastReconcileTimestamp", json!(seconds(now))),
            ("reconcileHelmReleases", Value::Object(reconciled)),
            ("revision", json!(revisions)),
            ("helmStatus", Value::Array(releases)),
            ("conditions", self.conditions.iter().map(Condition::to_json).collect()),
        ] {
            status.insert(field.to_owned(), value);
        }
        let Registered { hash, sent, sending_hash, rejected } = &self.registered;
        for (field, hash) in [("registeredHash", hash), ("registeringHash", sending_hash)] {
            if !hash.is_empty() {
                status.insert(field.to_owned(), json!(hash));
            }
        }
        if *sent > 0 {
            status.insert("registrations".to_owned(), json!(sent));
        }
        if let Some(rejected) = rejected {
            status.insert("rejectedRegistration".to_owned(), rejected.to_json());
        }
        Value::Object(status)
    }
}

/// RFC 3339 to the second.
fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn release(key: &ObjectKey, entry: &Entry) -> Value {
    let mut release = json!({
        "name": &*key.name, "namespace": &*key.namespace, "appUUID": entry.app_id, "hossted_helm": entry.is_given,
        "revision": entry.revision, "updated": entry.facts.updated, "status": entry.stage.as_str(),
        "chart": entry.facts.chart, "appVersion": entry.facts.app_version, "resourceVersion": entry.version,
        "sent": entry.sent,
    });
    for (field, hash) in [("sentHash", &entry.sent_hash), ("sendingHash", &entry.sending_hash)] {
        if let Some(fields) = release.as_object_mut().filter(|_| !hash.is_empty()) {
            fields.insert(field.to_owned(), json!(hash));
        }
    }
    if let Some(fields) = release.as_object_mut().filter(|_| !entry.stored_in.is_empty()) {
        fields.insert("storageNamespace".to_owned(), json!(entry.stored_in));
    }
    if let (Some(fields), Some(rejected)) = (release.as_object_mut(), &entry.rejected) {
        fields.insert("rejected".to_owned(), rejected.to_json());
    }
    release
}

/// A JSON patch that replaces a status as a whole. It fails for a project that was deleted and created again.
pub(in crate::inventory) fn replacing(uid: &str, status: &Value) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_others_are_kept_in_a_project_that_is_ignored() {
        let status = json!({"conditions": [{"type": "Ready"}, {"type": "Installed"}, {"type": "Ignored"}, 7]});
        assert_eq!(others(&status).collect::<Vec<_>>(), [&json!({"type": "Installed"}), &json!(7)]);
        assert_eq!(others(&Value::Null).count(), 0);
    }

    fn entry(revision: u64) -> Entry {
        Entry {
            app_id: format!("A-{revision}"),
            is_given: revision == 7,
            revision,
            stage: Stage::Failed,
            facts: Facts {
                updated: format!("2026-11-21T21:58:0{revision}Z"),
                chart: format!("chart-{revision}"),
                app_version: format!("1.{revision}"),
            },
            version: format!("10{revision}"),
            stored_in: if revision == 4 { "flux-system".to_owned() } else { String::new() },
            sent_hash: format!("5f0{revision}"),
            sent: revision + 10,
            sending_hash: if revision == 3 { "beef".to_owned() } else { String::new() },
            rejected: (revision == 4).then(|| Rejection {
                hash: "dead".into(),
                reason: "HTTP400".into(),
                target: "0a1b2c3d".into(),
            }),
        }
    }

    fn written() -> Written {
        let keys = [("default", "keycloak", 3), ("default", "web", 7), ("shop", "web", 4)];
        Written {
            cluster_id: "K-1".into(),
            registered: Registered {
                hash: "cafe".into(),
                sent: 2,
                sending_hash: "feed".into(),
                rejected: Some(Rejection { hash: "f00d".into(), reason: "HTTP413".into(), target: String::new() }),
            },
            entries: keys.map(|(namespace, name, revision)| (ObjectKey::new(namespace, name), entry(revision))).into(),
            conditions: vec![
                Condition::plain("Ready", true),
                Condition::because("Delivered", false, "HTTP503", "1 release waits since 22:04:11"),
            ],
        }
    }

    fn now() -> jiff::Timestamp {
        "2026-11-21T22:04:11.123456Z".parse().unwrap()
    }

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let status = written().to_json(now());
        let remembered = Remembered::of(&status);
        assert_eq!((remembered.cluster_id.as_deref(), remembered.registered), (Some("K-1"), written().registered));
        assert_eq!((remembered.entries, remembered.conditions), (written().entries, written().conditions));
        assert_eq!(Remembered::of(&Value::Null), Remembered::default());
    }

    #[test]
    fn a_status_has_the_fields_of_the_specification() {
        let status = written().to_json(now());
        assert_eq!(status["lastReconcileTimestamp"], "2026-11-21T22:04:11Z");
        let reconciled =
            json!({"keycloak": "default/keycloak 3", "default/web": "default/web 7", "shop/web": "shop/web 4"});
        assert_eq!(status["reconcileHelmReleases"], reconciled);
        assert_eq!(status["revision"], json!([3, 7, 4]));
        let web = json!({"name": "web", "namespace": "default", "appUUID": "A-7", "hossted_helm": true, "revision": 7,
            "updated": "2026-11-21T21:58:07Z", "status": "failed", "chart": "chart-7", "appVersion": "1.7",
            "resourceVersion": "107", "sentHash": "5f07", "sent": 17});
        assert_eq!(status["helmStatus"][1], web);
        assert_eq!(
            status["helmStatus"][2]["rejected"],
            json!({"hash": "dead", "reason": "HTTP400", "target": "0a1b2c3d"})
        );
        let of_registration = ["registeredHash", "registeringHash", "registrations"].map(|field| status[field].clone());
        assert_eq!(of_registration, [json!("cafe"), json!("feed"), json!(2)]);
        assert_eq!(status["rejectedRegistration"], json!({"hash": "f00d", "reason": "HTTP413", "target": ""}));
        let conditions = json!([{"type": "Ready", "status": "True"},
            {"type": "Delivered", "status": "False", "reason": "HTTP503", "message": "1 release waits since 22:04:11"}]);
        assert_eq!(status["conditions"], conditions);
    }

    #[test]
    fn a_long_string_is_cut_in_the_status_and_its_record_is_read_again() {
        let mut long = entry(3);
        assert_eq!(long.stored(), long);
        long.facts.chart = "é".repeat(1024);
        let stored = long.stored();
        assert_eq!((stored.facts.chart.as_str(), stored.version.as_str()), (&*"é".repeat(64), ""));
        assert_eq!(stored.stored(), stored);
    }

    #[test]
    fn no_release_takes_more_of_the_status_than_its_size() {
        for text in ["a", "é", "\"", "&"] {
            let text = text.repeat(1024);
            let hash = "0".repeat(64);
            let key = ObjectKey::new("n".repeat(63), "a".repeat(63));
            let largest = Entry {
                app_id: format!("A-{}", "0".repeat(64)),
                is_given: false,
                revision: u64::MAX,
                stage: Stage::Uninstalled,
                facts: Facts { updated: text.clone(), chart: text.clone(), app_version: text.clone() },
                version: "9".repeat(20),
                stored_in: "s".repeat(63),
                sent_hash: hash.clone(),
                sent: u64::MAX,
                sending_hash: hash.clone(),
                rejected: Some(Rejection { hash, reason: "HTTP422".into(), target: "0".repeat(8) }),
            };
            let size = Entry::size(&key, Some(&largest), None, None);
            let of = |entries: BTreeMap<ObjectKey, Entry>| {
                let json = Written { entries, ..written() }.to_json(now()).to_string();
                // As Go's JSON escapes it.
                json.replace('&', "\\u0026").len()
            };
            let taken = of([(key.clone(), largest.stored())].into()) - of(BTreeMap::new());
            let managed = format!("\"f:{key}\":{{}},").len();
            assert!(taken + managed <= size, "{taken} and {managed} of {size}");
            assert!(taken + managed + 300 > size, "it claims too much: {taken} and {managed} of {size}");
            // Nothing but the counter of posts is news of an entry.
            let version = largest.version.as_str().into();
            let newest = Revision {
                number: largest.revision,
                stage: Stage::Deployed,
                object: ObjectKey::new("s".repeat(63), "o"),
                version,
            };
            let unsent = Entry { sent: 0, ..largest };
            let before = Entry::size(&key, None, Some(&unsent.facts), Some(&newest));
            assert_eq!(before, Entry::size(&key, Some(&unsent), Some(&unsent.facts), Some(&newest)));
        }
    }

    #[test]
    fn ids_that_lead_elsewhere_and_entries_without_a_name_are_not_taken_over() {
        let of = |cluster: &str, release: Value| {
            Remembered::of(&json!({"clusterUUID": cluster, "helmStatus": [release, 7, null]}))
        };
        let whole = json!({"name": "web", "namespace": "shop", "appUUID": "A-1"});
        let least = of("K-../x", whole.clone());
        assert_eq!((least.cluster_id, least.entries.len()), (None, 1));
        for (field, value) in
            [("appUUID", json!("A-/x")), ("appUUID", json!("B-1")), ("name", Value::Null), ("namespace", json!(1))]
        {
            let mut wrong = whole.clone();
            wrong[field] = value;
            assert_eq!(of("K-1", wrong.clone()).entries.len(), 0, "{wrong}");
        }
    }
}

//! The content of a section's Lease, read and written as Kubernetes' own leader election does.
//!
//! All of them have the label [`LABEL`], so that one watch with one selector shows them all.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::Object;
use crate::config::{ResourceId, SectionName};

/// The label of every Lease of an election.
pub(super) const LABEL: &str = "towline.dev/election";
/// The value of [`LABEL`].
const SECTION: &str = "section";
/// The name of a Lease is this and the section's name.
pub(super) const PREFIX: &str = "towline-";
/// The duration of a Lease that does not name one.
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

/// The kind of Leases, as a watch names it.
pub(super) fn leases_id() -> ResourceId {
    ResourceId { plural: "leases".into(), version: "v1".into(), group: "coordination.k8s.io".into() }
}

pub(super) fn lease_name(section: &SectionName) -> String {
    format!("{PREFIX}{section}")
}

/// The Lease of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SectionRecord {
    /// The replica that holds it; `None` if it was released, or somebody struck it out.
    pub(super) holder: Option<Arc<str>>,
    /// How long a claim is valid without a renewal.
    pub(super) duration: Duration,
    /// How often the holder changed.
    pub(super) transitions: i32,
    /// When the holder acquired it, by the holder's clock. It distinguishes two terms of one holder. `None` if it was released.
    pub(super) acquired: Option<Arc<str>>,
    pub(super) version: Arc<str>,
}

impl SectionRecord {
    /// How long the section may run in another replica without a further change of the record.
    pub(super) fn held_for(&self) -> Duration {
        if self.holder.is_none() && self.acquired.is_none() { Duration::ZERO } else { self.duration }
    }

    /// Whether this record says the same as the one before it, so that the write in between was at most a renewal.
    pub(super) fn only_renews(&self, before: &Self) -> bool {
        Self { version: Arc::clone(&before.version), ..self.clone() } == *before
    }
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    spec: LeaseSpec,
}

/// Reads a Lease, with the name of its section; `None`: it does not belong to an election.
pub(super) fn read(object: &Object) -> Option<(String, SectionRecord)> {
    if !object.labels.contains_key(LABEL) {
        return None;
    }
    let section = object.key.name.strip_prefix(PREFIX)?.to_owned();
    let spec = serde_json::from_str::<Content>(object.content.as_str()).ok()?.spec;
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let record = SectionRecord {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()).map(Into::into),
        duration: seconds.map_or(DEFAULT_DURATION, Duration::from_secs),
        transitions: spec.lease_transitions.unwrap_or_default(),
        acquired: spec.acquire_time.map(|MicroTime(time)| micros(time).into()),
        version: Arc::clone(&object.resource_version),
    };
    Some((section, record))
}

/// The current time in the format of Leases, in microseconds, which also distinguish terms.
pub(super) fn now() -> String {
    micros(Timestamp::now())
}

fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// A term that a replica is about to begin.
pub(super) struct Acquisition<'a> {
    pub(super) identity: &'a str,
    pub(super) duration: Duration,
    /// When it begins, by [`now`].
    pub(super) acquired: &'a str,
    /// The record that it replaces.
    pub(super) before: Option<&'a SectionRecord>,
}

impl Acquisition<'_> {
    /// The number of changes of the holder, counted as Kubernetes does.
    pub(super) fn transitions(&self) -> i32 {
        self.before.map_or(0, |before| {
            let is_same = before.holder.as_deref() == Some(self.identity);
            before.transitions.saturating_add(i32::from(!is_same))
        })
    }

    fn spec(&self) -> Value {
        json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration.as_secs(),
            "acquireTime": self.acquired,
            "renewTime": self.acquired,
            "leaseTransitions": self.transitions(),
        })
    }

    /// The merge patch that acquires the Lease if it has not changed since it was seen, or the new Lease.
    pub(super) fn body(&self, name: &str, namespace: &str) -> Value {
        match self.before {
            Some(before) => json!({
                "metadata": {
                    "resourceVersion": &*before.version,
                    "labels": {LABEL: SECTION},
                },
                "spec": self.spec(),
            }),
            None => json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: SECTION}},
                "spec": self.spec(),
            }),
        }
    }
}

/// The merge patch that renews a term, if the Lease still has this version.
pub(super) fn renewal(version: &str) -> Value {
    // Whoever took the label away hid the Lease from the other replicas.
    json!({"metadata": {"resourceVersion": version, "labels": {LABEL: SECTION}}, "spec": {"renewTime": now()}})
}

/// The merge patch that ends a term, if the Lease still has this version.
pub(super) fn release(version: &str) -> Value {
    json!({
        "metadata": {"resourceVersion": version},
        "spec": {"holderIdentity": null, "acquireTime": null, "renewTime": now()},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Decoded;

    fn object(mut lease: Value) -> Object {
        lease["metadata"]["uid"] = json!("lease-uid");
        lease["metadata"]["resourceVersion"] = json!("17");
        serde_json::from_str::<Decoded>(&lease.to_string()).expect("a lease").into_object()
    }

    #[test]
    fn an_acquired_lease_is_read_as_written_and_counts_changes_of_the_holder_only() {
        let acquired = now();
        let mut acquisition =
            Acquisition { identity: "a_1", duration: Duration::from_secs(7), acquired: &acquired, before: None };
        let section: SectionName = "databases".parse().unwrap();
        let lease = acquisition.body(&lease_name(&section), "towline");
        let Some((name, record)) = read(&object(lease)) else { panic!("not a section's Lease") };
        let expected = SectionRecord {
            holder: Some("a_1".into()),
            duration: Duration::from_secs(7),
            transitions: 0,
            acquired: Some(acquired.as_str().into()),
            version: "17".into(),
        };
        assert_eq!((name.as_str(), &record), ("databases", &expected));
        acquisition.before = Some(&record);
        assert_eq!(acquisition.transitions(), 0, "the same holder");
        acquisition.identity = "b_2";
        assert_eq!(acquisition.transitions(), 1);
        let body = acquisition.body("", "");
        assert_eq!(body["metadata"]["resourceVersion"], "17", "a write must not replace a later version");
        let released = SectionRecord { holder: None, transitions: 4, ..record.clone() };
        assert_eq!(Acquisition { before: Some(&released), ..acquisition }.transitions(), 5);
    }

    #[test]
    fn a_foreign_lease_is_no_record_and_an_empty_holder_is_none() {
        let foreign = json!({"metadata": {"name": "towline-x", "namespace": "n"}, "spec": {"holderIdentity": "a"}});
        assert_eq!(read(&object(foreign)), None);
        let empty = json!({
            "metadata": {"name": "towline-x", "namespace": "n", "labels": {LABEL: SECTION}},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
        });
        let Some((_, record)) = read(&object(empty)) else { panic!("not a section's Lease") };
        assert_eq!(record.holder, None);
    }

    #[test]
    fn whatever_the_label_says_the_lease_is_seen_and_a_renewal_puts_it_back() {
        let labelled = json!({"metadata": {"name": "towline-x", "namespace": "n", "labels": {LABEL: "mine"}}});
        assert!(read(&object(labelled)).is_some());
        assert_eq!(renewal("17")["metadata"]["labels"], json!({LABEL: SECTION}));
    }
}

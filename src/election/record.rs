//! Leases as records: who holds a section, and which replicas there are.
//!
//! All of them bear the label [`LABEL`], so that one watch with one selector shows them all. A section's Lease is read
//! and written as Kubernetes' own leader election does; a replica's says which sections it runs for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cluster::Object;
use crate::config::{ResourceId, SectionName};

/// The label of every Lease of an election.
pub(super) const LABEL: &str = "towline.dev/election";
/// Its value on the Lease of a section.
const SECTION: &str = "section";
/// Its value on the Lease of a replica.
const REPLICA: &str = "replica";
/// The sections that a replica runs for, separated by commas.
const SECTIONS: &str = "towline.dev/sections";
/// On a section's Lease that was given up: who it was given up for.
const HEIR: &str = "towline.dev/heir";
/// What the Lease of a section is called: this and the section's name.
pub(super) const SECTION_PREFIX: &str = "towline-";
/// What the Lease of a replica is called: this and its identity.
const REPLICA_PREFIX: &str = "towline-replica-";
/// Of a Lease that does not say how long it lasts.
const UNSAID: Duration = Duration::from_secs(15);

/// The kind of Leases, as a watch names it.
pub(super) fn leases_id() -> ResourceId {
    ResourceId { plural: "leases".into(), version: "v1".into(), group: "coordination.k8s.io".into() }
}

/// What the Lease of a section is called.
pub(super) fn section_lease(section: &SectionName) -> String {
    format!("{SECTION_PREFIX}{section}")
}

/// What the Lease of a replica is called. Identities have letters and signs that names of objects must not have; where
/// one was changed for that, a piece of its hash tells it from others that are changed into the same.
pub(super) fn replica_lease(identity: &str) -> String {
    let is_plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_plain)
            && label.ends_with(is_plain)
            && label.chars().all(|character| is_plain(character) || character == '-')
    };
    if identity.split('.').all(is_label) {
        return format!("{REPLICA_PREFIX}{identity}");
    }
    let tame = |character: char| {
        let lower = character.to_ascii_lowercase();
        if is_plain(lower) { lower } else { '-' }
    };
    let tamed: String = identity.chars().map(tame).collect();
    let hash = Sha256::digest(identity).iter().take(4).fold(0_u32, |hash, byte| hash << 8 | u32::from(*byte));
    format!("{REPLICA_PREFIX}{tamed}-{hash:08x}")
}

/// The Lease of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeatRecord {
    /// Who holds it; `None` where it was given up.
    pub(super) holder: Option<Arc<str>>,
    /// Who it was given up for.
    pub(super) heir: Option<Arc<str>>,
    /// How long a claim lasts without being renewed.
    pub(super) duration: Duration,
    /// How often it changed hands.
    pub(super) transitions: i32,
    /// When the holder took it, in the holder's words; tells two terms of one holder apart.
    pub(super) acquired: Option<Arc<str>>,
    /// The Lease's UID.
    pub(super) uid: Arc<str>,
    /// The version of the record.
    pub(super) version: Arc<str>,
}

/// The Lease of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicaRecord {
    /// Who it is.
    pub(super) identity: Arc<str>,
    /// How long it counts as living without renewing.
    pub(super) duration: Duration,
    /// The sections that it runs for.
    pub(super) sections: BTreeSet<String>,
    /// The version of the record.
    pub(super) version: Arc<str>,
}

impl SeatRecord {
    /// Whether the other differs by having been written later at most: a renewal.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        Self { version: Arc::clone(&other.version), ..self.clone() } == *other
    }
}

impl ReplicaRecord {
    /// Whether the other differs by having been written later at most: a renewal.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.identity == other.identity && self.duration == other.duration && self.sections == other.sections
    }
}

/// A Lease of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Of this section.
    Seat(String, SeatRecord),
    /// Of a replica.
    Replica(ReplicaRecord),
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    spec: LeaseSpec,
}

/// What a Lease says; `None` where it is no record of an election.
pub(super) fn read(object: &Object) -> Option<Record> {
    let spec = serde_json::from_str::<Content>(object.content.as_str()).ok()?.spec;
    let holder: Option<Arc<str>> = spec.holder_identity.filter(|holder| !holder.is_empty()).map(Into::into);
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let duration = seconds.map_or(UNSAID, Duration::from_secs);
    let version = Arc::clone(&object.resource_version);
    match object.labels.get(LABEL).map(AsRef::as_ref) {
        Some(SECTION) => {
            let section = object.key.name.strip_prefix(SECTION_PREFIX)?.to_owned();
            let record = SeatRecord {
                heir: object.annotation(HEIR).filter(|_| holder.is_none()).map(Into::into),
                holder,
                duration,
                transitions: spec.lease_transitions.unwrap_or_default(),
                acquired: spec.acquire_time.map(|MicroTime(time)| micros(time).into()),
                uid: Arc::clone(&object.uid),
                version,
            };
            Some(Record::Seat(section, record))
        }
        Some(REPLICA) => {
            let sections = object.annotation(SECTIONS).unwrap_or_default();
            let sections = sections.split(',').filter(|section| !section.is_empty()).map(str::to_owned).collect();
            Some(Record::Replica(ReplicaRecord { identity: holder?, duration, sections, version }))
        }
        _ => None,
    }
}

/// The time now, as Leases have it: micro seconds, which also serve to tell terms apart.
pub(super) fn now() -> String {
    micros(Timestamp::now())
}

fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// A term that somebody is about to begin.
pub(super) struct Taking<'a> {
    pub(super) identity: &'a str,
    pub(super) duration: Duration,
    /// When, by [`now`].
    pub(super) acquired: &'a str,
    /// The record that it takes the place of.
    pub(super) before: Option<&'a SeatRecord>,
}

impl Taking<'_> {
    /// As Kubernetes counts: a change of holders.
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

    /// The merge patch that takes the Lease over, if it is still as it was seen; or the new Lease.
    pub(super) fn body(&self, name: &str, namespace: &str) -> Value {
        match self.before {
            Some(before) => json!({
                "metadata": {
                    "resourceVersion": &*before.version,
                    "labels": {LABEL: SECTION},
                    "annotations": {HEIR: null},
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

/// The merge patch that renews a term, if nobody has written the Lease since.
pub(super) fn renewal(version: &str) -> Value {
    json!({"metadata": {"resourceVersion": version}, "spec": {"renewTime": now()}})
}

/// The merge patch that gives a term up, for this heir where there is one, if nobody has written the Lease since.
pub(super) fn release(version: &str, heir: Option<&str>) -> Value {
    json!({
        "metadata": {"resourceVersion": version, "annotations": {HEIR: heir}},
        "spec": {"holderIdentity": null, "renewTime": now()},
    })
}

/// The Lease of a replica.
pub(super) fn replica(identity: &str, namespace: &str, duration: Duration, sections: &[SectionName]) -> Value {
    let sections: Vec<&str> = sections.iter().map(SectionName::as_str).collect();
    let time = now();
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": replica_lease(identity),
            "namespace": namespace,
            "labels": {LABEL: REPLICA},
            "annotations": {SECTIONS: sections.join(",")},
        },
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": duration.as_secs(),
            "acquireTime": time,
            "renewTime": time,
        },
    })
}

/// The merge patch that says that a replica lives.
pub(super) fn alive() -> Value {
    json!({"spec": {"renewTime": now()}})
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
    fn what_is_taken_is_read_again_and_counts_changes_of_holders_only() {
        let acquired = now();
        let mut taking =
            Taking { identity: "a_1", duration: Duration::from_secs(7), acquired: &acquired, before: None };
        let section: SectionName = "databases".parse().unwrap();
        let lease = taking.body(&section_lease(&section), "towline");
        let Some(Record::Seat(name, record)) = read(&object(lease)) else { panic!("no seat") };
        let expected = SeatRecord {
            holder: Some("a_1".into()),
            heir: None,
            duration: Duration::from_secs(7),
            transitions: 0,
            acquired: Some(acquired.as_str().into()),
            uid: "lease-uid".into(),
            version: "17".into(),
        };
        assert_eq!((name.as_str(), &record), ("databases", &expected));
        taking.before = Some(&record);
        assert_eq!(taking.transitions(), 0, "the same holder");
        taking.identity = "b_2";
        assert_eq!(taking.transitions(), 1);
        let body = taking.body("", "");
        assert_eq!(body["metadata"]["resourceVersion"], "17", "taken from whoever has it by now");
        let given_up = SeatRecord { holder: None, transitions: 4, ..record.clone() };
        assert_eq!(Taking { before: Some(&given_up), ..taking }.transitions(), 5);
    }

    #[test]
    fn who_a_section_is_given_up_for_is_read_until_somebody_has_it() {
        let acquired = now();
        let taking = Taking { identity: "a_1", duration: Duration::from_secs(7), acquired: &acquired, before: None };
        let mut lease = taking.body("towline-databases", "towline");
        let mut seat = |patch: &Value| {
            json_patch::merge(&mut lease, patch);
            match read(&object(lease.clone())) {
                Some(Record::Seat(_, record)) => record,
                other => panic!("{other:?}"),
            }
        };
        let given_up = seat(&release("17", Some("b_2")));
        assert_eq!((given_up.holder.as_deref(), given_up.heir.as_deref()), (None, Some("b_2")));
        let by_hand = seat(&json!({"spec": {"holderIdentity": "c_3"}}));
        assert_eq!((by_hand.holder.as_deref(), by_hand.heir.as_deref()), (Some("c_3"), None));
        assert_eq!(seat(&release("17", None)).heir, None, "one that leaves names nobody");
        seat(&release("17", Some("b_2")));
        seat(&Taking { identity: "b_2", before: Some(&given_up), ..taking }.body("", ""));
        assert_eq!(seat(&json!({"spec": {"holderIdentity": null}})).heir, None, "what was said for an earlier term");
    }

    #[test]
    fn a_replica_is_read_with_its_sections() {
        let sections = ["one", "two"].map(|name| name.parse().unwrap());
        let lease = replica("Host_ab.c", "towline", Duration::from_secs(9), &sections);
        let Some(Record::Replica(record)) = read(&object(lease)) else { panic!("no replica") };
        assert_eq!((&*record.identity, record.duration.as_secs()), ("Host_ab.c", 9));
        assert_eq!(record.sections, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
    }

    #[test]
    fn no_two_identities_share_a_lease_and_each_has_a_name_that_a_lease_may_have() {
        assert_eq!(replica_lease("host-1.a.b"), "towline-replica-host-1.a.b");
        let odd = ["host-1-a-b", "Host-1.a.b", "host-1_a.b", "host-1.a_b", "host-1_a_b", "host-1.-a", "host-1..a"];
        let names: BTreeSet<String> = odd.iter().map(|identity| replica_lease(identity)).collect();
        assert_eq!(names.len(), odd.len(), "{names:?}");
        let is_end = |end: char| end.is_ascii_lowercase() || end.is_ascii_digit();
        let is_label = |label: &str| label.starts_with(is_end) && label.ends_with(is_end);
        assert!(names.iter().all(|name| name.split('.').all(is_label) && !name.contains('_')), "{names:?}");
        assert!(replica_lease(&"_".repeat(200)).len() <= 253);
    }

    #[test]
    fn a_lease_of_somebody_else_is_no_record_and_an_empty_holder_none() {
        let foreign = json!({"metadata": {"name": "towline-x", "namespace": "n"}, "spec": {"holderIdentity": "a"}});
        assert_eq!(read(&object(foreign)), None);
        let empty = json!({
            "metadata": {"name": "towline-x", "namespace": "n", "labels": {LABEL: SECTION}},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
        });
        let Some(Record::Seat(_, record)) = read(&object(empty)) else { panic!("no seat") };
        assert_eq!(record.holder, None);
    }
}

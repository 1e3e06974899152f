//! The content of Leases: which replica holds a section, and which replicas there are.
//!
//! All of them have the label [`LABEL`], so that one watch with one selector shows them all. A section's Lease is read and
//! written as Kubernetes' own leader election does; a replica's Lease says which sections the replica is configured with.

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
/// The sections that a replica is configured with, separated by commas.
const SECTIONS: &str = "towline.dev/sections";
/// On a section's Lease that was released: the replica that it was released for.
const PREFERRED_HOLDER: &str = "towline.dev/preferred-holder";
/// The same as earlier releases write it. Every write that acquires or releases a Lease removes it. So where it is present
/// on a free Lease, a replica of an earlier release was the last to release it, and a [`PREFERRED_HOLDER`], which that
/// replica does not know and leaves in place, is out of date. A replica of an earlier release that prefers nobody leaves no
/// trace: then an outdated [`PREFERRED_HOLDER`] counts, which is put right by the next rebalancing.
const FORMER_PREFERRED_HOLDER: &str = "towline.dev/heir";
/// The name of a section's Lease is this and the section's name.
pub(super) const SECTION_PREFIX: &str = "towline-";
/// The name of a replica's Lease is this and its identity.
const REPLICA_PREFIX: &str = "towline-replica-";
/// The duration of a Lease that does not name one.
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

/// The kind of Leases, as a watch names it.
pub(super) fn leases_id() -> ResourceId {
    ResourceId { plural: "leases".into(), version: "v1".into(), group: "coordination.k8s.io".into() }
}

/// The name of a section's Lease.
pub(super) fn section_lease_name(section: &SectionName) -> String {
    format!("{SECTION_PREFIX}{section}")
}

/// The name of a replica's Lease. Identities may have characters that names of objects must not have. Where some were
/// replaced, a part of the identity's hash distinguishes it from others that become the same by replacement.
pub(super) fn replica_lease_name(identity: &str) -> String {
    let is_plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_plain)
            && label.ends_with(is_plain)
            && label.chars().all(|character| is_plain(character) || character == '-')
    };
    if identity.split('.').all(is_label) {
        return format!("{REPLICA_PREFIX}{identity}");
    }
    let replaced = |character: char| {
        let lower = character.to_ascii_lowercase();
        if is_plain(lower) { lower } else { '-' }
    };
    let replaced: String = identity.chars().map(replaced).collect();
    let hash = Sha256::digest(identity).iter().take(4).fold(0_u32, |hash, byte| hash << 8 | u32::from(*byte));
    format!("{REPLICA_PREFIX}{replaced}-{hash:08x}")
}

/// The Lease of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SectionRecord {
    /// The replica that holds it; `None` if it was released.
    pub(super) holder: Option<Arc<str>>,
    /// The replica that it was released for.
    pub(super) preferred_holder: Option<Arc<str>>,
    /// How long a claim is valid without a renewal.
    pub(super) duration: Duration,
    /// How often the holder changed.
    pub(super) transitions: i32,
    /// When the holder acquired it, by the holder's clock. It distinguishes two terms of one holder.
    pub(super) acquired: Option<Arc<str>>,
    /// The Lease's UID.
    pub(super) uid: Arc<str>,
    /// The version of the record.
    pub(super) version: Arc<str>,
}

/// The Lease of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicaRecord {
    /// The replica's name.
    pub(super) identity: Arc<str>,
    /// How long the replica counts as alive without a renewal.
    pub(super) duration: Duration,
    /// The sections that it is configured with.
    pub(super) sections: BTreeSet<String>,
    /// The version of the record.
    pub(super) version: Arc<str>,
}

impl SectionRecord {
    /// Whether this record says the same as the one before it, so that the write in between was at most a renewal.
    pub(super) fn only_renews(&self, before: &Self) -> bool {
        Self { version: Arc::clone(&before.version), ..self.clone() } == *before
    }
}

impl ReplicaRecord {
    /// Whether this record says the same as the one before it, so that the write in between was at most a renewal.
    pub(super) fn only_renews(&self, before: &Self) -> bool {
        self.identity == before.identity && self.duration == before.duration && self.sections == before.sections
    }
}

/// A Lease of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The Lease of this section.
    Section(String, SectionRecord),
    /// The Lease of a replica.
    Replica(ReplicaRecord),
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    spec: LeaseSpec,
}

/// Reads a Lease; `None`: it does not belong to an election.
pub(super) fn read(object: &Object) -> Option<Record> {
    let spec = serde_json::from_str::<Content>(object.content.as_str()).ok()?.spec;
    let holder: Option<Arc<str>> = spec.holder_identity.filter(|holder| !holder.is_empty()).map(Into::into);
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let duration = seconds.map_or(DEFAULT_DURATION, Duration::from_secs);
    let version = Arc::clone(&object.resource_version);
    match object.labels.get(LABEL).map(AsRef::as_ref) {
        Some(SECTION) => {
            let section = object.key.name.strip_prefix(SECTION_PREFIX)?.to_owned();
            let preferred = object.annotation(FORMER_PREFERRED_HOLDER).or_else(|| object.annotation(PREFERRED_HOLDER));
            let record = SectionRecord {
                preferred_holder: preferred.filter(|_| holder.is_none()).map(Into::into),
                holder,
                duration,
                transitions: spec.lease_transitions.unwrap_or_default(),
                acquired: spec.acquire_time.map(|MicroTime(time)| micros(time).into()),
                uid: Arc::clone(&object.uid),
                version,
            };
            Some(Record::Section(section, record))
        }
        Some(REPLICA) => {
            let sections = object.annotation(SECTIONS).unwrap_or_default();
            let sections = sections.split(',').filter(|section| !section.is_empty()).map(str::to_owned).collect();
            Some(Record::Replica(ReplicaRecord { identity: holder?, duration, sections, version }))
        }
        _ => None,
    }
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
                    "annotations": {PREFERRED_HOLDER: null, FORMER_PREFERRED_HOLDER: null},
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
    json!({"metadata": {"resourceVersion": version}, "spec": {"renewTime": now()}})
}

/// The merge patch that ends a term, in favour of the preferred holder if there is one, if the Lease still has this
/// version.
pub(super) fn release(version: &str, preferred_holder: Option<&str>) -> Value {
    json!({
        "metadata": {
            "resourceVersion": version,
            "annotations": {PREFERRED_HOLDER: preferred_holder, FORMER_PREFERRED_HOLDER: null},
        },
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
            "name": replica_lease_name(identity),
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

/// The merge patch that renews a replica's Lease.
pub(super) fn replica_renewal() -> Value {
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
    fn an_acquired_lease_is_read_as_written_and_counts_changes_of_the_holder_only() {
        let acquired = now();
        let mut acquisition =
            Acquisition { identity: "a_1", duration: Duration::from_secs(7), acquired: &acquired, before: None };
        let section: SectionName = "databases".parse().unwrap();
        let lease = acquisition.body(&section_lease_name(&section), "towline");
        let Some(Record::Section(name, record)) = read(&object(lease)) else { panic!("not a section's Lease") };
        let expected = SectionRecord {
            holder: Some("a_1".into()),
            preferred_holder: None,
            duration: Duration::from_secs(7),
            transitions: 0,
            acquired: Some(acquired.as_str().into()),
            uid: "lease-uid".into(),
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
    fn a_preferred_holder_is_read_until_a_replica_acquires_the_section() {
        let acquired = now();
        let acquisition =
            Acquisition { identity: "a_1", duration: Duration::from_secs(7), acquired: &acquired, before: None };
        let mut lease = acquisition.body("towline-databases", "towline");
        let mut after = |patch: &Value| {
            json_patch::merge(&mut lease, patch);
            match read(&object(lease.clone())) {
                Some(Record::Section(_, record)) => record,
                other => panic!("{other:?}"),
            }
        };
        let released = after(&release("17", Some("b_2")));
        assert_eq!((released.holder.as_deref(), released.preferred_holder.as_deref()), (None, Some("b_2")));
        let by_hand = after(&json!({"spec": {"holderIdentity": "c_3"}}));
        assert_eq!((by_hand.holder.as_deref(), by_hand.preferred_holder.as_deref()), (Some("c_3"), None));
        assert_eq!(after(&release("17", None)).preferred_holder, None, "a release for no replica in particular");
        after(&release("17", Some("b_2")));
        after(&Acquisition { identity: "b_2", before: Some(&released), ..acquisition }.body("", ""));
        let stale = after(&json!({"spec": {"holderIdentity": null}})).preferred_holder;
        assert_eq!(stale, None, "the preferred holder of an earlier term");
    }

    /// What the release before this one writes: it knows only [`FORMER_PREFERRED_HOLDER`].
    #[test]
    fn a_preferred_holder_of_an_earlier_release_overrides_the_one_before_it() {
        let acquisition =
            Acquisition { identity: "old_1", duration: Duration::from_secs(7), acquired: &now(), before: None };
        let mut lease = acquisition.body("towline-databases", "towline");
        let mut after = |patch: &Value| {
            json_patch::merge(&mut lease, patch);
            let former = lease["metadata"]["annotations"][FORMER_PREFERRED_HOLDER].as_str().map(str::to_owned);
            match read(&object(lease.clone())) {
                Some(Record::Section(_, record)) => (record, former),
                other => panic!("{other:?}"),
            }
        };
        let old_acquires = |identity: &str| json!({"metadata": {"annotations": {"towline.dev/heir": null}}, "spec": {"holderIdentity": identity}});
        let old_releases = |preferred: Option<&str>| json!({"metadata": {"annotations": {"towline.dev/heir": preferred}}, "spec": {"holderIdentity": null}});
        let preferred =
            |(record, _): &(SectionRecord, Option<String>)| record.preferred_holder.as_deref().map(str::to_owned);

        // An old replica hands over: a new one honours that, and removes the annotation when it acquires the Lease.
        let released = after(&old_releases(Some("new_2")));
        assert_eq!(preferred(&released).as_deref(), Some("new_2"));
        let (_, former) =
            after(&Acquisition { identity: "new_2", before: Some(&released.0), ..acquisition }.body("", ""));
        assert_eq!(former, None, "an old replica would find it in a later release");
        // A new replica hands over: to an old one there is no preference.
        let released = after(&release("17", Some("old_1")));
        assert_eq!((preferred(&released).as_deref(), released.1), (Some("old_1"), None));
        // The old replica that acquires it leaves our annotation in place. Its own next release overrides it.
        after(&old_acquires("old_1"));
        assert_eq!(preferred(&after(&old_releases(Some("new_3")))).as_deref(), Some("new_3"));
        // Also where a person has put a holder in, our next release removes what the old one wrote.
        after(&json!({"spec": {"holderIdentity": "new_3"}}));
        let released = after(&release("17", None));
        assert_eq!((preferred(&released), released.1), (None, None));
    }

    #[test]
    fn a_replicas_lease_is_read_with_its_sections() {
        let sections = ["one", "two"].map(|name| name.parse().unwrap());
        let lease = replica("Host_ab.c", "towline", Duration::from_secs(9), &sections);
        let Some(Record::Replica(record)) = read(&object(lease)) else { panic!("not a replica's Lease") };
        assert_eq!((&*record.identity, record.duration.as_secs()), ("Host_ab.c", 9));
        assert_eq!(record.sections, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
    }

    #[test]
    fn no_two_identities_share_a_lease_and_every_name_of_a_lease_is_valid() {
        assert_eq!(replica_lease_name("host-1.a.b"), "towline-replica-host-1.a.b");
        let odd = ["host-1-a-b", "Host-1.a.b", "host-1_a.b", "host-1.a_b", "host-1_a_b", "host-1.-a", "host-1..a"];
        let names: BTreeSet<String> = odd.iter().map(|identity| replica_lease_name(identity)).collect();
        assert_eq!(names.len(), odd.len(), "{names:?}");
        let is_end = |end: char| end.is_ascii_lowercase() || end.is_ascii_digit();
        let is_label = |label: &str| label.starts_with(is_end) && label.ends_with(is_end);
        assert!(names.iter().all(|name| name.split('.').all(is_label) && !name.contains('_')), "{names:?}");
        assert!(replica_lease_name(&"_".repeat(200)).len() <= 253);
    }

    #[test]
    fn a_foreign_lease_is_no_record_and_an_empty_holder_is_none() {
        let foreign = json!({"metadata": {"name": "towline-x", "namespace": "n"}, "spec": {"holderIdentity": "a"}});
        assert_eq!(read(&object(foreign)), None);
        let empty = json!({
            "metadata": {"name": "towline-x", "namespace": "n", "labels": {LABEL: SECTION}},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
        });
        let Some(Record::Section(_, record)) = read(&object(empty)) else { panic!("not a section's Lease") };
        assert_eq!(record.holder, None);
    }
}

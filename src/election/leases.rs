//! The requests for Leases. Each is one write that the API server refuses if the Lease has changed since it was read.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use super::record::{self, Acquisition, SectionRecord};
use crate::cluster::{Cluster, Error, FIELD_MANAGER, Kind, ObjectKey, Payload, Request, Verb, Written};
use crate::config::{ElectionConfig, SectionName};

/// The part of a lease's duration that a request other than a renewal may take.
const PATIENT_PART: (u32, u32) = (2, 3);

/// The Leases of one namespace. Their requests don't wait for other requests.
pub(super) struct Leases {
    /// For renewals, with a short timeout that leaves time for another attempt.
    quick: Cluster,
    /// For requests that are as useful when they take longer.
    patient: Cluster,
    kind: Kind,
    namespace: String,
    /// How acquisitions have failed since the last one that succeeded, of whatever section.
    failing: Mutex<BTreeSet<String>>,
}

impl Leases {
    /// A renewal times out after the renewal interval. Any other request may take most of the lease's duration: with a
    /// shorter timeout it would only be sent to a slow server once more.
    pub(super) fn new(cluster: &Cluster, config: &ElectionConfig) -> Self {
        let (part, whole) = PATIENT_PART;
        Self {
            quick: cluster.urgent(config.renew_interval),
            patient: cluster.urgent(config.lease_duration * part / whole),
            kind: Kind::lease(),
            namespace: config.namespace.clone(),
            failing: Mutex::default(),
        }
    }

    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(self.namespace.as_str(), name)
    }

    async fn write(&self, cluster: &Cluster, verb: Verb, name: &str, body: &Value) -> Result<Written, Error> {
        let payload = if verb == Verb::Patch { Payload::merge_patch(body) } else { Payload::json(body) };
        cluster.write(Request::new(verb, &self.kind, &self.key(name), payload).by(FIELD_MANAGER)).await
    }

    /// Acquires a section's Lease. Returns its new version.
    pub(super) async fn acquire(
        &self,
        section: &SectionName,
        acquisition: &Acquisition<'_>,
    ) -> Result<Arc<str>, Error> {
        let name = record::lease_name(section);
        let verb = if acquisition.before.is_some() { Verb::Patch } else { Verb::Create };
        let body = acquisition.body(&name, &self.namespace);
        let version = self.write(&self.patient, verb, &name, &body).await?.resource_version;
        self.failing.lock().clear();
        Ok(version)
    }

    /// Notes that an acquisition failed; whether none has failed in this way since the last one that succeeded.
    pub(super) fn is_news(&self, kind: &str) -> bool {
        self.failing.lock().insert(kind.to_owned())
    }

    /// Renews a term whose last version is this one. Returns the new version.
    pub(super) async fn renew(&self, section: &SectionName, version: &str) -> Result<Arc<str>, Error> {
        let name = record::lease_name(section);
        Ok(self.write(&self.quick, Verb::Patch, &name, &record::renewal(version)).await?.resource_version)
    }

    /// Ends a term whose last version is this one.
    pub(super) async fn release(&self, section: &SectionName, version: &str) -> Result<(), Error> {
        let body = record::release(version);
        self.write(&self.patient, Verb::Patch, &record::lease_name(section), &body).await.map(|_| ())
    }

    /// Reads the record of a section from the API server.
    pub(super) async fn read(&self, section: &SectionName) -> Result<Option<SectionRecord>, Error> {
        let found = self.quick.get(&self.kind, &self.key(&record::lease_name(section))).await?;
        Ok(found.as_ref().and_then(record::read).map(|(_, record)| record))
    }
}

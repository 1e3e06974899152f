//! The requests for Leases. Each is one write that the API server refuses if the Lease has changed since it was read.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::record::{self, Acquisition, Record, SectionRecord};
use crate::cluster::{
    Cluster, Error, FIELD_MANAGER, Kind, Object, ObjectKey, Payload, Propagation, Request, Verb, Written,
};
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
        }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
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
        let name = record::section_lease_name(section);
        let verb = if acquisition.before.is_some() { Verb::Patch } else { Verb::Create };
        let body = acquisition.body(&name, &self.namespace);
        Ok(self.write(&self.patient, verb, &name, &body).await?.resource_version)
    }

    /// Renews a term whose last version is this one. Returns the new version.
    pub(super) async fn renew(&self, section: &SectionName, version: &str) -> Result<Arc<str>, Error> {
        let name = record::section_lease_name(section);
        Ok(self.write(&self.quick, Verb::Patch, &name, &record::renewal(version)).await?.resource_version)
    }

    /// Ends a term whose last version is this one, in favour of the preferred holder if there is one.
    pub(super) async fn release(
        &self,
        section: &SectionName,
        version: &str,
        preferred_holder: Option<&str>,
    ) -> Result<(), Error> {
        let body = record::release(version, preferred_holder);
        self.write(&self.patient, Verb::Patch, &record::section_lease_name(section), &body).await.map(|_| ())
    }

    /// Reads the record of a section from the API server.
    pub(super) async fn read(&self, section: &SectionName) -> Result<Option<SectionRecord>, Error> {
        let found = self.quick.get(&self.kind, &self.key(&record::section_lease_name(section))).await?;
        Ok(found.as_ref().and_then(record::read).and_then(|record| match record {
            Record::Section(_, record) => Some(record),
            Record::Replica(_) => None,
        }))
    }

    /// Creates a replica's Lease, or replaces the one that is there.
    pub(super) async fn create_replica(
        &self,
        identity: &str,
        duration: Duration,
        sections: &[SectionName],
    ) -> Result<(), Error> {
        let name = record::replica_lease_name(identity);
        let lease = record::replica(identity, &self.namespace, duration, sections);
        match self.write(&self.patient, Verb::Create, &name, &lease).await {
            // The last process of this identity left it, or a request of this one whose answer was lost.
            Err(Error::Conflict { exists: true, .. }) => {
                self.write(&self.patient, Verb::Patch, &name, &lease).await.map(|_| ())
            }
            result => result.map(|_| ()),
        }
    }

    /// Renews a replica's Lease.
    pub(super) async fn renew_replica(&self, identity: &str) -> Result<(), Error> {
        self.write(&self.quick, Verb::Patch, &record::replica_lease_name(identity), &record::replica_renewal())
            .await
            .map(|_| ())
    }

    /// Deletes the Lease of a replica that shuts down.
    pub(super) async fn delete_replica(&self, identity: &str) -> Result<(), Error> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        match self.write(&self.patient, Verb::Delete, &record::replica_lease_name(identity), &options).await {
            Err(Error::NotFound { .. }) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Deletes the Lease of a dead replica, if it has not changed since it was seen.
    pub(super) async fn delete_abandoned(&self, lease: &Object) -> Result<(), Error> {
        self.patient.delete(&self.kind, lease, Propagation::Background).await.map(|_| ())
    }
}

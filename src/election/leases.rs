//! The Leases as requests: taken, renewed, given up, each by one write that only goes through if nobody has written since.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::record::{self, Record, SeatRecord, Taking};
use crate::cluster::{
    Cluster, Error, FIELD_MANAGER, Kind, Object, ObjectKey, Payload, Propagation, Request, Verb, Written,
};
use crate::config::{ElectionConfig, SectionName};

/// The part of a lease that a request other than a renewal may take.
const PATIENCE: (u32, u32) = (2, 3);

/// The Leases of one namespace. Their requests wait behind no others.
pub(super) struct Leases {
    /// For renewals: there is time for another one.
    quick: Cluster,
    /// For what is not worth less when it takes longer.
    patient: Cluster,
    kind: Kind,
    namespace: String,
}

impl Leases {
    /// A renewal has the interval for its answer. Anything else has most of a lease: given up sooner, it would only be
    /// asked of a slow server once more.
    pub(super) fn new(cluster: &Cluster, config: &ElectionConfig) -> Self {
        let (part, whole) = PATIENCE;
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

    /// Takes a section that is as `taking` says; the reply's version is that of the new term.
    pub(super) async fn take(&self, section: &SectionName, taking: &Taking<'_>) -> Result<Arc<str>, Error> {
        let name = record::section_lease(section);
        let verb = if taking.before.is_some() { Verb::Patch } else { Verb::Create };
        Ok(self.write(&self.patient, verb, &name, &taking.body(&name, &self.namespace)).await?.resource_version)
    }

    /// Renews a term whose last version is this one.
    pub(super) async fn renew(&self, section: &SectionName, version: &str) -> Result<Arc<str>, Error> {
        let name = record::section_lease(section);
        Ok(self.write(&self.quick, Verb::Patch, &name, &record::renewal(version)).await?.resource_version)
    }

    /// Gives a term up whose last version is this one, for this heir where there is one.
    pub(super) async fn release(&self, section: &SectionName, version: &str, heir: Option<&str>) -> Result<(), Error> {
        self.write(&self.patient, Verb::Patch, &record::section_lease(section), &record::release(version, heir))
            .await
            .map(|_| ())
    }

    /// The record of a section as it is now.
    pub(super) async fn read(&self, section: &SectionName) -> Result<Option<SeatRecord>, Error> {
        let found = self.quick.get(&self.kind, &self.key(&record::section_lease(section))).await?;
        Ok(found.as_ref().and_then(record::read).and_then(|record| match record {
            Record::Seat(_, record) => Some(record),
            Record::Replica(_) => None,
        }))
    }

    /// Says that a replica lives; makes its Lease where there is none.
    pub(super) async fn enrol(
        &self,
        identity: &str,
        duration: Duration,
        sections: &[SectionName],
    ) -> Result<(), Error> {
        let name = record::replica_lease(identity);
        let lease = record::replica(identity, &self.namespace, duration, sections);
        match self.write(&self.patient, Verb::Create, &name, &lease).await {
            // Of this identity's last process, or of a request whose answer was lost.
            Err(Error::Conflict { exists: true, .. }) => {
                self.write(&self.patient, Verb::Patch, &name, &lease).await.map(|_| ())
            }
            result => result.map(|_| ()),
        }
    }

    /// Says that a replica still lives.
    pub(super) async fn stay(&self, identity: &str) -> Result<(), Error> {
        self.write(&self.quick, Verb::Patch, &record::replica_lease(identity), &record::alive()).await.map(|_| ())
    }

    /// A replica leaves.
    pub(super) async fn leave(&self, identity: &str) -> Result<(), Error> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        match self.write(&self.patient, Verb::Delete, &record::replica_lease(identity), &options).await {
            Err(Error::NotFound { .. }) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Takes away the Lease of a replica that is gone, if it is still as it was seen.
    pub(super) async fn forget(&self, lease: &Object) -> Result<(), Error> {
        self.patient.delete(&self.kind, lease, Propagation::Background).await.map(|_| ())
    }
}

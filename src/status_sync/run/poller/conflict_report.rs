//! Reports another writer that keeps editing our fields: once per object, in the log, in the report and as an Event.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::watch;

use super::family_report::FamilyReport;
use crate::cluster::{Cluster, FIELD_MANAGER, Kind, ObjectKey};
use crate::status_sync::config::StatusFamily;

/// A conflict over the fields of an object.
pub(super) struct ConflictReport {
    pub(super) family: StatusFamily,
    pub(super) cluster: Cluster,
    pub(super) kind: Arc<Kind>,
    /// The subresource that has our fields: `status`, or empty.
    pub(super) subresource: &'static str,
    pub(super) object: ObjectKey,
    pub(super) report: watch::Sender<FamilyReport>,
}

impl ConflictReport {
    /// Looks up the other writer, and reports it. Failures are not retried, since the corrections are counted anyway. Must
    /// be called before our write corrects the fields, because that removes the other writer from `managedFields`.
    pub(super) async fn send(self) {
        let Some(session) = self.cluster.session() else { return };
        let client = session.connection.client();
        let managers = self.cluster.other_managers(&self.kind, &self.object, &[self.subresource]).await;
        let who = match managers.as_slice() {
            [] => "another field manager".to_owned(),
            names => format!("field manager {}", names.join(", ")),
        };
        let (family, object) = (self.family.as_str(), &self.object);
        tracing::warn!(family, %object, who, "another writer keeps changing fields that the database decides");
        self.report.send_modify(|report| report.conflicts.add(1, || format!("{object}: {who}")));
        let reference = ObjectReference {
            api_version: Some(self.kind.resource.api_version.clone()),
            kind: Some(self.kind.resource.kind.clone()),
            namespace: (!object.namespace.is_empty()).then(|| object.namespace.to_string()),
            name: Some(object.name.to_string()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: "Contended".into(),
            note: Some(format!("{who} keeps changing fields that the hub's database decides; they are set back")),
            action: "Sync".into(),
            secondary: None,
        };
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: None };
        if let Err(error) = Recorder::new(client, reporter).publish(&event, &reference).await {
            tracing::debug!(family, %object, %error, "event was not written");
        }
    }
}

//! What is told of a pair in Events: on its local object and, if the local cluster rejects the object, on the remote one.

use std::sync::Arc;

use crate::cluster::events::{EventType, ObjectEvent};
use crate::cluster::{Object, ObjectKey};
use crate::config::ClusterName;
use crate::resource_sync::plan::server_result::Unkept;
use crate::resource_sync::plan::step::Contended;
use crate::resource_sync::run::section::Section;

/// Something that happened to a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairEvent {
    key: ObjectKey,
    /// `None` for a local object that could not be created.
    uid: Option<Arc<str>>,
    kind: EventKind,
    note: String,
    action: &'static str,
    /// Whether it is about the remote object, and is written to the remote cluster.
    on_remote: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    SyncFailed,
    Contended,
    Paused,
    Synced,
    Held,
    Adopted,
    FieldsNotKept,
}

impl PairEvent {
    /// About a local object, if it exists.
    fn new(key: &ObjectKey, local: Option<&Object>, kind: EventKind, note: String) -> Self {
        let uid = local.map(|local| Arc::clone(&local.uid));
        Self { key: key.clone(), uid, kind, note, action: "Sync", on_remote: false }
    }

    fn about(local: &Object, kind: EventKind, note: String) -> Self {
        Self::new(&local.key, Some(local), kind, note)
    }

    /// A step has failed. `local` is the local object, if it exists.
    pub fn failed(key: &ObjectKey, local: Option<&Object>, step: &str, reason: &str) -> Self {
        Self::new(key, local, EventKind::SyncFailed, format!("{step}: {reason}"))
    }

    /// The local cluster rejects the remote object's content.
    pub fn rejected(remote: &Object, local: &ClusterName, step: &str, reason: &str) -> Self {
        let note = format!("cluster {local} rejects the object: {step}: {reason}");
        Self { on_remote: true, ..Self::about(remote, EventKind::SyncFailed, note) }
    }

    /// Another client keeps undoing our writes: who does what. `local` is the local object, if it exists.
    pub fn contended(key: &ObjectKey, local: Option<&Object>, what: &Contended, cause: &str) -> Self {
        let note = format!("{cause}; towline writes it again every 30 seconds");
        Self { action: what.action(), ..Self::new(key, local, EventKind::Contended, note) }
    }

    /// The pair is paused; `unclear` if the annotation is neither true nor false.
    pub fn paused(key: &ObjectKey, local: Option<&Object>, unclear: Option<&str>) -> Self {
        let rule = "nothing is synced while the object is paused";
        let note = unclear.map_or_else(|| rule.to_owned(), |problem| format!("{problem}; {rule}"));
        Self::new(key, local, EventKind::Paused, note)
    }

    /// The API server of a cluster does not keep fields as they were written.
    pub fn fields_not_kept(local: &Object, cluster: &ClusterName, fields: &Unkept) -> Self {
        let list = fields.list();
        let note = format!(
            "the API server of cluster {cluster} does not keep {list} as written: compare the definitions of the kind"
        );
        Self::about(local, EventKind::FieldsNotKept, note)
    }

    /// Many objects wait for an operator's approval, among them this one.
    pub fn held(local: &Object, note: String) -> Self {
        Self::about(local, EventKind::Held, note)
    }

    /// A local object that existed before its remote object was adopted.
    pub fn adopted(local: &Object, note: String) -> Self {
        Self::about(local, EventKind::Adopted, note)
    }

    /// The pair is in step again after a failure.
    pub fn synced(local: &Object) -> Self {
        Self::about(local, EventKind::Synced, "in step again".into())
    }
}

impl EventKind {
    fn reason(self) -> &'static str {
        match self {
            Self::SyncFailed => "SyncFailed",
            Self::Contended => "Contended",
            Self::Paused => "Paused",
            Self::Synced => "Synced",
            Self::Held => "MassChangeHeld",
            Self::Adopted => "Adopted",
            Self::FieldsNotKept => "FieldsNotKept",
        }
    }

    fn severity(self) -> EventType {
        match self {
            Self::SyncFailed | Self::Contended | Self::Held | Self::FieldsNotKept => EventType::Warning,
            Self::Paused | Self::Synced | Self::Adopted => EventType::Normal,
        }
    }
}

impl Section {
    /// Emits an Event, unless it is a dry run. A full mailbox drops and counts it.
    pub(crate) fn emit_event(&self, event: PairEvent) {
        let PairEvent { key, uid, kind: event_kind, note, action, on_remote } = event;
        let (cluster, kind) = if on_remote {
            (self.remote_cluster(), self.remote_kind())
        } else {
            (self.local_cluster(), self.local_kind())
        };
        let Some(kind) = kind.filter(|_| !self.config.dry_run) else { return };
        self.events.offer(ObjectEvent {
            cluster: cluster.clone(),
            kind,
            key,
            uid,
            severity: event_kind.severity(),
            reason: event_kind.reason(),
            action,
            note,
        });
    }
}

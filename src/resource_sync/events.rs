//! Events on local objects: what a person with `kubectl describe` should know.
//!
//! They are hints: a full mailbox drops them, and each is told once per change of state, never once per retry. kube's
//! recorder aggregates repeated ones into a series.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::contention::Contended;
use super::section::Section;
use super::unkept::Unkept;
use crate::actor::{BoxError, Inbox, Mailbox, Scope};
use crate::cluster::{FIELD_MANAGER, Kind, Object, ObjectKey, other_managers};
use crate::config::ClusterName;

/// Events that wait to be written; a section that fails as a whole needs no more of them to be understood.
pub const EVENT_CAPACITY: usize = 256;

/// How often a contended object is looked at for the other manager's name ...
const LOOKS: usize = 5;
/// ... with this in between.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Where a section's reconcilers put Events.
pub type EventMailbox = Mailbox<PairEvent>;

/// Something that happened to a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairEvent {
    key: ObjectKey,
    /// `None` for a local object that could not be made.
    uid: Option<Arc<str>>,
    kind: EventKind,
    note: String,
    /// What is contended, and the remote object; who contends it is found when the Event is written.
    contended: Option<(Contended, ObjectKey)>,
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
    fn new(local: &Object, kind: EventKind, note: String) -> Self {
        Self { key: local.key.clone(), uid: Some(Arc::clone(&local.uid)), kind, note, contended: None }
    }

    /// A step failed; `local` where the local object exists.
    pub fn failed(key: &ObjectKey, local: Option<&Object>, step: &str, reason: &str) -> Self {
        Self {
            key: key.clone(),
            uid: local.map(|local| Arc::clone(&local.uid)),
            kind: EventKind::SyncFailed,
            note: format!("{step}: {reason}"),
            contended: None,
        }
    }

    /// Somebody else keeps undoing what we write; who is found when the Event is written.
    pub fn contended(local: &Object, remote_key: &ObjectKey, what: Contended) -> Self {
        let contended = Some((what, remote_key.clone()));
        Self { contended, ..Self::new(local, EventKind::Contended, String::new()) }
    }

    /// Nothing is done while it is paused; `unclear` where the annotation is neither true nor false.
    pub fn paused(key: &ObjectKey, local: Option<&Object>, unclear: Option<&str>) -> Self {
        let rule = "nothing is synced while the object is paused";
        Self {
            key: key.clone(),
            uid: local.map(|local| Arc::clone(&local.uid)),
            kind: EventKind::Paused,
            note: unclear.map_or_else(|| rule.to_owned(), |problem| format!("{problem}; {rule}")),
            contended: None,
        }
    }

    /// The API server of a cluster does not keep fields as they were written.
    pub fn fields_not_kept(local: &Object, cluster: &ClusterName, fields: &Unkept) -> Self {
        let list = fields.list();
        let note = format!(
            "the API server of cluster {cluster} does not keep {list} as the other side has it: see its definition of the kind"
        );
        Self::new(local, EventKind::FieldsNotKept, note)
    }

    /// Many objects wait for an operator's approval, this one among them.
    pub fn held(local: &Object, note: String) -> Self {
        Self::new(local, EventKind::Held, note)
    }

    /// An object that was there before its remote one has been taken over.
    pub fn adopted(local: &Object, note: String) -> Self {
        Self::new(local, EventKind::Adopted, note)
    }

    /// In step again after a failure.
    pub fn synced(local: &Object) -> Self {
        Self::new(local, EventKind::Synced, "in step again".into())
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

    fn event_type(self) -> EventType {
        match self {
            Self::SyncFailed | Self::Contended | Self::Held | Self::FieldsNotKept => EventType::Warning,
            Self::Paused | Self::Synced | Self::Adopted => EventType::Normal,
        }
    }
}

/// The body of the actor that writes the Events of one section to its local cluster.
pub async fn write_events(section: Arc<Section>, mut inbox: Inbox<PairEvent>, scope: Scope) -> Result<(), BoxError> {
    let (cluster, local) = (section.local_cluster(), &section.watches().local);
    let mut recorder: Option<(u64, Recorder)> = None;
    loop {
        let event = tokio::select! {
            () = scope.draining() => return Ok(()),
            event = inbox.next() => event,
        };
        let Some(mut event) = event else { return Ok(()) };
        let Some(session) = cluster.session() else { continue };
        let Some(kind) = local.kind().filter(|_| cluster.is_available()) else { continue };
        let mut action = "Sync";
        if let Some((what, remote_key)) = event.contended.take() {
            action = what.action();
            let others = tokio::select! {
                () = scope.draining() => return Ok(()),
                others = contenders(&section, &what, &event.key, &remote_key) => others,
            };
            event.note = format!("{others} keeps changing {what}: it is written again, once in half a minute");
            tracing::warn!(section = %section.name(), key = %event.key, note = event.note, "another writer keeps changing what the section writes");
        }
        let recorder = match &recorder {
            Some((epoch, recorder)) if *epoch == session.epoch => recorder,
            _ => {
                let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: None };
                &recorder.insert((session.epoch, Recorder::new(session.connection.client(), reporter))).1
            }
        };
        let reference = ObjectReference {
            api_version: Some(kind.resource.api_version.clone()),
            kind: Some(kind.resource.kind.clone()),
            namespace: (!event.key.namespace.is_empty()).then(|| event.key.namespace.to_string()),
            name: Some(event.key.name.to_string()),
            uid: event.uid.as_ref().map(ToString::to_string),
            ..ObjectReference::default()
        };
        let published = Event {
            type_: event.kind.event_type(),
            reason: event.kind.reason().into(),
            note: Some(event.note),
            action: action.into(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&published, &reference).await {
            tracing::debug!(key = %event.key, %error, "event was not written");
        }
    }
}

/// Which other managers the contended object has, as the Event says it.
///
/// Right after a rewrite of ours the other manager owns none of the fields, and is not among them: it comes again, while
/// we hold back, so this looks a moment later, and again. Newest first: others may have made the object.
async fn contenders(section: &Section, what: &Contended, local_key: &ObjectKey, remote_key: &ObjectKey) -> String {
    let is_remote =
        matches!(what, Contended::Status | Contended::Finalizer | Contended::Generations | Contended::Secret(_));
    let (cluster, key, kind) = if is_remote {
        (section.remote_cluster(), remote_key, section.remote_kind())
    } else {
        (section.local_cluster(), local_key, section.local_kind())
    };
    let secret = Kind::core("Secret", "secrets", true);
    let (key, resource) = match what {
        Contended::Secret(name) => {
            let name = section.mapping().remote_secret_name(name);
            (ObjectKey::new(Arc::clone(&key.namespace), name), Some(&secret.resource))
        }
        Contended::SecretHash(name) => {
            (ObjectKey::new(Arc::clone(&key.namespace), Arc::clone(name)), Some(&secret.resource))
        }
        _ => (key.clone(), kind.as_ref().map(|kind| &kind.resource)),
    };
    let has_subresource = kind.as_ref().is_some_and(|kind| kind.status_subresource);
    let subresource = if *what == Contended::Status && has_subresource { "status" } else { "" };
    let somebody = format!("another field manager on cluster {}", cluster.name());
    let (Some(session), Some(resource)) = (cluster.session(), resource) else { return somebody };
    let client = session.connection.client();
    for _ in 0..LOOKS {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let Some(names) = other_managers(&client, resource, &key, subresource).await else { break };
        if !names.is_empty() {
            return format!("field manager {} on cluster {}", names.join(", "), cluster.name());
        }
    }
    somebody
}

//! Events on local objects: what a person with `kubectl describe` should know.
//!
//! They are hints: a full mailbox drops them, and each is told once per change of state, never once per retry. kube's
//! recorder aggregates repeated ones into a series.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::section::Section;
use crate::actor::{BoxError, Inbox, Mailbox, Scope};
use crate::cluster::{FIELD_MANAGER, Object, ObjectKey, other_managers};

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    SyncFailed,
    Contended,
    Paused,
    Synced,
    Held,
    Adopted,
}

impl PairEvent {
    fn new(local: &Object, kind: EventKind, note: String) -> Self {
        Self { key: local.key.clone(), uid: Some(Arc::clone(&local.uid)), kind, note }
    }

    /// A step failed; `local` where the local object exists.
    pub fn failed(key: &ObjectKey, local: Option<&Object>, step: &str, reason: &str) -> Self {
        Self {
            key: key.clone(),
            uid: local.map(|local| Arc::clone(&local.uid)),
            kind: EventKind::SyncFailed,
            note: format!("{step}: {reason}"),
        }
    }

    /// Somebody else keeps changing what the remote says; who is found when the Event is written.
    pub fn contended(local: &Object) -> Self {
        Self::new(local, EventKind::Contended, String::new())
    }

    /// Nothing is done while it is paused.
    pub fn paused(local: &Object) -> Self {
        Self::new(local, EventKind::Paused, "nothing is synced while the object is paused".into())
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
        }
    }

    fn event_type(self) -> EventType {
        match self {
            Self::SyncFailed | Self::Contended | Self::Held => EventType::Warning,
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
        if event.kind == EventKind::Contended {
            let client = session.connection.client();
            let others = tokio::select! {
                () = scope.draining() => return Ok(()),
                others = contenders(&client, &kind.resource, &event.key) => others,
            };
            event.note = format!("{others} keeps changing fields that the remote object sets; they are set back");
            tracing::warn!(key = %event.key, note = event.note, "another field manager keeps changing the object");
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
            action: "Sync".into(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&published, &reference).await {
            tracing::debug!(key = %event.key, %error, "event was not written");
        }
    }
}

/// Which other managers the object has, as the Event says it.
///
/// Right after a rewrite of ours the other manager owns none of the fields, and is not among them: it comes again, while
/// we hold back, so this looks again.
async fn contenders(client: &kube::Client, resource: &kube::core::ApiResource, key: &ObjectKey) -> String {
    for _ in 0..LOOKS {
        let Some(names) = other_managers(client, resource, key, "").await else { break };
        if !names.is_empty() {
            return format!("field manager {}", names.join(", "));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    "another field manager".to_owned()
}

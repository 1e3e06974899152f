//! Events on local objects, for users of `kubectl describe`, and on a remote object that the local cluster rejects, if the remote
//! role grants Events.
//!
//! Events are hints: a full mailbox drops them, and each is written once per change of state, never once per retry. kube's
//! recorder aggregates repeated Events into a series.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::Instant;

use crate::actor::{BoxError, Inbox, Mailbox, Scope};
use crate::cluster::{AccessRequest, Cluster, FIELD_MANAGER, Object, ObjectKey, Verb, Watch};
use crate::config::ClusterName;
use crate::job::permission::EVENTS;
use crate::resource_sync::plan::server_result::Unkept;
use crate::resource_sync::plan::step::Contended;
use crate::resource_sync::run::section::Section;

/// How many Events may wait to be written. A section that fails as a whole needs no more of them to be understood.
pub const EVENT_CAPACITY: usize = 256;

/// An optional permission may be granted at any time: after a denial it is reviewed again after this time.
const ASK_AGAIN: Duration = Duration::from_mins(5);
/// How long the end of the daemon waits for an Event that is being written: a cluster may never answer.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// The reviews of this many namespaces are kept. With more, all are forgotten and asked again.
const MOST_NAMESPACES: usize = 1024;

/// The mailbox for a section's Events.
pub type EventMailbox = Mailbox<PairEvent>;

/// Something that happened to a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairEvent {
    key: ObjectKey,
    /// `None` for a local object that could not be created.
    uid: Option<Arc<str>>,
    kind: EventKind,
    note: String,
    /// Events with the same reason and action form one series.
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
    fn new(local: &Object, kind: EventKind, note: String) -> Self {
        Self { key: local.key.clone(), uid: Some(Arc::clone(&local.uid)), kind, note, action: "Sync", on_remote: false }
    }

    /// A step has failed. `local` is the local object, if it exists.
    pub fn failed(key: &ObjectKey, local: Option<&Object>, step: &str, reason: &str) -> Self {
        Self {
            key: key.clone(),
            uid: local.map(|local| Arc::clone(&local.uid)),
            kind: EventKind::SyncFailed,
            note: format!("{step}: {reason}"),
            action: "Sync",
            on_remote: false,
        }
    }

    /// The local cluster rejects the remote object's content.
    pub fn rejected(remote: &Object, local: &ClusterName, step: &str, reason: &str) -> Self {
        let note = format!("cluster {local} rejects the object: {step}: {reason}");
        Self { on_remote: true, ..Self::new(remote, EventKind::SyncFailed, note) }
    }

    /// Another client keeps undoing our writes: who does what. `local` is the local object, if it exists.
    pub fn contended(key: &ObjectKey, local: Option<&Object>, what: &Contended, cause: &str) -> Self {
        Self {
            key: key.clone(),
            uid: local.map(|local| Arc::clone(&local.uid)),
            kind: EventKind::Contended,
            note: format!("{cause}; towline writes it again every 30 seconds"),
            action: what.action(),
            on_remote: false,
        }
    }

    /// The pair is paused; `unclear` if the annotation is neither true nor false.
    pub fn paused(key: &ObjectKey, local: Option<&Object>, unclear: Option<&str>) -> Self {
        let rule = "nothing is synced while the object is paused";
        Self {
            key: key.clone(),
            uid: local.map(|local| Arc::clone(&local.uid)),
            kind: EventKind::Paused,
            note: unclear.map_or_else(|| rule.to_owned(), |problem| format!("{problem}; {rule}")),
            action: "Sync",
            on_remote: false,
        }
    }

    /// The API server of a cluster does not keep fields as they were written.
    pub fn fields_not_kept(local: &Object, cluster: &ClusterName, fields: &Unkept) -> Self {
        let list = fields.list();
        let note = format!(
            "the API server of cluster {cluster} does not keep {list} as written: compare the definitions of the kind"
        );
        Self::new(local, EventKind::FieldsNotKept, note)
    }

    /// Many objects wait for an operator's approval, among them this one.
    pub fn held(local: &Object, note: String) -> Self {
        Self::new(local, EventKind::Held, note)
    }

    /// A local object that existed before its remote object was adopted.
    pub fn adopted(local: &Object, note: String) -> Self {
        Self::new(local, EventKind::Adopted, note)
    }

    /// The pair is in step again after a failure.
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

/// A cluster that Events are written to.
struct Destination<'s> {
    cluster: &'s Cluster,
    watch: &'s Watch,
    recorder: Option<(u64, Recorder)>,
    /// Whether Events are granted, by namespace, and when that was reviewed. `None` if the permission is required: then no review
    /// is sent.
    granted: Option<HashMap<Arc<str>, (Instant, bool)>>,
}

impl Destination<'_> {
    /// Whether Events may be written to a namespace. Optional Events are only sent if they are granted.
    async fn may_write(&mut self, namespace: &Arc<str>) -> bool {
        let Some(granted) = &mut self.granted else { return true };
        match granted.get(namespace) {
            Some((_, true)) => return true,
            Some((asked, false)) if asked.elapsed() < ASK_AGAIN => return false,
            _ => {}
        }
        // Events of cluster-scoped objects are in `default`.
        let place = if namespace.is_empty() { "default" } else { namespace };
        let request = AccessRequest::new(Verb::Create, EVENTS, place, "");
        let allowed = self.cluster.review_access(&request).await.is_ok_and(|decision| decision.allowed);
        if granted.len() >= MOST_NAMESPACES {
            granted.clear();
        }
        granted.insert(Arc::clone(namespace), (Instant::now(), allowed));
        allowed
    }
}

/// The actor that writes the Events of one section to its local cluster and, where they are granted, to the remote one.
pub async fn write_events(section: Arc<Section>, mut inbox: Inbox<PairEvent>, scope: Scope) -> Result<(), BoxError> {
    let destination = |cluster, watch, granted| Destination { cluster, watch, recorder: None, granted };
    let watches = section.watches();
    let mut at_local = destination(section.local_cluster(), &*watches.local, None);
    let mut at_remote = destination(section.remote_cluster(), &*watches.remote, Some(HashMap::new()));
    loop {
        let event = tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            event = inbox.next() => event,
        };
        let Some(event) = event else { return Ok(()) };
        let destination = if event.on_remote { &mut at_remote } else { &mut at_local };
        let cluster = destination.cluster;
        let Some(session) = cluster.session() else { continue };
        let Some(kind) = destination.watch.kind().filter(|_| cluster.is_available()) else { continue };
        let may_write = tokio::select! {
            () = scope.draining() => return Ok(()),
            may_write = destination.may_write(&event.key.namespace) => may_write,
        };
        if !may_write {
            continue;
        }
        let recorder = match &destination.recorder {
            Some((epoch, recorder)) if *epoch == session.epoch => recorder,
            _ => {
                let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: None };
                &destination.recorder.insert((session.epoch, Recorder::new(session.connection.client(), reporter))).1
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
            action: event.action.into(),
            secondary: None,
        };
        let written = tokio::select! {
            written = recorder.publish(&published, &reference) => written,
            () = draining_for(&scope, LAST_WRITE) => return Ok(()),
        };
        if let Err(error) = written {
            tracing::debug!(key = %event.key, %error, "event was not written");
        }
    }
}

async fn draining_for(scope: &Scope, time: Duration) {
    scope.draining().await;
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::cluster::WatchId;
    use crate::config::ResourceId;

    #[tokio::test(start_paused = true)]
    async fn where_events_are_optional_a_denial_is_asked_about_once_in_five_minutes_and_nothing_is_sent() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let (cluster, script) = Cluster::scripted("hub");
        script.answer(move |line| match line {
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
                // Granted from the third question on.
                (200, json!({"status": {"allowed": counter.fetch_add(1, Ordering::Relaxed) >= 2}}))
            }
            other => panic!("{other} was not expected"),
        });
        let resource = ResourceId { plural: "secrets".into(), version: "v1".into(), group: String::new() };
        let watch = Watch::new(WatchId::all(cluster.name().clone(), resource), cluster.clone());
        let mut hub = Destination { cluster: &cluster, watch: &watch, recorder: None, granted: Some(HashMap::new()) };
        let namespace: Arc<str> = "team".into();
        for (questions, may_write) in [(1, false), (2, false), (3, true)] {
            for _ in 0..5 {
                assert_eq!(hub.may_write(&namespace).await, may_write);
            }
            assert_eq!(asked.load(Ordering::Relaxed), questions);
            tokio::time::advance(ASK_AGAIN).await;
        }
        hub.granted = None;
        assert!(hub.may_write(&"other".into()).await, "where they are needed nobody asks");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }
}

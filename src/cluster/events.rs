//! Events on objects, for users of `kubectl describe`: the actor that writes those of one section.
//!
//! Events are hints, so nobody waits for one and none is tried again. A job tells each change of state once, never each retry. What has
//! the same reason and action on the same object within six minutes is one series, which kube's recorder counts. They are written one
//! after the other; a full mailbox drops and counts them, and while a cluster does not answer they are dropped. Before the first one in
//! a namespace access reviews ask whether Events are granted there. After a denial none is sent there for five minutes. An Event that is
//! refused although they are granted, by admission or a quota for example, says nothing of the next one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
pub use kube::runtime::events::EventType;
use kube::runtime::events::{Event, Recorder, Reporter};
use tokio::time::Instant;

use super::client::Session;
use super::{AccessRequest, Cluster, Error, FIELD_MANAGER, Kind, ObjectKey, Verb};
use crate::actor::{BoxError, Inbox, Mailbox, Scope};
use crate::config::ClusterName;

/// Events, as RBAC calls them.
pub const EVENTS: &str = "events.events.k8s.io";
/// How many Events may wait to be written. A section that fails as a whole needs no more of them to be understood.
pub const EVENT_CAPACITY: usize = 256;

/// A permission may be granted or withdrawn at any time: it is reviewed again after this time at the earliest.
const ASK_AGAIN: Duration = Duration::from_mins(5);
/// How long the end of the daemon waits for an Event that is being written: a cluster may never answer.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// Most namespaces whose grants are remembered. Above this, all are forgotten and reviewed again.
const MOST_NAMESPACES: usize = 1024;

/// The mailbox for a section's Events.
pub type EventMailbox = Mailbox<ObjectEvent>;

/// Something that happened to an object.
pub struct ObjectEvent {
    /// Where the object is, under the section's fence.
    pub cluster: Cluster,
    pub kind: Arc<Kind>,
    pub key: ObjectKey,
    /// `None` for an object that could not be created.
    pub uid: Option<Arc<str>>,
    pub severity: EventType,
    pub reason: &'static str,
    /// Events with the same reason and action form one series.
    pub action: &'static str,
    pub note: String,
}

/// What is known of one cluster, with one set of credentials.
struct Destination {
    epoch: u64,
    recorder: Recorder,
    /// By namespace, and when that was found out.
    grants: HashMap<Arc<str>, (Instant, Grant)>,
}

/// What is known of Events in a namespace.
#[derive(Clone, Copy)]
enum Grant {
    /// They may be created, and patched where they repeat.
    Granted,
    Denied,
    /// Nobody may ask: the first Event that is refused counts as a denial.
    Unreviewed,
}

impl Destination {
    fn new(session: &Session) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance: None };
        let recorder = Recorder::new(session.connection.client(), reporter);
        Self { epoch: session.epoch, recorder, grants: HashMap::new() }
    }

    async fn write(&mut self, event: ObjectEvent) {
        let ObjectEvent { cluster, kind, key, uid, severity, reason, action, note } = event;
        if !self.may_write(&cluster, &key.namespace).await {
            return;
        }
        let reference = ObjectReference {
            api_version: Some(kind.resource.api_version.clone()),
            kind: Some(kind.resource.kind.clone()),
            namespace: (!key.namespace.is_empty()).then(|| key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: uid.map(|uid| uid.to_string()),
            ..ObjectReference::default()
        };
        let event =
            Event { type_: severity, reason: reason.into(), note: Some(note), action: action.into(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, &reference).await {
            tracing::debug!(cluster = %cluster.name(), %key, %error, "event was not written");
            if matches!(error, kube::Error::Api(status) if status.code == 403) {
                self.refused(&key.namespace);
            }
        }
    }

    /// Whether Events may be written to a namespace.
    async fn may_write(&mut self, cluster: &Cluster, namespace: &Arc<str>) -> bool {
        match self.grants.get(namespace) {
            Some((_, Grant::Granted | Grant::Unreviewed)) => return true,
            Some((asked, Grant::Denied)) if asked.elapsed() < ASK_AGAIN => return false,
            _ => {}
        }
        // Events of cluster-scoped objects are in `default`.
        let place = if namespace.is_empty() { "default" } else { namespace };
        let mut grant = Grant::Granted;
        for verb in [Verb::Create, Verb::Patch] {
            match cluster.review_access(&AccessRequest::new(verb, EVENTS, place, "")).await {
                Ok(decision) if decision.allowed => continue,
                Ok(_) => grant = Grant::Denied,
                Err(Error::Forbidden { .. } | Error::NotServed { .. }) => grant = Grant::Unreviewed,
                // That says nothing of Events, and the next one asks again.
                Err(_) => return true,
            }
            break;
        }
        self.note(namespace, grant);
        !matches!(grant, Grant::Denied)
    }

    /// An Event was refused (403). If Events were granted long ago, the next one asks whether they still are.
    fn refused(&mut self, namespace: &Arc<str>) {
        match self.grants.get(namespace) {
            Some((_, Grant::Unreviewed)) => self.note(namespace, Grant::Denied),
            Some((asked, Grant::Granted)) if asked.elapsed() >= ASK_AGAIN => _ = self.grants.remove(namespace),
            _ => {}
        }
    }

    fn note(&mut self, namespace: &Arc<str>, grant: Grant) {
        if self.grants.len() >= MOST_NAMESPACES {
            self.grants.clear();
        }
        self.grants.insert(Arc::clone(namespace), (Instant::now(), grant));
    }
}

/// The actor.
pub async fn write_events(mut inbox: Inbox<ObjectEvent>, scope: Scope) -> Result<(), BoxError> {
    let mut destinations: HashMap<ClusterName, Destination> = HashMap::new();
    loop {
        let event = tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            event = inbox.next() => event,
        };
        let Some(event) = event else { return Ok(()) };
        let Some(session) = event.cluster.session().filter(|_| event.cluster.is_available()) else { continue };
        let destination =
            destinations.entry(event.cluster.name().clone()).or_insert_with(|| Destination::new(&session));
        if destination.epoch != session.epoch {
            *destination = Destination::new(&session);
        }
        tokio::select! {
            () = destination.write(event) => {}
            () = draining_for(&scope, LAST_WRITE) => return Ok(()),
        }
    }
}

async fn draining_for(scope: &Scope, time: Duration) {
    scope.draining().await;
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::task::yield_now;

    use super::*;
    use crate::actor::mailbox;
    use crate::cluster::client::{Availability, ClusterState};
    use crate::cluster::watch::scripted::Script;

    const REVIEW: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    const CREATE: &str = "POST /apis/events.k8s.io/v1/namespaces/team/events";

    struct Writer {
        cluster: Cluster,
        script: Script,
        mailbox: EventMailbox,
    }

    impl Writer {
        /// The actor, before an API server that answers reviews and Events so.
        fn start(review: (u16, Value), event: u16) -> Self {
            let (cluster, script) = Cluster::scripted("hub");
            let (mailbox, inbox) = mailbox(EVENT_CAPACITY);
            tokio::spawn(write_events(inbox, Scope::standalone("events").0));
            let writer = Self { cluster, script, mailbox };
            writer.answers(review, event);
            writer
        }

        fn answers(&self, review: (u16, Value), event: u16) {
            self.script.answer(move |line| match line {
                REVIEW => review.clone(),
                _ if event == 200 => (200, json!({"metadata": {"name": "e"}, "eventTime": null})),
                _ => (event, json!({"kind": "Status", "code": event, "reason": "Forbidden", "message": "no"})),
            });
        }

        /// The requests for some Events on one object.
        async fn tell(&self, events: usize) -> Vec<String> {
            for _ in 0..events {
                self.mailbox.offer(ObjectEvent {
                    cluster: self.cluster.clone(),
                    kind: Arc::new(Kind::core("Secret", "secrets", true)),
                    key: ObjectKey::new("team", "orders"),
                    uid: None,
                    severity: EventType::Warning,
                    reason: "SyncFailed",
                    action: "Sync",
                    note: "told".to_owned(),
                });
            }
            // The clock moves on only when nobody has anything to do.
            tokio::time::sleep(Duration::from_millis(1)).await;
            yield_now().await;
            assert_eq!(self.mailbox.gauge().read().depth, 0);
            let asked = self.script.asked();
            asked.into_iter().map(|line| line.split(".0x").next().unwrap_or_default().to_owned()).collect()
        }
    }

    fn granted(allowed: bool) -> (u16, Value) {
        (201, json!({"status": {"allowed": allowed}}))
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_asked_once_whether_events_are_granted_and_what_repeats_is_one_series() {
        let writer = Writer::start(granted(true), 200);
        let asked = writer.tell(3).await;
        assert_eq!(asked[..3], [REVIEW, REVIEW, CREATE]);
        assert_eq!(asked.len(), 5, "{asked:?}");
        assert!(asked[3..].iter().all(|line| line.starts_with("PATCH /apis/events.k8s.io/v1/namespaces/team/events/")));
        writer.cluster.new_session(&writer.script);
        let anew = [REVIEW, REVIEW, CREATE];
        assert_eq!(writer.tell(1).await, anew, "other credentials may have other permissions");
    }

    #[tokio::test(start_paused = true)]
    async fn where_events_are_denied_none_is_sent_and_it_is_asked_again_in_five_minutes() {
        let denied = Writer::start(granted(false), 200);
        // Events may be created, and not patched.
        let once = Writer::start(granted(true), 200);
        // Reviews themselves are forbidden.
        let unasked = Writer::start((403, json!({"kind": "Status", "code": 403, "message": "no"})), 403);
        for _ in 0..3 {
            assert_eq!(denied.tell(5).await, [REVIEW]);
            let mut reviews = [true, false].into_iter();
            once.script.answer(move |_| granted(reviews.next().expect("two reviews")));
            assert_eq!(once.tell(5).await, [REVIEW, REVIEW]);
            assert_eq!(unasked.tell(5).await, [REVIEW, CREATE]);
            tokio::time::advance(ASK_AGAIN).await;
        }
        denied.answers(granted(true), 200);
        assert_eq!(denied.tell(1).await, [REVIEW, REVIEW, CREATE]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_is_refused_although_it_is_granted_keeps_no_other_from_being_sent() {
        let writer = Writer::start(granted(true), 403);
        assert_eq!(writer.tell(3).await, [REVIEW, REVIEW, CREATE, CREATE, CREATE]);
        tokio::time::advance(ASK_AGAIN).await;
        let again = [CREATE, REVIEW, REVIEW, CREATE, CREATE];
        assert_eq!(writer.tell(3).await, again, "it may have been withdrawn, which is asked once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_that_fails_keeps_no_event_from_being_sent_and_the_next_one_asks_again() {
        let throttled = (429, json!({"kind": "Status", "code": 429, "message": "later"}));
        let writer = Writer::start(throttled, 403);
        assert_eq!(writer.tell(2).await, [REVIEW, CREATE, REVIEW, CREATE]);
        writer.answers(granted(false), 200);
        assert_eq!(writer.tell(2).await, [REVIEW]);
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_cluster_does_not_answer_nothing_is_sent_and_nothing_is_kept() {
        let writer = Writer::start(granted(true), 200);
        writer.cluster.set_unavailable(ClusterState::Unreachable, "no answer".to_owned());
        assert!(writer.tell(5).await.is_empty());
        writer.cluster.set_availability(Availability::Available);
        assert_eq!(writer.tell(1).await, [REVIEW, REVIEW, CREATE]);
        writer.answers(granted(true), 503);
        assert_eq!(writer.tell(1).await.len(), 1, "a failed Event is not tried again");
    }
}

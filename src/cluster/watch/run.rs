//! The watcher's run: from one set of credentials to the next, and from one list to the next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::future::select_all;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::end::End;
use super::{RETRY, Watch};
use crate::actor::{BoxError, Scope};
use crate::cluster::access::AccessRequest;
use crate::cluster::client::{Cluster, Session};
use crate::cluster::error::Error;
use crate::cluster::kind::Kind;
use crate::cluster::{Availability, Verb};

/// A permission that an optional watch lacks may be granted at any time: the next access review comes after this.
const ASK_AGAIN: Duration = Duration::from_mins(5);

/// What one run of the actor remembers from one stream to the next.
struct Run {
    /// Failures in a row.
    attempt: u32,
    /// Whether the server is asked for streaming lists.
    streaming: bool,
}

impl Watch {
    /// The actor's body: follows the cluster while somebody demands the watch, until it drains.
    pub async fn run(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut run = Run { attempt: 0, streaming: true };
        if self.store.is_listed() {
            // The previous run may not have told its followers everything that it cached: the next list counts as a first one.
            self.is_live.store(false, Ordering::Release);
            self.store.set_unlisted("the watcher was restarted".into(), false);
        }
        loop {
            let end = tokio::select! {
                () = scope.draining() => return Ok(()),
                () = self.demands.nobody() => End::Unwanted,
                end = self.follow_cluster(&scope, &mut run) => end,
            };
            self.is_live.store(false, Ordering::Release);
            match end {
                End::Relist => {}
                End::NoStreamingLists => run.streaming = false,
                End::Unwanted => {
                    self.store.clear();
                    self.spec().followers.iter().for_each(|follower| follower.forget());
                    run.attempt = 0;
                    scope.set_state("idle");
                    tokio::select! {
                        () = scope.draining() => return Ok(()),
                        () = self.demands.somebody() => {}
                    }
                }
                End::LeaseExpired => {
                    scope.set_state("waiting");
                    tokio::select! {
                        () = scope.draining() => return Ok(()),
                        () = self.demands.nobody() => {}
                        () = tokio::time::sleep(RETRY.next_delay(0)) => {}
                    }
                }
                End::Void(error) => {
                    self.was_denied.fetch_or(matches!(error, Error::Forbidden { .. }), Ordering::AcqRel);
                    self.store.set_unlisted(error.to_string(), error.is_unreachable());
                    scope.set_state("waiting");
                    let delay = self.retry_delay(run.attempt);
                    self.log_failure(&error, run.attempt == 0);
                    run.attempt = run.attempt.saturating_add(1);
                    tokio::select! {
                        () = scope.draining() => return Ok(()),
                        () = tokio::time::sleep(delay) => {}
                        () = self.comes_back() => run.attempt = 0,
                    }
                }
            }
        }
    }

    /// Opens a stream with the current credentials, and reads it to its end.
    async fn follow_cluster(self: &Arc<Self>, scope: &Scope, run: &mut Run) -> End {
        scope.set_state("connecting");
        self.wait_until_of_use().await;
        let mut sessions = self.cluster.sessions();
        let session = self.wait_for_session(&mut sessions).await;
        self.demands.gathered().await;
        // Before waiting for the other watches: whoever demands this watch has demanded those first, so their lists are
        // new enough for everyone for whom this number is new enough. A demand made meanwhile needs the next list.
        let number = self.demands.begin();
        self.wait_for_others().await;
        let Ok(claim) = self.demands.claim() else { return End::LeaseExpired };
        let cluster = self.cluster.holding(claim);
        let kind = match self.find_kind(&cluster).await {
            Ok(kind) => Arc::new(kind),
            Err(Error::LeaseExpired(_)) => return End::LeaseExpired,
            Err(error) => return End::Void(error),
        };
        self.serve(&kind);
        let epoch = session.epoch;
        if self.spec().only_if_granted {
            match self.is_granted(&cluster, &kind).await {
                Ok(true) => {}
                Ok(false) => {
                    self.store.set_unlisted("not granted".into(), false);
                    scope.set_state("not granted");
                    tokio::select! {
                        _ = sessions.wait_for(|current| current.as_ref().is_some_and(|current| current.epoch != epoch)) => {}
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                    }
                    return End::Relist;
                }
                Err(Error::LeaseExpired(_)) => return End::LeaseExpired,
                Err(error) => return End::Void(error),
            }
        }
        self.store.may_list();
        let mut stream = self.stream(&session, &kind, run.streaming);
        scope.set_state("listing");
        let mut is_listing = true;
        let mut next_discovery = self.next_discovery();
        loop {
            let next = tokio::select! {
                biased;
                _ = sessions.wait_for(|current| current.as_ref().is_some_and(|current| current.epoch != epoch)) => return End::Relist,
                () = self.list_again.notified() => return End::Relist,
                may_have_changed = self.definition.discovery_due(next_discovery) => {
                    next_discovery = self.next_discovery();
                    let watch = Arc::clone(self);
                    scope.spawn(async move { watch.discover_again(may_have_changed).await });
                    continue;
                }
                // Never in the middle of a list: the first demand would then wait for as long as new ones arrive.
                () = self.demands.newer_than(number), if !is_listing => return End::Relist,
                next = stream.next() => next,
            };
            match next {
                None => return End::Relist,
                Some(Ok(event)) => {
                    is_listing = matches!(event, Event::Init | Event::InitApply(_));
                    if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
                        run.attempt = 0;
                        self.broken.send_if_modified(|broken| broken.take().is_some());
                        self.is_live.store(true, Ordering::Release);
                    }
                    if matches!(event, Event::InitDone) {
                        self.listed_with(epoch);
                        if self.was_denied.swap(false, Ordering::AcqRel) {
                            self.cluster.permission_was_given();
                        }
                        scope.set_state("watching");
                    }
                    self.take(event, number).await;
                }
                Some(Err(error)) => {
                    is_listing = false;
                    self.is_live.store(false, Ordering::Release);
                    if let Some(end) = self.after_error(error, run.streaming, &mut run.attempt).await {
                        return end;
                    }
                    self.store.may_list();
                }
            }
        }
    }

    /// How the cluster serves the kind.
    pub(super) async fn find_kind(&self, cluster: &Cluster) -> Result<Kind, Error> {
        match &self.spec().kind {
            Some(kind) => Ok(kind.clone()),
            None => Kind::discover(cluster, &self.id.resource).await,
        }
    }

    async fn wait_until_of_use(&self) {
        let spec = self.spec();
        let mut kinds: Vec<_> = spec.only_beside_namespaced.iter().map(|other| other.kind.subscribe()).collect();
        if kinds.is_empty() {
            return;
        }
        let has_namespaces = |kind: &Option<Arc<Kind>>| kind.as_ref().is_some_and(|kind| kind.namespaced);
        // The senders are in the watches, which the specification holds.
        let known = kinds.iter_mut().map(|kind| Box::pin(kind.wait_for(has_namespaces)));
        drop(select_all(known).await);
    }

    async fn wait_for_session(&self, sessions: &mut watch::Receiver<Option<Session>>) -> Session {
        loop {
            self.wait_until_available().await;
            let session = sessions.borrow_and_update().clone();
            if let Some(session) = session {
                return session;
            }
            if sessions.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) async fn wait_until_available(&self) {
        let mut availability = self.cluster.availability();
        loop {
            match &*availability.borrow_and_update() {
                Availability::Available => return,
                Availability::Starting => {}
                Availability::Unavailable { reason } => {
                    if !self.store.is_listed() {
                        self.store.set_unlisted(reason.clone(), true);
                    }
                }
            }
            if availability.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits for the watches that list first. A watch whose cluster does not answer delays nobody.
    async fn wait_for_others(&self) {
        for other in &self.spec().list_after {
            other.settled().await;
        }
    }

    async fn is_granted(&self, cluster: &Cluster, kind: &Kind) -> Result<bool, Error> {
        let name = self.id.object_name();
        for verb in [Verb::List, Verb::Watch] {
            let request = AccessRequest::new(verb, &kind.full_resource(), &self.id.namespace, name);
            match cluster.review_access(&request).await {
                Ok(decision) if decision.allowed => {}
                // Credentials that may not even ask have few other permissions.
                Ok(_) | Err(Error::Forbidden { .. } | Error::NotServed { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

//! Whether the definition of a kind has changed while it is watched.
//!
//! No API reports this to credentials that are only granted the kind itself. But a server that takes over a changed
//! definition ends the watches of the kind a second later, long before their requested timeout. So discovery, which every
//! authenticated user may use, is repeated for the kind when a watch ended early, once an hour, and when somebody has a
//! [doubt](Watch::confirm_kind). In the steady state that costs one small request an hour.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use tower::{BoxError, service_fn};

use super::{RETRY, Watch};
use crate::actor::Backoff;
use crate::cluster::error::Error;
use crate::cluster::kind::Kind;

/// The longest time between two discoveries. Half of it is random, so that watches that started together do not ask
/// together for ever.
const DISCOVERY: Backoff = Backoff::new(Duration::from_hours(1), Duration::from_hours(1));
/// A watch that ends so long before its requested timeout has not timed out.
const EARLY: Duration = Duration::from_secs(2);
/// How often a failed discovery is retried. After that the next one waits for a watch that ends early, or for an hour.
const ATTEMPTS: u32 = 5;

/// What is known of changes of the definition.
#[derive(Default)]
pub(super) struct Definition {
    ended_early: Arc<Notify>,
    /// The last answer of the API server, and when the request for it was sent. The lock is held during a request, so
    /// that all who ask meanwhile share the next one.
    answer: Mutex<Option<(Instant, Arc<Kind>)>>,
}

/// When a watch request ends by itself, and whether it resumes an earlier one; `None` for any other request.
fn watch_request(request: &Request<Body>, now: Instant) -> Option<(Instant, bool)> {
    let parameter = |name: &str| {
        let mut pairs = request.uri().query().unwrap_or_default().split('&');
        pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    };
    parameter("watch")?;
    let seconds = parameter("timeoutSeconds")?.parse().ok()?;
    // A list begins with discovery anyway.
    Some((now + Duration::from_secs(seconds), parameter("sendInitialEvents").is_none()))
}

impl Definition {
    /// The same client, which notices that a watch ended early when it is resumed.
    pub(super) fn observing(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let ended_early = Arc::clone(&self.ended_early);
        // When the watch request that was sent last ends by itself.
        let mut until: Option<Instant> = None;
        let service = service_fn(move |request: Request<Body>| {
            let now = Instant::now();
            let watch = watch_request(&request, now);
            let before = std::mem::replace(&mut until, watch.map(|(until, _)| until));
            if watch.is_some_and(|(_, resumes)| resumes) && before.is_some_and(|before| now + EARLY < before) {
                ended_early.notify_one();
            }
            let client = client.clone();
            async move { client.send(request).await.map_err(BoxError::from) }
        });
        Client::new(service, namespace)
    }

    /// Waits until discovery is due. Returns whether the definition may have changed.
    pub(super) async fn discovery_due(&self, next: Option<Instant>) -> bool {
        let timer = async {
            match next {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.ended_early.notified() => true,
            () = timer => false,
        }
    }
}

impl Watch {
    /// When discovery is repeated although nothing has happened. Built-in kinds do not change.
    pub(super) fn next_discovery(&self) -> Option<Instant> {
        self.may_be_redefined().then(|| Instant::now() + DISCOVERY.next_delay(0))
    }

    fn may_be_redefined(&self) -> bool {
        !self.id.resource.group.is_empty() && self.spec().kind.is_none()
    }

    /// Takes over how the kind is served from now on.
    pub(super) fn serve(&self, kind: &Arc<Kind>) {
        let before = self.kind.send_replace(Some(Arc::clone(kind)));
        if before.is_some_and(|before| before != *kind) {
            tracing::info!(cluster = %self.id.cluster, resource = %self.id.resource, status_subresource = kind.status_subresource, "the cluster serves the kind differently");
            self.spec().followers.iter().for_each(|follower| follower.redefined(self, true));
        }
    }

    /// Asks the API server how it serves the kind now. If that has changed, the watch lists again and its followers are
    /// told then. Those who ask while a request is in flight share the next one.
    pub async fn confirm_kind(&self) -> Result<Arc<Kind>, Error> {
        let asked = Instant::now();
        let mut answer = self.definition.answer.lock().await;
        if let Some((begun, kind)) = &*answer
            && *begun > asked
        {
            return Ok(Arc::clone(kind));
        }
        let begun = Instant::now();
        let cluster = self.cluster.holding(self.demands.claim()?);
        let kind = Arc::new(self.find_kind(&cluster).await?);
        *answer = Some((begun, Arc::clone(&kind)));
        drop(answer);
        if self.kind().is_some_and(|known| known != kind) {
            self.list_again.notify_one();
        }
        Ok(kind)
    }

    /// Repeats discovery. If the definition may have changed, followers are told even if discovery shows no difference: it
    /// does not show which fields a kind has.
    pub(super) async fn discover_again(self: Arc<Self>, may_have_changed: bool) {
        if !self.may_be_redefined() {
            return;
        }
        for attempt in 0..ATTEMPTS {
            match self.confirm_kind().await {
                Ok(_) => {
                    if may_have_changed {
                        self.spec().followers.iter().for_each(|follower| follower.redefined(&self, false));
                    }
                    return;
                }
                Err(error) => {
                    tracing::debug!(cluster = %self.id.cluster, resource = %self.id.resource, %error, "discovery failed");
                    tokio::time::sleep(RETRY.next_delay(attempt)).await;
                }
            }
        }
    }
}

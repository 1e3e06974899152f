//! Whether the definition of a kind has changed while it is watched.
//!
//! No API tells it to whom only the kind itself is granted. But a server that takes over a changed definition ends the
//! watches of the kind a second later, long before the time that they were asked for; so the kind is discovered again
//! (which is granted to all who are authenticated) when a watch ended early, every hour, and when somebody has a
//! [doubt](Watch::confirm_kind). In the steady state that costs one small request an hour.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::{BoxError, service_fn};

use super::{RETRY, Watch};
use crate::actor::Backoff;
use crate::cluster::error::Error;
use crate::cluster::kind::Kind;

/// How long after a discovery the next one is, at most; half of it is left to chance, so that watches that were begun
/// together don't ask together for ever.
const LOOK: Backoff = Backoff::new(Duration::from_hours(1), Duration::from_hours(1));
/// A watch that ends so long before the time that it was asked for has not come to its end.
const EARLY: Duration = Duration::from_secs(2);
/// How often a look that failed is tried again; then the next watch that ends early, or the next hour, tells.
const ATTEMPTS: u32 = 5;

/// What is known of changes of the definition.
#[derive(Default)]
pub(super) struct Definition {
    watching: Arc<Watching>,
    /// The last answer of the API server, and when it was asked.
    answer: tokio::sync::Mutex<Option<(Instant, Arc<Kind>)>>,
}

/// The watch request that was sent last.
#[derive(Default)]
struct Watching {
    until: Mutex<Option<Instant>>,
    ended_early: Notify,
}

impl Watching {
    /// A request is sent: where it is a watch that goes on, the one before has ended.
    fn sent(&self, request: &Request<Body>) {
        let asked = |name: &str| {
            let mut pairs = request.uri().query().unwrap_or_default().split('&');
            pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        let now = Instant::now();
        let seconds = asked("timeoutSeconds").filter(|_| asked("watch").is_some()).and_then(|text| text.parse().ok());
        let until = seconds.map(|seconds| now + Duration::from_secs(seconds));
        let before = std::mem::replace(&mut *self.until.lock(), until);
        // A list begins with discovery anyway.
        let goes_on = asked("sendInitialEvents").is_none();
        if until.is_some() && goes_on && before.is_some_and(|before| now + EARLY < before) {
            self.ended_early.notify_one();
        }
    }
}

impl Definition {
    /// The same client, which notices when a watch was ended early and is asked for anew.
    pub(super) fn overhearing(&self, client: Client) -> Client {
        *self.watching.until.lock() = None;
        let namespace = client.default_namespace().to_owned();
        let watching = Arc::clone(&self.watching);
        let service = service_fn(move |request: Request<Body>| {
            watching.sent(&request);
            let client = client.clone();
            async move { client.send(request).await.map_err(BoxError::from) }
        });
        Client::new(service, namespace)
    }

    /// Waits until the definition is to be looked at; whether it may have changed.
    pub(super) async fn to_look_at(&self, next_look: Option<Instant>) -> bool {
        let look = async {
            match next_look {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.watching.ended_early.notified() => true,
            () = look => false,
        }
    }
}

impl Watch {
    /// When the definition is looked at though nothing has happened. Kinds of Kubernetes itself don't change.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.may_be_redefined().then(|| Instant::now() + LOOK.next_delay(0))
    }

    fn may_be_redefined(&self) -> bool {
        !self.id.resource.group.is_empty() && self.known_kind.get().is_none()
    }

    /// The kind is served so, from here on.
    pub(super) fn serve(&self, kind: &Arc<Kind>) {
        let before = self.kind.send_replace(Some(Arc::clone(kind)));
        if before.is_some_and(|before| before != *kind) {
            tracing::info!(cluster = %self.id.cluster, resource = %self.id.resource, status_subresource = kind.status_subresource, "the kind is served in another way");
            self.followers.read().iter().for_each(|follower| follower.redefined(self, true));
        }
    }

    /// Asks the API server how it serves the kind now. Where that is not as before, the watch begins anew, and its
    /// followers are told then. Those who ask while a question is on its way share the next one.
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

    /// Looks at the definition; where it may have changed, followers are told, though discovery does not show it: it does
    /// not tell which fields there are.
    pub(super) async fn look_at_definition(self: Arc<Self>, may_have_changed: bool) {
        if !self.may_be_redefined() {
            return;
        }
        for attempt in 0..ATTEMPTS {
            match self.confirm_kind().await {
                Ok(_) => {
                    if may_have_changed {
                        self.followers.read().iter().for_each(|follower| follower.redefined(&self, false));
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

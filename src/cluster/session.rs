//! The actor of a cluster: credentials, probes, denied permissions.
//!
//! It owns the cluster's client and its availability, and is woken by requests that got no answer and by the clock.
//! Credentials are loaded concurrently ([`CredentialCache`]), and so are probes and access reviews: neither a plugin nor an API server
//! that hangs delays anything else. After a restart it loads the credentials again. In the steady state it sends no requests: it probes only after a doubt.

use std::fmt::Display;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::availability::read_identity;
use super::client::{Availability, Cluster, ClusterState, Session};
use super::connection::Connection;
use super::credentials::{Change, CredentialCache, PROBE_DEADLINE, accepted};
use super::error::Error;
use crate::actor::{Backoff, BoxError, Scope, sleep_until};
use crate::config::ClusterConfig;

/// Back-off of probes: short at first, because most outages are restarts; the cap bounds how late their end is noticed.
const PROBE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Back-off of the access reviews of denied permissions.
const PERMISSION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
/// Its cap while the cluster is settling: an API server that has not loaded the roles yet denies everything.
const LONGEST_WHILE_SETTLING: Duration = Duration::from_secs(1);

/// Runs the actor of a configured cluster until it drains.
pub async fn run(cluster: Cluster, config: ClusterConfig, scope: Scope) -> Result<(), BoxError> {
    let mut credentials = CredentialCache::new(&cluster, config);
    let mut state = SessionState { doubt: false, probes: 0, next_probe: Instant::now(), asks: 0, next_ask: None };
    let mut probing: Option<BoxFuture<'_, Probed>> = None;
    let mut asking: Option<BoxFuture<'_, ()>> = None;
    loop {
        if state.doubt
            && probing.is_none()
            && state.next_probe <= Instant::now()
            && let Some(session) = cluster.session()
        {
            cluster.clear_probe_request();
            probing = Some(Box::pin(probe(&cluster, session)));
        }
        if asking.is_none() && state.next_ask.is_some_and(|due| due <= Instant::now()) && cluster.is_available() {
            asking = Some(Box::pin(ask_for_permissions(&cluster, state.asks)));
        }
        if state.next_ask.is_none() && cluster.denied_permissions().any() {
            state.asks = 0;
            state.next_ask = Some(Instant::now() + PERMISSION_BACKOFF.next_delay(0));
        }
        tokio::select! {
            () = scope.draining() => return Ok(()),
            change = credentials.change() => {
                if matches!(change, Change::Connection { .. } | Change::Token { .. }) {
                    // The questions go out again with the new credentials.
                    (probing, asking) = (None, None);
                }
                take_up(&cluster, change, &mut state);
            }
            probed = answer(&mut probing) => {
                probing = None;
                if conclude(&cluster, &mut credentials, &mut state, probed) {
                    asking = None;
                }
            }
            () = answer(&mut asking) => {
                asking = None;
                asked(&cluster, &mut state);
            }
            probe_requested = cluster.probe_requested(), if !state.doubt => {
                if probe_requested {
                    state.request_probe();
                }
            }
            () = tokio::time::sleep_until(state.next_probe), if state.doubt && probing.is_none() => {}
            // Nobody is asked before the cluster is available, which this actor finds out.
            () = sleep_until(state.next_ask), if cluster.is_available() && asking.is_none() => {}
        }
    }
}

/// What the API server says to a question, if one was sent.
async fn answer<T>(question: &mut Option<BoxFuture<'_, T>>) -> T {
    match question {
        Some(question) => question.await,
        None => std::future::pending().await,
    }
}

struct SessionState {
    /// A request got no answer, or the credentials in use have not been tried yet.
    doubt: bool,
    probes: u32,
    next_probe: Instant,
    asks: u32,
    next_ask: Option<Instant>,
}

impl SessionState {
    fn request_probe(&mut self) {
        self.doubt = true;
        self.probes = 0;
        self.next_probe = Instant::now();
    }
}

/// Takes over other credentials, or the fact that there are none.
fn take_up(cluster: &Cluster, change: Change, state: &mut SessionState) {
    match change {
        Change::Connection { connection, proven } => {
            cluster.set_credentials_fault(None);
            cluster.set_session(connection);
            tracing::debug!(cluster = %cluster.name(), proven, "credentials are in use");
            state.request_probe();
        }
        Change::Token { proven } => {
            cluster.set_credentials_fault(None);
            tracing::debug!(cluster = %cluster.name(), proven, "credentials renewed");
            if !proven {
                state.request_probe();
            }
        }
        Change::None { reason, kept: true } => {
            if cluster.set_credentials_fault(Some(&reason)) {
                tracing::warn!(cluster = %cluster.name(), reason, "new credentials do not work, the old ones stay in use");
            }
        }
        Change::None { reason, kept: false } => unavailable(cluster, ClusterState::NoCredentials, &reason),
    }
}

/// What a probe has found out.
struct Probed {
    session: Session,
    answer: ProbeAnswer,
}

/// What the API server said to a probe.
enum ProbeAnswer {
    /// It accepts the credentials, and the cluster's identity was read or not.
    Accepts(Result<(), Error>),
    /// It does not answer, or does not accept the credentials.
    Fails(Error),
}

async fn probe(cluster: &Cluster, session: Session) -> Probed {
    let answer = match accepted(once_more(|| session.connection.probe_as(None, PROBE_DEADLINE)).await) {
        // Another cluster than before may answer.
        Ok(()) => ProbeAnswer::Accepts(once_more(|| read_identity(cluster, &session.connection, PROBE_DEADLINE)).await),
        Err(error) => ProbeAnswer::Fails(error),
    };
    Probed { session, answer }
}

/// Takes up what a probe has found out. Returns whether the cluster has become available.
fn conclude(cluster: &Cluster, credentials: &mut CredentialCache, state: &mut SessionState, probed: Probed) -> bool {
    let Probed { session, answer } = probed;
    let down = match answer {
        ProbeAnswer::Accepts(identity) => {
            credentials.accepted();
            identity.err().map(|error| (ClusterState::Unreachable, error.to_string()))
        }
        // The server does not name the cause.
        ProbeAnswer::Fails(error @ Error::Unauthorized { .. }) => {
            credentials.refused();
            let fault = credentials.certificate_fault(SystemTime::now());
            let reason = fault.map_or_else(|| error.to_string(), |fault| format!("{error}: {fault}"));
            Some((ClusterState::Unauthorized, reason))
        }
        ProbeAnswer::Fails(Error::Connect { source, .. } | Error::NoAnswer { source, .. }) => {
            Some(unreachable(&session.connection, &source))
        }
        ProbeAnswer::Fails(error) => Some((ClusterState::Unreachable, error.to_string())),
    };
    if let Some((seen, reason)) = down {
        let fault = cluster.credentials_fault().borrow().clone();
        let reason = fault.map_or_else(|| reason.clone(), |fault| format!("{reason}; new credentials: {fault}"));
        unavailable(cluster, seen, &reason);
        state.next_probe = Instant::now() + PROBE_BACKOFF.next_delay(state.probes);
        state.probes = state.probes.saturating_add(1);
        false
    } else {
        state.doubt = false;
        state.probes = 0;
        let is_back = cluster.set_availability(Availability::Available);
        if is_back {
            // A server that was just starting may have denied what it grants now.
            state.next_ask = cluster.denied_permissions().any().then(Instant::now);
            state.asks = 0;
            tracing::info!(cluster = %cluster.name(), "cluster is available");
        }
        is_back
    }
}

/// Asks again if the connection breaks: what raises the doubt is often a server or a proxy that ends its connections, all of them,
/// and a kept one is used before its end is noticed. That says nothing of whether the server accepts new ones.
async fn once_more<Asked: Future<Output = Result<(), Error>>>(ask: impl Fn() -> Asked) -> Result<(), Error> {
    match ask().await {
        Err(error) if error.is_broken_connection() => ask().await,
        answer => answer,
    }
}

/// No answer from the address of this connection, and why.
fn unreachable(connection: &Connection, reason: &dyn Display) -> (ClusterState, String) {
    (ClusterState::Unreachable, format!("{reason} ({})", connection.address()))
}

fn unavailable(cluster: &Cluster, state: ClusterState, reason: &str) {
    if cluster.set_unavailable(state, reason.to_owned()) {
        tracing::warn!(cluster = %cluster.name(), state = state.as_str(), reason, "cluster is not available");
    }
}

/// One round of access reviews: one for each denied verb and resource, and some for single namespaces if that one is denied.
async fn ask_for_permissions(cluster: &Cluster, round: u32) {
    let round = usize::try_from(round).unwrap_or_default();
    for (everywhere, single) in cluster.denied_permissions().reviews(round) {
        for review in std::iter::once(everywhere).chain(single) {
            // If the review itself is not granted, the next request finds out.
            let given = match cluster.review_access(&review).await {
                Ok(decision) => decision.allowed,
                Err(error) => matches!(error, Error::Forbidden { .. } | Error::NotServed { .. }),
            };
            if given {
                tracing::info!(cluster = %cluster.name(), verb = %review.verb, resource = review.full_resource(), "permission granted");
                cluster.denied_permissions().grant(&review);
                cluster.permission_was_given();
                if review.namespace.is_empty() {
                    break;
                }
            }
        }
    }
}

/// Decides when the next round is due.
fn asked(cluster: &Cluster, state: &mut SessionState) {
    state.asks = state.asks.saturating_add(1);
    let delay = PERMISSION_BACKOFF.next_delay(state.asks);
    let delay = if cluster.is_settling() { delay.min(LONGEST_WHILE_SETTLING) } else { delay };
    state.next_ask = cluster.denied_permissions().any().then(|| Instant::now() + delay);
}

#[cfg(test)]
mod tests;

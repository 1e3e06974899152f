//! The actor of a cluster: credentials, probes, denied permissions.
//!
//! It owns the cluster's client and what is known of its availability, and is woken by requests that got no answer and
//! by the clock. Restarted, it loads the credentials again. It costs nothing in the steady state: no probe is sent while
//! nobody has a doubt.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, MissedTickBehavior};

use super::certificate::Validity;
use super::client::{Availability, Cluster};
use super::connection::Connection;
use super::credentials::{self, Files};
use super::error::{Error, full_text};
use crate::actor::{Backoff, BoxError, Scope};

/// How often the credentials' files are looked at (a few `stat` calls).
const LOOK_AT_FILES: Duration = Duration::from_secs(1);
/// An API server that does not answer `GET /version` within this counts as away.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);
/// Back-off of probes: quick at first, since most outages are restarts; the cap bounds how late a return is noticed.
const PROBE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Back-off of questions for a denied permission.
const PERMISSION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// Runs the actor of a cluster until it drains.
pub async fn run(cluster: Cluster, scope: Scope) -> Result<(), BoxError> {
    let mut files = credentials::files_of(cluster.config());
    let mut state = State {
        reload: true,
        certificate: None,
        doubt: true,
        probes: 0,
        next_probe: Instant::now(),
        asks: 0,
        next_ask: None,
    };
    let mut look = tokio::time::interval(LOOK_AT_FILES);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if state.reload {
            load(&cluster, &mut files, &mut state).await;
            state.doubt = true;
            state.next_probe = Instant::now();
        }
        if state.doubt && !state.reload && state.next_probe <= Instant::now() {
            probe(&cluster, &mut state).await;
        }
        if state.next_ask.is_some_and(|due| due <= Instant::now()) && cluster.is_available() {
            ask_for_permissions(&cluster, &mut state).await;
        }
        if state.next_ask.is_none() && cluster.gates().any_closed() {
            state.asks = 0;
            state.next_ask = Some(Instant::now() + PERMISSION_BACKOFF.next_delay(0));
        }
        tokio::select! {
            () = scope.draining() => return Ok(()),
            _ = look.tick() => {
                if files.changed() {
                    tracing::info!(cluster = %cluster.name(), "credentials changed");
                    state.reload = true;
                }
            }
            () = cluster.suspected(), if !state.doubt => {
                if !cluster.gates().any_closed() || state.next_ask.is_some() {
                    state.doubt = true;
                    state.probes = 0;
                    state.next_probe = Instant::now();
                }
            }
            () = tokio::time::sleep_until(state.next_probe), if state.doubt && !state.reload => {}
            () = sleep_until(state.next_ask) => {}
        }
    }
}

struct State {
    /// The credentials are to be loaded (again).
    reload: bool,
    /// Of the client certificate among them.
    certificate: Option<Validity>,
    /// A request got no answer, or nothing is known yet.
    doubt: bool,
    probes: u32,
    next_probe: Instant,
    asks: u32,
    next_ask: Option<Instant>,
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Loads credentials and builds a client; where that is not possible, they are to be loaded again.
async fn load(cluster: &Cluster, files: &mut Files, state: &mut State) {
    *files = credentials::files_of(cluster.config());
    let built = match credentials::load(cluster.config()).await {
        Ok(loaded) => {
            *files = loaded.files;
            state.certificate = Validity::of(&loaded.config.auth_info);
            Connection::connect(cluster.name().clone(), loaded.config, cluster.config().request_timeout)
                .map_err(|source| full_text(&source))
        }
        Err(error) => Err(error.to_string()),
    };
    match built {
        Ok(connection) => {
            cluster.set_session(connection);
            state.reload = false;
        }
        Err(reason) => {
            unavailable(cluster, &reason);
        }
    }
}

async fn probe(cluster: &Cluster, state: &mut State) {
    let Some(session) = cluster.sessions().borrow().clone() else { return };
    let down = match cluster.probe(&session.connection, PROBE_DEADLINE).await {
        Ok(_) => None,
        // An answer, if not a welcome one: it is up and knows us, `/version` is just not granted.
        Err(Error::Forbidden { .. } | Error::NotServed { .. } | Error::NotFound { .. } | Error::Throttled { .. }) => {
            None
        }
        // The server does not say what it has against them.
        Err(error @ Error::Unauthorized { .. }) => {
            let fault = state.certificate.as_ref().and_then(|certificate| certificate.fault(SystemTime::now()));
            Some(fault.map_or_else(|| error.to_string(), |fault| format!("{error}: {fault}")))
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = down {
        unavailable(cluster, &reason);
        state.next_probe = Instant::now() + PROBE_BACKOFF.next_delay(state.probes);
        state.probes = state.probes.saturating_add(1);
    } else {
        state.doubt = false;
        state.probes = 0;
        if cluster.set_availability(Availability::Available) {
            tracing::info!(cluster = %cluster.name(), "cluster is available");
        }
    }
}

fn unavailable(cluster: &Cluster, reason: &str) {
    if cluster.set_availability(Availability::Unavailable { reason: reason.to_owned() }) {
        tracing::warn!(cluster = %cluster.name(), reason, "cluster is not available");
    }
}

/// One round of questions: one a denied verb and resource, and those for some namespaces where that is not enough.
async fn ask_for_permissions(cluster: &Cluster, state: &mut State) {
    let round = usize::try_from(state.asks).unwrap_or_default();
    for (everywhere, narrower) in cluster.gates().questions(round) {
        for question in std::iter::once(everywhere).chain(narrower) {
            // Where the review itself is not granted, the next request finds out.
            let given = match cluster.review_access(&question).await {
                Ok(decision) => decision.allowed,
                Err(error) => matches!(error, Error::Forbidden { .. } | Error::NotServed { .. }),
            };
            if given {
                tracing::info!(cluster = %cluster.name(), verb = %question.verb, resource = question.full_resource(), "permission is given");
                cluster.gates().open(&question);
                if question.namespace.is_empty() {
                    break;
                }
            }
        }
    }
    state.asks = state.asks.saturating_add(1);
    state.next_ask = cluster.gates().any_closed().then(|| Instant::now() + PERMISSION_BACKOFF.next_delay(state.asks));
}

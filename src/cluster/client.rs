//! The handle through which every request to a cluster goes.
//!
//! This file holds what a cluster consists of and how its handles are made. `sending` sends requests, `availability` keeps what is known
//! about availability and identity up to date.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::connection::Connection;
use super::denied_permissions::DeniedPermissions;
use super::fence::{Claim, Fence, SentUnder};
use super::identity::Identity;
use super::limiter::Limiter;
use super::reach::Reach;
use crate::config::{ClusterConfig, ClusterName};

/// A connection, and which set of credentials it uses.
#[derive(Clone)]
pub struct Session {
    pub connection: Connection,
    /// Counts the sets of credentials.
    pub epoch: u64,
}

/// Whether requests can be sent to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// Its actor has not found out yet.
    Starting,
    Available,
    /// It does not answer, or there are no usable credentials.
    Unavailable {
        reason: String,
    },
}

/// Whether a cluster can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterState {
    /// Not known yet.
    Starting,
    Available,
    Unreachable,
    /// Its credentials can't be loaded, so no request is sent.
    NoCredentials,
    /// It answers but does not accept the credentials.
    Unauthorized,
}

impl ClusterState {
    /// Its name in `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Available => "available",
            Self::Unreachable => "unreachable",
            Self::NoCredentials => "no_credentials",
            Self::Unauthorized => "unauthorized",
        }
    }

    /// Whether no problem is known.
    pub fn is_fine(self) -> bool {
        self.complaint().is_none()
    }

    /// The problem with a cluster that work waits for; `None` if no problem is known.
    pub fn complaint(self) -> Option<&'static str> {
        match self {
            Self::Starting | Self::Available => None,
            Self::Unreachable => Some("unreachable"),
            Self::NoCredentials => Some("has no usable credentials"),
            Self::Unauthorized => Some("does not accept the credentials"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its name in the configuration.
    pub name: ClusterName,
    pub state: ClusterState,
    /// How long it has been in this state.
    pub since: Duration,
    /// Why it can't be used, or what is wrong with new credentials that are not in use.
    pub reason: Option<String>,
    /// Host and port of the API server, once that is known.
    pub server: Option<Arc<str>>,
}

/// The state that operators see, and since when.
pub(super) struct StateSince {
    pub(super) state: ClusterState,
    pub(super) since: Instant,
}

#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The deadline of a request that is not a watch.
    pub(super) request_timeout: Duration,
    /// The API server ends a watch after this time.
    pub(super) watch_timeout: Duration,
    pub(super) max_in_flight: NonZeroUsize,
}

/// What all handles of a cluster share.
pub(super) struct Shared {
    pub(super) name: ClusterName,
    pub(super) limits: Limits,
    pub(super) session: watch::Sender<Option<Session>>,
    pub(super) availability: watch::Sender<Availability>,
    pub(super) credentials_fault: watch::Sender<Option<Arc<str>>>,
    /// The state that operators see. The only lock here; it is held for a comparison.
    pub(super) seen: Mutex<StateSince>,
    pub(super) identity: watch::Sender<Identity>,
    pub(super) is_identity_wanted: AtomicBool,
    /// How often the identity was read, or found to be unreadable.
    pub(super) identity_readings: AtomicU64,
    /// A request or a watch got no answer, and no probe has been sent since.
    pub(super) is_probe_requested: AtomicBool,
    pub(super) probe_requests: Notify,
    pub(super) limiter: Limiter,
    pub(super) denied: DeniedPermissions,
    /// Without a session actor: the cluster's own requests find out whether it answers.
    pub(super) reach: Option<Reach>,
}

/// A cluster. Clones are the same cluster, under the same fence.
#[derive(Clone)]
pub struct Cluster {
    pub(super) shared: Arc<Shared>,
    pub(super) sent_under: SentUnder,
    /// The deadline of requests that wait for no others.
    pub(super) urgent: Option<Duration>,
}

impl Cluster {
    /// A cluster whose credentials and availability its [session actor](super::session::run) looks after. It is unavailable
    /// until that has connected.
    pub fn new(name: ClusterName, config: &ClusterConfig) -> Self {
        let ClusterConfig { request_timeout, watch_timeout, max_in_flight, .. } = *config;
        Self::within(name, Limits { request_timeout, watch_timeout, max_in_flight }, None)
    }

    pub fn max_in_flight(&self) -> usize {
        self.shared.limits.max_in_flight.get()
    }

    /// A cluster with one connection for good, and without a session actor. See [`Reach`].
    pub(super) fn connected(connection: Connection, limits: Limits) -> Self {
        let cluster = Self::within(connection.name().clone(), limits, Some(Reach::default()));
        cluster.set_session(connection);
        cluster.set_availability(Availability::Available);
        cluster
    }

    fn within(name: ClusterName, limits: Limits, reach: Option<Reach>) -> Self {
        Self {
            shared: Arc::new(Shared {
                name,
                session: watch::Sender::new(None),
                availability: watch::Sender::new(Availability::Starting),
                credentials_fault: watch::Sender::new(None),
                seen: Mutex::new(StateSince { state: ClusterState::Starting, since: Instant::now() }),
                identity: watch::Sender::new(Identity::Unread),
                is_identity_wanted: AtomicBool::new(false),
                identity_readings: AtomicU64::new(0),
                is_probe_requested: AtomicBool::new(false),
                probe_requests: Notify::new(),
                limiter: Limiter::new(limits.max_in_flight.get()),
                limits,
                denied: DeniedPermissions::default(),
                reach,
            }),
            sent_under: SentUnder::None,
            urgent: None,
        }
    }

    /// The same cluster, for requests that are only sent while the fence is open.
    #[must_use]
    pub fn under(&self, fence: &Fence) -> Self {
        Self { sent_under: SentUnder::Fence(fence.clone()), ..self.clone() }
    }

    /// The same cluster, for requests that are only sent while this claim holds, if there is one.
    #[must_use]
    pub(super) fn holding(&self, claim: Option<Claim>) -> Self {
        Self { sent_under: claim.map_or(SentUnder::None, SentUnder::Claim), ..self.clone() }
    }

    /// The same cluster, for requests that wait for no others and are sent whatever its availability: those on which a
    /// claim depends, and those of a sender that sends few at once and waits by itself after a refusal.
    #[must_use]
    pub fn urgent(&self, deadline: Duration) -> Self {
        Self { urgent: Some(deadline.min(self.shared.limits.request_timeout)), ..self.clone() }
    }

    /// Its connection, for code that talks to the API server directly; under this handle's fence.
    pub fn session(&self) -> Option<Session> {
        let session = self.shared.session.borrow().clone()?;
        Some(Session { connection: session.connection.guarded(self.sent_under.clone()), epoch: session.epoch })
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &ClusterName {
        &self.shared.name
    }

    /// The API server ends a watch after this time.
    pub(super) fn watch_timeout(&self) -> Duration {
        self.shared.limits.watch_timeout
    }

    /// Follows its sessions: new credentials make a new one.
    pub fn sessions(&self) -> watch::Receiver<Option<Session>> {
        self.shared.session.subscribe()
    }

    /// The epoch of the credentials that requests are sent with now.
    pub fn epoch(&self) -> Option<u64> {
        self.shared.session.borrow().as_ref().map(|session| session.epoch)
    }

    /// Sends requests through this connection from now on.
    pub(super) fn set_session(&self, connection: Connection) {
        // The new credentials may lead to another cluster.
        self.forget_identity();
        self.shared.session.send_modify(|session| {
            let epoch = session.as_ref().map_or(1, |session| session.epoch + 1);
            *session = Some(Session { connection, epoch });
        });
        self.shared.denied.forget_all();
    }

    pub(super) fn denied_permissions(&self) -> &DeniedPermissions {
        &self.shared.denied
    }

    /// Follows how often a denied permission was granted.
    pub fn permissions_given(&self) -> watch::Receiver<u64> {
        self.shared.denied.granted()
    }

    /// How often a denied permission was granted.
    pub fn permissions(&self) -> u64 {
        self.shared.denied.grants()
    }
}

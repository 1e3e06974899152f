//! What is known about a cluster: whether it answers, which cluster it is, and whether that has to be probed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{Availability, Cluster, ClusterState, ClusterStatus, StateSince};
use super::connection::Connection;
use super::error::Error;
use super::identity::{Identity, Seen};

/// For so long after it became available again a cluster counts as settling.
const SETTLING: Duration = Duration::from_mins(1);

/// Sets a value; returns whether it has changed.
fn replace<T: PartialEq>(sender: &watch::Sender<T>, next: T) -> bool {
    sender.send_if_modified(|current| {
        let changed = *current != next;
        *current = next;
        changed
    })
}

impl Cluster {
    /// Follows whether requests can be sent.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.shared.availability.subscribe()
    }

    pub fn is_available(&self) -> bool {
        *self.shared.availability.borrow() == Availability::Available
    }

    /// Sets the availability; returns whether it has changed.
    pub(super) fn set_availability(&self, next: Availability) -> bool {
        if next == Availability::Available {
            self.see(ClusterState::Available);
        }
        replace(&self.shared.availability, next)
    }

    /// Marks the cluster as unavailable for this reason; returns whether that has changed.
    pub(super) fn set_unavailable(&self, state: ClusterState, reason: String) -> bool {
        self.see(state);
        self.set_availability(Availability::Unavailable { reason })
    }

    fn see(&self, state: ClusterState) {
        let mut seen = self.shared.seen.lock();
        if seen.state != state {
            *seen = StateSince { state, since: Instant::now() };
        }
    }

    /// Its state for operators, since when, and why.
    pub fn status(&self) -> ClusterStatus {
        let reason = match &*self.shared.availability.borrow() {
            Availability::Unavailable { reason } => Some(reason.clone()),
            // The old credentials still work; operators have to know before they expire.
            Availability::Starting | Availability::Available => {
                let fault = self.shared.credentials_fault.borrow();
                fault.as_ref().map(|fault| format!("new credentials do not work: {fault}"))
            }
        };
        let server = self.shared.session.borrow().as_ref().map(|session| session.connection.server());
        let seen = self.shared.seen.lock();
        ClusterStatus { name: self.shared.name.clone(), state: seen.state, since: seen.since.elapsed(), reason, server }
    }

    /// Whether it has just become available again. An API server answers before it is ready: kinds are not served yet,
    /// roles are not known, caches are empty. Failures of that time are retried soon, however many there were before.
    pub(super) fn is_settling(&self) -> bool {
        let seen = self.shared.seen.lock();
        seen.state == ClusterState::Available && seen.since.elapsed() < SETTLING
    }

    /// Follows why the newest credentials are not in use, while older ones are.
    pub fn credentials_fault(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.credentials_fault.subscribe()
    }

    /// Whether the newest credentials are not in use, while older ones are.
    pub fn has_credentials_fault(&self) -> bool {
        self.shared.credentials_fault.borrow().is_some()
    }

    /// Sets the fault of the newest credentials; returns whether it has changed.
    pub(super) fn set_credentials_fault(&self, next: Option<&str>) -> bool {
        replace(&self.shared.credentials_fault, next.map(Arc::from))
    }

    /// Reports that a request or a watch got no answer. The actor probes; until then another cluster may answer.
    pub fn report_unreachable(&self) {
        self.forget_identity();
        self.request_probe();
    }

    /// Reports an answer that is an error of the server: the actor probes.
    pub(super) fn request_probe(&self) {
        self.shared.is_probe_requested.store(true, Ordering::Release);
        self.shared.probe_requests.notify_one();
    }

    /// Wakes the actor, because a permission was denied.
    pub(super) fn wake(&self) {
        self.shared.probe_requests.notify_one();
    }

    /// Waits until a probe is requested or a permission was denied; returns whether a probe is.
    pub(super) async fn probe_requested(&self) -> bool {
        self.shared.probe_requests.notified().await;
        self.shared.is_probe_requested.swap(false, Ordering::AcqRel)
    }

    /// The probe that starts now answers all requests so far.
    pub(super) fn clear_probe_request(&self) {
        self.shared.is_probe_requested.store(false, Ordering::Release);
    }

    /// A permission was granted that had been denied: the identity may be readable now.
    pub(super) fn permission_was_given(&self) {
        if matches!(self.identity(), Identity::Unknown { .. }) {
            self.report_unreachable();
        }
    }

    /// Has its identity read from now on. Before its actor starts.
    pub fn want_identity(&self) {
        self.shared.is_identity_wanted.store(true, Ordering::Release);
    }

    pub(super) fn is_identity_wanted(&self) -> bool {
        self.shared.is_identity_wanted.load(Ordering::Acquire)
    }

    /// Which cluster it is, as far as that is known.
    pub fn identity(&self) -> Identity {
        self.shared.identity.borrow().clone()
    }

    /// Follows which cluster it is.
    pub fn identities(&self) -> watch::Receiver<Identity> {
        self.shared.identity.subscribe()
    }

    /// How often the identity was read: once more after each doubt. If it is unknown, only this shows that there was one.
    pub fn identity_readings(&self) -> u64 {
        self.shared.identity_readings.load(Ordering::Acquire)
    }

    pub(crate) fn set_identity(&self, identity: Identity) {
        if identity != Identity::Unread {
            self.shared.identity_readings.fetch_add(1, Ordering::AcqRel);
        }
        replace(&self.shared.identity, identity);
    }

    pub(super) fn forget_identity(&self) {
        if self.is_identity_wanted() {
            self.set_identity(Identity::Unread);
        }
    }
}

impl Seen {
    pub fn of(cluster: &Cluster) -> Self {
        let identity = cluster.identity();
        let epoch = if matches!(identity, Identity::Known(_)) { None } else { cluster.epoch() };
        Self { identity, epoch, reading: None }
    }

    /// The same, but after each attempt to read it a cluster whose identity is unknown counts as another one.
    pub fn by_reading(cluster: &Cluster) -> Self {
        let seen = Self::of(cluster);
        let reading = matches!(seen.identity, Identity::Unknown { .. }).then(|| cluster.identity_readings());
        Self { reading, ..seen }
    }
}

/// Reads the identity, if a section needs it. An error means that the cluster did not answer.
pub(super) async fn read_identity(cluster: &Cluster, connection: &Connection, deadline: Duration) -> Result<(), Error> {
    if !cluster.is_identity_wanted() {
        return Ok(());
    }
    let identity = match cluster.read_identity(connection, deadline).await {
        Ok(uid) if !uid.is_empty() => Identity::Known(uid),
        Ok(_) => Identity::Unknown { reason: "namespace kube-system has no UID".into() },
        Err(error @ (Error::Forbidden { .. } | Error::NotFound { .. } | Error::NotServed { .. })) => {
            Identity::Unknown { reason: error.to_string().into() }
        }
        Err(error) => return Err(error),
    };
    cluster.set_identity(identity);
    Ok(())
}

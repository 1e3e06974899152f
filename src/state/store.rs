//! The owner of one section's state.
//!
//! State it owns: a [`CachedState`], as a latest value (`watch`), so that others can wait for it. The section reads it and
//! changes it by [`StateStore::change`]; one actor (`run`) does the requests. With each start of the section, and so after each
//! handover, the state is read again.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::Keeping;
use super::cached::{CachedState, Loaded, StateReport};
use super::content::{Document, StoredState, Unreadable};
use super::object::{self, Foreign, Read};
use crate::cluster::{Cause, Cluster, Error};
use crate::config::SectionName;
use crate::status::NotReady;

/// How often a write is attempted at once, if the object has changed each time since it was read.
const ATTEMPTS: usize = 5;

/// Why a change of the state is not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the section's state is not stored: {reason}")]
pub struct NotDurable {
    pub reason: Arc<str>,
}

impl NotDurable {
    pub fn because(reason: &str) -> Self {
        Self { reason: reason.into() }
    }
}

/// The section that a state belongs to.
#[derive(Debug, Clone)]
pub struct Owner {
    pub section: SectionName,
    /// A dry run: nothing is written.
    pub read_only: bool,
}

pub struct StateStore {
    owner: Owner,
    /// The cluster of the object, under the section's fence.
    cluster: Cluster,
    keeping: Keeping,
    state: watch::Sender<CachedState>,
    write_due: Notify,
}

impl StateStore {
    /// The store of a section whose state is in this cluster, under the section's fence.
    pub fn new(owner: impl Into<Owner>, cluster: Cluster, keeping: &Keeping) -> Arc<Self> {
        let owner = owner.into();
        #[cfg(not(test))]
        let memory_only = owner.read_only;
        #[cfg(test)]
        let memory_only = owner.read_only || keeping.in_memory;
        let state = watch::Sender::new(CachedState::new(keeping.daemon.clone(), memory_only));
        Arc::new(Self { owner, cluster, keeping: keeping.clone(), state, write_due: Notify::new() })
    }

    /// Sets whether nothing is to be written until further notice. The state is read all the same.
    pub fn hold(&self, is_held: bool) {
        let has_changed = self.state.send_if_modified(|state| state.hold(is_held));
        if has_changed && !is_held {
            self.write_due.notify_one();
        }
    }

    fn update<T>(&self, update: impl FnOnce(&mut CachedState) -> T) -> T {
        let mut result = None;
        self.state.send_modify(|state| result = Some(update(state)));
        #[expect(clippy::expect_used, reason = "send_modify calls its closure once")]
        result.expect("send_modify calls its closure")
    }

    /// The section starts: its state is read again, and what is here of an earlier term is forgotten. Only without election,
    /// when no other process had the section in between, changes that are not stored yet are kept.
    pub fn forget(&self, keep_changes: bool) {
        self.update(|state| {
            state.forget(keep_changes);
            #[cfg(test)]
            if self.keeping.in_memory {
                state.assume_loaded();
            }
        });
    }

    /// Whether the section may decide: its state is loaded, or is known to be unavailable.
    pub fn is_known(&self) -> bool {
        self.state.borrow().is_known()
    }

    /// Whether changes can be stored, as far as is known. If not, the guard acts as if its limit were used up.
    pub fn is_durable(&self) -> bool {
        self.state.borrow().is_loaded()
    }

    /// A copy of the state.
    #[cfg(test)]
    pub fn current(&self) -> StoredState {
        self.look(StoredState::clone)
    }

    /// Reads from the state without a copy. The closure must not call the store.
    pub fn look<T>(&self, look: impl FnOnce(&StoredState) -> T) -> T {
        look(self.state.borrow().current())
    }

    /// Changes the state, and returns the closure's result; the actor writes it later. A call that changes nothing causes no
    /// write. The closure must not call the store.
    pub fn change<T>(&self, change: impl FnOnce(&mut StoredState) -> T) -> T {
        let (result, is_changed) = self.update(|state| state.change(change));
        if is_changed {
            self.write_due.notify_one();
        }
        result
    }

    /// Writes the state although nothing has changed, so that it names this daemon as the one that runs the section.
    pub fn sign(&self) {
        self.update(CachedState::request_write);
        self.write_due.notify_one();
    }

    /// Another daemon that has written the state while this one ran the section.
    pub fn other(&self) -> Option<String> {
        self.state.borrow().live_other()
    }

    /// Waits until all changes made so far are stored. Fails if nobody can say when they will be: the state is unavailable,
    /// the cluster does not answer, or a write of them has failed. They are written later all the same, and this may be
    /// called again.
    pub async fn persisted(&self) -> Result<(), NotDurable> {
        let mut state = self.state.subscribe();
        let mark = {
            let state = state.borrow_and_update();
            if !state.has_unstored() {
                return Ok(());
            }
            if let Some(reason) = state.unavailable() {
                return Err(NotDurable { reason });
            }
            state.mark()
        };
        let mut availability = self.cluster.availability();
        loop {
            if !self.cluster.is_available() {
                return Err(NotDurable { reason: format!("cluster {} does not answer", self.cluster.name()).into() });
            }
            tokio::select! {
                // The senders live as long as this store.
                Ok(()) = availability.changed() => continue,
                Ok(()) = state.changed() => {}
            }
            let state = state.borrow_and_update();
            if state.is_stored(mark) {
                return Ok(());
            }
            if let Some(reason) = state.failed_since(mark) {
                return Err(NotDurable { reason });
            }
        }
    }

    /// Waits until an operator's order is stored. The order is in effect even if it is not, so a failure is logged as well.
    /// In a dry run it is never stored.
    pub async fn wait_until_stored(&self, section: &SectionName, what: &str) -> Result<(), NotDurable> {
        let stored = if self.owner.read_only {
            Err(NotDurable::because("a dry run writes nothing"))
        } else {
            self.persisted().await
        };
        if let Err(failure) = &stored {
            tracing::warn!(%section, reason = %failure, "{what} is not stored: a restart forgets it");
        }
        stored
    }

    /// Why the section waits for its state.
    pub fn waits_because(&self) -> NotReady {
        let failure = self.state.borrow().failure();
        let cluster = self.cluster.name();
        let reason = failure.as_deref().unwrap_or("it has not been read");
        let reason = format!("the section's state in cluster {cluster}: {reason}");
        NotReady { reason, unreachable: !self.cluster.is_available() }
    }

    /// Waits until there may be something to write.
    pub(super) async fn write_due(&self) {
        self.write_due.notified().await;
    }

    /// Whether there is something to read or write.
    pub(crate) fn has_work(&self) -> bool {
        let state = self.state.borrow();
        !state.is_loaded() || state.has_unstored()
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The namespace of the state: the configured one, else the pod's, else that of the kubeconfig's context. `None` while
    /// the cluster has no credentials.
    pub fn namespace(&self) -> Option<Arc<str>> {
        if let Some(namespace) = &self.keeping.namespace {
            return Some(Arc::clone(namespace));
        }
        if let Some(namespace) = pod_namespace() {
            return Some(namespace.into());
        }
        Some(self.cluster.session()?.connection.client().default_namespace().into())
    }

    fn key_of(&self, section: &SectionName) -> String {
        object::key(section, self.namespace().as_deref().unwrap_or("(unknown)")).to_string()
    }

    /// Reads the state, for `towline check`. Fails also if a later write can be seen to be impossible.
    pub async fn check(&self) -> Result<(), String> {
        let Some(namespace) = self.namespace() else { return Err("no credentials".into()) };
        self.load(&namespace).await.map_err(|error| error.to_string())?;
        if object::has_namespace(&self.cluster, &namespace).await == Some(false) {
            return Err(format!("namespace {namespace} does not exist"));
        }
        Ok(())
    }

    /// Reads the state if it has not been read, and writes it if it is not stored. `Ok`: nothing is left to do.
    pub(crate) async fn work(&self) -> Result<(), Error> {
        let outcome = self.read_and_write().await;
        let Err(error) = &outcome else {
            self.update(CachedState::succeeded);
            return outcome;
        };
        let reason = error.to_string();
        let is_final = is_final(error, self.is_known());
        let is_new = self.update(|state| state.failed(&reason, is_final, error.outcome_is_unknown()));
        let section = &self.owner.section;
        if is_new && is_final {
            tracing::warn!(%section, reason, "the section's state can't be stored");
        } else if is_new && !matches!(error, Error::LeaseExpired(_)) {
            tracing::warn!(%section, reason, "failed to read or write the section's state, retrying");
        }
        outcome
    }

    async fn read_and_write(&self) -> Result<(), Error> {
        let Some(namespace) = self.namespace() else {
            let cluster = self.cluster.name().clone();
            return Err(Error::Unavailable { cluster, reason: "no credentials".into() });
        };
        if !self.is_durable() {
            self.load(&namespace).await?;
        }
        let mut conflicts = 0;
        while conflicts < ATTEMPTS {
            // Other credentials may lead to another cluster.
            let is_outdated = self.state.borrow().is_outdated(self.cluster.epoch());
            if is_outdated {
                self.load(&namespace).await?;
            }
            let next = self.state.borrow().next_write();
            let Some(write) = next else { return Ok(()) };
            let version = write.version.as_deref();
            match object::write(&self.cluster, &self.owner.section, &namespace, version, &write.text).await {
                Ok(version) => {
                    self.update(|state| state.written(&write, version)).map_err(undecodable)?;
                }
                Err(Error::Conflict { .. } | Error::NotFound { .. }) => {
                    conflicts += 1;
                    self.load(&namespace).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Conflict { message: "somebody else keeps writing the section's state".into(), exists: true })
    }

    /// Reads the object; changes that are not stored go over it.
    async fn load(&self, namespace: &str) -> Result<(), Error> {
        let epoch = self.cluster.epoch();
        let (document, version) = match object::read(&self.cluster, &self.owner.section, namespace).await? {
            Read::Missing => (Document::default(), None),
            Read::State(document, version) => (*document, Some(version)),
            Read::Foreign(foreign) => return Err(self.refused(namespace, &foreign)),
        };
        let Loaded { other, undone } =
            self.update(|state| state.loaded(document, version, epoch)).map_err(undecodable)?;
        let section = &self.owner.section;
        if let Some(other) = other {
            tracing::warn!(
                %section, %other, this = %self.keeping.daemon,
                "another daemon has written this section's state: does it run the section, too?"
            );
        }
        if let Some(times) = undone {
            // It is written when it changes the next time, and not before: nobody fights over it.
            if times == 1 {
                let object = self.key_of(section);
                tracing::warn!(%section, object, "somebody has changed or deleted the section's state, which may forget what it was to remember");
            }
        }
        Ok(())
    }

    fn refused(&self, namespace: &str, foreign: &Foreign) -> Error {
        let key = object::key(&self.owner.section, namespace);
        let message = format!(
            "the ConfigMap {key} in cluster {} is {foreign}; it is left as it is. Delete or rename it, or set \
             daemon.state_namespace",
            self.cluster.name()
        );
        Error::Rejected { code: 409, reason: "Foreign".into(), message }
    }

    /// What `/status` shows of it.
    pub fn report(&self) -> StateReport {
        let object = format!("{}: {}", self.cluster.name(), self.key_of(&self.owner.section));
        self.state.borrow().report(object)
    }
}

fn undecodable(unreadable: Unreadable) -> Error {
    Error::Decode { source: Cause::of(unreadable) }
}

/// Whether the same request will fail until somebody changes something, so that the section continues without its state.
/// Anything that may pass, such as an answer that does not come from an API server, is waited for: a detached section must
/// not resume because of it.
fn is_final(error: &Error, was_read: bool) -> bool {
    match error {
        Error::Forbidden { .. } | Error::Rejected { .. } => true,
        // The namespace does not exist, or is terminating.
        Error::NotServed { .. } | Error::NamespaceTerminating { .. } => was_read,
        _ => false,
    }
}

/// The file in which Kubernetes tells a pod its namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

fn pod_namespace() -> Option<String> {
    let text = std::fs::read_to_string(POD_NAMESPACE).ok()?;
    let name = text.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

//! The owner of one section's state: what it is now, and how much of that is in the object.
//!
//! State it owns: the state as it was read or last written (`base`), the state as it is now, and the object's version. Who
//! changes it: whoever decides something that has to be remembered, by [`Keeper::change`]; who does the requests: the one
//! actor of `run`. With each start of the section, and so after each hand-over, it is read again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::Keeping;
use super::content::{Daemon, Document, SectionState, Settings};
use super::object::{self, Foreign, Read};
use crate::cluster::{Cluster, Error};
use crate::config::SectionName;
use crate::telemetry::NotReady;

/// As often a write is begun anew at once, because somebody wrote the object since it was read.
const ATTEMPTS: usize = 5;

/// How far the state is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// It has not been read yet.
    Loading,
    /// It was read, or there is none yet.
    Loaded,
    /// It can't be read or written: nobody waits for that.
    Unavailable(String),
}

/// Why something that has to be remembered is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the section's state is not stored: {reason}")]
pub struct NotDurable {
    /// What stands in the way.
    pub reason: Arc<str>,
}

impl NotDurable {
    /// It is not, for this reason.
    pub fn because(reason: &str) -> Self {
        Self { reason: reason.into() }
    }
}

/// How far changes are stored.
#[derive(Debug, Clone, Default)]
struct Progress {
    /// All changes up to this one are.
    stored: u64,
    /// All changes up to this one were tried, the last time in vain.
    failed: Option<(u64, Arc<str>)>,
}

struct Memory {
    standing: Standing,
    base: Document,
    current: SectionState,
    /// The object's version; `None` where there is none.
    version: Option<Arc<str>>,
    /// With which set of credentials it was read: others may lead to another cluster.
    epoch: Option<u64>,
    /// Counts the changes.
    changes: u64,
    /// Why the last request failed, while none has gone well since.
    failure: Option<String>,
    /// Another daemon that seems to run the section, too.
    other: Option<Daemon>,
    /// It wrote the object while this one ran the section.
    is_other_alive: bool,
}

/// A section's state, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateReport {
    /// `cluster: namespace/name`; the namespace is not known before the cluster answers.
    object: String,
    /// `loading`, `stored`, `changed` or `unavailable`.
    standing: &'static str,
    /// Why it is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Another daemon that seems to run this section, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_daemon: Option<String>,
}

/// The section that a state belongs to.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Its name.
    pub section: SectionName,
    /// What it was called before.
    pub former: Vec<SectionName>,
    /// Nothing is written: a dry run.
    pub read_only: bool,
}

/// See the module.
pub struct Keeper {
    owner: Owner,
    /// The cluster of the object, under the section's fence.
    cluster: Cluster,
    keeping: Keeping,
    memory: Mutex<Memory>,
    changed: Notify,
    progress: watch::Sender<Progress>,
    /// Nothing is written: the cluster may be another one than the state is about.
    is_held: AtomicBool,
}

impl Keeper {
    /// The keeper of a section whose state is in this cluster, under the section's fence.
    pub fn new(owner: impl Into<Owner>, cluster: Cluster, keeping: &Keeping) -> Arc<Self> {
        Arc::new(Self {
            owner: owner.into(),
            cluster,
            keeping: keeping.clone(),
            memory: Mutex::new(Memory {
                standing: Standing::Loading,
                base: Document::default(),
                current: SectionState::default(),
                version: None,
                epoch: None,
                changes: 0,
                failure: None,
                other: None,
                is_other_alive: false,
            }),
            changed: Notify::new(),
            progress: watch::Sender::default(),
            is_held: AtomicBool::new(false),
        })
    }

    /// Whether nothing is to be written until further notice; it is read all the same.
    pub fn hold(&self, is_held: bool) {
        if self.is_held.swap(is_held, Ordering::AcqRel) && !is_held {
            self.changed.notify_one();
        }
    }

    /// The section begins: its state is to be read (again). What an earlier term remembered is forgotten; only where
    /// there is no election, and so nobody else had the section, changes that are not stored yet are kept.
    pub fn forget(&self, keep_changes: bool) {
        let mut memory = self.memory.lock();
        memory.standing = Standing::Loading;
        memory.failure = None;
        (memory.other, memory.is_other_alive) = (None, false);
        if !keep_changes {
            memory.base = Document::default();
            memory.current = SectionState::default();
            memory.version = None;
            let changes = memory.changes;
            self.progress.send_replace(Progress { stored: changes, failed: None });
        }
        #[cfg(test)]
        if self.keeping.in_memory {
            memory.standing = Standing::Loaded;
        }
    }

    /// Whether the section may decide: its state is loaded, or is known to be unavailable.
    pub fn is_known(&self) -> bool {
        self.memory.lock().standing != Standing::Loading
    }

    /// Whether what is changed can be stored, as far as is known. Where not, the guard counts as if its limit were used
    /// up.
    pub fn is_durable(&self) -> bool {
        let memory = self.memory.lock();
        memory.standing == Standing::Loaded
    }

    /// The state as it is now.
    pub fn current(&self) -> SectionState {
        self.memory.lock().current.clone()
    }

    /// Looks at the state as it is now, without a copy.
    pub fn look<T>(&self, look: impl FnOnce(&SectionState) -> T) -> T {
        look(&self.memory.lock().current)
    }

    /// Changes the state; the write follows. Returns what the closure does. A change that changes nothing costs nothing.
    pub fn change<T>(&self, change: impl FnOnce(&mut SectionState) -> T) -> T {
        let mut memory = self.memory.lock();
        let before = memory.current.clone();
        let result = change(&mut memory.current);
        if memory.current != before {
            memory.changes += 1;
            if self.stays_in_memory() {
                let changes = memory.changes;
                self.progress.send_modify(|progress| progress.stored = changes);
            }
            drop(memory);
            self.changed.notify_one();
        }
        result
    }

    /// Writes the state though nothing has changed, so that it says who runs the section.
    pub fn sign(&self) {
        let mut memory = self.memory.lock();
        if !self.stays_in_memory() {
            memory.changes += 1;
            drop(memory);
            self.changed.notify_one();
        }
    }

    /// Another daemon that has written the state while this one ran the section.
    pub fn other(&self) -> Option<String> {
        let memory = self.memory.lock();
        memory.other.as_ref().filter(|_| memory.is_other_alive).map(describe)
    }

    fn stays_in_memory(&self) -> bool {
        #[cfg(test)]
        if self.keeping.in_memory {
            return true;
        }
        self.owner.read_only
    }

    /// Waits until all that has been changed so far is stored. An error when it is not and nobody can say when it will
    /// be: the state is unavailable, or a write that had it failed. It is tried on all the same, and this may be asked
    /// again.
    pub async fn persisted(&self) -> Result<(), NotDurable> {
        let (changes, unavailable) = {
            let memory = self.memory.lock();
            let reason = match &memory.standing {
                Standing::Unavailable(reason) => Some(reason.clone()),
                Standing::Loading | Standing::Loaded => None,
            };
            (memory.changes, reason)
        };
        let mut progress = self.progress.subscribe();
        if progress.borrow().stored >= changes {
            return Ok(());
        }
        if let Some(reason) = unavailable {
            return Err(NotDurable { reason: reason.into() });
        }
        // Failures of before are not counted: what is asked for now is being tried now.
        progress.mark_unchanged();
        let mut availability = self.cluster.availability();
        loop {
            if !self.cluster.is_available() {
                return Err(NotDurable { reason: format!("cluster {} does not answer", self.cluster.name()).into() });
            }
            tokio::select! {
                // The senders live as long as this keeper.
                Ok(()) = availability.changed() => continue,
                Ok(()) = progress.changed() => {}
            }
            let progress = progress.borrow_and_update();
            if progress.stored >= changes {
                return Ok(());
            }
            if let Some((failed, reason)) = &progress.failed
                && *failed >= changes
            {
                return Err(NotDurable { reason: Arc::clone(reason) });
            }
        }
    }

    /// The same for what an operator has ordered, which counts all the same: a failure is in the log, too. What a dry run is
    /// told is never stored.
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
        let failure = self.memory.lock().failure.clone();
        let cluster = self.cluster.name();
        let reason = failure.as_deref().unwrap_or("it has not been read");
        let reason = format!("the section's state in cluster {cluster}: {reason}");
        NotReady { reason, unreachable: !self.cluster.is_available() }
    }

    /// Waits for the next change.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether there is something to be read or written.
    pub(crate) fn has_work(&self) -> bool {
        let memory = self.memory.lock();
        memory.standing != Standing::Loaded || self.progress.borrow().stored < memory.changes
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The namespace of the state: the configuration's, else the pod's, else that of the kubeconfig's context. `None`
    /// while the cluster's credentials are not there.
    pub fn namespace(&self) -> Option<Arc<str>> {
        if let Some(namespace) = &self.keeping.namespace {
            return Some(Arc::clone(namespace));
        }
        if let Some(namespace) = pod_namespace() {
            return Some(namespace.into());
        }
        Some(self.cluster.session()?.connection.client().default_namespace().into())
    }

    /// What the settings of another section in the same place were; `None` where it has no state.
    pub async fn of_other(&self, section: &SectionName) -> Result<Option<Settings>, Error> {
        let Some(namespace) = self.namespace() else { return Ok(None) };
        match object::read(&self.cluster, section, &namespace).await {
            Ok(Read::State(document, _)) => Ok(Some(document.known.settings.unwrap_or_default())),
            Ok(Read::Missing | Read::Foreign(_)) | Err(Error::Forbidden { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The object of another section in the same place, for people.
    pub fn object_of(&self, section: &SectionName) -> String {
        let namespace = self.namespace();
        format!("ConfigMap {}", object::key(section, namespace.as_deref().unwrap_or("(unknown)")))
    }

    /// Reads the state, for `towline check`; what stands in the way of a later write is told, as far as it can be seen.
    pub async fn check(&self) -> Result<(), String> {
        let Some(namespace) = self.namespace() else { return Err("no credentials".into()) };
        self.load(&namespace).await.map_err(|error| error.to_string())?;
        if object::has_namespace(&self.cluster, &namespace).await == Some(false) {
            return Err(format!("namespace {namespace} does not exist"));
        }
        Ok(())
    }

    /// Reads what has not been read and writes what is not stored. `Ok`: nothing is left to do.
    pub(crate) async fn work(&self) -> Result<(), Error> {
        let outcome = self.read_and_write().await;
        let mut memory = self.memory.lock();
        if let Err(error) = &outcome {
            let reason = error.to_string();
            let never = never(error, memory.standing != Standing::Loading);
            if never && memory.standing != Standing::Unavailable(reason.clone()) {
                tracing::warn!(section = %self.owner.section, reason, "the section's state can't be stored");
            } else if !never && memory.failure.is_none() && !matches!(error, Error::LeaseExpired(_)) {
                tracing::warn!(section = %self.owner.section, reason, "the section's state was not stored, retrying");
            }
            if never {
                memory.standing = Standing::Unavailable(reason.clone());
            }
            memory.failure = Some(reason.clone());
            let failed = Some((memory.changes, reason.into()));
            self.progress.send_modify(|progress| progress.failed = failed);
        } else {
            memory.failure = None;
        }
        outcome
    }

    async fn read_and_write(&self) -> Result<(), Error> {
        let Some(namespace) = self.namespace() else {
            let cluster = self.cluster.name().clone();
            return Err(Error::Unavailable { cluster, reason: "no credentials".into() });
        };
        if self.memory.lock().standing != Standing::Loaded {
            self.load(&namespace).await?;
        }
        let mut conflicts = 0;
        while conflicts < ATTEMPTS {
            if self.is_to_be_read_again() {
                self.load(&namespace).await?;
            }
            let (state, version, current, changes) = {
                let memory = self.memory.lock();
                let is_held = self.owner.read_only || self.is_held.load(Ordering::Acquire);
                if is_held || self.progress.borrow().stored >= memory.changes {
                    return Ok(());
                }
                let mut current = memory.current.clone();
                current.daemon = Some(self.keeping.daemon.clone());
                let state = memory.base.with_changes(&memory.base.known, &current);
                (state, memory.version.clone(), current, memory.changes)
            };
            match object::write(&self.cluster, &self.owner.section, &namespace, version.as_deref(), &state).await {
                Ok(version) => {
                    // What was just written is read as another process would read it.
                    let base = Document::parse(&state.to_string());
                    let base = base.map_err(|error| Error::Decode { reason: error.to_string() })?;
                    let mut memory = self.memory.lock();
                    memory.version = Some(version);
                    memory.base = base;
                    memory.current.daemon = current.daemon;
                    drop(memory);
                    self.progress.send_modify(|progress| (progress.stored, progress.failed) = (changes, None));
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

    /// Something is to be written, and credentials have changed since the object was read.
    fn is_to_be_read_again(&self) -> bool {
        let memory = self.memory.lock();
        !self.owner.read_only && self.progress.borrow().stored < memory.changes && memory.epoch != self.cluster.epoch()
    }

    /// Reads the object; what was changed here and is not stored goes over it.
    async fn load(&self, namespace: &str) -> Result<(), Error> {
        let epoch = self.cluster.epoch();
        let (document, version, inherited) = match object::read(&self.cluster, &self.owner.section, namespace).await? {
            Read::Missing => (Document::default(), None, self.inherited(namespace).await?),
            Read::State(document, version) => (*document, Some(version), None),
            Read::Foreign(foreign) => return Err(self.refused(namespace, &foreign)),
        };
        let mut memory = self.memory.lock();
        if let Some(inherited) = inherited.filter(|_| memory.current == SectionState::default()) {
            memory.current = inherited;
            memory.changes += 1;
        }
        let merged = document.with_changes(&memory.base.known, &memory.current);
        let merged =
            Document::parse(&merged.to_string()).map_err(|error| Error::Decode { reason: error.to_string() })?;
        self.look_for_another(&mut memory, &document);
        memory.current = merged.known;
        memory.base = document;
        memory.version = version;
        memory.epoch = epoch;
        memory.standing = Standing::Loaded;
        Ok(())
    }

    /// The state that the section had under a former name: where it has none under its own, it goes on from that.
    async fn inherited(&self, namespace: &str) -> Result<Option<SectionState>, Error> {
        for former in &self.owner.former {
            match object::read(&self.cluster, former, namespace).await {
                Ok(Read::State(document, _)) => {
                    tracing::info!(section = %self.owner.section, former = %former, "goes on from the state of its former name");
                    return Ok(Some(SectionState { daemon: None, ..document.known }));
                }
                Ok(Read::Missing | Read::Foreign(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
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

    /// Whoever else wrote the object since this process read or wrote it, runs the section as well.
    fn look_for_another(&self, memory: &mut Memory, document: &Document) {
        let (Some(theirs), ours) = (&document.known.daemon, &self.keeping.daemon) else { return };
        // Between terms of one election the others write rightly, and a process that begins finds its predecessor's; within
        // a term nobody else writes.
        let is_new = memory.base.known.daemon.as_ref() != Some(theirs);
        let wrote_since = memory.standing == Standing::Loaded && theirs.instance != ours.instance && is_new;
        if !wrote_since && theirs.election == ours.election {
            return;
        }
        if theirs.election != ours.election {
            // Who runs it now is written, so that the other one learns of it with its next write.
            memory.changes += 1;
        }
        if memory.other.as_ref() != Some(theirs) {
            tracing::warn!(
                section = %self.owner.section, other = %describe(theirs), this = %describe(ours),
                "another daemon has written this section's state: does it run the section, too?"
            );
        }
        memory.is_other_alive |= wrote_since;
        memory.other = Some(theirs.clone());
    }

    #[cfg(test)]
    pub(super) fn report_standing(&self) -> &'static str {
        self.report().standing
    }

    #[cfg(test)]
    pub(super) fn report_other(&self) -> Option<String> {
        self.report().other_daemon
    }

    /// What is shown of it.
    pub fn report(&self) -> StateReport {
        let namespace = self.namespace();
        let memory = self.memory.lock();
        let key = object::key(&self.owner.section, namespace.as_deref().unwrap_or("(unknown)"));
        let is_stored = self.progress.borrow().stored >= memory.changes;
        let (standing, reason) = match &memory.standing {
            Standing::Loading => ("loading", memory.failure.clone()),
            Standing::Unavailable(reason) => ("unavailable", Some(reason.clone())),
            Standing::Loaded if is_stored => ("stored", None),
            Standing::Loaded => ("changed", memory.failure.clone()),
        };
        let other_daemon = memory.other.as_ref().map(describe);
        StateReport { object: format!("{}: {key}", self.cluster.name()), standing, reason, other_daemon }
    }
}

fn describe(daemon: &Daemon) -> String {
    match &daemon.election {
        Some(election) => format!("{} (election {election})", daemon.instance),
        None => format!("{} (no election)", daemon.instance),
    }
}

/// Whether the same request will fail until somebody changes something, so that the section goes on without its state. What
/// may pass, such as an answer that is none of an API server's, is waited for: a section that was detached must not begin
/// anew because of it.
fn never(error: &Error, was_read: bool) -> bool {
    match error {
        Error::Forbidden { .. } | Error::Rejected { .. } => true,
        // The namespace is missing, or is going.
        Error::NotServed { .. } | Error::NamespaceTerminating { .. } => was_read,
        _ => false,
    }
}

/// Where Kubernetes says which namespace a pod is in.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

fn pod_namespace() -> Option<String> {
    let text = std::fs::read_to_string(POD_NAMESPACE).ok()?;
    let name = text.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

//! What a section remembers beyond its process: one small `ConfigMap` for each section, in the local cluster for resource
//! sync, on the hub for status sync.
//!
//! [`content`] is what it says ([`StoredState`]) and how two versions of it are merged, and [`cached`] is the copy in memory
//! with the changes that are not stored yet; both are pure. [`object`] sends the requests for the `ConfigMap`. [`store`] owns
//! a section's state: the section reads it with [`StateStore::look`] and changes it with [`StateStore::change`], and one actor
//! ([`run`]) reads the object when the section starts and writes it after changes. [`Keeping`] says where the objects are and
//! which daemon this is, [`Owner`] which section the state belongs to.
//!
//! A section decides nothing before its state is loaded or known to be unavailable ([`StateStore::is_known`]).

mod cached;
mod content;
mod object;
mod run;
mod store;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;

use crate::config::{DaemonConfig, ElectionConfig};
pub use cached::StateReport;
pub use content::{Daemon, Detached, GuardState, Identities};
#[cfg(test)]
use object::MARK;
pub use object::{is_state_object, needed_access};
pub use run::keep;
pub use store::{NotDurable, Owner, StateStore};

/// Adds to the answer to an operator's order whether it survives a restart (`remembered`), and if not, why.
pub fn remembered(mut answer: Value, stored: Result<(), impl Display>) -> Value {
    if let Some(answer) = answer.as_object_mut() {
        answer.insert("remembered".into(), stored.is_ok().into());
        let reason = stored.err().map(|failure| format!("a restart forgets it: {failure}"));
        answer.extend(reason.map(|reason| ("reason".into(), reason.into())));
    }
    answer
}

/// Where the states of all sections of a daemon are, and which daemon it is.
#[derive(Debug, Clone)]
pub struct Keeping {
    /// The namespace, if the configuration names one.
    namespace: Option<Arc<str>>,
    daemon: Daemon,
    /// Whether states are kept in memory only.
    #[cfg(test)]
    in_memory: bool,
}

impl Keeping {
    pub fn new(daemon: &DaemonConfig, election: Option<&ElectionConfig>) -> Self {
        let namespace = election.map(|election| &election.namespace).or(daemon.state_namespace.as_ref());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let instance = election
            .and_then(|election| election.identity.clone())
            .unwrap_or_else(|| format!("{host}_{:08x}", rand::random::<u32>()));
        let election = election.map(|election| format!("{}/{}", election.cluster, election.namespace));
        Self {
            namespace: namespace.map(|namespace| namespace.as_str().into()),
            daemon: Daemon { instance, election },
            #[cfg(test)]
            in_memory: false,
        }
    }

    /// For sections that remember nothing beyond the test's process.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        let daemon = Daemon { instance: "test".into(), election: None };
        Self { namespace: None, daemon, in_memory: true }
    }

    /// In a namespace of a scripted cluster.
    #[cfg(test)]
    pub(crate) fn in_namespace(namespace: &str, instance: &str) -> Self {
        let daemon = Daemon { instance: instance.into(), election: None };
        Self { namespace: Some(namespace.into()), daemon, in_memory: false }
    }
}

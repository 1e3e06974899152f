//! What the admin server needs from the rest of the daemon: the sections, and the actor tree.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::condition::Facts;
use super::objects::{ListedObject, ObjectPage, Selection};
use crate::config::SectionName;
use crate::telemetry::Family;

/// A configured section, as the admin server sees it.
pub trait Section: Send + Sync {
    /// Its name in the configuration.
    fn name(&self) -> &SectionName;

    /// The job: `sync`, for example.
    fn job(&self) -> &'static str;

    /// What is known of it: its condition, its readiness, its objects and its row in the status table follow from that.
    fn facts(&self) -> Facts;

    /// Its own report: a JSON object whose keys appear in `/status` beside those that every section has.
    fn report(&self) -> Value;

    /// Some of its objects: by default of those that its facts list.
    fn objects(&self, selection: &Selection) -> ObjectPage {
        ObjectPage::of_listed(self.facts().objects, selection)
    }

    /// The histogram with the label `section` in which it records each write to a cluster, by how long after the change it came.
    fn lag(&self) -> Option<&'static str> {
        None
    }

    /// Updates the job's own gauges before a scrape.
    fn refresh(&self) {}

    /// Brings up to date what is otherwise counted from time to time: somebody asks for the status.
    fn count(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Gauges whose series come and go.
    fn families(&self) -> Vec<Family> {
        Vec::new()
    }

    /// Releases the held changes, as somebody at this address has asked. The answer lists them.
    fn approve(&self, _from: IpAddr) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// Whether [`Section::approve_one`] is supported.
    fn approves_by_name(&self) -> bool {
        false
    }

    /// Releases what is held under this name alone. The answer lists it.
    fn approve_one<'s>(&'s self, _name: &'s str, _from: IpAddr) -> BoxFuture<'s, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// The changes that [`Section::approve`] would release, by object. Changes nothing.
    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// Ends the section for good; with `local_gone` without the local cluster, which is gone. The answer lists what was
    /// released.
    fn detach(&self, _local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// Does again what is done already: for one object, or for all of them. The answer counts them.
    fn resync<'s>(&'s self, _name: Option<&'s str>) -> BoxFuture<'s, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// Explains the state of one object: as the report lists it (`objects`), perhaps with its `sides` and what else the job has of it, or in
    /// lines (`lines`). Changes nothing. By default only those are known that fail or wait.
    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        let mut found = self.facts().objects.not_in_step;
        found.retain(|object| object.key == name);
        explained(self.name(), &found, || format!("lists no object {name} that fails or waits"))
    }

    /// Resumes a section that was detached.
    fn attach(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }
}

/// The answer with what was found of an object, or that nothing was.
pub fn explained<'s>(
    section: &SectionName,
    found: &[ListedObject],
    nothing: impl FnOnce() -> String,
) -> BoxFuture<'s, Result<Value, Refused>> {
    let explained = if found.is_empty() {
        Err(Refused::Conflict { reason: format!("section {section} {}", nothing()) })
    } else {
        Ok(json!({ "objects": found }))
    };
    Box::pin(std::future::ready(explained))
}

/// The changes that a section holds until an operator approves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Why the section as a whole is held; `None` if it is not.
    pub because: Option<String>,
    /// The objects that are held individually, sorted by key.
    pub objects: Vec<HeldObject>,
    /// Syncsets of which it is not known yet whether their deletions are held, since these are being counted. An approval does not help them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counting: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldObject {
    /// Its local key: `namespace/name`.
    pub key: String,
    /// The change that is held, from a closed set.
    pub kind: &'static str,
    /// Why it is held, in words.
    pub reason: String,
    /// Of a syncset: the generation that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

impl Held {
    /// Tells what an approval would release from everything else that it might release later. While the section as a whole is held, that
    /// is not the objects.
    pub(super) fn digest(&self) -> String {
        let released = match &self.because {
            Some(because) => json!(because),
            None => json!(self.objects),
        };
        format!("{:x}", Sha256::digest(released.to_string()))
    }
}

/// Why a section refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is nothing to approve, or the section's state does not allow it. A retry helps only after that has changed.
    #[error("{reason}")]
    Conflict { reason: String },
    /// The section's job does not support the request.
    #[error("the job {job} does not support this")]
    Unsupported { job: &'static str },
    /// The section does not run in this process, or can't reach a cluster now. A later retry may help.
    #[error("{reason}")]
    Unavailable { reason: String },
    /// A step failed. A retry continues from there.
    #[error("failed to {step}")]
    Failed { step: &'static str, source: Box<dyn Error + Send + Sync> },
}

/// The actor tree, as the admin server sees it.
pub trait Tree: Send + Sync {
    /// Each actor's name, state, restarts and mailbox, with its children.
    fn report(&self) -> BoxFuture<'_, Value>;

    /// Asks the tree whether it is alive, and returns how long it has left an earlier question unanswered.
    fn ask(&self) -> Duration;
}

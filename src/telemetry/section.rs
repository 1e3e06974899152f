//! What the admin server asks of the rest: the sections, and the actor tree.

use std::error::Error;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use super::condition::Condition;
use crate::config::SectionName;

/// A configured section, as the admin server sees it.
pub trait Section: Send + Sync {
    /// Its name in the configuration.
    fn name(&self) -> &SectionName;

    /// Which job it does: `sync` or `lease`.
    fn job(&self) -> &'static str;

    /// Whether it does it.
    fn readiness(&self) -> Readiness;

    /// How it is doing.
    fn condition(&self) -> Condition;

    /// What it is about and how far it has come, in the words that all jobs share.
    fn overview(&self) -> Overview;

    /// Its own report: a JSON object, whose keys stand in `/status` beside `job`, `readiness` and those of its condition
    /// and its overview.
    fn report(&self) -> Value;

    /// Brings gauges that hold a state up to date, before a scrape.
    fn refresh(&self);

    /// Lets go on what was held for someone to look at. The answer tells what was let go.
    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// What [`Section::approve`] would let go on, object by object. Nothing is changed.
    fn held(&self) -> Result<Held, Refused> {
        Err(Refused::Unsupported { job: self.job() })
    }

    /// Ends the section for good, with `local_gone` also where the local cluster will never answer again. The answer
    /// tells what was released.
    fn detach(&self, _local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }

    /// Takes a section back that was ended so.
    fn attach(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { Err(Refused::Unsupported { job: self.job() }) })
    }
}

/// The changes that a section holds until an operator approves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Why the section as a whole is held; `None`: it is not.
    pub because: Option<String>,
    /// The objects that are held one by one, by key.
    pub objects: Vec<HeldObject>,
}

/// An object that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldObject {
    /// Its local key: `namespace/name`.
    pub key: String,
    /// What would be done to it, from a closed set.
    pub kind: &'static str,
    /// Why, in words.
    pub reason: String,
}

/// A section's row in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overview {
    /// From where to where: `hub→edge`.
    pub flow: String,
    /// What it is about: a plural.
    pub subject: String,
    /// How many objects there are.
    pub total: usize,
    /// How many of them are as they should be.
    pub in_step: usize,
    /// Age in seconds of the oldest change that has not arrived.
    pub oldest_seconds: Option<f64>,
}

/// Whether a section does its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum Readiness {
    /// It does, or it is not to run in this process.
    Ready,
    /// A cluster does not answer. The daemon as a whole counts as ready all the same.
    Unreachable(String),
    /// The section as a whole is held until an operator approves. The daemon as a whole counts as ready all the same.
    Held(String),
    /// It has not finished its first list yet, or can't begin.
    NotReady(String),
}

/// Why a section does not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is nothing to approve, or the section is in a state where it can't be done. Asking again does not help
    /// before that has changed.
    #[error("{reason}")]
    Conflict {
        /// What stands in the way.
        reason: String,
    },
    /// The section's job has no such thing.
    #[error("the job {job} does not support this")]
    Unsupported {
        /// The job.
        job: &'static str,
    },
    /// The section does not run in this process, or can't reach a cluster now. Asking later may help.
    #[error("{reason}")]
    Unavailable {
        /// What is missing.
        reason: String,
    },
    /// It was begun, and a step failed. Asking again goes on from there.
    #[error("failed to {step}")]
    Failed {
        /// The step.
        step: &'static str,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The actor tree, as the admin server sees it.
pub trait Tree: Send + Sync {
    /// Each actor's name, state, restarts and mailbox, with its children.
    fn report(&self) -> BoxFuture<'_, Value>;

    /// How long ago the tree has last shown that it makes progress.
    fn heartbeat_age(&self) -> Duration;
}

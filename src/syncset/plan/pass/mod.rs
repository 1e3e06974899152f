//! A pass over a cluster: what is sent to it and deleted from it, in which order, and what is stored of that.
//!
//! [`Pass`] is a state machine without I/O. [`Pass::next`] says what to do, the caller does it and returns what came of it by
//! [`Pass::reply`], until [`Step::Done`]:
//!
//! 1. Kinds are resolved, since whether a kind has namespaces decides which references name one object.
//! 2. A full pass lists what it has sent before, up to four kinds at once, and first contacts are looked at.
//! 3. The rows of everything that is going to be sent or deleted are stored, without content. Results are stored as
//!    [unfinished](crate::syncset::plan::rows::ResultRow::UNFINISHED), so that the next pass finds the syncset due even if the change has been taken back.
//! 4. Objects of syncsets that are gone are deleted.
//! 5. Each syncset that is due sends its objects and patches up to the first error, and then deletes what it no longer wants. Only then
//!    a namespace or a definition is deleted in which that is, whoever does not want that any more.
//!
//! A pass can be dropped after any step: the next one continues from what is stored. An object is deleted only if a GET
//! shows that a syncset of the cluster sent it, in the version that this GET has shown, and if no live syncset wants it, or the one that does wants it
//! recreated.

mod ask;
mod failure;
mod item;
mod kept;
mod list;
mod patch;
mod plan;
mod prepare;
mod recreate;
mod remove;
mod run;
mod send;
mod step;
mod stored;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

pub use run::Pass;
pub use step::{
    Answer, Compared, End, Ending, List, Manager, Marks, Outcome, PRUNE, Page, Progress, Refusal, Refused, Release,
    Resolution, Seen, Step, Takeover, Target, Writes,
};
pub use stored::telling;

use super::rows::{AppliedRow, PatchedRow, ResultRow};
use super::wanted::{Deletions, Live};

#[derive(Clone, Debug)]
pub struct Input {
    /// The syncsets that name or select the cluster, in the order in which they are applied. Those that are due are rendered, and so is
    /// everything that [`also_due`](super::wanted::also_due) names; in a full pass all are.
    pub live: Vec<Live>,
    /// Of syncsets that are gone or match no more, whether they may delete. One that is missing here deletes nothing.
    pub gone: BTreeMap<Uuid, Deletions>,
    /// All rows of the cluster.
    pub applied: Vec<AppliedRow>,
    /// All patches of the cluster.
    pub patched: Vec<PatchedRow>,
    /// All results of the cluster.
    pub results: Vec<ResultRow>,
    /// Whether this is a full pass.
    pub full: bool,
    /// Whether another cluster is behind the kubeconfig than the rows are of. The new identity must not be stored
    /// before the pass has stored its first writes.
    pub another_cluster: bool,
    /// Whether the kubeconfig led to another cluster when it was first used. What was there before belongs to somebody else then, whatever it bears:
    /// the marks may have been copied with it, and the kubeconfig may be a mistake.
    pub elsewhere: bool,
    /// From the pass before, if that had to end early; what was in step counts only if it was the same full pass.
    pub progress: Progress,
    /// When the pass begins.
    pub now: Timestamp,
}

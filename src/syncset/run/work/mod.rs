//! Work on one cluster: from a claim to what is stored of the pass. In the order in which it happens, which is a good one to read it in:
//!
//! 1. `worker`: the actor claims clusters that have work, reconciles each in a task of its own, and ends the claim.
//! 2. `reconcile`: one reconcile reads a [`Snapshot`], and [`Plan::of`] says what there is to do, without a connection: usually nothing, or a pass.
//! 3. `pass`: the pass connects, with a client that `idle` may have kept; it asks a silent cluster whether it answers, and finds out which cluster
//!    it is. `prepare` reads, opens and renders what is due. Then the pass waits for a slot (`slot`).
//! 4. [`pass()`](crate::syncset::plan::pass::pass) decides what is sent and deleted, and in which order. It runs on a `target`: requests to the cluster
//!    (`executor`), rows in the database ([`PassStore`](crate::syncset::run::store::PassStore)), and whether what it was planned by still holds.
//! 5. `health`: where it is due, the objects that were applied are read.
//! 6. `finish`: what has come of it is shown in the `ClusterSync` and stored, with the time from which the cluster is ready again.
//!
//! Each step can be the last one: the next reconcile begins with a new snapshot. What metrics and the log say of all this is in `observer`.
//! What the steps hand each other is below. How they end, from the smallest to the whole:
//!
//! - a request: with an answer, `Refused` (the pass goes on), or [`Stop`] (the cluster wants no more);
//! - the pass: with an `Outcome`, its `End`, and the `Halt` that stopped it, if one did (a `Stop` is one of them); or with `NoPass`, if it did not begin;
//! - reading health: with a `ReadingEnd`; what the pass came to with it is what has `Ran`;
//! - the cluster: it is `LeftAs` something, with what is `Left` to do, from which follows when it is looked at `Next`;
//! - the reconcile: with `Reconciled`, or a `ReconcileError`;
//! - its claim: with a `ClaimEnd`, mostly a `WorkEnd` for the row of the work queue; and what has become of that row is its `RowEnd`.

mod executor;
mod finish;
mod health;
mod idle;
mod observer;
mod pass;
mod prepare;
mod reconcile;
mod slot;
mod target;
mod worker;

use jiff::Timestamp;
use tokio::time::Instant;

pub use executor::{By, Client, Executor, ObjectOnCluster, Stop, check_merge};
pub use observer::{First, WorkObserver};
pub use prepare::{NoClient, NoCredentials, PrepareError, Prepared, Preparer, SnapshotBudget};
pub use worker::Worker;

use crate::documents::{RowEnd, WorkEnd, WriteError};
use crate::syncset::plan::retry::after;
use crate::syncset::plan::rows::ClusterRow;
use crate::syncset::plan::snapshot::{Plan, Snapshot};
use crate::syncset::run::store::StoreError;
use crate::telemetry::ReconcileResult;

/// What a reconcile has read, and when.
struct Read {
    snapshot: Snapshot,
    room: SnapshotBudget,
    plan: Plan,
    at: Instant,
}

impl Read {
    /// The database's time.
    fn now(&self) -> Timestamp {
        after(self.snapshot.at, self.at.elapsed())
    }

    fn cluster_row(&self) -> ClusterRow {
        self.snapshot.cluster_row.clone().unwrap_or_default()
    }

    /// Which cluster it was, when that was last found out.
    fn identity(&self) -> Option<&str> {
        self.snapshot.cluster_row.as_ref()?.identity.as_deref()
    }
}

/// What a pass has found out about which cluster it is.
struct Identified {
    /// Read in this pass.
    identity: Option<String>,
    /// Another one than noted.
    is_another: bool,
}

/// What a reconcile has come to.
struct Reconciled {
    end: ClaimEnd,
    result: ReconcileResult,
}

impl Reconciled {
    fn of(result: ReconcileResult, end: ClaimEnd) -> Self {
        Self { end, result }
    }
}

/// How the claim on a cluster ends after a reconcile, and what becomes of its row in the work queue.
enum ClaimEnd {
    Waits(WorkEnd),
    Gone,
    /// The process ends: another one may go on at once.
    HandedBack,
    /// The claim was ended by the statement that stored what the reconcile came to.
    Ended(RowEnd),
    /// The claim has ended: another process may work on the cluster.
    Lost,
}

impl ClaimEnd {
    /// It is ready again at this time, and remembers so many failed attempts.
    fn until(at: Timestamp, attempts: u32) -> Self {
        Self::Waits(WorkEnd::done(at, attempts))
    }

    /// The same for what was not done to its end: what was urgent stays urgent.
    fn further(at: Timestamp, attempts: u32) -> Self {
        Self::Waits(WorkEnd::go_on(at, attempts))
    }
}

/// Why a reconcile came to nothing.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    /// The claim has ended: another process may work on the cluster.
    #[error("the claim has ended")]
    Lost,
    /// The process ends: another one may go on at once.
    #[error("the process ends")]
    ShutsDown,
    #[error(transparent)]
    Store(StoreError),
    #[error("failed to write the ClusterSync")]
    Show(#[from] WriteError),
    #[error(transparent)]
    Prepare(PrepareError),
    /// This replica lacks the key of the kubeconfig. Another may have it, so nothing is said of the cluster.
    #[error(transparent)]
    NoKey(NoCredentials),
}

impl From<StoreError> for ReconcileError {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::ClaimLost) { Self::Lost } else { Self::Store(error) }
    }
}

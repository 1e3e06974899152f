//! Judging: on how many clusters a change would delete objects, and whether these are so many that they are held.
//!
//! It happens in the transaction that moves the cursor, or in others before it: a pass deletes because of a change only after the cursor
//! has passed it, so it always finds what was judged. Documents are read as they are now. Those that are newer than the cursor are judged
//! again, and until then no pass deletes because of them.
//!
//! A syncset whose document has changed is judged as a whole: on each cluster where it tracks objects. Of clusters that got other
//! labels only their own syncsets are looked at, and how many each has lost lately is in `towline_lost`. Once all of them are noted
//! there, it is decided which syncsets have lost too many. Each step is split into transactions of bounded cost; what they store permits
//! nothing before the cursor has moved, and a turn that is repeated finds it.
//!
//! Labels may also give objects other names. So on clusters that got other labels, what syncsets with such names track is compared with
//! what they name now, and what they lose is noted in the same table. If it is not known which labels were changed, this is done for all
//! clusters of a syncset before it is judged.
//!
//! What counts is what is stored when a change is judged. A pass that is under way may store objects of another cluster afterwards, so a
//! count may be too low by as many clusters as are worked on.

mod clusters;
mod cost;
mod guards;
mod renamed;
mod syncsets;

use std::collections::BTreeSet;

use uuid::Uuid;

use super::docket::Docket;
use super::error::DispatchError;
use super::held::{HeldSyncset, Released};
use crate::db::Transaction;

pub(super) use self::clusters::decide;
pub(super) use self::cost::{Labels, MOST, Page, UNITS, decisions, pages};
pub(super) use self::syncsets::everything;

/// What judging has changed.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Syncsets that are held from now on.
    pub(super) held: Vec<HeldSyncset>,
    /// Syncsets that are held no more: the clusters where they track objects have to be asked for.
    pub(super) released: Vec<Released>,
    /// Syncsets that have lost clusters or got some back, as it is noted now: whether they are held is decided later.
    pub(super) undecided: BTreeSet<Uuid>,
}

/// How it is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Court {
    /// Whether deletions are held at all.
    pub(super) is_guarding: bool,
    /// The version of the log up to which changes are judged.
    pub(super) version: i64,
}

impl Verdicts {
    pub(super) fn add(&mut self, other: Self) {
        self.held.extend(other.held);
        self.released.extend(other.released);
        self.undecided.extend(other.undecided);
    }

    /// Tells the operator, once the transaction is committed.
    pub(super) fn announce(&self) {
        for held in &self.held {
            tracing::warn!(
                syncset = %held.label(),
                clusters = held.clusters,
                of = held.tracks,
                reason = held.cause.reason(),
                remedy = held.remedy(),
                "deletions of a syncset are held"
            );
        }
        for Released { label: syncset, .. } in &self.released {
            tracing::info!(syncset, "deletions of a syncset are no longer held");
        }
    }
}

impl Court {
    /// Judges what is on the docket.
    pub(super) async fn judge(
        self,
        transaction: &mut Transaction<'static>,
        docket: &Docket,
    ) -> Result<Verdicts, DispatchError> {
        let whole: Vec<Uuid> = docket.syncsets.iter().copied().collect();
        let relabelled: Vec<Uuid> = docket.relabelled.iter().copied().collect();
        renamed::compare_stretches(transaction, &docket.compared).await?;
        // An approval of a syncset that is judged as a whole is for what is noted before.
        let mut verdicts = self.clusters(transaction, &relabelled, &whole).await?;
        verdicts.add(self.syncsets(transaction, &whole).await?);
        Ok(verdicts)
    }
}

/// From when on losses count: those of the last ten minutes, and what is held does not get old.
fn since(guard: &str) -> String {
    format!("(case when {guard}.held then {guard}.since else now() end - interval '10 min')")
}

fn texts<'i>(ids: impl IntoIterator<Item = &'i Uuid>) -> Vec<String> {
    ids.into_iter().map(Uuid::to_string).collect()
}

/// A count of a statement.
fn count(value: i64) -> usize {
    usize::try_from(value).unwrap_or_default()
}

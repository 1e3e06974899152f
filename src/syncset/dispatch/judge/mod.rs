//! Judging (rules 32 to 34): on how many clusters a change would delete objects, and whether these are so many that they are held.
//!
//! It happens in the transaction that moves the cursor, or before it: a pass deletes because of a change only after the cursor has
//! passed it, so it always finds what was judged. Documents are read as they are now. Those that are newer than the cursor are judged
//! again, and until then no pass deletes because of them.
//!
//! A syncset whose document has changed is judged as a whole: on each cluster where it tracks objects. Of clusters that got other
//! labels only their own syncsets are looked at, and how many each has lost lately is in `towline_lost`.
//!
//! What counts is what is stored when a change is judged. A pass that is under way may store objects of another cluster afterwards, so a
//! count may be too low by as many clusters as are worked on.

mod clusters;
mod guards;
mod syncsets;

use uuid::Uuid;

use super::docket::Docket;
use super::error::DispatchError;
use super::held::HeldSyncset;
use crate::db::Transaction;

pub(super) use self::syncsets::everything;

/// Most syncsets of one transaction. Each may track objects on ten thousand clusters, at up to 0.1 ms each on two busy cores.
pub(super) const PAGE: usize = 4;

/// What judging has changed.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Syncsets that are held from now on.
    pub(super) held: Vec<HeldSyncset>,
    /// Syncsets that are held no more: the clusters where they track objects have to be asked for.
    pub(super) released: Vec<Uuid>,
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
        for syncset in &self.released {
            tracing::info!(%syncset, "deletions of a syncset are no longer held");
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
        let mut verdicts = self.syncsets(transaction, &whole).await?;
        let relabelled: Vec<Uuid> = docket.relabelled.iter().copied().collect();
        verdicts.add(self.clusters(transaction, &relabelled, &whole).await?);
        Ok(verdicts)
    }
}

/// The clusters on which a syncset tracks objects, as a query without parentheses; each costs one look into the index, however many
/// objects there are.
fn tracked(syncset: &str) -> String {
    let first = format!("select a.cluster from towline_applied a where a.syncset = {syncset} and a.tracked");
    format!(
        "with recursive t(cluster) as ( \
           ({first} order by a.cluster limit 1) \
           union all select ({first} and a.cluster > t.cluster order by a.cluster limit 1) from t where t.cluster is not null) \
         select cluster from t where cluster is not null"
    )
}

/// From when on clusters that were lost count: those of the last ten minutes, and what is held does not get old.
fn since(guard: &str) -> String {
    format!("(case when {guard}.held then {guard}.since else now() end - interval '10 min')")
}

fn texts(ids: &[Uuid]) -> Vec<String> {
    ids.iter().map(Uuid::to_string).collect()
}

/// A count of a statement.
fn count(value: i64) -> usize {
    usize::try_from(value).unwrap_or_default()
}

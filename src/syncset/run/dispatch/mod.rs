//! The dispatcher: turns changes of documents into requests for clusters.
//!
//! It reads the log above its cursor, finds out whom the changes concern, and asks for those clusters in the transaction that moves
//! the cursor. So a crash loses no request, and at worst repeats some. A request for a cluster that has nothing to do is harmless: the
//! pass finds that out with one statement. So wherever it is not certain whom a change concerns, it concerns more clusters.
//!
//! A change's way, which is a good order to read it in:
//!
//! 1. [`actor`] is woken by a notification or after a second, and does one batch after another.
//! 2. [`batch`] does what follows: it is the whole of the dispatcher in one file.
//! 3. [`log`] reads the changes above the cursor.
//! 4. [`concern`](crate::syncset::plan::concern) says whom they concern, and what the guard has to check.
//! 5. [`guard`] checks what that would delete, before the cursor is moved. Passes delete nothing that was not checked, and nothing that is
//!    suspended; [`suspended`](suspended()) lists that, and [`approve`] lets it go.
//! 6. One transaction asks for the clusters concerned and moves the cursor. From there it goes on in [`work`](super::work).
//!
//! Beside that the dispatcher moves rollouts on, about once a second ([`rollout`]), and removes what is left of clusters that are gone ([`remove`]).

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::db::{self, Database, Row, Transaction, Type, column};
use crate::documents::Grant;

mod actor;
mod batch;
mod guard;
mod log;
mod remove;
mod rollout;
mod selection;
mod suspended;

pub use actor::{DispatchObserver, Dispatcher};
pub use batch::{Aside, AsideCheck, Batch, Dispatch};
pub use rollout::Rollouts;
pub(in crate::syncset) use rollout::waves;
pub(in crate::syncset) use selection::condition;
pub use suspended::{SuspendedSyncset, approve, being_counted, suspended, suspended_within};

/// Limit of a transaction. It locks the row of the claim, for which a renewal waits 3 s at most and is then repeated.
const WITHIN: Duration = Duration::from_secs(8);

/// The claim in parameters $1 and $2, and the cursor in $3, of which each may be null; in the database that was read: one that was
/// failed over to since has another origin until its versions are renumbered.
const CLAIMED: &str = "name = 'dispatcher' and ($1::text is null or holder = $1 and token = $2 and until > clock_timestamp()) \
     and ($3::bigint is null or cursor = $3) and (select origin = towline_origin() from towline_meta)";

/// Why a batch of the dispatcher has failed. Its cursor has not moved, unless an answer was lost.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DispatchError {
    /// The database did not answer, or not as expected. Another attempt may succeed.
    #[error("failed to dispatch changes")]
    Database(#[from] db::Error),
    /// Another process is the dispatcher, or another batch has moved the cursor.
    #[error("the claim of the dispatcher has expired")]
    ClaimLost,
    /// The database is being restored, or was failed over to: its versions are another server's. Another attempt may succeed.
    #[error("the database is being restored")]
    Restoring,
    /// Several syncsets of a name are held. An approval has to name one of them by its id.
    #[error("deletions of several syncsets {name} are held, approve one of them by its id: {}", .ids.join(", "))]
    Ambiguous {
        name: String,
        /// The ids, each with the reason.
        ids: Vec<String>,
    },
    /// The guard has checked a syncset again while an operator approved it.
    #[error("what is held of {label} has changed meanwhile: look at it again")]
    Changed { label: String },
}

/// The ids in the first column of a statement's rows.
fn ids(query: &'static str, rows: &[Row]) -> Result<Vec<Uuid>, DispatchError> {
    let id = |row| -> Result<Uuid, DispatchError> {
        let text: &str = column(query, row, 0)?;
        Ok(text.parse().map_err(|error| db::Error::Decode { query, source: Arc::new(error) })?)
    };
    rows.iter().map(id).collect()
}

/// Begins a transaction, and locks the dispatcher's claim. None if somebody else holds it, or its cursor has moved from this place, as
/// far as these are given; and while the database is being restored.
async fn begin_locked(
    database: &Database,
    name: &'static str,
    grant: Option<&Grant>,
    cursor: Option<i64>,
) -> Result<Option<Transaction<'static>>, db::Error> {
    let mut transaction = database.begin(name, WITHIN).await?;
    let (holder, token) = (grant.map(|grant| grant.holder.as_str()), grant.map(|grant| grant.token));
    let params = [(&holder as _, Type::TEXT), (&token as _, Type::INT8), (&cursor as _, Type::INT8)];
    // Commands and writers of a syncset wait for its rollout's row, and renewals of work for the rows that are asked for: 3 s at a time,
    // and they have 20 s. A process that stops here must not hold them for longer.
    let text = format!(
        "select set_config('idle_in_transaction_session_timeout', '3s', true) from towline_claim where {CLAIMED} for update"
    );
    let is_locked = transaction.execute("lock_dispatcher", &text, &params).await? > 0;
    Ok(is_locked.then_some(transaction))
}

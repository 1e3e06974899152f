//! One pass: detect what has changed, check the hub, read the changed rows, roll them up, and write the differences.

use std::collections::HashSet;

use futures::FutureExt;
use tokio::time::Instant;

use super::apply::Apply;
use super::state::{FamilyContext, PollerState};
use crate::actor::Scope;
use crate::cluster::{Identification, Objection};
use crate::db;
use crate::status_sync::plan::RowId;
use crate::status_sync::run::database::{Detected, Detection, Reading, StatusRows};

/// Why a pass ended early.
#[derive(Debug)]
pub(super) enum Stopped {
    Draining,
    /// The hub may have become another cluster, which has to be identified first.
    HubUnknown,
    /// The section may not write to this hub.
    Held(Objection),
    /// The database did not return everything.
    Failed(db::Error),
}

impl From<db::Error> for Stopped {
    fn from(error: db::Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs one pass over all rows.
pub(super) async fn run(context: &FamilyContext, scope: &Scope, state: &mut PollerState) -> Result<(), Stopped> {
    let shared = &context.shared;
    let begun = Instant::now();
    let Detected { found, rows, bad } = detect(context, scope, state).await?;
    let now = Instant::now();
    state.detection = now - begun;
    if rows > 0 {
        shared.any_rows.send_if_modified(|any| !std::mem::replace(any, true));
    }
    context.table.lock().update(found, now);
    context.reporter.detected(rows);
    wait_for_identification(context, scope, state).await?;
    let now = Instant::now();
    // A database without any row may be about to be filled, so the first pass over it clears nothing.
    let may_clear = !(state.is_first_pass && rows == 0 && !*shared.any_rows.borrow());
    let due = {
        let mut table = context.table.lock();
        let names = table.names();
        let due = table.due(names, context.hub.hub_objects(), context.hub.targets(), now, shared.interval);
        context.reporter.update(&table, &context.guard);
        due
    };
    let mut apply = Apply::new(context, scope, state);
    if may_clear {
        apply.clear(due.without_rows).await;
    }
    read(context, scope, apply, due.with_rows).await?;
    context.reporter.bad_rows(context.table.lock().bad_rows(&bad));
    Ok(())
}

/// Compares some rows again between passes. It clears nothing, since only a pass knows how many objects would be cleared
/// in total. Returns whether a pass is needed for that.
pub(super) async fn recheck(
    context: &FamilyContext,
    scope: &Scope,
    state: &mut PollerState,
    ids: &HashSet<RowId>,
) -> Result<bool, Stopped> {
    let (hub, interval) = (&context.hub, context.shared.interval);
    let due = {
        let mut table = context.table.lock();
        let names = table.names_of(ids);
        table.due(names, hub.hub_objects(), hub.targets(), Instant::now(), interval)
    };
    read(context, scope, Apply::new(context, scope, state), due.with_rows).await?;
    Ok(!due.without_rows.is_empty())
}

/// Detects changes of all rows. Fails if the result is not complete.
async fn detect(context: &FamilyContext, scope: &Scope, state: &mut PollerState) -> Result<Detected, Stopped> {
    let shared = &context.shared;
    let started = Detection::start(&shared.database, context.family, &context.statements, &shared.namespace);
    let mut detection = wait_for_database(context, scope, state, started).await?;
    while wait_for_database(context, scope, state, detection.next()).await? {}
    Ok(detection.finish())
}

/// Waits until it is decided whether the section may write to its hub. If the hub's identity does not decide that, every
/// family compares its rows before any of them writes.
async fn wait_for_identification(
    context: &FamilyContext,
    scope: &Scope,
    state: &mut PollerState,
) -> Result<(), Stopped> {
    let identification = &context.shared.identification;
    let mut changes = identification.changes();
    let mut identities = identification.identities();
    if identification.asks_for_rows() {
        // A cache from before the doubt may still show the earlier cluster, and would agree with the rows.
        if !state.can_decide(&context.hub) {
            return Err(Stopped::HubUnknown);
        }
        let compared = context.table.lock().compare(context.hub.hub_objects());
        identification.compared(context.family, compared);
        context.reporter.update(&context.table.lock(), &context.guard);
    }
    loop {
        match identification.of(context.family) {
            Identification::Clear => return Ok(()),
            Identification::Held(objection) | Identification::Refused(objection) => {
                return Err(Stopped::Held(objection));
            }
            Identification::Undecided if identification.has_compared(context.family) => {}
            Identification::Undecided | Identification::Unread => return Err(Stopped::HubUnknown),
        }
        tokio::select! {
            () = scope.draining() => return Err(Stopped::Draining),
            _ = changes.changed() => {}
            _ = identities.changed() => {}
            key = state.inbox.next() => state.changed_keys.extend(key),
        }
    }
}

/// Reads the rows of these objects, and applies each object as soon as its last row has been read. An object whose rows
/// were not read completely is left alone. Even if reading fails, the writes in progress are finished and recorded.
async fn read(context: &FamilyContext, scope: &Scope, mut apply: Apply<'_>, ids: Vec<RowId>) -> Result<(), Stopped> {
    let read = if ids.is_empty() { Ok(()) } else { read_into(context, scope, &mut apply, &ids).await };
    apply.finish().await;
    read
}

async fn read_into(
    context: &FamilyContext,
    scope: &Scope,
    apply: &mut Apply<'_>,
    ids: &[RowId],
) -> Result<(), Stopped> {
    let started = StatusRows::start(&context.shared.database, context.family, &context.statements, ids);
    let mut rows = wait_for_database(context, scope, apply.state, started).await?;
    loop {
        let reading = wait_for_database(context, scope, apply.state, rows.next()).await?;
        if let Reading::End(last) = reading {
            if let Some(rolled_up) = last {
                apply.object(rolled_up).await;
            }
            return Ok(());
        }
        if scope.is_draining() {
            return Err(Stopped::Draining);
        }
        if let Reading::Object(rolled_up) = reading {
            apply.object(rolled_up).await;
        }
    }
}

/// Waits for the database until the poller is drained. Meanwhile it takes keys from the mailbox, since a full mailbox
/// would block the watches.
async fn wait_for_database<T>(
    context: &FamilyContext,
    scope: &Scope,
    state: &mut PollerState,
    asked: impl Future<Output = Result<T, db::Error>>,
) -> Result<T, Stopped> {
    let mut asked = std::pin::pin!(asked);
    // Most rows have arrived already: the report need not be updated for them.
    if let Some(answer) = asked.as_mut().now_or_never() {
        return Ok(answer?);
    }
    context.reporter.unanswered();
    loop {
        tokio::select! {
            biased;
            answer = &mut asked => {
                let answer = answer?;
                context.reporter.answered();
                return Ok(answer);
            }
            () = scope.draining() => return Err(Stopped::Draining),
            key = state.inbox.next() => state.changed_keys.extend(key),
        }
    }
}

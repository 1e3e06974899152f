//! One pass: detect what has changed, check the hub, read the changed rows, roll them up, and write the differences.

use std::collections::HashSet;

use futures::FutureExt;
use tokio::time::Instant;

use super::apply::Apply;
use super::context::Context;
use super::state::PollerState;
use crate::actor::Scope;
use crate::db;
use crate::status_sync::database::{Detected, Detection, Reading, StatusRows};
use crate::status_sync::rules::RowId;
use crate::status_sync::standing::{Objection, Standing};

/// Why a pass ended early.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The poller drains.
    Draining,
    /// It has become unknown which cluster the hub is.
    HubUnknown,
    /// The section may not write to this hub.
    Held(Objection),
    /// The database has not returned everything.
    Failed(db::Error),
}

impl From<db::Error> for Stopped {
    fn from(error: db::Error) -> Self {
        Self::Failed(error)
    }
}

/// Makes a whole pass.
pub(super) async fn whole(context: &Context, scope: &Scope, state: &mut PollerState) -> Result<(), Stopped> {
    let shared = &context.shared;
    let begun = Instant::now();
    let Detected { found, rows, bad } = detect(context, scope, state).await?;
    let now = Instant::now();
    state.detection = now - begun;
    if rows > 0 {
        shared.any_rows.send_if_modified(|any| !std::mem::replace(any, true));
    }
    state.table.update(found, now);
    context.reporter.detected(rows);
    until_decided(context, scope, state).await?;
    let now = Instant::now();
    let counts = state.counts(begun, shared.interval);
    // A database without any row may be one that is being filled: the first pass over it clears nothing.
    let may_clear = !(state.is_first_pass && rows == 0 && !*shared.any_rows.borrow());
    let names = state.table.names();
    let due = state.table.due(names, context.hub.hub_objects(), context.hub.targets(), now, shared.interval);
    context.reporter.show(state);
    let mut apply = Apply::new(context, scope, state);
    if may_clear {
        apply.clear(due.without_rows, counts).await;
    }
    read(context, scope, apply, due.with_rows).await?;
    context.reporter.bad_rows(state.table.bad_rows(&bad));
    Ok(())
}

/// Compares some rows again between passes. It clears nothing, since only a whole pass knows how much would be cleared.
/// Returns whether a whole pass is needed.
pub(super) async fn look_again(
    context: &Context,
    scope: &Scope,
    state: &mut PollerState,
    ids: &HashSet<RowId>,
) -> Result<bool, Stopped> {
    let names = state.table.names_of(ids);
    let (hub, interval) = (&context.hub, context.shared.interval);
    let due = state.table.due(names, hub.hub_objects(), hub.targets(), Instant::now(), interval);
    read(context, scope, Apply::new(context, scope, state), due.with_rows).await?;
    Ok(!due.without_rows.is_empty())
}

/// Detects what has changed. The result is complete, or an error.
async fn detect(context: &Context, scope: &Scope, state: &mut PollerState) -> Result<Detected, Stopped> {
    let shared = &context.shared;
    let started = Detection::start(&shared.database, context.family, &context.statements, &shared.namespace);
    let mut detection = answer(context, scope, state, started).await?;
    while answer(context, scope, state, detection.next()).await? {}
    Ok(detection.finish())
}

/// Waits until it is known whether the hub is the same cluster as before. Where its identity is not enough, every
/// family compares its rows before any of them writes.
async fn until_decided(context: &Context, scope: &Scope, state: &mut PollerState) -> Result<(), Stopped> {
    let standing = &context.shared.standing;
    let mut changes = standing.changes();
    let mut identities = standing.identities();
    if standing.asks_for_rows() {
        // A cache that is older than the doubt would agree with the rows in any case.
        if !state.can_decide(&context.hub) {
            return Err(Stopped::HubUnknown);
        }
        standing.compared(context.family, state.table.compare(context.hub.hub_objects()));
        context.reporter.show(state);
    }
    loop {
        match standing.of(context.family) {
            Standing::Clear => return Ok(()),
            Standing::Held(objection) => return Err(Stopped::Held(objection)),
            Standing::Undecided if standing.has_compared(context.family) => {}
            Standing::Undecided | Standing::Unread => return Err(Stopped::HubUnknown),
        }
        tokio::select! {
            () = scope.draining() => return Err(Stopped::Draining),
            _ = changes.changed() => {}
            _ = identities.changed() => {}
            key = state.inbox.next() => state.noted.extend(key),
        }
    }
}

/// Reads the rows of these objects, and applies each object as soon as its last row has been read. An object whose rows
/// were not read completely is left alone. However the reading ends, the writes under way are finished and recorded.
async fn read(context: &Context, scope: &Scope, mut apply: Apply<'_>, ids: Vec<RowId>) -> Result<(), Stopped> {
    let read = if ids.is_empty() { Ok(()) } else { read_into(context, scope, &mut apply, &ids).await };
    apply.finish().await;
    read
}

async fn read_into(context: &Context, scope: &Scope, apply: &mut Apply<'_>, ids: &[RowId]) -> Result<(), Stopped> {
    let started = StatusRows::start(&context.shared.database, context.family, &context.statements, ids);
    let mut rows = answer(context, scope, apply.state, started).await?;
    loop {
        let reading = answer(context, scope, apply.state, rows.next()).await?;
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

/// Waits for the database, unless the poller drains. Meanwhile it takes keys, so that no watch has to wait for a pass.
async fn answer<T>(
    context: &Context,
    scope: &Scope,
    state: &mut PollerState,
    asked: impl Future<Output = Result<T, db::Error>>,
) -> Result<T, Stopped> {
    let mut asked = std::pin::pin!(asked);
    // Most rows have arrived already.
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
            key = state.inbox.next() => state.noted.extend(key),
        }
    }
}

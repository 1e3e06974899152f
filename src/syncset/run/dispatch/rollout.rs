//! Moves rollouts on: reads what clusters have made of their turns, and gives others theirs.
//!
//! What happens next is decided by [`decide()`]. Each rollout is moved in one transaction under the claim of the dispatcher: it locks the
//! rollout, observes all of its clusters in one statement, writes what was decided and asks for the clusters that have something new to do.
//! So a dispatcher that is killed, or that another one has taken over from, changes nothing or everything. Before a rollout releases its
//! first cluster, the guard checks what the step to its goal would delete.
//!
//! A hub without rollouts is asked for them once, and then after changes that may begin one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::batch::{Batch, COUNTED_WITHIN, Dispatch, ask, concerned, isolated};
use super::guard::{Decisions, DeletionGuard};
use super::selection::condition;
use super::{DispatchError, WITHIN, begin_locked};
use crate::cluster::full_text;
use crate::db::{self, Database, Row, Transaction, Type, column};
use crate::documents::{Grant, Key, Parameters};
use crate::syncset::plan::action::PAUSES;
use crate::syncset::plan::concern::Concern;
use crate::syncset::plan::health::HealthState;
use crate::syncset::plan::matching::Audience;
use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
use crate::syncset::plan::reason::{Reason, Retry};
use crate::syncset::plan::rollout::{
    Applied, Counts, HealthReading, Move, Observed, ProgressReason, Rollout, RolloutPhase, Seen, Spec, Takes, Turn,
    count, decide,
};
use crate::syncset::run::paused::{is_paused, pause};
use crate::syncset::run::rollouts::{Stored, take_back};

/// Between two looks, unless one takes long: then four times as long as it has taken.
const EVERY: Duration = Duration::from_secs(1);
/// So long a look goes on to further rollouts. Changes are dispatched before the next one, which begins with those that have waited longest.
const LONGEST_LOOK: Duration = Duration::from_millis(100);
/// Until one that could not be moved on is tried again.
const AFTER_A_FAILURE: Duration = Duration::from_secs(10);
/// After this time the clock of a rollout is stored, also if nothing else has changed. It is less than what counts of one look.
const STORE_EVERY: Duration = Duration::from_secs(9);

/// While a rollout waits for a cluster, health that is final is read again after a sixteenth of the time that it has waited by its clock, but
/// not sooner than this; also if the database's clock has been set back.
const FINAL_FOR: &str = "30 s";
/// And not later than this.
const FINAL_FOR_AT_MOST: &str = "10 min";
/// A next reading that is further away comes of a clock that has been set back: none is planned for later.
const LONGEST_WAIT: &str = "3 min";

/// The inputs of a result since a pass has begun to write, until it has ended: [`UNFINISHED`](crate::syncset::plan::rows::ResultRow::UNFINISHED),
/// as in `towline_has_begun`.
const BEGUN: &str = "decode(repeat('00', 32), 'hex')";
/// Those of one that counts no more, as there. No syncset has them either.
const OUTDATED: &str = "decode(repeat('ff', 32), 'hex')";

/// What the dispatcher remembers between two looks. If it is lost, at most ten seconds of the rollouts' clocks are.
#[derive(Debug)]
pub struct Rollouts {
    /// When the next look may be due.
    next: Instant,
    /// Whether there is any, so that the look is due then. Otherwise, only a change of a document can make one.
    exist: bool,
    /// When the clocks of rollouts that run were stored.
    stored: BTreeMap<Uuid, Instant>,
    /// When those that may have something to do were moved on.
    moved: BTreeMap<Uuid, Instant>,
    /// Those that could not be moved on, and when they are tried again.
    later: BTreeMap<Uuid, Instant>,
}

impl Rollouts {
    /// Those of which nothing is known yet.
    pub fn unknown() -> Self {
        let [stored, moved, later] = [(); 3].map(|()| BTreeMap::new());
        Self { next: Instant::now(), exist: true, stored, moved, later }
    }

    /// When the next look is due, after a batch of changes; none if there are no rollouts.
    pub fn next(&mut self, batch: &Batch) -> Option<Instant> {
        self.exist |= batch.rolls || batch.was_gap;
        self.exist.then_some(self.next)
    }
}

/// A rollout that may have something to do.
#[derive(Clone, Copy)]
struct Due {
    syncset: Uuid,
    number: i64,
    /// Whether the guard has yet to check it.
    is_unguarded: bool,
}

/// The syncset of a rollout, as the transaction reads it.
struct Subject {
    id: Uuid,
    name: SyncSetName,
    rollout: Rollout,
    /// None if a newer release has written it.
    spec: Option<Spec>,
    /// None if that can't be read.
    audience: Option<Audience>,
    /// Of its goal.
    generation: i64,
    is_held: bool,
    is_aside: bool,
}

impl Dispatch {
    /// Moves rollouts on that run, or have to begin: all, or as many as one look has time for. Returns for how many clusters it has asked.
    pub async fn roll(
        &self,
        grant: &Grant,
        rollouts: &mut Rollouts,
        after_each: &(dyn Fn() + Sync),
    ) -> Result<u64, DispatchError> {
        let began = Instant::now();
        rollouts.next = began + EVERY;
        let (cursor, exist, namespaces) = self.look().await?;
        rollouts.exist = exist;
        let mut due = in_turns(namespaces, &rollouts.moved);
        let ids: BTreeSet<Uuid> = due.iter().map(|due| due.syncset).collect();
        for times in [&mut rollouts.stored, &mut rollouts.moved, &mut rollouts.later] {
            times.retain(|syncset, _| ids.contains(syncset));
        }
        rollouts.later.retain(|_, at| *at > began);
        due.retain(|due| !rollouts.later.contains_key(&due.syncset));
        let (mut asked, mut pause) = (0, EVERY);
        // One is moved in any case, however slow the database is.
        let looked = Instant::now();
        for due in due {
            let syncset = due.syncset;
            if looked.elapsed() > LONGEST_LOOK {
                pause = Duration::ZERO;
                break;
            }
            rollouts.moved.insert(syncset, Instant::now());
            let mut next = Some(due);
            while let Some(due) = next {
                match self.roll_one(grant, cursor, &due, rollouts, &mut next).await {
                    Ok(Some(clusters)) => asked += clusters,
                    Ok(None) => drop(rollouts.later.insert(syncset, Instant::now() + AFTER_A_FAILURE)),
                    // One that fails, or takes too long, does not keep the others waiting.
                    Err(DispatchError::Database(error)) if error.outage().is_none() || error.is_delay() => {
                        let error = full_text(&error);
                        tracing::warn!(syncset = %syncset, error, "failed to move a rollout on, retrying");
                        rollouts.later.insert(syncset, Instant::now() + AFTER_A_FAILURE);
                    }
                    Err(error) => return Err(error),
                }
                after_each();
            }
        }
        let now = Instant::now();
        rollouts.next = now + (now.duration_since(began) * 4).max(pause);
        Ok(asked)
    }

    /// The dispatcher's cursor, whether there is any rollout, and those that may have something to do, by the namespaces of their syncsets.
    async fn look(&self) -> Result<(i64, bool, BTreeMap<String, Vec<Due>>), DispatchError> {
        const QUERY: &str = "rollouts_due";
        const TEXT: &str = "select k.cursor, exists (select from towline_rollout), r.syncset::text, r.number, not r.guarded, d.namespace \
             from towline_claim k left join towline_rollout r on r.state in ('Running', 'RollingBack') or towline_begins(r) \
               left join lateral (select d.namespace from towline_documents d \
                 where d.kind in ('syncsets', 'selectorsyncsets') and d.id = r.syncset offset 0) d on true \
             where k.name = 'dispatcher'";
        let rows = self.database.all(QUERY, TEXT, &[]).await?;
        let mut namespaces = BTreeMap::<String, Vec<Due>>::new();
        let Some(first) = rows.first() else { return Ok((0, false, namespaces)) };
        for row in &rows {
            let Some(id) = column::<Option<&str>>(QUERY, row, 2)? else { continue };
            let due =
                Due { syncset: uuid(QUERY, id)?, number: column(QUERY, row, 3)?, is_unguarded: column(QUERY, row, 4)? };
            let namespace = column::<Option<String>>(QUERY, row, 5)?.unwrap_or_default();
            namespaces.entry(namespace).or_default().push(due);
        }
        Ok((column(QUERY, first, 0)?, column(QUERY, first, 1)?, namespaces))
    }

    /// Moves one on, and returns for how many clusters it has asked; none if it can't be read, as after a newer release. What has just begun, or
    /// begins its next wave, is to be moved on at once again: that is in `next`.
    async fn roll_one(
        &self,
        grant: &Grant,
        cursor: i64,
        due: &Due,
        rollouts: &mut Rollouts,
        next: &mut Option<Due>,
    ) -> Result<Option<u64>, DispatchError> {
        *next = None;
        let mut decisions = Decisions::default();
        if due.is_unguarded {
            let (database, is_guarding) = (&self.database, self.is_guarding);
            let counts = database.clone().answering_within(COUNTED_WITHIN);
            let guard = DeletionGuard { database, counts: &counts, is_guarding, version: cursor };
            for subject in guard.read(&[due.syncset]).await? {
                // It begins once that is checked.
                if subject.is_aside() {
                    return Ok(None);
                }
                if let Err(error) = guard.check(&subject, &mut decisions).await {
                    isolated(&[due.syncset], error)?;
                    if !subject.is_decided() {
                        guard.set_aside(&subject, &mut decisions);
                    }
                }
            }
            if !decisions.aside.is_empty() {
                let begun = begin_locked(&self.database, "rollout", Some(grant), None).await?;
                let mut transaction = begun.ok_or(DispatchError::ClaimLost)?;
                decisions.write(&mut transaction).await?;
                transaction.commit().await?;
                return Ok(None);
            }
        }
        let begun = begin_locked(&self.database, "rollout", Some(grant), None).await?;
        let mut transaction = begun.ok_or(DispatchError::ClaimLost)?;
        // Somebody has approved something meanwhile.
        if !decisions.write(&mut transaction).await? {
            return Ok(Some(0));
        }
        let Some(subject) = read(&mut transaction, due.syncset, true).await? else { return Ok(None) };
        let (Some(spec), Some(audience)) = (&subject.spec, &subject.audience) else { return Ok(None) };
        let observed = observe(&mut transaction, &subject, spec, audience).await?;
        let now = Instant::now();
        let elapsed = rollouts.stored.get(&due.syncset).map_or(Duration::ZERO, |stored| now.duration_since(*stored));
        let before = &subject.rollout;
        let guarded = before.guarded || (due.is_unguarded && due.number == before.number);
        let guarded = Rollout { guarded, ..before.clone() };
        let (after, moves) = decide(subject.id, spec, &guarded, &observed, elapsed);
        let is_same = Rollout { clock: before.clock, ..after.clone() } == *before;
        // How long clusters have waited is stored with the clock: there may be many, for as long as no worker comes.
        let is_moved = moves.iter().any(|of| !matches!(of, Move::Wait { .. }));
        let is_stored = !is_same || is_moved || after.clock.saturating_sub(before.clock) >= STORE_EVERY;
        let mut clusters = concerned(&mut transaction, &Concern::default(), &decisions.resumed).await?;
        if is_stored {
            clusters.extend(write(&mut transaction, subject.id, &after, &moves).await?);
            clusters.extend(moved(before, &after, &moves, &observed));
        }
        // Nobody waits for a repeated reading, so it is not urgent, and what else fails on the cluster is not retried for it, unless this look
        // also asks for something urgent. One statement asks for all: two in one transaction could deadlock with those of others.
        let is_urgent = !clusters.is_empty();
        clusters.extend(moves.iter().filter_map(|of| match of {
            Move::Refresh { cluster } => Some(*cluster),
            _ => None,
        }));
        clusters.sort_unstable();
        clusters.dedup();
        let asked = ask(&mut transaction, &clusters, is_urgent).await?;
        transaction.commit().await?;
        // What it does not count now must not count later.
        if is_stored || after.clock == before.clock {
            rollouts.stored.insert(due.syncset, now);
        }
        if let Some(broker) = self.broker.as_ref().filter(|_| is_urgent) {
            broker.hint(&clusters);
        }
        decisions.announce();
        announce(&subject.name, spec, before, &after);
        let has_begun = (after.number, after.wave) != (before.number, before.wave);
        *next = (has_begun && after.state.is_running()).then_some(Due {
            syncset: due.syncset,
            number: after.number,
            is_unguarded: !after.guarded,
        });
        Ok(Some(asked))
    }
}

/// One of each namespace, then the next one of each, and so on: of a namespace first the one that was not moved on for longest, and first
/// the namespace of which none was. Every second one is a `SelectorSyncSet`: however many namespaces there are, these go on.
fn in_turns(mut namespaces: BTreeMap<String, Vec<Due>>, moved: &BTreeMap<Uuid, Instant>) -> Vec<Due> {
    let at = |due: &Due| moved.get(&due.syncset).copied();
    for of_one in namespaces.values_mut() {
        of_one.sort_by_key(at);
    }
    let of_selectors = namespaces.remove("").unwrap_or_default();
    let mut namespaces: Vec<Vec<Due>> = namespaces.into_values().collect();
    namespaces.sort_by_key(|of_one| of_one.last().and_then(at));
    let most = namespaces.iter().map(Vec::len).max().unwrap_or_default();
    let turns = (0..most).flat_map(|turn| namespaces.iter().filter_map(move |of_one| of_one.get(turn).copied()));
    let mut both = [of_selectors, turns.collect()];
    // A look may have time for one rollout: the kind that had the last one comes second.
    both.sort_by_key(|dues| dues.iter().filter_map(at).max());
    let [first, second] = &both;
    let longest = first.len().max(second.len());
    (0..longest).flat_map(|turn| [first.get(turn), second.get(turn)]).flatten().copied().collect()
}

/// How far each wave of a syncset's rollout is, with its name. None if it has none, or one that a newer release has written.
pub(in crate::syncset) async fn waves(
    database: &Database,
    key: &Key,
) -> Result<Option<Vec<(String, Counts)>>, db::Error> {
    const QUERY: &str = "rolled_syncset";
    const TEXT: &str = "select id::text from towline_documents where kind = $1 and namespace = $2 and name = $3";
    let plural = key.kind.plural();
    let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
    let mut transaction = database.begin("rollout_waves", WITHIN).await?;
    let rows = transaction.all(QUERY, TEXT, &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let subject = read(&mut transaction, uuid(QUERY, column(QUERY, row, 0)?)?, false).await?;
    let Some(subject) = subject else { return Ok(None) };
    let (Some(spec), Some(audience)) = (&subject.spec, &subject.audience) else { return Ok(None) };
    let observed = observe(&mut transaction, &subject, spec, audience).await?;
    transaction.commit().await?;
    let counts = count(subject.id, spec, &subject.rollout, &observed.clusters).into_iter().enumerate();
    Ok(Some(counts.map(|(wave, counts)| (spec.wave_name(wave).to_owned(), counts)).collect()))
}

/// Reads a rollout with its syncset, and locks it if it `is_locked`. None if it has ended meanwhile.
async fn read(
    transaction: &mut Transaction<'static>,
    syncset: Uuid,
    is_locked: bool,
) -> Result<Option<Subject>, db::Error> {
    const QUERY: &str = "read_rollout";
    // A large document is decompressed once.
    const TEXT: &str = "select to_jsonb(r)::text, d.kind, d.namespace, d.name, s.rollout::text, s.\"clusterDeploymentRefs\"::text, \
           s.\"clusterDeploymentSelector\"::text, s.\"clusterNamespaces\"::text, (v.content->'health')::text, v.generation, \
           coalesce(g.held, false), coalesce(g.checked < 0 and not g.held, false) \
         from towline_rollout r \
         join towline_documents d on d.kind in ('syncsets', 'selectorsyncsets') and d.id = r.syncset and d.deleted_at is null \
         cross join lateral jsonb_to_record(d.data->'spec') as s(rollout jsonb, \"clusterDeploymentRefs\" jsonb, \
           \"clusterDeploymentSelector\" jsonb, \"clusterNamespaces\" jsonb) \
         left join towline_revision v on v.syncset = r.syncset \
           and v.revision = case when r.started < r.edited then r.newest else r.goal end \
         left join towline_guard g on g.syncset = r.syncset \
         where r.syncset = $1::text::uuid";
    let id = syncset.to_string();
    let statement = format!("{TEXT}{}", if is_locked { " for update of r" } else { "" });
    let rows = transaction.all(QUERY, &statement, &[(&id as _, Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let Some(generation) = column::<Option<i64>>(QUERY, row, 9)? else { return Ok(None) };
    let text = |index| column::<Option<&str>>(QUERY, row, index);
    // What the database prints is valid JSON.
    let value = |index| -> Result<Option<Value>, db::Error> {
        Ok(text(index)?.and_then(|text| serde_json::from_str(text).ok()))
    };
    let kind =
        if column::<&str>(QUERY, row, 1)? == "syncsets" { SyncSetKind::SyncSet } else { SyncSetKind::SelectorSyncSet };
    let name = SyncSetName { kind, namespace: column(QUERY, row, 2)?, name: column(QUERY, row, 3)? };
    let whom = json!({"clusterDeploymentRefs": value(5)?, "clusterDeploymentSelector": value(6)?, "clusterNamespaces": value(7)?});
    let audience = Audience::of(&name, &whom).ok();
    // A row of a newer release is left alone.
    let Some(rollout) = text(0)?.and_then(|text| serde_json::from_str::<Stored>(text).ok()) else { return Ok(None) };
    Ok(Some(Subject {
        id: syncset,
        name,
        rollout: rollout.rollout(),
        spec: value(4)?.and_then(|rollout| Spec::read(&rollout, value(8).ok().flatten().as_ref())),
        audience,
        generation,
        is_held: column(QUERY, row, 10)?,
        is_aside: column(QUERY, row, 11)?,
    }))
}

/// What the clusters of a rollout are and have, in one statement. What is stored of each is looked up by itself: a planner that knows the
/// tables as they were when they were empty would read all of it for each cluster.
async fn observe(
    transaction: &mut Transaction<'static>,
    subject: &Subject,
    spec: &Spec,
    audience: &Audience,
) -> Result<Observed, db::Error> {
    const QUERY: &str = "observe_rollout";
    let mut parameters = Parameters::default();
    // The expression of a pause has this as its first parameter.
    parameters.texts(Some(PAUSES.map(str::to_owned).to_vec()));
    let syncset = parameters.text(subject.id.to_string());
    let generation = parameters.text(subject.generation.to_string());
    let number = parameters.text(subject.rollout.number.to_string());
    let clock = parameters.text(subject.rollout.clock.as_millis().to_string());
    let checking =
        parameters.text(subject.rollout.checking.map_or_else(String::new, |since| since.as_millis().to_string()));
    let whom = condition(audience, &mut parameters);
    let selected: Vec<String> = spec
        .waves
        .iter()
        .map(|wave| match &wave.takes {
            Takes::Selected(selector) => match Audience::selected(Some(selector), None) {
                Some(audience) => format!("({})", condition(&audience, &mut parameters)),
                None => "false".to_owned(),
            },
            Takes::Percent(_) => "false".to_owned(),
        })
        .collect();
    let micros = |time: &str| format!("(extract(epoch from {time}) * 1000000)::bigint");
    let text = format!(
        "with c as materialized (select c.id, {pause}, array[{selected}]::bool[] as selected \
           from clusters c where c.deleted_at is null and {whom}), \
         t as (select * from towline_turn where syncset = {syncset}::text::uuid) \
         select coalesce(c.id, t.cluster)::text, c.selected, p.reachable is not true, c.pause, \
           t.revision, t.number, t.wave, t.released, t.done, {read_before}, \
           case when r.generation = {generation}::text::bigint and r.inputs not in ({BEGUN}, {OUTDATED}) then \
             case when r.result = 'Failure' then r.reason when not r.pending_deletions then '' end end, \
           {read}, case when r.health_inputs = r.inputs and r.generation = {generation}::text::bigint then r.health_state end, \
           t.done and t.number = {number}::text::bigint and r.cluster is null, \
           p.reachable is false and (p.last_contact < t.released_at) is not false, \
           case when w.ready_at <= now() and (w.until is null or w.until < now()) then {queued} end, \
           towline_has_begun(r.inputs, r.generation, {generation}::text::bigint), \
           case when (r.result = 'Success' or r.reason = 'NotDeleted') and r.health_inputs = r.inputs and r.health_state <> 'Current' \
             then ((r.health->>'next')::timestamptz < now() + interval '{LONGEST_WAIT}') is not true \
               and ((r.health->>'read')::timestamptz between now() - least(interval '{FINAL_FOR_AT_MOST}', \
                 greatest(interval '{FINAL_FOR}', \
                   ({clock}::text::bigint - coalesce(nullif({checking}::text, '')::bigint, t.released)) * interval '1 ms' / 16)) and now() + interval '{FINAL_FOR}') is not true end \
         from c full join t on t.cluster = c.id \
           left join lateral (select p.reachable, p.last_contact from towline_cluster p where p.cluster = c.id offset 0) p on true \
           left join lateral (select * from towline_result r where r.cluster = c.id and r.syncset = {syncset}::text::uuid offset 0) r on true \
           left join lateral (select w.ready_at, w.until from towline_work w where w.cluster = c.id \
             and (not t.done or t.read_before is not null) offset 0) w on true \
         where c.id is not null or t.number = {number}::text::bigint",
        pause = pause!(),
        selected = selected.join(", "),
        read_before = micros("t.read_before"),
        read = micros("(r.health->>'read')::timestamptz"),
        queued = micros("now() - w.ready_at"),
    );
    let rows = transaction.all(QUERY, &text, &parameters.as_params()).await?;
    let mut observed = Observed { is_held: subject.is_held, is_aside: subject.is_aside, ..Observed::default() };
    let now = Timestamp::now();
    for row in &rows {
        let id = uuid(QUERY, column(QUERY, row, 0)?)?;
        match column::<Option<Vec<bool>>>(QUERY, row, 1)? {
            Some(selected) => observed.clusters.push(seen(QUERY, (id, selected), row, now)?),
            None => observed.gone.push(id),
        }
    }
    Ok(observed)
}

fn seen(query: &'static str, (id, selected): (Uuid, Vec<bool>), row: &Row, now: Timestamp) -> Result<Seen, db::Error> {
    let time = |index| -> Result<Option<Timestamp>, db::Error> {
        let micros: Option<i64> = column(query, row, index)?;
        Ok(micros.and_then(|micros| Timestamp::from_microsecond(micros).ok()))
    };
    // A cluster that was done and has no result any more left the syncset in between: it has its turn again.
    let was_gone = column::<Option<bool>>(query, row, 13)? == Some(true);
    let turn = match column::<Option<i32>>(query, row, 4)? {
        None => None,
        Some(revision) => Some(Turn {
            revision,
            number: if was_gone { Turn::LEFT } else { column(query, row, 5)? },
            wave: usize::try_from(column::<i32>(query, row, 6)?).unwrap_or_default(),
            released: Duration::from_millis(u64::try_from(column::<i64>(query, row, 7)?).unwrap_or_default()),
            done: column(query, row, 8)?,
            read_before: time(9)?,
        }),
    };
    let is_final = |reason: &str| Reason::of_name(reason).is_some_and(|reason| reason.retry() == Retry::OnChange);
    let applied = match column::<Option<&str>>(query, row, 10)? {
        Some("") => Applied::Fully,
        // What it wants is applied. What somebody has taken from it is nothing that the revision could mend.
        Some(reason) if reason == Reason::NotDeleted.as_str() => Applied::Fully,
        Some(reason) if is_final(reason) => Applied::Never,
        _ => Applied::Not,
    };
    let state: Option<&str> = column(query, row, 12)?;
    let state = state.and_then(|state| HealthState::ALL.into_iter().find(|known| known.as_str() == state));
    let is_paused = is_paused(column(query, row, 3)?, now);
    let is_final = column::<Option<bool>>(query, row, 17)? == Some(true);
    Ok(Seen {
        id,
        selected,
        is_away: column::<bool>(query, row, 2)? || is_paused,
        is_paused,
        was_silent: column::<Option<bool>>(query, row, 14)? == Some(true),
        has_begun: column(query, row, 16)?,
        queued: Duration::from_micros(
            column::<Option<i64>>(query, row, 15)?.map_or(0, |micros| u64::try_from(micros).unwrap_or_default()),
        ),
        turn,
        applied,
        health: time(11)?.map(|at| HealthReading { at, state, is_final }),
    })
}

/// The clusters that have something new to do: those that move, and those that have another revision without having moved.
fn moved(before: &Rollout, after: &Rollout, moves: &[Move], observed: &Observed) -> Vec<Uuid> {
    let mut clusters = Vec::new();
    for of in moves {
        match of {
            Move::Release { cluster, .. } | Move::Reread { cluster, .. } => clusters.push(*cluster),
            Move::Settle => {
                let had = |seen: &&Seen| seen.turn.as_ref().map(|turn| turn.revision).or(before.stable);
                let others = observed.clusters.iter().filter(|seen| had(seen) != after.stable);
                clusters.extend(others.map(|seen| seen.id));
            }
            Move::Wait { .. }
            | Move::Done { .. }
            | Move::Leave { .. }
            | Move::Refresh { .. }
            | Move::TakeBack
            | Move::Checked => {}
        }
    }
    clusters
}

/// Writes what was decided, with one statement for each kind of move. Returns which clusters have again what they had before.
async fn write(
    transaction: &mut Transaction<'static>,
    syncset: Uuid,
    rollout: &Rollout,
    moves: &[Move],
) -> Result<Vec<Uuid>, DispatchError> {
    const ROLLOUT: &str = "update towline_rollout r set (started, number, stable, goal, state, reason, message, wave, clock, settled, \
           checking, promoted, failures, tolerated, guarded, since, actor) = (select n.started, n.number, n.stable, n.goal, n.state, \
           n.reason, n.message, n.wave, n.clock, n.settled, n.checking, n.promoted, n.failures, n.tolerated, n.guarded, \
           case when (r.number, r.state, r.reason, r.wave) = (n.number, n.state, n.reason, n.wave) then r.since else clock_timestamp() end, \
           case when (r.number, r.state) = (n.number, n.state) then r.actor else '' end \
           from jsonb_populate_record(null::towline_rollout, $2) n) where r.syncset = $1::text::uuid";
    const WAIT: &str = "update towline_turn t set released = u.released from unnest($2::text[], $3::bigint[]) u(cluster, released) \
         where t.syncset = $1::text::uuid and t.cluster = u.cluster::uuid";
    const DONE: &str = "update towline_turn set done = true, read_before = null, before = null \
         where syncset = $1::text::uuid and cluster = any($2::text[]::uuid[])";
    // `Turn::LEFT`.
    const LEAVE: &str =
        "update towline_turn set number = 0 where syncset = $1::text::uuid and cluster = any($2::text[]::uuid[])";
    const REREAD: &str = "update towline_turn t set read_before = timestamptz 'epoch' + u.before * interval '1 microsecond' \
         from unnest($2::text[], $3::bigint[]) u(cluster, before) where t.syncset = $1::text::uuid and t.cluster = u.cluster::uuid";
    const REFRESH: &str = "update towline_result set health = health || jsonb_build_object('next', now()) \
         where syncset = $1::text::uuid and cluster = any($2::text[]::uuid[]) and health is not null";
    const CHECKED: &str = "update towline_turn set read_before = null \
         where syncset = $1::text::uuid and done and read_before is not null";
    const SETTLE: &str = "delete from towline_turn where syncset = $1::text::uuid";
    let id = syncset.to_string();
    let by_id = (&id as _, Type::TEXT);
    // The statement decides since when it is so, and by whom.
    let stored = Stored::json(rollout);
    transaction.execute("write_rollout", ROLLOUT, &[by_id.clone(), (&stored as _, Type::JSONB)]).await?;
    let (mut released, mut waited, mut reread) = (Vec::new(), Vec::new(), Vec::new());
    let [mut done, mut left, mut refreshed] = [(); 3].map(|()| Vec::new());
    let [mut are_taken_back, mut is_checked, mut is_settled] = [false; 3];
    for of in moves {
        match of {
            Move::Release { cluster, read_before } => {
                released.push((cluster.to_string(), read_before.map(Timestamp::as_microsecond)));
            }
            Move::Wait { cluster, released } => {
                waited.push((cluster.to_string(), i64::try_from(released.as_millis()).ok()));
            }
            Move::Done { cluster } => done.push(cluster.to_string()),
            Move::Leave { cluster } => left.push(cluster.to_string()),
            Move::Reread { cluster, before } => reread.push((cluster.to_string(), Some(before.as_microsecond()))),
            Move::Refresh { cluster } => refreshed.push(cluster.to_string()),
            Move::TakeBack => are_taken_back = true,
            Move::Checked => is_checked = true,
            Move::Settle => is_settled = true,
        }
    }
    // What failed before is tried again as if it had other inputs: until then its failure does not count. That a pass has begun to write stays.
    let release = format!(
        "with u as (select u.cluster::uuid, u.before from unnest($2::text[], $3::bigint[]) u(cluster, before)), \
         tried as (update towline_result t set inputs = {OUTDATED} from u \
           where t.cluster = u.cluster and t.syncset = $1::text::uuid and t.result = 'Failure' and t.inputs <> {BEGUN}) \
         insert into towline_turn as t (syncset, cluster, revision, number, wave, released, read_before) \
         select r.syncset, u.cluster, r.goal, r.number, r.wave, r.clock, timestamptz 'epoch' + u.before * interval '1 microsecond' \
           from u join towline_rollout r on r.syncset = $1::text::uuid \
         on conflict (syncset, cluster) do update set revision = excluded.revision, before = t.revision, number = excluded.number, \
           wave = excluded.wave, released = excluded.released, done = false, read_before = excluded.read_before, released_at = excluded.released_at"
    );
    for (query, text, pairs) in [
        ("release_clusters", release.as_str(), released),
        ("wait_for_workers", WAIT, waited),
        ("reread_clusters", REREAD, reread),
    ] {
        if !pairs.is_empty() {
            let (clusters, times): (Vec<String>, Vec<Option<i64>>) = pairs.into_iter().unzip();
            let params = [by_id.clone(), (&clusters as _, Type::TEXT_ARRAY), (&times as _, Type::INT8_ARRAY)];
            transaction.execute(query, text, &params).await?;
        }
    }
    let mut taken_back = Vec::new();
    if !left.is_empty() {
        taken_back = take_back(transaction, &id, Some(&left)).await?;
    }
    let of_clusters =
        [("finish_turns", DONE, done), ("leave_turns", LEAVE, left), ("refresh_clusters", REFRESH, refreshed)];
    for (query, text, clusters) in of_clusters {
        if !clusters.is_empty() {
            transaction.execute(query, text, &[by_id.clone(), (&clusters as _, Type::TEXT_ARRAY)]).await?;
        }
    }
    if are_taken_back {
        taken_back.extend(take_back(transaction, &id, None).await?);
    }
    for (query, text, is_due) in [("checked_turns", CHECKED, is_checked), ("settle_rollout", SETTLE, is_settled)] {
        if is_due {
            transaction.execute(query, text, std::slice::from_ref(&by_id)).await?;
        }
    }
    Ok(taken_back)
}

/// Tells the operator of a transition, once it is committed.
fn announce(name: &SyncSetName, spec: &Spec, before: &Rollout, after: &Rollout) {
    let (syncset, revision, wave) = (name, after.goal, spec.wave_name(before.wave));
    let is_going_back = after.number != before.number && after.state == RolloutPhase::RollingBack;
    if is_going_back && !after.message.is_empty() {
        tracing::warn!(%syncset, revision, reason = after.message, "rolling back after failures");
    } else if is_going_back {
        tracing::info!(%syncset, revision, "rolling back");
    } else if after.number != before.number {
        tracing::info!(%syncset, revision, "rollout began");
    } else if after.wave > before.wave {
        tracing::info!(%syncset, revision, wave, "wave of a rollout done");
    }
    match after.state {
        RolloutPhase::Complete if before.state != after.state => tracing::info!(%syncset, revision, "rollout complete"),
        RolloutPhase::RolledBack if before.state != after.state => tracing::info!(%syncset, revision, "rolled back"),
        RolloutPhase::Stopped if before.state != after.state => {
            tracing::error!(%syncset, revision, wave, reason = after.message, "rollout stopped after failures");
        }
        RolloutPhase::Running if after.reason == ProgressReason::EmptyWave && before.reason != after.reason => {
            tracing::info!(%syncset, revision, wave, "rollout waits: the selector of the wave matches no cluster");
        }
        _ => {}
    }
}

fn uuid(query: &'static str, text: &str) -> Result<Uuid, db::Error> {
    text.parse().map_err(|error| db::Error::Decode { query, source: Arc::new(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(number: u128) -> Due {
        Due { syncset: Uuid::from_u128(number), number: 1, is_unguarded: false }
    }

    /// The looks of a dispatcher that moves one at a time: which are moved on.
    fn moved_on(namespaces: &BTreeMap<String, Vec<Due>>, looks: usize) -> Vec<u128> {
        let mut moved = BTreeMap::new();
        let mut all = Vec::new();
        for _ in 0..looks {
            let first = in_turns(namespaces.clone(), &moved)[0].syncset;
            moved.insert(first, Instant::now());
            all.push(first.as_u128());
        }
        all
    }

    #[test]
    fn every_second_turn_is_a_selector_s_and_the_others_are_divided_by_namespace() {
        let of = |numbers: &[u128]| numbers.iter().copied().map(due).collect::<Vec<_>>();
        let namespaces = BTreeMap::from([
            (String::new(), of(&[1, 2])),
            ("many".to_owned(), of(&[10, 11, 12, 13])),
            ("one".to_owned(), of(&[20])),
        ]);
        let order: Vec<u128> =
            in_turns(namespaces.clone(), &BTreeMap::new()).iter().map(|due| due.syncset.as_u128()).collect();
        assert_eq!(order, [1, 10, 2, 20, 11, 12, 13]);
        let moved = moved_on(&namespaces, 16);
        let times = |numbers: &[u128]| moved.iter().filter(|number| numbers.contains(number)).count();
        assert_eq!([times(&[1]), times(&[2]), times(&[10, 11, 12, 13]), times(&[20])], [4, 4, 4, 4], "{moved:?}");
        assert_eq!([times(&[10]), times(&[11]), times(&[12]), times(&[13])], [1; 4], "{moved:?}");
    }
}

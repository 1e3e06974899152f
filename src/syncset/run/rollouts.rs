//! The rollouts of syncsets as they are stored, and as people see and steer them. The dispatcher moves them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::{self, Database, Json, Row, Transaction, Type, column};
use crate::documents::{Author, Entry, IS_WHOLE, Key, Kind, ListError, Parameters, WorkQueue};
use crate::syncset::plan::guard::precious_row;
use crate::syncset::plan::rollout::{ProgressReason, Refused, Rollout, RolloutPhase};
use crate::syncset::run::store::StoreError;

/// The syncsets `c` that have a rollout `r`.
const OF_ROLLOUTS: &str = "from towline_rollout r join towline_documents c on c.id = r.syncset \
     where c.kind in ('syncsets', 'selectorsyncsets') and c.deleted_at is null";
/// Most objects that are named of those that are sent again.
const MOST_SENT_AGAIN: usize = 50;
/// Limit of the transaction of a command.
const WITHIN: Duration = Duration::from_secs(8);

/// A row of `towline_rollout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    newest: i32,
    edited: i64,
    started: i64,
    number: i64,
    stable: Option<i32>,
    goal: i32,
    state: String,
    reason: String,
    message: String,
    wave: usize,
    clock: u64,
    settled: Option<u64>,
    checking: Option<u64>,
    promoted: usize,
    failures: usize,
    tolerated: usize,
    guarded: bool,
    since: Timestamp,
    actor: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ShownRollout {
    pub kind: Kind,
    /// Empty for a `SelectorSyncSet`.
    pub namespace: String,
    pub name: String,
    pub rollout: Rollout,
    /// The wave that runs.
    pub wave: String,
    /// That with which a rollout begins.
    first_wave: String,
    /// Since when it is in its state.
    pub since: Timestamp,
    /// Who has brought it into that state by a command; empty if nobody has.
    pub actor: String,
}

/// A content that a syncset has or had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    pub number: i32,
    /// The document's generation that had it first.
    pub generation: i64,
    pub made: Timestamp,
    /// The name of the token that wrote it, as far as that is recorded.
    pub author: Option<String>,
    /// On how many clusters it was applied last.
    pub clusters: usize,
    pub is_stable: bool,
    pub is_goal: bool,
    pub is_newest: bool,
}

/// What somebody asks of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    Pause,
    Resume,
    /// Only after the wave of this name, if there is one: whoever repeats an order means the same wave.
    Promote {
        wave: Option<String>,
    },
    Abort,
    Undo {
        to: Option<i32>,
    },
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("the syncset has no rollout")]
    NoRollout,
    #[error("{refused}")]
    Refused { refused: Refused, possible: Vec<&'static str> },
    #[error("wave {waits} waits to be promoted, and not {asked}")]
    OtherWave { asked: String, waits: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Order {
    const ALL: [Self; 5] =
        [Self::Pause, Self::Resume, Self::Promote { wave: None }, Self::Abort, Self::Undo { to: None }];

    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Promote { .. } => "promote",
            Self::Abort => "abort",
            Self::Undo { .. } => "undo",
        }
    }

    pub fn of_name(name: &str, wave: Option<String>, to: Option<i32>) -> Option<Self> {
        Some(match Self::ALL.into_iter().find(|order| order.as_str() == name)? {
            Self::Promote { .. } => Self::Promote { wave },
            Self::Undo { .. } => Self::Undo { to },
            order => order,
        })
    }

    /// As the history calls it.
    fn verb(&self) -> &'static str {
        match self {
            Self::Pause => "pause-rollout",
            Self::Resume => "resume-rollout",
            Self::Promote { .. } => "promote-rollout",
            Self::Abort => "abort-rollout",
            Self::Undo { .. } => "undo-rollout",
        }
    }

    /// Whether clusters that were released keep their turns.
    fn keeps_turns(&self) -> bool {
        matches!(self, Self::Resume | Self::Promote { .. })
    }

    fn apply(&self, rollout: Rollout, kept: &[i32]) -> Result<Rollout, Refused> {
        match self {
            Self::Pause => rollout.pause(),
            Self::Resume => rollout.resume(),
            Self::Promote { .. } => rollout.promote(),
            Self::Abort => rollout.abort(),
            Self::Undo { to } => rollout.undo(*to, kept),
        }
    }
}

/// The orders that the present state of a rollout allows. To go back it needs a revision that is kept, which the stable one always is.
pub fn possible(rollout: &Rollout) -> Vec<&'static str> {
    let kept: Vec<i32> = rollout.stable.into_iter().collect();
    let is_possible = |order: &&Order| order.apply(rollout.clone(), &kept).is_ok();
    Order::ALL.iter().filter(is_possible).map(Order::as_str).collect()
}

impl Stored {
    pub fn rollout(self) -> Rollout {
        let Self {
            newest, edited, started, number, stable, goal, message, wave, promoted, failures, tolerated, ..
        } = self;
        Rollout {
            newest,
            edited,
            started,
            number,
            stable,
            goal,
            // One that only a newer release knows is left alone.
            state: RolloutPhase::of_name(&self.state).unwrap_or(RolloutPhase::Stopped),
            reason: ProgressReason::of_name(&self.reason).unwrap_or(ProgressReason::Aborted),
            message,
            wave,
            clock: Duration::from_millis(self.clock),
            settled: self.settled.map(Duration::from_millis),
            checking: self.checking.map(Duration::from_millis),
            promoted,
            failures,
            tolerated,
            guarded: self.guarded,
        }
    }

    /// A rollout as a parameter, from which a statement takes the columns that it writes.
    pub fn json(rollout: &Rollout) -> Json<Self> {
        Json(Self::of(rollout, Timestamp::UNIX_EPOCH, String::new()))
    }

    fn of(rollout: &Rollout, since: Timestamp, actor: String) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            newest: rollout.newest,
            edited: rollout.edited,
            started: rollout.started,
            number: rollout.number,
            stable: rollout.stable,
            goal: rollout.goal,
            state: rollout.state.as_str().to_owned(),
            reason: rollout.reason.as_str().to_owned(),
            message: rollout.message.clone(),
            wave: rollout.wave,
            clock: millis(rollout.clock),
            settled: rollout.settled.map(millis),
            checking: rollout.checking.map(millis),
            promoted: rollout.promoted,
            failures: rollout.failures,
            tolerated: rollout.tolerated,
            guarded: rollout.guarded,
            since,
            actor,
        }
    }
}

/// A rollout in a column, as `to_jsonb` prints its row, with since when it is so and who has asked for that.
pub fn read(query: &'static str, row: &Row, index: usize) -> Result<(Rollout, Timestamp, String), StoreError> {
    let text = column::<&str>(query, row, index)?;
    let stored: Stored =
        serde_json::from_str(text).map_err(|source| StoreError::Json { table: "towline_rollout", source })?;
    let (since, actor) = (stored.since, stored.actor.clone());
    Ok((stored.rollout(), since, actor))
}

impl ShownRollout {
    /// The columns that [`Self::of_row`] reads, of the syncset `c` and its rollout `r`, with the names of its wave and of the first one.
    pub const COLUMNS: &'static str = "to_jsonb(r)::text, c.kind, c.namespace, c.name, \
         array[coalesce(c.data #>> array['spec', 'rollout', 'waves', r.wave::text, 'name'], 'rest'), \
           coalesce(c.data #>> '{spec,rollout,waves,0,name}', 'rest')]";

    pub fn of_row(query: &'static str, row: &Row, first: usize) -> Result<Self, StoreError> {
        Ok(Self::as_stored(query, row, first)?.begun())
    }

    fn as_stored(query: &'static str, row: &Row, first: usize) -> Result<Self, StoreError> {
        let (rollout, since, actor) = read(query, row, first)?;
        let kind = column::<&str>(query, row, first + 1)?;
        let kind = Kind::ALL.into_iter().find(|known| known.plural() == kind).unwrap_or(Kind::SyncSet);
        let (namespace, name) = (column(query, row, first + 2)?, column(query, row, first + 3)?);
        let mut waves: Vec<String> = column(query, row, first + 4)?;
        let (first_wave, wave) = (waves.pop().unwrap_or_default(), waves.pop().unwrap_or_default());
        Ok(Self { kind, namespace, name, rollout, wave, first_wave, since, actor })
    }

    /// The same after an edit whose rollout begins within a second: what was before it says nothing any more.
    fn begun(mut self) -> Self {
        if self.rollout.must_begin() {
            let rollout = &mut self.rollout;
            (rollout.state, rollout.reason, rollout.goal) =
                (RolloutPhase::Running, ProgressReason::Guarding, rollout.newest);
            (rollout.wave, rollout.number, rollout.message) = (0, rollout.number.saturating_add(1), String::new());
            self.wave.clone_from(&self.first_wave);
            self.actor = String::new();
        }
        self
    }

    /// As commands take it: `team-a/base`, `monitoring`.
    pub fn argument(&self) -> String {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.namespace, self.name)
    }

    /// `SelectorSyncSet monitoring`.
    pub fn label(&self) -> String {
        format!("{} {}", self.kind.name(), self.argument())
    }

    /// Whether it has stopped by itself.
    pub fn needs_somebody(&self) -> bool {
        self.rollout.state == RolloutPhase::Stopped
            && matches!(self.rollout.reason, ProgressReason::Failures | ProgressReason::Restored)
    }

    /// What somebody can do, if it does not go on without.
    pub fn next_step(&self) -> Option<String> {
        let name = self.argument();
        let undo = match self.rollout.stable {
            Some(_) => format!(", or `towline rollout undo {name}`"),
            None => String::new(),
        };
        let step = match (self.rollout.state, self.rollout.reason) {
            (RolloutPhase::RolledBack, _) => "correct the syncset: its clusters don't have what it says".to_owned(),
            (_, ProgressReason::Held) => format!("take the change back, or `towline approve syncsets {name}`"),
            (_, ProgressReason::EmptyWave) => "label clusters for the wave, or correct its selector".to_owned(),
            (_, ProgressReason::Unreachable) => {
                "make a cluster of the wave reachable, or resume it if it is paused".to_owned()
            }
            (_, ProgressReason::AwaitingPromotion) => format!("`towline rollout promote {name} {}`", self.wave),
            (_, ProgressReason::Paused | ProgressReason::Restored) => format!("`towline rollout resume {name}`{undo}"),
            (_, ProgressReason::Failures) => {
                format!("edit the syncset{undo}; `towline rollout resume {name}` goes on in spite of what has failed")
            }
            (_, ProgressReason::Aborted) => format!("edit the syncset{undo}"),
            _ => return None,
        };
        Some(step)
    }
}

/// Rollouts of the syncsets `c` for which a condition holds, which is preceded by `and`: those first that have stopped; and how many more there
/// are.
pub async fn rollouts(
    database: &Database,
    within: impl FnOnce(&mut Parameters) -> String,
    most: i64,
) -> Result<(Vec<ShownRollout>, usize), StoreError> {
    const QUERY: &str = "rollouts";
    let mut parameters = Parameters::default();
    let within = within(&mut parameters);
    let limit = parameters.number(most);
    let text = format!(
        "select w.is_whole, s.* from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join lateral ( \
           select {}, count(*) over () {OF_ROLLOUTS}{within} \
           order by r.state = 'Complete', r.state <> 'Stopped', r.since desc, c.kind, c.namespace, c.name limit {limit}) s on true",
        ShownRollout::COLUMNS
    );
    let rows = database.all(QUERY, &text, &parameters.as_params()).await?;
    let first = rows.first().filter(|row| column(QUERY, row, 0).unwrap_or(false));
    let first = first.ok_or(StoreError::Restoring(ListError::Restoring))?;
    let Some(total) = column::<Option<i64>>(QUERY, first, 6)? else { return Ok((Vec::new(), 0)) };
    let shown: Vec<ShownRollout> =
        rows.iter().map(|row| ShownRollout::of_row(QUERY, row, 1)).collect::<Result<_, _>>()?;
    let more = usize::try_from(total).unwrap_or_default().saturating_sub(shown.len());
    Ok((shown, more))
}

/// Rollouts that have stopped or gone back, those first that have stopped by themselves, and the last ones of these first; and how many more there
/// are. One that begins anew since the syncset was edited is none of them.
pub async fn stopped_rollouts(database: &Database, most: i64) -> Result<(Vec<ShownRollout>, usize), db::Error> {
    const QUERY: &str = "stopped_rollouts";
    let text = format!(
        "select {}, count(*) over () {OF_ROLLOUTS} and r.state in ('Stopped', 'RolledBack') \
           and not towline_begins(r) \
         order by case when r.state = 'RolledBack' then 1 when r.reason in ('Failures', 'Restored') then 0 else 2 end, \
           r.since desc, c.kind, c.namespace, c.name limit $1",
        ShownRollout::COLUMNS
    );
    let rows = database.all(QUERY, &text, &[(&most as _, Type::INT8)]).await?;
    let total: i64 = rows.first().map_or(Ok(0), |row| column(QUERY, row, 5))?;
    let more = usize::try_from(total).unwrap_or_default().saturating_sub(rows.len());
    // What a newer release has written is not shown.
    Ok((rows.iter().filter_map(|row| ShownRollout::of_row(QUERY, row, 0).ok()).collect(), more))
}

/// The rollout of a syncset, if it has one.
pub async fn one(database: &Database, key: &Key) -> Result<Option<ShownRollout>, StoreError> {
    const QUERY: &str = "rollout";
    let text = format!(
        "select w.is_whole, s.* from (select {IS_WHOLE} as is_whole from towline_meta m, towline_version s) w left join lateral ( \
           select {} from towline_documents c join towline_rollout r on r.syncset = c.id \
           where c.kind = $1 and c.namespace = $2 and c.name = $3 and c.deleted_at is null) s on true",
        ShownRollout::COLUMNS
    );
    let plural = key.kind.plural();
    let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
    let rows = database.all(QUERY, &text, &params).await?;
    let row = rows.first().filter(|row| column(QUERY, row, 0).unwrap_or(false));
    let row = row.ok_or(StoreError::Restoring(ListError::Restoring))?;
    let is_there = column::<Option<&str>>(QUERY, row, 1)?.is_some();
    is_there.then(|| ShownRollout::of_row(QUERY, row, 1)).transpose()
}

/// The revisions of a syncset that are kept, the newest first; none if it has no rollout. Who has written one is in the record of the change.
pub async fn revisions(database: &Database, key: &Key) -> Result<Vec<Revision>, StoreError> {
    const QUERY: &str = "revisions";
    const TEXT: &str = "select v.revision, v.generation, to_json(v.made) #>> '{}', \
           (select h.actor from towline_history h where h.kind = c.kind and h.namespace = c.namespace and h.name = c.name \
             and h.version = v.version limit 1), \
           (select count(*) from towline_result t where t.syncset = c.id and t.generation = v.generation and t.result = 'Success'), \
           v.revision is not distinct from r.stable, v.revision = r.goal, v.revision = r.newest \
         from towline_documents c join towline_rollout r on r.syncset = c.id join towline_revision v on v.syncset = c.id \
         where c.kind = $1 and c.namespace = $2 and c.name = $3 and c.deleted_at is null order by v.revision desc";
    let plural = key.kind.plural();
    let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
    let revision = |row: &Row| -> Result<Revision, StoreError> {
        let made = column::<&str>(QUERY, row, 2)?;
        Ok(Revision {
            number: column(QUERY, row, 0)?,
            generation: column(QUERY, row, 1)?,
            made: made.parse().unwrap_or(Timestamp::UNIX_EPOCH),
            author: column::<Option<String>>(QUERY, row, 3)?.filter(|actor| !actor.is_empty()),
            clusters: usize::try_from(column::<i64>(QUERY, row, 4)?).unwrap_or_default(),
            is_stable: column(QUERY, row, 5)?,
            is_goal: column(QUERY, row, 6)?,
            is_newest: column(QUERY, row, 7)?,
        })
    };
    database.all(QUERY, TEXT, &params).await?.iter().map(revision).collect()
}

/// The objects that the goal of a rollout names, and the newest revision, or one that clusters have, does not name and so deletes: where they
/// were deleted, going back sends them again. At most [`MOST_SENT_AGAIN`], and one that says how many more there are. What was in some of them
/// does not come back.
pub async fn sent_again(database: &Database, key: &Key) -> Result<Vec<String>, StoreError> {
    const QUERY: &str = "sent_again";
    // A content is large: only those are read that are compared.
    let objects = |content: &str| {
        let list = |field: &str| {
            let list = format!("{content}->'{field}'");
            format!("jsonb_array_elements(case when jsonb_typeof({list}) = 'array' then {list} else '[]' end)")
        };
        format!(
            "(select case when e->>'apiVersion' like '%/%' then split_part(e->>'apiVersion', '/', 1) else '' end as api_group, e->>'kind' as kind, \
               coalesce(e #>> '{{metadata,namespace}}', '') as namespace, coalesce(e #>> '{{metadata,name}}', '') as name from {} e \
             union select '', 'Secret', coalesce(m #>> '{{targetRef,namespace}}', ''), coalesce(m #>> '{{targetRef,name}}', '') from {} m)",
            list("resources"),
            list("secretMappings"),
        )
    };
    let text = format!(
        "with r as materialized (select r.* from towline_documents c join towline_rollout r on r.syncset = c.id \
           where c.kind = $1 and c.namespace = $2 and c.name = $3 and c.deleted_at is null), \
         had as materialized (select unnest(array[newest, stable]) as revision from r \
           union select t.revision from r join towline_turn t on t.syncset = r.syncset) \
         select distinct o.kind, o.namespace, o.name, {} \
         from r join towline_revision g on g.syncset = r.syncset and g.revision = r.goal join had on had.revision <> r.goal \
           cross join lateral (select content from towline_revision \
             where syncset = r.syncset and revision = had.revision offset 0) v \
           cross join lateral ({} except {}) o \
         where v.content->>'resourceApplyMode' = 'Sync' order by 1, 2, 3",
        precious_row("o"),
        objects("g.content"),
        objects("v.content"),
    );
    let plural = key.kind.plural();
    let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
    let object = |row: &Row| -> Result<String, StoreError> {
        let [kind, namespace, name] = [0, 1, 2].map(|index| column::<&str>(QUERY, row, index));
        let (namespace, is_emptied) = (namespace?, column(QUERY, row, 3)?);
        let slash = if namespace.is_empty() { "" } else { "/" };
        let emptied = if is_emptied { ", without what was in it" } else { "" };
        Ok(format!("{} {namespace}{slash}{}{emptied}", kind?, name?))
    };
    let mut objects: Vec<String> =
        database.all(QUERY, &text, &params).await?.iter().map(object).collect::<Result<_, _>>()?;
    let more = objects.len().saturating_sub(MOST_SENT_AGAIN);
    objects.truncate(MOST_SENT_AGAIN);
    objects.extend((more > 0).then(|| format!("{more} more")));
    Ok(objects)
}

/// Carries out an order, in one transaction with its record.
pub async fn carry_out(database: &Database, key: &Key, order: Order, by: &Author) -> Result<ShownRollout, OrderError> {
    const READ: &str = "order_rollout";
    const KEPT: &str = "select revision from towline_revision where syncset = $1::text::uuid order by revision";
    const WRITE: &str = "update towline_rollout r set (started, number, goal, state, reason, message, wave, clock, settled, checking, promoted, \
           failures, tolerated, guarded, since, actor) = (select n.started, n.number, n.goal, n.state, n.reason, n.message, n.wave, n.clock, \
           n.settled, n.checking, n.promoted, n.failures, n.tolerated, n.guarded, clock_timestamp(), $3 \
           from jsonb_populate_record(null::towline_rollout, $2) n) where syncset = $1::text::uuid";
    let text = format!(
        "select {}, c.id::text, set_config('idle_in_transaction_session_timeout', '3s', true) \
         from towline_documents c join towline_rollout r on r.syncset = c.id \
         where c.kind = $1 and c.namespace = $2 and c.name = $3 and c.deleted_at is null \
           and exists (select from towline_meta where origin = towline_origin()) for update of r",
        ShownRollout::COLUMNS
    );
    let plural = key.kind.plural();
    let params = [(&plural as _, Type::TEXT), (&key.namespace as _, Type::TEXT), (&key.name as _, Type::TEXT)];
    let mut transaction = database.begin("rollout", WITHIN).await.map_err(StoreError::from)?;
    let rows = transaction.all(READ, &text, &params).await.map_err(StoreError::from)?;
    let Some(row) = rows.first() else { return Err(OrderError::NoRollout) };
    let shown = ShownRollout::as_stored(READ, row, 0)?;
    let rollout = shown.rollout.clone();
    let id: String = column(READ, row, 5).map_err(StoreError::from)?;
    // An edit for which the lock has waited may have dropped some.
    let kept = transaction.all("kept_revisions", KEPT, &[(&id as _, Type::TEXT)]).await.map_err(StoreError::from)?;
    let kept: Result<Vec<i32>, _> = kept.iter().map(|row| column("kept_revisions", row, 0)).collect();
    let kept = kept.map_err(StoreError::from)?;
    let changed = order.apply(rollout.clone(), &kept);
    let changed = changed.map_err(|refused| OrderError::Refused { refused, possible: possible(&rollout) })?;
    if let Order::Promote { wave: Some(asked) } = &order
        && *asked != shown.wave
    {
        return Err(OrderError::OtherWave { asked: asked.clone(), waits: shown.wave });
    }
    let stored = Stored::json(&changed);
    // An order changes it only to begin anew.
    let wave = if changed.wave == rollout.wave { shown.wave.clone() } else { shown.first_wave.clone() };
    let (since, actor) = (Timestamp::now(), by.actor.clone());
    let carried_out = ShownRollout { rollout: changed, wave, since, actor, ..shown }.begun();
    let write = async {
        let params = [(&id as _, Type::TEXT), (&stored as _, Type::JSONB), (&by.actor as _, Type::TEXT)];
        transaction.execute("write_rollout", WRITE, &params).await?;
        if !order.keeps_turns() {
            let clusters = take_back(&mut transaction, &id, None).await?;
            if !clusters.is_empty() {
                WorkQueue::ask_within(&mut transaction, &clusters, true).await?;
            }
        }
        let entry =
            Json(entry(key, &order, &rollout, &carried_out.rollout, by).with_id(id.parse().unwrap_or_default()));
        transaction.execute("record_rollout", &Entry::statement(1), &[(&entry as _, Type::JSONB)]).await?;
        transaction.commit().await
    };
    write.await.map_err(StoreError::from)?;
    Ok(carried_out)
}

/// Pins clusters that were released, but were sent nothing, to the revision that they had before: some of these, or of all. Returns which. The
/// caller requests a pass of each in the same transaction, since one with the new revision may be under way.
pub async fn take_back(
    transaction: &mut Transaction<'_>,
    syncset: &str,
    of: Option<&[String]>,
) -> Result<Vec<Uuid>, db::Error> {
    const QUERY: &str = "take_turns_back";
    const TEXT: &str = "select c::text from towline_take_back($1::text::uuid, $2::text[]::uuid[]) c";
    let params = [(&syncset as _, Type::TEXT), (&of as _, Type::TEXT_ARRAY)];
    let rows = transaction.all(QUERY, TEXT, &params).await?;
    let id = |row: &Row| {
        let text: &str = column(QUERY, row, 0)?;
        text.parse().map_err(|error| db::Error::Decode { query: QUERY, source: Arc::new(error) })
    };
    rows.iter().map(id).collect()
}

/// What is recorded of an order.
fn entry(key: &Key, order: &Order, before: &Rollout, after: &Rollout, by: &Author) -> Entry {
    let told = |rollout: &Rollout| match rollout.reason.as_str() {
        "" => rollout.state.as_str().to_owned(),
        reason => format!("{} ({reason})", rollout.state.as_str()),
    };
    let note = format!("revision {}: {} → {}", after.goal, told(before), told(after));
    Entry::of(by.clone(), order.verb(), key.kind, &key.namespace, &key.name).noting(&note)
}

/// One that has stopped after failures, with a start that no clock has reached.
#[cfg(test)]
pub fn shown_for_tests() -> ShownRollout {
    let since = "9000-11-29T09:00:00Z".parse().expect("a time");
    ShownRollout { since, ..tests::shown(RolloutPhase::Stopped, ProgressReason::Failures) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Stored {
        Stored {
            newest: 4,
            edited: 3,
            started: 3,
            number: 7,
            stable: Some(2),
            goal: 4,
            state: "Running".to_owned(),
            reason: "AwaitingPromotion".to_owned(),
            message: "wave canary is done".to_owned(),
            wave: 1,
            clock: 5_500,
            settled: Some(4_250),
            checking: Some(5_000),
            promoted: 6,
            failures: 8,
            tolerated: 9,
            guarded: true,
            since: "2026-11-29T09:00:00Z".parse().expect("a time"),
            actor: "ada".to_owned(),
        }
    }

    pub(super) fn shown(state: RolloutPhase, reason: ProgressReason) -> ShownRollout {
        let Stored { since, actor, .. } = stored();
        let rollout = Rollout { state, reason, ..stored().rollout() };
        let [namespace, name, wave, first_wave] = ["team-a", "base", "canary", "first"].map(str::to_owned);
        ShownRollout { kind: Kind::SyncSet, namespace, name, rollout, wave, first_wave, since, actor }
    }

    #[test]
    fn a_rollout_that_is_written_is_read_alike() {
        let Stored { since, actor, .. } = stored();
        assert_eq!(Stored::of(&stored().rollout(), since, actor), stored());
        let of_later = Stored { state: "Waltzing".to_owned(), ..stored() };
        assert_eq!(of_later.rollout().state, RolloutPhase::Stopped, "a state of a newer release is not moved");
    }

    #[test]
    fn each_state_that_does_not_go_on_by_itself_has_a_next_step_that_is_possible() {
        for reason in ProgressReason::ALL {
            let state = match reason {
                ProgressReason::None => RolloutPhase::RolledBack,
                ProgressReason::Paused
                | ProgressReason::Failures
                | ProgressReason::Restored
                | ProgressReason::Aborted => RolloutPhase::Stopped,
                _ => RolloutPhase::Running,
            };
            let shown = shown(state, reason);
            let step = shown.next_step().unwrap_or_default();
            let possible = possible(&shown.rollout);
            for order in Order::ALL.map(|order| order.as_str()) {
                let is_told = step.contains(&format!("`towline rollout {order} team-a/base"));
                assert!(!is_told || possible.contains(&order), "{state:?} {reason:?}: {step}; {possible:?}");
            }
            let goes_on = matches!(
                reason,
                ProgressReason::Guarding
                    | ProgressReason::Releasing
                    | ProgressReason::Soaking
                    | ProgressReason::Checking
            );
            assert_eq!(step.is_empty(), goes_on, "{reason:?}: {step}");
        }
        assert_eq!(shown(RolloutPhase::Complete, ProgressReason::None).next_step(), None);
        assert!(
            possible(&shown(RolloutPhase::Running, ProgressReason::AwaitingPromotion).rollout).contains(&"promote")
        );
    }

    #[test]
    fn an_edit_whose_rollout_has_yet_to_begin_is_not_shown_as_complete() {
        let mut edited = shown(RolloutPhase::Complete, ProgressReason::None);
        (edited.rollout.edited, edited.rollout.newest) = (4, 5);
        let begun = edited.begun();
        let told = (begun.rollout.state, begun.rollout.reason, begun.rollout.goal);
        assert_eq!(told, (RolloutPhase::Running, ProgressReason::Guarding, 5));
        assert_eq!((begun.rollout.wave, &*begun.wave), (0, "first"));
    }
}

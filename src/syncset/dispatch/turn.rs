//! One turn of the dispatcher: a read, and the transaction that asks for clusters and moves the cursor (P1, P3, P4, K5).
//!
//! The transaction first locks the row of the dispatcher's claim, if it is still held and the cursor is where the read began. So of
//! two processes that both believe to be the dispatcher one moves the cursor, and it moves over each row once.
//!
//! Work rows are locked in order of the cluster by one statement of a transaction alone (Q5). So those of removed clusters, whose
//! deletion locks them too, are deleted in a transaction of their own, which comes first and can be repeated.

use std::time::Duration;

use uuid::Uuid;

use super::concern::Concern;
use super::error::DispatchError;
use super::read::{Read, read};
use super::selection::{Parameter, Parameters};
use super::step::Step;
use crate::db::{Database, Transaction, Type, column};
use crate::documents::{Grant, renumber};
use crate::syncset::store::RESYNC;

/// Limit of a transaction. A renewal of the claim waits for it, and may itself take 8 s.
const WITHIN: Duration = Duration::from_secs(8);

/// The claim in parameters $1 and $2, and the cursor in $3; in the database that was read: one that was failed over to since has
/// another origin until its versions are renumbered.
const HELD: &str = "name = 'dispatcher' and holder = $1 and token = $2 and cursor = $3 and until > clock_timestamp() \
     and (select origin = towline_origin() from towline_meta)";
/// Merges requests with those that wait; a pass that runs is followed by another (Q2).
const MERGE: &str = "on conflict (cluster) do update set wanted = towline_work.wanted + 1, \
     ready_at = least(towline_work.ready_at, excluded.ready_at), urgent = towline_work.urgent or excluded.urgent, attempts = 0";
/// Removes the requests for clusters that were removed, and waits for statements under their claims. $1 has their ids, or is null for
/// all that have no document.
const REMOVE_WORK: &str = "delete from towline_work where cluster in (select w.cluster from towline_work w \
     where ($1::text[] is null or w.cluster = any($1::text[]::uuid[])) \
       and not exists (select from clusters c where c.kind = 'clusters' and c.id = w.cluster) order by w.cluster for update)";
/// Removes what is stored of such clusters. From now on no claim on them is alive under which more could be stored. While the database
/// is being restored, clusters may be still to come: its origin differs until the end.
const REMOVE_STATE: &str = "with known(cluster) as ( \
       select unnest($1::text[]::uuid[]) union \
       select cluster from towline_pace where $1::text[] is null union select cluster from towline_result where $1::text[] is null union \
       select cluster from towline_applied where $1::text[] is null union select cluster from towline_patched where $1::text[] is null), \
     gone as materialized (select cluster from known \
       where not exists (select from clusters c where c.kind = 'clusters' and c.id = known.cluster) \
         and (select origin = towline_origin() from towline_meta)), \
     results as (delete from towline_result r using gone where r.cluster = gone.cluster), \
     applied as (delete from towline_applied a using gone where a.cluster = gone.cluster), \
     patched as (delete from towline_patched p using gone where p.cluster = gone.cluster) \
     delete from towline_pace p using gone where p.cluster = gone.cluster";

/// Dispatches changes of one database.
#[derive(Clone)]
pub struct Dispatch {
    database: Database,
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Rows of the log.
    pub changes: usize,
    /// Clusters that were asked for.
    pub asked: u64,
    /// Whether all clusters were asked for, since rows were missing or nothing had been dispatched before.
    pub was_gap: bool,
    /// Whether there may be more rows.
    pub has_more: bool,
}

impl Dispatch {
    /// In this database.
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Dispatches up to 500 changes.
    pub async fn turn(&self, grant: &Grant) -> Result<Turn, DispatchError> {
        let read = read(&self.database).await?;
        match read.head.step() {
            Step::Follow => self.follow(grant, &read).await,
            Step::All { in_full } => self.all(grant, &read, in_full).await,
            Step::Renumber => {
                // It ends all claims, this one too. If the database is still being restored, nothing happens yet.
                renumber(&self.database, false).await?;
                Ok(Turn::default())
            }
        }
    }

    /// Adds requests for clusters that have none, and returns their number (P4). Each one is a fault: it would never have been worked
    /// on. A cluster that is being deleted has none on purpose.
    pub async fn mend(&self, grant: &Grant) -> Result<u64, DispatchError> {
        const TEXT: &str = "insert into towline_work (cluster, ready_at) select c.id, now() \
             from clusters c, towline_claim l where l.name = 'dispatcher' and l.holder = $1 and l.token = $2 \
               and l.until > clock_timestamp() and c.kind = 'clusters' and c.version <= l.cursor and c.deleted_at is null \
               and not exists (select from towline_work w where w.cluster = c.id) order by c.id on conflict do nothing";
        let holder = grant.holder.as_str();
        let params = [(&holder as _, Type::TEXT), (&grant.token as _, Type::INT8)];
        Ok(self.database.execute("mend_work", TEXT, &params).await?)
    }

    async fn follow(&self, grant: &Grant, read: &Read) -> Result<Turn, DispatchError> {
        if read.changes.is_empty() {
            return Ok(Turn::default());
        }
        let concern = Concern::of(&read.changes);
        if !concern.gone.is_empty() {
            let gone: Vec<Uuid> = concern.gone.iter().copied().collect();
            self.remove(Some(&gone)).await?;
        }
        let mut turn = Turn { changes: read.changes.len(), has_more: read.is_full, ..Turn::default() };
        if concern.is_empty() {
            self.pass_over(grant, read).await?;
            return Ok(turn);
        }
        let mut transaction = self.begin(grant, read).await?;
        let concern = mappers(&mut transaction, concern).await?;
        turn.asked = ask(&mut transaction, &concern).await?;
        move_cursor(&mut transaction, read.last).await?;
        transaction.commit().await?;
        Ok(turn)
    }

    /// Asks for all clusters. The newest version was read before them, so that later ones are still dispatched.
    async fn all(&self, grant: &Grant, read: &Read, in_full: bool) -> Result<Turn, DispatchError> {
        tracing::info!(
            cursor = read.head.cursor,
            base = read.head.base,
            newest = read.head.newest,
            in_full,
            "changes are missing in the log or were never dispatched, asking for all clusters"
        );
        // The deletions of clusters may be among what is missing.
        self.remove(None).await?;
        let mut transaction = self.begin(grant, read).await?;
        if in_full {
            transaction.execute("resync_all", RESYNC, &[(&None::<Vec<String>>, Type::TEXT_ARRAY)]).await?;
        }
        let text = format!(
            "insert into towline_work (cluster, ready_at) select c.id, now() from clusters c order by c.id {MERGE}"
        );
        let asked = transaction.execute("ask_all", &text, &[]).await?;
        move_cursor(&mut transaction, read.head.newest).await?;
        transaction.commit().await?;
        Ok(Turn { changes: 0, asked, was_gap: true, has_more: true })
    }

    /// Deletes what is stored of clusters that were removed. It needs no claim: an id never comes back.
    async fn remove(&self, clusters: Option<&[Uuid]>) -> Result<(), DispatchError> {
        let ids: Option<Vec<String>> = clusters.map(|clusters| clusters.iter().map(Uuid::to_string).collect());
        let params = [(&ids as _, Type::TEXT_ARRAY)];
        self.database.execute("remove_work", REMOVE_WORK, &params).await?;
        self.database.execute("remove_state", REMOVE_STATE, &params).await?;
        Ok(())
    }

    /// Moves the cursor over changes that concern nobody.
    async fn pass_over(&self, grant: &Grant, read: &Read) -> Result<(), DispatchError> {
        let holder = grant.holder.as_str();
        let params = [
            (&holder as _, Type::TEXT),
            (&grant.token as _, Type::INT8),
            (&read.head.cursor as _, Type::INT8),
            (&read.last as _, Type::INT8),
        ];
        let text = format!("update towline_claim set cursor = $4 where {HELD}");
        match self.database.execute("pass_over", &text, &params).await? {
            0 => Err(DispatchError::LeaseExpired),
            _ => Ok(()),
        }
    }

    /// Begins the transaction, and locks the claim.
    async fn begin(&self, grant: &Grant, read: &Read) -> Result<Transaction<'static>, DispatchError> {
        const QUERY: &str = "lock_dispatcher";
        let mut transaction = self.database.begin("dispatch", WITHIN).await?;
        let holder = grant.holder.as_str();
        let params =
            [(&holder as _, Type::TEXT), (&grant.token as _, Type::INT8), (&read.head.cursor as _, Type::INT8)];
        // Renewals of work wait for the rows that are asked for, 3 s at a time, and have 20 s: a process that stops here must not hold
        // them for longer.
        let text = format!(
            "select set_config('idle_in_transaction_session_timeout', '3s', true) from towline_claim where {HELD} for update"
        );
        match transaction.execute(QUERY, &text, &params).await? {
            0 => Err(DispatchError::LeaseExpired),
            _ => Ok(transaction),
        }
    }
}

/// Adds the clusters of the syncsets that map changed secrets. Those that mapped them before, their own changes concern.
async fn mappers(transaction: &mut Transaction<'static>, mut concern: Concern) -> Result<Concern, DispatchError> {
    const QUERY: &str = "secret_mappers";
    const TEXT: &str = "with changed as materialized (select jsonb_build_array(jsonb_build_object('sourceRef', \
           jsonb_build_object('namespace', namespace, 'name', name))) as mapping from unnest($1::text[], $2::text[]) c(namespace, name)) \
         select s.namespace, (s.data #> '{spec,clusterDeploymentRefs}')::text, null, null from changed \
           join syncsets s on s.data #> '{spec,secretMappings}' @> changed.mapping \
         union select null, null, (s.data #> '{spec,clusterDeploymentSelector}')::text, (s.data #> '{spec,clusterNamespaces}')::text \
           from changed join selectorsyncsets s on s.data #> '{spec,secretMappings}' @> changed.mapping";
    if concern.secrets.is_empty() {
        return Ok(concern);
    }
    let (namespaces, names): (Vec<String>, Vec<String>) = std::mem::take(&mut concern.secrets).into_iter().unzip();
    let params = [(&namespaces as _, Type::TEXT_ARRAY), (&names as _, Type::TEXT_ARRAY)];
    for row in &transaction.all(QUERY, TEXT, &params).await? {
        let value = |index| -> Result<Option<serde_json::Value>, DispatchError> {
            let text = column::<Option<&str>>(QUERY, row, index)?;
            // The database prints valid JSON.
            Ok(text.and_then(|text| serde_json::from_str(text).ok()))
        };
        match column::<Option<&str>>(QUERY, row, 0)? {
            Some(namespace) => concern.add_refs(namespace, value(1)?.as_ref()),
            None => concern.add_selection(value(2)?.as_ref(), value(3)?.as_ref()),
        }
    }
    Ok(concern.limited())
}

/// Asks for the clusters, and returns their number: one statement, whatever the changes are.
async fn ask(transaction: &mut Transaction<'static>, concern: &Concern) -> Result<u64, DispatchError> {
    let mut parameters = Parameters::default();
    let texts = |texts: Vec<String>| Parameter::Texts(texts);
    let clusters = if concern.all {
        "select c.id from clusters c".to_owned()
    } else {
        let ids = parameters.add(texts(concern.clusters.iter().map(Uuid::to_string).collect()));
        let (namespaces, names) = concern.named.iter().cloned().unzip();
        let (namespaces, names) = (parameters.add(texts(namespaces)), parameters.add(texts(names)));
        let mut text = format!(
            "select c.id from clusters c where c.kind = 'clusters' and c.id = any({ids}::text[]::uuid[]) \
             union select c.id from unnest({namespaces}::text[], {names}::text[]) r(namespace, name) join clusters c \
               on c.kind = 'clusters' and c.namespace = r.namespace and c.name = r.name"
        );
        for selection in &concern.selections {
            let condition = selection.condition(&mut parameters);
            text.push_str(" union select c.id from clusters c where ");
            text.push_str(&condition);
        }
        text
    };
    let text = format!(
        "insert into towline_work (cluster, ready_at, urgent) select id, now(), true from ({clusters}) concerned order by id {MERGE}"
    );
    Ok(transaction.execute("ask_concerned", &text, &parameters.as_params()).await?)
}

/// Moves the cursor, and wakes workers.
async fn move_cursor(transaction: &mut Transaction<'static>, to: i64) -> Result<(), DispatchError> {
    const TEXT: &str = "with moved as (update towline_claim set cursor = $1 where name = 'dispatcher') \
         select pg_notify('towline_work', '')::text";
    transaction.execute("move_cursor", TEXT, &[(&to, Type::INT8)]).await?;
    Ok(())
}

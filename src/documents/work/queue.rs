//! The queue in table `towline_work`.
//!
//! Statements that lock several rows lock them in order of the cluster, or they would deadlock with each other; a claim skips rows that
//! somebody else has locked.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;

use super::granted::Work;
use super::namespaces::ClaimLimits;
use super::order::ClaimMix;
use crate::db::{Database, Error, Param, Row, Text, Transaction, Type, column};
use crate::documents::bus::Broker;
use crate::documents::claims::{Claims, HeldClaim, HeldWork, Holder};

/// Longest wait for work to be granted. It waits for no row's lock, and a late answer is of little use: the claim counts from the request.
const CLAIM_WITHIN: Duration = Duration::from_secs(5);

/// Requests a pass. A request is merged with a row that waits, and noted on one that is worked on. The notification is sent with the
/// commit. For 30 s after versions were renumbered, which nobody leads, a new row is blocked as the others are: there may have been one,
/// with a claim that was lost.
const ASK: &str = "with asked as ( \
       insert into towline_work (cluster, ready_at, urgent, until, namespace) \
       select distinct c, now(), $2, (select max(until) from towline_claim where holder is null and until > now()), \
         coalesce((select d.namespace from clusters d where d.kind = 'clusters' and d.id = c), '') \
       from unnest($1::text[]::uuid[]) c order by c \
       on conflict (cluster) do update set wanted = towline_work.wanted + 1, attempts = 0, \
         ready_at = least(towline_work.ready_at, excluded.ready_at), urgent = towline_work.urgent or excluded.urgent, \
         namespace = excluded.namespace \
       returning 1), \
     counted as (select count(*) as rows from asked) \
     select pg_notify('towline_work', '') from counted where rows > 0";
/// What a claim makes of the rows in `next`. The server can't know how many these are, and would rather read the whole table than look up
/// each; of an array it expects ten.
macro_rules! granted {
    () => {
        "granted as ( \
       update towline_work w set holder = $1, token = w.token + 1, until = now() + $2 * interval '1 s', attempts = w.attempts + 1, \
         ready_at = now() + $2 * interval '1 s' * least(w.attempts + 1, 10) \
       from next where w.cluster = any (array(select cluster from next)) and w.cluster = next.cluster \
       returning w.cluster::text as cluster, w.token, w.wanted, w.attempts, w.urgent, \
         extract(epoch from greatest(now() - next.ready_at, interval '0'))::float8 as waited, \
         coalesce((select c.namespace || '/' || c.name from clusters c where c.kind = 'clusters' and c.id = w.cluster), \
           w.cluster::text) as name) \
     select g.cluster, g.token, g.wanted, g.attempts, g.urgent, g.waited, g.name"
    };
}
/// Grants rows, some of them urgent if possible, of those of which a further condition holds; of each namespace at most as many as its limit.
/// Three of four times these are its urgent ones, if there are any, so that its others don't starve where the limit is small. Nothing is granted while versions of
/// another origin are not renumbered: the database may have lost a grant. If a row is not done, it becomes ready again, later each time. The
/// answer always has a row, with the number of rows that were found before the limits.
macro_rules! claim {
    ($of_urgent:literal, $of_others:literal) => {
        concat!(
            "urgent as materialized ( \
       select cluster, ready_at, namespace, urgent from towline_work where urgent and ready_at <= now() \
         and (until is null or until < now()) and (select origin = towline_origin() from towline_meta) ",
            $of_urgent,
            "order by ready_at limit $3 for update skip locked), \
     others as materialized ( \
       select cluster, ready_at, namespace, urgent from towline_work where ready_at <= now() and (until is null or until < now()) \
         and (select origin = towline_origin() from towline_meta) and cluster <> all (array(select cluster from urgent)) ",
            $of_others,
            "order by ready_at limit $3 + $4 - (select count(*) from urgent) for update skip locked), \
     found as materialized ( \
       select f.*, row_number() over (partition by namespace order by urgent and prefers_urgent desc, ready_at) as nth \
       from (select * from urgent union all select * from others) f, (select random() < 0.75 as prefers_urgent offset 0) t), \
     next as materialized ( \
       select cluster, ready_at from found f where nth <= coalesce( \
         (select l.most from unnest($5::text[], $6::int8[]) l (namespace, most) where l.namespace = f.namespace), $7)), ",
            granted!(),
            ", c.rows from (select count(*) as rows from found) c left join granted g on true"
        )
    };
}
/// Each part uses an index of its own.
const CLAIM: &str = concat!("with ", claim!("", ""));
/// The same without the clusters of some namespaces, however many of these are ready: the first rows of each other namespace are looked up,
/// which costs as much as there are namespaces. Twice as many as are claimed, since somebody may have locked some. Rows are compared,
/// so that no other index can be used.
const CLAIM_OF_OTHERS: &str = concat!(
    "with recursive names as ( \
       (select namespace from towline_work order by namespace limit 1) \
       union all \
       select (select w.namespace from towline_work w where w.namespace > n.namespace order by w.namespace limit 1) \
       from names n where n.namespace is not null), \
     first as materialized ( \
       select f.cluster, f.ready_at, k.urgent from names n cross join (values (true), (false)) k (urgent) cross join lateral ( \
         select w.cluster, w.ready_at from towline_work w \
         where (w.namespace, w.urgent, w.ready_at) >= (n.namespace, k.urgent, '-infinity') \
           and (w.namespace, w.urgent, w.ready_at) <= (n.namespace, k.urgent, now()) and (w.until is null or w.until < now()) \
         order by w.namespace, w.urgent, w.ready_at limit 2 * ($3 + $4)) f \
       where n.namespace <> all ($8)), ",
    claim!(
        "and cluster = any (array(select f.cluster from first f where f.urgent order by f.ready_at limit 2 * $3)) ",
        "and cluster = any (array(select f.cluster from first f where f.cluster <> all (array(select cluster from urgent)) \
           order by f.ready_at limit 2 * ($3 + $4))) "
    )
);
/// Grants the row of a cluster, if it is ready and nobody has it or has locked it.
const CLAIM_ONE: &str = concat!(
    "with next as materialized ( \
       select cluster, ready_at from towline_work where cluster = $3::text::uuid and ready_at <= now() \
         and (until is null or until < now()) and (select origin = towline_origin() from towline_meta) \
         and namespace <> all ($4) for update skip locked), ",
    granted!(),
    " from granted g"
);
static DONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "update towline_work w set {} where w.cluster = $1::text::uuid and w.holder = $2 and w.token = $3 returning w.wanted <> $4",
        WorkEnd::assignments(4)
    )
});
/// Ends a claim as if it had not been granted.
const HAND_BACK: &str = "update towline_work set holder = null, until = null, attempts = greatest(attempts - 1, 0), \
       ready_at = now() \
     where cluster = $1::text::uuid and holder = $2 and token = $3 returning true";
/// Removes the row of a claim.
const FORGET: &str =
    "delete from towline_work where cluster = $1::text::uuid and holder = $2 and token = $3 returning false";
/// A row is running, else ready, else waiting.
const COUNT: &str = "select count(*) filter (where running), count(*) filter (where not running and ready_at <= now()), \
       count(*) filter (where not running and ready_at > now()), \
       extract(epoch from now() - min(ready_at) filter (where not running and ready_at <= now()))::float8 \
     from (select coalesce(until >= now(), false) as running, ready_at from towline_work) w";

/// The work queue of a database. Clones are the same.
#[derive(Clone)]
pub struct WorkQueue {
    database: Database,
    holder: Holder,
    held: HeldWork,
    broker: Option<Broker>,
    /// Wakes this process when it has made a row ready.
    returned: Arc<Notify>,
}

/// What a claim has come to.
#[derive(Debug, Default)]
pub struct Claimed {
    pub work: Vec<Work>,
    /// Rows that were granted; more than there is work where the answer came too late.
    pub granted: usize,
    /// Whether rows were found of namespaces that may have no more: there may be others behind them.
    pub has_more: bool,
}

/// What becomes of the row of a claim that ends, unless another pass was requested meanwhile.
#[derive(Clone, Debug)]
pub struct WorkEnd {
    /// When it is ready again.
    next: String,
    /// How many failed attempts it remembers.
    attempts: i32,
    /// If it was urgent, it still is.
    goes_on: bool,
}

/// What has become of the row of a pass that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowEnd {
    /// It waits until it is ready again, or was removed.
    Settled,
    /// It is ready: somebody asked for another pass meanwhile, or it was handed back.
    Ready,
    /// The claim had been lost, and nothing was changed.
    Lost,
}

/// The rows of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Claimed.
    pub running: i64,
    /// Neither claimed nor to wait.
    pub ready: i64,
    /// Not ready yet.
    pub waiting: i64,
    /// Since when the oldest ready row has been ready.
    pub oldest: Option<Duration>,
}

impl WorkEnd {
    /// The pass has come to its end. The row is ready again at this time, and remembers so many failed attempts, 0 after a success.
    pub fn done(next: Timestamp, attempts: u32) -> Self {
        Self { next: next.to_string(), attempts: i32::try_from(attempts).unwrap_or(i32::MAX), goes_on: false }
    }

    /// Somebody has to go on with the cluster from this time on: what was urgent stays so.
    pub fn go_on(next: Timestamp, attempts: u32) -> Self {
        Self { goes_on: true, ..Self::done(next, attempts) }
    }

    /// What is set in the row `w`, by [`Self::params`] from this number on. Where another pass was requested meanwhile, it is ready at once.
    pub fn assignments(first: usize) -> String {
        let [wanted, attempts, next, goes_on] = [first, first + 1, first + 2, first + 3];
        format!(
            "holder = null, until = null, attempts = case when w.wanted = ${wanted} then ${attempts} else 0 end, \
             urgent = w.urgent and (w.wanted <> ${wanted} or ${goes_on}), \
             ready_at = case when w.wanted = ${wanted} then ${next}::text::timestamptz else now() end"
        )
    }

    /// The parameters, for a claim that serves so many requests.
    pub fn params<'p>(&'p self, wanted: &'p i64) -> [Param<'p>; 4] {
        let Self { next, attempts, goes_on } = self;
        [(wanted, Type::INT8), (attempts, Type::INT4), (next, Type::TEXT), (goes_on, Type::BOOL)]
    }
}

impl WorkQueue {
    /// The queue. What is claimed belongs to `claims`, whose actor renews it.
    pub fn new(database: &Database, claims: &Claims) -> Self {
        let (holder, held) = (claims.holder().clone(), claims.work().clone());
        Self { database: database.clone(), holder, held, broker: None, returned: Arc::default() }
    }

    /// The same with a message broker, over which workers hear at once which clusters somebody waits for.
    #[must_use]
    pub fn over(mut self, broker: Option<Broker>) -> Self {
        self.broker = broker;
        self
    }

    /// Requests a pass of each of these clusters that begins after this call, and wakes those that wait for work. One statement.
    pub async fn ask(&self, ids: &[Uuid], urgent: bool) -> Result<(), Error> {
        let clusters = texts(ids);
        let params = [(&clusters as _, Type::TEXT_ARRAY), (&urgent as _, Type::BOOL)];
        self.database.execute("ask", Text::Prepared(ASK), &params).await?;
        if let Some(broker) = self.broker.as_ref().filter(|_| urgent) {
            broker.hint(ids);
        }
        Ok(())
    }

    /// The same as part of a transaction: passes that begin after its commit. The rows are locked until then, so a transaction asks
    /// once; two requests of one transaction could deadlock with those of others.
    pub async fn ask_within(transaction: &mut Transaction<'_>, clusters: &[Uuid], urgent: bool) -> Result<(), Error> {
        let clusters = texts(clusters);
        let params = [(&clusters as _, Type::TEXT_ARRAY), (&urgent as _, Type::BOOL)];
        transaction.execute("ask", Text::Prepared(ASK), &params).await.map(|_| ())
    }

    /// Claims what is ready, at most as many rows as there are slots, and of each namespace as many as it may have. One statement; none
    /// without slots.
    ///
    /// If it fails or is dropped, rows may have been granted nevertheless: they return when the claims end.
    pub async fn claim(&self, mix: ClaimMix, limits: &ClaimLimits) -> Result<Claimed, Error> {
        const QUERY: &str = "claim_work";
        if mix.slots() == 0 {
            return Ok(Claimed::default());
        }
        let (holder, urgent, oldest) = (self.holder.as_str(), i64::from(mix.urgent_first), i64::from(mix.oldest));
        let seconds = self.held.lifetime().seconds();
        let (namespaces, most): (Vec<&str>, Vec<i64>) =
            limits.of.iter().map(|(name, most)| (&**name, count(*most))).unzip();
        let (of_others, without) = (count(limits.of_others), limits.without());
        let mut params = vec![
            (&holder as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
            (&urgent as _, Type::INT8),
            (&oldest as _, Type::INT8),
            (&namespaces as _, Type::TEXT_ARRAY),
            (&most as _, Type::INT8_ARRAY),
            (&of_others as _, Type::INT8),
        ];
        let mut text = CLAIM;
        if !without.is_empty() {
            text = CLAIM_OF_OTHERS;
            params.push((&without as _, Type::TEXT_ARRAY));
        }
        let database = self.database.clone().answering_within(CLAIM_WITHIN);
        let sent = self.held.now();
        let rows = database.all(QUERY, Text::Prepared(text), &params).await?;
        let found: i64 = rows.first().map(|row| column(QUERY, row, 7)).transpose()?.unwrap_or_default();
        let mut claimed = Claimed::default();
        // Where none was granted, the only row tells how many were found.
        for row in &rows {
            if column::<Option<&str>>(QUERY, row, 0)?.is_some() {
                claimed.granted += 1;
                claimed.work.extend(self.granted(QUERY, row, sent)?);
            }
        }
        claimed.has_more = count(claimed.granted) < found;
        Ok(claimed)
    }

    /// Claims the row of a cluster, if it is ready, nobody has it, and it is of none of these namespaces. One statement; if it fails, see
    /// [`Self::claim`].
    pub(super) async fn claim_one(&self, cluster: Uuid, without: &[&str]) -> Result<Option<Work>, Error> {
        const QUERY: &str = "claim_hinted_work";
        let (holder, cluster, seconds) = (self.holder.as_str(), cluster.to_string(), self.held.lifetime().seconds());
        let params = [
            (&holder as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
            (&cluster as _, Type::TEXT),
            (&without as _, Type::TEXT_ARRAY),
        ];
        let database = self.database.clone().answering_within(CLAIM_WITHIN);
        let sent = self.held.now();
        let rows = database.all(QUERY, Text::Prepared(CLAIM_ONE), &params).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        self.granted(QUERY, row, sent)
    }

    /// A row that a request sent at `sent` was granted; none if the answer came too late.
    fn granted(&self, query: &'static str, row: &Row, sent: Duration) -> Result<Option<Work>, Error> {
        let cluster: String = column(query, row, 0)?;
        let Ok(cluster) = cluster.parse() else { return Ok(None) };
        let (token, attempts): (i64, i32) = (column(query, row, 1)?, column(query, row, 3)?);
        let (wanted, urgent, seconds) = (column(query, row, 2)?, column(query, row, 4)?, column(query, row, 5)?);
        let name: String = column(query, row, 6)?;
        let granted = self.held.granted(cluster, &name, token, sent).map(|(registration, claim)| Work {
            cluster,
            name,
            token,
            wanted,
            attempts: u32::try_from(attempts).unwrap_or_default(),
            urgent,
            waited: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
            holder: self.holder.clone(),
            claim,
            registration,
        });
        Ok(granted)
    }

    /// Ends a pass: the row becomes what `end` says, unless another pass was requested meanwhile.
    ///
    /// If it fails, the row may return when the claim ends, as if the pass had not ended.
    pub async fn done(&self, work: Work, end: &WorkEnd) -> Result<RowEnd, Error> {
        let wanted = work.wanted;
        let further = end.params(&wanted);
        self.end(self.patient(), work, "work_done", &DONE, &further).await
    }

    /// Gives work back that was not done through no fault of the cluster, so that another process may take it at once.
    pub async fn hand_back(&self, work: Work) -> Result<RowEnd, Error> {
        self.end(self.database.clone(), work, "hand_back_work", HAND_BACK, &[]).await
    }

    /// Removes the row of a cluster that is gone.
    pub async fn forget(&self, work: Work) -> Result<RowEnd, Error> {
        self.end(self.patient(), work, "forget_work", FORGET, &[]).await
    }

    /// The database, for the end of a pass. It waits for a connection as long as the claim lasts at least: without its end, the whole pass is
    /// repeated.
    fn patient(&self) -> Database {
        self.database.clone().waiting_at_most(self.held.lifetime().held_for())
    }

    /// Runs a statement that ends a claim and returns whether its row is ready now.
    async fn end(
        &self,
        database: Database,
        work: Work,
        query: &'static str,
        text: &'static str,
        further: &[Param<'_>],
    ) -> Result<RowEnd, Error> {
        let (cluster, token) = (work.cluster.to_string(), work.token);
        work.release();
        let holder = self.holder.as_str();
        let own = [(&cluster as _, Type::TEXT), (&holder as _, Type::TEXT), (&token as _, Type::INT8)];
        let params: Vec<_> = own.into_iter().chain(further.iter().cloned()).collect();
        let rows = database.all(query, Text::Prepared(text), &params).await?;
        let Some(row) = rows.first() else { return Ok(RowEnd::Lost) };
        Ok(self.ended(column(query, row, 0)?))
    }

    /// A statement has ended a claim, and the row is ready or not.
    pub fn ended(&self, is_ready: bool) -> RowEnd {
        if is_ready {
            self.returned.notify_one();
            RowEnd::Ready
        } else {
            RowEnd::Settled
        }
    }

    /// Waits until this process has made a row ready since the last call.
    ///
    /// Cancel safe.
    pub(super) async fn returned(&self) {
        self.returned.notified().await;
    }

    /// The database, for notifications.
    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// The message broker, if there is one.
    pub(super) fn broker(&self) -> Option<&Broker> {
        self.broker.as_ref()
    }

    /// Counts the rows. One statement, which reads the whole table.
    pub async fn counts(&self) -> Result<Counts, Error> {
        const QUERY: &str = "count_work";
        let rows = self.database.all(QUERY, COUNT, &[]).await?;
        let Some(row) = rows.first() else { return Ok(Counts::default()) };
        let oldest: Option<f64> = column(QUERY, row, 3)?;
        Ok(Counts {
            running: column(QUERY, row, 0)?,
            ready: column(QUERY, row, 1)?,
            waiting: column(QUERY, row, 2)?,
            oldest: oldest.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        })
    }

    pub fn held(&self) -> Vec<HeldClaim> {
        self.held.list()
    }
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

fn texts(clusters: &[Uuid]) -> Vec<String> {
    clusters.iter().map(Uuid::to_string).collect()
}

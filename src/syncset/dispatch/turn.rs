//! One turn of the dispatcher: a read, and the transaction that asks for clusters and moves the cursor.
//!
//! The transaction first locks the row of the dispatcher's claim, if it is still held and the cursor is where the read began. So of
//! two processes that both believe to be the dispatcher one moves the cursor, and it moves over each row once.
//!
//! What is to be judged may be too much for one transaction. Then others come before, which move no cursor.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use super::ask::{concerned, mappers};
use super::concern::Concern;
use super::docket::Docket;
use super::error::DispatchError;
use super::held::{approve_everything, held};
use super::ids;
use super::judge::{Court, Labels, MOST, Page, Verdicts, decide, decisions, everything, pages};
use super::read::{Read, read};
use super::remove::{remove, remove_all};
use super::step::Step;
use super::tidy::tidy;
use crate::db::{Database, Transaction, Type};
use crate::documents::{Broker, Grant, WorkQueue, renumber};
use crate::syncset::store::RESYNC;

/// Limit of a transaction. It locks the row of the claim, for which a renewal waits 3 s at most and is then repeated. So pages are to end
/// before (`judge/cost.rs`); what can't be split may cost a renewal or two of the claim, which lasts longer.
pub(super) const WITHIN: Duration = Duration::from_secs(8);

/// The claim in parameters $1 and $2, and the cursor in $3; in the database that was read: one that was failed over to since has
/// another origin until its versions are renumbered.
const HELD: &str = "name = 'dispatcher' and holder = $1 and token = $2 and cursor = $3 and until > clock_timestamp() \
     and (select origin = towline_origin() from towline_meta)";

/// Dispatches changes of one database.
#[derive(Clone)]
pub struct Dispatch {
    database: Database,
    broker: Option<Broker>,
    /// Whether deletions are held if they are too many.
    is_guarding: bool,
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
    /// Syncsets whose deletions are held from now on.
    pub held: usize,
    /// Syncsets whose deletions are held no more.
    pub released: usize,
}

impl Turn {
    fn count(&mut self, verdicts: &Verdicts) {
        self.held += verdicts.held.len();
        self.released += verdicts.released.len();
    }
}

impl Dispatch {
    /// In this database.
    pub fn new(database: Database) -> Self {
        Self { database, broker: None, is_guarding: true }
    }

    /// The same, which tells workers over a message broker which clusters somebody waits for.
    #[must_use]
    pub fn over(mut self, broker: Option<Broker>) -> Self {
        self.broker = broker;
        self
    }

    /// The same without the guard: everything is judged, and nothing is held.
    #[must_use]
    pub fn unguarded(mut self) -> Self {
        self.is_guarding = false;
        self
    }

    /// Lets go what holds nothing any more, and forgets what is not needed. Without the guard, what is held is approved.
    pub async fn tidy(&self, grant: &Grant) -> Result<(), DispatchError> {
        if !self.is_guarding && !held(&self.database).await?.is_empty() {
            approve_everything(&self.database).await?;
        }
        tidy(&self.database, grant).await
    }

    /// Judges again what could not be read: the release before this one may not have known how.
    pub async fn review(&self, grant: &Grant) -> Result<Turn, DispatchError> {
        const QUERY: &str = "unreadable_syncsets";
        const TEXT: &str =
            "select syncset::text from towline_guard where held and cause = 'unreadable' order by syncset";
        let (read, mut turn) = (read(&self.database).await?, Turn::default());
        // All other steps judge everything.
        if read.head.step() == Step::Follow {
            let unreadable = ids(QUERY, &self.database.all(QUERY, TEXT, &[]).await?)?;
            self.judge_all(grant, &read, read.head.cursor, &unreadable, &mut turn, &|| ()).await?;
        }
        Ok(turn)
    }

    /// Dispatches up to 500 changes.
    pub async fn turn(&self, grant: &Grant) -> Result<Turn, DispatchError> {
        self.turn_in_pages(grant, &|| ()).await
    }

    /// The same; `judged` is called after each transaction, of which a turn may have any number.
    pub async fn turn_in_pages(&self, grant: &Grant, judged: &(dyn Fn() + Sync)) -> Result<Turn, DispatchError> {
        let read = read(&self.database).await?;
        match read.head.step() {
            Step::Follow => self.follow(grant, &read, judged).await,
            Step::All { in_full } => self.all(grant, &read, in_full, judged).await,
            Step::Renumber => {
                // It ends all claims, this one too. If the database is still being restored, nothing happens yet.
                renumber(&self.database, false).await?;
                Ok(Turn::default())
            }
        }
    }

    /// Adds requests for clusters that have none, and returns their number. Each one is a fault: it would never have been worked
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

    async fn follow(&self, grant: &Grant, read: &Read, judged: &(dyn Fn() + Sync)) -> Result<Turn, DispatchError> {
        if read.changes.is_empty() {
            return Ok(Turn::default());
        }
        let (concern, docket) = (Concern::of(&read.changes), Docket::of(&read.changes));
        let gone: Vec<Uuid> = concern.gone.iter().copied().collect();
        remove(&self.database, &gone).await?;
        let mut turn = Turn { changes: read.changes.len(), has_more: read.is_full, ..Turn::default() };
        if concern.is_empty() && docket.is_empty() {
            self.pass_over(grant, read).await?;
            return Ok(turn);
        }
        let mut pages = pages(&self.database, &docket, Labels::Follow).await?;
        let (last, mut undecided) = (pages.pop().unwrap_or_default(), BTreeSet::new());
        for page in &pages {
            undecided.append(&mut self.judge_page(grant, read, read.last, &page.of, &mut turn).await?);
            judged();
        }
        let mut transaction = self.begin(grant, read).await?;
        let mut verdicts = self.court(read.last).judge(&mut transaction, &last.of).await?;
        undecided.append(&mut verdicts.undecided);
        let mut pages = decisions(&mut transaction, &undecided).await?;
        let decided_last = pages.pop().unwrap_or_default();
        if !pages.is_empty() || !last.fits_with(&decided_last) {
            end_page(transaction, &verdicts, &mut turn).await?;
            judged();
            self.decide_pages(grant, read, &pages, &mut turn, judged).await?;
            (transaction, verdicts) = (self.begin(grant, read).await?, Verdicts::default());
        }
        verdicts.add(decide(&mut transaction, &decided_last.of).await?);
        turn.count(&verdicts);
        let concern = mappers(&mut transaction, concern).await?;
        let clusters = concerned(&mut transaction, &concern, &verdicts.released).await?;
        turn.asked = ask(&mut transaction, &clusters, true).await?;
        move_cursor(&mut transaction, read.last).await?;
        transaction.commit().await?;
        if let Some(broker) = &self.broker {
            broker.hint(&clusters);
        }
        verdicts.announce();
        Ok(turn)
    }

    /// Asks for all clusters. The newest version was read before them, so that later ones are still dispatched.
    async fn all(
        &self,
        grant: &Grant,
        read: &Read,
        in_full: bool,
        judged: &(dyn Fn() + Sync),
    ) -> Result<Turn, DispatchError> {
        tracing::info!(
            cursor = read.head.cursor,
            base = read.head.base,
            newest = read.head.newest,
            in_full,
            "changes are missing in the log or were never dispatched, asking for all clusters"
        );
        // The deletions of clusters may be among what is missing.
        remove_all(&self.database).await?;
        let mut turn = Turn { was_gap: true, has_more: true, ..Turn::default() };
        let everything = everything(&self.database).await?;
        self.judge_all(grant, read, read.head.newest, &everything, &mut turn, judged).await?;
        let mut transaction = self.begin(grant, read).await?;
        if in_full {
            transaction.execute("resync_all", RESYNC, &[(&None::<Vec<String>>, Type::TEXT_ARRAY)]).await?;
        }
        let everybody = Concern { all: true, ..Concern::default() };
        let clusters = concerned(&mut transaction, &everybody, &[]).await?;
        turn.asked = ask(&mut transaction, &clusters, false).await?;
        move_cursor(&mut transaction, read.head.newest).await?;
        transaction.commit().await?;
        Ok(turn)
    }

    /// Judges syncsets as a whole, in as many transactions as it takes.
    async fn judge_all(
        &self,
        grant: &Grant,
        read: &Read,
        version: i64,
        syncsets: &[Uuid],
        turn: &mut Turn,
        judged: &(dyn Fn() + Sync),
    ) -> Result<(), DispatchError> {
        let mut undecided = BTreeSet::new();
        for some in syncsets.chunks(MOST) {
            let docket = Docket { syncsets: some.iter().copied().collect(), ..Docket::default() };
            for page in pages(&self.database, &docket, Labels::Unknown).await? {
                undecided.append(&mut self.judge_page(grant, read, version, &page.of, turn).await?);
                judged();
            }
        }
        if undecided.is_empty() {
            return Ok(());
        }
        let mut transaction = self.begin(grant, read).await?;
        let pages = decisions(&mut transaction, &undecided).await?;
        transaction.commit().await?;
        self.decide_pages(grant, read, &pages, turn, judged).await
    }

    /// Decides on pages in transactions of their own.
    async fn decide_pages(
        &self,
        grant: &Grant,
        read: &Read,
        pages: &[Page<BTreeSet<Uuid>>],
        turn: &mut Turn,
        judged: &(dyn Fn() + Sync),
    ) -> Result<(), DispatchError> {
        for page in pages {
            let mut transaction = self.begin(grant, read).await?;
            let verdicts = decide(&mut transaction, &page.of).await?;
            end_page(transaction, &verdicts, turn).await?;
            judged();
        }
        Ok(())
    }

    /// Judges a page in a transaction of its own, and returns what is still to be decided. What it stores permits nothing before the
    /// cursor has moved, and stays right if that never happens; another turn judges the same again.
    async fn judge_page(
        &self,
        grant: &Grant,
        read: &Read,
        version: i64,
        page: &Docket,
        turn: &mut Turn,
    ) -> Result<BTreeSet<Uuid>, DispatchError> {
        let mut transaction = self.begin(grant, read).await?;
        let verdicts = self.court(version).judge(&mut transaction, page).await?;
        end_page(transaction, &verdicts, turn).await?;
        Ok(verdicts.undecided)
    }

    fn court(&self, version: i64) -> Court {
        Court { is_guarding: self.is_guarding, version }
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

/// Ends a transaction that moves no cursor. A crash must not forget whom to ask for.
async fn end_page(
    mut transaction: Transaction<'static>,
    verdicts: &Verdicts,
    turn: &mut Turn,
) -> Result<(), DispatchError> {
    let clusters = concerned(&mut transaction, &Concern::default(), &verdicts.released).await?;
    ask(&mut transaction, &clusters, true).await?;
    transaction.commit().await?;
    verdicts.announce();
    turn.count(verdicts);
    Ok(())
}

/// Asks for clusters, and returns their number.
pub(super) async fn ask(
    transaction: &mut Transaction<'static>,
    clusters: &[Uuid],
    urgent: bool,
) -> Result<u64, DispatchError> {
    if !clusters.is_empty() {
        WorkQueue::ask_within(transaction, clusters, urgent).await?;
    }
    Ok(u64::try_from(clusters.len()).unwrap_or(u64::MAX))
}

/// Moves the cursor. Requests wake workers by themselves.
async fn move_cursor(transaction: &mut Transaction<'static>, to: i64) -> Result<(), DispatchError> {
    const TEXT: &str = "update towline_claim set cursor = $1 where name = 'dispatcher'";
    transaction.execute("move_cursor", TEXT, &[(&to, Type::INT8)]).await?;
    Ok(())
}

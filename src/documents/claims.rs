//! Leader claims: which process fills a role that must be filled only once.
//!
//! A claim is a lease in the database with a fencing token. There it ends 30 s after it was granted or renewed, by the server's
//! clock. Its holder stops 20 s after it *sent* the last request for it that was granted or renewed, by its own clock. The 10 s
//! between are the margin for steps of the server's clock, and for a failover to a server whose clock is ahead.
//!
//! State: a connection of its own, and the holder's side of each claim. Who fills a role has its [`Leadership`], and sends nothing
//! here. The actor sends one statement that renews all its claims every 6 s, and one that asks for all that it does not hold every
//! 10 s; asking never waits for another process, and is given up when a renewal is due. A claim that was not renewed is lost, and
//! its fence is closed at once. Restart: all claims are given up, and end in the database
//! by themselves. Drain: they are handed back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use crate::actor::{BoxError, ChildSpec, Scope};
use crate::cluster::{self, Clock, Expired, Fence, full_text};
use crate::db::{Connection, Database, Error, Type, column};

/// How long a holder may act after it sent the request that was granted.
const HELD_FOR: Duration = Duration::from_secs(20);
/// Between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(6);
/// Between two attempts to get a claim.
const LEAD_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for an answer: the server's limit for locks, and 3 s for the way. So two renewals fit into [`HELD_FOR`], since nothing
/// else delays them.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// No turn takes so long.
const STALL_AFTER: Duration = Duration::from_mins(2);

/// Grants what nobody holds. A row that somebody else is changing is left to them. Nothing is granted while versions of another
/// origin are not renumbered: the database may have lost a grant.
///
/// A role whose row is missing gets one: the table was restored without its data, and nothing is known of its grants. So it is blocked
/// for as long as one of them may last, and its tokens continue above all that there can have been, since a role is granted less
/// than once a microsecond. Before the restore has made the primary key, the rows may be still to come, and would collide.
const LEAD: &str = "with free as materialized (select name from towline_claim where name = any($2) and (until is null or until < now()) \
     and (select origin = towline_origin() from towline_meta) order by name for no key update skip locked), \
     put_back as (insert into towline_claim (name, token, until) \
     select role, (extract(epoch from now()) * 1000000)::bigint, now() + interval '30 s' from unnest($2) role \
     where not exists (select from towline_claim where name = role) and (select origin = towline_origin() from towline_meta) \
     and exists (select from pg_catalog.pg_index where indrelid = 'towline_claim'::regclass and indisprimary) \
     order by role on conflict do nothing) \
     update towline_claim c set holder = $1, token = c.token + 1, until = now() + interval '30 s' from free where c.name = free.name \
     returning c.name, c.token, c.cursor";
/// Renews and returns only claims that have not ended: an ended one is never revived.
const RENEW: &str = "with mine as materialized (select c.name from towline_claim c \
     join unnest($2::text[], $3::bigint[]) m(name, token) using (name, token) \
     where c.holder = $1 and c.until > now() order by c.name for no key update of c) \
     update towline_claim c set until = now() + interval '30 s' from mine where c.name = mine.name returning c.name";
const HAND_BACK: &str = "with mine as materialized (select c.name from towline_claim c \
     join unnest($2::text[], $3::bigint[]) m(name, token) using (name, token) \
     where c.holder = $1 and c.until > now() order by c.name for no key update of c) \
     update towline_claim c set until = now() from mine where c.name = mine.name";

/// A role that one process fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Deletes rows of the log that nobody needs.
    Compaction,
    /// Sends events to a message broker.
    Relay,
    /// Turns changes of documents into work.
    Dispatcher,
}

/// A process, as claims name it: the host and a random suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(Arc<str>);

/// The claims of this process. Clones are instances that take over from each other.
#[derive(Clone)]
pub struct Claims {
    database: Database,
    holder: Holder,
    clock: Clock,
    roles: Vec<Candidate>,
    /// Why the last statement failed, unless it was merely delayed. Each is a write, so it shows whether the database takes any.
    failure: watch::Sender<Option<Error>>,
}

/// Shows whether this process fills a role.
#[derive(Clone)]
pub struct Leadership {
    role: Role,
    grants: watch::Receiver<Option<Grant>>,
}

/// A grant of a role. Its token distinguishes it from all others of the role.
#[derive(Clone)]
pub struct Grant {
    /// This process.
    pub holder: Holder,
    /// The number of the grant.
    pub token: i64,
    /// Where the last holder was in the log.
    pub cursor: i64,
    /// When it was granted.
    pub since: Instant,
    claim: cluster::Claim,
}

/// The holder's side of one claim.
#[derive(Clone)]
struct Candidate {
    role: Role,
    fence: Fence,
    grant: watch::Sender<Option<Grant>>,
}

impl Role {
    /// Its name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::Relay => "relay",
            Self::Dispatcher => "dispatcher",
        }
    }
}

impl Holder {
    /// A name for this process that no other has.
    pub fn of_this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let suffix = Uuid::new_v4().simple().to_string();
        Self(format!("{host}-{}", suffix.get(..8).unwrap_or(&suffix)).into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Grant {
    /// An error if the process must not act as the holder any more. It takes nanoseconds, so it can be called before each step.
    pub fn check(&self) -> Result<Duration, Expired> {
        self.claim.check()
    }

    /// Completes when the claim is lost or has no time left.
    pub async fn expired(&self) -> Expired {
        self.claim.expired().await
    }
}

impl Leadership {
    /// The role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The present grant.
    pub fn grant(&self) -> Option<Grant> {
        self.grants.borrow().clone().filter(|grant| grant.check().is_ok())
    }

    /// Waits until this process fills the role.
    ///
    /// Cancel safe.
    pub async fn granted(&mut self) -> Grant {
        let is_held = |grant: &Option<Grant>| grant.as_ref().is_some_and(|grant| grant.check().is_ok());
        let granted = self.grants.wait_for(is_held).await.ok().and_then(|grant| grant.clone());
        match granted {
            Some(grant) => grant,
            // The claims have ended for good, with the process.
            None => std::future::pending().await,
        }
    }
}

impl Candidate {
    fn new(role: Role, clock: Clock) -> Self {
        Self { role, fence: Fence::new(role.as_str(), clock), grant: watch::Sender::new(None) }
    }

    /// The token of the grant that is held.
    fn token(&self) -> Option<i64> {
        self.grant.borrow().as_ref().map(|grant| grant.token)
    }

    /// A request sent at `sent` was granted.
    fn granted(&self, holder: &Holder, token: i64, cursor: i64, sent: Duration) {
        self.fence.open(sent + HELD_FOR);
        // The answer may have come too late.
        if let Ok(claim) = self.fence.claim() {
            tracing::info!(role = self.role.as_str(), token, cursor, "leader claim granted");
            let grant = Grant { holder: holder.clone(), token, cursor, since: Instant::now(), claim };
            self.grant.send_replace(Some(grant));
        }
    }

    /// A renewal sent at `sent` was answered.
    fn answered(&self, is_renewed: bool, sent: Duration) {
        if !(is_renewed && self.fence.extend(sent + HELD_FOR)) {
            self.lose("not renewed");
        }
    }

    /// Gives up what has ended by itself.
    fn expire(&self) {
        if !self.fence.is_held() {
            self.lose("expired");
        }
    }

    /// Closes the fence. Requests that were decided on under the claim fail from now on.
    fn lose(&self, reason: &'static str) {
        self.fence.close();
        if let Some(Grant { token, .. }) = self.grant.send_replace(None) {
            tracing::warn!(role = self.role.as_str(), token, reason, "leader claim lost");
        }
    }
}

impl Claims {
    /// The claims of this process in a database. `clock` is the one by which they end here.
    pub fn new(database: &Database, holder: Holder, clock: Clock) -> Self {
        let database = database.clone().answering_within(ANSWER_WITHIN);
        Self { database, holder, clock, roles: Vec::new(), failure: watch::Sender::new(None) }
    }

    /// Why the database did not take the last renewal or the last demand for a claim; none if it did.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Adds a role that this process tries to fill.
    pub fn role(&mut self, role: Role) -> Leadership {
        let candidate = Candidate::new(role, self.clock);
        let grants = candidate.grant.subscribe();
        self.roles.push(candidate);
        Leadership { role, grants }
    }

    /// The actor, under its name `claims`.
    pub fn child(self) -> ChildSpec {
        ChildSpec::new("claims", move |scope| self.clone().run(scope)).stall_after(STALL_AFTER)
    }

    /// The actor's body.
    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        // What an earlier instance held, nobody has renewed since.
        self.roles.iter().for_each(|candidate| candidate.lose("restarted"));
        let mut connection = None;
        let (mut renew_at, mut lead_at) = (Instant::now(), Instant::now());
        loop {
            tokio::select! {
                biased;
                () = scope.draining() => break,
                () = sleep_until(renew_at.min(lead_at)) => {}
            }
            let work = scope.work();
            self.roles.iter().for_each(Candidate::expire);
            if renew_at <= Instant::now() {
                renew_at = Instant::now() + RENEW_EVERY;
                self.renew(&mut connection).await;
            }
            // A renewal that took too long is repeated first.
            if lead_at <= Instant::now() && (renew_at > Instant::now() || self.held().is_empty()) {
                lead_at = Instant::now() + LEAD_EVERY;
                work.beat();
                self.lead(&mut connection, renew_at).await;
            }
        }
        self.hand_back(&mut connection).await;
        Ok(())
    }

    /// A long step of compaction locks its claim, too, and delays a renewal: that says nothing about other writes.
    fn remember(&self, failure: Option<&Error>) {
        self.failure.send_replace(failure.filter(|failure| !failure.is_delay()).cloned());
    }

    /// Renews what is held.
    async fn renew(&self, connection: &mut Option<Connection>) {
        let held = self.held();
        if held.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let renewed = self.on_held(connection, "renew_claims", RENEW, &held).await;
        self.remember(renewed.as_ref().err());
        match renewed {
            Ok(renewed) => {
                for (candidate, _) in held {
                    candidate.answered(renewed.iter().any(|name| name == candidate.role.as_str()), sent);
                }
            }
            // They are held until their fences close; the next renewal may come in time.
            Err(error) => tracing::warn!(error = %full_text(&error), "failed to renew leader claims, retrying"),
        }
    }

    /// Asks for what is not held. While something is held, the answer is waited for until the next renewal.
    async fn lead(&self, connection: &mut Option<Connection>, renew_at: Instant) {
        let wanted: Vec<_> = self.roles.iter().filter(|candidate| candidate.token().is_none()).collect();
        if wanted.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let asked = self.ask(connection, &wanted);
        let answered = if self.held().is_empty() { Ok(asked.await) } else { timeout_at(renew_at, asked).await };
        if let Ok(answer) = &answered {
            self.remember(answer.as_ref().err());
        }
        match answered {
            Ok(Ok(granted)) => {
                for (candidate, token, cursor) in granted {
                    candidate.granted(&self.holder, token, cursor, sent);
                }
            }
            Ok(Err(error)) => tracing::warn!(error = %full_text(&error), "failed to ask for leader claims, retrying"),
            Err(_) => {
                // The renewal would queue behind it. What it may still be granted ends by itself.
                *connection = None;
                tracing::warn!("no answer to a request for leader claims before a renewal is due, retrying");
            }
        }
    }

    async fn ask<'c>(
        &self,
        connection: &mut Option<Connection>,
        wanted: &[&'c Candidate],
    ) -> Result<Vec<(&'c Candidate, i64, i64)>, Error> {
        const QUERY: &str = "lead";
        let connection = self.connection(connection).await?;
        let names: Vec<&str> = wanted.iter().map(|candidate| candidate.role.as_str()).collect();
        let holder = self.holder.as_str();
        let rows = connection.all(QUERY, LEAD, &[(&holder, Type::TEXT), (&names, Type::TEXT_ARRAY)]).await?;
        let mut granted = Vec::with_capacity(rows.len());
        for row in &rows {
            let name: &str = column(QUERY, row, 0)?;
            if let Some(candidate) = wanted.iter().find(|candidate| candidate.role.as_str() == name) {
                granted.push((*candidate, column(QUERY, row, 1)?, column(QUERY, row, 2)?));
            }
        }
        Ok(granted)
    }

    /// Ends what is held, so that another process needs not wait for its end.
    async fn hand_back(&self, connection: &mut Option<Connection>) {
        let held = self.held();
        for (candidate, _) in &held {
            candidate.fence.close();
            candidate.grant.send_replace(None);
        }
        if held.is_empty() {
            return;
        }
        if let Err(error) = self.on_held(connection, "hand_back_claims", HAND_BACK, &held).await {
            tracing::warn!(error = %full_text(&error), "failed to hand back leader claims: others wait until they end");
        }
    }

    /// The claims that are held, with their tokens.
    fn held(&self) -> Vec<(&Candidate, i64)> {
        self.roles.iter().filter_map(|candidate| Some((candidate, candidate.token()?))).collect()
    }

    /// Runs a statement on claims, and returns the names that it returns.
    async fn on_held(
        &self,
        connection: &mut Option<Connection>,
        query: &'static str,
        text: &str,
        held: &[(&Candidate, i64)],
    ) -> Result<Vec<String>, Error> {
        let names: Vec<&str> = held.iter().map(|(candidate, _)| candidate.role.as_str()).collect();
        let tokens: Vec<i64> = held.iter().map(|(_, token)| *token).collect();
        let holder = self.holder.as_str();
        let params = [(&holder as _, Type::TEXT), (&names as _, Type::TEXT_ARRAY), (&tokens as _, Type::INT8_ARRAY)];
        let rows = self.connection(connection).await?.all(query, text, &params).await?;
        rows.iter().map(|row| column(query, row, 0)).collect()
    }

    /// The connection, a new one if the last has ended.
    async fn connection<'c>(&self, connection: &'c mut Option<Connection>) -> Result<&'c mut Connection, Error> {
        let usable = match connection.take().filter(|connection| !connection.is_closed()) {
            Some(usable) => usable,
            None => self.database.connect("claims").await?,
        };
        Ok(connection.insert(usable))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn candidate() -> (Candidate, Leadership, Holder) {
        let candidate = Candidate::new(Role::Compaction, Clock::Paused(Instant::now()));
        let leadership = Leadership { role: candidate.role, grants: candidate.grant.subscribe() };
        (candidate, leadership, Holder::of_this_process())
    }

    #[test]
    fn each_process_has_a_name_of_its_own() {
        let (one, other) = (Holder::of_this_process(), Holder::of_this_process());
        assert_ne!(one, other);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(one.as_str().starts_with(&format!("{host}-")), "{one}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_stops_20_s_after_it_sent_the_last_renewal_that_was_acknowledged() {
        let (candidate, mut leadership, holder) = candidate();
        let sent = candidate.fence.now();
        advance(seconds(3)).await;
        candidate.granted(&holder, 7, 41, sent);
        let grant = leadership.granted().await;
        assert_eq!((grant.token, grant.cursor, &grant.holder), (7, 41, &holder));
        assert_eq!(grant.check(), Ok(seconds(17)), "it counts from when the request was sent");
        advance(seconds(10)).await;
        candidate.answered(true, candidate.fence.now().saturating_sub(seconds(1)));
        assert_eq!(grant.check(), Ok(seconds(19)));
        advance(seconds(19)).await;
        assert!(grant.check().is_err() && leadership.grant().is_none());
        candidate.expire();
        assert_eq!(candidate.token(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_was_not_renewed_is_lost_at_once() {
        let (candidate, leadership, holder) = candidate();
        candidate.granted(&holder, 7, 41, candidate.fence.now());
        let grant = leadership.grant().expect("it is granted");
        candidate.answered(false, candidate.fence.now());
        assert!(grant.check().is_err() && leadership.grant().is_none() && candidate.token().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_neither_grants_nor_revives() {
        let (candidate, leadership, holder) = candidate();
        let sent = candidate.fence.now();
        advance(seconds(20)).await;
        candidate.granted(&holder, 7, 41, sent);
        assert!(leadership.grant().is_none(), "it was granted too long ago");
        candidate.granted(&holder, 8, 41, candidate.fence.now());
        let grant = leadership.grant().expect("it is granted");
        advance(seconds(21)).await;
        candidate.answered(true, candidate.fence.now());
        assert!(grant.check().is_err() && leadership.grant().is_none(), "it had ended");
    }
}

//! The actor that renews the claims of this process, and asks for the roles that it wants.
//!
//! State: a connection of its own, the holder's side of each role, and the work claims of the process ([`HeldWork`]). Nobody sends to
//! it: who wants a role has its [`Leadership`], and who works on a cluster has its `Work`. Every 6 s it sends one statement for each
//! table of which the process holds claims. Every 10 s, and when another role is wanted, it sends one that asks for all wanted roles
//! that it does not hold; asking never waits for another process, and is given up when a renewal is due. A claim that was not renewed is
//! lost, and its fence is closed at once. Restart: roles are given up, and end in the database by themselves; work claims are kept,
//! since their fences say how long they last. Drain: all claims are handed back, so passes must have ended before.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::candidate::Candidate;
use super::held::{HeldClaim, HeldWork};
use super::lifetime::Lifetime;
use super::role::{Grant, Holder, Leadership, Role};
use super::statements::{Granted, Link, Statement};
use crate::actor::{BoxError, ChildSpec, Scope};
use crate::cluster::{Clock, full_text};
use crate::db::{Database, Error};

/// Longest wait for the answer to a request for roles. While something is held, the next renewal ends it earlier.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// No turn takes so long.
const STALL_AFTER: Duration = Duration::from_mins(2);

/// The claims of this process. Clones share them, and are instances of the actor that take over from each other.
#[derive(Clone)]
pub struct Claims {
    database: Database,
    holder: Holder,
    clock: Clock,
    lifetime: Lifetime,
    candidates: [Candidate; 3],
    wanted: watch::Sender<Vec<Role>>,
    work: HeldWork,
    /// Why the last statement failed, unless it was merely delayed. Each is a write, so it shows whether the database takes any.
    failure: watch::Sender<Option<Error>>,
}

impl Claims {
    /// The claims of this process in a database. `clock` is the one by which they end here.
    pub fn new(database: &Database, holder: Holder, clock: Clock) -> Self {
        Self::of(database, holder, clock, Lifetime::DEFAULT)
    }

    /// The same, but a claim lasts so long in the database, instead of 30 s, and everything that follows from it changes alike. For tests.
    pub fn lasting(database: &Database, holder: Holder, clock: Clock, lifetime: Duration) -> Self {
        Self::of(database, holder, clock, Lifetime(lifetime))
    }

    fn of(database: &Database, holder: Holder, clock: Clock, lifetime: Lifetime) -> Self {
        let database = database.clone().answering_within(ANSWER_WITHIN);
        let candidates =
            [Role::Compaction, Role::Relay, Role::Dispatcher].map(|role| Candidate::new(role, clock, lifetime));
        let (wanted, failure) = (watch::Sender::default(), watch::Sender::new(None));
        Self { database, holder, clock, lifetime, candidates, wanted, work: HeldWork::new(clock, lifetime), failure }
    }

    /// This process, as its claims name it.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Why the database did not take the last renewal or the last demand for a claim; none if it did.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Makes this process try to fill a role, from now on.
    pub fn role(&self, role: Role) -> Leadership {
        self.wanted.send_if_modified(|wanted| {
            let is_new = !wanted.contains(&role);
            if is_new {
                wanted.push(role);
            }
            is_new
        });
        let [compaction, relay, dispatcher] = &self.candidates;
        let candidate = match role {
            Role::Compaction => compaction,
            Role::Relay => relay,
            Role::Dispatcher => dispatcher,
        };
        candidate.leadership()
    }

    /// What this process holds of the roles.
    pub fn grants(&self) -> impl Iterator<Item = (Role, Grant)> {
        self.candidates.iter().filter_map(|candidate| Some((candidate.role(), candidate.leadership().grant()?)))
    }

    /// What this process holds of the work queue.
    pub fn held_work(&self) -> Vec<HeldClaim> {
        self.work.list()
    }

    pub(in crate::documents) fn work(&self) -> &HeldWork {
        &self.work
    }

    /// The actor, under its name `claims`.
    pub fn child(self) -> ChildSpec {
        ChildSpec::new("claims", move |scope| self.clone().run(scope)).stall_after(STALL_AFTER)
    }

    pub async fn run(self, scope: Scope) -> Result<(), BoxError> {
        // What an earlier instance held, nobody has renewed since.
        self.candidates.iter().for_each(|candidate| candidate.lose("restarted"));
        let mut link = Link::new(&self.database, &self.holder, self.lifetime);
        let mut wanted = self.wanted.subscribe();
        let (mut renew_at, mut lead_at) = (Instant::now(), Instant::now());
        loop {
            tokio::select! {
                biased;
                () = scope.draining() => break,
                () = sleep_until(renew_at.min(lead_at)) => {}
                // The sender lives as long as the claims.
                _ = wanted.changed() => lead_at = Instant::now(),
            }
            let work = scope.work();
            self.expire();
            if renew_at <= Instant::now() {
                renew_at = Instant::now() + self.lifetime.renewed_every();
                self.renew_roles(&mut link).await;
                work.beat();
                self.renew_work(&mut link).await;
            }
            // A renewal that took too long is repeated first.
            if lead_at <= Instant::now() && (renew_at > Instant::now() || !self.holds_anything()) {
                lead_at = Instant::now() + self.lifetime.asked_for_every();
                work.beat();
                let roles = wanted.borrow_and_update().clone();
                self.lead(&mut link, &roles, renew_at).await;
            }
        }
        self.hand_back(&mut link).await;
        Ok(())
    }

    /// Gives up claims that have expired.
    fn expire(&self) {
        self.candidates.iter().for_each(Candidate::expire);
        self.work.expire();
    }

    /// A long step of compaction locks its claim, too, and delays a renewal: that says nothing about other writes.
    fn remember(&self, failure: Option<&Error>) {
        self.failure.send_replace(failure.filter(|failure| !failure.is_delay()).cloned());
    }

    async fn renew_roles(&self, link: &mut Link<'_>) {
        let held = self.held();
        if held.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let (names, tokens) = names_and_tokens(&held);
        let renewed = link.on_held(Statement::RenewRoles, &names, &tokens).await;
        self.remember(renewed.as_ref().err());
        match renewed {
            Ok(renewed) => {
                for (candidate, _) in held {
                    candidate.answered(renewed.iter().any(|name| name == candidate.role().as_str()), sent);
                }
            }
            // They are held until their fences close; the next renewal may come in time.
            Err(error) => tracing::warn!(error = %full_text(&error), "failed to renew leader claims, retrying"),
        }
    }

    async fn renew_work(&self, link: &mut Link<'_>) {
        let held = self.work.list();
        if held.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let (clusters, tokens): (Vec<_>, Vec<_>) =
            held.iter().map(|held| (held.cluster.to_string(), held.token)).unzip();
        let renewed = link.on_held(Statement::RenewWork, &clusters, &tokens).await;
        self.remember(renewed.as_ref().err());
        match renewed {
            Ok(renewed) => self.work.answered(&held, &renewed, sent),
            Err(error) => tracing::warn!(error = %full_text(&error), "failed to renew work claims, retrying"),
        }
    }

    /// Asks for what is wanted and not held. While something is held, the answer is waited for until the next renewal.
    async fn lead(&self, link: &mut Link<'_>, wanted: &[Role], renew_at: Instant) {
        let is_wanted = |candidate: &&Candidate| wanted.contains(&candidate.role()) && candidate.token().is_none();
        let roles: Vec<_> = self.candidates.iter().filter(is_wanted).map(Candidate::role).collect();
        if roles.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let renewal_is_due = async {
            if self.held().is_empty() {
                // Work may be claimed meanwhile.
                self.work.becomes_held().await;
            }
            sleep_until(renew_at).await;
        };
        let answered = tokio::select! {
            biased;
            answer = link.lead(&roles) => Some(answer),
            () = renewal_is_due => None,
        };
        if let Some(answer) = &answered {
            self.remember(answer.as_ref().err());
        }
        match answered {
            Some(Ok(granted)) => {
                for Granted { name, token, cursor } in granted {
                    if let Some(candidate) = self.candidates.iter().find(|candidate| candidate.role().as_str() == name)
                    {
                        candidate.granted(&self.holder, token, cursor, sent);
                    }
                }
            }
            Some(Err(error)) => {
                tracing::warn!(error = %full_text(&error), "failed to ask for leader claims, retrying");
            }
            None => {
                // The renewal would queue behind it. What it may still be granted ends by itself.
                link.close();
                tracing::warn!("no answer to a request for leader claims before a renewal is due, retrying");
            }
        }
    }

    /// Ends what is held, so that another process needs not wait for its end.
    async fn hand_back(&self, link: &mut Link<'_>) {
        let held = self.held();
        for (candidate, _) in &held {
            candidate.give_up();
        }
        let work = self.work.give_up();
        let (names, tokens) = names_and_tokens(&held);
        let (clusters, work_tokens): (Vec<_>, Vec<_>) =
            work.iter().map(|held| (held.cluster.to_string(), held.token)).unzip();
        let statements = [(Statement::HandBackRoles, names, tokens), (Statement::HandBackWork, clusters, work_tokens)];
        for (statement, names, tokens) in statements {
            if names.is_empty() {
                continue;
            }
            if let Err(error) = link.on_held(statement, &names, &tokens).await {
                tracing::warn!(error = %full_text(&error), "failed to hand back claims: others wait until they end");
            }
        }
    }

    /// The roles that are held, with their tokens.
    fn held(&self) -> Vec<(&Candidate, i64)> {
        self.candidates.iter().filter_map(|candidate| Some((candidate, candidate.token()?))).collect()
    }

    fn holds_anything(&self) -> bool {
        !self.held().is_empty() || !self.work.list().is_empty()
    }
}

fn names_and_tokens(held: &[(&Candidate, i64)]) -> (Vec<String>, Vec<i64>) {
    held.iter().map(|(candidate, token)| (candidate.role().as_str().to_owned(), *token)).unzip()
}

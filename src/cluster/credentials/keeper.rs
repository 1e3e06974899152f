//! Which credentials are in use, when others are loaded, and that only working credentials replace them.
//!
//! Credentials that the API server has accepted stay in use until it has accepted others. An unreadable kubeconfig, a
//! plugin that hangs or a token with a typo is reported and retried, and has no other effect. Credentials that were never
//! accepted, or are refused now, are replaced at once.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::candidate::{Candidate, Found, NewToken, Refused, Used, Workshop};
use super::files_of;
use crate::actor::Backoff;
use crate::cluster::certificate::Validity;
use crate::cluster::client::Cluster;
use crate::cluster::connection::Connection;
use crate::config::ClusterConfig;
use crate::http::Files;

/// Back-off between attempts to load credentials. A change of a file does not wait for it. The cap bounds how late a repaired
/// plugin is noticed, and how often a failing one is run.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// Credentials are renewed this long before they expire, as by other clients.
const BEFORE_EXPIRY: Duration = Duration::from_mins(1);
/// And no earlier than this after they were issued, however soon they expire.
const SHORTEST_USE: Duration = Duration::from_secs(10);

/// What is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Everything is loaded again.
    Load,
    /// The source of the credentials in use is read or run again.
    Renew,
}

/// Credentials in use.
struct InUse {
    used: Used,
    certificate: Option<Validity>,
    /// The API server has accepted them since it last refused them.
    accepted: bool,
    /// When their source is read or run again.
    renew_at: Option<SystemTime>,
}

/// The result of loading credentials.
pub(in crate::cluster) enum Change {
    /// A new connection.
    Connection { connection: Connection, proven: bool },
    /// The connection has a new token.
    Token { proven: bool },
    /// No new credentials. `kept`: those in use stay.
    None { reason: String, kept: bool },
}

/// The owner of a cluster's credentials.
pub(in crate::cluster) struct Keeper {
    workshop: Workshop,
    files: Files,
    rotated: Files,
    in_use: Option<InUse>,
    search: Option<(Search, BoxFuture<'static, Result<Found, Refused>>)>,
    due: Option<(Search, Instant)>,
    attempts: u32,
}

impl Keeper {
    pub(in crate::cluster) fn new(cluster: &Cluster, config: ClusterConfig) -> Self {
        let files = files_of(&config);
        let workshop = Workshop { name: cluster.name().clone(), config, thread: Arc::new(Semaphore::new(1)) };
        let due = Some((Search::Load, Instant::now()));
        Self { workshop, files, rotated: Files::of(Vec::new()), in_use: None, search: None, due, attempts: 0 }
    }

    /// Why the certificate in use may be refused.
    pub(in crate::cluster) fn certificate_fault(&self, now: SystemTime) -> Option<String> {
        self.in_use.as_ref()?.certificate.as_ref()?.fault(now)
    }

    /// Checks the files (a few `stat` calls) and the clock.
    pub(in crate::cluster) fn look(&mut self) {
        if self.files.changed() {
            tracing::info!(cluster = %self.workshop.name, "credentials changed");
            self.files = self.files.seen_now();
            self.begin_anew(Search::Load);
        } else if self.rotated.changed() {
            self.rotated = self.rotated.seen_now();
            self.begin_anew(Search::Renew);
        }
        let expiring = |in_use: &InUse| in_use.renew_at.is_some_and(|at| at <= SystemTime::now());
        if self.is_idle() && self.in_use.as_ref().is_some_and(expiring) {
            self.begin_anew(Search::Renew);
        }
    }

    /// The API server has accepted the credentials in use.
    pub(in crate::cluster) fn accepted(&mut self) {
        if let Some(in_use) = &mut self.in_use {
            in_use.accepted = true;
        }
    }

    /// The API server has refused them: their source may have others.
    pub(in crate::cluster) fn refused(&mut self) {
        let is_idle = self.is_idle();
        if let Some(in_use) = &mut self.in_use {
            in_use.accepted = false;
            if is_idle && in_use.used.loaded.source.is_renewable() {
                let delay = if self.attempts == 0 { Duration::ZERO } else { RETRY.next_delay(self.attempts) };
                self.attempts = self.attempts.saturating_add(1);
                self.due = Some((Search::Renew, Instant::now() + delay));
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.search.is_none() && self.due.is_none()
    }

    /// Starts over, because the attempt in progress is out of date. An attempt that hangs is cancelled.
    fn begin_anew(&mut self, search: Search) {
        let loads = |search: Search| search == Search::Load;
        let is_loading = self.search.as_ref().is_some_and(|(search, _)| loads(*search))
            || self.due.is_some_and(|(search, _)| loads(search));
        let search = if is_loading { Search::Load } else { search };
        self.search = None;
        self.attempts = 0;
        self.due = Some((search, Instant::now()));
    }

    /// Loads new credentials when they are due, and returns the result. It can be cancelled without losing progress.
    pub(in crate::cluster) async fn change(&mut self) -> Change {
        loop {
            if let Some((search, work)) = &mut self.search {
                let search = *search;
                let found = work.await;
                self.search = None;
                return self.take(search, found);
            }
            match self.due {
                Some((_, at)) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
            self.begin();
        }
    }

    fn begin(&mut self) {
        let Some((search, _)) = self.due.take() else { return };
        // Working credentials are only replaced by working ones.
        let prove = self.in_use.as_ref().is_some_and(|in_use| in_use.accepted);
        let workshop = self.workshop.clone();
        let used = self.in_use.as_ref().map(|in_use| in_use.used.clone());
        // The stamps from before the files are read, so that a change meanwhile is noticed.
        self.search = Some(if let (Search::Renew, Some(used)) = (search, used) {
            self.rotated = used.loaded.source.files();
            (Search::Renew, Box::pin(workshop.renew(used, prove)))
        } else {
            self.files = self.files.seen_now();
            (Search::Load, Box::pin(workshop.load(prove)))
        });
    }

    fn take(&mut self, search: Search, found: Result<Found, Refused>) -> Change {
        match found {
            Ok(Found::Candidate(candidate)) => {
                let Candidate { connection, loaded, bearer, certificate, expires, proven } = *candidate;
                self.files = loaded.files.clone();
                if search == Search::Load {
                    self.rotated = loaded.source.files();
                }
                let used = Used { loaded, connection: connection.clone(), bearer };
                let renew_at = renewal(expires);
                self.in_use = Some(InUse { used, certificate, accepted: proven, renew_at });
                self.due = None;
                self.attempts = if proven { 0 } else { self.attempts };
                Change::Connection { connection, proven }
            }
            Ok(Found::Token(NewToken { token, expires, proven })) => {
                if let Some(in_use) = &mut self.in_use {
                    if let Some(bearer) = &in_use.used.bearer {
                        bearer.replace(token);
                    }
                    in_use.accepted = proven;
                    in_use.renew_at = renewal(expires);
                }
                self.attempts = if proven { 0 } else { self.attempts };
                Change::Token { proven }
            }
            Err(refused) => {
                self.due = Some((search, Instant::now() + RETRY.next_delay(self.attempts)));
                self.attempts = self.attempts.saturating_add(1);
                Change::None { reason: refused.to_string(), kept: self.in_use.is_some() }
            }
        }
    }
}

/// When credentials with this expiry are renewed.
fn renewal(expires: Option<SystemTime>) -> Option<SystemTime> {
    let earliest = SystemTime::now() + SHORTEST_USE;
    expires.map(|expires| expires.checked_sub(BEFORE_EXPIRY).unwrap_or(earliest).max(earliest))
}

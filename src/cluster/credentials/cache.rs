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
use crate::http::{FileWatch, Files};

/// Back-off between attempts to load credentials. A change of a file does not wait for it. The cap bounds how late a repaired
/// plugin is noticed, and how often a failing one is run.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// Credentials are renewed this long before they expire, as by other clients.
const BEFORE_EXPIRY: Duration = Duration::from_mins(1);
/// And no earlier than this after they were issued, however soon they expire.
const SHORTEST_USE: Duration = Duration::from_secs(10);
/// The system's clock is read again after this.
const LONGEST_TRUST: Duration = Duration::from_mins(1);

/// What is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Everything is loaded again.
    Load,
    /// The source of the credentials in use is read or run again.
    Renew,
}

type Loading = (Search, BoxFuture<'static, Result<Found, Refused>>);

struct InUse {
    used: Used,
    certificate: Option<Validity>,
    /// The API server has accepted them since it last refused them.
    accepted: bool,
    /// When their source is read or run again.
    renew_at: Option<SystemTime>,
}

pub(in crate::cluster) enum Change {
    Connection {
        connection: Connection,
        proven: bool,
    },
    /// The connection has a new token.
    Token {
        proven: bool,
    },
    /// No new credentials. `kept`: those in use stay.
    None {
        reason: String,
        kept: bool,
    },
}

/// What the cache does next.
enum Next {
    /// It takes what was loaded.
    Found(Search, Box<Result<Found, Refused>>),
    /// It loads what is due.
    Due,
    /// A file of the cluster's configuration has changed: everything is loaded again.
    Changed,
    /// A file of the source of the credentials in use has changed.
    Rotated,
    /// The credentials in use expire soon.
    Expiring,
}

/// The owner of a cluster's credentials.
pub(in crate::cluster) struct CredentialCache {
    workshop: Workshop,
    files: FileWatch,
    rotated: FileWatch,
    in_use: Option<InUse>,
    search: Option<Loading>,
    due: Option<(Search, Instant)>,
    attempts: u32,
}

impl CredentialCache {
    pub(in crate::cluster) fn new(cluster: &Cluster, config: ClusterConfig) -> Self {
        let files = FileWatch::new(files_of(&config));
        let workshop = Workshop { name: cluster.name().clone(), config, thread: Arc::new(Semaphore::new(1)) };
        let due = Some((Search::Load, Instant::now()));
        Self {
            workshop,
            files,
            rotated: FileWatch::new(Files::of(Vec::new())),
            in_use: None,
            search: None,
            due,
            attempts: 0,
        }
    }

    /// Why the certificate in use may be refused.
    pub(in crate::cluster) fn certificate_fault(&self, now: SystemTime) -> Option<String> {
        self.in_use.as_ref()?.certificate.as_ref()?.fault(now)
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

    /// Loads new credentials when they are due, or when files or the clock ask for others, and returns the result. It can be cancelled
    /// without losing progress.
    pub(in crate::cluster) async fn change(&mut self) -> Change {
        loop {
            let expiring = self.in_use.as_ref().and_then(|in_use| in_use.renew_at).filter(|_| self.is_idle());
            let next = tokio::select! {
                next = progress(&mut self.search, self.due) => next,
                () = self.files.changed() => Next::Changed,
                () = self.rotated.changed() => Next::Rotated,
                () = clock_reads(expiring) => Next::Expiring,
            };
            match next {
                Next::Found(search, found) => {
                    self.search = None;
                    return self.take(search, *found);
                }
                Next::Due => self.begin(),
                Next::Changed => {
                    tracing::info!(cluster = %self.workshop.name, "credentials changed");
                    self.files.see();
                    self.begin_anew(Search::Load);
                }
                Next::Rotated => {
                    self.rotated.see();
                    self.begin_anew(Search::Renew);
                }
                Next::Expiring => self.begin_anew(Search::Renew),
            }
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
            self.rotated = FileWatch::new(used.loaded.source.files());
            (Search::Renew, Box::pin(workshop.renew(used, prove)))
        } else {
            self.files.see();
            (Search::Load, Box::pin(workshop.load(prove)))
        });
    }

    fn take(&mut self, search: Search, found: Result<Found, Refused>) -> Change {
        match found {
            Ok(Found::Candidate(candidate)) => {
                let Candidate { connection, loaded, bearer, certificate, expires, proven } = *candidate;
                self.files = FileWatch::new(loaded.files.clone());
                if search == Search::Load {
                    self.rotated = FileWatch::new(loaded.rotated.clone());
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

/// Waits for what is being loaded, or else until it is due to be.
async fn progress(search: &mut Option<Loading>, due: Option<(Search, Instant)>) -> Next {
    match (search, due) {
        (Some((search, work)), _) => Next::Found(*search, Box::new(work.await)),
        (None, Some((_, at))) => {
            tokio::time::sleep_until(at).await;
            Next::Due
        }
        (None, None) => std::future::pending().await,
    }
}

/// Waits until the system's clock reads this, or about a minute longer if the clock is set or the machine sleeps meanwhile: credentials
/// that have expired by then are renewed when they are refused.
async fn clock_reads(time: Option<SystemTime>) {
    let Some(time) = time else { return std::future::pending().await };
    while let Ok(left) = time.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(LONGEST_TRUST)).await;
    }
}

/// When credentials with this expiry are renewed.
fn renewal(expires: Option<SystemTime>) -> Option<SystemTime> {
    let earliest = SystemTime::now() + SHORTEST_USE;
    expires.map(|expires| expires.checked_sub(BEFORE_EXPIRY).unwrap_or(earliest).max(earliest))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, poll};

    use super::*;

    /// Timers go by at once here, and the system's clock does not.
    #[tokio::test(start_paused = true)]
    async fn the_system_clock_says_when_credentials_are_renewed() {
        assert!(poll!(std::pin::pin!(clock_reads(None))).is_pending());
        assert!(clock_reads(Some(SystemTime::now())).now_or_never().is_some());
        let time = SystemTime::now() + Duration::from_millis(20);
        clock_reads(Some(time)).await;
        assert!(SystemTime::now() >= time);
    }
}

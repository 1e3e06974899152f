//! Roles that one process fills, and what the process that fills one has of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::actor::Scope;
use crate::cluster::{self, Expired};

/// Between the end of a grant and the wait for the next one.
const AFTER_A_GRANT: Duration = Duration::from_secs(1);

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

/// Shows whether this process fills a role.
#[derive(Clone)]
pub struct Leadership {
    pub(super) grants: watch::Receiver<Option<Grant>>,
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
    pub since: Instant,
    pub(super) claim: cluster::Claim,
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

    /// Waits until this process fills the role, and then works until the grant ends; what is under way is dropped. False when the actor
    /// drains.
    pub async fn lead<W: Future>(&mut self, scope: &Scope, work: impl FnOnce(Grant) -> W) -> bool {
        scope.set_state("waiting");
        let led = async {
            let grant = self.granted().await;
            scope.set_state("running");
            tokio::select! {
                biased;
                _ = grant.expired() => {}
                _ = work(grant.clone()) => {}
            }
            // The grant ends a little later; until then it would count as a new one.
            sleep(AFTER_A_GRANT).await;
        };
        tokio::select! {
            biased;
            () = scope.draining() => false,
            () = led => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_name_of_its_own() {
        let (one, other) = (Holder::of_this_process(), Holder::of_this_process());
        assert_ne!(one, other);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(one.as_str().starts_with(&format!("{host}-")), "{one}");
    }
}

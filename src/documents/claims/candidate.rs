//! The holder's side of a leader claim.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::lifetime::Lifetime;
use super::role::{Grant, Holder, Leadership, Role};
use crate::cluster::{Clock, Fence};

/// The holder's side of one claim.
#[derive(Clone)]
pub(super) struct Candidate {
    role: Role,
    lifetime: Lifetime,
    fence: Fence,
    grant: watch::Sender<Option<Grant>>,
}

impl Candidate {
    /// One that holds nothing.
    pub(super) fn new(role: Role, clock: Clock, lifetime: Lifetime) -> Self {
        Self { role, lifetime, fence: Fence::new(role.as_str(), clock), grant: watch::Sender::new(None) }
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// What the user of the role has of it.
    pub(super) fn leadership(&self) -> Leadership {
        Leadership { grants: self.grant.subscribe() }
    }

    /// The token of the grant that is held.
    pub(super) fn token(&self) -> Option<i64> {
        self.grant.borrow().as_ref().map(|grant| grant.token)
    }

    /// A request sent at `sent` was granted.
    pub(super) fn granted(&self, holder: &Holder, token: i64, cursor: i64, sent: Duration) {
        self.fence.open(sent + self.lifetime.held_for());
        // The answer may have come too late.
        if let Ok(claim) = self.fence.claim() {
            tracing::info!(role = self.role.as_str(), token, cursor, "leader claim granted");
            let grant = Grant { holder: holder.clone(), token, cursor, since: Instant::now(), claim };
            self.grant.send_replace(Some(grant));
        }
    }

    /// A renewal sent at `sent` was answered.
    pub(super) fn answered(&self, is_renewed: bool, sent: Duration) {
        if !(is_renewed && self.fence.extend(sent + self.lifetime.held_for())) {
            self.lose("not renewed");
        }
    }

    /// Gives up the claim if it has expired.
    pub(super) fn expire(&self) {
        if !self.fence.is_held() {
            self.lose("expired");
        }
    }

    /// Closes the fence. Requests that were decided on under the claim fail from now on.
    pub(super) fn lose(&self, reason: &'static str) {
        self.fence.close();
        if let Some(Grant { token, .. }) = self.grant.send_replace(None) {
            tracing::warn!(role = self.role.as_str(), token, reason, "leader claim lost");
        }
    }

    /// Closes the fence on purpose, without a warning.
    pub(super) fn give_up(&self) {
        self.fence.close();
        self.grant.send_replace(None);
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
        let candidate = Candidate::new(Role::Compaction, Clock::Paused(Instant::now()), Lifetime::DEFAULT);
        let leadership = candidate.leadership();
        (candidate, leadership, Holder::of_this_process())
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

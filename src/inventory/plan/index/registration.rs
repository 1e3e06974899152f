//! The registration of the cluster: what the API knows of it, as far as anybody can tell.
//!
//! As with releases, the status holds what is about to be posted before it is: a process that is killed meanwhile leaves that behind, and
//! the next one does not take for registered what was acknowledged before.

use rand::rngs::StdRng;
use tokio::time::Instant;

use super::outcomes::capped;
use super::{Refusal, Retry, Wake};
use crate::inventory::plan::status::{Registered, Rejection};

/// The registration of the cluster.
#[derive(Debug, Default)]
pub(super) struct Registration {
    /// What the next status write says of it.
    known: Registered,
    /// The API may have taken the one that was announced, though nobody knows.
    is_uncertain: bool,
    posting: Option<Posting>,
    retry: Retry,
    failure: Option<Refusal>,
}

#[derive(Debug)]
struct Posting {
    /// Whether it was uncertain before.
    was_uncertain: bool,
}

impl Registration {
    /// What a status remembers. A rejection by another API is not part of it.
    pub(super) fn remembered(known: Registered) -> Self {
        let failure = known.rejected.as_ref().map(Refusal::of);
        let is_uncertain = !known.sending_hash.is_empty();
        let mut registration = Self { known, is_uncertain, failure, ..Self::default() };
        if is_uncertain {
            registration.known.hash.clear();
        }
        registration
    }

    /// What the next status write says of it.
    pub(super) fn known(&self) -> &Registered {
        &self.known
    }

    /// Whether a body was acknowledged last.
    pub(super) fn is_acknowledged(&self, hash: &str) -> bool {
        self.known.hash == hash
    }

    /// Why the last attempt has failed.
    pub(super) fn failure(&self) -> Option<&Refusal> {
        self.failure.as_ref()
    }

    /// Another body is wanted: if what was rejected returns, it is tried again. Returns whether the status changes.
    pub(super) fn wanted(&mut self, hash: &str) -> bool {
        let is_over = self.known.rejected.take_if(|rejected| rejected.hash != hash).is_some();
        if is_over {
            (self.retry, self.failure) = Default::default();
        }
        is_over
    }

    /// Forgets a rejection, so that the body is sent again under a new key. Returns whether there was one.
    pub(super) fn send_again(&mut self) -> bool {
        let is_rejected = self.known.rejected.take().is_some();
        if is_rejected {
            self.failure = None;
            self.known.sent += 1;
        }
        is_rejected
    }

    /// Notes the body that is about to be posted, if it is. Returns whether the status changes.
    pub(super) fn announce(&mut self, hash: &str, wake: &mut Wake, now: Instant) -> bool {
        if self.posting.is_some() {
            return false;
        }
        if !self.is_needed(hash) {
            // What the API may have taken is noted until another one is acknowledged.
            return !self.is_uncertain && !std::mem::take(&mut self.known.sending_hash).is_empty();
        }
        if self.known.sending_hash == hash || !self.retry.is_due(now, wake) {
            return false;
        }
        if std::mem::take(&mut self.is_uncertain) {
            // If that one returns, it is another post, which needs another key.
            self.known.sent += 1;
        }
        hash.clone_into(&mut self.known.sending_hash);
        true
    }

    /// Begins to post a body if that is due and the status that was written announces it. Returns how many were acknowledged before.
    pub(super) fn post(&mut self, hash: &str, written: &Registered, wake: &mut Wake, now: Instant) -> Option<u64> {
        let is_announced = self.known.sending_hash == hash && self.known == *written;
        if self.posting.is_some() || !self.is_needed(hash) || !is_announced || !self.retry.is_due(now, wake) {
            return None;
        }
        self.posting = Some(Posting { was_uncertain: std::mem::replace(&mut self.is_uncertain, true) });
        Some(self.known.sent)
    }

    /// A post has ended. Returns whether the status changes.
    pub(super) fn answered(
        &mut self,
        outcome: Result<(), Refusal>,
        target: &str,
        now: Instant,
        random: &mut StdRng,
    ) -> bool {
        let Some(posting) = self.posting.take() else { return false };
        let before = self.known.clone();
        if outcome.as_ref().is_err_and(Refusal::may_have_arrived) {
            // The API may not have the one any more that it has acknowledged.
            self.known.hash.clear();
        } else {
            self.is_uncertain = posting.was_uncertain;
        }
        match &outcome {
            Ok(()) => {
                self.is_uncertain = false;
                self.known.hash = std::mem::take(&mut self.known.sending_hash);
                self.known.sent += 1;
                self.known.rejected = None;
                self.retry = Retry::default();
            }
            Err(Refusal::Later { after, .. }) => self.retry.failed(capped(*after), now, random),
            Err(Refusal::Rejected { reason }) => {
                let hash = self.known.sending_hash.clone();
                self.known.rejected = Some(Rejection { hash, reason: reason.clone(), target: target.to_owned() });
            }
            Err(Refusal::NotSent | Refusal::Interrupted) => self.retry.pause(now),
            Err(Refusal::Unauthorized) => {}
        }
        if matches!(outcome, Err(Refusal::Rejected { .. } | Refusal::Unauthorized)) && !self.is_uncertain {
            // The API has not taken it, and it is not sent again before it is announced.
            self.known.sending_hash.clear();
        }
        self.failure = outcome.err().filter(Refusal::is_failure);
        self.known != before
    }

    fn is_needed(&self, hash: &str) -> bool {
        !self.is_acknowledged(hash) && self.known.rejected.as_ref().is_none_or(|rejected| rejected.hash != hash)
    }
}

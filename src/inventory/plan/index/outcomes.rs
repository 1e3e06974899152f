//! How steps have ended.

use std::sync::Arc;
use std::time::Duration;

use super::release::Known;
use super::steps::PostKey;
use super::{Index, Moment, Refusal};
use crate::cluster::ObjectKey;
use crate::inventory::plan::release::{Recorded, Undecodable};
use crate::inventory::plan::status::Rejection;

/// The longest time that the API may ask to wait.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// Why a record was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) enum ReadFailure {
    Undecodable(Undecodable),
    /// It has changed meanwhile, or is gone; the watch will show that.
    Changed,
    /// It is of a release in another namespace, which is observed again with it.
    Elsewhere,
    /// The cluster did not answer as it should.
    Cluster(String),
}

impl Index {
    /// A record was read.
    pub(in crate::inventory) fn read(
        &mut self,
        key: &ObjectKey,
        version: &Arc<str>,
        outcome: Result<Recorded, ReadFailure>,
        now: Moment,
    ) {
        self.reads = self.reads.saturating_sub(1);
        let Some(release) = self.releases.get_mut(key) else { return };
        release.is_reading = false;
        let Some(newest) = release.newest.as_ref().filter(|newest| newest.version == *version) else { return };
        match outcome {
            Ok(Recorded { facts, unlabelled, .. }) => {
                let (version, revision) = (Arc::clone(version), newest.number);
                release.known = Some(Known { version, revision, facts, unlabelled });
                release.unread = None;
                (release.reading, release.unreadable) = Default::default();
            }
            Err(ReadFailure::Undecodable(undecodable)) => {
                release.undecodable = Some((Arc::clone(version), undecodable));
                release.unread = None;
            }
            Err(ReadFailure::Elsewhere) => release.unread = None,
            Err(ReadFailure::Changed) => release.reading.failed(None, now.at, &mut self.random),
            Err(ReadFailure::Cluster(reason)) => {
                release.unreadable = Some(reason);
                release.reading.failed(None, now.at, &mut self.random);
            }
        }
    }

    /// A status was written, or not.
    pub(in crate::inventory) fn written(&mut self, outcome: Result<(), String>, now: Moment) {
        let writing = self.status.writing.take();
        match outcome {
            Ok(()) => {
                self.status.written = writing.or(self.status.written.take());
                self.status.retry = super::Retry::default();
                self.status.failure = None;
                self.status.ended = Some(now.at);
            }
            Err(failure) => {
                self.status.retry.failed(None, now.at, &mut self.random);
                self.status.failure = Some(failure);
                self.status.is_dirty = true;
            }
        }
    }

    /// A body was acknowledged, or not.
    pub(in crate::inventory) fn answered(&mut self, key: &PostKey, outcome: Result<(), Refusal>, now: Moment) {
        self.posts = self.posts.saturating_sub(1);
        if outcome == Err(Refusal::Unauthorized) {
            self.is_unauthorized = true;
        }
        match key {
            PostKey::Registration => {
                let target = &self.settings.target;
                self.status.is_dirty |= self.registration.answered(outcome, target, now.at, &mut self.random);
            }
            PostKey::Release(key) => self.release_answered(key, outcome, now),
        }
    }

    fn release_answered(&mut self, key: &ObjectKey, outcome: Result<(), Refusal>, now: Moment) {
        let Some(release) = self.releases.get_mut(key) else { return };
        let Some(posting) = release.posting.take() else { return };
        release.failure = None;
        if outcome.as_ref().is_err_and(|refusal| !refusal.may_have_arrived()) {
            // What is unknown of an earlier attempt stays so.
            release.is_uncertain = posting.was_uncertain;
        }
        match outcome {
            Ok(()) => {
                self.status.is_dirty = true;
                if release.acknowledge(posting, now) {
                    self.releases.remove(key);
                }
                return;
            }
            Err(Refusal::Later { after, .. }) => {
                release.delivery.failed(capped(after), now.at, &mut self.random);
            }
            Err(Refusal::Rejected { ref reason }) => {
                let hash = posting.wanted.body.hash.clone();
                let target = self.settings.target.clone();
                self.status.is_dirty |= release.reject(Rejection { hash, reason: reason.clone(), target });
                if release.is_unknown_to_the_api() {
                    // It does not want to know that it is gone, and never took it.
                    self.releases.remove(key);
                    return;
                }
            }
            Err(Refusal::Unauthorized) => self.status.is_dirty |= release.withdraw(),
            Err(Refusal::NotSent | Refusal::Interrupted) => release.delivery.pause(now.at),
        }
        if let Some(wanted) = &mut release.wanted {
            // It has waited since its first change.
            wanted.since = posting.wanted.since;
        }
        release.failure = outcome.err().filter(Refusal::is_failure);
    }
}

pub(super) fn capped(after: Option<Duration>) -> Option<Duration> {
    after.map(|after| after.min(LONGEST_WAIT))
}

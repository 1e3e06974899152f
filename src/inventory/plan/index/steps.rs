//! What is to be done next.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::release::{Posting, Release};
use super::{Index, Moment, Refusal, Wake, clock};
use crate::cluster::ObjectKey;
use crate::inventory::config::Wire;
use crate::inventory::plan::body::idempotency_key;
use crate::inventory::plan::status::{Condition, Written, replacing};

/// Posts at once.
const POSTS: usize = 4;
/// Records that are read at once: each may unpack to 64 MiB.
const READS: usize = 2;
/// A status in which only conditions have changed is written at most so often: what they say of a broken API changes with every try.
const CONDITIONS_EVERY: Duration = Duration::from_secs(10);

/// Whether the caches can be relied on.
#[derive(Clone, Copy, Debug)]
pub(in crate::inventory) enum View<'o> {
    Complete,
    /// A list is in progress.
    Listing,
    /// They can't be, or are not to be, complete.
    Obstructed(&'o Obstacle),
}

/// Why nothing is collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Obstacle {
    /// `Stopped`, `NotListed`.
    pub(in crate::inventory) reason: &'static str,
    pub(in crate::inventory) message: String,
}

/// What a post is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::inventory) enum PostKey {
    /// The cluster.
    Registration,
    Release(ObjectKey),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Post {
    pub(in crate::inventory) key: PostKey,
    /// The path behind the API's URL.
    pub(in crate::inventory) path: String,
    /// JSON.
    pub(in crate::inventory) body: String,
    pub(in crate::inventory) idempotency_key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) enum IndexStep {
    /// Reads the record of a release.
    Read {
        key: ObjectKey,
        /// The object that stores it.
        object: ObjectKey,
        /// The version that is to be read.
        version: Arc<str>,
    },
    /// Writes the project's status by this JSON patch.
    Write(Value),
    Post(Post),
}

/// What is to be done now, and when to ask again if nothing happens.
#[derive(Debug, Default)]
pub(in crate::inventory) struct Next {
    pub(in crate::inventory) steps: Vec<IndexStep>,
    /// When something else is due.
    pub(in crate::inventory) until: Option<Instant>,
    /// Releases that have to be observed again: there are now more, or fewer, than are reported, or Helm's work has lasted for too long.
    pub(in crate::inventory) observe: Vec<ObjectKey>,
}

impl Index {
    /// What is to be done now.
    pub(in crate::inventory) fn next(&mut self, view: View<'_>, now: Moment) -> Next {
        let mut next = Next::default();
        let mut wake = Wake::default();
        let obstacle = match view {
            View::Listing => return next,
            View::Obstructed(obstacle) => Some(obstacle),
            View::Complete => None,
        };
        if obstacle.is_none() {
            next.observe = self.limit_reported();
            next.observe.extend(self.stuck(&mut wake, now.at));
            if !next.observe.is_empty() {
                return next;
            }
            self.begin_reads(&mut next.steps, &mut wake, now.at);
            self.announce(&mut wake, now.at);
        }
        // Ids are in the status before they are sent.
        next.steps.extend(self.begin_write(obstacle, &mut wake, now).map(IndexStep::Write));
        if obstacle.is_none() && !self.is_unauthorized {
            self.begin_posts(&mut next.steps, &mut wake, now.at);
        }
        next.until = wake.0;
        next
    }

    /// The releases of which Helm's work has just lasted for too long.
    fn stuck(&self, wake: &mut Wake, now: Instant) -> Vec<ObjectKey> {
        let mut stuck = Vec::new();
        for (key, work) in self.releases.iter().filter_map(|(key, release)| Some((key, release.work.as_ref()?))) {
            match work.stuck_at(self.settings.helm_timeout) {
                Some(due) if due <= now => stuck.push(key.clone()),
                Some(due) => wake.at(due),
                None => {}
            }
        }
        stuck
    }

    /// The last step of a process: what was acknowledged is written, and nothing else begins. A write that fails is not repeated: the next
    /// process sends under the same key what it does not find there.
    pub(in crate::inventory) fn last_write(&mut self, now: Moment) -> Option<Value> {
        let is_due = self.status.retry.is_due(now.at, &mut Wake::default());
        if !self.status.is_dirty || self.status.writing.is_some() || !is_due {
            return None;
        }
        let conditions = self.status.written.as_ref().map(|written| written.conditions.clone()).unwrap_or_default();
        self.write(self.status_with(conditions), now)
    }

    fn begin_reads(&mut self, steps: &mut Vec<IndexStep>, wake: &mut Wake, now: Instant) {
        for (key, release) in &mut self.releases {
            let Some(unread) = release.unread.as_ref().filter(|_| !release.is_reading) else { continue };
            if !release.reading.is_due(now, wake) {
                continue;
            }
            if self.reads >= READS {
                return;
            }
            let (object, version) = (unread.object.clone(), Arc::clone(&unread.version));
            steps.push(IndexStep::Read { key: key.clone(), object, version });
            release.is_reading = true;
            self.reads += 1;
        }
    }

    /// Whether the registration was acknowledged, or is not needed.
    fn is_registered(&self) -> bool {
        self.settings.wire == Wire::Single || self.registration.is_acknowledged(&self.registration_body().hash)
    }

    /// Notes what is about to be sent, for the status: it has to be there before.
    fn announce(&mut self, wake: &mut Wake, now: Instant) {
        if self.is_unauthorized {
            return;
        }
        if self.settings.wire == Wire::Instances {
            let hash = self.registration_body().hash;
            self.status.is_dirty |= self.registration.announce(&hash, wake, now);
            if !self.registration.is_acknowledged(&hash) {
                return;
            }
        }
        for release in self.releases.values_mut().filter(|release| release.is_sendable()) {
            let Some(due) = release.due(self.settings.delay) else { continue };
            if due > now {
                wake.at(due);
            } else if release.delivery.is_due(now, wake) {
                self.status.is_dirty |= release.announce();
            }
        }
    }

    fn begin_write(&mut self, obstacle: Option<&Obstacle>, wake: &mut Wake, now: Moment) -> Option<Value> {
        if self.status.writing.is_some() || !self.status.retry.is_due(now.at, wake) {
            return None;
        }
        let conditions = self.conditions(obstacle);
        if !self.status.is_dirty {
            let written = self.status.written.as_ref()?;
            if written.conditions == conditions {
                return None;
            }
            let is_other = |one: &Condition, other: &Condition| {
                (one.kind, one.is_true, &one.reason) != (other.kind, other.is_true, &other.reason)
            };
            let has_turned = written.conditions.len() != conditions.len()
                || written.conditions.iter().zip(&conditions).any(|(one, other)| is_other(one, other));
            let due = self.status.ended.and_then(|ended| ended.checked_add(CONDITIONS_EVERY));
            if let Some(due) = due.filter(|due| *due > now.at && !has_turned) {
                wake.at(due);
                return None;
            }
        }
        self.write(self.status_with(conditions), now)
    }

    fn status_with(&self, conditions: Vec<Condition>) -> Written {
        Written {
            cluster_id: self.cluster_id.clone(),
            registered: self.registration.known().clone(),
            entries: self.stored_entries(),
            conditions,
        }
    }

    fn write(&mut self, status: Written, now: Moment) -> Option<Value> {
        self.status.is_dirty = false;
        if self.status.written.as_ref() == Some(&status) {
            return None;
        }
        let patch = replacing(&self.project.uid, &status.to_json(now.wall));
        self.status.writing = Some(status);
        Some(patch)
    }

    fn conditions(&self, obstacle: Option<&Obstacle>) -> Vec<Condition> {
        let mut conditions = vec![match obstacle {
            None => Condition::plain("Ready", true),
            Some(obstacle) => Condition::because("Ready", false, obstacle.reason, &obstacle.message),
        }];
        conditions.push(match self.undelivered() {
            None => Condition::plain("Delivered", true),
            Some((reason, message)) => Condition::because("Delivered", false, &reason, &message),
        });
        conditions.extend(self.too_many());
        conditions
    }

    /// Why releases are not delivered, and how many wait.
    pub(super) fn undelivered(&self) -> Option<(String, String)> {
        // While Helm is at work, it is not the API that a release waits for.
        let is_refused =
            |release: &&Release| release.wanted.is_some() && release.failure.is_some() && !release.stands();
        let refused = self.releases.values().filter(is_refused);
        let later = |release: &&Release| !matches!(release.failure, Some(Refusal::Rejected { .. }));
        let waiting: Vec<&Release> = refused.clone().filter(later).collect();
        let registration = self.registration.failure().filter(|_| !self.is_registered());
        let since = waiting.iter().filter_map(|release| release.wanted.as_ref()).map(|wanted| wanted.since.wall).min();
        let waits = match (waiting.len(), since) {
            (0, _) | (_, None) => None,
            (1, Some(since)) => Some(format!("1 release waits since {}", clock(since))),
            (count, Some(since)) => Some(format!("{count} releases wait since {}", clock(since))),
        };
        if self.is_unauthorized {
            let what = if self.is_registered() { "what is to be sent waits" } else { "the registration waits" };
            let message = waits.unwrap_or_else(|| what.to_owned());
            return Some(("Unauthorized".to_owned(), format!("{message} for another token")));
        }
        let reason = |refusal: &Refusal| match refusal {
            Refusal::Later { reason, .. } | Refusal::Rejected { reason } => reason.clone(),
            Refusal::Unauthorized | Refusal::NotSent | Refusal::Interrupted => "Unauthorized".to_owned(),
        };
        if let Some(refusal) = registration {
            let what = if matches!(refusal, Refusal::Rejected { .. }) { "is rejected" } else { "waits" };
            return Some((reason(refusal), format!("the registration {what}")));
        }
        if let (Some(message), Some(first)) = (waits, waiting.iter().find_map(|release| release.failure.as_ref())) {
            return Some((reason(first), message));
        }
        let rejected = refused.count();
        (rejected > 0).then(|| {
            let what = if rejected == 1 { "1 release is".to_owned() } else { format!("{rejected} releases are") };
            ("Rejected".to_owned(), format!("{what} rejected until it changes"))
        })
    }

    fn begin_posts(&mut self, steps: &mut Vec<IndexStep>, wake: &mut Wake, now: Instant) {
        let Some(written) = self.status.written.as_ref().filter(|written| written.cluster_id == self.cluster_id) else {
            return;
        };
        if self.settings.wire == Wire::Instances {
            let body = self.registration_body();
            if !self.registration.is_acknowledged(&body.hash) {
                if self.posts < POSTS
                    && let Some(sent) = self.registration.post(&body.hash, &written.registered, wake, now)
                {
                    let idempotency_key = idempotency_key(&self.cluster_id, &body.hash, sent);
                    let path = format!("/clusters/{}/register", self.cluster_id);
                    self.posts += 1;
                    steps.push(IndexStep::Post(Post {
                        key: PostKey::Registration,
                        path,
                        body: body.text,
                        idempotency_key,
                    }));
                }
                return;
            }
        }
        let path = if self.settings.wire == Wire::Instances { "/apps" } else { "" };
        for (key, release) in &mut self.releases {
            let is_due = release.due(self.settings.delay).is_some_and(|due| due <= now);
            // The status has what is announced; when something else is due is known from there.
            if !is_due || !is_announced(key, release, written) || !release.delivery.is_due(now, wake) {
                continue;
            }
            if self.posts >= POSTS {
                return;
            }
            let (Some(wanted), Some(entry)) = (release.wanted.clone(), &release.entry) else { continue };
            let idempotency_key = idempotency_key(&entry.app_id, &wanted.body.hash, entry.sent);
            let post = Post {
                key: PostKey::Release(key.clone()),
                path: path.to_owned(),
                body: wanted.body.text.clone(),
                idempotency_key,
            };
            let was_uncertain = std::mem::replace(&mut release.is_uncertain, true);
            release.posting = Some(Posting { wanted, was_uncertain, changed: None });
            self.posts += 1;
            steps.push(IndexStep::Post(post));
        }
    }
}

/// Whether the status holds what is about to be sent, with its id and what was acknowledged before: after a restart the next body
/// would have the key of another one.
fn is_announced(key: &ObjectKey, release: &Release, written: &Written) -> bool {
    let (Some(wanted), Some(entry)) = (&release.wanted, &release.entry) else { return false };
    let is_written = written.entries.get(key).is_some_and(|written| {
        (&written.app_id, written.is_given, written.sent, &written.sent_hash, &written.sending_hash)
            == (&entry.app_id, entry.is_given, entry.sent, &entry.sent_hash, &wanted.body.hash)
    });
    is_written && release.is_sendable()
}

//! One release: what was acknowledged, what the cluster shows, and what is to be sent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Moment, Refusal, Retry, clock};
use crate::cluster::ObjectKey;
use crate::inventory::plan::body::{Body, Parts};
use crate::inventory::plan::release::{Facts, Undecodable};
use crate::inventory::plan::revision::{Revision, Stage};
use crate::inventory::plan::status::{Entry, Rejection};

/// Why a release is not reported though it could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excluded {
    /// There are as many as can be reported before it.
    MaxReleases,
    /// The status has no room for it.
    StatusSize,
}

impl Excluded {
    pub(super) fn explanation(self) -> &'static str {
        match self {
            Self::MaxReleases => "there are more releases than can be reported",
            Self::StatusSize => "the project's status has no room for it",
        }
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The version of the object that stores it.
    pub(super) version: Arc<str>,
    pub(super) revision: u64,
    pub(super) facts: Facts,
    /// What its manifest lists of objects that do not name the release themselves.
    pub(super) unlabelled: BTreeSet<Arc<str>>,
}

impl Known {
    /// The version as the status holds it: none where the manifest is needed, so that the record is read again after a restart.
    pub(super) fn stored_version(&self) -> String {
        if self.unlabelled.is_empty() { self.version.to_string() } else { String::new() }
    }
}

/// A body that is to be sent.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) body: Body,
    /// What the status says of it when it is acknowledged.
    pub(super) told: Known,
    pub(super) stage: Stage,
    /// When the release first differed from what was acknowledged.
    pub(super) since: Moment,
}

/// A body that is being sent.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) wanted: Wanted,
    /// Before this attempt, an earlier one of the same body may have been accepted.
    pub(super) was_uncertain: bool,
    /// The release has changed again since: it will be sent again after the delay.
    pub(super) changed: Option<Moment>,
}

/// A revision that Helm is working on, or was working on when it was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    version: Arc<str>,
    number: u64,
    /// When it was seen first.
    since: Moment,
    /// It has lasted longer than Helm should take: nobody can tell from the record whether it still runs.
    is_stuck: bool,
}

impl Work {
    /// The work that the newest revision shows, after what was known of it.
    pub(super) fn of(newest: Option<&Revision>, before: Option<Self>, timeout: Duration, now: Moment) -> Option<Self> {
        let newest = newest.filter(|newest| newest.stage == Stage::UnderWay)?;
        let known = before.filter(|before| before.version == newest.version);
        let since = known.map_or(now, |known| known.since);
        let is_stuck = now.at.saturating_duration_since(since.at) >= timeout;
        Some(Self { version: Arc::clone(&newest.version), number: newest.number, since, is_stuck })
    }

    /// When it has lasted for too long, unless that is known.
    pub(super) fn stuck_at(&self, timeout: Duration) -> Option<Instant> {
        if self.is_stuck { None } else { self.since.at.checked_add(timeout) }
    }
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each told by its name")]
pub(super) struct Release {
    /// What the status holds; none before the release was reported first.
    pub(super) entry: Option<Entry>,
    /// The newest revision; none if there is no revision, or none was observed yet.
    pub(super) newest: Option<Revision>,
    /// The record that was read last.
    pub(super) known: Option<Known>,
    /// The record that is to be read.
    pub(super) unread: Option<Revision>,
    pub(super) is_reading: bool,
    pub(super) reading: Retry,
    /// Why the record could not be read; it will be tried again.
    pub(super) unreadable: Option<String>,
    /// The version of the object that can't be decoded.
    pub(super) undecodable: Option<(Arc<str>, Undecodable)>,
    /// The Secret `uuid` has no usable id.
    pub(super) has_no_id: bool,
    /// Why it is not reported, if there are too many releases.
    pub(super) excluded: Option<Excluded>,
    /// Helm is working on a newer revision: the last report stands until that ends.
    pub(super) is_under_way: bool,
    /// What Helm is working on.
    pub(super) work: Option<Work>,
    /// It has no revision any more, or its history is all that is left of it.
    pub(super) is_gone: bool,
    pub(super) wanted: Option<Wanted>,
    pub(super) posting: Option<Posting>,
    /// The body with `sending_hash` may have been accepted.
    pub(super) is_uncertain: bool,
    pub(super) delivery: Retry,
    pub(super) failure: Option<Refusal>,
    /// The parts of what was acknowledged last, as far as this process knows.
    pub(super) parts: Option<Parts>,
    /// When the API acknowledged the last body.
    pub(super) told_at: Option<Moment>,
}

impl Release {
    /// A release that a status remembers.
    pub(super) fn remembered(entry: Entry) -> Self {
        let known = Known {
            version: entry.version.as_str().into(),
            revision: entry.revision,
            facts: entry.facts.clone(),
            unlabelled: BTreeSet::new(),
        };
        let is_uncertain = !entry.sending_hash.is_empty();
        let failure = entry.rejected.as_ref().map(Refusal::of);
        Self { known: Some(known), entry: Some(entry), is_uncertain, failure, ..Self::default() }
    }

    /// Whether Helm has worked on a revision for longer than it should.
    pub(super) fn is_stuck(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.is_stuck)
    }

    /// That Helm's work is stuck, in words, with what an operator can do.
    pub(super) fn interrupted(&self) -> Option<String> {
        let work = self.work.as_ref().filter(|work| work.is_stuck)?;
        Some(format!(
            "an operation of Helm on revision {} has been pending since {} or longer: if no Helm runs any more, roll the release back or uninstall it",
            work.number,
            clock(work.since.wall)
        ))
    }

    /// Whether the API has certainly taken nothing of it, and is not asked to right now.
    pub(super) fn was_never_sent(&self) -> bool {
        self.posting.is_none() && self.is_unknown_to_the_api()
    }

    /// Whether nothing is known or under way, so that it need not be kept.
    pub(super) fn is_idle(&self) -> bool {
        self.entry.is_none() && self.posting.is_none() && !self.is_reading
    }

    /// Whether a body differs from what was acknowledged.
    pub(super) fn differs(&self, body: &Body) -> bool {
        self.is_uncertain || self.entry.as_ref().is_none_or(|entry| entry.sent_hash != body.hash)
    }

    /// Takes a body that is to be sent, or that nothing is.
    /// Returns whether the entry has changed.
    pub(super) fn want(&mut self, body: Option<(Body, Known, Stage)>, now: Moment) -> bool {
        let mut has_changed = false;
        let is_rejected = body.as_ref().is_some_and(|(body, _, _)| self.is_rejected(body));
        if let Some(entry) = &mut self.entry {
            if !is_rejected && entry.rejected.take().is_some() {
                // The content has changed: if what was rejected returns, it is tried again. If another body follows, that is written
                // with its announcement.
                has_changed = body.is_none();
                self.failure = None;
            }
            if body.is_none() && self.posting.is_none() {
                // It was announced, and never sent.
                has_changed |= !entry.sending_hash.is_empty();
                entry.sending_hash.clear();
            }
        }
        if let Some(posting) = &mut self.posting {
            let differs = body.as_ref().is_none_or(|(body, _, _)| *body != posting.wanted.body);
            if differs {
                posting.changed.get_or_insert(now);
            }
        }
        self.wanted = body.map(|(body, told, stage)| {
            let since = match (&self.wanted, &self.posting) {
                (_, Some(Posting { changed: Some(changed), .. })) => *changed,
                (Some(wanted), _) => wanted.since,
                (None, _) => now,
            };
            Wanted { body, told, stage, since }
        });
        has_changed
    }

    /// Forgets what was acknowledged, announced and rejected, so that the same body is sent again, under a new key. Returns whether anything
    /// was to be forgotten.
    pub(super) fn send_again(&mut self) -> bool {
        if self.excluded.is_some() {
            return false;
        }
        let Some(entry) = &mut self.entry else { return false };
        let was_rejected = entry.rejected.take().is_some();
        if was_rejected || !entry.sending_hash.is_empty() {
            entry.sending_hash.clear();
            entry.sent += 1;
        } else if entry.sent_hash.is_empty() {
            return false;
        }
        entry.sent_hash.clear();
        self.is_uncertain = false;
        (self.delivery, self.failure) = Default::default();
        true
    }

    /// Takes over what was acknowledged. Returns whether the release can be forgotten.
    pub(super) fn acknowledge(&mut self, posting: Posting, now: Moment) -> bool {
        let Posting { wanted: Wanted { body, told, stage, .. }, .. } = posting;
        self.delivery = Retry::default();
        self.failure = None;
        self.told_at = Some(now);
        self.parts = Some(body.parts);
        self.is_uncertain = false;
        if let Some(entry) = &mut self.entry {
            entry.revision = told.revision;
            entry.version = told.stored_version();
            entry.facts = told.facts;
            entry.stage = stage;
            entry.sent_hash.clone_from(&body.hash);
            entry.sending_hash.clear();
            entry.rejected = None;
            entry.sent += 1;
        }
        if self.wanted.as_ref().is_some_and(|wanted| wanted.body == body) {
            self.wanted = None;
        }
        stage == Stage::Uninstalled && self.wanted.is_none() && self.is_gone
    }

    /// Whether it is gone, and the API has certainly never taken anything of it.
    pub(super) fn is_unknown_to_the_api(&self) -> bool {
        self.is_gone && !self.is_uncertain && self.entry.as_ref().is_some_and(|entry| entry.sent == 0)
    }

    /// Whether all has been said of it: that it is uninstalled was acknowledged while Helm was installing it anew, in vain.
    pub(super) fn is_told_to_be_gone(&self, stage: Stage) -> bool {
        stage == Stage::Uninstalled && self.is_gone && self.wanted.is_none() && self.posting.is_none()
    }

    /// Notes in the entry what is about to be sent. Returns whether that was news.
    pub(super) fn announce(&mut self) -> bool {
        let (Some(entry), Some(wanted)) = (&mut self.entry, &self.wanted) else { return false };
        if entry.sending_hash == wanted.body.hash {
            return false;
        }
        if std::mem::take(&mut self.is_uncertain) {
            // What may have been accepted is replaced: if it returns, that is another post, which needs another key. And so is what was
            // acknowledged before, since the API may not have it any more.
            entry.sent += 1;
            entry.sent_hash.clear();
        }
        entry.sending_hash.clone_from(&wanted.body.hash);
        true
    }

    /// The API has rejected a body for good. Returns whether the entry has changed.
    pub(super) fn reject(&mut self, rejection: Rejection) -> bool {
        let Some(entry) = &mut self.entry else { return false };
        entry.rejected = Some(rejection);
        self.withdraw();
        true
    }

    /// The API has not taken the body that was announced, and it is not repeated for now. Unless an earlier attempt may have arrived, a
    /// process that begins with the status need not consider that it might know it. Returns whether the entry has changed.
    pub(super) fn withdraw(&mut self) -> bool {
        let Some(entry) = self.entry.as_mut().filter(|_| !self.is_uncertain) else { return false };
        let was_announced = !entry.sending_hash.is_empty();
        entry.sending_hash.clear();
        was_announced
    }

    fn is_rejected(&self, body: &Body) -> bool {
        let rejected = self.entry.as_ref().and_then(|entry| entry.rejected.as_ref());
        rejected.is_some_and(|rejected| rejected.hash == body.hash)
    }

    /// Whether the body has to wait until Helm has ended its work. That a release is uninstalled is told all the same.
    pub(super) fn stands(&self) -> bool {
        self.is_under_way && self.wanted.as_ref().is_some_and(|wanted| wanted.stage != Stage::Uninstalled)
    }

    /// Whether a body is to be sent, and nothing but time and the status keeps it from that.
    pub(super) fn is_sendable(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| !self.is_rejected(&wanted.body))
            && !self.stands()
            && self.posting.is_none()
            && self.unread.is_none()
            && !self.has_no_id
    }

    /// When the body that is to be sent may be sent, by the delay.
    pub(super) fn due(&self, delay: Duration) -> Option<Instant> {
        self.wanted.as_ref()?.since.at.checked_add(delay)
    }
}

/// The first condition that keeps a release from being sent, in words.
pub(super) fn waits_for(key: &ObjectKey, release: &Release) -> Option<String> {
    if let Some((_, undecodable)) = &release.undecodable {
        return Some(undecodable.to_string());
    }
    if let Some(reason) = &release.unreadable {
        return Some(reason.clone());
    }
    if release.has_no_id {
        return Some(format!("the Secret uuid in namespace {} has no usable id", key.namespace));
    }
    if release.stands() {
        return Some("Helm is working on a newer revision".to_owned());
    }
    release.excluded.map(|why| why.explanation().to_owned())
}

//! What the cluster shows of a release.

use std::collections::BTreeSet;

use super::release::{Known, Release, Work};
use super::{Index, Moment};
use crate::cluster::ObjectKey;
use crate::inventory::plan::body::{Body, Told};
use crate::inventory::plan::contents::Contents;
use crate::inventory::plan::identity::GivenId;
use crate::inventory::plan::revision::{Revision, Revisions, Stage};
use crate::inventory::plan::status::Entry;

/// What the caches show of a release.
#[derive(Debug)]
pub(in crate::inventory) struct Seen {
    pub(in crate::inventory) revisions: Revisions,
    /// What the Secret `uuid` of its namespace says.
    pub(in crate::inventory) given: GivenId,
    /// What runs in it.
    pub(in crate::inventory) contents: Contents,
}

/// What follows from an observation of a release's revisions alone.
enum RevisionState {
    /// It is reported with this record.
    Reported(Known, Stage),
    /// Its last report stands.
    Unchanged,
    /// This record has to be read first.
    Unread(Revision),
    /// There is nothing to say of it, and never was.
    Unknown,
}

impl Index {
    /// Takes what the caches show of a release, and decides whether something is to be sent.
    pub(in crate::inventory) fn observe(&mut self, key: &ObjectKey, seen: Seen, now: Moment) {
        if self.is_denied(key, seen.revisions.newest.as_ref()) {
            self.forget(key);
            return;
        }
        let Seen { revisions: Revisions { newest, reported }, given, contents } = seen;
        let release = self.releases.entry(key.clone()).or_default();
        release.work = Work::of(newest.as_ref(), release.work.take(), self.settings.helm_timeout, now);
        // Nobody ends the work of a Helm that was killed: what runs is the revision before.
        let newest = if release.is_stuck() { reported.or(newest) } else { newest };
        let is_new = release.newest.as_ref().map(|known| &known.version) != newest.as_ref().map(|seen| &seen.version);
        release.newest = newest;
        release.is_gone = release.newest.as_ref().is_none_or(|newest| newest.stage == Stage::Uninstalled);
        if is_new {
            // A record that failed has changed.
            (release.reading, release.unreadable, release.undecodable) = Default::default();
        }
        release.unread = None;
        release.is_under_way = false;
        if release.is_gone {
            release.excluded = None;
        }
        // A release that is gone keeps its id, whatever the namespace has now.
        release.has_no_id = given == GivenId::Unusable && !release.is_gone;
        if release.excluded.is_some() {
            self.status.is_dirty |= release.set_aside();
            return;
        }
        let (told, stage) = match revision_state(release) {
            RevisionState::Reported(told, stage) => (told, stage),
            RevisionState::Unchanged => {
                release.is_under_way = true;
                return;
            }
            RevisionState::Unread(revision) => {
                release.unread = Some(revision).filter(|_| release.undecodable.is_none());
                return;
            }
            RevisionState::Unknown => {
                if release.is_idle() {
                    self.releases.remove(key);
                }
                return;
            }
        };
        if stage == Stage::Uninstalled && release.was_never_sent() {
            // The API need not be told of the end of what it has never seen.
            self.forget(key);
            return;
        }
        let contents = if stage == Stage::Uninstalled { Contents::default() } else { contents };
        let given = if stage == Stage::Uninstalled { GivenId::None } else { given };
        if release.has_no_id {
            return;
        }
        self.identify(key, &given, &told, stage);
        self.compare(key, told, stage, contents, now);
    }

    /// Whether a release is in a namespace that is denied, or was last stored in one.
    fn is_denied(&self, key: &ObjectKey, newest: Option<&Revision>) -> bool {
        let denied = &self.project.spec.deny_namespaces;
        let stored_in = || self.releases.get(key)?.entry.as_ref().map(|entry| entry.stored_in.as_str());
        denied.contains(&*key.namespace)
            || newest.is_none() && stored_in().is_some_and(|stored| denied.contains(stored))
    }

    /// Gives a release its id. It is in the status before anything is sent, and not earlier: with what is about to be sent.
    fn identify(&mut self, key: &ObjectKey, given: &GivenId, told: &Known, stage: Stage) {
        let new_id = self.releases.get(key).is_some_and(|release| release.entry.is_none()).then(|| self.new_id());
        let Some(release) = self.releases.get_mut(key) else { return };
        let entry = release.entry.get_or_insert_with(|| Entry {
            app_id: new_id.unwrap_or_default(),
            is_given: false,
            revision: told.revision,
            stage,
            facts: told.facts.clone(),
            version: told.stored_version(),
            stored_in: String::new(),
            sent_hash: String::new(),
            sent: 0,
            sending_hash: String::new(),
            rejected: None,
        });
        let is_given = match given {
            GivenId::Given(id) => {
                entry.app_id.clone_from(id);
                true
            }
            // Of a release that is gone, what was told stays true.
            GivenId::None | GivenId::Unusable => entry.is_given && stage == Stage::Uninstalled,
        };
        entry.is_given = is_given;
        if let Some(newest) = &release.newest {
            let stored_in = if newest.object.namespace == key.namespace { "" } else { &*newest.object.namespace };
            if entry.stored_in != stored_in {
                stored_in.clone_into(&mut entry.stored_in);
                self.status.is_dirty = true;
            }
        }
    }

    /// Compares a release with what was acknowledged.
    fn compare(&mut self, key: &ObjectKey, told: Known, stage: Stage, contents: Contents, now: Moment) {
        let body = self.body(key, &told, stage, contents);
        let Some(release) = self.releases.get_mut(key) else { return };
        let Some(body) = body else { return };
        let differs = release.differs(&body);
        let version = told.stored_version();
        let is_rewritten = |entry: &&mut Entry| entry.version != version || entry.facts != told.facts;
        if let Some(entry) = release.entry.as_mut().filter(|_| !differs).filter(is_rewritten) {
            // The record was written again and says the same: it need not be read after a restart. Or the status had no room for all
            // that it says.
            entry.version = version;
            entry.facts = told.facts.clone();
            self.status.is_dirty = true;
        }
        if !differs {
            release.parts = Some(body.parts);
        }
        self.status.is_dirty |= release.want(differs.then_some((body, told, stage)), now);
        if release.is_told_to_be_gone(stage) {
            self.releases.remove(key);
            self.status.is_dirty = true;
        }
    }

    fn body(&self, key: &ObjectKey, told: &Known, stage: Stage, contents: Contents) -> Option<Body> {
        let entry = self.releases.get(key)?.entry.as_ref()?;
        let of = Told {
            key,
            app_id: &entry.app_id,
            is_given: entry.is_given,
            revision: told.revision,
            stage,
            facts: &told.facts,
        };
        Some(self.settings.sender.release(&self.cluster_id, &of, contents))
    }

    /// Forgets a release without reporting it.
    fn forget(&mut self, key: &ObjectKey) {
        let forgotten = self.releases.remove(key);
        self.status.is_dirty |= forgotten.is_some_and(|release| release.entry.is_some());
    }
}

/// What the revisions of a release say.
fn revision_state(release: &Release) -> RevisionState {
    let known = release.known.clone();
    match (&release.newest, &release.entry) {
        (Some(newest), _) if newest.stage.is_reported() => match known {
            Some(known) if known.version == newest.version => RevisionState::Reported(known, newest.stage),
            _ => RevisionState::Unread(newest.clone()),
        },
        (Some(newest), Some(_)) if newest.stage == Stage::Uninstalled => match known {
            // Its status is all that has changed in it.
            Some(known) if known.revision == newest.number => {
                RevisionState::Reported(Known { version: newest.version.clone(), ..known }, Stage::Uninstalled)
            }
            _ => RevisionState::Unread(newest.clone()),
        },
        (None, Some(entry)) => {
            let told = known.unwrap_or_else(|| Known {
                version: entry.version.as_str().into(),
                revision: entry.revision,
                facts: entry.facts.clone(),
                unlabelled: BTreeSet::new(),
            });
            RevisionState::Reported(told, Stage::Uninstalled)
        }
        // Its history was kept, and it was forgotten or never told.
        (Some(Revision { stage: Stage::Uninstalled, .. }) | None, None) => RevisionState::Unknown,
        (Some(_), _) => RevisionState::Unchanged,
    }
}

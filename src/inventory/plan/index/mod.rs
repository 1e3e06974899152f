//! What is known of every release, and what is to be done next.
//!
//! Observations come in, with the time as a value; steps come out: records to read, a status to write, bodies to post. Whoever carries
//! them out reports how they ended. Of each release the index knows what was acknowledged ([`Entry`]), what the cluster shows, and
//! from the two whether something is to be sent:
//!
//! ```text
//!  labels of the newest revision ──▶ its record is read, if its version is new ──┐
//!  pods, services, claims, ingresses, Secret uuid ───────────────────────────────┴─▶ body ≠ acknowledged ─▶ delay ─▶ post
//! ```
//!
//! Nothing is posted before its ids, and what was acknowledged before, are in the project's status. So a process that was killed at any
//! moment repeats a post under the same key, or not at all.

mod limits;
mod observe;
mod outcomes;
mod registration;
mod release;
mod steps;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use super::body::{Body, Sender, target};
use super::identity::{new_app_id, new_cluster_id};
use super::project::Project;
use super::status::{Entry, Registered, Rejection, Remembered, Written};
use crate::actor::Backoff;
use crate::cluster::ObjectKey;
use crate::inventory::config::{InventoryConfig, Wire};
use limits::{MAX_RELEASES, STATUS_BUDGET};
pub(in crate::inventory) use observe::Seen;
pub(in crate::inventory) use outcomes::ReadFailure;
use registration::Registration;
use release::Release;
pub(in crate::inventory) use steps::{IndexStep, Obstacle, Post, PostKey, View};
pub(in crate::inventory) use summary::Summary;

/// Delays between two attempts, of posts, reads and status writes alike.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// The delay after an attempt that was not made: in the last second of a lease, no post begins.
const PAUSE: Duration = Duration::from_secs(1);

/// The settings of the section on which decisions depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Settings {
    /// From a release's first change to its post.
    pub(in crate::inventory) delay: Duration,
    /// How long an operation of Helm takes at most.
    pub(in crate::inventory) helm_timeout: Duration,
    pub(in crate::inventory) wire: Wire,
    /// The most releases that are reported.
    pub(in crate::inventory) max_releases: usize,
    /// The most bytes that releases may take in the status.
    pub(in crate::inventory) status_budget: usize,
    /// What every body says of its sender.
    pub(in crate::inventory) sender: Sender,
    /// Stands for the API and the wire: what one API has rejected, another one may take.
    pub(in crate::inventory) target: String,
}

impl Settings {
    pub(in crate::inventory) fn of(config: &InventoryConfig) -> Self {
        Self {
            delay: config.delay,
            helm_timeout: config.helm_timeout,
            wire: config.wire,
            max_releases: MAX_RELEASES,
            status_budget: STATUS_BUDGET,
            sender: Sender {
                email: config.email.clone(),
                org_id: config.org_id.clone(),
                context_name: config.context_name.clone(),
            },
            target: target(&config.api_url.uri().to_string(), config.wire == Wire::Single),
        }
    }
}

/// The time: for decisions, and as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Moment {
    /// For decisions.
    pub(in crate::inventory) at: Instant,
    /// As it is shown.
    pub(in crate::inventory) wall: jiff::Timestamp,
}

/// The time of the day.
fn clock(time: jiff::Timestamp) -> String {
    time.strftime("%H:%M:%S").to_string()
}

/// Why a body was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) enum Refusal {
    /// It is sent again, after the time that the API asks for.
    Later {
        /// `HTTP503`, `NoAnswer`.
        reason: String,
        /// How long the API asks to wait.
        after: Option<Duration>,
        /// Whether the API may have taken it all the same: its answer was lost, or is an error of its own.
        may_have_arrived: bool,
    },
    /// The token is not accepted, or there is none.
    Unauthorized,
    Rejected {
        /// `HTTP400`.
        reason: String,
    },
    /// It was not sent: the section's lease expires.
    NotSent,
    /// The section's lease has expired while it was being sent.
    Interrupted,
}

impl Refusal {
    /// What a status remembers.
    fn of(rejection: &Rejection) -> Self {
        Self::Rejected { reason: rejection.reason.clone() }
    }

    /// Whether the API may have taken the body.
    fn may_have_arrived(&self) -> bool {
        match self {
            Self::Later { may_have_arrived, .. } => *may_have_arrived,
            Self::Interrupted => true,
            Self::Unauthorized | Self::Rejected { .. } | Self::NotSent => false,
        }
    }

    /// Whether operators see it. A lease that expires is no failure.
    fn is_failure(&self) -> bool {
        !matches!(self, Self::NotSent | Self::Interrupted)
    }
}

/// Attempts that failed, and when the next one is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Retry {
    attempts: u32,
    until: Option<Instant>,
}

impl Retry {
    fn failed(&mut self, asked: Option<Duration>, now: Instant, random: &mut impl Rng) {
        let backoff = BACKOFF.delay(self.attempts, random);
        let delay = asked.map_or(backoff, |asked| asked.max(backoff));
        self.attempts = self.attempts.saturating_add(1);
        self.until = now.checked_add(delay);
    }

    /// Nothing was attempted: the next attempt waits a second, and is no repetition.
    fn pause(&mut self, now: Instant) {
        self.until = now.checked_add(PAUSE);
    }

    /// Whether an attempt is due; if not, `wake` learns when it is.
    fn is_due(&self, now: Instant, wake: &mut Wake) -> bool {
        match self.until {
            Some(until) if until > now => {
                wake.at(until);
                false
            }
            _ => true,
        }
    }
}

/// When something is due next.
#[derive(Clone, Copy, Debug, Default)]
struct Wake(Option<Instant>);

impl Wake {
    fn at(&mut self, due: Instant) {
        self.0 = Some(self.0.map_or(due, |earlier| earlier.min(due)));
    }
}

/// The project's status, as far as this process knows it.
#[derive(Debug, Default)]
struct StatusState {
    written: Option<Written>,
    writing: Option<Written>,
    /// When the last write ended.
    ended: Option<Instant>,
    /// More than conditions may have changed since the last write began.
    is_dirty: bool,
    retry: Retry,
    /// Why the last write failed.
    failure: Option<String>,
}

/// What is known of the project, the cluster and its releases.
#[derive(Debug)]
pub(in crate::inventory) struct Index {
    settings: Settings,
    project: Project,
    cluster_id: String,
    registration: Registration,
    releases: BTreeMap<ObjectKey, Release>,
    status: StatusState,
    /// The API has refused the token.
    is_unauthorized: bool,
    /// Posts under way, the registration's included.
    posts: usize,
    /// Records that are being read.
    reads: usize,
    random: StdRng,
}

impl Index {
    /// What a project's status remembers. The seed decides new ids and the jitter of delays.
    pub(in crate::inventory) fn new(settings: Settings, project: Project, seed: [u8; 32]) -> Self {
        let mut random = StdRng::from_seed(seed);
        let Remembered { cluster_id, registered, entries, conditions } = Remembered::of(&project.status());
        let stands = |rejection: &Rejection| rejection.target == settings.target;
        let written = cluster_id.clone().map(|cluster_id| Written {
            cluster_id,
            registered: registered.clone(),
            entries: entries.clone(),
            conditions,
        });
        let cluster_id = cluster_id.unwrap_or_else(|| new_cluster_id(&uuid(&mut random)));
        let registered = Registered { rejected: registered.rejected.filter(&stands), ..registered };
        let of_this_target = |entry: Entry| Entry { rejected: entry.rejected.clone().filter(&stands), ..entry };
        let releases =
            entries.into_iter().map(|(key, entry)| (key, Release::remembered(of_this_target(entry)))).collect();
        Self {
            settings,
            project,
            cluster_id,
            registration: Registration::remembered(registered),
            releases,
            status: StatusState { written, is_dirty: true, ..StatusState::default() },
            is_unauthorized: false,
            posts: 0,
            reads: 0,
            random,
        }
    }

    pub(in crate::inventory) fn project(&self) -> &Project {
        &self.project
    }

    /// The same project asks for something else, or its status has changed. Releases in namespaces that are now denied are forgotten;
    /// those in others have to be observed again.
    pub(in crate::inventory) fn project_changed(&mut self, project: Project) {
        self.project = project;
        let wanted = self.registration_body().hash;
        self.status.is_dirty |= self.registration.wanted(&wanted);
        let denied = &self.project.spec.deny_namespaces;
        let before = self.releases.len();
        self.releases.retain(|key, _| !denied.contains(&*key.namespace));
        self.status.is_dirty |= self.releases.len() != before;
    }

    /// Whether the status that was written last has a hash.
    pub(in crate::inventory) fn has_written_hashes(&self) -> bool {
        let written = self.status.written.as_ref();
        written.is_some_and(|written| written.entries.values().any(|entry| !entry.sent_hash.is_empty()))
    }

    /// Every release that is known.
    pub(in crate::inventory) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.releases.keys()
    }

    /// What the manifest of a release lists of objects that do not name it.
    pub(in crate::inventory) fn unlabelled(&self, key: &ObjectKey) -> BTreeSet<Arc<str>> {
        let known = self.releases.get(key).and_then(|release| release.known.as_ref());
        known.map(|known| known.unlabelled.clone()).unwrap_or_default()
    }

    /// The releases of a namespace whose manifests have this entry.
    pub(in crate::inventory) fn listing(&self, namespace: &str, entry: &str) -> impl Iterator<Item = &ObjectKey> {
        let lists = |release: &Release| release.known.as_ref().is_some_and(|known| known.unlabelled.contains(entry));
        self.releases
            .iter()
            .filter(move |(key, release)| *key.namespace == *namespace && lists(release))
            .map(|(key, _)| key)
    }

    /// Where releases are stored that are not stored in their own namespaces, and these, as the status remembers them.
    pub(in crate::inventory) fn stored_elsewhere(&self) -> Vec<(ObjectKey, Arc<str>)> {
        let of_entry = |(key, release): (&ObjectKey, &Release)| {
            let stored_in = release.entry.as_ref().map(|entry| entry.stored_in.as_str())?;
            let stored = ObjectKey::new(stored_in, Arc::clone(&key.name));
            (!stored_in.is_empty()).then(|| (stored, Arc::clone(&key.namespace)))
        };
        self.releases.iter().filter_map(of_entry).collect()
    }

    /// The cluster answers again, or has granted a permission: what failed there is tried again at once.
    pub(in crate::inventory) fn cluster_changed(&mut self) {
        self.status.retry = Retry::default();
        for release in self.releases.values_mut() {
            release.reading = Retry::default();
        }
    }

    /// The token has changed: what was refused because of it is sent again.
    pub(in crate::inventory) fn token_changed(&mut self) {
        self.is_unauthorized = false;
    }

    /// Sends a release again, or all of them and a registration that was rejected, under a new key. Returns how many.
    pub(in crate::inventory) fn resync(&mut self, only: Option<&ObjectKey>) -> usize {
        let mut count = usize::from(only.is_none() && self.registration.send_again());
        for (key, release) in &mut self.releases {
            let is_meant = only.is_none_or(|only| only == key);
            if is_meant && release.send_again() {
                count += 1;
            }
        }
        self.status.is_dirty |= count > 0;
        count
    }

    fn new_id(&mut self) -> String {
        new_app_id(&uuid(&mut self.random))
    }

    fn registration_body(&self) -> Body {
        self.settings.sender.registration(&self.project.spec)
    }
}

/// A new UUID of version 4.
fn uuid(random: &mut StdRng) -> String {
    uuid::Builder::from_random_bytes(random.random()).into_uuid().to_string()
}

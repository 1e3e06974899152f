//! What operators see of the releases.

use serde::Serialize;
use tokio::time::Instant;

use super::release::waits_for;
use super::{Index, Moment, Refusal, clock};
use crate::cluster::ObjectKey;

/// The most releases that are named.
const NAMED: usize = 100;

/// The releases in numbers, and those with a problem by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::inventory) struct Summary {
    /// How many are reported.
    pub(in crate::inventory) releases: usize,
    /// Of how many something is to be sent.
    pub(in crate::inventory) pending: usize,
    /// Since when the oldest of them has waited.
    #[serde(skip)]
    pub(in crate::inventory) oldest_since: Option<Instant>,
    /// How many bodies were rejected.
    pub(in crate::inventory) rejected: usize,
    /// How many can't be decoded.
    pub(in crate::inventory) undecodable: usize,
    /// Why bodies are not delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::inventory) undelivered: Option<String>,
    /// Why the status can't be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::inventory) status_failure: Option<String>,
    /// Releases with a problem, and what it is: at most 100.
    pub(in crate::inventory) problems: Vec<Problem>,
}

/// A release with a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::inventory) struct Problem {
    pub(in crate::inventory) release: ObjectKey,
    /// What keeps it from being told.
    pub(in crate::inventory) reason: String,
}

/// What is known of one release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Explanation(pub(in crate::inventory) Vec<String>);

impl Index {
    pub(in crate::inventory) fn summary(&self) -> Summary {
        let mut summary = Summary {
            undelivered: self.undelivered().map(|(reason, message)| format!("{reason}: {message}")),
            status_failure: self.status.failure.clone(),
            ..Summary::default()
        };
        for (key, release) in &self.releases {
            summary.releases += usize::from(release.entry.is_some() && release.excluded.is_none());
            if let Some(wanted) = release.wanted.as_ref().filter(|_| !release.stands()) {
                summary.pending += 1;
                let since = wanted.since.at;
                summary.oldest_since = Some(summary.oldest_since.map_or(since, |earlier| earlier.min(since)));
            }
            summary.undecodable += usize::from(release.undecodable.is_some());
            let rejection = match &release.failure {
                Some(Refusal::Rejected { reason }) if release.wanted.is_some() && !release.stands() => {
                    Some(format!("rejected: {reason}"))
                }
                _ => None,
            };
            summary.rejected += usize::from(rejection.is_some());
            if let Some(reason) = waits_for(key, release).or(rejection).or_else(|| release.interrupted())
                && summary.problems.len() < NAMED
            {
                summary.problems.push(Problem { release: key.clone(), reason });
            }
        }
        summary
    }

    /// What is known of a release, in lines.
    pub(in crate::inventory) fn explain(&self, key: &ObjectKey, now: Moment) -> Option<Explanation> {
        let release = self.releases.get(key)?;
        let state = match (&release.newest, &release.entry) {
            (Some(newest), _) => format!("revision {} {}", newest.number, newest.stage.as_str()),
            (None, Some(entry)) => format!("revision {} is gone", entry.revision),
            (None, None) => "no revision".to_owned(),
        };
        let id = release.entry.as_ref().map(|entry| format!(", app {}", entry.app_id)).unwrap_or_default();
        let sent = match release.entry.as_ref().map_or(0, |entry| entry.sent) {
            0 => "never sent".to_owned(),
            1 => "sent once".to_owned(),
            2 => "sent twice".to_owned(),
            more => format!("sent {more} times"),
        };
        let last = release.told_at.map(|last| format!(", last at {}", clock(last.wall))).unwrap_or_default();
        let mut lines = vec![format!("{state}{id}, {sent}{last}")];
        if let Some(problem) = waits_for(key, release).filter(|_| release.wanted.is_none()) {
            lines.push(format!("waits: {problem}"));
        }
        lines.extend(release.interrupted());
        if let Some(wanted) = &release.wanted {
            let changed = release.parts.map(|parts| parts.differing(&wanted.body.parts)).unwrap_or_default();
            let changed = if changed.is_empty() { String::new() } else { format!(" ({})", changed.join(", ")) };
            let since = clock(wanted.since.wall);
            lines.push(format!("changed at {since}{changed}; waits: {}", self.waiting(key, now)));
        }
        Some(Explanation(lines))
    }

    /// What a body that is to be sent waits for.
    fn waiting(&self, key: &ObjectKey, now: Moment) -> String {
        let Some(release) = self.releases.get(key) else { return String::new() };
        let within = |until: Instant| until.saturating_duration_since(now.at).as_secs();
        if release.posting.is_some() {
            return "it is being sent".to_owned();
        }
        if let Some(problem) = waits_for(key, release) {
            return problem;
        }
        if self.is_unauthorized {
            return "the API refuses the token".to_owned();
        }
        match &release.failure {
            Some(Refusal::Rejected { reason }) => return format!("{reason}, until it changes"),
            Some(Refusal::Later { reason, .. }) => {
                let next = release.delivery.until.map_or(0, within);
                return format!("{reason}, next try in {next} s");
            }
            Some(Refusal::Unauthorized | Refusal::NotSent | Refusal::Interrupted) | None => {}
        }
        match release.due(self.settings.delay) {
            Some(due) if due > now.at => format!("the delay, for another {} s", within(due)),
            _ => "the status or the registration is written first".to_owned(),
        }
    }
}

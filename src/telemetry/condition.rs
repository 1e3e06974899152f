//! The condition of a section: one state and one message, derived from facts. Pure.
//!
//! Every job reports its facts, and [`Condition::of`] evaluates them in one place, so that no section is `ready` while a
//! cluster that it needs does not answer. The worst fact decides, in the order of [`SectionState`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::object_state::ObjectState;
use super::section::Readiness;
use crate::config::ClusterName;

/// Whether a cluster can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterState {
    /// Not known yet.
    Starting,
    Available,
    Unreachable,
    /// Its credentials can't be loaded, so no request is sent.
    NoCredentials,
    /// It answers but does not accept the credentials.
    Unauthorized,
}

impl ClusterState {
    /// Its name in `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Available => "available",
            Self::Unreachable => "unreachable",
            Self::NoCredentials => "no_credentials",
            Self::Unauthorized => "unauthorized",
        }
    }

    /// Whether no problem is known.
    pub fn is_fine(self) -> bool {
        self.complaint().is_none()
    }

    /// The problem with a cluster that work waits for; `None` if no problem is known.
    fn complaint(self) -> Option<&'static str> {
        match self {
            Self::Starting | Self::Available => None,
            Self::Unreachable => Some("unreachable"),
            Self::NoCredentials => Some("has no usable credentials"),
            Self::Unauthorized => Some("does not accept the credentials"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its name in the configuration.
    pub name: ClusterName,
    pub state: ClusterState,
    /// How long it has been in this state.
    pub since: Duration,
    /// Why it can't be used, or what is wrong with new credentials that are not in use.
    pub reason: Option<String>,
}

/// The state of a section, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SectionState {
    /// A required cluster or database does not answer.
    Blocked,
    /// A guard holds changes until an operator approves them.
    Held,
    /// It must not run with this configuration.
    Refused,
    /// Something fails and is retried.
    Failing,
    /// It can't decide yet: a list is incomplete, a kind is not served, a permission is missing.
    NotReady,
    /// Something has been waiting for another party for a while.
    Waiting,
    /// Changes are in progress.
    Pending,
    /// Some objects are paused.
    Paused,
    Detaching,
    /// It was detached for good.
    Detached,
    /// It plans changes and writes nothing.
    DryRun,
    /// It runs in another replica.
    Elsewhere,
    Ready,
}

impl SectionState {
    /// Whether no operator has to act: the state passes by itself or was chosen.
    pub fn is_well(self) -> bool {
        self > Self::Waiting
    }
}

/// What a section currently does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Its job.
    #[default]
    Work,
    /// Showing what it would do.
    DryRun,
    /// Removing its marks.
    Detaching,
    /// Nothing, after a detach.
    Detached,
}

/// What is known about a section. The default is a section without problems.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub clusters: Vec<ClusterStatus>,
    /// Why the database does not answer.
    pub database: Option<String>,
    /// Why it must not run.
    pub refused: Option<String>,
    /// What a guard holds.
    pub held: Option<String>,
    /// What fails apart from single objects.
    pub failing: Option<String>,
    /// Why it can't decide yet.
    pub not_ready: Option<NotReady>,
    /// What it has been waiting for longer than usual.
    pub waiting: Option<String>,
    pub objects: BTreeMap<ObjectState, usize>,
    /// The watch that is broken although its cluster answers, and why.
    pub broken_watch: Option<String>,
    /// How long it has been unknown whether objects are in step.
    pub unknown_for: Option<Duration>,
    pub purpose: Purpose,
}

/// Why a section can't decide yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    pub reason: String,
    /// Whether the cause is a cluster that does not answer, or did not until just now: then the daemon as a whole still
    /// counts as ready.
    pub unreachable: bool,
}

/// A section's state and its cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The worst known state.
    pub state: SectionState,
    /// Whether no operator has to act.
    pub well: bool,
    /// The cause of the state, and counts of the objects that are not in step; empty if there are none.
    pub message: String,
}

impl Condition {
    pub fn new(state: SectionState, message: impl Into<String>) -> Self {
        Self { state, well: state.is_well(), message: message.into() }
    }

    pub fn of(facts: &Facts) -> Self {
        let counted = |state| facts.objects.get(&state).copied().unwrap_or_default();
        let any = |state: ObjectState| (counted(state) > 0).then(String::new);
        let purpose = |wanted, is| (facts.purpose == wanted).then_some(is);
        let worst = [
            (SectionState::Blocked, facts.blocked_by()),
            // The objects of a refused section are held, too: `refused` is the cause.
            (
                SectionState::Held,
                facts.held.clone().or_else(|| any(ObjectState::Held).filter(|_| facts.refused.is_none())),
            ),
            (SectionState::Refused, facts.refused.clone()),
            (SectionState::Failing, facts.failing.clone().or_else(|| any(ObjectState::Failing))),
            (SectionState::Failing, facts.broken_watch.clone()),
            (SectionState::NotReady, facts.not_ready.as_ref().map(|not_ready| not_ready.reason.clone())),
            (SectionState::Waiting, facts.waiting.clone()),
            // These wait for an operator. A stranger does not count: the configuration leaves it alone.
            (SectionState::Waiting, any(ObjectState::Circle)),
            (SectionState::Waiting, any(ObjectState::OtherCluster)),
            (SectionState::Waiting, any(ObjectState::MappingChanged)),
            (SectionState::Waiting, any(ObjectState::Unclaimed)),
        ];
        let found = worst.into_iter().find_map(|(state, cause)| Some((state, cause?)));
        let (state, cause) = found.unwrap_or_else(|| {
            let state = purpose(Purpose::Detaching, SectionState::Detaching)
                .or_else(|| purpose(Purpose::Detached, SectionState::Detached))
                .or_else(|| purpose(Purpose::DryRun, SectionState::DryRun))
                .or_else(|| any(ObjectState::Pending).map(|_| SectionState::Pending))
                .or_else(|| any(ObjectState::Deleting).map(|_| SectionState::Pending))
                .or_else(|| any(ObjectState::Paused).map(|_| SectionState::Paused))
                .unwrap_or(SectionState::Ready);
            (state, if state == SectionState::DryRun { "nothing is written".to_owned() } else { String::new() })
        });
        let mut parts = Vec::new();
        if !cause.is_empty() {
            parts.push(cause);
        }
        let counts = facts.counts();
        if !counts.is_empty() {
            parts.push(counts);
        }
        if let Some(unknown) = facts.unknown_for
            && !facts.objects.is_empty()
        {
            parts.push(format!("objects as of {} ago", brief(unknown)));
        }
        Self::new(state, parts.join("; "))
    }
}

impl Facts {
    /// The clusters and the database that do not answer.
    fn blocked_by(&self) -> Option<String> {
        let mut complaints: Vec<String> = Vec::new();
        for cluster in &self.clusters {
            let complaint = cluster.state.complaint().map(|complaint| format!("cluster {} {complaint}", cluster.name));
            // Both sides may be the same cluster.
            complaints.extend(complaint.filter(|complaint| !complaints.contains(complaint)));
        }
        complaints.extend(self.database.as_ref().map(|reason| format!("database: {reason}")));
        (!complaints.is_empty()).then(|| complaints.join(", "))
    }

    /// The objects that are not in step, in the order of the states.
    fn counts(&self) -> String {
        let not_in_step = ObjectState::ALL.into_iter().filter(|state| *state != ObjectState::InStep);
        let counts = not_in_step.filter_map(|state| {
            let count = self.objects.get(&state).copied().filter(|count| *count > 0)?;
            Some(format!("{count} {}", state.as_str().replace('_', " ")))
        });
        counts.collect::<Vec<_>>().join(", ")
    }

    /// The section's readiness for `/readyz`. A cluster that does not answer is reported before its consequences.
    pub fn readiness(&self) -> Readiness {
        let unanswered = self.clusters.iter().find(|cluster| cluster.state.complaint().is_some());
        match (unanswered, &self.not_ready) {
            (Some(cluster), _) => {
                let complaint = cluster.state.complaint().unwrap_or_default();
                let reason = cluster.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                Readiness::Unreachable(format!("cluster {} {complaint}{reason}", cluster.name))
            }
            (None, Some(NotReady { reason, unreachable: true })) => Readiness::Unreachable(reason.clone()),
            (None, Some(NotReady { reason, unreachable: false })) => Readiness::NotReady(reason.clone()),
            (None, None) => Readiness::Ready,
        }
    }
}

/// A duration in its largest unit, rounded down: `27s`, `12m`, `3h`, `5d`.
pub fn brief(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match duration.as_secs() {
        seconds if seconds < 2 * MINUTE => format!("{seconds}s"),
        seconds if seconds < 2 * HOUR => format!("{}m", seconds / MINUTE),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str, state: ClusterState) -> ClusterStatus {
        let reason = state.complaint().map(|_| "connection refused (10.0.0.7:6443)".to_owned());
        ClusterStatus { name: name.parse().expect("a name"), state, since: Duration::from_secs(27), reason }
    }

    fn objects<const N: usize>(counts: [(ObjectState, usize); N]) -> BTreeMap<ObjectState, usize> {
        BTreeMap::from(counts)
    }

    fn not_ready(reason: &str) -> NotReady {
        NotReady { reason: reason.to_owned(), unreachable: false }
    }

    /// Each fact is added to those before it in the other direction of severity: the state is the worst of all.
    #[test]
    fn a_section_is_as_well_as_the_worst_that_is_known_of_it() {
        type Change = fn(&mut Facts);
        let steps: [(Change, SectionState, &str); 13] = [
            (|_| {}, SectionState::Ready, ""),
            (|facts| facts.objects = objects([(ObjectState::InStep, 10)]), SectionState::Ready, ""),
            (|facts| facts.objects.extend([(ObjectState::Paused, 1)]), SectionState::Paused, "1 paused"),
            (|facts| facts.objects.extend([(ObjectState::Deleting, 1)]), SectionState::Pending, "1 paused, 1 deleting"),
            (|facts| facts.purpose = Purpose::DryRun, SectionState::DryRun, "nothing is written; 1 paused, 1 deleting"),
            (|facts| facts.purpose = Purpose::Detaching, SectionState::Detaching, "1 paused, 1 deleting"),
            (
                |facts| facts.waiting = Some("waiting for finalizer example.com/hold on hu/orders-0 (edge)".to_owned()),
                SectionState::Waiting,
                "waiting for finalizer example.com/hold on hu/orders-0 (edge); 1 paused, 1 deleting",
            ),
            (
                |facts| facts.not_ready = Some(not_ready("databases in cluster hub: not served")),
                SectionState::NotReady,
                "databases in cluster hub: not served; 1 paused, 1 deleting",
            ),
            (
                |facts| facts.objects.extend([(ObjectState::Failing, 2)]),
                SectionState::Failing,
                "1 paused, 2 failing, 1 deleting",
            ),
            (
                |facts| facts.refused = Some("both ends are one cluster".to_owned()),
                SectionState::Refused,
                "both ends are one cluster; 1 paused, 2 failing, 1 deleting",
            ),
            (
                |facts| facts.held = Some("30 deletions wait for towline approve".to_owned()),
                SectionState::Held,
                "30 deletions wait for towline approve; 1 paused, 2 failing, 1 deleting",
            ),
            (
                |facts| {
                    facts.clusters =
                        vec![cluster("hub", ClusterState::Available), cluster("edge", ClusterState::Unreachable)];
                },
                SectionState::Blocked,
                "cluster edge unreachable; 1 paused, 2 failing, 1 deleting",
            ),
            (
                |facts| facts.unknown_for = Some(Duration::from_secs(150)),
                SectionState::Blocked,
                "cluster edge unreachable; 1 paused, 2 failing, 1 deleting; objects as of 2m ago",
            ),
        ];
        let mut facts = Facts::default();
        for (change, state, message) in steps {
            change(&mut facts);
            let condition = Condition::of(&facts);
            assert_eq!((condition.state, condition.message.as_str()), (state, message), "{facts:#?}");
            assert_eq!(condition.well, state > SectionState::Waiting, "{state:?}");
        }
    }

    #[test]
    fn no_section_is_ready_while_one_of_its_clusters_can_t_be_worked_with() {
        for (state, told) in [
            (ClusterState::Unreachable, "cluster edge unreachable"),
            (ClusterState::NoCredentials, "cluster edge has no usable credentials"),
            (ClusterState::Unauthorized, "cluster edge does not accept the credentials"),
        ] {
            let facts = Facts {
                clusters: vec![cluster("edge", state), cluster("edge", state)],
                not_ready: Some(not_ready("the first list has not ended")),
                objects: objects([(ObjectState::InStep, 12)]),
                ..Facts::default()
            };
            assert_eq!(Condition::of(&facts), Condition::new(SectionState::Blocked, told));
            let reason = format!("{told}: connection refused (10.0.0.7:6443)");
            assert_eq!(facts.readiness(), Readiness::Unreachable(reason));
        }
        for state in [ClusterState::Starting, ClusterState::Available] {
            let mut facts = Facts { clusters: vec![cluster("edge", state)], ..Facts::default() };
            assert_eq!(facts.readiness(), Readiness::Ready, "{state:?}");
            facts.not_ready = Some(not_ready("the first list has not ended"));
            assert_eq!(facts.readiness(), Readiness::NotReady("the first list has not ended".to_owned()));
            facts.not_ready = Some(NotReady { reason: "back again".to_owned(), unreachable: true });
            assert_eq!(facts.readiness(), Readiness::Unreachable("back again".to_owned()), "until it has listed");
        }
    }

    #[test]
    fn a_watch_or_a_database_that_is_broken_is_no_section_s_readiness_but_its_state() {
        let facts = Facts {
            broken_watch: Some("watch of databases in cluster hub: server error (500)".to_owned()),
            objects: objects([(ObjectState::InStep, 3)]),
            unknown_for: Some(Duration::from_secs(9)),
            ..Facts::default()
        };
        let told = "watch of databases in cluster hub: server error (500); objects as of 9s ago";
        assert_eq!(Condition::of(&facts), Condition::new(SectionState::Failing, told));
        let facts = Facts { database: Some("failed to connect".to_owned()), ..Facts::default() };
        assert_eq!(Condition::of(&facts), Condition::new(SectionState::Blocked, "database: failed to connect"));
    }

    #[test]
    fn every_state_of_a_cluster_and_of_a_section_has_one_name() {
        for state in [
            ClusterState::Starting,
            ClusterState::Available,
            ClusterState::Unreachable,
            ClusterState::NoCredentials,
            ClusterState::Unauthorized,
        ] {
            assert_eq!(serde_json::json!(state), state.as_str());
        }
        assert_eq!(serde_json::json!(SectionState::NotReady), "not_ready");
    }

    #[test]
    fn durations_have_one_unit() {
        let minute = 60;
        let hour = 60 * minute;
        for (seconds, told) in [
            (0, "0s"),
            (27, "27s"),
            (119, "119s"),
            (12 * minute + 59, "12m"),
            (3 * hour + 59 * minute, "3h"),
            (47 * hour, "47h"),
            (5 * 24 * hour, "5d"),
        ] {
            assert_eq!(brief(Duration::from_secs(seconds)), told, "{seconds}");
        }
    }
}

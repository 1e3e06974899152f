//! What is known of a section, and what follows from it: its condition, its readiness, its row in the status table. Pure.
//!
//! Every job reports its [`Facts`], which are evaluated in this one place, so that no section is `ready` while a cluster that it
//! needs does not answer. The worst fact decides: [`Facts::condition`] has the order.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::objects::{ObjectState, Objects};
use crate::cluster::ClusterStatus;
use crate::config::SectionName;

/// The state of a section, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Nothing here: another replica runs it.
    Elsewhere { holder: String },
}

/// What is known of a section. The default is a section without problems.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The direction: `hub→edge`.
    pub flow: String,
    /// The plural name of its objects.
    pub subject: String,
    pub objects: Objects,
    /// The clusters that it needs.
    pub clusters: Vec<ClusterStatus>,
    /// Why the database does not answer.
    pub database: Option<String>,
    /// That the cluster of the election does not answer.
    pub election: Option<String>,
    /// Why it must not run.
    pub refused: Option<String>,
    /// Why the section as a whole is held until an operator approves.
    pub objection: Option<String>,
    /// Which single changes are held.
    pub held: Option<String>,
    /// What fails apart from single objects.
    pub failing: Option<String>,
    /// That nothing can be handed over to the other side. It fails, and is no reason to take the process out.
    pub undelivered: Option<String>,
    /// Why it can't decide yet.
    pub not_ready: Option<NotReady>,
    /// What it has been waiting for longer than usual.
    pub waiting: Option<String>,
    /// What is in progress apart from single objects.
    pub pending: Option<String>,
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
}

/// Whether a section does its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum Readiness {
    /// It does its job, or runs in another process.
    Ready,
    /// A cluster does not answer. The daemon as a whole still counts as ready.
    Unreachable(String),
    /// The section as a whole is held until an operator approves. The daemon as a whole still counts as ready.
    Held(String),
    /// Its first list is incomplete, or it can't start.
    NotReady(String),
}

/// A section's row in the status table.
#[derive(Debug, Serialize)]
struct Overview<'f> {
    flow: &'f str,
    subject: &'f str,
    total: usize,
    in_step: usize,
    /// Age in seconds of the oldest change that has not been applied.
    oldest_seconds: Option<f64>,
}

impl Facts {
    /// The section's condition; an operator approves it by its name.
    pub fn condition(&self, name: &SectionName) -> Condition {
        let any = |state: ObjectState| (self.objects.count(state) > 0).then(String::new);
        let objection = self.objection.as_ref();
        let objection = objection.map(|objection| format!("{objection}; waits for `towline approve {name}`"));
        // The objects of a refused section are held, too: `refused` is the cause.
        let held = || self.held.clone().or_else(|| any(ObjectState::Held).filter(|_| self.refused.is_none()));
        let failing = || self.failing.clone().or_else(|| any(ObjectState::Failing));
        let worst = [
            (SectionState::Blocked, self.blocked_by()),
            (SectionState::Held, objection.or_else(held)),
            (SectionState::Refused, self.refused.clone()),
            (SectionState::Failing, self.undelivered.clone().or_else(failing)),
            (SectionState::Failing, self.broken_watch.clone()),
            (SectionState::NotReady, self.not_ready.as_ref().map(|not_ready| not_ready.reason.clone())),
            (SectionState::Waiting, self.waiting.clone()),
            // These wait for an operator. An existing object does not count: the configuration leaves it alone.
            (SectionState::Waiting, any(ObjectState::Circle)),
            (SectionState::Waiting, any(ObjectState::OtherCluster)),
            (SectionState::Waiting, any(ObjectState::MappingChanged)),
            (SectionState::Waiting, any(ObjectState::Unclaimed)),
            self.by_purpose(),
            (SectionState::Pending, any(ObjectState::Pending)),
            (SectionState::Pending, any(ObjectState::Deleting)),
            (SectionState::Pending, self.pending.clone()),
            (SectionState::Paused, any(ObjectState::Paused)),
        ];
        let found = worst.into_iter().find_map(|(state, cause)| Some((state, cause?)));
        let (state, cause) = found.unwrap_or((SectionState::Ready, String::new()));
        let unknown = self.unknown_for.filter(|_| !self.objects.is_unknown());
        let unknown = unknown.map(|unknown| format!("objects as of {} ago", brief(unknown)));
        let mut parts = vec![cause, self.objects.in_words(), unknown.unwrap_or_default()];
        parts.retain(|part| !part.is_empty());
        Condition::new(state, parts.join("; "))
    }

    fn by_purpose(&self) -> (SectionState, Option<String>) {
        match &self.purpose {
            Purpose::Work => (SectionState::Ready, None),
            Purpose::DryRun => (SectionState::DryRun, Some("nothing is written".to_owned())),
            Purpose::Detaching => (SectionState::Detaching, Some(String::new())),
            Purpose::Detached => (SectionState::Detached, Some(String::new())),
            Purpose::Elsewhere { holder } => (SectionState::Elsewhere, Some(format!("runs in replica {holder}"))),
        }
    }

    /// The clusters and the database that do not answer.
    fn blocked_by(&self) -> Option<String> {
        let mut complaints: Vec<String> = Vec::new();
        for cluster in &self.clusters {
            let complaint = cluster.state.complaint().map(|complaint| format!("cluster {} {complaint}", cluster.name));
            // Both sides may be the same cluster.
            complaints.extend(complaint.filter(|complaint| !complaints.contains(complaint)));
        }
        complaints.extend(self.database.as_ref().map(|reason| format!("database: {reason}")));
        complaints.extend(self.election.clone());
        (!complaints.is_empty()).then(|| complaints.join(", "))
    }

    /// The section's readiness for `/readyz`. A cluster that does not answer is reported before its consequences.
    pub fn readiness(&self) -> Readiness {
        let unanswered = self.clusters.iter().find_map(|cluster| {
            let complaint = cluster.state.complaint()?;
            let reason = cluster.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            Some(format!("cluster {} {complaint}{reason}", cluster.name))
        });
        let unanswered = unanswered.or_else(|| self.election.clone());
        match (unanswered, &self.not_ready, &self.undelivered, &self.objection) {
            (Some(reason), ..) => Readiness::Unreachable(reason),
            (None, Some(NotReady { reason, unreachable: false }), ..) => Readiness::NotReady(reason.clone()),
            (None, Some(NotReady { reason, unreachable: true }), ..) | (None, None, Some(reason), _) => {
                Readiness::Unreachable(reason.clone())
            }
            (None, None, None, Some(objection)) => Readiness::Held(objection.clone()),
            (None, None, None, None) => Readiness::Ready,
        }
    }

    /// What `/status` shows of every section.
    pub(super) fn shown(&self, name: &SectionName) -> Map<String, Value> {
        let Objects { oldest, not_in_step, more, .. } = &self.objects;
        let Condition { state, well, message } = self.condition(name);
        let overview = Overview {
            flow: &self.flow,
            subject: &self.subject,
            total: self.objects.total(),
            in_step: self.objects.count(ObjectState::InStep),
            oldest_seconds: oldest.map(|age| age.as_secs_f64()),
        };
        let mut shown = Map::new();
        let mut show = |key: &str, value: Value| _ = shown.insert(key.to_owned(), value);
        show("state", json!(state));
        show("well", json!(well));
        show("message", json!(message));
        show("readiness", json!(self.readiness()));
        show("overview", json!(overview));
        show("objects", json!(self.objects.by_state()));
        show("not_in_step", json!(not_in_step));
        if *more > 0 {
            show("not_in_step_more", json!(more));
        }
        if let Some(unknown) = self.unknown_for {
            show("objects_unknown_for_seconds", json!(unknown.as_secs()));
        }
        shown
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
    use crate::cluster::ClusterState;

    fn cluster(name: &str, state: ClusterState) -> ClusterStatus {
        let reason = state.complaint().map(|_| "connection refused (10.0.0.7:6443)".to_owned());
        ClusterStatus {
            name: name.parse().expect("a name"),
            state,
            since: Duration::from_secs(27),
            reason,
            server: None,
        }
    }

    fn condition(facts: &Facts) -> Condition {
        facts.condition(&"orders".parse().expect("a name"))
    }

    /// The states in which there are objects, added one after the other.
    fn objects(rows: &[(ObjectState, usize)]) -> Objects {
        Objects::counted(rows.iter().copied())
    }

    fn not_ready(reason: &str) -> NotReady {
        NotReady { reason: reason.to_owned(), unreachable: false }
    }

    /// Each fact is added to those before it in the other direction of severity: the state is the worst of all.
    #[test]
    fn a_section_is_as_well_as_the_worst_that_is_known_of_it() {
        const IN_STEP: (ObjectState, usize) = (ObjectState::InStep, 10);
        const PAUSED: (ObjectState, usize) = (ObjectState::Paused, 1);
        const DELETING: (ObjectState, usize) = (ObjectState::Deleting, 1);
        type Change = fn(&mut Facts);
        let steps: [(Change, SectionState, &str); 13] = [
            (|_| {}, SectionState::Ready, ""),
            (|facts| facts.objects = objects(&[IN_STEP]), SectionState::Ready, ""),
            (|facts| facts.objects = objects(&[IN_STEP, PAUSED]), SectionState::Paused, "1 paused"),
            (
                |facts| facts.objects = objects(&[IN_STEP, PAUSED, DELETING]),
                SectionState::Pending,
                "1 paused, 1 deleting",
            ),
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
                |facts| facts.objects = objects(&[IN_STEP, PAUSED, DELETING, (ObjectState::Failing, 2)]),
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
            let Condition { state: found, well, message: told } = condition(&facts);
            assert_eq!((found, told.as_str()), (state, message), "{facts:#?}");
            assert_eq!(well, state > SectionState::Waiting, "{state:?}");
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
                objects: objects(&[(ObjectState::InStep, 12)]),
                ..Facts::default()
            };
            assert_eq!(condition(&facts), Condition::new(SectionState::Blocked, told));
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
            objects: objects(&[(ObjectState::InStep, 3)]),
            unknown_for: Some(Duration::from_secs(9)),
            ..Facts::default()
        };
        let told = "watch of databases in cluster hub: server error (500); objects as of 9s ago";
        assert_eq!(condition(&facts), Condition::new(SectionState::Failing, told));
        let facts = Facts { database: Some("failed to connect".to_owned()), ..Facts::default() };
        assert_eq!(condition(&facts), Condition::new(SectionState::Blocked, "database: failed to connect"));
    }

    #[test]
    fn a_section_that_is_held_as_a_whole_or_delivers_nothing_does_not_take_the_daemon_out() {
        let mut facts = Facts { objection: Some("edge is another cluster".to_owned()), ..Facts::default() };
        let told = "edge is another cluster; waits for `towline approve orders`";
        assert_eq!(condition(&facts), Condition::new(SectionState::Held, told));
        assert_eq!(facts.readiness(), Readiness::Held("edge is another cluster".to_owned()));
        facts = Facts { undelivered: Some("HTTP 503".to_owned()), ..Facts::default() };
        assert_eq!(condition(&facts), Condition::new(SectionState::Failing, "HTTP 503"));
        assert_eq!(facts.readiness(), Readiness::Unreachable("HTTP 503".to_owned()));
        facts = Facts { purpose: Purpose::Elsewhere { holder: "towline-1".to_owned() }, ..Facts::default() };
        assert_eq!(condition(&facts), Condition::new(SectionState::Elsewhere, "runs in replica towline-1"));
        assert_eq!(facts.readiness(), Readiness::Ready);
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
    fn the_page_knows_every_state_in_its_order() {
        let (_, rest) = include_str!("../ui/daemon.js").split_once("const STATES = [").expect("its list");
        let (list, _) = rest.split_once(']').expect("its end");
        let named = list.split(',').map(|name| json!(name.trim().trim_matches('\'')));
        let states: Vec<SectionState> = named.map(|name| SectionState::deserialize(name).expect("a state")).collect();
        assert!(states.iter().enumerate().all(|(place, state)| *state as usize == place), "{states:?}");
        assert_eq!(states.last(), Some(&SectionState::Ready), "the last one of all");
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

//! Which action a cluster needs, found out without a connection to it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use uuid::Uuid;

use super::name::Digest;
use super::rows::{ClusterRow, ResultRow};
use crate::config::text::shortened;

/// Pauses a cluster if it is true.
const SYNCSET_PAUSE: &str = "hive.openshift.io/syncset-pause";
/// Pauses a cluster if it is true.
const RECONCILE_PAUSE: &str = "hive.openshift.io/reconcile-pause";
/// Pauses a cluster whatever its value: the cluster is moving to another hub.
const RELOCATE: &str = "hive.openshift.io/relocate";
/// Pauses a cluster until that time.
pub const PAUSE_UNTIL: &str = "towline.dev/pause-until";
/// Why a cluster is paused by its field or by [`PAUSE_UNTIL`].
pub const PAUSE_REASON: &str = "towline.dev/pause-reason";
/// Most characters of that in a message.
const LONGEST_REASON: usize = 256;
/// The annotations that can pause a cluster. Statements that count clusters know them by their places.
pub const PAUSES: [&str; 4] = [SYNCSET_PAUSE, RECONCILE_PAUSE, RELOCATE, PAUSE_UNTIL];

/// A cluster as its document has it, without its kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Assigned by the hub.
    pub id: Uuid,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub paused: bool,
    pub is_being_deleted: bool,
    /// The generation that set its kubeconfig.
    pub kubeconfig_generation: i64,
}

/// A syncset that names or selects the cluster, due or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveFacts {
    pub id: Uuid,
    /// What it would be applied with.
    pub inputs: Digest,
    /// When its health is read next, if it is.
    pub health_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing, ever again: there is no such cluster, or it is being deleted. Its objects stay.
    Gone,
    Paused(Pause),
    /// Nothing, since it does not answer: it is asked again at that time.
    Silent {
        retry_at: Timestamp,
    },
    /// Nothing, since it has asked to be left alone.
    Throttled {
        until: Timestamp,
    },
    /// Nothing until the next full pass, or until health is read again.
    InStep {
        until: Timestamp,
    },
    Pass(PassPlan),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The field or annotation.
    pub by: &'static str,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// The annotation's value is no time.
    pub is_unreadable: bool,
    /// Why, if whoever has paused it says so.
    pub reason: Option<String>,
}

/// What a pass has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassPlan {
    /// Syncsets that are due, by their ids.
    pub due: BTreeSet<Uuid>,
    /// Syncsets that are applied as they are now, and whose health is read.
    pub health: BTreeSet<Uuid>,
    /// Syncsets that have a result or objects and are no longer to be applied.
    pub gone: BTreeSet<Uuid>,
    /// Whether everything that was sent before is compared with what is there.
    pub is_full: bool,
    /// Whether it reads health before the time of what else is left to be done, and is no attempt at that.
    pub is_early: bool,
    /// Whether it first finds out which cluster this is.
    pub identifies: bool,
    /// Whether it first asks whether the cluster answers at all.
    pub probe: Probe,
}

/// Whether a pass first asks whether the cluster answers at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probe {
    /// It has answered the last time, or was never asked.
    #[default]
    None,
    /// It did not answer, and the time has come to ask again.
    Due,
    /// It did not answer, and is to be asked at once: somebody has asked for a full pass or given it a new kubeconfig.
    Demanded,
}

impl Action {
    /// What there is to do for this cluster, if there is one, at this time. `with_objects`: the syncsets of which objects are stored;
    /// those of a pass that was killed have no result.
    pub fn of(
        cluster: Option<&ClusterFacts>,
        live: &[LiveFacts],
        results: &[ResultRow],
        with_objects: &BTreeSet<Uuid>,
        cluster_row: Option<&ClusterRow>,
        now: Timestamp,
    ) -> Self {
        let Some(cluster) = cluster.filter(|cluster| !cluster.is_being_deleted) else {
            return Self::Gone;
        };
        if let Some(pause) = pause(cluster, now) {
            return Self::Paused(pause);
        }
        let identifies = cluster_row.is_none_or(|cluster_row| {
            cluster_row.identity.is_none() || cluster_row.kubeconfig_generation != cluster.kubeconfig_generation
        });
        let next_full = cluster_row.and_then(|cluster_row| cluster_row.next_full);
        let is_silent = cluster_row.is_some_and(|cluster_row| cluster_row.reachable == Some(false));
        // A new kubeconfig may lead elsewhere. A resync asks a silent cluster at once, and not one that answers and has asked to wait.
        if let Some(cluster_row) =
            cluster_row.filter(|cluster_row| cluster_row.asked_generation == cluster.kubeconfig_generation)
        {
            match cluster_row.retry_at {
                Some(retry_at) if is_silent && next_full.is_some() && retry_at > now => {
                    return Self::Silent { retry_at };
                }
                Some(until) if !is_silent && until > now => return Self::Throttled { until },
                _ => {}
            }
        }
        let is_full = identifies || next_full.is_none_or(|next_full| next_full <= now);
        let due = live.iter().filter(|live| is_full || is_due(live, results)).map(|live| live.id).collect();
        // After a full pass it is read anyway.
        let is_read = |live: &&LiveFacts| !is_full && live.health_at.is_some_and(|at| at <= now);
        let health = live.iter().filter(is_read).map(|live| live.id).collect();
        let known = results.iter().map(|result| result.syncset).chain(with_objects.iter().copied());
        let gone = known.filter(|syncset| !live.iter().any(|live| live.id == *syncset)).collect();
        let is_demanded = next_full.is_none()
            || cluster_row.is_some_and(|cluster_row| cluster_row.asked_generation != cluster.kubeconfig_generation);
        let probe = match (is_silent, is_demanded) {
            (false, _) => Probe::None,
            (true, false) => Probe::Due,
            (true, true) => Probe::Demanded,
        };
        let pass_plan = PassPlan { due, health, gone, is_full, is_early: false, identifies, probe };
        match next_full {
            Some(next_full) if pass_plan == PassPlan::default() => {
                let health_at = live.iter().filter_map(|live| live.health_at);
                Self::InStep { until: health_at.fold(next_full, Timestamp::min) }
            }
            _ => Self::Pass(pass_plan),
        }
    }
}

impl PassPlan {
    /// A pass that nobody has asked for, and that comes to read health before the time of what else is left to be done, does not try that again: a
    /// reading is no attempt at it. `inputs` are what syncsets would be applied with now.
    pub fn unasked(
        &mut self,
        results: &[ResultRow],
        inputs: &BTreeMap<Uuid, Digest>,
        left_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        let has_come = left_at.is_some_and(|left_at| left_at <= now);
        let is_left = |syncset: &Uuid| {
            let result = results.iter().find(|result| result.syncset == *syncset);
            // What waits for a change has no time.
            let has_time = |result: &ResultRow| left_at.is_some() || !result.has_pending_deletions;
            result.is_some_and(|result| inputs.get(syncset) == Some(&result.inputs) && has_time(result))
        };
        let reads_alone = self.gone.is_empty() && self.due.iter().all(is_left);
        if reads_alone && !has_come && !self.health.is_empty() && self.probe == Probe::None {
            self.is_early = true;
            self.due.clear();
        }
    }
}

/// Whether a syncset is due although no full pass is.
fn is_due(live: &LiveFacts, results: &[ResultRow]) -> bool {
    let result = results.iter().find(|result| result.syncset == live.id);
    result.is_none_or(|result| result.inputs != live.inputs || result.failure.is_some() || result.has_pending_deletions)
}

/// What pauses a cluster.
fn pause(cluster: &ClusterFacts, now: Timestamp) -> Option<Pause> {
    let reason = || {
        cluster
            .annotations
            .get(PAUSE_REASON)
            .map(|reason| shortened(reason.trim(), LONGEST_REASON))
            .filter(|reason| !reason.is_empty())
    };
    if cluster.paused {
        return Some(Pause { by: "paused", until: None, is_unreadable: false, reason: reason() });
    }
    if let Some(annotation) = hive_pauses(&cluster.annotations).next() {
        return Some(Pause { by: annotation, until: None, is_unreadable: false, reason: None });
    }
    let value = cluster.annotations.get(PAUSE_UNTIL).filter(|value| pauses_at(value, now))?;
    let until = value.parse::<Timestamp>().ok();
    Some(Pause { by: PAUSE_UNTIL, until, is_unreadable: until.is_none(), reason: reason() })
}

/// Whether a value of [`PAUSE_UNTIL`] pauses a cluster at this time. One that can't be read does, since that is what its author wanted.
pub fn pauses_at(value: &str, now: Timestamp) -> bool {
    value.parse::<Timestamp>().map_or(true, |until| until > now)
}

/// The annotations of Hive that pause a cluster.
pub fn hive_pauses(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = &'static str> {
    let is_set =
        |annotation: &str| annotations.get(annotation).is_some_and(|value| annotation == RELOCATE || is_true(value));
    [SYNCSET_PAUSE, RECONCILE_PAUSE, RELOCATE].into_iter().filter(move |annotation| is_set(annotation))
}

/// As Go's `strconv.ParseBool` reads it.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}

impl Pause {
    /// For the condition `Paused`.
    pub fn message(&self) -> String {
        let mut message = format!("paused by {}", self.by);
        match (self.until, self.is_unreadable) {
            (Some(until), _) => message = format!("{message} until {until}"),
            (None, true) => message += ", whose value is no time in RFC 3339",
            (None, false) => {}
        }
        if let Some(reason) = &self.reason {
            message += ": ";
            message += reason;
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
    use crate::syncset::plan::reason::Reason;
    use crate::syncset::plan::rows::Failure;

    const NONE: BTreeSet<Uuid> = BTreeSet::new();

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("a time")
    }

    fn cluster() -> ClusterFacts {
        ClusterFacts {
            id: Uuid::from_u128(1),
            namespace: "team-a".to_owned(),
            name: "west-1".to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            paused: false,
            is_being_deleted: false,
            kubeconfig_generation: 3,
        }
    }

    fn name(name: &str) -> SyncSetName {
        SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team-a".to_owned(), name: name.to_owned() }
    }

    fn live(number: u8) -> LiveFacts {
        LiveFacts { id: Uuid::from_u128(number.into()), inputs: Digest([number; 32]), health_at: None }
    }

    fn result(number: u8) -> ResultRow {
        ResultRow {
            syncset: Uuid::from_u128(number.into()),
            name: name(&format!("s{number}")),
            inputs: Digest([number; 32]),
            generation: 1,
            failure: None,
            since: at(0),
            first_success: Some(at(0)),
            has_pending_deletions: false,
        }
    }

    fn cluster_row() -> ClusterRow {
        ClusterRow {
            identity: Some("uid".to_owned()),
            home: Some("uid".to_owned()),
            kubeconfig_generation: 3,
            asked_generation: 3,
            reachable: Some(true),
            last_contact: Some(at(0)),
            last_full: Some(at(0)),
            next_full: Some(at(7200)),
            attempts: 0,
            retry_at: None,
            left_at: None,
        }
    }

    fn due(action: &Action) -> Vec<u128> {
        match action {
            Action::Pass(pass) => pass.due.iter().map(Uuid::as_u128).collect(),
            other => panic!("no pass: {other:?}"),
        }
    }

    #[test]
    fn a_cluster_that_is_gone_or_being_deleted_keeps_its_objects() {
        assert_eq!(Action::of(None, &[], &[result(1)], &NONE, Some(&cluster_row()), at(1)), Action::Gone);
        let deleted = ClusterFacts { is_being_deleted: true, paused: true, ..cluster() };
        assert_eq!(Action::of(Some(&deleted), &[live(1)], &[], &NONE, None, at(1)), Action::Gone);
    }

    #[test]
    fn a_field_and_annotations_pause_a_cluster() {
        let paused = |annotations: &[(&str, &str)], paused: bool| {
            let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let cluster = ClusterFacts { annotations, paused, ..cluster() };
            match Action::of(Some(&cluster), &[live(1)], &[], &NONE, Some(&cluster_row()), at(1)) {
                Action::Paused(pause) => Some(pause.message()),
                _ => None,
            }
        };
        assert_eq!(paused(&[], true).as_deref(), Some("paused by paused"));
        for value in ["1", "t", "T", "TRUE", "true", "True"] {
            for annotation in [SYNCSET_PAUSE, RECONCILE_PAUSE] {
                assert_eq!(paused(&[(annotation, value)], false), Some(format!("paused by {annotation}")));
            }
        }
        for value in ["false", "0", "", "yes", "tRUE", " true"] {
            assert_eq!(paused(&[(SYNCSET_PAUSE, value)], false), None, "{value:?}");
        }
        assert_eq!(paused(&[(RELOCATE, "")], false), Some(format!("paused by {RELOCATE}")));
        let until = |second| paused(&[(PAUSE_UNTIL, &at(second).to_string())], false);
        assert_eq!(until(1), None, "it has ended");
        assert_eq!(until(2), Some(format!("paused by {PAUSE_UNTIL} until {}", at(2))));
        let unreadable = paused(&[(PAUSE_UNTIL, "tomorrow")], false).expect("paused");
        assert!(unreadable.contains("no time in RFC 3339"), "{unreadable}");
        let reason = (PAUSE_REASON, " an upgrade\nof Ada ");
        assert_eq!(paused(&[reason], true).as_deref(), Some("paused by paused: an upgrade of Ada"));
        let until = paused(&[reason, (PAUSE_UNTIL, &at(2).to_string())], false).expect("paused");
        assert_eq!(until, format!("paused by {PAUSE_UNTIL} until {}: an upgrade of Ada", at(2)));
        assert_eq!(paused(&[reason], false), None, "a reason alone pauses nothing");
        let of_hive = paused(&[reason, (RELOCATE, "x")], false);
        assert_eq!(of_hive, Some(format!("paused by {RELOCATE}")), "the reason is not that of Hive's tools");
        let long = paused(&[(PAUSE_REASON, &"ä".repeat(257))], true).expect("paused");
        assert_eq!(long, format!("paused by paused: {}…", "ä".repeat(255)));
        assert_eq!(paused(&[(PAUSE_REASON, &"ä".repeat(256))], true).expect("paused").chars().last(), Some('ä'));
    }

    #[test]
    fn a_cluster_in_step_needs_no_connection() {
        let action = Action::of(
            Some(&cluster()),
            &[live(1), live(2)],
            &[result(1), result(2)],
            &NONE,
            Some(&cluster_row()),
            at(7199),
        );
        assert_eq!(action, Action::InStep { until: at(7200) });
        let alone = Action::of(Some(&cluster()), &[], &[], &NONE, Some(&cluster_row()), at(1));
        assert_eq!(alone, Action::InStep { until: at(7200) });
    }

    #[test]
    fn a_syncset_is_due_without_a_result_with_other_inputs_after_a_failure_and_with_pending_deletions() {
        let failure = Failure { reason: Reason::Forbidden, message: "no".to_owned() };
        let results = [
            ResultRow { inputs: Digest([9; 32]), ..result(1) },
            ResultRow { failure: Some(failure), ..result(2) },
            ResultRow { has_pending_deletions: true, ..result(3) },
            result(4),
        ];
        let live: Vec<_> = (1..=5).map(live).collect();
        let action = Action::of(Some(&cluster()), &live, &results, &NONE, Some(&cluster_row()), at(1));
        assert_eq!(due(&action), [1, 2, 3, 5]);
        let Action::Pass(pass) = action else { panic!("a pass") };
        assert!(!pass.is_full && !pass.identifies && pass.probe == Probe::None && pass.gone.is_empty());
    }

    #[test]
    fn a_result_of_a_syncset_that_is_gone_needs_a_pass() {
        let action =
            Action::of(Some(&cluster()), &[live(1)], &[result(1), result(2)], &NONE, Some(&cluster_row()), at(1));
        let gone = BTreeSet::from([Uuid::from_u128(2)]);
        let expected = Action::Pass(PassPlan { gone: gone.clone(), ..PassPlan::default() });
        assert_eq!(action, expected);
        let of_a_killed_pass =
            Action::of(Some(&cluster()), &[live(1)], &[result(1)], &gone, Some(&cluster_row()), at(1));
        assert_eq!(of_a_killed_pass, expected);
    }

    #[test]
    fn health_is_read_at_its_time_beside_whatever_is_due_and_not_in_a_full_pass() {
        let read = LiveFacts { health_at: Some(at(10)), ..live(1) };
        let of = |live: &[LiveFacts], now| {
            Action::of(Some(&cluster()), live, &[result(1)], &NONE, Some(&cluster_row()), at(now))
        };
        assert_eq!(of(std::slice::from_ref(&read), 9), Action::InStep { until: at(10) });
        let health = BTreeSet::from([Uuid::from_u128(1)]);
        let expected = PassPlan { health, ..PassPlan::default() };
        assert_eq!(of(std::slice::from_ref(&read), 10), Action::Pass(expected.clone()));
        let due = BTreeSet::from([Uuid::from_u128(2)]);
        assert_eq!(of(&[read.clone(), live(2)], 10), Action::Pass(PassPlan { due, ..expected }));
        let Action::Pass(full) = of(&[read], 7200) else { panic!("a pass") };
        assert!(full.is_full && full.health.is_empty(), "it is read after it");
    }

    #[test]
    fn nothing_is_read_on_a_cluster_that_is_paused_or_silent_or_has_asked_to_wait_until_that_has_ended() {
        let read = LiveFacts { health_at: Some(at(2)), ..live(1) };
        let health = BTreeSet::from([Uuid::from_u128(1)]);
        let reads = PassPlan { health, ..PassPlan::default() };
        let of = |cluster: &ClusterFacts, cluster_row: &ClusterRow, now| {
            let live = std::slice::from_ref(&read);
            Action::of(Some(cluster), live, &[result(1)], &NONE, Some(cluster_row), at(now))
        };
        let paused = ClusterFacts { paused: true, ..cluster() };
        let annotated = |annotation: &str, value: &str| {
            let annotations = BTreeMap::from([(annotation.to_owned(), value.to_owned())]);
            ClusterFacts { annotations, ..cluster() }
        };
        let until = annotated(PAUSE_UNTIL, &at(10).to_string());
        let waits = ClusterRow { retry_at: Some(at(10)), ..cluster_row() };
        let silent = ClusterRow { reachable: Some(false), ..waits.clone() };
        let is_paused = |action: &Action| matches!(action, Action::Paused(_));
        for held in [&paused, &annotated(SYNCSET_PAUSE, "true"), &annotated(RELOCATE, ""), &until] {
            let action = of(held, &cluster_row(), 9);
            assert!(is_paused(&action), "{action:?}");
        }
        // The reading that is due brings neither time forward.
        assert_eq!(of(&cluster(), &silent, 9), Action::Silent { retry_at: at(10) });
        assert_eq!(of(&cluster(), &waits, 9), Action::Throttled { until: at(10) });
        // Whoever is paused as well is paused first.
        assert!(is_paused(&of(&paused, &silent, 10)) && is_paused(&of(&paused, &waits, 10)));
        // Then it is read, of a silent cluster once it has answered.
        assert_eq!(of(&until, &cluster_row(), 10), Action::Pass(reads.clone()));
        assert_eq!(of(&cluster(), &waits, 10), Action::Pass(reads.clone()));
        assert_eq!(of(&cluster(), &silent, 10), Action::Pass(PassPlan { probe: Probe::Due, ..reads }));
    }

    #[test]
    fn a_reading_that_nobody_has_asked_for_leaves_what_fails_to_its_time() {
        let failure = Some(Failure { reason: Reason::NamespaceMissing, message: "no".to_owned() });
        let results = [
            result(1),
            ResultRow { failure: failure.clone(), ..result(2) },
            ResultRow { has_pending_deletions: true, ..result(3) },
            ResultRow { inputs: Digest([9; 32]), failure, ..result(4) },
        ];
        let ids = |numbers: &[u128]| numbers.iter().map(|number| Uuid::from_u128(*number)).collect::<BTreeSet<_>>();
        let inputs = (1..=5).map(|number| (live(number).id, live(number).inputs)).collect();
        let unasked = |pass_plan: &PassPlan, left_at| {
            let mut unasked = pass_plan.clone();
            unasked.unasked(&results, &inputs, left_at, at(10));
            unasked
        };
        let health = ids(&[1]);
        let fails = PassPlan { health: health.clone(), due: ids(&[2]), ..PassPlan::default() };
        let ends = PassPlan { due: ids(&[2, 3]), ..fails.clone() };
        let early = PassPlan { health, is_early: true, ..PassPlan::default() };
        assert_eq!(unasked(&fails, Some(at(11))), early);
        assert_eq!(unasked(&ends, Some(at(11))), early);
        assert_eq!(unasked(&fails, None), early, "it waits for a change");
        assert_eq!(unasked(&ends, None), ends, "when a deletion is looked for is not known");
        assert_eq!(unasked(&ends, Some(at(10))), ends, "its time has come");
        for other in [
            PassPlan { health: BTreeSet::new(), ..fails.clone() },
            PassPlan { probe: Probe::Due, ..fails.clone() },
            PassPlan { gone: ids(&[7]), ..fails.clone() },
            // One has changed, one was never tried.
            PassPlan { due: ids(&[2, 4]), ..fails.clone() },
            PassPlan { due: ids(&[2, 5]), ..fails },
        ] {
            assert_eq!(unasked(&other, Some(at(11))), other);
        }
    }

    #[test]
    fn in_a_full_pass_all_are_due() {
        let resync = ClusterRow { next_full: None, ..cluster_row() };
        let moved = ClusterRow { kubeconfig_generation: 2, asked_generation: 2, ..cluster_row() };
        let unknown = ClusterRow { identity: None, ..cluster_row() };
        for (cluster_row, now, identifies) in [
            (Some(cluster_row()), at(7200), false),
            (Some(resync), at(1), false),
            (Some(moved), at(1), true),
            (Some(unknown), at(1), true),
            (None, at(1), true),
        ] {
            let action = Action::of(Some(&cluster()), &[live(1)], &[result(1)], &NONE, cluster_row.as_ref(), now);
            let due = BTreeSet::from([Uuid::from_u128(1)]);
            assert_eq!(action, Action::Pass(PassPlan { due, is_full: true, identifies, ..PassPlan::default() }));
        }
        let nothing = Action::of(Some(&cluster()), &[], &[], &NONE, None, at(1));
        assert!(matches!(nothing, Action::Pass(PassPlan { is_full: true, .. })), "the first contact: {nothing:?}");
    }

    #[test]
    fn changes_do_not_wake_a_silent_cluster_and_its_time_a_resync_and_a_kubeconfig_do() {
        let silent = ClusterRow { reachable: Some(false), retry_at: Some(at(10)), ..cluster_row() };
        let of = |cluster_row: &ClusterRow, now| {
            Action::of(Some(&cluster()), &[live(1)], &[], &NONE, Some(cluster_row), now)
        };
        assert_eq!(of(&silent, at(9)), Action::Silent { retry_at: at(10) });
        let probe = |action| match action {
            Action::Pass(PassPlan { probe, .. }) => probe,
            other => panic!("{other:?}"),
        };
        assert_eq!(probe(of(&silent, at(10))), Probe::Due, "its time has come");
        let refused = ClusterRow { retry_at: None, ..silent.clone() };
        assert_eq!(probe(of(&refused, at(1))), Probe::Due, "another replica may allow what this kubeconfig needs");
        assert_eq!(probe(of(&ClusterRow { next_full: None, ..silent.clone() }, at(1))), Probe::Demanded, "a resync");
        let before_it = ClusterRow { asked_generation: 2, kubeconfig_generation: 2, ..silent.clone() };
        assert_eq!(probe(of(&before_it, at(1))), Probe::Demanded, "a new kubeconfig");
        let unidentified = ClusterRow { kubeconfig_generation: 2, ..silent };
        let waits = Action::Silent { retry_at: at(10) };
        assert_eq!(of(&unidentified, at(1)), waits, "it was asked, and has not answered yet");
    }

    #[test]
    fn nothing_but_its_time_and_a_new_kubeconfig_wakes_a_cluster_that_has_asked_to_wait() {
        let throttled = ClusterRow { reachable: Some(true), retry_at: Some(at(10)), ..cluster_row() };
        let of = |cluster_row: &ClusterRow, now| {
            Action::of(Some(&cluster()), &[live(1)], &[], &NONE, Some(cluster_row), now)
        };
        let waits = Action::Throttled { until: at(10) };
        assert_eq!(of(&throttled, at(9)), waits);
        assert_eq!(of(&ClusterRow { next_full: None, ..throttled.clone() }, at(9)), waits, "a resync");
        let unidentified = ClusterRow { identity: None, kubeconfig_generation: 2, ..throttled.clone() };
        assert_eq!(of(&unidentified, at(9)), waits, "it asked at the first contact");
        assert!(
            matches!(of(&throttled, at(10)), Action::Pass(PassPlan { probe: Probe::None, .. })),
            "its time has come"
        );
        let before_it = ClusterRow { asked_generation: 2, kubeconfig_generation: 2, ..throttled };
        assert!(matches!(of(&before_it, at(1)), Action::Pass(_)), "a new kubeconfig");
    }
}

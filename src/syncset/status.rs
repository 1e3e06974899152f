//! What the admin server shows of syncsets.

pub mod counter;
mod explain;

use std::net::IpAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::config::SYNCSETS;
use super::metrics::SyncsetMetrics;
use super::plan::guard::Cause;
use super::plan::reason::Reason;
use super::plan::rollout::RolloutPhase;
use super::plan::status::Unreachable;
use super::run::counts::{Counted, FailingSyncset, RolloutGroup, UnreachableCluster};
use super::run::dispatch;
use super::run::dispatch::{DispatchError, SuspendedSyncset};
use super::run::rollouts::ShownRollout;
use crate::cluster::full_text;
use crate::config::SectionName;
use crate::documents::Author;
use crate::guard;
use crate::status::{self, Facts, Held, ListedObject, NotReady, ObjectState, Objects, Refused};
use crate::telemetry::Family;
use counter::{Counter, Latest};

/// Names in the section's message.
const MOST_NAMES: usize = 3;
const NO_CLUSTER: &str = "no cluster answers";
const NOT_COUNTED: &str = "the clusters have not been counted yet";

pub(super) struct SyncsetReport {
    name: SectionName,
    counter: Counter,
}

impl SyncsetReport {
    pub(super) fn new(name: SectionName, counter: Counter) -> Self {
        Self { name, counter }
    }
}

impl SyncsetReport {
    async fn approve_named(&self, name: Option<&str>, from: IpAddr) -> Result<Value, Refused> {
        let approved = dispatch::approve(self.counter.database(), name, &Author::of_admin(from)).await;
        let approved = approved.map_err(|error| refused("approve deletions", error))?;
        self.counter.count_again();
        if approved.is_empty() {
            let reason = match name {
                None => "no deletions are held".to_owned(),
                Some(name) => format!(
                    "no deletions of a syncset {name} are held; `towline approve {SYNCSETS} --list` shows those that are"
                ),
            };
            return Err(Refused::Conflict { reason });
        }
        let shown = |held: &SuspendedSyncset| json!({"syncset": held.label(), "clusters": held.clusters});
        Ok(json!({"approved": approved.iter().map(shown).collect::<Vec<_>>()}))
    }
}

fn refused(step: &'static str, error: DispatchError) -> Refused {
    match error {
        DispatchError::Database(error) if error.is_unreachable() => Refused::Unavailable { reason: full_text(&error) },
        DispatchError::Restoring => Refused::Unavailable { reason: full_text(&error) },
        DispatchError::Ambiguous { .. } | DispatchError::Changed { .. } => {
            Refused::Conflict { reason: full_text(&error) }
        }
        error => Refused::Failed { step, source: error.into() },
    }
}

/// What was counted, as the condition of a section is made of it. Some clusters never answer, and no operator of Towline has to act: they
/// do not make the section unwell, unless there are no others.
fn facts(latest: &Latest) -> Facts {
    let (flow, subject) = ("hub→clusters".to_owned(), "clusters".to_owned());
    let facts = Facts { flow, subject, database: latest.failure.clone(), ..Facts::default() };
    let Some(counted) = &latest.counted else {
        let reason = NOT_COUNTED.to_owned();
        return Facts { not_ready: Some(NotReady { reason, unreachable: false }), ..facts };
    };
    // Which clusters these changes concern is not known yet.
    let is_behind = counted.dispatcher.cursor < counted.dispatcher.newest;
    Facts {
        objects: objects(counted),
        held: (!counted.suspended.is_empty()).then(|| because(counted)),
        failing: refused_kubeconfigs(counted).or_else(|| stopped_rollouts(counted)),
        waiting: no_cluster_answers(counted).then(|| NO_CLUSTER.to_owned()),
        pending: is_behind.then(|| "changes are being dispatched".to_owned()).or_else(|| being_counted(counted)),
        ..facts
    }
}

/// The clusters by state, and of what is not in step as much as was read from the database.
fn objects(counted: &Counted) -> Objects {
    let (now, clock) = (Instant::now(), Timestamp::now());
    // What began together has one `Instant`, so that the keys decide about its order.
    let since = |at: Timestamp| now.checked_sub(Duration::try_from(clock.duration_since(at)).unwrap_or_default());
    let mut objects = Objects::counted(counted.states.clone());
    objects.oldest = counted.oldest;
    let held = counted.suspended.iter().map(|one| held(one, one.since.and_then(since)));
    let stopped = counted.stopped.iter().map(|one| stopped(one, since(one.since)));
    let failures = counted.failures.iter().map(|one| failure(one, now.checked_sub(one.age)));
    let unreachable = counted.unreachable.iter().map(|UnreachableCluster { cluster, condition }| {
        let began = condition.as_ref().and_then(|(.., at)| since(*at));
        unreachable(cluster, condition.as_ref().map(|(reason, message, _)| (*reason, message.as_str())), began)
    });
    let listed: Vec<ListedObject> = held.chain(stopped).chain(failures).chain(unreachable).collect();
    let all = counted.suspended.len()
        + counted.more_suspended
        + counted.stopped.len()
        + counted.more_stopped
        + counted.of(ObjectState::Failing)
        + counted.of(ObjectState::Unreachable);
    let more = all.saturating_sub(listed.len());
    objects.list(listed, more);
    objects
}

/// The names of some held syncsets: of those that an approval helps, if there are any.
fn because(counted: &Counted) -> String {
    let approvable = counted.suspended.iter().filter(|suspended| suspended.cause != Cause::Unreadable);
    let (chosen, is_approvable) = match approvable.collect::<Vec<_>>() {
        none if none.is_empty() => (counted.suspended.iter().collect(), false),
        some => (some, true),
    };
    let mut names: Vec<String> = chosen.iter().take(MOST_NAMES).map(|suspended| suspended.label()).collect();
    let others = chosen.len() - names.len();
    // Those that an approval does not help are read last: whether it helps those that were not read is not known.
    let more = if chosen.len() == counted.suspended.len() { counted.more_suspended } else { 0 };
    let (least, others) = if is_approvable && more > 0 { ("at least ", others) } else { ("", others + more) };
    if others > 0 {
        names.push(format!("{least}{others} others"));
    }
    let names = names.join(", ");
    if !is_approvable {
        return format!("deletions are held of {names}");
    }
    guard::waits_for_approval(format_args!("deletions of {names}"), SYNCSETS)
}

/// What they would delete takes long to count.
fn being_counted(counted: &Counted) -> Option<String> {
    match counted.counting {
        0 => None,
        1 => Some("deletions of 1 syncset are being counted".to_owned()),
        more => Some(format!("deletions of {more} syncsets are being counted")),
    }
}

/// Nothing but a change of the document or of the configuration helps.
fn refused_kubeconfigs(counted: &Counted) -> Option<String> {
    match counted.refused {
        0 => None,
        1 => Some("1 kubeconfig is refused".to_owned()),
        more => Some(format!("{more} kubeconfigs are refused")),
    }
}

/// Nobody moves until somebody decides what is done with the clusters that have failed.
fn stopped_rollouts(counted: &Counted) -> Option<String> {
    let stopped = counted.stopped.iter().filter(|rollout| rollout.needs_somebody());
    let mut names: Vec<String> = stopped.map(ShownRollout::label).collect();
    let counted = counted.rollouts.get(&RolloutGroup::Stopped).copied().unwrap_or_default();
    let others = names.len().max(counted).saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    if others > 0 {
        names.push(format!("{others} others"));
    }
    (!names.is_empty()).then(|| format!("the rollout of {} has stopped", names.join(", ")))
}

/// Of those that are not paused.
fn no_cluster_answers(counted: &Counted) -> bool {
    let served: usize = counted.states.values().sum::<usize>() - counted.of(ObjectState::Paused);
    served > 0 && counted.of(ObjectState::Unreachable) == served
}

fn report(latest: &Latest) -> Value {
    let Some(counted) = &latest.counted else { return json!({}) };
    let rollouts: Map<String, Value> =
        counted.rollouts.iter().map(|(group, count)| (group.as_str().to_owned(), json!(count))).collect();
    let (dispatcher, work) = (&counted.dispatcher, &counted.work);
    json!({
        "as_of_seconds": latest.counted_at.map(|at| at.elapsed().as_secs()),
        "held_syncsets": counted.suspended.len() + counted.more_suspended,
        "syncsets_being_counted": counted.counting,
        "rollouts": rollouts,
        "refused_kubeconfigs": counted.refused,
        "dispatcher": {
            "holder": dispatcher.holder, "cursor": dispatcher.cursor.to_string(), "newest": dispatcher.newest.to_string(),
            "lag_seconds": dispatcher.lag.unwrap_or_default().as_secs_f64(),
        },
        "work": {
            "running": work.running, "ready": work.ready, "waiting": work.waiting,
            "oldest_seconds": work.oldest.map(|age| age.as_secs_f64()),
        },
    })
}

fn held(held: &SuspendedSyncset, since: Option<Instant>) -> ListedObject {
    let cause = format!(
        "would delete objects on {} of {} clusters, {} in all: {}",
        held.clusters,
        held.tracks,
        held.objects,
        held.cause.reason()
    );
    ListedObject { cause, next_step: Some(held.remedy()), ..ListedObject::new(held.label(), ObjectState::Held, since) }
}

fn stopped(stopped: &ShownRollout, since: Option<Instant>) -> ListedObject {
    let ShownRollout { rollout, wave, .. } = stopped;
    let message = if rollout.message.is_empty() { String::new() } else { format!(": {}", rollout.message) };
    let cause = match rollout.state {
        RolloutPhase::RolledBack => format!("its clusters went back to revision {}{message}", rollout.goal),
        _ => format!("its rollout has stopped in wave {wave} ({}){message}", rollout.reason.as_str()),
    };
    let shown = ListedObject::new(stopped.label(), ObjectState::Held, since);
    ListedObject { cause, next_step: stopped.next_step(), ..shown }
}

fn failure(failing: &FailingSyncset, since: Option<Instant>) -> ListedObject {
    let FailingSyncset { cluster, syncset, reason, message, .. } = failing;
    let (cause, next_step) = match syncset {
        Some(syncset) => (format!("{syncset}: {message}"), Reason::of_name(reason).map(Reason::next_step)),
        None => (message.clone(), Some("let fewer syncsets name or select it, and fewer of them fail")),
    };
    let syncset = syncset.as_ref().map(|syncset| ("syncset".to_owned(), json!(syncset)));
    ListedObject {
        cause,
        next_step: next_step.map(str::to_owned),
        also: syncset.into_iter().chain([("reason".to_owned(), json!(reason))]).collect(),
        ..ListedObject::new(cluster, ObjectState::Failing, since)
    }
}

/// Why is not known before its `ClusterSync` has been written.
fn unreachable(cluster: &str, why: Option<(Unreachable, &str)>, since: Option<Instant>) -> ListedObject {
    let shown = ListedObject::new(cluster, ObjectState::Unreachable, since);
    let Some((reason, message)) = why else { return shown };
    ListedObject {
        cause: message.to_owned(),
        next_step: Some(reason.next_step().to_owned()),
        also: Map::from_iter([("reason".to_owned(), json!(reason.as_str()))]),
        ..shown
    }
}

impl status::Section for SyncsetReport {
    fn name(&self) -> &SectionName {
        &self.name
    }

    fn job(&self) -> &'static str {
        SYNCSETS
    }

    fn facts(&self) -> Facts {
        facts(&self.counter.latest())
    }

    fn report(&self) -> Value {
        report(&self.counter.latest())
    }

    fn count(&self) -> BoxFuture<'_, ()> {
        self.counter.count_now().boxed()
    }

    /// From the database: what was counted is some seconds old, and an approval is for what is held now.
    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        async {
            let (database, unlisted) = (self.counter.database(), |error| refused("list held deletions", error));
            let held = dispatch::suspended(database).await.map_err(unlisted)?;
            let counting = dispatch::being_counted(database).await.map_err(unlisted)?;
            Ok(Held { because: None, objects: held.iter().map(SuspendedSyncset::as_object).collect(), counting })
        }
        .boxed()
    }

    fn approve(&self, from: IpAddr) -> BoxFuture<'_, Result<Value, Refused>> {
        self.approve_named(None, from).boxed()
    }

    fn approves_by_name(&self) -> bool {
        true
    }

    fn approve_one<'s>(&'s self, name: &'s str, from: IpAddr) -> BoxFuture<'s, Result<Value, Refused>> {
        self.approve_named(Some(name), from).boxed()
    }

    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        explain::explain(&self.name, &self.counter, name).boxed()
    }

    fn families(&self) -> Vec<Family> {
        self.counter.latest().applied.as_ref().map(SyncsetMetrics::families).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::documents::Counts;
    use crate::status::{Condition, SectionState};
    use crate::syncset::run::counts::DispatcherState;
    use crate::syncset::run::rollouts::shown_for_tests;

    fn counted() -> Counted {
        let states = [
            (ObjectState::Paused, 1),
            (ObjectState::Unreachable, 2),
            (ObjectState::Failing, 3),
            (ObjectState::Held, 4),
            (ObjectState::Pending, 5),
            (ObjectState::InStep, 6),
        ];
        Counted {
            states: states.into(),
            health: [].into(),
            oldest: Some(Duration::from_millis(1500)),
            failures: vec![FailingSyncset {
                cluster: "team-a/west-1".to_owned(),
                syncset: Some("SyncSet team-a/base".to_owned()),
                reason: "Forbidden".to_owned(),
                message: "failed to apply resource 0: forbidden".to_owned(),
                age: Duration::from_secs(7),
            }],
            refused: 0,
            unreachable: Vec::new(),
            suspended: Vec::new(),
            more_suspended: 0,
            counting: 0,
            rollouts: [(RolloutGroup::Stopped, 1)].into(),
            stopped: Vec::new(),
            more_stopped: 0,
            work: Counts { running: 8, ready: 9, waiting: 10, oldest: None },
            dispatcher: DispatcherState {
                holder: Some("towline-1".to_owned()),
                cursor: 41,
                newest: 43,
                lag: Some(Duration::from_secs(2)),
            },
        }
    }

    fn latest(counted: Counted) -> Latest {
        Latest { counted: Some(counted), ..Latest::default() }
    }

    fn monitoring() -> SuspendedSyncset {
        SuspendedSyncset {
            id: Uuid::nil(),
            kind: "SelectorSyncSet".to_owned(),
            namespace: String::new(),
            name: "monitoring".to_owned(),
            cause: Cause::Many,
            generation: 4,
            revision: None,
            objects: 36,
            clusters: 12,
            tracks: 20,
            since: None,
        }
    }

    #[test]
    fn the_report_has_each_state_what_fails_what_is_held_and_how_far_the_dispatcher_is() {
        let mut back = shown_for_tests();
        (back.rollout.state, back.rollout.goal, back.rollout.message) = (RolloutPhase::RolledBack, 2, String::new());
        let stopped = vec![shown_for_tests(), back];
        let latest = latest(Counted { suspended: vec![monitoring()], stopped, more_stopped: 5, ..counted() });
        let (shown, objects) = (report(&latest), facts(&latest).objects);
        assert_eq!(
            shown,
            json!({
                "as_of_seconds": null,
                "held_syncsets": 1,
                "syncsets_being_counted": 0,
                "rollouts": {"stopped": 1},
                "refused_kubeconfigs": 0,
                "dispatcher": {"holder": "towline-1", "cursor": "41", "newest": "43", "lag_seconds": 2.0},
                "work": {"running": 8, "ready": 9, "waiting": 10, "oldest_seconds": null},
            })
        );
        assert_eq!(
            json!(objects.not_in_step),
            json!([
                {"key": "SyncSet team-a/base", "state": "held", "for_seconds": 0,
                    "cause": "its rollout has stopped in wave canary (Failures): wave canary is done",
                    "next_step": "edit the syncset, or `towline rollout undo team-a/base`; `towline rollout resume team-a/base` goes on in spite of what has failed"},
                {"key": "SyncSet team-a/base", "state": "held", "for_seconds": 0, "cause": "its clusters went back to revision 2",
                    "next_step": "correct the syncset: its clusters don't have what it says"},
                {"key": "SelectorSyncSet monitoring", "state": "held", "for_seconds": null,
                    "cause": "would delete objects on 12 of 20 clusters, 36 in all: most of its objects there would be deleted",
                    "next_step": "take the change back, or `towline approve syncsets monitoring`"},
                {"key": "team-a/west-1", "state": "failing", "for_seconds": 7, "syncset": "SyncSet team-a/base",
                    "reason": "Forbidden", "cause": "SyncSet team-a/base: failed to apply resource 0: forbidden",
                    "next_step": "grant the right to the account of the kubeconfig"},
            ])
        );
        let in_step = objects.count(ObjectState::InStep);
        assert_eq!((in_step, objects.total(), objects.oldest), (6, 21, Some(Duration::from_millis(1500))));
        assert_eq!(objects.more, 5 + 4, "five rollouts, and of five clusters that fail or are silent one is shown");
    }

    fn condition(latest: &Latest) -> Condition {
        facts(latest).condition(&"syncsets".parse().expect("a name"))
    }

    #[test]
    fn what_an_operator_has_to_do_makes_the_section_unwell_and_clusters_that_do_not_answer_do_not() {
        let mut counted =
            Counted { states: [(ObjectState::InStep, 6), (ObjectState::Unreachable, 2)].into(), ..counted() };
        let of = |counted: &Counted| condition(&latest(counted.clone()));
        assert_eq!(of(&counted), Condition::new(SectionState::Pending, "changes are being dispatched; 2 unreachable"));
        let paused = Counted { states: [(ObjectState::InStep, 6), (ObjectState::Paused, 1)].into(), ..counted.clone() };
        assert_eq!(of(&paused), Condition::new(SectionState::Pending, "changes are being dispatched; 1 paused"));
        counted.dispatcher.cursor = counted.dispatcher.newest;
        assert_eq!(of(&counted), Condition::new(SectionState::Ready, "2 unreachable"));
        let counting = |counting| of(&Counted { counting, ..counted.clone() });
        let of_one = Condition::new(SectionState::Pending, "deletions of 1 syncset are being counted; 2 unreachable");
        assert_eq!(counting(1), of_one);
        assert!(counting(2).message.starts_with("deletions of 2 syncsets are being counted"), "{:?}", counting(2));
        let refused = Counted { refused: 1, ..counted.clone() };
        assert_eq!(of(&refused), Condition::new(SectionState::Failing, "1 kubeconfig is refused; 2 unreachable"));
        let alone =
            Counted { states: [(ObjectState::Unreachable, 2), (ObjectState::Paused, 1)].into(), ..counted.clone() };
        assert_eq!(of(&alone), Condition::new(SectionState::Waiting, "no cluster answers; 1 paused, 2 unreachable"));
        counted.states.insert(ObjectState::Failing, 3);
        assert_eq!(of(&counted), Condition::new(SectionState::Failing, "3 failing, 2 unreachable"));
        counted.suspended = vec![monitoring(); 5];
        let message = "deletions of SelectorSyncSet monitoring, SelectorSyncSet monitoring, SelectorSyncSet monitoring, \
            2 others wait for `towline approve syncsets`; 3 failing, 2 unreachable";
        assert_eq!(of(&counted), Condition::new(SectionState::Held, message));
        counted.more_suspended = 10;
        let message = "deletions of SelectorSyncSet monitoring, SelectorSyncSet monitoring, SelectorSyncSet monitoring, \
            at least 2 others wait for `towline approve syncsets`; 3 failing, 2 unreachable";
        assert_eq!(of(&counted), Condition::new(SectionState::Held, message));
        let mut unreadable = counted.clone();
        unreadable.suspended.iter_mut().for_each(|suspended| suspended.cause = Cause::Unreadable);
        let message = "deletions are held of SelectorSyncSet monitoring, SelectorSyncSet monitoring, SelectorSyncSet monitoring, \
            12 others; 3 failing, 2 unreachable";
        assert_eq!(of(&unreadable), Condition::new(SectionState::Held, message));
        counted.more_suspended = 0;
        // An approval does not help the others.
        for suspended in &mut counted.suspended[1..] {
            (suspended.cause, suspended.name) = (Cause::Unreadable, "unreadable".to_owned());
        }
        let message =
            "deletions of SelectorSyncSet monitoring wait for `towline approve syncsets`; 3 failing, 2 unreachable";
        assert_eq!(of(&counted), Condition::new(SectionState::Held, message));
        counted.suspended.truncate(3);
        counted.suspended.remove(0);
        let message =
            "deletions are held of SelectorSyncSet unreadable, SelectorSyncSet unreadable; 3 failing, 2 unreachable";
        assert_eq!(of(&counted), Condition::new(SectionState::Held, message));
        counted.suspended.clear();
        (counted.states, counted.stopped) = ([(ObjectState::InStep, 6)].into(), vec![shown_for_tests()]);
        let message = "the rollout of SyncSet team-a/base has stopped";
        assert_eq!(of(&counted), Condition::new(SectionState::Failing, message));
        let failed = Latest { failure: Some("refused".to_owned()), ..latest(counted) };
        assert_eq!(condition(&failed).state, SectionState::Blocked);
        assert_eq!(condition(&Latest::default()), Condition::new(SectionState::NotReady, NOT_COUNTED));
    }
}

//! What the admin server shows of syncsets.

pub mod overview;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::config::SYNCSETS;
use super::metrics::SyncsetMetrics;
use super::plan::guard::Cause;
use super::plan::status::Reason;
use super::run::counts::{Counted, FailingSyncset, SyncState, UnreachableCluster};
use super::run::dispatch;
use super::run::dispatch::{DispatchError, SuspendedSyncset};
use crate::cluster::full_text;
use crate::config::SectionName;
use crate::guard;
use crate::telemetry::{self, Condition, Facts, Family, Held, NotReady, ObjectState, Readiness, Refused, SectionState};
use overview::{Latest, Overview};

/// Names in the section's message.
const MOST_NAMES: usize = 3;
/// Held syncsets in the section's report; all are in the list of what is held.
const MOST_HELD: usize = 20;
const NO_CLUSTER: &str = "no cluster answers";
const NOT_COUNTED: &str = "the clusters have not been counted yet";

pub(super) struct SyncsetReport {
    name: SectionName,
    overview: Overview,
}

impl SyncsetReport {
    pub(super) fn new(name: SectionName, overview: Overview) -> Self {
        Self { name, overview }
    }
}

impl SyncsetReport {
    async fn approve_named(&self, name: Option<&str>) -> Result<Value, Refused> {
        let approved = dispatch::approve(self.overview.database(), name).await;
        let approved = approved.map_err(|error| refused("approve deletions", error))?;
        self.overview.count_again();
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
        DispatchError::Ambiguous { .. } => Refused::Conflict { reason: full_text(&error) },
        error => Refused::Failed { step, source: error.into() },
    }
}

/// What was counted, as the condition of a section is made of it.
fn facts(latest: &Latest) -> Facts {
    let objects = |counted: &Counted| {
        let states = [
            (ObjectState::InStep, SyncState::InStep),
            (ObjectState::Pending, SyncState::Due),
            (ObjectState::Failing, SyncState::Failing),
            (ObjectState::Held, SyncState::Held),
            (ObjectState::Paused, SyncState::Paused),
        ];
        states.map(|(object, state)| (object, counted.of(state))).into()
    };
    let reason = NOT_COUNTED.to_owned();
    Facts {
        database: latest.failure.clone(),
        not_ready: latest.counted.is_none().then_some(NotReady { reason, unreachable: false }),
        held: latest.counted.as_ref().filter(|counted| !counted.suspended.is_empty()).map(because),
        failing: latest.counted.as_ref().and_then(refused_kubeconfigs),
        waiting: latest.counted.as_ref().filter(|counted| no_cluster_answers(counted)).map(|_| NO_CLUSTER.to_owned()),
        objects: latest.counted.as_ref().map(objects).unwrap_or_default(),
        ..Facts::default()
    }
}

/// The names of some held syncsets.
fn because(counted: &Counted) -> String {
    let mut names: Vec<String> = counted.suspended.iter().take(MOST_NAMES).map(SuspendedSyncset::label).collect();
    let others = counted.suspended.len() - names.len();
    if others > 0 {
        names.push(format!("{others} others"));
    }
    let names = names.join(", ");
    if counted.suspended.iter().all(|suspended| suspended.cause == Cause::Unreadable) {
        return format!("deletions are held of {names}");
    }
    guard::waits_for_approval(format_args!("deletions of {names}"), SYNCSETS)
}

/// Nothing but a change of the document or of the configuration helps.
fn refused_kubeconfigs(counted: &Counted) -> Option<String> {
    match counted.refused {
        0 => None,
        1 => Some("1 kubeconfig is refused".to_owned()),
        more => Some(format!("{more} kubeconfigs are refused")),
    }
}

/// Of those that are not paused.
fn no_cluster_answers(counted: &Counted) -> bool {
    let served: usize = counted.states.values().sum::<usize>() - counted.of(SyncState::Paused);
    served > 0 && counted.of(SyncState::Unreachable) == served
}

/// Some clusters never answer, and no operator of Towline has to act: they are counted and do not make the section unwell, unless there
/// are no others.
fn condition(latest: &Latest) -> Condition {
    let mut condition = Condition::of(&facts(latest));
    let is_behind = |counted: &Counted| counted.dispatcher.cursor < counted.dispatcher.newest;
    // Which clusters these changes concern is not known yet.
    if condition.state > SectionState::Pending && latest.counted.as_ref().is_some_and(is_behind) {
        let separator = if condition.message.is_empty() { "" } else { "; " };
        let message = format!("changes are being dispatched{separator}{}", condition.message);
        condition = Condition::new(SectionState::Pending, message);
    }
    let unreachable = latest.counted.as_ref().map(|counted| counted.of(SyncState::Unreachable)).unwrap_or_default();
    if unreachable > 0 {
        let separator = if condition.message.is_empty() { "" } else { ", " };
        condition.message = format!("{}{separator}{unreachable} unreachable", condition.message);
    }
    condition
}

fn row(latest: &Latest) -> telemetry::Overview {
    let counted = latest.counted.clone().unwrap_or_default();
    telemetry::Overview {
        flow: "hub→clusters".to_owned(),
        subject: "clusters".to_owned(),
        total: counted.states.values().sum(),
        in_step: counted.of(SyncState::InStep),
        oldest_seconds: counted.oldest.map(|age| age.as_secs_f64()),
    }
}

fn report(latest: &Latest) -> Value {
    let Some(counted) = &latest.counted else { return json!({}) };
    let states: Map<String, Value> =
        counted.states.iter().map(|(state, clusters)| (state.as_str().to_owned(), json!(clusters))).collect();
    let (dispatcher, work) = (&counted.dispatcher, &counted.work);
    let held = counted.suspended.iter().take(MOST_HELD).map(held);
    let failures = counted.failures.iter().map(failure);
    let silent = counted.unreachable.iter().map(unreachable);
    json!({
        "as_of_seconds": latest.counted_at.map(|at| at.elapsed().as_secs()),
        "clusters": states,
        "held_syncsets": counted.suspended.len(),
        "refused_kubeconfigs": counted.refused,
        "not_in_step": held.chain(failures).chain(silent).collect::<Vec<_>>(),
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

/// As the reports of all jobs list what is not in step.
fn held(held: &SuspendedSyncset) -> Value {
    let since = held.since.map(|since| Timestamp::now().duration_since(since).as_secs().max(0));
    let cause = format!("would delete on {} of {} clusters: {}", held.clusters, held.tracks, held.cause.reason());
    json!({"key": held.label(), "state": "held", "for_seconds": since, "cause": cause, "next_step": held.remedy()})
}

fn failure(failing: &FailingSyncset) -> Value {
    let FailingSyncset { cluster, syncset, reason, message, age } = failing;
    let cause = format!("{syncset}: {message}");
    let next_step = Reason::of_name(reason).map(Reason::next_step);
    json!({"key": cluster, "state": "failing", "for_seconds": age.as_secs(), "syncset": syncset, "reason": reason, "cause": cause,
        "next_step": next_step})
}

fn unreachable(silent: &UnreachableCluster) -> Value {
    let UnreachableCluster { cluster, condition } = silent;
    let mut shown = json!({"key": cluster, "state": "unreachable"});
    if let (Some((reason, message, since)), Some(fields)) = (condition, shown.as_object_mut()) {
        fields.insert("for_seconds".to_owned(), json!(Timestamp::now().duration_since(*since).as_secs().max(0)));
        fields.insert("reason".to_owned(), json!(reason.as_str()));
        fields.insert("cause".to_owned(), json!(message));
        fields.insert("next_step".to_owned(), json!(reason.next_step()));
    }
    shown
}

impl telemetry::Section for SyncsetReport {
    fn name(&self) -> &SectionName {
        &self.name
    }

    fn job(&self) -> &'static str {
        SYNCSETS
    }

    fn readiness(&self) -> Readiness {
        facts(&self.overview.latest()).readiness()
    }

    fn condition(&self) -> Condition {
        condition(&self.overview.latest())
    }

    fn overview(&self) -> telemetry::Overview {
        row(&self.overview.latest())
    }

    fn report(&self) -> Value {
        report(&self.overview.latest())
    }

    /// The gauges are set when the clusters are counted.
    fn refresh(&self) {}

    fn count(&self) -> BoxFuture<'_, ()> {
        self.overview.count_now().boxed()
    }

    /// From the database: what was counted is some seconds old, and an approval is for what is held now.
    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        async {
            let held = dispatch::suspended(self.overview.database()).await;
            let held = held.map_err(|error| refused("list held deletions", error))?;
            Ok(Held { because: None, objects: held.iter().map(SuspendedSyncset::as_object).collect() })
        }
        .boxed()
    }

    fn approve(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        self.approve_named(None).boxed()
    }

    fn approve_one<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        self.approve_named(Some(name)).boxed()
    }

    fn families(&self) -> Vec<Family> {
        self.overview.latest().applied.as_ref().map(SyncsetMetrics::families).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::documents::Counts;
    use crate::syncset::run::counts::DispatcherState;
    use crate::telemetry::SectionState;

    fn counted() -> Counted {
        let states = [
            (SyncState::Paused, 1),
            (SyncState::Unreachable, 2),
            (SyncState::Failing, 3),
            (SyncState::Held, 4),
            (SyncState::Due, 5),
            (SyncState::InStep, 6),
        ];
        Counted {
            states: states.into(),
            oldest: Some(Duration::from_millis(1500)),
            failures: vec![FailingSyncset {
                cluster: "team-a/west-1".to_owned(),
                syncset: "SyncSet team-a/base".to_owned(),
                reason: "Forbidden".to_owned(),
                message: "failed to apply resource 0: forbidden".to_owned(),
                age: Duration::from_secs(7),
            }],
            refused: 0,
            unreachable: Vec::new(),
            suspended: Vec::new(),
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
            clusters: 12,
            tracks: 20,
            since: None,
        }
    }

    #[test]
    fn the_report_has_each_state_what_fails_what_is_held_and_how_far_the_dispatcher_is() {
        let shown = report(&latest(Counted { suspended: vec![monitoring()], ..counted() }));
        assert_eq!(
            shown,
            json!({
                "as_of_seconds": null,
                "clusters": {"paused": 1, "unreachable": 2, "failing": 3, "held": 4, "due": 5, "in_step": 6},
                "held_syncsets": 1,
                "refused_kubeconfigs": 0,
                "not_in_step": [
                    {"key": "SelectorSyncSet monitoring", "state": "held", "for_seconds": null,
                        "cause": "would delete on 12 of 20 clusters: most of its objects there would be deleted",
                        "next_step": "take the change back, or `towline approve syncsets monitoring`"},
                    {"key": "team-a/west-1", "state": "failing", "for_seconds": 7, "syncset": "SyncSet team-a/base",
                        "reason": "Forbidden", "cause": "SyncSet team-a/base: failed to apply resource 0: forbidden",
                        "next_step": "grant the right to the account of the kubeconfig"},
                ],
                "dispatcher": {"holder": "towline-1", "cursor": "41", "newest": "43", "lag_seconds": 2.0},
                "work": {"running": 8, "ready": 9, "waiting": 10, "oldest_seconds": null},
            })
        );
        let row = row(&latest(counted()));
        assert_eq!((row.in_step, row.total, row.oldest_seconds), (6, 21, Some(1.5)));
    }

    #[test]
    fn what_an_operator_has_to_do_makes_the_section_unwell_and_clusters_that_do_not_answer_do_not() {
        let mut counted = Counted { states: [(SyncState::InStep, 6), (SyncState::Unreachable, 2)].into(), ..counted() };
        let of = |counted: &Counted| condition(&latest(counted.clone()));
        assert_eq!(of(&counted), Condition::new(SectionState::Pending, "changes are being dispatched, 2 unreachable"));
        let paused = Counted { states: [(SyncState::InStep, 6), (SyncState::Paused, 1)].into(), ..counted.clone() };
        assert_eq!(of(&paused), Condition::new(SectionState::Pending, "changes are being dispatched; 1 paused"));
        counted.dispatcher.cursor = counted.dispatcher.newest;
        assert_eq!(of(&counted), Condition::new(SectionState::Ready, "2 unreachable"));
        let refused = Counted { refused: 1, ..counted.clone() };
        assert_eq!(of(&refused), Condition::new(SectionState::Failing, "1 kubeconfig is refused, 2 unreachable"));
        let alone = Counted { states: [(SyncState::Unreachable, 2), (SyncState::Paused, 1)].into(), ..counted.clone() };
        assert_eq!(of(&alone), Condition::new(SectionState::Waiting, "no cluster answers; 1 paused, 2 unreachable"));
        counted.states.insert(SyncState::Failing, 3);
        assert_eq!(of(&counted), Condition::new(SectionState::Failing, "3 failing, 2 unreachable"));
        counted.suspended = vec![monitoring(); 5];
        let message = "deletions of SelectorSyncSet monitoring, SelectorSyncSet monitoring, SelectorSyncSet monitoring, \
            2 others wait for `towline approve syncsets`; 3 failing, 2 unreachable";
        assert_eq!(of(&counted), Condition::new(SectionState::Held, message));
        let failed = Latest { failure: Some("refused".to_owned()), ..latest(counted) };
        assert_eq!(condition(&failed).state, SectionState::Blocked);
        assert_eq!(condition(&Latest::default()), Condition::new(SectionState::NotReady, NOT_COUNTED));
    }
}

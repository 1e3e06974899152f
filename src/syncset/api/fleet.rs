//! The clusters of a fleet by state: the routes, for the page and for whoever counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{NAMESPACE, SELECTOR, SyncsetApi, namespaces};
use crate::documents::{Filter, Kind, Problem, ProblemKind};
use crate::job::routes::{ApiRequest, QueryParameter, QueryValue, Reach, Right};
use crate::status::ObjectState;
use crate::syncset::run::counts::CLUSTER_STATES;
use crate::syncset::run::counts::fleet::{
    self, HELD, ListedCluster, OUTCOMES, Selection, States, SyncsetFilter, states_within,
};
use crate::syncset::run::dispatch::{DispatchError, SuspendedSyncset, suspended_within};

/// Most groups, held syncsets, and clusters of an answer.
const MOST: u32 = 200;
/// Clusters of a page unless its request says.
const DEFAULT: u32 = 100;

pub(super) const PARAMETERS: &[QueryParameter] = &[
    NAMESPACE,
    QueryParameter {
        name: "groupBy",
        about: "A label, by whose values the clusters are counted as well",
        value: QueryValue::Text,
    },
];

pub(super) const OF_PAGE: &[QueryParameter] = &[
    NAMESPACE,
    SELECTOR,
    QueryParameter {
        name: "state",
        about: "Only clusters in this state: paused, unreachable, failing, held, pending or in_step",
        value: QueryValue::Text,
    },
    QueryParameter { name: "text", about: "Only clusters with this in namespace/name", value: QueryValue::Text },
    QueryParameter {
        name: "syncset",
        about: "Only clusters on which this one was tried, each with how it is there: SyncSet/NAMESPACE/NAME or SelectorSyncSet/NAME",
        value: QueryValue::Text,
    },
    QueryParameter {
        name: "outcome",
        about: "With `syncset`: only clusters where it is so: not_applied, failed, late, unknown, progressing, current, applied, or held",
        value: QueryValue::Text,
    },
    QueryParameter {
        name: "limit",
        about: "Most clusters; 100 by default",
        value: QueryValue::Number { least: 1, most: MOST },
    },
    QueryParameter {
        name: "continue",
        about: "The `continue` of the page before, with its other parameters",
        value: QueryValue::Text,
    },
];

/// The clusters that the caller may read, counted.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Fleet {
    /// How many there are.
    clusters: usize,
    /// How many are in each state: the first of `paused`, `unreachable`, `failing`, `held`, `pending` and `in_step` that holds.
    states: BTreeMap<String, usize>,
    /// With `groupBy`: the same for each value of the label, those with most clusters first; at most 200.
    groups: Vec<FleetGroup>,
    /// How many more there are.
    #[serde(rename = "groupsMore")]
    groups_more: usize,
    /// The syncsets whose deletions are held; at most 200.
    held: Vec<HeldSyncSet>,
    /// How many more there are.
    #[serde(rename = "heldMore")]
    held_more: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct FleetGroup {
    /// The value of the label; absent for clusters without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    value: Option<String>,
    /// How many clusters there are.
    clusters: usize,
    /// How many are in each state.
    states: BTreeMap<String, usize>,
}

/// A syncset that deletes nothing until that is approved.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct HeldSyncSet {
    /// `SelectorSyncSet monitoring`.
    syncset: String,
    /// On how many clusters it would delete objects.
    clusters: usize,
    /// Why that is held.
    reason: String,
    /// What an operator can do.
    #[serde(rename = "nextStep")]
    next_step: String,
}

/// Clusters with their states.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct ClusterStateList {
    /// By namespace and name.
    items: Vec<ClusterState>,
    /// Where the next page begins; absent on the last one.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// A cluster, and why it is in its state.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct ClusterState {
    /// The namespace.
    namespace: String,
    /// The name.
    name: String,
    /// The labels.
    labels: BTreeMap<String, String>,
    /// `paused`, `unreachable`, `failing`, `held`, `pending` or `in_step`.
    state: String,
    /// Seconds that it is in this state, where that is known: since it does not answer, since the first of its failures, since it is due.
    #[serde(rename = "forSeconds", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    for_seconds: Option<u64>,
    /// How many syncsets fail on it.
    failing: usize,
    /// The one that failed last: `SyncSet team-a/base`; with the parameter `syncset`, that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    syncset: Option<String>,
    /// With the parameter `syncset`: how that is on the cluster. `not_applied`, or its health: `failed`, `late` (in another state for too long),
    /// `unknown`, `progressing`, `current`; `applied` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    outcome: Option<String>,
    /// Why that fails or does not work, or why the cluster is not reached: a word of a closed set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// The same in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    message: Option<String>,
}

pub(super) async fn count(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<Fleet, Problem> {
    let namespaces = namespaces(&request)?;
    let label = request.parameter("groupBy").filter(|label| !label.is_empty());
    let fleet::Counts { states, groups, more } =
        states_within(&api.database, &namespaces, label, i64::from(MOST)).await?;
    let is_everywhere = request.rights.reach(Right::Read) == Reach::Everywhere;
    let mut of_held = namespaces;
    // One without a namespace concerns the clusters of all of them.
    if is_everywhere && let Some(names) = &mut of_held.names {
        names.push(String::new());
    }
    let held =
        suspended_within(&api.database, |parameters| of_held.condition(parameters), Some(i64::from(MOST)), false);
    let (held, held_more) = held.await.map_err(unreadable)?;
    let group = |(value, states): (Option<String>, States)| FleetGroup {
        value,
        clusters: states.values().sum(),
        states: by_name(&states),
    };
    Ok(Fleet {
        clusters: states.values().sum(),
        states: by_name(&states),
        groups: groups.into_iter().map(group).collect(),
        groups_more: more,
        held: held.iter().map(shown).collect(),
        held_more,
    })
}

/// All states, so that none disappears from the answer with its last cluster.
fn by_name(states: &States) -> BTreeMap<String, usize> {
    let count = |state: ObjectState| states.get(&state).copied().unwrap_or_default();
    CLUSTER_STATES.into_iter().map(|state| (state.as_str().to_owned(), count(state))).collect()
}

fn shown(held: &SuspendedSyncset) -> HeldSyncSet {
    HeldSyncSet {
        syncset: held.label(),
        clusters: held.clusters,
        reason: held.cause.reason().to_owned(),
        next_step: held.remedy(),
    }
}

fn unreadable(error: DispatchError) -> Problem {
    Problem::new(ProblemKind::Unavailable, "what is held could not be read").caused_by(error, true)
}

pub(super) async fn page(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<ClusterStateList, Problem> {
    let given = |name: &str| request.parameter(name).filter(|text| !text.is_empty());
    let wrong = |name: &str, allowed: &str| {
        Problem::new(ProblemKind::Parameter, format!("parameter {name} is not valid: {allowed}"))
    };
    let state = given("state").map(|name| {
        let found = CLUSTER_STATES.into_iter().find(|state| state.as_str() == name);
        found.ok_or_else(|| wrong("state", "allowed are paused, unreachable, failing, held, pending and in_step"))
    });
    let outcome = given("outcome").map(|text| {
        let found = OUTCOMES.into_iter().chain([HELD]).find(|outcome| *outcome == text && given("syncset").is_some());
        found.ok_or_else(|| wrong("outcome", &format!("with syncset, allowed are {} and {HELD}", OUTCOMES.join(", "))))
    });
    let outcome = outcome.transpose()?;
    let syncset = given("syncset").map(|text| {
        syncset(text, outcome)
            .ok_or_else(|| wrong("syncset", "it must be SyncSet/NAMESPACE/NAME or SelectorSyncSet/NAME"))
    });
    let after = given("continue").map(|text| {
        let parts = text.split_once('/').map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        parts.ok_or_else(|| wrong("continue", "it is not of an earlier page"))
    });
    let mut filter = Filter::of(Kind::Cluster);
    if let Some(selector) = given(SELECTOR.name) {
        filter = filter.selected_by(selector)?;
    }
    let selection = Selection {
        namespaces: namespaces(&request)?,
        filter,
        state: state.transpose()?,
        text: given("text").unwrap_or_default().to_owned(),
        syncset: syncset.transpose()?,
        after: after.transpose()?,
        limit: usize::try_from(request.number("limit").unwrap_or(DEFAULT)).unwrap_or_default(),
    };
    let page = selection.page(&api.database).await?;
    let next = page.next.map(|(namespace, name)| format!("{namespace}/{name}"));
    Ok(ClusterStateList { items: page.clusters.into_iter().map(of_cluster).collect(), next })
}

fn of_cluster(cluster: ListedCluster) -> ClusterState {
    let ListedCluster { namespace, name, labels, state, age, failing, syncset, outcome, reason, message } = cluster;
    let (state, for_seconds) = (state.as_str().to_owned(), age.map(|age| age.as_secs()));
    ClusterState { namespace, name, labels, state, for_seconds, failing, syncset, outcome, reason, message }
}

fn syncset(text: &str, outcome: Option<&'static str>) -> Option<SyncsetFilter> {
    let mut parts = text.split('/');
    let kind = Kind::of_name(parts.next()?).filter(|kind| matches!(kind, Kind::SyncSet | Kind::SelectorSyncSet))?;
    let namespace = if kind == Kind::SyncSet { parts.next()? } else { "" };
    let name = parts.next()?;
    let found = SyncsetFilter { kind, namespace: namespace.to_owned(), name: name.to_owned(), outcome };
    parts.next().is_none().then_some(found)
}

//! Rollouts of syncsets: the routes that show and steer them.

use std::sync::Arc;

use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{NAMESPACE, SyncsetApi, namespaces, of_store};
use crate::config::names::{is_label, is_subdomain};
use crate::documents::{Fault, Key, Kind, Problem, ProblemKind, not_found};
use crate::job::routes::{ApiDescription, ApiRequest, ApiRoute, QueryParameter, QueryValue, Right};
use crate::syncset::plan::rollout::{Counts, RolloutPhase};
use crate::syncset::run::dispatch::waves;
use crate::syncset::run::rollouts::{self, Order, OrderError, Revision, ShownRollout, possible};
use crate::syncset::run::store::StoreError;

/// Most rollouts of an answer.
const MOST: u32 = 200;

const PARAMETERS: &[QueryParameter] = &[
    NAMESPACE,
    QueryParameter {
        name: "limit",
        about: "Most rollouts; 200 by default",
        value: QueryValue::Number { least: 1, most: MOST },
    },
];

/// Rollouts of syncsets.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct RolloutStateList {
    /// Those first that have stopped, and those last that are complete.
    items: Vec<RolloutState>,
    /// How many more there are.
    more: usize,
}

/// How far the rollout of a syncset is.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RolloutState {
    /// `SyncSet` or `SelectorSyncSet`.
    kind: String,
    /// The syncset's namespace; absent for a `SelectorSyncSet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    namespace: Option<String>,
    /// The syncset's name.
    name: String,
    /// `Running`, `Stopped`, `RollingBack`, `RolledBack` or `Complete`.
    state: String,
    /// What it waits for, or why it has stopped: a word of a closed set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// The same in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    message: Option<String>,
    /// The revision to which it leads.
    revision: i32,
    /// The revision that clusters have whose turn has not come; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stable: Option<i32>,
    /// The revision that the document has.
    newest: i32,
    /// The wave that runs; absent unless one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    wave: Option<String>,
    /// Since when it is in this state.
    #[schema(value_type = String, format = "date-time")]
    since: Timestamp,
    /// Seconds since then.
    for_seconds: u64,
    /// Who has brought it into this state by a command; absent if nobody has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    actor: Option<String>,
    /// What somebody can do, if it does not go on without.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_step: Option<String>,
    /// The actions that are possible now.
    commands: Vec<String>,
    /// While it is `RollingBack` or `RolledBack`: objects that `revision` names, and the newest revision or one that clusters have does not, each
    /// in words. They are sent again where they were deleted. Absent in a list and after a command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sent_again: Vec<String>,
    /// Each wave with its clusters; absent in a list and after a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    waves: Option<Vec<RolloutWaveState>>,
}

/// How far a wave is.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct RolloutWaveState {
    /// Its name; `rest` has the clusters that are in no other.
    name: String,
    /// `waiting`, `running` or `passed`.
    state: String,
    /// How many clusters are in it.
    clusters: usize,
    /// How many of them have had their turn.
    released: usize,
    /// How many of these have applied the revision, and work if that is read.
    done: usize,
    /// How many of these have failed.
    failed: usize,
    /// How many have not had their turn and are paused, or do not answer.
    away: usize,
}

/// The revisions of a syncset that are kept.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct RolloutRevisionList {
    /// The newest first.
    items: Vec<RolloutRevision>,
}

/// A content that a syncset has or had.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct RolloutRevision {
    /// Its number.
    revision: i32,
    /// The document's generation that had it first.
    generation: i64,
    /// When it was made.
    #[schema(value_type = String, format = "date-time")]
    made: Timestamp,
    /// The name of the token that wrote it, as far as that is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    author: Option<String>,
    /// On how many clusters it was applied last.
    clusters: usize,
    /// Whether clusters have it whose turn has not come.
    stable: bool,
    /// Whether the rollout leads to it.
    goal: bool,
    /// Whether the document has it.
    newest: bool,
}

/// What is to be done with a rollout.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes the body, which is read with a fault for each field")]
pub(super) struct RolloutOrder {
    /// What to do.
    action: RolloutAction,
    /// Of `promote`: the name of the wave that is to be followed by the next one. If another one waits by then, nothing is done.
    #[schema(nullable = false)]
    wave: Option<String>,
    /// Of `undo`: the revision to go to, instead of the stable one.
    #[schema(nullable = false, minimum = 1)]
    to: Option<i32>,
}

/// What can be done with a rollout.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RolloutAction {
    Pause,
    Resume,
    Promote,
    Abort,
    Undo,
}

/// The path, the right and the words of an operation for each of both kinds.
struct Both {
    method: Method,
    paths: [&'static str; 2],
    ids: [&'static str; 2],
    right: Right,
    summary: &'static str,
    answer: &'static str,
}

impl Both {
    fn routes<A: Serialize + ToSchema, F: Future<Output = Result<A, Problem>> + Send + 'static>(
        self,
        api: &Arc<SyncsetApi>,
        handler: fn(Arc<SyncsetApi>, Kind, ApiRequest) -> F,
    ) -> impl Iterator<Item = ApiRoute> {
        let kinds = [Kind::SyncSet, Kind::SelectorSyncSet];
        kinds.into_iter().zip(self.paths).zip(self.ids).map(move |((kind, path), id)| {
            let (tag, summary, answer) = (kind.plural(), self.summary, self.answer);
            let api = Arc::clone(api);
            let description = ApiDescription { id, tag, summary, answer };
            ApiRoute::new::<A, _>((self.method.clone(), path), self.right, description, move |request| {
                handler(Arc::clone(&api), kind, request)
            })
        })
    }
}

pub(super) fn routes(api: &Arc<SyncsetApi>) -> Vec<ApiRoute> {
    const ONE: [&str; 2] = ["/v1/syncsets/{namespace}/{name}/rollout", "/v1/selectorsyncsets/{name}/rollout"];
    let lists = Arc::clone(api);
    let all = ApiRoute::new::<RolloutStateList, _>(
        (Method::GET, "/v1/rollouts"),
        Right::Read,
        ApiDescription {
            id: "listRollouts",
            tag: "syncsets",
            summary: "The rollouts of the syncsets that the caller may read",
            answer: "The rollouts",
        },
        move |request| list(Arc::clone(&lists), request),
    );
    let shows = Both {
        method: Method::GET,
        paths: ONE,
        ids: ["getSyncSetRollout", "getSelectorSyncSetRollout"],
        right: Right::Read,
        summary: "How far the rollout of a syncset is, wave by wave",
        answer: "The rollout",
    };
    let revisions_of = Both {
        method: Method::GET,
        paths: ["/v1/syncsets/{namespace}/{name}/rollout/revisions", "/v1/selectorsyncsets/{name}/rollout/revisions"],
        ids: ["listSyncSetRevisions", "listSelectorSyncSetRevisions"],
        right: Right::Read,
        summary: "The contents of a syncset that are kept, and how many clusters have each",
        answer: "The revisions",
    };
    let steers = Both {
        method: Method::POST,
        paths: ONE,
        ids: ["steerSyncSetRollout", "steerSelectorSyncSetRollout"],
        right: Right::Write,
        summary: "Pause, resume, promote, abort or undo the rollout of a syncset",
        answer: "The rollout as it is then",
    };
    let mut routes = vec![all.with_parameters(PARAMETERS).reading_many()];
    let reads = shows.routes(api, one).chain(revisions_of.routes(api, revisions));
    routes.extend(reads.map(|route| route.failing_with(&[ProblemKind::NotFound]).reading_many()));
    routes.extend(steers.routes(api, steer).map(|route| {
        // An order waits for the row of its rollout, and reads whether a revision is kept.
        route.with_body::<RolloutOrder>().answering(StatusCode::OK).reading_many().failing_with(&[
            ProblemKind::NotFound,
            ProblemKind::Conflict,
            ProblemKind::ChangeQuota,
            ProblemKind::OutcomeUnknown,
        ])
    }));
    routes
}

/// The syncset of a request, in which the caller has this right.
fn key(kind: Kind, right: Right, request: &ApiRequest) -> Result<Key, Problem> {
    let (namespace, name) = (request.variable("namespace"), request.variable("name"));
    request.rights.require(right, Some(namespace).filter(|_| kind.is_namespaced()))?;
    let key = Key::new(kind, namespace, name);
    let is_named = is_subdomain(name) && (is_label(namespace) || !kind.is_namespaced());
    if is_named { Ok(key) } else { Err(not_found(&key)) }
}

fn unreadable(error: StoreError) -> Problem {
    of_store(ProblemKind::Unavailable, "the rollouts could not be read", error)
}

async fn list(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<RolloutStateList, Problem> {
    let limit = i64::from(request.number("limit").unwrap_or(MOST));
    let namespaces = namespaces(&request)?;
    let found = rollouts::rollouts(&api.database, |parameters| namespaces.condition(parameters), limit).await;
    let (shown, more) = found.map_err(unreadable)?;
    let now = Timestamp::now();
    Ok(RolloutStateList { items: shown.iter().map(|shown| RolloutState::of(shown, None, now)).collect(), more })
}

async fn one(api: Arc<SyncsetApi>, kind: Kind, request: ApiRequest) -> Result<RolloutState, Problem> {
    let key = key(kind, Right::Read, &request)?;
    let found = rollouts::one(&api.database, &key).await.map_err(unreadable)?;
    let shown = found.ok_or_else(|| without(&key))?;
    let waves = waves(&api.database, &key).await.map_err(|error| unreadable(error.into()))?;
    let mut state = RolloutState::of(&shown, waves.as_deref(), Timestamp::now());
    if matches!(shown.rollout.state, RolloutPhase::RollingBack | RolloutPhase::RolledBack) {
        state.sent_again = rollouts::sent_again(&api.database, &key).await.map_err(unreadable)?;
    }
    Ok(state)
}

async fn revisions(api: Arc<SyncsetApi>, kind: Kind, request: ApiRequest) -> Result<RolloutRevisionList, Problem> {
    let key = key(kind, Right::Read, &request)?;
    let found = rollouts::revisions(&api.database, &key).await.map_err(unreadable)?;
    if found.is_empty() {
        return Err(without(&key));
    }
    let of = |revision: Revision| RolloutRevision {
        revision: revision.number,
        generation: revision.generation,
        made: revision.made,
        author: revision.author,
        clusters: revision.clusters,
        stable: revision.is_stable,
        goal: revision.is_goal,
        newest: revision.is_newest,
    };
    Ok(RolloutRevisionList { items: found.into_iter().map(of).collect() })
}

async fn steer(api: Arc<SyncsetApi>, kind: Kind, request: ApiRequest) -> Result<RolloutState, Problem> {
    let key = key(kind, Right::Write, &request)?;
    let order = order(&request.body)?;
    let charged = Some(key.namespace.as_str()).filter(|_| request.rights.require(Right::Admin, None).is_err());
    if let Some(namespace) = charged {
        api.changes.admit(namespace)?;
        // Whatever comes of it: finding out that an order is refused is as much work as carrying it out.
        api.changes.count(namespace, 1);
    }
    match rollouts::carry_out(&api.database, &key, order, &request.author).await {
        Ok(shown) => Ok(RolloutState::of(&shown, None, Timestamp::now())),
        Err(OrderError::NoRollout) => Err(without(&key)),
        Err(error @ OrderError::OtherWave { .. }) => Err(Problem::new(ProblemKind::Conflict, error.to_string())),
        Err(OrderError::Refused { refused, possible }) => {
            let possible = if possible.is_empty() { "none".to_owned() } else { possible.join(", ") };
            Err(Problem::new(ProblemKind::Conflict, format!("{refused}; possible now: {possible}")))
        }
        Err(OrderError::Store(error)) => {
            let what = "the rollout may not have been changed; look at it before you ask again";
            Err(of_store(ProblemKind::OutcomeUnknown, what, error))
        }
    }
}

/// There is no such syncset, or it goes to all clusters at once.
fn without(key: &Key) -> Problem {
    let slash = if key.namespace.is_empty() { "" } else { "/" };
    let title = format!("there is no {} {}{slash}{} with a rollout", key.kind.name(), key.namespace, key.name);
    Problem::new(ProblemKind::NotFound, title)
}

fn order(body: &[u8]) -> Result<Order, Problem> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| Problem::new(ProblemKind::Malformed, format!("the body is not JSON: {error}")))?;
    let Value::Object(fields) = &body else {
        return Err(Problem::invalid(vec![Fault::new("", "no object").allowed("{\"action\": …}")]));
    };
    let mut faults: Vec<Fault> = fields
        .keys()
        .filter(|field| !matches!(field.as_str(), "action" | "wave" | "to"))
        .map(|field| Fault::new(format!("/{field}"), "an unknown field").allowed("action, wave, to"))
        .collect();
    let wave = fields.get("wave").filter(|wave| !wave.is_null());
    let wave_name = wave.and_then(Value::as_str).map(str::to_owned);
    let to = fields.get("to").filter(|to| !to.is_null());
    let revision = to.and_then(Value::as_i64).and_then(|to| i32::try_from(to).ok()).filter(|to| *to > 0);
    let name = fields.get("action").and_then(Value::as_str).unwrap_or_default();
    let is_named = wave_name.is_some();
    let order = Order::of_name(name, wave_name, revision);
    if order.is_none() {
        let found = fields.get("action").map_or_else(|| "missing".to_owned(), ToString::to_string);
        faults.push(Fault::new("/action", found).allowed("pause, resume, promote, abort or undo"));
    }
    if wave.is_some() && !is_named {
        faults
            .push(Fault::new("/wave", wave.map(ToString::to_string).unwrap_or_default()).allowed("the name of a wave"));
    } else if wave.is_some() && !matches!(order, None | Some(Order::Promote { .. })) {
        faults.push(Fault::new("/wave", "a wave").allowed("none: only promote is of one"));
    }
    if to.is_some() && revision.is_none() {
        faults.push(
            Fault::new("/to", to.map(ToString::to_string).unwrap_or_default()).allowed("the number of a revision"),
        );
    } else if to.is_some() && !matches!(order, None | Some(Order::Undo { .. })) {
        faults.push(Fault::new("/to", "a revision").allowed("none: only undo leads to one"));
    }
    order.filter(|_| faults.is_empty()).ok_or_else(|| Problem::invalid(faults))
}

impl RolloutState {
    fn of(shown: &ShownRollout, waves: Option<&[(String, Counts)]>, now: Timestamp) -> Self {
        let ShownRollout { kind, namespace, name, rollout, wave, since, actor, .. } = shown;
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let is_in_waves = match rollout.state {
            RolloutPhase::Running => true,
            RolloutPhase::Stopped => Some(rollout.goal) != rollout.stable && rollout.goal == rollout.newest,
            RolloutPhase::RollingBack | RolloutPhase::RolledBack | RolloutPhase::Complete => false,
        };
        let state_of = |index: usize| match index.cmp(&rollout.wave) {
            _ if rollout.state == RolloutPhase::Complete => "passed",
            _ if !is_in_waves => "waiting",
            std::cmp::Ordering::Less => "passed",
            std::cmp::Ordering::Equal => "running",
            std::cmp::Ordering::Greater => "waiting",
        };
        let of_wave = |(index, (name, counts)): (usize, &(String, Counts))| RolloutWaveState {
            name: name.clone(),
            state: state_of(index).to_owned(),
            clusters: counts.clusters,
            released: counts.released,
            done: counts.done,
            failed: counts.failed,
            away: counts.away,
        };
        Self {
            kind: kind.name().to_owned(),
            namespace: some(namespace),
            name: name.clone(),
            state: rollout.state.as_str().to_owned(),
            reason: some(rollout.reason.as_str()),
            message: some(&rollout.message),
            revision: rollout.goal,
            stable: rollout.stable,
            newest: rollout.newest,
            wave: some(wave).filter(|_| is_in_waves),
            since: *since,
            for_seconds: u64::try_from(now.duration_since(*since).as_secs()).unwrap_or_default(),
            actor: some(actor),
            next_step: shown.next_step(),
            commands: possible(rollout).into_iter().map(str::to_owned).collect(),
            sent_again: Vec::new(),
            waves: waves.map(|waves| waves.iter().enumerate().map(of_wave).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_order_is_one_of_five_and_only_promote_is_of_a_wave_and_only_undo_leads_to_a_revision() {
        let of = |body: &Value| order(body.to_string().as_bytes());
        for (body, expected) in [
            (json!({"action": "pause"}), Order::Pause),
            (json!({"action": "resume", "to": null}), Order::Resume),
            (json!({"action": "promote"}), Order::Promote { wave: None }),
            (json!({"action": "promote", "wave": "canary"}), Order::Promote { wave: Some("canary".to_owned()) }),
            (json!({"action": "abort"}), Order::Abort),
            (json!({"action": "undo"}), Order::Undo { to: None }),
            (json!({"action": "undo", "to": 3}), Order::Undo { to: Some(3) }),
        ] {
            assert_eq!(of(&body).ok(), Some(expected), "{body}");
        }
        for (body, places) in [
            (json!({}), vec!["/action"]),
            (json!("pause"), vec![""]),
            (json!({"action": "stop", "too": 3}), vec!["/too", "/action"]),
            (json!({"action": "undo", "to": 0}), vec!["/to"]),
            (json!({"action": "undo", "to": 3_000_000_000_i64}), vec!["/to"]),
            (json!({"action": "pause", "to": 3}), vec!["/to"]),
            (json!({"action": "promote", "wave": 3}), vec!["/wave"]),
            (json!({"action": "pause", "wave": "canary"}), vec!["/wave"]),
        ] {
            let problem = of(&body).err().map(|problem| problem.faults).unwrap_or_default();
            let found: Vec<_> = problem.iter().map(|fault| fault.pointer.as_str()).collect();
            assert_eq!(found, places, "{body}");
        }
        assert!(order(b"{").is_err_and(|problem| problem.kind == ProblemKind::Malformed));
    }
}

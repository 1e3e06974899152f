//! Who wants an object on a cluster, who sends it, how it is there, and what becomes of it when nobody wants it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, timeout, timeout_at};
use utoipa::ToSchema;
use uuid::Uuid;

use super::compared::listed;
use super::fields::taken;
use super::{ANSWER_WITHIN, Inspector, Unseen};
use crate::cluster::{KindId, ManagedFields, Metadata, harmless};
use crate::documents::{FieldPointer, Problem, SlotOwner};
use crate::syncset::plan::action::{Action, PassPlan};
use crate::syncset::plan::health::explained;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::naming::Names;
use crate::syncset::plan::object::{PRUNE, left_alone, may_end_by_itself};
use crate::syncset::plan::ownership::without;
use crate::syncset::plan::pass::{Input, Manager, Seen};
use crate::syncset::plan::rows::{AppliedRow, ClusterRow, Failure, ResultRow};
use crate::syncset::plan::seen::seen;
use crate::syncset::plan::snapshot::{Plan, Snapshot, StoredCluster};
use crate::syncset::plan::spec::{Behavior, Desired, Header, Known, Mode, Position, Rendering};
use crate::syncset::plan::wanted::{Deletions, Live, Scope, Wanted, placed};
use crate::syncset::run::store::{AskedObject, StoreError};
use crate::syncset::run::work::PrepareError;

/// Longest time for all of it: the wait, what is rendered, and two answers of the cluster.
const WITHIN: Duration = Duration::from_secs(20);
/// The state of what was sent as it is wanted.
const SENT: &str = "wins, sent";

/// What there is to know about one object on one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Whether the cluster answers, and when it is compared as a whole.
    pub cluster: String,
    /// The syncsets that want the object, in the order in which they are applied: the last one sends it.
    pub wanted_by: Vec<Wanting>,
    /// How the object is on the cluster now.
    pub live: String,
    /// Whether it works, by which rule, and since when; absent if the syncset that sends it has no `spec.health`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub health: Option<String>,
    /// What becomes of it when no syncset wants it any more.
    pub if_dropped: String,
}

/// A syncset that wants an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wanting {
    /// `SyncSet team-a/base`.
    pub syncset: String,
    /// `Sync` or `Upsert`.
    pub mode: String,
    /// `Apply`, `CreateOnly` or `CreateOrUpdate`.
    pub behavior: String,
    /// `resource 0` or `secret 1`.
    pub place: String,
    /// Whether it sends the object, and whether it has.
    pub state: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    #[error("there is no such cluster")]
    NoCluster,
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many clusters are looked at at the moment, by all or by this token.
    #[error(transparent)]
    NoSlot(Problem),
    /// Too much is rendered at the moment, or documents change again and again.
    #[error("the cluster's syncsets could not be rendered now")]
    Busy,
    /// Waiting does not help.
    #[error(transparent)]
    TooLarge(PrepareError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub kind: String,
    /// API group; none for whatever group a syncset names with this kind.
    pub group: Option<String>,
    /// Namespace; empty without one.
    pub namespace: String,
    pub name: String,
}

impl Asked {
    /// Whether a rollout is about to bring it.
    fn is_awaited(&self, names: &Names) -> bool {
        names.include(self.group.as_deref(), &self.kind, &self.namespace, &self.name)
    }

    fn as_stored(&self) -> AskedObject<'_> {
        let Self { kind, group, namespace, name } = self;
        AskedObject { kind, group: group.as_deref(), namespace, name }
    }

    fn is(&self, object: &ObjectRef, scopes: &Scopes) -> bool {
        let is_place =
            self.namespace.is_empty() || self.namespace == object.namespace || scopes.of(object) == Scope::Cluster;
        is_place && self.is_somewhere(object)
    }

    /// Whether it is this object but for the namespace.
    fn is_somewhere(&self, object: &ObjectRef) -> bool {
        let is_group = self.group.as_ref().is_none_or(|group| *group == object.group);
        is_group && self.kind == object.kind && self.name == object.name
    }
}

/// Whether objects of kinds are in namespaces, by group and kind, as far as it is known. Of a kind without them a namespace that a
/// document or an operator gives does not count.
#[derive(Debug, Default)]
struct Scopes(BTreeMap<(String, String), Scope>);

impl Scopes {
    fn of(&self, object: &ObjectRef) -> Scope {
        let known = self.0.get(&(object.group.clone(), object.kind.clone()));
        known.copied().unwrap_or(Scope::Unknown)
    }

    fn note(&mut self, group: &str, kind: &str, is_namespaced: bool) {
        let scope = if is_namespaced { Scope::Namespaced } else { Scope::Cluster };
        self.0.insert((group.to_owned(), kind.to_owned()), scope);
    }

    /// From the objects that were sent: their rows have no namespace if their kind has none.
    fn of_rows<'r>(rows: impl IntoIterator<Item = &'r AppliedRow>) -> Self {
        let mut scopes = Self::default();
        for AppliedRow { object, .. } in rows.into_iter().filter(|row| row.uid.is_some()) {
            scopes.note(&object.group, &object.kind, !object.namespace.is_empty());
        }
        scopes
    }

    /// The kinds of these objects of which it is not known and matters: documents and who asks give different namespaces.
    fn missing<'o>(
        &self,
        asked: &Asked,
        named: impl Iterator<Item = (&'o ObjectRef, Option<&'o String>)>,
    ) -> BTreeSet<KindId> {
        let (mut namespaces, mut missing) = (BTreeSet::from([asked.namespace.as_str()]), BTreeSet::new());
        for (object, api_version) in named.filter(|(object, _)| asked.is_somewhere(object)) {
            namespaces.insert(object.namespace.as_str());
            let unknown = api_version.filter(|_| self.of(object) == Scope::Unknown);
            missing.extend(unknown.map(|api_version| KindId::of(api_version, &object.kind)));
        }
        if namespaces.len() > 1 { missing } else { BTreeSet::new() }
    }
}

/// A syncset that wants the object.
struct Claim<'l> {
    live: &'l Live,
    place: Position,
    object: ObjectRef,
    /// What it sends, or why it can't.
    desired: Result<&'l Desired, &'l Failure>,
}

/// The syncset that sends the object, and what it sends; nothing if that does not render.
struct Winner {
    header: Header,
    desired: Option<Desired>,
}

impl Inspector {
    /// Explains an object on a cluster. It takes 20 s at most.
    /// `is_everywhere`: who asks may read what has no namespace.
    pub async fn explain(
        &self,
        cluster: Uuid,
        asked: &Asked,
        is_everywhere: bool,
        owner: SlotOwner,
    ) -> Result<Explanation, Unexplained> {
        let deadline = Instant::now() + WITHIN;
        let _slot = self.slot(owner).await.map_err(Unexplained::NoSlot)?;
        timeout_at(deadline, self.explain_with_slot(cluster, asked, is_everywhere))
            .await
            .map_err(|_| Unexplained::Busy)?
    }

    async fn explain_with_slot(
        &self,
        cluster: Uuid,
        asked: &Asked,
        is_everywhere: bool,
    ) -> Result<Explanation, Unexplained> {
        let (snapshot, _room) = self.preparer.snapshot(cluster, "").await.map_err(of_preparing)?;
        let plan = Plan::of(&snapshot);
        let Some(stored) = &snapshot.cluster else { return Err(Unexplained::NoCluster) };
        let pass_plan = PassPlan { is_full: true, ..PassPlan::default() };
        let deletions = |syncset: Uuid| snapshot.deletions(syncset);
        let prepared = self.preparer.prepare(&snapshot, &plan, &pass_plan, false, &deletions).await;
        let prepared = prepared.map_err(of_preparing)?;
        let applied = &prepared.input.applied;
        let scopes = self.scopes(stored, &prepared.input, asked).await;
        let claims = claims_on(&prepared.input.live, asked, &scopes);
        let sent = || applied.iter().find(|row| asked.is(&row.object, &scopes)).map(|row| &row.object);
        let object = claims.last().map(|claim| &claim.object).or_else(sent).cloned();
        // Without a namespace or a group, more than one may be meant: it is the one that is sent last.
        let claims: Vec<Claim<'_>> =
            claims.into_iter().filter(|claim| Some(&claim.object) == object.as_ref()).collect();
        let rows: Vec<AppliedRow> =
            applied.iter().filter(|row| Some(&row.object) == object.as_ref()).cloned().collect();
        let mut wanted_by = shown(&claims, &rows, &snapshot.results);
        let winner = claims
            .last()
            .map(|claim| Winner { header: claim.live.header.clone(), desired: claim.desired.ok().cloned() });
        let kept = object.as_ref().and_then(|object| kept(object, &prepared.input.live, &plan.awaited));
        // Others wait for its share of the budget, and the cluster may take long.
        drop(prepared);
        let ignored =
            winner.as_ref().and_then(|winner| winner.desired.as_ref()).map(|desired| left_alone(&desired.body));
        let api_version =
            winner.as_ref().and_then(|winner| winner.desired.as_ref()).map(|desired| &desired.api_version);
        let api_version = api_version.or_else(|| rows.first().map(|row| &row.api_version));
        let mut is_ending = false;
        let live = match object.as_ref().zip(api_version) {
            None if winner.is_some() => "not known: it was not sent yet".to_owned(),
            None if plan.awaited.iter().any(|names| asked.is_awaited(names)) => {
                "no syncset wants it yet: a rollout is about to bring it".to_owned()
            }
            None => {
                let selected: Vec<Uuid> = plan.live.iter().map(|live| live.header.id).collect();
                let namespace = &stored.document.namespace;
                let beside = self.store.syncsets_beside(namespace, asked.as_stored(), &selected, is_everywhere);
                not_wanted(&beside.await?)
            }
            Some((object, api_version)) => match self.look(stored, object, api_version).await {
                Err(unseen) => format!("not known: {}", unseen.text()),
                Ok(None) => absent(winner.as_ref(), &rows),
                Ok(Some(metadata)) => {
                    is_ending = metadata.deletion.is_some();
                    if let (Some(winner), Some(last)) = (&winner, wanted_by.last_mut()) {
                        last.note_time(winner.header.behavior, &metadata);
                    }
                    present(&metadata, winner.as_ref(), &rows, snapshot.at)
                }
            },
        };
        let health = match (&winner, &object) {
            (Some(winner), Some(object)) => self.health(cluster, (&snapshot, &plan), &winner.header, object).await?,
            _ => None,
        };
        if let Some(last) = wanted_by.last_mut() {
            last.note_left_alone(&ignored.unwrap_or_default());
        }
        Ok(Explanation {
            cluster: state_of_cluster(snapshot.cluster_row.as_ref(), &plan.action, snapshot.at),
            wanted_by,
            live,
            health,
            if_dropped: match winner {
                Some(winner) => if_dropped(&winner, &rows, &snapshot),
                None => already_dropped(&rows, &snapshot, is_ending, kept),
            },
        })
    }

    /// What was read of the health of an object that a syncset sends, if it is read.
    async fn health(
        &self,
        cluster: Uuid,
        (snapshot, plan): (&Snapshot, &Plan),
        header: &Header,
        object: &ObjectRef,
    ) -> Result<Option<String>, StoreError> {
        let Some(settings) = &header.health else { return Ok(None) };
        let stored = self.store.health(cluster, std::iter::once(header.id)).await?.remove(&header.id);
        let inputs = plan.live.iter().find(|live| live.header.id == header.id).map(|live| live.inputs);
        let identity = snapshot.cluster_row.as_ref().and_then(|cluster_row| cluster_row.identity.as_deref());
        let stored =
            stored.filter(|stored| inputs.is_some_and(|inputs| stored.is_of(inputs)) && stored.is_on(identity));
        Ok(Some(explained(object, settings, stored.as_ref(), |since| spoken(since, snapshot.at))))
    }

    /// Whether the kinds that may be meant have namespaces. The cluster is asked only if that is not known from what was sent and matters.
    async fn scopes(&self, cluster: &StoredCluster, input: &Input, asked: &Asked) -> Scopes {
        let mut scopes = Scopes::of_rows(&input.applied);
        let missing = scopes.missing(asked, input.live.iter().flat_map(named));
        if missing.is_empty() {
            return scopes;
        }
        let Ok(mut client) = self.client(cluster).await else { return scopes };
        let served = timeout(ANSWER_WITHIN, client.served(&missing, ANSWER_WITHIN)).await;
        for (id, kind) in served.unwrap_or_default() {
            if let Ok(kind) = kind {
                scopes.note(&id.group, &id.kind, kind.namespaced);
            }
        }
        scopes
    }

    async fn look(
        &self,
        cluster: &StoredCluster,
        object: &ObjectRef,
        api_version: &str,
    ) -> Result<Option<Metadata>, Unseen> {
        let mut client = self.client(cluster).await?;
        let looked = timeout(2 * ANSWER_WITHIN, client.look(api_version, object, ANSWER_WITHIN)).await;
        match looked {
            Ok(looked) => looked.map_err(|error| Unseen::of(cluster, error)),
            Err(_) => Err(Unseen::Late),
        }
    }
}

/// `beside`: syncsets that name the object and are not applied to the cluster, as a mistyped label does.
fn not_wanted(beside: &[String]) -> String {
    let none = "no syncset wants it, and none has sent it";
    match beside {
        [] => none.to_owned(),
        [one] => format!(
            "{none}; {one} names it, and is not for this cluster by its selector, its namespaces or its rollout"
        ),
        more => format!(
            "{none}; {} name it, and are not for this cluster by selector, namespaces or rollout",
            more.join(", ")
        ),
    }
}

/// The objects that a syncset names, each with its version where it renders.
fn named(live: &Live) -> impl Iterator<Item = (&ObjectRef, Option<&String>)> {
    let all = live.rendered.iter().flat_map(|rendered| rendered.resources.iter().chain(&rendered.secrets));
    all.filter_map(|rendering| match rendering {
        Rendering::Ready(desired) => Some((&desired.object, Some(&desired.api_version))),
        Rendering::Failed { known: Known::Object(object), .. } => Some((object, None)),
        Rendering::Failed { .. } => None,
    })
}

/// The syncsets that want an object, in their order.
fn claims_on<'l>(live: &'l [Live], asked: &Asked, scopes: &Scopes) -> Vec<Claim<'l>> {
    let of = |live: &'l Live| {
        let rendered = live.rendered.as_ref()?;
        let resources = (0..).map(Position::Resource).zip(&rendered.resources);
        let secrets = (0..).map(Position::Secret).zip(&rendered.secrets);
        let mut all = resources.chain(secrets).filter_map(|(place, rendering)| {
            let (object, desired) = match rendering {
                Rendering::Ready(desired) => (&desired.object, Ok(desired)),
                Rendering::Failed { known: Known::Object(object), failure } => (object, Err(failure)),
                Rendering::Failed { .. } => return None,
            };
            asked.is(object, scopes).then(|| Claim { live, place, object: placed(object, scopes.of(object)), desired })
        });
        all.next()
    };
    live.iter().filter_map(of).collect()
}

fn state_of_cluster(cluster_row: Option<&ClusterRow>, action: &Action, now: Timestamp) -> String {
    let Some(cluster_row) = cluster_row else { return "not contacted yet".to_owned() };
    let reachable = match cluster_row.reachable {
        None => "not contacted yet",
        Some(true) => "reachable",
        Some(false) => "unreachable",
    };
    let mut parts = vec![reachable.to_owned()];
    parts.extend(cluster_row.last_contact.map(|at| format!("last contact {} ago", spoken(at, now))));
    match action {
        Action::Paused(pause) => parts.push(pause.message()),
        Action::Throttled { until } => {
            parts.push(format!("its API server asks to wait for another {}", spoken(now, *until)));
        }
        _ => parts.push(match cluster_row.next_full {
            Some(next) if next > now => format!("full pass in {}", spoken(now, next)),
            _ => "full pass due".to_owned(),
        }),
    }
    parts.join(", ")
}

/// The time between two moments, in the two largest units.
pub(super) fn spoken(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs().max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let units = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds % 60, "s")];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(units.len() - 1);
    let two = units.iter().skip(first).take(2).filter(|(count, _)| *count > 0 || first == units.len() - 1);
    two.map(|(count, unit)| format!("{count} {unit}")).collect::<Vec<_>>().join(" ")
}

fn shown(claims: &[Claim<'_>], rows: &[AppliedRow], results: &[ResultRow]) -> Vec<Wanting> {
    let last = claims.len().saturating_sub(1);
    let of = |(position, claim): (usize, &Claim<'_>)| {
        let Header { id, name, mode, behavior, .. } = &claim.live.header;
        let row = rows.iter().find(|row| row.syncset == *id);
        let state = match (claim.desired, row.and_then(|row| row.content)) {
            _ if position < last => "superseded",
            (Err(_), _) => "wins, not sent",
            (Ok(desired), Some(content)) if content == desired.content => SENT,
            (Ok(_), Some(_)) => "wins, to be sent: it has changed",
            (Ok(_), None) => "wins, to be sent",
        };
        let failed = results.iter().find(|result| result.syncset == *id).and_then(|result| result.failure.as_ref());
        // Nothing of a syncset is sent if one of its resources does not render.
        let failure = claim.desired.err().or_else(|| claim.live.obstacle()).or(failed);
        let why = failure.filter(|_| position == last && state != SENT);
        let why = why.map(|failure| format!("; the syncset fails: {}", failure.message)).unwrap_or_default();
        Wanting {
            syncset: name.to_string(),
            mode: match mode {
                Mode::Sync => "Sync",
                Mode::Upsert => "Upsert",
            }
            .to_owned(),
            behavior: match behavior {
                Behavior::Apply => "Apply",
                Behavior::CreateOnly => "CreateOnly",
                Behavior::CreateOrUpdate => "CreateOrUpdate",
            }
            .to_owned(),
            place: claim.place.to_string(),
            state: format!("{state}{why}"),
        }
    };
    claims.iter().enumerate().map(of).collect()
}

impl Wanting {
    /// Adds when the object was sent, as the cluster knows it.
    fn note_time(&mut self, behavior: Behavior, metadata: &Metadata) {
        let (manager, operation) = match behavior {
            Behavior::Apply => (Manager::Apply, "Apply"),
            Behavior::CreateOrUpdate | Behavior::CreateOnly => (Manager::Update, "Update"),
        };
        let is_ours = |entry: &&ManagedFields| {
            entry.manager == manager.as_str() && entry.operation == operation && entry.subresource.is_empty()
        };
        let time =
            metadata.managers.iter().find(is_ours).and_then(|entry| entry.time.as_ref()?.parse::<Timestamp>().ok());
        if let Some(time) = time.filter(|_| self.state == SENT) {
            self.state = format!("{SENT} {time}");
        }
    }
}

impl Wanting {
    /// Adds which fields are left alone once the object is there.
    fn note_left_alone(&mut self, pointers: &[FieldPointer]) {
        if !pointers.is_empty() {
            self.state = format!("{}; after the creation it leaves alone {}", self.state, listed(pointers));
        }
    }
}

fn absent(winner: Option<&Winner>, rows: &[AppliedRow]) -> String {
    let ends = |winner: &Winner| winner.desired.as_ref().is_some_and(|desired| may_end_by_itself(&desired.body));
    let is_sent = rows.iter().any(|row| row.content.is_some());
    match winner {
        Some(winner) if is_sent && ends(winner) => {
            "absent: a Job with a time to live is not created again until it is changed"
        }
        Some(_) => "absent; created by the next full pass or resync",
        None => "absent",
    }
    .to_owned()
}

fn present(metadata: &Metadata, winner: Option<&Winner>, rows: &[AppliedRow], now: Timestamp) -> String {
    let Seen { uid, version, owned_by_apply, owned_by_update, ending, .. } = seen(metadata);
    if let Some(ending) = ending {
        let age = ending.since.map(|since| format!(" for {}", spoken(since, now))).unwrap_or_default();
        return format!("being deleted{age}, {}", harmless(&ending.held_by()));
    }
    let Some(Winner { header, desired }) = winner else { return "present, and wanted by no syncset".to_owned() };
    let Some(desired) = desired else { return "present".to_owned() };
    let row = rows.iter().find(|row| row.syncset == header.id);
    let Some(row) = row.filter(|row| row.content.is_some()) else {
        let is_known = row.is_some_and(|row| row.uid.as_ref() == Some(&uid));
        return if is_known { "present; its last change has not been sent" } else { "present, not sent yet" }
            .to_owned();
    };
    let (manager, owned) = match header.behavior {
        Behavior::Apply => (Manager::Apply, owned_by_apply),
        Behavior::CreateOrUpdate => (Manager::Update, owned_by_update),
        Behavior::CreateOnly => return "present; it is never changed".to_owned(),
    };
    match &row.uid {
        None => return "present, not compared yet".to_owned(),
        Some(noted) if *noted != uid => {
            return "another object of this name was created by somebody else; adopted by the next full pass or resync"
                .to_owned();
        }
        Some(_) => {}
    }
    if row.version.as_ref() == Some(&version) || (owned.is_some() && owned == row.owned) {
        return "in step".to_owned();
    }
    let body = without(&desired.body, &left_alone(&desired.body));
    let taken = taken(&body, &metadata.managers, manager.as_str());
    let taken: Vec<String> = taken
        .iter()
        .map(|taken| {
            let at = taken.at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
            let was = if taken.fields.len() == 1 { "was" } else { "were" };
            format!("{} {was} taken by {}{at}", taken.fields.join(", "), taken.manager)
        })
        .collect();
    let what = if taken.is_empty() { "fields were removed".to_owned() } else { taken.join("; ") };
    format!("drift: {what}; mended by the next full pass or resync")
}

fn of_preparing(error: PrepareError) -> Unexplained {
    match error {
        PrepareError::Store(error) => error.into(),
        error @ (PrepareError::TooManyObjects | PrepareError::TooManySyncsets) => Unexplained::TooLarge(error),
        PrepareError::Outdated | PrepareError::Busy | PrepareError::NoBudget => Unexplained::Busy,
    }
}

fn if_dropped(Winner { header, desired }: &Winner, rows: &[AppliedRow], snapshot: &Snapshot) -> String {
    let Some(desired) = desired else { return "not known: it does not render".to_owned() };
    let row = rows.iter().find(|row| row.syncset == header.id);
    let is_elsewhere = snapshot
        .cluster_row
        .as_ref()
        .is_some_and(|cluster_row| cluster_row.is_elsewhere(cluster_row.identity.as_deref()));
    let is_owned_anyway = desired.may_adopt && header.behavior != Behavior::CreateOnly && !is_elsewhere;
    let prune = desired.body.pointer("/metadata/annotations").and_then(|annotations| annotations.get(PRUNE));
    if header.mode == Mode::Upsert {
        "kept (Upsert)".to_owned()
    } else if row.is_some_and(|row| row.adopted) && !is_owned_anyway {
        "kept (adopted: it was there before)".to_owned()
    } else if prune.is_some_and(|prune| prune == "false") {
        format!("kept ({PRUNE})")
    } else if row.is_none_or(|row| row.content.is_none() && row.uid.is_none()) {
        "deleted, unless it was there before".to_owned()
    } else if snapshot.deletions(header.id) == Deletions::Suspended {
        "held until it is approved (tracked, not adopted)".to_owned()
    } else {
        "deleted (tracked, not adopted)".to_owned()
    }
}

/// Why an object that no syncset wants is not deleted: a rollout is about to bring it, or it may be what a syncset wants that can't be read.
fn kept(object: &ObjectRef, live: &[Live], awaited: &[Names]) -> Option<String> {
    if awaited.iter().any(|names| names.need(object)) {
        return Some("a rollout is about to want it".to_owned());
    }
    let may_want = |live: &&Live| {
        Wanted::new(std::slice::from_ref(*live), std::iter::empty(), |_| Scope::Namespaced).may_want(object)
    };
    let failure = live.iter().filter(may_want).find_map(Live::obstacle)?;
    Some(format!("it is not known what a syncset wants: {}", failure.message))
}

/// What becomes of an object that no syncset wants, and that some have sent.
fn already_dropped(rows: &[AppliedRow], snapshot: &Snapshot, is_ending: bool, kept: Option<String>) -> String {
    let Some(row) = rows.iter().find(|row| row.tracked && !row.adopted) else {
        return "nothing: no syncset wants it".to_owned();
    };
    match snapshot.deletions(row.syncset) {
        _ if is_ending => "dropped already: it is deleted and not gone".to_owned(),
        Deletions::Suspended => {
            let result = snapshot.results.iter().find(|result| result.syncset == row.syncset);
            let of = result.map_or_else(|| row.syncset.to_string(), |result| result.name.to_string());
            format!("dropped already: its deletion by {of} is held; `towline approve syncsets --list` says why")
        }
        Deletions::Allowed | Deletions::Unchecked => match kept {
            Some(why) => format!("kept for now: {why}"),
            None => "dropped already: its deletion is due".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syncset::plan::name::{Digest, SyncSetKind, SyncSetName};
    use crate::syncset::plan::reason::Reason;
    use crate::syncset::plan::render::undecodable;
    use crate::syncset::plan::spec::Rendered;

    #[test]
    fn times_are_told_in_their_two_largest_units() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).expect("a time");
        for (seconds, told) in [
            (0, "0 s"),
            (14, "14 s"),
            (60, "1 min"),
            (75, "1 min 15 s"),
            (4_320, "1 h 12 min"),
            (90_000, "1 d 1 h"),
            (-5, "0 s"),
        ] {
            assert_eq!(spoken(at(0), at(seconds)), told);
        }
    }

    #[test]
    fn what_may_be_wanted_by_a_syncset_that_can_not_be_read_is_kept() {
        let live = |name: &str, rendered: Rendered| Live {
            header: Header {
                id: Uuid::nil(),
                name: SyncSetName {
                    kind: SyncSetKind::SelectorSyncSet,
                    namespace: String::new(),
                    name: name.to_owned(),
                },
                version: 1,
                generation: 2,
                behavior: Behavior::Apply,
                mode: Mode::Sync,
                resource_templates: false,
                patch_templates: false,
                health: None,
                secrets: Vec::new(),
            },
            inputs: Digest([3; 32]),
            rendered: Some(rendered),
            deletions: Deletions::Allowed,
        };
        let object = ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: "team".to_owned(),
            name: "a".to_owned(),
        };
        let failed = |kind: &str, message: &str| {
            let known = Known::Kind { group: String::new(), kind: kind.to_owned() };
            let failure = Failure { reason: Reason::TemplateInvalid, message: message.to_owned() };
            Rendered { resources: vec![Rendering::Failed { known, failure }], ..Rendered::default() }
        };
        let others = [live("read", Rendered::default()), live("other", failed("ServiceAccount", "of another kind"))];
        assert_eq!(kept(&object, &others, &[]), None);
        let unread = undecodable(Failure { reason: Reason::ResourceInvalid, message: "too large".to_owned() });
        for (rendered, why) in [(unread, "too large"), (failed("ConfigMap", "no name"), "no name")] {
            let all = [others.to_vec(), vec![live("unread", rendered)]].concat();
            let expected = format!("it is not known what a syncset wants: {why}");
            assert_eq!(kept(&object, &all, &[]), Some(expected));
        }
    }

    #[test]
    fn an_object_is_found_by_kind_place_and_name_and_by_its_group_if_that_is_given() {
        let object = |group: &str, namespace: &str| ObjectRef {
            group: group.to_owned(),
            kind: "Deployment".to_owned(),
            namespace: namespace.to_owned(),
            name: "a".to_owned(),
        };
        let asked = |group: Option<&str>, namespace: &str| Asked {
            kind: "Deployment".to_owned(),
            group: group.map(str::to_owned),
            namespace: namespace.to_owned(),
            name: "a".to_owned(),
        };
        let is = |asked: &Asked, object: &ObjectRef| asked.is(object, &Scopes::default());
        assert!(is(&asked(None, "team"), &object("apps", "team")));
        assert!(is(&asked(Some("apps"), "team"), &object("apps", "team")));
        assert!(!is(&asked(Some(""), "team"), &object("apps", "team")));
        assert!(!is(&asked(None, "team"), &object("apps", "other")));
        // Of a kind without namespaces none counts.
        let mut scopes = Scopes::default();
        scopes.note("apps", "Deployment", false);
        assert!(asked(None, "team").is(&object("apps", "other"), &scopes));
        scopes.note("apps", "Deployment", true);
        assert!(!asked(None, "team").is(&object("apps", "other"), &scopes));
    }

    #[test]
    fn a_cluster_is_asked_about_a_kind_only_if_namespaces_differ_and_nothing_was_sent() {
        let version = "apps/v1".to_owned();
        let object = |namespace: &str, name: &str| ObjectRef {
            group: "apps".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let asked =
            Asked { kind: "Deployment".to_owned(), group: None, namespace: "team".to_owned(), name: "a".to_owned() };
        let (same, elsewhere, another) = (object("team", "a"), object("other", "a"), object("other", "b"));
        let missing = |scopes: &Scopes, named: &[&ObjectRef]| {
            scopes.missing(&asked, named.iter().map(|object| (*object, Some(&version)))).len()
        };
        let mut scopes = Scopes::default();
        assert_eq!(missing(&scopes, &[&same, &another]), 0);
        assert_eq!(missing(&scopes, &[&same, &elsewhere]), 1);
        scopes.note("apps", "Deployment", true);
        assert_eq!(missing(&scopes, &[&same, &elsewhere]), 0);
    }
}

//! The report of a section, and the orders that operators can give it.

pub mod queue_metrics;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::actor::{Dispatcher, Snapshot};
use crate::cluster::{ClusterStatus, Identification, Object, ObjectKey};
use crate::config::{ClusterName, SectionName};
use crate::guard::{self, GuardedChange};
use crate::resource_sync::metrics::{self, Direction};
use crate::resource_sync::plan::elsewhere::Elsewhere;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::waits::Waits;
use crate::resource_sync::run::index::table::{Lags, Pair, Table};
use crate::resource_sync::run::index::unkept::UnkeptFields;
use crate::resource_sync::run::section::Mode;
use crate::resource_sync::run::section::Section;
use crate::state::StateReport;
use crate::status::{
    self, Facts, Held, HeldObject, ListedObject, ObjectPage, ObjectState, Objects, Purpose, Refused, Selection,
};
use crate::telemetry;
use queue_metrics::QueueMetrics;

/// How many objects are named that are never synced.
const MOST_NAMED: usize = 50;

pub type SyncDispatcher = Dispatcher<Section, QueueMetrics>;

/// A section as the admin server sees it.
pub struct SyncReport {
    section: Arc<Section>,
    dispatcher: SyncDispatcher,
    queue: Arc<QueueMetrics>,
}

/// The keys of `/status` that only sections of this job have.
#[derive(Debug, Serialize)]
struct OwnKeys {
    mode: &'static str,
    remote: ClusterName,
    local: ClusterName,
    resource: String,
    queue: Snapshot,
    /// Age in seconds of the oldest change that is not written to the other side.
    oldest_unsynced_seconds: Oldest,
    /// The number of objects that the guard holds, by kind of change.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    held: BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// The stored state, and where it is.
    stored_state: StateReport,
    /// Settings that have changed since the last run, so that objects may have marks that no section owns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed_settings: Vec<String>,
    /// How many steps a dry run would have carried out, by step.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    planned: BTreeMap<&'static str, u64>,
    /// Fields that an API server does not keep as they were written.
    #[serde(skip_serializing_if = "Option::is_none")]
    unkept: Option<UnkeptReport>,
    /// Names that were removed from `secret_names` since the last run. No section owns their copies on the remote any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_secrets: Vec<String>,
    /// Objects that are never synced, whatever the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutReport>,
}

#[derive(Debug, Serialize)]
struct LeftOutReport {
    objects: usize,
    /// The first objects, by key.
    first: Vec<LeftOutObject>,
}

#[derive(Debug, Serialize)]
struct LeftOutObject {
    key: ObjectKey,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct UnkeptReport {
    objects: usize,
    fields: usize,
    /// The first objects, by key.
    first: Vec<UnkeptObject>,
}

#[derive(Debug, Serialize)]
struct UnkeptObject {
    key: ObjectKey,
    /// The cluster whose API server does not keep them.
    cluster: ClusterName,
    /// The first of them.
    fields: Vec<String>,
    /// How many more there are.
    more: usize,
}

#[derive(Debug, Serialize)]
struct Oldest {
    spec: Option<f64>,
    status: Option<f64>,
}

impl SyncReport {
    pub fn new(section: Arc<Section>, dispatcher: SyncDispatcher, queue: Arc<QueueMetrics>) -> Self {
        Self { section, dispatcher, queue }
    }

    /// The clusters that the section needs now.
    fn clusters(&self) -> Vec<ClusterStatus> {
        let section = &self.section;
        let mut clusters = vec![section.remote_cluster().status()];
        if section.mode() != Mode::DetachingLocalGone {
            clusters.push(section.local_cluster().status());
        }
        clusters
    }

    /// The pairs, and what the first of those that are listed waits for.
    fn objects(&self, clusters: &[ClusterStatus], now: Instant) -> (Objects, Option<String>) {
        let unanswered = unanswered(clusters);
        let mut waiting = None;
        let objects = self.section.index(|index| {
            let table = &index.table;
            let rows = table.pairs().map(|(key, pair)| {
                let (state, since) = table.shown(key, pair, now);
                (key, pair, state, Some(since))
            });
            let mut objects = Objects::of(rows, now, |key, pair, state, since| {
                let sentence = || pair.waits.as_ref()?.sentence(&key.local);
                waiting = waiting.take().or_else(sentence);
                self.listed(table, (key, pair), state, since, unanswered)
            });
            let Lags { spec, status } = table.oldest_pending(now);
            objects.oldest = spec.max(status).max(table.longest_failing(now));
            objects
        });
        (objects, waiting)
    }

    /// An object, described where it is not in step.
    fn listed(
        &self,
        table: &Table,
        (key, pair): (&PairKey, &Pair),
        state: ObjectState,
        since: Option<Instant>,
        unanswered: Option<&ClusterName>,
    ) -> ListedObject {
        let (now, object) = (Instant::now(), ListedObject::new(key, state, since));
        let waits = match (&pair.waits, state) {
            (_, ObjectState::InStep) => return object,
            (Some(waits), state) if state != ObjectState::Pending => (**waits).clone(),
            _ => match table.conflicts.cause(key, now).filter(|_| unanswered.is_none()) {
                Some(cause) => Waits::contended(cause),
                None => Waits::pending(unanswered.map(ClusterName::as_str)),
            },
        };
        ListedObject {
            cause: waits.cause,
            next_step: Some(waits.next_step),
            retry: waits.retry,
            retry_at: self.queue.retried_in(key, now).map(|left| now + left),
            ..object
        }
    }

    /// The state of an object, by its key on either side, whether it is listed or not. Two objects of the two sides may have one key.
    fn of_object(&self, name: &str) -> Vec<ListedObject> {
        let (now, clusters) = (Instant::now(), self.clusters());
        let found: Vec<(PairKey, ListedObject)> = self.section.index(|index| {
            let is_meant = |key: &PairKey| key.local.to_string() == name || key.remote.to_string() == name;
            let pairs = index.table.pairs().filter(|(key, _)| is_meant(key));
            let of = |(key, pair): (&PairKey, &Pair)| {
                let (state, since) = index.table.shown(key, pair, now);
                let sided = self.listed(&index.table, (key, pair), state, Some(since), unanswered(&clusters));
                (key.clone(), sided)
            };
            pairs.map(of).collect()
        });
        let with_sides = |(key, mut object): (PairKey, ListedObject)| {
            let (section, caches) = (&self.section, self.section.caches());
            let remote = self.side(section.remote_cluster().name(), &key.remote, caches.remote.get(&key.remote));
            let local = self.side(section.local_cluster().name(), &key.local, caches.local.get(&key.local));
            object.also.insert("sides".to_owned(), json!({"remote": remote, "local": local}));
            object
        };
        found.into_iter().map(with_sides).collect()
    }

    /// What a cluster has of a pair, as it was seen last: our marks say whose it is and what was written last.
    fn side(&self, cluster: &ClusterName, key: &ObjectKey, object: Option<Arc<Object>>) -> Value {
        let Some(object) = object else { return json!({"cluster": cluster, "object": key, "exists": false}) };
        let marks = &self.section.policy().marks;
        let is_shown = |key: &str| marks.is_mark(key) && *key != *marks.uploaded_hash;
        let annotations: BTreeMap<_, _> = object.annotations.iter().filter(|(key, _)| is_shown(key)).collect();
        json!({"cluster": cluster, "object": key, "exists": true, "deleting": object.deleting, "generation": object.generation,
            "resource_version": object.resource_version, "finalizers": object.finalizers, "marks": annotations})
    }

    fn own_keys(&self) -> OwnKeys {
        let now = Instant::now();
        let section = &self.section;
        let (oldest, planned, totals, unkept) = section.index(|index| {
            let table = &index.table;
            let (totals, unkept) = (table.unkept_totals(), table.unkept());
            (table.oldest_pending(now), table.planned_steps(), totals, unkept)
        });
        let (left_out, left_out_objects) = section.index(|index| index.table.left_out(MOST_NAMED));
        let bounds = section.bounds();
        let held = section.index(|index| index.guard.changes.held(bounds, now));
        let Lags { spec, status } = oldest;
        let (changed_settings, left_secrets) =
            section.index(|index| (index.left.settings.clone(), index.left.secrets.clone()));
        OwnKeys {
            mode: match section.mode() {
                Mode::Syncing if section.config().dry_run => "dry_run",
                Mode::Syncing => "syncing",
                Mode::Detaching | Mode::DetachingLocalGone if section.left_to_detach() == 0 => "detached",
                Mode::Detaching | Mode::DetachingLocalGone => "detaching",
            },
            remote: section.config().remote.clone(),
            local: section.config().local.clone(),
            resource: section.config().resource.to_string(),
            queue: self.dispatcher.snapshot(),
            oldest_unsynced_seconds: Oldest {
                spec: spec.map(|age| age.as_secs_f64()),
                status: status.map(|age| age.as_secs_f64()),
            },
            held: held.iter().map(|(change, count)| (change.as_str(), *count)).collect(),
            waits_for: section.not_ready_because().map(|not_ready| not_ready.reason),
            stored_state: section.state().report(),
            changed_settings,
            planned,
            unkept: (totals.objects > 0).then(|| UnkeptReport {
                objects: totals.objects,
                fields: totals.spec + totals.status,
                first: unkept.into_iter().map(|unkept| self.unkept_object(unkept)).collect(),
            }),
            left_secrets,
            left_out: (left_out_objects > 0).then(|| LeftOutReport {
                objects: left_out_objects,
                first: left_out.into_iter().map(|(key, reason)| LeftOutObject { key, reason }).collect(),
            }),
        }
    }

    fn unkept_object(&self, unkept: UnkeptFields) -> UnkeptObject {
        let UnkeptFields { key, direction, fields } = unkept;
        let more = fields.count.saturating_sub(fields.named.len());
        UnkeptObject { key, cluster: self.section.written_to(direction).clone(), fields: fields.named, more }
    }
}

/// The first of the clusters that does not answer.
fn unanswered(clusters: &[ClusterStatus]) -> Option<&ClusterName> {
    clusters.iter().find(|cluster| !cluster.state.is_fine()).map(|cluster| &cluster.name)
}

impl status::Section for SyncReport {
    fn name(&self) -> &SectionName {
        self.section.name()
    }

    fn job(&self) -> &'static str {
        "sync"
    }

    fn facts(&self) -> Facts {
        let now = Instant::now();
        let section = &self.section;
        let config = section.config();
        let clusters = self.clusters();
        let (objects, waiting) = self.objects(&clusters, now);
        let not_ready = section.not_ready_because();
        let broken = section.broken_watch();
        let unanswered = clusters.iter().filter(|cluster| !cluster.state.is_fine()).map(|cluster| cluster.since);
        let unknown_for = unanswered.chain(broken.as_ref().map(|(since, _)| *since)).max();
        let (mut refused, mut objection, mut held) = (None, None, None);
        match section.identification() {
            Identification::Refused(by) => refused = Some(by.to_string()),
            Identification::Held(by) => objection = Some(by.to_string()),
            Identification::Clear | Identification::Unread | Identification::Undecided => held = section.what_is_held(),
        }
        let failure = || {
            let first = objects.not_in_step.iter().find(|object| object.state == ObjectState::Failing)?;
            Some(format!("{}: {}", first.key, first.cause))
        };
        Facts {
            flow: format!("{}→{}", config.remote, config.local),
            subject: config.resource.plural.clone(),
            failing: section.other_daemon().or_else(failure),
            objects,
            clusters,
            refused,
            objection,
            held,
            waiting,
            broken_watch: broken.map(|(_, reason)| reason),
            // Before the first list nothing was known.
            unknown_for: unknown_for.filter(|_| not_ready.is_none()),
            not_ready,
            purpose: match section.mode() {
                Mode::Syncing if config.dry_run => Purpose::DryRun,
                Mode::Syncing => Purpose::Work,
                Mode::Detaching | Mode::DetachingLocalGone if section.left_to_detach() == 0 => Purpose::Detached,
                Mode::Detaching | Mode::DetachingLocalGone => Purpose::Detaching,
            },
            ..Facts::default()
        }
    }

    fn report(&self) -> Value {
        // A struct of plain values always serializes.
        serde_json::to_value(self.own_keys()).unwrap_or(Value::Null)
    }

    fn objects(&self, selection: &Selection) -> ObjectPage {
        let (now, clusters) = (Instant::now(), self.clusters());
        let unanswered = unanswered(&clusters);
        // Reconciles wait for the index, so what is sorted is a copy of its keys.
        let rows: Vec<(PairKey, (), _, _)> = self.section.index(|index| {
            let row = |(key, pair): (&PairKey, &Pair)| {
                let (state, since) = index.table.shown(key, pair, now);
                (key.clone(), (), state, Some(since))
            };
            index.table.pairs().map(row).collect()
        });
        ObjectPage::of(rows.into_iter(), selection, |chosen| {
            self.section.index(|index| {
                let listed = |(key, (), state, since): (PairKey, (), _, _)| {
                    let pair = index.table.get(&key)?;
                    Some(self.listed(&index.table, (&key, pair), state, since, unanswered))
                };
                chosen.into_iter().filter_map(listed).collect()
            })
        })
    }

    fn lag(&self) -> Option<&'static str> {
        Some(metrics::LAG)
    }

    fn refresh(&self) {
        let oldest = self.section.index(|index| index.table.oldest_pending(Instant::now()));
        guard::record_held(self.section.name(), &self.section.held_objects());
        self.queue.set_depth(self.dispatcher.snapshot().waiting + self.section.requests_waiting());
        for (direction, age) in [(Direction::Spec, oldest.spec), (Direction::Status, oldest.status)] {
            telemetry::oldest_pending(self.section.name(), direction.as_str(), age.unwrap_or_default());
        }
    }

    fn approve(&self, _from: IpAddr) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { self.section.approve().await })
    }

    fn held(&self) -> BoxFuture<'_, Result<Held, Refused>> {
        let section = &self.section;
        let because = section.identification().held().map(|objection| objection.to_string());
        let is_any_held = !section.held_objects().is_empty();
        let pending_changes =
            if is_any_held { section.index(|index| index.guard.changes.first(usize::MAX)) } else { Vec::new() };
        let held = |(key, change): (PairKey, GuardedChange)| HeldObject {
            key: key.to_string(),
            kind: change.as_str(),
            reason: Waits::held(Some(change), section.config()).cause,
            generation: None,
        };
        let mut objects: Vec<HeldObject> = pending_changes.into_iter().map(held).collect();
        if objects.is_empty() && because.is_none() {
            let elsewhere = |(key, elsewhere): (ObjectKey, Elsewhere)| HeldObject {
                key: key.to_string(),
                kind: "other_cluster",
                reason: elsewhere.to_string(),
                generation: None,
            };
            objects.extend(section.elsewhere().into_iter().map(elsewhere));
        }
        Box::pin(async { Ok(Held { because, objects, ..Held::default() }) })
    }

    fn detach(&self, local_gone: bool) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { self.section.detach(local_gone).await })
    }

    fn attach(&self) -> BoxFuture<'_, Result<Value, Refused>> {
        Box::pin(async move { self.section.attach().await })
    }

    fn explain<'s>(&'s self, name: &'s str) -> BoxFuture<'s, Result<Value, Refused>> {
        status::explained(self.name(), &self.of_object(name), || format!("knows no object {name}"))
    }
}

//! Reads the health of what was applied, where it is due and the syncset is applied as it is now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::executor::{Executor, Stop};
use super::slot::ReconcileSlot;
use super::worker::Worker;
use super::{Read, ReconcileError};
use crate::documents::Work;
use crate::syncset::plan::health::{AppliedOn, Assessment, Health, Job, ObjectStatus, Reading, Rules, assess};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::pass::{Refusal, Refused};
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::snapshot::Plan;
use crate::syncset::plan::status::Unreachable;

/// The reason of an object that is not there.
const NOT_FOUND: &str = "NotFound";

/// So many times as long as the rules of a cluster took, they are not asked again.
const REST: u32 = 50;
/// And no longer, should the process have been stopped meanwhile.
const LONGEST_REST: Duration = Duration::from_mins(2);

/// How a reading of health ended.
pub(super) enum ReadingEnd {
    Read(BTreeMap<Uuid, Health>),
    /// The cluster does not answer, or wants fewer requests.
    Stopped(Stop),
    /// The process ends.
    ShutsDown,
}

impl Worker {
    pub(super) async fn read_health(
        &self,
        (work, read): (&Work, &Read),
        executor: &mut Executor<'_>,
        sent: SentObjects,
        own_slot: &mut ReconcileSlot,
        stopping: &CancellationToken,
    ) -> Result<ReadingEnd, ReconcileError> {
        let Some(cluster) = read.identity() else { return Ok(ReadingEnd::Read(BTreeMap::new())) };
        let before = self.store.health(work.cluster, sent.0.keys().copied()).await?;
        let mut found: BTreeMap<ObjectRef, Assessed> = BTreeMap::new();
        let asked = sent.with_a_rule(&read.plan);
        let rules = |id: &Uuid| read.plan.health_settings(*id).map(|settings| Rules::parse(&settings.rules, asked));
        let rules: BTreeMap<Uuid, Rules> = sent.0.keys().filter_map(|id| Some((*id, rules(id)?))).collect();
        let by_rules = Mutex::new(Duration::ZERO);
        for ((api_version, kind), objects) in sent.by_kind() {
            if executor.is_answered() {
                self.begin_work(work, own_slot, stopping).await?;
            }
            if stopping.is_cancelled() {
                return Ok(ReadingEnd::ShutsDown);
            }
            let group = api_version.split_once('/').map_or("", |(group, _)| group);
            let take = |of: &ObjectRef, object: &Value| {
                let rules = objects.get(of).and_then(|syncset| rules.get(syncset));
                let assessed = match rules.and_then(|rules| rules.of(group, kind)) {
                    None => assess(group, kind, object, None),
                    rule => {
                        let (assessed, took) = self.rules.run(|| assess(group, kind, object, rule));
                        *by_rules.lock() += took;
                        assessed
                    }
                };
                (assessed, Job::of(group, kind, object))
            };
            let wanted = objects.keys().cloned().collect();
            let reading = executor.read_whole((api_version, kind), &wanted, take);
            let mut answers = match self.patiently(work, reading, own_slot).await {
                Ok(answers) => answers,
                Err(Stop::Lost) => return Err(ReconcileError::Lost),
                // What takes too long may be this list alone.
                Err(Stop::Silent { reason: Unreachable::ErrorConnectingToCluster, shown, .. }) => {
                    if let Err(stop) = executor.probe().await {
                        return Ok(ReadingEnd::Stopped(stop));
                    }
                    let unread = Refused { refusal: Refusal::Server, message: shown };
                    wanted.iter().map(|object| (object.clone(), Err(unread.clone()))).collect()
                }
                Err(stop) => return Ok(ReadingEnd::Stopped(stop)),
            };
            for object in wanted {
                let of_object = assessed(answers.remove(&object));
                found.insert(object, of_object);
            }
        }
        let rest = by_rules.into_inner().saturating_mul(REST).min(LONGEST_REST);
        Ok(ReadingEnd::Read(sent.health(&read.plan, (&before, &found), cluster, rest, read.now())))
    }
}

type Assessed = (Assessment, Option<Job>);

/// What was made of an object, if it was read.
fn assessed(answer: Option<Result<Option<Assessed>, Refused>>) -> Assessed {
    match answer {
        Some(Ok(Some(assessed))) => assessed,
        Some(Ok(None)) => (Assessment::of(ObjectStatus::Progressing, NOT_FOUND, "there is no such object"), None),
        Some(Err(Refused { message, .. })) => (Assessment::of(ObjectStatus::Unknown, "NotRead", &message), None),
        None => {
            let message = "too many objects are not among those with our label";
            (Assessment::of(ObjectStatus::Unknown, "NotRead", message), None)
        }
    }
}

/// What is sent by syncsets whose health is read.
#[derive(Debug, Default)]
pub(super) struct SentObjects(BTreeMap<Uuid, Vec<SentObject>>);

#[derive(Debug)]
struct SentObject {
    object: ObjectRef,
    /// The version under which it was sent.
    api_version: String,
    /// What it became.
    uid: Option<String>,
}

impl SentObjects {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of these syncsets. An object that another syncset sends is that one's.
    pub(super) fn of(plan: &Plan, syncsets: &BTreeSet<Uuid>, rows: &[AppliedRow]) -> Self {
        let mut sent: BTreeMap<Uuid, Vec<_>> = syncsets.iter().map(|syncset| (*syncset, Vec::new())).collect();
        for row in rows.iter().filter(|row| row.wanted && row.content.is_some()) {
            if let Some(objects) = sent.get_mut(&row.syncset)
                && plan
                    .health_settings(row.syncset)
                    .is_some_and(|settings| settings.reads(&row.object.group, &row.object.kind))
            {
                let (object, api_version, uid) = (row.object.clone(), row.api_version.clone(), row.uid.clone());
                objects.push(SentObject { object, api_version, uid });
            }
        }
        Self(sent)
    }

    /// How many objects a rule of their syncset decides about.
    fn with_a_rule(&self, plan: &Plan) -> usize {
        let of_syncset = |(id, objects): (&Uuid, &Vec<SentObject>)| {
            let settings = plan.health_settings(*id);
            let has_rule = |of: &&SentObject| settings?.rule(&of.object.group, &of.object.kind);
            objects.iter().filter(|of| has_rule(of).is_some()).count()
        };
        self.0.iter().map(of_syncset).sum()
    }

    /// The objects of each kind, as `apps/v1`, `Deployment`, each with its syncset.
    fn by_kind(&self) -> BTreeMap<(&str, &str), BTreeMap<ObjectRef, Uuid>> {
        let mut kinds: BTreeMap<_, BTreeMap<ObjectRef, Uuid>> = BTreeMap::new();
        for (syncset, objects) in &self.0 {
            for SentObject { object, api_version, .. } in objects {
                kinds.entry((api_version.as_str(), object.kind.as_str())).or_default().insert(object.clone(), *syncset);
            }
        }
        kinds
    }

    /// What follows for each syncset from what was found of its objects. It is read again after `rest` at the earliest, if it has rules.
    fn health(
        self,
        plan: &Plan,
        (before, found): (&BTreeMap<Uuid, Health>, &BTreeMap<ObjectRef, Assessed>),
        cluster: &str,
        rest: Duration,
        now: Timestamp,
    ) -> BTreeMap<Uuid, Health> {
        let of_syncset = |(id, objects): (Uuid, Vec<SentObject>)| {
            let live = plan.live.iter().find(|live| live.header.id == id)?;
            let settings = live.header.health.as_ref()?;
            let reading = |SentObject { object, uid, .. }: SentObject| {
                let (assessed, job) = found.get(&object).cloned()?;
                let is_gone = assessed.reason == NOT_FOUND;
                let job = job.or_else(|| uid.filter(|_| is_gone).map(Job::Gone));
                Some(Reading { object, assessed, job })
            };
            let readings = objects.into_iter().filter_map(reading).collect();
            let applied_on = AppliedOn { inputs: live.inputs, cluster };
            let health = Health::read(applied_on, before.get(&id), readings, settings.within, now);
            let rest = if settings.rules.is_empty() { Duration::ZERO } else { rest };
            Some((id, health.resting(now, rest)))
        };
        self.0.into_iter().filter_map(of_syncset).collect()
    }
}

//! What the hub's database has of one cluster, in memory, and passes over it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use towline::test_api::cluster::{Clock, DynamicCluster, Fence};
use towline::test_api::syncset::plan::digest::inputs;
use towline::test_api::syncset::plan::name::{SyncSetKind, SyncSetName};
use towline::test_api::syncset::plan::parse::{self, Identity};
use towline::test_api::syncset::plan::pass::{
    Address, Ending, Failed, Input, List, Outcome, Page, Progress, Refused, Resolution, Seen, Target, Write, Writes,
    Written, pass,
};
use towline::test_api::syncset::plan::render::{UnreadableSecret, render};
use towline::test_api::syncset::plan::rows::{AppliedRow, PatchedRow, ResultRow};
use towline::test_api::syncset::plan::spec::Behavior;
use towline::test_api::syncset::plan::wanted::{Deletions, Live};
use towline::test_api::syncset::work::{Client, Executor, Stop};

use crate::edges::world::LIMIT;

/// A `SyncSet`.
pub(crate) struct Set {
    name: String,
    generation: i64,
    spec: Value,
}

/// A cluster's client and rows.
pub(crate) struct State {
    client: Client,
    rows: Rows,
}

#[derive(Debug, Default)]
struct Rows {
    applied: Vec<AppliedRow>,
    patched: Vec<PatchedRow>,
    results: Vec<ResultRow>,
}

impl Set {
    pub(crate) fn new(name: &str, mode: &str, behavior: &str) -> Self {
        let spec = json!({"applyBehavior": behavior, "resourceApplyMode": mode, "enableResourceTemplates": false,
            "enablePatchTemplates": false, "resources": [], "patches": [], "secretMappings": []});
        Self { name: name.to_owned(), generation: 1, spec }
    }

    /// Its resources from now on.
    pub(crate) fn resources(&mut self, resources: Vec<Value>) {
        self.spec["resources"] = Value::Array(resources);
        self.generation += 1;
    }

    /// Its patches from now on.
    pub(crate) fn patches(&mut self, patches: Vec<Value>) {
        self.spec["patches"] = Value::Array(patches);
        self.generation += 1;
    }

    fn live(&self, rows: &Rows, full: bool) -> Live {
        let bytes = self.name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let identity = Identity {
            id: format!("00000000-0000-4000-8000-{:012x}", bytes & 0xffff_ffff_ffff).parse().unwrap(),
            name: SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team".to_owned(), name: self.name.clone() },
            version: self.generation,
            generation: self.generation,
        };
        let (header, labels) = (parse::header(identity, &self.spec).unwrap(), BTreeMap::new());
        let inputs = inputs(&header, &labels, []);
        let is_done = |row: &ResultRow| row.syncset == header.id && row.inputs == inputs && row.failure.is_none();
        let is_due = full || !rows.results.iter().any(is_done);
        let payload = parse::payload(&self.spec).unwrap();
        let rendered = render(&header, &payload, &labels, &|_, _| Err(UnreadableSecret::Missing));
        Live { header, inputs, rendered: is_due.then_some(rendered), deletions: Deletions::Allowed }
    }
}

impl Rows {
    fn save(&mut self, writes: &Writes) {
        let Writes { applied, forgotten, patched, unpatched, results, finished, .. } = writes;
        self.applied.retain(|row| {
            let is = |object: &_, syncset: &_| row.object == *object && row.syncset == *syncset;
            !applied.iter().any(|new| is(&new.object, &new.syncset))
                && !forgotten.iter().any(|(object, of)| is(object, of))
        });
        self.patched.retain(|row| {
            let is = |syncset: &_, position: usize| row.syncset == *syncset && row.position == position;
            !patched.iter().any(|new| is(&new.syncset, new.position)) && !unpatched.iter().any(|(of, at)| is(of, *at))
        });
        self.results
            .retain(|row| !results.iter().any(|new| new.syncset == row.syncset) && !finished.contains(&row.syncset));
        self.applied.extend(applied.iter().cloned());
        self.patched.extend(patched.iter().cloned());
        self.results.extend(results.iter().cloned());
    }
}

impl State {
    /// Of a cluster on which nothing was done.
    pub(crate) fn new(cluster: Arc<DynamicCluster>) -> Self {
        Self { client: Client::new(cluster), rows: Rows::default() }
    }

    /// Whether nothing is known of any object.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.applied.is_empty()
    }

    /// A pass over the cluster with these syncsets; those that were there before and are missing are gone.
    pub(crate) async fn pass(&mut self, sets: &[&Set], full: bool) -> Result<Outcome, Stop> {
        let Self { client, rows } = self;
        let live: Vec<Live> = sets.iter().map(|set| set.live(rows, full)).collect();
        let gone = rows.results.iter().map(|row| row.syncset);
        let gone = gone.filter(|syncset| live.iter().all(|live| live.header.id != *syncset));
        let input = Input {
            gone: gone.map(|syncset| (syncset, Deletions::Allowed)).collect(),
            live,
            awaited: Vec::new(),
            applied: rows.applied.clone(),
            patched: rows.patched.clone(),
            results: rows.results.clone(),
            full,
            another_cluster: false,
            elsewhere: false,
            progress: Progress::default(),
            now: "2026-11-19T08:00:03Z".parse().unwrap(),
        };
        let fence = Fence::new("edge", Clock::Boot);
        fence.open(fence.now() + Duration::from_hours(1));
        let mut target = OnEdge::new(Executor::new(client, &fence, LIMIT), |writes| rows.save(writes));
        target.executor.expect(input.kinds());
        match pass(&mut target, input).await {
            (outcome, None) => {
                rows.save(&outcome.writes);
                Ok(outcome)
            }
            (_, Some(stop)) => Err(stop),
        }
    }
}

/// A cluster and a database of maps. There is one hub.
pub(crate) struct OnEdge<'e, S> {
    pub(crate) executor: Executor<'e>,
    save: S,
    begun: Instant,
    /// What happens right before the first write, after which the process is killed.
    pub(crate) forestalled: Option<Pin<Box<dyn Future<Output = ()> + Send + 'e>>>,
}

impl<'e, S: FnMut(&Writes) + Send> OnEdge<'e, S> {
    pub(crate) fn new(executor: Executor<'e>, save: S) -> Self {
        Self { executor, save, begun: Instant::now(), forestalled: None }
    }
}

impl<S: FnMut(&Writes) + Send> Target for OnEdge<'_, S> {
    type Stop = Stop;

    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    async fn ready(&mut self) -> Result<(), Stop> {
        Ok(())
    }

    async fn resolve(&mut self, api_version: &str, kind: &str, wait: bool) -> Result<Resolution, Failed<Stop>> {
        self.executor.resolve(api_version, kind, wait).await
    }

    async fn look(&mut self, at: Address<'_>) -> Result<Option<Seen>, Failed<Stop>> {
        let found = self.executor.look(at).await?;
        Ok(found.map(|seen| Seen { of_this_hub: seen.marks.syncset.is_some(), ..seen }))
    }

    async fn list(&mut self, lists: &[List<'_>]) -> Result<Vec<Result<Page, Refused>>, Stop> {
        self.executor.list(lists).await
    }

    async fn write(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Failed<Stop>> {
        let Some(somebody) = self.forestalled.take() else { return self.executor.write(at, write).await };
        somebody.await;
        let refused = self.executor.write(at, write).await;
        assert!(matches!(refused, Err(Failed::Refused(_))), "{refused:?}");
        Err(Failed::Stopped(Stop::Lost))
    }

    async fn may_delete(&mut self) -> Result<bool, Stop> {
        Ok(true)
    }

    async fn delete(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Failed<Stop>> {
        self.executor.delete(at, uid, version).await
    }

    async fn store(&mut self, writes: Writes) -> Result<(), Stop> {
        (self.save)(&writes);
        Ok(())
    }

    fn sent(&mut self, _: Behavior, _: bool) {}
}

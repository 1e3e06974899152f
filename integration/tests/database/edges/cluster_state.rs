//! What the hub's database has of one cluster, in memory, and passes over it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use towline::test_api::cluster::{Clock, DynamicCluster, Fence};
use towline::test_api::syncset::plan::digest::inputs;
use towline::test_api::syncset::plan::name::{SyncSetKind, SyncSetName};
use towline::test_api::syncset::plan::parse::{self, Identity};
use towline::test_api::syncset::plan::pass::{Answer, Input, Outcome, Pass, Progress, Step, Writes};
use towline::test_api::syncset::plan::render::{UnreadableSecret, render};
use towline::test_api::syncset::plan::rows::{AppliedRow, PatchedRow, ResultRow};
use towline::test_api::syncset::plan::wanted::{Deletions, Live};
use towline::test_api::syncset::work::{Client, Executor, Failed, Stop};

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
        let mut pass = Pass::new(Input {
            gone: gone.map(|syncset| (syncset, Deletions::Allowed)).collect(),
            live,
            applied: rows.applied.clone(),
            patched: rows.patched.clone(),
            results: rows.results.clone(),
            full,
            another_cluster: false,
            elsewhere: false,
            progress: Progress::default(),
            now: "2026-11-19T08:00:03Z".parse().unwrap(),
        });
        let fence = Fence::new("edge", Clock::Boot);
        fence.open(fence.now() + Duration::from_hours(1));
        let mut executor = Executor::new(client, &fence);
        executor.expect(&pass);
        let begun = Instant::now();
        loop {
            let mut reply = match pass.next(begun.elapsed()) {
                Step::Done(outcome) => {
                    rows.save(&outcome.writes);
                    return Ok(*outcome);
                }
                Step::Store(writes) => {
                    rows.save(&writes);
                    Ok(Answer::Stored)
                }
                step => match executor.carry_out(&step, LIMIT).await {
                    Ok(answer) => Ok(answer),
                    Err(Failed::Refused(refused)) => Err(refused),
                    Err(Failed::Stopped(reason)) => return Err(reason),
                },
            };
            // There is one hub.
            if let Some((_, is_known)) = reply.as_mut().ok().and_then(Answer::marked) {
                *is_known = true;
            }
            pass.reply(reply);
        }
    }
}

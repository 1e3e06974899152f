//! A cluster, an API and a process that may be killed, all as values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::steps::Next;
use super::super::*;
use crate::cluster::object::Decoded;
use crate::inventory::plan::contents::{Content, Contents};
use crate::inventory::plan::identity::GivenId;
use crate::inventory::plan::release::{Facts, Recorded};
use crate::inventory::plan::revision::{Revision, Revisions, Stage};

pub(super) const DELAY: Duration = Duration::from_secs(10);

/// A release in the cluster.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) newest: Option<Revision>,
    pub(super) reported: Option<Revision>,
    pub(super) updated: String,
    pub(super) pods: Vec<&'static str>,
}

/// What the world has seen.
pub(super) struct World {
    pub(super) index: Index,
    pub(super) now: Moment,
    pub(super) settings: Settings,
    pub(super) spec: Value,
    pub(super) status: Value,
    pub(super) live: BTreeMap<ObjectKey, Live>,
    pub(super) given: GivenId,
    /// What the API has accepted. It takes each key once, and answers a repetition as it did the first time.
    pub(super) accepted: Vec<(String, Value)>,
    pub(super) keys: BTreeMap<String, String>,
    pub(super) reads: usize,
    pub(super) writes: usize,
    versions: u64,
    lives: u8,
}

pub(super) fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

pub(super) fn project(spec: &Value, status: &Value) -> Project {
    let metadata = json!({"name": "p", "uid": "u-p"});
    let object = json!({"metadata": metadata, "spec": spec, "status": status});
    Project::of(&serde_json::from_value::<Decoded>(object).unwrap().into_object())
}

pub(super) fn settings() -> Settings {
    Settings {
        delay: DELAY,
        helm_timeout: Duration::from_mins(10),
        max_releases: MAX_RELEASES,
        status_budget: STATUS_BUDGET,
        ..Settings::default()
    }
}

impl World {
    pub(super) fn new(settings: Settings) -> Self {
        let (spec, status) = (json!({"denyNamespaces": ["kube-system"]}), Value::Null);
        let index = Index::new(settings.clone(), project(&spec, &status), [1; 32]);
        let now = Moment { at: Instant::now(), wall: "2026-11-21T22:04:11Z".parse().unwrap() };
        Self {
            index,
            now,
            settings,
            spec,
            status,
            live: BTreeMap::new(),
            given: GivenId::None,
            accepted: Vec::new(),
            keys: BTreeMap::new(),
            reads: 0,
            writes: 0,
            versions: 0,
            lives: 1,
        }
    }

    /// Helm sets the newest revision of a release.
    pub(super) fn helm(&mut self, name: &str, number: u64, stage: Stage) {
        self.versions += 1;
        let version: Arc<str> = self.versions.to_string().into();
        let object = ObjectKey::new("default", format!("sh.helm.release.v1.{name}.v{number}"));
        let updated = format!("2026-11-21T{:02}:00:00Z", self.versions % 24);
        let live = self.live.entry(key(name)).or_insert(Live {
            newest: None,
            reported: None,
            updated: String::new(),
            pods: vec!["p"],
        });
        live.newest = Some(Revision { number, stage, object, version });
        if stage.is_reported() {
            live.reported.clone_from(&live.newest);
            live.updated = updated;
        }
        self.observe(&key(name));
    }

    /// Nothing is left of a release.
    pub(super) fn uninstall(&mut self, name: &str) {
        self.live.remove(&key(name));
        self.observe(&key(name));
    }

    pub(super) fn pods(&mut self, name: &str, pods: &[&'static str]) {
        self.live.get_mut(&key(name)).expect("it is installed").pods = pods.to_vec();
        self.observe(&key(name));
    }

    /// The project asks for these options, and nothing else.
    pub(super) fn options(&mut self, options: &Value) {
        self.spec = options.clone();
        self.index.project_changed(project(&self.spec, &self.status));
    }

    pub(super) fn give(&mut self, given: GivenId) {
        self.given = given;
        self.observe_all();
    }

    pub(super) fn observe(&mut self, key: &ObjectKey) {
        let live = self.live.get(key);
        let pod = |name: &&str| {
            let object = json!({"metadata": {"name": name, "namespace": &*key.namespace}, "spec": {"containers": [{"image": name}]}});
            let mut object = serde_json::from_value::<Decoded>(object).unwrap().into_object();
            Content::Pod.projection()(&mut object);
            Arc::new(object)
        };
        let pods = live.map(|live| live.pods.iter().map(pod).collect()).unwrap_or_default();
        let seen = Seen {
            revisions: Revisions {
                newest: live.and_then(|live| live.newest.clone()),
                // Helm marks this very record when it uninstalls a release.
                reported: live.and_then(|live| {
                    let is_its_record = |reported: &&Revision| {
                        live.newest
                            .as_ref()
                            .is_none_or(|newest| newest.version == reported.version || newest.number != reported.number)
                    };
                    live.reported.as_ref().filter(is_its_record).cloned()
                }),
            },
            given: self.given.clone(),
            contents: Contents::of([pods, Vec::new(), Vec::new(), Vec::new()]),
        };
        self.index.observe(key, seen, self.now);
    }

    pub(super) fn observe_all(&mut self) {
        let keys: BTreeSet<ObjectKey> = self.index.keys().chain(self.live.keys()).cloned().collect();
        for key in &keys {
            self.observe(key);
        }
    }

    pub(super) fn next(&mut self) -> Next {
        for _ in 0..100 {
            let next = self.index.next(View::Complete, self.now);
            if next.observe.is_empty() {
                return next;
            }
            for key in &next.observe {
                self.observe(key);
            }
        }
        panic!("releases displace each other without end");
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now.at += by;
        self.now.wall += jiff::SignedDuration::try_from(by).unwrap();
    }

    /// A record is read as it is in the cluster now.
    pub(super) fn read(&mut self, key: &ObjectKey, version: &Arc<str>) {
        self.reads += 1;
        let facts = self.live.get(key).map(|live| Facts {
            updated: live.updated.clone(),
            chart: format!("chart-{}", key.name),
            app_version: "1".into(),
        });
        let stored = self.live.get(key).map(|live| [live.newest.as_ref(), live.reported.as_ref()]);
        let is_same = stored.into_iter().flatten().flatten().any(|revision| revision.version == *version);
        let recorded = |facts| Recorded { facts, ..Recorded::default() };
        let outcome = facts.filter(|_| is_same).map(recorded).ok_or(ReadFailure::Changed);
        self.index.read(key, version, outcome, self.now);
        self.observe(key);
    }

    /// A status is written.
    pub(super) fn write(&mut self, patch: &Value) {
        assert_eq!(patch[0], json!({"op": "test", "path": "/metadata/uid", "value": "u-p"}));
        self.writes += 1;
        self.status = patch[1]["value"].clone();
        self.index.written(Ok(()), self.now);
    }

    /// The API takes a body, whether or not its answer arrives.
    pub(super) fn accept(&mut self, post: &Post) {
        match self.keys.insert(post.idempotency_key.clone(), post.body.clone()) {
            None => self.accepted.push((post.path.clone(), serde_json::from_str(&post.body).unwrap())),
            Some(before) => assert_eq!(before, post.body, "one key for two bodies"),
        }
    }

    pub(super) fn answer(&mut self, post: &Post, outcome: Result<(), Refusal>) {
        self.index.answered(&post.key, outcome, self.now);
        if let PostKey::Release(key) = &post.key {
            self.observe(key);
        }
    }

    pub(super) fn carry_out(&mut self, step: &IndexStep) {
        match step {
            IndexStep::Read { key, version, .. } => self.read(key, version),
            IndexStep::Write(patch) => self.write(patch),
            IndexStep::Post(post) => {
                self.accept(post);
                self.answer(post, Ok(()));
            }
        }
    }

    /// Carries out steps until none is left and nothing becomes due.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            let next = self.next();
            for step in &next.steps {
                self.carry_out(step);
            }
            match (next.steps.is_empty(), next.until) {
                (true, None) => return,
                (true, Some(until)) => self.advance(until - self.now.at),
                (false, _) => {}
            }
        }
        panic!("it never settles");
    }

    /// Carries out what is due now but for posts. Whether there was any of it.
    pub(super) fn settle_writes(&mut self) -> bool {
        let mut has_written = false;
        for step in self.next().steps {
            if !matches!(step, IndexStep::Post(_)) {
                self.carry_out(&step);
                has_written = true;
            }
        }
        has_written
    }

    /// Carries out reads and writes, and returns the posts.
    pub(super) fn posts(&mut self) -> Vec<Post> {
        let mut posts = Vec::new();
        for _ in 0..100 {
            let steps = self.next().steps;
            if steps.is_empty() {
                return posts;
            }
            for step in steps {
                match step {
                    IndexStep::Post(post) => posts.push(post),
                    other => self.carry_out(&other),
                }
            }
        }
        panic!("it never settles");
    }

    /// The process is killed, and another one begins with the status.
    pub(super) fn restart(&mut self) {
        self.lives += 1;
        self.index = Index::new(self.settings.clone(), project(&self.spec, &self.status), [self.lives; 32]);
        self.observe_all();
    }

    /// What was told of releases: name, revision, status, and pods.
    pub(super) fn told(&self) -> Vec<String> {
        let of_releases = self.accepted.iter().filter(|(path, _)| path == "/apps");
        of_releases
            .map(|(_, body)| {
                let (info, pods) = (&body["app_info"]["helm_info"], body["app_info"]["pod_info"].as_array().unwrap());
                let pods: Vec<&str> = pods.iter().filter_map(|pod| pod["name"].as_str()).collect();
                let name = info["name"].as_str().unwrap();
                format!("{name} {} {} [{}]", info["revision"], info["status"].as_str().unwrap(), pods.join(","))
            })
            .collect()
    }

    pub(super) fn entry(&self, name: &str) -> Value {
        let mut entries = self.status["helmStatus"].as_array().into_iter().flatten();
        entries.find(|entry| entry["name"] == name).cloned().unwrap_or_default()
    }
}

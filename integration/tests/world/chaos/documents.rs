//! The documents of the storm as the test knows them, and random changes of them.

use std::collections::{BTreeMap, BTreeSet};

use integration::hub::Request;
use integration::soak::Random;
use serde_json::{Value, json};
use towline::test_api::documents::{Key, Kind};
use towline::test_api::syncset::rollouts::Order;

use crate::chaos::oracle::Kind as Sent;
use crate::chaos::rolled;

pub(crate) const CLUSTERS: usize = 10;
const SETS: usize = 30;
const REGIONS: [&str; 3] = ["east", "west", "north"];
const TEAMS: [&str; 2] = ["team-a", "team-b"];

#[derive(Clone, Debug)]
pub(crate) struct Documents {
    pub(crate) clusters: Vec<Cluster>,
    pub(crate) sets: Vec<Set>,
    /// What the mapped Secrets of a namespace hold.
    pub(crate) secrets: BTreeMap<(&'static str, usize), u64>,
    revision: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) team: &'static str,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    paused: bool,
}

/// A `SyncSet` or `SelectorSyncSet`.
#[expect(clippy::struct_excessive_bools, reason = "each says something else of it, and all go together")]
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) exists: bool,
    /// Of a `SyncSet`; a `SelectorSyncSet` has none.
    pub(crate) team: Option<&'static str>,
    pub(crate) name: String,
    /// Whether its changes go through waves.
    rolls: bool,
    /// Whether its health is read.
    is_read: bool,
    kin: Kin,
    upsert: bool,
    pub(crate) behavior: Behavior,
    pub(crate) selects: Selects,
    pub(crate) resources: Vec<Resource>,
    /// Which of the namespace's Secrets it maps, and the namespace on the edge of its only cluster.
    pub(crate) mapped: Option<(usize, String)>,
    pub(crate) revision: u64,
}

/// What a syncset may have. Objects of `m…` may have been left by a syncset that never deletes; the others may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kin {
    /// Always Sync, and Apply in the end: its objects may lose fields, also while they are updated, and change their name with the labels.
    Applied,
    /// Always Sync, Apply or `CreateOrUpdate`.
    Deleting,
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    Apply,
    CreateOrUpdate,
    CreateOnly,
}

/// Which clusters.
#[derive(Clone, Debug)]
pub(crate) enum Selects {
    Named(BTreeSet<usize>),
    All,
    Env(&'static str),
    RegionIn(&'static str, &'static str),
    RegionNotIn(&'static str),
    RegionExists(bool),
    OfTeam(&'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) kind: Sent,
    /// With `REGION` where the label goes.
    pub(crate) name: String,
    /// A field that comes and goes.
    pub(crate) extra: Option<u64>,
}

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.index(all.len())]
}

impl Documents {
    pub(crate) fn new(random: &mut Random) -> Self {
        let cluster = |number: usize| {
            let labels = [("ns", format!("chaos-{number}")), ("env", "prod".to_owned())];
            let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
            Cluster { team: TEAMS[number % 2], name: format!("c{number}"), labels, paused: false }
        };
        let sets = (0..SETS).map(|number| {
            let team = (number % 2 == 0).then(|| TEAMS[number / 2 % 2]);
            let kin = [Kin::Applied, Kin::Deleting, Kin::Any][number % 3];
            let mut set = Set {
                exists: false,
                team,
                // Two of each kin, which may take objects over from each other.
                rolls: matches!(number, 5 | 11 | 15 | 19 | 21 | 25),
                is_read: number % 20 == 5,
                name: format!("set-{}", (number * 7) % SETS),
                kin,
                upsert: false,
                behavior: Behavior::Apply,
                selects: Selects::All,
                resources: Vec::new(),
                mapped: None,
                revision: 0,
            };
            set.draw_resources(random);
            set.draw_selection(random);
            set
        });
        let secrets = TEAMS.iter().flat_map(|team| (0..2).map(|number| ((*team, number), 0))).collect();
        Self { clusters: (0..CLUSTERS).map(cluster).collect(), sets: sets.collect(), secrets, revision: 0 }
    }

    /// The documents that are there from the beginning, but for clusters.
    pub(crate) fn first(&self) -> Vec<Request> {
        let secrets = self.secrets.iter().map(|((team, number), revision)| {
            let data = secret_data(*revision);
            Request::post("/v1/secrets", &json!({"namespace": team, "name": format!("mapped-{number}"), "data": data}))
        });
        secrets.collect()
    }

    /// A random change: the requests that make it, each with the documents after it.
    pub(crate) fn change(&self, random: &mut Random) -> Vec<(Request, Self)> {
        let mut after = self.clone();
        after.revision += 1;
        match random.below(20) {
            4 => after.hand_over(random),
            5 => after.recreate(random.index(SETS)),
            _ => {
                let request = after.change_one(random);
                vec![(request, after)]
            }
        }
    }

    fn change_one(&mut self, random: &mut Random) -> Request {
        match random.below(20) {
            0..=2 => self.change_cluster(random),
            3 => {
                let (team, number) = (one_of(random, &TEAMS), random.index(2));
                self.secrets.insert((team, number), self.revision);
                let data = secret_data(self.revision);
                Request::merge_patch(&format!("/v1/secrets/{team}/mapped-{number}"), &json!({"data": data}))
            }
            _ => {
                let set = random.index(SETS);
                self.change_set(set, random)
            }
        }
    }

    /// Orders for rollouts, which may be in a state that does not allow them: these, for each syncset that has one.
    pub(crate) fn steer(&self, orders: &[Order]) -> Vec<(Key, Order)> {
        let sets = self.sets.iter().filter(|set| set.exists && set.rolls);
        let key = |set: &Set| match set.team {
            Some(team) => Key::new(Kind::SyncSet, team, &set.name),
            None => Key::new(Kind::SelectorSyncSet, "", &set.name),
        };
        sets.flat_map(|set| orders.iter().map(move |order| (key(set), order.clone()))).collect()
    }

    /// A change of a syncset with a rollout, so that it goes through all clusters: the request, its name, and the documents after it.
    pub(crate) fn roll(&self, random: &mut Random) -> (Request, String, Self) {
        let mut after = self.clone();
        after.revision += 1;
        let mut rolling: Vec<&mut Set> = after.sets.iter_mut().filter(|set| set.rolls).collect();
        let at = random.index(rolling.len());
        let set = &mut *rolling[at];
        let is_new = !std::mem::replace(&mut set.exists, true);
        (set.selects, set.revision) = (Selects::All, after.revision);
        set.draw_resources(random);
        while set.resources.is_empty() {
            set.draw_resources(random);
        }
        (set.write(is_new), set.name.clone(), after)
    }

    /// These again after a restore, which has lost the present ones. What is written from now on differs from what was lost.
    pub(crate) fn restored(&self, lost: &Self) -> Self {
        Self { revision: lost.revision, ..self.clone() }
    }

    /// Ends all pauses, and applies what may have kept fields that were dropped.
    pub(crate) fn resume(&mut self) -> Vec<Request> {
        let paused = self.clusters.iter_mut().filter(|cluster| cluster.paused);
        let resumed = paused.map(|cluster| {
            cluster.paused = false;
            Request::merge_patch(&cluster.path(), &json!({"paused": false}))
        });
        let is_updated = |set: &&mut Set| set.exists && set.kin == Kin::Applied && set.behavior != Behavior::Apply;
        let applied = self.sets.iter_mut().filter(is_updated).map(|set| {
            set.behavior = Behavior::Apply;
            set.write(false)
        });
        resumed.chain(applied).collect()
    }

    fn change_cluster(&mut self, random: &mut Random) -> Request {
        let number = random.index(CLUSTERS);
        let cluster = &mut self.clusters[number];
        match random.below(6) {
            0 => {
                cluster.paused = !cluster.paused;
                return Request::merge_patch(&cluster.path(), &json!({"paused": cluster.paused}));
            }
            1 | 2 => {
                let env = if cluster.labels["env"] == "prod" { "dev" } else { "prod" };
                cluster.labels.insert("env".to_owned(), env.to_owned());
            }
            3 => drop(cluster.labels.remove("region")),
            _ => drop(cluster.labels.insert("region".to_owned(), one_of(random, &REGIONS).to_owned())),
        }
        let replaced = json!([{"op": "replace", "path": "/labels", "value": cluster.labels}]);
        Request::json_patch(&cluster.path(), &replaced)
    }

    /// One syncset takes everything from another one of its kind, which is deleted right after that or before it.
    fn hand_over(mut self, random: &mut Random) -> Vec<(Request, Self)> {
        let from = random.index(SETS);
        let source = self.sets[from].clone();
        let is_like = |to: &usize| {
            let target = &self.sets[*to];
            *to != from && target.kin == source.kin && target.team == source.team
        };
        let targets: Vec<usize> = (0..SETS).filter(is_like).collect();
        if !source.exists {
            let request = self.change_set(from, random);
            return vec![(request, self)];
        }
        let to = one_of(random, &targets);
        let take = |mut documents: Self| {
            let target = &mut documents.sets[to];
            let is_new = !std::mem::replace(&mut target.exists, true);
            target.resources.clone_from(&source.resources);
            target.selects = source.selects.clone();
            (target.behavior, target.upsert) = (source.behavior, source.upsert);
            target.mapped.clone_from(&source.mapped);
            target.revision = documents.revision;
            (target.write(is_new), documents)
        };
        let drop = |mut documents: Self| {
            documents.sets[from].exists = false;
            (Request::delete(&source.path()), documents)
        };
        let (first, second) = if random.below(3) == 0 {
            let first = drop(self);
            let second = take(first.1.clone());
            (first, second)
        } else {
            let first = take(self);
            let second = drop(first.1.clone());
            (first, second)
        };
        vec![first, second]
    }

    /// A syncset is deleted, and comes back under its name as another one.
    fn recreate(mut self, set: usize) -> Vec<(Request, Self)> {
        let mut steps = Vec::new();
        if std::mem::replace(&mut self.sets[set].exists, false) {
            steps.push((Request::delete(&self.sets[set].path()), self.clone()));
        }
        self.sets[set].exists = true;
        steps.push((self.sets[set].write(true), self));
        steps
    }

    fn change_set(&mut self, set: usize, random: &mut Random) -> Request {
        let revision = self.revision;
        let set = &mut self.sets[set];
        if !set.exists {
            (set.exists, set.revision) = (true, revision);
            return set.write(true);
        }
        match random.below(8) {
            0 => {
                set.exists = false;
                return Request::delete(&set.path());
            }
            1 | 2 => set.draw_selection(random),
            3 => set.draw_behavior(random),
            _ => set.draw_resources(random),
        }
        set.revision = revision;
        set.write(false)
    }
}

fn secret_data(revision: u64) -> Value {
    json!({"password": k8s_openapi::ByteString(format!("p{revision}").into_bytes())})
}

impl Cluster {
    pub(crate) fn path(&self) -> String {
        format!("/v1/clusters/{}/{}", self.team, self.name)
    }
}

impl Set {
    fn draw_resources(&mut self, random: &mut Random) {
        const NAMES: u64 = 5;
        let mut drawn = BTreeMap::new();
        for _ in 0..random.below(6) {
            let number = random.below(NAMES);
            let name = match (self.kin, random.below(4)) {
                (Kin::Applied, 0) => "t-REGION-x".to_owned(),
                (Kin::Applied, 1) => format!("a{number}"),
                (Kin::Applied | Kin::Deleting, 2) => format!("b{number}"),
                (Kin::Deleting, 1) => format!("b{}", number / 2),
                _ => format!("m{number}"),
            };
            let may_vary = name.starts_with('a') || name.starts_with('t');
            let extra = (may_vary && random.below(2) == 0).then(|| random.below(3));
            let kind = match random.below(6) {
                0 | 1 => Sent::Secret,
                2 | 3 if self.is_read => Sent::Deployment,
                _ => Sent::ConfigMap,
            };
            drawn.insert((kind, name), extra);
        }
        let resource = |((kind, name), extra)| Resource { kind, name, extra };
        self.resources = drawn.into_iter().map(resource).collect();
        // They are sent in any order.
        for at in (1..self.resources.len()).rev() {
            self.resources.swap(at, random.index(at + 1));
        }
    }

    fn draw_behavior(&mut self, random: &mut Random) {
        const ALL: [Behavior; 3] = [Behavior::Apply, Behavior::CreateOrUpdate, Behavior::CreateOnly];
        let of = match self.kin {
            Kin::Applied | Kin::Deleting => &ALL[..2],
            Kin::Any => &ALL,
        };
        self.behavior = one_of(random, of);
        self.upsert = self.kin == Kin::Any && random.below(2) == 0;
    }

    fn draw_selection(&mut self, random: &mut Random) {
        self.mapped = None;
        self.selects = match self.team {
            Some(team) => {
                let own = (0..CLUSTERS).filter(|number| TEAMS[number % 2] == team);
                let mut named: BTreeSet<usize> = own.filter(|_| random.below(2) == 0).collect();
                if self.kin != Kin::Any && random.below(3) == 0 {
                    // Where a mapped Secret goes is no template.
                    let only = random.index(CLUSTERS / 2) * 2 + usize::from(team == TEAMS[1]);
                    named = BTreeSet::from([only]);
                    self.mapped = Some((random.index(2), format!("chaos-{only}")));
                }
                Selects::Named(named)
            }
            None => match random.below(7) {
                0 => Selects::All,
                1 | 2 => Selects::Env(one_of(random, &["prod", "dev"])),
                3 => Selects::RegionIn(one_of(random, &REGIONS), one_of(random, &REGIONS)),
                4 => Selects::RegionNotIn(one_of(random, &REGIONS)),
                5 => Selects::RegionExists(random.below(2) == 0),
                _ => Selects::OfTeam(one_of(random, &TEAMS)),
            },
        };
    }

    fn path(&self) -> String {
        match self.team {
            Some(team) => format!("/v1/syncsets/{team}/{}", self.name),
            None => format!("/v1/selectorsyncsets/{}", self.name),
        }
    }

    fn write(&self, is_new: bool) -> Request {
        if !is_new {
            return Request::json_patch(
                &self.path(),
                &json!([{"op": "replace", "path": "/spec", "value": self.spec()}]),
            );
        }
        let mut document = json!({"name": self.name, "spec": self.spec()});
        if let Some(team) = self.team {
            document["namespace"] = json!(team);
        }
        let plural = if self.team.is_some() { "syncsets" } else { "selectorsyncsets" };
        Request::post(&format!("/v1/{plural}"), &document)
    }

    fn spec(&self) -> Value {
        let behavior = match self.behavior {
            Behavior::Apply => "Apply",
            Behavior::CreateOrUpdate => "CreateOrUpdate",
            Behavior::CreateOnly => "CreateOnly",
        };
        let resources: Vec<Value> = self.resources.iter().map(|resource| self.resource(resource)).collect();
        let mut spec = json!({"applyBehavior": behavior, "resourceApplyMode": if self.upsert { "Upsert" } else { "Sync" },
            "enableResourceTemplates": true, "resources": resources});
        if self.rolls {
            spec["rollout"] = rolled::rollout();
        }
        if self.is_read {
            spec["health"] = json!({});
        }
        if let Some((number, namespace)) = &self.mapped {
            let target = json!({"name": format!("mapped-{number}"), "namespace": namespace});
            spec["secretMappings"] = json!([{"sourceRef": {"name": format!("mapped-{number}")}, "targetRef": target}]);
        }
        let region = |operator: &str, values: &[&str]| {
            let expression = if values.is_empty() {
                json!({"key": "region", "operator": operator})
            } else {
                json!({"key": "region", "operator": operator, "values": values})
            };
            json!({"matchExpressions": [expression]})
        };
        let selector = match &self.selects {
            Selects::Named(named) => {
                let references: Vec<Value> = named.iter().map(|number| json!({"name": format!("c{number}")})).collect();
                spec["clusterDeploymentRefs"] = json!(references);
                return spec;
            }
            Selects::All => json!({}),
            Selects::Env(env) => json!({"matchLabels": {"env": env}}),
            Selects::RegionIn(one, other) if one == other => region("In", &[one]),
            Selects::RegionIn(one, other) => region("In", &[one, other]),
            Selects::RegionNotIn(not) => region("NotIn", &[not]),
            Selects::RegionExists(true) => region("Exists", &[]),
            Selects::RegionExists(false) => region("DoesNotExist", &[]),
            Selects::OfTeam(team) => {
                spec["clusterNamespaces"] = json!([team]);
                json!({})
            }
        };
        spec["clusterDeploymentSelector"] = selector;
        spec
    }

    fn resource(&self, resource: &Resource) -> Value {
        let mut data = json!({"by": self.by(), "region": "{{ fromCDLabel \"region\" }}"});
        if let Some(extra) = resource.extra {
            data[format!("extra-{extra}")] = json!("here");
        }
        let name = resource.name.replace("REGION", "{{ fromCDLabel \"region\" }}");
        let mut metadata = json!({"name": name, "namespace": "{{ fromCDLabel \"ns\" }}"});
        if resource.kind == Sent::ConfigMap {
            return json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        }
        metadata["annotations"] = data;
        if resource.kind == Sent::Secret {
            // Syncsets have no values of Secrets.
            return json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata});
        }
        let labels = json!({"app": "storm"});
        let pod = json!({"containers": [{"name": "storm", "image": "registry.example.com/storm"}]});
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 0,
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}})
    }

    /// What its objects say who sent them.
    pub(crate) fn by(&self) -> String {
        format!("{} {}", self.name, self.revision)
    }
}

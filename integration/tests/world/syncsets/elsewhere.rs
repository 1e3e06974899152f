//! A kubeconfig that leads to another cluster than before, and a syncset that drops what it wants, in any order and at any time: nothing
//! that was on the other cluster before is deleted there, whatever it bears. Seeded.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::soak::{self, Random};
use integration::{ControlPlane, eventually};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::syncsets::world::{LIMIT, Stage, run};

/// Rounds in `make test`.
const FEW: u64 = 4;
/// What objects bear that were on the other cluster before. The last two are named by resources that may adopt.
const BEARS: [&str; 7] = ["nothing", "label", "copied", "other-hub", "hive", "adopt-label", "adopt-hive"];
/// Longest time between two changes, in milliseconds. A pass over these clusters takes less than half of it.
const LONGEST: u64 = 1_500;

/// How a syncset no longer wants its objects.
#[derive(Clone, Copy, Debug)]
enum Drop {
    Names,
    Document,
    Reference,
}

struct Round<'s> {
    stage: &'s Stage,
    number: u64,
    there: &'static ControlPlane,
}

impl Round<'_> {
    fn name(&self, bears: &str) -> String {
        format!("{bears}-{}", self.number)
    }

    fn cluster(&self) -> String {
        self.name("c")
    }

    /// The resources of a syncset: one for each of those that are there, and one that is not.
    fn resources(&self) -> Vec<Value> {
        let map = |bears: &&str| {
            let mut map = self.stage.config_map(&self.name(bears), &json!({"of": "hub"}));
            if bears.starts_with("adopt") {
                map["metadata"]["annotations"] = json!({"towline.dev/adopt": "true"});
            }
            map
        };
        BEARS.iter().chain(&["new"]).map(map).collect()
    }

    /// A syncset for the cluster with these.
    async fn syncset(&self, name: &str) {
        let spec = json!({"clusterDeploymentRefs": [{"name": self.cluster()}], "resourceApplyMode": "Sync",
            "resources": self.resources()});
        let document = json!({"namespace": self.stage.namespace, "name": name, "spec": spec});
        self.stage.create("syncsets", &document).await;
    }

    /// What others have made on the other cluster.
    async fn existing(&self, copied: &ConfigMap) -> BTreeMap<String, String> {
        let maps = self.stage.maps(self.there).await;
        let label = json!({"hive.openshift.io/managed": "true"});
        let mut uids = BTreeMap::new();
        for bears in BEARS {
            let name = self.name(bears);
            let metadata = match bears {
                "nothing" => json!({"name": name}),
                "copied" => json!({"name": name, "labels": copied.labels(), "annotations": copied.annotations()}),
                "other-hub" => json!({"name": name, "labels": label,
                    "annotations": {"towline.dev/syncset-id": "00000000-0000-4000-8000-000000000001"}}),
                _ => json!({"name": name, "labels": label}),
            };
            let manager = if bears.ends_with("hive") { "hive6-clustersync" } else { "kubectl" };
            let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
            let map = serde_json::from_value(json!({"metadata": metadata, "data": {"of": "existing"}})).unwrap();
            uids.insert(name, maps.create(&params, &map).await.unwrap().uid().unwrap());
        }
        uids
    }

    /// The objects of the round that are on the other cluster.
    async fn found(&self) -> BTreeMap<String, String> {
        let maps = self.stage.maps(self.there).await.list(&ListParams::default()).await.unwrap();
        let suffix = format!("-{}", self.number);
        let of_round = maps.items.iter().filter(|map| map.name_any().ends_with(&suffix));
        of_round.map(|map| (map.name_any(), map.uid().unwrap())).collect()
    }

    async fn moves(&self) {
        let kubeconfig = self.stage.kubeconfig(self.there, self.there.address()).to_string();
        self.stage.change(&self.stage.path("clusters", &self.cluster()), &json!({"kubeconfig": kubeconfig})).await;
    }

    async fn drops(&self, syncset: &str, how: Drop) {
        let path = self.stage.path("syncsets", syncset);
        match how {
            Drop::Names => drop(self.stage.change(&path, &json!({"spec": {"resources": []}})).await),
            Drop::Document => self.stage.remove(&path).await,
            Drop::Reference => {
                let spec = json!({"spec": {"clusterDeploymentRefs": [{"name": "nowhere"}]}});
                drop(self.stage.change(&path, &spec).await);
            }
        }
    }

    /// The other cluster has these, and its document nothing left to do.
    async fn has(&self, expected: &BTreeMap<String, String>, what: &str) {
        self.stage.at_rest().await;
        let outcome = eventually(format!("round {}: {what}", self.number), LIMIT, async || {
            let found = self.found().await;
            if found == *expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.stage.log());
        }
    }
}

#[test]
fn on_another_cluster_nothing_that_was_there_before_is_deleted_whatever_changes_first() {
    run(async {
        let mut random = Random::new(soak::seed());
        let stage = Stage::new("elsewhere").await;
        // The namespace is there on both.
        let here = stage.register("scaffold", &json!({}), 0).await;
        let there = stage.register("scaffold-too", &json!({}), 1).await;
        for name in ["scaffold", "scaffold-too"] {
            stage.remove(&stage.path("clusters", name)).await;
        }
        for number in 0..soak::rounds(FEW) {
            let round = Round { stage: &stage, number, there };
            stage.register(&round.cluster(), &json!({}), 0).await;
            let first = round.name("s");
            round.syncset(&first).await;
            let is_done = |status: &Value| status["syncSets"][0]["result"] == "Success";
            stage.status(&round.cluster(), "what the syncset wants on the first cluster", is_done).await;
            let copied = stage.maps(here).await.get(&round.name("copied")).await.unwrap();
            let existing = round.existing(&copied).await;

            let how = [Drop::Names, Drop::Document, Drop::Reference][random.index(3)];
            let (moves_first, delay) = (random.below(3) > 0, Duration::from_millis(random.below(LONGEST)));
            println!("round {number}: {how:?}, moves first: {moves_first}, {delay:?} between");
            if moves_first {
                round.moves().await;
            }
            if !moves_first {
                round.drops(&first, how).await;
            }
            // What another process does meanwhile is what the round is about.
            tokio::time::sleep(delay).await;
            if moves_first {
                round.drops(&first, how).await;
            } else {
                round.moves().await;
            }
            round.has(&existing, "what was there before, and nothing else").await;

            // A syncset that comes later finds what was there before, too; and what it makes there it may delete.
            let later = round.name("later");
            round.syncset(&later).await;
            let new = round.name("new");
            let is_made = async || match round.found().await.remove(&new) {
                Some(_) => Ok(()),
                None => Err("it is not there".to_owned()),
            };
            eventually(format!("round {number}: the object that was not there"), LIMIT, is_made).await.unwrap();
            tokio::time::sleep(Duration::from_millis(random.below(LONGEST))).await;
            round.drops(&later, how).await;
            round.has(&existing, "all that was there before").await;

            stage.remove(&stage.path("clusters", &round.cluster())).await;
            for syncset in [&first, &later] {
                if !matches!(how, Drop::Document) {
                    stage.remove(&stage.path("syncsets", syncset)).await;
                }
            }
            let maps = stage.maps(there).await;
            for name in existing.keys() {
                maps.delete(name, &DeleteParams::default()).await.unwrap();
            }
        }
    });
}

/// A mistake in a kubeconfig that is mended takes nothing from the first cluster.
#[test]
fn back_on_its_first_cluster_a_document_knows_its_objects_again() {
    run(async {
        let stage = Stage::new("homeward").await;
        let here = stage.register("west-1", &json!({}), 0).await;
        let there = stage.register("scaffold", &json!({}), 1).await;
        stage.remove(&stage.path("clusters", "scaffold")).await;
        let map = |name: &str| stage.config_map(name, &json!({"of": name}));
        let of = |name: &'static str| (name, json!({"of": name}));
        stage.syncset("base", "Sync", &[map("dropped"), map("kept")]).await;
        stage.succeeds("west-1", "base", 1).await;
        for plane in [there, here] {
            let kubeconfig = stage.kubeconfig(plane, plane.address()).to_string();
            stage.change(&stage.path("clusters", "west-1"), &json!({"kubeconfig": kubeconfig})).await;
            stage.has(plane, &[of("dropped"), of("kept")]).await;
            stage.at_rest().await;
        }
        stage.wants("base", &[map("kept")]).await;
        stage.has(here, &[of("kept")]).await;
        stage.has(there, &[of("dropped"), of("kept")]).await;
    });
}

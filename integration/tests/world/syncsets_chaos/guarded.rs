//! The guard of mass deletions on real API servers: the mistakes that it is made for, and what approves.

use integration::hub::Request;
use integration::{Towline, eventually};
use serde_json::{Value, json};

use crate::syncsets_chaos::fleet::{Fleet, LIMIT, run};

/// More than ten of them may not lose objects.
const CLUSTERS: usize = 12;
const MOST: usize = 10;

/// Clusters `c0`, `c1`, … with a label `env` of `prod`, and a `SelectorSyncSet` that has synced one config map to each.
struct Guarded {
    fleet: Fleet,
    name: &'static str,
}

impl Guarded {
    async fn new(name: &'static str, annotations: &Value) -> Self {
        let mut fleet = Fleet::new(name).await;
        for number in 0..CLUSTERS {
            let labels = [("ns", format!("{name}-{number}")), ("env", "prod".to_owned())];
            let labels = labels.map(|(key, value)| (key.to_owned(), value));
            fleet.register(name, &format!("c{number}"), &labels.into()).await;
        }
        fleet.start_worker("").await;
        let guarded = Self { fleet, name };
        let document = json!({"name": "fleet", "annotations": annotations, "spec": guarded.spec("prod", &["site"])});
        guarded.fleet.send(&Request::post("/v1/selectorsyncsets", &document)).await;
        guarded.holds(&["site"], CLUSTERS).await;
        guarded
    }

    fn spec(&self, env: &str, names: &[&str]) -> Value {
        let map = |name: &&str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"of": self.name},
                "metadata": {"name": name, "namespace": "{{ fromCDLabel \"ns\" }}"}})
        };
        json!({"clusterDeploymentSelector": {"matchLabels": {"env": env}}, "enableResourceTemplates": true,
            "resourceApplyMode": "Sync", "resources": names.iter().map(map).collect::<Vec<_>>()})
    }

    async fn edit(&self, env: &str, names: &[&str]) {
        let replaced = json!([{"op": "replace", "path": "/spec", "value": self.spec(env, names)}]);
        self.fleet.send(&Request::json_patch("/v1/selectorsyncsets/fleet", &replaced)).await;
    }

    /// The names of the config maps of each cluster.
    async fn names(&self) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        for number in 0..CLUSTERS {
            all.push(self.fleet.held(number).await.into_keys().map(|(_, name)| name).collect());
        }
        all
    }

    /// Waits until so many clusters have these config maps, and the others none.
    async fn holds(&self, names: &[&str], clusters: usize) {
        let outcome = eventually(format!("{names:?} on {clusters} clusters"), LIMIT, async || {
            let found = self.names().await;
            let (full, empty) =
                (found.iter().filter(|of| **of == names).count(), found.iter().filter(|of| of.is_empty()).count());
            if full == clusters && full + empty == CLUSTERS { Ok(()) } else { Err(format!("{found:?}")) }
        });
        if let Err(error) = outcome.await {
            panic!("{error}\n{}", self.fleet.log());
        }
    }

    /// On how many clusters deletions are held, once every cluster is told what it is to be told, and nobody has work left.
    async fn held(&self, expected: impl Fn(usize) -> bool) -> usize {
        const IDLE: &str = "select c.cursor >= (select max(version) from towline_log) and not exists (select from towline_work \
             where ready_at <= now() + interval '1.5 s' or until >= now()) from towline_claim c where c.name = 'dispatcher'";
        let outcome = eventually("the condition Held", LIMIT, async || {
            let row = self.fleet.sql.query_one(IDLE, &[]).await.map_err(|error| error.to_string())?;
            if row.get::<_, Option<bool>>(0) != Some(true) {
                return Err("there is work".to_owned());
            }
            let mut held = 0;
            for number in 0..CLUSTERS {
                let path = format!("/v1/clustersyncs/{}/c{number}", self.name);
                let status = self.fleet.send(&Request::get(&path)).await["status"].clone();
                let conditions = status["conditions"].as_array().into_iter().flatten();
                held += conditions.into_iter().filter(|one| one["type"] == "Held" && one["status"] == "True").count();
            }
            if expected(held) { Ok(held) } else { Err(format!("{held} clusters are held")) }
        });
        match outcome.await {
            Ok(held) => held,
            Err(error) => panic!("{error}\n{}", self.fleet.log()),
        }
    }

    /// `towline approve syncsets` at the process that is the dispatcher.
    async fn approve(&self, arguments: &[&str]) -> String {
        let admin = self.fleet.workers[0].admin_url();
        let all = [&["approve", "syncsets"], arguments, &["--admin", &admin]].concat();
        let output = Towline::command(all).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_selector_that_matches_nothing_by_mistake_is_held_until_it_is_approved() {
    run(async {
        let guarded = Guarded::new("typo", &json!({})).await;
        guarded.edit("prodd", &["site"]).await;
        guarded.held(|held| held == CLUSTERS).await;
        guarded.holds(&["site"], CLUSTERS).await;
        // Taken back, nothing has happened.
        guarded.edit("prod", &["site"]).await;
        guarded.held(|held| held == 0).await;
        guarded.holds(&["site"], CLUSTERS).await;
        guarded.edit("prodd", &["site"]).await;
        guarded.held(|held| held == CLUSTERS).await;
        guarded.holds(&["site"], CLUSTERS).await;
        // Also if what the process has counted is older: an approval is for what is held now.
        let listed = guarded.approve(&["--list"]).await;
        assert!(listed.contains("SelectorSyncSet fleet"), "{listed}");
        let approved = guarded.approve(&["fleet"]).await;
        assert!(approved.contains("SelectorSyncSet fleet"), "{approved}");
        guarded.holds(&["site"], 0).await;
        guarded.held(|held| held == 0).await;
    });
}

#[test]
fn a_syncset_that_is_deleted_by_mistake_is_held_and_comes_back_or_is_approved() {
    run(async {
        let guarded = Guarded::new("mistake", &json!({})).await;
        let fleet = &guarded.fleet;
        for ends in [false, true] {
            fleet.send(&Request::delete("/v1/selectorsyncsets/fleet")).await;
            guarded.held(|held| held == CLUSTERS).await;
            guarded.holds(&["site"], CLUSTERS).await;
            if ends {
                guarded.approve(&[]).await;
                guarded.holds(&["site"], 0).await;
            } else {
                let document = json!({"name": "fleet", "spec": guarded.spec("prod", &["site"])});
                fleet.send(&Request::post("/v1/selectorsyncsets", &document)).await;
            }
            guarded.held(|held| held == 0).await;
        }
        // Of the one that came back nothing was ever deleted and made again.
        let deleted: usize = fleet
            .places
            .iter()
            .map(|place| place.endpoint.asked().iter().filter(|asked| asked.method == http::Method::DELETE).count())
            .sum();
        assert_eq!(deleted, CLUSTERS);
    });
}

#[test]
fn labels_that_are_wiped_from_all_clusters_at_once_delete_on_ten_of_them_at_most() {
    run(async {
        let guarded = Guarded::new("wiped", &json!({})).await;
        let label = |value: Option<&str>| {
            let cluster =
                move |number: usize| (format!("/v1/clusters/wiped/c{number}"), json!({"labels": {"env": value}}));
            (0..CLUSTERS).map(cluster).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..CLUSTERS).map(|_| guarded.fleet.client()).collect();
        let wiped = clients.into_iter().zip(label(None)).map(async |(mut client, (path, change))| {
            client.send(&Request::merge_patch(&path, &change)).await.unwrap().success().unwrap();
        });
        futures::future::join_all(wiped).await;
        let held = guarded.held(|held| held >= CLUSTERS - MOST).await;
        guarded.holds(&["site"], held).await;
        for (path, change) in label(Some("prod")) {
            guarded.fleet.send(&Request::merge_patch(&path, &change)).await;
        }
        guarded.holds(&["site"], CLUSTERS).await;
        guarded.held(|held| held == 0).await;
    });
}

#[test]
fn what_is_approved_for_always_is_never_held() {
    run(async {
        let guarded = Guarded::new("always", &json!({"towline.dev/approve-deletions": "always"})).await;
        guarded.edit("prod", &["other"]).await;
        guarded.holds(&["other"], CLUSTERS).await;
        guarded.edit("prodd", &["other"]).await;
        guarded.holds(&["other"], 0).await;
        assert!(!guarded.fleet.log().contains("deletions of a syncset are held"), "{}", guarded.fleet.log());
    });
}

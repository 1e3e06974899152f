//! What a pass costs: its requests by the audit log of the edge, and its statements as the database counts them.

use std::collections::BTreeMap;

use integration::{ControlPlane, eventually};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::syncsets::requests::Requests;
use crate::syncsets::world::{LIMIT, Stage, WITH_DUPLICATES, run};

/// Statements that a replica sends besides passes, by their names in metrics: the tail, claims, looks for work and renewals, compaction,
/// the overview, the dispatcher, and counts of the hub. Each comes at any moment. No pass sends one of them, nor a transaction, whose
/// `BEGIN` and `COMMIT` have no name.
const BESIDE_PASSES: [&str; 34] = [
    "applied_selectors",
    "aside_syncsets",
    "begin_tail",
    "claim_work",
    "compact",
    "concerned_clusters",
    "count_applied_selectors",
    "count_applied_syncsets",
    "count_clusters_by_state",
    "count_keys",
    "count_work",
    "dispatch_read",
    "held_syncsets",
    "last_failing_syncsets",
    "lead",
    "lock_dispatcher",
    "lock_tidying",
    "oldest_migration",
    "move_cursor",
    "origin",
    "orphaned_clusters",
    "pass_over",
    "read_log",
    "renew_claims",
    "renew_work",
    "rollouts_due",
    "stopped_rollouts",
    "syncsets_overview",
    "tail",
    "tidy_guards",
    "tidy_held",
    "tidy_lost",
    "unreachable_clusters",
    "unreadable_syncsets",
];
/// The last statement of each pass ends its claim: one that has nothing to store, and one that has.
const LAST: [&str; 2] = ["work_done", "end_pass"];

/// A cluster of which one pass at a time is let through.
struct Counted {
    stage: Stage,
    plane: &'static ControlPlane,
    requests: Requests,
}

/// What a pass has cost.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    requests: usize,
    statements: u64,
}

/// How often each statement was sent, by its name.
type Statements = BTreeMap<String, u64>;

/// The statements that may be those of passes or requests, from the metrics of a replica.
pub(crate) fn beside(metrics: &str) -> Statements {
    let counts = metrics.lines().filter_map(|line| {
        let (name, count) = line.strip_prefix("towline_db_query_seconds_count{query=\"")?.split_once("\"} ")?;
        (!BESIDE_PASSES.contains(&name)).then(|| (name.to_owned(), count.parse().unwrap()))
    });
    counts.collect()
}

/// Waits until all changes are dispatched.
async fn dispatched(stage: &Stage) {
    let behind =
        "select c.cursor < (select max(version) from towline_log) from towline_claim c where c.name = 'dispatcher'";
    eventually("the changes to be dispatched", LIMIT, async || {
        let row = stage.sql.query_one(behind, &[]).await.map_err(|error| error.to_string())?;
        if row.get::<_, Option<bool>>(0) == Some(false) { Ok(()) } else { Err("behind".to_owned()) }
    })
    .await
    .unwrap();
}

impl Counted {
    async fn new(name: &'static str) -> Self {
        let stage = Stage::new(name).await;
        let plane = stage.register("west-1", &json!({}), 0).await;
        stage.at_rest().await;
        let requests = Requests::from_now(&stage, plane).await;
        Self { stage, plane, requests }
    }

    /// Keeps workers from the cluster.
    async fn hold(&self) {
        self.stage.at_rest().await;
        let text = "update towline_work set holder = 'test', until = now() + interval '1 h', token = token + 1";
        assert_eq!(self.stage.sql.execute(text, &[]).await.unwrap(), 1);
    }

    /// The statements so far that may be those of passes.
    async fn statements(&self) -> Statements {
        beside(&self.stage.replicas[0].towline().admin().metrics().await.unwrap())
    }

    /// Waits until all changes are dispatched, and lets one pass through, which is due in any case.
    async fn pass(&mut self) -> (Cost, Statements) {
        dispatched(&self.stage).await;
        self.requests.seen().await;
        let (before, reconciles) = (self.statements().await, self.stage.reconciles().await);
        let free = "update towline_work set holder = null, until = null, ready_at = now(), wanted = wanted + 1; \
             select pg_notify('towline_work', '')";
        self.stage.sql.batch_execute(free).await.unwrap();
        let since = |mut after: Statements| {
            for (name, count) in &before {
                *after.entry(name.clone()).or_default() -= count;
            }
            after.retain(|_, count| *count > 0);
            after
        };
        // Another process sees the end of a claim before the one that has ended it counts its statement.
        eventually("the pass to end", LIMIT, async || {
            let found = since(self.statements().await);
            if LAST.iter().any(|last| found.contains_key(*last)) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .unwrap();
        self.stage.at_rest().await;
        assert_eq!(self.stage.reconciles().await - reconciles, 1, "one pass");
        let found = since(self.statements().await);
        let statements = found.values().sum();
        (Cost { requests: self.requests.seen().await.len(), statements }, found)
    }

    /// Lets the pass after a change through, which must cost so much.
    async fn costs(&mut self, what: &str, requests: usize, statements: u64) {
        let (cost, found) = self.pass().await;
        assert_eq!(cost, Cost { requests, statements }, "{what}: {found:#?}");
        self.hold().await;
    }

    fn maps(&self, values: &[(&str, &str)]) -> Vec<Value> {
        values.iter().map(|(name, value)| self.stage.config_map(name, &json!({"a": value}))).collect()
    }

    fn patch(&self, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": self.stage.namespace,
            "patchType": "merge", "patch": "{\"data\": {\"p\": \"1\"}}"})
    }

    async fn create(&self, name: &str, fields: &Value) {
        let mut spec = json!({"clusterDeploymentRefs": [{"name": "west-1"}], "resourceApplyMode": "Sync"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let document = json!({"namespace": self.stage.namespace, "name": name, "spec": spec});
        self.stage.create("syncsets", &document).await;
    }
}

/// Each row of the table of costs. Of statements each pass has a read of the state, one of what the process has not read before, a write before the
/// first request that changes something, the `ClusterSync`, and one that stores the result and ends the claim.
#[test]
fn a_pass_costs_the_requests_and_statements_that_are_promised() {
    run(async {
        let mut counted = Counted::new("costs").await;
        let maps = counted.stage.maps(counted.plane).await;
        for name in ["one", "other"] {
            let target = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            maps.create(&PostParams::default(), &target).await.unwrap();
        }
        counted.hold().await;
        let patches = ["one", "other"].map(|name| counted.patch(name));
        let resources = counted.maps(&[("a", "1"), ("b", "1"), ("c", "1")]);
        counted.create("base", &json!({"resources": resources, "patches": patches})).await;
        counted.costs("a new syncset of 3 objects and 2 patches", 8, 5).await;
        counted.costs("nothing is due", 0, 2).await;
        counted.stage.wants("base", &counted.maps(&[("a", "2"), ("b", "1"), ("c", "2")])).await;
        counted.costs("two changes", 2, 5).await;
        // Three objects: one or two would be looked at one by one.
        counted.stage.sql.batch_execute("update towline_cluster set next_full = null").await.unwrap();
        counted.costs("a full pass in step with one kind and 2 patches", 3, 2).await;
        counted.stage.wants("base", &counted.maps(&[("a", "2"), ("b", "1")])).await;
        counted.costs("one dropped", 2, 5).await;
    });
}

/// Nothing is known of the cluster: which one it is, and whether the document owns it, is stored under a lock before anything else.
#[test]
fn the_first_pass_over_a_cluster_costs_a_request_and_two_statements_more() {
    run(async {
        let mut counted = Counted::new("first-pass").await;
        counted.hold().await;
        counted.create("base", &json!({"resources": counted.maps(&[("a", "1"), ("b", "1")])})).await;
        counted.stage.sql.batch_execute("update towline_cluster set identity = null").await.unwrap();
        counted.costs("a new syncset of 2 objects in a cluster that is not known", 5, 7).await;
        counted.stage.wants("base", &counted.maps(&[("a", "2"), ("b", "1")])).await;
        counted.costs("the next change", 1, 5).await;
    });
}

/// A pass that asks the cluster nothing does not say that the cluster answers.
#[test]
fn a_pass_without_a_request_is_no_contact_with_the_cluster() {
    run(async {
        let mut counted = Counted::new("no-contact").await;
        counted.hold().await;
        let cluster_row = "select last_contact::text from towline_cluster";
        let cluster_row =
            async |counted: &Counted| -> String { counted.stage.sql.query_one(cluster_row, &[]).await.unwrap().get(0) };
        let before = cluster_row(&counted).await;
        let unrendered = counted.stage.config_map("{{ fromCDLabel \"missing\" }}", &json!({}));
        counted.create("base", &json!({"resources": [unrendered], "enableResourceTemplates": true})).await;
        let (cost, found) = counted.pass().await;
        assert_eq!(cost.requests, 0, "{found:#?}");
        let failed = "select count(*) from towline_result where result = 'Failure'";
        assert_eq!(counted.stage.sql.query_one(failed, &[]).await.unwrap().get::<_, i64>(0), 1);
        assert_eq!(cluster_row(&counted).await, before);
        counted.hold().await;
        counted.stage.wants("base", &counted.maps(&[("a", "1")])).await;
        let (cost, found) = counted.pass().await;
        assert_eq!(cost.requests, 2, "{found:#?}");
        assert_ne!(cluster_row(&counted).await, before);
    });
}

/// An object that Hive has applied costs three requests, once.
#[test]
fn an_object_is_taken_over_from_hive_by_three_requests_once() {
    run(async {
        let mut counted = Counted::new("taken-over").await;
        let maps = counted.stage.maps(counted.plane).await;
        let last = json!({"data": {"a": "hive", "dropped": "hive"}}).to_string();
        let of_hive = json!({"metadata": {"name": "site", "labels": {"hive.openshift.io/managed": "true"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": last}}, "data": {"a": "hive", "dropped": "hive"}});
        let by_hive = PostParams { field_manager: Some("hive6-clustersync".to_owned()), ..PostParams::default() };
        maps.create(&by_hive, &serde_json::from_value(of_hive).unwrap()).await.unwrap();
        counted.hold().await;
        counted.create("base", &json!({"resources": counted.maps(&[("site", "1")])})).await;
        let (cost, found) = counted.pass().await;
        assert_eq!(cost, Cost { requests: 3, statements: 5 }, "{found:#?}");
        counted.stage.has(counted.plane, &[("site", json!({"a": "1"}))]).await;
        counted.hold().await;
        counted.stage.wants("base", &counted.maps(&[("site", "2")])).await;
        counted.costs("the next change", 1, 5).await;
    });
}

/// At most 5 statements up to 100 objects. A pass also stores after each 100 requests: after the looks it stores
/// anyway, before its first write, and after the writes at its end.
#[test]
fn a_hundred_objects_need_no_more_statements_than_one() {
    run(async {
        let mut counted = Counted::new("hundred").await;
        counted.hold().await;
        let names: Vec<String> = (0..100).map(|number| format!("m-{number:02}")).collect();
        let maps = |first: &str| {
            let values = names.iter().enumerate().map(|(at, name)| (&**name, if at == 0 { first } else { "1" }));
            counted.maps(&values.collect::<Vec<_>>())
        };
        let (one, two) = (maps("1"), maps("2"));
        counted.create("base", &json!({"resources": one})).await;
        counted.costs("a new syncset of 100 objects", 200, 5).await;
        counted.costs("nothing is due", 0, 2).await;
        counted.stage.wants("base", &two).await;
        counted.costs("one change among 100", 1, 5).await;
        counted.stage.sql.batch_execute("update towline_cluster set next_full = null").await.unwrap();
        counted.costs("a full pass of 100 objects in step", 1, 2).await;
        counted.stage.wants("base", &two[1..]).await;
        counted.costs("one dropped of 100", 2, 5).await;
    });
}

/// Four passes read what is new at once. Without looking again before it reads, each of the 40 would read what these have read. The clusters are
/// claimed together, and their snapshots are read 16 at a time.
#[test]
fn a_change_of_many_clusters_is_read_by_as_many_passes_as_may_read_at_once() {
    run(async {
        let stage = Stage::shared("many-costs", WITH_DUPLICATES).await;
        let names: Vec<String> = (0..40).map(|number| format!("west-{number:02}")).collect();
        for name in &names {
            stage.register(name, &json!({"name": name}), 0).await;
        }
        stage.at_rest().await;
        let held = "update towline_work set holder = 'test', until = now() + interval '1 h', token = token + 1";
        assert_eq!(stage.sql.execute(held, &[]).await.unwrap(), 40);
        let references: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        let map = stage.config_map("{{ fromCDLabel \"name\" }}", &json!({"a": "1"}));
        let spec = json!({"clusterDeploymentRefs": references, "enableResourceTemplates": true, "resources": [map]});
        stage.create("syncsets", &json!({"namespace": stage.namespace, "name": "base", "spec": spec})).await;
        let reads = async || {
            let metrics = stage.replicas[0].towline().admin().metrics().await.unwrap();
            ["syncset_content", "syncset_snapshot"].map(|name| beside(&metrics).get(name).copied().unwrap_or_default())
        };
        dispatched(&stage).await;
        let before = reads().await;
        let free = "update towline_work set holder = null, until = null, ready_at = now(), wanted = wanted + 1; \
             select pg_notify('towline_work', '')";
        stage.sql.batch_execute(free).await.unwrap();
        for name in &names {
            stage.succeeds(name, "base", 1).await;
        }
        let after = reads().await;
        let [contents, snapshots] = [after[0] - before[0], after[1] - before[1]];
        assert!((1..=4).contains(&contents), "{contents} reads of what was new to the process");
        // Few may be claimed a second time.
        assert!((3..=10).contains(&snapshots), "{snapshots} reads of 40 snapshots");
    });
}

/// It is read again each minute and at each change, without a connection.
#[test]
fn a_refused_kubeconfig_costs_no_request_and_few_statements() {
    run(async {
        let mut counted = Counted::new("refused-costs").await;
        counted.hold().await;
        counted.create("base", &json!({"resources": counted.maps(&[("a", "1")])})).await;
        counted.costs("a new syncset of 1 object", 2, 5).await;
        let mut kubeconfig = counted.stage.kubeconfig(counted.plane, counted.plane.address());
        kubeconfig["users"][0]["user"]["exec"] = json!({"command": "true"});
        let refused = json!({"kubeconfig": kubeconfig.to_string()});
        counted.stage.change(&counted.stage.path("clusters", "west-1"), &refused).await;
        counted.costs("a kubeconfig that is refused", 0, 3).await;
        counted.costs("the same a minute later", 0, 2).await;
        counted.stage.wants("base", &counted.maps(&[("a", "2")])).await;
        counted.costs("a change while it is refused", 0, 2).await;
    });
}

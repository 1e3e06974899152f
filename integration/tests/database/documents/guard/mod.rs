//! The guard against mass deletions: what the dispatcher holds, what lets it go, and what a pass may delete meanwhile.

mod approvals;
mod aside;
mod cost;
mod edits;
mod labels;
mod names;
mod rollouts;
mod whole;

use serde_json::{Value, json};
use towline::test_api::db::Database;
use towline::test_api::documents::{Author, Item, Kind};
use towline::test_api::syncset::dispatch::{
    self, Aside, AsideCheck, Batch, Dispatch, DispatchError, SuspendedSyncset, suspended,
};
use towline::test_api::syncset::plan::guard::Cause;
use towline::test_api::syncset::plan::wanted::Deletions;
use towline::test_api::syncset::store::PassStore;

use crate::documents::dispatch::{Leader, document};
use crate::documents::world::{Stage, Written};

const PROD: [(&str, &str); 1] = [("env", "prod")];
const TEST: [(&str, &str); 1] = [("env", "test")];
const APPROVE: &str = "towline.dev/approve-deletions";

/// A database with clusters, and a dispatcher.
struct World {
    stage: Stage,
    writer: Written,
    leader: Leader,
    store: PassStore,
}

/// An approval by somebody at an address.
async fn approve(database: &Database, name: Option<&str>) -> Result<Vec<SuspendedSyncset>, DispatchError> {
    dispatch::approve(database, name, &Author::of_admin([10, 0, 0, 7].into())).await
}

/// A selector with so many config maps and further resources.
fn selector(generation: i64, selects: &Value, maps: usize, further: &[Value]) -> Item {
    let mut resources: Vec<Value> = (0..maps).map(|n| map(&format!("m{n}"))).collect();
    resources.extend(further.iter().cloned());
    let data = json!({"spec": {"clusterDeploymentSelector": selects, "clusterNamespaces": ["*"], "resourceApplyMode": "Sync",
        "resources": resources, "patches": [], "secretMappings": []}});
    document(Kind::SelectorSyncSet, "base", generation, data, &[])
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
}

fn of_env(env: &str) -> Value {
    json!({"matchLabels": {"env": env}})
}

fn annotated(mut item: Item, value: &str) -> Item {
    if let Some(row) = item.changes.first_mut().and_then(|change| change.row.as_mut()) {
        row.annotations.insert(APPROVE.to_owned(), value.to_owned());
    }
    item
}

fn with(mut item: Item, pointer: &str, value: Value) -> Item {
    let row = item.changes.first_mut().and_then(|change| change.row.as_mut()).expect("a document");
    let mut data = Value::Object(std::mem::take(&mut row.data));
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    data.pointer_mut(parent).expect("a parent")[field] = value;
    let Value::Object(data) = data else { panic!("an object") };
    row.data = data;
    item
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}})
}

impl World {
    /// So many clusters with the label `env=prod`, and the syncset `base`, which selects them and has sent ten config maps to each.
    async fn new(name: &str, clusters: usize) -> Self {
        let stage = Stage::new(name).await;
        let writer = stage.writer();
        for number in 0..clusters {
            writer.version(document(Kind::Cluster, &format!("c{number}"), 1, json!({}), &PROD)).await;
        }
        let leader = Leader::of(&stage).await;
        let store = PassStore::new(stage.database());
        let world = Self { stage, writer, leader, store };
        world.changes(selector(1, &of_env("prod"), 10, &[])).await;
        world.applied().await;
        world
    }

    /// Passes have sent the syncset's objects to the clusters that match it.
    async fn applied(&self) {
        self.stage
            .run(
                "insert into towline_applied select c.id, '', 'ConfigMap', 'default', 'm' || n, s.id, 'v1', null, true, true, false, null, null, null, 0 \
                 from clusters c, selectorsyncsets s, generate_series(0, 9) n where c.labels->>'env' = 'prod' on conflict do nothing",
            )
            .await;
    }

    /// Passes have deleted these rows `a`, as far as they may. Returns from how many clusters.
    async fn deleted_where(&self, condition: &str) -> usize {
        let mut count = 0;
        let clusters =
            format!("select distinct a.cluster::text from towline_applied a where not a.adopted and {condition}");
        for id in self.ids(&clusters).await {
            if self.deletions_on(&id).await == Deletions::Allowed {
                // As `PassStore::save` does it.
                let text = format!(
                    "with gone as (delete from towline_applied a where a.cluster = '{id}' and not a.adopted and {condition} returning a.*), \
                     sums as (select cluster, syncset, count(*)::int as objects from gone group by cluster, syncset), \
                     used as (update towline_lost l set approved = greatest(l.approved - s.objects, 0) from sums s \
                       where l.cluster = s.cluster and l.syncset = s.syncset) \
                     insert into towline_deleted select s.syncset, s.cluster, now(), s.objects - coalesce(l.approved, 0) from sums s \
                       left join towline_lost l on l.cluster = s.cluster and l.syncset = s.syncset where s.objects > coalesce(l.approved, 0)"
                );
                self.stage.run(&text).await;
                count += 1;
            }
        }
        count
    }

    /// Passes have deleted them from the clusters that do not match, as far as they may.
    async fn deleted(&self) -> usize {
        self.deleted_where("a.cluster in (select id from clusters where labels->>'env' <> 'prod')").await
    }

    /// Some time goes by: what was deleted gets old.
    async fn later(&self, by: &str) {
        self.stage.run(&format!("update towline_deleted set at = at - interval '{by}'")).await;
    }

    async fn ids(&self, text: &str) -> Vec<String> {
        self.stage.sql.query(text, &[]).await.expect("rows").iter().map(|row| row.get(0)).collect()
    }

    async fn writes(&self, item: Item) {
        self.writer.version(item).await;
    }

    /// Writes, and dispatches.
    async fn changes(&self, item: Item) -> u64 {
        self.writes(item).await;
        self.leader.all().await
    }

    /// What happens each minute, and beside the batches then.
    async fn tidied(&self) -> Batch {
        self.tidied_by(&self.leader.dispatch).await
    }

    async fn tidied_by(&self, dispatch: &Dispatch) -> Batch {
        dispatch.tidy(&self.leader.grant).await.expect("it is tidied");
        let (mut aside, mut last) = (Aside::default(), Batch::default());
        while let AsideCheck::Done(batch) = dispatch.check_aside(&self.leader.grant, &mut aside).await.expect("a check")
        {
            last = batch;
        }
        last
    }

    async fn relabels(&self, number: usize, labels: &[(&str, &str)]) {
        self.writes(document(Kind::Cluster, &format!("c{number}"), 1, json!({}), labels)).await;
    }

    /// What is suspended: on how many clusters of how many, and why.
    async fn suspended(&self) -> Option<(usize, usize, Cause)> {
        let suspended: Vec<SuspendedSyncset> = suspended(&self.stage.database()).await.expect("a list");
        assert!(
            suspended.len() <= 1
                && suspended
                    .iter()
                    .all(|suspended| suspended.label() == "SelectorSyncSet base" && suspended.since.is_some())
        );
        suspended.first().map(|suspended| (suspended.clusters, suspended.tracks, suspended.cause))
    }

    /// What a pass over this cluster may do with what the syncset no longer wants.
    async fn deletions_on(&self, cluster: &str) -> Deletions {
        let snapshot = self
            .store
            .snapshot_within(cluster.parse().expect("an id"), usize::MAX)
            .await
            .expect("a snapshot")
            .expect("there is room");
        let syncset = self.ids("select distinct syncset::text from towline_applied").await;
        snapshot.deletions(syncset.first().expect("a syncset").parse().expect("an id"))
    }

    async fn deletions(&self) -> Deletions {
        let id = self.ids("select id::text from clusters where name = 'c0'").await;
        self.deletions_on(id.first().expect("a cluster")).await
    }
}

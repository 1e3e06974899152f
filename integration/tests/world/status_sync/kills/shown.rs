//! What the cluster shows, by family and object.

use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::expected::Shown;
use crate::status_sync::world::{PLACEMENT_LABEL, Stage};

/// Every family, in the order of [`super::expected::all`].
pub(super) async fn all(stage: &Stage) -> [Shown; 6] {
    let status = |object: &DynamicObject| object.data.get("status").cloned().unwrap_or_default();
    let policy = |object: &DynamicObject| {
        let status = status(object);
        json!({"compliant": status["compliant"], "status": status["status"]})
    };
    let report = |object: &DynamicObject| {
        let fields = ["reportType", "resources", "results", "summary"];
        let present = fields.into_iter().filter_map(|field| Some((field.to_owned(), object.data.get(field)?.clone())));
        Value::Object(present.collect())
    };
    [
        each(stage, "policies", policy).await,
        each(stage, "placementrules", |object| status(object)["decisions"].clone()).await,
        each(stage, "placements", |object| status(object)["numberOfSelectedClusters"].clone()).await,
        decisions(stage).await,
        each(stage, "subscriptionstatuses", |object| object.data["statuses"].clone()).await,
        each(stage, "subscriptionreports", report).await,
    ]
}

async fn list(stage: &Stage, plural: &str) -> Vec<DynamicObject> {
    stage.api(plural).list(&ListParams::default()).await.expect("a list").items
}

async fn each(stage: &Stage, plural: &str, part: impl Fn(&DynamicObject) -> Value) -> Shown {
    list(stage, plural).await.iter().map(|object| (object.name_any(), part(object))).collect()
}

/// The clusters of each placement, over all of its objects.
async fn decisions(stage: &Stage) -> Shown {
    let mut objects = list(stage, "placementdecisions").await;
    objects.sort_by_key(|object| object.name_any().rsplit('-').next().and_then(|number| number.parse::<u32>().ok()));
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for object in objects {
        let clusters = all.entry(object.labels()[PLACEMENT_LABEL].clone()).or_default();
        let decisions = object.data.pointer("/status/decisions").and_then(Value::as_array).cloned().unwrap_or_default();
        assert!(decisions.len() <= 100);
        clusters.extend(decisions.iter().map(|decision| decision["clusterName"].clone()));
    }
    all.into_iter().map(|(name, clusters)| (name, Value::Array(clusters))).collect()
}

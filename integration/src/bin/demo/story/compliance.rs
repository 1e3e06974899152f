//! What leaf hubs report of their clusters, rolled up on the hub.

use integration::arrivals::Change;
use integration::crds::hub_kind;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Told;
use crate::error::Error;
use crate::stage::Stage;

/// The policy, on the hub.
const NAMESPACE: &str = "hub-policies";
const POLICY: &str = "pod-security";

/// Two leaf hubs report three clusters, of which one does not comply; and then it does.
pub(super) async fn compliance(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the compliance on the hub");
    let kind = hub_kind("policies")?;
    stage.hub.make_namespace(NAMESPACE).await?;
    let policies: Api<DynamicObject> = Api::namespaced_with(stage.hub.user.clone(), NAMESPACE, &kind);
    let made = policies.create(&PostParams::default(), &DynamicObject::new(POLICY, &kind)).await;
    let uid = made.map_err(Error::kubernetes(format!("make {NAMESPACE}/{POLICY} on hub")))?.uid().unwrap_or_default();
    stage.leaf_hubs.want(&uid, NAMESPACE, POLICY).await?;

    let shows = |word: &'static str| move |_: Change, object: &Value| compliant(object) == word;
    let broken = stage.hub.look_out_for(&kind, (NAMESPACE, POLICY), shows("NonCompliant")).await?;
    let reports =
        [("leaf-1", "paris", "compliant"), ("leaf-1", "rome", "compliant"), ("leaf-2", "oslo", "non_compliant")];
    let first = stage.leaf_hubs.report(&uid, &reports).await?;
    let first = broken.moment().await?.saturating_duration_since(first);

    let mended = stage.hub.look_out_for(&kind, (NAMESPACE, POLICY), shows("Compliant")).await?;
    let second = stage.leaf_hubs.report(&uid, &[("leaf-2", "oslo", "compliant")]).await?;
    let second = mended.moment().await?.saturating_duration_since(second);
    let policy = policies.get(POLICY).await.map_err(Error::kubernetes("read the policy on hub"))?;
    let of_clusters = policy.data.pointer("/status/status").cloned().unwrap_or_default();
    let expected = json!(reports.map(|(_, cluster, _)| {
        json!({"clustername": cluster, "clusternamespace": cluster, "compliant": "Compliant"})
    }));
    if of_clusters != expected {
        return Err(Error::wrong("the clusters of the policy", of_clusters.to_string()));
    }
    let text = format!(
        "database: 2 leaf hubs report {} clusters, oslo does not comply → hub: Policy {POLICY} NonCompliant; oslo does → \
         {}",
        reports.len(),
        compliant(&policy.data)
    );
    Ok(Told { text, latency: first.max(second) })
}

/// What the hub says of all clusters.
fn compliant(policy: &Value) -> &str {
    policy.pointer("/status/compliant").and_then(Value::as_str).unwrap_or("nothing")
}

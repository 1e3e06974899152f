//! The heartbeat of an add-on on edge west: a Lease on the hub, fresh while the add-on's pod is ready.

use std::time::{Duration, Instant};

use integration::eventually;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use super::Told;
use crate::cluster::LIMIT;
use crate::error::Error;
use crate::stage::{ADD_ON_NAMESPACE, HEARTBEAT_NAMESPACE, Stage};

/// The add-on's pod on west, as the roles of `deploy/side-car` have it.
const POD: &str = "add-on-0";
/// The Secret on west with the kubeconfig for the hub.
const SECRET: &str = "add-on-hub-kubeconfig";
/// The Lease on the hub.
const LEASE: &str = "add-on";

/// The add-on gets its credentials and becomes ready.
pub(super) async fn heartbeat(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the heartbeat on the hub");
    let pods: Api<Pod> = Api::namespaced(stage.west.user.clone(), ADD_ON_NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(stage.west.user.clone(), ADD_ON_NAMESPACE);
    let secret = Secret {
        metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
        string_data: Some([("kubeconfig".to_owned(), stage.hub_kubeconfig()?)].into()),
        ..Secret::default()
    };
    let made = secrets.create(&PostParams::default(), &secret).await;
    made.map_err(Error::kubernetes(format!("make {ADD_ON_NAMESPACE}/{SECRET} on west")))?;
    let pod = json!({
        "metadata": {"name": POD}, "spec": {"containers": [{"name": "add-on", "image": "add-on"}]},
    });
    let pod: Pod = serde_json::from_value(pod).map_err(|error| Error::wrong("the pod", error.to_string()))?;
    let made = pods.create(&PostParams::default(), &pod).await;
    made.map_err(Error::kubernetes(format!("make pod {ADD_ON_NAMESPACE}/{POD} on west")))?;
    let ready = set_ready(stage, true).await?;
    let (lease, seen) = wait_for(stage, "the Lease to be there", |lease| renewed(lease).is_some()).await?;
    let spec = lease.spec.unwrap_or_default();
    let text = format!(
        "west: pod {POD} is ready → hub: Lease {HEARTBEAT_NAMESPACE}/{LEASE}, renewed for {} s at a time",
        spec.lease_duration_seconds.unwrap_or_default()
    );
    Ok(Told { text, latency: seen.saturating_duration_since(ready) })
}

/// Its pod is not ready for a while: the hub can see that.
pub(super) async fn not_ready(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the heartbeat on the hub to run out");
    set_ready(stage, false).await?;
    let is_stale = |lease: &Lease| {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        let lasts = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        renewed(lease).is_some_and(|renewed| renewed + lasts < Timestamp::now())
    };
    let (lease, _) = wait_for(stage, "the Lease to run out", is_stale).await?;
    let last = renewed(&lease);
    stage.waits_for("the heartbeat on the hub to be fresh");
    let ready = set_ready(stage, true).await?;
    let (_, seen) = wait_for(stage, "the Lease to be renewed", |lease| renewed(lease) > last).await?;
    let text = "west: the pod is not ready → hub: the Lease runs out; west: ready again → hub: renewed".to_owned();
    Ok(Told { text, latency: seen.saturating_duration_since(ready) })
}

/// What a kubelet would write; when it was sent.
async fn set_ready(stage: &Stage, ready: bool) -> Result<Instant, Error> {
    let pods: Api<Pod> = Api::namespaced(stage.west.user.clone(), ADD_ON_NAMESPACE);
    let status = if ready { "True" } else { "False" };
    let patch = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}});
    let sent = Instant::now();
    let written = pods.patch_status(POD, &PatchParams::default(), &Patch::Merge(patch)).await;
    written.map_err(Error::kubernetes(format!("set the status of pod {POD} on west")))?;
    Ok(sent)
}

async fn wait_for(stage: &Stage, what: &str, wanted: impl Fn(&Lease) -> bool) -> Result<(Lease, Instant), Error> {
    let leases: Api<Lease> = Api::namespaced(stage.hub.admin.clone(), HEARTBEAT_NAMESPACE);
    let seen = eventually(what, LIMIT, async || {
        let lease = leases.get(LEASE).await.map_err(|error| error.to_string())?;
        if wanted(&lease) { Ok((lease, Instant::now())) } else { Err(format!("{:?}", lease.spec)) }
    });
    Ok(seen.await?)
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

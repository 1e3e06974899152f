//! What the hub server applies to both edges, as somebody at a terminal steers it and sees it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use integration::arrivals::Change;
use integration::eventually;
use integration::hub::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::discovery::ApiResource;
use serde_json::Value;

use super::Told;
use crate::cluster::{Cluster, LIMIT, Sighting};
use crate::error::Error;
use crate::kubeconfigs::FLEET;
use crate::stage::{FILES, Stage};

/// The syncset for all edges, its name, and the namespace that it makes.
const MONITORING: &str = "monitoring";
const MONITORING_TEXT: &str = include_str!("monitoring.yaml");
/// The same after an edit.
pub(crate) const EDITED: &str = ".cache/demo/monitoring-edited.yaml";
/// The syncset that fails at first, its name, and the namespace that it wants.
const BILLING: &str = "billing";
const BILLING_TEXT: &str = include_str!("billing.yaml");
/// Objects of these syncsets.
const SITE: (&str, &str) = (MONITORING, "site");
const PROBES: (&str, &str) = (MONITORING, "probes");
const TARIFFS: (&str, &str) = (BILLING, "tariffs");

/// One document reaches both edges, and is rendered for each.
pub(super) async fn applied(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the objects on both edges");
    let file = write(MONITORING, MONITORING_TEXT)?;
    let west = look_out(&stage.west, SITE, |_, object| region(object) == "west").await?;
    let east = look_out(&stage.east, SITE, |_, object| region(object) == "east").await?;
    stage.terminal.types(&format!("cat {}", file.display())).await?;
    let sent = Instant::now();
    stage.apply(&file).await?;
    let latency = west.moment().await?.max(east.moment().await?).saturating_duration_since(sent);
    for edge in ["west", "east"] {
        succeeded(stage, edge, MONITORING, 1).await?;
        stage.shows(edge, SITE, &format!("\"region\":\"{edge}\"")).await?;
    }
    let option = stage.hub_server.option();
    let excerpt = format!("towline get clustersyncs {FLEET}/west{option} -o json | grep '\"result\"'");
    stage.terminal.sees(&excerpt, "\"result\": \"Success\"").await?;
    let text = "hub: a SelectorSyncSet for env=prod → west: namespace monitoring, 2 ConfigMaps, region: west; east: the \
                same, region: east; the ClusterSync of each reports it";
    Ok(Told { text: text.to_owned(), latency })
}

/// Another label gives the templates another value.
pub(super) async fn relabelled(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the new region on east");
    let arrived = look_out(&stage.east, SITE, |_, object| region(object) == "north").await?;
    let command = format!(
        "curl -fsS -X PATCH {}/v1/clusters/{FLEET}/east \\\n    -H 'content-type: application/merge-patch+json' -d \
         '{{\"labels\":{{\"region\":\"north\"}}}}'",
        stage.hub_server.url()
    );
    let sent = Instant::now();
    stage.terminal.types(&command).await?;
    let latency = arrived.moment().await?.saturating_duration_since(sent);
    stage.shows("east", SITE, "\"region\":\"north\"").await?;
    stage.shows("west", SITE, "\"region\":\"west\"").await?;
    let text = "hub: east's label region becomes north → east: region: north; west: as before".to_owned();
    Ok(Told { text, latency })
}

/// Somebody changes an object on an edge; `towline explain` names them, and `towline resync` mends it now.
pub(super) async fn explained(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the drift on west to be mended");
    let (namespace, name) = SITE;
    let patch = format!(
        "kubectl --context west -n {namespace} patch configmap {name} --type merge -p '{{\"data\":{{\"region\":\"moon\"}}}}'"
    );
    stage.terminal.types(&patch).await?;
    let option = stage.hub_server.option();
    let explain = format!("towline explain {FLEET}/west ConfigMap/{namespace}/{name}{option}");
    stage.terminal.sees(&explain, "drift: .data.region was taken by kubectl-patch").await?;
    let mended = look_out(&stage.west, SITE, |_, object| region(object) == "west").await?;
    let sent = Instant::now();
    stage.terminal.types(&format!("towline resync {FLEET}/west{option}")).await?;
    let latency = mended.moment().await?.saturating_duration_since(sent);
    stage.terminal.sees_at_last(&explain, "live       in step").await?;
    let text = "west: somebody sets region: moon → `towline explain` says who; `towline resync` → west: region: west \
                (a full pass, every two hours, would have done so, too)";
    Ok(Told { text: text.to_owned(), latency })
}

/// What an edit would do, before anybody does it.
pub(super) async fn compared(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("towline diff");
    let (before, edited) = (path(MONITORING), Path::new(EDITED));
    let edit = format!("head -n -4 {} | sed 's/30s/10s/' > {}", before.display(), edited.display());
    stage.terminal.types(&edit).await?;
    let diff = format!("towline diff -f {}{}", edited.display(), stage.hub_server.option());
    // A second after the last write, a dry run tells values apart.
    let expected = |edge: &str| format!("{FLEET}/{edge}  create 0  change 1  delete 1  conflict 0");
    let (told, latency) = stage.terminal.sees_at_last(&diff, &expected("west")).await?;
    for edge in ["west", "east"] {
        if !told.contains(&expected(edge)) {
            return Err(Error::wrong("the diff", told));
        }
        let (namespace, name) = PROBES;
        stage
            .terminal
            .sees(&format!("kubectl --context {edge} -n {namespace} get configmap {name} -o name"), name)
            .await?;
    }
    let text = "hub: the syncset without probes, and with another interval, is only tried → on each edge 1 object would be \
                changed and 1 deleted; nothing is";
    Ok(Told { text: text.to_owned(), latency })
}

/// The same in earnest: an object that is no longer wanted goes from both edges.
pub(super) async fn removed(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the object to be gone from both edges");
    let is_gone = |change: Change, _: &Value| change == Change::Deleted;
    let west = look_out(&stage.west, PROBES, is_gone).await?;
    let east = look_out(&stage.east, PROBES, is_gone).await?;
    let sent = Instant::now();
    stage.apply(Path::new(EDITED)).await?;
    let latency = west.moment().await?.max(east.moment().await?).saturating_duration_since(sent);
    for edge in ["west", "east"] {
        succeeded(stage, edge, MONITORING, 2).await?;
        stage.shows(edge, SITE, "\"interval\":\"10s\"").await?;
    }
    let (namespace, name) = PROBES;
    let left = stage.terminal.types(&format!("kubectl --context west -n {namespace} get configmaps")).await?;
    if left.contains(name) || !left.contains(SITE.1) {
        return Err(Error::wrong("the ConfigMaps on west", left));
    }
    let text = format!("hub: {name} dropped from the syncset → west, east: {name} is gone, interval: 10s");
    Ok(Told { text, latency })
}

/// What one cluster lacks is told with its reason, and applied as soon as it is there.
pub(super) async fn failing(stage: &mut Stage) -> Result<Told, Error> {
    stage.waits_for("the failure to be reported");
    let file = write(BILLING, BILLING_TEXT)?;
    let arrived = look_out(&stage.west, TARIFFS, |change, _| change == Change::Added).await?;
    stage.terminal.types(&format!("cat {}", file.display())).await?;
    stage.apply(&file).await?;
    let failures = format!("towline failures{}", stage.hub_server.option());
    stage.terminal.sees_at_last(&failures, "NamespaceMissing").await?;
    stage.waits_for("the next try on west");
    let sent = Instant::now();
    stage.terminal.types(&format!("kubectl --context west create namespace {BILLING}")).await?;
    let latency = arrived.moment().await?.saturating_duration_since(sent);
    succeeded(stage, "west", BILLING, 1).await?;
    stage.terminal.sees_at_last(&failures, "no syncset fails").await?;
    let text = "hub: a SyncSet for west needs a namespace that is not there → `towline failures` says so; west: the \
                namespace is made → the next try succeeds";
    Ok(Told { text: text.to_owned(), latency })
}

impl Stage {
    /// Types the command that applies a file.
    pub(super) async fn apply(&mut self, file: &Path) -> Result<(), Error> {
        let command = format!("towline apply -f {}{}", file.display(), self.hub_server.option());
        self.terminal.types(&command).await.map(|_| ())
    }

    /// Types the command that shows the data of a config map, which must have this part.
    pub(super) async fn shows(&mut self, edge: &str, (namespace, name): (&str, &str), part: &str) -> Result<(), Error> {
        let command = format!("kubectl --context {edge} -n {namespace} get configmap {name} -o jsonpath='{{.data}}'");
        self.terminal.sees(&command, part).await
    }
}

/// Looks out for a config map that is as wanted, from now on.
pub(super) async fn look_out(
    edge: &Cluster,
    map: (&str, &str),
    wanted: impl Fn(Change, &Value) -> bool + Send + Sync + 'static,
) -> Result<Sighting, Error> {
    edge.look_out_for(&ApiResource::erase::<ConfigMap>(&()), map, wanted).await
}

fn region(map: &Value) -> &str {
    map.pointer("/data/region").and_then(Value::as_str).unwrap_or_default()
}

/// Waits until the `ClusterSync` of an edge reports that a generation of a syncset was applied: no request follows then.
pub(super) async fn succeeded(stage: &Stage, edge: &str, syncset: &str, generation: u64) -> Result<(), Error> {
    let mut client = stage.hub_server.first();
    let request = Request::get(&format!("/v1/clustersyncs/{FLEET}/{edge}"));
    eventually(format!("the success of {syncset} on {edge}"), LIMIT, async || {
        let answer = client.send(&request).await.map_err(|error| error.to_string())?;
        let found = answer.json().map_err(|error| error.to_string())?;
        let lists = ["/status/syncSets", "/status/selectorSyncSets"].into_iter().filter_map(|list| found.pointer(list));
        let mut entries = lists.filter_map(Value::as_array).flatten();
        let is_done = entries.any(|entry| {
            let is = |field: &str, value: &Value| entry.get(field) == Some(value);
            is("name", &syncset.into())
                && is("result", &"Success".into())
                && is("observedGeneration", &generation.into())
        });
        if is_done { Ok(()) } else { Err(found.to_string()) }
    })
    .await?;
    Ok(())
}

/// Where the file of a syncset is.
fn path(syncset: &str) -> PathBuf {
    Path::new(FILES).join(format!("{syncset}.yaml"))
}

pub(super) fn write(syncset: &str, text: &str) -> Result<PathBuf, Error> {
    let path = path(syncset);
    fs::write(&path, text).map_err(Error::file("write", &path))?;
    Ok(path)
}

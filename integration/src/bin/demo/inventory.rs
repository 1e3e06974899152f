//! `towline inventory` on edge east, and an HTTP API that writes down what it is told.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use integration::rbac::grant_inventory;
use integration::{Chart, Helm, Sink, Told, Towline, users};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, LIMIT};
use crate::error::Error;

/// Where the API writes down what it is told, a line for each request.
pub(crate) const API_LOG: &str = ".cache/demo/api.log";
/// Interval of looking for new requests.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The process, the API, and a chart.
pub(crate) struct Inventory {
    towline: Towline,
    sink: Arc<Sink>,
    writing: JoinHandle<()>,
    chart: String,
    // Its directory has the chart.
    _helm: Helm,
}

impl Inventory {
    /// Starts the API and the process, which has nothing to report before there is a project.
    pub(crate) async fn start(edge: &Cluster) -> Result<Self, Error> {
        grant_inventory(&edge.admin, None).await?;
        let helm = Helm::on(&edge.plane).await?;
        let chart = helm.chart(&shop())?;
        let sink = Arc::new(Sink::start().await?);
        let log = File::create(API_LOG).map_err(Error::file("create", API_LOG))?;
        let writing = tokio::spawn(write_down(Arc::clone(&sink), log));
        let kubeconfig = edge.plane.kubeconfig(users::TOWLINE)?.display().to_string();
        let towline = Towline::start_inventory(&[
            ("KUBECONFIG", &kubeconfig),
            ("HOSSTED_API_URL", &sink.url()),
            ("HOSSTED_AUTH_TOKEN", "demo"),
            ("RECONCILE_DURATION", "500ms"),
        ])
        .await?;
        towline.wait_ready(LIMIT).await?;
        Ok(Self { towline, sink, writing, chart, _helm: helm })
    }

    pub(crate) fn chart(&self) -> &str {
        &self.chart
    }

    /// Waits until the API has accepted a report of a release with this status.
    pub(crate) async fn told(&self, release: &str, status: &str) -> Result<Told, Error> {
        let is_it = |told: &Told| {
            let info = told.body.pointer("/app_info/helm_info");
            let is = |field: &str, value: &str| info.and_then(|info| info.get(field)) == Some(&Value::from(value));
            told.accepted && is("name", release) && is("status", status)
        };
        let mut told = self.sink.wait_for(&format!("{release} {status}"), 1, LIMIT, is_it).await?;
        told.pop().ok_or_else(|| Error::wrong("the API", "it was told nothing"))
    }

    /// Stops the process as an operator would.
    pub(crate) async fn stop(self, limit: Duration) -> Result<(), Error> {
        let ended: ExitStatus = self.towline.terminate(limit).await?;
        self.writing.abort();
        if ended.success() { Ok(()) } else { Err(Error::wrong("the end of towline inventory", ended.to_string())) }
    }

    /// Whether the API's log has all requests so far.
    pub(crate) fn is_written_down(&self) -> Result<bool, Error> {
        let path = Path::new(API_LOG);
        let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
        Ok(text.lines().count() >= self.sink.told().len())
    }
}

/// Appends a line for each request, for ever.
async fn write_down(sink: Arc<Sink>, mut log: File) {
    let mut written = 0;
    loop {
        for told in sink.told().iter().skip(written) {
            // A full disk ends the demo elsewhere.
            let _ = writeln!(log, "{}", line(told));
            written += 1;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What a request tells, in a line.
fn line(told: &Told) -> String {
    let Some(info) = told.body.get("app_info") else { return told.line.clone() };
    let text = |field: &str| info.pointer(&format!("/helm_info/{field}")).map(Value::to_string).unwrap_or_default();
    let count = |field: &str| info.get(field).and_then(Value::as_array).map_or(0, Vec::len);
    format!(
        "{} {} {} revision {}, services {}, claims {}",
        told.line,
        text("name").trim_matches('"'),
        text("status").trim_matches('"'),
        text("revision"),
        count("service_info"),
        count("volume_info"),
    )
}

/// A chart with a service and a claim.
fn shop() -> Chart {
    const LABELS: &str = "  labels:\n    app.kubernetes.io/instance: {{ .Release.Name }}\n    app.kubernetes.io/managed-by: {{ .Release.Service }}\n";
    Chart::new("webshop", "2.1")
        .with(
            "templates/service.yaml",
            format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: \"{{{{ .Release.Name }}}}\"\n{LABELS}spec:\n  ports: [{{port: 80}}]\n"),
        )
        .with(
            "templates/claim.yaml",
            format!("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: \"{{{{ .Release.Name }}}}\"\n{LABELS}spec:\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 8Gi}}}}\n"),
        )
}

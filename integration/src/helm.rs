//! Helm, and charts that tests make.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::room::Room;
use crate::{ControlPlane, Error, programs, users};

/// A chart: its files by their paths.
#[derive(Clone, Debug)]
pub struct Chart {
    name: String,
    files: BTreeMap<String, String>,
}

impl Chart {
    /// A chart without templates.
    pub fn new(name: &str, app_version: &str) -> Self {
        let chart = format!("apiVersion: v2\nname: {name}\nversion: 1.2.3\nappVersion: \"{app_version}\"\n");
        Self { name: name.to_owned(), files: BTreeMap::from([("Chart.yaml".to_owned(), chart)]) }
    }

    /// With another file, such as a template.
    #[must_use]
    pub fn with(mut self, path: &str, content: impl Into<String>) -> Self {
        self.files.insert(path.to_owned(), content.into());
        self
    }
}

/// Helm on one cluster, as its administrator.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    driver: &'static str,
    room: Room,
}

impl Helm {
    /// Helm that stores releases in Secrets.
    pub async fn on(plane: &ControlPlane) -> Result<Self, Error> {
        let (program, kubeconfig) = (programs::helm().await?, plane.kubeconfig(users::ADMIN)?);
        Ok(Self { program, kubeconfig, driver: "secret", room: Room::new("helm")? })
    }

    /// The same with another driver: `configmap`.
    #[must_use]
    pub fn storing_in(mut self, driver: &'static str) -> Self {
        self.driver = driver;
        self
    }

    /// Writes a chart. Returns its directory.
    pub fn chart(&self, chart: &Chart) -> Result<String, Error> {
        let directory = self.room.join(&chart.name);
        for (path, content) in &chart.files {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
            }
            std::fs::write(&path, content).map_err(Error::file("write", &path))?;
        }
        Ok(directory.display().to_string())
    }

    /// Runs a command, which has to succeed. Returns what it prints.
    pub async fn run(&self, args: &[&str]) -> Result<String, Error> {
        let (succeeded, output) = self.attempt(args).await?;
        if succeeded {
            Ok(output)
        } else {
            Err(Error::Unreadable { what: format!("helm {}", args.join(" ")), detail: output })
        }
    }

    /// Starts a command that is killed before it ends, with the value at the latest.
    pub fn begin(&self, args: &[&str]) -> Result<Child, Error> {
        let process = format!("helm {}", args.join(" "));
        self.command(args).spawn().map_err(|source| Error::Process { action: "run", process, source })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("KUBECONFIG", &self.kubeconfig).env("HELM_DRIVER", self.driver).kill_on_drop(true);
        for (variable, directory) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(variable, self.room.join(directory));
        }
        command
    }

    /// Runs a command. Returns whether it succeeded, and what it prints.
    pub async fn attempt(&self, args: &[&str]) -> Result<(bool, String), Error> {
        let process = format!("helm {}", args.join(" "));
        let output =
            self.command(args).output().await.map_err(|source| Error::Process { action: "run", process, source })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok((true, text(&output.stdout))) } else { Ok((false, text(&output.stderr))) }
    }

    /// What Helm itself says of a release: `helm status -o json`.
    pub async fn status(&self, namespace: &str, name: &str) -> Result<Value, Error> {
        let text = self.run(&["status", name, "--namespace", namespace, "--output", "json"]).await?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Unreadable { what: "helm status".to_owned(), detail: error.to_string() })
    }
}

/// A Secret as Helm writes it, in the namespace `default`, with this record of a first revision.
pub fn record(name: &str, record: &[u8]) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
        "metadata": {"name": format!("sh.helm.release.v1.{name}.v1"), "namespace": "default",
            "labels": {"owner": "helm", "name": name, "status": "deployed", "version": "1"}},
        "data": {"release": STANDARD.encode(STANDARD.encode(record))}})
}

/// The record of a release, as Helm packs it.
pub fn packed(document: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(document)?;
    encoder.finish()
}

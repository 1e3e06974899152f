//! Commands as people type them: with each `-o`, and as `kubectl towline`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Error, programs};

/// What a command takes after `-o`.
pub const FORMATS: [&str; 5] = ["table", "wide", "json", "yaml", "name"];

/// What a command has printed with each `-o`.
#[derive(Debug)]
pub struct Printed {
    /// The same with each of them.
    pub code: Option<i32>,
    pub table: String,
    /// With `-o json`, and with `-o yaml`.
    pub document: Value,
    /// The lines of `-o name`.
    pub names: Vec<String>,
    /// By format, what was on standard error.
    pub told: BTreeMap<&'static str, String>,
}

/// Runs a command with each `-o`. An error says in which one it prints what is not its format, or differs from another one.
pub async fn in_each_format(
    mut run: impl AsyncFnMut(&'static str) -> Result<Output, Error>,
) -> Result<Printed, String> {
    let (mut printed, mut told, mut codes) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for format in FORMATS {
        let output = run(format).await.map_err(|error| error.to_string())?;
        codes.insert(output.status.code());
        printed.insert(format, text(&output.stdout));
        told.insert(format, text(&output.stderr));
    }
    let of = |format: &str| printed.get(format).map(String::as_str).unwrap_or_default();
    let wrong = |what: &str| Err(format!("{what}: {printed:#?}\n{told:#?}"));
    let (1, Some(code)) = (codes.len(), codes.first().copied()) else { return wrong("it ends in several ways") };
    let Ok(document) = serde_json::from_str::<Value>(of("json")) else { return wrong("it is no JSON") };
    let Ok(yaml) = serde_saphyr::from_str::<Value>(of("yaml")) else { return wrong("it is no YAML") };
    if of("yaml").starts_with('{') || steady(&document) != steady(&yaml) {
        return wrong("JSON and YAML differ");
    }
    let is_document = |format| serde_json::from_str::<Value>(of(format)).is_ok_and(|read| !read.is_number());
    if is_document("table")
        || is_document("wide")
        || (code == Some(0) && (of("table").is_empty() || of("wide").is_empty()))
    {
        return wrong("it is no table");
    }
    let names = of("name").lines().map(str::to_owned).collect();
    Ok(Printed { code, table: of("table").to_owned(), document, names, told })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A document without what differs from one run to the next: numbers, versions, times, UIDs.
fn steady(value: &Value) -> Value {
    match value {
        Value::Number(_) => json!(0),
        Value::String(text) if is_of_one_run(text) => json!("of one run"),
        Value::Array(elements) => elements.iter().map(steady).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), steady(value))).collect(),
        other => other.clone(),
    }
}

fn is_of_one_run(text: &str) -> bool {
    let has = |place: usize, letter: u8| text.as_bytes().get(place) == Some(&letter);
    let is_version = !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    let is_time = text.len() >= 20 && has(4, b'-') && has(10, b'T') && text.ends_with('Z');
    let is_uid = text.len() == 36 && has(8, b'-') && has(13, b'-') && has(23, b'-');
    is_version || is_time || is_uid
}

/// `kubectl towline`: the binary under its other name, for the releases of one namespace.
pub struct KubectlTowline {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
}

impl KubectlTowline {
    /// Makes it in a directory.
    pub async fn new(directory: &Path, kubeconfig: &Path, namespace: &str) -> Result<Self, Error> {
        let program = directory.join("kubectl-towline");
        let binary = std::path::absolute(programs::towline().await?).map_err(Error::file("find", directory))?;
        symlink(binary, &program).map_err(Error::file("make", &program))?;
        Ok(Self { program, kubeconfig: kubeconfig.to_owned(), namespace: namespace.to_owned() })
    }

    /// The command without its namespace.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).kill_on_drop(true);
        command
    }

    /// Runs a command in the namespace to its end.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output, Error> {
        let output = self.command(&[&["-n", &self.namespace], arguments].concat()).output().await;
        output.map_err(|source| Error::Process { action: "run", process: "kubectl towline".to_owned(), source })
    }

    /// The same as a line for a shell.
    pub fn line(&self, arguments: &[&str]) -> String {
        let (kubeconfig, program) = (self.kubeconfig.display(), self.program.display());
        format!("env KUBECONFIG={kubeconfig} {program} -n {} {}", self.namespace, arguments.join(" "))
    }
}

/// The metadata of a pod of a release, as the chart sets it.
pub fn pod_of_release(namespace: &str, name: &str, release: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": "towline", "app.kubernetes.io/instance": release});
    json!({"namespace": namespace, "name": name, "labels": labels})
}

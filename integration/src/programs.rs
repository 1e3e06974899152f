//! The programs that the fixtures and tests run: the control plane's, Towline's own, the one that it is compared with, a checker of
//! histories, Go's renderer of templates, Helm, and those that make and check what the hub's API describes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::Error;
use crate::room::{repository, target_directory};

static CONTROL_PLANE: OnceCell<PathBuf> = OnceCell::const_new();
static REFERENCE: OnceCell<PathBuf> = OnceCell::const_new();
static LINEARIZABILITY: OnceCell<PathBuf> = OnceCell::const_new();
static TEMPLATES: OnceCell<PathBuf> = OnceCell::const_new();
static KSTATUS: OnceCell<PathBuf> = OnceCell::const_new();
static HELM: OnceCell<PathBuf> = OnceCell::const_new();
static CLIENT_GENERATOR: OnceCell<PathBuf> = OnceCell::const_new();
static SCHEMATHESIS: OnceCell<PathBuf> = OnceCell::const_new();
static PIKA: OnceCell<PathBuf> = OnceCell::const_new();
static TOWLINE: OnceCell<PathBuf> = OnceCell::const_new();

/// Path of one of the control plane's programs (`kube-apiserver`, `etcd`, `kube-controller-manager`, `kubectl`), which
/// are built where nobody has built them yet: five minutes, with progress on stderr.
pub async fn control_plane(program: &str) -> Result<PathBuf, Error> {
    let directory = CONTROL_PLANE.get_or_try_init(build_control_plane).await?;
    Ok(directory.join(program))
}

async fn build_control_plane() -> Result<PathBuf, Error> {
    script("the control plane (integration/controlplane/build.sh)", "integration/controlplane/build.sh").await
}

/// Path of the Go controller that the bench compares with, which is built where nobody has built it yet: two minutes.
pub async fn reference() -> Result<PathBuf, Error> {
    let build = || script("the reference (integration/reference/build.sh)", "integration/reference/build.sh");
    REFERENCE.get_or_try_init(build).await.cloned()
}

/// Path of the checker of histories (`integration/linearizability`), which is built where nobody has built it yet.
pub async fn linearizability() -> Result<PathBuf, Error> {
    const SCRIPT: &str = "integration/linearizability/build.sh";
    let build = || script("the checker of histories (integration/linearizability/build.sh)", SCRIPT);
    LINEARIZABILITY.get_or_try_init(build).await.cloned()
}

/// Path of the program that renders templates as Go does (`integration/templates`), which is built where nobody has built it yet.
pub async fn templates() -> Result<PathBuf, Error> {
    const SCRIPT: &str = "integration/templates/build.sh";
    let build = || script("the renderer of templates (integration/templates/build.sh)", SCRIPT);
    TEMPLATES.get_or_try_init(build).await.cloned()
}

/// Path of the program that judges objects as kstatus does (`integration/kstatus`), which is built where nobody has built it yet: a minute.
pub async fn kstatus() -> Result<PathBuf, Error> {
    let path = "integration/kstatus/build.sh";
    KSTATUS.get_or_try_init(|| script("kstatus (integration/kstatus/build.sh)", path)).await.cloned()
}

/// Path of Helm (`integration/helm`), which is built where nobody has built it yet: two minutes.
pub async fn helm() -> Result<PathBuf, Error> {
    HELM.get_or_try_init(|| script("Helm (integration/helm/build.sh)", "integration/helm/build.sh")).await.cloned()
}

/// Path of oapi-codegen, which makes the Go client of the hub, and which is built where nobody has built it yet: a minute.
pub async fn client_generator() -> Result<PathBuf, Error> {
    let path = "clients/go/generator/build.sh";
    let build = || script("the generator of the Go client (clients/go/generator/build.sh)", path);
    CLIENT_GENERATOR.get_or_try_init(build).await.cloned()
}

/// Path of schemathesis, which is installed where nobody has installed it yet: a minute.
pub async fn schemathesis() -> Result<PathBuf, Error> {
    let path = "integration/schemathesis/build.sh";
    let build = || script("schemathesis (integration/schemathesis/build.sh)", path);
    SCHEMATHESIS.get_or_try_init(build).await.cloned()
}

/// Path of a Python with pika, which is installed where nobody has installed it yet: a few seconds.
pub async fn pika() -> Result<PathBuf, Error> {
    let path = "integration/pika/build.sh";
    let build = || script("pika (integration/pika/build.sh)", path);
    PIKA.get_or_try_init(build).await.cloned()
}

/// Runs a script that builds something; the path that it prints.
async fn script(what: &'static str, path: &str) -> Result<PathBuf, Error> {
    let failed = |detail: String| Error::Build { what, detail };
    let output = Command::new(repository().join(path))
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Path of the `towline` binary: `TOWLINE_BIN` where it is set, or else what cargo makes of the sources as they are
/// now, in the profile of this process.
///
/// `make` sets `TOWLINE_BIN` to what it has just built, because cargo, asked for the binary alone, unifies features
/// differently and so builds every dependency again.
pub async fn towline() -> Result<PathBuf, Error> {
    TOWLINE.get_or_try_init(build_towline).await.cloned()
}

async fn build_towline() -> Result<PathBuf, Error> {
    if let Some(path) = env::var_os("TOWLINE_BIN") {
        let path = repository().join(path);
        if path.is_file() {
            return Ok(path);
        }
        return Err(Error::Missing {
            program: "towline",
            needed_for: "TOWLINE_BIN names it",
            remedy: format!("there is no file {}; build it or unset TOWLINE_BIN", path.display()),
        });
    }
    let failed = |detail: String| Error::Build { what: "towline", detail };
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "towline", "--bin", "towline", "--profile", profile])
        .current_dir(repository())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(target_directory().join(directory).join(Path::new("towline")))
}

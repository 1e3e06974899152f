//! What has to be so before `make release` begins to build, what it leaves if it fails, and the files that describe what it has built.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::path;

fn git(directory: &Path, arguments: &[&str]) {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
    let output =
        Command::new("git").args(identity).args(arguments).current_dir(directory).output().expect("install git");
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
}

/// A repository of what the check reads, with one file changed, and all committed.
fn repository(change: Option<(&str, &str, &str)>) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for file in [".gitignore", "hack/release.sh", "Cargo.toml", "CHANGELOG.md", "deploy/chart/Chart.yaml"] {
        let copy = directory.path().join(file);
        fs::create_dir_all(copy.parent().expect("a parent")).expect("a directory");
        fs::copy(path(file), &copy).expect("a copy");
    }
    if let Some((file, from, to)) = change {
        let file = directory.path().join(file);
        let text = fs::read_to_string(&file).expect("a file");
        assert!(text.contains(from), "{from}");
        fs::write(&file, text.replacen(from, to, 1)).expect("to write");
    }
    git(directory.path(), &["init", "--quiet"]);
    git(directory.path(), &["add", "."]);
    git(directory.path(), &["commit", "--quiet", "--message", "all"]);
    directory
}

/// What the check says; `None` if all is well.
fn told(change: Option<(&str, &str, &str)>, uncommitted: bool) -> Option<String> {
    let directory = repository(change);
    if uncommitted {
        fs::write(directory.path().join("new"), "").expect("to write");
    }
    let script = directory.path().join("hack/release.sh");
    let output = Command::new(script).arg("check").output().expect("the script runs");
    assert!(!directory.path().join("dist").exists() && !directory.path().join("target").exists(), "it only checks");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_release_has_one_version_a_heading_of_it_and_nothing_uncommitted() {
    assert_eq!(told(None, false), None);
    for (change, uncommitted, expected) in [
        (None, true, "the tree has changes that are not committed"),
        (Some(("Cargo.toml", "version = \"", "version = \"9")), false, "Chart.yaml has version"),
        (Some(("deploy/chart/Chart.yaml", "appVersion: ", "appVersion: 9")), false, "Chart.yaml has appVersion"),
        (Some(("CHANGELOG.md", "## [0", "## [old 0")), false, "CHANGELOG.md has no heading"),
    ] {
        let told = told(change, uncommitted).expect("it is refused");
        assert!(told.contains(expected), "{told}");
    }
}

/// The first tool that it runs fails.
#[test]
fn a_release_that_fails_leaves_no_earlier_one() {
    let directory = repository(None);
    let (dist, tools) = (directory.path().join("dist"), tempfile::tempdir().expect("a directory"));
    fs::create_dir(&dist).expect("a directory");
    fs::write(dist.join("SHA256SUMS"), "of an earlier release").expect("to write");
    let python = tools.path().join("python3");
    fs::write(&python, "#!/bin/sh\nexit 7\n").expect("to write");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("to make it a program");
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new(directory.path().join("hack/release.sh")).env("PATH", path).output();
    assert_eq!(output.expect("the script runs").status.code(), Some(7));
    assert!(!dist.exists());
}

/// A script of the release; what it printed, or why it refused.
fn run(script: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(path(script));
    command.args(arguments).env("RELEASE_URL", "https://example.com/vVERSION").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the script runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("to write");
    let output = child.wait_with_output().expect("it ends");
    let [printed, complaints] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    if output.status.success() { Ok(printed) } else { Err(complaints) }
}

/// The archives of a release, with another program for each platform.
fn archives(has_link: bool) -> TempDir {
    let dist = tempfile::tempdir().expect("a directory");
    for platform in ["amd64", "arm64"] {
        let name = format!("towline-1.2.3-linux-{platform}");
        let directory = dist.path().join(&name);
        fs::create_dir(&directory).expect("a directory");
        fs::write(directory.join("towline"), platform).expect("to write");
        fs::write(directory.join("LICENSE"), "").expect("to write");
        if has_link {
            symlink("towline", directory.join("kubectl-towline")).expect("a link");
        }
        let archive = format!("{name}.tar.gz");
        let tar = Command::new("tar").args(["-czf", &archive, &name]).current_dir(dist.path()).status();
        assert!(tar.expect("install tar").success());
    }
    dist
}

#[test]
fn the_manifest_of_krew_names_each_archive_with_its_sum_and_the_program_in_it() {
    let dist = archives(false);
    let place = dist.path().to_str().expect("a path");
    run("hack/release/krew.sh", &[place, "1.2.3", "amd64", "arm64"], "").expect("a manifest");
    let written = fs::read_to_string(dist.path().join("towline.yaml")).expect("the manifest");
    let manifest: Value = serde_saphyr::from_str(&written).expect("YAML");
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&json!("Plugin"), &json!("towline")));
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    let of = |platform: &str| {
        let name = format!("towline-1.2.3-linux-{platform}");
        let archive = fs::read(dist.path().join(format!("{name}.tar.gz"))).expect("the archive");
        json!({
            "selector": {"matchLabels": {"os": "linux", "arch": platform}},
            "uri": format!("https://example.com/v1.2.3/{name}.tar.gz"),
            "sha256": format!("{:x}", Sha256::digest(archive)),
            "files": [{"from": format!("{name}/towline"), "to": "kubectl-towline"}, {"from": format!("{name}/LICENSE"), "to": "."}],
            "bin": "kubectl-towline",
        })
    };
    assert_eq!(manifest["spec"]["platforms"], json!([of("amd64"), of("arm64")]));

    // krew ends at a symbolic link.
    let dist = archives(true);
    let place = dist.path().to_str().expect("a path");
    let refused = run("hack/release/krew.sh", &[place, "1.2.3", "amd64"], "").expect_err("it is refused");
    assert!(refused.contains("has more than files and directories"), "{refused}");
    assert!(!dist.path().join("towline.yaml").exists());
}

#[test]
fn an_sbom_names_the_crates_that_the_binary_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let [binary, section] = ["binary", "section"].map(|name| directory.path().join(name));
    let packages = ["towline", "used"].map(|name| json!({"name": name, "version": "1.0.0", "source": "registry"}));
    let mut written = ZlibEncoder::new(fs::File::create(&section).expect("a file"), Compression::default());
    written.write_all(json!({"packages": packages}).to_string().as_bytes()).expect("to write");
    written.finish().expect("to write");
    let added = format!("--add-section=.dep-v0={}", section.display());
    let objcopy = Command::new("objcopy").arg(added).arg("/bin/true").arg(&binary).status();
    assert!(objcopy.expect("install binutils").success());

    let crate_of = |name: &str| json!({"bom-ref": name, "name": name, "version": "1.0.0"});
    let sbom = |components: &[&str], on: &[&str]| {
        let components: Vec<_> = components.iter().map(|name| crate_of(name)).collect();
        let mut dependencies = vec![json!({"ref": "towline", "dependsOn": on})];
        dependencies.extend(components.iter().map(|component| json!({"ref": component["name"]})));
        json!({"metadata": {"component": crate_of("towline")}, "components": components, "dependencies": dependencies})
    };
    let binary = binary.to_str().expect("a path");
    let made = run("hack/release/sbom.py", &[binary], &sbom(&["optional", "used"], &["used", "optional"]).to_string());
    let made: Value = serde_json::from_str(&made.expect("an SBOM")).expect("JSON");
    assert_eq!(made, sbom(&["used"], &["used"]));
    let refused = run("hack/release/sbom.py", &[binary], &sbom(&["optional"], &[]).to_string());
    assert_eq!(refused.expect_err("it is refused"), "sbom: the binary has, and the SBOM has not: used 1.0.0\n");
    let refused = run("hack/release/sbom.py", &["/bin/true"], "{}").expect_err("it is refused");
    assert!(refused.contains("names no crates"), "{refused}");
}

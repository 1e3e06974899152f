//! What has to be so before `make release` begins to build, and what it leaves if it fails.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

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

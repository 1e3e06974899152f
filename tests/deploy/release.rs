//! What has to be so before `make release` begins to build.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::path;

fn git(directory: &Path, arguments: &[&str]) {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
    let output =
        Command::new("git").args(identity).args(arguments).current_dir(directory).output().expect("install git");
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
}

/// What the check says in a repository with one file changed and committed; `None` if all is well.
fn told(change: Option<(&str, &str, &str)>, uncommitted: bool) -> Option<String> {
    let directory = tempfile::tempdir().expect("a directory");
    for file in ["hack/release.sh", "Cargo.toml", "CHANGELOG.md", "deploy/chart/Chart.yaml"] {
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

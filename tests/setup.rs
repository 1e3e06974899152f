//! What the first command of a newcomer says where something is missing, and what the second one may be.

#![expect(clippy::panic, reason = "a test may fail anywhere; the lints' exemption knows only `#[test]`")]

use std::process::Command;

/// Runs a program in the repository; tells whether it succeeded, and everything that it said.
fn said(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.unwrap_or_else(|error| panic!("install {program}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn whoever_may_install_nothing_is_told_exactly_what_to_install() {
    let (succeeded, told) = said("tests/setup/check.sh", &[]);
    assert!(succeeded, "{told}");
}

#[test]
fn make_alone_lists_what_people_type() {
    let (succeeded, told) = said("make", &["--no-print-directory"]);
    assert!(succeeded, "{told}");
    for target in ["demo", "test", "lint", "bench", "audit", "image", "manifests", "docs", "release"] {
        let line = told.lines().find(|line| line.trim_start().starts_with(&format!("make {target} ")));
        assert!(line.is_some_and(|line| line.split_whitespace().count() > 3), "{target} is not explained in:\n{told}");
    }
}

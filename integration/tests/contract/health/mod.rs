//! The health of objects of many kinds, against Go's kstatus.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests: what they assert is what the test says"
)]

mod drawn;

use std::collections::BTreeSet;
use std::process::Stdio;

use integration::programs;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use towline::test_api::syncset::plan::health::{ObjectStatus, assess};

use crate::health::drawn::{Draw, KINDS};

/// What kstatus says of objects: `Current`, `InProgress`, `Failed`, `Terminating`.
async fn by_kstatus(objects: &[(usize, Value)]) -> Vec<String> {
    let lines: String = objects.iter().fold(String::new(), |lines, (_, object)| lines + &object.to_string() + "\n");
    let mut child = Command::new(programs::kstatus().await.expect("kstatus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("kstatus starts");
    let mut stdin = child.stdin.take().expect("its input");
    let writing = tokio::spawn(async move { stdin.write_all(lines.as_bytes()).await });
    let output = child.wait_with_output().await.expect("kstatus ends");
    writing.await.expect("no panic").expect("it reads everything");
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn objects_are_assessed_as_by_kstatus_but_where_the_documentation_says_so() {
    let mut draw = Draw::new(1);
    let objects: Vec<(usize, Value)> = (0..20_000).map(|_| draw.object()).collect();
    let theirs = by_kstatus(&objects).await;
    assert_eq!(theirs.len(), objects.len());
    let mut found = BTreeSet::new();
    for ((at, object), theirs) in objects.iter().zip(&theirs) {
        let (group, kind, _) = KINDS[*at];
        let assessed = assess(group, kind, object, None);
        let ours = match assessed.status {
            ObjectStatus::Current => "Current",
            ObjectStatus::Progressing => "InProgress",
            ObjectStatus::Failed => "Failed",
            ObjectStatus::NoStatus | ObjectStatus::Unknown => "Unknown",
        };
        if ours != theirs.replace("Terminating", "InProgress") {
            found.insert(format!("{kind} {theirs} -> {ours} {}", assessed.reason));
        }
    }
    let expected = [
        "Job Current -> InProgress JobRunning",
        "Job Current -> InProgress Suspended",
        "Pod Current -> Failed PodFailed",
        // Of an init container, which kstatus does not look at.
        "Pod InProgress -> Failed CrashLoopBackOff",
        "Service Current -> InProgress NoAddress",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}

//! The checker of histories, and what it says about some that were made up.

use std::process::Stdio;

use integration::programs;
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::hub_replicas::world::run;

/// An operation on a document, as `integration/linearizability` reads it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    pub(crate) document: String,
    pub(crate) op: Op,
    /// Nanoseconds.
    pub(crate) call: u64,
    /// None: nothing is known of it.
    #[serde(skip_serializing_if = "Option::is_none", rename = "return")]
    pub(crate) end: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) expected: u64,
    pub(crate) value: String,
    pub(crate) outcome: Outcome,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) version: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    Get,
    Put,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Ok,
    Conflict,
    Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What the checker says: whether the history is linearizable, and its output.
pub(crate) async fn check(history: &[Operation]) -> (bool, String) {
    let checker = programs::linearizability().await.expect("the checker");
    let mut child = Command::new(checker)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = String::new();
    for operation in history {
        lines += &serde_json::to_string(operation).expect("JSON");
        lines += "\n";
    }
    let mut input = child.stdin.take().expect("piped");
    // It reads everything before it writes.
    input.write_all(lines.as_bytes()).await.expect("it reads");
    drop(input);
    let output = child.wait_with_output().await.expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => (true, said),
        Some(1) => (false, said),
        _ => panic!("{output:?}"),
    }
}

fn operation(op: Op, (call, end): (u64, u64), outcome: Outcome) -> Operation {
    let (document, end) = ("d".to_owned(), (end > 0).then_some(end));
    Operation { client: 0, document, op, call, end, expected: 0, value: String::new(), outcome, version: 0 }
}

fn put(time: (u64, u64), expected: u64, value: &str, version: u64) -> Operation {
    Operation { expected, value: value.to_owned(), version, ..operation(Op::Put, time, Outcome::Ok) }
}

fn conflict(time: (u64, u64), expected: u64, value: &str) -> Operation {
    Operation { expected, value: value.to_owned(), ..operation(Op::Put, time, Outcome::Conflict) }
}

fn unknown(call: u64, expected: u64, value: &str) -> Operation {
    Operation { expected, value: value.to_owned(), ..operation(Op::Put, (call, 0), Outcome::Unknown) }
}

fn get(time: (u64, u64), value: &str, version: u64) -> Operation {
    Operation { value: value.to_owned(), version, ..operation(Op::Get, time, Outcome::Ok) }
}

#[test]
fn the_checker_tells_histories_that_a_single_replica_could_have_made_from_others() {
    run(async {
        let made = put((1, 2), 0, "a", 5);
        let cases = [
            ("writes in turn", true, vec![put((3, 4), 5, "b", 6), get((5, 6), "b", 6)]),
            ("a read of what is written at the same time", true, vec![put((3, 9), 5, "b", 6), get((4, 5), "b", 6)]),
            ("a read of what is just being replaced", true, vec![put((3, 9), 5, "b", 6), get((4, 5), "a", 5)]),
            (
                "a lost answer whose write comes late",
                true,
                vec![unknown(3, 5, "b"), get((4, 5), "a", 5), get((6, 7), "b", 8)],
            ),
            ("a lost answer whose write never comes", true, vec![unknown(3, 5, "b"), put((4, 5), 5, "c", 6)]),
            ("a conflict with a write whose answer was lost", true, vec![unknown(3, 5, "b"), conflict((4, 5), 5, "c")]),
            ("a stale read", false, vec![put((3, 4), 5, "b", 6), get((5, 6), "a", 5)]),
            (
                "a write that is taken back",
                false,
                vec![put((3, 9), 5, "b", 6), get((4, 5), "b", 6), get((6, 7), "a", 5)],
            ),
            ("two writes that replace the same version", false, vec![put((3, 9), 5, "b", 6), put((4, 8), 5, "c", 7)]),
            ("a write that was lost", false, vec![put((3, 4), 5, "b", 6), put((5, 6), 5, "c", 7)]),
            ("a conflict with nothing", false, vec![conflict((3, 4), 5, "b")]),
            (
                "a conflict whose write is made",
                false,
                vec![put((3, 4), 5, "b", 6), conflict((5, 6), 5, "c"), get((7, 8), "c", 7)],
            ),
            (
                "a lost answer whose write is made twice",
                false,
                vec![unknown(3, 5, "b"), get((4, 5), "b", 6), put((6, 7), 6, "c", 8), get((8, 9), "b", 10)],
            ),
            ("a version that goes back", false, vec![put((3, 4), 5, "b", 4), get((5, 6), "b", 4)]),
            ("a value that nobody wrote", false, vec![get((3, 4), "x", 6)]),
            ("a read of a version that has another value", false, vec![get((3, 4), "b", 5)]),
        ];
        for (name, is_linearizable, operations) in cases {
            let history: Vec<Operation> = std::iter::once(made.clone()).chain(operations).collect();
            let (found, said) = check(&history).await;
            assert_eq!(found, is_linearizable, "{name}: {said}");
        }
        // Documents are apart from each other: one that is wrong is found among others.
        let other = |operation: Operation| Operation { document: "e".to_owned(), ..operation };
        let (found, said) = check(&[made.clone(), other(made.clone()), other(get((3, 4), "x", 6))]).await;
        assert!(!found && said.starts_with("e is not linearizable:\n"), "{said}");
        assert!(check(&[made.clone(), other(made.clone()), other(get((3, 4), "a", 5))]).await.0);
    });
}

//! Laws of a whole process: its exit code, and that it ends at all.
//!
//! Each test runs this test binary again with a role; in that role it is a small daemon.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere; the lints' exemption knows only `#[test]`"
)]

use std::env;
use std::process::{Command, ExitCode};
use std::time::Duration;

use towline::test_api::actor::{self, Backoff, ChildSpec, ExitReason, RestartPolicy, Supervisor};

const ROLE: &str = "TOWLINE_TEST_ROLE";

const QUICK: RestartPolicy = RestartPolicy {
    backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(1)),
    budget: 3,
    window: Duration::from_mins(1),
};

/// Runs the test of this name again as a daemon in that role; tells its exit code and what it logged.
fn daemon(test: &str, role: &str) -> (Option<i32>, String) {
    let this = env::current_exe().expect("a test binary knows its path");
    let output = Command::new(this)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .output()
        .expect("the test binary starts");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), log)
}

/// In the daemon, ends the process as `main` would: with the code that the tree's end stands for.
fn play(role: &str) -> ! {
    let reason = actor::run(Some(2), |_liveness| async {
        match role {
            "crash loop" => {
                let section = ChildSpec::supervisor("section", QUICK, || {
                    vec![ChildSpec::new("failing", |_| async { panic!("again and again") })]
                });
                Supervisor::start("daemon", vec![section.restart(QUICK)], QUICK).exited().await
            }
            "blocked" => {
                let (started, is_started) = std::sync::mpsc::sync_channel(1);
                let blocked = ChildSpec::new("blocked", move |_| {
                    let started = started.clone();
                    async move {
                        started.send(())?;
                        loop {
                            std::thread::park();
                        }
                    }
                });
                let tree = Supervisor::start("daemon", vec![blocked], QUICK);
                let waited = tokio::task::spawn_blocking(move || is_started.recv()).await;
                waited.expect("waiting does not panic").expect("the body starts");
                let report = tree.drain(Duration::from_millis(100)).await;
                eprintln!("unfinished: {:?}", report.unfinished);
                tree.exited().await
            }
            "drained" => {
                let tidy = ChildSpec::new("tidy", |scope| async move {
                    scope.draining().await;
                    Ok(())
                });
                let tree = Supervisor::start("daemon", vec![tidy], QUICK);
                tree.drain(Duration::from_mins(1)).await;
                tree.exited().await
            }
            other => ExitReason::Failed { error: format!("no such role: {other}") },
        }
    });
    let reason = reason.expect("a runtime can be made");
    eprintln!("the tree has ended: {reason}");
    // `ExitCode` is for `main` alone to return, and the harness has that.
    let failed = ExitCode::from(&reason) != ExitCode::SUCCESS;
    std::process::exit(i32::from(failed));
}

/// The daemon of the test that is running, where this process is one.
fn play_if_asked() {
    if let Ok(role) = env::var(ROLE) {
        play(&role);
    }
}

#[test]
fn a_crash_loop_ends_the_process_with_code_1() {
    play_if_asked();
    let (code, log) = daemon("a_crash_loop_ends_the_process_with_code_1", "crash loop");
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the tree has ended: gave up: daemon/section failed too often"), "{log}");
    // One start and three restarts of each of four subtrees.
    assert_eq!(log.matches("again and again").count(), 16, "{log}");
}

#[test]
fn a_body_that_blocks_its_thread_holds_up_neither_drain_nor_exit() {
    play_if_asked();
    let (code, log) = daemon("a_body_that_blocks_its_thread_holds_up_neither_drain_nor_exit", "blocked");
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("unfinished: [\"daemon/blocked\"]"), "{log}");
}

#[test]
fn a_drained_process_ends_with_code_0() {
    play_if_asked();
    let (code, log) = daemon("a_drained_process_ends_with_code_0", "drained");
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("the tree has ended: drained"), "{log}");
}

//! The commands of operators, clients of the hub's API: `towline resync`, `pause`, `resume`, `explain`, `diff` and `failures`.

use http::StatusCode;

mod diff;
mod explain;
mod failures;
mod pause;
mod resync;
mod which;

use crate::job::client::{Error, task};
use crate::job::command::{JobCommand, Load};

/// The part of `--help` about the annotations.
const ANNOTATIONS: &str = "\
A cluster is paused by its field `paused`, or with --for by its annotation towline.dev/pause-until. The annotation
towline.dev/pause-reason has the reason, which the condition `Paused` of its ClusterSync shows.";

/// The commands, for the job's list of commands.
pub(super) fn commands() -> Vec<JobCommand> {
    let resync = |command: resync::ResyncCommand, _: &Load| Ok(task(resync::resync(command)));
    let pause = |command: pause::PauseCommand, _: &Load| Ok(task(pause::pause(command)));
    let resume = |command: pause::ResumeCommand, _: &Load| Ok(task(pause::resume(command)));
    let explain = |command: explain::ExplainCommand, _: &Load| Ok(task(explain::explain(command)));
    let diff = |command: diff::DiffCommand, _: &Load| Ok(task(diff::diff(command)));
    let failures = |command: failures::FailuresCommand, _: &Load| Ok(task(failures::failures(command)));
    vec![
        JobCommand::new("resync", "Compare clusters with everything that syncsets want of them, now", resync),
        JobCommand::new("pause", "Apply nothing to clusters, for a time or until they are resumed", pause)
            .after_help(ANNOTATIONS),
        JobCommand::new("resume", "End the pauses of clusters that pause has made", resume),
        JobCommand::new(
            "explain",
            "Show which syncsets want an object on a cluster, which one sends it, and its state there",
            explain,
        ),
        JobCommand::new("diff", "Show what syncsets in a file would do on their clusters, without doing it", diff),
        JobCommand::new("failures", "Show what fails on all clusters, grouped", failures),
    ]
}

/// The error of a route that only a hub with `[syncsets]` has.
fn of_mounted(error: Error) -> Error {
    match error {
        Error::Problem { status: StatusCode::NOT_FOUND, told } => {
            let told = format!(
                "{told}: the hub applies no syncsets, its configuration has no [syncsets] (`towline hub`: set SYNCSET_REAPPLY_INTERVAL)"
            );
            Error::Problem { status: StatusCode::NOT_FOUND, told }
        }
        other => other,
    }
}

//! The commands of operators, clients of the hub's API: `towline resync`, `pause`, `resume`, `explain`, `diff`, `failures` and
//! `rollout`.

use http::StatusCode;

mod diff;
mod explain;
mod failures;
mod pause;
mod resync;
mod rollout;
mod which;

use crate::job::JobList;
use crate::job::client::{Error, task};
use crate::job::command::JobCommand;

/// The part of `--help` about the annotations.
const ANNOTATIONS: &str = "\
A cluster is paused by its field `paused`, or with --for by its annotation towline.dev/pause-until. The annotation
towline.dev/pause-reason has the reason, which the condition `Paused` of its ClusterSync shows.";

/// The same command for Helm releases, which the daemon answers and not the hub.
const RESYNC_INVENTORY: &str = "\
Helm releases: `towline resync inventory [NAMESPACE/NAME]` sends one again, or all; see `towline resync inventory --help`.";
const EXPLAIN_INVENTORY: &str = "\
Objects of a section of the daemon: `towline explain SECTION KEY` shows their state and what they wait for, and of Helm releases
`towline explain inventory NAMESPACE/NAME`; see `towline explain inventory --help`.";
const EXIT_CODES: &str = "\
Exit codes: 0 compared; 1 something could not be compared or would be refused, or the command failed; 3, with --exit-code: something \
would change.";

pub fn commands() -> Vec<JobCommand> {
    let resync = |command: resync::ResyncCommand, _: &JobList| Ok(task(resync::resync(command)));
    let pause = |command: pause::PauseCommand, _: &JobList| Ok(task(pause::pause(command)));
    let resume = |command: pause::ResumeCommand, _: &JobList| Ok(task(pause::resume(command)));
    let explain = |command: explain::ExplainCommand, _: &JobList| Ok(task(explain::explain(command)));
    let diff = |command: diff::DiffCommand, _: &JobList| Ok(task(diff::diff(command)));
    let failures = |command: failures::FailuresCommand, _: &JobList| Ok(task(failures::failures(command)));
    let rollout = |command: rollout::RolloutCommand, _: &JobList| Ok(task(rollout::rollout(command)));
    vec![
        JobCommand::new("resync", "Compare clusters with what syncsets want, or send Helm releases again, now", resync)
            .after_help(RESYNC_INVENTORY),
        JobCommand::new("pause", "Apply nothing to clusters, for a time or until they are resumed", pause)
            .after_help(ANNOTATIONS),
        JobCommand::new("resume", "End the pauses of clusters that pause has made", resume),
        JobCommand::new(
            "explain",
            "Show what is known of an object of a section, or of syncsets on a cluster",
            explain,
        )
        .after_help(EXPLAIN_INVENTORY),
        JobCommand::new("diff", "Show what syncsets in a file would do on their clusters, without doing it", diff)
            .after_help(EXIT_CODES),
        JobCommand::new("failures", "Show what fails on all clusters, grouped", failures),
        JobCommand::new(
            "rollout",
            "Show and steer how a change of a syncset goes through its clusters in waves",
            rollout,
        )
        .after_help(rollout::HELP),
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

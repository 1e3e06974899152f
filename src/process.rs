//! The process of a daemon with a list of jobs: it parses the command line and carries the command out.

use std::ffi::OsString;

use crate::cli::{self, Command, Given};
use crate::cluster::full_text;
use crate::config;
use crate::job::command::{Exit, Order, complain};
use crate::job::{Config, JobList};
use crate::{app, check, rbac};

/// Carries out a command line, whose first argument is the program. The `towline` binary has the jobs of
/// [`crate::jobs::JOBS`]; another binary can have more.
pub fn execute(jobs: JobList, arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // kube's TLS takes the process's default provider; fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if cli::completed(jobs, &arguments, &mut std::io::stdout()) {
        return Exit::Done;
    }
    match cli::parse(arguments, jobs).unwrap_or_else(|error| error.exit()) {
        Given::Own(Command::Run(file)) => with_config(jobs.load(file.path()), |config| run(config, jobs)),
        Given::Own(Command::Check(command)) => {
            let output = command.format.output;
            let config = jobs.load(command.file.path());
            if let Err(config::Error::Invalid(faults)) = &config {
                check::print_faults(faults, output);
            }
            with_config(config, |config| block_on(check::print(&config, jobs, command.connect, output)))
        }
        Given::Own(Command::Rbac(command)) => {
            let print = |config: Config| {
                rbac::print(&config, command.cluster.as_ref(), &command.name, command.service_account.as_deref())
            };
            with_config(jobs.load(command.file.path()), print)
        }
        Given::Own(Command::Completion { shell }) => written(cli::completion_script(shell, &mut std::io::stdout())),
        Given::Own(Command::Man { directory }) => written(cli::man_pages(jobs, &directory)),
        Given::Own(Command::Remote(remote)) => {
            block_on(async { answered(remote.execute(&mut std::io::stdout()).await) })
        }
        Given::Plugin(plugin) => block_on(async { answered(plugin.execute(&mut std::io::stdout()).await) }),
        Given::OfJob(command, matches, pods) => match command.execute(&matches, &jobs) {
            Ok(Order::Run(config)) => run(*config, jobs),
            Ok(Order::Task(task)) => match pods {
                None => block_on(task),
                Some(pods) => block_on(async { answered(cli::at_hub(&pods, task).await) }),
            },
            Err(error) => misconfigured(&error),
        },
    }
}

fn with_config(config: Result<Config, config::Error>, then: impl FnOnce(Config) -> Exit) -> Exit {
    match config {
        Ok(config) => then(config),
        Err(error) => misconfigured(&error),
    }
}

fn misconfigured(error: &config::Error) -> Exit {
    let text = match error {
        config::Error::Invalid(faults) => faults.to_string(),
        other => full_text(other),
    };
    complain(&text);
    Exit::Usage
}

fn answered(outcome: Result<Exit, cli::Error>) -> Exit {
    outcome.unwrap_or_else(|error| {
        complain(&full_text(&error));
        error.exit()
    })
}

fn written(outcome: std::io::Result<()>) -> Exit {
    match outcome {
        Ok(()) => Exit::Done,
        Err(error) => failed(&full_text(&error)),
    }
}

fn run(config: Config, jobs: JobList) -> Exit {
    match app::run(config, jobs) {
        Ok(exit) => exit,
        Err(error) => failed(&full_text(&error)),
    }
}

fn failed(text: &str) -> Exit {
    complain(text);
    Exit::Failed
}

fn block_on(work: impl Future<Output = Exit>) -> Exit {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let exit = runtime.block_on(async {
                tokio::select! {
                    biased;
                    exit = work => exit,
                    Ok(()) = tokio::signal::ctrl_c() => Exit::Interrupted,
                }
            });
            // Something may still wait for input.
            runtime.shutdown_background();
            exit
        }
        Err(error) => failed(&format!("failed to start the runtime: {error}")),
    }
}

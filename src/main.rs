//! The `towline` binary.

use std::process::ExitCode;

use towline::cli::{Cli, Command};
use towline::cluster::full_text;
use towline::config;
use towline::job::Config;
use towline::job::command::Exit;
use towline::resource_sync::release;
use towline::status_sync::{self, triggers};
use towline::{app, check, jobs};

fn main() -> ExitCode {
    // kube's TLS takes the process's default provider; fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Cli::from_process().command {
        Command::Run(file) => with_config(jobs::load(file.path()), run),
        Command::Lease(command) => with_config(
            command.config(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())),
            run,
        ),
        Command::Check(command) => with_config(jobs::load(command.file.path()), |config| {
            if command.connect { block_on(check::connect(&config)) } else { check::fine(&config) }
        }),
        Command::Release(command) => {
            with_config(jobs::load(command.file.path()), |config| block_on(release::release(&config, &command)))
        }
        Command::StatusSync(command) => with_config(status_sync::alone(config::environment()), |config| {
            if command.remove_triggers { block_on(remove_triggers(&config)) } else { run(config) }
        }),
        Command::Remote(remote) => block_on(async {
            match remote.execute(&mut std::io::stdout()).await {
                Ok(exit) => exit,
                Err(error) => failed(&full_text(&error)),
            }
        }),
    }
    .into()
}

fn with_config(config: Result<Config, config::Error>, then: impl FnOnce(Config) -> Exit) -> Exit {
    match config {
        Ok(config) => then(config),
        Err(error) => {
            let text = match &error {
                config::Error::Invalid(faults) => faults.to_string(),
                other => full_text(other),
            };
            complain(&text);
            Exit::Usage
        }
    }
}

fn run(config: Config) -> Exit {
    match app::run(config) {
        Ok(exit) => exit,
        Err(error) => failed(&full_text(&error)),
    }
}

/// `towline status-sync --remove-triggers`.
async fn remove_triggers(config: &Config) -> Exit {
    let Some(section) = status_sync::section(config) else { return Exit::Usage };
    match triggers::remove_by(section.database.clone()).await {
        Ok(removed) => {
            say(&removed.to_string());
            Exit::Done
        }
        Err(error) => failed(&full_text(&error)),
    }
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn say(text: &str) {
    println!("{text}");
}

fn failed(text: &str) -> Exit {
    complain(text);
    Exit::Failed
}

#[expect(clippy::print_stderr, reason = "this is where the process tells why it ends")]
fn complain(text: &str) {
    eprintln!("towline: {text}");
}

fn block_on(work: impl Future<Output = Exit>) -> Exit {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => failed(&format!("failed to start the runtime: {error}")),
    }
}

//! The `towline` binary.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use towline::cli::{self, Command, Given};
use towline::cluster::full_text;
use towline::config;
use towline::job::Config;
use towline::job::command::{Exit, Order, complain};
use towline::{app, check, jobs};

/// With the C library's allocator, a burst of changes among 20,000 objects takes a third more CPU time for one object than among
/// 1,000.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // kube's TLS takes the process's default provider; fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::from_process() {
        Given::Own(Command::Run(file)) => with_config(jobs::load(file.path()), run),
        Given::Own(Command::Check(command)) => with_config(jobs::load(command.file.path()), |config| {
            if command.connect { block_on(check::connect(&config)) } else { check::fine(&config) }
        }),
        Given::Own(Command::Remote(remote)) => block_on(async {
            match remote.execute(&mut std::io::stdout()).await {
                Ok(exit) => exit,
                Err(error) => failed(&full_text(&error)),
            }
        }),
        Given::OfJob(command, matches) => match command.execute(&matches, &jobs::load) {
            Ok(Order::Run(config)) => run(*config),
            Ok(Order::Task(task)) => block_on(task),
            Err(error) => misconfigured(&error),
        },
    }
    .into()
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

fn run(config: Config) -> Exit {
    match app::run(config) {
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
        Ok(runtime) => runtime.block_on(work),
        Err(error) => failed(&format!("failed to start the runtime: {error}")),
    }
}

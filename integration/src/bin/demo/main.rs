//! The demo: towline between three real Kubernetes API servers and a PostgreSQL server, in a story of two dozen steps.
//!
//! `demo [--once]`, or `ONCE=1`: ends after the story. Otherwise everything stays up until Ctrl-C. The exit code is 0
//! where every step went well, 1 where one failed, 2 for a wrong command line and 130 where it was interrupted.

mod cluster;
mod controller;
mod error;
mod hub_server;
mod inventory;
mod kubeconfigs;
mod leaf_hubs;
mod playground;
mod requests;
mod screen;
mod stage;
mod story;
mod terminal;

use std::path::Path;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;
use crate::screen::{Look, Screen};
use crate::stage::{FILES, Stage};

/// What a shell reports for a program that SIGINT has ended.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let screen = Screen::new();
    let once = match is_once() {
        Ok(once) => once,
        Err(error) => {
            eprintln!("demo: {error}");
            return ExitCode::from(2);
        }
    };
    let mut stop = match Stop::new() {
        Ok(stop) => stop,
        Err(error) => return failed(screen, &error),
    };
    let played = tokio::select! {
        biased;
        () = stop.asked() => None,
        played = play(screen) => Some(played),
    };
    let stage = match played {
        Some(Ok(stage)) => stage,
        Some(Err(error)) => return failed(screen, &error),
        // By now, everything that the story had started is killed and gone.
        None => {
            screen.clear();
            screen.line("\ninterrupted: everything is stopped");
            return ExitCode::from(INTERRUPTED);
        }
    };
    match Box::pin(end(screen, stage, once, &mut stop)).await {
        Ok(code) => code,
        Err(error) => failed(screen, &error),
    }
}

async fn play(screen: Screen) -> Result<Stage, Error> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // The paths in config/demo.toml begin there.
    std::env::set_current_dir(&repository).map_err(Error::file("go to", &repository))?;
    screen.line(&format!(
        "{} keeps databases on a hub in step with two edges, each a real Kubernetes API server here.\n",
        screen.paint(Look::Bold, "Towline")
    ));
    let mut stage = Box::pin(Stage::set(screen)).await?;
    story::play(screen, &mut stage).await?;
    Ok(stage)
}

/// Stays up where that is wanted, and stops everything in order.
async fn end(screen: Screen, stage: Stage, once: bool, stop: &mut Stop) -> Result<ExitCode, Error> {
    if !once {
        playground::show(screen, &stage).await?;
        stop.asked().await;
        screen.line("\nstopping everything; Ctrl-C again does it the hard way");
    }
    let ended = tokio::select! {
        biased;
        () = stop.asked() => return Ok(ExitCode::from(INTERRUPTED)),
        ended = stage.stop() => ended?,
    };
    if !ended.success() {
        return Err(Error::wrong("the end of towline", ended.to_string()));
    }
    screen.line(&screen.paint(Look::Good, "\ntowline ended as asked (exit code 0), and all the rest with it"));
    Ok(ExitCode::SUCCESS)
}

fn failed(screen: Screen, error: &Error) -> ExitCode {
    screen.clear();
    screen.line(&format!("\n{} {}", screen.paint(Look::Bad, "✗ the demo failed:"), error.chain()));
    screen.line(&format!("  towline's log: {FILES}/towline.log"));
    ExitCode::FAILURE
}

fn is_once() -> Result<bool, Error> {
    let mut once = std::env::var_os("ONCE").is_some_and(|value| !value.is_empty() && value != "0");
    for argument in std::env::args().skip(1) {
        if argument != "--once" {
            return Err(Error::Usage(argument));
        }
        once = true;
    }
    Ok(once)
}

/// Ctrl-C, and other ways to ask a program to end.
struct Stop {
    signals: [Signal; 3],
}

impl Stop {
    fn new() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::file("listen for", "signals"));
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(listen);
        let [interrupt, terminate, hangup] = kinds;
        Ok(Self { signals: [interrupt?, terminate?, hangup?] })
    }

    async fn asked(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

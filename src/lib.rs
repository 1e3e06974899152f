//! Towline keeps many Kubernetes clusters and a hub in step: one daemon, a tree of actors.
//!
//! `ARCHITECTURE.md` draws the tree ("The tree"; `app` compares it with the actors that run) and orders the modules ("Layers"; checked by
//! `tests/layers.rs`).

// Without the feature, nothing uses what is only there for tests.
#![cfg_attr(not(feature = "test-api"), allow(dead_code, unused_imports))]

mod actor;
mod amqp;
mod app;
mod check;
mod cli;
mod cluster;
mod config;
mod db;
mod documents;
mod election;
mod expression;
mod guard;
mod http;
mod hub;
mod inventory;
mod job;
mod jobs;
mod lease;
mod process;
mod rbac;
mod resource_sync;
mod state;
mod status;
mod status_sync;
mod syncset;
mod telemetry;
#[cfg(feature = "test-api")]
pub mod test_api;
mod ui;
mod yaml;

use std::ffi::OsString;
use std::process::ExitCode;

/// Carries out a command line, whose first argument is the program.
pub fn execute(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    process::execute(jobs::JOBS, arguments).into()
}

//! Towline keeps many Kubernetes clusters and a hub in step: one daemon, a tree of actors.
//!
//! ```text
//! towline                              restarts its children with back-off; budget exhausted -> the process exits with 1
//! ├─ admin                             HTTP: the page, metrics, probes, status, orders
//! ├─ cluster <name>                    one for each cluster
//! │  ├─ session                        credentials (reloaded when their files change), availability, denied permissions
//! │  └─ watcher <kind> [selector]      list + watch -> cache (Store); tells its followers the keys that changed
//! ├─ lease_view                        what this replica has seen of the watched Leases; wakes electors
//! ├─ election <section>                one Lease for each section: acquires and renews it, opens the section's gate and fence
//! ├─ sync <name>                       one for each [[sync]] section
//! │  ├─ events                         writes Events on objects, where they are granted
//! │  ├─ state                          reads and writes what the section remembers beyond its process
//! │  ├─ dispatcher                     reconciles: one run at a time for a key, many keys at once
//! │  └─ requeue                        wakes pairs that wait for a cluster, a permission or the refresh of a secret
//! ├─ lease <name>                      one for each [[lease]] section: renews its Lease while its pod is ready
//! ├─ status_sync                       where there is [status_sync]
//! │  ├─ events                         writes Events on objects, where they are granted
//! │  ├─ state                          reads and writes what the section remembers beyond its process
//! │  ├─ poller <family>                reads what changed in the database, rolls it up, writes the differences
//! │  └─ listener                       with notify = true: listens on a connection of its own, and wakes the pollers concerned
//! ├─ hub                               where there is [hub]; in every replica
//! │  ├─ schema                         brings the database's schema up to date, lets the others begin, and probes the database when requests fail
//! │  ├─ settings                       reads the files of tokens and keys again when they change
//! │  ├─ writer                         makes all changes of documents, many in one call; on a connection of its own
//! │  ├─ tail                           reads the log into the ring that all watches share; listens on its connection
//! │  ├─ claims                         renews the claims of this replica in the database
//! │  ├─ compaction                     while it holds its claim: deletes old rows of the log
//! │  ├─ relay                          with a message broker, while it holds its claim: publishes the log to it
//! │  ├─ listener                       binds the address of the API
//! │  └─ api                            serves the REST API and its watches
//! ├─ syncsets                          where there is [syncsets]; in every replica
//! │  ├─ dispatcher                     while it holds its claim: turns changes of documents into work, and guards deletions
//! │  ├─ worker                         claims clusters that have work, and brings them in step
//! │  └─ overview                       counts what waits, fails and is held, for the report and the metrics
//! └─ inventory                         where there is [inventory]
//!    ├─ poster                         posts to the API, four bodies at once; reads the token again when it changes
//!    └─ reconciler                     decides what is told of each release, reads its record, writes the project's status
//! ```
//!
//! Watchers are shared by cluster, kind and selector, so they belong to the cluster, not to a section. The order of
//! the modules is in `ARCHITECTURE.md`, "Layers", and checked by `tests/layers.rs`.

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

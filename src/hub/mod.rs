//! The hub: a REST API for documents in PostgreSQL, with a watch that loses nothing.
//!
//! [`crate::documents`] holds the documents themselves: their validation, decisions, writes, lists and log. Here is what makes
//! them a service:
//!
//! - [`config`] is the section `[hub]`, of which `bus` reads the message broker, and [`alone`] reads it from the environment.
//! - [`tokens`] parses the grants of callers, and [`access`] decides who a request comes from and what it may do. [`reloaded`]
//!   reads the files of tokens and keys again when they change.
//! - [`api`] holds the routes, and answers requests. `problem` turns problems into answers.
//! - `openapi` describes the API to programs, and shows the description with Swagger UI.
//! - `wiring` builds the actors, `report` shows them to operators, `check` serves `towline check --connect`, and `job` makes all
//!   this a job of the daemon.
//! - `command` has the commands: `towline hub` and those that maintain its database, of which `rotate` changes the key of sealed
//!   fields; `client` has those that call the API.

pub mod access;
mod alone;
pub mod api;
mod bus;
mod check;
mod client;
mod command;
pub mod config;
mod job;
mod listing;
mod metrics;
mod openapi;
mod outages;
mod problem;
pub mod reloaded;
mod report;
mod rotate;
pub mod tokens;
mod wiring;

pub use alone::alone;
pub use job::{HubJob, section};
pub use metrics::HubMetrics;

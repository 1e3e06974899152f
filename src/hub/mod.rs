//! The hub: a REST API for documents in PostgreSQL, with a watch that loses nothing.
//!
//! [`crate::documents`] holds the documents themselves: their validation, decisions, writes, lists and log. Here is what makes
//! them a service:
//!
//! - [`config`]: the keys of the section, the message broker's included.
//! - [`plan`]: who a request comes from, and what that caller may do. Pure.
//! - [`run`]: the routes, their description for programs and their answers; files that are read again; what an outage does.
//! - `status`: what the section shows to operators; `metrics`: what it counts.
//! - `job`: makes all this a job of the daemon: actors, permissions, checks, and its commands: `towline hub`, configured by
//!   variables, those that maintain its database, and those that call its API.

pub mod config;
mod job;
mod metrics;
pub mod plan;
pub mod run;
mod status;

pub use job::command::alone;
pub use job::{HubJob, section};
pub use metrics::HubMetrics;

//! Syncsets as their users see them: documents written over the REST API of a real hub, and what becomes of them on real API servers.
//!
//! All tests share a database server and two edges; each has a database, replicas, and namespaces on the edges of its own.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod api;
mod asked;
mod attackers;
mod behaviors;
mod built_in;
mod capacity;
mod churning;
mod commands;
pub(crate) mod costs;
mod deletions;
mod diff;
mod drift;
mod duplicates;
mod elsewhere;
mod ending;
mod explain;
mod facts;
mod failures;
mod fairness;
mod guard;
mod health;
mod hive;
mod kinds;
mod left_alone;
mod manifests;
mod moves;
mod moving;
mod overtaken;
mod pausing;
mod reachability;
mod removal;
mod report;
mod requests;
mod resync;
mod rolling;
pub(crate) mod script;
mod secrecy;
mod settled;
mod switching;
mod throttling;
mod to_delete;
mod unchecked;
mod unions;
mod waking;
mod walk;
mod watching;
mod waves;
pub(crate) mod world;

//! What resource sync may cost, counted at the API servers: the table of the specification, row by row.
//!
//! Counted are all requests of the daemon in a test's namespaces, reads included and watches not; the tests about
//! idleness and restarts count everything of the daemon's user, and so run alone.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "the allowance for tests does not reach their helpers")]

// A world of its own: what its daemons ask for is counted whole.
#[path = "../rules_world/mod.rs"]
mod rules_world;

mod changes;
mod rest;
mod unknown;

use tokio::sync::RwLock;

/// Read by those who count their own namespaces, written by those who count everything.
static ALONE: RwLock<()> = RwLock::const_new(());

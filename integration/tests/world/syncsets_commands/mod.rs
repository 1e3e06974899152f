//! The commands about syncsets and their routes, typed as a user would, against a hub with `[syncsets]` in a process of its own.
//!
//! All tests share one database server; each has a database of its own with its name. Clusters are paused or lead nowhere, so that no
//! pass changes what a test has stored. Only the quick start of the page has a real one.

#![expect(clippy::expect_used, reason = "the allowance for tests does not reach their helpers")]

mod failures;
mod fleet;
mod formats;
mod killed;
mod page;
mod pause;
mod resync;
mod rights;
mod rollout;
mod routes;
mod world;

//! Lists and watches of the hub's documents, against a real server.
//!
//! All tests share one server; each has a database of its own with its name. What was written is compared with what lists and
//! watches show.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "the allowance for tests does not reach their helpers"
)]

mod bounds;
mod large_rows;
mod lists;
mod log;
mod pages;
mod restores;
mod selectors;
mod watches;
mod watching;
mod world;

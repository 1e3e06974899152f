//! The database of the documents: its connections and their limits.

use std::time::Duration;

use crate::db::{Database, DatabaseSource};

/// What every new connection runs first. It refuses a server that can't be written to or is too old, and limits statements (30 s),
/// waits for a lock (5 s) and idle transactions (30 s) on the server.
const SET_UP: &str = include_str!("schema/set_up.sql");
/// Longest wait for a connection of the pool: a client would rather try again.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for an answer: the server's own limit for a statement and 5 s for the way.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);

/// The pool for the documents. It connects on first use.
pub fn open(source: DatabaseSource) -> Database {
    Database::with_set_up(source, SET_UP).answering_within(ANSWER_WITHIN).waiting_at_most(PATIENCE)
}

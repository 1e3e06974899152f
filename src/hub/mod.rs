//! The hub: a REST API for documents in PostgreSQL, with a watch that loses nothing.
//!
//! [`crate::documents`] holds the documents themselves: their validation, decisions, writes, lists and log. Here is what makes
//! them a service:
//!
//! - [`config`] is the section `[hub]`.
//! - [`tokens`] reads the grants of callers, and [`access`] decides who a request comes from and what it may do.
//! - [`reloaded`] reads the files of tokens and keys again when they change.

pub mod access;
pub mod config;
pub mod reloaded;
pub mod tokens;

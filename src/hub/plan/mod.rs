//! What a caller may do. Pure.
//!
//! [`tokens`] parses the grants of callers, and [`access`] decides who a request comes from and what it may do.

pub mod access;
pub mod tokens;

//! What syncsets mean: documents, stored rows, observations and time in, steps out. No I/O and no clock.
//!
//! [`name`] and [`spec`] say what a syncset is, [`rows`] what is stored of passes, [`status`] what
//! is shown of them.

pub mod agenda;
pub mod name;
pub mod retry;
pub mod rows;
pub mod spec;
pub mod status;

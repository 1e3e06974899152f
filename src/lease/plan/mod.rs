//! What a renewer does next. Pure.
//!
//! [`renewals`] decides when it renews and with which credentials, and [`steps`] decides which requests one renewal takes.

pub mod renewals;
pub mod steps;

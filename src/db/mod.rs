//! Access to a PostgreSQL database.
//!
//! A [`DatabaseUrl`] is the connection string that the configuration names, a `postgres://` URL or libpq's keywords, with
//! everything that libpq can say about TLS; its [`DatabaseSource`] is the configuration itself or a file. A [`Database`] is the pool behind it: every statement goes through it, is named for metrics, and every error is sorted
//! once ([`Error`]). What lasts as long as a connection does has one of its own, beside the pool ([`Session`]).
//! Statements are sent unprepared with typed parameters, and their columns are of built-in types: nothing is looked up
//! in the catalogue.

use std::time::Duration;

mod error;
mod keywords;
mod manager;
mod pool;
mod session;
mod source;
mod tls;
mod url;

pub use error::{Error, ServerError, Source};
pub use pool::{Database, Param, PoolState, Rows, column};
pub use session::{Messages, Session};
pub use source::{DatabaseSource, UnusableUrl};
/// A statement whose next row does not come within this is cancelled, unless the configuration says otherwise.
pub const ANSWER_WITHIN: Duration = Duration::from_mins(1);

pub use url::{DatabaseUrl, InvalidUrl, TlsMode};

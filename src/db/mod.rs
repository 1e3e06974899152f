//! Access to a PostgreSQL database.
//!
//! A [`DatabaseUrl`] is the connection string that the configuration names, a `postgres://` URL or libpq's keywords, with
//! everything that libpq can say about TLS; its [`DatabaseSource`] is the configuration itself or a file.
//!
//! A [`Database`] is the pool behind it: every statement is named for metrics and has a deadline, and every error is sorted
//! once ([`Error`]). A [`Transaction`] has a deadline of its own. Beside the pool, a [`Connection`] is for what must not
//! wait for others, and a [`Session`] for LISTEN; a [`Listener`] makes another one whenever it is lost. [`migrations`] make
//! a job's own schema.
//!
//! Statements are sent unprepared with typed parameters ([`Param`]), and their columns are of built-in types: nothing is
//! looked up in the catalogue.

use std::time::Duration;

mod connection;
mod error;
mod keywords;
mod listener;
mod manager;
pub mod migrations;
mod pool;
mod session;
mod source;
mod statement;
mod tls;
mod transaction;
mod url;

pub use connection::Connection;
pub use error::{Error, ServerError, Source};
pub use listener::{Listener, Subscriber};
pub use pool::{Database, PoolState};
pub use session::{Messages, Session};
pub use source::{DatabaseSource, UnusableUrl};
pub use statement::{Param, Rows, column};
pub use tokio_postgres::types::{FromSql, Json, ToSql, Type};
pub use tokio_postgres::{Notification, Row};
pub use transaction::Transaction;
pub use url::{DatabaseUrl, InvalidUrl, TlsMode};

/// A statement whose next row does not come within this is cancelled, unless the configuration says otherwise.
pub const ANSWER_WITHIN: Duration = Duration::from_mins(1);

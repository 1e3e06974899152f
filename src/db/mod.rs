//! Access to a PostgreSQL database.
//!
//! A [`DatabaseUrl`] is the connection string of the configuration, a `postgres://` URL or libpq's keywords, with all of
//! libpq's TLS options; its [`DatabaseSource`] is the configuration itself or a file.
//!
//! A [`Database`] is the connection pool: every statement has a name for metrics and a deadline, and errors are classified
//! once ([`Error`]). A [`Transaction`] has one deadline as a whole. Beside the pool, a [`Connection`] is for statements that
//! must not queue behind others, and a [`Session`] for LISTEN; a [`Listener`] reconnects when its session is lost.
//! [`migrations`] maintain a job's own schema.
//!
//! Statements are sent with typed parameters ([`Param`]) and return built-in types, so nothing is looked up in the catalogue. Those that
//! are sent often are prepared once for each connection ([`Text::Prepared`]).

use std::time::Duration;

mod connection;
mod error;
mod listener;
mod manager;
pub mod migrations;
mod pool;
mod rows;
mod session;
mod source;
mod statement;
mod tls;
mod transaction;
mod url;

pub use connection::Messages;
pub use error::{Error, ServerError, Source};
pub use listener::{Listener, Subscriber};
pub use pool::{Connection, Database};
pub use rows::Rows;
pub use session::Session;
pub use source::DatabaseSource;
pub use statement::{Param, Text, column};
pub use tokio_postgres::Row;
pub use tokio_postgres::types::{FromSql, Json, Type};
pub use transaction::Transaction;
pub use url::{DatabaseUrl, InvalidUrl};

/// Default deadline for the next row of a statement; after it the statement is cancelled.
pub const ANSWER_WITHIN: Duration = Duration::from_mins(1);

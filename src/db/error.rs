//! Every error of the database, sorted once.

use std::time::Duration;

use tokio_postgres::error::SqlState;

/// Why the database did not do what it was asked to. What is asked again later, with back-off, may succeed in each case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("failed to connect to the database: {reason}")]
    Connect {
        /// The driver's or the server's words.
        reason: String,
    },
    /// The account is not accepted.
    #[error("the database does not accept the account: {message}")]
    Unauthorized {
        /// The server's message.
        message: String,
    },
    /// No connection of the pool became free in time.
    #[error("no database connection became free within {seconds} s")]
    PoolExhausted {
        /// How long was waited.
        seconds: u64,
    },
    /// The connection broke, or the server ended it: what was read before the end does not count.
    #[error("the database connection was lost in statement {query}: {reason}")]
    Lost {
        /// The statement's name.
        query: &'static str,
        /// What broke.
        reason: String,
    },
    /// The server cancelled the statement (`statement_timeout`, an administrator).
    #[error("statement {query} was cancelled: {message}")]
    Cancelled {
        /// The statement's name.
        query: &'static str,
        /// The server's message.
        message: String,
    },
    /// The next row did not come in time: the statement was cancelled and its connection closed.
    #[error("statement {query} was cancelled: no answer within {}", humantime::format_duration(*.within))]
    Silent {
        /// The statement's name.
        query: &'static str,
        /// How long was waited.
        within: Duration,
    },
    /// The account lacks a right.
    #[error("not allowed to run statement {query}: {message}")]
    Forbidden {
        /// The statement's name.
        query: &'static str,
        /// The server's message, which names the table.
        message: String,
    },
    /// A table, column or type is not there.
    #[error("statement {query} names what the database does not have: {message}")]
    Missing {
        /// The statement's name.
        query: &'static str,
        /// The server's message, which names it.
        message: String,
    },
    /// The server refused the statement for another reason.
    #[error("statement {query} failed ({code}): {message}")]
    Statement {
        /// The statement's name.
        query: &'static str,
        /// SQLSTATE.
        code: String,
        /// The server's message.
        message: String,
    },
    /// A row is not of the statement's shape.
    #[error("failed to decode a row of statement {query}: {reason}")]
    Decode {
        /// The statement's name.
        query: &'static str,
        /// The decoder's words.
        reason: String,
    },
}

impl Error {
    /// The kind of error, for metrics and reports: a closed set.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Unauthorized { .. } => "unauthorized",
            Self::PoolExhausted { .. } => "pool_exhausted",
            Self::Lost { .. } => "lost",
            Self::Cancelled { .. } => "cancelled",
            Self::Silent { .. } => "silent",
            Self::Forbidden { .. } => "forbidden",
            Self::Missing { .. } => "missing",
            Self::Statement { .. } => "statement",
            Self::Decode { .. } => "decode",
        }
    }

    /// Whether it says that the database itself does not answer.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Lost { .. } | Self::Silent { .. })
    }

    /// Sorts an error of connecting.
    pub(super) fn of_connecting(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(refused) if is_account(refused.code()) => Self::Unauthorized { message: refused.message().to_owned() },
            Some(refused) => Self::Connect { reason: refused.message().to_owned() },
            None => Self::Connect { reason: chain(error) },
        }
    }

    /// Sorts an error of a statement.
    pub(super) fn of_statement(query: &'static str, error: &tokio_postgres::Error) -> Self {
        let Some(refused) = error.as_db_error() else {
            return Self::Lost { query, reason: chain(error) };
        };
        let message = refused.message().to_owned();
        let code = refused.code();
        match code.code() {
            "57014" => Self::Cancelled { query, message },
            "42501" => Self::Forbidden { query, message },
            // Undefined table, schema, column, function, object.
            "42P01" | "3F000" | "42703" | "42883" | "42704" => Self::Missing { query, message },
            // Shutdown, crash, and what an administrator ended.
            "57P01" | "57P02" | "57P03" | "57P05" => Self::Lost { query, reason: message },
            code if code.starts_with("08") => Self::Lost { query, reason: message },
            code => Self::Statement { query, code: code.to_owned(), message },
        }
    }
}

/// `invalid_authorization_specification` and `invalid_password`.
fn is_account(code: &SqlState) -> bool {
    *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION || *code == SqlState::INVALID_PASSWORD
}

/// An error with its sources, joined by `: `.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

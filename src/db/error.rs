//! The errors of the database, classified once.
//!
//! An error's own text does not repeat its source's: logs and reports show the whole chain.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::WrongType;

/// The cause of an error. It is shared, since every task that waits for a connection gets the same failure.
pub type Source = Arc<dyn std::error::Error + Send + Sync>;

/// Why a database operation failed. A retry with back-off may succeed, except for `Encode`.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("failed to connect to the database")]
    Connect {
        /// The driver's error, the server's error, or why the connection string can't be used.
        source: Source,
    },
    /// The server rejected the user, password or client certificate.
    #[error("the database rejected the credentials")]
    Unauthorized { source: Arc<ServerError> },
    /// The server rejected the statements that every new connection runs first.
    #[error("failed to set up the database connection")]
    SetUp { source: Arc<ServerError> },
    /// No connection of the pool became free in time.
    #[error("no database connection became free within {seconds} s")]
    PoolExhausted { seconds: u64 },
    /// The connection broke or the server closed it. The rows read before that are discarded.
    #[error("lost the database connection during statement {query}")]
    Lost { query: &'static str, source: Source },
    /// The server cancelled the statement (`statement_timeout`, an administrator).
    #[error("statement {query} was cancelled")]
    Cancelled { query: &'static str, source: Arc<ServerError> },
    /// The next row did not arrive in time: the statement was cancelled and its connection closed.
    #[error("statement {query} was cancelled: no answer within {}", humantime::format_duration(*.within))]
    Silent { query: &'static str, within: Duration },
    #[error("permission denied for statement {query}")]
    Forbidden {
        query: &'static str,
        /// The server's answer, which names the table.
        source: Arc<ServerError>,
    },
    /// A table, column, function or type does not exist.
    #[error("statement {query} refers to a table, column, function or type that does not exist")]
    Missing {
        query: &'static str,
        /// The server's answer, which names it.
        source: Arc<ServerError>,
    },
    /// The server rejected the statement for another reason.
    #[error("statement {query} failed ({})", source.code())]
    Statement { query: &'static str, source: Arc<ServerError> },
    /// `commit` after a failed statement, or use of a transaction that has ended. Nothing was written.
    #[error("transaction {name} was rolled back: one of its statements had failed")]
    RolledBack { name: &'static str },
    /// A parameter does not have the type that it is declared with. Nothing was sent.
    #[error("failed to encode a parameter of statement {query}")]
    Encode { query: &'static str, source: Source },
    /// A row does not have the expected columns.
    #[error("failed to decode a row of statement {query}")]
    Decode { query: &'static str, source: Source },
}

impl Error {
    /// The kind of error, for metrics and reports: a closed set.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Unauthorized { .. } => "unauthorized",
            Self::SetUp { .. } => "set_up",
            Self::PoolExhausted { .. } => "pool_exhausted",
            Self::Lost { .. } => "lost",
            Self::Cancelled { .. } => "cancelled",
            Self::Silent { .. } => "silent",
            Self::Forbidden { .. } => "forbidden",
            Self::Missing { .. } => "missing",
            Self::Statement { .. } => "statement",
            Self::RolledBack { .. } => "rolled_back",
            Self::Encode { .. } => "encode",
            Self::Decode { .. } => "decode",
        }
    }

    /// Whether the database itself does not answer.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Lost { .. } | Self::Silent { .. })
    }

    /// Whether it concerns the database as a whole: it does not answer, or gives no connection.
    pub fn is_outage(&self) -> bool {
        self.outage().is_some()
    }

    /// What concerns the database as a whole, in words that don't show what the server says: for clients of this process.
    pub fn outage(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } | Self::Lost { .. } | Self::Silent { .. } => Some("the database does not answer"),
            Self::Unauthorized { .. } => Some("the database rejects the credentials"),
            Self::SetUp { .. } => Some("the database can't be used"),
            Self::PoolExhausted { .. } => Some("no connection to the database became free in time"),
            Self::Cancelled { .. }
            | Self::Forbidden { .. }
            | Self::Missing { .. }
            | Self::Statement { .. }
            | Self::RolledBack { .. }
            | Self::Encode { .. }
            | Self::Decode { .. } => None,
        }
    }

    /// Whether it may be due to somebody else's statement: a lock that was not given, or an answer that came too late.
    pub fn is_delay(&self) -> bool {
        const LOCK_NOT_AVAILABLE: &str = "55P03";
        matches!(self, Self::Silent { .. } | Self::Cancelled { .. })
            || self.server().is_some_and(|server| server.code() == LOCK_NOT_AVAILABLE)
    }

    /// The server's error, if it sent one.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Unauthorized { source }
            | Self::SetUp { source }
            | Self::Cancelled { source, .. }
            | Self::Forbidden { source, .. }
            | Self::Missing { source, .. }
            | Self::Statement { source, .. } => Some(source),
            Self::Connect { source } | Self::Lost { source, .. } => source.downcast_ref(),
            Self::PoolExhausted { .. }
            | Self::Silent { .. }
            | Self::RolledBack { .. }
            | Self::Encode { .. }
            | Self::Decode { .. } => None,
        }
    }

    pub(super) fn unconnected(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Connect { source: Arc::new(source) }
    }

    pub(super) fn of_connecting(error: tokio_postgres::Error) -> Self {
        match ServerError::of(&error) {
            Some(refused) if refused.is_account() => Self::Unauthorized { source: Arc::new(refused) },
            Some(refused) => Self::unconnected(refused),
            None => Self::unconnected(error),
        }
    }

    /// Classifies an error of the statements that every new connection runs first.
    pub(super) fn of_set_up(error: tokio_postgres::Error) -> Self {
        match ServerError::of(&error) {
            Some(refused) => Self::SetUp { source: Arc::new(refused) },
            None => Self::unconnected(error),
        }
    }

    /// Classifies an error of a statement.
    pub(super) fn of_statement(query: &'static str, error: tokio_postgres::Error) -> Self {
        let Some(refused) = ServerError::of(&error) else {
            let inner = std::error::Error::source(&error);
            let is_of_parameter = inner.and_then(|inner| inner.downcast_ref::<WrongType>()).is_some();
            let source: Source = Arc::new(error);
            return if is_of_parameter { Self::Encode { query, source } } else { Self::Lost { query, source } };
        };
        let source = Arc::new(refused);
        match source.code() {
            "57014" => Self::Cancelled { query, source },
            "42501" => Self::Forbidden { query, source },
            // Undefined table, schema, column, function, object.
            "42P01" | "3F000" | "42703" | "42883" | "42704" => Self::Missing { query, source },
            // Shutdown, crash, or ended by an administrator.
            "57P01" | "57P02" | "57P03" | "57P05" => Self::Lost { query, source },
            code if code.starts_with("08") => Self::Lost { query, source },
            _ => Self::Statement { query, source },
        }
    }
}

/// An error that the server sent. `Display` and `Debug` show only its message and code: the other fields may quote rows.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerError(Box<DbError>);

impl ServerError {
    fn of(error: &tokio_postgres::Error) -> Option<Self> {
        error.as_db_error().map(|refused| Self(Box::new(refused.clone())))
    }

    /// SQLSTATE.
    pub fn code(&self) -> &str {
        self.0.code().code()
    }

    pub fn message(&self) -> &str {
        self.0.message()
    }

    pub fn constraint(&self) -> Option<&str> {
        self.0.constraint()
    }

    /// `invalid_authorization_specification` and `invalid_password`.
    fn is_account(&self) -> bool {
        let code = self.0.code();
        *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION || *code == SqlState::INVALID_PASSWORD
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.message())
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ServerError({}: {})", self.code(), self.message())
    }
}

impl std::error::Error for ServerError {}

/// Failures to connect that neither the driver nor the server reports.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The server did not answer, whether or not it accepted the TCP connection.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Silent(Duration),
    /// The disk hangs.
    #[error("timed out reading the database URL or its certificates")]
    NotRead,
    /// The list of ways to connect is empty.
    #[error("no way to connect")]
    NoWay,
    /// A statement timed out and may still run.
    #[error("an earlier statement timed out")]
    Spent,
    /// The server closed the connection between two messages.
    #[error("the server closed the connection")]
    Closed,
}

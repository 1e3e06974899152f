//! Why a broker does not do what it is asked for.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};

use crate::config::url::UnusableUrl;
use crate::http::TrustError;

/// Why a connection can't be made or was lost, or a request was refused. None shows a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Url(#[from] UnusableUrl),
    #[error("failed to set up TLS to the broker")]
    Tls(#[source] TrustError),
    #[error("the broker did not answer within {} s", within.as_secs())]
    Silent { within: Duration },
    /// The broker sends nothing any more.
    #[error("the broker has ended the deliveries, perhaps since the queue was deleted")]
    Cancelled,
    /// The client's or the broker's error.
    #[error("failed to {action}")]
    Broker { action: &'static str, source: lapin::Error },
}

impl Error {
    /// For `map_err` on calls of the client.
    pub fn of(action: &'static str) -> impl FnOnce(lapin::Error) -> Self {
        move |source| Self::Broker { action, source }
    }

    /// Whether a precondition failed (406): an object exists with other arguments than it is declared with, or a published message is larger
    /// than the broker allows.
    pub fn is_precondition_failed(&self) -> bool {
        self.is_soft(&AMQPSoftError::PRECONDITIONFAILED)
    }

    /// Whether the broker has closed a channel because of what was sent on it, and not the connection.
    pub fn is_of_channel(&self) -> bool {
        matches!(self, Self::Broker { source, .. } if source.is_amqp_soft_error())
    }

    fn is_soft(&self, expected: &AMQPSoftError) -> bool {
        let Self::Broker { source, .. } = self else { return false };
        let ErrorKind::ProtocolError(error) = source.kind() else { return false };
        matches!(error.kind(), AMQPErrorKind::Soft(found) if found == expected)
    }
}

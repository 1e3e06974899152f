//! How the connections of this process to the broker stand.

use std::fmt;

/// What a connection is for. Each purpose has one at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Relay,
    /// Publishes and receives which clusters have work.
    Worker,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    Ready,
    /// The broker takes no messages, since its memory or disk is short.
    Blocked,
    /// An exchange or a queue exists with other arguments: the broker is not used.
    Refused(String),
    /// There is no connection, for this reason.
    Away(String),
}

impl Purpose {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Worker => "worker",
        }
    }
}

impl ConnectionState {
    /// The state in a word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Blocked => "blocked",
            Self::Refused(_) => "refused",
            Self::Away(_) => "away",
        }
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => formatter.write_str("connected"),
            Self::Blocked => formatter.write_str("the broker takes no messages, since its memory or disk is short"),
            Self::Refused(reason) => write!(formatter, "objects of the broker have other arguments: {reason}"),
            Self::Away(reason) => formatter.write_str(reason),
        }
    }
}

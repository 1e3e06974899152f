//! Reports on the tree: plain data for `/status`, metrics and the end of a drain.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ExitReason, Name};

/// One actor and everything below it, as `/status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorReport {
    /// The last part of its name; its parents in the report give the rest of the path.
    pub name: String,
    /// What it is doing: what the body set last (`running` if it set nothing), or `draining`, `backing off`, `waiting`, `ended`.
    pub state: String,
    pub restarts: u64,
    /// Why its last instance ended; `None` while the first one runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_exit: Option<ExitReason>,
    /// Its mailbox, if it has one to report on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mailbox: Option<MailboxReading>,
    /// Its children, in the order of their start.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<ActorReport>,
}

/// The result of a drain. Supervisors are not listed: one has drained when everything below it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// The actors that ended cleanly or were not running, in the order of their end.
    pub drained: Vec<Name>,
    /// The actors that lost work: they were aborted at the deadline, failed or panicked.
    pub unfinished: Vec<Name>,
}

impl DrainReport {
    pub(super) fn note(&mut self, name: Name, reason: &ExitReason) {
        if reason.is_clean() {
            self.drained.push(name);
        } else {
            self.unfinished.push(name);
        }
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.drained.append(&mut other.drained);
        self.unfinished.append(&mut other.unfinished);
    }
}

/// A mailbox's counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxReading {
    pub depth: usize,
    pub capacity: usize,
    /// Messages accepted since the start, merged ones not counted.
    pub accepted: u64,
    /// Requests merged with a queued one since the start.
    pub merged: u64,
    /// Messages dropped because there was no room, since the start.
    pub dropped: u64,
    /// How often a sender had to wait for room.
    pub waits: u64,
    /// How long all senders together have waited for room.
    #[serde(with = "humantime_serde")]
    pub waited: Duration,
}

/// Reads a mailbox's counters without keeping an end of it open.
pub trait Gauge: Send + Sync {
    /// The counters, all of the same moment.
    fn read(&self) -> MailboxReading;
}

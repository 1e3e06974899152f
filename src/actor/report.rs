//! What the tree tells about itself: plain data for `/status`, metrics and the end of a drain.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ExitReason, Name};

/// One actor and everything below it, as `/status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorReport {
    /// Its own name; the tree around it gives the rest of the path.
    pub name: String,
    /// What it is doing: what the body said last (`running` if it said nothing), or `draining`, `backing off`, `ended`.
    pub state: String,
    /// How often its supervisor has started it again.
    pub restarts: u64,
    /// Why it ended last; `None` while the first instance runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_exit: Option<ExitReason>,
    /// Its mailbox, where it was given one to report on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mailbox: Option<MailboxReading>,
    /// Its children, in the order of their start.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<ActorReport>,
}

/// How a drain went. Supervisors are not listed: one has drained when all below it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Who ended cleanly, in the order of their end, or had nothing running.
    pub drained: Vec<Name>,
    /// Who lost work: aborted at the deadline, failed or panicked on the way.
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

/// A mailbox's numbers at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxReading {
    /// Messages that wait.
    pub depth: usize,
    /// Messages that may wait.
    pub capacity: usize,
    /// Messages that got a place of their own, ever.
    pub accepted: u64,
    /// Requests that merged with one already waiting, ever.
    pub merged: u64,
    /// Messages dropped for want of room, ever.
    pub dropped: u64,
    /// How often a sender had to wait for room.
    pub waits: u64,
    /// How long senders have waited for room, all together.
    #[serde(with = "humantime_serde")]
    pub waited: Duration,
}

/// A look at a mailbox that keeps neither end of it open.
pub trait Gauge: Send + Sync {
    /// The numbers now, all of the same moment.
    fn read(&self) -> MailboxReading;
}

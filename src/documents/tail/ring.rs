//! The newest events, for all watches. Pure: the tail puts events in, and a watch looks for the next one that it shows.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::entry::{Entry, Unreadable};
use super::event::Event;
use crate::documents::filter::Filter;

/// Events in the order of their versions, up to a size.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    max_bytes: usize,
    /// Changes when the ring is emptied because the versions have another origin or some were missed. The versions of watches
    /// that began before are worth nothing then.
    epoch: u64,
    /// The ring has all events above this version, up to the position.
    floor: i64,
    /// All versions up to this one have been read.
    position: i64,
    /// The last read that reached the end of the log: the version there, and when it began.
    end: Option<(i64, Instant)>,
    /// As of the last read.
    base: i64,
    /// As of the last read.
    origin: Option<String>,
}

/// What a watch finds behind its position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An event that it shows, and when the tail has read it. Its position has moved to the event.
    Found(Event, Instant),
    /// Nothing up to the version of its next bookmark, to which its position has moved.
    Bookmark,
    /// Nothing up to the ring's position, to which its own has moved.
    Nothing,
    /// Events behind its position have left the ring.
    Missed,
    /// The ring has been emptied, or the next row is one that can't be read and may concern the watch.
    Gone,
}

/// Where a watch can begin that resumes from a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Ring,
    Log,
    /// The version is above the position: perhaps the tail has not read it yet.
    Ahead,
    /// Nowhere: the version is below the base.
    Gone,
}

impl Ring {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            max_bytes,
            epoch: 0,
            floor: 0,
            position: 0,
            end: None,
            base: 0,
            origin: None,
        }
    }

    /// Empties the ring, ends all watches, and begins behind a version.
    pub(super) fn restart(&mut self, position: i64) {
        self.entries.clear();
        self.bytes = 0;
        self.epoch += 1;
        (self.floor, self.position) = (position, position);
        self.end = None;
        self.origin = None;
    }

    /// Records what a read has found out about the log.
    pub(super) fn follow(&mut self, origin: &str, base: i64) {
        self.base = base;
        if self.origin.as_deref() != Some(origin) {
            self.origin = Some(origin.to_owned());
        }
    }

    /// Adds the next event, and drops the oldest ones that have no room any more.
    pub(super) fn push(&mut self, entry: Entry) {
        self.skip_to(entry.version);
        self.bytes += entry.bytes();
        self.entries.push_back(Arc::new(entry));
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.bytes();
            self.floor = oldest.version;
        }
    }

    /// All versions up to this one have been read.
    pub(super) fn skip_to(&mut self, version: i64) {
        self.position = self.position.max(version);
    }

    /// A read that began at this time has reached the end of the log, at this version.
    pub(super) fn reach_end(&mut self, newest: i64, begun: Instant) {
        self.skip_to(newest);
        self.end = Some((newest, begun));
    }

    /// The version at the end of the log, if a read that began at this time or later has reached it. What was read since does not count: under
    /// constant writes there is always more.
    pub(super) fn end_since(&self, time: Instant) -> Option<i64> {
        self.end.filter(|(_, begun)| *begun >= time).map(|(version, _)| version)
    }

    /// The size that it may have.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn position(&self) -> i64 {
        self.position
    }

    pub(super) fn floor(&self) -> i64 {
        self.floor
    }

    pub(super) fn base(&self) -> i64 {
        self.base
    }

    pub(super) fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// The number of events, and their size.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }

    /// Where a watch can begin that resumes from `version`.
    pub(super) fn start(&self, version: i64) -> Start {
        if version < self.base {
            Start::Gone
        } else if version > self.position {
            Start::Ahead
        } else if version < self.floor {
            Start::Log
        } else {
            Start::Ring
        }
    }

    /// The next event behind `position` that a watch with this filter shows. The watch began in `epoch`, and its next bookmark is due at the
    /// version `bookmark`.
    pub(super) fn next(&self, epoch: u64, position: &mut i64, filter: &Filter, bookmark: Option<i64>) -> Next {
        if epoch != self.epoch {
            return Next::Gone;
        }
        if *position < self.floor {
            return Next::Missed;
        }
        // Most looks find a watch at the end.
        let is_behind = *position < self.position;
        let begin = if is_behind {
            self.entries.partition_point(|entry| entry.version <= *position)
        } else {
            self.entries.len()
        };
        for entry in self.entries.range(begin..) {
            if let Some(version) = bookmark.filter(|version| *version < entry.version) {
                *position = version.max(*position);
                return Next::Bookmark;
            }
            match entry.seen_through(filter) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    *position = entry.version;
                    return Next::Found(event, entry.read_at);
                }
                Err(Unreadable) => return Next::Gone,
            }
        }
        // A watch may be ahead: its state was read after the tail's last read.
        let is_ahead = *position > self.position;
        *position = self.position.max(*position);
        if bookmark.is_some() && !is_ahead { Next::Bookmark } else { Next::Nothing }
    }
}

#[cfg(test)]
mod tests;

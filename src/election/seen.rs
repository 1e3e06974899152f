//! A record with the times at which it was seen, by the clock of who watches: no time stamps are compared.

use tokio::time::Instant;

use super::record::{ReplicaRecord, SeatRecord};

/// A replica whose record is older than this part of its duration is late.
const LATE_AFTER: (u32, u32) = (2, 3);

/// A record, and when it was seen.
#[derive(Clone, Debug)]
pub(super) struct Seen<T> {
    pub(super) record: T,
    /// For the first time.
    pub(super) first: Instant,
    /// To change.
    pub(super) changed: Instant,
    /// It appeared or changed while somebody listened: it is of one that lives, or did then. What was only found in a list
    /// may be of one that is long gone.
    pub(super) is_heard: bool,
}

impl<T> Seen<T> {
    pub(super) fn new(record: T, now: Instant) -> Self {
        Self { record, first: now, changed: now, is_heard: true }
    }

    pub(super) fn change(&mut self, record: T, now: Instant) {
        self.record = record;
        self.changed = now;
        self.is_heard = true;
    }

    /// Changes may have gone unseen: it counts as just changed.
    pub(super) fn look_anew(&mut self, now: Instant) {
        self.changed = now;
        self.is_heard = false;
    }
}

impl Seen<SeatRecord> {
    /// When it is free if nothing changes.
    pub(super) fn free_at(&self) -> Instant {
        if self.record.holder.is_some() { self.changed + self.record.duration } else { self.changed }
    }
}

impl Seen<ReplicaRecord> {
    /// When it counts as dead if it says nothing.
    pub(super) fn dead_at(&self) -> Instant {
        self.changed + self.record.duration
    }

    /// When it counts as late if it says nothing.
    pub(super) fn late_at(&self) -> Instant {
        let (part, whole) = LATE_AFTER;
        self.changed + self.record.duration * part / whole
    }
}

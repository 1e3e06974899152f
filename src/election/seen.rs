//! A record, and when this replica saw it change, by its own clock: time stamps of others are never compared.

use tokio::time::Instant;

use super::record::{ReplicaRecord, SectionRecord};

/// A replica's renewal is late when its record is older than this part of its duration.
const LATE_AFTER: (u32, u32) = (2, 3);

/// A record, and when it was seen.
#[derive(Clone, Debug)]
pub(super) struct Seen<T> {
    pub(super) record: T,
    /// When it appeared.
    pub(super) appeared: Instant,
    /// When it was last seen to change.
    pub(super) changed: Instant,
    /// The record appeared or changed while the watch was live, so that its writer was alive then. A record that was only
    /// found in a list may be that of a replica that is long dead.
    pub(super) is_confirmed: bool,
}

impl<T> Seen<T> {
    pub(super) fn new(record: T, now: Instant) -> Self {
        Self { record, appeared: now, changed: now, is_confirmed: true }
    }

    pub(super) fn change(&mut self, record: T, now: Instant) {
        self.record = record;
        self.changed = now;
        self.is_confirmed = true;
    }

    /// Changes may have been missed: the record counts as changed just now.
    pub(super) fn reset_age(&mut self, now: Instant) {
        self.changed = now;
        self.is_confirmed = false;
    }
}

impl Seen<SectionRecord> {
    /// When the section is free, unless the record changes first.
    pub(super) fn free_at(&self) -> Instant {
        if self.record.holder.is_some() { self.changed + self.record.duration } else { self.changed }
    }

    /// Whether the section has a holder that did not renew in time.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.record.holder.is_some() && now >= self.free_at()
    }
}

impl Seen<ReplicaRecord> {
    /// When the replica counts as dead, unless the record changes first.
    pub(super) fn dead_at(&self) -> Instant {
        self.changed + self.record.duration
    }

    /// When the replica's renewal counts as late, unless the record changes first.
    pub(super) fn late_at(&self) -> Instant {
        let (part, whole) = LATE_AFTER;
        self.changed + self.record.duration * part / whole
    }
}

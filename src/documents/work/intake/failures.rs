//! Failures in a row, of which the log has the first one.

use crate::cluster::full_text;
use crate::db;

/// How often something has failed since it last succeeded.
pub(super) struct Failures {
    message: &'static str,
    count: u32,
}

impl Failures {
    /// None yet. The message is the log's.
    pub(super) fn of(message: &'static str) -> Self {
        Self { message, count: 0 }
    }

    /// Logs another one, and returns how many were before it.
    pub(super) fn add(&mut self, error: &db::Error) -> u32 {
        let before = self.count;
        self.count = before.saturating_add(1);
        if before == 0 {
            tracing::warn!(error = full_text(error), "{}", self.message);
        } else {
            tracing::debug!(error = full_text(error), failures = before, "{}", self.message);
        }
        before
    }

    /// It has succeeded.
    pub(super) fn end(&mut self) {
        self.count = 0;
    }
}

//! The report of a family for `/status` and the metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::guard::HeldChanges;
use crate::status::Objects;
use crate::status_sync::plan::Sample;

/// Shorter waits for the database are usual, and do not count for the freshness.
const USUAL_ANSWER: Duration = Duration::from_secs(5);

/// What operators see of a family.
#[derive(Clone, Debug, Default)]
pub struct FamilyReport {
    /// Rows of `status` at the last pass.
    pub rows: i64,
    /// Rows of `spec`, by state.
    pub objects: Objects,
    /// Writes so far.
    pub written: u64,
    /// Rows of `spec` whose status is not written, by reason.
    pub waiting: BTreeMap<&'static str, usize>,
    /// Rows that could not be read in the last pass, or not completely.
    pub bad_rows: usize,
    /// The first of the bad rows.
    pub bad_row_examples: Vec<String>,
    /// Objects of other owners that have the names of ours. They are left alone.
    pub foreign: Sample,
    /// Edits of other writers that were corrected so far.
    pub corrected: u64,
    /// Objects that another writer keeps editing, with the writer.
    pub conflicts: Sample,
    /// Complete passes so far.
    pub passes: u64,
    /// How long the last one took.
    pub last_pass: Option<Duration>,
    /// Since when the oldest unwritten change has been known.
    pub oldest_pending: Option<Instant>,
    /// Since when the poller has waited for the database, across statements that failed.
    pub unanswered_since: Option<Instant>,
    /// What the guard holds.
    pub held: HeldChanges,
    /// Kind and text of the error that ended the last pass.
    pub failure: Option<(&'static str, String)>,
    /// Kind and text of the last failed write.
    pub write_failure: Option<(&'static str, String)>,
    /// Why no pass can begin.
    pub waits_for: Option<String>,
}

impl FamilyReport {
    /// The age of the oldest change that the hub may not show: of the oldest unwritten change, or of the oldest wait
    /// for the database, if that is longer than usual.
    pub fn freshness(&self) -> Duration {
        let age = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        let unanswered = age(self.unanswered_since);
        age(self.oldest_pending).max(if unanswered >= USUAL_ANSWER { unanswered } else { Duration::ZERO })
    }

    /// The family's part of `/status`.
    pub fn to_json(&self) -> Value {
        let mut report = json!({
            "rows": self.rows,
            "objects": self.objects.total(),
            "written": self.written,
            "waiting": self.waiting,
            "bad_rows": self.bad_rows,
            "contended_fields": self.corrected,
            "passes": self.passes,
            "last_pass_seconds": self.last_pass.map(|took| took.as_secs_f64()),
            "oldest_unwritten_seconds": self.oldest_pending.map(|since| since.elapsed().as_secs_f64()),
            "database_unanswered_seconds": self.unanswered_since.map(|since| since.elapsed().as_secs_f64()),
        });
        let Some(map) = report.as_object_mut() else { return report };
        if !self.bad_row_examples.is_empty() {
            map.insert("bad_row_examples".to_owned(), json!(self.bad_row_examples));
        }
        for (name, sample) in [("foreign", &self.foreign), ("contenders", &self.conflicts)] {
            if sample.count > 0 {
                map.insert(name.to_owned(), json!({"objects": sample.count, "examples": sample.examples}));
            }
        }
        if let Some(waits_for) = &self.waits_for {
            map.insert("waits_for".to_owned(), json!(waits_for));
        }
        for (name, failure) in [("failure", &self.failure), ("write_failure", &self.write_failure)] {
            if let Some((kind, text)) = failure {
                map.insert(name.to_owned(), json!({"kind": kind, "error": text}));
            }
        }
        report
    }
}

//! What the admin server shows of syncsets.

use serde_json::{Map, Value, json};

use super::config::SYNCSETS;
use super::overview::Overview;
use crate::cluster::full_text;
use crate::config::SectionName;
use crate::telemetry::{self, Condition, Facts, NotReady, Readiness};

/// The report of the section.
pub(super) struct SyncsetReport {
    name: SectionName,
    overview: Overview,
}

impl SyncsetReport {
    pub(super) fn new(name: SectionName, overview: Overview) -> Self {
        Self { name, overview }
    }

    fn facts(&self) -> Facts {
        let not_ready = |reason: &str| Some(NotReady { reason: reason.to_owned(), unreachable: false });
        match self.overview.latest() {
            None => Facts { not_ready: not_ready("the clusters have not been counted yet"), ..Facts::default() },
            Some(Err(error)) => Facts { database: Some(full_text(&error)), ..Facts::default() },
            Some(Ok(_)) => Facts::default(),
        }
    }
}

impl telemetry::Section for SyncsetReport {
    fn name(&self) -> &SectionName {
        &self.name
    }

    fn job(&self) -> &'static str {
        SYNCSETS
    }

    fn readiness(&self) -> Readiness {
        self.facts().readiness()
    }

    fn condition(&self) -> Condition {
        Condition::of(&self.facts())
    }

    fn overview(&self) -> telemetry::Overview {
        let counted = self.overview.latest().and_then(Result::ok).unwrap_or_default();
        let of = |wanted: &str| {
            let counts = counted.states.iter().filter(|(state, _)| wanted.is_empty() || *state == wanted);
            usize::try_from(counts.map(|(_, count)| count).sum::<i64>()).unwrap_or_default()
        };
        telemetry::Overview {
            flow: "hub→clusters".to_owned(),
            subject: "clusters".to_owned(),
            total: of(""),
            in_step: of("in_step"),
            oldest_seconds: counted.oldest.map(|age| age.as_secs_f64()),
        }
    }

    fn report(&self) -> Value {
        let counted = self.overview.latest().and_then(Result::ok).unwrap_or_default();
        let states: Map<String, Value> =
            counted.states.iter().map(|(state, count)| ((*state).to_owned(), json!(count))).collect();
        json!({"clusters": states})
    }

    fn refresh(&self) {}
}

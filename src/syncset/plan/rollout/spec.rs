//! How a syncset is rolled out: `spec.rollout` of the document, with `health` of the content to which it leads.

use std::time::Duration;

use serde_json::Value;

use crate::config::Requirement;
use crate::documents::{HEALTH_WITHIN, MOST_WAVE_VALUES, health_within, requirements_of};

#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Without the last one, of the clusters that are in no other.
    pub waves: Vec<Wave>,
    /// How many clusters of a wave may be under way at once.
    pub max_concurrent: Amount,
    /// How many clusters of a wave may fail.
    pub max_failures: Amount,
    pub on_failure: OnFailure,
    /// How long a cluster may take.
    pub within: Duration,
    /// Whether a cluster is done only when what was applied works.
    pub reads_health: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Wave {
    pub name: String,
    pub takes: Takes,
    /// How long the next wave waits after this one.
    pub soak: Duration,
    /// Whether somebody has to let the next wave begin.
    pub pause: bool,
}

/// Which clusters are in a wave, as far as no earlier one has taken them.
#[derive(Clone, Debug, PartialEq)]
pub enum Takes {
    /// A selector of labels, as the document has it.
    Selected(Value),
    /// So many percent of all clusters are in this wave or an earlier one.
    Percent(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Count(usize),
    /// Of the clusters of a wave, rounded down.
    Percent(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Pause,
    Rollback,
}

impl Spec {
    /// Reads `spec.rollout` of a document, and `health` of the content to which the rollout leads. None if that can't be read, as it may be
    /// after a newer release has run, or has more values than are taken.
    pub fn read(rollout: &Value, health: Option<&Value>) -> Option<Self> {
        let rollout = rollout.as_object()?;
        let given = |field: &str| rollout.get(field).filter(|value| !value.is_null());
        let waves: Vec<Wave> = match given("waves") {
            Some(waves) => waves.as_array()?.iter().map(Wave::read).collect::<Option<_>>()?,
            None => Vec::new(),
        };
        if waves.iter().map(Wave::weight).sum::<usize>() > MOST_WAVE_VALUES {
            return None;
        }
        let amount = |field, otherwise| given(field).map_or(Some(otherwise), Amount::read);
        let health = health.filter(|health| health.is_object());
        Some(Self {
            waves,
            max_concurrent: amount("maxConcurrent", Amount::Percent(10))?,
            max_failures: amount("maxFailures", Amount::Count(0))?,
            on_failure: match given("onFailure").map(Value::as_str) {
                None | Some(Some("pause")) => OnFailure::Pause,
                Some(Some("rollback")) => OnFailure::Rollback,
                Some(_) => return None,
            },
            within: health.and_then(|health| health.get("within")).and_then(health_within).unwrap_or(HEALTH_WITHIN.0),
            reads_health: health.is_some(),
        })
    }

    /// What status and messages call a wave.
    pub fn wave_name(&self, index: usize) -> &str {
        self.waves.get(index).map_or("rest", |wave| &wave.name)
    }
}

impl Wave {
    /// How many values of labels its selector compares.
    fn weight(&self) -> usize {
        match &self.takes {
            Takes::Selected(selector) => requirements_of(selector).iter().flatten().map(Requirement::weight).sum(),
            Takes::Percent(_) => 0,
        }
    }

    fn read(wave: &Value) -> Option<Self> {
        let given = |field: &str| wave.get(field).filter(|value| !value.is_null());
        let takes = match (given("clusterSelector"), given("percent")) {
            (Some(selector), None) => Takes::Selected(selector.clone()),
            (None, Some(percent)) => Takes::Percent(percent.as_u64()?),
            _ => return None,
        };
        let soak = match given("soak") {
            Some(soak) => humantime::parse_duration(soak.as_str()?).ok()?,
            None => Duration::ZERO,
        };
        let pause = given("pause").map_or(Some(false), Value::as_bool)?;
        Some(Self { name: given("name")?.as_str()?.to_owned(), takes, soak, pause })
    }
}

impl Amount {
    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Number(count) => usize::try_from(count.as_u64()?).ok().map(Self::Count),
            Value::String(percent) => percent.strip_suffix('%')?.parse().ok().map(Self::Percent),
            _ => None,
        }
    }

    /// How many that are, of a wave of so many clusters.
    pub fn of(self, clusters: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => clusters.saturating_mul(percent) / 100,
        }
    }
}

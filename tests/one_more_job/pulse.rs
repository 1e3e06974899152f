//! `[[pulse]]`: writes how often it has beaten to a file, for a watchdog that looks at the file's age. A whole job, in one file: what
//! the daemon knows of it is [`PulseJob`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use metrics::{Counter, counter};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use towline::test_api::actor::{BoxError, ChildSpec, Scope};
use towline::test_api::config::fields::Fields;
use towline::test_api::config::setting::PositiveDuration;
use towline::test_api::config::source::Node;
use towline::test_api::config::{ClusterName, SectionName};
use towline::test_api::job::check::{Surroundings, say};
use towline::test_api::job::permission::{Kinds, Permission};
use towline::test_api::job::{Job, Reading, Sections, Wiring};
use towline::test_api::status::{Facts, NotReady, ObjectState, Objects, Section};
use towline::test_api::telemetry::Metric;

const BEATS_TOTAL: &str = "towline_pulse_beats_total";

/// `[[pulse]]`.
pub(crate) struct PulseJob;

impl Job for PulseJob {
    fn key(&self) -> &'static str {
        "pulse"
    }

    fn is_list(&self) -> bool {
        true
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        let sections = reading.list(self.key(), &[], node, PulseConfig::read);
        Arc::new(PulseSections(sections.into_iter().map(|(_, section)| section).collect()))
    }

    fn metrics(&self) -> &'static [Metric] {
        const { &[Metric::counter(BEATS_TOTAL, "Beats that were written")] }
    }
}

#[derive(Clone, Debug)]
struct PulseConfig {
    name: SectionName,
    file: PathBuf,
    interval: Duration,
}

impl PulseConfig {
    fn read(mut fields: Fields<'_>) -> Option<Self> {
        let name = fields.required("name");
        let file = fields.required("file");
        let mut interval = Duration::from_secs(1);
        fields.set_as::<PositiveDuration, _>("interval", &mut interval);
        fields.finish();
        Some(Self { name: name?, file: file?, interval })
    }
}

#[derive(Debug)]
struct PulseSections(Vec<PulseConfig>);

impl Sections for PulseSections {
    fn names(&self) -> Vec<&SectionName> {
        self.0.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        Vec::new()
    }

    fn permissions(&self, _kinds: &Kinds) -> Vec<Permission> {
        Vec::new()
    }

    fn connect<'c>(&'c self, _surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        let has_folder = |section: &&PulseConfig| section.file.parent().is_some_and(std::path::Path::is_dir);
        let faulty: Vec<&PulseConfig> = self.0.iter().filter(|section| !has_folder(section)).collect();
        for section in &faulty {
            say(&format!("pulse {}: there is no folder for {}", section.name, section.file.display()));
        }
        Box::pin(std::future::ready(faulty.len()))
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        for config in &self.0 {
            let section = Arc::new(Pulse {
                config: config.clone(),
                beats: AtomicU64::new(0),
                total: counter!(BEATS_TOTAL, "section" => config.name.to_string()),
            });
            let running = Arc::clone(&section);
            let child = ChildSpec::new(format!("pulse {}", config.name), move |scope| Arc::clone(&running).beat(scope));
            wiring.add(section, child);
        }
    }
}

/// A section: its actor writes, the admin server reads.
struct Pulse {
    config: PulseConfig,
    beats: AtomicU64,
    total: Counter,
}

impl Pulse {
    async fn beat(self: Arc<Self>, scope: Scope) -> Result<(), BoxError> {
        let mut ticks = tokio::time::interval(self.config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = scope.draining() => return Ok(()),
            }
            let beats = self.beats() + 1;
            tokio::fs::write(&self.config.file, beats.to_string()).await?;
            self.beats.store(beats, Ordering::Relaxed);
            self.total.increment(1);
        }
    }

    fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }
}

impl Section for Pulse {
    fn name(&self) -> &SectionName {
        &self.config.name
    }

    fn job(&self) -> &'static str {
        "pulse"
    }

    fn facts(&self) -> Facts {
        let not_ready = NotReady { reason: "no beat has been written yet".to_owned(), unreachable: false };
        Facts {
            flow: format!("→{}", self.config.file.display()),
            subject: "beats".to_owned(),
            objects: Objects::counted([(ObjectState::InStep, 1)]),
            not_ready: (self.beats() == 0).then_some(not_ready),
            ..Facts::default()
        }
    }

    fn report(&self) -> Value {
        json!({ "beats": self.beats() })
    }
}

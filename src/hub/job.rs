//! The hub as a job of the daemon.

mod client;
pub mod command;
mod history;
mod listing;
mod rotate;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::config::{Bus, HUB, HubConfig};
use super::metrics;
use super::plan::tokens::Grants;
use super::run::actors;
use super::status::HubReport;
use crate::amqp::AmqpSource;
use crate::cluster::full_text;
use crate::config::fault::{Fault, Problem};
use crate::config::source::Node;
use crate::config::{ClusterName, SectionName};
use crate::db::Database;
use crate::documents::{self, Broker, Keyring, OpenError, SCHEMA, SealedWith};
use crate::http::{FileError, Reloaded, ServerTls};
use crate::job::check::{Surroundings, say};
use crate::job::command::JobCommand;
use crate::job::permission::{Kinds, Permission};
use crate::job::{Config, Job, Reading, Sections, Whole, Wiring};
use crate::telemetry::Metric;

#[derive(Debug)]
pub struct HubJob;

/// The section `[hub]`, if it is configured.
#[derive(Debug, Default)]
pub(super) struct HubSection(Option<HubConfig>);

pub fn section(config: &Config) -> Option<&HubConfig> {
    config.of::<HubSection>()?.0.as_ref()
}

impl Job for HubJob {
    fn key(&self) -> &'static str {
        HUB
    }

    fn is_list(&self) -> bool {
        false
    }

    fn read(&self, node: Option<Node>, reading: &mut Reading<'_>) -> Arc<dyn Sections> {
        Arc::new(HubSection(reading.table(self.key(), &[], node, HubConfig::read)))
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn commands(&self) -> Vec<JobCommand> {
        command::commands()
    }
}

impl Sections for HubSection {
    fn names(&self) -> Vec<&SectionName> {
        self.0.iter().map(|section| &section.name).collect()
    }

    fn clusters(&self) -> Vec<&ClusterName> {
        Vec::new()
    }

    /// What must run only once holds a leader claim in the database.
    fn is_elected(&self) -> bool {
        false
    }

    /// The second of two servers at one address would not start. What depends on the machine, as IPv6's `::` beside IPv4, it finds out itself.
    fn check(&self, whole: &Whole<'_>, faults: &mut Vec<Fault>) {
        let Some(listen) = self.0.as_ref().and_then(|section| section.listen) else { return };
        let admin = whole.daemon.listen;
        let (ours, theirs) = (listen.ip(), admin.ip());
        let is_any = ours.is_unspecified() || theirs.is_unspecified();
        let overlap = ours == theirs || (is_any && ours.is_ipv4() == theirs.is_ipv4());
        if overlap && listen.port() == admin.port() && listen.port() != 0 {
            let allowed = format!("another port than that of `daemon.listen` ({admin})");
            let problem = Problem::Value { found: format!("{:?}", listen.to_string()), allowed, suggestion: None };
            faults.push(Fault::new("hub.listen", problem));
        }
    }

    fn warnings(&self) -> Vec<String> {
        let idle = self.0.iter().filter(|section| section.amqp.is_some() && section.bus != Bus::Amqp);
        let idle =
            idle.map(|section| format!("{}: the message broker is not used without `bus = \"amqp\"`", section.name));
        let accepting = self.0.iter().filter(|section| section.accept_unsealed);
        idle.chain(accepting.map(|section| format!("{}: {ACCEPTS_UNSEALED}", section.name))).collect()
    }

    fn announce(&self) {
        if let Some(section) = self.0.as_ref().filter(|section| section.keys_file.is_none()) {
            tracing::warn!(section = %section.name, "without keys_file kubeconfigs and secrets are stored unencrypted");
        }
        if let Some(section) = self.0.as_ref().filter(|section| section.accept_unsealed) {
            tracing::warn!(section = %section.name, "{ACCEPTS_UNSEALED}");
        }
        if let Some(section) = self.0.as_ref().filter(|section| section.exposes_events()) {
            tracing::warn!(section = %section.name, "without TLS the password of the broker and all events can be read on the way to it");
        }
    }

    fn permissions(&self, _kinds: &Kinds) -> Vec<Permission> {
        Vec::new()
    }

    fn connect<'c>(&'c self, _surroundings: &'c Surroundings<'c>) -> BoxFuture<'c, usize> {
        async move {
            match &self.0 {
                Some(section) => check_section(section).await,
                None => 0,
            }
        }
        .boxed()
    }

    fn wire(&self, wiring: &mut Wiring<'_>) {
        if let Some(section) = &self.0 {
            let hub = actors::wire(section);
            wiring.offer(Arc::new(hub.shared()));
            wiring.offer(Arc::clone(&hub.routes));
            wiring.add(Arc::new(HubReport(Arc::clone(&hub))), actors::into_child(&hub));
        }
    }
}

// `towline check --connect`: checks that the hub's database answers and has the schema, that its files can be used, and that
// the message broker takes it.

/// Prints what the section lacks, and returns how many faults that are.
pub async fn check_section(config: &HubConfig) -> usize {
    let mut faults = Vec::new();
    let database = documents::open(config.database.clone());
    let has_schema = match check_database(config, &database).await {
        Ok(has_schema) => has_schema,
        Err(fault) => {
            faults.push(fault);
            false
        }
    };
    if let Some(path) = &config.tokens_file {
        faults.extend(fault_of(&Reloaded::of_text(path.clone(), Grants::read, Grants::default())));
    }
    let keys = config.keys();
    let fault = keys.as_ref().and_then(fault_of);
    if has_schema && fault.is_none() {
        let keyring = keys.map(|keys| Arc::clone(&keys.content().borrow())).unwrap_or_default();
        faults.extend(check_sealed_fields(&database, &keyring, config.keys_file.is_some()).await);
    }
    faults.extend(fault);
    if let Some(files) = &config.tls
        && let Err(error) = ServerTls::load(files.clone())
    {
        faults.push(full_text(&error));
    }
    if let (Bus::Amqp, Some(source)) = (config.bus, &config.amqp) {
        faults.extend(check_broker(source).await);
    }
    for fault in &faults {
        say(&format!("{}: {fault}", config.name));
    }
    faults.len()
}

fn fault_of<T: Send + Sync + 'static>(file: &Reloaded<T>) -> Option<String> {
    file.fault().borrow().as_deref().map(|error: &FileError| full_text(error))
}

/// Whether the broker lets this account declare everything.
async fn check_broker(source: &AmqpSource) -> Option<String> {
    let place = source.place();
    let checked = Broker::new(source.clone(), Arc::new(())).check().await;
    checked.err().map(|error| format!("broker {place}: {}", full_text(&error)))
}

/// The warning while `accept_unsealed` is set, which is meant for a migration.
const ACCEPTS_UNSEALED: &str = "accept_unsealed is set: values that somebody stored unencrypted are used; remove it once `towline hub rotate-key` has encrypted them";

/// Whether this replica can open what is encrypted in the database.
async fn check_sealed_fields(database: &Database, keyring: &Keyring, has_file: bool) -> Vec<String> {
    let why = if has_file { "keys_file lacks" } else { "without keys_file there is not" };
    match rotate::count(database).await {
        Ok(counts) => {
            let unopened = counts.iter().filter(|(key, _)| {
                let sealed_with = if key.is_empty() { SealedWith::Nothing } else { SealedWith::Key(key) };
                !keyring.opens(sealed_with)
            });
            let told = unopened.map(|(key, count)| {
                let why = if key.is_empty() { OpenError::Unsealed.to_string() } else { format!("{why} the key {key}") };
                format!("{} cannot be opened: {why}", rotate::sealed_fields(*count))
            });
            told.collect()
        }
        Err(error) => vec![format!("database {}: {}", database.place(), full_text(&error))],
    }
}

/// Whether the database has the whole schema. An error: it does not take this release's statements, and will not after the migrations
/// at start either.
async fn check_database(config: &HubConfig, database: &Database) -> Result<bool, String> {
    let place = database.place();
    match SCHEMA.status(database).await.and_then(crate::db::migrations::Status::check) {
        Ok(status) if status.pending() > 0 && !config.migrate => {
            let pending = status.pending();
            Err(format!("database {place}: {pending} migrations of the schema are missing, run `towline migrate`"))
        }
        Ok(status) => {
            say(&format!("{}: database {place}: answers", config.name));
            Ok(status.pending() == 0)
        }
        Err(error) => Err(format!("database {place}: {}", full_text(&error))),
    }
}

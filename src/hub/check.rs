//! `towline check --connect`: checks that the hub's database answers and has the schema, that its files can be used, and that
//! the message broker takes it.

use std::sync::Arc;

use super::bus::Bus;
use super::config::HubConfig;
use super::reloaded::{FileError, Reloaded};
use super::tokens::Grants;
use super::wiring::read_keys;
use crate::amqp::AmqpSource;
use crate::cluster::full_text;
use crate::documents::{self, Broker, Keyring, SCHEMA};
use crate::http::ServerTls;
use crate::job::check::say;

/// Prints what the section lacks, and returns how many faults that are.
pub(super) async fn check_section(config: &HubConfig) -> usize {
    let mut faults = Vec::new();
    faults.extend(check_database(config).await);
    if let Some(path) = &config.tokens_file {
        faults.extend(fault_of(&Reloaded::open(path.clone(), Grants::read, Grants::default())));
    }
    if let Some(path) = &config.keys_file {
        faults.extend(fault_of(&Reloaded::open(path.clone(), read_keys, Keyring::unread())));
    }
    if let Some(files) = &config.tls
        && let Err(error) = ServerTls::load(files.clone()).await
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
    match Broker::new(source.clone(), Arc::new(())).connect("towline check").await {
        Ok(link) => {
            link.close().await;
            None
        }
        Err(error) => Some(format!("broker {place}: {}", full_text(&error))),
    }
}

/// Whether the database takes this release's statements, or will after the migrations at start.
async fn check_database(config: &HubConfig) -> Option<String> {
    let database = documents::open(config.database.clone());
    let place = database.place();
    match SCHEMA.status(&database).await.and_then(crate::db::migrations::Status::check) {
        Ok(status) if status.pending() > 0 && !config.migrate => {
            let pending = status.pending();
            Some(format!("database {place}: {pending} migrations of the schema are missing, run `towline migrate`"))
        }
        Ok(_) => None,
        Err(error) => Some(format!("database {place}: {}", full_text(&error))),
    }
}

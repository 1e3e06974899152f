//! `towline check --connect`: checks that the hub's database answers and has the schema, that its files can be used, and that
//! the message broker takes it.

use std::sync::Arc;

use super::bus::Bus;
use super::command::sealed_fields;
use super::config::HubConfig;
use super::reloaded::{FileError, Reloaded};
use super::rotate;
use super::tokens::Grants;
use super::wiring::read_keys;
use crate::amqp::AmqpSource;
use crate::cluster::full_text;
use crate::db::Database;
use crate::documents::{self, Broker, Keyring, SCHEMA};
use crate::http::ServerTls;
use crate::job::check::say;

/// Prints what the section lacks, and returns how many faults that are.
pub(super) async fn check_section(config: &HubConfig) -> usize {
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
        faults.extend(fault_of(&Reloaded::open(path.clone(), Grants::read, Grants::default())));
    }
    let keys = config.keys_file.as_ref().map(|path| Reloaded::open(path.clone(), read_keys, Keyring::unread()));
    let fault = keys.as_ref().and_then(fault_of);
    if has_schema && fault.is_none() {
        let keyring = keys.map(|keys| Arc::clone(&keys.content().borrow())).unwrap_or_default();
        faults.extend(check_sealed_fields(&database, &keyring, config.keys_file.is_some()).await);
    }
    faults.extend(fault);
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
    let checked = Broker::new(source.clone(), Arc::new(())).check().await;
    checked.err().map(|error| format!("broker {place}: {}", full_text(&error)))
}

/// Whether this replica can open what is encrypted in the database.
async fn check_sealed_fields(database: &Database, keyring: &Keyring, has_file: bool) -> Vec<String> {
    let why = if has_file { "keys_file lacks" } else { "without keys_file there is not" };
    match rotate::count(database).await {
        Ok(counts) => {
            let unknown = counts.iter().filter(|(key, _)| !key.is_empty() && !keyring.has(key));
            unknown
                .map(|(key, count)| format!("{} cannot be opened: {why} the key {key}", sealed_fields(*count)))
                .collect()
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

//! The commands of the hub: `towline hub` and what maintains its database, and those that are clients of the API.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::alone::alone;
use super::client;
use super::config::HubConfig;
use super::job::section;
use super::reloaded::Reloaded;
use super::rotate;
use super::wiring::{MIGRATE_WITHIN, read_keys};
use crate::cluster::full_text;
use crate::config;
use crate::documents::{self, Keyring, SCHEMA};
use crate::job::check::say;
use crate::job::command::{Exit, JobCommand, Load, Order, complain};
use crate::job::progress::telling;

/// The part of `--help` about the environment.
const VARIABLES: &str = "\
Required variable:
  POSTGRES_PARAMS    The database: host=db dbname=hub user=me password=…, or postgres://me:password@db/hub

Further variables:
  AMQP_URL           A RabbitMQ broker that gets all events: amqps://me:password@broker/vhost
  TOWLINE__HUB__*    Further keys of the section: TOWLINE__HUB__LISTEN [default: 127.0.0.1:7070]
  TOWLINE__DAEMON__* Keys of [daemon]: TOWLINE__DAEMON__LISTEN [default: 127.0.0.1:8384]

With one of these, SyncSets are applied to clusters, too:
  SYNCSET_REAPPLY_INTERVAL  Time between two full passes over a cluster, a Go duration such as 2h0m0s
  TOWLINE__SYNCSETS__*      Keys of the section [syncsets]: TOWLINE__SYNCSETS__MAX_IN_FLIGHT [default: 64]";

/// What `towline migrate` reads of them.
const MIGRATE_VARIABLES: &str = "\
Required variable:
  POSTGRES_PARAMS    The database: host=db dbname=hub user=me password=…, or postgres://me:password@db/hub";

/// `towline hub`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct HubCommand {
    /// What to do instead of running it.
    #[command(subcommand)]
    task: Option<HubTask>,
}

/// What maintains the database of a hub.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
enum HubTask {
    /// Encrypt all sealed fields again with the first key of the file. First add the new key on all replicas; remove the old
    /// one after this
    RotateKey {
        /// Only count the sealed fields by key, and exit with 1 if one does not use the first key
        #[arg(long)]
        check: bool,
    },
    /// Put all further versions above those that there were, after the snapshot of a disk was restored
    Renumber,
}

/// `towline migrate`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct MigrateCommand {
    /// What to do instead of migrating.
    #[command(subcommand)]
    task: Option<MigrateTask>,
}

/// What else there is to do with the schema.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
enum MigrateTask {
    /// Show the version of the schema, and exit with 1 if migrations are missing
    Status,
}

/// The commands, for the job's list of commands.
pub(super) fn commands() -> Vec<JobCommand> {
    let hub = |command: HubCommand, jobs: &Load| {
        let config = alone(config::environment(), *jobs)?;
        Ok(match command.task {
            None => Order::Run(Box::new(config)),
            Some(HubTask::RotateKey { check }) => {
                on_section(section(&config), move |hub| rotate_key(hub, check).boxed())
            }
            Some(HubTask::Renumber) => on_section(section(&config), |hub| renumber(hub).boxed()),
        })
    };
    let migrate = |command: MigrateCommand, jobs: &Load| {
        let config = alone(config::environment(), *jobs)?;
        Ok(match command.task {
            None => on_section(section(&config), |hub| migrate(hub).boxed()),
            Some(MigrateTask::Status) => on_section(section(&config), |hub| status(hub).boxed()),
        })
    };
    let mut commands = vec![
        JobCommand::new("hub", "Run the hub alone, or with syncsets, configured by the environment", hub)
            .after_help(VARIABLES),
        JobCommand::new("migrate", "Bring the schema of the hub's database up to date", migrate)
            .after_help(MIGRATE_VARIABLES),
    ];
    commands.extend(client::commands());
    commands
}

fn on_section(section: Option<&HubConfig>, task: impl FnOnce(HubConfig) -> BoxFuture<'static, Exit>) -> Order {
    match section.cloned() {
        Some(section) => Order::Task(task(section)),
        // `alone` always has the section.
        None => Order::Task(async { Exit::Usage }.boxed()),
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Exit {
    complain(&full_text(error));
    Exit::Failed
}

async fn migrate(config: HubConfig) -> Exit {
    let database = documents::open(config.database);
    let migrating = documents::migrate(&database, MIGRATE_WITHIN);
    match telling(&format!("migrating database {}", database.place()), migrating).await {
        Ok(migrated) => {
            let before = migrated.before;
            let place = database.place();
            say(&format!(
                "database {place}: {} migrations applied, the schema is at {}",
                before.pending(),
                before.known
            ));
            Exit::Done
        }
        Err(error) => failed(&error),
    }
}

async fn status(config: HubConfig) -> Exit {
    let database = documents::open(config.database);
    match SCHEMA.status(&database).await {
        Ok(status) => {
            let (place, applied, known) = (database.place(), status.applied, status.known);
            say(&format!("database {place}: the schema is at migration {applied}, this release knows {known}"));
            if status.pending() == 0 && status.check().is_ok() { Exit::Done } else { Exit::Failed }
        }
        Err(error) => failed(&error),
    }
}

async fn renumber(config: HubConfig) -> Exit {
    match documents::renumber(&documents::open(config.database), true).await {
        Ok(base) => {
            say(&format!("further versions are above {}", base.unwrap_or_default()));
            Exit::Done
        }
        Err(error) => failed(&error),
    }
}

async fn rotate_key(config: HubConfig, check: bool) -> Exit {
    let Some(path) = config.keys_file else {
        complain("TOWLINE__HUB__KEYS_FILE is required: the file with the keys");
        return Exit::Usage;
    };
    let keys = Reloaded::open(path, read_keys, Keyring::unread());
    if let Some(fault) = keys.fault().borrow().as_deref() {
        return failed(fault);
    }
    let keyring = Arc::clone(&keys.content().borrow());
    let database = documents::open(config.database);
    let mut is_done = true;
    if !check {
        match rotate::rotate(&database, &keyring).await {
            Ok(rotated) => {
                say(&format!("{} encrypted again", sealed_fields(rotated.fields)));
                rotated.unopened.iter().for_each(|unopened| complain(&full_text(unopened)));
                is_done = rotated.unopened.is_empty();
            }
            Err(error) => return failed(&error),
        }
    }
    let counts = match rotate::count(&database).await {
        Ok(counts) => counts,
        Err(error) => return failed(&error),
    };
    let wanted = rotate::name_of(keyring.sealing_key());
    for (key, count) in &counts {
        let verb = if *count == 1 { "uses" } else { "use" };
        say(&format!("{} {verb} {}", sealed_fields(*count), if key.is_empty() { "no key" } else { key }));
    }
    if is_done && counts.keys().all(|key| *key == wanted) { Exit::Done } else { Exit::Failed }
}

/// `1 sealed field`, `2 sealed fields`.
pub(super) fn sealed_fields(count: u64) -> String {
    if count == 1 { "1 sealed field".to_owned() } else { format!("{count} sealed fields") }
}

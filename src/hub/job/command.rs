//! The commands of the hub: `towline hub` and what maintains its database, and those that are clients of the API.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;

use super::super::config::{HUB, HubConfig};
use super::super::run::actors::MIGRATE_WITHIN;
use super::{client, rotate, section};
use crate::cluster::full_text;
use crate::config;
use crate::config::fault::Error;
use crate::config::setting::Setting;
use crate::db::DatabaseUrl;
use crate::db::migrations::Status;
use crate::documents::{self, SCHEMA};
use crate::job::command::{Exit, JobCommand, Order, complain};
use crate::job::output::{Format, Output};
use crate::job::terminal::telling;
use crate::job::{Config, Environment, JobList};

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
Required variable without --config:
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
        #[command(flatten)]
        hub: OfHub,
    },
    /// Put all further versions above those that there were, after the snapshot of a disk was restored
    Renumber(OfHub),
}

/// The hub whose database a command is about.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct OfHub {
    /// The configuration file of the hub's daemon; without it, variables tell the same as to `towline hub`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

/// `towline migrate`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct MigrateCommand {
    /// What to do instead of migrating.
    #[command(subcommand)]
    task: Option<MigrateTask>,
    #[command(flatten)]
    hub: OfHub,
}

/// What else there is to do with the schema.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
enum MigrateTask {
    /// Show the version of the schema, and exit with 1 if migrations are missing
    Status(OfHub),
}

pub fn commands() -> Vec<JobCommand> {
    let hub = |command: HubCommand, jobs: &JobList| {
        Ok(match command.task {
            None => Order::Run(Box::new(alone(config::environment(), *jobs)?)),
            Some(HubTask::RotateKey { check, hub }) => {
                hub.on(*jobs, move |hub, output| rotate_key(hub, check, output).boxed())?
            }
            Some(HubTask::Renumber(hub)) => hub.on(*jobs, |hub, output| renumber(hub, output).boxed())?,
        })
    };
    let migrate = |command: MigrateCommand, jobs: &JobList| match command.task {
        None => command.hub.on(*jobs, |hub, output| migrate(hub, output).boxed()),
        Some(MigrateTask::Status(hub)) => hub.on(*jobs, |hub, output| status(hub, output).boxed()),
    };
    let mut commands = vec![
        JobCommand::new("hub", "Run the hub alone, or with syncsets, configured by the environment", hub)
            .after_help(VARIABLES),
        JobCommand::new("migrate", "Bring the schema of the hub's database up to date", migrate)
            .after_help(MIGRATE_VARIABLES),
    ];
    commands.extend(client::commands());
    commands.push(super::history::command());
    commands
}

impl OfHub {
    fn on(
        self,
        jobs: JobList,
        task: impl FnOnce(HubConfig, Output) -> BoxFuture<'static, Exit>,
    ) -> Result<Order, Error> {
        let config = match &self.config {
            Some(file) => jobs.load(file)?,
            None => alone(config::environment(), jobs)?,
        };
        Ok(Order::Task(if let Some(section) = section(&config).cloned() {
            task(section, self.format.output)
        } else {
            complain("the configuration has no [hub]");
            async { Exit::Usage }.boxed()
        }))
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Exit {
    complain(&full_text(error));
    Exit::Failed
}

async fn migrate(config: HubConfig, output: Output) -> Exit {
    let database = documents::open(config.database);
    let migrating = documents::migrate(&database, MIGRATE_WITHIN);
    match telling(&format!("migrating database {}", database.place()), migrating).await {
        Ok(migrated) => {
            let (place, before) = (database.place(), migrated.before);
            let (pending, known) = (before.pending(), before.known);
            let line = if before.is_newer() {
                let (release, applied) = (&before.release, before.applied);
                format!(
                    "database {place}: towline {release} has brought the schema to {applied}, this release knows {known} and may use it"
                )
            } else {
                format!("database {place}: {pending} migrations applied, the schema is at {known}")
            };
            let document = json!({"database": place, "migrated": pending, "applied": before.applied.max(known),
                "known": known});
            output.print(&document, &[place], &[line]);
            Exit::Done
        }
        Err(error) => failed(&error),
    }
}

async fn status(config: HubConfig, output: Output) -> Exit {
    let database = documents::open(config.database);
    match SCHEMA.status(&database).await {
        Ok(status) => {
            let (place, Status { applied, known, oldest, release }) = (database.place(), &status);
            let mut lines =
                vec![format!("database {place}: the schema is at migration {applied}, this release knows {known}")];
            if *applied > 0 {
                lines.push(format!("applied by towline {release}, for releases that know migration {oldest}"));
            }
            let is_usable = status.pending() == 0 && status.clone().check().is_ok();
            let document = json!({"database": place, "applied": applied, "known": known, "oldest": oldest,
                "release": release, "usable": is_usable});
            output.print(&document, &[place], &lines);
            if is_usable { Exit::Done } else { Exit::Failed }
        }
        Err(error) => failed(&error),
    }
}

async fn renumber(config: HubConfig, output: Output) -> Exit {
    let database = documents::open(config.database);
    match documents::renumber(&database, true).await {
        Ok(base) => {
            let base = base.unwrap_or_default();
            let line = format!("further versions are above {base}");
            output.print(&json!({"versionsAbove": base}), &[database.place()], &[line]);
            Exit::Done
        }
        Err(error) => failed(&error),
    }
}

async fn rotate_key(config: HubConfig, check: bool, output: Output) -> Exit {
    let Some(keys) = config.keys() else {
        complain("`keys_file` of [hub] is required (TOWLINE__HUB__KEYS_FILE): the file with the keys");
        return Exit::Usage;
    };
    if let Some(fault) = keys.fault().borrow().as_deref() {
        return failed(fault);
    }
    let keyring = Arc::clone(&keys.content().borrow());
    let database = documents::open(config.database);
    let (mut is_done, mut rotated_fields, mut lines) = (true, 0, Vec::new());
    if !check {
        match rotate::rotate(&database, &keyring).await {
            Ok(rotated) => {
                rotated_fields = rotated.fields;
                lines.push(format!("{} encrypted again", rotate::sealed_fields(rotated.fields)));
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
        lines.push(format!("{} {verb} {}", rotate::sealed_fields(*count), if key.is_empty() { "no key" } else { key }));
    }
    let document = json!({"encryptedAgain": rotated_fields, "fieldsByKey": counts});
    let names: Vec<String> = counts.keys().filter(|key| !key.is_empty()).cloned().collect();
    output.print(&document, &names, &lines);
    if is_done && counts.keys().all(|key| *key == wanted) { Exit::Done } else { Exit::Failed }
}

// `towline hub`: the configuration of the hub, and of syncsets if they are asked for, from the environment.

/// The variable with the database, as libpq's keywords or as a URL.
const POSTGRES_PARAMS: &str = "POSTGRES_PARAMS";
/// The variable with the message broker's URL. It is used unless `TOWLINE__HUB__BUS` says otherwise.
const AMQP_URL: &str = "AMQP_URL";
/// The section that applies syncsets, and the variable by which Hive's controllers are told how often.
const SYNCSETS: &str = "syncsets";
const REAPPLY_INTERVAL: &str = "SYNCSET_REAPPLY_INTERVAL";

/// Reads the configuration of the hub: `POSTGRES_PARAMS`, `AMQP_URL`, `TOWLINE__HUB__…` and `TOWLINE__DAEMON__…`, which override it. With
/// `SYNCSET_REAPPLY_INTERVAL` (a Go duration) or `TOWLINE__SYNCSETS__…`, which override it, `[syncsets]` runs beside it.
pub fn alone(environment: impl IntoIterator<Item = (String, String)>, jobs: JobList) -> Result<Config, Error> {
    let mut environment = Environment::read(environment, &[HUB, SYNCSETS])?;
    environment.require(HUB, ("database_url", "database_url_file"), POSTGRES_PARAMS, DatabaseUrl::ALLOWED);
    if !environment.has(HUB, &["amqp_url", "amqp_url_file"]) && environment.variable(AMQP_URL).is_some() {
        environment.set(HUB, "amqp_url", AMQP_URL);
        environment.set_default(HUB, "bus", "amqp");
    }
    environment.set_duration(SYNCSETS, "reapply_interval", REAPPLY_INTERVAL, false, "2h0m0s");
    environment.walk(|root, faults| jobs.walk(root, faults))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::section;
    use super::*;
    use crate::hub::config::Bus;
    use crate::jobs::JOBS;
    use crate::syncset;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        alone(variables, JOBS).map_err(|error| match error {
            Error::Invalid(faults) => faults.as_slice().iter().map(ToString::to_string).collect(),
            other => panic!("{other:?}"),
        })
    }

    const PARAMS: (&str, &str) = ("POSTGRES_PARAMS", "host=db port=5433 dbname=hub user=me password=hunter2");

    #[test]
    fn the_database_is_all_that_has_to_be_told() {
        let config = read(&[PARAMS, ("TOWLINE__SYNC__OTHER__DRY_RUN", "true")]).expect("a configuration");
        let found = section(&config).expect("the section");
        assert_eq!(found.database.url().expect("a URL").place(), "db:5433/hub");
        assert_eq!(found.listen.expect("an address").to_string(), "127.0.0.1:7070");
        assert_eq!(config.sections().count(), 1);
        let with_keys =
            read(&[PARAMS, ("TOWLINE__HUB__LISTEN", "127.0.0.1:3"), ("TOWLINE__DAEMON__LISTEN", "127.0.0.1:4")]);
        let config = with_keys.expect("a configuration");
        assert_eq!(
            (section(&config).expect("the section").listen.expect("an address").port(), config.daemon.listen.port()),
            (3, 4)
        );
        let file = read(&[PARAMS, ("TOWLINE__HUB__DATABASE_URL_FILE", "/url")]).expect("a configuration");
        assert_eq!(section(&file).expect("the section").database, crate::db::DatabaseSource::File("/url".into()));
    }

    #[test]
    fn a_broker_is_used_as_soon_as_it_is_told_and_unless_the_bus_says_otherwise() {
        let bus = |variables: &[(&str, &str)]| {
            let config = read(&[&[PARAMS], variables].concat()).expect("a configuration");
            let section = section(&config).expect("the section");
            (section.bus, section.amqp.as_ref().map(crate::amqp::AmqpSource::place))
        };
        let url = ("AMQP_URL", "amqp://me:hunter2@broker/x");
        let place = Some("broker:5672/x".to_owned());
        assert_eq!(bus(&[]), (Bus::Postgres, None));
        assert_eq!(bus(&[url]), (Bus::Amqp, place.clone()));
        assert_eq!(bus(&[url, ("TOWLINE__HUB__BUS", "postgres")]), (Bus::Postgres, place));
        let faults = read(&[PARAMS, ("AMQP_URL", "ampq://me:hunter2@broker")]).expect_err("a fault");
        assert!(faults.len() == 1 && faults[0].starts_with("AMQP_URL: "), "{faults:?}");
        assert!(!faults[0].contains("hunter2"), "{faults:?}");
    }

    #[test]
    fn one_variable_of_syncsets_makes_them_run_beside_the_hub() {
        assert!(syncset::section(&read(&[PARAMS]).expect("a configuration")).is_none());
        assert!(syncset::section(&read(&[PARAMS, (REAPPLY_INTERVAL, "")]).expect("a configuration")).is_none());
        let hours = |variables: &[(&str, &str)]| {
            let config = read(&[&[PARAMS], variables].concat()).expect("a configuration");
            assert_eq!(config.sections().map(ToString::to_string).collect::<Vec<_>>(), ["hub", "syncsets"]);
            let found = syncset::section(&config).expect("the section").clone();
            (found.reapply_interval, found.max_in_flight.get())
        };
        let hour = Duration::from_hours(1);
        assert_eq!(hours(&[(REAPPLY_INTERVAL, "3h0m0s")]), (3 * hour, 64));
        assert_eq!(hours(&[("TOWLINE__SYNCSETS__MAX_IN_FLIGHT", "5")]), (2 * hour, 5));
        let both = [(REAPPLY_INTERVAL, "3h0m0s"), ("TOWLINE__SYNCSETS__REAPPLY_INTERVAL", "4h")];
        assert_eq!(hours(&both), (4 * hour, 64));
        for wrong in ["2", "-1h", "0s", "2 hours"] {
            let faults = read(&[PARAMS, (REAPPLY_INTERVAL, wrong)]).expect_err("a fault");
            assert_eq!(
                faults,
                [format!("{REAPPLY_INTERVAL}: found {wrong:?}; allowed: a Go duration above zero such as 2h0m0s")]
            );
        }
        let faults = read(&[PARAMS, ("TOWLINE__SYNCSETS__ALLOWS", "a")]).expect_err("a fault");
        assert!(faults.len() == 1 && faults[0].starts_with("syncsets.allows: unknown key"), "{faults:?}");
    }

    #[test]
    fn a_fault_names_the_variable_and_no_password() {
        let faults = read(&[("POSTGRES_PARAMS", "host=db pasword=hunter2")]).expect_err("a fault");
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("POSTGRES_PARAMS: ") && !faults[0].contains("hunter2"), "{faults:?}");
        let faults = read(&[("TOWLINE__HUB__LISTN", "a")]).expect_err("faults");
        assert!(
            faults[0].starts_with("POSTGRES_PARAMS: missing") && faults[1].starts_with("hub.listn: "),
            "{faults:?}"
        );
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}

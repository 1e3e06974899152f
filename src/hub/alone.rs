//! `towline hub`: the configuration of the hub, and of syncsets if they are asked for, from the environment.

use super::config::HUB;
use crate::config::fault::Error;
use crate::config::setting::Setting;
use crate::db::DatabaseUrl;
use crate::job::{Config, Environment, JobList};

/// Whose value is the database, as libpq's keywords or as a URL.
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

    use super::super::bus::Bus;
    use super::super::job::section;
    use super::*;
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

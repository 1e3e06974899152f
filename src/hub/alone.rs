//! `towline hub`: the configuration of the hub alone, from the environment.

use std::collections::BTreeMap;

use super::config::HUB;
use super::job::HubJob;
use crate::config::fault::{Error, Fault, Faults, Problem};
use crate::config::setting::Setting;
use crate::config::source::{self, Node};
use crate::db::DatabaseUrl;
use crate::job::Config;

/// Whose value is the database, as libpq's keywords or as a URL.
const POSTGRES_PARAMS: &str = "POSTGRES_PARAMS";
/// The prefixes of Towline's own variables that are read as well: keys of the process and of the section.
const OWN: [&str; 2] = ["TOWLINE__DAEMON__", "TOWLINE__HUB__"];

/// Reads the configuration of the hub alone: `POSTGRES_PARAMS`, `TOWLINE__HUB__…` and `TOWLINE__DAEMON__…`, which override it.
pub fn alone(environment: impl IntoIterator<Item = (String, String)>) -> Result<Config, Error> {
    let variables: BTreeMap<String, String> = environment.into_iter().collect();
    let given = variables.get(POSTGRES_PARAMS).filter(|value| !value.is_empty()).cloned();
    let own = variables.into_iter().filter(|(name, _)| OWN.iter().any(|prefix| name.starts_with(prefix)));
    let mut faults = Vec::new();
    let mut root = source::read("", own, &[], &mut faults)?;
    let mut section = match root.remove(HUB) {
        Some(Node::Table(table)) => table,
        _ => BTreeMap::new(),
    };
    let has_database = section.contains_key("database_url") || section.contains_key("database_url_file");
    let is_given = given.is_some() && !has_database;
    match given.filter(|_| !has_database) {
        Some(value) => drop(section.insert("database_url".to_owned(), Node::Text(value))),
        None if has_database => {}
        None => {
            faults.push(Fault::new(POSTGRES_PARAMS, Problem::Missing { allowed: DatabaseUrl::ALLOWED.to_owned() }));
            // A placeholder: without it, the section would report the same fault again.
            section.insert("database_url_file".to_owned(), Node::Text("none".to_owned()));
        }
    }
    root.insert(HUB.to_owned(), Node::Table(section));
    let mut walked = Vec::new();
    let config = Config::walk(root, &[&HubJob], &mut walked);
    // A fault names the variable that the user has set.
    faults.extend(walked.into_iter().map(|fault| match fault.path.as_str() {
        "hub.database_url" if is_given => Fault::new(POSTGRES_PARAMS, fault.problem),
        _ => fault,
    }));
    Faults::new(faults).into_result()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::super::job::section;
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        alone(variables).map_err(|error| match error {
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

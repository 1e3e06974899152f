//! The configuration of a job alone, from the variables of the component that it replaces. Towline's own variables override those.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Config;
use crate::config::fault::{Error, Fault, Faults, Problem};
use crate::config::go_duration::go_duration;
use crate::config::source::{self, Node};

/// The keys of the process, which are read with those of each section.
const DAEMON: &str = "daemon";

/// What the environment says so far.
pub struct Environment {
    variables: BTreeMap<String, String>,
    root: BTreeMap<String, Node>,
    /// The variable of the component by which a key is set: faults name what the user has written.
    set_by: BTreeMap<String, &'static str>,
    faults: Vec<Fault>,
}

impl Environment {
    /// Reads Towline's own variables of the process and of these sections: `TOWLINE__DAEMON__…`, `TOWLINE__HUB__…`.
    pub fn read(
        variables: impl IntoIterator<Item = (String, String)>,
        sections: &[&'static str],
    ) -> Result<Self, Error> {
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        let prefixes: Vec<String> =
            sections.iter().chain([&DAEMON]).map(|key| format!("TOWLINE__{}__", key.to_uppercase())).collect();
        let is_own = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let own = variables.clone().into_iter().filter(|(name, _)| is_own(name));
        let mut faults = Vec::new();
        let root = source::read("", own, &[], &mut faults)?;
        Ok(Self { variables, root, set_by: BTreeMap::new(), faults })
    }

    /// The value of a variable, unless it is empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// Whether one of these keys is set.
    pub fn has(&self, section: &str, keys: &[&str]) -> bool {
        match self.root.get(section) {
            Some(Node::Table(table)) => keys.iter().any(|key| table.contains_key(*key)),
            _ => false,
        }
    }

    /// Sets a key that is not set.
    pub fn set_default(&mut self, section: &str, key: &str, value: &str) {
        if let Node::Table(table) = self.root.entry(section.to_owned()).or_insert_with(|| Node::Table(BTreeMap::new()))
        {
            table.entry(key.to_owned()).or_insert_with(|| Node::Text(value.to_owned()));
        }
    }

    /// Where the admin server listens if nothing is said.
    pub fn listen_by_default(&mut self, address: &str) {
        self.set_default(DAEMON, "listen", address);
    }

    /// Sets a key by a variable if that has a value and the key is not set.
    pub fn set(&mut self, section: &str, key: &str, by: &'static str) {
        if let Some(value) = self.variable(by).filter(|_| !self.has(section, &[key])) {
            self.set_default(section, key, &value);
            self.name_faults(section, key, by);
        }
    }

    /// Sets a key by a variable, unless it is set or the key that names a file with its value. Reports it if none of the three is.
    pub fn require(&mut self, section: &str, (key, file): (&str, &str), by: &'static str, allowed: &str) {
        if !self.has(section, &[key, file]) {
            self.set(section, key, by);
        }
        if !self.has(section, &[key, file]) {
            self.report_missing(by, allowed, (section, file));
        }
    }

    /// Sets a key by a variable with a Go duration if that has a value and the key is not set. A faulty one is reported in any case.
    pub fn set_duration(&mut self, section: &str, key: &str, by: &'static str, takes_zero: bool, example: &str) {
        let Some(text) = self.variable(by) else { return };
        let Some(duration) = go_duration(&text).filter(|duration| takes_zero || *duration > Duration::ZERO) else {
            let least = if takes_zero { "" } else { " above zero" };
            let allowed = format!("a Go duration{least} such as {example}");
            self.faults.push(Fault::new(by, Problem::Value { found: format!("{text:?}"), allowed, suggestion: None }));
            return;
        };
        if !self.has(section, &[key]) {
            self.set_default(section, key, &humantime::format_duration(duration).to_string());
            self.name_faults(section, key, by);
        }
    }

    /// Faults of this key name the variable.
    pub fn name_faults(&mut self, section: &str, key: &str, variable: &'static str) {
        self.set_by.insert(format!("{section}.{key}"), variable);
    }

    /// A variable has to be set. The key gets a placeholder: without it, the section would report the same fault again.
    pub fn report_missing(&mut self, variable: &'static str, allowed: &str, (section, key): (&str, &str)) {
        self.faults.push(Fault::new(variable, Problem::Missing { allowed: allowed.to_owned() }));
        self.set_default(section, key, "none");
    }

    /// The configuration, or all faults of it.
    pub fn walk(
        mut self,
        walk: impl FnOnce(BTreeMap<String, Node>, &mut Vec<Fault>) -> Config,
    ) -> Result<Config, Error> {
        let mut walked = Vec::new();
        let config = walk(self.root, &mut walked);
        self.faults.extend(walked.into_iter().map(|fault| match self.set_by.get(&fault.path) {
            Some(name) => Fault::new(*name, fault.problem),
            None => fault,
        }));
        Faults::new(self.faults).into_result()?;
        Ok(config)
    }
}

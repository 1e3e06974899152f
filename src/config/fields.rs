//! Reads a table key by key and collects all faults instead of stopping at the first one.

use std::collections::BTreeMap;

use super::fault::{Fault, Problem, nearest};
use super::setting::{Setting, Unfit, record};
use super::source::Node;

/// Reads a value that must be a table.
pub fn table(node: Node, path: &str, faults: &mut Vec<Fault>) -> Option<BTreeMap<String, Node>> {
    match node {
        Node::Table(table) => Some(table),
        other => record(Err(Unfit::default()), "a table", &other, path, faults),
    }
}

/// A table that is being read. [`Fields::finish`] reports the keys that were not read as unknown.
pub struct Fields<'f> {
    path: String,
    table: BTreeMap<String, Node>,
    known: Vec<&'static str>,
    faults: &'f mut Vec<Fault>,
}

impl<'f> Fields<'f> {
    /// Starts with a value that must be a table.
    pub fn open(path: &str, node: Node, faults: &'f mut Vec<Fault>) -> Option<Self> {
        let table = table(node, path, faults)?;
        Some(Self::of(path, table, faults))
    }

    /// Starts with a table; the path of the document's root is empty.
    pub fn of(path: &str, table: BTreeMap<String, Node>, faults: &'f mut Vec<Fault>) -> Self {
        Self { path: path.to_owned(), table, known: Vec::new(), faults }
    }

    /// Takes the value of a key, of any type.
    pub fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        self.table.remove(key)
    }

    /// Whether the key is present and has not been taken.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The number of faults recorded so far.
    pub fn faults(&self) -> usize {
        self.faults.len()
    }

    /// Records a fault of the table as a whole.
    pub fn fault(&mut self, problem: Problem) {
        self.faults.push(Fault::new(self.path.clone(), problem));
    }

    /// Records a fault of one key.
    pub fn fault_at(&mut self, key: &str, problem: Problem) {
        self.faults.push(Fault::new(self.path_of(key), problem));
    }

    /// The path of a key of this table.
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub fn optional<T: Setting>(&mut self, key: &'static str) -> Option<T> {
        let node = self.take(key)?;
        let path = self.path_of(key);
        T::read(&node, &path, self.faults)
    }

    pub fn required<T: Setting>(&mut self, key: &'static str) -> Option<T> {
        if !self.has(key) {
            let problem = Problem::Missing { allowed: T::ALLOWED.to_owned() };
            self.faults.push(Fault::new(self.path_of(key), problem));
        }
        self.optional(key)
    }

    /// Replaces a default if the key is present.
    pub fn set<T: Setting>(&mut self, key: &'static str, target: &mut T) {
        self.set_as::<T, T>(key, target);
    }

    /// Replaces a default by a value that is read as a narrower type.
    pub fn set_as<S: Setting + Into<T>, T>(&mut self, key: &'static str, target: &mut T) {
        if let Some(value) = self.optional::<S>(key) {
            *target = value.into();
        }
    }

    pub fn nested(&mut self, key: &'static str) -> Option<Fields<'_>> {
        let node = self.take(key)?;
        let path = self.path_of(key);
        Fields::open(&path, node, self.faults)
    }

    /// Reports the keys that have not been taken as unknown. A key that is missing since it is misspelled is one fault.
    pub fn finish(self) {
        for (key, node) in &self.table {
            let suggestion = nearest(key, self.known.iter().copied());
            if let Some(meant) = suggestion.as_ref().map(|meant| self.path_of(meant)) {
                self.faults.retain(|fault| fault.path != meant || !matches!(fault.problem, Problem::Missing { .. }));
            }
            let variable = node.variable().map(str::to_owned);
            let problem = Problem::UnknownKey { variable, allowed: self.known.clone(), suggestion };
            self.faults.push(Fault::new(self.path_of(key), problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_key_is_not_missing_too() {
        let mut faults = Vec::new();
        let table = BTreeMap::from([("remot".to_owned(), Node::Text("hub".to_owned()))]);
        let mut fields = Fields::of("sync[0]", table, &mut faults);
        assert_eq!((fields.required::<String>("remote"), fields.required::<String>("local")), (None, None));
        fields.finish();
        let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert!(told.len() == 2 && told[0].starts_with("sync[0].local: missing"), "{told:?}");
        assert!(told[1].starts_with("sync[0].remot: unknown key; did you mean `remote`?"), "{told:?}");
    }

    #[test]
    fn an_unknown_key_is_a_fault_and_its_value_is_not_repeated() {
        let mut faults = Vec::new();
        let table = BTreeMap::from([("lisen".to_owned(), Node::Text("hunter2".to_owned()))]);
        let mut fields = Fields::of("daemon", table, &mut faults);
        assert_eq!(fields.optional::<String>("listen"), None);
        fields.finish();
        let told = faults.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told, vec!["daemon.lisen: unknown key; did you mean `listen`?; allowed: listen"]);
    }
}

//! The sources of values: the TOML file, overridden by environment variables.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use config::{Environment, File, FileFormat, Source, Value, ValueKind};

use super::fault::{Error, Fault, Problem, nearest};

/// Prefix of the variables that are read, without the separator.
const PREFIX: &str = "TOWLINE";
/// Separates the parts of a variable's name; a single `_` is part of a key.
const SEPARATOR: &str = "__";

/// A value from the file or the environment.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    /// An environment variable. It has no type: it is parsed as the type of its key.
    Variable {
        name: String,
        value: String,
    },
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

impl Node {
    /// The environment variable that the value comes from; of a table that comes from variables alone, the first one.
    pub fn variable(&self) -> Option<&str> {
        match self {
            Self::Variable { name, .. } => Some(name),
            Self::Table(table) => {
                let mut variables = table.values().map(Self::variable);
                let first = variables.next()?;
                if variables.all(|variable| variable.is_some()) { first } else { None }
            }
            Self::Bool(_) | Self::Integer(_) | Self::Float(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    /// The text, from either source.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Variable { value: text, .. } => Some(text),
            Self::Bool(_) | Self::Integer(_) | Self::Float(_) | Self::List(_) | Self::Table(_) => None,
        }
    }
}

/// The value as faults show it. Lists and tables are named by type only, since they may be long.
impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(formatter, "{value}"),
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{value}"),
            Self::Text(text) => write!(formatter, "{text:?}"),
            Self::Variable { name, value } => write!(formatter, "{value:?} (from {name})"),
            Self::List(_) => formatter.write_str("a list"),
            Self::Table(_) => match self.variable() {
                Some(name) => write!(formatter, "a table (from {name})"),
                None => formatter.write_str("a table"),
            },
        }
    }
}

/// Reads the file's text and overrides it with environment variables. A variable for a section that does not exist is a
/// fault. `lists`: the keys whose value is a list of named sections.
pub fn read(
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
    lists: &[&str],
    faults: &mut Vec<Fault>,
) -> Result<BTreeMap<String, Node>, Error> {
    let file = File::from_str(text, FileFormat::Toml);
    let file = file.collect().map_err(|source| Error::Parse { source })?;
    let mut root: BTreeMap<String, Node> = file.into_iter().map(|(key, value)| (key, node(value))).collect();

    let variables: HashMap<String, String> = environment.into_iter().collect();
    let variables = Environment::with_prefix(PREFIX)
        .prefix_separator(SEPARATOR)
        .separator(SEPARATOR)
        .source(Some(variables))
        .collect()
        .map_err(|source| Error::Parse { source })?;
    // Sorted, so that the result does not depend on the hash map's order.
    let variables: BTreeMap<String, Value> = variables.into_iter().collect();
    for (key, value) in variables {
        if let ValueKind::String(value) = value.kind {
            overlay(&mut root, &key, value, lists, faults);
        }
    }
    Ok(root)
}

fn node(value: Value) -> Node {
    match value.kind {
        ValueKind::Nil => Node::Text(String::new()),
        ValueKind::Boolean(value) => Node::Bool(value),
        ValueKind::I64(value) => Node::Integer(value.into()),
        ValueKind::U64(value) => Node::Integer(value.into()),
        ValueKind::I128(value) => Node::Integer(value),
        ValueKind::U128(value) => i128::try_from(value).map_or_else(|_| Node::Text(value.to_string()), Node::Integer),
        ValueKind::Float(value) => Node::Float(value),
        ValueKind::String(value) => Node::Text(value),
        ValueKind::Table(table) => Node::Table(table.into_iter().map(|(key, value)| (key, node(value))).collect()),
        ValueKind::Array(list) => Node::List(list.into_iter().map(node).collect()),
    }
}

/// Inserts one variable at the path that its name spells. `key` is lower case, its parts are separated by dots.
fn overlay(root: &mut BTreeMap<String, Node>, key: &str, value: String, lists: &[&str], faults: &mut Vec<Fault>) {
    let name = format!("{PREFIX}{SEPARATOR}{}", key.replace('.', SEPARATOR).to_uppercase());
    let parts: Vec<&str> = key.split('.').collect();
    let variable = Node::Variable { name: name.clone(), value };
    match parts.as_slice() {
        ["clusters", cluster, rest @ ..] if !rest.is_empty() => {
            within(root, "clusters", |clusters| {
                let present = clusters.keys().find(|present| as_variable(present) == *cluster);
                let cluster = present.cloned().unwrap_or_else(|| cluster.replace('_', "-"));
                within(clusters, &cluster, |table| insert(table, rest, variable));
            });
        }
        [list, section, rest @ ..] if !rest.is_empty() && lists.contains(list) => {
            match section_named(root, list, section) {
                Ok(table) => insert(table, rest, variable),
                Err(problem) => faults.push(Fault::new(name, problem)),
            }
        }
        parts => insert(root, parts, variable),
    }
}

/// The table of a list of named sections whose `name` is `wanted`, as a variable spells it.
fn section_named<'r>(
    root: &'r mut BTreeMap<String, Node>,
    list: &str,
    wanted: &str,
) -> Result<&'r mut BTreeMap<String, Node>, Problem> {
    let mut present = Vec::new();
    if let Some(Node::List(sections)) = root.get_mut(list) {
        for section in sections {
            if let Node::Table(table) = section {
                let Some(name) = table.get("name").and_then(Node::text) else {
                    continue;
                };
                if as_variable(name) == wanted {
                    return Ok(table);
                }
                present.push(name.to_owned());
            }
        }
    }
    let suggestion = nearest(wanted, present.iter().map(String::as_str));
    Err(Problem::UnknownSection { present, suggestion })
}

/// A name as variables spell it, in lower case.
fn as_variable(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

fn insert(table: &mut BTreeMap<String, Node>, path: &[&str], value: Node) {
    match path {
        [] => {}
        [key] => {
            table.insert((*key).to_owned(), value);
        }
        [key, rest @ ..] => within(table, key, |inner| insert(inner, rest, value)),
    }
}

/// Changes the table at a key, which is created if missing. A value that is not a table is replaced: variables override.
fn within(table: &mut BTreeMap<String, Node>, key: &str, change: impl FnOnce(&mut BTreeMap<String, Node>)) {
    let mut inner = match table.remove(key) {
        Some(Node::Table(inner)) => inner,
        Some(_) | None => BTreeMap::new(),
    };
    change(&mut inner);
    table.insert(key.to_owned(), Node::Table(inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(text: &str, variables: &[(&str, &str)]) -> (BTreeMap<String, Node>, Vec<Fault>) {
        let mut faults = Vec::new();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let root = read(text, variables, &["sync"], &mut faults).expect("the text is TOML");
        (root, faults)
    }

    fn at<'n>(root: &'n BTreeMap<String, Node>, path: &[&str]) -> &'n Node {
        let mut node = &root[path[0]];
        for part in &path[1..] {
            node = match node {
                Node::Table(table) => &table[*part],
                Node::List(list) => &list[part.parse::<usize>().expect("an index")],
                other => panic!("{other} has no {part}"),
            };
        }
        node
    }

    #[test]
    fn the_environment_lies_over_the_file_and_leaves_the_rest() {
        let text = "[daemon]\nlisten = \"127.0.0.1:1\"\nshutdown_grace = \"2s\"\n";
        let (root, faults) =
            read_with(text, &[("TOWLINE__DAEMON__LISTEN", "127.0.0.1:3"), ("TOWLINE_CONFIG", "x"), ("PATH", "y")]);
        assert_eq!(faults, vec![]);
        assert_eq!(at(&root, &["daemon", "listen"]).text(), Some("127.0.0.1:3"));
        assert_eq!(at(&root, &["daemon", "shutdown_grace"]).text(), Some("2s"));
        assert_eq!(root.len(), 1);
    }

    #[test]
    fn variables_reach_nested_tables_that_the_file_does_not_have() {
        let (root, _) = read_with("", &[("TOWLINE__DAEMON__LOG__FORMAT", "json")]);
        assert_eq!(at(&root, &["daemon", "log", "format"]).to_string(), "\"json\" (from TOWLINE__DAEMON__LOG__FORMAT)");
    }

    #[test]
    fn a_variable_below_a_key_that_is_no_table_is_named() {
        let (root, _) = read_with("[daemon]\nlisten = \"a\"\n", &[("TOWLINE__DAEMON__LISTEN__PORT", "1")]);
        assert_eq!(at(&root, &["daemon", "listen"]).to_string(), "a table (from TOWLINE__DAEMON__LISTEN__PORT)");
        assert_eq!(Node::Table(BTreeMap::new()).to_string(), "a table");
        let (root, _) = read_with("[daemon.listen]\nhost = \"a\"\n", &[("TOWLINE__DAEMON__LISTEN__PORT", "1")]);
        assert_eq!(at(&root, &["daemon", "listen"]).to_string(), "a table", "the file alone has a table there");
    }

    #[test]
    fn clusters_and_sections_are_found_by_name_whatever_its_dashes() {
        let text = "[clusters.eu-west]\ncontext = \"a\"\n[[sync]]\nname = \"one\"\n[[sync]]\nname = \"two-b\"\n";
        let (root, faults) = read_with(
            text,
            &[
                ("TOWLINE__CLUSTERS__EU_WEST__KUBECONFIG", "k"),
                ("TOWLINE__CLUSTERS__US_EAST__KUBECONFIG", "u"),
                ("TOWLINE__SYNC__TWO_B__DRY_RUN", "true"),
            ],
        );
        assert_eq!(faults, vec![]);
        assert_eq!(at(&root, &["clusters", "eu-west", "kubeconfig"]).text(), Some("k"));
        assert_eq!(at(&root, &["clusters", "eu-west", "context"]).text(), Some("a"));
        assert_eq!(at(&root, &["clusters", "us-east", "kubeconfig"]).text(), Some("u"));
        assert_eq!(at(&root, &["sync", "1", "dry_run"]).text(), Some("true"));
    }

    #[test]
    fn a_variable_for_a_section_that_is_not_there_is_a_fault() {
        let (_, faults) =
            read_with("[[sync]]\nname = \"databases\"\n", &[("TOWLINE__SYNC__DATABASE__DRY_RUN", "true")]);
        assert_eq!(
            faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
            vec![
                "TOWLINE__SYNC__DATABASE__DRY_RUN: no section of this name; there are: databases; did you mean `databases`?"
            ]
        );
    }

    #[test]
    fn text_that_is_not_toml_is_an_error_that_names_the_line() {
        let error = read("[daemon]\nlisten = \n", [], &[], &mut Vec::new()).expect_err("not TOML");
        let source = std::error::Error::source(&error).expect("a source").to_string();
        assert!(source.contains("line 2"), "{source}");
    }
}

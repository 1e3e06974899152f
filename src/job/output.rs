//! How commands print what they have read: one option and one set of formats for all of them, and tables for people.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::check::say;
use super::command::complain;
use crate::config::text::{escaped, one_line};
use crate::status::brief;

/// The placeholder of an empty cell.
pub const NOTHING: &str = "-";
const GAP: &str = "   ";

/// The option of a command that prints what it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Format {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for people
    #[default]
    Table,
    /// Tables with further columns, and nothing shortened
    Wide,
    /// The whole answer as JSON
    Json,
    /// The whole answer as YAML
    Yaml,
    /// Only the names, one a line
    Name,
}

impl Output {
    /// A document, in the formats that print it whole.
    pub fn document(self, document: &Value) -> Option<String> {
        match self {
            Self::Json => Some(escaped(&format!("{document:#}\n"))),
            Self::Yaml => Some(yaml(document)),
            Self::Table | Self::Wide | Self::Name => None,
        }
    }

    /// Prints an answer: the whole document, the names alone, or lines for people.
    pub fn print(self, document: &Value, names: &[String], lines: &[String]) {
        match (self.document(document), self) {
            // Further line breaks at its end may belong to a text.
            (Some(text), _) => say(text.strip_suffix('\n').unwrap_or(&text)),
            (None, Self::Name) => names.iter().for_each(|name| say(name)),
            (None, _) => lines.iter().for_each(|line| say(line)),
        }
    }
}

/// What a command did to one object after the other: people see each at once, and all of them are one document.
pub struct Results {
    output: Output,
    items: Vec<Value>,
}

impl Results {
    pub fn new(output: Output) -> Self {
        Self { output, items: Vec::new() }
    }

    pub fn add(&mut self, item: Value, name: &str, line: &str) {
        match self.output {
            Output::Table | Output::Wide => say(line),
            Output::Name => say(name),
            Output::Json | Output::Yaml => {}
        }
        self.items.push(item);
    }

    /// Adds one that failed, of which people read on standard error.
    pub fn add_failed(&mut self, item: Value, complaint: &str) {
        complain(complaint);
        self.items.push(item);
    }

    /// Prints the document, with what else there is to say of all of them, or that as lines. Returns it.
    pub fn end(self, summary: Value, lines: &[String]) -> Value {
        let mut document = Map::from_iter([("items".to_owned(), Value::Array(self.items))]);
        if let Value::Object(summary) = summary {
            document.extend(summary);
        }
        let whole = Value::Object(document);
        self.output.print(&whole, &[], lines);
        whole
    }
}

/// A table with these headings; empty if it has no rows.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut all = vec![headings.iter().map(|heading| (*heading).to_owned()).collect()];
    all.extend(rows);
    if all.len() > 1 { aligned(&all) } else { String::new() }
}

/// Pads each column to its widest cell.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    rows.iter().fold(String::new(), |text, row| text + &padded(row, &widths) + "\n")
}

pub fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    (0..columns).map(|column| width(column).unwrap_or_default()).collect()
}

/// A row with columns of these widths.
pub fn padded(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
    cells.join(GAP).trim_end().to_owned()
}

/// A value as text, on one line.
pub fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => NOTHING.to_owned(),
        Some(Value::String(text)) => one_line(text),
        Some(other) => one_line(&other.to_string()),
    }
}

/// A text, or the placeholder.
pub fn or_nothing(text: &str) -> String {
    if text.is_empty() { NOTHING.to_owned() } else { text.to_owned() }
}

/// Seconds in their largest unit.
pub fn age(seconds: Option<&Value>) -> String {
    let seconds = seconds.and_then(Value::as_f64).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| NOTHING.to_owned(), brief)
}

/// A document as YAML, which readers of YAML 1.1 and 1.2 read alike.
#[expect(clippy::expect_used, reason = "values of JSON have no keys or numbers that YAML lacks")]
pub fn yaml(document: &Value) -> String {
    // Only what `Shown` makes a block is one.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text = serde_saphyr::to_string_with_options(&Shown(document), options).expect("JSON is YAML");
    // Empty lines of blocks are indented, and no other line has only blanks.
    let is_empty = |line: &str| line.trim_matches([' ', '\n']).is_empty();
    text.split_inclusive('\n').map(|line| if is_empty(line) { "\n" } else { line }).collect()
}

/// A value whose texts of several lines are blocks, as kubectl writes them. A text with blanks at its beginning or at the end of a line
/// is quoted: go-yaml can't read a block that begins with a tab, and nobody sees the others.
struct Shown<'v>(&'v Value);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_block = |text: &str| {
            text.contains('\n')
                && !text.starts_with(['\n', ' ', '\t'])
                && !text.lines().any(|line| line.ends_with([' ', '\t']))
        };
        match self.0 {
            Value::String(text) if is_block(text) => serde_saphyr::LitStr(text).serialize(serializer),
            Value::Array(elements) => serializer.collect_seq(elements.iter().map(Shown)),
            Value::Object(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, Shown(value)))),
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml;

    /// The document of a text, as the hub reads it.
    fn read(text: &str) -> Value {
        let read = yaml::documents::<yaml::Error>(text, &|_, _| Ok(()));
        let [document] = <[Value; 1]>::try_from(read.expect("YAML")).expect("one document");
        document
    }

    #[test]
    fn cells_begin_at_the_same_place_in_every_row() {
        let rows = [["a", "b"], ["└─ längere", "c"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "a            b\n└─ längere   c\n");
        assert_eq!(table(&["A"], []), "");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain(Some(&json!("a\u{1b}[31mb\r\nc"))), "a [31mb  c");
        let document = json!({"a\u{80}": "\u{1b}[31m\u{9b}31m\u{7f}\u{85}\n b\u{a0}ä\\u009b"});
        for output in [Output::Json, Output::Yaml] {
            let text = output.document(&document).expect("a document");
            assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
            assert_eq!(read(&text), document, "{text}");
        }
    }

    #[test]
    fn yaml_is_indented_as_kubectl_does_it() {
        let long = "x y ".repeat(50) + "x";
        let document = json!({"kind": "SyncSet", "labels": {}, "spec": {"clusters": [{"name": "a", "ports": [1, 2]}, "b", []],
            "text": "one\n\n  two\n", "mode": "0400", "long": long, "tail": "a\n\n\n", "tab": "\ta\nb"}});
        let expected = "\
kind: SyncSet
labels: {}
spec:
  clusters:
  - name: a
    ports:
    - 1
    - 2
  - b
  - []
  long: LONG
  mode: \"0400\"
  tab: \"\\ta\\nb\"
  tail: |+
    a


  text: |
    one

      two
";
        assert_eq!(yaml(&document), expected.replace("LONG", &long));
    }

    #[test]
    fn yaml_is_read_back_as_it_was() {
        let texts = [
            "",
            " ",
            "a",
            "a b",
            "a ",
            "-",
            "- a",
            "a: b",
            "a #b",
            "null",
            "NO",
            "y",
            "1",
            "0x1",
            "1e3",
            "1_000",
            "0400",
            "0o14",
            "1:30",
            "+.5",
            "~",
            ".nan",
            "=",
            "2026-01-01",
            "a\nb",
            "a\nb\n",
            "a\nb\n\n",
            "a\n\nb\n\n\n",
            "\ta\nb",
            "\n\ta\nb",
            "a\n\tb",
            "a\n \n\t\nb",
            "a\nb ",
            "- a\n# b\n--- c\n...",
            "\na\nb",
            " a\nb",
            "a\n  b\n",
            "a\tb\nc",
            "\"",
            "'",
            "\\",
            "ä",
            "\u{85}",
            "\u{7f}",
            "\u{2028}",
            "\u{feff}",
            "😀",
            "<<",
            "!a",
            "&a",
            "*a",
            "%",
            "@",
            "`",
            "{",
            "}",
            "[",
            "]",
            ",",
            "?",
            "|",
            ">",
            "a:",
            "a\r\nb",
            "\n",
        ];
        for text in texts {
            let document = json!({"a": text, "list": [text, [text], {text: text}], "object": {"nested": {text: [[], {}, null, 1, 1.5, true]}}});
            let written = yaml(&document);
            assert_eq!(read(&written), document, "{text:?}: {written}");
            assert!(!written.contains(" \n") && written.ends_with('\n'), "{written:?}");
            assert_eq!(read(&yaml(&json!(text))), json!(text));
        }
    }
}

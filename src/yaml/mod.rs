//! Reads YAML as Kubernetes' own programs do, so that a text means the same here as for kubectl.
//!
//! They decode YAML by `sigs.k8s.io/yaml`, which takes the types of YAML 1.1 (`0400` is 256, `yes` is true) and turns the result into
//! JSON: keys become strings, and a float that is whole becomes an integer. Libraries for Rust follow YAML 1.2, or mix the two. So
//! only the syntax is left to a parser, and what its events mean is decided here. Two things differ from kubectl: a key that occurs
//! twice is refused, where kubectl takes the last one, and so is a further document behind `...`, which kubectl ignores.

mod scalar;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use granit_parser::{Event, Parser, ScalarStyle, StrInput};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use scalar::Scalar;

/// Characters of a field's name that a place shows.
const NAME_SHOWN: usize = 64;
/// Most levels of lists and objects in what is read as a type.
const LEVELS: usize = 64;
/// What each value and key counts beside its text, where bytes are counted.
const EACH: usize = 100;
/// Characters that are shown of the path of a field.
const LONGEST_PATH: usize = 200;
const NO_KEY: &str = "a key that is no string, number or boolean";

/// A place in what is read. It is written out only for faults.
#[derive(Clone, Copy)]
pub enum Path<'p> {
    Root,
    Field(&'p Path<'p>, &'p str),
    Element(&'p Path<'p>, usize),
}

impl<'p> Path<'p> {
    #[must_use]
    pub fn field(&'p self, name: &'p str) -> Self {
        Self::Field(self, name)
    }

    #[must_use]
    pub fn element(&'p self, index: usize) -> Self {
        Self::Element(self, index)
    }
}

/// A JSON pointer (RFC 6901), in which names are cut: one may be as long as the text.
impl fmt::Display for Path<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(parent, name) => {
                let shown: String = name.chars().take(NAME_SHOWN).collect();
                let rest = if shown.len() < name.len() { "…" } else { "" };
                write!(formatter, "{parent}/{}{rest}", escape(&shown))
            }
            Self::Element(parent, index) => write!(formatter, "{parent}/{index}"),
        }
    }
}

/// A name as a segment of a JSON pointer.
pub fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The name of such a segment; none if a `~` is not followed by 0 or 1.
pub fn unescape(segment: &str) -> Option<String> {
    let is_escaped = segment.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    is_escaped.then(|| segment.replace("~1", "/").replace("~0", "~"))
}

/// A part of what is read.
#[derive(Clone, Copy)]
pub enum Part<'p> {
    /// A list or an object begins, below so many others.
    Level(usize),
    Element,
    Key {
        text: &'p str,
        /// Whether the object has had none.
        is_first: bool,
    },
    /// A value that is neither a list nor an object.
    Scalar(&'p Value),
    /// A value that is kept a second time, since aliases may repeat it.
    Anchored(&'p Value),
}

/// Counts a part, expanded aliases included, and may refuse to read on. It is called before more than the part itself is built.
pub type Count<'c, E> = &'c dyn Fn(&Path<'_>, Part<'_>) -> Result<(), E>;

/// Why a text can't be read. It names places and never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no YAML, or has what JSON can't have.
    #[error("the YAML can't be read at line {line} column {column}: {reason}")]
    Text {
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        reason: &'static str,
    },
    /// A field is of another type than it should be.
    #[error("`{field}` is of a wrong type")]
    Type {
        /// Its path: `users[0].user.token`.
        field: String,
    },
    /// There is nothing in it, or more than one document.
    #[error("the YAML has {0} documents")]
    Documents(usize),
    /// It has more parts than it may have.
    #[error("the YAML has too many parts")]
    TooLarge,
}

/// Reads the documents of a text. Those with nothing in them are null.
pub fn documents<E: From<Error>>(text: &str, count: Count<'_, E>) -> Result<Vec<Value>, E> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    parts(text).into_iter().map(|(first_line, part)| Reader::new(part, first_line, count).document()).collect()
}

/// Reads the documents of a text, JSON or YAML, as a type; those with nothing in them are left out. `most` is about how many bytes
/// may be built.
pub fn all<T: DeserializeOwned>(text: &str, most: usize) -> Result<Vec<T>, Error> {
    // Not every JSON is YAML (escapes of surrogates, tabs). What may have too many parts is counted below.
    let is_part = |byte: &u8| matches!(byte, b',' | b':' | b'[' | b'{');
    if text.trim_start().starts_with('{')
        && text.bytes().filter(is_part).count() <= most / EACH
        && let Ok(read) = serde_json::from_str(text)
    {
        return Ok(vec![read]);
    }
    let left = Cell::new(most);
    let values = documents(text, &|_, part| {
        let bytes = match part {
            Part::Level(level) if level >= LEVELS => usize::MAX,
            Part::Key { text, .. } => text.len().saturating_add(EACH),
            Part::Scalar(Value::String(text)) => text.len().saturating_add(EACH),
            Part::Anchored(_) => 0,
            _ => EACH,
        };
        left.set(left.get().checked_sub(bytes).ok_or(Error::TooLarge)?);
        Ok(())
    })?;
    let typed = |value| {
        serde_path_to_error::deserialize(value)
            .map_err(|error| Error::Type { field: error.path().to_string().chars().take(LONGEST_PATH).collect() })
    };
    values.into_iter().filter(|value| !value.is_null()).map(typed).collect()
}

/// Reads a text, JSON or YAML, that has one document.
pub fn one<T: DeserializeOwned>(text: &str, most: usize) -> Result<T, Error> {
    let mut read = all(text, most)?;
    match (read.pop(), read.len()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(Error::Documents(0)),
        (Some(_), others) => Err(Error::Documents(others + 1)),
    }
}

/// The documents of a YAML text, each with the number of lines before it. `---` at the start of a line is a marker wherever it
/// stands, in block and quoted scalars too (YAML 1.2.2, rule `c-forbidden`).
fn parts(text: &str) -> Vec<(u64, &str)> {
    let mut documents = Vec::new();
    let (mut begin, mut first_line, mut at) = (0, 0, 0);
    for (line, content) in text.split_inclusive('\n').enumerate() {
        let is_marker =
            content.strip_prefix("---").is_some_and(|rest| rest.chars().next().is_none_or(char::is_whitespace));
        if is_marker && at > begin {
            documents.push((first_line, text.get(begin..at).unwrap_or_default()));
            (begin, first_line) = (at, line as u64);
        }
        at += content.len();
    }
    documents.push((first_line, text.get(begin..).unwrap_or_default()));
    // Comments and blank lines before the first marker are no document; a directive there belongs to the document behind it.
    documents.retain(|(_, part)| !part.lines().all(|line| line.trim().is_empty() || line.starts_with('#')));
    documents
}

struct Reader<'t, 'c, E> {
    parser: Parser<'t, StrInput<'t>>,
    first_line: u64,
    /// Line and column of the last event.
    at: (usize, usize),
    /// The values of anchors, once they are complete.
    anchors: HashMap<usize, Value>,
    count: Count<'c, E>,
}

impl<'t, 'c, E: From<Error>> Reader<'t, 'c, E> {
    fn new(text: &'t str, first_line: u64, count: Count<'c, E>) -> Self {
        let options = granit_parser::options! { emit_comments: false };
        let parser = Parser::new_from_str_with_options(text, options);
        Self { parser, first_line, at: (1, 0), anchors: HashMap::new(), count }
    }

    fn document(mut self) -> Result<Value, E> {
        let mut document = None;
        loop {
            match self.next()? {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if document.is_none() => {
                    let root = self.next()?;
                    document = Some(self.node(root, &Path::Root, 0)?);
                }
                Event::StreamEnd => return Ok(document.unwrap_or_default()),
                _ => return Err(self.wrong("a further document")),
            }
        }
    }

    fn next(&mut self) -> Result<Event<'t>, E> {
        match self.parser.next() {
            Some(Ok((event, span))) => {
                self.at = (span.start.line(), span.start.col());
                Ok(event)
            }
            Some(Err(error)) => {
                self.at = (error.marker().line(), error.marker().col());
                Err(self.wrong("a mistake in its syntax"))
            }
            None => Err(self.wrong("the end of the text")),
        }
    }

    fn wrong(&self, reason: &'static str) -> E {
        let (line, column) = (self.at.0 as u64, self.at.1 as u64);
        Error::Text { line: line.saturating_add(self.first_line), column: column.saturating_add(1), reason }.into()
    }

    /// The value that begins with an event, below so many lists and objects.
    fn node(&mut self, event: Event<'t>, path: &Path<'_>, level: usize) -> Result<Value, E> {
        let (value, anchor) = match event {
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor);
                let value = value.ok_or_else(|| self.wrong("an alias within what it stands for"))?;
                count_all(self.count, value, path, level)?;
                return Ok(value.clone());
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = Scalar::of(text, style, tag.as_deref()).and_then(Scalar::value);
                let value = value.map_err(|reason| self.wrong(reason))?;
                (self.count)(path, Part::Scalar(&value))?;
                (value, anchor)
            }
            Event::SequenceStart(_, anchor, _) => (Value::Array(self.list(path, level)?), anchor),
            Event::MappingStart(_, anchor, _) => (Value::Object(self.object(path, level)?), anchor),
            _ => return Err(self.wrong("no value")),
        };
        self.keep(anchor, &value, path)?;
        Ok(value)
    }

    fn keep(&mut self, anchor: usize, value: &Value, path: &Path<'_>) -> Result<(), E> {
        // 0 is none.
        if anchor != 0 {
            (self.count)(path, Part::Anchored(value))?;
            self.anchors.insert(anchor, value.clone());
        }
        Ok(())
    }

    fn list(&mut self, path: &Path<'_>, level: usize) -> Result<Vec<Value>, E> {
        (self.count)(path, Part::Level(level))?;
        let mut list = Vec::new();
        loop {
            let event = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(list);
            }
            let path = path.element(list.len());
            let element = self.node(event, &path, level + 1)?;
            (self.count)(&path, Part::Element)?;
            list.push(element);
        }
    }

    fn object(&mut self, path: &Path<'_>, level: usize) -> Result<Map<String, Value>, E> {
        (self.count)(path, Part::Level(level))?;
        let mut object = Map::new();
        // What merges have given, and a key of the object's own may give again.
        let mut merged = BTreeSet::new();
        loop {
            let event = self.next()?;
            if event == Event::MappingEnd {
                return Ok(object);
            }
            if is_merge(&event) {
                for (key, value) in self.merge(path, level)?.into_iter().flatten() {
                    let part = Part::Key { text: &key, is_first: object.is_empty() };
                    (self.count)(&path.field(&key), part)?;
                    merged.insert(key.clone());
                    object.insert(key, value);
                }
                continue;
            }
            let key = self.key(event, path)?;
            if object.contains_key(&key) && !merged.remove(&key) {
                return Err(self.wrong("a key that occurs twice"));
            }
            let path = path.field(&key);
            (self.count)(&path, Part::Key { text: &key, is_first: object.is_empty() })?;
            let event = self.next()?;
            let value = self.node(event, &path, level + 1)?;
            object.insert(key, value);
        }
    }

    fn key(&mut self, event: Event<'t>, path: &Path<'_>) -> Result<String, E> {
        let key = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = Scalar::of(text, style, tag.as_deref()).map_err(|reason| self.wrong(reason))?;
                if anchor != 0 {
                    let value = scalar.clone().value().map_err(|reason| self.wrong(reason))?;
                    self.keep(anchor, &value, path)?;
                }
                scalar.key()
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(Value::String(text)) => Ok(text.clone()),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
                _ => Err(NO_KEY),
            },
            _ => Err(NO_KEY),
        };
        key.map_err(|reason| self.wrong(reason))
    }

    /// The objects that are merged here, in the order in which their keys overwrite each other. Where a key is given here, too, the
    /// later place counts, whatever YAML says: `sigs.k8s.io/yaml` does so.
    fn merge(&mut self, path: &Path<'_>, level: usize) -> Result<Vec<Map<String, Value>>, E> {
        let event = self.next()?;
        let is_alias = matches!(event, Event::Alias(_));
        let merged = match self.node(event, path, level)? {
            Value::Array(list) if !is_alias => list.into_iter().rev().collect(),
            other => vec![other],
        };
        let objects = merged.into_iter().map(|value| match value {
            Value::Object(object) => Ok(object),
            _ => Err(self.wrong("a merge of something else than objects")),
        });
        objects.collect()
    }
}

/// Whether a key says that its value is merged into the object.
fn is_merge(event: &Event<'_>) -> bool {
    let Event::Scalar(text, style, _, tag) = event else { return false };
    let is_tagged = |tag: &granit_parser::Tag| tag.suffix_in_namespace(scalar::TYPES).as_deref() == Some("merge");
    text == "<<" && tag.as_ref().map_or(*style == ScalarStyle::Plain, |tag| is_tagged(tag))
}

fn count_all<E>(count: Count<'_, E>, value: &Value, path: &Path<'_>, level: usize) -> Result<(), E> {
    match value {
        Value::Array(elements) => {
            count(path, Part::Level(level))?;
            for (index, element) in elements.iter().enumerate() {
                let path = path.element(index);
                count_all(count, element, &path, level + 1)?;
                count(&path, Part::Element)?;
            }
            Ok(())
        }
        Value::Object(fields) => {
            count(path, Part::Level(level))?;
            for (index, (key, field)) in fields.iter().enumerate() {
                let path = path.field(key);
                count(&path, Part::Key { text: key, is_first: index == 0 })?;
                count_all(count, field, &path, level + 1)?;
            }
            Ok(())
        }
        scalar => count(path, Part::Scalar(scalar)),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, Error> {
        one(text, 1 << 20)
    }

    #[test]
    fn merges_and_aliases_are_expanded_in_kubernetes_order() {
        for (text, value) in [
            ("a: &x {k: [1, 2]}\nb: *x", json!({"a": {"k": [1, 2]}, "b": {"k": [1, 2]}})),
            ("- &k 010\n- {*k : 1}", json!([8, {"8": 1}])),
            ("base: &b {a: 1, b: 2}\nc:\n  <<: *b\n  a: 3", json!({"base": {"a": 1, "b": 2}, "c": {"a": 3, "b": 2}})),
            ("{a: 3, <<: {a: 1}}", json!({"a": 1})),
            ("<<: [{a: 1}, {a: 2, b: 2}]", json!({"a": 1, "b": 2})),
            ("\"<<\": {a: 1}", json!({"<<": {"a": 1}})),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_json_can_not_have_is_refused_with_its_place_and_no_value() {
        for (text, line, column, reason) in [
            ("a: 1\nb: [canary\nc: 2", 3, 2, "a mistake in its syntax"),
            ("a: 1\n'a': canary", 2, 1, "a key that occurs twice"),
            ("1: canary\n'1': 2", 2, 1, "a key that occurs twice"),
            ("a:\n  b: .nan", 2, 6, "a number that is not finite"),
            ("{~: canary}", 1, 2, NO_KEY),
            ("[a]: canary", 1, 1, NO_KEY),
            ("a: !!int canary", 1, 10, "a value that its tag does not allow"),
            ("a: &a [*a]", 1, 8, "an alias within what it stands for"),
            ("<<: [canary]", 1, 12, "a merge of something else than objects"),
            ("a: &a [{b: canary}]\n<<: *a", 2, 5, "a merge of something else than objects"),
            ("a: 1\n...\nb: canary", 3, 1, "a further document"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(!refused.to_string().contains("canary"), "{refused}");
            let Error::Text { line: found, reason: why, column: at } = refused else { panic!("{text}: {refused}") };
            assert_eq!((found, at, why), (line, column, reason), "{text}");
        }
        let second = documents::<Error>("a: 1\n---\n# b\nb: [\n", &|_, _| Ok(())).expect_err("no YAML");
        assert!(matches!(second, Error::Text { line: 4, .. }), "{second}");
    }

    #[test]
    fn a_type_is_read_from_json_and_yaml_and_a_wrong_field_is_named() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Named {
            names: Vec<String>,
        }
        let names = |names: [&str; 2]| Ok(Named { names: names.map(str::to_owned).to_vec() });
        assert_eq!(one("names: [a, '0400']", 1 << 10), names(["a", "0400"]));
        assert_eq!(one("\t{\"names\": [\"a\", \"\\ud83d\\ude00\"]}", 1 << 10), names(["a", "\u{1f600}"]));
        assert_eq!(one::<Named>("names: [a, 0400]", 1 << 10), Err(Error::Type { field: "names[1]".into() }));
        assert_eq!(one::<Named>("# nothing\n", 1 << 10), Err(Error::Documents(0)));
        assert_eq!(one::<Named>("names: []\n---\nnames: []\n", 1 << 10), Err(Error::Documents(2)));
        assert_eq!(all::<Named>("names: [a, b]\n---\n---\nnames: [c, d]\n", 1 << 11).map(|read| read.len()), Ok(2));
    }

    #[test]
    fn neither_aliases_nor_depth_make_much_of_a_short_text() {
        let mut bomb = format!("a0: &a0 [{}]\n", "x".repeat(1_000));
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb = format!("{bomb}a{level}: &a{level} [{aliases}]\n");
        }
        assert_eq!(read(&bomb), Err(Error::TooLarge));
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nested(LEVELS)).is_ok());
        for levels in [LEVELS + 1, 100_000] {
            assert!(read(&nested(levels)).is_err());
            assert!(read(&"- ".repeat(levels)).is_err());
        }
    }
}

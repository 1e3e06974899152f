//! Reading JSON, by a visitor of our own, and YAML with the limits of documents.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::printed::{ELEMENT, ENTRY, MAP, TEXT};
use super::printed::{length_of_number, length_of_text};
use super::{LARGEST, LARGEST_BUILT, LEVELS, extent, too_deep, too_large, too_many_parts};
use crate::documents::problem::{Fault, Problem, ProblemKind};
use crate::yaml::{Part, Path};

/// How much may be read.
#[derive(Clone, Copy)]
pub(in crate::documents) struct Limits {
    /// Bytes as PostgreSQL prints them.
    pub(in crate::documents) bytes: usize,
    /// Levels of objects and lists.
    pub(in crate::documents) levels: usize,
    /// Bytes that are built, about.
    pub(in crate::documents) built: usize,
}

impl Limits {
    /// The limits of a document.
    pub(in crate::documents) fn document() -> Self {
        Self { bytes: LARGEST, levels: LEVELS, built: LARGEST_BUILT }
    }
}

/// Most faults that are reported of one body.
const MOST_FAULTS: usize = 100;
/// Reads one JSON value and nothing behind it.
pub(super) fn json(text: &[u8], limits: &Limits) -> Result<Value, Problem> {
    let mut values = json_sequence(text, limits)?;
    match (values.pop(), values.is_empty()) {
        (Some(value), true) => Ok(value),
        (None, _) => Err(Problem::new(ProblemKind::Malformed, "the body is empty")),
        _ => Err(Problem::new(ProblemKind::Malformed, "the body has more than one JSON value")),
    }
}

/// Reads JSON values, one after the other; the limits hold for all together.
pub(super) fn json_sequence(text: &[u8], limits: &Limits) -> Result<Vec<Value>, Problem> {
    let reading = Reading::new(*limits);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut values = Vec::new();
    while deserializer.end().is_err() {
        let value = reading.root().deserialize(&mut deserializer);
        // A syntax error of serde_json has a place and a reason, and no value.
        values.push(value.map_err(|error| reading.failed(|| format!("the body is not JSON: {error}")))?);
    }
    reading.into_result().map(|()| values)
}

/// Reads the YAML documents of a text; the limits hold for all together. Empty documents are left out.
pub(in crate::documents) fn yaml(text: &str, limits: &Limits) -> Result<Vec<Value>, Problem> {
    let reading = Reading::new(*limits);
    let mut values = crate::yaml::documents(text, &|path, part| reading.part(path, part))?;
    values.retain(|value| !value.is_null());
    reading.into_result().map(|()| values)
}

/// What is read, over all values of a body.
struct Reading {
    limits: Limits,
    bytes: Cell<usize>,
    built: Cell<usize>,
    faults: RefCell<Vec<Fault>>,
    /// Why reading was stopped: the error of `serde_json` can't carry it.
    stopped: RefCell<Option<Problem>>,
}

impl Reading {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            bytes: Cell::default(),
            built: Cell::default(),
            faults: RefCell::default(),
            stopped: RefCell::default(),
        }
    }

    fn root(&self) -> Node<'_> {
        Node { reading: self, path: &Path::Root, level: 0 }
    }

    /// Why reading failed: this reading stopped it, or the text is wrong in this way.
    fn failed(&self, wrong: impl FnOnce() -> String) -> Problem {
        let stopped = self.stopped.take();
        stopped.unwrap_or_else(|| Problem::new(ProblemKind::Malformed, wrong()))
    }

    fn into_result(self) -> Result<(), Problem> {
        let faults = self.faults.into_inner();
        if faults.is_empty() { Ok(()) } else { Err(Problem::invalid(faults)) }
    }

    fn stop<E: Error>(&self, problem: Problem) -> E {
        *self.stopped.borrow_mut() = Some(problem);
        E::custom("stopped")
    }

    /// Counts a part of what is read.
    fn part(&self, path: &Path<'_>, part: Part<'_>) -> Result<(), Problem> {
        match part {
            Part::Level(level) => {
                if level >= self.limits.levels {
                    // The path has a name for every level; the first ones lead there.
                    return Err(too_deep(first_part(&path.to_string())));
                }
                self.count(2)
            }
            Part::Element => {
                self.count(2)?;
                self.build(ELEMENT)
            }
            Part::Key { text, is_first } => {
                self.count_text(text, path, "a key")?;
                self.count(4)?;
                self.build(if is_first { MAP + ENTRY } else { ENTRY })
            }
            Part::Scalar(Value::String(text)) => self.count_text(text, path, "a string"),
            Part::Scalar(Value::Number(number)) => self.count(length_of_number(number)),
            Part::Scalar(Value::Bool(_)) => self.count(5),
            Part::Scalar(_) => self.count(4),
            Part::Anchored(value) => self.build(extent(value).built),
        }
    }

    fn count(&self, bytes: usize) -> Result<(), Problem> {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        if self.bytes.get() > self.limits.bytes { Err(too_large()) } else { Ok(()) }
    }

    /// Counts what is about to be built.
    fn build(&self, bytes: usize) -> Result<(), Problem> {
        self.built.set(self.built.get().saturating_add(bytes));
        if self.built.get() > self.limits.built { Err(too_many_parts()) } else { Ok(()) }
    }

    /// Counts a text, and finds the character that PostgreSQL refuses.
    fn count_text(&self, text: &str, path: &Path<'_>, what: &str) -> Result<(), Problem> {
        // A body may have a million of them.
        if text.contains('\0') && self.faults.borrow().len() < MOST_FAULTS {
            let fault = Fault::new(path.to_string(), format!("{what} with the character U+0000"));
            self.faults.borrow_mut().push(fault.allowed("every other character"));
        }
        self.build(TEXT + text.len())?;
        self.count(length_of_text(text))
    }
}

/// Reads the value at a place.
#[derive(Clone, Copy)]
struct Node<'r> {
    reading: &'r Reading,
    path: &'r Path<'r>,
    /// Levels above it.
    level: usize,
}

impl Node<'_> {
    fn part<E: Error>(&self, part: Part<'_>) -> Result<(), E> {
        self.reading.part(self.path, part).map_err(|problem| self.reading.stop(problem))
    }

    fn scalar<E: Error>(&self, value: Value) -> Result<Value, E> {
        self.part(Part::Scalar(&value)).map(|()| value)
    }
}

/// The first two names of a pointer.
fn first_part(pointer: &str) -> String {
    let end = pointer.match_indices('/').nth(2).map_or(pointer.len(), |(at, _)| at);
    pointer.get(..end).unwrap_or_default().to_owned()
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(value.into())
    }

    /// Larger integers, too. One that is not finite is refused by `serde_json` itself.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        self.scalar(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        self.part(Part::Level(self.level))?;
        let mut list = Vec::new();
        loop {
            let path = self.path.element(list.len());
            let node = Node { reading: self.reading, path: &path, level: self.level + 1 };
            let Some(element) = elements.next_element_seed(node)? else {
                return Ok(Value::Array(list));
            };
            node.part(Part::Element)?;
            list.push(element);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.part(Part::Level(self.level))?;
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let path = self.path.field(&key);
            if object.contains_key(&key) {
                let title = format!("the key at {path} occurs twice");
                return Err(self.reading.stop(Problem::new(ProblemKind::Malformed, title)));
            }
            let node = Node { reading: self.reading, path: &path, level: self.level + 1 };
            node.part(Part::Key { text: &key, is_first: object.is_empty() })?;
            let value = fields.next_value_seed(node)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(text: &str) -> Problem {
        json(text.as_bytes(), &Limits::document()).expect_err(text)
    }

    #[test]
    fn a_double_key_is_malformed_wherever_it_is() {
        let problem = refused(r#"{"spec": {"a/b": [{"x": "canary", "x": "canary"}]}}"#);
        assert_eq!(problem.kind, ProblemKind::Malformed);
        assert_eq!(problem.title, "the key at /spec/a~1b/0/x occurs twice");
        assert_eq!(refused(r#"{"a": 1, "\u0061": 2}"#).title, "the key at /a occurs twice");
    }

    #[test]
    fn every_string_and_key_with_u_0000_is_found() {
        let problem = refused(r#"{"a": "x\u0000", "b": ["\u0000"], "c\u0000": 1}"#);
        assert_eq!(problem.kind, ProblemKind::Invalid);
        let pointers: Vec<_> = problem.faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/a", "/b/0", "/c\0"]);
        assert_eq!(problem.faults[0].found, "a string with the character U+0000");
        assert_eq!(problem.faults[2].found, "a key with the character U+0000");
    }

    #[test]
    fn a_hundred_levels_are_read_and_one_more_is_not() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let deepest = format!(r#"{{"spec": {}}}"#, nested(LEVELS - 1));
        assert!(json(deepest.as_bytes(), &Limits::document()).is_ok());
        for levels in [LEVELS, 127, 128, 100_000] {
            let problem = refused(&format!(r#"{{"spec": {}}}"#, nested(levels)));
            assert_eq!((problem.kind, problem.faults[0].pointer.as_str()), (ProblemKind::Invalid, "/spec/0"));
        }
    }

    #[test]
    fn short_numbers_with_many_digits_are_too_large() {
        let numbers = vec!["1e300"; 700_000].join(",");
        assert_eq!(refused(&format!("[{numbers}]")).kind, ProblemKind::TooLarge);
        let text = format!("\"{}\"", "a".repeat(LARGEST - 2));
        assert!(json(text.as_bytes(), &Limits::document()).is_ok());
        assert_eq!(refused(&format!("\"{}\"", "a".repeat(LARGEST - 1))).kind, ProblemKind::TooLarge);
    }

    #[test]
    fn a_document_of_many_small_maps_is_too_large() {
        let maps = |count| format!("[{}]", vec![r#"{"a":1}"#; count].join(","));
        let each = ELEMENT + MAP + ENTRY + TEXT + 1;
        assert!(json(maps(LARGEST_BUILT / each).as_bytes(), &Limits::document()).is_ok());
        let problem = refused(&maps(LARGEST_BUILT / each + 1));
        assert_eq!((problem.kind, problem.title), (ProblemKind::TooLarge, too_many_parts().title));
        // Common manifests take less.
        let container =
            r#"{"name": "a", "image": "registry.example.com/team/image:v1", "ports": [{"containerPort": 8080}]}"#;
        let containers = format!("[{}]", vec![container; LARGEST / (container.len() + 8)].join(", "));
        assert!(json(containers.as_bytes(), &Limits::document()).is_ok());
    }

    #[test]
    fn a_body_full_of_faults_has_a_short_problem() {
        let text = format!(r#"{{"{}": [{}0]}}"#, "k".repeat(100_000), r#""\u0000", "#.repeat(10_000));
        let problem = refused(&text);
        assert_eq!(problem.faults.len(), MOST_FAULTS);
        assert_eq!(problem.faults[1].pointer, format!("/{}…/1", "k".repeat(64)));
    }

    #[test]
    fn numbers_of_64_bits_are_kept_and_larger_ones_become_doubles() {
        let text = br"[9223372036854775807, 18446744073709551615, -9223372036854775808, 18446744073709551616, 0.1]";
        let read = json(text, &Limits::document()).expect("numbers");
        assert_eq!(read, json!([i64::MAX, u64::MAX, i64::MIN, 18_446_744_073_709_551_616.0, 0.1]));
        assert_eq!(refused("1e400").kind, ProblemKind::Malformed);
    }

    #[test]
    fn what_is_no_json_is_malformed_and_no_value_is_repeated() {
        for text in ["", " ", "{\"a\": canary}", "\"canary", "{} {}", "\"\u{1}canary\"", "{1: 2}", "[1,]"] {
            let problem = refused(text);
            assert_eq!(problem.kind, ProblemKind::Malformed, "{text}");
            assert!(!problem.title.contains("canary"), "{}", problem.title);
        }
        assert_eq!(json(b"\xff", &Limits::document()).expect_err("no UTF-8").kind, ProblemKind::Malformed);
    }

    #[test]
    fn yaml_has_several_documents_and_the_types_of_kubectl() {
        let text =
            "# a comment\n---\na: 0400\nb: yes\nc: \"1\"\nd: |\n  x\n  ---\n---\n---\n- 1.5\n- null\n- 2020-01-01\n";
        let read = yaml(text, &Limits::document()).expect("YAML");
        assert_eq!(read, [json!({"a": 256, "b": true, "c": "1", "d": "x\n---\n"}), json!([1.5, null, "2020-01-01"])]);
    }

    #[test]
    fn aliases_are_expanded_up_to_the_size_of_a_document() {
        let few = yaml("a: &x {k: [1, 2]}\nb: *x\n", &Limits::document()).expect("YAML");
        assert_eq!(few, [json!({"a": {"k": [1, 2]}, "b": {"k": [1, 2]}})]);
        // Long texts, so that few events reach the limit.
        let mut bomb = format!("a0: &a0 [{}]\n", "x".repeat(1_000));
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb = format!("{bomb}a{level}: &a{level} [{aliases}]\n");
        }
        assert_eq!(yaml(&bomb, &Limits::document()).expect_err("a bomb").kind, ProblemKind::TooLarge);
    }

    #[test]
    fn faults_of_yaml_name_their_line_and_no_value() {
        let problem = yaml("a: 1\n---\nb: [canary\nc: 2\n", &Limits::document()).expect_err("no YAML");
        assert_eq!(problem.kind, ProblemKind::Malformed);
        assert!(problem.title.starts_with("the YAML can't be read at line "), "{}", problem.title);
        assert!(!problem.title.contains("canary"), "{}", problem.title);
        let problem = yaml("a: 1\na: 2\n", &Limits::document()).expect_err("a double key");
        assert_eq!(problem.kind, ProblemKind::Malformed);
        assert_eq!(yaml("a: .nan\n", &Limits::document()).expect_err("no number").kind, ProblemKind::Malformed);
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        assert_eq!(yaml(&deep, &Limits::document()).expect_err("too deep").kind, ProblemKind::Invalid);
    }
}

//! JSON as PostgreSQL prints it, in the form that clients see: without blanks, keys in bytewise order. This is what parsing and
//! printing it gives, but most values are only copied: a page of a list has a megabyte of them.

use serde_json::Number;

/// Numbers with more characters may be integers beyond 64 bits, which are shown as doubles.
const SHORT_NUMBER: usize = 18;
/// Documents have fewer levels. Deeper ones are copied as they are printed: the levels are those of the stack, too.
const LEVELS: usize = 128;

/// Appends a value that `jsonb` has printed.
pub(super) fn write(printed: &str, into: &mut Vec<u8>) {
    Copy { rest: printed.as_bytes(), into, entries: Vec::new() }.value(LEVELS);
}

/// Appends the fields of an object that `jsonb` has printed, each with a comma before it.
pub(super) fn write_fields(printed: &str, into: &mut Vec<u8>) {
    let begin = into.len();
    write(printed, into);
    // Without braces; of an empty object nothing is left.
    into.pop();
    match into.get_mut(begin..) {
        Some([brace, _, ..]) => *brace = b',',
        _ => into.truncate(begin),
    }
}

/// A value that is being copied.
struct Copy<'p, 'i> {
    rest: &'p [u8],
    into: &'i mut Vec<u8>,
    /// The fields so far of all objects that are being copied.
    entries: Vec<Entry>,
}

/// A field of an object, where it was copied to.
#[derive(Clone, Copy)]
struct Entry {
    begin: usize,
    /// Behind the key's closing quote.
    key_end: usize,
    end: usize,
}

impl Copy<'_, '_> {
    fn value(&mut self, levels: usize) {
        match self.rest.first() {
            Some(b'{' | b'[') if levels == 0 => self.take(length_of_nested(self.rest)),
            Some(b'{') => self.object(levels - 1),
            Some(b'[') => self.list(levels - 1),
            Some(b'"') => self.take(length_of_text(self.rest)),
            _ => self.scalar(),
        }
    }

    fn take(&mut self, length: usize) {
        let (taken, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, &[]));
        self.into.extend_from_slice(taken);
        self.rest = rest;
    }

    /// Copies the next byte if it is this one.
    fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.rest.first() == Some(&byte);
        if is_next {
            self.take(1);
        }
        is_next
    }

    fn skip_blank(&mut self) {
        self.rest = self.rest.strip_prefix(b" ").unwrap_or(self.rest);
    }

    fn list(&mut self, levels: usize) {
        self.take(1);
        while !self.rest.is_empty() && !self.takes(b']') {
            self.value(levels);
            self.takes(b',');
            self.skip_blank();
        }
    }

    fn object(&mut self, levels: usize) {
        self.take(1);
        let (first, begin) = (self.entries.len(), self.into.len());
        while !self.rest.is_empty() && self.rest.first() != Some(&b'}') {
            let begin = self.into.len();
            self.take(length_of_text(self.rest));
            let key_end = self.into.len();
            self.takes(b':');
            self.skip_blank();
            self.value(levels);
            self.entries.push(Entry { begin, key_end, end: self.into.len() });
            self.takes(b',');
            self.skip_blank();
        }
        self.sort(first, begin);
        self.take(1);
    }

    /// Puts the fields from `first` on, which were copied to `begin`, in the order of their keys.
    fn sort(&mut self, first: usize, begin: usize) {
        let entries = self.entries.get_mut(first..).unwrap_or_default();
        let copied = &*self.into;
        // Without the quotes, which some characters are below.
        let key = |entry: &Entry| copied.get(entry.begin + 1..entry.key_end.saturating_sub(1)).unwrap_or_default();
        if !entries.is_sorted_by_key(key) {
            entries.sort_by(|one, other| key(one).cmp(key(other)));
            let mut sorted = Vec::with_capacity(copied.len() - begin);
            for entry in &*entries {
                sorted.extend_from_slice(copied.get(entry.begin..entry.end).unwrap_or_default());
                sorted.push(b',');
            }
            sorted.pop();
            self.into.truncate(begin);
            self.into.append(&mut sorted);
        }
        self.entries.truncate(first);
    }

    fn scalar(&mut self) {
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}');
        let length = self.rest.iter().position(is_end).unwrap_or(self.rest.len());
        let double = if length > SHORT_NUMBER { self.rest.get(..length).and_then(as_number) } else { None };
        match double {
            Some(number) => {
                self.into.extend_from_slice(number.to_string().as_bytes());
                self.rest = self.rest.get(length..).unwrap_or_default();
            }
            // What is no value is copied, too.
            None => self.take(length.max(1)),
        }
    }
}

/// A number, unless it is beyond what a double can be.
fn as_number(digits: &[u8]) -> Option<Number> {
    serde_json::from_slice(digits).ok()
}

/// The length of the text at the beginning, with its quotes.
fn length_of_text(bytes: &[u8]) -> usize {
    let mut length = 1;
    while let Some(rest) = bytes.get(length..) {
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(at) if rest.get(at) == Some(&b'"') => return length + at + 1,
            // With what it escapes.
            Some(at) => length += at + 2,
            None => break,
        }
    }
    bytes.len()
}

/// The length of the object or list at the beginning.
fn length_of_nested(bytes: &[u8]) -> usize {
    let (mut length, mut open) = (0, 0_usize);
    while let Some(rest) = bytes.get(length..).filter(|rest| !rest.is_empty()) {
        let step = match rest.first() {
            Some(b'"') => length_of_text(rest),
            Some(b'{' | b'[') => {
                open += 1;
                1
            }
            Some(b'}' | b']') => {
                open = open.saturating_sub(1);
                1
            }
            _ => 1,
        };
        length += step;
        if open == 0 {
            return length;
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn written(printed: &str) -> String {
        let mut written = b"before".to_vec();
        write(printed, &mut written);
        String::from_utf8(written).expect("UTF-8").strip_prefix("before").expect("what was there").to_owned()
    }

    /// As `jsonb` prints it: keys by length and then bytewise, a blank behind each colon and comma.
    fn printed(value: &Value) -> String {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_by_key(|(key, _)| (key.len(), (*key).clone()));
                let field = |(key, value): (&String, &Value)| format!("{}: {}", json!(key), printed(value));
                format!("{{{}}}", fields.into_iter().map(field).collect::<Vec<_>>().join(", "))
            }
            Value::Array(elements) => format!("[{}]", elements.iter().map(printed).collect::<Vec<_>>().join(", ")),
            scalar => scalar.to_string(),
        }
    }

    #[test]
    fn blanks_between_values_go_and_those_in_texts_stay() {
        assert_eq!(
            written(r#"{"a b": ["c, d: e", {}, [], null], "\"}": true}"#),
            r#"{"\"}":true,"a b":["c, d: e",{},[],null]}"#
        );
        assert_eq!(written(r#""\\", "#), r#""\\""#);
        assert_eq!(written("{}"), "{}");
    }

    #[test]
    fn keys_are_in_bytewise_order_at_every_level() {
        let text = r#"{"b": 1, "aa": {"z": {"y": 2, "xx": 3}, "a-b": 4, "a b": 5}, "c!": 6}"#;
        assert_eq!(written(text), r#"{"aa":{"a b":5,"a-b":4,"z":{"xx":3,"y":2}},"b":1,"c!":6}"#);
    }

    #[test]
    fn integers_beyond_64_bits_become_doubles_and_other_numbers_stay() {
        let long = format!("1{}", "0".repeat(300));
        let text = format!("[{long}, 18446744073709551616, -9223372036854775808, 18446744073709551615, 1.50, 0.1]");
        let doubles = [json!(1e300), json!(18_446_744_073_709_551_616.0)].map(|double| double.to_string()).join(",");
        assert_eq!(written(&text), format!("[{doubles},-9223372036854775808,18446744073709551615,1.50,0.1]"));
        let beyond = "9".repeat(400);
        assert_eq!(written(&beyond), beyond, "no double is as large");
    }

    #[test]
    fn levels_beyond_those_of_a_document_are_copied() {
        let (open, close) = ("[".repeat(10_000), "]".repeat(10_000));
        let deep = format!(r#"{{"b": {open}"]", 1{close}, "a": 2}}"#);
        assert_eq!(written(&deep), format!(r#"{{"a":2,"b":{open}"]", 1{close}}}"#));
    }

    #[test]
    fn fields_follow_with_a_comma_each() {
        let fields = |printed: &str| {
            let mut fields = b"{".to_vec();
            write_fields(printed, &mut fields);
            String::from_utf8(fields).expect("UTF-8")
        };
        assert_eq!(fields(r#"{"b": 1, "a": {}}"#), r#"{,"a":{},"b":1"#);
        assert_eq!(fields("{}"), "{");
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[ -~]{0,6}", Just("\u{1}\n\"\\é😀".to_owned()), Just("\\".to_owned())];
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(text.clone(), inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_is_written_as_if_it_were_parsed_and_printed(value in value()) {
            let written = written(&printed(&value));
            prop_assert_eq!(serde_json::from_str::<Value>(&written).expect("JSON"), value.clone());
            // Escapes in keys change their order.
            if !written.contains('\\') {
                prop_assert_eq!(written, value.to_string());
            }
        }

        /// Whatever the text is, copying it ends.
        #[test]
        fn a_text_that_is_no_json_is_copied_somehow(text in "[\\[\\]{}\",: \\\\a1-]{0,40}") {
            prop_assert!(written(&text).len() <= 2 * text.len());
        }
    }
}

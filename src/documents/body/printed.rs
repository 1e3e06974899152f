//! How long and how deep a value is as PostgreSQL prints it.

use serde_json::{Map, Number, Value};

/// An element of a list: a value, and its share of the room that a list which grows has left.
pub(super) const ELEMENT: usize = 40;
/// What a map takes that has an entry, beside [`ENTRY`]: its nodes have room for eleven.
pub(super) const MAP: usize = 528;
/// An entry of a map: its nodes are about half full.
pub(super) const ENTRY: usize = 112;
/// What a text takes beside its bytes.
pub(super) const TEXT: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::documents) struct Extent {
    /// Bytes as `jsonb` prints them: `{"a": [1, 2]}`, numbers with all their digits.
    pub(in crate::documents) bytes: usize,
    /// Levels of objects and lists; 0 for a scalar.
    pub(in crate::documents) levels: usize,
    /// Bytes that its parts take in memory, about, beside the value itself.
    pub(in crate::documents) built: usize,
}

/// The bytes of a value as PostgreSQL prints it, and those that it takes in memory, about.
pub fn sizes(value: &Value) -> (usize, usize) {
    let Extent { bytes, built, .. } = extent(value);
    (bytes, built)
}

/// The size of a value. It recurses once a level, and nothing deeper than a document may be is ever built.
pub(in crate::documents) fn extent(value: &Value) -> Extent {
    match value {
        Value::Null | Value::Bool(true) => Extent { bytes: 4, ..Extent::default() },
        Value::Bool(false) => Extent { bytes: 5, ..Extent::default() },
        Value::Number(number) => Extent { bytes: length_of_number(number), ..Extent::default() },
        Value::String(text) => Extent { bytes: length_of_text(text), levels: 0, built: TEXT + text.len() },
        Value::Array(elements) => {
            let mut whole = Extent { bytes: 2 + separators(elements.len()), ..Extent::default() };
            for element in elements {
                let part = extent(element);
                whole.bytes += part.bytes;
                whole.built += ELEMENT + part.built;
                whole.levels = whole.levels.max(part.levels);
            }
            Extent { levels: whole.levels + 1, ..whole }
        }
        Value::Object(fields) => extent_of_map(fields),
    }
}

pub(in crate::documents) fn extent_of_map(fields: &Map<String, Value>) -> Extent {
    let built = if fields.is_empty() { 0 } else { MAP };
    let mut whole = Extent { bytes: 2 + separators(fields.len()), levels: 0, built };
    for (key, value) in fields {
        let part = extent(value);
        whole.bytes += length_of_text(key) + 2 + part.bytes;
        whole.built += ENTRY + TEXT + key.len() + part.built;
        whole.levels = whole.levels.max(part.levels);
    }
    Extent { levels: whole.levels + 1, ..whole }
}

/// The `, ` between elements.
fn separators(elements: usize) -> usize {
    2 * elements.saturating_sub(1)
}

/// A text with its quotes and escapes. Characters beyond ASCII are printed as they are.
pub(in crate::documents) fn length_of_text(text: &str) -> usize {
    let escapes = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 1,
        0..=31 => 5,
        _ => 0,
    };
    2 + text.len() + text.bytes().map(escapes).sum::<usize>()
}

/// `numeric` keeps as many fractional digits as were given, and prints no exponent.
pub(super) fn length_of_number(number: &Number) -> usize {
    let text = number.to_string();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.as_str()),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_zero = mantissa.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    let leading_zeros = whole.len() + fraction.len() - (whole.trim_start_matches('0').len() + fraction.len());
    let digits = |count: i64| usize::try_from(count).unwrap_or(0);
    let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
    let whole_digits = if is_zero { 1 } else { digits(length(whole) + exponent).saturating_sub(leading_zeros).max(1) };
    let fractional_digits = digits(length(fraction) - exponent);
    let point = usize::from(fractional_digits > 0);
    usize::from(negative && !is_zero) + whole_digits + point + fractional_digits
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_as_long_as_jsonb_prints_it() {
        // Each text is what PostgreSQL 15 prints.
        for (value, printed) in [
            (json!({"b": [1, -2], "a": {}}), r#"{"a": {}, "b": [1, -2]}"#),
            (json!([]), "[]"),
            (json!([null, true, false]), "[null, true, false]"),
            (json!("ä\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}/"), "\"ä\\\"\\\\\\n\\r\\t\\b\\f\\u0001\u{7f}/\""),
            (json!({"k\n": 1.5}), r#"{"k\n": 1.5}"#),
        ] {
            assert_eq!(extent(&value).bytes, printed.len(), "{printed}");
        }
    }

    #[test]
    fn a_number_counts_with_all_its_digits() {
        for (number, printed) in [
            ("1e300", &format!("1{}", "0".repeat(300)) as &str),
            ("-1.25e20", "-125000000000000000000"),
            ("1.5e-7", "0.00000015"),
            ("1e-300", &format!("0.{}1", "0".repeat(299))),
            ("1.0", "1.0"),
            ("-0.0", "0.0"),
            ("0.5", "0.5"),
            ("123456.789", "123456.789"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("1e16", "10000000000000000"),
            ("1.7976931348623157e308", &format!("17976931348623157{}", "0".repeat(292))),
        ] {
            let value: Value = serde_json::from_str(number).expect("a number");
            assert_eq!(extent(&value).bytes, printed.len(), "{number}");
        }
    }

    #[test]
    fn maps_take_most_memory() {
        for (value, built) in [
            (json!(7), 0),
            (json!({}), 0),
            (json!([{}, [1], "ab"]), 4 * ELEMENT + TEXT + 2),
            (json!({"a": {"b": true}, "c": null}), 2 * MAP + 3 * (ENTRY + TEXT + 1)),
        ] {
            assert_eq!(extent(&value).built, built, "{value}");
        }
    }

    #[test]
    fn levels_are_objects_and_lists() {
        for (value, levels) in [(json!(1), 0), (json!({}), 1), (json!({"a": [], "b": {"c": [[]]}}), 4)] {
            assert_eq!(extent(&value).levels, levels, "{value}");
        }
    }
}

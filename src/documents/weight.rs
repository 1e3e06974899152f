//! How much there is to read, and about how much memory that takes once it has been read.
//!
//! A value takes many times the memory of its text: a map of one entry takes more than 600 bytes, since its nodes have room for eleven.

use serde_json::Value;

use super::body::extent;

/// An element of a list: a value, and its share of the room that a list which grows has left.
pub(super) const ELEMENT: usize = 40;
/// What a map takes that has an entry, beside [`ENTRY`].
pub(super) const MAP: usize = 528;
/// An entry of a map: its nodes are about half full.
pub(super) const ENTRY: usize = 112;
/// What a text takes beside its bytes.
pub(super) const TEXT: usize = 32;

/// The size of a text and of what is built from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Bytes of the text.
    pub bytes: usize,
    /// Bytes of the values, about.
    pub built: usize,
}

impl Weight {
    /// That of a value, with the bytes as PostgreSQL prints them.
    pub fn of_value(value: &Value) -> Self {
        let extent = extent(value);
        Self { bytes: extent.bytes, built: extent.built }
    }

    /// That of a JSON text, which may have faults.
    pub fn of_json(text: &[u8]) -> Self {
        let mut built = 0;
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            built += match byte {
                b'"' => TEXT + rest_of_string(&mut bytes),
                b'{' => MAP,
                b':' => ENTRY,
                b'[' | b',' => ELEMENT,
                _ => 0,
            };
        }
        Self { bytes: text.len(), built }
    }
}

/// Reads a string to its end, and returns how long it is at most.
fn rest_of_string<'t>(bytes: &mut impl Iterator<Item = &'t u8>) -> usize {
    let mut length = 0;
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_weigh_most_and_what_a_string_has_is_no_map() {
        let built = |text: &str| Weight::of_json(text.as_bytes()).built;
        assert_eq!(built("[1, 2]"), 2 * ELEMENT);
        assert_eq!(built(r#"{"a": 1}"#), MAP + ENTRY + TEXT + 1);
        assert_eq!(built(r#""{[\",:{\\""#), TEXT + 7);
        assert_eq!(built(r#"{"ab"#), MAP + TEXT + 2, "a text that ends too early");
        let maps = format!("[{}1]", r#"{"a":1},"#.repeat(1000));
        assert_eq!(built(&maps), ELEMENT + 1000 * (MAP + ENTRY + TEXT + 1 + ELEMENT));
    }
}

//! JSON with its long strings cut, while it is read.
//!
//! A deserializer holds a string as a whole before it can skip it, and a byte for each level of nesting. A release that somebody has
//! forged could have one string of 64 MiB, or as many open brackets. What comes out of here has neither: of each string the beginning
//! is left, which is always valid again, and nesting beyond a limit is an error.

use std::io::{self, Read};

/// More levels than any chart has. Go's decoder has 10,000.
const DEEPEST: usize = 10_000;

/// The document is nested deeper than is read.
#[derive(Debug, thiserror::Error)]
#[error("the document is nested more than {DEEPEST} levels deep")]
struct TooDeep;

/// Where in the document the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderPosition {
    /// Outside of strings.
    Structure,
    /// In a string, of which so many bytes were passed on.
    Text(usize),
    /// Behind a backslash in a string.
    Escape(usize),
    /// In `\uXXXX`, with so many digits left.
    Unicode(usize, u8),
    /// In the part of a string that is dropped.
    Dropped,
    /// Behind a backslash there.
    DroppedEscape,
}

/// A reader of JSON, with its long strings cut.
pub(super) struct Shortened<R> {
    inner: R,
    /// The bytes of a string, as it is written, that are left.
    longest: usize,
    place: ReaderPosition,
    depth: usize,
    /// Whether the last escape was the first half of a pair, which may not be cut off.
    is_half: bool,
    /// The digits of the escape that is being read.
    digits: u32,
}

impl<R> Shortened<R> {
    pub(super) fn new(inner: R, longest: usize) -> Self {
        Self { inner, longest, place: ReaderPosition::Structure, depth: 0, is_half: false, digits: 0 }
    }

    /// Whether a byte is passed on.
    fn keeps(&mut self, byte: u8) -> Result<bool, TooDeep> {
        let (next, keeps) = match self.place {
            ReaderPosition::Structure => {
                match byte {
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                if self.depth > DEEPEST {
                    return Err(TooDeep);
                }
                (if byte == b'"' { ReaderPosition::Text(0) } else { ReaderPosition::Structure }, true)
            }
            ReaderPosition::Text(length) => match byte {
                b'"' => {
                    self.is_half = false;
                    (ReaderPosition::Structure, true)
                }
                _ if length >= self.longest && !self.is_half && is_first(byte) => {
                    (if byte == b'\\' { ReaderPosition::DroppedEscape } else { ReaderPosition::Dropped }, false)
                }
                b'\\' => (ReaderPosition::Escape(length + 1), true),
                _ => {
                    self.is_half = false;
                    (ReaderPosition::Text(length + 1), true)
                }
            },
            ReaderPosition::Escape(length) => {
                if byte == b'u' {
                    self.digits = 0;
                    (ReaderPosition::Unicode(length + 1, 4), true)
                } else {
                    self.is_half = false;
                    (ReaderPosition::Text(length + 1), true)
                }
            }
            ReaderPosition::Unicode(length, left) => {
                self.digits = self.digits << 4 | char::from(byte).to_digit(16).unwrap_or_default();
                if left > 1 {
                    (ReaderPosition::Unicode(length + 1, left - 1), true)
                } else {
                    self.is_half = (0xd800..0xdc00).contains(&self.digits);
                    (ReaderPosition::Text(length + 1), true)
                }
            }
            ReaderPosition::Dropped => match byte {
                b'"' => (ReaderPosition::Structure, true),
                b'\\' => (ReaderPosition::DroppedEscape, false),
                _ => (ReaderPosition::Dropped, false),
            },
            ReaderPosition::DroppedEscape => (ReaderPosition::Dropped, false),
        };
        self.place = next;
        Ok(keeps)
    }
}

/// Whether a byte begins a character in UTF-8.
fn is_first(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

impl<R: Read> Read for Shortened<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.inner.read(buffer)?;
            let mut kept = 0;
            for at in 0..read {
                let byte = buffer.get(at).copied().unwrap_or_default();
                if self.keeps(byte).map_err(io::Error::other)?
                    && let Some(place) = buffer.get_mut(kept)
                {
                    *place = byte;
                    kept += 1;
                }
            }
            // Nothing kept is not the end.
            if kept > 0 || read == 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: usize = 12 << 10;

    fn shortened(text: &str) -> io::Result<String> {
        let mut read = String::new();
        Shortened::new(text.as_bytes(), LONGEST).read_to_string(&mut read)?;
        Ok(read)
    }

    #[test]
    fn of_a_long_string_the_beginning_is_left_and_of_the_rest_everything() {
        let text = format!(r#"{{"a\"b":"{}","c":["{}\\\"x"],"d":1}}"#, "x".repeat(LONGEST * 3), "y".repeat(LONGEST));
        let expected = format!(r#"{{"a\"b":"{}","c":["{}"],"d":1}}"#, "x".repeat(LONGEST), "y".repeat(LONGEST));
        assert_eq!(shortened(&text).unwrap(), expected);
    }

    #[test]
    fn no_character_and_no_escape_is_cut_in_two() {
        for character in ["é", "\u{10000}", "\\n", "\\u00e9", "\\ud800\\udc00"] {
            for before in 0..13 {
                let text = format!("[\"{}{}\"]", "x".repeat(before), character.repeat(LONGEST));
                let read = shortened(&text).unwrap();
                let strings: Vec<String> =
                    serde_json::from_str(&read).unwrap_or_else(|error| panic!("{character}: {error}"));
                assert!(read.len() < LONGEST + 40 && strings[0].chars().count() >= 1024, "{character}");
            }
        }
    }

    #[test]
    fn a_document_that_is_nested_too_deep_is_an_error() {
        assert!(shortened(&"[".repeat(DEEPEST)).is_ok());
        let error = shortened(&"[".repeat(DEEPEST + 1)).unwrap_err();
        assert_eq!(error.to_string(), "the document is nested more than 10000 levels deep");
        let flat = format!("[{}]", vec!["[]"; DEEPEST].join(","));
        assert_eq!(shortened(&flat).unwrap(), flat);
        let quoted = format!("\"{}\"", "[".repeat(DEEPEST + 1));
        assert_eq!(shortened(&quoted).unwrap(), quoted);
    }

    proptest! {
        #[test]
        fn a_document_with_short_strings_is_left_as_it_is(text in ".{0,200}", other in ".{0,20}") {
            let document = serde_json::json!({ (other): [text, {"a": null}] }).to_string();
            prop_assert_eq!(shortened(&document).unwrap(), document);
        }
    }
}

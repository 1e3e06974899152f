//! Takes a page of a list apart while it arrives: only one object of it is in memory at a time.

use serde::Deserialize;
use serde::de::Error as _;

use crate::cluster::ObjectKey;
use crate::cluster::reply::Unreadable;

/// The most bytes of one object's metadata, unless a list has a limit of its own. API servers accept requests of 3 MiB.
pub(super) const LARGEST_ELEMENT: usize = 4 << 20;
/// The most bytes of what is around the objects: the list's own metadata.
const LARGEST_FRAME: usize = 256 << 10;

/// The text of one object of a list.
#[derive(Clone, Copy, Debug)]
pub struct Element<'t>(&'t [u8]);

#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    name: String,
    #[serde(default)]
    namespace: String,
}

impl Element<'_> {
    /// Its namespace and name alone, which takes less than to read the rest.
    pub fn key(&self) -> serde_json::Result<ObjectKey> {
        let Named { metadata } = serde_json::from_slice(self.0)?;
        Ok(ObjectKey::new(metadata.namespace, metadata.name))
    }

    pub fn read<'e, T: Deserialize<'e>>(&'e self) -> serde_json::Result<T> {
        serde_json::from_slice(self.0)
    }
}

/// Where the text of a page has been read to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementPosition {
    /// Before or after the objects.
    Frame,
    /// In the list of objects, between two of them.
    Between,
    /// Within an object.
    Element,
}

/// Finds the objects in the text of a page. What is around them is kept as [`Elements::frame`], in which the list of objects is empty.
///
/// Brackets and strings are all that is followed. Whether the texts are JSON at all is found out by whoever reads them, and what is
/// between two objects does not matter.
#[derive(Debug)]
pub(super) struct Elements {
    place: ElementPosition,
    /// Open brackets in the frame, or in the object.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    frame: Vec<u8>,
    element: Vec<u8>,
    largest: usize,
}

impl Elements {
    /// Objects with more than `largest` bytes are an error.
    pub(super) fn new(largest: usize) -> Self {
        let (frame, element) = (Vec::new(), Vec::new());
        Self { place: ElementPosition::Frame, depth: 0, in_string: false, is_escaped: false, frame, element, largest }
    }

    /// Calls `take` with each object that ends in the next part of the text.
    pub(super) fn feed(
        &mut self,
        text: &[u8],
        mut take: impl FnMut(Element<'_>) -> Result<(), Unreadable>,
    ) -> Result<(), Unreadable> {
        let mut rest = text;
        while !rest.is_empty() {
            rest = match self.place {
                ElementPosition::Frame => self.feed_frame(rest)?,
                ElementPosition::Between => self.feed_between(rest)?,
                ElementPosition::Element => {
                    let rest = self.feed_element(rest)?;
                    if self.place == ElementPosition::Between {
                        take(Element(&self.element))?;
                    }
                    rest
                }
            };
        }
        Ok(())
    }

    /// What is around the objects, once everything has been fed.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    fn feed_frame<'t>(&mut self, text: &'t [u8]) -> Result<&'t [u8], Unreadable> {
        for (at, byte) in text.iter().enumerate() {
            self.follow(*byte);
            if *byte == b'[' && !self.in_string && self.depth == 2 {
                let (read, rest) = text.split_at(at + 1);
                append(&mut self.frame, read, LARGEST_FRAME)?;
                if ends_with_items(&self.frame) {
                    self.place = ElementPosition::Between;
                }
                return Ok(rest);
            }
        }
        append(&mut self.frame, text, LARGEST_FRAME)?;
        Ok(&[])
    }

    fn feed_between<'t>(&mut self, text: &'t [u8]) -> Result<&'t [u8], Unreadable> {
        let is_space = |byte: &u8| matches!(byte, b',' | b' ' | b'\n' | b'\r' | b'\t');
        let Some(at) = text.iter().position(|byte| !is_space(byte)) else { return Ok(&[]) };
        match text.get(at) {
            Some(b'{') => {
                (self.place, self.depth) = (ElementPosition::Element, 0);
                self.element.clear();
            }
            // The frame goes on with the end of the list.
            Some(b']') => (self.place, self.depth) = (ElementPosition::Frame, 2),
            _ => return Err(serde_json::Error::custom("the list has something that is no object").into()),
        }
        Ok(text.get(at..).unwrap_or_default())
    }

    fn feed_element<'t>(&mut self, text: &'t [u8]) -> Result<&'t [u8], Unreadable> {
        for (at, byte) in text.iter().enumerate() {
            self.follow(*byte);
            if self.depth == 0 {
                let (read, rest) = text.split_at(at + 1);
                append(&mut self.element, read, self.largest)?;
                self.place = ElementPosition::Between;
                return Ok(rest);
            }
        }
        append(&mut self.element, text, self.largest)?;
        Ok(&[])
    }

    fn follow(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

fn append(to: &mut Vec<u8>, text: &[u8], most: usize) -> Result<(), Unreadable> {
    if to.len().saturating_add(text.len()) > most {
        return Err(Unreadable::TooMuch(format!("a part of the list has more than {} KiB", most >> 10)));
    }
    to.extend_from_slice(text);
    Ok(())
}

/// Whether a frame ends with `"items": [` as a member of the outermost object. A string before a colon is always a name.
fn ends_with_items(frame: &[u8]) -> bool {
    let before = |text: &'_ [u8], end: &[u8]| text.trim_ascii_end().strip_suffix(end).map(<[u8]>::len);
    let cut = |length: Option<usize>| length.and_then(|length| frame.get(..length));
    let named = cut(before(frame, b"[")).and_then(|text| cut(before(text, b":")));
    let begins = named.and_then(|text| cut(before(text, b"\"items\"")));
    begins.is_some_and(|text| matches!(text.trim_ascii_end().last(), Some(b'{' | b',')))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The objects and the frame of a text that arrives in parts of this size.
    fn in_parts(text: &str, size: usize) -> Result<(Vec<Value>, Value), Unreadable> {
        let (mut elements, mut found) = (Elements::new(LARGEST_ELEMENT), Vec::new());
        for part in text.as_bytes().chunks(size) {
            elements.feed(part, |element| {
                found.push(element.read()?);
                Ok(())
            })?;
        }
        Ok((found, serde_json::from_slice(elements.frame())?))
    }

    #[test]
    fn objects_and_frame_are_the_same_however_the_text_arrives() {
        let tricky =
            json!({"metadata": {"name": "a\"}]{", "labels": {"x": "\\", "y": "é]}"}}, "items": [[1, {"items": []}]]});
        let items = vec![tricky, json!({}), json!({"a": [{}, "[{"]})];
        let page = json!({"apiVersion": "items", "a": [{"items": [1]}, "\"items\":["], "items": items, "metadata": {"continue": "t}]"}});
        let mut frame = page.clone();
        frame["items"] = json!([]);
        for text in [page.to_string(), serde_json::to_string_pretty(&page).unwrap()] {
            for size in 1..=text.len() {
                assert_eq!(in_parts(&text, size).unwrap(), (items.clone(), frame.clone()), "in parts of {size}");
            }
        }
    }

    #[test]
    fn other_lists_stay_in_the_frame() {
        for text in [
            r#"{"items":null,"metadata":{}}"#,
            r#"{"metadata":{"items":[{}]}}"#,
            r#"{"xitems":[{}],"\"items":[{}]}"#,
            r#"[{"items":[{}]}]"#,
        ] {
            let (found, frame) = in_parts(text, 3).unwrap();
            assert_eq!((found.len(), frame), (0, serde_json::from_str(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_objects_is_an_error() {
        for text in
            [r#"{"items":[1]}"#, r#"{"items":[[{}]]}"#, r#"{"items":[{"a"}]}"#, r#"{"items":[{}"#, "<html>", "{"]
        {
            in_parts(text, 4).expect_err(text);
        }
    }

    #[test]
    fn an_object_and_the_frame_have_a_limit() {
        let object = |bytes: usize| format!(r#"{{"items":[{{"a":"{}"}}]}}"#, "a".repeat(bytes - 8));
        assert_eq!(in_parts(&object(LARGEST_ELEMENT), 1 << 16).unwrap().0.len(), 1);
        let error = in_parts(&object(LARGEST_ELEMENT + 1), 1 << 16).unwrap_err();
        assert_eq!(error.to_string(), "a part of the list has more than 4096 KiB");
        let frame = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "a".repeat(bytes - 8));
        assert!(in_parts(&frame(LARGEST_FRAME), 1 << 16).is_ok());
        let error = in_parts(&frame(LARGEST_FRAME + 1), 1 << 16).unwrap_err();
        assert_eq!(error.to_string(), "a part of the list has more than 256 KiB");
    }

    #[test]
    fn the_key_of_an_object_is_read_alone() {
        let key = |text: &str| Element(text.as_bytes()).key();
        let found = key(r#"{"kind": "x", "metadata": {"uid": "u", "name": "a", "namespace": "n"}, "name": "b"}"#);
        assert_eq!(found.unwrap(), ObjectKey::new("n", "a"));
        assert_eq!(key(r#"{"metadata": {"name": "a"}}"#).unwrap(), ObjectKey::new("", "a"));
        key(r#"{"metadata": {"namespace": "n"}}"#).unwrap_err();
    }
}

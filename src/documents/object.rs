//! A document as lists and watches send it: rendered once for all watches.

use std::fmt;
use std::sync::{Arc, Weak};

use super::document::Document;
use super::filter::Fields;

/// A document in the form that clients see. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    json: Arc<[u8]>,
    /// The end of the metadata, which come first.
    metadata_end: usize,
    version: i64,
}

/// An object that others hold or do not hold any more.
#[derive(Clone, Debug)]
pub struct WeakObject {
    json: Weak<[u8]>,
    length: usize,
}

impl WeakObject {
    /// The whole document as JSON on one line, if somebody still holds it.
    pub fn json(&self) -> Option<Arc<[u8]>> {
        self.json.upgrade()
    }

    /// The length of the JSON.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Object {
    /// A handle that does not keep the JSON alive.
    pub fn downgrade(&self) -> WeakObject {
        WeakObject { json: Arc::downgrade(&self.json), length: self.json.len() }
    }

    pub fn of(document: &Document) -> Self {
        // Texts, numbers and maps with text keys always become JSON.
        let json = serde_json::to_vec(document).unwrap_or_default();
        let metadata = serde_json::to_vec(&document.metadata()).unwrap_or_default();
        // Without the closing brace.
        let metadata_end = metadata.len().saturating_sub(1);
        Self { json: json.into(), metadata_end, version: document.version }
    }

    /// A document that has been rendered, with the end of its metadata.
    pub(super) fn rendered(json: &[u8], metadata_end: usize, version: i64) -> Self {
        Self { json: json.into(), metadata_end, version }
    }

    /// Its resource version.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The whole document as JSON on one line.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// The length of the metadata, which come first, without the brace that closes them.
    pub(super) fn metadata_end(&self) -> usize {
        self.metadata_end
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.json.len()
    }

    /// Appends the document as JSON on one line.
    pub fn write(&self, fields: Fields, into: &mut Vec<u8>) {
        match fields {
            Fields::All => into.extend_from_slice(&self.json),
            Fields::Metadata => {
                into.extend_from_slice(self.json.get(..self.metadata_end).unwrap_or_default());
                into.push(b'}');
            }
        }
    }
}

/// The whole document as JSON: its bytes can be sent without a copy.
impl AsRef<[u8]> for Object {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&self.json))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_metadata_are_the_beginning_of_the_document() {
        for deleted in [None, Some("2026-11-22T00:00:00Z".parse().expect("a time"))] {
            let row = r#"{"id": "6f1c0000-0000-4000-8000-000000000000", "data": {}, "kind": "clusters", "name": "c1",
                "labels": {"env": "prod"}, "status": {}, "version": 41, "namespace": "foo", "finalizers": [], "generation": 1,
                "created_at": "2026-11-21T23:40:00+00:00", "deleted_at": null, "updated_at": "2026-11-21T23:40:00+00:00",
                "annotations": {}}"#;
            let mut document = Document::from_row(row).expect("a row");
            document.deleted_at = deleted;
            document.data.insert("paused".to_owned(), json!(false));
            document.status.insert("a\nb".to_owned(), json!("c\nd"));
            let object = Object::of(&document);
            assert_eq!(object.version(), 41);
            let written = |fields| {
                let mut written = Vec::new();
                object.write(fields, &mut written);
                assert!(!written.contains(&b'\n'));
                serde_json::from_slice::<Value>(&written).expect("JSON")
            };
            assert_eq!(written(Fields::All), serde_json::to_value(&document).expect("JSON"));
            assert_eq!(written(Fields::Metadata), serde_json::to_value(document.metadata()).expect("JSON"));
        }
    }
}

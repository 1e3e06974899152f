//! A document as a watch sends it: rendered once for all watches.

use std::fmt;
use std::sync::Arc;

use crate::documents::document::Document;
use crate::documents::filter::Fields;

/// A document in the form that clients see. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    json: Arc<[u8]>,
    /// The end of the metadata, which come first.
    metadata_end: usize,
    version: i64,
}

impl Object {
    /// Renders a document.
    pub fn of(document: &Document) -> Self {
        // Texts, numbers and maps with text keys always become JSON.
        let json = serde_json::to_vec(document).unwrap_or_default();
        let metadata = serde_json::to_vec(&document.metadata()).unwrap_or_default();
        // Without the closing brace.
        let metadata_end = metadata.len().saturating_sub(1);
        Self { json: json.into(), metadata_end, version: document.version }
    }

    /// Its resource version.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The whole document as JSON on one line.
    pub fn json(&self) -> &[u8] {
        &self.json
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

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.json.len()
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
    use crate::documents::tail::entry::tests::document;

    #[test]
    fn the_metadata_are_the_beginning_of_the_document() {
        for deleted in [None, Some("2026-11-22T00:00:00Z".parse().expect("a time"))] {
            let mut document = document(41, "c1", &[("env", "prod")]);
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

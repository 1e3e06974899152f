//! The size of a whole document.

use std::collections::BTreeMap;

use crate::documents::body::{
    LARGEST, LARGEST_BUILT, LEVELS, extent_of_map, length_of_text, too_deep, too_large, too_many_parts,
};
use crate::documents::document::Document;
use crate::documents::problem::Problem;

/// Names of the columns, id, versions and times: at most so many bytes in a row of the log.
const FIXED: usize = 512;

/// Checks that a document can be stored, and its row of the log be read again.
pub(super) fn check(document: &Document, sealed: Option<&[u8]>) -> Result<(), Problem> {
    let (data, status) = (extent_of_map(&document.data), extent_of_map(&document.status));
    // `data` is one level above its fields in a row; for clients its fields are on the first level, as `status` is.
    if data.levels > LEVELS || status.levels + 1 > LEVELS {
        let pointer = if data.levels > LEVELS { "" } else { "/status" };
        return Err(too_deep(pointer.to_owned()));
    }
    if data.built + status.built > LARGEST_BUILT {
        return Err(too_many_parts());
    }
    let texts = |map: &BTreeMap<String, String>| -> usize {
        map.iter().map(|(key, value)| length_of_text(key) + length_of_text(value) + 4).sum()
    };
    let finalizers: usize = document.finalizers.iter().map(|name| length_of_text(name) + 2).sum();
    let names = length_of_text(&document.name) + length_of_text(&document.namespace);
    let metadata = FIXED + names + texts(&document.labels) + texts(&document.annotations) + finalizers;
    let whole = metadata + data.bytes + status.bytes + sealed.map_or(0, <[u8]>::len);
    if whole > LARGEST { Err(too_large()) } else { Ok(()) }
}

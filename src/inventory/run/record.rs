//! Reads the record of a release.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;

use super::super::config::Storage;
use super::super::plan::index::ReadFailure;
use super::super::plan::release::{Recorded, Undecodable, decode};
use super::kinds::storage;
use crate::cluster::{Cluster, ObjectKey, Retry};

/// The part of an object that stores a release.
#[derive(Deserialize)]
struct Stored<'c> {
    #[serde(borrow)]
    data: Data<'c>,
}

#[derive(Deserialize)]
struct Data<'c> {
    #[serde(borrow)]
    release: Cow<'c, str>,
}

/// Reads an object that stores a release, if it still has this version. Unpacking takes a while, so it has a thread of its own.
pub async fn read(
    cluster: Cluster,
    stored: Storage,
    key: ObjectKey,
    version: Arc<str>,
) -> Result<Recorded, ReadFailure> {
    let object = match cluster.get(&storage(stored), &key).await {
        Ok(object) => object.filter(|object| object.resource_version == version).ok_or(ReadFailure::Changed)?,
        Err(error) if error.retry() == Retry::WhenElected => return Err(ReadFailure::Changed),
        Err(error) => return Err(ReadFailure::Cluster(error.to_string())),
    };
    let decoding = tokio::task::spawn_blocking(move || decode_content(object.content.as_str(), stored));
    match decoding.await {
        Ok(decoded) => decoded.map_err(ReadFailure::Undecodable),
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

fn decode_content(content: &str, stored: Storage) -> Result<Recorded, Undecodable> {
    let Stored { data: Data { release } } = serde_json::from_str(content).map_err(|_| Undecodable::Malformed)?;
    decode(&release, stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_record_is_no_release() {
        for content in ["{}", r#"{"data":{}}"#, r#"{"data":{"release":7}}"#, r#"{"data":{"release":"e30="}}"#] {
            assert_eq!(decode_content(content, Storage::ConfigMap), Err(Undecodable::Malformed), "{content}");
        }
    }
}

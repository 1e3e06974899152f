//! How the body of a successful answer is read.

use http::StatusCode;
use serde::de::DeserializeOwned;

/// What a successful answer can be read as: anything that is deserialized, alone or with the answer's status.
pub trait Readable: Sized {
    /// Reads the body of an answer with this status.
    fn read(status: StatusCode, body: &[u8]) -> serde_json::Result<Self>;
}

impl<T: DeserializeOwned> Readable for T {
    fn read(_: StatusCode, body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }
}

/// The body of an answer, and whether the status is 201: the request has created the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stated<T> {
    /// Whether the object did not exist before.
    pub created: bool,
    /// The body.
    pub body: T,
}

impl<T: DeserializeOwned> Readable for Stated<T> {
    fn read(status: StatusCode, body: &[u8]) -> serde_json::Result<Self> {
        Ok(Self { created: status == StatusCode::CREATED, body: serde_json::from_slice(body)? })
    }
}

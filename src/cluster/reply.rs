//! How the body of a successful answer is read.

use std::marker::PhantomData;

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

/// Why the body of a successful answer can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// It is not what was asked for. The text may quote the body.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It has more of something than is read; in words of our own.
    #[error("{0}")]
    TooMuch(String),
}

/// The body of a successful answer while it arrives.
pub(super) trait Reading {
    /// What it is read as.
    type Read;

    /// Takes the next part.
    fn take(&mut self, data: &[u8]) -> Result<(), Unreadable>;

    /// Everything has arrived, with this status.
    fn end(self, status: StatusCode) -> serde_json::Result<Self::Read>;
}

/// A body that is read once all of it is there.
pub(super) struct Whole<T>(Vec<u8>, PhantomData<fn() -> T>);

impl<T> Default for Whole<T> {
    fn default() -> Self {
        Self(Vec::new(), PhantomData)
    }
}

impl<T: Readable> Reading for Whole<T> {
    type Read = T;

    fn take(&mut self, data: &[u8]) -> Result<(), Unreadable> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn end(self, status: StatusCode) -> serde_json::Result<T> {
        T::read(status, &self.0)
    }
}

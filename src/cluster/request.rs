//! One request for one object: its verb, its kind and key, and its body.

use std::fmt::Display;

use http::header::{ACCEPT, CONTENT_TYPE};
use kube::client::Body;
use serde_json::Value;

use super::Verb;
use super::kind::Kind;
use super::object::ObjectKey;

/// The media type of everything but patches.
pub(super) const JSON: &str = "application/json";

/// A body with its media type, as text: as values, the fields of a large object take ten times as much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    media_type: &'static str,
    bytes: Vec<u8>,
}

impl Payload {
    fn new(media_type: &'static str, body: &impl Display) -> Self {
        Self { media_type, bytes: body.to_string().into_bytes() }
    }

    /// Of a request that only reads.
    pub fn none() -> Self {
        Self { media_type: JSON, bytes: Vec::new() }
    }

    /// A whole object, or the options of a deletion.
    pub fn json(body: &impl Display) -> Self {
        Self::new(JSON, body)
    }

    /// A merge patch (RFC 7386): lists are replaced as a whole, null removes a field.
    pub fn merge_patch(body: &impl Display) -> Self {
        Self::new("application/merge-patch+json", body)
    }

    /// A JSON patch (RFC 6902): a list of operations.
    pub fn json_patch(operations: &Value) -> Self {
        Self::new("application/json-patch+json", operations)
    }

    /// Its media type and its text.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&'static str, &str) {
        (self.media_type, std::str::from_utf8(&self.bytes).unwrap())
    }
}

/// One request for one object or collection.
pub struct Request<'a> {
    pub(super) verb: Verb,
    pub(super) kind: &'a Kind,
    /// For a create the name is the new object's.
    pub(super) key: &'a ObjectKey,
    /// Or empty.
    subresource: &'static str,
    payload: Payload,
    manager: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// A request for an object itself.
    pub fn new(verb: Verb, kind: &'a Kind, key: &'a ObjectKey, payload: Payload) -> Self {
        Self { verb, kind, key, subresource: "", payload, manager: None }
    }

    /// Reads an object.
    pub fn get(kind: &'a Kind, key: &'a ObjectKey) -> Self {
        Self::new(Verb::Get, kind, key, Payload::none())
    }

    /// Creates an object.
    pub fn create(kind: &'a Kind, key: &'a ObjectKey, body: &Value) -> Self {
        Self::new(Verb::Create, kind, key, Payload::json(body))
    }

    /// Changes parts of an object.
    pub fn patch(kind: &'a Kind, key: &'a ObjectKey, patch: Payload) -> Self {
        Self::new(Verb::Patch, kind, key, patch)
    }

    /// The same request for a subresource; an empty name stands for the object itself.
    #[must_use]
    pub fn on(self, subresource: &'static str) -> Self {
        Self { subresource, ..self }
    }

    /// The same request by this field manager, as writes need one.
    #[must_use]
    pub fn by(self, manager: &'a str) -> Self {
        Self { manager: Some(manager), ..self }
    }

    /// `plural.group`, with `/subresource`.
    pub(super) fn full_resource(&self) -> String {
        let resource = self.kind.full_resource();
        if self.subresource.is_empty() { resource } else { format!("{resource}/{}", self.subresource) }
    }

    /// The HTTP message, with `accept` as the media type of the reply.
    pub(super) fn into_message(self, accept: &'static str) -> Result<http::Request<Body>, http::Error> {
        let mut path = match self.verb {
            Verb::Create => self.kind.collection_path(&self.key.namespace),
            _ => self.kind.object_path(self.key),
        };
        if !self.subresource.is_empty() {
            path.push('/');
            path.push_str(self.subresource);
        }
        // By default the server names each unknown field in a header of its own. With more than about 93 of them the reply has
        // more headers than hyper accepts, and a successful write would look like a lost connection.
        if matches!(self.verb, Verb::Create | Verb::Update | Verb::Patch) {
            path.push_str("?fieldValidation=Ignore");
            if let Some(manager) = self.manager {
                path.push_str("&fieldManager=");
                path.push_str(manager);
            }
        }
        let method = match self.verb {
            Verb::Create => http::Method::POST,
            Verb::Update => http::Method::PUT,
            Verb::Patch => http::Method::PATCH,
            Verb::Delete => http::Method::DELETE,
            Verb::Get | Verb::List | Verb::Watch => http::Method::GET,
        };
        http::Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, self.payload.media_type)
            .body(Body::from(self.payload.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::PARTIAL_METADATA;

    #[test]
    fn a_write_requests_no_warning_for_each_unknown_field() {
        let (kind, key) = (Kind::core("Secret", "secrets", true), ObjectKey::new("team", "orders"));
        for verb in [Verb::Create, Verb::Update, Verb::Patch] {
            let request = Request::new(verb, &kind, &key, Payload::none()).by("towline");
            let message = request.into_message(PARTIAL_METADATA).unwrap();
            assert_eq!(message.uri().query(), Some("fieldValidation=Ignore&fieldManager=towline"));
        }
    }
}

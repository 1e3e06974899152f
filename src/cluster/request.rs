//! One request for one object: its verb, its kind and key, and its body.

use std::fmt::Display;

use http::header::{ACCEPT, CONTENT_TYPE};
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

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

    /// The empty payload of a request that only reads.
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

    /// A strategic merge patch: a merge patch in which the kind says which lists are merged by a key. Kinds of custom resource
    /// definitions have none (415).
    pub fn strategic_merge_patch(body: &impl Display) -> Self {
        Self::new("application/strategic-merge-patch+json", body)
    }

    /// An object to apply. JSON is YAML.
    pub fn apply(body: &impl Display) -> Self {
        Self::new("application/apply-patch+yaml", body)
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

/// Propagation of a delete to dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Foreground,
    Background,
    Orphan,
}

impl Propagation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Foreground => "Foreground",
            Self::Background => "Background",
            Self::Orphan => "Orphan",
        }
    }
}

/// Why a request is not sent at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsendable {
    /// Its parts are no HTTP message.
    #[error(transparent)]
    Message(#[from] http::Error),
    /// The path would lead elsewhere. Without a name, a DELETE would delete the whole collection.
    #[error("{what} {found:?} can't be part of a path")]
    Segment {
        /// `name` or `namespace`.
        what: &'static str,
        found: String,
    },
}

/// Fails for a text that leads elsewhere as part of a path, in whatever way it is encoded: a server decodes `%2F` before it looks
/// at the parts of a path.
fn segment(what: &'static str, text: &str) -> Result<(), Unsendable> {
    if matches!(text, "" | "." | "..") || text.contains(['/', '%']) || text.chars().any(char::is_control) {
        return Err(Unsendable::Segment { what, found: text.to_owned() });
    }
    Ok(())
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
    is_forced: bool,
    is_tried: bool,
}

impl<'a> Request<'a> {
    /// A request for an object itself.
    pub fn new(verb: Verb, kind: &'a Kind, key: &'a ObjectKey, payload: Payload) -> Self {
        Self { verb, kind, key, subresource: "", payload, manager: None, is_forced: false, is_tried: false }
    }

    pub fn get(kind: &'a Kind, key: &'a ObjectKey) -> Self {
        Self::new(Verb::Get, kind, key, Payload::none())
    }

    pub fn create(kind: &'a Kind, key: &'a ObjectKey, body: &Value) -> Self {
        Self::new(Verb::Create, kind, key, Payload::json(body))
    }

    pub fn patch(kind: &'a Kind, key: &'a ObjectKey, patch: Payload) -> Self {
        Self::new(Verb::Patch, kind, key, patch)
    }

    /// Applies an object (server-side apply), which needs a [manager](Self::by).
    pub fn apply(kind: &'a Kind, key: &'a ObjectKey, body: &Value) -> Self {
        Self::patch(kind, key, Payload::apply(body))
    }

    /// Deletes an object if it still has this UID, and this version if one is given.
    pub fn delete(
        kind: &'a Kind,
        key: &'a ObjectKey,
        uid: &str,
        version: Option<&str>,
        propagation: Propagation,
    ) -> Self {
        let preconditions = match version {
            Some(version) => json!({"uid": uid, "resourceVersion": version}),
            None => json!({"uid": uid}),
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation.as_str(),
            "preconditions": preconditions,
        });
        Self::new(Verb::Delete, kind, key, Payload::json(&body))
    }

    /// The same apply, which also takes fields that other managers own.
    #[must_use]
    pub fn forced(self) -> Self {
        Self { is_forced: true, ..self }
    }

    /// The same request as a dry run: the server decides and answers, and stores nothing.
    #[must_use]
    pub fn tried(self) -> Self {
        Self { is_tried: true, ..self }
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
    pub(super) fn into_message(self, accept: &'static str) -> Result<http::Request<Body>, Unsendable> {
        segment("name", &self.key.name)?;
        if self.kind.namespaced {
            segment("namespace", &self.key.namespace)?;
        }
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
        let is_write = matches!(self.verb, Verb::Create | Verb::Update | Verb::Patch);
        let mut parameters = Vec::new();
        if is_write {
            parameters.push("fieldValidation=Ignore".to_owned());
        }
        if let Some(manager) = self.manager.filter(|_| is_write) {
            parameters.push(format!("fieldManager={}", utf8_percent_encode(manager, PARAMETER)));
        }
        if self.is_forced {
            parameters.push("force=true".to_owned());
        }
        if self.is_tried {
            parameters.push("dryRun=All".to_owned());
        }
        if !parameters.is_empty() {
            path.push('?');
            path.push_str(&parameters.join("&"));
        }
        let method = match self.verb {
            Verb::Create => http::Method::POST,
            Verb::Update => http::Method::PUT,
            Verb::Patch => http::Method::PATCH,
            Verb::Delete => http::Method::DELETE,
            Verb::Get | Verb::List | Verb::Watch => http::Method::GET,
        };
        Ok(http::Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, accept)
            .header(CONTENT_TYPE, self.payload.media_type)
            .body(Body::from(self.payload.bytes))?)
    }
}

/// What is encoded in the value of a parameter: everything but what field managers are named with.
const PARAMETER: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::PARTIAL_METADATA;

    fn path(kind: &Kind, namespace: &str, name: &str) -> Result<String, Unsendable> {
        let key = ObjectKey::new(namespace, name);
        let message =
            Request::delete(kind, &key, "u-1", None, Propagation::Background).into_message(PARTIAL_METADATA)?;
        Ok(message.uri().to_string())
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_never_sent() {
        let (secrets, namespaces) =
            (Kind::core("Secret", "secrets", true), Kind::core("Namespace", "namespaces", false));
        for wrong in ["", ".", "..", "a/b", "/", "%2e%2e", "a%2Fb", "a\n"] {
            let told = path(&secrets, "team", wrong).unwrap_err().to_string();
            assert_eq!(told, format!("name {wrong:?} can't be part of a path"));
            let told = path(&secrets, wrong, "orders").unwrap_err().to_string();
            assert_eq!(told, format!("namespace {wrong:?} can't be part of a path"));
            assert!(path(&namespaces, "", wrong).is_err(), "{wrong:?}");
            let key = ObjectKey::new("team", wrong);
            assert!(Request::create(&secrets, &key, &Value::Null).into_message(PARTIAL_METADATA).is_err(), "{wrong:?}");
        }
        assert_eq!(path(&namespaces, "ignored", "team").unwrap(), "/api/v1/namespaces/team");
    }

    #[test]
    fn every_part_of_a_path_is_encoded() {
        let secrets = Kind::core("Secret", "secrets", true);
        for (name, encoded) in [
            ("orders-1.west_2~3", "orders-1.west_2~3"),
            ("system:node", "system:node"),
            ("a?dryRun=All", "a%3FdryRun%3DAll"),
            ("a#b", "a%23b"),
            ("a b", "a%20b"),
            ("ä", "%C3%A4"),
            ("a;b,c&d", "a%3Bb%2Cc%26d"),
        ] {
            assert_eq!(path(&secrets, name, "o").unwrap(), format!("/api/v1/namespaces/{encoded}/secrets/o"));
            assert_eq!(path(&secrets, "t", name).unwrap(), format!("/api/v1/namespaces/t/secrets/{encoded}"));
        }
    }

    #[test]
    fn the_parameters_of_a_request_are_those_of_its_verb() {
        let (kind, key) = (Kind::core("Secret", "secrets", true), ObjectKey::new("team", "orders"));
        let parameters = |request: Request<'_>| {
            request.into_message(PARTIAL_METADATA).unwrap().uri().query().unwrap_or_default().to_owned()
        };
        let apply = || Request::apply(&kind, &key, &Value::Null).by("towline");
        assert_eq!(parameters(apply()), "fieldValidation=Ignore&fieldManager=towline");
        assert_eq!(parameters(apply().forced()), "fieldValidation=Ignore&fieldManager=towline&force=true");
        assert_eq!(
            parameters(apply().forced().tried()),
            "fieldValidation=Ignore&fieldManager=towline&force=true&dryRun=All"
        );
        assert_eq!(parameters(apply().by("a&b=c")), "fieldValidation=Ignore&fieldManager=a%26b%3Dc");
        let delete = || Request::delete(&kind, &key, "u-1", None, Propagation::Background);
        assert_eq!(parameters(delete().by("towline")), "");
        assert_eq!(parameters(delete().tried()), "dryRun=All");
        assert_eq!(parameters(Request::get(&kind, &key)), "");
    }

    #[test]
    fn a_deletion_names_the_uid_and_the_version_if_there_is_one() {
        let (kind, key) = (Kind::core("Secret", "secrets", true), ObjectKey::new("team", "orders"));
        for (version, expected) in
            [(None, json!({"uid": "u-1"})), (Some("7"), json!({"uid": "u-1", "resourceVersion": "7"}))]
        {
            let request = Request::delete(&kind, &key, "u-1", version, Propagation::Background);
            let body: Value = serde_json::from_str(request.payload.parts().1).unwrap();
            assert_eq!(body["preconditions"], expected);
            assert_eq!(body["propagationPolicy"], "Background");
        }
    }

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

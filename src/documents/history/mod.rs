//! Who did what, and when: the records in `towline_history`.
//!
//! A change of a document by a client carries its [`Record`], which the statement of the change writes: there is no change without
//! its record, and no record without its change. A status has none, whether a client or a pass writes it. [`difference`] compares what there was with
//! what there is; it is pure. [`page`] reads records, the newest first.

mod difference;
mod read;

use std::net::IpAddr;

use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

pub use difference::Details;
pub use read::{FORGOTTEN, HistoryQuery, Position, StoredRecord, Subject, page};

use super::document::Document;
use super::kind::{Kind, Sealed};

/// Who asks for something, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Author {
    /// The name of the token; empty without one.
    pub actor: String,
    /// The address of the client, or of the proxy before the hub; empty if it is not known.
    pub address: String,
    /// The way in.
    pub via: Via,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// The REST API.
    Api,
    /// The admin server of a daemon.
    Admin,
}

/// What is recorded of a change. As JSON it is a part of what the procedure `towline_write` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    #[serde(flatten)]
    author: Author,
    verb: &'static str,
    /// JSON as text, so that the database stores it as it is.
    details: String,
}

impl Author {
    pub fn of_api(actor: String, address: Option<IpAddr>) -> Self {
        Self { actor, address: shown(address), via: Via::Api }
    }

    pub fn of_admin(address: IpAddr) -> Self {
        Self { actor: String::new(), address: shown(Some(address)), via: Via::Admin }
    }
}

/// What an operator did that is no change of a document. [`Entry::statement`] writes it, beside what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    #[serde(flatten)]
    author: Author,
    verb: &'static str,
    /// Its kind, by its plural; empty in what concerns no document.
    kind: &'static str,
    namespace: String,
    name: String,
    id: Option<Uuid>,
    /// JSON as text.
    details: String,
}

impl Entry {
    /// Something about documents of a kind: of one, or without its name of several in a namespace.
    pub fn of(author: Author, verb: &'static str, kind: Kind, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { author, verb, kind: kind.plural(), namespace, name, id: None, details: "{}".to_owned() }
    }

    /// Something about the hub as a whole: only administrators see it.
    pub fn of_all(author: Author, verb: &'static str) -> Self {
        Self { kind: "", ..Self::of(author, verb, Kind::Cluster, "", "") }
    }

    #[must_use]
    pub fn with_id(self, id: Uuid) -> Self {
        Self { id: Some(id), ..self }
    }

    #[must_use]
    pub fn noting(self, note: &str) -> Self {
        Self { details: json!({ "note": note }).to_string(), ..self }
    }

    /// The statement that writes the entry which is its parameter of this number, as JSON.
    pub fn statement(parameter: usize) -> String {
        format!(
            "insert into towline_history (at, actor, address, via, verb, kind, namespace, name, id, details) \
             select clock_timestamp(), r.actor, r.address, r.via, r.verb, r.kind, r.namespace, r.name, r.id, r.details \
             from jsonb_to_record(${parameter}::jsonb) as r(actor text, address text, via text, verb text, kind text, namespace text, \
               name text, id uuid, details text)"
        )
    }
}

/// An address of IPv4 as such, also where the socket is one of IPv6.
fn shown(address: Option<IpAddr>) -> String {
    address.map(|address| address.to_canonical().to_string()).unwrap_or_default()
}

impl Record {
    /// What a request has made of the document that was there, in the words for both. `sealed` is the field that it sealed anew.
    pub fn of(
        author: &Author,
        [verb, result]: [&'static str; 2],
        [before, after]: [Option<&Document>; 2],
        sealed: Option<Sealed>,
    ) -> Self {
        let mut details = Details::of(before, after);
        details.result = Some(result);
        details.hidden.extend(sealed.map(Sealed::field));
        Self { author: author.clone(), verb, details: details.into_text() }
    }
}

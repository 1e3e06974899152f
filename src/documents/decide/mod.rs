//! Decisions: what a request makes of a document. They are pure, and made again from what was read again if another write came first.

mod deletion;
mod precondition;
mod sealed;
mod status;
mod wanted;

use std::collections::BTreeMap;

use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::body::{
    Body, LARGEST, LARGEST_BUILT, LEVELS, extent_of_map, length_of_text, same_map, too_deep, too_large, too_many_parts,
};
use super::document::{Document, Key, Timestamp};
use super::item::{Change, Expected, Item, Row};
use super::keyring::{Keyring, NONCE};
use super::kind::Kind;
use super::operations::Operations;
use super::problem::{Problem, ProblemKind};
use super::store::Stored;

pub use precondition::IfMatch;
use sealed::Edit;
use wanted::Wanted;

/// Names of the columns, id, versions and times: at most so many bytes in a row of the log.
const FIXED: usize = 512;

/// What a client wants of a document.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: Key,
    pub action: Action,
    /// The condition in `If-Match`.
    pub condition: Option<IfMatch>,
    /// Whether everything is checked and nothing written.
    pub dry_run: bool,
}

/// What to do with a document.
#[derive(Clone, Debug)]
pub enum Action {
    Create(Body),
    /// Create it, or bring it to this state.
    Apply(Body),
    Replace(Part, Body),
    /// Change it by a merge patch.
    Merge(Part, Body),
    /// Change it by a JSON patch.
    Patch(Part, Operations),
    /// Delete it; a body may say which document is meant, and which version of it.
    Delete(Option<Body>),
}

/// Which part of a document a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Document,
    Status,
}

/// What a decision needs beside the document and the request.
pub struct Context<'c> {
    pub keyring: &'c Keyring,
    /// Values that are drawn for this decision.
    pub fresh: Fresh,
}

/// Random and timely values, drawn anew for each decision.
#[derive(Clone, Debug)]
pub struct Fresh {
    /// Identifies the write.
    pub request: Uuid,
    /// Id of a new document.
    pub id: Uuid,
    /// Id of a new cluster's `ClusterSync`.
    pub sync: Uuid,
    /// For a value that is sealed.
    pub nonce: [u8; NONCE],
    /// Stands for the database's time until the database has written.
    pub now: Timestamp,
}

/// What a request makes of a document.
#[derive(Clone, PartialEq)]
pub struct Decision {
    pub effect: Effect,
    /// The document as the client will see it. Version and times come from the write, see [`Decision::written`].
    pub document: Document,
    /// What has to be written; `None` if nothing changes.
    pub item: Option<Item>,
    /// Whether a syncset has no rollout any more, so that its newest content goes to all of its clusters at once.
    pub ends_rollout: bool,
}

/// What a request has made of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    Created,
    Changed,
    Unchanged,
    Deleted,
    /// It will be gone as soon as it has no finalizers.
    Deleting,
}

impl Action {
    /// What it is called in the record of who did what. A change of the status has none: reporters write it all the time.
    pub fn verb(&self) -> Option<&'static str> {
        match self {
            Self::Create(_) => Some("create"),
            Self::Apply(_) => Some("apply"),
            Self::Replace(Part::Document, _) => Some("replace"),
            Self::Merge(Part::Document, _) | Self::Patch(Part::Document, _) => Some("patch"),
            Self::Replace(Part::Status, _) | Self::Merge(Part::Status, _) | Self::Patch(Part::Status, _) => None,
            Self::Delete(_) => Some("delete"),
        }
    }
}

impl Effect {
    /// What it is called in the record of who did what. What changes nothing is not written, and so not recorded.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed | Self::Unchanged => "changed",
            Self::Deleted => "deleted",
            Self::Deleting => "waits for its finalizers",
        }
    }
}

impl Fresh {
    pub fn draw() -> Self {
        let [request, id, sync] = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
        Self { request, id, sync, nonce: rand::random(), now: jiff::Timestamp::now().into() }
    }
}

impl Decision {
    fn of(effect: Effect, document: Document, item: Option<Item>) -> Self {
        Self { effect, document, item, ends_rollout: false }
    }

    /// The document after the write.
    pub fn written(self, version: i64, at: &Timestamp) -> Document {
        let mut document = self.document;
        document.version = version;
        match self.effect {
            Effect::Created => (document.created_at, document.updated_at) = (at.clone(), at.clone()),
            Effect::Changed => document.updated_at = at.clone(),
            Effect::Deleting => (document.updated_at, document.deleted_at) = (at.clone(), Some(at.clone())),
            Effect::Unchanged | Effect::Deleted => {}
        }
        document
    }
}

/// Decides a request about the document that is present.
pub fn decide(present: Option<&Stored>, request: &Request, context: &Context<'_>) -> Result<Decision, Problem> {
    let part = match &request.action {
        Action::Replace(part, _) | Action::Merge(part, _) | Action::Patch(part, _) => *part,
        Action::Create(_) | Action::Apply(_) | Action::Delete(_) => Part::Document,
    };
    if part == Part::Document && !request.key.kind.is_written_by_clients() {
        let title =
            format!("the hub itself writes documents of kind {}; only their status can be changed", request.key.kind);
        return Err(Problem::new(ProblemKind::Method, title));
    }
    let decided = Deciding { request, context };
    match (&request.action, present) {
        (Action::Create(_), Some(_)) => Err(exists(&request.key)),
        (Action::Create(body), None) => {
            precondition::check_absent(request)?;
            decided.create(wanted::of_new(&request.key, body)?)
        }
        (Action::Apply(body), None) => {
            precondition::check_absent(request)?;
            decided.create(wanted::applied_to_new(wanted::of_new(&request.key, body)?)?)
        }
        (Action::Replace(part, body), present) => {
            precondition::check_given(request, body)?;
            let present = present.ok_or_else(|| not_found(&request.key))?;
            decided.revise(present, *part)
        }
        (_, None) => Err(not_found(&request.key)),
        (Action::Delete(_), Some(present)) => deletion::decide(present, request, context),
        (_, Some(present)) => decided.revise(present, part),
    }
}

/// A document of this name exists.
pub fn exists(key: &Key) -> Problem {
    Problem::new(ProblemKind::Exists, format!("{key} exists"))
}

pub fn not_found(key: &Key) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("there is no {key}"))
}

struct Deciding<'d> {
    request: &'d Request,
    context: &'d Context<'d>,
}

impl Deciding<'_> {
    fn revise(&self, present: &Stored, part: Part) -> Result<Decision, Problem> {
        match part {
            Part::Status => status::decide(present, self.request, self.context),
            Part::Document => self.change(present, wanted::of_present(present, self.request)?),
        }
    }

    fn create(&self, wanted: Wanted) -> Result<Decision, Problem> {
        let (key, fresh) = (&self.request.key, &self.context.fresh);
        let mut document = Document {
            kind: key.kind,
            id: fresh.id,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            labels: wanted.labels,
            annotations: wanted.annotations,
            finalizers: wanted.finalizers,
            generation: 1,
            version: 0,
            created_at: fresh.now.clone(),
            updated_at: fresh.now.clone(),
            deleted_at: None,
            data: wanted.data,
            status: Map::new(),
        };
        let edit = wanted.edit.or_else(|| key.kind.sealed().map(Edit::empty));
        let sealed = edit.map(|edit| edit.resolve(None, self.request.dry_run, self.context)).transpose()?.flatten();
        let sealed = sealed.map(|sealed| self.seal(&mut document, sealed)).transpose()?;
        check_size(&document, sealed.as_deref())?;
        let row = Row { sealed, ..Row::of(&document) };
        let mut changes = vec![Change { terms: wanted.terms, ..Change::put(key, Expected::Absent, row) }];
        if key.kind == Kind::Cluster {
            let sync = Document {
                id: fresh.sync,
                kind: Kind::ClusterSync,
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
                finalizers: Vec::new(),
                data: Map::new(),
                ..document.clone()
            };
            changes.push(Change::put(&sync.key(), Expected::Any, Row::of(&sync)));
        }
        let item = Item::of(fresh.request, changes);
        Ok(Decision::of(Effect::Created, document, Some(item)))
    }

    fn change(&self, present: &Stored, wanted: Wanted) -> Result<Decision, Problem> {
        let old = &present.document;
        let is_being_deleted = old.deleted_at.is_some();
        if is_being_deleted {
            deletion::check_finalizers(&old.finalizers, &wanted.finalizers)?;
        }
        let sealed = wanted.edit.map(|edit| edit.resolve(Some(present), self.request.dry_run, self.context));
        let sealed = sealed.transpose()?.flatten();
        let shown = sealed::shown_fields(old);
        let mut own = old.data.clone();
        own.retain(|field, _| !shown.contains(&field.as_str()));
        let is_own_change = sealed.is_some() || !same_map(&own, &wanted.data);
        let mut document = Document {
            labels: wanted.labels,
            annotations: wanted.annotations,
            finalizers: wanted.finalizers,
            generation: old.generation + i64::from(is_own_change),
            data: wanted.data,
            ..old.clone()
        };
        for field in shown {
            if let Some(value) = old.data.get(field) {
                document.data.insert(field.to_owned(), value.clone());
            }
        }
        let sealed = sealed.map(|sealed| self.seal(&mut document, sealed)).transpose()?;
        if is_being_deleted && document.finalizers.is_empty() {
            // What the write wants besides was never stored: the last state is the present one.
            return Ok(deletion::remove(old, self.context));
        }
        let is_metadata_change = (&document.labels, &document.annotations, &document.finalizers)
            != (&old.labels, &old.annotations, &old.finalizers);
        if !is_own_change && !is_metadata_change {
            return Ok(unchanged(old));
        }
        check_size(&document, sealed.as_ref().or(present.sealed.as_ref()).map(Vec::as_slice))?;
        let row = Row { sealed, ..Row::of(&document) };
        let mut change = Change::put(&self.request.key, Expected::Version(old.version), row);
        change.terms = wanted.terms.filter(|_| is_own_change);
        let item = Item::of(self.context.fresh.request, vec![change]);
        let rolls = |document: &Document| document.data.get("spec").and_then(|spec| spec.get("rollout")).is_some();
        let ends_rollout = rolls(old) && !rolls(&document);
        Ok(Decision { ends_rollout, ..Decision::of(Effect::Changed, document, Some(item)) })
    }

    /// Seals a new value, and sets what the document shows of it. The generation is that of the document.
    fn seal(&self, document: &mut Document, value: sealed::NewValue) -> Result<Vec<u8>, Problem> {
        let Context { keyring, fresh, .. } = self.context;
        if let Some(field) = document.kind.sealed() {
            document.data.insert(field.generation_field().to_owned(), json!(document.generation));
        }
        if let Some(names) = value.names {
            document.data.insert(sealed::NAMES.to_owned(), Value::from(names));
        }
        Ok(keyring.seal(&document.key(), document.id, value.plain.expose_secret(), fresh.nonce)?)
    }
}

fn unchanged(document: &Document) -> Decision {
    Decision::of(Effect::Unchanged, document.clone(), None)
}

/// Checks that a document can be stored, and its row of the log be read again.
fn check_size(document: &Document, sealed: Option<&[u8]>) -> Result<(), Problem> {
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

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

//! Deletions.

use super::{Action, Context, Decision, Effect, Request, Stored, precondition};
use crate::documents::body::Path;
use crate::documents::document::{Document, Key};
use crate::documents::item::{Change, Expected, Item, Row};
use crate::documents::kind::Kind;
use crate::documents::problem::{Fault, Problem};
use crate::documents::validate::{Faults, Identity};

/// What a body may say: which document is meant, and which version of it.
const OF_BODY: [&str; 5] = ["kind", "id", "namespace", "name", "resourceVersion"];

/// Without finalizers the document is removed; with some, its deletion is noted.
pub(super) fn decide(present: &Stored, request: &Request, context: &Context<'_>) -> Result<Decision, Problem> {
    let mut faults = Faults::default();
    let given = match &request.action {
        Action::Delete(Some(body)) => {
            faults.unknown_fields(body.fields(), &Path::Root, &OF_BODY);
            precondition::identity_of(request, body, &mut faults)
        }
        _ => Identity::default(),
    };
    precondition::check(present, request, &given)?;
    faults.into_result()?;
    let old = &present.document;
    if old.finalizers.is_empty() {
        return Ok(remove(old, context));
    }
    if old.deleted_at.is_some() {
        return Ok(Decision::of(Effect::Deleting, old.clone(), None));
    }
    let document = Document { deleted_at: Some(context.fresh.now.clone()), ..old.clone() };
    let change = Change::put(&request.key, Expected::Version(old.version), Row::of(&document));
    let item = Item::of(context.fresh.request, vec![change]);
    Ok(Decision::of(Effect::Deleting, document, Some(item)))
}

/// Removes a document, and with a cluster its `ClusterSync`. It is answered with its last state, and with the version of the removal,
/// as watches show it.
pub(super) fn remove(old: &Document, context: &Context<'_>) -> Decision {
    let key = old.key();
    let mut changes = vec![Change::delete(&key, Expected::Version(old.version))];
    if key.kind == Kind::Cluster {
        changes.push(Change::delete(&Key { kind: Kind::ClusterSync, ..key }, Expected::Any));
    }
    let item = Item::of(context.fresh.request, changes);
    Decision::of(Effect::Deleted, old.clone(), Some(item))
}

/// A document that is being deleted takes no new finalizers: who set one could wait for it in vain.
pub(super) fn check_finalizers(present: &[String], wanted: &[String]) -> Result<(), Problem> {
    let new = wanted.iter().enumerate().filter(|(_, name)| !present.contains(name));
    let faults: Vec<_> = new
        .map(|(index, name)| {
            let fault = Fault::new(format!("/finalizers/{index}"), format!("{name:?}, which is new"));
            fault.allowed("no new finalizers, because the document is being deleted")
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(Problem::invalid(faults)) }
}

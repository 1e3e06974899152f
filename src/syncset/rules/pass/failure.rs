//! Failures of syncsets, by what the cluster refused.

use super::step::{Refusal, Refused};
use crate::syncset::rules::name::ObjectRef;
use crate::syncset::rules::rows::Failure;
use crate::syncset::rules::spec::Place;
use crate::syncset::rules::status::Reason;

/// An object or a patch could not be sent.
pub(super) fn of_place(place: Place, reason: Reason, message: &str) -> Failure {
    let (noun, position) = match place {
        Place::Resource(position) => ("resource", position),
        Place::Secret(position) => ("secret", position),
        Place::Patch(position) => ("patch", position),
    };
    Failure { reason, message: format!("failed to apply {noun} {position}: {message}") }
}

/// The cluster refused an object or a patch.
pub(super) fn of_refusal(place: Place, object: &ObjectRef, refused: &Refused) -> Failure {
    let is_patch = matches!(place, Place::Patch(_));
    let reason = match refused.refusal {
        Refusal::NotFound if is_patch => Reason::PatchTargetMissing,
        Refusal::NotFound if object.namespace.is_empty() => Reason::KindNotServed,
        Refusal::NotServed => Reason::KindNotServed,
        Refusal::NotFound => Reason::NamespaceMissing,
        Refusal::NamespaceTerminating => Reason::Terminating,
        Refusal::Forbidden => Reason::Forbidden,
        Refusal::SchemaMismatch => Reason::SchemaMismatch,
        Refusal::Server => Reason::ServerError,
        Refusal::Exists
        | Refusal::Conflict
        | Refusal::Invalid
        | Refusal::UnsupportedMediaType
        | Refusal::Throttled
        | Refusal::Rejected => Reason::Rejected,
    };
    let remedy = if reason == Reason::SchemaMismatch { "; remove it, or use CreateOrUpdate" } else { "" };
    of_place(place, reason, &format!("{}{remedy}", refused.message))
}

/// An object that nobody wants could not be deleted.
pub(super) fn of_deletion(api_version: &str, object: &ObjectRef, message: &str) -> Failure {
    let mut path = object.namespace.clone();
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(&object.name);
    let message = format!("failed to delete {api_version}, Kind={} {path}: {message}", object.kind);
    Failure { reason: Reason::DeletionFailed, message }
}

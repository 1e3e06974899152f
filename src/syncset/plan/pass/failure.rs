//! Failures of syncsets, by what the cluster refused.

use jiff::Timestamp;

use super::target::{Ending, Refusal, Refused};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::spec::Position;

/// An object or a patch could not be sent.
pub(super) fn of_place(place: Position, reason: Reason, message: &str) -> Failure {
    Failure { reason, message: format!("failed to apply {}: {message}", placed(place)) }
}

/// The same with the object: the cluster's words may not name it.
fn of_object(place: Position, object: &ObjectRef, reason: Reason, message: &str) -> Failure {
    Failure { reason, message: format!("failed to apply {} ({object}): {message}", placed(place)) }
}

/// `resource 0`.
fn placed(place: Position) -> String {
    let (noun, position) = match place {
        Position::Resource(position) => ("resource", position),
        Position::Secret(position) => ("secret", position),
        Position::Patch(position) => ("patch", position),
    };
    format!("{noun} {position}")
}

/// The cluster refused an object or a patch.
pub(super) fn of_refusal(place: Position, object: &ObjectRef, refused: &Refused) -> Failure {
    let is_patch = matches!(place, Position::Patch(_));
    let reason = match refused.refusal {
        Refusal::NotFound if is_patch => Reason::PatchTargetMissing,
        Refusal::NotFound if object.namespace.is_empty() => Reason::KindNotServed,
        Refusal::NotServed => Reason::KindNotServed,
        Refusal::NotFound => Reason::NamespaceMissing,
        Refusal::NamespaceTerminating => Reason::Terminating,
        Refusal::Forbidden => Reason::Forbidden,
        Refusal::SchemaMismatch => Reason::SchemaMismatch,
        Refusal::Server => Reason::ServerError,
        Refusal::Exists | Refusal::Conflict | Refusal::Invalid | Refusal::UnsupportedMediaType | Refusal::Rejected => {
            Reason::Rejected
        }
    };
    // Only a patch is taken with a field that the schema does not have; everything else has to be corrected.
    let is_unknown = reason == Reason::SchemaMismatch && refused.message.contains("field not declared in schema");
    let remedy = if is_unknown { "; remove it, or use CreateOrUpdate" } else { "" };
    of_object(place, object, reason, &format!("{}{remedy}", refused.message))
}

/// An object was created in each of the last full passes, and was gone in the next one.
pub(super) fn of_absence(place: Position, object: &ObjectRef) -> Failure {
    let message = "it was gone again, and was created again: something on the cluster deletes it each time";
    of_object(place, object, Reason::DeletedAgain, message)
}

/// An object that nobody wants could not be deleted.
pub(super) fn of_deletion(api_version: &str, object: &ObjectRef, message: &str) -> Failure {
    let message = format!("failed to delete {}: {message}", told(api_version, object));
    Failure { reason: Reason::DeletionFailed, message }
}

/// An object that nobody wants is not provably ours any more.
pub(super) fn of_protected(api_version: &str, object: &ObjectRef, why: &str) -> Failure {
    let message = format!("{} stays, although no syncset wants it: {why}", told(api_version, object));
    Failure { reason: Reason::NotDeleted, message }
}

/// An object was deleted, and is still there.
pub(super) fn of_ending(api_version: &str, object: &ObjectRef, since: Timestamp, ending: &Ending) -> Failure {
    let told = told(api_version, object);
    // When it was deleted, and not how long ago: the failure is the same until it is gone.
    let message = format!("{told} is being deleted since {since:.0} and not gone: {}", ending.held_by());
    Failure { reason: Reason::DeletionPending, message }
}

fn told(api_version: &str, object: &ObjectRef) -> String {
    let mut path = object.namespace.clone();
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(&object.name);
    format!("{api_version}, Kind={} {path}", object.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_reason() {
        let object = |namespace: &str| ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: namespace.to_owned(),
            name: "a".to_owned(),
        };
        let (resource, patch) = (Position::Resource(0), Position::Patch(0));
        for (refusal, place, namespace, reason) in [
            (Refusal::NotFound, resource, "n", Reason::NamespaceMissing),
            (Refusal::NotFound, resource, "", Reason::KindNotServed),
            (Refusal::NotFound, patch, "n", Reason::PatchTargetMissing),
            (Refusal::NotServed, resource, "n", Reason::KindNotServed),
            (Refusal::NamespaceTerminating, resource, "n", Reason::Terminating),
            (Refusal::Forbidden, resource, "n", Reason::Forbidden),
            (Refusal::SchemaMismatch, resource, "n", Reason::SchemaMismatch),
            (Refusal::Server, resource, "n", Reason::ServerError),
            (Refusal::Invalid, resource, "n", Reason::Rejected),
            (Refusal::Conflict, resource, "n", Reason::Rejected),
            (Refusal::Rejected, resource, "n", Reason::Rejected),
        ] {
            let refused = Refused { refusal, message: "told".to_owned() };
            let failure = of_refusal(place, &object(namespace), &refused);
            assert_eq!(failure.reason, reason, "{refusal:?}");
            let noun = placed(place);
            let slash = if namespace.is_empty() { "" } else { "/" };
            let message = format!("failed to apply {noun} (ConfigMap {namespace}{slash}a): told");
            assert_eq!(failure.message, message);
        }
    }
}

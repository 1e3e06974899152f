//! Turns the changes of one hub object into requests, and sends them.

use std::sync::Arc;

use super::row_state::Version;
use crate::cluster::{
    Cluster, Error, FIELD_MANAGER, Kind, ListMoment, Object, ObjectKey, Payload, Propagation, Request, Verb,
};
use crate::status_sync::config::StatusFamily;
use crate::status_sync::plan::changes::{Change, body_of_new, patch};
use crate::status_sync::plan::families::Fields;
use crate::status_sync::plan::{Digest, FamilySpec, Home};
use crate::status_sync::run::identity::HubIdentification;

/// A change as it is sent to the API server.
#[derive(Debug)]
pub(super) struct Prepared {
    key: ObjectKey,
    /// The kind of the change, for metrics and the log.
    verb: Verb,
    steps: Vec<WriteRequest>,
}

#[derive(Debug)]
enum WriteRequest {
    Send { verb: Verb, subresource: &'static str, payload: Payload },
    Delete(Arc<Object>),
}

/// The outcome of one change.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) key: ObjectKey,
    /// The kind of the change, for metrics and the log.
    pub(super) verb: Verb,
    /// The version after the write; for a deletion the UID of the deleted object.
    pub(super) result: Result<Arc<str>, Error>,
}

/// Turns changes into requests.
pub(super) fn prepare(kind: &Kind, spec: &FamilySpec, changes: Vec<Change>) -> Vec<Prepared> {
    let prepared = |change: Change| {
        let key = change.key().clone();
        match change {
            Change::Patch { fields, only, .. } => {
                Prepared { key, verb: Verb::Patch, steps: vec![patching(kind, spec, fields, only.as_deref())] }
            }
            Change::Create { .. } => {
                let body = body_of_new(spec, &change, &kind.resource.api_version, &kind.resource.kind);
                let payload = body.map_or_else(Payload::none, |body| Payload::json(&body));
                let mut steps = vec![WriteRequest::Send { verb: Verb::Create, subresource: "", payload }];
                if let (Home::Status, Change::Create { fields, .. }) = (spec.home, change) {
                    steps.push(patching(kind, spec, fields, None));
                }
                Prepared { key, verb: Verb::Create, steps }
            }
            Change::Delete { object } => {
                Prepared { key, verb: Verb::Delete, steps: vec![WriteRequest::Delete(object)] }
            }
        }
    };
    changes.into_iter().map(prepared).collect()
}

fn patching(kind: &Kind, spec: &FamilySpec, fields: Fields, only: Option<&str>) -> WriteRequest {
    let subresource = if spec.home == Home::Status && kind.status_subresource { "status" } else { "" };
    WriteRequest::Send { verb: Verb::Patch, subresource, payload: patch(spec, fields, only) }
}

/// Sends the requests one after the other, and stops at the first that fails. It asks right before each request whether
/// the section may write to the hub.
pub(super) async fn send_all(
    cluster: &Cluster,
    kind: &Kind,
    changes: Vec<Prepared>,
    identification: &HubIdentification,
    family: StatusFamily,
) -> Vec<Written> {
    let mut written = Vec::with_capacity(changes.len());
    for Prepared { key, verb, steps } in changes {
        let mut result = Ok(Arc::from(""));
        for step in steps {
            // Right before the request. If the request then waits for room, and the hub's identity changes meanwhile, `Cluster`
            // refuses it.
            result = match identification.before_write(family).await {
                Ok(()) => send(cluster, kind, &key, step).await,
                Err(error) => Err(error),
            };
            if result.is_err() {
                break;
            }
        }
        let failed = result.is_err();
        written.push(Written { key, verb, result });
        if failed {
            break;
        }
    }
    written
}

async fn send(cluster: &Cluster, kind: &Kind, key: &ObjectKey, step: WriteRequest) -> Result<Arc<str>, Error> {
    match step {
        WriteRequest::Send { verb, subresource, payload } => {
            let request = Request::new(verb, kind, key, payload).on(subresource);
            Ok(cluster.write(request.by(FIELD_MANAGER)).await?.resource_version)
        }
        WriteRequest::Delete(object) => {
            cluster.delete(kind, &object, Propagation::Background).await?;
            Ok(Arc::clone(&object.uid))
        }
    }
}

/// Adds to each part of a hub object the version of our write, if there was one, and `now`.
pub(super) fn versions(
    parts: Vec<(ObjectKey, Digest)>,
    written: &[Written],
    now: ListMoment,
) -> Vec<(ObjectKey, Digest, Option<Version>)> {
    parts
        .into_iter()
        .map(|(key, digest)| {
            let own = written.iter().find(|write| write.key == key && write.verb != Verb::Delete);
            let version = own.and_then(|write| write.result.as_ref().ok().cloned());
            (key, digest, version.map(|version| (version, now)))
        })
        .collect()
}

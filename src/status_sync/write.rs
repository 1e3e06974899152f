//! Carries out what was planned for one hub object.

use std::sync::Arc;

use super::digest::Digest;
use super::family::{Facts, Home};
use super::plan::{Change, body_of_new, patch};
use crate::cluster::{Cluster, Error, FIELD_MANAGER, Kind, ObjectKey, Propagation, Request, Verb};

/// What became of one change.
#[derive(Debug)]
pub(super) struct Written {
    /// The object.
    pub(super) key: ObjectKey,
    /// What kind of change it was, for metrics and the log.
    pub(super) verb: Verb,
    /// The version after the write, where there is one; of a deletion the UID that went.
    pub(super) result: Result<Arc<str>, Error>,
}

/// Makes the requests one after the other, and ends with the first that fails.
pub(super) async fn carry_out(cluster: &Cluster, kind: &Kind, facts: &Facts, changes: &[Change]) -> Vec<Written> {
    let mut written = Vec::with_capacity(changes.len());
    for change in changes {
        let (verb, result) = match change {
            Change::Patch { fields, key } => (Verb::Patch, send_patch(cluster, kind, facts, key, fields).await),
            Change::Create { key, fields, .. } => {
                let mut result = create(cluster, kind, facts, change, key).await;
                if result.is_ok() && facts.home == Home::Status {
                    result = send_patch(cluster, kind, facts, key, fields).await;
                }
                (Verb::Create, result)
            }
            Change::Delete { object } => {
                let deleted = cluster.delete(kind, object, Propagation::Background).await;
                (Verb::Delete, deleted.map(|_| Arc::clone(&object.uid)))
            }
        };
        let failed = result.is_err();
        written.push(Written { key: change.key().clone(), verb, result });
        if failed {
            break;
        }
    }
    written
}

async fn send_patch(
    cluster: &Cluster,
    kind: &Kind,
    facts: &Facts,
    key: &ObjectKey,
    fields: &super::families::Fields,
) -> Result<Arc<str>, Error> {
    let (content_type, body) = patch(facts, fields);
    let subresource = if facts.home == Home::Status && kind.status_subresource { "status" } else { "" };
    let request = Request {
        verb: Verb::Patch,
        kind,
        key,
        subresource,
        content_type,
        body: body.to_string().into_bytes(),
        manager: Some(FIELD_MANAGER),
    };
    Ok(cluster.write(request).await?.resource_version)
}

async fn create(
    cluster: &Cluster,
    kind: &Kind,
    facts: &Facts,
    change: &Change,
    key: &ObjectKey,
) -> Result<Arc<str>, Error> {
    let body = body_of_new(facts, change, &kind.resource.api_version, &kind.resource.kind);
    let request = Request {
        verb: Verb::Create,
        kind,
        key,
        subresource: "",
        content_type: "application/json",
        body: body.map(|body| body.to_string().into_bytes()).unwrap_or_default(),
        manager: Some(FIELD_MANAGER),
    };
    Ok(cluster.write(request).await?.resource_version)
}

/// What the writes of a hub object's changes leave to remember: each part with the version that was written.
pub(super) fn versions(
    parts: Vec<(ObjectKey, Digest)>,
    written: &[Written],
) -> Vec<(ObjectKey, Digest, Option<Arc<str>>)> {
    parts
        .into_iter()
        .map(|(key, digest)| {
            let own = written.iter().find(|write| write.key == key && write.verb != Verb::Delete);
            let version = own.and_then(|write| write.result.as_ref().ok().cloned());
            (key, digest, version)
        })
        .collect()
}

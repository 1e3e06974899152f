//! Carries out what was planned for one hub object.

use std::sync::Arc;

use super::digest::Digest;
use super::entry::Version;
use super::family::{Facts, Home};
use super::plan::{Change, body_of_new, patch};
use super::standing::HubStanding;

use super::config::StatusFamily;
use crate::cluster::{Cluster, Error, FIELD_MANAGER, Kind, ListMoment, Object, ObjectKey, Propagation, Request, Verb};

/// A change as it goes to the API server. What waits for its turn or its answer is held as text: as values, the fields of
/// one policy take ten times as much.
#[derive(Debug)]
pub(super) struct Prepared {
    key: ObjectKey,
    /// What kind of change it is, for metrics and the log.
    verb: Verb,
    steps: Vec<Step>,
}

/// One request.
#[derive(Debug)]
enum Step {
    Send { verb: Verb, subresource: &'static str, content_type: &'static str, body: Vec<u8> },
    Delete(Arc<Object>),
}

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

/// Turns changes into requests.
pub(super) fn prepare(kind: &Kind, facts: &Facts, changes: Vec<Change>) -> Vec<Prepared> {
    let prepared = |change: Change| {
        let key = change.key().clone();
        match change {
            Change::Patch { fields, only, .. } => {
                Prepared { key, verb: Verb::Patch, steps: vec![patching(kind, facts, fields, only.as_deref())] }
            }
            Change::Create { .. } => {
                let body = body_of_new(facts, &change, &kind.resource.api_version, &kind.resource.kind);
                let mut steps = vec![Step::Send {
                    verb: Verb::Create,
                    subresource: "",
                    content_type: "application/json",
                    body: body.map(|body| body.to_string().into_bytes()).unwrap_or_default(),
                }];
                if let (Home::Status, Change::Create { fields, .. }) = (facts.home, change) {
                    steps.push(patching(kind, facts, fields, None));
                }
                Prepared { key, verb: Verb::Create, steps }
            }
            Change::Delete { object } => Prepared { key, verb: Verb::Delete, steps: vec![Step::Delete(object)] },
        }
    };
    changes.into_iter().map(prepared).collect()
}

fn patching(kind: &Kind, facts: &Facts, fields: super::families::Fields, only: Option<&str>) -> Step {
    let (content_type, body) = patch(facts, fields, only);
    let subresource = if facts.home == Home::Status && kind.status_subresource { "status" } else { "" };
    Step::Send { verb: Verb::Patch, subresource, content_type, body: body.to_string().into_bytes() }
}

/// Makes the requests one after the other, and ends with the first that fails. The hub's standing is asked
/// right before each.
pub(super) async fn carry_out(
    cluster: &Cluster,
    kind: &Kind,
    changes: Vec<Prepared>,
    standing: &HubStanding,
    family: StatusFamily,
) -> Vec<Written> {
    let mut written = Vec::with_capacity(changes.len());
    for Prepared { key, verb, steps } in changes {
        let mut result = Ok(Arc::from(""));
        for step in steps {
            // Nothing waits between the two: what may have led to another cluster meanwhile is seen here.
            result = match standing.before_write(family).await {
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

async fn send(cluster: &Cluster, kind: &Kind, key: &ObjectKey, step: Step) -> Result<Arc<str>, Error> {
    match step {
        Step::Send { verb, subresource, content_type, body } => {
            let manager = Some(FIELD_MANAGER);
            let request = Request { verb, kind, key, subresource, content_type, body, manager };
            Ok(cluster.write(request).await?.resource_version)
        }
        Step::Delete(object) => {
            cluster.delete(kind, &object, Propagation::Background).await?;
            Ok(Arc::clone(&object.uid))
        }
    }
}

/// What the writes of a hub object's changes leave to remember: each part with the version that was written, by `now`.
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

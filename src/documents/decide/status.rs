//! Changes of the status, which leave all else as it is.

use serde_json::{Map, Value, json};

use super::wanted::visible;
use super::{Action, Context, Decision, Effect, Request, Stored, check_size, precondition, sealed, unchanged};
use crate::documents::body::{LARGEST, extent, same_map, too_large};
use crate::documents::cluster_sync;
use crate::documents::document::Document;
use crate::documents::item::{Change, Expected, Item, Row};
use crate::documents::kind::Kind;
use crate::documents::problem::Problem;
use crate::documents::syncset_health;
use crate::documents::validate::{Faults, Identity, status};

pub(super) fn decide(present: &Stored, request: &Request, context: &Context<'_>) -> Result<Decision, Problem> {
    let old = &present.document;
    let mut new = wanted(present, request)?;
    // What a client has read beside what is stored.
    match old.kind {
        Kind::ClusterSync => cluster_sync::strip(&mut new),
        Kind::SyncSet | Kind::SelectorSyncSet => {
            syncset_health::strip(&mut new);
            new.remove("rollout");
        }
        Kind::Cluster | Kind::Secret => {}
    }
    if same_map(&old.status, &new) {
        return Ok(unchanged(old));
    }
    let document = Document { status: new, ..old.clone() };
    check_size(&document, present.sealed.as_deref())?;
    let change = Change::put(&request.key, Expected::Version(old.version), Row::of(&document));
    let item = Item::of(context.fresh.request, vec![change]);
    Ok(Decision::of(Effect::Changed, document, Some(item)))
}

fn wanted(present: &Stored, request: &Request) -> Result<Map<String, Value>, Problem> {
    let old = &present.document;
    let mut faults = Faults::default();
    let given = match &request.action {
        Action::Replace(_, body) | Action::Merge(_, body) => precondition::identity_of(request, body, &mut faults),
        _ => Identity::default(),
    };
    precondition::check(present, request, &given)?;
    let new = match &request.action {
        Action::Replace(_, body) => status(body.fields().get("status").cloned(), &mut faults),
        Action::Merge(_, body) => {
            let mut merged = Value::Object(old.status.clone());
            match body.fields().get("status") {
                None => {}
                Some(Value::Null) => merged = json!({}),
                Some(given) => json_patch::merge(&mut merged, given),
            }
            if extent(&merged).bytes > LARGEST {
                return Err(too_large());
            }
            status(Some(merged), &mut faults)
        }
        Action::Patch(_, operations) => {
            let mut patching = sealed::Patching::of(old);
            let mut patched = Value::Object(visible(old)?);
            operations.apply(&mut patched, |operation, place| patching.intercept(operation, place))?;
            let patched = patched.get_mut("status").map_or_else(|| json!({}), Value::take);
            status(Some(patched), &mut faults)
        }
        Action::Create(_) | Action::Apply(_) | Action::Delete(_) => old.status.clone(),
    };
    faults.into_result().map(|()| new)
}

//! What a syncset would do that is not written: the route.

use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::{RETRY_AFTER, SyncsetApi, of_store};
use crate::documents::{
    Action, Context, Document, Fault, Fresh, Keyring, Kind, Manifest, Problem, ProblemKind, Request, decide,
    key_of_body, manifests_of_json,
};
use crate::job::routes::{ApiRequest, QueryParameter, QueryValue, Right};
use crate::syncset::inspect::{Diff, ProposedSyncset, Undiffed};

/// Clusters on which a syncset is tried unless the request says.
const DEFAULT_SAMPLE: u32 = 20;
/// Most clusters on which a syncset is tried.
const MOST_SAMPLED: u32 = 1_000;

pub(super) const PARAMETERS: &[QueryParameter] = &[
    QueryParameter {
        name: "sample",
        about: "On how many clusters it is tried; 20 by default",
        value: QueryValue::Number { least: 1, most: MOST_SAMPLED },
    },
    QueryParameter { name: "all", about: "true: it is tried on all clusters, at most 1,000", value: QueryValue::Text },
];

/// A syncset as it would be written; a manifest of Hive, too.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes the body, which is read as documents are")]
pub(super) struct SyncSetToCompare {
    /// `SyncSet` or `SelectorSyncSet`.
    kind: String,
    /// The name.
    name: String,
    /// The namespace of a `SyncSet`.
    namespace: Option<String>,
    /// As in the document.
    #[schema(value_type = Object)]
    spec: serde_json::Value,
}

pub(super) async fn diff(api: Arc<SyncsetApi>, request: ApiRequest) -> Result<Diff, Problem> {
    let sample = match request.parameter("all") {
        Some("true") => MOST_SAMPLED,
        None | Some("false") => request.number("sample").unwrap_or(DEFAULT_SAMPLE),
        Some(_) => {
            return Err(Problem::new(ProblemKind::Parameter, "parameter all is not valid: allowed are true and false"));
        }
    };
    let ApiRequest { body, rights, slot_owner, .. } = request;
    let keyring = api.inspector.keyring();
    let read = move || {
        let manifest = manifest(&body)?;
        let namespace = manifest.body.text("namespace").filter(|_| manifest.kind == Kind::SyncSet);
        rights.require(Right::Write, namespace)?;
        let document = document(manifest, &keyring)?;
        ProposedSyncset::of(&document).map_err(|failure| unreadable(&failure.message))
    };
    // The length does not say how long it takes: patches are YAML, of which aliases make 4 MiB of a short text.
    let proposed = api.inspector.blocking().apart(read).await?;
    let sample = usize::try_from(sample).unwrap_or(usize::MAX);
    api.inspector.diff(&proposed, sample, slot_owner).await.map_err(|error| match error {
        Undiffed::Store(error) => {
            of_store(ProblemKind::Unavailable, "the state of the clusters could not be read", error)
        }
        Undiffed::Unreadable(failure) => unreadable(&failure.message),
        Undiffed::NoSlot(problem) => problem.retry_after(RETRY_AFTER),
    })
}

fn unreadable(message: &str) -> Problem {
    Problem::invalid(vec![Fault::new("/spec", message)])
}

/// The only document of a body, which is a syncset.
fn manifest(body: &[u8]) -> Result<Manifest, Problem> {
    let mut manifests = manifests_of_json(body)?.into_iter();
    let (Some(manifest), None) = (manifests.next(), manifests.next()) else {
        return Err(Problem::new(ProblemKind::Malformed, "the body is not one document"));
    };
    let manifest = manifest?;
    if !matches!(manifest.kind, Kind::SyncSet | Kind::SelectorSyncSet) {
        let fault = Fault::new("/kind", manifest.kind.name()).allowed("SyncSet, SelectorSyncSet");
        return Err(Problem::invalid(vec![fault]));
    }
    Ok(manifest)
}

/// The document that a write would make.
fn document(manifest: Manifest, keyring: &Keyring) -> Result<Document, Problem> {
    let key = key_of_body(manifest.kind, &manifest.body)?;
    let request = Request { key, action: Action::Create(manifest.body), condition: None, dry_run: true };
    Ok(decide(None, &request, &Context { keyring, fresh: Fresh::draw() })?.document)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_is_one_syncset_in_the_form_of_the_hub_or_of_hive() {
        let of = |body: &serde_json::Value| manifest(body.to_string().as_bytes());
        let hub = of(&json!({"kind": "SyncSet", "namespace": "team", "name": "base", "spec": {}})).expect("a syncset");
        let hive = json!({"apiVersion": "hive.openshift.io/v1", "kind": "SyncSet", "spec": {},
            "metadata": {"namespace": "team", "name": "base"}});
        assert_eq!(of(&hive).expect("a syncset"), Manifest { bytes: of(&hive).expect("a syncset").bytes, ..hub });
        assert!(of(&json!({"kind": "Cluster", "namespace": "team", "name": "west"})).is_err());
        assert!(of(&json!([])).is_err());
        assert!(of(&json!([hive, hive])).is_err());
    }
}

//! Answers to requests that change documents.

use std::fmt;
use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::response::Response;
use http::header::{ETAG, IF_MATCH, LOCATION, WARNING};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;

use super::bodies::{self, Arrived};
use super::lists::{document_answer, json};
use super::media::{self, Media};
use super::routes::Action;
use super::{Api, Asked, author};
use crate::cluster::full_text;
use crate::config::names::LONGEST_SUBDOMAIN;
use crate::documents::{
    self, BlockingPool, Body, Cause, Done, Effect, IfMatch, Key, Kind, LargeSlot, Manifest, Operations, Part, Problem,
    ProblemKind, Request, manifests_of_json, manifests_of_yaml, missing_clusters,
};
use crate::http::Peer;
use crate::hub::run::problem::{ProblemBody, body as problem_body, status as status_of};
use crate::hub::run::refusals::Refusals;

/// Any change of a single document.
pub(super) async fn change(api: &Arc<Api>, asked: Asked<'_>, kind: Kind, body: HttpBody) -> Result<Response, Problem> {
    let action = asked.operation.action;
    let dry_run = asked.parameters().dry_run()?;
    // The rights of all but a POST are known before its body is.
    let key = if action == Action::Create { None } else { Some(asked.key(kind)?) };
    let condition = if_match(&asked.parts.headers)?;
    let media = || media::of_body(action, &asked.parts.headers, asked.caller.is_local());
    let known = if action == Action::Delete { None } else { Some(media()?) };
    let Arrived { bytes: text, slot, request_slot: _request_slot } =
        bodies::read(api, &asked.caller, &asked.parts.headers, body).await?;
    let media = match known {
        Some(known) => known,
        // It may have no body.
        None if text.is_empty() => Media::Json,
        None => media()?,
    };
    let bytes = text.len();
    let wanted = api.documents.blocking().run(bytes, move || wanted(action, media, &text)).await?;
    let key = match (key, &wanted) {
        (Some(key), _) => key,
        (None, documents::Action::Create(body)) => new_key(api, &asked, kind, (body, &slot)).await?,
        // Only a new document's key is in its body.
        (None, _) => return Err(Problem::new(ProblemKind::NotFound, "there is no such route")),
    };
    let request = Request { key, action: wanted, condition, dry_run };
    let done = api.documents.change((request, author(&asked.caller, &asked.parts)), bytes, slot).await?;
    let status = match done.effect {
        Effect::Created if !dry_run => StatusCode::CREATED,
        Effect::Deleting => StatusCode::ACCEPTED,
        Effect::Created | Effect::Changed | Effect::Unchanged | Effect::Deleted => StatusCode::OK,
    };
    let (effect, version, key) = (done.effect, done.document.version, done.document.key());
    let (json, slot) = done.print(api.documents.blocking()).await?;
    let mut answer = document_answer(status, version, bodies::answer(json, slot));
    if effect == Effect::Created && dry_run {
        // It has no version.
        answer.headers_mut().remove(ETAG);
    }
    if status == StatusCode::CREATED {
        let location = HeaderValue::try_from(format!("/v1/{key}"));
        // Names of documents are letters of a path.
        answer.headers_mut().extend(location.ok().map(|location| (LOCATION, location)));
    }
    Ok(answer)
}

/// What a body asks for.
fn wanted(action: Action, media: Media, text: &[u8]) -> Result<documents::Action, Problem> {
    let part = match action {
        Action::ReplaceStatus | Action::PatchStatus => Part::Status,
        _ => Part::Document,
    };
    Ok(match (action, media) {
        (Action::Delete, _) if text.is_empty() => documents::Action::Delete(None),
        (Action::Delete, _) => documents::Action::Delete(Some(Body::from_json(text)?)),
        (Action::Create, _) => documents::Action::Create(Body::from_json(text)?),
        (_, Media::MergePatch) => documents::Action::Merge(part, Body::from_json(text)?),
        (_, Media::JsonPatch) => documents::Action::Patch(part, Operations::from_json(text)?),
        (_, Media::Json | Media::Yaml) => documents::Action::Replace(part, Body::from_json(text)?),
    })
}

/// The key of a new document, if the caller may create it. Its namespace is looked at first, so that other faults of a body show
/// nothing to a caller without rights.
async fn new_key(api: &Api, asked: &Asked<'_>, kind: Kind, (body, slot): (&Body, &LargeSlot)) -> Result<Key, Problem> {
    let key = api.documents.key_of(kind, body, slot).await;
    if let Ok(key) = &key {
        asked.require(kind, &key.namespace)?;
    }
    key
}

fn if_match(headers: &HeaderMap) -> Result<Option<IfMatch>, Problem> {
    let mut given = headers.get_all(IF_MATCH).iter();
    let (first, second) = (given.next(), given.next());
    let malformed = || Problem::new(ProblemKind::Malformed, "the header If-Match is repeated or not valid");
    match (first, second) {
        (None, _) => Ok(None),
        (Some(value), None) => IfMatch::parse(value.to_str().map_err(|_| malformed())?).map(Some),
        (Some(_), Some(_)) => Err(malformed()),
    }
}

/// Most faults that an apply tells of all its documents together, beside the first one of each: of a body of a few MiB there may be a hundred
/// thousand, and their text takes many times as much.
const MOST_FAULTS: usize = 1_000;
/// Most warnings in the head of an answer, which clients limit.
const MOST_WARNINGS: usize = 20;
/// Most clusters of syncsets that are looked for.
const MOST_REFERENCES: usize = 1_000;

/// The result of an apply for one document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Applied<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody<'a>>,
}

#[derive(Serialize)]
struct AllApplied<'a> {
    items: Vec<Applied<'a>>,
}

/// What became of one document of an apply. The document itself is not kept: a thousand of them may be large.
struct Outcome {
    named: Named,
    result: Result<(Effect, i64), Problem>,
}

/// What an apply calls a document, as far as it is known.
#[derive(Default)]
struct Named {
    kind: Option<&'static str>,
    namespace: Option<String>,
    name: Option<String>,
}

/// `Cluster/foo/c1`.
impl fmt::Display for Named {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.kind, self.namespace.as_deref(), self.name.as_deref()];
        formatter.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("/"))
    }
}

impl Named {
    /// A document that may not be valid.
    fn of(kind: Kind, body: &Body) -> Self {
        let text =
            |field| body.text(field).filter(|text| (1..=LONGEST_SUBDOMAIN).contains(&text.len())).map(str::to_owned);
        Self { kind: Some(kind.name()), namespace: text("namespace"), name: text("name") }
    }
}

/// `POST /v1/apply`: one document after the other, in their order, without a common transaction.
pub(super) async fn apply(api: &Arc<Api>, asked: Asked<'_>, body: HttpBody) -> Result<Response, Problem> {
    let dry_run = asked.parameters().dry_run()?;
    let media = media::of_body(Action::Apply, &asked.parts.headers, asked.caller.is_local())?;
    let Arrived { bytes: text, mut slot, request_slot: _request_slot } =
        bodies::read(api, &asked.caller, &asked.parts.headers, body).await?;
    // Aliases may make much of a short text.
    if media == Media::Yaml && text.contains(&b'&') && !slot.is_for_large() {
        slot = api.documents.slots().take(asked.caller.slot_owner()).await?;
    }
    let manifests = read_manifests(api.documents.blocking(), media, text.len(), move |read: Read| read(&text)).await?;
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(manifests.len());
    let (mut warnings, mut references) = (Vec::new(), Vec::new());
    let (mut is_away, mut faults_left) = (false, MOST_FAULTS);
    for manifest in manifests {
        let mut outcome = match manifest {
            Err(problem) => Outcome { named: Named::default(), result: Err(problem) },
            Ok(manifest) => {
                let kubeconfig = manifest.body.text("kubeconfig").filter(|_| manifest.kind == Kind::Cluster);
                let warning = kubeconfig.and_then(|kubeconfig| api.advice.as_ref()?(kubeconfig));
                let named = Named::of(manifest.kind, &manifest.body);
                let clusters = referenced(&manifest, &named);
                let result = if is_away {
                    Err(not_tried())
                } else {
                    apply_one(api, &asked, manifest, dry_run, slot.clone()).await
                };
                if let Err(problem) = &result {
                    note_refusal(api, &asked, &named, problem);
                }
                if let Ok(done) = &result {
                    let all_at_once = "without a rollout, its newest content goes to all clusters at once";
                    warnings.extend(done.ends_rollout.then(|| format!("{named}: {all_at_once}")));
                    warnings.extend(warning.map(|text| format!("{named}: the kubeconfig will be refused: {text}")));
                    references.extend(clusters);
                }
                Outcome { named, result: result.map(|done| (done.effect, done.document.version)) }
            }
        };
        if let Err(problem) = &mut outcome.result {
            problem.faults.truncate(faults_left.max(1));
            problem.faults.shrink_to_fit();
            faults_left = faults_left.saturating_sub(problem.faults.len());
            api.outages.note(problem);
            is_away |= problem.cause.as_ref().is_some_and(Cause::is_outage);
        }
        outcomes.push(outcome);
    }
    let mut answer = json(&AllApplied { items: outcomes.iter().map(applied).collect() });
    warnings.extend(without_clusters(api, &outcomes, references).await);
    for text in warnings.iter().take(MOST_WARNINGS) {
        answer.headers_mut().extend(warning(text).map(|warning| (WARNING, warning)));
    }
    Ok(answer)
}

/// A cluster that a syncset names.
struct Reference {
    /// The syncset.
    of: String,
    namespace: String,
    name: String,
}

/// The clusters that a syncset names; not more of them than there may be warnings.
fn referenced(manifest: &Manifest, named: &Named) -> Vec<Reference> {
    let Some(namespace) = named.namespace.as_ref().filter(|_| manifest.kind == Kind::SyncSet) else {
        return Vec::new();
    };
    let reference =
        |cluster: &str| Reference { of: named.to_string(), namespace: namespace.clone(), name: cluster.to_owned() };
    manifest.body.cluster_names().take(MOST_WARNINGS).map(reference).collect()
}

/// Warns of syncsets for clusters that don't exist, which is no fault: a cluster may come later. It is most often a misspelled name.
async fn without_clusters(api: &Api, outcomes: &[Outcome], mut references: Vec<Reference>) -> Vec<String> {
    // In a dry run they are not there yet.
    let is_applied = |reference: &Reference| {
        outcomes.iter().any(|Outcome { named, result }| {
            result.is_ok()
                && named.kind == Some(Kind::Cluster.name())
                && named.namespace.as_ref() == Some(&reference.namespace)
                && named.name.as_ref() == Some(&reference.name)
        })
    };
    references.truncate(MOST_REFERENCES);
    references.retain(|reference| !is_applied(reference));
    if references.is_empty() {
        return Vec::new();
    }
    let clusters: Vec<_> =
        references.iter().map(|Reference { namespace, name, .. }| (namespace.clone(), name.clone())).collect();
    let missing = match missing_clusters(&api.database, &clusters).await {
        Ok(missing) => missing,
        // The documents are applied, and that is what was asked for.
        Err(error) => {
            tracing::debug!(error = full_text(&error), "failed to look for the clusters of applied syncsets");
            return Vec::new();
        }
    };
    let is_missing = |reference: &&Reference| {
        missing.iter().any(|(namespace, name)| *namespace == reference.namespace && *name == reference.name)
    };
    let references = references.iter().filter(is_missing);
    references
        .map(|Reference { of, namespace, name }| format!("{of}: there is no cluster {namespace}/{name}"))
        .collect()
}

/// The answer as a whole is no refusal, so what was refused of it is noted here.
fn note_refusal(api: &Api, asked: &Asked<'_>, named: &Named, problem: &Problem) {
    let status = status_of(problem.kind);
    if Refusals::are_noted(status) {
        let target = format!("POST /v1/apply: {named}");
        let peer = asked.parts.extensions.get::<Peer>();
        let actor = Some(asked.caller.name()).filter(|name| !name.is_empty());
        api.refusals.note(actor, peer.map(|Peer(peer)| peer.ip()), (status, Some(problem.kind)), &target);
    }
}

/// As API servers of Kubernetes warn: `299 - "text"`.
fn warning(text: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("299 - \"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))).ok()
}

/// How the documents of an apply are read from a text.
type Read = fn(&[u8]) -> Result<Vec<Result<Manifest, Problem>>, Problem>;

/// Reads the documents of an apply, of which the text has so many bytes. The length of YAML does not say how long that takes: its
/// aliases may make 4 MiB of a short text.
async fn read_manifests(
    blocking: &BlockingPool,
    media: Media,
    bytes: usize,
    read: impl FnOnce(Read) -> Result<Vec<Result<Manifest, Problem>>, Problem> + Send + 'static,
) -> Result<Vec<Result<Manifest, Problem>>, Problem> {
    if media == Media::Yaml {
        blocking.apart(move || read(manifests_of_yaml)).await
    } else {
        blocking.run(bytes, move || read(manifests_of_json)).await
    }
}

async fn apply_one(
    api: &Arc<Api>,
    asked: &Asked<'_>,
    manifest: Manifest,
    dry_run: bool,
    slot: LargeSlot,
) -> Result<Done, Problem> {
    let Manifest { kind, body, bytes } = manifest;
    if !kind.is_written_by_clients() {
        return Err(Problem::new(ProblemKind::Method, format!("the hub itself writes documents of kind {kind}")));
    }
    let key = new_key(api, asked, kind, (&body, &slot)).await?;
    let request = Request { key, action: documents::Action::Apply(body), condition: None, dry_run };
    api.documents.change((request, author(&asked.caller, &asked.parts)), bytes, slot).await
}

/// The problem of the documents after one that the database has not taken: each would wait for it as long.
fn not_tried() -> Problem {
    Problem::new(ProblemKind::Unavailable, "not tried, since the database has failed at an earlier document")
}

fn applied(outcome: &Outcome) -> Applied<'_> {
    let Outcome { named: Named { kind, namespace, name }, result, .. } = outcome;
    let (result, version, problem) = match result {
        Ok((effect, version)) => (word(*effect), Some(version.to_string()), None),
        Err(problem) => ("failed", None, Some(problem_body(problem))),
    };
    Applied {
        kind: *kind,
        namespace: namespace.as_deref(),
        name: name.as_deref(),
        result,
        resource_version: version,
        problem,
    }
}

fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::Created => "created",
        Effect::Changed | Effect::Deleted | Effect::Deleting => "configured",
        Effect::Unchanged => "unchanged",
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn yaml_is_read_on_a_blocking_thread_however_short_it_is() {
        let blocking = BlockingPool::default();
        let aliases = format!(
            "{{kind: Secret, name: a, namespace: b, type: &a {}, x: [{}1]}}",
            "x".repeat(100),
            "*a, ".repeat(1000)
        );
        let json = r#"{"kind": "Secret", "name": "a", "namespace": "b"}"#.to_owned();
        for (media, text, is_aside) in [(Media::Yaml, aliases, true), (Media::Json, json, false)] {
            let bytes = text.len();
            let read = move |read: Read| read(text.as_bytes());
            let mut reading = Box::pin(read_manifests(&blocking, media, bytes, read));
            let at_once = reading.as_mut().now_or_never();
            assert_eq!(at_once.is_none(), is_aside, "{media:?}");
            let manifests = match at_once {
                Some(manifests) => manifests,
                None => reading.await,
            };
            assert_eq!(manifests.map(|manifests| manifests.len()), Ok(1));
        }
    }
}

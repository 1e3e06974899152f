//! The document that a request wants, from its body or from a patch of the present one. An apply replaces own fields, and removes labels
//! and annotations of earlier applies, but not those of others.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::sealed::{self, Edit};
use super::{Action, Part, Request, Stored, precondition};
use crate::documents::body::{Body, LARGEST, Path, extent, too_large};
use crate::documents::document::{Document, Key};
use crate::documents::problem::Problem;
use crate::documents::validate::{
    Draft, Faults, Identity, alias, check_changed, check_totals, draft, identity, resolve,
};

/// The annotation with the keys that the last apply set.
pub(super) const APPLIED_KEYS: &str = "towline.dev/applied-keys";

/// A document as it is to be.
pub(super) struct Wanted {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) finalizers: Vec<String>,
    /// Own fields that are not sealed.
    pub(super) data: Map<String, Value>,
    /// The change of the sealed field; `None` keeps it.
    pub(super) edit: Option<Edit>,
    /// Terms of its selector.
    pub(super) terms: Option<Vec<(String, String)>>,
}

impl Wanted {
    /// What a draft wants, with these finalizers where it has none.
    fn of(draft: Draft, finalizers: &[String], edit: Option<Edit>) -> Self {
        Self {
            labels: draft.labels.unwrap_or_default(),
            annotations: draft.annotations.unwrap_or_default(),
            finalizers: draft.finalizers.unwrap_or_else(|| finalizers.to_vec()),
            data: draft.data,
            edit: draft.sealed.map(Edit::of).or(edit),
            terms: draft.terms,
        }
    }
}

/// What a body wants of a document that does not exist.
pub(super) fn of_new(key: &Key, body: &Body) -> Result<Wanted, Problem> {
    let mut faults = Faults::default();
    identity(key, body.fields(), true, &mut faults);
    let draft = draft(key, body.fields().clone(), true, &mut faults);
    faults.into_result().map(|()| Wanted::of(draft, &[], None))
}

/// What a request wants of a document that exists, once its conditions hold.
pub(super) fn of_present(present: &Stored, request: &Request) -> Result<Wanted, Problem> {
    let document = &present.document;
    match &request.action {
        Action::Replace(Part::Document, body) => {
            let draft = checked(present, request, body, body.fields().clone())?;
            Ok(Wanted::of(draft, &document.finalizers, None))
        }
        Action::Apply(body) => {
            let draft = checked(present, request, body, body.fields().clone())?;
            applied_to_present(document, draft)
        }
        Action::Merge(Part::Document, patch) => merged(present, request, patch),
        Action::Patch(Part::Document, operations) => {
            let mut edit = sealed::Patching::of(document);
            let mut patched = Value::Object(visible(document)?);
            let operations = match alias(document.kind) {
                Some((name, alias)) => Cow::Owned(operations.clone().renamed(["spec", alias], name)),
                None => Cow::Borrowed(operations),
            };
            let applied = operations.apply(&mut patched, |operation, place| edit.intercept(operation, place));
            // A failed test of a document of another version is a failed precondition first.
            precondition::check(present, request, &Identity::default())?;
            applied?;
            let body = Body::of(patched)?;
            let draft = checked(present, request, &body, body.fields().clone())?;
            Ok(Wanted::of(draft, &[], edit.into_edit()))
        }
        // Conditions and all else of these are decided elsewhere.
        Action::Create(_) | Action::Delete(_) | Action::Replace(..) | Action::Merge(..) | Action::Patch(..) => {
            Ok(Wanted {
                labels: document.labels.clone(),
                annotations: document.annotations.clone(),
                finalizers: document.finalizers.clone(),
                data: document.data.clone(),
                edit: None,
                terms: None,
            })
        }
    }
}

/// Checks conditions and fields; faults in the fields come last.
fn checked(present: &Stored, request: &Request, body: &Body, fields: Map<String, Value>) -> Result<Draft, Problem> {
    let mut faults = Faults::default();
    let given = precondition::identity_of(request, body, &mut faults);
    precondition::check(present, request, &given)?;
    let draft = draft(&request.key, fields, false, &mut faults);
    check_changed(&present.document, &draft, &mut faults);
    faults.into_result().map(|()| draft)
}

fn merged(present: &Stored, request: &Request, patch: &Body) -> Result<Wanted, Problem> {
    let document = &present.document;
    let mut faults = Faults::default();
    let given = precondition::identity_of(request, patch, &mut faults);
    precondition::check(present, request, &given)?;
    let mut fields = patch.fields().clone();
    let sealed = document.kind.sealed().and_then(|sealed| fields.remove(sealed.field()).map(|value| (sealed, value)));
    let edit = sealed.and_then(|(sealed, value)| Edit::merge(sealed, value, &mut faults));
    // What identifies the document was compared, and is no content.
    for field in ["kind", "namespace", "name", "id", "resourceVersion"] {
        fields.remove(field);
    }
    // The present document has the first name of a field that has two.
    if let (Some(alias), Some(Value::Object(spec))) = (alias(document.kind), fields.get_mut("spec")) {
        resolve(alias, spec, &Path::Root.field("spec"), &mut faults);
    }
    let mut merged = Value::Object(visible(document)?);
    json_patch::merge(&mut merged, &Value::Object(fields));
    if extent(&merged).bytes > LARGEST {
        return Err(too_large());
    }
    let merged = Body::of(merged)?.into_fields();
    let draft = draft(&request.key, merged, false, &mut faults);
    check_changed(document, &draft, &mut faults);
    faults.into_result().map(|()| Wanted::of(draft, &[], edit))
}

/// The document as clients see it.
pub(super) fn visible(document: &Document) -> Result<Map<String, Value>, Problem> {
    match serde_json::to_value(document) {
        Ok(Value::Object(fields)) => Ok(fields),
        // A document has text keys only, so this does not happen.
        _ => Err(too_large()),
    }
}

type Texts = BTreeMap<String, String>;

/// Keys that an apply has set.
#[derive(Default, Deserialize, Serialize)]
struct AppliedKeys {
    #[serde(default)]
    annotations: Vec<String>,
    #[serde(default)]
    labels: Vec<String>,
}

/// The first state of a document that an apply creates.
pub(super) fn applied_to_new(wanted: Wanted) -> Result<Wanted, Problem> {
    let (labels, annotations) = merged_texts((&Texts::new(), &Texts::new()), wanted.labels, wanted.annotations)?;
    Ok(Wanted { labels, annotations, ..wanted })
}

/// What an apply makes of a document. Finalizers and the sealed field stay if the draft has none.
fn applied_to_present(present: &Document, draft: Draft) -> Result<Wanted, Problem> {
    let (labels, annotations) = (draft.labels.unwrap_or_default(), draft.annotations.unwrap_or_default());
    let (labels, annotations) = merged_texts((&present.labels, &present.annotations), labels, annotations)?;
    Ok(Wanted {
        labels,
        annotations,
        finalizers: draft.finalizers.unwrap_or_else(|| present.finalizers.clone()),
        data: draft.data,
        edit: draft.sealed.map(Edit::of),
        terms: draft.terms,
    })
}

fn merged_texts(present: (&Texts, &Texts), labels: Texts, mut annotations: Texts) -> Result<(Texts, Texts), Problem> {
    // In a manifest that was made from an answer it is the hub's, not the user's.
    annotations.remove(APPLIED_KEYS);
    let previous = present.1.get(APPLIED_KEYS).and_then(|text| serde_json::from_str::<AppliedKeys>(text).ok());
    let previous = previous.unwrap_or_default();
    let applied =
        AppliedKeys { annotations: annotations.keys().cloned().collect(), labels: labels.keys().cloned().collect() };
    let new_labels = over(present.0, &previous.labels, labels);
    let mut new_annotations = over(present.1, &previous.annotations, annotations);
    new_annotations.remove(APPLIED_KEYS);
    if !(applied.annotations.is_empty() && applied.labels.is_empty()) {
        let text = serde_json::to_string(&applied).unwrap_or_default();
        new_annotations.insert(APPLIED_KEYS.to_owned(), text);
    }
    let mut faults = Faults::default();
    check_totals(&new_labels, &new_annotations, &mut faults);
    faults.into_result().map(|()| (new_labels, new_annotations))
}

/// The present texts without those that were applied before, and over them those that are applied now.
fn over(present: &Texts, previous: &[String], applied: Texts) -> Texts {
    let mut texts = present.clone();
    texts.retain(|key, _| !previous.contains(key));
    texts.extend(applied);
    texts
}

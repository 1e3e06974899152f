//! Apply: own fields are replaced, and labels and annotations of earlier applies are removed, but not those of others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sealed::Edit;
use super::wanted::Wanted;
use crate::documents::document::Document;
use crate::documents::problem::Problem;
use crate::documents::validate::{Draft, Faults, check_totals};

/// The annotation with the keys that the last apply set.
pub(super) const APPLIED_KEYS: &str = "towline.dev/applied-keys";

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
pub(super) fn to_new(wanted: Wanted) -> Result<Wanted, Problem> {
    let (labels, annotations) = merged((&Texts::new(), &Texts::new()), wanted.labels, wanted.annotations)?;
    Ok(Wanted { labels, annotations, ..wanted })
}

/// What an apply makes of a document. Finalizers and the sealed field stay if the draft has none.
pub(super) fn to_present(present: &Document, draft: Draft) -> Result<Wanted, Problem> {
    let (labels, annotations) = (draft.labels.unwrap_or_default(), draft.annotations.unwrap_or_default());
    let (labels, annotations) = merged((&present.labels, &present.annotations), labels, annotations)?;
    Ok(Wanted {
        labels,
        annotations,
        finalizers: draft.finalizers.unwrap_or_else(|| present.finalizers.clone()),
        data: draft.data,
        edit: draft.sealed.map(Edit::of),
        terms: draft.terms,
    })
}

fn merged(present: (&Texts, &Texts), labels: Texts, mut annotations: Texts) -> Result<(Texts, Texts), Problem> {
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

//! What a diff tells of one cluster. Pure.

use serde::Serialize;
use utoipa::ToSchema;

use super::losses::Loss;
use super::trial::DryRun;
use crate::config::text::shortened;
use crate::documents::FieldPointer;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::rows::Failure;

/// In characters.
pub(super) const LONGEST_NOTE: usize = 300;

/// A cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ClusterReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a syncset would do on one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SyncSetDiffOfCluster)]
pub struct Compared {
    /// The cluster's namespace.
    pub namespace: String,
    /// The cluster's name.
    pub name: String,
    /// Why it was not tried, or not completely: `unreachable for 3 h`, `paused by …`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub obstacle: Option<String>,
    /// Objects that would be created.
    pub create: usize,
    /// Objects that would be changed, or deleted and created again.
    pub change: usize,
    /// Objects that would be deleted.
    pub delete: usize,
    /// Objects of which fields would be taken from other managers.
    pub conflict: usize,
    /// Objects that would be refused, and what else has failed.
    pub failed: usize,
    /// Objects that another syncset sends.
    pub superseded: usize,
    /// The objects, conflicts and refusals first; not all if they are many.
    pub objects: Vec<DiffedObject>,
}

/// What would become of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = SyncSetDiffOfObject)]
pub struct DiffedObject {
    /// `Deployment.apps default/agent`.
    pub object: String,
    /// `conflict`, `failed`, `create`, `change`, `recreate`, `delete`, or `keep` of one that would be dropped and stay.
    pub action: String,
    /// The fields and managers of a conflict, or why it would be refused or kept; `(changed)` for a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

impl Compared {
    fn add(&mut self, object: String, action: &str, note: Option<String>) {
        let note = note.map(|note| shortened(&note, LONGEST_NOTE));
        self.objects.push(DiffedObject { object, action: action.to_owned(), note });
    }

    pub(super) fn note(&mut self, object: &ObjectRef, outcome: DryRun) {
        let is_secret = object.group.is_empty() && object.kind == "Secret";
        match outcome {
            DryRun::Same => {}
            DryRun::Create => {
                self.create += 1;
                self.add(object.to_string(), "create", None);
            }
            DryRun::Change => {
                self.change += 1;
                self.add(object.to_string(), "change", is_secret.then(|| "(changed)".to_owned()));
            }
            DryRun::Recreate => {
                self.change += 1;
                let note = "it can't be changed: it is deleted and created again";
                self.add(object.to_string(), "recreate", Some(note.to_owned()));
            }
            DryRun::Conflict(owners) => {
                self.change += 1;
                self.conflict += 1;
                self.add(object.to_string(), "conflict", Some(owners.join("; ")));
            }
            DryRun::Failed(text) => {
                self.failed += 1;
                self.add(object.to_string(), "failed", Some(text));
            }
        }
    }

    pub(super) fn note_left_alone(&mut self, object: &ObjectRef, pointers: &[FieldPointer]) {
        let name = object.to_string();
        let is_written = |last: &&mut DiffedObject| {
            last.object == name && matches!(last.action.as_str(), "create" | "change" | "conflict")
        };
        if let Some(last) = self.objects.last_mut().filter(is_written).filter(|_| !pointers.is_empty()) {
            let note = last.note.take().map(|note| format!("{note}; ")).unwrap_or_default();
            let note = format!("{note}left alone after the creation: {}", listed(pointers));
            last.note = Some(shortened(&note, LONGEST_NOTE));
        }
    }

    pub(super) fn note_failure(&mut self, failure: &Failure) {
        self.note_fault(&failure.message);
    }

    /// Something that is about no object.
    pub(super) fn note_fault(&mut self, text: &str) {
        self.failed += 1;
        self.add(String::new(), "failed", Some(text.to_owned()));
    }

    pub(super) fn note_loss(&mut self, object: &ObjectRef, loss: Loss) {
        match loss {
            Loss::Gone => {}
            Loss::Deleted => {
                self.delete += 1;
                self.add(object.to_string(), "delete", None);
            }
            Loss::Stays(why) => self.add(object.to_string(), "keep", Some(format!("it stays, since {why}"))),
            Loss::Failed(text) => {
                self.failed += 1;
                self.add(object.to_string(), "failed", Some(text));
            }
        }
    }
}

pub(super) fn listed(pointers: &[FieldPointer]) -> String {
    pointers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl DiffedObject {
    pub(super) fn rank(&self) -> usize {
        let order = ["conflict", "failed", "recreate", "delete", "keep", "change", "create"];
        order.iter().position(|action| *action == self.action).unwrap_or(order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_come_before_what_is_created_and_secrets_show_no_more_than_that_they_change() {
        let object = |kind: &str, name: &str| ObjectRef {
            group: String::new(),
            kind: kind.to_owned(),
            namespace: "team".to_owned(),
            name: name.to_owned(),
        };
        let mut compared = Compared::default();
        compared.note(&object("ConfigMap", "new"), DryRun::Create);
        compared.note(&object("Secret", "pull"), DryRun::Change);
        compared.note(&object("ConfigMap", "same"), DryRun::Same);
        compared.note_loss(&object("ConfigMap", "theirs"), Loss::Stays("it was there before".to_owned()));
        compared.note_loss(&object("ConfigMap", "gone"), Loss::Gone);
        compared.note(&object("ConfigMap", "taken"), DryRun::Conflict(vec![".data.a belongs to hpa".to_owned()]));
        compared.objects.sort_by_key(DiffedObject::rank);
        let shown = |object: &DiffedObject| (object.object.clone(), object.note.clone().unwrap_or_default());
        let expected = [
            ("ConfigMap team/taken", ".data.a belongs to hpa"),
            ("ConfigMap team/theirs", "it stays, since it was there before"),
            ("Secret team/pull", "(changed)"),
            ("ConfigMap team/new", ""),
        ];
        let expected = expected.map(|(object, note)| (object.to_owned(), note.to_owned()));
        assert_eq!(compared.objects.iter().map(shown).collect::<Vec<_>>(), expected);
        assert_eq!((compared.create, compared.change, compared.delete, compared.conflict), (1, 2, 0, 1));
    }
}

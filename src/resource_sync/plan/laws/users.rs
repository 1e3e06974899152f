//! The actions of people and of other programs in the simulated world, and its faults.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::server::{Part, Refused, Sort, Traits, Who, is_deleting, push};
use super::world::{NAMES, NAMESPACE, UNSELECTED, World};
use super::{FINALIZER, PAUSED, SYNC_ERROR};

/// One action; numbers choose among a few contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    CreateRemote(usize, u8),
    SetContent {
        remote: bool,
        pair: usize,
        content: u8,
    },
    SetStatus {
        remote: bool,
        pair: usize,
        status: u8,
    },
    SetMetadata {
        remote: bool,
        pair: usize,
        annotation: bool,
        key: u8,
        value: Option<u8>,
    },
    Pause {
        remote: bool,
        pair: usize,
        paused: bool,
    },
    Select {
        pair: usize,
        selected: bool,
    },
    DeleteRemote(usize),
    StripFinalizer(usize),
    /// An error was noted before, or came with a manifest.
    NoteError(usize),
    HoldRemote {
        pair: usize,
        held: bool,
    },
    CreateLocal(usize, u8),
    SetReplicas(usize, Option<u8>),
    HoldLocal(usize),
    DeleteLocal(usize),
    CreateNamespace,
    DeleteNamespace,
    Crash,
    Relist(usize),
    LoseAnswer {
        done: bool,
    },
}

/// Actions that leave towline's own marks alone.
pub(super) fn action() -> impl Strategy<Value = Action> {
    let pair = || 0..NAMES.len();
    prop_oneof![
        6 => (pair(), 0u8..6).prop_map(|(pair, content)| Action::CreateRemote(pair, content)),
        6 => (any::<bool>(), pair(), 0u8..6)
            .prop_map(|(remote, pair, content)| Action::SetContent { remote, pair, content }),
        6 => (prop::bool::weighted(0.2), pair(), 0u8..6)
            .prop_map(|(remote, pair, status)| Action::SetStatus { remote, pair, status }),
        6 => (any::<bool>(), pair(), any::<bool>(), 0u8..3, prop::option::of(0u8..2)).prop_map(
            |(remote, pair, annotation, key, value)| Action::SetMetadata { remote, pair, annotation, key, value }
        ),
        3 => (any::<bool>(), pair(), prop::bool::weighted(0.3))
            .prop_map(|(remote, pair, paused)| Action::Pause { remote, pair, paused }),
        2 => (pair(), prop::bool::weighted(0.7)).prop_map(|(pair, selected)| Action::Select { pair, selected }),
        5 => pair().prop_map(Action::DeleteRemote),
        2 => pair().prop_map(Action::StripFinalizer),
        2 => pair().prop_map(Action::NoteError),
        2 => (pair(), any::<bool>()).prop_map(|(pair, held)| Action::HoldRemote { pair, held }),
        3 => (pair(), 0u8..6).prop_map(|(pair, content)| Action::CreateLocal(pair, content)),
        2 => (pair(), prop::option::of(0u8..4)).prop_map(|(pair, replicas)| Action::SetReplicas(pair, replicas)),
        1 => pair().prop_map(Action::HoldLocal),
        3 => pair().prop_map(Action::DeleteLocal),
        1 => Just(Action::CreateNamespace),
        1 => Just(Action::DeleteNamespace),
        1 => Just(Action::Crash),
        1 => (0usize..3).prop_map(Action::Relist),
        2 => any::<bool>().prop_map(|done| Action::LoseAnswer { done }),
    ]
}

/// How the servers treat the kind.
pub(super) fn traits() -> impl Strategy<Value = Traits> {
    (prop::bool::weighted(0.8), prop::bool::weighted(0.8), any::<bool>(), any::<bool>()).prop_map(
        |(generations, status_subresource, defaults_spec, prunes_status)| Traits {
            generations,
            status_subresource,
            defaults_spec,
            prunes_status,
            annotations_raise_generation: false,
        },
    )
}

/// The keys of a section, in all combinations that matter to the plan.
pub(super) fn section() -> impl Strategy<Value = String> {
    let (merge, keep, write_back, local_fields, delete_adopted) =
        (prop::bool::weighted(0.7), any::<bool>(), prop::bool::weighted(0.8), any::<bool>(), any::<bool>());
    (merge, keep, write_back, local_fields, delete_adopted).prop_map(|(merge, keep, write_back, local_fields, deleted)| {
        format!(
            "metadata = \"{}\"\nunclaimed = \"{}\"\nwrite_back = {write_back}\nlocal_fields = {}\ndelete_adopted = {deleted}",
            if merge { "merge" } else { "mirror" },
            if keep { "keep" } else { "delete" },
            if local_fields { r#"["/spec/replicas"]"# } else { "[]" },
        )
    })
}

/// A field of the kind, which has a spec or else two other fields, and its value; `Null` for none.
fn content(has_spec: bool, number: u8) -> (&'static str, Value) {
    if !has_spec {
        return match number {
            0 => ("data", json!({"key": "one"})),
            1 => ("data", json!({"key": "two"})),
            2 => ("data", Value::Null),
            3 => ("extra", Value::Null),
            4 => ("extra", json!([])),
            _ => ("extra", json!([null, 1])),
        };
    }
    let spec = match number {
        0 => json!({"size": 1}),
        1 => json!({"size": 2, "mode": null}),
        2 => json!({"hosts": []}),
        3 => json!({"size": 1, "engine": "own"}),
        4 => json!({"size": 1, "replicas": 5}),
        _ => Value::Null,
    };
    ("spec", spec)
}

fn status(number: u8) -> Value {
    match number {
        0 => Value::Null,
        1 => json!({}),
        2 => json!({"ready": true, "conditions": []}),
        3 => json!({"ready": true, "pruned": 1}),
        4 => json!({"ready": true, "pruned": 2}),
        _ => json!({"ready": false, "message": null}),
    }
}

fn put(value: &mut Value, field: &str, content: Value) {
    let fields = value.as_object_mut().expect("a map");
    if content.is_null() {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), content);
    }
}

fn annotate(value: &mut Value, map: &str, key: &str, to: Option<&str>) {
    let entries = &mut value["metadata"][map];
    match to {
        Some(to) => entries[key] = json!(to),
        None => {
            entries.as_object_mut().map(|entries| entries.remove(key));
        }
    }
}

impl World {
    fn meddle(&mut self, remote: bool, pair: usize, part: Part, change: impl FnOnce(&mut Value)) {
        let server = if remote { &mut self.remote } else { &mut self.local };
        // A change of a missing object fails without an effect.
        let _: Result<_, Refused> = server.change(Sort::Synced, NAMES[pair], Who::SomebodyElse, part, |value| {
            change(value);
            Ok(())
        });
    }

    /// Carries out an action, if it is possible.
    pub(super) fn act(&mut self, action: &Action) {
        let is_left_out = |world: &Self, name: &str| {
            let remote = world.remote.get(Sort::Synced, name);
            remote.is_some_and(|remote| remote.pointer(&format!("/metadata/labels/{UNSELECTED}")).is_some())
        };
        let left_out: Vec<_> = NAMES.into_iter().filter(|name| is_left_out(self, name)).collect();
        self.do_it(action);
        self.unseen_ends += left_out.iter().filter(|name| self.remote.get(Sort::Synced, name).is_none()).count();
    }

    fn do_it(&mut self, action: &Action) {
        self.diary.push(format!("{action:?}"));
        let other = Who::SomebodyElse;
        match *action {
            Action::CreateRemote(pair, number) => {
                let (field, content) = content(self.has_spec, number);
                let mut body = json!({"metadata": {"labels": {"k0": "0"}}});
                put(&mut body, field, content);
                let _ = self.remote.create(Sort::Synced, NAMES[pair], &body, other);
            }
            Action::CreateLocal(pair, number) => {
                let (field, content) = content(self.has_spec, number);
                let mut body = json!({"metadata": {"annotations": {"k1": "theirs"}}});
                put(&mut body, field, content);
                let _ = self.local.create(Sort::Synced, NAMES[pair], &body, other);
            }
            Action::SetContent { remote, pair, content: number } => {
                let (field, content) = content(self.has_spec, number);
                self.meddle(remote, pair, Part::Main, |value| put(value, field, content));
            }
            Action::SetStatus { remote, pair, status: number } => {
                self.meddle(remote, pair, Part::Status, |value| put(value, "status", status(number)));
            }
            Action::SetMetadata { remote, pair, annotation, key, value: to } => {
                let (map, key) = (if annotation { "annotations" } else { "labels" }, format!("k{key}"));
                self.meddle(remote, pair, Part::Main, |value| {
                    annotate(value, map, &key, to.map(|to| to.to_string()).as_deref());
                });
            }
            Action::Pause { remote, pair, paused } => {
                self.meddle(remote, pair, Part::Main, |value| {
                    // A change that the watch does not show is only seen at the next list.
                    if value.pointer(&format!("/metadata/labels/{UNSELECTED}")).is_none() {
                        annotate(value, "annotations", PAUSED, paused.then_some("true"));
                    }
                });
            }
            Action::Select { pair, selected } => {
                self.meddle(true, pair, Part::Main, |value| {
                    if value["metadata"]["annotations"].get(PAUSED).is_none() {
                        annotate(value, "labels", UNSELECTED, (!selected).then_some("yes"));
                    }
                });
            }
            Action::DeleteRemote(pair) => {
                let _ = self.remote.delete(Sort::Synced, NAMES[pair], None, other);
            }
            Action::StripFinalizer(pair) => {
                self.meddle(true, pair, Part::Main, |value| drop_finalizer(value, FINALIZER));
            }
            Action::NoteError(pair) => {
                self.meddle(true, pair, Part::Main, |value| {
                    annotate(value, "annotations", SYNC_ERROR, Some("patch_local: no"));
                });
            }
            Action::HoldRemote { pair, held } => {
                self.meddle(true, pair, Part::Main, |value| {
                    if !held {
                        drop_finalizer(value, "other/hold");
                    } else if !is_deleting(value) {
                        push(&mut value["metadata"], "finalizers", "other/hold");
                    }
                });
            }
            Action::SetReplicas(pair, replicas) => {
                self.meddle(false, pair, Part::Main, |value| {
                    if let Some(spec) = value.get_mut("spec").filter(|spec| spec.is_object()) {
                        put(spec, "replicas", replicas.map_or(Value::Null, Value::from));
                    }
                });
            }
            Action::HoldLocal(pair) => {
                self.meddle(false, pair, Part::Main, |value| {
                    if !is_deleting(value) {
                        push(&mut value["metadata"], "finalizers", "local/hold");
                    }
                });
            }
            Action::DeleteLocal(pair) => {
                let _ = self.local.delete(Sort::Synced, NAMES[pair], None, other);
            }
            Action::CreateNamespace => {
                let _ = self.local.create(Sort::Namespace, NAMESPACE, &json!({"metadata": {}}), other);
            }
            Action::DeleteNamespace => {
                let _ = self.local.delete(Sort::Namespace, NAMESPACE, None, other);
            }
            Action::Crash => self.crash(),
            Action::Relist(index) => self.relist(index),
            Action::LoseAnswer { done } => self.unknown = Some(done),
        }
    }
}

fn drop_finalizer(value: &mut Value, finalizer: &str) {
    if let Some(held) = value["metadata"]["finalizers"].as_array_mut() {
        held.retain(|held| held != finalizer);
    }
}

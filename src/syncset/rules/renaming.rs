//! Which objects a syncset deletes on a cluster because labels of the cluster have other values.
//!
//! Names and namespaces of resources may be templates. A cluster that is relabelled and still matches gets the objects under other
//! names, and those under the old ones are tracked and not wanted any more. The labels before are not always known, so the objects that
//! are tracked are compared with those that the present labels name. Only objects that a template could have made count: others go
//! because of edits, which are judged by themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use uuid::Uuid;

use super::guard::Objects;
use super::name::{ObjectRef, SyncSetName};
use super::parse::{self, Identity};
use super::spec::Mode;
use super::wanted::may_be_in;
use crate::documents::{Node, Template, TextBudget, group_of, is_kind, is_path_segment};

#[cfg(test)]
mod tests;

/// How a syncset names its objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Naming {
    /// Whether it deletes what it no longer wants.
    deletes: bool,
    /// Its resources and the targets of its secrets; none if it can't be read, so that it may want any object.
    named: Option<Vec<Named>>,
}

/// An object before labels are known.
#[derive(Clone, Debug, PartialEq)]
struct Named {
    group: String,
    kind: String,
    namespace: Segment,
    name: Segment,
}

/// A name or a namespace.
#[derive(Clone, Debug, PartialEq)]
enum Segment {
    Plain(String),
    /// A template, with the texts with which all that it makes begins and ends.
    Template {
        template: Template,
        prefix: String,
        suffix: String,
    },
    /// None that could be sent.
    Invalid,
}

/// The objects that a syncset names on a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    objects: Objects,
    /// Group, kind and name of each: kinds without namespaces have none on clusters.
    bare: BTreeSet<[String; 3]>,
    /// Kinds of which a name or namespace does not render: nothing of them is deleted.
    unknown: BTreeSet<[String; 2]>,
}

/// What is noted of a cluster that a syncset has lost objects on (`towline_lost`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It matched the cluster no more. `back`: and again after they were deleted.
    Unmatched {
        /// Whether it matched again.
        back: bool,
    },
    /// Labels gave them other names.
    Renamed {
        /// Them; if the labels are restored, those that go because of that.
        objects: Objects,
        /// Whether the labels were restored after some of them were deleted.
        back: bool,
        /// Whether it was within the time that counts, and not approved.
        counts: bool,
    },
}

/// What is to be noted instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// As it is.
    Unchanged,
    Nothing,
    /// It loses these objects from now on.
    Loses(Objects),
    /// Of what is noted, these are left.
    Left(Objects),
    /// The labels are restored before anything was deleted. These go with that, and don't count.
    Restored(Objects),
    /// The labels are restored after something was deleted, which counts. These go with that, and don't.
    Back(Objects),
}

impl Naming {
    /// How a document names objects. `spec` may be without resources and patches; `resources` has version, kind, namespace and name of
    /// each, and is none if they are no list.
    pub fn read(name: &SyncSetName, spec: &Value, resources: Option<&[[Option<String>; 4]]>) -> Self {
        let identity = Identity { id: Uuid::nil(), name: name.clone(), version: 0, generation: 0 };
        let Ok(header) = parse::header(identity, spec) else { return Self { deletes: true, named: None } };
        let named = resources.and_then(|resources| {
            let resources = resources.iter().map(|resource| Named::of(resource, header.resource_templates));
            let targets = header.secrets.iter().map(|mapping| Named {
                group: String::new(),
                kind: "Secret".to_owned(),
                namespace: Segment::Plain(mapping.target_namespace.clone()),
                name: Segment::Plain(mapping.target_name.clone()),
            });
            resources.chain(targets.map(Some)).collect()
        });
        Self { deletes: header.mode == Mode::Sync, named }
    }

    /// What is to be noted of a cluster that it matches and that has these labels, where it tracks these objects, which it may delete.
    /// With `only_noted` no others are lost than those that are noted.
    pub fn judge(
        &self,
        labels: &BTreeMap<String, String>,
        tracked: &Objects,
        noted: Option<&Noted>,
        only_noted: bool,
    ) -> Finding {
        let Some(named) = &self.named else { return Finding::Unchanged };
        let wanted = Names::of(named, labels);
        let nothing = Objects::new();
        let before = match noted {
            Some(Noted::Renamed { objects, .. }) => objects,
            None | Some(Noted::Unmatched { .. }) => &nothing,
        };
        let is_wanted = |object: &[String; 4]| !self.deletes || wanted.has(object);
        let may_be_lost = |object: &[String; 4]| {
            before.contains(object) || (!only_noted && named.iter().any(|named| named.may_make(object)))
        };
        let lost: Objects = tracked
            .iter()
            .filter(|object| !is_wanted(object) && may_be_lost(object) && !wanted.holds_back(object))
            .cloned()
            .collect();
        match noted {
            None | Some(Noted::Unmatched { back: true }) if lost.is_empty() => Finding::Unchanged,
            Some(Noted::Unmatched { back: false }) if lost.is_empty() => Finding::Nothing,
            None | Some(Noted::Unmatched { .. }) => Finding::Loses(lost),
            Some(Noted::Renamed { back: true, .. }) => remaining(before, lost),
            Some(Noted::Renamed { counts: false, .. }) if lost.is_empty() => Finding::Nothing,
            Some(Noted::Renamed { counts: false, .. }) => remaining(before, lost),
            Some(Noted::Renamed { counts: true, .. }) => {
                let is_deleted = !before.is_subset(tracked);
                let left: Objects = before.iter().filter(|object| !is_wanted(object)).cloned().collect();
                match (left.is_empty(), is_deleted) {
                    // What was made under the other names goes again.
                    (true, true) => Finding::Back(lost),
                    (true, false) if lost.is_empty() => Finding::Nothing,
                    (true, false) => Finding::Restored(lost),
                    // Further names change nothing as long as nothing was deleted: what has to come back is what there was before.
                    (false, true) if !lost.is_subset(before) => Finding::Loses(lost),
                    (false, _) if left == *before => Finding::Unchanged,
                    (false, _) => Finding::Left(left),
                }
            }
        }
    }
}

/// What is left of what was noted before, if nothing else is lost.
fn remaining(before: &Objects, lost: Objects) -> Finding {
    if !lost.is_subset(before) {
        Finding::Loses(lost)
    } else if lost == *before {
        Finding::Unchanged
    } else {
        Finding::Left(lost)
    }
}

impl Named {
    /// None if it can't be read what kind it is.
    fn of([version, kind, namespace, name]: &[Option<String>; 4], has_templates: bool) -> Option<Self> {
        let group = group_of(version.as_deref()?)?;
        let kind = kind.as_deref().filter(|kind| is_kind(kind) && *kind != "List")?;
        let segment = |text: &str| if has_templates { Segment::of(text) } else { Segment::plain(text) };
        Some(Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: match namespace.as_deref().unwrap_or_default() {
                "" => Segment::Plain(String::new()),
                text => segment(text),
            },
            name: segment(name.as_deref().unwrap_or_default()),
        })
    }

    /// Whether a template of it could have made this object.
    fn may_make(&self, [group, kind, namespace, name]: &[String; 4]) -> bool {
        let has_template =
            [&self.namespace, &self.name].iter().any(|segment| matches!(segment, Segment::Template { .. }));
        has_template
            && self.group == *group
            && self.kind == *kind
            && (namespace.is_empty() || self.namespace.may_make(namespace))
            && self.name.may_make(name)
    }
}

impl Segment {
    fn plain(text: &str) -> Self {
        if is_path_segment(text) { Self::Plain(text.to_owned()) } else { Self::Invalid }
    }

    fn of(text: &str) -> Self {
        if !text.contains("{{") {
            return Self::plain(text);
        }
        let Ok(template) = Template::parse(text) else { return Self::Invalid };
        let text_of = |node: &Node| match node {
            Node::Text(text) => Some(text.clone()),
            _ => None,
        };
        let prefix = template.nodes().iter().map_while(text_of).collect();
        let mut suffix: Vec<String> = template.nodes().iter().rev().map_while(text_of).collect();
        suffix.reverse();
        let suffix = suffix.concat();
        Self::Template { template, prefix, suffix }
    }

    fn may_make(&self, text: &str) -> bool {
        match self {
            Self::Plain(plain) => plain == text,
            Self::Template { prefix, suffix, .. } => {
                text.starts_with(prefix.as_str()) && text.ends_with(suffix.as_str())
            }
            Self::Invalid => false,
        }
    }

    /// None if it does not render, or to nothing that could be sent.
    fn render(&self, labels: &BTreeMap<String, String>, budget: &mut TextBudget) -> Option<String> {
        match self {
            Self::Plain(text) => Some(text.clone()),
            Self::Template { template, .. } => {
                let label = |key: &str| labels.get(key).map(String::as_str);
                template.render(&label, budget).ok().filter(|text| is_path_segment(text))
            }
            Self::Invalid => None,
        }
    }
}

impl Names {
    fn of(named: &[Named], labels: &BTreeMap<String, String>) -> Self {
        let (mut found, mut budget) = (Self::default(), TextBudget::default());
        for Named { group, kind, namespace, name } in named {
            // In the order in which a pass renders them, since they share what they may make.
            let name = name.render(labels, &mut budget);
            let namespace = name.as_ref().and_then(|_| namespace.render(labels, &mut budget));
            if let (Some(name), Some(namespace)) = (name, namespace) {
                found.bare.insert([group.clone(), kind.clone(), name.clone()]);
                found.objects.insert([group.clone(), kind.clone(), namespace, name]);
            } else {
                found.unknown.insert([group.clone(), kind.clone()]);
            }
        }
        found
    }

    fn has(&self, object: &[String; 4]) -> bool {
        let [group, kind, namespace, name] = object;
        let is_bare = || namespace.is_empty() && self.bare.contains(&[group.clone(), kind.clone(), name.clone()]);
        self.objects.contains(object) || is_bare()
    }

    fn holds_back(&self, [group, kind, namespace, name]: &[String; 4]) -> bool {
        if self.unknown.is_empty() {
            return false;
        }
        let (group, kind) = (group.clone(), kind.clone());
        let object = ObjectRef { group, kind, namespace: namespace.clone(), name: name.clone() };
        self.unknown.iter().any(|[group, kind]| may_be_in(group, kind, &object))
    }
}

//! Which finalizers and marks on listed objects no section owns. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cluster::{FIELD_MANAGER, Marked, ObjectKey};
use crate::config::{ResourceId, SectionName};
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::rules::marks::{Marks, OWNER_SECTION, PAUSED, REMOTE_UID};
use crate::resource_sync::rules::names::Mapping;
use crate::resource_sync::section::Section;
use crate::state::PastMarks;

/// For each mark, at most this many objects are named.
const NAMED: usize = 5;

/// A mark that no section of this daemon owns, and the objects that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LeftBehind {
    /// `remote` or `local`.
    pub(super) side: &'static str,
    /// The finalizer or annotation.
    pub(super) mark: String,
    /// How many objects have it.
    pub(super) objects: usize,
    /// The first of them.
    pub(super) first: Vec<String>,
    /// Whether an earlier section of this daemon wrote it. If not, it may be another daemon's.
    pub(super) was_ours: bool,
}

impl PastMarks {
    /// Whether the mark that is left is one of these.
    pub(super) fn has_left(&self, left: &LeftBehind) -> bool {
        left.mark == self.finalizer()
            || (left.was_ours
                && left.mark.strip_prefix(&self.annotation_domain).is_some_and(|rest| rest.starts_with('/')))
    }
}

/// A configured section that may own marks.
pub(super) struct Owner<'a> {
    pub(super) section: &'a Section,
    /// Whether it has the same kind.
    pub(super) of_kind: bool,
    /// Whether it has the same remote cluster.
    pub(super) of_remote: bool,
}

/// The objects that were listed for one search.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) remotes: Vec<Marked>,
    pub(super) locals: Vec<Marked>,
    pub(super) namespaces: Vec<Marked>,
}

/// Earlier settings of a section of this daemon.
pub(super) struct Past {
    marks: PastMarks,
    mapping: Mapping,
    pub(super) resource: Option<ResourceId>,
}

impl Past {
    pub(super) fn new(marks: &PastMarks) -> Self {
        Self { marks: marks.clone(), mapping: Mapping::of_past(marks), resource: marks.resource.parse().ok() }
    }
}

/// What a search compares the marks with: the configured sections, and earlier settings.
pub(super) struct Search<'a> {
    pub(super) config: &'a SyncConfig,
    pub(super) resource: &'a ResourceId,
    pub(super) past: &'a [Past],
    pub(super) owners: &'a [Owner<'a>],
}

impl Search<'_> {
    /// The domain and the name of a mark, if this daemon uses or has used the domain.
    fn domain_of<'m>(&self, mark: &'m str) -> Option<(&'m str, &'m str)> {
        let (domain, name) = mark.split_once('/')?;
        let is_ours = self.past.iter().any(|past| past.marks.annotation_domain == domain)
            || self.owners.iter().any(|owner| domains(&owner.section.config).any(|ours| ours == domain));
        is_ours.then_some((domain, name))
    }

    /// Earlier settings for this kind. If none of them covers an object, its mark is another daemon's: many use the same
    /// names.
    fn of_kind(&self) -> impl Iterator<Item = &Past> {
        let is_of_kind = |past: &&Past| past.resource.as_ref().is_some_and(|kind| kind.same_objects(self.resource));
        self.past.iter().filter(is_of_kind)
    }

    /// Whether an earlier section of this daemon added the finalizer to a remote object.
    fn was_held(&self, remote: &Marked, finalizer: &str) -> bool {
        let mut past = self.of_kind();
        past.any(|past| {
            past.marks.finalizer() == finalizer
                && past.marks.remote == self.config.remote.as_str()
                && past.mapping.covers_remote(&remote.key)
        })
    }

    /// Whether an earlier section of this daemon wrote a local object.
    fn was_written(&self, local: &Marked) -> bool {
        let wrote = |past: &Past| {
            let written_by = format!("{FIELD_MANAGER}-{}", past.marks.section);
            local.managers.contains(&written_by)
        };
        let is_here = |past: &Past| past.marks.local == self.config.local.as_str();
        self.of_kind().any(|past| wrote(past) && is_here(past) && past.mapping.covers_local(&local.key))
    }

    /// Whether an earlier section of this daemon created a namespace.
    fn was_made(&self, namespace: &str, section: &str) -> bool {
        let covers = |past: &Past| {
            past.marks.local == self.config.local.as_str() && past.mapping.remote_namespace_of(namespace).is_some()
        };
        self.past.iter().any(|past| past.marks.section == section && covers(past))
    }

    /// An object's annotations of this name, each with its domain, if that is or was one of ours.
    fn marks_named<'m>(&self, object: &'m Marked, name: &str) -> Vec<(&'m str, &'m str)> {
        let marks = object.annotations.keys().filter_map(|mark| Some((&**mark, self.domain_of(mark)?)));
        marks.filter(|(_, (_, found))| *found == name).map(|(mark, (domain, _))| (mark, domain)).collect()
    }

    /// Pause annotations that have lost their effect: sections cover the object, and none of them reads that domain any more.
    fn ignored_pauses(&self, object: &Marked, covers: impl Fn(&Owner<'_>) -> bool) -> Vec<String> {
        let owners: Vec<_> = self.owners.iter().filter(|owner| owner.of_kind && covers(owner)).collect();
        let is_honoured =
            |domain: &str| owners.iter().any(|owner| domains(&owner.section.config).any(|ours| ours == domain));
        let pauses = self.marks_named(object, PAUSED).into_iter();
        pauses
            .filter(|(_, domain)| !owners.is_empty() && !is_honoured(domain))
            .map(|(mark, _)| mark.to_owned())
            .collect()
    }
}

fn domains(config: &SyncConfig) -> impl Iterator<Item = &str> {
    std::iter::once(&config.annotation_domain).chain(&config.former_annotation_domains).map(String::as_str)
}

pub(super) fn names(config: &SyncConfig) -> impl Iterator<Item = &str> {
    std::iter::once(&config.name).chain(&config.former_names).map(SectionName::as_str)
}

#[derive(Default)]
struct Found(BTreeMap<(&'static str, String, bool), (usize, Vec<String>)>);

impl Found {
    fn add(&mut self, side: &'static str, mark: String, was_ours: bool, key: &ObjectKey) {
        let (objects, first) = self.0.entry((side, mark, was_ours)).or_default();
        *objects += 1;
        if first.len() < NAMED {
            first.push(key.to_string());
        }
    }
}

/// The marks on the listed objects that no section owns.
pub(super) fn find(listed: &Listed, search: &Search<'_>) -> Vec<LeftBehind> {
    let mut found = Found::default();
    for remote in &listed.remotes {
        for finalizer in remote.finalizers.iter().filter(|finalizer| search.domain_of(finalizer).is_some()) {
            let is_by = |is_theirs: fn(&Marks, &Marked, &str) -> bool| {
                search.owners.iter().any(|Owner { section, of_kind, of_remote }| {
                    *of_kind
                        && *of_remote
                        && is_theirs(&section.policy.marks, remote, finalizer)
                        && section.mapping.covers_remote(&remote.key)
                })
            };
            if !is_by(|marks, remote, finalizer| marks.is_finalizer_among(&remote.finalizers, finalizer)) {
                // A finalizer by a former name beside the present one may belong to another daemon that follows the object.
                let is_beside = is_by(|marks, _, finalizer| marks.is_finalizer_name(finalizer));
                let was_ours = !is_beside && search.was_held(remote, finalizer);
                found.add("remote", finalizer.clone(), was_ours, &remote.key);
            }
        }
        let of_remote = |owner: &Owner<'_>| owner.of_remote && owner.section.mapping.covers_remote(&remote.key);
        for mark in search.ignored_pauses(remote, of_remote) {
            found.add("remote", mark, true, &remote.key);
        }
    }
    for local in &listed.locals {
        let covers = |owner: &Owner<'_>| {
            let is_here = owner.section.config.local == search.config.local;
            is_here && owner.section.mapping.covers_local(&local.key)
        };
        for mark in search.ignored_pauses(local, covers) {
            found.add("local", mark, true, &local.key);
        }
        for (mark, domain) in search.marks_named(local, REMOTE_UID) {
            let mut owners = search.owners.iter().filter(|owner| owner.of_kind && covers(owner));
            if !owners.any(|owner| domains(&owner.section.config).any(|ours| ours == domain)) {
                found.add("local", mark.to_owned(), search.was_written(local), &local.key);
            }
        }
    }
    for namespace in &listed.namespaces {
        for (mark, section) in &namespace.annotations {
            let Some((domain, OWNER_SECTION)) = search.domain_of(mark) else { continue };
            let is_owned = search.owners.iter().any(|owner| {
                domains(&owner.section.config).any(|ours| ours == domain)
                    && names(&owner.section.config).any(|name| name == &**section)
                    && owner.section.config.local == search.config.local
                    && owner.section.mapping.remote_namespace_of(&namespace.key.name).is_some()
            });
            if !is_owned {
                let was_ours = search.was_made(&namespace.key.name, section);
                found.add("local", format!("{mark}: {section}"), was_ours, &namespace.key);
            }
        }
    }
    let entries = found.0.into_iter();
    entries
        .map(|((side, mark, was_ours), (objects, first))| LeftBehind { side, mark, objects, first, was_ours })
        .collect()
}

//! What a change of the configuration leaves behind: finalizers and marks that no section owns any more.
//!
//! After a narrower prefix, a renamed finalizer, another domain or a removed section, nobody removes the earlier finalizers and
//! marks, so deletions on the remote hang and namespaces stay. The section's state says which settings it last ran with. Where
//! they have changed, or something was left then, the section looks once after its caches have listed: it lists the metadata of
//! each side. What it finds is in `/status`, the log and a metric until a later look finds nothing. [`find`] is pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::Serialize;

use super::Section;
use crate::cluster::{Cluster, Error, FIELD_MANAGER, Kind, Marked, ObjectKey};
use crate::config::{ResourceId, SectionName};
use crate::resource_sync::config::{Metadata, SyncConfig};
use crate::resource_sync::index::phase::Mode;
use crate::resource_sync::rules::former::Renewal;
use crate::resource_sync::rules::marks::{Marks, OWNER_SECTION, PAUSED, REMOTE_UID};
use crate::resource_sync::rules::names::Mapping;
use crate::state::PastMarks;

/// So many objects are named for each mark.
const NAMED: usize = 5;
/// So many earlier settings are remembered.
const PAST: usize = 16;
/// The annotations that are looked for, without their domain.
const MARKS: [&str; 3] = [PAUSED, REMOTE_UID, OWNER_SECTION];

/// Objects with a mark that no section of this daemon owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LeftBehind {
    /// `remote` or `local`.
    side: &'static str,
    /// The finalizer or annotation.
    mark: String,
    /// How many objects bear it.
    objects: usize,
    /// The first of them.
    first: Vec<String>,
    /// Whether it was this daemon's: else it may belong to another one.
    was_ours: bool,
}

impl PastMarks {
    /// Whether what is left bears these marks.
    fn has_left(&self, left: &LeftBehind) -> bool {
        left.mark == self.finalizer()
            || (left.was_ours
                && left.mark.strip_prefix(&self.annotation_domain).is_some_and(|rest| rest.starts_with('/')))
    }
}

/// Who owns which marks: one configured section.
struct Owner<'a> {
    section: &'a Section,
    /// Whether it has the same kind.
    of_kind: bool,
    /// Whether it has the same remote cluster.
    of_remote: bool,
}

/// The objects of one look.
#[derive(Default)]
struct Looked {
    remotes: Vec<Marked>,
    locals: Vec<Marked>,
    namespaces: Vec<Marked>,
}

/// Earlier settings of a section of this daemon's.
struct Past {
    marks: PastMarks,
    mapping: Mapping,
    resource: Option<ResourceId>,
}

impl Past {
    fn new(marks: &PastMarks) -> Self {
        Self { marks: marks.clone(), mapping: Mapping::of_past(marks), resource: marks.resource.parse().ok() }
    }
}

/// Which marks are looked for, besides those of the configured sections.
struct Wanted<'a> {
    config: &'a SyncConfig,
    resource: &'a ResourceId,
    past: &'a [Past],
    owners: &'a [Owner<'a>],
}

impl Wanted<'_> {
    /// The domain of a mark, where it is one that this daemon uses or has used.
    fn domain_of<'m>(&self, mark: &'m str) -> Option<(&'m str, &'m str)> {
        let (domain, name) = mark.split_once('/')?;
        let is_ours = self.past.iter().any(|past| past.marks.annotation_domain == domain)
            || self.owners.iter().any(|owner| domains(&owner.section.config).any(|ours| ours == domain));
        is_ours.then_some((domain, name))
    }

    /// Earlier settings for this kind. Where none covers an object, the mark is another daemon's: many use the same names.
    fn of_kind(&self) -> impl Iterator<Item = &Past> {
        let is_of_kind = |past: &&Past| past.resource.as_ref().is_some_and(|kind| kind.same_objects(self.resource));
        self.past.iter().filter(is_of_kind)
    }

    /// Whether the finalizer was put on a remote object by a section of this daemon's.
    fn was_held(&self, remote: &Marked, finalizer: &str) -> bool {
        let mut past = self.of_kind();
        past.any(|past| {
            past.marks.finalizer() == finalizer
                && past.marks.remote == self.config.remote.as_str()
                && past.mapping.covers_remote(&remote.key)
        })
    }

    /// Whether a section of this daemon's wrote a local object.
    fn was_written(&self, local: &Marked) -> bool {
        let wrote = |past: &Past| {
            let written_by = format!("{FIELD_MANAGER}-{}", past.marks.section);
            local.managers.contains(&written_by)
        };
        let is_here = |past: &Past| past.marks.local == self.config.local.as_str();
        self.of_kind().any(|past| wrote(past) && is_here(past) && past.mapping.covers_local(&local.key))
    }

    /// Whether a section of this daemon's made a namespace.
    fn was_made(&self, namespace: &str, section: &str) -> bool {
        let covers = |past: &Past| {
            past.marks.local == self.config.local.as_str() && past.mapping.remote_namespace_of(namespace).is_some()
        };
        self.past.iter().any(|past| past.marks.section == section && covers(past))
    }

    /// An object's annotations of this name, each with its domain, where that is or was one of ours.
    fn marks_named<'m>(&self, object: &'m Marked, name: &str) -> Vec<(&'m str, &'m str)> {
        let marks = object.annotations.keys().filter_map(|mark| Some((&**mark, self.domain_of(mark)?)));
        marks.filter(|(_, (_, found))| *found == name).map(|(mark, (domain, _))| (mark, domain)).collect()
    }

    /// Pauses that sections would have heard before: they cover the object, and none reads that domain any more.
    fn unheard_pauses(&self, object: &Marked, covers: impl Fn(&Owner<'_>) -> bool) -> Vec<String> {
        let owners: Vec<_> = self.owners.iter().filter(|owner| owner.of_kind && covers(owner)).collect();
        let is_heard =
            |domain: &str| owners.iter().any(|owner| domains(&owner.section.config).any(|ours| ours == domain));
        let pauses = self.marks_named(object, PAUSED).into_iter();
        pauses.filter(|(_, domain)| !owners.is_empty() && !is_heard(domain)).map(|(mark, _)| mark.to_owned()).collect()
    }
}

fn domains(config: &SyncConfig) -> impl Iterator<Item = &str> {
    std::iter::once(&config.annotation_domain).chain(&config.former_annotation_domains).map(String::as_str)
}

fn names(config: &SyncConfig) -> impl Iterator<Item = &str> {
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

/// What no section owns.
fn find(looked: &Looked, wanted: &Wanted<'_>) -> Vec<LeftBehind> {
    let mut found = Found::default();
    for remote in &looked.remotes {
        for finalizer in remote.finalizers.iter().filter(|finalizer| wanted.domain_of(finalizer).is_some()) {
            let is_by = |is_theirs: fn(&Marks, &Marked, &str) -> bool| {
                wanted.owners.iter().any(|Owner { section, of_kind, of_remote }| {
                    *of_kind
                        && *of_remote
                        && is_theirs(&section.policy.marks, remote, finalizer)
                        && section.mapping.covers_remote(&remote.key)
                })
            };
            if !is_by(|marks, remote, finalizer| marks.is_finalizer_among(&remote.finalizers, finalizer)) {
                // One by a former name beside the present one may be another follower's.
                let is_beside = is_by(|marks, _, finalizer| marks.is_finalizer_name(finalizer));
                let was_ours = !is_beside && wanted.was_held(remote, finalizer);
                found.add("remote", finalizer.clone(), was_ours, &remote.key);
            }
        }
        let of_remote = |owner: &Owner<'_>| owner.of_remote && owner.section.mapping.covers_remote(&remote.key);
        for mark in wanted.unheard_pauses(remote, of_remote) {
            found.add("remote", mark, true, &remote.key);
        }
    }
    for local in &looked.locals {
        let covers = |owner: &Owner<'_>| {
            let is_here = owner.section.config.local == wanted.config.local;
            is_here && owner.section.mapping.covers_local(&local.key)
        };
        for mark in wanted.unheard_pauses(local, covers) {
            found.add("local", mark, true, &local.key);
        }
        for (mark, domain) in wanted.marks_named(local, REMOTE_UID) {
            let mut owners = wanted.owners.iter().filter(|owner| owner.of_kind && covers(owner));
            if !owners.any(|owner| domains(&owner.section.config).any(|ours| ours == domain)) {
                found.add("local", mark.to_owned(), wanted.was_written(local), &local.key);
            }
        }
    }
    for namespace in &looked.namespaces {
        for (mark, section) in &namespace.annotations {
            let Some((domain, OWNER_SECTION)) = wanted.domain_of(mark) else { continue };
            let is_owned = wanted.owners.iter().any(|owner| {
                domains(&owner.section.config).any(|ours| ours == domain)
                    && names(&owner.section.config).any(|name| name == &**section)
                    && owner.section.config.local == wanted.config.local
                    && owner.section.mapping.remote_namespace_of(&namespace.key.name).is_some()
            });
            if !is_owned {
                let was_ours = wanted.was_made(&namespace.key.name, section);
                found.add("local", format!("{mark}: {section}"), was_ours, &namespace.key);
            }
        }
    }
    let entries = found.0.into_iter();
    entries
        .map(|((side, mark, was_ours), (objects, first))| LeftBehind { side, mark, objects, first, was_ours })
        .collect()
}

/// The marks of a section, as its state remembers them.
fn marks_of(config: &SyncConfig) -> PastMarks {
    PastMarks {
        section: config.name.to_string(),
        annotation_domain: config.annotation_domain.clone(),
        finalizer: config.finalizer.clone(),
        resource: config.resource.to_string(),
        remote: config.remote.to_string(),
        local: config.local.to_string(),
        remote_resource_suffix: config.remote_resource_suffix.clone(),
        local_namespace_suffix: config.local_namespace_suffix.clone(),
        namespace_prefix: config.namespace_prefix.clone(),
    }
}

/// Of all settings that decide which objects bear which marks.
fn fingerprint(config: &SyncConfig, sections: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    (config.resource.to_string(), config.remote.as_str(), config.local.as_str()).hash(&mut hasher);
    (&config.remote_resource_suffix, &config.local_namespace_suffix, &config.namespace_prefix).hash(&mut hasher);
    (config.selector.as_str(), &config.annotation_domain, &config.finalizer, &config.secret_names).hash(&mut hasher);
    config.system_objects.hash(&mut hasher);
    (&config.former_finalizers, &config.former_annotation_domains, sections).hash(&mut hasher);
    names(config).collect::<Vec<_>>().hash(&mut hasher);
    (config.write_back, config.metadata == Metadata::Mirror).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

impl Section {
    /// Whether the settings were others when the section last ran, or something was left behind then.
    pub(crate) fn may_have_left_something(&self) -> bool {
        let now = fingerprint(&self.config, &self.section_names());
        self.state().look(|state| state.settings.as_ref().is_none_or(|then| then.fingerprint != now || then.left > 0))
    }

    /// Nothing is to be looked for.
    #[cfg(test)]
    pub(crate) fn ran_with_these_settings(&self) {
        let fingerprint = fingerprint(&self.config, &self.section_names());
        self.state().change(|state| state.settings.get_or_insert_default().fingerprint = fingerprint);
    }

    fn section_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.sections_here().iter().map(|section| section.name().to_string()).collect();
        names.sort();
        names
    }

    /// Looks for what earlier settings have left behind, and remembers the present ones.
    pub(crate) async fn look_for_left_behind(&self) -> Result<(), Error> {
        let sections = self.section_names();
        let then = self.state().current().settings.unwrap_or_default();
        let now = marks_of(&self.config);
        let mut past = then.past.clone();
        past.extend(then.marks.clone().filter(|marks| *marks != now));
        // One of all sections of this cluster looks for those that were taken out.
        let removed: Vec<String> = if sections.first().map(String::as_str) == Some(self.name().as_str()) {
            then.sections.iter().filter(|name| !sections.contains(name)).cloned().collect()
        } else {
            Vec::new()
        };
        let mut left_states = Vec::new();
        for name in &removed {
            let Ok(name) = name.parse() else { continue };
            if let Some(settings) = self.state().of_other(&name).await? {
                left_states.push(self.state().object_of(&name));
                past.extend(settings.marks);
            }
        }
        let mut distinct: Vec<PastMarks> = Vec::new();
        for marks in past {
            if !distinct.contains(&marks) {
                distinct.push(marks);
            }
        }
        let mut past = distinct;
        past.drain(..past.len().saturating_sub(PAST));
        let peers = self.peers();
        let owners = |resource: &ResourceId| -> Vec<Owner<'_>> {
            let owner = |peer| {
                let peer: &Arc<Section> = peer;
                Owner {
                    section: peer,
                    of_kind: peer.config.resource.same_objects(resource),
                    of_remote: peer.config.remote == self.config.remote,
                }
            };
            peers
                .iter()
                .filter(|peer| peer.config.local == self.config.local || peer.config.remote == self.config.remote)
                .map(owner)
                .collect()
        };
        let looked = self.look_at_own_kind().await?;
        let settings: Vec<Past> = past.iter().map(Past::new).collect();
        let resource = &self.config.resource;
        let mut left =
            find(&looked, &Wanted { config: &self.config, resource, past: &settings, owners: &owners(resource) });
        // Kinds that no section of now has.
        let mut kinds: Vec<ResourceId> = settings.iter().filter_map(|past| past.resource.clone()).collect();
        kinds.retain(|kind| !kind.same_objects(&self.config.resource));
        kinds.sort_by_key(ToString::to_string);
        kinds.dedup();
        let mut unknown: Vec<String> = Vec::new();
        for resource in kinds {
            let remotes = match marked(self.remote_cluster(), &resource).await {
                Ok(remotes) => remotes,
                // Neither served nor permitted any more: it stays to be looked at.
                Err(error @ (Error::Forbidden { .. } | Error::NotServed { .. })) => {
                    tracing::debug!(section = %self.name(), %resource, %error, "what is left of this kind is not known");
                    unknown.push(resource.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let looked = Looked { remotes, ..Looked::default() };
            left.extend(find(
                &looked,
                &Wanted { config: &self.config, resource: &resource, past: &settings, owners: &owners(&resource) },
            ));
        }
        if self.index(|index| (&index.left.objects, &index.left.states) != (&left, &left_states)) {
            self.tell_left_behind(&left, &left_states);
        }
        // The next start looks again for what is still there.
        past.retain(|past| unknown.contains(&past.resource) || left.iter().any(|left| past.has_left(left)));
        let ours = left.iter().filter(|left| left.was_ours).map(|left| left.objects).sum::<usize>();
        let fingerprint = fingerprint(&self.config, &sections);
        self.state().change(|state| {
            // Names of secrets and local fields are looked after elsewhere.
            let settings = state.settings.get_or_insert_default();
            settings.left = u64::try_from(ours + left_states.len() + unknown.len()).unwrap_or(u64::MAX);
            settings.fingerprint = fingerprint;
            settings.marks = Some(now);
            settings.past = past;
            settings.sections =
                sections.into_iter().chain(removed.into_iter().filter(|_| !left_states.is_empty())).collect();
        });
        self.index(|index| (index.left.objects, index.left.states) = (left, left_states));
        Ok(())
    }

    /// A kind is known as soon as it was listed, and nothing is looked for before.
    fn not_discovered(&self) -> Error {
        Error::NotServed { message: format!("{} is not known yet", self.config.resource) }
    }

    /// Of the caches nothing is known here: they hold what the section is about, and this is about the rest.
    async fn look_at_own_kind(&self) -> Result<Looked, Error> {
        let Some(remote) = self.remote_kind() else { return Err(self.not_discovered()) };
        let remotes = all_marked(self.remote_cluster(), &remote).await?;
        if self.mode() == Mode::DetachingLocalGone {
            return Ok(Looked { remotes, ..Looked::default() });
        }
        let Some(local) = self.local_kind() else { return Err(self.not_discovered()) };
        let locals = all_marked(self.local_cluster(), &local).await?;
        let namespaces = if local.namespaced {
            all_marked(self.local_cluster(), &Kind::core("Namespace", "namespaces", false)).await?
        } else {
            Vec::new()
        };
        Ok(Looked { remotes, locals, namespaces })
    }

    fn tell_left_behind(&self, left: &[LeftBehind], left_states: &[String]) {
        for LeftBehind { side, mark, objects, first, .. } in left.iter().filter(|left| left.was_ours) {
            tracing::warn!(
                section = %self.name(), side, mark, objects, first = first.join(", "),
                "no section owns this mark any more: name it in former_names, former_finalizers or \
                 former_annotation_domains, or let a finalizer go with `towline release`"
            );
        }
        for state in left_states {
            tracing::warn!(section = %self.name(), state, "the state of a section that is no longer configured is left");
        }
    }

    /// Whether the last look has found something.
    pub(crate) fn has_left_something(&self) -> bool {
        self.index(|index| !index.left.states.is_empty() || index.left.objects.iter().any(|left| left.was_ours))
    }

    /// How many objects still bear marks by former names; `None`: there are no such names.
    pub(crate) fn count_former_marks(&self) -> Option<usize> {
        let policy = &self.policy;
        if !policy.marks.has_former_names() {
            return None;
        }
        let clusters = self.clusters_view();
        let (remotes, locals) = (self.watches.remote.store().objects(), self.watches.local.store().objects());
        let remotes = remotes.iter().filter(|remote| {
            let is_marked =
                policy.marks.holds_former(remote) || Renewal::of_remote(remote, policy, &clusters).is_some();
            is_marked && clusters.other_holder(remote, policy).is_none() && self.mapping.covers_remote(&remote.key)
        });
        let locals = locals
            .iter()
            .filter(|local| Renewal::of_local(local, policy).is_some() && self.mapping.covers_local(&local.key));
        let namespaces = self.watches.namespaces.store().objects();
        let namespaces = namespaces.iter().filter(|namespace| {
            self.owner_in(namespace).is_some() && Renewal::of_namespace(namespace, policy, &clusters).is_some()
        });
        Some(remotes.count() + locals.count() + namespaces.count())
    }

    /// How many objects bear marks of this daemon's that no section owns.
    pub(crate) fn count_left_behind(&self) -> usize {
        self.index(|index| index.left.objects.iter().filter(|left| left.was_ours).map(|left| left.objects).sum())
    }
}

async fn marked(cluster: &Cluster, resource: &ResourceId) -> Result<Vec<Marked>, Error> {
    all_marked(cluster, &Kind::discover(cluster, resource).await?).await
}

/// Only those with finalizers or marks, and of annotations only the marks that are looked for: others may be large.
async fn all_marked(cluster: &Cluster, kind: &Kind) -> Result<Vec<Marked>, Error> {
    let mut all = Vec::new();
    cluster
        .each_marked(kind, |mut object| {
            object.annotations.retain(|mark, _| mark.rsplit('/').next().is_some_and(|name| MARKS.contains(&name)));
            if !object.finalizers.is_empty() || !object.annotations.is_empty() {
                all.push(object);
            }
        })
        .await?;
    Ok(all)
}

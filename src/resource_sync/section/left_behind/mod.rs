//! What a change of the configuration leaves behind: finalizers and marks that no section owns any more.
//!
//! After a narrower prefix, a renamed finalizer, another domain or a removed section, no section removes the earlier
//! finalizers and marks, so deletions on the remote hang and namespaces stay. The section's state records the settings of
//! the last run. If they have changed, or something was left behind then, the section searches once after its caches have
//! been listed: it lists the metadata of the objects on both sides, and `find` picks those with such marks. The result is in
//! `/status`, the log and a metric until a later search finds nothing.
//!
//! `fields` and `secrets` do so for entries that were removed from `local_fields` and `secret_names`.

mod fields;
mod find;
mod secrets;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

pub(crate) use self::find::LeftBehind;
use self::find::{Listed, Owner, Past, Search, find, names};
use super::Section;
use crate::cluster::{Cluster, Error, Kind, Marked};
use crate::config::ResourceId;
use crate::resource_sync::config::{Metadata, SyncConfig};
use crate::resource_sync::index::phase::Mode;
use crate::resource_sync::rules::former::Renewal;
use crate::resource_sync::rules::marks::{OWNER_SECTION, PAUSED, REMOTE_UID};
use crate::state::PastMarks;

/// At most this many earlier settings are remembered.
const MOST_PAST: usize = 16;
/// The annotations that are searched for, without their domain.
const MARKS: [&str; 3] = [PAUSED, REMOTE_UID, OWNER_SECTION];

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

/// A fingerprint of all settings that decide which objects have which marks.
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
    /// Whether the settings have changed since the section last ran, or something was left behind then.
    pub(crate) fn must_look_for_left_behind(&self) -> bool {
        let now = fingerprint(&self.config, &self.section_names());
        self.state().look(|state| state.settings.as_ref().is_none_or(|then| then.fingerprint != now || then.left > 0))
    }

    /// Records the present settings as those of the last run, so that a test sees no search.
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

    /// Searches for what earlier settings have left behind, and records the present settings.
    pub(crate) async fn look_for_left_behind(&self) -> Result<(), Error> {
        let sections = self.section_names();
        let then = self.state().current().settings.unwrap_or_default();
        let now = marks_of(&self.config);
        let mut past = then.past.clone();
        past.extend(then.marks.clone().filter(|marks| *marks != now));
        // Of the sections of this local cluster only the first one searches for the marks of removed sections.
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
        past.drain(..past.len().saturating_sub(MOST_PAST));
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
        let listed = self.list_own_kind().await?;
        let settings: Vec<Past> = past.iter().map(Past::new).collect();
        let resource = &self.config.resource;
        let mut left =
            find(&listed, &Search { config: &self.config, resource, past: &settings, owners: &owners(resource) });
        // Earlier kinds of this section, which it no longer syncs.
        let mut kinds: Vec<ResourceId> = settings.iter().filter_map(|past| past.resource.clone()).collect();
        kinds.retain(|kind| !kind.same_objects(&self.config.resource));
        kinds.sort_by_key(ToString::to_string);
        kinds.dedup();
        let mut unknown: Vec<String> = Vec::new();
        for resource in kinds {
            let remotes = match marked(self.remote_cluster(), &resource).await {
                Ok(remotes) => remotes,
                // The kind is not served or permitted any more, so it is searched again at a later start.
                Err(error @ (Error::Forbidden { .. } | Error::NotServed { .. })) => {
                    tracing::debug!(section = %self.name(), %resource, %error, "failed to search for marks of a kind that the section no longer syncs");
                    unknown.push(resource.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let listed = Listed { remotes, ..Listed::default() };
            left.extend(find(
                &listed,
                &Search { config: &self.config, resource: &resource, past: &settings, owners: &owners(&resource) },
            ));
        }
        if self.index(|index| (&index.left.objects, &index.left.states) != (&left, &left_states)) {
            self.log_left_behind(&left, &left_states);
        }
        // The next search covers what is still there.
        past.retain(|past| unknown.contains(&past.resource) || left.iter().any(|left| past.has_left(left)));
        let ours = left.iter().filter(|left| left.was_ours).map(|left| left.objects).sum::<usize>();
        let fingerprint = fingerprint(&self.config, &sections);
        self.state().change(|state| {
            // `fields` and `secrets` record the other settings.
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

    /// The search begins after the caches have been listed, and listing makes the kind known: this should not occur.
    fn not_discovered(&self) -> Error {
        Error::NotServed { message: format!("{} is not known yet", self.config.resource), of_namespace: false }
    }

    /// Lists the metadata of the section's kind on both sides. The caches are no help: they hold only what the section covers.
    async fn list_own_kind(&self) -> Result<Listed, Error> {
        let Some(remote) = self.remote_kind() else { return Err(self.not_discovered()) };
        let remotes = all_marked(self.remote_cluster(), &remote).await?;
        if self.mode() == Mode::DetachingLocalGone {
            return Ok(Listed { remotes, ..Listed::default() });
        }
        let Some(local) = self.local_kind() else { return Err(self.not_discovered()) };
        let locals = all_marked(self.local_cluster(), &local).await?;
        let namespaces = if local.namespaced {
            all_marked(self.local_cluster(), &Kind::core("Namespace", "namespaces", false)).await?
        } else {
            Vec::new()
        };
        Ok(Listed { remotes, locals, namespaces })
    }

    fn log_left_behind(&self, left: &[LeftBehind], left_states: &[String]) {
        for LeftBehind { side, mark, objects, first, .. } in left.iter().filter(|left| left.was_ours) {
            tracing::warn!(
                section = %self.name(), side, mark, objects, first = first.join(", "),
                "no section owns this mark any more: name it in former_names, former_finalizers or \
                 former_annotation_domains, or let a finalizer go with `towline release`"
            );
        }
        for state in left_states {
            tracing::warn!(section = %self.name(), state, "the stored state of a section that is no longer configured remains");
        }
    }

    /// Whether the last search has found something.
    pub(crate) fn has_left_behind(&self) -> bool {
        self.index(|index| !index.left.states.is_empty() || index.left.objects.iter().any(|left| left.was_ours))
    }

    /// How many objects still have marks by former names; `None`: no former names are configured.
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

    /// How many objects have marks of this daemon that no section owns.
    pub(crate) fn count_left_behind(&self) -> usize {
        self.index(|index| index.left.objects.iter().filter(|left| left.was_ours).map(|left| left.objects).sum())
    }
}

async fn marked(cluster: &Cluster, resource: &ResourceId) -> Result<Vec<Marked>, Error> {
    all_marked(cluster, &Kind::discover(cluster, resource).await?).await
}

/// Lists the objects that have finalizers or marks. Of annotations it keeps only the marks: others may be large.
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

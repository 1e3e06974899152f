//! Observes one pair: collects from the caches and the index what the plan needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Section;
use crate::cluster::ObjectKey;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::next::{Absence, Namespace, Observed, Remote};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::secrets;
use crate::resource_sync::plan::secrets::{RemoteSecret, SecretView};

/// An unchanged secret is written again after this where the remote's secrets can't be watched: others may have changed it there.
const SECRET_REFRESH: Duration = Duration::from_hours(1);

impl Section {
    /// Everything that a decision about the pair depends on.
    pub(crate) fn observe(&self, key: &PairKey) -> Observed {
        let PairKey { local: local_key, remote: remote_key } = key;
        let watches = &self.watches;
        let remote = match watches.remote.store().get(remote_key) {
            Some(object) => Remote::Present(object),
            None if watches.remote.store().absence(remote_key).seen_terminating => {
                Remote::Absent(Absence::SeenTerminating)
            }
            None => Remote::Absent(Absence::Unexplained),
        };
        let local = watches.local.store().get(local_key);
        let namespace = if local_key.namespace.is_empty() {
            Namespace::None
        } else {
            match watches.namespaces.store().get(&ObjectKey::new("", Arc::clone(&local_key.namespace))) {
                Some(object) => Namespace::Present { ours: self.owns(&object), object },
                None => Namespace::Missing,
            }
        };
        let ending = !matches!(&remote, Remote::Present(remote) if !remote.deleting);
        let namespace_in_use =
            ending && matches!(namespace, Namespace::Present { ours: true, .. }) && self.is_in_use(key);
        let namespace_end_is_awaited = matches!(&namespace, Namespace::Present { object, ours: true }
            if ownership::namespace_proof(object, &self.policy).is_ok() && self.another_awaits_end_of(object, key));
        let namespace_is_of_another = matches!(&namespace, Namespace::Present { object, ours: true }
            if ending && self.owner_in(object).is_some_and(|owner| owner != *key));
        let source_lives_at =
            local.as_ref().filter(|_| ending).and_then(|local| self.source_lives_at(local, remote_key));
        let present = match &remote {
            Remote::Present(remote) => Some(&**remote),
            Remote::Absent(_) => None,
        };
        let (server_result, local_was_there) =
            self.index(|index| index.observe(key, present, local.as_deref(), &self.policy, Instant::now()));
        let secrets = self.secrets_of(key, &remote);
        Observed {
            pair: key.clone(),
            remote,
            local,
            local_status_unknown: false,
            remote_generation_unknown: false,
            namespace,
            namespace_in_use,
            namespace_end_is_awaited,
            namespace_is_of_another,
            local_was_there,
            source_lives_at,
            clusters: self.clusters_view(),
            permitted: None,
            secrets,
            server_result,
            contended: Vec::new(),
        }
    }

    fn secrets_of(&self, pair: &PairKey, remote: &Remote) -> Vec<SecretView> {
        if self.watches.secrets.is_empty() || !self.policy.write_back {
            return Vec::new();
        }
        let owner = match remote {
            Remote::Present(remote) => Some(Arc::clone(&remote.uid)),
            Remote::Absent(_) => None,
        };
        let now = Instant::now();
        let mut views = Vec::new();
        for (index, watch) in self.watches.secrets.iter().enumerate() {
            let Some(name) = self.config.secret_names.get(index) else { continue };
            let key = ObjectKey::new(Arc::clone(&pair.local.namespace), name.as_str());
            // A cache that this run has not listed must not be uploaded from.
            let Some(secret) = watch.store().get(&key).filter(|_| self.knows(watch)) else { continue };
            let on_remote = match self.watches.remote_secrets.get(index).filter(|watch| self.knows(watch)) {
                Some(watch) => {
                    let key = ObjectKey::new(Arc::clone(&pair.remote.namespace), self.mapping.remote_secret_name(name));
                    RemoteSecret::Watched(watch.store().get(&key).map(|secret| {
                        let hash = secrets::hash(&secret, &self.policy);
                        (hash, secret.controller.as_ref().map(|owner| Arc::clone(&owner.uid)))
                    }))
                }
                None => RemoteSecret::Unwatched { due: self.refresh_is_due(pair, &secret.key.name, now) },
            };
            views.push(SecretView::new(secret, &self.policy, on_remote, owner.clone()));
        }
        views
    }

    /// Whether a refresh is due, counted from the secret's last upload, or from when it was first observed.
    fn refresh_is_due(&self, key: &PairKey, name: &Arc<str>, now: Instant) -> bool {
        let uploaded = self.index(|index| *index.table.pair(key, now).uploads.entry(Arc::clone(name)).or_insert(now));
        now.saturating_duration_since(uploaded) >= SECRET_REFRESH
    }

    /// Requests the pairs that have a secret whose refresh is due.
    pub(crate) async fn request_due_secrets(&self) {
        let due = self.index(|index| index.table.with_uploads_before(Instant::now(), SECRET_REFRESH));
        for key in due {
            self.request(key).await;
        }
    }
}

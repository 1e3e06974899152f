//! What a run observes of its pair: the caches and the index, and the live object where the outcome of our own last write is
//! unknown.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::missing::{LISTING_RECHECK, is_selected};
use super::{End, PairRun};
use crate::actor::Outcome;
use crate::cluster::{Error, Identification, Object, ObjectKey};
use crate::resource_sync::plan::conflicts::order;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::observed::{Absence, Namespace, Observed, Remote};
use crate::resource_sync::plan::ownership;
use crate::resource_sync::plan::secrets::{self, RemoteSecret, SecretView};
use crate::resource_sync::plan::waits::Waits;
use crate::resource_sync::run::index::expectations::{PairExpectations, Unknown};
use crate::resource_sync::run::index::table::Uploads;
use crate::resource_sync::run::section::requeue::SECRET_REFRESH;
use crate::resource_sync::run::section::{Mode, Section};
use crate::status::ObjectState;

/// What a run begins with.
pub(crate) struct Seen {
    pub(crate) observed: Observed,
    /// Of which objects the outcome of our last write is unknown, so that the caches may show what was before it.
    pub(crate) unknown: Unknown,
}

impl Section {
    /// What happens to a run that may not even observe its pair now; `None`: it may.
    pub(super) fn may_not_run(&self, key: &PairKey) -> Option<Outcome> {
        // The end of the last list requests every pair.
        if !self.is_listed() {
            return Some(Outcome::Wait);
        }
        if !self.is_available() {
            self.park(key.clone());
            // The cluster may have come back just before the pair was parked.
            if !self.is_available() {
                return Some(Outcome::Wait);
            }
        }
        if !self.caches_match_sessions() {
            return Some(Outcome::RetryAfter(LISTING_RECHECK));
        }
        let waits = match self.identification() {
            Identification::Clear => return None,
            Identification::Unread | Identification::Undecided => None,
            Identification::Held(objection) => Some(Waits::kept_back(objection.to_string(), self.config())),
            Identification::Refused(objection) => Some(Waits::refused(objection.to_string())),
        };
        let state = if waits.is_some() { ObjectState::Held } else { ObjectState::Pending };
        let now = Instant::now();
        self.index(|index| {
            index.table.ended(key, state, now, waits, now);
            index.requests.parked.insert(key.clone());
        });
        // The identification may have changed just before the pair was parked.
        Some(if self.identification() == Identification::Clear { Outcome::Retry } else { Outcome::Wait })
    }

    /// Everything that a decision about the pair depends on. An error: the caches don't show yet what we wrote, and have so long
    /// to do so.
    pub(crate) fn observe(&self, key: &PairKey) -> Result<Seen, Duration> {
        let (watches, mode, now) = (&self.watches, self.mode(), Instant::now());
        let (remotes, locals) = (watches.remote.store(), watches.local.store());
        let mut unknown = Unknown::default();
        let (mut uploads, mut is_end_awaited) = (Uploads::new(), false);
        // The caches are read after the question whether they show our writes, and under the same lock, so that no write of ours
        // comes between the two.
        let (remote, local, namespace, clusters, (server_result, local_was_there)) =
            self.index(|index| -> Result<_, Duration> {
                if index.expectations.of(key).is_some() {
                    if mode == Mode::DetachingLocalGone {
                        index.expectations.change(key, PairExpectations::forget_local);
                    }
                    index.expectations.wait(key, &self.caches(), now).map_or(Ok(()), Err)?;
                    unknown = index.expectations.of(key).map(PairExpectations::unknown).unwrap_or_default();
                }
                let remote = match remotes.get(&key.remote) {
                    Some(object) => Remote::Present(object),
                    None if remotes.absence(&key.remote).seen_terminating => Remote::Absent(Absence::SeenTerminating),
                    None => Remote::Absent(Absence::Unexplained),
                };
                let shown = match &remote {
                    Remote::Present(object) => Some(&**object),
                    Remote::Absent(_) => None,
                };
                let local = locals.get(&key.local);
                let namespace = self.namespace_of(key);
                is_end_awaited =
                    namespace.as_ref().is_some_and(|namespace| index.namespaces.another_awaits_end_of(namespace, key));
                index.table.conflicts.ordered(key, || order(shown), now);
                let known = index.observe(key, shown, local.as_deref(), &self.policy, now);
                if !watches.secrets.is_empty() {
                    uploads = index.table.pair(key, now).uploads.clone();
                }
                Ok((remote, local, namespace, self.clusters_by(&index.clusters.identities), known))
            })?;
        let namespace = match namespace {
            _ if key.local.namespace.is_empty() => Namespace::None,
            Some(object) => Namespace::Present { ours: self.owns(&object), object },
            None => Namespace::Missing,
        };
        let is_ending = !matches!(&remote, Remote::Present(remote) if !remote.deleting);
        let owned = match &namespace {
            Namespace::Present { object, ours: true } => Some(object),
            _ => None,
        };
        let is_of_another = |namespace: &Arc<Object>| self.owner_in(namespace).is_some_and(|owner| owner != *key);
        let observed = Observed {
            pair: key.clone(),
            local_status_unknown: false,
            remote_generation_unknown: false,
            namespace_in_use: is_ending && owned.is_some() && self.is_in_use(key),
            namespace_end_is_awaited: is_end_awaited
                && owned.is_some_and(|namespace| ownership::namespace_proof(namespace, &self.policy).is_ok()),
            namespace_is_of_another: is_ending && owned.is_some_and(is_of_another),
            local_was_there,
            source_lives_at: local
                .as_ref()
                .filter(|_| is_ending)
                .and_then(|local| self.source_lives_at(local, &key.remote)),
            clusters,
            permitted: None,
            secrets: self.secrets_of(key, &remote, &uploads, now),
            server_result,
            contended: Vec::new(),
            remote,
            local,
            namespace,
        };
        Ok(Seen { observed, unknown })
    }

    fn secrets_of(&self, pair: &PairKey, remote: &Remote, uploads: &Uploads, now: Instant) -> Vec<SecretView> {
        if self.watches.secrets.is_empty() || !self.policy.write_back {
            return Vec::new();
        }
        let owner = match remote {
            Remote::Present(remote) => Some(Arc::clone(&remote.uid)),
            Remote::Absent(_) => None,
        };
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
                None => RemoteSecret::Unwatched { due: self.refresh_is_due(pair, &secret.key.name, uploads, now) },
            };
            views.push(SecretView::new(secret, &self.policy, on_remote, owner.clone()));
        }
        views
    }

    /// Whether a refresh is due, counted from the secret's last upload, or from when it was first observed.
    fn refresh_is_due(&self, pair: &PairKey, name: &Arc<str>, uploads: &Uploads, now: Instant) -> bool {
        let uploaded = uploads.get(name);
        if uploaded.is_none() {
            self.index(|index| index.uploaded(pair, name, now));
        }
        uploaded.is_some_and(|uploaded| now.saturating_duration_since(*uploaded) >= SECRET_REFRESH)
    }
}

impl PairRun<'_> {
    /// Asks the API servers what the caches can't tell about our last writes.
    pub(super) async fn resolve(&mut self, unknown: Unknown) -> ControlFlow<End> {
        if self.observed.server_result.status_is_unconfirmed() {
            if let Some(end) = self.confirm_status().await {
                return Break(end);
            }
            self.observed.server_result.confirm_status();
        }
        match self.resolve_unknown(unknown).await {
            Ok(()) => Continue(()),
            Err(error) => Break(End::Failed("read_after_unknown_outcome", error)),
        }
    }

    /// A status write was taken and changed nothing, although the statuses differ. The server's result counts only if
    /// discovery shows the kind served as before: the kind may have a status subresource by now, and then a write without it
    /// has no effect.
    pub(super) async fn confirm_status(&self) -> Option<End> {
        let (section, key) = (self.section, self.key);
        if !section.index(|index| index.table.get(key).is_some_and(|pair| pair.server_result.status_is_unconfirmed())) {
            return None;
        }
        let written_to = section.remote_kind();
        match section.watches().remote.confirm_kind().await {
            Ok(kind) if Some(&kind) == written_to.as_ref() => {
                section.index(|index| index.table.pair(key, Instant::now()).server_result.confirm_status());
                None
            }
            Ok(_) => {
                section.index(|index| index.table.pair(key, Instant::now()).server_result.forget_status());
                Some(End::Later(ObjectState::Pending, Some(LISTING_RECHECK)))
            }
            Err(error) => Some(End::Failed("confirm_kind", error)),
        }
    }

    /// A write whose outcome is unknown is followed by a live GET before the next decision about that object.
    async fn resolve_unknown(&mut self, unknown: Unknown) -> Result<(), Error> {
        let (section, key, observed) = (self.section, self.key, &mut self.observed);
        if unknown.remote
            && let Some(kind) = section.remote_kind()
        {
            let live = section.remote_cluster().get_portable(&kind, &key.remote).await?;
            let moment = section.watches().remote.store().moment();
            let held = match &observed.remote {
                Remote::Present(held) => Some(held),
                Remote::Absent(_) => None,
            };
            // The cache does not count before it has come as far as the answer.
            section.index(|index| {
                index.expectations.change(key, |expected| match (&live, held) {
                    (Some(live), _) if is_selected(section, live) => {
                        expected.remote.restart_at(&live.resource_version, moment);
                    }
                    (None, Some(held)) => expected.remote.restart_without(&held.uid),
                    _ => expected.remote.clear(),
                });
            });
            observed.remote = match (live, &observed.remote) {
                (Some(live), _) if is_selected(section, &live) => Remote::Present(Arc::new(live)),
                (Some(live), _) => Remote::Absent(Absence::LeftSelector(Arc::new(live))),
                (None, Remote::Present(held)) if held.deleting => Remote::Absent(Absence::SeenTerminating),
                (None, Remote::Present(_)) => Remote::Absent(Absence::Unexplained),
                (None, Remote::Absent(absence)) => Remote::Absent(absence.clone()),
            };
        }
        if unknown.local
            && section.mode() != Mode::DetachingLocalGone
            && let Some(kind) = section.local_kind()
        {
            let live = section.local_cluster().get_portable(&kind, &key.local).await?;
            let moment = section.watches().local.store().moment();
            section.index(|index| {
                index.expectations.change(key, |expected| match (&live, &observed.local) {
                    (Some(live), _) => expected.local.restart_at(&live.resource_version, moment),
                    (None, Some(held)) => expected.local.restart_without(&held.uid),
                    (None, None) => expected.local.clear(),
                });
            });
            observed.local = live.map(Arc::new);
        }
        Ok(())
    }
}

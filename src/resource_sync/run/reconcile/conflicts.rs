//! Conflicts: with other writers, who undo what we write, and with the local cluster, which rejects it. Contended parts are left
//! out of the observation while they wait. Whoever ordered the object looks at the remote one, so rejections are noted there.

use std::sync::Arc;

use tokio::time::Instant;

use super::PairRun;
use super::send::{namespaces, secret_kind};
use crate::cluster::{Error, ObjectKey};
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::conflicts::{self, Effect, effects};
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::Remote;
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::plan::step::{Contended, Step};
use crate::resource_sync::plan::waits::brief;
use crate::resource_sync::run::index::Index;
use crate::resource_sync::run::section::Mode;
use crate::resource_sync::run::section::events::PairEvent;

/// Whether a step may be sent, as far as other writers are concerned.
pub(super) enum Way {
    /// It may, and these parts of it become contended with it, which has not been reported yet.
    Free(Vec<Contended>),
    /// Parts of it have to wait, and are left out of the observation now.
    LeftOut,
    /// Parts of it have to wait, and the plan has no step without them.
    Stuck,
}

impl PairRun<'_> {
    /// Whether the step with these effects may be sent at `now`.
    pub(super) fn way(&mut self, effects: &[Effect], now: Instant) -> Way {
        let (waits, conflicts) = self.section.index(|index| {
            let mut waits = Vec::new();
            let mut conflicts = Vec::new();
            for effect in effects {
                if let Some(wait) = index.table.conflicts.wait(self.key, effect, now) {
                    waits.push((effect.what.clone(), wait));
                } else if index.table.conflicts.would_contend(self.key, effect, now) {
                    conflicts.push(effect.what.clone());
                }
            }
            (waits, conflicts)
        });
        if waits.is_empty() {
            return Way::Free(conflicts);
        }
        let mut way = Way::Stuck;
        for (what, wait) in waits {
            self.contended = Some(self.contended.map_or(wait, |left| left.min(wait)));
            if !self.observed.is_contended(&what) {
                self.observed.contended.push(what);
                way = Way::LeftOut;
            }
        }
        way
    }

    /// What other writers do, for each of these parts of a step. It asks a cluster: afterwards the caller has to check anew
    /// whether the step may be sent.
    pub(super) async fn contenders(&self, step: &Step, conflicts: Vec<Contended>) -> Vec<(Contended, String)> {
        let mut found = Vec::new();
        for what in conflicts {
            let fields = conflicts::fields(&what, step, &self.observed, self.section.policy());
            let deed = if fields.is_empty() { what.to_string() } else { format!("keeps changing {fields}") };
            let cause = format!("{} {deed}", self.other_writer(&what).await);
            found.push((what, cause));
        }
        found
    }

    /// Who undoes our writes of this part. Until the next of them the other field managers own the part. The newest comes first:
    /// others may have created the object.
    async fn other_writer(&self, what: &Contended) -> String {
        let (section, key) = (self.section, self.key);
        let (cluster, key, kind) = match what.direction() {
            Direction::Status => (section.remote_cluster(), &key.remote, section.remote_kind()),
            Direction::Spec => (section.local_cluster(), &key.local, section.local_kind()),
        };
        let has_subresource = kind.as_ref().is_some_and(|kind| kind.status_subresource);
        let subresources: &[&str] = match what {
            Contended::Status if has_subresource => &["status"],
            Contended::Content => &["", "scale"],
            _ => &[""],
        };
        let secret = |name| Some((Arc::new(secret_kind()), ObjectKey::new(Arc::clone(&key.namespace), name)));
        let written = match what {
            Contended::Rejection => return format!("cluster {}", section.local_cluster().name()),
            // A deletion leaves no field manager.
            Contended::Object | Contended::Namespace | Contended::Removal(_) => {
                return format!("a client of cluster {}", cluster.name());
            }
            Contended::Secret(name) => secret(section.mapping().remote_secret_name(name).into()),
            Contended::SecretHash(name) => secret(Arc::clone(name)),
            Contended::Marks(RenewedObject::Namespace) => {
                Some((Arc::new(namespaces()), ObjectKey::new("", Arc::clone(&key.namespace))))
            }
            _ => kind.map(|kind| (kind, key.clone())),
        };
        let names = match &written {
            Some((kind, key)) => cluster.other_managers(kind, key, subresources).await,
            None => Vec::new(),
        };
        match names.as_slice() {
            [] => format!("another field manager on cluster {}", cluster.name()),
            names => format!("field manager {} on cluster {}", names.join(", "), cluster.name()),
        }
    }

    /// Reports a step that a schema, an admission policy or a quota has rejected. Other errors, such as a missing permission
    /// or one that passes by itself, are not reported here.
    ///
    /// The report is an annotation on the remote object, written once for each reason and slowly if reasons take turns, and an
    /// Event where those are permitted. No decision depends on them: if the annotation can't be written, the failure still shows
    /// in the log, in an Event on the local cluster and in `/status`. The plan removes the annotation later.
    pub(super) async fn note_rejection(&mut self, step: &Step, error: &Error) {
        let (section, key) = (self.section, self.key);
        let Error::Rejected { code, message, .. } = error else { return };
        let Remote::Present(remote) = &self.observed.remote else { return };
        if !step.is_order() || section.mode() != Mode::Syncing {
            return;
        }
        let remote = Arc::clone(remote);
        // The text does not count: some webhooks word every refusal differently, and each write of the annotation triggers
        // another reconcile, which tries the step again.
        let reason = (conflicts::whole_order(&self.observed, section.policy()), step.name(), *code);
        let set_noted = |index: &mut Index| index.table.pair(key, Instant::now()).told_rejection = Some(reason);
        if section.index(|index| index.table.get(key).is_some_and(|pair| pair.told_rejection == Some(reason))) {
            return;
        }
        let message = brief(message);
        let Some(note) = next::rejected(&self.observed, section.policy(), step, message) else {
            section.index(set_noted);
            return;
        };
        let effects = effects(&note, &self.observed, section.policy());
        let asked_at = Instant::now();
        // The next attempt of the step repeats this.
        let Way::Free(conflicts) = self.way(&effects, asked_at) else { return };
        let contenders = self.contenders(&note, conflicts).await;
        // Credentials may have changed since the last step.
        if !section.caches_match_sessions() {
            return;
        }
        match self.send(&note, &effects, contenders, asked_at).await {
            Ok(_) => {
                section.index(set_noted);
                section.emit_event(PairEvent::rejected(&remote, &section.config().local, step.name(), message));
            }
            // The next attempt of the step repeats this.
            Err(error) => {
                tracing::debug!(section = %section.name(), %key, %error, "failed to note the rejection on the remote object");
            }
        }
    }
}

//! What the reply of a step says: what the caches have yet to show, and what a write has settled on.

use std::sync::Arc;

use tokio::time::Instant;

use super::awaited::Side;
use super::contention::{Contended, Effect};
use super::former::Place;
use super::plan::{Namespace, Observed, Remote, Step};
use super::reconcile::{End, PairReconciler};
use super::section::Section;
use crate::cluster::{ObjectKey, Written};
use crate::telemetry::Direction;

impl PairReconciler {
    /// Folds the reply of a step into what is known; an end: nothing more can be decided now.
    pub(super) async fn acknowledged(
        &mut self,
        section: &Section,
        step: &Step,
        effects: &[Effect],
        written: &Written,
        observed: Observed,
    ) -> (Option<End>, Observed) {
        for effect in effects {
            self.contests.wrote(effect);
        }
        if *step == Step::RemoveFinalizer {
            self.contests.took_back(&Contended::Finalizer);
        }
        self.note(section, step, written, &observed);
        section.remember(&self.key, &self.awaiting);
        let end = if *step == Step::WriteRemoteStatus { self.confirm_status(section).await } else { None };
        (end, observed.after(step, written, section.policy()))
    }

    /// Notes what the caches have yet to show, and what a write may settle on.
    pub(super) fn note(&mut self, section: &Section, step: &Step, written: &Written, observed: &Observed) {
        let watches = section.watches();
        let (remotes, locals, namespaces) = (watches.remote.store(), watches.local.store(), watches.namespaces.store());
        match step {
            // What is not selected the watch does not show.
            Step::NoteError(_) if !matches!(observed.remote, Remote::Present(_)) => {}
            Step::AddFinalizer | Step::NoteGenerations { .. } | Step::NoteError(_) => {
                self.awaiting.remote.wrote(written, remotes);
            }
            Step::RemoveFinalizer => {
                if let Remote::Present(remote) = &observed.remote {
                    self.awaiting.remote.wrote(written, remotes);
                    if remote.deleting
                        && remote.finalizers.iter().all(|held| section.policy().marks.is_finalizer_on(remote, held))
                    {
                        self.awaiting.remote.await_absence(&remote.uid);
                    }
                }
                section.table.lock().pair(&self.key).holds_remote = false;
                section.guard.lock().clear(&self.key);
            }
            Step::WriteRemoteStatus => {
                self.awaiting.remote.wrote(written, remotes);
                if let Some(local) = &observed.local {
                    let mut table = section.table.lock();
                    if let Some(lag) = table.status_written(&self.key, Instant::now()) {
                        self.metrics.written(Direction::Status, lag);
                    }
                    let settled = &mut table.pair(&self.key).settled;
                    if let Some(remote) = observed.remote_object() {
                        settled.wrote_status(local, remote, written);
                    }
                    let shown = remotes.get(&observed.pair.remote);
                    settled.observe(shown.as_deref(), None, section.policy());
                }
            }
            Step::CreateLocal | Step::PatchLocal(_) => {
                self.awaiting.local.wrote(written, locals);
                if let Some(lag) = section.table.lock().spec_written(&self.key, Instant::now()) {
                    self.metrics.written(Direction::Spec, lag);
                }
                let wrote_content = !matches!(step, Step::PatchLocal(change) if change.content.is_none());
                if let (true, Some(remote)) = (wrote_content, observed.remote_object()) {
                    let mut table = section.table.lock();
                    let settled = &mut table.pair(&self.key).settled;
                    settled.wrote_content(remote, written);
                    let shown = locals.get(&self.key.local);
                    settled.observe(None, shown.as_deref(), section.policy());
                }
            }
            Step::ReleaseLocal(_) => self.awaiting.local.wrote(written, locals),
            Step::AdoptLocal(_) => {
                self.awaiting.local.wrote(written, locals);
                self.metrics.adopted();
                section.tell_adopted(observed);
            }
            Step::RenewMarks(renewal) => match renewal.place {
                Place::Remote => self.awaiting.remote.wrote(written, remotes),
                Place::Local => self.awaiting.local.wrote(written, locals),
                Place::Namespace => self.awaiting.namespace.wrote(written, namespaces),
            },
            Step::DeleteLocal => {
                self.awaiting.local.wrote(written, locals);
                if let Some(local) = &observed.local {
                    self.awaiting.local.await_end(&local.uid);
                    section.tell_deleted(local, observed);
                }
            }
            Step::CreateNamespace | Step::ReleaseNamespace => self.awaiting.namespace.wrote(written, namespaces),
            Step::DeleteNamespace => {
                self.awaiting.namespace.wrote(written, namespaces);
                if let Namespace::Present { object, .. } = &observed.namespace {
                    self.awaiting.namespace.await_end(&object.uid);
                    section.tell_deleted(object, observed);
                }
            }
            Step::UploadSecret(name) => {
                section.table.lock().pair(&self.key).uploads.insert(Arc::clone(name), Instant::now());
                let key = ObjectKey::new(
                    Arc::clone(&observed.pair.remote.namespace),
                    section.mapping().remote_secret_name(name),
                );
                self.wrote_secret(section, name, Side::Remote, key, written);
            }
            Step::NoteSecretHash(name) => {
                let key = ObjectKey::new(Arc::clone(&self.key.local.namespace), Arc::clone(name));
                self.wrote_secret(section, name, Side::Local, key, written);
            }
        }
    }

    fn wrote_secret(&mut self, section: &Section, name: &str, side: Side, key: ObjectKey, written: &Written) {
        if let Some(index) = section.config().secret_names.iter().position(|configured| configured == name) {
            self.awaiting.wrote_secret(index, side, key, written);
        }
    }
}

//! The reply to a step: sets the expectations that the caches have yet to meet, and records what the server may make of the
//! write.

use std::sync::Arc;

use tokio::time::Instant;

use super::{End, PairReconciler};
use crate::cluster::{ObjectKey, Store, Written};
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::conflicts::Effect;
use crate::resource_sync::plan::next::{Namespace, Observed, Remote, Step};
use crate::resource_sync::plan::renewal::RenewedObject;
use crate::resource_sync::run::index::expectations::{Expected, PairExpectations, Side};
use crate::resource_sync::run::section::Section;

impl PairReconciler {
    /// Folds the reply to a step into the observation. With an end nothing more can be decided in this run.
    pub(crate) async fn acknowledged(
        &mut self,
        section: &Section,
        step: &Step,
        effects: &[Effect],
        written: &Written,
        observed: Observed,
    ) -> (Option<End>, Observed) {
        for effect in effects {
            self.conflicts.wrote(effect);
        }
        self.record(section, step, written, &observed);
        let end = if *step == Step::WriteRemoteStatus { self.confirm_status(section).await } else { None };
        (end, observed.after(step, written, section.policy()))
    }

    /// Records what the caches have yet to show, and what the server may make of the write.
    pub(crate) fn record(&self, section: &Section, step: &Step, written: &Written, observed: &Observed) {
        let watches = section.watches();
        let (remotes, locals, namespaces) = (watches.remote.store(), watches.local.store(), watches.namespaces.store());
        match step {
            // The watch does not show an object outside of the selector.
            Step::NoteError(_) if !matches!(observed.remote, Remote::Present(_)) => {}
            Step::AddFinalizer | Step::NoteGenerations { .. } | Step::NoteError(_) => {
                self.wrote(section, |expected| &mut expected.remote, written, remotes);
            }
            Step::RemoveFinalizer => {
                if let Remote::Present(remote) = &observed.remote {
                    self.wrote(section, |expected| &mut expected.remote, written, remotes);
                    if remote.deleting
                        && remote.finalizers.iter().all(|held| section.policy().marks.is_finalizer_on(remote, held))
                    {
                        self.expect(section, |expected| expected.remote.expect_absence(&remote.uid));
                    }
                }
                section.index(|index| index.released(&self.key, Instant::now()));
            }
            Step::WriteRemoteStatus => {
                self.wrote(section, |expected| &mut expected.remote, written, remotes);
                if observed.local.is_some() {
                    let status = observed.status_to_write(section.policy());
                    let lag = section.index(|index| {
                        // Read under the lock of the index, so that the watch event of this write is recorded either before
                        // this or after it.
                        let shown = remotes.get(&observed.pair.remote);
                        let now = Instant::now();
                        let lag = index.table.status_written(&self.key, now);
                        let server_result = &mut index.table.pair(&self.key, now).server_result;
                        if let Some(remote) = observed.remote_object() {
                            server_result.wrote_status(status, remote, written);
                        }
                        server_result.observe(shown.as_deref(), None, section.policy());
                        lag
                    });
                    if let Some(lag) = lag {
                        self.metrics.written(Direction::Status, lag);
                    }
                }
            }
            Step::CreateLocal | Step::PatchLocal(_) => {
                self.wrote(section, |expected| &mut expected.local, written, locals);
                let wrote_content = !matches!(step, Step::PatchLocal(change) if change.content.is_none());
                let lag = section.index(|index| {
                    let shown = locals.get(&self.key.local);
                    let now = Instant::now();
                    if let (true, Some(remote)) = (wrote_content, observed.remote_object()) {
                        let server_result = &mut index.table.pair(&self.key, now).server_result;
                        server_result.wrote_content(remote, written);
                        server_result.observe(None, shown.as_deref(), section.policy());
                    }
                    index.table.spec_written(&self.key, now)
                });
                if let Some(lag) = lag {
                    self.metrics.written(Direction::Spec, lag);
                }
            }
            Step::ReleaseLocal(_) => self.wrote(section, |expected| &mut expected.local, written, locals),
            Step::AdoptLocal(_) => {
                self.wrote(section, |expected| &mut expected.local, written, locals);
                section.report_adoption(observed);
            }
            Step::RenewMarks(renewal) => match renewal.place {
                RenewedObject::Remote => self.wrote(section, |expected| &mut expected.remote, written, remotes),
                RenewedObject::Namespace => {
                    self.wrote(section, |expected| &mut expected.namespace, written, namespaces);
                }
            },
            Step::DeleteLocal => {
                self.wrote(section, |expected| &mut expected.local, written, locals);
                if let Some(local) = &observed.local {
                    self.expect(section, |expected| expected.local.expect_end(&local.uid));
                    section.log_deletion(local, observed);
                }
            }
            Step::CreateNamespace | Step::ReleaseNamespace => {
                self.wrote(section, |expected| &mut expected.namespace, written, namespaces);
            }
            Step::DeleteNamespace => {
                self.wrote(section, |expected| &mut expected.namespace, written, namespaces);
                if let Namespace::Present { object, .. } = &observed.namespace {
                    self.expect(section, |expected| expected.namespace.expect_end(&object.uid));
                    section.log_deletion(object, observed);
                }
            }
            Step::UploadSecret(name) => {
                section.index(|index| index.uploaded(&self.key, name, Instant::now()));
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

    pub(crate) fn expect(&self, section: &Section, change: impl FnOnce(&mut PairExpectations)) {
        section.index(|index| index.expectations.change(&self.key, change));
    }

    /// Expects a cache to show what was written.
    fn wrote(
        &self,
        section: &Section,
        of: impl FnOnce(&mut PairExpectations) -> &mut Expected,
        written: &Written,
        store: &Store,
    ) {
        let moment = store.moment();
        self.expect(section, |expected| of(expected).wrote(written, moment));
    }

    fn wrote_secret(&self, section: &Section, name: &str, side: Side, key: ObjectKey, written: &Written) {
        if let Some(index) = section.config().secret_names.iter().position(|configured| configured == name) {
            self.expect(section, |expected| expected.wrote_secret(index, side, key, written));
        }
    }
}

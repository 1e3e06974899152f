//! Which cluster a kubeconfig leads to, and which other documents lead there, too.

use jiff::SignedDuration;

use super::executor::Executor;
use super::refusal::Stop;
use super::visit::{CONNECT_WITHIN, Read, VisitError};
use super::worker::Worker;
use crate::documents::Work;
use crate::syncset::rules::agenda::PassAgenda;
use crate::syncset::rules::pass::{Refusal, Refused, Writes};
use crate::syncset::rules::rows::PaceRow;
use crate::syncset::rules::status::{self, Duplicate, Unreachable};
use crate::syncset::store::Pace;

/// What was found out about which cluster it is.
pub(super) struct Identified {
    /// Read in this pass.
    pub(super) identity: Option<String>,
    /// Another one than noted.
    pub(super) is_another: bool,
    /// Whether it is stored already, since nothing was known of the cluster.
    is_noted: bool,
    pub(super) duplicates: Vec<Duplicate>,
}

impl Identified {
    /// The identities between which the document moves, if it does and that is not stored.
    pub(super) fn identities(&self, read: &Read) -> Vec<String> {
        if self.is_noted {
            return Vec::new();
        }
        let now = self.identity.as_deref().filter(|identity| read.identity() != Some(identity));
        now.into_iter().flat_map(|now| [Some(now), read.identity()]).flatten().map(str::to_owned).collect()
    }

    /// What is stored of it. The full pass that a new kubeconfig demands stays due until one has come to its end.
    pub(super) fn noted(&self, read: &Read) -> Pace {
        let generation = read.plan.facts.as_ref().map_or(0, |facts| facts.kubeconfig_generation);
        let row = PaceRow {
            kubeconfig_generation: generation,
            asked_generation: generation,
            next_full: None,
            // It has just answered.
            reachable: Some(true),
            last_contact: Some(read.now()),
            ..read.pace().identified(self.identity.clone())
        };
        Pace { row, resyncs: read.snapshot.resyncs, identities: self.identities(read) }
    }
}

impl Worker {
    /// Finds out which cluster it is, if that is to be found out.
    pub(super) async fn identify(
        &self,
        work: &Work,
        read: &Read,
        agenda: &PassAgenda,
        executor: &mut Executor<'_>,
    ) -> Result<Result<Identified, Stop>, VisitError> {
        let noted = read.identity().map(str::to_owned);
        if !agenda.identifies {
            let duplicates = read.snapshot.duplicates.clone();
            return Ok(Ok(Identified { identity: None, is_another: false, is_noted: false, duplicates }));
        }
        let identity = match executor.identity(CONNECT_WITHIN).await {
            Ok(Ok(identity)) => identity,
            Ok(Err(Refused { refusal, message })) => {
                let message = format!("failed to read the UID of namespace kube-system: {message}");
                let reason = match refusal {
                    Refusal::Forbidden => Unreachable::Forbidden,
                    _ => Unreachable::ErrorConnectingToCluster,
                };
                return Ok(Err(Stop::Silent { reason, message }));
            }
            Err(stop) => return Ok(Err(stop)),
        };
        let is_another = noted.as_ref().is_some_and(|noted| *noted != identity);
        let mut identified =
            Identified { identity: Some(identity), is_another, is_noted: false, duplicates: Vec::new() };
        match noted {
            Some(_) if !is_another => identified.duplicates = read.snapshot.duplicates.clone(),
            // Another one is stored only together with the first writes.
            Some(_) => identified.duplicates = self.twins(work, &identified).await?,
            None => {
                self.note_identity(work, read, &identified).await?;
                identified.is_noted = true;
                identified.duplicates = self.twins(work, &identified).await?;
            }
        }
        Ok(Ok(identified))
    }

    /// Stores the identity of a cluster of which nothing was known, so that other documents of the same cluster find it. They are told.
    async fn note_identity(&self, work: &Work, read: &Read, identified: &Identified) -> Result<(), VisitError> {
        Ok(self.store.save(&work.writing(), &Writes::default(), Some(&identified.noted(read))).await?)
    }

    /// Whether it is still shown that the document leads to another cluster than before: until the next full pass after that.
    pub(super) fn has_moved(&self, read: &Read) -> bool {
        let Some(document) = &read.snapshot.cluster_sync else { return false };
        let shown_for = SignedDuration::try_from(self.config.reapply_interval).unwrap_or(SignedDuration::MAX);
        status::has_moved(&document.status, read.now(), shown_for)
    }

    /// The other documents of the cluster that was found.
    pub(super) async fn twins(&self, work: &Work, identified: &Identified) -> Result<Vec<Duplicate>, VisitError> {
        let Some(identity) = &identified.identity else { return Ok(Vec::new()) };
        let twins = self.store.with_identity(work.cluster, identity).await?;
        Ok(twins.into_iter().map(|(_, twin)| twin).collect())
    }
}

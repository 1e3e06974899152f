//! What a section's run knows of its two clusters' identities.

use crate::cluster::Identity;
use crate::resource_sync::section::standing::{Objection, Standing};
use crate::state::Identities;

/// When a remote cluster was approved in the place of another: what came from that is ours for good, however long it is paused
/// or fails. A local cluster that was replaced may come back, and then holds what it has.
pub(crate) const FOR_GOOD: u64 = u64::MAX;

/// What is seen of one side's cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Which one it is.
    pub(crate) identity: Identity,
    /// The set of credentials, where the identity does not tell.
    pub(crate) epoch: Option<u64>,
}

/// What is known of both.
#[derive(Debug, Default)]
pub(crate) struct KnownClusters {
    /// What was remembered when the run began, and what was accepted since.
    pub(crate) identities: Identities,
    /// The clusters that it may act on.
    accepted: Option<[Seen; 2]>,
    /// The sets of credentials that it began with, or that an operator approved.
    pub(crate) epochs: Option<[Option<u64>; 2]>,
    /// The last objection, and the clusters and the lists that it was made for.
    objection: Option<([Seen; 2], u64, Objection)>,
    /// It was told.
    is_told: bool,
}

impl KnownClusters {
    /// For a run that begins: only the identities are known.
    pub(crate) fn begin(&mut self) {
        *self = Self { identities: std::mem::take(&mut self.identities), ..Self::default() };
    }

    /// Whether the section may act on these clusters, after so many `lists`; `None`: that is to be found out.
    pub(crate) fn standing(&mut self, seen: &[Seen; 2], lists: impl FnOnce() -> u64) -> Option<Standing> {
        if self.accepted.as_ref() == Some(seen) {
            // They are the same again.
            (self.objection, self.is_told) = (None, false);
            return Some(Standing::Clear);
        }
        let (of, at, objection) = self.objection.as_ref()?;
        (of == seen && *at == lists()).then(|| Standing::Held(objection.clone()))
    }

    /// Something speaks against acting on these clusters.
    pub(crate) fn object(&mut self, seen: [Seen; 2], lists: u64, objection: Objection) {
        self.objection = Some((seen, lists, objection));
    }

    /// Nothing speaks against it, by what was known `before`: what is to be remembered. `None`: something else is known by
    /// now, and it has to be found out again.
    pub(crate) fn accept(&mut self, seen: &[Seen; 2], before: &Identities, second: u64) -> Option<Identities> {
        (self.identities == *before).then(|| self.take(seen, second))
    }

    /// An operator accepts the clusters as they are, with these sets of credentials: the objection that this overrules, if
    /// there was one, and what is to be remembered. What has come since it was told is not overruled.
    pub(crate) fn overrule(
        &mut self,
        seen: &[Seen; 2],
        epochs: [Option<u64>; 2],
        second: u64,
    ) -> Option<(Objection, Identities)> {
        self.epochs = Some(epochs);
        let (_, _, objection) = self.objection.take_if(|(of, ..)| of == seen)?;
        Some((objection, self.take(seen, second)))
    }

    /// Returns what is to be remembered.
    fn take(&mut self, seen: &[Seen; 2], second: u64) -> Identities {
        let [remote, local] = seen;
        let known = &mut self.identities;
        for (held, former, since, side) in [
            (&mut known.remote, &mut known.former_remotes, FOR_GOOD, remote),
            (&mut known.local, &mut known.former_locals, second, local),
        ] {
            let Some(now) = side.identity.uid() else { continue };
            former.remove(&**now);
            let before = held.replace(now.to_string()).filter(|before| **before != **now);
            former.extend(before.map(|before| (before, since)));
        }
        if self.epochs.is_none() {
            self.epochs = Some([remote.epoch, local.epoch]);
        }
        self.accepted = Some(seen.clone());
        self.objection = None;
        self.is_told = false;
        self.identities.clone()
    }

    /// The objection is being told; whether it was not before.
    pub(crate) fn is_untold(&mut self) -> bool {
        !std::mem::replace(&mut self.is_told, true)
    }
}

//! The identities of a section's two clusters, during a run.

use crate::cluster::{Identification, Objection, Seen};
use crate::state::Identities;

/// In the place of the second at which a remote cluster was approved as the replacement of another one. Objects of the replaced
/// cluster are ours for good, however long they are paused or fail. A replaced local cluster may come back, and keeps its objects
/// then, so its approval expires.
pub(crate) const FOR_GOOD: u64 = u64::MAX;

/// Both clusters, as the section knows them.
#[derive(Debug, Default)]
pub(crate) struct KnownClusters {
    /// The identities that were stored when the run began, and those accepted since.
    pub(crate) identities: Identities,
    /// The clusters that the section may act on.
    accepted: Option<[Seen; 2]>,
    /// The sets of credentials that the run began with, or that an operator has approved.
    pub(crate) epochs: Option<[Option<u64>; 2]>,
    /// The last objection, with the clusters and the number of lists that it is about.
    objection: Option<([Seen; 2], u64, Objection)>,
    /// The last objection was logged.
    is_told: bool,
}

impl KnownClusters {
    /// Begins a run. Only the identities are kept.
    pub(crate) fn begin(&mut self) {
        *self = Self { identities: std::mem::take(&mut self.identities), ..Self::default() };
    }

    /// Whether the section may act on these clusters, after so many `lists`; `None` if that has to be found out.
    pub(crate) fn identification(&mut self, seen: &[Seen; 2], lists: impl FnOnce() -> u64) -> Option<Identification> {
        if self.accepted.as_ref() == Some(seen) {
            // The same clusters answer again.
            (self.objection, self.is_told) = (None, false);
            return Some(Identification::Clear);
        }
        let (of, at, objection) = self.objection.as_ref()?;
        (of == seen && *at == lists()).then(|| Identification::Held(objection.clone()))
    }

    /// Records an objection to acting on these clusters.
    pub(crate) fn object(&mut self, seen: [Seen; 2], lists: u64, objection: Objection) {
        self.objection = Some((seen, lists, objection));
    }

    /// Accepts these clusters, since nothing known `before` speaks against them. Returns what has to be stored, or `None` if the
    /// identities have changed meanwhile and the question has to be asked again.
    pub(crate) fn accept(&mut self, seen: &[Seen; 2], before: &Identities, second: u64) -> Option<Identities> {
        (self.identities == *before).then(|| self.take(seen, second))
    }

    /// Accepts the clusters as they are, with these sets of credentials, for an operator. Returns the objection that this
    /// overrules, if there is one, and what has to be stored. An objection about other clusters is not overruled.
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

    /// Returns what has to be stored.
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

    /// Whether the objection has not been logged before. The caller logs it now.
    pub(crate) fn is_untold(&mut self) -> bool {
        !std::mem::replace(&mut self.is_told, true)
    }
}

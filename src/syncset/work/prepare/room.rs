//! Which syncsets of a cluster have room in a pass, if not all have: the same ones in each pass.

use crate::syncset::rules::rows::Failure;
use crate::syncset::rules::status::Reason;

/// How many syncsets are rendered for which there is no room, before the rest is left out unread. Otherwise a thousand that grow when
/// they are rendered would be read by each pass.
const MOST_IN_VAIN: usize = 16;

/// The room of a pass, in which syncsets are put in the order in which they are applied. It goes by what does not depend on anything but the syncsets,
/// the labels of the cluster and the secrets: neither by what is due nor by what is kept in memory.
#[derive(Debug)]
pub(super) struct Room {
    share: usize,
    used: usize,
    is_empty: bool,
    in_vain: usize,
}

impl Room {
    /// The room of a pass that may have so many bytes, and has used some of them for the rows of its cluster.
    pub(super) fn of(share: usize, used: usize) -> Self {
        Self { share, used, is_empty: true, in_vain: 0 }
    }

    /// Whether a syncset may have room whose document has so many bytes: if not, it need not be read. The first one always has room.
    pub(super) fn may_have(&self, size: usize) -> bool {
        self.is_empty || (self.in_vain < MOST_IN_VAIN && self.used.saturating_add(size) <= self.share)
    }

    /// Puts a syncset in that takes so many bytes, if it has room.
    pub(super) fn takes(&mut self, bytes: usize) -> bool {
        let used = self.used.saturating_add(bytes);
        if !self.is_empty && used > self.share {
            self.in_vain += 1;
            return false;
        }
        (self.used, self.is_empty) = (used, false);
        true
    }

    /// Nothing comes of a syncset that takes more than a pass may have.
    pub(super) fn refuses(&mut self) {
        self.in_vain += 1;
    }

    /// Why a syncset is left out that takes so many bytes, as far as it was read.
    pub(super) fn failure(&self, bytes: usize) -> Failure {
        let (share, size) = (self.share >> 20, bytes.div_ceil(1 << 10));
        let message = format!(
            "the syncsets of this cluster take more than {share} MiB together: no room is left for the {size} KiB of this one"
        );
        Failure { reason: Reason::ResourceInvalid, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syncset::rules::status::Retry;

    const SHARE: usize = 48 << 20;

    #[test]
    fn what_comes_first_fits_first_and_what_is_smaller_may_fit_later() {
        let mut room = Room::of(SHARE, 1 << 20);
        let taken = [40, 7, 1, 8, 1].map(|mib| room.may_have(mib << 20) && room.takes(mib << 20));
        assert_eq!(taken, [true, true, false, false, false]);
        assert_eq!((room.used, room.in_vain), (SHARE, 0), "the others need not be read");
        let mut room = Room::of(SHARE, 0);
        assert_eq!([40, 9, 8].map(|mib| room.takes(mib << 20)), [true, false, true]);
        let failure = room.failure((9 << 20) + 1);
        assert_eq!((failure.reason, failure.reason.retry()), (Reason::ResourceInvalid, Retry::OnChange));
        assert_eq!(
            failure.message,
            "the syncsets of this cluster take more than 48 MiB together: no room is left for the 9217 KiB of this one"
        );
    }

    #[test]
    fn the_first_always_has_room() {
        let mut room = Room::of(SHARE, SHARE);
        assert!(room.may_have(4 << 20) && room.takes(2 * SHARE));
        assert!(!room.may_have(1) && !room.takes(1));
    }

    #[test]
    fn a_few_are_rendered_in_vain_and_then_the_rest_is_not_read() {
        let mut room = Room::of(SHARE, 0);
        assert!(room.takes(SHARE - 10));
        for _ in 0..MOST_IN_VAIN {
            assert!(room.may_have(10));
            assert!(!room.takes(11));
        }
        assert!(!room.may_have(10));
    }
}

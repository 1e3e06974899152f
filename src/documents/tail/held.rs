//! What all watches together hold for clients that have not taken it yet: pages of the state, and windows of the log.
//!
//! Nobody waits for room. A watch reads less at once the more is held already, so that many slow clients hold little each, and a
//! quick one that comes later only needs more reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the pages and windows that are not small have together.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// A page or window takes at most this part of what is left.
const PART: usize = 8;
/// The largest page or window.
const LARGEST: usize = 1024 * 1024;
/// A page or window may always have this size. It may also be as large as its only item.
const SMALLEST: usize = 16 * 1024;

/// The bytes that all watches hold. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<AtomicUsize>);

/// What one watch holds. It is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    held: Held,
    bytes: usize,
}

impl Held {
    /// Takes what a page or window may have now.
    pub(super) fn take(&self) -> Share {
        // Two watches that take at the same time may see the same rest: their shares are small beside it.
        let rest = MOST_BYTES.saturating_sub(self.bytes());
        let bytes = (rest / PART).clamp(SMALLEST, LARGEST);
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Share { held: self.clone(), bytes }
    }

    /// What is held.
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Share {
    /// What it has.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// It is now this many bytes.
    pub(super) fn set(&mut self, bytes: usize) {
        // Wraps around where it becomes less.
        self.held.0.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_share_is_the_largest_and_what_is_held_makes_the_next_ones_smaller() {
        let held = Held::default();
        let mut shares: Vec<Share> = (0..20).map(|_| held.take()).collect();
        let sizes: Vec<usize> = shares.iter().map(Share::bytes).collect();
        assert_eq!(sizes[..2], [LARGEST, 7 * LARGEST / 8]);
        assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
        assert_eq!(held.bytes(), sizes.iter().sum::<usize>());
        let last = shares.pop().expect("a share").bytes();
        assert_eq!(held.bytes(), sizes.iter().sum::<usize>() - last);
        shares[0].set(100);
        shares[1].set(2 * LARGEST);
        assert_eq!(held.bytes(), sizes[2..19].iter().sum::<usize>() + 100 + 2 * LARGEST);
        drop(shares);
        assert_eq!((held.bytes(), held.take().bytes()), (0, LARGEST));
    }

    #[test]
    fn a_thousand_shares_are_bounded() {
        let held = Held::default();
        let shares: Vec<Share> = (0..1000).map(|_| held.take()).collect();
        assert!(shares.iter().all(|share| share.bytes() >= SMALLEST));
        assert!(held.bytes() <= MOST_BYTES + 1000 * SMALLEST, "{}", held.bytes());
    }
}

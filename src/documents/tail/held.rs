//! What all watches together hold for clients that have not taken it yet: pages of the state, and windows of the log.
//!
//! Nobody waits for small pages and windows. A watch reads less at once the more is held already, so that many slow clients hold little
//! each, and a quick one that comes later only needs more reads. For the watches of other tokens, those of one token count as at most half of the limit.
//!
//! A page that is larger than its limit is a single document, and a window may be larger because the log is stored compressed. Either
//! needs room of its own, for which the watch may have to wait ([`Tail::read`](super::Tail::read)). Otherwise a thousand clients that
//! take nothing would hold a large document each.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::documents::room::{self, Party};

/// What the pages and windows that are not small have together.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// What those of one token's watches have together.
const MOST_OF_TOKEN: usize = MOST_BYTES / 2;
/// A page or window takes at most this part of what is left.
const PART: usize = 8;
/// The largest page or window.
const LARGEST: usize = 1024 * 1024;
/// A page or window may always have this size. It may also be as large as its only item.
const SMALLEST: usize = 16 * 1024;

/// The bytes that all watches hold. Clones share it. A lock, since watches run in the tasks of their connections; it is held for one
/// look into the table.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// The sum of what each token holds, as far as it counts for others.
    counted: usize,
    by_party: HashMap<Party, usize>,
}

/// What one watch holds. It is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    held: Held,
    party: Party,
    bytes: usize,
    /// What it may have without room of its own.
    granted: usize,
    /// Room for a large document.
    room: Option<room::Share>,
}

/// How much of what it holds counts for others. Watches without a token have no others.
fn most_of(party: Party) -> usize {
    party.map_or(usize::MAX, |_| MOST_OF_TOKEN)
}

impl Table {
    fn of(&self, party: Party) -> usize {
        self.by_party.get(&party).copied().unwrap_or_default()
    }

    fn set(&mut self, party: Party, bytes: usize) {
        let (before, most) = (self.of(party), most_of(party));
        self.counted = self.counted.saturating_sub(before.min(most)).saturating_add(bytes.min(most));
        if bytes == 0 {
            self.by_party.remove(&party);
        } else {
            self.by_party.insert(party, bytes);
        }
    }
}

impl Held {
    /// Takes what a page or window of a watch may have now.
    pub(super) fn take(&self, party: Party) -> Share {
        let mut table = self.0.lock();
        let own = table.of(party);
        let rest = MOST_BYTES.saturating_sub(table.counted).min(most_of(party).saturating_sub(own));
        let bytes = (rest / PART).clamp(SMALLEST, LARGEST);
        table.set(party, own.saturating_add(bytes));
        Share { held: self.clone(), party, bytes, granted: bytes, room: None }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().by_party.values().sum()
    }
}

impl Share {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether so many bytes need no room of their own.
    pub(super) fn covers(&self, bytes: usize) -> bool {
        bytes <= self.granted
    }

    /// It has room for a large document, as long as it is large.
    pub(super) fn put_in(&mut self, room: Option<room::Share>) {
        self.room = room.filter(|_| !self.covers(self.bytes));
    }

    /// It is now this many bytes.
    pub(super) fn set(&mut self, bytes: usize) {
        if self.covers(bytes) {
            self.room = None;
        }
        let mut table = self.held.0.lock();
        let own = table.of(self.party).saturating_sub(self.bytes).saturating_add(bytes);
        table.set(self.party, own);
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
        let mut shares: Vec<Share> = (0..20).map(|_| held.take(None)).collect();
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
        assert_eq!((held.bytes(), held.take(None).bytes()), (0, LARGEST));
    }

    #[test]
    fn a_thousand_shares_are_bounded() {
        let held = Held::default();
        let shares: Vec<Share> = (0..1000).map(|_| held.take(None)).collect();
        assert!(shares.iter().all(|share| share.bytes() >= SMALLEST));
        assert!(held.bytes() <= MOST_BYTES + 1000 * SMALLEST, "{}", held.bytes());
    }

    #[test]
    fn a_token_whose_clients_are_slow_leaves_half_to_others() {
        let (slow, other) = (Some([1; 32]), Some([2; 32]));
        let held = Held::default();
        let mut shares: Vec<Share> = (0..500).map(|_| held.take(slow)).collect();
        assert_eq!(shares.last().map(Share::bytes), Some(SMALLEST));
        assert!(held.bytes() > MOST_BYTES, "as many small pages as there are watches");
        assert_eq!(held.take(other).bytes(), MOST_OF_TOKEN / PART);
        shares[0].set(2 * MOST_BYTES);
        let first = held.take(other);
        assert_eq!(first.bytes(), MOST_OF_TOKEN / PART, "one large document of theirs changes nothing");
        assert_eq!(held.take(slow).bytes(), SMALLEST);
        drop((shares, first));
        let table = held.0.lock();
        assert_eq!((table.counted, table.by_party.len()), (0, 0), "nothing is remembered of a token without pages");
    }
}

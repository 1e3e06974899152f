//! Requests that wait for room, in a fair order: tokens take turns, and the requests of one token keep their order.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::Party;

/// Most requests that wait: each of them is one of those that the server has under way at once.
const MOST: usize = 64;

/// The requests that wait for room.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<Ticket, Waiter>,
    /// The turn of the request that was granted last.
    turn: u64,
    next_number: u64,
}

/// A place in the order: first by turn, then by arrival. A party has one request in each turn, so that a party which has many
/// requests waiting delays another one by one request alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    turn: u64,
    number: u64,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) party: Party,
    pub(super) bytes: usize,
    granted: oneshot::Sender<()>,
}

/// Whether there is room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// There is.
    Fits,
    /// Its token has too much. This delays no other token.
    TokenIsFull,
    /// All together have too much.
    RoomIsFull,
}

impl Waiter {
    /// Tells the request that it has its room. It may have stopped waiting.
    pub(super) fn grant(self) {
        let _ = self.granted.send(());
    }
}

impl Queue {
    /// Whether a request of this party may wait. Those of one token have half of the places.
    pub(super) fn has_place(&self, party: Party) -> bool {
        let of_party = self.waiting.values().filter(|waiter| waiter.party == party).count();
        self.waiting.len() < MOST && (party.is_none() || of_party < MOST / 2)
    }

    /// Adds a request, which is told when it has its room.
    pub(super) fn join(&mut self, party: Party, bytes: usize) -> (Ticket, oneshot::Receiver<()>) {
        let of_party = self.waiting.iter().filter(|(_, waiter)| waiter.party == party);
        let last = of_party.map(|(ticket, _)| ticket.turn).max().unwrap_or_default();
        let ticket = Ticket { turn: last.max(self.turn) + 1, number: self.next_number };
        self.next_number += 1;
        let (granted, told) = oneshot::channel();
        self.waiting.insert(ticket, Waiter { party, bytes, granted });
        (ticket, told)
    }

    /// Removes a request that stops waiting. False if it has its room.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }

    /// The next request that gets room; none while the one whose turn it is has to wait.
    pub(super) fn next(&mut self, fit: impl Fn(&Waiter) -> Fit) -> Option<Waiter> {
        let mut full: Vec<Party> = Vec::new();
        let next = self.waiting.iter().find_map(|(ticket, waiter)| {
            if full.contains(&waiter.party) {
                return None;
            }
            match fit(waiter) {
                Fit::Fits => Some(Some(*ticket)),
                Fit::TokenIsFull => {
                    full.push(waiter.party);
                    None
                }
                Fit::RoomIsFull => Some(None),
            }
        });
        let ticket = next??;
        self.turn = ticket.turn;
        self.waiting.remove(&ticket)
    }

    /// Whether others are served before a request of this party that comes now, even if there is room for it.
    pub(super) fn is_ahead_of(&self, party: Party, fit: impl Fn(&Waiter) -> Fit) -> bool {
        self.waiting.values().any(|waiter| waiter.party == party || fit(waiter) != Fit::TokenIsFull)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Party = Some([1; 32]);
    const TWO: Party = Some([2; 32]);
    const THREE: Party = Some([3; 32]);

    fn order(queue: &mut Queue) -> Vec<usize> {
        std::iter::from_fn(|| queue.next(|_| Fit::Fits).map(|waiter| waiter.bytes)).collect()
    }

    #[test]
    fn tokens_take_turns_and_one_token_keeps_its_order() {
        let mut queue = Queue::default();
        let mut join = |party, bytes| drop(queue.join(party, bytes));
        (1..=4).for_each(|bytes| join(ONE, bytes));
        (11..=12).for_each(|bytes| join(TWO, bytes));
        assert_eq!(queue.next(|_| Fit::Fits).map(|waiter| waiter.bytes), Some(1));
        drop(queue.join(THREE, 21));
        assert_eq!(order(&mut queue), [11, 2, 12, 21, 3, 4]);
        drop(queue.join(ONE, 5));
        assert_eq!(order(&mut queue), [5]);
    }

    #[test]
    fn a_full_token_delays_itself_alone_and_a_full_room_everybody() {
        let mut queue = Queue::default();
        for (party, bytes) in [(ONE, 9), (TWO, 9), (ONE, 1)] {
            drop(queue.join(party, bytes));
        }
        let is_one_full = |waiter: &Waiter| if waiter.party == ONE { Fit::TokenIsFull } else { Fit::Fits };
        assert!(!queue.is_ahead_of(THREE, |_| Fit::TokenIsFull));
        assert!(queue.is_ahead_of(THREE, |_| Fit::RoomIsFull) && queue.is_ahead_of(ONE, |_| Fit::TokenIsFull));
        assert_eq!(queue.next(is_one_full).map(|waiter| waiter.party), Some(TWO));
        assert!(queue.next(is_one_full).is_none(), "the small one keeps its place behind the large one");
        let is_large_waiting = |waiter: &Waiter| if waiter.bytes == 9 { Fit::RoomIsFull } else { Fit::Fits };
        assert!(queue.next(is_large_waiting).is_none());
        assert_eq!(order(&mut queue), [9, 1]);
    }

    #[test]
    fn one_token_has_half_of_the_places() {
        let mut queue = Queue::default();
        let mut tickets = Vec::new();
        while queue.has_place(ONE) {
            tickets.push(queue.join(ONE, 1).0);
        }
        assert_eq!(tickets.len(), MOST / 2);
        while queue.has_place(None) {
            tickets.push(queue.join(None, 1).0);
        }
        assert_eq!((tickets.len(), queue.has_place(TWO)), (MOST, false));
        let left: Vec<bool> = tickets.into_iter().map(|ticket| queue.leave(ticket)).collect();
        assert_eq!((left, queue.waiting.len()), (vec![true; MOST], 0));
    }
}

//! Memory that requests share: a limit for all of them, half of it for those of one token, and what each of them takes of it.

mod queue;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::problem::{Problem, ProblemKind};
use queue::{Fit, Queue, Ticket};

/// Whose requests have at most half of a room together: the digest of a token. Those without a token have no such limit.
pub type Party = Option<[u8; 32]>;

/// A number of bytes that requests take and give back. Only those that ask for it wait, see [`Share::wait`]. Clones share it.
#[derive(Clone, Debug)]
pub struct Room(Arc<Shared>);

/// A lock, since requests are tasks of their own and decided on other threads; it is held for one look into the table.
#[derive(Debug)]
struct Shared {
    most: usize,
    /// Completes the sentence of a refusal: "too many …".
    doing: &'static str,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_token: HashMap<[u8; 32], usize>,
    queue: Queue,
}

/// What a request has of a room. It is given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    room: Room,
    party: Party,
    bytes: Mutex<usize>,
}

/// A place in the queue. When it is dropped, the share has its bytes if they were granted.
struct Place<'s> {
    share: &'s Share,
    ticket: Ticket,
    bytes: usize,
}

impl Taken {
    /// Whether a share that has `own` bytes may have so many.
    fn fit(&self, party: Party, own: usize, bytes: usize, may_be_large_alone: bool, most: usize) -> Fit {
        let of_token = party.map_or(0, |token| self.by_token.get(&token).copied().unwrap_or_default());
        let others = of_token.saturating_sub(own);
        let is_alone = may_be_large_alone && others == 0;
        if party.is_some() && others.saturating_add(bytes) > most / 2 && !is_alone {
            Fit::TokenIsFull
        } else if self.all.saturating_sub(own).saturating_add(bytes) > most {
            Fit::RoomIsFull
        } else {
            Fit::Fits
        }
    }

    /// A share has `bytes` in place of `own`.
    fn set(&mut self, party: Party, own: usize, bytes: usize) {
        self.all = self.all.saturating_sub(own).saturating_add(bytes);
        let Some(token) = party else { return };
        let of_token = self.by_token.remove(&token).unwrap_or_default().saturating_sub(own).saturating_add(bytes);
        if of_token > 0 {
            self.by_token.insert(token, of_token);
        }
    }

    /// Gives room to those who wait, as long as there is some for the one whose turn it is.
    fn grant(&mut self, most: usize) {
        let mut queue = std::mem::take(&mut self.queue);
        while let Some(waiter) = queue.next(|waiter| self.fit(waiter.party, 0, waiter.bytes, true, most)) {
            self.set(waiter.party, 0, waiter.bytes);
            waiter.grant();
        }
        self.queue = queue;
    }
}

impl Room {
    /// A room of so many bytes. Where there is none left, the problem is that there are too many of `doing`.
    pub fn new(most: usize, doing: &'static str) -> Self {
        Self(Arc::new(Shared { most, doing, taken: Mutex::default() }))
    }

    /// A share that has nothing yet.
    pub fn share(&self, party: Party) -> Share {
        Share { room: self.clone(), party, bytes: Mutex::new(0) }
    }

    fn busy(&self, of_whom: &str) -> Problem {
        Problem::new(ProblemKind::Busy, format!("too many {}{of_whom}", self.0.doing))
    }

    /// What all have together, and the number of tokens that have something.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> (usize, usize) {
        let taken = self.0.taken.lock();
        (taken.all, taken.by_token.len())
    }
}

impl Share {
    /// A share of the same party that has nothing.
    #[must_use]
    pub fn another(&self) -> Self {
        self.room.share(self.party)
    }

    /// Takes so many bytes more, unless all requests would have too much, or those of the token.
    pub fn take(&self, more: usize) -> Result<(), Problem> {
        let mut own = self.bytes.lock();
        let bytes = own.saturating_add(more);
        self.set(&mut own, bytes, false)
    }

    /// Has at least so many bytes from now on, but at most the whole room. The only request of a token may have more than half of it.
    /// It is refused while others wait for their turn.
    pub fn reserve(&self, bytes: usize) -> Result<(), Problem> {
        let mut own = self.bytes.lock();
        let bytes = bytes.min(self.room.0.most).max(*own);
        self.set(&mut own, bytes, true)
    }

    /// Gives back what it has, and waits until it has so many bytes, but at most the whole room. Whoever waits has nothing, so that nobody
    /// waits for another one that waits.
    pub async fn wait(&self, bytes: usize, until: Instant) -> Result<(), Problem> {
        self.shrink(0);
        let bytes = bytes.min(self.room.0.most);
        let (place, told) = {
            let mut taken = self.room.0.taken.lock();
            if !taken.queue.has_place(self.party) {
                return Err(self.room.busy(""));
            }
            let (ticket, told) = taken.queue.join(self.party, bytes);
            taken.grant(self.room.0.most);
            (Place { share: self, ticket, bytes }, told)
        };
        // It may be granted in this moment: the place knows.
        let _ = timeout_at(until, told).await;
        drop(place);
        if *self.bytes.lock() == bytes { Ok(()) } else { Err(self.room.busy("")) }
    }

    /// Gives back what is more than this.
    pub fn shrink(&self, bytes: usize) {
        let mut own = self.bytes.lock();
        let bytes = bytes.min(*own);
        // There is always room for less.
        let _ = self.set(&mut own, bytes, false);
    }

    fn set(&self, own: &mut usize, bytes: usize, may_be_large_alone: bool) -> Result<(), Problem> {
        if bytes == *own {
            return Ok(());
        }
        let most = self.room.0.most;
        let mut taken = self.room.0.taken.lock();
        if bytes > *own {
            let others_are_first =
                taken.queue.is_ahead_of(self.party, |waiter| taken.fit(waiter.party, 0, waiter.bytes, true, most));
            match taken.fit(self.party, *own, bytes, may_be_large_alone, most) {
                Fit::Fits if !others_are_first => {}
                Fit::TokenIsFull => return Err(self.room.busy(" for the token")),
                Fit::Fits | Fit::RoomIsFull => return Err(self.room.busy("")),
            }
        }
        taken.set(self.party, *own, bytes);
        let is_less = bytes < *own;
        *own = bytes;
        if is_less {
            taken.grant(most);
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut own = self.share.bytes.lock();
        let mut taken = self.share.room.0.taken.lock();
        if taken.queue.leave(self.ticket) {
            // Others may have waited behind it.
            taken.grant(self.share.room.0.most);
        } else {
            *own = self.bytes;
        }
    }
}

#[cfg(test)]
mod tests;

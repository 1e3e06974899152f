//! Memory that requests share: a limit for all of them, half of it for those of one token, and what each of them takes of it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::problem::{Problem, ProblemKind};

/// Whose requests have at most half of a room together: the digest of a token. Those without a token have no such limit.
pub type Party = Option<[u8; 32]>;

/// A number of bytes that requests take and give back. Nobody waits for room. Clones share it.
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
}

/// What a request has of a room. It is given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    room: Room,
    party: Party,
    bytes: Mutex<usize>,
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
    /// Takes so many bytes more, unless all requests would have too much, or those of the token.
    pub fn take(&self, more: usize) -> Result<(), Problem> {
        let mut own = self.bytes.lock();
        let bytes = own.saturating_add(more);
        self.set(&mut own, bytes, false)
    }

    /// Has so many bytes from now on, but at most the whole room. The only request of a token may have more than half of it.
    pub fn hold(&self, bytes: usize) -> Result<(), Problem> {
        self.set(&mut self.bytes.lock(), bytes.min(self.room.0.most), true)
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
        let all = taken.all.saturating_sub(*own).saturating_add(bytes);
        if bytes > *own && all > most {
            return Err(self.room.busy(""));
        }
        if let Some(token) = self.party {
            let others = taken.by_token.get(&token).copied().unwrap_or_default().saturating_sub(*own);
            let of_token = others.saturating_add(bytes);
            let is_alone = may_be_large_alone && others == 0;
            if bytes > *own && of_token > most / 2 && !is_alone {
                return Err(self.room.busy(" for the token"));
            }
            if of_token == 0 {
                taken.by_token.remove(&token);
            } else {
                taken.by_token.insert(token, of_token);
            }
        }
        taken.all = all;
        *own = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Party = Some([1; 32]);
    const TWO: Party = Some([2; 32]);

    fn kind(outcome: Result<(), Problem>) -> Option<ProblemKind> {
        outcome.err().map(|problem| problem.kind)
    }

    #[test]
    fn a_token_has_at_most_half_and_all_together_have_the_room() {
        let room = Room::new(100, "things");
        let (first, second, other, local) = (room.share(ONE), room.share(ONE), room.share(TWO), room.share(None));
        assert_eq!(first.take(30), Ok(()));
        assert_eq!(second.take(21).err().map(|problem| problem.title), Some("too many things for the token".into()));
        assert_eq!((second.take(20), other.take(50)), (Ok(()), Ok(())));
        assert_eq!(local.take(1).err().map(|problem| problem.title), Some("too many things".into()));
        assert_eq!(room.taken(), (100, 2), "what was refused has nothing");
        first.shrink(10);
        assert_eq!((local.take(20), room.taken()), (Ok(()), (100, 2)));
        drop((first, second, other, local));
        assert_eq!(room.taken(), (0, 0), "nothing is remembered of a token without a share");
    }

    #[test]
    fn what_is_held_may_be_the_whole_room_where_a_token_has_nothing_else() {
        let room = Room::new(100, "things");
        let (first, second) = (room.share(ONE), room.share(ONE));
        assert_eq!((first.hold(40), first.hold(900), room.taken()), (Ok(()), Ok(()), (100, 1)));
        assert_eq!(kind(second.hold(1)), Some(ProblemKind::Busy));
        assert_eq!((first.hold(20), second.hold(30)), (Ok(()), Ok(())));
        assert_eq!(kind(first.hold(21)), Some(ProblemKind::Busy), "it is not alone any more");
        assert_eq!((first.take(0), room.taken()), (Ok(()), (50, 1)));
    }

    #[test]
    fn less_is_never_refused_and_shrinking_takes_nothing() {
        let room = Room::new(100, "things");
        let (large, small) = (room.share(ONE), room.share(None));
        assert_eq!((large.hold(100), large.hold(99), small.take(1)), (Ok(()), Ok(()), Ok(())));
        small.shrink(50);
        assert_eq!(room.taken(), (100, 1));
    }
}

//! How the body of a successful answer is read.

use std::marker::PhantomData;

use http::{HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;

use super::server_clock::skew_by;
use crate::actor::{OwnSlots, Slot, Slots};

/// The budget counts only what a body has beyond this. A reply with the metadata of one object is smaller.
const UNCOUNTED: usize = 256 << 10;
/// A larger body grows, and is counted, in steps of this size.
const STEP: usize = 512 << 10;

/// What a successful answer can be read as: anything that is deserialized, alone or with the answer's status.
pub trait Readable: Sized {
    /// Reads the body of an answer with this status.
    fn read(status: StatusCode, body: &[u8]) -> serde_json::Result<Self>;
}

impl<T: DeserializeOwned> Readable for T {
    fn read(_: StatusCode, body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }
}

/// The body of an answer, and whether the status is 201: the request has created the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stated<T> {
    /// Whether the object did not exist before.
    pub created: bool,
    pub body: T,
}

impl<T: DeserializeOwned> Readable for Stated<T> {
    fn read(status: StatusCode, body: &[u8]) -> serde_json::Result<Self> {
        Ok(Self { created: status == StatusCode::CREATED, body: serde_json::from_slice(body)? })
    }
}

/// Why the body of a successful answer can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// It is not what was asked for. The text may quote the body.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It has more of something than is read; in words of our own.
    #[error("{0}")]
    TooMuch(String),
}

/// The memory that the bodies of many clusters take together for what is not small, of which those of one owner get half. Clones share it.
///
/// Nobody waits for it: a server that sends slowly would hold up those that wait, each with a part of its body in memory.
#[derive(Clone, Debug)]
pub(super) struct ReplyBudgets(Slots);

/// What the clusters of one owner get of it.
#[derive(Clone, Debug)]
pub(super) struct ReplyBudget(OwnSlots);

impl ReplyBudgets {
    /// So many bytes for each owner, of which a body takes what it has beyond 256 KiB.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        Self(Slots::new(2 * (bytes / STEP).max(1)))
    }

    pub(super) fn budget(&self, owner: &str) -> ReplyBudget {
        ReplyBudget(self.0.of(owner))
    }
}

impl ReplyBudget {
    /// Whether nothing of it is left.
    #[cfg(test)]
    pub(super) fn is_full(&self) -> bool {
        self.0.free() == 0
    }
}

/// The body of a successful answer while it arrives.
pub(super) trait Reading {
    type Read;

    /// Counts in this budget what it keeps of the body, unless something else bounds that.
    fn count_in(&mut self, _budget: &ReplyBudget) {}

    fn head(&mut self, _headers: &HeaderMap) {}

    fn take(&mut self, data: &[u8]) -> Result<(), Unreadable>;

    /// Everything has arrived, with this status.
    fn end(self, status: StatusCode) -> serde_json::Result<Self::Read>;
}

/// A body that is read once all of it is there.
pub(super) struct Whole<T> {
    body: Vec<u8>,
    budget: Option<ReplyBudget>,
    /// What it has of the budget, until it has been read: so many steps, taken one after the other.
    taken: Vec<Slot>,
    steps: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Default for Whole<T> {
    fn default() -> Self {
        Self { body: Vec::new(), budget: None, taken: Vec::new(), steps: 0, of: PhantomData }
    }
}

impl<T> Whole<T> {
    /// Takes of the budget what a body of this length needs.
    fn grow(&mut self, length: usize) -> Result<(), Unreadable> {
        let Some(ReplyBudget(budget)) = self.budget.as_ref().filter(|_| length > UNCOUNTED) else { return Ok(()) };
        let steps = (length - UNCOUNTED).div_ceil(STEP);
        let missing = steps.saturating_sub(self.steps);
        if missing == 0 {
            return Ok(());
        }
        let Ok(more) = budget.try_take(u32::try_from(missing).unwrap_or(u32::MAX)) else {
            let text = format!("the answer has more than {} KiB, for which there is no room now", UNCOUNTED >> 10);
            return Err(Unreadable::TooMuch(text));
        };
        self.taken.push(more);
        self.steps = steps;
        // By itself it would grow to twice its length, which is not counted.
        self.body.reserve_exact((UNCOUNTED + steps * STEP).saturating_sub(self.body.len()));
        Ok(())
    }
}

impl<T: Readable> Reading for Whole<T> {
    type Read = T;

    fn count_in(&mut self, budget: &ReplyBudget) {
        self.budget = Some(budget.clone());
    }

    fn take(&mut self, data: &[u8]) -> Result<(), Unreadable> {
        self.grow(self.body.len() + data.len())?;
        self.body.extend_from_slice(data);
        Ok(())
    }

    fn end(self, status: StatusCode) -> serde_json::Result<T> {
        T::read(status, &self.body)
    }
}

/// A body, with what the `Date` of the answer says of this machine's clock.
pub(super) struct Dated<R> {
    body: R,
    begun: Timestamp,
    skew: Option<SignedDuration>,
}

/// Begins now, before the request is sent.
impl<R: Default> Default for Dated<R> {
    fn default() -> Self {
        Self { body: R::default(), begun: Timestamp::now(), skew: None }
    }
}

impl<R: Reading> Reading for Dated<R> {
    type Read = (R::Read, Option<SignedDuration>);

    fn count_in(&mut self, budget: &ReplyBudget) {
        self.body.count_in(budget);
    }

    fn head(&mut self, headers: &HeaderMap) {
        self.skew = skew_by(headers, self.begun);
    }

    fn take(&mut self, data: &[u8]) -> Result<(), Unreadable> {
        self.body.take(data)
    }

    fn end(self, status: StatusCode) -> serde_json::Result<Self::Read> {
        Ok((self.body.end(status)?, self.skew))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::*;

    fn counted(budget: &ReplyBudget) -> Whole<IgnoredAny> {
        let mut whole = Whole::default();
        whole.count_in(budget);
        whole
    }

    #[test]
    fn large_bodies_share_a_budget_and_small_ones_need_none() {
        let budget = ReplyBudgets::of_bytes(3 * STEP).budget("team-a");
        let (mut one, mut other) = (counted(&budget), counted(&budget));
        one.take(&vec![b' '; UNCOUNTED]).unwrap();
        assert_eq!(budget.0.free(), 3);
        one.take(b" ").unwrap();
        assert_eq!((budget.0.free(), one.body.capacity()), (2, UNCOUNTED + STEP));
        other.take(&vec![b' '; UNCOUNTED + STEP + 1]).unwrap();
        assert_eq!(budget.0.free(), 0);
        one.take(&vec![b' '; STEP - 1]).unwrap();
        let error = one.take(b" ").unwrap_err().to_string();
        assert_eq!(error, "the answer has more than 256 KiB, for which there is no room now");
        counted(&budget).take(&vec![b' '; UNCOUNTED]).unwrap();
        drop(other);
        one.take(b"7").unwrap();
        assert_eq!(budget.0.free(), 1);
        one.end(StatusCode::OK).unwrap();
        assert_eq!(budget.0.free(), 3);
    }

    #[test]
    fn without_a_budget_a_body_is_not_counted() {
        let mut whole = Whole::<IgnoredAny>::default();
        whole.take(&vec![b' '; UNCOUNTED + 9 * STEP]).unwrap();
        assert!(whole.taken.is_empty());
    }
}

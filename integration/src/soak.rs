//! Tests that draw lots: which, and how often.
//!
//! `make test` plays a few rounds, always the same ones; `make soak` plays many, of a seed that it prints. What another process
//! or the network does at the same time is not drawn, so that a seed brings back what happens, not when exactly.

/// A small generator of numbers (Steele, Lea and Flood's `SplitMix64`): the same seed, the same numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below the bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// An index into something of this length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(usize::MAX)
    }

    /// All of these in an order that is drawn, then all again in another one, and so on: none is left out by chance.
    pub fn rounds_of<T: Clone>(mut self, all: &[T]) -> impl Iterator<Item = T> {
        let (mut deck, all) = (Vec::new(), all.to_vec());
        std::iter::from_fn(move || {
            if deck.is_empty() {
                deck.clone_from(&all);
            }
            (!deck.is_empty()).then(|| deck.swap_remove(self.index(deck.len())))
        })
    }

    /// A generator of its own, for what happens beside.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }
}

/// `SEED`, or 1. Printed, so that a failure can be played again.
pub fn seed() -> u64 {
    let seed = number("SEED").unwrap_or(1);
    println!("SEED={seed} ROUNDS={:?}", number("ROUNDS"));
    seed
}

/// `ROUNDS`, or else `few`.
pub fn rounds(few: u64) -> u64 {
    number("ROUNDS").unwrap_or(few)
}

#[expect(clippy::panic, reason = "a test that was asked for something else must not pass")]
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{variable}={text:?}: {error}"),
    }
}

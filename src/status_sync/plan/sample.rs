//! A count with a few examples.

/// A report names at most this many; all are counted.
const NAMED: usize = 5;

/// A count of objects or rows, with a few of them as examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub count: usize,
    /// The first of them.
    pub examples: Vec<String>,
}

impl Sample {
    /// Adds to the count, and keeps the example while there are few.
    pub fn add(&mut self, count: usize, example: impl FnOnce() -> String) {
        self.count += count;
        if self.examples.len() < NAMED {
            self.examples.push(example());
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        let room = NAMED.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_few_are_named() {
        let (mut one, mut other) = (Sample::default(), Sample::default());
        (0..4).for_each(|number| one.add(1, || format!("one {number}")));
        (0..9).for_each(|number| other.add(2, || format!("other {number}")));
        one.merge(&other);
        assert_eq!((one.count, one.examples.len()), (22, NAMED));
        assert_eq!(one.examples.last().map(String::as_str), Some("other 0"));
    }
}

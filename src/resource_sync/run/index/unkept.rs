//! Fields that an API server does not keep as they were written: how many there are, which are reported, and when they are
//! written again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use super::table::{Pair, Table};
use crate::cluster::ObjectKey;
use crate::resource_sync::metrics::Direction;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::server_result::Unkept;

/// How many objects with such fields the report names ...
const UNKEPT_NAMED: usize = 20;
/// ... and how many are reported in Events and in the log during a run. Further ones are only counted.
const UNKEPT_TOLD: usize = 100;
/// Such fields are written again after a delay between half of this and all of it. The key decides, so that objects that were
/// written together after a start do not stay together.
const WRITE_AGAIN: Duration = Duration::from_hours(1);
/// One check requests at most this many pairs. Checks run once a minute, and the rest is due at the next one.
const WRITE_AGAIN_AT_ONCE: usize = 500;

/// Fields of one object that one of the two servers does not keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnkeptFields {
    /// The local key.
    pub(crate) key: ObjectKey,
    /// The direction in which they were written.
    pub(crate) direction: Direction,
    pub(crate) fields: Unkept,
}

/// All fields that are not kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UnkeptTotals {
    /// How many objects have any.
    pub(crate) objects: usize,
    /// How many fields of specs there are.
    pub(crate) spec: usize,
    /// How many fields of statuses there are.
    pub(crate) status: usize,
}

impl Table {
    /// The pairs whose fields have to be written again now. Their results are forgotten.
    pub(crate) fn due_again(&mut self, now: Instant) -> Vec<PairKey> {
        let mut due = Vec::new();
        for (key, pair) in self.pairs.iter_mut() {
            if pair.server_result.unkept() == [None, None] {
                pair.again_at = None;
                continue;
            }
            let at = *pair.again_at.get_or_insert_with(|| now + spread(&key.local));
            if at <= now && due.len() < WRITE_AGAIN_AT_ONCE {
                pair.again_at = None;
                pair.server_result.write_again();
                due.push(key.clone());
            }
        }
        due
    }

    /// All pairs with such fields, to be written again because the definition of the kind may have changed.
    pub(crate) fn all_again(&mut self) -> Vec<PairKey> {
        let again =
            self.pairs.iter_mut().filter_map(|(key, pair)| pair.server_result.write_again().then(|| key.clone()));
        again.collect()
    }

    /// Whether there is a content that still has to be written once more.
    pub(crate) fn writes_content_again(&self) -> bool {
        self.pairs.values().any(|pair| pair.server_result.content_is_written_again())
    }

    /// How many fields are not kept.
    pub(crate) fn unkept_totals(&self) -> UnkeptTotals {
        let mut totals = UnkeptTotals::default();
        for pair in self.pairs.values() {
            let [spec, status] = pair.server_result.unkept().map(|fields| fields.map_or(0, |fields| fields.count));
            totals.objects += usize::from(spec + status > 0);
            totals.spec += spec;
            totals.status += status;
        }
        totals
    }

    /// The first objects with fields that are not kept, by key.
    pub(crate) fn unkept(&self) -> Vec<UnkeptFields> {
        let mut all: Vec<_> = self.pairs.iter().flat_map(|(key, pair)| fields_of(key, pair)).collect();
        all.sort_by(|one, other| one.key.cmp(&other.key));
        all.truncate(UNKEPT_NAMED);
        all
    }

    /// The fields of a pair that are not kept and were not reported yet, or differ from those reported. They count as reported from
    /// now on.
    pub(crate) fn untold_unkept(&mut self, key: &PairKey) -> Vec<UnkeptFields> {
        let told = self.told_unkept;
        let Some(pair) = self.get_mut(key) else { return Vec::new() };
        let fields: Vec<_> = fields_of(key, pair).collect();
        if fields.is_empty() || told >= UNKEPT_TOLD {
            return Vec::new();
        }
        let mut hasher = DefaultHasher::new();
        for unkept in &fields {
            unkept.fields.hash(&mut hasher);
        }
        let hash = hasher.finish();
        if pair.told_unkept.replace(hash) == Some(hash) {
            return Vec::new();
        }
        self.told_unkept += 1;
        fields
    }
}

fn fields_of(key: &PairKey, pair: &Pair) -> impl Iterator<Item = UnkeptFields> {
    let of = |direction, fields: Option<&Unkept>| {
        fields.map(|fields| UnkeptFields { key: key.local.clone(), direction, fields: fields.clone() })
    };
    let [spec, status] = pair.server_result.unkept();
    [of(Direction::Spec, spec), of(Direction::Status, status)].into_iter().flatten()
}

/// A delay between half of the interval and all of it, always the same for a key.
fn spread(key: &ObjectKey) -> Duration {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1_000).unwrap_or_default();
    WRITE_AGAIN / 2 + WRITE_AGAIN / 2_000 * part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Written;
    use crate::cluster::object::Decoded;
    use crate::resource_sync::plan::policy::Policy;

    /// A pair of which the local server prunes a field.
    fn lossy(table: &mut Table, name: &str) {
        let object = |spec: &str| {
            let text = format!(r#"{{"metadata":{{"name":"{name}","uid":"u","resourceVersion":"7"}},"spec":{spec}}}"#);
            serde_json::from_str::<Decoded>(&text).unwrap().into_object()
        };
        let written = Written { uid: "u".into(), resource_version: "7".into(), generation: 0 };
        let server_result = &mut table.pair(&PairKey::alike("n", name), Instant::now()).server_result;
        server_result.wrote_content(&object(r#"{"a":1,"pruned":2}"#), &written);
        let policy = Policy::new(&crate::resource_sync::tests::config("databases", "databases", ""));
        server_result.observe(None, Some(&object(r#"{"a":1}"#)), &policy);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_kept_is_due_again_within_the_hour_spread_over_half_of_it_and_bounded() {
        let mut table = Table::default();
        for number in 0..2_000 {
            lossy(&mut table, &number.to_string());
        }
        table.pair(&PairKey::alike("n", "in step"), Instant::now());
        let start = Instant::now();
        let (mut due, mut most, mut first, mut last) = (0, 0, None, None);
        for minute in 0..=60 {
            let found = table.due_again(start + Duration::from_mins(minute)).len();
            due += found;
            most = most.max(found);
            if found > 0 {
                first = first.or(Some(minute));
                last = Some(minute);
            }
        }
        assert_eq!((due, first), (2_000, Some(30)));
        assert!(last >= Some(59) && most < 120, "{most} in one minute, the last in minute {last:?}");
        assert_eq!(table.unkept_totals(), UnkeptTotals::default(), "until the servers have told again");
        // Everything at once is bounded, and nothing of it is lost.
        for number in 0..2_000 {
            lossy(&mut table, &number.to_string());
        }
        assert!(table.due_again(start).is_empty());
        let later = start + Duration::from_hours(2);
        let looks: Vec<usize> = (0..5).map(|_| table.due_again(later).len()).collect();
        assert_eq!(looks, [500, 500, 500, 500, 0]);
    }

    #[test]
    fn fields_that_were_not_kept_are_told_once_and_of_so_many_objects() {
        let mut table = Table::default();
        let told: usize = (0..UNKEPT_TOLD + 50)
            .map(|number| {
                let name = number.to_string();
                lossy(&mut table, &name);
                let key = PairKey::alike("n", &name);
                let told = table.untold_unkept(&key).len();
                assert!(table.untold_unkept(&key).is_empty(), "once");
                told
            })
            .sum();
        assert_eq!(told, UNKEPT_TOLD);
        assert_eq!(
            table.unkept_totals(),
            UnkeptTotals { objects: UNKEPT_TOLD + 50, spec: UNKEPT_TOLD + 50, status: 0 }
        );
        assert_eq!(table.unkept().len(), UNKEPT_NAMED);
    }
}

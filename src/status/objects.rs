//! The objects of a section: how many are in which state, and which of them need attention. Pure.
//!
//! A job derives them from what it holds when somebody asks: objects in step are only counted, and at most [`MOST_LISTED`] of the
//! others are described, so that a section of 100,000 objects costs no second table.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use tokio::time::Instant;

/// How many objects are listed by name.
const MOST_LISTED: usize = 50;

/// The state of an object, for all jobs. A state is added only here: metrics, reports and tests iterate over
/// [`ObjectState::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectState {
    /// Both sides agree.
    InStep,
    /// A change is in progress.
    Pending,
    Paused,
    /// The last reconcile failed.
    Failing,
    /// One side is being deleted.
    Deleting,
    /// A change to it waits for an approval.
    Held,
    /// The local object has our marks, but is not proven to be ours: it is kept.
    Unclaimed,
    /// Another local cluster holds the remote object by the same finalizer.
    OtherCluster,
    /// The local object existed before the remote one, and the configuration forbids adopting it.
    Existing,
    /// The source of the local object exists under another key: the local object is an orphan.
    MappingChanged,
    /// The remote object was created from the local one: nothing is done.
    Circle,
    /// What it is written to does not exist, or another object has the name. Nothing is done until that changes.
    Missing,
    /// It is a cluster that does not answer, or whose kubeconfig is refused.
    Unreachable,
}

impl ObjectState {
    /// Every state, in the order of a report.
    pub const ALL: [Self; 13] = [
        Self::InStep,
        Self::Pending,
        Self::Paused,
        Self::Failing,
        Self::Deleting,
        Self::Held,
        Self::Unclaimed,
        Self::Existing,
        Self::MappingChanged,
        Self::Circle,
        Self::OtherCluster,
        Self::Missing,
        Self::Unreachable,
    ];

    /// The label's value, and the key in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InStep => "in_step",
            Self::Pending => "pending",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Deleting => "deleting",
            Self::Held => "held",
            Self::Unclaimed => "unclaimed",
            Self::Existing => "existing",
            Self::MappingChanged => "mapping_changed",
            Self::Circle => "circle",
            Self::OtherCluster => "other_cluster",
            Self::Missing => "missing",
            Self::Unreachable => "unreachable",
        }
    }

    /// The urgency of the state (0 is highest), and after how long in it an object is listed by name; `None`: never.
    fn listed_after(self) -> Option<(u8, Duration)> {
        match self {
            Self::Held => Some((0, Duration::ZERO)),
            Self::Failing => Some((1, Duration::ZERO)),
            // Healthy controllers remove their finalizers sooner.
            Self::Deleting => Some((2, Duration::from_mins(1))),
            // Longer than a change takes through healthy clusters.
            Self::Pending => Some((3, Duration::from_secs(10))),
            // These wait for an operator.
            Self::Circle | Self::OtherCluster | Self::MappingChanged | Self::Unclaimed | Self::Existing => {
                Some((4, Duration::ZERO))
            }
            // Nobody has to act, but whoever looks for an object finds out why nothing happens.
            Self::Paused | Self::Missing | Self::Unreachable => Some((5, Duration::ZERO)),
            Self::InStep => None,
        }
    }
}

/// An object as it is listed: its state, why it is in it, and what comes next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListedObject {
    pub key: String,
    pub state: ObjectState,
    /// Since when it is in the state, where that is known.
    #[serde(rename = "for_seconds", serialize_with = "elapsed")]
    pub since: Option<Instant>,
    pub cause: String,
    /// What an operator can do.
    pub next_step: Option<String>,
    /// What triggers the next attempt, where that is not a delay.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub retry: &'static str,
    /// When the next attempt is due.
    #[serde(rename = "retry_in_seconds", serialize_with = "left", skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Instant>,
    /// Keys of the job's own.
    #[serde(flatten)]
    pub also: Map<String, Value>,
}

#[expect(clippy::ref_option, reason = "serde passes references")]
fn elapsed<S: Serializer>(since: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    since.map(|since| since.elapsed().as_secs()).serialize(serializer)
}

/// At least one second: what is due has not been done yet.
#[expect(clippy::ref_option, reason = "serde passes references")]
fn left<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.saturating_duration_since(Instant::now()).as_secs().max(1)).serialize(serializer)
}

impl ListedObject {
    /// An object in a state, for the job to describe.
    pub fn new(key: impl Display, state: ObjectState, since: Option<Instant>) -> Self {
        Self {
            key: key.to_string(),
            state,
            since,
            cause: String::new(),
            next_step: None,
            retry: "",
            retry_at: None,
            also: Map::new(),
        }
    }
}

/// The objects of a section. The default is a section that has none.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    counts: BTreeMap<ObjectState, usize>,
    /// For how long the oldest change has not been applied.
    pub oldest: Option<Duration>,
    /// Those that fail or have waited for too long, the most urgent and oldest first.
    pub not_in_step: Vec<ListedObject>,
    /// How many more there are.
    pub more: usize,
}

impl Objects {
    /// So many objects in each state.
    pub fn counted(counts: impl IntoIterator<Item = (ObjectState, usize)>) -> Self {
        Self { counts: counts.into_iter().collect(), ..Self::default() }
    }

    /// These objects, each with what the job has of it, its state, and since when it is in it. Those that are listed are described.
    pub fn of<K: Ord, T>(
        objects: impl Iterator<Item = (K, T, ObjectState, Option<Instant>)>,
        now: Instant,
        mut describe: impl FnMut(K, T, ObjectState, Option<Instant>) -> ListedObject,
    ) -> Self {
        let mut counts: BTreeMap<_, _> = ObjectState::ALL.map(|state| (state, 0)).into();
        let mut found = Vec::new();
        for (key, object, state, since) in objects {
            *counts.entry(state).or_default() += 1;
            let Some((rank, after)) = state.listed_after() else { continue };
            if after.is_zero() || since.is_some_and(|since| now.saturating_duration_since(since) >= after) {
                found.push((rank, since, key, object, state));
            }
        }
        let order = |one: &(u8, _, K, T, _), other: &(u8, _, K, T, _)| {
            by_urgency((one.0, one.1, &one.2), (other.0, other.1, &other.2))
        };
        let more = found.len().saturating_sub(MOST_LISTED);
        if more > 0 {
            // There may be very many, and only these are sorted.
            found.select_nth_unstable_by(MOST_LISTED, order);
            found.truncate(MOST_LISTED);
        }
        found.sort_by(order);
        let listed = found.into_iter().map(|(_, since, key, object, state)| describe(key, object, state, since));
        Self { counts, oldest: None, not_in_step: listed.collect(), more }
    }

    /// Adds other objects of the same section.
    pub fn append(&mut self, others: Self) {
        for (state, count) in others.counts {
            *self.counts.entry(state).or_default() += count;
        }
        self.oldest = self.oldest.max(others.oldest);
        self.list(others.not_in_step, others.more);
    }

    /// Lists objects that are counted already; so many more are not at hand.
    pub fn list(&mut self, objects: impl IntoIterator<Item = ListedObject>, more: usize) {
        self.not_in_step.extend(objects);
        let rank = |object: &ListedObject| object.state.listed_after().map_or(u8::MAX, |(rank, _)| rank);
        self.not_in_step
            .sort_by(|one, other| by_urgency((rank(one), one.since, &one.key), (rank(other), other.since, &other.key)));
        self.more += more + self.not_in_step.len().saturating_sub(MOST_LISTED);
        self.not_in_step.truncate(MOST_LISTED);
    }

    pub fn count(&self, state: ObjectState) -> usize {
        self.counts.get(&state).copied().unwrap_or_default()
    }

    pub fn total(&self) -> usize {
        self.counts.values().sum()
    }

    /// Whether nothing is known of any, not even that there are none.
    pub fn is_unknown(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many are in each state, for `/status` and the gauge of the section.
    pub fn by_state(&self) -> BTreeMap<&'static str, usize> {
        ObjectState::ALL.into_iter().map(|state| (state.as_str(), self.count(state))).collect()
    }

    /// Those that are not in step, in the order of the states: `1 paused, 2 failing`.
    pub fn in_words(&self) -> String {
        let not_in_step = ObjectState::ALL.into_iter().filter(|state| *state != ObjectState::InStep);
        let counts = not_in_step.map(|state| (state, self.count(state))).filter(|(_, count)| *count > 0);
        let words = counts.map(|(state, count)| format!("{count} {}", state.as_str().replace('_', " ")));
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Which objects of a section a page has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Selection {
    /// Only those in this state.
    state: Option<ObjectState>,
    /// Only those whose key has this in it.
    text: String,
    sort: Sort,
    offset: usize,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sort {
    /// As in the report: the most urgent first, of these the oldest.
    #[default]
    Urgency,
    Key,
    /// Those that are in their state for longest first.
    Age,
}

impl Selection {
    /// Objects of a page.
    pub const MOST: usize = 200;

    /// Whether it asks for no more than a page may have.
    pub(super) fn is_allowed(&self) -> bool {
        self.limit.is_none_or(|limit| (1..=Self::MOST).contains(&limit))
    }

    fn end(&self) -> usize {
        self.offset.saturating_add(self.limit.unwrap_or(Self::MOST).min(Self::MOST))
    }
}

/// Some objects of a section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectPage {
    /// How many the section has.
    pub total: usize,
    /// How many of them can be listed at all; the others are only counted.
    pub listed: usize,
    /// How many of these are selected.
    matching: usize,
    offset: usize,
    objects: Vec<ListedObject>,
}

impl ObjectPage {
    /// A page of these objects: each with its state, and since when it is in it. Only those of the page are described, in their order.
    pub fn of<K: Ord + Display, T>(
        objects: impl Iterator<Item = (K, T, ObjectState, Option<Instant>)>,
        selection: &Selection,
        describe: impl FnOnce(Vec<(K, T, ObjectState, Option<Instant>)>) -> Vec<ListedObject>,
    ) -> Self {
        let (mut total, mut found, mut text) = (0, Vec::new(), String::new());
        for (key, object, state, since) in objects {
            total += 1;
            if selection.state.is_some_and(|wanted| wanted != state) {
                continue;
            }
            if !selection.text.is_empty() {
                text.clear();
                // A text takes everything.
                let _ = write!(text, "{key}");
                if !text.contains(&selection.text) {
                    continue;
                }
            }
            let rank = state.listed_after().map_or(u8::MAX, |(rank, _)| rank);
            found.push((rank, since, key, object, state));
        }
        let order = |one: &(u8, Option<Instant>, K, T, _), other: &(u8, Option<Instant>, K, T, _)| match selection.sort
        {
            Sort::Urgency => by_urgency((one.0, one.1, &one.2), (other.0, other.1, &other.2)),
            Sort::Age => by_urgency((0, one.1, &one.2), (0, other.1, &other.2)),
            Sort::Key => one.2.cmp(&other.2),
        };
        let (matching, end) = (found.len(), selection.end());
        if end < matching {
            // There may be very many, and only those up to the page are sorted.
            found.select_nth_unstable_by(end, order);
            found.truncate(end);
        }
        found.sort_by(order);
        let shown = found.into_iter().skip(selection.offset);
        let objects = describe(shown.map(|(_, since, key, object, state)| (key, object, state, since)).collect());
        Self { total, listed: total, matching, offset: selection.offset, objects }
    }

    /// A page of what is listed of a section that can't list more.
    pub fn of_listed(objects: Objects, selection: &Selection) -> Self {
        let total = objects.total();
        let listed = objects.not_in_step.into_iter().map(|object| {
            let (key, state, since) = (object.key.clone(), object.state, object.since);
            (key, object, state, since)
        });
        let described =
            |chosen: Vec<(_, ListedObject, _, _)>| chosen.into_iter().map(|(_, object, ..)| object).collect();
        Self { total, ..Self::of(listed, selection, described) }
    }
}

/// The most urgent first, of these the oldest; those of unknown age come last.
fn by_urgency<K: Ord>(one: (u8, Option<Instant>, K), other: (u8, Option<Instant>, K)) -> Ordering {
    let known = |since: Option<Instant>| (since.is_none(), since);
    (one.0, known(one.1), one.2).cmp(&(other.0, known(other.1), other.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_one_name() {
        for state in ObjectState::ALL {
            assert_eq!(serde_json::json!(state), state.as_str());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_or_waits_is_listed_the_most_urgent_and_oldest_first_and_healthy_ones_never() {
        let start = Instant::now();
        let states = [
            ("step", ObjectState::InStep),
            ("going", ObjectState::Deleting),
            ("paused", ObjectState::Paused),
            ("failing", ObjectState::Failing),
            ("held", ObjectState::Held),
            ("moving", ObjectState::Pending),
        ];
        let of = |after: u64| {
            let rows = states.into_iter().map(|(key, state)| (key, (), state, Some(start)));
            let now = start + Duration::from_secs(after);
            Objects::of(rows, now, |key, (), state, since| ListedObject::new(key, state, since))
        };
        let listed = |after| of(after).not_in_step.into_iter().map(|object| object.key).collect::<Vec<_>>();
        // Paused objects come last: they wait for nobody.
        assert_eq!(listed(0), ["held", "failing", "paused"]);
        assert_eq!(listed(10), ["held", "failing", "moving", "paused"]);
        assert_eq!(listed(60), ["held", "failing", "going", "moving", "paused"]);
        assert_eq!((of(60).total(), of(60).count(ObjectState::InStep)), (6, 1));
        assert_eq!(of(0).in_words(), "1 pending, 1 paused, 1 failing, 1 deleting, 1 held");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_has_what_is_selected_in_its_order_and_never_more_than_200() {
        let start = Instant::now();
        let at = |number: usize| start + Duration::from_secs(u64::try_from(number).expect("small"));
        let state = |number: usize| if number.is_multiple_of(2) { ObjectState::InStep } else { ObjectState::Failing };
        let page = |selection: Selection| {
            // The higher the number, the longer it is in its state.
            let rows = (0..1000).map(|number| (format!("{number:03}"), (), state(number), Some(at(1000 - number))));
            let page = ObjectPage::of(rows, &selection, |chosen| {
                chosen.into_iter().map(|(key, (), state, since)| ListedObject::new(key, state, since)).collect()
            });
            let keys: Vec<String> = page.objects.iter().map(|object| object.key.clone()).collect();
            assert_eq!((page.total, page.listed), (1000, 1000));
            (page.matching, keys)
        };
        let of = |query: &str| serde_json::from_str::<Selection>(query).expect("a selection");
        let (matching, keys) = page(of("{}"));
        assert_eq!((matching, keys.len(), keys[0].as_str(), keys[1].as_str()), (1000, 200, "999", "997"));
        let (matching, keys) = page(of(r#"{"state": "in_step", "sort": "key", "offset": 498, "limit": 7}"#));
        assert_eq!((matching, keys), (500, vec!["996".to_owned(), "998".to_owned()]));
        let (matching, keys) = page(of(r#"{"text": "99", "sort": "age", "limit": 2, "offset": 1}"#));
        assert_eq!((matching, keys), (19, vec!["998".to_owned(), "997".to_owned()]));
        assert_eq!(page(of(r#"{"offset": 5000}"#)), (1000, Vec::new()));
        for (limit, allowed) in [(0, false), (1, true), (200, true), (201, false)] {
            assert_eq!(of(&format!(r#"{{"limit": {limit}}}"#)).is_allowed(), allowed, "{limit}");
        }
        let mut counted = Objects::counted([(ObjectState::InStep, 40), (ObjectState::Failing, 3)]);
        counted.not_in_step.push(ListedObject::new("a", ObjectState::Failing, None));
        let listed = ObjectPage::of_listed(counted, &Selection::default());
        assert_eq!((listed.total, listed.listed, listed.matching, listed.objects.len()), (43, 1, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn many_objects_are_counted_and_only_the_oldest_are_described() {
        let start = Instant::now();
        let at = |number: usize| start + Duration::from_secs(u64::try_from(number).unwrap());
        let rows = (0..MOST_LISTED + 7).map(|number| (number, (), ObjectState::Failing, Some(at(number))));
        let objects = Objects::of(rows, at(100), |key, (), state, since| ListedObject::new(key, state, since));
        assert_eq!((objects.not_in_step.len(), objects.more, objects.total()), (MOST_LISTED, 7, MOST_LISTED + 7));
        assert_eq!((objects.not_in_step[0].key.as_str(), objects.not_in_step[0].since), ("0", Some(start)));
        let held = std::iter::once((1_000, (), ObjectState::Held, None));
        let mut both = Objects::of(held, at(100), |key, (), state, since| ListedObject::new(key, state, since));
        both.append(objects);
        assert_eq!((both.not_in_step.len(), both.more, both.total()), (MOST_LISTED, 8, MOST_LISTED + 8));
        assert_eq!((both.not_in_step[0].key.as_str(), both.not_in_step[1].key.as_str()), ("1000", "0"));
    }
}

//! An entry of the log, and what a watch sees of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::event::Event;
use crate::db::{self, Row, column};
use crate::documents::blocking::{BlockingPool, ShutsDown};
use crate::documents::document::{Document, UnreadableRow};
use crate::documents::filter::Filter;
use crate::documents::kind::Kind;
use crate::documents::object::Object;

/// What an entry takes in memory beside its texts and labels: itself and its place in the ring.
const OVERHEAD: usize = 512;
/// What labels take beside their texts: a node of the map, which has room for 11 of them.
const NODE: usize = 600;
/// What the two texts of a label take beside their characters.
const LABEL: usize = 32;

/// The columns of an entry, from `n`, the row of the log, and `p`, the row before it of the same document. The document before
/// is needed only if a selector may have matched it and no longer does.
pub(in crate::documents) const COLUMNS: &str = "n.version, n.kind, n.namespace, n.name, n.labels::text, n.document::text, p.labels::text, \
     (case when n.document is null or n.labels <> p.labels then p.document end)::text";

pub(super) type Labels = BTreeMap<String, String>;

/// A row of the log: what it says about which document, and its change.
#[derive(Debug)]
pub(in crate::documents) struct Entry {
    pub(in crate::documents) version: i64,
    pub(in crate::documents) kind: Kind,
    pub(in crate::documents) namespace: String,
    pub(in crate::documents) name: String,
    /// An error if the document is none or labels are not texts: a foreign program wrote it. Every further attempt fails in the same way.
    pub(super) change: Result<Change, UnreadableRow>,
    pub(super) read_at: Instant,
}

#[derive(Debug)]
pub(in crate::documents) struct Change {
    pub(super) labels: Arc<Labels>,
    /// The labels before; `None` if the document was created. Most changes leave them as they are, and share them.
    pub(super) old_labels: Option<Arc<Labels>>,
    /// `None` if the document was removed.
    pub(super) after: Option<Object>,
    /// The document before, with the version of this change; only if it was removed or its labels have changed.
    pub(super) before: Option<Object>,
}

/// A watch can't know what it would see of a row, which can't be read. It ends with 410: its client, which lists again, has missed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::documents) struct Unreadable;

/// Why a row was not read.
#[derive(Debug, thiserror::Error)]
pub(in crate::documents) enum EntryError {
    /// It does not have the expected columns.
    #[error(transparent)]
    Columns(#[from] db::Error),
    #[error(transparent)]
    ShutsDown(#[from] ShutsDown),
}

impl Entry {
    /// The same as [`Entry::read`], for a large row on another thread.
    pub(in crate::documents) async fn read_blocking(
        blocking: &BlockingPool,
        query: &'static str,
        row: Row,
        first: usize,
    ) -> Result<Option<Self>, EntryError> {
        blocking.run(row.raw_size_bytes(), move || Self::read(query, &row, first)).await
    }

    /// Reads the columns [`COLUMNS`] of a row of the statement `query`, which begin at `first`. `None` if the kind is unknown,
    /// as it may be after a newer release has run.
    pub(super) fn read(query: &'static str, row: &Row, first: usize) -> Result<Option<Self>, EntryError> {
        let version = column(query, row, first)?;
        let Some(kind) = Kind::of_plural(column(query, row, first + 1)?) else { return Ok(None) };
        let change = Change::read(
            version,
            column(query, row, first + 4)?,
            column(query, row, first + 6)?,
            [column(query, row, first + 5)?, column(query, row, first + 7)?],
        );
        let entry = Self {
            version,
            kind,
            namespace: column(query, row, first + 2)?,
            name: column(query, row, first + 3)?,
            change,
            read_at: Instant::now(),
        };
        Ok(Some(entry))
    }

    /// What a watch with this filter sees of the row; `None` if the filter matches the document neither before nor after the change. A row
    /// that can't be read concerns all watches of its place, whatever they select.
    pub(in crate::documents) fn seen_through(&self, filter: &Filter) -> Result<Option<Event>, Unreadable> {
        if !filter.covers(self.kind, &self.namespace, &self.name) {
            return Ok(None);
        }
        self.change.as_ref().map(|change| change.seen_through(filter)).map_err(|_| Unreadable)
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        OVERHEAD + self.namespace.len() + self.name.len() + self.change.as_ref().map_or(0, Change::bytes)
    }
}

impl Change {
    /// Reads labels and documents, each after and before the change.
    fn read(
        version: i64,
        labels: &str,
        old_labels: Option<&str>,
        [after, before]: [Option<&str>; 2],
    ) -> Result<Self, UnreadableRow> {
        let document = |text: &str| -> Result<Object, UnreadableRow> {
            Ok(Object::of(&Document { version, ..Document::from_row(text)? }))
        };
        let parse = |text: &str| serde_json::from_str::<Labels>(text).map_err(UnreadableRow::from);
        let labels = Arc::new(parse(labels)?);
        let old_labels = old_labels.map(parse).transpose()?;
        Ok(Self {
            old_labels: old_labels.map(|old| if old == *labels { Arc::clone(&labels) } else { Arc::new(old) }),
            labels,
            after: after.map(document).transpose()?,
            before: before.map(document).transpose()?,
        })
    }

    fn seen_through(&self, filter: &Filter) -> Option<Event> {
        let did_match = self.old_labels.as_ref().is_some_and(|labels| filter.selects(labels));
        match &self.after {
            Some(after) if filter.selects(&self.labels) => {
                let after = after.clone();
                Some(if did_match { Event::Modified(after) } else { Event::Added(after) })
            }
            _ if did_match => self.before.clone().map(Event::Deleted),
            _ => None,
        }
    }

    fn bytes(&self) -> usize {
        let of_label = |(key, value): (&String, &String)| key.len() + value.len() + LABEL;
        let of_labels = |labels: &Labels| {
            if labels.is_empty() {
                0
            } else {
                NODE * labels.len().div_ceil(11) + labels.iter().map(of_label).sum::<usize>()
            }
        };
        let objects = [&self.after, &self.before].into_iter().flatten().map(Object::bytes).sum::<usize>();
        let old_labels = self.old_labels.as_ref().filter(|old| !Arc::ptr_eq(old, &self.labels));
        let labels = of_labels(&self.labels) + old_labels.map_or(0, |old| of_labels(old));
        labels + objects
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn document(version: i64, name: &str, labels: &[(&str, &str)]) -> Document {
        let row = r#"{"id": "6f1c0000-0000-4000-8000-000000000000", "data": {}, "kind": "clusters", "name": "c1", "labels": {},
            "status": {}, "version": 1, "namespace": "foo", "created_at": "2026-11-21T23:40:00+00:00", "deleted_at": null,
            "finalizers": [], "generation": 1, "updated_at": "2026-11-21T23:40:00+00:00", "annotations": {}}"#;
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Document { version, name: name.to_owned(), labels, ..Document::from_row(row).expect("a row") }
    }

    /// The change from one state of a document to another, as the log has it.
    pub(in super::super) fn change(version: i64, name: &str, states: [Option<&[(&str, &str)]>; 2]) -> Entry {
        let [before, after] = states.map(|labels| labels.map(|labels| document(version, name, labels)));
        let last = after.as_ref().or(before.as_ref()).expect("a state");
        let has_before = after.as_ref().is_none_or(|after| before.as_ref().is_some_and(|b| b.labels != after.labels));
        Entry {
            version,
            kind: Kind::Cluster,
            namespace: "foo".to_owned(),
            name: name.to_owned(),
            change: Ok(Change {
                labels: Arc::new(last.labels.clone()),
                old_labels: before.as_ref().map(|before| Arc::new(before.labels.clone())),
                after: after.as_ref().map(Object::of),
                before: before.as_ref().filter(|_| has_before).map(Object::of),
            }),
            read_at: Instant::now(),
        }
    }

    /// A row of the same place that a foreign program has written.
    pub(in super::super) fn unreadable(version: i64, name: &str) -> Entry {
        let unreadable = Change::read(version, "{\"a\": 1}", None, [None, None]).map(drop);
        Entry { change: Err(unreadable.expect_err("no text")), ..change(version, name, [None, Some(&[])]) }
    }

    fn selected_by(selector: &str) -> Filter {
        Filter::of(Kind::Cluster).selected_by(selector).expect("a selector")
    }

    type State<'s> = Option<&'s [(&'s str, &'s str)]>;

    #[test]
    fn a_change_is_seen_by_whether_the_selector_matches_before_and_after_it() {
        let (gold, silver): (State<'_>, State<'_>) = (Some(&[("tier", "gold")]), Some(&[("tier", "silver")]));
        let of = |labels: State<'_>| Object::of(&document(7, "c1", labels.expect("labels")));
        for (states, expected) in [
            ([None, gold], Some(Event::Added(of(gold)))),
            ([silver, gold], Some(Event::Added(of(gold)))),
            ([gold, gold], Some(Event::Modified(of(gold)))),
            ([gold, silver], Some(Event::Deleted(of(gold)))),
            ([gold, None], Some(Event::Deleted(of(gold)))),
            ([None, silver], None),
            ([silver, silver], None),
            ([silver, None], None),
        ] {
            let entry = change(7, "c1", states);
            assert_eq!(entry.seen_through(&selected_by("tier=gold")), Ok(expected), "{states:?}");
        }
    }

    #[test]
    fn a_change_of_another_place_is_not_seen() {
        let all = || Filter::of(Kind::Cluster);
        let own = [all(), all().in_namespace("foo").expect("a namespace"), all().named("c1").expect("a name")];
        let others = [
            all().in_namespace("bar").expect("a namespace"),
            all().named("c2").expect("a name"),
            Filter::of(Kind::Secret),
        ];
        let entry = change(7, "c1", [None, Some(&[])]);
        assert!(own.iter().all(|filter| matches!(entry.seen_through(filter), Ok(Some(Event::Added(_))))));
        assert!(others.iter().all(|filter| entry.seen_through(filter) == Ok(None)));
        let entry = unreadable(7, "c1");
        assert!(own.iter().all(|filter| entry.seen_through(filter) == Err(Unreadable)));
        assert!(others.iter().all(|filter| entry.seen_through(filter) == Ok(None)));
        assert_eq!(entry.seen_through(&selected_by("tier=gold")), Err(Unreadable), "it may have matched");
        assert_eq!(entry.bytes(), OVERHEAD + "fooc1".len());
    }

    #[test]
    fn the_memory_of_an_entry_counts_its_documents_and_labels() {
        let small = change(7, "c1", [None, Some(&[])]);
        let rendered = Object::of(&document(7, "c1", &[])).json().len();
        assert_eq!(small.bytes(), OVERHEAD + "foo".len() + "c1".len() + rendered);
        let labelled = change(7, "c1", [Some(&[]), Some(&[("tier", "gold")])]);
        let labels = r#""tier":"gold""#.len() + NODE + LABEL + "tiergold".len();
        assert_eq!(labelled.bytes(), small.bytes() + labels + rendered);
        let gold = Arc::new(Labels::from([("tier".to_owned(), "gold".to_owned())]));
        let both = |old_labels| {
            let entry = change(7, "c1", [None, Some(&[])]);
            let change =
                entry.change.map(|change| Change { labels: Arc::clone(&gold), old_labels: Some(old_labels), ..change });
            Entry { change, ..entry }
        };
        assert_eq!(
            both(Arc::clone(&gold)).bytes(),
            small.bytes() + NODE + LABEL + "tiergold".len(),
            "shared labels count once"
        );
        let other = both(Arc::new(Labels::clone(&gold)));
        assert_eq!(other.bytes(), small.bytes() + 2 * (NODE + LABEL + "tiergold".len()));
    }

    fn labels() -> impl Strategy<Value = Option<Vec<(&'static str, &'static str)>>> {
        let label = prop_oneof![Just(("a", "1")), Just(("a", "2")), Just(("b", "1")), Just(("b", "2"))];
        prop::option::weighted(0.8, prop::collection::vec(label, 0..3))
    }

    proptest! {
        /// Replaying what a watch sees of any history of a document gives what the selector matches at the end.
        #[test]
        fn replaying_what_is_seen_gives_what_the_selector_matches(
            states in prop::collection::vec(labels(), 1..20),
            selector in prop::sample::select(vec!["", "a=1", "a!=1", "b", "!b", "a in (1,2),b=2"]),
        ) {
            let filter = selected_by(selector);
            let (mut present, mut replayed): (Option<Vec<_>>, Option<Object>) = (None, None);
            for (version, next) in (1..).zip(states) {
                if present.is_none() && next.is_none() {
                    continue;
                }
                let entry = change(version, "c1", [present.as_deref(), next.as_deref()]);
                match entry.seen_through(&filter).expect("it can be read") {
                    Some(Event::Added(object)) => prop_assert!(replayed.replace(object).is_none()),
                    Some(Event::Modified(object)) => prop_assert!(replayed.replace(object).is_some()),
                    Some(Event::Deleted(object)) => {
                        prop_assert_eq!(object.version(), version);
                        prop_assert!(replayed.take().is_some());
                    }
                    None => {}
                    Some(other) => prop_assert!(false, "{:?}", other),
                }
                present = next;
                let matched = present.as_deref().map(|labels| document(version, "c1", labels));
                let matched = matched.filter(|document| filter.selects(&document.labels));
                prop_assert_eq!(replayed.is_some(), matched.is_some());
                if let Some(matched) = matched {
                    prop_assert_eq!(replayed.as_ref(), Some(&Object::of(&matched)));
                }
            }
        }
    }
}

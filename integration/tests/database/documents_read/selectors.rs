//! Selectors in SQL mean what `LabelSelector` means, and use the index.

use std::collections::BTreeMap;

use integration::soak::{Random, rounds, seed};
use serde_json::json;
use towline::test_api::documents::{Fields, Filter, Kind, ListQuery, list};

use crate::documents_read::log::Labels;
use crate::documents_read::world::{World, put, run, write};

const KEYS: [&str; 3] = ["tier", "weight", "example.com/zone"];
/// Among them numbers at and beyond the ends of 64 bits, and what looks like a number.
const VALUES: [&str; 16] = [
    "",
    "gold",
    "7",
    "007",
    "70",
    "7a",
    "7.0",
    "999999999999999999",
    "1000000000000000000",
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999999999",
    "00000000000000000000000000008",
    "0",
    "a-b",
    "7_0",
];
const NUMBERS: [&str; 7] =
    ["0", "7", "-1", "999999999999999999", "1000000000000000000", "9223372036854775806", "-9223372036854775808"];

/// The statistics of a connection are counted after this; otherwise only some seconds later.
const FLUSH: &str = "select pg_stat_force_next_flush()";

/// A term of a selector, and whether labels satisfy it, written independently of the program.
struct Term {
    text: String,
    holds: Predicate,
}

type Predicate = Box<dyn Fn(&Labels) -> bool>;

fn term(random: &mut Random) -> Term {
    let key = KEYS[random.index(3)];
    let values: Vec<&str> = (0..=random.below(2)).map(|_| VALUES[random.index(VALUES.len())]).collect();
    let limit = NUMBERS[random.index(NUMBERS.len())];
    let number =
        |text: &str| text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse::<i128>().ok()).flatten();
    let number = move |labels: &Labels| {
        labels.get(key).and_then(|text| number(text)).filter(|number| *number <= i128::from(i64::MAX))
    };
    let bound: i128 = limit.parse().expect("a number");
    let (text, holds): (String, Predicate) = match random.below(8) {
        0 => (key.to_owned(), Box::new(move |labels| labels.contains_key(key))),
        1 => (format!("!{key}"), Box::new(move |labels| !labels.contains_key(key))),
        2 => {
            let value = values[0];
            (format!("{key}={value}"), Box::new(move |labels| labels.get(key).is_some_and(|label| label == value)))
        }
        3 => {
            let value = values[0];
            (format!("{key}!={value}"), Box::new(move |labels| labels.get(key).is_none_or(|label| label != value)))
        }
        4 => {
            let text = format!("{key} in ({})", values.join(","));
            (text, Box::new(move |labels| labels.get(key).is_some_and(|label| values.contains(&label.as_str()))))
        }
        5 => {
            let text = format!("{key} notin ({})", values.join(","));
            (text, Box::new(move |labels| !labels.get(key).is_some_and(|label| values.contains(&label.as_str()))))
        }
        6 => (format!("{key}>{limit}"), Box::new(move |labels| number(labels).is_some_and(|number| number > bound))),
        _ => (format!("{key}<{limit}"), Box::new(move |labels| number(labels).is_some_and(|number| number < bound))),
    };
    Term { text, holds }
}

async fn listed(world: &World, filter: &Filter) -> Vec<String> {
    let query = ListQuery { filter: filter.clone(), fields: Fields::Metadata, limit: 1000, after: None };
    let page = list(&world.database, &query).await.unwrap_or_else(|error| panic!("{filter:?}: {error:?}"));
    assert_eq!(page.next, None);
    page.items.into_iter().map(|document| document.name).collect()
}

#[test]
fn sql_and_label_selector_and_a_model_select_the_same_documents() {
    run(async {
        let world = World::new("model").await;
        let mut random = Random::new(seed());
        let mut documents: BTreeMap<String, Labels> = BTreeMap::new();
        for number in 0..300 {
            let mut labels = Labels::new();
            for key in KEYS {
                if random.below(4) > 0 {
                    labels.insert(key.to_owned(), VALUES[random.index(VALUES.len())].to_owned());
                }
            }
            documents.insert(format!("c{number:03}"), labels);
        }
        let changes: Vec<_> = (1..)
            .zip(&documents)
            .map(|(number, (name, labels))| put(number, Kind::Cluster, ("n", name), &json!(labels), &json!({})))
            .collect();
        write(&world.sql, 1, &changes).await;
        let mut selected = 0;
        for _ in 0..rounds(1) * 300 {
            let terms: Vec<Term> = (0..=random.below(3)).map(|_| term(&mut random)).collect();
            let text = terms.iter().map(|term| term.text.as_str()).collect::<Vec<_>>().join(",");
            let filter =
                Filter::of(Kind::Cluster).selected_by(&text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            let by = |selects: &dyn Fn(&Labels) -> bool| -> Vec<String> {
                documents.iter().filter(|(_, labels)| selects(labels)).map(|(name, _)| name.clone()).collect()
            };
            let expected = by(&|labels| terms.iter().all(|term| (term.holds)(labels)));
            assert_eq!(by(&|labels| filter.selects(labels)), expected, "{text}");
            assert_eq!(listed(&world, &filter).await, expected, "{text}");
            selected += expected.len();
        }
        assert!(selected > 1000, "the selectors select next to nothing: {selected}");
    });
}

#[test]
fn a_selector_that_matches_one_document_in_100_of_10_000_uses_the_index() {
    run(async {
        let world = World::new("explain").await;
        for batch in 0..10 {
            let changes: Vec<_> = (1..=1000)
                .map(|index| {
                    let number = batch * 1000 + index;
                    let mut labels = json!({"env": format!("e{}", number % 100), "tier": "gold", "zone": format!("z{}", number % 3)});
                    if number % 100 == 9 {
                        labels["rare"] = json!("");
                    }
                    put(number, Kind::Cluster, ("n", &format!("c{number}")), &labels, &json!({"text": "x".repeat(1000)}))
                })
                .collect();
            write(&world.sql, batch + 1, &changes).await;
        }
        for statement in ["vacuum analyze towline_documents", FLUSH, "select pg_stat_reset()"] {
            world.run(statement).await;
        }
        let scans = "select idx_scan from pg_stat_user_indexes where indexrelname = 'clusters_labels_idx'";
        for (round, selector) in
            (1..).zip(["env=e7", "env in (e7)", "rare", "env=e7,tier=gold", "env=e7,zone notin (z1),!nothing"])
        {
            let filter = Filter::of(Kind::Cluster).selected_by(selector).expect("a selector");
            let expected = if selector.contains("zone") { 66 } else { 100 };
            assert_eq!(listed(&world, &filter).await.len(), expected, "{selector}");
            // The pool has one connection, since nothing runs at the same time.
            world.database.execute("flush", FLUSH, &[]).await.expect("it is flushed");
            world.becomes(&format!("a scan of the index by {selector}"), scans, round).await;
        }
        assert_eq!(world.number("select seq_scan from pg_stat_user_tables where relname = 'clusters'").await, 0);
    });
}

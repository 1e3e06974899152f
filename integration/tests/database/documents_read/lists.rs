//! A list shows the state of one version, whatever is written while its pages are read.

use std::collections::BTreeMap;

use integration::soak::{Random, rounds, seed};
use towline::test_api::documents::{Continue, Fields, Filter, Kind, ListError, ListQuery, list};

use crate::documents_read::log::{Compaction, Key, Log, Writers, content};
use crate::documents_read::world::{World, run};

struct Shown {
    filter: Filter,
    version: i64,
    items: Vec<(Key, (i64, u64))>,
}

fn filters() -> Vec<Filter> {
    let clusters = || Filter::of(Kind::Cluster);
    vec![
        clusters(),
        Filter::of(Kind::Secret),
        clusters().in_namespace("n1").expect("a namespace"),
        clusters().selected_by("tier=gold").expect("a selector"),
        clusters().selected_by("!tier").expect("a selector"),
        clusters().named("c-7").expect("a name"),
    ]
}

/// Reads a list in pages of 7 while between two pages so many versions are written. `None` if it became too old.
async fn read(world: &World, log: &Log, filter: &Filter, between: i64) -> Option<Shown> {
    let mut query = ListQuery { filter: filter.clone(), fields: Fields::All, limit: 7, after: None };
    let mut shown: Option<Shown> = None;
    loop {
        let page = match list(&world.database, &query).await {
            Ok(page) => page,
            Err(ListError::Gone) => {
                assert!(shown.is_some(), "a first page is never too old");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let first = Shown { filter: filter.clone(), version: page.version, items: Vec::new() };
        let all = shown.get_or_insert(first);
        assert_eq!(all.version, page.version);
        assert!(page.items.len() == 7 || page.next.is_none() && page.items.len() < 7, "{page:?}");
        for document in &page.items {
            let key = (document.namespace.clone(), document.name.clone());
            all.items.push((key, (document.version, content(document))));
        }
        let Some(next) = page.next else { return shown };
        query.after = Some(Continue::decode(&next.encode(filter), filter).expect("a token"));
        log.reaches(log.newest() + between).await;
    }
}

#[test]
fn pages_of_a_list_show_one_version_exactly_or_are_gone_while_writes_and_compaction_run() {
    run(async {
        let world = World::new("lists").await;
        let (log, mut random) = (Log::new(), Random::new(seed()));
        let writers = Writers::start(&world, &log, &mut random, 3).await;
        let _compaction = Compaction::start(&world).await;
        log.reaches(500).await;
        let (mut exact, mut gone) = (Vec::new(), 0);
        for _ in 0..rounds(1) {
            for _ in 0..25 {
                let mut draw = || (filters()[random.index(filters().len())].clone(), [0, 5, 20, 100][random.index(4)]);
                let [one, two, three, four] = [draw(), draw(), draw(), draw()];
                let (one, two, three, four) = tokio::join!(
                    read(&world, &log, &one.0, one.1),
                    read(&world, &log, &two.0, two.1),
                    read(&world, &log, &three.0, three.1),
                    read(&world, &log, &four.0, four.1),
                );
                for shown in [one, two, three, four] {
                    match shown {
                        Some(shown) => exact.push(shown),
                        None => gone += 1,
                    }
                }
            }
        }
        writers.end(&world).await;
        println!("{} lists were read to their end, {gone} became too old", exact.len());
        assert!(exact.len() > 20 && gone > 0, "{} {gone}", exact.len());
        for Shown { filter, version, items } in exact {
            let state = log.state(version, &filter);
            // A model's keys are in bytewise order, too.
            assert_eq!(items, state.into_iter().collect::<Vec<_>>(), "{filter:?} at {version}");
        }
        let now: BTreeMap<_, _> =
            read(&world, &log, &filters()[0], 0).await.expect("nobody writes").items.into_iter().collect();
        assert_eq!(now, log.state(log.newest(), &filters()[0]));
    });
}

//! The ends of pages, what they show, and the versions at which they are refused.

use serde_json::{Map, json};
use towline::test_api::documents::{Continue, Document, Fields, Filter, Kind, ListError, ListQuery, Page, list};

use crate::documents_read::world::{World, run};

fn query(limit: u32, after: Option<Continue>) -> ListQuery {
    ListQuery { filter: Filter::of(Kind::Cluster), fields: Fields::All, limit, after }
}

async fn page(world: &World, query: &ListQuery) -> Page {
    list(&world.database, query).await.expect("a page")
}

fn names(page: &Page) -> Vec<&str> {
    page.items.iter().map(|document| document.name.as_str()).collect()
}

#[test]
fn an_empty_list_shows_the_newest_version_and_no_items() {
    run(async {
        let world = World::new("empty").await;
        let empty = page(&world, &query(7, None)).await;
        assert_eq!((empty.version, empty.items.len(), empty.next), (0, 0, None));
        let version = world.put(1, Kind::Secret, ("n", "s"), &json!({}), &json!({})).await;
        let empty = page(&world, &query(7, None)).await;
        assert_eq!((empty.version, empty.items.len()), (version, 0));
        // Versions that were drawn and not written, as by a transaction that failed, are not shown.
        world.run(&format!("select setval('towline_version', {})", version + 500)).await;
        assert_eq!(page(&world, &query(7, None)).await.version, version);
    });
}

#[test]
fn only_a_full_page_before_the_last_item_is_followed_by_another() {
    run(async {
        let world = World::new("fullpages").await;
        for (number, name) in (1..).zip(["a", "b", "c", "d"]) {
            world.put(number, Kind::Cluster, ("n", name), &json!({}), &json!({})).await;
        }
        let first = page(&world, &query(2, None)).await;
        assert_eq!(names(&first), ["a", "b"]);
        let second = page(&world, &query(2, first.next)).await;
        assert_eq!((names(&second), &second.next), (vec!["c", "d"], &None));
        assert_eq!(page(&world, &query(4, None)).await.next, None);
        assert_eq!(names(&page(&world, &query(0, None)).await), ["a"], "the limit is at least 1");
    });
}

#[test]
fn a_page_of_large_documents_ends_before_8_mib_and_a_single_one_has_no_bound() {
    run(async {
        let world = World::new("large").await;
        for (number, name) in (1..).zip(["a", "b", "c", "d"]) {
            let text = "x".repeat(3 * 1024 * 1024);
            world.put(number, Kind::Cluster, ("n", name), &json!({}), &json!({"text": text})).await;
        }
        let first = page(&world, &query(1000, None)).await;
        assert_eq!(names(&first), ["a", "b"]);
        let second = page(&world, &query(1000, first.next)).await;
        assert_eq!((names(&second), &second.next), (vec!["c", "d"], &None));
        // Without the text they all fit.
        let all = page(&world, &ListQuery { fields: Fields::Metadata, ..query(1000, None) }).await;
        assert_eq!((names(&all), &all.next), (vec!["a", "b", "c", "d"], &None));
        world.put(1, Kind::Cluster, ("n", "a"), &json!({}), &json!({"text": "x".repeat(9 * 1024 * 1024)})).await;
        assert_eq!(names(&page(&world, &query(1000, None)).await), ["a"]);
        assert_eq!(world.database.state().max, 8, "the pool is as it was");
    });
}

#[test]
fn items_are_whole_without_the_sealed_field_and_metadata_alone_have_neither_own_fields_nor_status() {
    run(async {
        let world = World::new("items").await;
        let labels = json!({"tier": "gold"});
        let version = world.put(1, Kind::Cluster, ("n", "a"), &labels, &json!({"paused": true})).await;
        let whole = page(&world, &query(1, None)).await.items.remove(0);
        assert_eq!((whole.version, whole.namespace.as_str(), whole.generation), (version, "n", 1));
        assert_eq!(json!(whole.labels), labels);
        assert_eq!(json!(whole.data), json!({"paused": true}), "column `sealed` is not shown");
        assert_eq!(json!(whole.status), json!({"seen": 1}));
        world.put(2, Kind::Cluster, ("n", "b"), &labels, &json!({})).await;
        let metadata = |after| ListQuery { fields: Fields::Metadata, ..query(1, after) };
        let first = page(&world, &metadata(None)).await;
        assert_eq!(first.items, [Document { data: Map::new(), status: Map::new(), ..whole }]);
        // The next page takes one document from the table and the other from the log.
        world.put(2, Kind::Cluster, ("n", "b"), &labels, &json!({"paused": false})).await;
        let second = page(&world, &metadata(first.next)).await;
        assert_eq!((names(&second), second.items[0].version), (vec!["b"], version + 1));
        assert_eq!(second.items[0].data, Map::new());
    });
}

#[test]
fn a_page_is_gone_below_the_base_above_the_newest_version_and_after_100_000_versions() {
    run(async {
        let world = World::new("ages").await;
        for (number, name) in (1..).zip(["a", "b"]) {
            world.put(number, Kind::Cluster, ("n", name), &json!({}), &json!({})).await;
        }
        let first = page(&world, &query(1, None)).await;
        let next = || query(1, first.next.clone());
        world.run(&format!("select setval('towline_version', {})", first.version + 99_999)).await;
        let version = world.put(3, Kind::Cluster, ("n", "c"), &json!({}), &json!({})).await;
        assert_eq!(version, first.version + 100_000);
        assert_eq!(names(&page(&world, &next()).await), ["b"]);
        world.put(4, Kind::Cluster, ("n", "d"), &json!({}), &json!({})).await;
        let too_old = list(&world.database, &next()).await;
        assert!(matches!(too_old, Err(ListError::Gone)), "{too_old:?}");
        let first = page(&world, &query(1, None)).await;
        let next = || query(1, first.next.clone());
        world.run(&format!("update towline_meta set base = {}", first.version)).await;
        assert_eq!(names(&page(&world, &next()).await), ["b"], "the base itself is there");
        let (base, sequence) = (first.version + 1, "select setval('towline_version', base) from towline_meta");
        world.run(&format!("update towline_meta set base = {base}; {sequence}")).await;
        assert!(matches!(list(&world.database, &next()).await, Err(ListError::Gone)));
        world.run("update towline_meta set base = 0; delete from towline_log where version > 100").await;
        let ahead = list(&world.database, &next()).await;
        assert!(matches!(ahead, Err(ListError::Gone)), "{ahead:?}");
    });
}

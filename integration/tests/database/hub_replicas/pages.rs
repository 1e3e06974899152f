//! Lists of versions that are past when their pages are read.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use integration::hub::Reply;
use integration::soak::Random;
use serde_json::Value;
use tokio_postgres::Client;

use crate::hub_replicas::chaos::Progress;
use crate::hub_replicas::filter::Filter;
use crate::hub_replicas::history::History;
use crate::hub_replicas::world::{Key, Roaming, key, number, version};

/// A list whose further pages were read later.
pub(crate) struct Reader {
    roaming: Roaming,
    random: Random,
    progress: Progress,
}

pub(crate) struct Shown {
    filter: Filter,
    version: i64,
    items: Vec<(Key, (i64, Option<u64>))>,
}

impl Reader {
    pub(crate) fn new(addresses: &[SocketAddr], mut random: Random, progress: Progress) -> Self {
        Self { roaming: Roaming::new(addresses, random.split()), random, progress }
    }

    /// Begins a list with one item, and reads the others in pages of 7, at any replica, after so many versions as it draws. None if
    /// the version was gone by then. A list that has no more pages is not one of a past version, and another one is begun.
    pub(crate) async fn read(&mut self, sql: &Client) -> Option<Shown> {
        loop {
            match self.begin().await {
                (shown, Some(token)) => return self.read_on(shown, token, sql).await,
                // Its writers will write more of them.
                (shown, None) => self.progress.reaches(shown.version + 1).await,
            }
        }
    }

    /// The first page, and the token of the next one.
    async fn begin(&mut self) -> (Shown, Option<String>) {
        let filters = Filter::all();
        let filter = filters[self.random.index(filters.len())].clone();
        let first =
            self.roaming.read(&format!("{}1", paged(&filter))).await.success().expect("a page").json().expect("JSON");
        let mut shown = Shown { filter, version: version(&first), items: Vec::new() };
        shown.take(&first, 1);
        (shown, first["continue"].as_str().map(str::to_owned))
    }

    /// The other pages, when the version is past.
    async fn read_on(&mut self, mut shown: Shown, token: String, sql: &Client) -> Option<Shown> {
        let path = paged(&shown.filter);
        let mut next = Some(token);
        let waits = [1, 50, 100, 300, 900, 1500][self.random.index(6)];
        self.progress.reaches(shown.version + waits).await;
        while let Some(token) = next {
            let reply = self.roaming.read(&format!("{path}7&continue={token}")).await;
            if reply.status == 410 {
                check_gone(&reply, shown.version, sql).await;
                return None;
            }
            let page = reply.success().expect("a page").json().expect("JSON");
            assert_eq!(version(&page), shown.version);
            next = page["continue"].as_str().map(str::to_owned);
            let count = shown.take(&page, 7);
            assert!(count == 7 || next.is_none(), "a page of {count} items is not the last");
        }
        Some(shown)
    }
}

/// The path of a list up to the number of items of a page.
fn paged(filter: &Filter) -> String {
    let path = filter.path();
    format!("{path}{}limit=", if path.contains('?') { "&" } else { "?" })
}

impl Shown {
    fn take(&mut self, page: &Value, most: usize) -> usize {
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= most, "{} items", items.len());
        self.items.extend(items.iter().map(|item| (key(item), (version(item), number(item)))));
        items.len()
    }

    /// Each document is there as it was at the version, once, in order.
    pub(crate) fn check(&self, history: &History) {
        let Self { filter, version, items } = self;
        let expected: BTreeMap<_, _> = history.state(*version, filter);
        assert_eq!(*items, expected.into_iter().collect::<Vec<_>>(), "{filter:?} at {version}");
    }
}

/// A version is only gone when compaction has passed it.
async fn check_gone(reply: &Reply, version: i64, sql: &Client) {
    let problem = reply.json().expect("a problem");
    assert_eq!(problem["type"], "urn:towline:problem:gone");
    let base: i64 = sql.query_one("select base from towline_meta", &[]).await.expect("a row").get(0);
    assert!(version < base, "version {version} is answered with 410, and the base is {base}");
}

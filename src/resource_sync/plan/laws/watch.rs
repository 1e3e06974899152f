//! A watch that lags behind its server, its cache, and our own writes that the cache does not show yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object;
use super::server::{Server, Sort};
use super::world::UNSELECTED;
use crate::cluster::{Object, Written, is_at_least};

/// A watch and its cache.
pub(super) struct Watch {
    pub(super) remote: bool,
    pub(super) sort: Sort,
    /// The next event to deliver.
    next: usize,
    pub(super) cache: BTreeMap<String, Arc<Object>>,
    pub(super) terminated: BTreeSet<String>,
    high_water: u64,
}

impl Watch {
    pub(super) fn new(remote: bool, sort: Sort) -> Self {
        let (cache, terminated) = (BTreeMap::new(), BTreeSet::new());
        Self { remote, sort, next: 0, cache, terminated, high_water: 0 }
    }

    pub(super) fn has_caught_up(&self, name: &str, written: &str) -> bool {
        written.parse::<u64>().is_ok_and(|written| self.high_water >= written)
            || self.cache.get(name).is_some_and(|held| is_at_least(&held.resource_version, written))
    }

    pub(super) fn is_pending(&self, server: &Server) -> bool {
        server.log.get(self.next..).is_some_and(|news| news.iter().any(|news| news.sort == self.sort))
    }

    pub(super) fn shows(&self, object: &Object) -> bool {
        !self.remote || !object.labels.contains_key(UNSELECTED)
    }

    /// The next event; the name of its object.
    pub(super) fn deliver(&mut self, server: &Server) -> Option<String> {
        while let Some(news) = server.log.get(self.next) {
            self.next += 1;
            if news.sort != self.sort {
                continue;
            }
            let shown = object(&news.object);
            if news.gone || !self.shows(&shown) {
                // Where an object leaves the selector, the event shows its state before.
                let held = self.cache.remove(&news.name)?;
                self.high_water = self.high_water.max(shown.resource_version.parse().expect("a version"));
                if held.deleting || shown.deleting {
                    self.terminated.insert(news.name.clone());
                }
                return Some(news.name.clone());
            }
            self.high_water = self.high_water.max(shown.resource_version.parse().expect("a version"));
            self.terminated.remove(&news.name);
            self.cache.insert(news.name.clone(), Arc::new(shown));
            return Some(news.name.clone());
        }
        None
    }

    /// The watch has a gap, and a list follows.
    pub(super) fn relist(&mut self, server: &Server) {
        self.next = server.log.len();
        let live = server.names(self.sort).into_iter().filter_map(|name| {
            let shown = object(&server.get(self.sort, &name)?);
            self.shows(&shown).then(|| (name, Arc::new(shown)))
        });
        let live: BTreeMap<String, Arc<Object>> = live.collect();
        for (name, held) in std::mem::take(&mut self.cache) {
            if held.deleting && !live.contains_key(&name) {
                self.terminated.insert(name);
            }
        }
        self.high_water = live.values().filter_map(|held| held.resource_version.parse().ok()).max().unwrap_or_default();
        self.cache = live;
    }
}

/// Our own writes that a watch does not show yet.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) written: Option<Arc<str>>,
    pub(super) deleted: Option<Arc<str>>,
    pub(super) unknown: bool,
}

impl Expected {
    pub(super) fn is_shown(&mut self, watch: &Watch, name: &str) -> bool {
        if self.written.as_ref().is_some_and(|written| watch.has_caught_up(name, written)) {
            self.written = None;
        }
        if let Some(uid) = &self.deleted
            && watch.cache.get(name).is_none_or(|held| held.deleting || held.uid != *uid)
        {
            self.deleted = None;
        }
        self.written.is_none() && self.deleted.is_none()
    }

    pub(super) fn wrote(&mut self, written: &Written) {
        self.unknown = false;
        if !written.resource_version.is_empty() {
            self.written = Some(Arc::clone(&written.resource_version));
        }
    }

    /// Expects the watch to show the result of a live read.
    pub(super) fn read(&mut self, live: Option<&Object>, held: Option<&Object>) {
        match (live, held) {
            (Some(live), _) => self.written = Some(Arc::clone(&live.resource_version)),
            (None, Some(held)) => self.deleted = Some(Arc::clone(&held.uid)),
            (None, None) => {}
        }
    }
}

//! Lists of a full pass: a page of each of up to four kinds is read at once.
//!
//! A list that has more pages stays among those that are read, and the next one of the queue takes the place of one that has ended. In
//! which order the pages of a step arrive does not matter: they are compared in the order of the queue.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::ask::{Ask, group_and_kind};
use super::item::{Item, KindKey};
use super::run::{MOST_REQUESTS, Pass, is_throttled, unexpected};
use super::step::{Answer, Compared, List, Page, Refused, Throttled, Verb};

/// Lists that are read at once.
pub(super) const MOST_LISTS: usize = 4;

/// Objects of a kind that are compared with a list.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) kind: KindKey,
    pub(super) page: usize,
    /// Those that no page had so far, by namespace and name.
    pub(super) items: BTreeMap<(String, String), Box<Item>>,
}

impl Compared for Listing {
    fn has(&self, namespace: &str, name: &str) -> bool {
        self.items.contains_key(&(namespace.to_owned(), name.to_owned()))
    }
}

impl Listing {
    /// What counts the answers with 429.
    pub(super) fn throttled(&self) -> Throttled {
        (Verb::List, group_and_kind(&self.kind))
    }

    pub(super) fn step(&self) -> List<'_> {
        List { api_version: &self.kind.0, kind: &self.kind.1, page: self.page, compared: self }
    }
}

impl Pass {
    /// Each page counts as a request, and a pass makes no more of them than it may.
    pub(super) fn next_lists(&mut self) -> Option<Ask> {
        let most = MOST_REQUESTS.saturating_sub(self.requests).clamp(1, MOST_LISTS);
        let listings: Vec<Listing> = self.listings.drain(..most.min(self.listings.len())).collect();
        (!listings.is_empty()).then_some(Ask::Lists(listings))
    }

    pub(super) fn listed(&mut self, mut listings: Vec<Listing>, reply: Result<Answer, Refused>) {
        let pages = match reply {
            Ok(Answer::Pages(pages)) if !pages.is_empty() => pages,
            Ok(_) => vec![Err(unexpected()); listings.len()],
            Err(refused) => vec![Err(refused); listings.len()],
        };
        let unasked = self.unasked(&mut listings, pages.len());
        let read = listings.into_iter().zip(pages);
        let continued = read.filter_map(|(listing, page)| self.page_read(listing, page)).collect();
        self.wait_for(unasked);
        self.wait_for(continued);
    }

    /// Takes in what the lists of a step have brought of which some were answered with 429. Returns these. The others wait until they are
    /// asked for again, or for their next page.
    pub(super) fn brought(&mut self, mut listings: Vec<Listing>, pages: Vec<Result<Page, Refused>>) -> Vec<Listing> {
        let unasked = self.unasked(&mut listings, pages.len());
        let (mut throttled, mut continued) = (Vec::new(), Vec::new());
        for (listing, page) in listings.into_iter().zip(pages) {
            if is_throttled(&page) {
                throttled.push(listing);
            } else {
                continued.extend(self.page_read(listing, page));
            }
        }
        self.wait_for(unasked);
        self.wait_for(continued);
        throttled
    }

    /// Those of a step that were not asked for: they cost no request.
    fn unasked(&mut self, listings: &mut Vec<Listing>, pages: usize) -> Vec<Listing> {
        let unasked = listings.split_off(pages.min(listings.len()));
        self.requests = self.requests.saturating_sub(unasked.len());
        unasked
    }

    /// Puts lists where the next step finds them, in this order. The limits of a pass hold before each page.
    pub(super) fn wait_for(&mut self, listings: Vec<Listing>) {
        for listing in listings.into_iter().rev() {
            self.listings.push_front(listing);
        }
    }

    /// Compares a page. Returns the list if another page of it is needed.
    fn page_read(&mut self, mut listing: Listing, page: Result<Page, Refused>) -> Option<Listing> {
        if !is_throttled(&page) {
            self.progress.throttled.remove(&listing.throttled());
        }
        let mut is_continued = false;
        if let Ok(Page { objects, more }) = page {
            for (namespace, name, seen) in objects {
                if let Some(mut item) = listing.items.remove(&(namespace, name)) {
                    self.check_drift(&mut item, Some(seen));
                    self.place(item);
                }
            }
            is_continued = more;
        }
        if is_continued && !listing.items.is_empty() {
            listing.page += 1;
            return Some(listing);
        }
        // They are gone, lost their label, or can't be listed.
        self.unprepared.extend(listing.items.into_values());
        None
    }

    /// Of the lists that have begun and not ended, the one of which most was read: it may have no end. The others are begun anew by the
    /// next pass, since they would have come further without it.
    pub(super) fn longest_list(&self) -> Option<KindKey> {
        let begun = self.listings.iter().filter(|listing| listing.page > 0);
        begun.min_by_key(|listing| Reverse(listing.page)).map(|listing| listing.kind.clone())
    }
}

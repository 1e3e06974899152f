//! Reads lists of a full pass, up to four at once.
//!
//! Each list has an answer of its own, so that one which is forbidden does not keep the others from being compared. A cluster that does not
//! answer one of them ends all at once, and what is still under way is dropped. A 429 ends them once the others have been read:
//! what they have brought is not asked for again.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};

use super::Executor;
use crate::cluster::{Cluster, Element, Error, KindId, ObjectKey, Pages};
use crate::syncset::plan::object::MANAGED;
use crate::syncset::plan::pass::{Compared, List, Page, Refusal, Refused, Seen};
use crate::syncset::run::work::refusal::{Failed, Missing, Stop};
use crate::syncset::run::work::seen::seen;

/// The most objects of a list.
const MOST_LISTED: usize = 100_000;
/// The most bytes of an object's metadata: four lists that are read at once may have as much in memory together as one that is read
/// alone. Metadata is this large only by intent, and the objects of such a list are then read one by one.
const LARGEST_OBJECT: usize = 1 << 20;

/// What the lists of a request have brought so far, by their positions.
#[derive(Default)]
struct Brought {
    pages: BTreeMap<usize, Result<Page, Refused>>,
    /// The longest wait that a 429 has asked for.
    throttled: Option<(Duration, String)>,
}

impl Brought {
    /// Fails if the request ends at once.
    fn put(&mut self, at: usize, page: Result<Page, Failed>) -> Result<(), Stop> {
        let page = match page {
            Ok(page) => Ok(page),
            Err(Failed::Refused(refused)) => Err(refused),
            Err(Failed::Stopped(Stop::Throttled { told, message, .. })) => {
                if self.throttled.as_ref().is_none_or(|(longest, _)| *longest < told) {
                    self.throttled = Some((told, message.clone()));
                }
                Err(Refused { refusal: Refusal::Throttled, message })
            }
            Err(Failed::Stopped(stop)) => return Err(stop),
        };
        self.pages.insert(at, page);
        Ok(())
    }

    fn into_pages(self) -> Result<Vec<Result<Page, Refused>>, Stop> {
        let lists = self.pages.into_values().collect();
        match self.throttled {
            Some((told, message)) => Err(Stop::Throttled { told, message, lists }),
            None => Ok(lists),
        }
    }
}

/// Objects by namespace and name.
type Objects = Vec<(String, String, Seen)>;

/// A page that was read, or not.
struct Read {
    at: usize,
    id: KindId,
    pages: Pages,
    objects: Result<Option<Objects>, Error>,
}

impl Executor<'_> {
    /// Reads a page of each of these lists. A cluster that has answered nothing yet is asked for the first one alone:
    /// one that does not answer costs one request, and one that does is worked on with a slot from then on.
    pub async fn list(&mut self, lists: &[List<'_>]) -> Result<Vec<Result<Page, Refused>>, Stop> {
        let most = if self.is_answered { lists.len() } else { 1 };
        let cluster = self.asked();
        let (mut brought, mut reading) = (Brought::default(), FuturesUnordered::new());
        for (at, list) in lists.iter().enumerate().take(most) {
            let id = KindId::of(list.api_version, list.kind);
            match self.pages(&cluster, &id, list.page).await {
                Ok(pages) => reading.push(read(&cluster, at, id, pages, list.compared)),
                Err(failed) => brought.put(at, Err(failed))?,
            }
        }
        while let Some(Read { at, id, pages, objects }) = reading.next().await {
            let objects = self.answered(&id, objects, Missing::Unclear).map_err(|failed| of_list(failed, &id));
            let page = objects.map(|objects| Page { objects: objects.unwrap_or_default(), more: pages.has_next() });
            if page.as_ref().is_ok_and(|page| page.more) {
                self.lists.insert(id, pages);
            }
            brought.put(at, page)?;
        }
        brought.into_pages()
    }

    /// Where a list is read from.
    async fn pages(&mut self, cluster: &Cluster, id: &KindId, page: usize) -> Result<Pages, Failed> {
        let kind = self.kind(cluster, id).await?;
        Ok(match self.lists.remove(id) {
            Some(pages) if page > 0 => pages,
            _ => Pages::of(&kind, &format!("{MANAGED}=true"), MOST_LISTED).of_objects_up_to(LARGEST_OBJECT),
        })
    }
}

/// Of objects that are not compared nothing is kept: many passes may list the objects of one cluster at once.
async fn read(cluster: &Cluster, at: usize, id: KindId, mut pages: Pages, compared: &dyn Compared) -> Read {
    let choose = |element: Element<'_>| {
        let ObjectKey { namespace, name } = element.key()?;
        if !compared.has(&namespace, &name) {
            return Ok(None);
        }
        Ok(Some((namespace.as_ref().to_owned(), name.as_ref().to_owned(), seen(&element.read()?))))
    };
    let objects = pages.next_chosen(cluster, choose).await;
    Read { at, id, pages, objects }
}

/// A refused list. Of an answer about Secrets the server's text is not repeated, since it may quote values; the client
/// sees to that only for requests that name one.
fn of_list(failed: Failed, id: &KindId) -> Failed {
    match failed {
        Failed::Refused(Refused { refusal, .. }) if id.group.is_empty() && id.kind == "Secret" => {
            Failed::refused(refusal, "failed to list the secrets".to_owned())
        }
        other => other,
    }
}

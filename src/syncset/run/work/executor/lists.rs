//! Reads what a full pass compares by lists, up to four at once, and whole objects, for the health of what was applied.
//!
//! Each list has an answer of its own, so that one which is forbidden does not keep the others from being compared. A cluster that does not
//! answer one of them ends all at once, and what is still under way is dropped. A 429 ends them once the others have been read: it may be about this
//! list alone, and then what they have brought is used.
//!
//! Of a whole object nothing is kept but what is made of it at once: many passes may read at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;

use super::refusal::{Failed, Missing, Stop};
use super::{Executor, named};
use crate::cluster::{Cluster, Element, Error, Kind, KindError, KindId, ObjectKey, Pages};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::MANAGED;
use crate::syncset::plan::pass::{Address, Compared, List, Page, Refusal, Refused, Seen};
use crate::syncset::plan::seen::seen;

/// The most objects of a list.
const MOST_LISTED: usize = 100_000;
/// The most bytes of an object's metadata: four lists that are read at once may have as much in memory together as one that is read
/// alone. Metadata is this large only by intent, and the objects of such a list are then read one by one.
const LARGEST_METADATA: usize = 1 << 20;
/// The most bytes of a whole object in a list.
const LARGEST_OBJECT: usize = 2 << 20;
/// From so many objects of a kind on, they are listed.
const FEWEST_TO_LIST: usize = 3;
/// Objects that a list has not brought, and that are read by themselves.
const MOST_SINGLE: usize = 20;

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
            _ => Pages::of(&kind, &format!("{MANAGED}=true"), MOST_LISTED).of_objects_up_to(LARGEST_METADATA),
        })
    }
}

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
                Err(Refused { refusal: Refusal::Rejected, message })
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

/// What was made of an object; none if there is no such object.
type Found<T> = Result<Option<T>, Refused>;

impl Executor<'_> {
    /// Reads these objects of a kind, as `apps/v1`, `Deployment`: one or two by themselves, more by one list of all that bear our label. What the list does not
    /// bring is read by itself, up to a few; what is missing in the answer was not read.
    pub async fn read_whole<T: Send>(
        &mut self,
        (api_version, kind): (&str, &str),
        wanted: &BTreeSet<ObjectRef>,
        take: impl Fn(&ObjectRef, &Value) -> T + Send + Sync,
    ) -> Result<BTreeMap<ObjectRef, Found<T>>, Stop> {
        let cluster = self.asked();
        let (id, served) = match self.served_kind(&cluster, KindId::of(api_version, kind)).await {
            Ok(found) => found,
            Err(Failed::Refused(refused)) => {
                return Ok(wanted.iter().map(|object| (object.clone(), Err(refused.clone()))).collect());
            }
            Err(Failed::Stopped(stop)) => return Err(stop),
        };
        let mut found: BTreeMap<ObjectRef, Found<T>> = BTreeMap::new();
        let mut not_listed = None;
        if wanted.len() >= FEWEST_TO_LIST {
            match self.listed((&id, &served), wanted, &take).await {
                Ok(listed) => found.extend(listed.into_iter().map(|(object, made)| (object, Ok(Some(made))))),
                // Its account may read single objects all the same.
                Err(Failed::Refused(refused)) => not_listed = Some(refused),
                Err(Failed::Stopped(stop)) => return Err(stop),
            }
        }
        let left: Vec<&ObjectRef> =
            wanted.iter().filter(|object| !found.contains_key(object)).take(MOST_SINGLE).collect();
        for object in left {
            let (_, key) = named(Address { object, api_version });
            let read = self.asked().read_whole(&served, &key).await;
            let made = match self.answered(&id, read, Missing::Unclear) {
                Ok(read) => Ok(read.as_ref().map(|read| take(object, read))),
                Err(Failed::Refused(refused)) => Err(refused),
                Err(Failed::Stopped(stop)) => return Err(stop),
            };
            found.insert(object.clone(), made);
        }
        if let Some(refused) = not_listed {
            for object in wanted {
                found.entry(object.clone()).or_insert_with(|| Err(refused.clone()));
            }
        }
        Ok(found)
    }

    /// How a kind is served, in another version if not in this one.
    async fn served_kind(&mut self, cluster: &Cluster, id: KindId) -> Result<(KindId, Kind), Failed> {
        match self.look_up(cluster, &id).await {
            Ok(kind) => Ok((id, kind)),
            Err(KindError::OtherVersion { api_version, .. }) => {
                let id = KindId::of(&api_version, &id.kind);
                let kind = self.look_up(cluster, &id).await.map_err(|error| Failed::of_kind(&error))?;
                Ok((id, kind))
            }
            Err(error) => Err(Failed::of_kind(&error)),
        }
    }

    async fn listed<T: Send>(
        &mut self,
        (id, kind): (&KindId, &Kind),
        wanted: &BTreeSet<ObjectRef>,
        take: &(impl Fn(&ObjectRef, &Value) -> T + Send + Sync),
    ) -> Result<Vec<(ObjectRef, T)>, Failed> {
        let by_name: BTreeMap<(&str, &str), &ObjectRef> =
            wanted.iter().map(|object| ((object.namespace.as_str(), object.name.as_str()), object)).collect();
        let mut pages = Pages::of(kind, &format!("{MANAGED}=true"), MOST_LISTED)
            .of_objects_up_to(LARGEST_OBJECT)
            .of_whole_objects();
        let mut listed = Vec::new();
        loop {
            // The first page may be the first that the cluster answers at all.
            let cluster = self.asked();
            let page = pages
                .next_chosen(&cluster, |element| {
                    let ObjectKey { namespace, name } = element.key()?;
                    let Some(object) = by_name.get(&(namespace.as_ref(), name.as_ref())) else { return Ok(None) };
                    Ok(Some(((*object).clone(), take(object, &element.read()?))))
                })
                .await;
            match self.answered(id, page, Missing::Unclear)? {
                Some(page) => listed.extend(page),
                None => return Ok(listed),
            }
        }
    }
}

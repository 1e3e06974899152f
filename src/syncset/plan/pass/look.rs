//! What a pass finds out before it writes anything: how kinds are served, what exists already, and what has changed since it was sent.
//!
//! Of lists a page of each of up to four kinds is read at once. A list that has more pages stays among those that are read, and the next one of
//! the queue takes the place of one that has ended. In which order the pages arrive does not matter: they are compared in the order of the queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::item::{Check, Item, ItemState, KindKey, Task};
use super::stored::Facts;
use super::target::{Compared, List, Page, Refusal, Refused, Resolution, Seen, Takeover, Target};
use super::{EndsEarly, Flow, MOST_REQUESTS, Pass, failure};
use crate::syncset::plan::object::{left_alone, may_end_by_itself};
use crate::syncset::plan::ownership::without;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::{Failure, TAKEN};
use crate::syncset::plan::spec::Behavior;
use crate::syncset::plan::wanted::placed;

/// After this time a pass looks up no further kinds before it begins: what does not answer must not take all of its time.
const MOST_TIME_FOR_KINDS: Duration = Duration::from_secs(30);
/// Lists that are read at once.
const MOST_LISTS: usize = 4;

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
    fn next_page(&self) -> List<'_> {
        List { api_version: &self.kind.0, kind: &self.kind.1, page: self.page, compared: self }
    }
}

impl Pass {
    pub(super) async fn resolve_kinds<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        loop {
            self.step(target).await?;
            let Some(key) = self.next_kind() else { return Ok(()) };
            self.resolve(target, key, false).await?;
        }
    }

    /// Those that did not answer in the pass before come last, so that in the end each one is looked up that answers.
    fn next_kind(&mut self) -> Option<KindKey> {
        if self.taken() >= MOST_TIME_FOR_KINDS {
            let message = "there was no time to find out whether the cluster serves the kind";
            let refused = Refused { refusal: Refusal::Server, message: message.to_owned() };
            // What was read of a version for one kind is known for the others, as long as none of them turns out to be slow.
            let kinds = &self.kinds;
            let is_known = |(version, _): &KindKey| {
                let mut found = kinds.iter().filter(|((of, _), _)| of == version).map(|(_, found)| found).peekable();
                found.peek().is_some() && found.all(Result::is_ok)
            };
            let (known, unasked): (BTreeSet<_>, BTreeSet<_>) =
                std::mem::take(&mut self.unresolved).into_iter().partition(is_known);
            self.unresolved = known;
            self.kinds.extend(unasked.into_iter().map(|key| (key, Err(refused.clone()))));
        }
        let next = self.unresolved.iter().find(|key| !self.progress.slow_kinds.contains(*key));
        let key = next.or(self.unresolved.first()).cloned()?;
        self.unresolved.remove(&key);
        Some(key)
    }

    /// Looks up a kind that the pass needs although it is of nothing that is rendered, or that was not served when it began.
    pub(super) async fn resolve_late<T: Target>(&mut self, target: &mut T, key: KindKey, wait: bool) -> Flow<T> {
        self.late_kinds += 1;
        self.resolve(target, key, wait).await
    }

    async fn resolve<T: Target>(&mut self, target: &mut T, key: KindKey, wait: bool) -> Flow<T> {
        self.ready(target).await?;
        let resolution = target.resolve(&key.0, &key.1, wait).await;
        let resolution = self.answered(target, resolution)?;
        let group = key.0.split_once('/').map_or("", |(group, _)| group);
        if let Ok(Resolution::Served { namespaced, plural }) = &resolution {
            self.scopes.insert((group.to_owned(), key.1.clone()), *namespaced);
            self.plurals.insert((group.to_owned(), key.1.clone()), plural.clone());
        } else if wait {
            // Nobody waits for it once more: many syncsets may have such objects.
            self.defined.remove(&(group.to_owned(), key.1.clone()));
        }
        if resolution.is_err() {
            self.progress.slow_kinds.insert(key.clone());
        } else {
            self.progress.slow_kinds.remove(&key);
            self.progress.unknown_within.remove(&key);
        }
        self.kinds.insert(key, resolution);
        Ok(())
    }

    /// Each page counts as a request, and a pass makes no more of them than it may.
    pub(super) async fn read_lists<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        while !self.listings.is_empty() {
            self.step(target).await?;
            let most = MOST_REQUESTS.saturating_sub(self.requests).clamp(1, MOST_LISTS).min(self.listings.len());
            let lists: Vec<List<'_>> = self.listings.iter().take(most).map(Listing::next_page).collect();
            self.requests += most;
            let pages = target.list(&lists).await.map_err(EndsEarly::Stopped)?;
            self.look_at_the_clock(target);
            self.requests = self.requests.saturating_sub(most.saturating_sub(pages.len()));
            let read: Vec<Listing> = self.listings.drain(..pages.len().min(most)).collect();
            let mut continued = Vec::new();
            for (listing, page) in read.into_iter().zip(pages) {
                continued.extend(self.page_read(listing, page));
            }
            // The next request finds them first. The limits of a pass hold before each page.
            for listing in continued.into_iter().rev() {
                self.listings.push_front(listing);
            }
        }
        Ok(())
    }

    /// Compares a page. Returns the list if another page of it is needed.
    fn page_read(&mut self, mut listing: Listing, page: Result<Page, Refused>) -> Option<Listing> {
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

    pub(super) async fn look_at_objects<T: Target>(&mut self, target: &mut T) -> Flow<T> {
        while let Some(item) = self.unprepared.pop_front() {
            self.prepare(target, item).await?;
        }
        Ok(())
    }

    /// Finds out what has to be known of an object before it is sent. Then it waits for its turn.
    pub(super) async fn prepare<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        if item.state == ItemState::Unresolved {
            item.state = self.state_by_kind(&item);
        }
        if item.state == ItemState::Unlooked {
            let Some(failure) = self.known_failure(&item) else {
                self.step(target).await?;
                return self.look_at(target, item).await;
            };
            item.state = ItemState::Failed(failure);
        }
        self.place(item);
        Ok(())
    }

    fn state_by_kind(&self, item: &Item) -> ItemState {
        let (key, place) = (item.kind_key(), item.desired.place);
        match self.kinds.get(&key) {
            Some(Ok(Resolution::Served { .. })) if placed(&item.object, self.scope(&item.object)) != item.object => {
                // The definition came with this pass. Who wants the object has to be found out again.
                ItemState::Failed(Self::unserved(&key, None, place))
            }
            Some(Ok(Resolution::Served { namespaced: true, .. })) if item.object.namespace.is_empty() => {
                let message =
                    format!("a {} needs a namespace: set metadata.namespace, none is assumed", item.object.kind);
                ItemState::Failed(failure::of_place(place, Reason::ResourceInvalid, &message))
            }
            Some(Ok(Resolution::Served { .. })) if item.check == Check::None => ItemState::Ready,
            Some(Ok(Resolution::Served { .. })) => ItemState::Unlooked,
            Some(Ok(Resolution::OtherVersion { api_version })) => {
                ItemState::Unserved(Self::unserved(&key, Some(api_version), place))
            }
            Some(Ok(Resolution::NotServed)) | None => ItemState::Unserved(Self::unserved(&key, None, place)),
            Some(Err(refused)) => ItemState::Failed(failure::of_refusal(place, &item.object, refused)),
        }
    }

    /// The failure of an earlier pass, which this one continues: of a read of the object, or of its syncset. None if the inputs have
    /// changed since.
    fn known_failure(&self, item: &Item) -> Option<Failure> {
        if let Some(failure) = self.earlier_failure(item.syncset) {
            return Some(failure);
        }
        let live = self.live.get(item.syncset)?;
        let (inputs, failure) = self.progress.looks.get(&(item.object.clone(), live.header.id))?;
        (*inputs == live.inputs).then(|| failure.clone())
    }

    /// Queues an object for its turn, unless there is nothing to do for it.
    fn place(&mut self, mut item: Box<Item>) {
        item.is_late = self.is_noted;
        if matches!(item.state, ItemState::Failed(_) | ItemState::Unserved(_)) && !item.send {
            // The object's state is not known. The next try is no full pass, and would take the object to be as it was sent.
            item.send = true;
            self.settle(&item);
        }
        if item.state == ItemState::Ready {
            if item.send && item.desired.may_adopt && item.behavior != Behavior::CreateOnly {
                item.facts.adopted = false;
            }
            if !item.is_late || !item.send {
                self.settle(&item);
            }
            if !item.send {
                return;
            }
        }
        self.tasks.insert((item.syncset, item.desired.place), Task::Item(item));
    }

    pub(super) async fn look_at<T: Target>(&mut self, target: &mut T, mut item: Box<Item>) -> Flow<T> {
        match self.look(target, item.address()).await? {
            Ok(found) if matches!(item.check, Check::Existence | Check::Anew) => {
                first_contact(&mut item, found, self.elsewhere);
            }
            Ok(found) => self.check_drift(&mut item, found),
            Err(refused) => {
                item.state = ItemState::Failed(failure::of_refusal(item.desired.place, &item.object, &refused));
            }
        }
        if let (ItemState::Failed(failure), Some(live)) = (&item.state, self.live.get(item.syncset)) {
            let key = (item.object.clone(), live.header.id);
            self.progress.looks.insert(key, (live.inputs, failure.clone()));
        }
        self.place(item);
        Ok(())
    }

    /// Compares an object that was sent before with what there is.
    fn check_drift(&mut self, item: &mut Item, found: Option<Seen>) {
        item.state = ItemState::Ready;
        let Some(seen) = found else {
            if may_end_by_itself(&item.desired.body) {
                return;
            }
            item.send = true;
            item.forget_uid();
            item.facts.resent = item.facts.resent.saturating_add(1);
            item.facts.gone = item.facts.gone.saturating_add(1).min(TAKEN - 1);
            item.is_known &= item.behavior != Behavior::CreateOnly;
            return;
        };
        if seen.is_terminating() {
            item.state = terminating(item);
            return;
        }
        item.facts.gone = 0;
        let is_another = item.facts.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
        if item.behavior == Behavior::CreateOnly {
            // What existed is stored without UID. With it the object is known again under the name of another group.
            item.facts.adopted |= is_another;
            item.facts.uid = Some(seen.uid);
        } else {
            let owned = if item.behavior == Behavior::Apply { seen.owned_by_apply } else { seen.owned_by_update };
            let is_unchanged = item.facts.version.as_ref() == Some(&seen.version);
            let is_ours = item.facts.uid.as_ref() == Some(&seen.uid);
            if !is_ours || (!is_unchanged && (owned.is_none() || owned != item.facts.owned)) {
                // Somebody else has changed it or created it anew.
                item.last_other = contender(&item.desired.body, &seen);
                item.facts.adopted |= is_another;
                item.facts.uid = Some(seen.uid);
                item.facts.resent = item.facts.resent.saturating_add(1);
                item.send = true;
                return;
            }
        }
        item.facts.resent = 0;
        self.progress.objects.insert(item.object.clone());
    }
}

/// The manager that has changed a field of this body. One that owns a field through a subresource has written it since it was sent last.
fn contender(body: &Value, seen: &Seen) -> Option<String> {
    let is_given = |field: &str| without(body, &left_alone(body)).pointer(field).is_some();
    let scaled = seen.scaled.iter().find(|(_, field)| is_given(field));
    scaled.map(|(manager, _)| manager).or(seen.last_other.as_ref()).cloned()
}

/// Before an apply, the fields that an object got by another behavior are taken over, and if it is ours, those that Hive has applied.
/// Until that is done nothing is noted of what we own, so that each pass looks again.
fn first_contact(item: &mut Item, found: Option<Seen>, elsewhere: bool) {
    item.state = ItemState::Ready;
    item.is_known = true;
    match found {
        None => item.forget_uid(),
        Some(seen) if seen.is_terminating() => item.state = terminating(item),
        Some(seen) => {
            let is_another = item.facts.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
            let adopted = seen.is_adopted(item.facts.uid.as_deref(), item.facts.adopted, elsewhere);
            item.is_absent = false;
            item.last_other = seen.last_other;
            let Takeover { ours, with_hive } = seen.takeover;
            let takeover = with_hive.filter(|_| !adopted).or(ours);
            item.takeover = takeover.filter(|_| item.behavior == Behavior::Apply);
            let owned = item.facts.owned.filter(|_| !is_another && item.takeover.is_none());
            let resent = item.facts.resent;
            item.facts = Facts { uid: Some(seen.uid), version: None, owned, adopted, resent, gone: 0 };
        }
    }
}

fn terminating(item: &Item) -> ItemState {
    ItemState::Failed(failure::of_place(item.desired.place, Reason::Terminating, "the object is being deleted"))
}

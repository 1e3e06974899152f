//! An index of the pairs that may keep a local namespace, so that a query whether the namespace is in use does not have to
//! evaluate all its objects.
//!
//! It holds *candidates*: every name that could satisfy a condition is among the candidates of its namespace, and a name is
//! dropped only after it was evaluated and did not satisfy it. The trackers of the stores add a name again with every change
//! that the condition may depend on, under the store's lock, so that no change is missed, whether the section runs or not.
//! The condition itself is always evaluated against the stores, so a superfluous name costs one evaluation and does no harm.
//!
//! Nothing is indexed before the first query. The first query about a namespace lists its names once; each later one costs one
//! evaluation for each change since the last, and one for the name that satisfies the condition. After a list, and when a
//! namespace has too many candidates, it is dropped from the index, and the next query lists it again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::cluster::{ObjectKey, Store, Tracker};
use crate::resource_sync::plan::names::Mapping;

/// A namespace may have at least this many candidates before it is dropped from the index.
const FEWEST_KEPT: usize = 64;

/// The candidates of one namespace.
struct Tracked {
    names: Vec<Arc<str>>,
    /// With more names than this it is cheaper to list the namespace again.
    most: usize,
    listing: u64,
}

/// The candidates of all namespaces that were queried.
#[derive(Default)]
pub(crate) struct Candidates {
    /// The number of the last listing, and the candidates. The trackers add names under the lock of a store, so this lock must
    /// not be held while a condition, which reads the stores, is evaluated.
    tracked: Mutex<(u64, HashMap<Arc<str>, Tracked>)>,
    /// Held during a whole query: a second query must not miss the name that the first one is evaluating and may drop.
    asking: Mutex<()>,
    /// How many names were evaluated or listed, for the tests of the cost.
    examined: AtomicUsize,
}

impl Candidates {
    /// Whether a name of the namespace, other than `except`, satisfies the condition. `list` returns all names that may.
    pub(crate) fn any(
        &self,
        namespace: &str,
        except: Option<&str>,
        list: impl Fn() -> Vec<Arc<str>>,
        condition: impl Fn(&Arc<str>) -> bool,
    ) -> bool {
        let _asking = self.asking.lock();
        'listed: loop {
            let listing = self.listed(namespace, &list);
            let (mut index, mut found_except) = (0, false);
            loop {
                let name = match self.tracked.lock().1.get(namespace) {
                    Some(tracked) if tracked.listing == listing => match tracked.names.get(index) {
                        Some(name) => Arc::clone(name),
                        // Names that were added in the meantime are at the end, so they have been evaluated, too.
                        None => return false,
                    },
                    _ => continue 'listed,
                };
                if except == Some(&*name) {
                    if !std::mem::replace(&mut found_except, true) {
                        index += 1;
                        continue;
                    }
                } else {
                    self.count_examined(1);
                    if condition(&name) {
                        return true;
                    }
                }
                // If the object has changed since the evaluation, a tracker has added the name once more.
                match self.tracked.lock().1.get_mut(namespace) {
                    Some(tracked) if tracked.listing == listing => {
                        tracked.names.swap_remove(index);
                    }
                    _ => continue 'listed,
                }
            }
        }
    }

    /// Makes sure that the namespace is indexed; returns the number of its listing.
    fn listed(&self, namespace: &str, all_names: impl Fn() -> Vec<Arc<str>>) -> u64 {
        let listing = {
            let (last, tracked) = &mut *self.tracked.lock();
            if let Some(tracked) = tracked.get(namespace) {
                return tracked.listing;
            }
            *last += 1;
            // Inserted before the names are listed, so that the trackers add what changes from now on.
            tracked.insert(namespace.into(), Tracked { names: Vec::new(), most: usize::MAX, listing: *last });
            *last
        };
        let names = all_names();
        self.count_examined(names.len());
        if let Some(tracked) = self.tracked.lock().1.get_mut(namespace)
            && tracked.listing == listing
        {
            tracked.most = 2 * names.len() + FEWEST_KEPT;
            tracked.names.extend(names);
        }
        listing
    }

    /// The condition may have another result for this name.
    fn add(&self, namespace: &str, name: &Arc<str>) {
        let tracked = &mut self.tracked.lock().1;
        if let Some(of_namespace) = tracked.get_mut(namespace) {
            if of_namespace.names.len() < of_namespace.most {
                of_namespace.names.push(Arc::clone(name));
            } else {
                tracked.remove(namespace);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.tracked.lock().1.is_empty()
    }

    /// Drops a namespace; the next query lists it again.
    fn forget(&self, namespace: &str) {
        self.tracked.lock().1.remove(namespace);
    }

    fn reset(&self) {
        self.tracked.lock().1.clear();
    }

    fn count_examined(&self, names: usize) {
        self.examined.fetch_add(names, Ordering::Relaxed);
    }
}

/// The index of one section.
#[derive(Default)]
pub(crate) struct NamespaceUse {
    /// Remote objects that may live, by remote namespace.
    pub(crate) living: Candidates,
    /// Local objects that may have to be kept, by local namespace.
    pub(crate) kept: Candidates,
    /// Local objects whose source was not found, by the UID of the source: they would have to be kept if it appeared. A lock
    /// of its own because both the trackers and the evaluation of a condition write it.
    waiting_for_source: Mutex<HashMap<Arc<str>, Vec<ObjectKey>>>,
}

impl NamespaceUse {
    /// Tracks both stores of a section.
    pub(crate) fn over(remotes: &Store, locals: &Store, mapping: &Mapping) -> Arc<Self> {
        let index = Arc::new(Self::default());
        remotes.track(Arc::new(OfRemotes { index: Arc::clone(&index), mapping: mapping.clone() }));
        locals.track(Arc::new(OfLocals { index: Arc::clone(&index) }));
        index
    }

    /// Records that a local object names this source. To be called before the source is looked up: otherwise the source could
    /// appear in between.
    pub(crate) fn await_source(&self, source: &str, local: &ObjectKey) {
        let mut waiting_for_source = self.waiting_for_source.lock();
        let waiting = waiting_for_source.entry(source.into()).or_default();
        if !waiting.contains(local) {
            waiting.push(local.clone());
        }
    }

    /// A namespace is gone.
    pub(crate) fn forget(&self, local: &str, remote: &str) {
        self.waiting_for_source.lock().retain(|_, waiting| {
            waiting.retain(|key| &*key.namespace != local);
            !waiting.is_empty()
        });
        self.living.forget(remote);
        self.kept.forget(local);
    }

    /// How many names were evaluated or listed since the last call.
    #[cfg(test)]
    pub(crate) fn examined(&self) -> usize {
        let of = |candidates: &Candidates| candidates.examined.swap(0, Ordering::Relaxed);
        of(&self.living) + of(&self.kept)
    }
}

/// Follows the changes of the remote cache.
struct OfRemotes {
    index: Arc<NamespaceUse>,
    mapping: Mapping,
}

impl OfRemotes {
    fn add_local(&self, remote: &ObjectKey) {
        if !self.index.kept.is_idle()
            && let Some(pair) = self.mapping.pair_of_remote(remote)
        {
            self.index.kept.add(&pair.local.namespace, &pair.local.name);
        }
    }
}

impl Tracker for OfRemotes {
    fn changed(&self, key: &ObjectKey) {
        self.index.living.add(&key.namespace, &key.name);
        self.add_local(key);
    }

    fn moved(&self, uid: &str, before: Option<&ObjectKey>) {
        if let Some(before) = before {
            self.add_local(before);
        }
        let waiting = self.index.waiting_for_source.lock().remove(uid);
        for local in waiting.into_iter().flatten() {
            self.index.kept.add(&local.namespace, &local.name);
        }
    }

    fn reset(&self) {
        // Cleared first: cleared last, it could lose an entry of an evaluation that began after the other two were reset.
        self.index.waiting_for_source.lock().clear();
        self.index.living.reset();
        self.index.kept.reset();
    }
}

/// Follows the changes of the local cache.
struct OfLocals {
    index: Arc<NamespaceUse>,
}

impl Tracker for OfLocals {
    fn changed(&self, key: &ObjectKey) {
        self.index.kept.add(&key.namespace, &key.name);
    }

    fn moved(&self, _: &str, _: Option<&ObjectKey>) {}

    fn reset(&self) {
        self.index.kept.reset();
    }
}

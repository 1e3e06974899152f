//! An index of the pairs that may keep a local namespace, so that nobody has to look at all objects of a namespace to
//! learn whether it is in use.
//!
//! It holds *candidates*: every name that could satisfy a condition is among the candidates of its namespace, and a name is
//! dropped only after it was evaluated and did not. The trackers of the stores add a name again with every change that the
//! condition may depend on, under the store's lock, so that no change is missed, whether the section runs or not. The
//! condition itself is always evaluated against the stores: a name too many costs one evaluation, and nothing else.
//!
//! Nothing is indexed before somebody asks. The first question about a namespace lists its names once; from then on a
//! question costs one evaluation for each change since the last one, and one for the name that satisfies the condition.
//! After a list, and when more names were added than are worth keeping, the namespace is forgotten, and listed again with
//! the next question.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::cluster::{ObjectKey, Store, Tracker};
use crate::resource_sync::rules::names::Mapping;

/// So many candidates are kept for a namespace in any case.
const FEWEST_KEPT: usize = 64;

/// The candidates of one namespace.
struct Tracked {
    names: Vec<Arc<str>>,
    /// With more names than this it is cheaper to list again.
    most: usize,
    /// Which listing this is.
    listing: u64,
}

/// The candidates of all namespaces that somebody has asked about.
#[derive(Default)]
pub(crate) struct Candidates {
    tracked: Mutex<(u64, HashMap<Arc<str>, Tracked>)>,
    /// Held while candidates are evaluated: while one asker evaluates a name, no other may miss it.
    asking: Mutex<()>,
    /// How many names were evaluated or listed; tests hold that to a number.
    looked_at: AtomicUsize,
}

impl Candidates {
    /// Whether a name of the namespace, other than `except`, satisfies the condition. `list` has all names that may.
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
                        // What was added meanwhile was added at the end, and has been evaluated too.
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
                    self.look_at(1);
                    if condition(&name) {
                        return true;
                    }
                }
                // A change since it was evaluated has added it once more.
                match self.tracked.lock().1.get_mut(namespace) {
                    Some(tracked) if tracked.listing == listing => {
                        tracked.names.swap_remove(index);
                    }
                    _ => continue 'listed,
                }
            }
        }
    }

    /// Makes sure that the namespace is tracked; returns since which listing.
    fn listed(&self, namespace: &str, all_names: impl Fn() -> Vec<Arc<str>>) -> u64 {
        let listing = {
            let (last, tracked) = &mut *self.tracked.lock();
            if let Some(tracked) = tracked.get(namespace) {
                return tracked.listing;
            }
            *last += 1;
            // Before the names are listed: what changes from now on is added.
            tracked.insert(namespace.into(), Tracked { names: Vec::new(), most: usize::MAX, listing: *last });
            *last
        };
        let names = all_names();
        self.look_at(names.len());
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

    /// The namespace is listed again with the next question.
    fn forget(&self, namespace: &str) {
        self.tracked.lock().1.remove(namespace);
    }

    fn reset(&self) {
        self.tracked.lock().1.clear();
    }

    fn look_at(&self, names: usize) {
        self.looked_at.fetch_add(names, Ordering::Relaxed);
    }
}

/// The index of one section.
#[derive(Default)]
pub(crate) struct NamespaceUse {
    /// Remote objects that may live, by remote namespace.
    pub(crate) living: Candidates,
    /// Local objects that may have to be kept, by local namespace.
    pub(crate) kept: Candidates,
    /// Local objects whose source lives nowhere, by its UID: they would have to be kept where it appears.
    sourceless: Mutex<HashMap<Arc<str>, Vec<ObjectKey>>>,
}

impl NamespaceUse {
    /// Tracks both stores of a section.
    pub(crate) fn over(remotes: &Store, locals: &Store, mapping: &Mapping) -> Arc<Self> {
        let index = Arc::new(Self::default());
        remotes.track(Arc::new(OfRemotes { index: Arc::clone(&index), mapping: mapping.clone() }));
        locals.track(Arc::new(OfLocals { index: Arc::clone(&index) }));
        index
    }

    /// A local object names a source that may live nowhere. Before that is looked up: else it could appear in between.
    pub(crate) fn await_source(&self, source: &str, local: &ObjectKey) {
        let mut sourceless = self.sourceless.lock();
        let waiting = sourceless.entry(source.into()).or_default();
        if !waiting.contains(local) {
            waiting.push(local.clone());
        }
    }

    /// A namespace is gone.
    pub(crate) fn forget(&self, local: &str, remote: &str) {
        self.sourceless.lock().retain(|_, waiting| {
            waiting.retain(|key| &*key.namespace != local);
            !waiting.is_empty()
        });
        self.living.forget(remote);
        self.kept.forget(local);
    }

    /// How many names were evaluated or listed since the last time.
    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> usize {
        let of = |candidates: &Candidates| candidates.looked_at.swap(0, Ordering::Relaxed);
        of(&self.living) + of(&self.kept)
    }
}

/// What changes on the remote side.
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
        let waiting = self.index.sourceless.lock().remove(uid);
        for local in waiting.into_iter().flatten() {
            self.index.kept.add(&local.namespace, &local.name);
        }
    }

    fn reset(&self) {
        // First: what is noted from here on is evaluated once more after the others.
        self.index.sourceless.lock().clear();
        self.index.living.reset();
        self.index.kept.reset();
    }
}

/// What changes on the local side.
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

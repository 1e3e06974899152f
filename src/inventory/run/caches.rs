//! What the caches show of releases.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::plan::contents::{Contents, is_entry};
use super::super::plan::identity::GivenId;
use super::super::plan::index::Seen;
use super::super::plan::revision::{Revisions, revisions as revisions_of};
use super::kinds::SECRET;
use crate::cluster::{Object, ObjectKey, Watch};

/// The watches that are followed while a project counts and is not stopped.
pub struct Caches {
    /// The objects that store releases.
    pub releases: Arc<Watch>,
    /// What runs in releases, in the order of `Content::ALL`.
    pub contents: [Arc<Watch>; 4],
    /// The Secrets with ids.
    pub ids: Arc<Watch>,
}

/// What each object may belong to: of an object that is gone, or has another label, only this says where it was.
#[derive(Default)]
pub struct Owners([HashMap<ObjectKey, Vec<Arc<str>>>; 4]);

/// The namespaces of releases that are stored in another one, by where they are stored and their names. Only their records tell.
#[derive(Default)]
pub struct Homes(BTreeMap<ObjectKey, Arc<str>>);

impl Homes {
    /// The release whose revisions are stored under this key.
    pub fn release(&self, stored: &ObjectKey) -> ObjectKey {
        match self.0.get(stored) {
            Some(home) => ObjectKey::new(Arc::clone(home), Arc::clone(&stored.name)),
            None => stored.clone(),
        }
    }

    /// A record says in which namespace its release is.
    pub fn learn(&mut self, stored: &ObjectKey, home: &str) {
        if *stored.namespace == *home {
            self.0.remove(stored);
        } else {
            self.0.insert(stored.clone(), home.into());
        }
    }

    /// Where releases of this namespace are stored elsewhere. Of several places of one release the first by name counts, whichever was
    /// seen first.
    fn of(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        self.0.iter().filter(move |(_, home)| ***home == *namespace).map(|(stored, _)| stored)
    }

    /// What is stored there has changed: if that was the last revision, the place is forgotten.
    pub fn changed(&mut self, stored: &ObjectKey, caches: &Caches) {
        if self.0.contains_key(stored) && !caches.stores(stored) {
            self.0.remove(stored);
        }
    }

    /// Forgets every place in which nothing is stored any more.
    pub fn retain_stored(&mut self, caches: &Caches) {
        let objects = caches.releases.store().objects();
        let stored: HashSet<(&str, &str)> =
            objects.iter().filter_map(|object| Some((&*object.key.namespace, &**object.labels.get("name")?))).collect();
        self.0.retain(|place, _| stored.contains(&(&*place.namespace, &*place.name)));
    }
}

/// What a namespace shows.
pub struct NamespaceView {
    revisions: BTreeMap<Arc<str>, Revisions>,
    objects: HashMap<Arc<str>, [Vec<Arc<Object>>; 4]>,
    given: GivenId,
}

impl Caches {
    pub fn all(&self) -> impl Iterator<Item = &Arc<Watch>> {
        std::iter::once(&self.releases).chain(&self.contents).chain(std::iter::once(&self.ids))
    }

    /// Whether a revision of a release is stored there.
    fn stores(&self, at: &ObjectKey) -> bool {
        self.releases.store().in_namespace(&at.namespace).iter().any(|object| is_stored(object, at))
    }

    /// What a namespace shows; of one release only, if it is named. What is stored in a namespace that is denied is not looked at.
    pub fn view(&self, namespace: &str, only: Option<&str>, homes: &Homes, denied: &BTreeSet<String>) -> NamespaceView {
        let is_meant = |name: Option<&Arc<str>>| match (name, only) {
            (Some(name), Some(only)) => **name == *only,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let stored = self.releases.store().in_namespace(namespace);
        let stored = stored.iter().filter(|object| is_meant(object.labels.get("name"))).filter(|object| {
            let name = object.labels.get("name").map(|name| ObjectKey::new(namespace, Arc::clone(name)));
            name.is_none_or(|key| homes.release(&key) == key)
        });
        let mut revisions = revisions_of(stored);
        for at in homes.of(namespace).filter(|at| is_meant(Some(&at.name)) && !denied.contains(&*at.namespace)) {
            let elsewhere = self.releases.store().in_namespace(&at.namespace);
            // Whoever may write Secrets in another namespace does not replace what is stored in the release's own.
            for (name, found) in revisions_of(elsewhere.iter().filter(|object| is_stored(object, at))) {
                revisions.entry(name).or_insert(found);
            }
        }
        let mut objects: HashMap<Arc<str>, [Vec<Arc<Object>>; 4]> = HashMap::new();
        for (kind, watch) in self.contents.iter().enumerate() {
            for object in watch.store().in_namespace(namespace) {
                for owner in owners(&object).filter(|owner| is_entry(owner) || is_meant(Some(owner))) {
                    if let Some(list) = objects.entry(Arc::clone(owner)).or_default().get_mut(kind) {
                        list.push(Arc::clone(&object));
                    }
                }
            }
        }
        let given = match self.ids.store().get(&ObjectKey::new(namespace, SECRET)) {
            Some(secret) => GivenId::of_content(&secret.content.value()),
            None => GivenId::None,
        };
        NamespaceView { revisions, objects, given }
    }

    /// Every namespace with a release.
    pub fn namespaces(&self, homes: &Homes) -> BTreeSet<Arc<str>> {
        let objects = self.releases.store().objects();
        objects.iter().map(|object| Arc::clone(&object.key.namespace)).chain(homes.0.values().cloned()).collect()
    }

    /// What all objects may belong to.
    pub fn owners(&self) -> Owners {
        let mut known = Owners::default();
        for (of_kind, watch) in known.0.iter_mut().zip(&self.contents) {
            let objects = watch.store().objects();
            *of_kind = objects.iter().map(|object| (object.key.clone(), owners(object).cloned().collect())).collect();
        }
        known
    }

    /// What a change of an object concerns: what it may belong to, and what it may have belonged to before.
    pub fn concerned(&self, known: &mut Owners, kind: usize, key: &ObjectKey) -> BTreeSet<Arc<str>> {
        let (Some(watch), Some(of_kind)) = (self.contents.get(kind), known.0.get_mut(kind)) else {
            return BTreeSet::new();
        };
        let now: Option<Vec<Arc<str>>> = watch.store().get(key).map(|object| owners(&object).cloned().collect());
        let before = match now.clone() {
            Some(owners) => of_kind.insert(key.clone(), owners),
            None => of_kind.remove(key),
        };
        now.into_iter().chain(before).flatten().collect()
    }
}

fn is_stored(object: &Object, at: &ObjectKey) -> bool {
    object.labels.get("name") == Some(&at.name)
}

/// What an object may belong to, as its projection has left it.
fn owners(object: &Object) -> impl Iterator<Item = &Arc<str>> {
    object.labels.keys()
}

impl NamespaceView {
    /// The names of the releases that have a revision.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.revisions.keys()
    }

    /// What it shows of one release, with these entries of its manifest.
    pub fn seen(&self, name: &str, entries: &BTreeSet<Arc<str>>) -> Seen {
        let mut objects: [Vec<Arc<Object>>; 4] = Default::default();
        for found in std::iter::once(name)
            .chain(entries.iter().map(|entry| &**entry))
            .filter_map(|owner| self.objects.get(owner))
        {
            for (list, of_kind) in objects.iter_mut().zip(found) {
                list.extend(of_kind.iter().cloned());
            }
        }
        Seen {
            revisions: self.revisions.get(name).cloned().unwrap_or_default(),
            given: self.given.clone(),
            contents: Contents::of(objects),
        }
    }
}

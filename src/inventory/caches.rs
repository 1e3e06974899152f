//! What the caches show of releases.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::kinds::SECRET;
use super::rules::contents::{Contents, INSTANCE};
use super::rules::identity::GivenId;
use super::rules::index::Seen;
use super::rules::revision::{Revisions, revisions as revisions_of};
use crate::cluster::{Object, ObjectKey, Watch};

/// The watches that are followed while a project counts and is not stopped.
pub(super) struct Caches {
    /// The objects that store releases.
    pub(super) releases: Arc<Watch>,
    /// What runs in releases, in the order of `Content::ALL`.
    pub(super) contents: [Arc<Watch>; 4],
    /// The Secrets with ids.
    pub(super) ids: Arc<Watch>,
}

/// The release of each object that runs in one: of an object that is gone, or has another label, only this says where it was.
#[derive(Default)]
pub(super) struct Owners([HashMap<ObjectKey, Arc<str>>; 4]);

/// The namespaces of releases that are stored in another one, by where they are stored and their names. Only their records tell.
#[derive(Default)]
pub(super) struct Homes(BTreeMap<ObjectKey, Arc<str>>);

impl Homes {
    /// The release whose revisions are stored under this key.
    pub(super) fn release(&self, stored: &ObjectKey) -> ObjectKey {
        match self.0.get(stored) {
            Some(home) => ObjectKey::new(Arc::clone(home), Arc::clone(&stored.name)),
            None => stored.clone(),
        }
    }

    /// A record says in which namespace its release is.
    pub(super) fn learn(&mut self, stored: &ObjectKey, home: &str) {
        if *stored.namespace == *home {
            self.0.remove(stored);
        } else {
            self.0.insert(stored.clone(), home.into());
        }
    }

    /// Where releases of this namespace are stored elsewhere.
    fn of(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        self.0.iter().filter(move |(_, home)| ***home == *namespace).map(|(stored, _)| stored)
    }
}

/// What a namespace shows.
pub(super) struct NamespaceView {
    revisions: BTreeMap<Arc<str>, Revisions>,
    objects: HashMap<Arc<str>, [Vec<Arc<Object>>; 4]>,
    given: GivenId,
}

impl Caches {
    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Watch>> {
        std::iter::once(&self.releases).chain(&self.contents).chain(std::iter::once(&self.ids))
    }

    /// What a namespace shows; of one release only, if it is named.
    pub(super) fn view(&self, namespace: &str, only: Option<&str>, homes: &Homes) -> NamespaceView {
        let is_meant = |name: Option<&Arc<str>>| match (name, only) {
            (Some(name), Some(only)) => **name == *only,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let is_stored = |object: &Arc<Object>, at: &ObjectKey| object.labels.get("name") == Some(&at.name);
        let stored = self.releases.store().in_namespace(namespace);
        let stored = stored.iter().filter(|object| is_meant(object.labels.get("name"))).filter(|object| {
            let name = object.labels.get("name").map(|name| ObjectKey::new(namespace, Arc::clone(name)));
            name.is_none_or(|key| homes.release(&key) == key)
        });
        let mut revisions = revisions_of(stored);
        for at in homes.of(namespace).filter(|at| is_meant(Some(&at.name))) {
            let elsewhere = self.releases.store().in_namespace(&at.namespace);
            // Whoever may write Secrets in another namespace does not replace what is stored in the release's own.
            for (name, found) in revisions_of(elsewhere.iter().filter(|object| is_stored(object, at))) {
                revisions.entry(name).or_insert(found);
            }
        }
        let mut objects: HashMap<Arc<str>, [Vec<Arc<Object>>; 4]> = HashMap::new();
        for (kind, watch) in self.contents.iter().enumerate() {
            for object in watch.store().in_namespace(namespace) {
                let Some(release) = object.labels.get(INSTANCE).filter(|name| is_meant(Some(name))).cloned() else {
                    continue;
                };
                if let Some(list) = objects.entry(release).or_default().get_mut(kind) {
                    list.push(object);
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
    pub(super) fn namespaces(&self, homes: &Homes) -> BTreeSet<Arc<str>> {
        let objects = self.releases.store().objects();
        objects.iter().map(|object| Arc::clone(&object.key.namespace)).chain(homes.0.values().cloned()).collect()
    }

    /// The owners of all objects.
    pub(super) fn owners(&self) -> Owners {
        let mut owners = Owners::default();
        for (of_kind, watch) in owners.0.iter_mut().zip(&self.contents) {
            let objects = watch.store().objects();
            *of_kind = objects.iter().filter_map(|object| Some((object.key.clone(), release(object)?))).collect();
        }
        owners
    }

    /// The releases that a change of an object concerns: the one that it belongs to, and the one that it belonged to before.
    pub(super) fn concerned(&self, owners: &mut Owners, kind: usize, key: &ObjectKey) -> Vec<ObjectKey> {
        let (Some(watch), Some(of_kind)) = (self.contents.get(kind), owners.0.get_mut(kind)) else { return Vec::new() };
        let now = watch.store().get(key).and_then(|object| release(&object));
        let before = match &now {
            Some(release) => of_kind.insert(key.clone(), Arc::clone(release)),
            None => of_kind.remove(key),
        };
        let mut names: Vec<Arc<str>> = now.into_iter().chain(before).collect();
        names.dedup();
        names.into_iter().map(|name| ObjectKey::new(Arc::clone(&key.namespace), name)).collect()
    }
}

fn release(object: &Object) -> Option<Arc<str>> {
    object.labels.get(INSTANCE).cloned()
}

impl NamespaceView {
    /// The names of the releases that have a revision.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.revisions.keys()
    }

    /// What it shows of one release.
    pub(super) fn seen(&mut self, name: &str) -> Seen {
        Seen {
            revisions: self.revisions.get(name).cloned().unwrap_or_default(),
            given: self.given.clone(),
            contents: Contents::of(self.objects.remove(name).unwrap_or_default()),
        }
    }
}

//! What the watches tell the reconciler.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::super::plan::revision::release_of;
use crate::actor::KeyMailbox;
use crate::cluster::{Follower, ObjectKey, Watch};

/// What has changed, by key: the reconciler looks for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    Project,
    Release(ObjectKey),
    /// An object of this kind, by its place in `Content::ALL`.
    Content(usize, ObjectKey),
    /// What concerns all releases of a namespace.
    Namespace(Arc<str>),
    /// A list has ended.
    Everything,
}

/// The kind of a watch.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    Projects,
    /// Objects that store releases.
    Releases,
    /// Objects of this kind, by its place in `Content::ALL`.
    Contents(usize),
    /// Secrets with ids.
    Ids,
}

pub struct SourceFollower {
    pub source: Source,
    pub mailbox: KeyMailbox<Changed>,
}

impl SourceFollower {
    async fn request(&self, changed: Changed) {
        // The mailbox is closed only while the process ends.
        let _ = self.mailbox.request(changed).await;
    }
}

/// What follows from a change of an object.
fn change(source: Source, key: &ObjectKey) -> Changed {
    let in_namespace = || Changed::Namespace(Arc::clone(&key.namespace));
    match source {
        Source::Projects => Changed::Project,
        // A release of another name than its object's is found with its namespace.
        Source::Releases => release_of(key).map_or_else(in_namespace, Changed::Release),
        Source::Contents(kind) => Changed::Content(kind, key.clone()),
        Source::Ids => in_namespace(),
    }
}

impl Follower for SourceFollower {
    fn wants(&self, _: &ObjectKey) -> bool {
        true
    }

    fn changed<'a>(&'a self, _: &'a Watch, key: &'a ObjectKey) -> BoxFuture<'a, ()> {
        Box::pin(self.request(change(self.source, key)))
    }

    fn listed<'a>(&'a self, _: &'a Watch, _: bool, _: Vec<ObjectKey>) -> BoxFuture<'a, ()> {
        Box::pin(self.request(Changed::Everything))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_what_is_to_be_looked_at() {
        let of = |source, name: &str| change(source, &ObjectKey::new("n", name));
        assert_eq!(of(Source::Projects, "p"), Changed::Project);
        assert_eq!(of(Source::Releases, "sh.helm.release.v1.web.v3"), Changed::Release(ObjectKey::new("n", "web")));
        assert_eq!(of(Source::Releases, "forged"), Changed::Namespace("n".into()));
        assert_eq!(of(Source::Contents(2), "c"), Changed::Content(2, ObjectKey::new("n", "c")));
        assert_eq!(of(Source::Ids, "uuid"), Changed::Namespace("n".into()));
    }
}

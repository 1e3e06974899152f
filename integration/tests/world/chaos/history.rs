//! Since when each object has been wanted, and until when.

use std::collections::BTreeMap;

use crate::chaos::documents::{CLUSTERS, Documents};
use crate::chaos::endpoint::Moment;
use crate::chaos::oracle::Object;

/// From when, until when.
type Time = (Moment, Option<Moment>);

/// The times in which somebody surely wanted an object: from the answer to the change that brought it to the request for the one that
/// took it away.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<(usize, Object), Vec<Time>>);

impl History {
    /// A change was asked for at `sent` and had been made at `done`.
    pub(crate) fn changed(&mut self, before: &Documents, after: &Documents, sent: Moment, done: Moment) {
        for cluster in 0..CLUSTERS {
            let (before, after) = (before.wanted(cluster), after.wanted(cluster));
            for object in before.keys().filter(|object| !after.contains_key(*object)) {
                let times = self.0.entry((cluster, object.clone())).or_default();
                if let Some((_, until)) = times.last_mut() {
                    *until = Some(sent);
                }
            }
            for object in after.into_keys().filter(|object| !before.contains_key(object)) {
                self.0.entry((cluster, object)).or_default().push((done, None));
            }
        }
    }

    /// Whether an object was wanted all the time between two moments.
    pub(crate) fn wanted(&self, cluster: usize, object: &Object, from: Moment, until: Moment) -> bool {
        let times = self.0.get(&(cluster, object.clone())).into_iter().flatten();
        times.into_iter().any(|(begin, end)| *begin < from && end.is_none_or(|end| until < end))
    }
}

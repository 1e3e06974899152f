//! Why a section can't decide yet: its watches have not listed.

use std::sync::Arc;

use crate::cluster::{Listed, Watch};
use crate::status::NotReady;

/// Why these watches have not listed, with a list that fails before one that is in progress; `None` if all have. `knows`
/// tells whether the section has already taken up a list that has ended: each run begins with lists of its own.
pub fn not_listed<'w>(
    watches: impl IntoIterator<Item = &'w Arc<Watch>>,
    knows: impl Fn(&Arc<Watch>) -> bool,
) -> Option<NotReady> {
    let mut in_progress = None;
    for watch in watches {
        let id = watch.id();
        let not_ready = |reason: &str, unreachable| NotReady {
            reason: format!("{} in cluster {}: {reason}", id.what(), id.cluster),
            unreachable,
        };
        match &*watch.store().listed().borrow() {
            Listed::Yes if knows(watch) => {}
            Listed::Yes => {
                in_progress.get_or_insert_with(|| not_ready("a list is in progress", false));
            }
            Listed::No { reason: Some(reason), unreachable } => return Some(not_ready(reason, *unreachable)),
            Listed::No { reason: None, unreachable } => {
                in_progress.get_or_insert_with(|| not_ready("the first list is in progress", *unreachable));
            }
        }
    }
    in_progress
}

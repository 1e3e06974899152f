//! The guard against mass changes: one rule for all jobs, and what counts.
//!
//! A mistake affects many objects at once: after an etcd restore or with a wrong kubeconfig remote objects are missing, a typo
//! in a selector lets all pairs go, another cluster in the place of one causes objects to be overwritten and statuses to be
//! cleared, an emptied database looks the same as one whose rows are really gone. What people delete on purpose are few. So a
//! job counts what it would destroy *before* it does, with what it has destroyed within [`WINDOW`]. If that is more than a
//! tenth of what there is, and more than ten, or all of two or more, it is held until an operator approves it
//! (`towline approve`), or until it is no longer wanted.
//!
//! The jobs say what they count, and of how many:
//!
//! - resource sync: [`GuardedChange`]s to its own pairs, with a [`Guard`];
//! - status sync: the objects of a family that have lost their rows and are cleared, with a [`Guard`] for each family;
//! - syncsets: of each syncset the clusters where most of its objects would go, and any object that takes more along than
//!   itself (`syncset/plan/guard.rs`). The counts are in the database, where all replicas see them;
//! - what tells another cluster behind a known name: the objects that do not fit, by [`is_mass`] alone.

mod changes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use crate::config::SectionName;
use crate::telemetry::held_changes;

pub use changes::{Bounds, Decision, Guard, PendingChange, Sending, is_recent};

/// How long a change counts.
pub const WINDOW: Duration = Duration::from_mins(10);
/// So many objects may change, however few there are, unless they are all.
const ALWAYS: usize = 10;

/// How many of `all` objects may change without an approval: a tenth, but at least ten.
pub fn limit(all: usize) -> usize {
    ALWAYS.max(all / 10)
}

/// Whether a change affects too many of `all` objects: more than the limit, or all of two or more.
pub fn is_mass(affected: usize, all: usize) -> bool {
    affected > limit(all) || (all >= 2 && affected >= all)
}

/// A change that needs the guard's permission, because it destroys something that many objects must not lose at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuardedChange {
    /// The object is deleted because what it was made from is missing.
    Delete,
    /// The object is let go because what it was made from has left the selector.
    LetGo,
    /// The content of an object that existed before is overwritten.
    Overwrite,
    /// The status of an object is cleared.
    ClearStatus,
}

impl GuardedChange {
    pub const ALL: [Self; 4] = [Self::Delete, Self::LetGo, Self::Overwrite, Self::ClearStatus];

    /// The change in a sentence, after "objects to".
    fn phrase(self) -> &'static str {
        match self {
            Self::Delete => "be deleted",
            Self::LetGo => "be let go",
            Self::Overwrite => "be overwritten",
            Self::ClearStatus => "lose their status",
        }
    }

    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::LetGo => "let_go",
            Self::Overwrite => "overwrite",
            Self::ClearStatus => "clear_status",
        }
    }
}

/// How many changes wait for an approval, by kind.
pub type HeldChanges = BTreeMap<GuardedChange, usize>;

/// What is held, in words: `19 to be deleted, 2 to lose their status`.
pub fn in_words(held: &HeldChanges) -> String {
    let what: Vec<String> = held.iter().map(|(change, count)| format!("{count} to {}", change.phrase())).collect();
    what.join(", ")
}

/// The message of a section for which something waits.
pub fn waits_for_approval(what: impl Display, section: impl Display) -> String {
    format!("{what} wait for `towline approve {section}`")
}

/// Sets the gauge of what is held, at a scrape.
pub fn record_held(section: &SectionName, held: &HeldChanges) {
    for change in GuardedChange::ALL {
        held_changes(section, change.as_str(), held.get(&change).copied().unwrap_or_default());
    }
}

/// Logs that the guard has begun to hold changes. `family` is the part of the section that it guards, if that is not the whole.
pub fn log_held(section: &SectionName, family: Option<&str>, held: &HeldChanges, first: &[String]) {
    let objects: usize = held.values().sum();
    // Somebody has to decide.
    tracing::error!(
        %section, family, objects, change = in_words(held), first = first.join(", "),
        "mass change is held until it is approved"
    );
}

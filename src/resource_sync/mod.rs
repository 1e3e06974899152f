//! Resource sync: one kind's spec goes from a remote cluster to a local one, its status and named secrets go back.
//!
//! [`plan`] is the heart and pure: what was observed in, the next step out; every rule of the specification is there
//! ([`names`], [`patch`], [`secrets`], [`settled`], [`former`], [`elsewhere`], `unkept`, [`contention`] and [`guard`] are its parts, each
//! pure too). Around it:
//!
//! - [`section`] holds what a section decides from (`namespaces` the part about those, `namespace_use` the
//!   index of what keeps them), `run` is its time at work, and
//!   [`crate::state`] what it has to know after its process ended; `awaited` is what caches have yet to show of our own writes.
//! - `news` translates what watches tell into keys, `overhear` what peers' watches tell. `attendant` wakes what waits
//!   (`owed`) for a cluster or a permission, and does what was `asked`.
//! - `reconcile` is the actor that observes, plans and does: `execute` turns a step into a request, `acknowledged` is about
//!   the replies, `missing` about remote objects that are not there, `rejected` about telling on the remote object what the
//!   local cluster rejects, `again` about what is written once more, `fights` about what others undo, `telling` about what
//!   people are told, `left_fields` about fields that were taken out of `local_fields`, `left_secrets` about copies of
//!   secrets that nobody keeps in step any more.
//! - `detach` ends a section for good and takes it back, `left_behind` finds what earlier settings have left, `standing` says
//!   whether the clusters are those of before, `twin` finds another daemon that runs the section, too.
//! - `events` tells people, `report` operators (`waits`: why an object is not in step, and what to do about it; `obstacles`:
//!   why a section can't decide).

mod acknowledged;
mod again;
mod approve;
mod asked;
pub mod attendant;
mod check;
pub mod config;
pub mod contention;
mod detach;
pub mod elsewhere;
pub mod ending;
pub mod events;
mod execute;
mod fights;
pub mod former;
pub mod guard;
mod index;
mod job;
#[cfg(test)]
mod laws;
mod left_behind;
mod left_fields;
mod left_secrets;
pub mod marks;
mod metrics;
mod missing;
pub mod names;
mod namespace_use;
mod namespaces;
mod news;
pub mod observe;
mod observed;
mod obstacles;
mod overhear;
pub mod ownership;
pub mod patch;
mod permissions;
pub mod plan;
mod protection;
pub mod reconcile;
mod rejected;
pub mod release;
pub mod report;
mod run;
pub mod secrets;
pub mod section;
pub mod settled;
#[cfg(test)]
mod stage;
pub mod standing;
mod telling;
mod twin;
mod unkept;
pub mod waits;
pub mod wiring;

pub use job::{SyncJob, sections};
pub use metrics::{Direction, HELD_KINDS, SyncMetrics};

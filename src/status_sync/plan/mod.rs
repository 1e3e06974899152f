//! The rules of status sync. Everything here is pure: no I/O, no clock, no shared state.
//!
//! A [`FamilySpec`] describes a family: its kinds, its tables, its fields. [`families`] rolls the reported rows of a
//! hub object up, and [`changes`] compares the result with what the caches show. [`Digest`] and [`Fingerprint`] are the
//! hashes that stand for objects and rows. [`PassSchedule`] decides when the next pass begins, [`same_hub`] decides whether the
//! hub is the same cluster as before, and [`ConflictTracker`] notices other writers of our fields.

pub mod changes;
mod conflict_tracker;
mod digest;
pub mod families;
mod family;
mod row_id;
pub mod same_hub;
mod sample;
mod schedule;

pub use conflict_tracker::ConflictTracker;
pub use digest::{Digest, Fingerprint, projection};
pub use family::{FamilySpec, Home, Shape, begin_roll_up, family_spec};
pub use row_id::RowId;
pub use sample::Sample;
pub use schedule::{GATHER, PassSchedule};

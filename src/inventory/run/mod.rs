//! The inventory at work.
//!
//! [`reconciler`] is the actor that owns the index and carries out its steps, [`poster`] the actor that posts. [`kinds`] lists what
//! is watched, [`caches`] says what the watches show, [`follower`] what has changed; [`record`] reads a release,
//! [`crd`] finds what a cluster's CRD drops, and [`latest`] has the latest state.

pub mod caches;
pub mod crd;
pub mod follower;
pub mod kinds;
pub mod latest;
pub mod poster;
pub mod reconciler;
pub mod record;

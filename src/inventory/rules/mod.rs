//! The rules of the inventory, and nothing else: no client, no clock, no log.
//!
//! - [`project`]: which `Hosstedproject` counts, and what it asks for.
//! - [`revision`]: the revisions of releases by their labels; [`release`]: what is read of the newest one.
//! - [`contents`] and [`quantity`]: what runs in a release, as the caches hold it and as it is reported.
//! - [`identity`]: the ids of the cluster and of releases. [`body`]: what is sent, its hash and its key.
//! - [`status`]: what the project's status remembers.
//! - [`index`]: what is known of every release, and what is to be done next.

pub(super) mod body;
pub(super) mod contents;
pub(super) mod identity;
pub(super) mod index;
pub(super) mod project;
mod quantity;
pub(super) mod release;
pub(super) mod revision;
pub(super) mod status;
mod text;

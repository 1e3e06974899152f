//! The rules of the inventory, and nothing else: no client, no clock, no log.
//!
//! - [`project`]: which `Hosstedproject` counts, and what it asks for.
//! - [`revision`]: the revisions of releases by their labels; [`release`]: what is read of the newest one.
//! - [`contents`] and [`quantity`]: what runs in a release, as the caches hold it and as it is reported.
//! - [`identity`]: the ids of the cluster and of releases. [`body`]: what is sent, its hash and its key.
//! - [`status`]: what the project's status remembers.
//! - [`ignored`]: when the condition of ignored projects is written.
//! - [`index`]: what is known of every release, and what is to be done next.

pub mod body;
pub mod contents;
pub mod identity;
pub mod ignored;
pub mod index;
pub mod project;
mod quantity;
pub mod release;
pub mod revision;
pub mod status;
mod text;

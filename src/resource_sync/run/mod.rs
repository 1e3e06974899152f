//! A section at work.
//!
//! - `index` is pure. It holds everything that a section knows about its pairs, its guard and its clusters.
//! - [`section`] owns the index. It follows the watches, translates their events into pairs to reconcile, requeues pairs that
//!   wait, carries out the operators' commands, and finds what earlier settings have left behind.
//! - [`reconcile`] is the actor of one pair, which observes, plans and acts. It alone writes objects.
//! - [`events`] writes Events.

pub mod events;
pub mod index;
pub mod reconcile;
pub mod section;

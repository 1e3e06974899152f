//! A section at work.
//!
//! - `index` is pure. It holds everything that a section knows about its pairs, its guard and its clusters.
//! - [`section`] owns the index. It follows the watches, translates their events into pairs to reconcile, requeues pairs that
//!   wait, carries out the operators' commands, finds what earlier settings have left behind, and writes Events.
//! - [`reconcile`] is one run of one pair, which observes, plans and acts. It alone writes objects.

pub mod index;
pub mod reconcile;
pub mod section;

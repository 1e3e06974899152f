//! A section at work.
//!
//! The way of a change, which is a good order to read it in. What decides on the way is in [`plan`](super::plan):
//!
//! 1. A watch shows that an object of either side has changed. [`section`] translates that to the keys of pairs (`watch_events`), and requests them from
//!    the dispatcher, which runs each pair once at a time.
//! 2. [`reconcile`] is one run of one pair: it observes both sides, asks [`next()`](super::plan::next::next) for a step, sends its request, and
//!    repeats this until there is no further step. It alone writes objects.
//! 3. [`index`] has what the section knows of its pairs, its guard and its clusters, from watches and runs. It is pure, and the section owns it.
//! 4. `section/requeue` requests pairs that wait for something that no watch reports.
//!
//! Beside that way [`section`] begins and ends its run, identifies its clusters, carries out the operators' commands, finds what earlier settings have
//! left behind, and says what is told in Events.

pub mod index;
pub mod reconcile;
pub mod section;

//! Syncsets at work: actors, and what they read and write.
//!
//! The way of a change of a `SyncSet` to a cluster, which is a good order to read it in. What decides on the way is in [`plan`](super::plan):
//!
//! 1. The hub stores the document, and the log has a row of it.
//! 2. [`dispatch`]: the dispatcher, of which there is one, reads the row, finds out which clusters it concerns, has the guard check what it would delete, and
//!    marks those clusters as ready in the work queue (`documents/work`).
//! 3. [`work`]: a worker of any replica claims a cluster that is ready, reads what is stored of it, runs a pass over it, and stores and shows the result.
//! 4. [`store`]: the statements of passes.
//!
//! Passes of a process share [`slots`], which bound how much is done at once, and [`payloads`] that were read.
//!
//! Beside that way: [`rollouts`] shows and steers rollouts, which the dispatcher moves on; [`counts`] and [`applied`] count what is known of all clusters; and
//! [`paused`] says, for statements, which of them are paused.

pub mod applied;
pub mod counts;
pub mod dispatch;
pub mod paused;
pub mod payloads;
pub mod rollouts;
pub mod slots;
pub mod store;
pub mod work;

//! Syncsets at work.
//!
//! [`dispatch`] turns changes of documents into work, and guards deletions. [`work`] claims clusters and brings them in step, with
//! [`slots`] that bound how much it does at once, [`idle`] connections and [`payloads`] that passes share. [`store`] reads and writes
//! what is stored; [`rollouts`] shows and steers rollouts; [`counts`] and [`applied`] count what is known of all clusters, and
//! [`paused`] says which of them are paused.

pub mod applied;
pub mod counts;
pub mod dispatch;
pub mod idle;
pub mod paused;
pub mod payloads;
pub mod rollouts;
pub mod slots;
pub mod store;
pub mod work;

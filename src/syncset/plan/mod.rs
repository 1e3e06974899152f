//! What syncsets mean, and what there is to do. No I/O and no clock: what asks for something is given whom to ask ([`pass::Target`]).
//!
//! What decides, in the order in which a change meets it:
//!
//! 1. [`concern`]: whom changes of documents concern; [`guard`]: what they would delete, and whether that is suspended, by the names that [`naming`] finds.
//! 2. [`rollout`]: which clusters a change reaches first, and when others follow.
//! 3. [`snapshot`]: what is stored of one cluster, which syncsets it has ([`matching`]), and what there is to do for it ([`action`]).
//! 4. [`render`]: what a syncset sends to the cluster, as [`object`]s, which are compared by their [`digest`]s.
//! 5. [`pass`]: what is sent and deleted, and in which order. [`wanted`] says which objects all syncsets of the cluster want. What a pass has of an object
//!    that was read is made by [`seen`]; [`lists`], [`unions`] and [`ownership`] help where a plain write would not do.
//! 6. [`health`]: whether what was applied works. [`retry`]: when the cluster is looked at again. [`status`]: what its `ClusterSync` shows.
//!
//! The words for all this: [`name`], [`spec`] (what [`parse`] reads from documents), [`rows`] (what is stored of passes), [`reason`] (why one failed).

pub mod action;
pub mod concern;
pub mod digest;
pub mod guard;
pub mod health;
pub mod lists;
pub mod matching;
pub mod name;
pub mod naming;
pub mod object;
pub mod ownership;
pub mod parse;
pub mod pass;
pub mod reason;
pub mod render;
pub mod retry;
pub mod rollout;
pub mod rows;
pub mod seen;
pub mod snapshot;
pub mod spec;
pub mod status;
pub mod unions;
pub mod wanted;

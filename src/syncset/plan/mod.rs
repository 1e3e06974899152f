//! What syncsets mean. No I/O and no clock: what asks for something is given whom to ask ([`pass::Target`]).
//!
//! [`name`] and [`spec`] say what a syncset is, [`rows`] what is stored of passes, [`reason`] why
//! one failed, [`status`] what is shown of them. [`parse`] reads syncsets from documents, [`matching`] says which clusters they are for, and [`render`] what they
//! send to one: [`object`]s, compared by their [`digest`]s. [`action`] finds out what there is to do on a cluster, [`wanted`] which
//! objects its syncsets want, [`pass`] brings them about (with [`lists`], [`unions`] and [`ownership`] where a plain write would not do), and [`retry`] says when the cluster is looked at again. [`guard`] decides what
//! changes would delete, with the names that [`naming`] finds. [`health`] says whether what was applied works.

pub mod action;
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
pub mod spec;
pub mod status;
pub mod unions;
pub mod wanted;

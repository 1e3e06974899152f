//! The rules of resource sync, each of them pure: what was observed in, the next step out.
//!
//! [`plan`] is the heart: it states every rule of the specification, in order, and is asked again after each step, until a pair
//! rests ([`observed`] folds a step into what was observed). [`ending`] is its rule 3, who may be deleted; [`guard`] is what
//! stands before it where many would go. The others are its parts:
//!
//! - [`names`]: which objects are a pair; [`marks`] and [`ownership`]: which are ours; [`former`]: what marks were called
//!   before; [`elsewhere`]: what belongs to other clusters;
//! - [`patch`]: what differs and how it is closed; [`secrets`]: what goes to the remote; [`server_result`] and [`unkept`]: what an
//!   API server made of our writes; [`conflicts`]: what others undo;
//! - [`waits`]: why a pair is not in step, and what to do about it.

pub mod conflicts;
pub mod elsewhere;
pub mod ending;
pub mod former;
pub mod guard;
#[cfg(test)]
mod laws;
pub mod marks;
pub mod names;
pub mod observed;
pub mod ownership;
pub mod patch;
pub mod plan;
pub mod secrets;
pub mod server_result;
pub mod unkept;
pub mod waits;

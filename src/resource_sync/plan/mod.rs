//! The rules of resource sync. All of them are pure functions of what was observed.
//!
//! [`next`](next::next) states every rule of the specification, in order: what was [`observed`] gives a [`step`], a question or
//! a rest. It is asked again after each step, until nothing is left to do ([`Observed::apply`](observed::Observed::apply) folds a
//! step into the observation). [`ending`] says which objects may be deleted, and [`guard`] holds deletions of many objects. No two
//! of these files import each other. The others are parts of the plan:
//!
//! - [`names`]: which objects form a pair; [`marks`] and [`ownership`]: which objects are ours; [`renewal`]: marks that get
//!   another content; [`elsewhere`]: objects that belong to other clusters;
//! - [`patch`]: differences and the patches that remove them; [`secrets`]: Secrets for the remote; [`server_result`]: an API
//!   server's result of our writes; [`conflicts`]: parts that other clients keep undoing;
//! - `observed_generation`: the remote object's generations in a status; [`policy`]: the configuration that the rules depend on;
//! - [`waits`]: why a pair is not in step, and what an operator can do about it.

pub mod conflicts;
pub mod elsewhere;
pub mod ending;
pub mod guard;
#[cfg(test)]
mod laws;
pub mod marks;
pub mod names;
pub mod next;
pub mod observed;
mod observed_generation;
pub mod ownership;
pub mod patch;
pub mod policy;
pub mod renewal;
pub mod secrets;
pub mod server_result;
pub mod step;
pub mod waits;

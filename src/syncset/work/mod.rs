//! Work on one cluster: from a claim to what is stored of the pass.

mod executor;
mod refusal;
mod seen;

pub use executor::{Client, Executor};
pub use refusal::Stop;
pub use seen::seen;

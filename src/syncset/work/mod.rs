//! Work on one cluster: from a claim to what is stored of the pass.

mod executor;
mod plan;
mod prepare;
mod refusal;
mod seen;

pub use executor::{Client, Executor};
pub use plan::{LiveSyncset, Plan};
pub use prepare::{NoCredentials, PrepareError, Prepared, Preparer, Weighed};
pub use refusal::Stop;
pub use seen::seen;

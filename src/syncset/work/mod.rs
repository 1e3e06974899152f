//! Work on one cluster: from a claim to what is stored of the pass.

mod seen;

pub use seen::seen;

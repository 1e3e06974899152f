//! The laws of the index.

mod delivery;
mod faults;
mod lifecycle;
mod limits;
mod refusals;
mod world;

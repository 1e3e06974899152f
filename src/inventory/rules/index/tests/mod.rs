//! The laws of the index.

mod delivery;
mod faults;
mod lifecycle;
mod world;

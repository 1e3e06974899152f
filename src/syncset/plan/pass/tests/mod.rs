//! Each rule as a table, on a simulated cluster; and what holds for all of them together.

mod deleting;
mod drift;
mod existing;
mod keeping;
mod laws;
mod listing;
mod moving;
mod recreating;
mod sending;
mod store;
mod switching;
mod taking_over;
mod world;
mod yielding;

//! The hub at work.
//!
//! [`actors`] builds the actors, and has those that are not documents' own. [`api`] holds the routes, and answers requests; [`problem`] turns
//! problems into answers. [`outages`] logs requests that could not be carried out, [`refusals`] records those that were refused, and [`history`] shows records.

pub mod actors;
pub mod api;
pub mod history;
pub mod outages;
pub mod problem;
pub mod refusals;

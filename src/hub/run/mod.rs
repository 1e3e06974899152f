//! The hub at work.
//!
//! [`actors`] builds the actors, and has those that are not documents' own. [`api`] holds the routes, and answers requests; `openapi`
//! describes them; [`problem`] turns problems into answers.
//! [`outages`] logs requests that could not be carried out.

pub mod actors;
pub mod api;
mod openapi;
pub mod outages;
pub mod problem;

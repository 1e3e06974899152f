//! The hub at work.
//!
//! The way of a change from its request to the watches, which is a good order to read it in:
//!
//! 1. [`api`] finds out who asks (`routes`, with [`access`]), and what for (`parameters`), and whether that is allowed.
//! 2. `api/changes` takes the body.
//! 3. `documents/facade` reads the document, and begins again if another write came first.
//! 4. `documents/decide` makes an item of what was read and asked: what is to be written.
//! 5. `documents/writer` sends all items that wait in one call.
//! 6. `documents/schema/procedure.sql` is that call: versions in the order of commits, the documents, and the log.
//! 7. `documents/tail` reads the log into the ring of all watches, which `api/watch` sends.
//!
//! [`actors`] builds the actors, and has those that are not documents' own. [`api`] holds the routes, and answers requests; [`problem`] turns
//! problems into answers, and [`access`] knows the grants in force. [`outages`] logs requests that could not be carried out, [`refusals`] records those that were refused, and [`history`] shows records.

pub mod access;
pub mod actors;
pub mod api;
pub mod history;
pub mod outages;
pub mod problem;
pub mod refusals;

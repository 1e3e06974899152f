//! What operators see of the sections: `/status`, `/readyz`, the state gauges, and the admin server that serves them.
//!
//! A job implements [`Section`]: it tells its [`Facts`], of which its [`Objects`] are a part, from what it holds at that moment, and
//! adds a report of its own. Condition, readiness, the row in the table of `towline status`, the objects by state and the list of
//! those that are not in step are derived from the facts here, in one way for all jobs.
//!
//! [`serve`] runs the admin server until it is stopped; it knows sections and the actor tree only as [`Section`] and [`Tree`].

mod access;
mod admin;
mod condition;
mod history;
mod objects;
mod section;
mod server;

pub(crate) use access::read_token;
pub use access::{Denials, ReadToken};
pub use admin::Admin;
#[cfg(test)]
pub use condition::Condition;
pub use condition::{Facts, NotReady, Purpose, SectionState, brief};
pub use history::History;
pub use objects::{ListedObject, ObjectPage, ObjectState, Objects, Selection};
pub use section::{Held, HeldObject, Refused, Section, Tree, explained};
pub use server::serve;

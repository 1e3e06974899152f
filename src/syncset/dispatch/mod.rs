//! The dispatcher: turns changes of documents into requests for clusters (P1 to P5 of the bus).
//!
//! It reads the log above its cursor, finds out whom the changes concern, and asks for those clusters in the transaction that moves
//! the cursor. So a crash loses no request, and at worst repeats some. A request for a cluster that has nothing to do is harmless: the
//! pass finds that out with one statement. So wherever it is not certain whom a change concerns, it concerns more clusters.

mod actor;
mod change;
mod concern;
mod error;
mod read;
mod selection;
mod step;
mod turn;

pub use actor::{DispatchObserver, Dispatcher};
pub use error::DispatchError;
pub use turn::{Dispatch, Turn};

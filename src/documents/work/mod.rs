//! The work queue: clusters that wait for a pass, in table `towline_work`, and the claims of those that work on them.
//!
//! ```text
//! ask ──► row, ready ──claim──► Work, renewed every 6 s ──done──► row, ready again at its time
//!          ▲                     │                          └───► ready now, if somebody asked meanwhile
//!          └── 30 s after the last renewal: dropped, killed, cut off
//! ```
//!
//! [`WorkQueue`] is the queue itself. A cluster has one row, and is claimed by one process at a time: [`Work`] is the claim, with a
//! fence that is open until 20 s after the last request for it that was granted or renewed was sent. A request for a row that waits is
//! merged with it; one that comes during a pass is seen at the end of the pass and makes the row ready at once. So there is always a
//! pass that begins after the request.
//!
//! [`WorkConsumer`] waits for work, and claims it as long as there are free slots: it looks once a second, and is woken by the database or, with
//! a message broker, by hints. [`ClaimOrder`] decides which rows the slots take, and [`ClaimSlots`] of which namespaces.
//! The claims are renewed by the actor of all claims of the process (`claims`).

mod consumer;
mod granted;
mod namespaces;
mod order;
mod queue;

pub use consumer::WorkConsumer;
pub use granted::Work;
pub use namespaces::{ClaimLimits, ClaimSlot, ClaimSlots, Namespaces};
pub use order::{ClaimMix, ClaimOrder};
pub use queue::{Counts, RowEnd, WorkEnd, WorkQueue};

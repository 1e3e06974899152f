//! actor
mod backoff;
mod channel;
mod child;
mod control;
mod dispatcher;
mod exit;
mod handle;
mod key_mailbox;
mod mailbox;
mod name;
mod report;
mod restart;
mod schedule;
mod scope;
mod shell;
mod slot;
mod supervisor;
mod system;

pub use backoff::Backoff;
pub use channel::Closed;
pub use child::ChildSpec;
pub use control::StartError;
pub use dispatcher::{Dispatcher, Limits, Observe, Outcome, Reconciler, ReconcilerFactory, Snapshot, dispatch};
pub use exit::{BoxError, ExitReason};
pub use handle::SupervisorHandle;
pub use key_mailbox::{Key, KeyInbox, KeyMailbox, Requested, key_mailbox};
pub use mailbox::{Inbox, Mailbox, Offered, mailbox};
pub use name::Name;
pub use report::{ActorReport, DrainReport, Gauge, MailboxReading};
pub use restart::RestartPolicy;
pub use scope::{Scope, WorkGuard};
pub use supervisor::Supervisor;
pub use system::{Heartbeat, run};

#[cfg(test)]
mod tests;

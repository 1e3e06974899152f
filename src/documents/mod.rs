//! The hub's documents: their kinds, validation, decisions, writes, lists and log, on a PostgreSQL database. No HTTP.
//!
//! A [`Document`] is one object of one [`Kind`], and a row of a table (`schema.rs`). A
//! decision is pure: it takes the document as it was read, and a request, and returns what has to be written ([`Item`]). An item is
//! written together or not at all, and only if every document in it still has the version that the decision was made from.
//! Each write gets a version, and each version one row of the log, in the order in which they became visible.
//!
//! A [`list()`] shows the state of one version, page by page. A [`Watch`] sends the changes after a version in their order; the
//! [`Tail`] reads them once for all watches of the process.
//!
//! The [`WorkQueue`] says which clusters wait for a pass, and gives each to one process at a time. [`Claims`] renews what a process
//! holds.
//!
//! Over a message broker, the [`Relay`] publishes the log for programs outside; [`Broker`] says how its connections stand.
//!
//! What a caller did wrong, and what it can do now, is a [`Problem`].

mod blocking;
mod body;
mod bus;
mod changes;
mod claims;
mod cluster_sync;
mod compact;
mod compaction;
mod decide;
mod document;
mod facade;
mod filter;
mod history;
mod item;
mod keyring;
mod kind;
mod large;
mod list;
mod list_error;
mod namespace_pattern;
mod object;
mod operations;
mod patch_text;
mod problem;
mod restored;
mod schema;
mod selected;
mod selector;
mod shared;
mod slots;
mod store;
mod syncset_health;
mod tail;
mod template;
mod validate;
mod work;
mod writer;

pub use blocking::{BlockingPool, BlockingSlot, ShutsDown};
pub use body::{Body, Manifest, manifests_of_json, manifests_of_yaml, sizes};
pub use bus::{Broker, BusObserver, ConnectionState, Purpose, Relay};
pub use changes::Changes;
pub use claims::{Claims, Grant, Holder, Leadership, Role};
pub use compaction::{Compacted, Compaction, Keeps, compact};
pub use decide::{Action, Context, Effect, Fresh, IfMatch, Part, Request, decide, not_found};
pub use document::{Document, Key, Timestamp, UnreadableRow};
pub use facade::{Documents, Done};
pub use filter::{Fields, Filter};
pub use history::{Author, Entry, FORGOTTEN, HistoryQuery, Position, StoredRecord, Subject, page as history_page};
pub use item::{Change, Expected, Item, Outcome, Quota, Row, Usage, WorkClaim};
pub use keyring::{Keyring, OpenError, SealError, SealedWith};
pub use kind::{Kind, Sealed};
pub use large::{LargeSlot, LargeSlots};
pub use list::{Continue, DEFAULT_LIMIT, ListQuery, MAX_LIMIT, Page, list, list_json};
pub use list_error::ListError;
pub use namespace_pattern::NamespacePattern;
pub use object::{Object, WeakObject};
pub use operations::Operations;
pub use patch_text::{PatchForm, PatchReader, has_owners};
pub use problem::{Cause, Fault, PROBLEM_TYPES, Problem, ProblemKind};
pub use restored::{IS_WHOLE, renumber};
pub use schema::{Migrated, SCHEMA, SchemaState, migrate, open};
pub use selected::{missing_clusters, selected_ids};
pub use selector::{Parameters, label_condition, label_conditions};
pub use shared::Shared;
pub use slots::{CallerSlots, SlotOwner};
pub use store::Store;
pub use syncset_health::HAS_HEALTH;
pub use tail::{CHANNEL as LOG_CHANNEL, EVERY as LOG_EVERY, Ending, Event, Tail, Watch, WatchQuery};
pub use template::{Template, TextBudget};
pub use validate::{
    FIELD_POINTERS, FieldPointer, HEALTH_WITHIN, IGNORE_FIELDS, MOST_WAVE_VALUES, PATH_SEGMENT, field_pointers,
    group_of, health_within, is_directive, is_forbidden_kind, is_kind, is_path_segment, key_of_body, requirements_of,
};
pub use work::{
    ClaimLimits, ClaimMix, ClaimOrder, ClaimSlot, ClaimSlots, Counts, Namespaces, RowEnd, Work, WorkConsumer, WorkEnd,
    WorkQueue,
};
pub use writer::{WriteError, Writer, WriterHandle};

//! Whether the database can be read.
//!
//! While a dump is being restored, tables are missing, empty or half full, and the row of `towline_meta` comes after the documents.
//! Its origin is then that of another database, and at the end the sequence is set back. So as long as a write would be refused,
//! reads are, too: half a list looks like many deletions.

/// The condition on `m`, the row of `towline_meta`, and `s`, the sequence `towline_version`; `towline_write` has the same.
pub const CONDITION: &str = "(m.origin = towline_origin() and m.base <= s.last_value)";

/// Why a read is refused.
pub(super) const REASON: &str = "the database is being restored, or its versions have not been renumbered since";

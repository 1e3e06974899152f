//! Whether the schema of the database is there, as everything sees it that waits for it.

/// Whether the schema is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaState {
    Missing {
        reason: String,
        /// Why, for clients: nothing that the server says.
        told: &'static str,
    },
    /// It is as this release needs it.
    Current,
}

//! Whether the schema of the database is there, as the API and the report see it.

/// Whether the schema is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SchemaState {
    /// Not yet, for this reason.
    Missing(String),
    /// It is as this release needs it.
    Current,
}

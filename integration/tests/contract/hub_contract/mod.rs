//! The OpenAPI document of a running hub, held to by programs that know nothing else of it: schemathesis, which looks for answers that
//! the document does not have, and the Go client, which is generated from it.
//!
//! Each test has a database of its own with its name.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the allowance for tests does not reach their helpers"
)]

mod go_client;
mod schemathesis;
mod world;

//! The hub and what it rests on: documents, the bus and queues of work, on real databases, brokers and clusters.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the allowance for tests does not reach their helper functions"
)]

mod bus;
mod db;
mod documents;
mod documents_read;
mod edges;
mod hub;
mod hub_replicas;
mod servers;
mod work;

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Runs a test on the one runtime of the process: the servers that tests share live on it, and must not end with one of them.
fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(test)
}

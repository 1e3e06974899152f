//! Status sync and syncsets: a database on one side, clusters on the other.

#![expect(clippy::unwrap_used, reason = "the allowance for tests does not reach their helper functions")]

// Tests start in the order of their names: those that wait for claims to run out start first, and wait while others work.
mod chaos;
mod status_sync;
mod syncsets;
mod syncsets_commands;

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Runs a test on the one runtime of the process: the servers that tests share live on it, and must not end with one of them.
fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(test)
}

//! Status sync and syncsets: a database on one side, clusters on the other.

#![expect(clippy::unwrap_used, reason = "the allowance for tests does not reach their helper functions")]

mod status_sync;
mod syncsets;
mod syncsets_chaos;
mod syncsets_commands;

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Runs a test on the one runtime of the process: the servers that tests share live on it, and must not end with one of them.
fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(test)
}

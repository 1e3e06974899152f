//! Resource sync, leases, elections, inventory, and what the roles and policies of `deploy/` let an edge do, on real API servers.

#![expect(clippy::unwrap_used, reason = "the allowance for tests does not reach their helper functions")]

mod edges;
mod elections;
mod faults;
mod inventory;
mod leases;
mod rules;
mod rules_world;

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Runs a test on the one runtime of the process: the servers that tests share live on it, and must not end with one of them.
fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(test)
}

//! What others rely on, told by programs that know nothing else of it: the API's document, templates, `deploy/`, and the fixtures of the other tests.

#![expect(clippy::unwrap_used, reason = "the allowance for tests does not reach their helper functions")]

mod chart;
mod completions;
mod deploy;
mod fixtures;
mod health;
mod hub_contract;
mod installed;
mod start;
mod templates;

use std::future::Future;
use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Runs a test on the one runtime of the process: the servers that tests share live on it, and must not end with one of them.
fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(test)
}

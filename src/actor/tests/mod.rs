//! Laws of the kit as a whole: supervision, drain, and the control lane beside a busy work lane.

use std::future::Future;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::sleep;

use super::backoff::*;
use super::gate::*;
use super::mailbox::*;
use super::report::*;
use super::supervisor::*;
use super::system::run;

mod control;
mod drain;
mod gates;
mod supervision;

/// Waits for a condition, looking once a millisecond (of the paused clock, where it is paused) for up to a minute.
pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("waited in vain until {what}");
}

/// Gives a test a control lane on the test's own runtime.
async fn on_control_lane<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

/// A policy that restarts after exactly a second, so often within a minute.
fn policy(budget: u32) -> RestartPolicy {
    let second = Duration::from_secs(1);
    let backoff = Backoff { first: second, cap: second, jitter: 0.0 };
    RestartPolicy { backoff, budget, window: Duration::from_mins(1) }
}

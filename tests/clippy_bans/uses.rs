//! Uses every method that clippy.toml bans, once each, so that `check.sh` can see each ban fire. Never run.
use actix::prelude::*;

/// An actor to send to.
pub struct Target;

impl Actor for Target {
    type Context = Context<Self>;
}

/// An actor for threads of its own.
pub struct ThreadTarget;

impl Actor for ThreadTarget {
    type Context = SyncContext<Self>;
}

/// A message.
pub struct Nothing;

impl Message for Nothing {
    type Result = ();
}

impl Handler<Nothing> for Target {
    type Result = ();

    fn handle(&mut self, _: Nothing, _: &mut Self::Context) {}
}

impl Supervised for Target {}

/// Sends in every way that actix has.
pub async fn send(address: Addr<Target>, recipient: Recipient<Nothing>) {
    let _ = address.send(Nothing).await;
    address.do_send(Nothing);
    let _ = address.try_send(Nothing);
    let _ = recipient.send(Nothing).await;
    recipient.do_send(Nothing);
    let _ = recipient.try_send(Nothing);
}

/// Starts in every way that is banned, and makes every channel without a bound.
pub fn start() {
    let _ = Arbiter::new();
    let _ = SyncArbiter::start(1, || ThreadTarget);
    let _ = Supervisor::start(|_| Target);
    let _ = tokio::sync::mpsc::unbounded_channel::<()>();
    let _ = std::sync::mpsc::channel::<()>();
    let _ = futures::channel::mpsc::unbounded::<()>();
    std::thread::sleep(std::time::Duration::ZERO);
}

//! Keeps changing every section's object on the hub, so that the holder of each section writes all the time.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::elections::world::{SECTIONS, World};

/// Runs until it is dropped.
pub(crate) struct Churn(JoinHandle<()>);

impl Churn {
    /// Changes one object after the other, with this pause between two.
    pub(crate) fn start(world: &World, pause: Duration) -> Self {
        let world = world.clone();
        Self(tokio::spawn(async move {
            for turn in 0_usize.. {
                let patch = json!({"spec": {"storage": format!("{}Gi", turn % 500 + 1)}});
                // Some tests stop the server.
                let _ =
                    world.on_hub(turn % SECTIONS).patch("orders", &PatchParams::default(), &Patch::Merge(patch)).await;
                tokio::time::sleep(pause).await;
            }
        }))
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.0.abort();
    }
}

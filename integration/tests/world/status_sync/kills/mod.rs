//! The daemon is killed at random moments while rows of all families churn; afterwards the cluster is what the database says,
//! by plain SQL.

mod churn;
mod expected;
mod shown;

use std::time::Duration;

use integration::soak::{self, Random};
use integration::{Towline, eventually};

use self::churn::churn;
use crate::status_sync::world::{LIMIT, Stage, run};

/// How often the daemon is killed in `make test`.
const KILLS: u64 = 4;
/// Objects of each kind.
const OBJECTS: u64 = 6;

#[test]
fn after_kills_at_random_moments_the_cluster_is_what_plain_sql_says() {
    run(async {
        let mut random = Random::new(soak::seed());
        let stage = Stage::new("kills").await;
        let mut policies = Vec::new();
        for index in 0..OBJECTS {
            let name = format!("o{index}");
            policies.push(stage.wanted("policies", &name).await);
            for plural in ["placementrules", "placements", "subscriptions"] {
                stage.wanted(plural, &name).await;
            }
        }
        let mut towline = Towline::start(&stage.config("interval = \"50ms\""), &[]).await.expect("the daemon starts");
        for _ in 0..soak::rounds(KILLS) {
            // Not a wait for anything: the moment of the kill is to be anywhere.
            let moment = tokio::time::Instant::now() + Duration::from_millis(random.below(1_200));
            while tokio::time::Instant::now() < moment {
                churn(&stage, &policies, &mut random).await;
            }
            towline.start_again().await.expect("it is killed and started");
        }
        eventually("the cluster to be what the database says", LIMIT, async || {
            let (expected, shown) = (expected::all(&stage).await, shown::all(&stage).await);
            let differs = expected.iter().zip(&shown).find(|(expected, shown)| expected != shown);
            differs.map_or(Ok(()), |(expected, shown)| Err(format!("expected {expected:?}, shown {shown:?}")))
        })
        .await
        .unwrap();
    });
}

//! Work: how many clusters a second go through the queue.

use std::time::Instant;

use integration::Error;
use serde::Serialize;

use super::world::{Cost, World};
use crate::options::BusOptions;
use crate::phases::to_float;

/// Rows that are ready or worked on.
const LEFT: &str = "select count(*) from towline_work where ready_at <= now() or until > now()";
/// What a request for all of them does.
const ASK: &str = "with asked as (update towline_work set wanted = wanted + 1, attempts = 0, ready_at = now() returning 1) \
                   select pg_notify('towline_work', '') from (select count(*) from asked) a";

/// Clusters that went through the queue.
#[derive(Debug, Serialize)]
pub(crate) struct Worked {
    pub(super) clusters: usize,
    pub(super) per_second: f64,
    pub(super) cost: Cost,
}

/// Asks for all clusters at once, after they have been worked on once.
pub(super) async fn measure(world: &mut World<'_>, options: BusOptions) -> Result<Worked, Error> {
    world.start_workers().await?;
    let missing = format!("select {} - count(*) from towline_work", options.clusters);
    world.becomes_none("the dispatcher to ask for all clusters", &missing).await?;
    world.connected().await?;
    world.becomes_none("the first visits to end", LEFT).await?;
    let (meter, began) = (world.meter()?, Instant::now());
    world.sql.batch_execute(ASK).await.map_err(Error::database("ask for all clusters"))?;
    world.becomes_none("the clusters to be visited", LEFT).await?;
    let per_second = to_float(options.clusters) / began.elapsed().as_secs_f64();
    Ok(Worked { clusters: options.clusters, per_second, cost: meter.end(world)? })
}

impl Worked {
    pub(super) fn line(&self) -> String {
        format!(
            "  work     {:>6} clusters at once: {:.0} a second; {}",
            self.clusters,
            self.per_second,
            self.cost.line()
        )
    }
}

//! How soon the sections of a replica that ends run in one that stands by.

use std::time::{Duration, Instant};

use integration::{Error, Towline, eventually, users};

use super::moments::Moment;
use super::world::{LONGEST_STEP, SECRET_NAMESPACE, World};

/// Of the election.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
/// Its third.
const RENEWAL: Duration = Duration::from_millis(1_500);
const SECTIONS: usize = 4;

/// One that runs everything is asked to end, and later one is killed.
pub(crate) async fn measure(world: &World) -> Result<Vec<(Moment, f64)>, Error> {
    world.delete_leases().await?;
    world.give_credentials(users::TOWLINE).await?;
    let (leaving, staying) = pair(world, "one", "two").await?;
    let begun = Instant::now();
    leaving.ask_to_end()?;
    let terminated = runs_all(&staying, begun).await?;
    leaving.wait_exited(LONGEST_STEP).await?;
    drop(staying);
    let (killed, heir) = pair(world, "three", "four").await?;
    let begun = Instant::now();
    killed.kill9().await?;
    Ok(vec![(Moment::Terminated, terminated), (Moment::Killed, runs_all(&heir, begun).await?)])
}

/// A replica that runs all sections, and one that stands by.
async fn pair(world: &World, one: &str, other: &str) -> Result<(Towline, Towline), Error> {
    let election = format!(
        "[election]\ncluster = \"managed\"\nnamespace = \"{SECRET_NAMESPACE}\"\nlease_duration = \"{}s\"\n\
         renew_interval = \"{}ms\"\n",
        LEASE.as_secs(),
        RENEWAL.as_millis()
    );
    let config = world.config(SECTIONS, LEASE * 3)? + &election;
    let start = async |identity| Towline::start(&config, &[("TOWLINE__ELECTION__IDENTITY", identity)]).await;
    let first = start(one).await?;
    runs_all(&first, Instant::now()).await?;
    let second = start(other).await?;
    second.wait_ready(LONGEST_STEP).await?;
    Ok((first, second))
}

/// Seconds until all sections run in it.
async fn runs_all(replica: &Towline, begun: Instant) -> Result<f64, Error> {
    eventually("all sections to run in one replica", LONGEST_STEP, async || match running(replica).await {
        SECTIONS => Ok(begun.elapsed().as_secs_f64()),
        count => Err(format!("{count} run")),
    })
    .await
}

/// How many sections a replica says run in it.
async fn running(replica: &Towline) -> usize {
    let metrics = replica.admin().metrics().await.unwrap_or_default();
    metrics.lines().filter(|line| line.starts_with("leader_election_master_status{") && line.ends_with(" 1")).count()
}
